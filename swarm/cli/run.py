"""The main job: `swarm run`.

Enters: slots, an agent, a plan. Leaves: a run, followed live, and what to type next.
Guards: nothing starts before plan, agent and target are known to be good.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click

from swarm import adapter as adapters
from swarm import plan, prompt
from swarm.config import listing
from swarm.errors import Exit, TargetRed, UsageError
from swarm.gate import Gate
from swarm.ids import new_nonce
from swarm.ledger.store import Logged
from swarm.loop import Setting
from swarm.output import QUIET, event_line, since_text
from swarm.plumbing import checkout as user
from swarm.plumbing.hub import LEDGER
from swarm.supervisor import Supervisor
from swarm.task import take_plan
from swarm.workspace import Workspace, opened


@click.command(context_settings={"ignore_unknown_options": False})
@click.option("-n", "slots", type=click.IntRange(1, 64), help="Agents at once.")
@click.option("--agent", help="The adapter: claude, codex, command, scripted, or your own.")
@click.option("--model", help="Passed on to the agent.")
@click.option("--allow-red", is_flag=True, help="Start although the target's own checks fail.")
@click.option("--keep-going", is_flag=True, help="Wait for new tasks instead of ending.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(
    slots: int | None,
    agent: str | None,
    model: str | None,
    allow_red: bool,
    keep_going: bool,
    command: tuple[str, ...],
) -> int:
    """Run agents until nothing left can move: swarm run -n 4 --agent claude, or -- ./my-agent.sh"""
    with opened() as work:
        return int(execute(work, slots, agent, model, allow_red, keep_going, command, click.echo))


def execute(
    work: Workspace,
    slots: int | None,
    agent: str | None,
    model: str | None,
    allow_red: bool,
    keep_going: bool,
    command: tuple[str, ...],
    say: Callable[[str], None],
) -> Exit:
    """One run, printed through `say`."""
    config = work.config
    name = agent or ("command" if command else None) or config.run.agent
    if name is None:
        found = adapters.found_on_path(os.environ.get("PATH", os.defpath))
        seen = ", ".join(f"{n} {v or ''}".strip() for n, v in found) or "no known agent"
        raise UsageError(
            "no agent named",
            why=f"found on PATH: {seen}",
            hint="swarm run -n 4 --agent claude       or  swarm run -n 4 -- ./my-agent.sh",
        )
    adapter = adapters.load(name, work.checkout)
    template = None
    if config.prompt.template:
        template = (work.checkout / config.prompt.template).read_text("utf-8")
        prompt.check(template, name=config.prompt.template)
    _take_tasks(work, say)
    ledger = work.ledger
    number = len(ledger.view().runs()) + 1
    run_name = f"r{number}"
    runner = f"{run_name}-{new_nonce()[:6]}"
    setting = Setting(
        ledger=ledger,
        layout=work.layout,
        config=config,
        checkout=work.checkout,
        run=run_name,
        runner=runner,
        adapter=adapter,
        argv_extra=command,
        typed_in=Path.cwd(),
        rules=work.rules,
        bounds=work.bounds,
        terms=work.terms,
        copies=tuple(user.ignored_matching(work.checkout, config.worktree.copy)),
        user_excludes=user.user_excludes(work.checkout),
        template=template,
        model=model,
    )
    gate = Gate(
        ledger,
        work.layout,
        config,
        work.checkout,
        runner,
        rules=work.rules,
        bounds=work.bounds,
        lease=config.claims.lease,
    )
    supervisor = Supervisor(
        setting, gate, slots or config.run.slots, keep_going=keep_going or config.run.keep_going
    )
    supervisor.heal()
    start = ledger.hub.reader.ref(LEDGER)
    began = datetime.now(UTC)
    printer = Printer(supervisor, start, began, say)
    try:
        supervisor.judge_target()
    except TargetRed:
        if not (allow_red or config.run.allow_red):
            gate.close()
            raise
    with _signals(supervisor, say):
        end = supervisor.run(printer.tick)
    say(f"done: {end.why}")
    return end.exit_code


def _take_tasks(work: Workspace, say: Callable[[str], None]) -> None:
    folder = work.checkout / work.config.tasks
    read = plan.read_folder(folder, work.config.tasks)
    view = work.ledger.view()
    needs = work.ledger.index.needs(view)
    known = {task: needs.get(task, []) for task in work.ledger.index.ids(view)}
    problems = list(read.problems) or plan.check(
        read.drafts, known=known, checks=[c.name for c in work.config.checks]
    )
    if problems:
        raise UsageError(
            f"{len(problems)} problems in {len(read.drafts)} tasks; nothing was started",
            why=listing(problems),
        )
    taken = take_plan(work.ledger, read.drafts)
    say(f"plan      {len(read.drafts)} tasks: {len(taken.new)} new, {len(taken.changed)} changed")


class Printer:
    """Follows the ledger and prints each event once, in order."""

    def __init__(
        self,
        supervisor: Supervisor,
        start: str | None,
        began: datetime,
        say: Callable[[str], None],
    ) -> None:
        self._supervisor = supervisor
        self._seen = start
        self._began = began
        self._say = say
        self._faults = 0

    def tick(self) -> None:
        """Print what is new."""
        ledger = self._supervisor.ledger
        tip = ledger.hub.reader.ref(LEDGER)
        if tip != self._seen:
            fresh: list[Logged] = list(ledger.iter_log(tip, self._seen))
            for logged in reversed(fresh):
                if logged.kind not in QUIET:
                    self._say(event_line(logged, since_text(datetime.now(UTC), self._began)))
            self._seen = tip
        for line in self._supervisor.faults[self._faults :]:
            self._say(f"warning   {line}")
            self._faults += 1


class _signals:
    """Ctrl-C drains, a second one stops now; SIGTERM stops now. Undone on leaving."""

    def __init__(self, supervisor: Supervisor, say: Callable[[str], None]) -> None:
        self._supervisor = supervisor
        self._say = say
        self._count = 0
        self._old: dict[int, object] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._handle)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: object) -> None:
        self._count += 1
        if self._count == 1 and number == signal.SIGINT:
            threading.Thread(target=self._supervisor.drain).start()
            self._say("draining: no new claims; Ctrl-C again stops now")
        else:
            threading.Thread(target=self._supervisor.stop_now).start()
            self._say("stopping")
