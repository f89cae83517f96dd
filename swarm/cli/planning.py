"""`swarm plan`: an agent writes task files for one goal; the files are judged.

Enters: a goal and an agent, or a folder of task files. Leaves: new files, what is wrong with them,
what to type next.
Guards: nothing is added to the ledger here; no file that is there is changed.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import msgspec

from swarm import plan
from swarm import task as tasks
from swarm.cli.live import Screen, Signals, screen
from swarm.cli.ready import Order, Ready, agent_lines, limits_line, prepare_one, uncommitted
from swarm.cli.tasks import say_taken
from swarm.config import listing, shown
from swarm.errors import Exit
from swarm.goal import MAX_GOAL, read_goal
from swarm.ids import span_text
from swarm.ledger.records import Usage
from swarm.output import cost_text, plural, tokens_text
from swarm.planner import Doing, Left, Planned, Planning, begin, make
from swarm.plumbing.hub import RESCUE
from swarm.task import Taken
from swarm.trailers import one_line
from swarm.workspace import Workspace, opened

DRAW_SECONDS = 0.5
MOST_LEFT = 5  # paths of what is not taken
_TYPED = 60  # a goal of at most so many characters stands in a hint


@click.group("plan")
def plan_group() -> None:
    """Write task files for one goal, and judge the task files."""


# Judging


@plan_group.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def check(as_json: bool) -> int:
    """What is wrong in the task files, or what taking them would do. Exit 2 with problems."""
    with opened() as work:
        read = tasks.read_plan(work.ledger, work.checkout / work.config.tasks, work.config)
        view = work.ledger.view()
        taken = Taken() if read.problems else tasks.compare(view, read.drafts)
        folder = f"{work.config.tasks}/"
        if as_json:
            click.echo(json.dumps(_plan_record(read, taken)))
        elif read.problems:
            click.echo(listing(read.problems))
            click.echo(tasks.count_problems(read))
        else:
            count = len(read.drafts)
            same = count - sum(map(len, (taken.new, taken.changed, taken.waiting, taken.ended)))
            click.echo(
                f"{plural(count, 'task')} in {folder}: {len(taken.new)} new, "
                f"{len(taken.changed)} changed, {same} as the ledger has them"
            )
            say_taken(taken, view)
        return 2 if read.problems else 0


def _plan_record(read: plan.Plan, taken: Taken) -> dict[str, object]:
    return {
        "schema": "swarm.plan/1",
        "tasks": len(read.drafts),
        "problems": [
            {"file": p.file, "line": p.line or None, "key": p.key, "text": p.text}
            for p in read.problems
        ],
        **{name: list(value) for name, value in msgspec.structs.asdict(taken).items()},
    }


# Writing


@plan_group.command()
@click.argument("goal")
@click.option("--agent", help="The adapter: claude, codex, command, or your own.")
@click.option("--model", help="Passed on to the agent.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def new(goal: str, agent: str | None, model: str | None, command: tuple[str, ...]) -> int:
    """Let one agent write task files for GOAL (- reads standard input); you read them.

    swarm plan new "Prices in cents everywhere" --agent claude, or -- ./my-planner.sh
    """
    if goal == "-":
        text = read_goal(sys.stdin.buffer.read(MAX_GOAL + 1).decode("utf-8", "replace"))
    else:
        text = read_goal(goal)
    verb = f"swarm plan new {_typed_again(goal)}"
    order = Order(agent=agent, model=model, command=command, verb=verb)
    with opened() as work, Signals() as signals:
        ready = prepare_one(work, order)
        return int(_execute(work, ready, text, screen(), signals))


def _typed_again(goal: str) -> str:
    """The goal as a word of a hint; `-` stands for one that is long, odd or came from a pipe."""
    is_plain = goal.isprintable() and len(goal) <= _TYPED and not goal.startswith("-")
    return shlex.quote(goal) if is_plain else "-"


def _execute(work: Workspace, ready: Ready, goal: str, where: Screen, signals: Signals) -> Exit:
    for line in (*agent_lines(ready), limits_line(work.config)):
        where.say(line)
    for line in (
        *(f"not enforced by this version: {k}" for k in ready.unenforced),
        *uncommitted(work),
    ):
        where.say(f"note      {line}")
    planning = Planning(
        work=work,
        goal=goal,
        adapter=ready.seats[0].adapter,
        argv_extra=ready.order.command,
        typed_in=Path.cwd(),
        model=ready.order.model,
        name=begin(work),
    )
    branch, tip = work.config.target, work.ledger.hub.tip(work.config.target)
    where.say(f"planning  {planning.name} from {branch} {tip[:7]}   Ctrl-C: end it, write nothing")
    began = datetime.now(UTC)
    try:
        planned = make(planning, _follower(planning.name, where, signals))
    except BaseException as error:
        where.close()
        if isinstance(error, KeyboardInterrupt):
            where.say("stopped   the agent was ended; no task file was written")
        for line in _kept_lines(_refs(work, planning.name)):
            where.say(line)
        where.say(f"said      {planning.folder}")
        raise
    where.close()
    for line in _end_lines(work, planning, planned, datetime.now(UTC) - began, ready.order):
        where.say(line)
    if not planned.written:
        return Exit.NO
    return Exit.USAGE if planned.read.problems else Exit.YES


def _follower(name: str, where: Screen, signals: Signals) -> Callable[[Doing], None]:
    """Draws one line and obeys Ctrl-C; what is being taken is taken whole."""
    began = time.monotonic()
    next_draw = 0.0

    def on_tick(doing: Doing) -> None:
        nonlocal next_draw
        # Opening is one long step: only there a second Ctrl-C has to cut it.
        signals.is_hard = doing.stage == "opening"
        if signals.wants_drain and doing.stage != "taking":
            raise KeyboardInterrupt
        now = time.monotonic()
        if now >= next_draw:
            next_draw = now + DRAW_SECONDS
            span = span_text(timedelta(seconds=now - began))
            where.show([f"{name} in {doing.slot}   {span}   {_says(doing)}   {_used(doing.usage)}"])

    return on_tick


def _used(usage: Usage | None) -> str:
    if usage is None or (usage.tokens is None and usage.cost_usd is None):
        return "tokens and cost unknown"
    cost = "cost unknown" if usage.cost_usd is None else cost_text(usage.cost_usd)
    return cost if usage.tokens is None else f"{cost}, {tokens_text(usage.tokens)} tokens"


def _says(doing: Doing) -> str:
    match doing.stage:
        case "opening":
            return "opening its worktree"
        case "setup":
            return "setup"
        case "taking":
            return "its files are being taken"
        case "working":
            child = doing.child
            if child is None or child.output_at <= child.started_at:
                return "no output yet"
            quiet = (datetime.now(UTC) - child.output_at).total_seconds()
            return f"output {max(quiet, 0):.0f}s ago"


def _refs(work: Workspace, name: str) -> list[str]:
    return sorted(work.ledger.hub.refs_below(f"{RESCUE}/{name}"))


def _kept_lines(refs: Sequence[str]) -> list[str]:
    return [f"kept      what it changed: swarm rescue show {ref.split('/', 3)[3]}" for ref in refs]


def _end_lines(
    work: Workspace, planning: Planning, planned: Planned, span: timedelta, order: Order
) -> list[str]:
    """What was written, what is wrong with it, and what to type next."""
    folder = work.config.tasks
    lines = list(_file_lines(folder, planned))
    lines += _left_lines(planned.left)
    lines += _kept_lines(planned.kept)
    if planned.read.problems:
        lines += ["", listing(planned.read.problems), tasks.count_problems(planned.read)]
    lines.append("")
    lines.append(f"{planning.name} ended after {span_text(span)}; {_used(planned.usage)}")
    lines.append(f"said        {planning.folder / 'transcript.jsonl'}")
    if not planned.written:
        return [*lines, f"nothing     the agent wrote no new task file in {folder}/"]
    lines.append(f"read them   {folder}/: no agent has them yet; change or delete what you like")
    return [*lines, "then        swarm plan check", f"then        {_run_again(order)}"]


def _run_again(order: Order) -> str:
    """A run of the same agent."""
    words = ["swarm", "run"]
    for option, value in (("--agent", order.agent), ("--model", order.model)):
        words += [option, value] if value else []
    words += ["--", *order.command] if order.command else []
    typed = shlex.join(words)
    return typed if typed.isprintable() else "swarm run -- ./my-agent.sh"


def _file_lines(folder: str, planned: Planned) -> list[str]:
    titles: dict[str, list[str]] = {}
    for draft in planned.read.drafts:
        needs = f"   needs {', '.join(draft.needs)}" if draft.needs else ""
        titles.setdefault(draft.file, []).append(shown(f"{draft.title}{needs}", 120))
    lines = []
    for placed in planned.files:
        file = f"{folder}/{placed.name}"
        if placed.is_new:
            lines.append(f"wrote     {file}   {'; '.join(titles.get(file, []))}".rstrip())
        else:
            lines.append(f"same      {file}   it was there already")
    return lines


def _left_lines(left: Sequence[Left]) -> list[str]:
    if not left:
        return []
    named = ", ".join(
        one_line(f"{one.path} ({one.why})" if one.why else one.path, 80) for one in left[:MOST_LEFT]
    )
    more = " ..." if len(left) > MOST_LEFT else ""
    return [f"note      it changed {plural(len(left), 'other file')}, not taken: {named}{more}"]
