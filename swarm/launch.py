"""Starting one agent: its prompt, its words, its environment, its limits.

Enters: what is to be started, where, and for which task. Leaves: the started program.
Guards: every agent of swarm is started here and in one way; what it was told lies beside what it
says, written before it starts.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path

from swarm import adapter as adapters
from swarm import environment, process, prompt, sandbox
from swarm.config import Config
from swarm.layout import Layout
from swarm.ledger import records
from swarm.ledger.outcome import question_of
from swarm.ledger.records import Attempts, Task
from swarm.ledger.view import View
from swarm.liveness import alive_path
from swarm.revert import find_undone
from swarm.slot import Slot
from swarm.transcript import REPORT, STDERR, TRANSCRIPT


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One agent to start."""

    adapter: adapters.Adapter
    permission: adapters.PermissionName
    model: str | None
    argv_extra: tuple[str, ...]  # the words after `--`
    typed_in: Path  # where they were typed
    environ: Mapping[str, str]  # of the runner
    config: Config
    checkout: Path  # the user's
    slot: Slot  # opened and set up
    text: str  # the prompt
    task_text: bytes  # what SWARM_TASK_FILE holds
    folder: Path  # of the attempt: prompt, transcript, outcome
    mark: str
    tmpdir: Path  # private to the attempt
    home: Path | None  # None: the user's
    task: str
    attempt: int  # number
    run: str
    target: str  # branch
    time_limit: timedelta | None  # wall time
    turns: int | None = None  # that the program itself is told not to exceed
    cost_usd: float | None = None  # the same
    session: str | None = None  # of its own, to go on with
    new_session: str = field(default_factory=lambda: str(uuid.uuid4()))  # to be named so, if it can
    question_folder: Path | None = None  # where it leaves a question, made

    @property
    def prompt_file(self) -> Path:
        return self.folder / "prompt.md"

    @property
    def task_file(self) -> Path:
        return self.folder / "task.md"

    @property
    def report(self) -> Path:
        """Where the program can write what it used."""
        return self.folder / REPORT

    @property
    def commands(self) -> Path:
        return self.folder / "bin"

    @property
    def transcript(self) -> Path:
        return self.folder / TRANSCRIPT

    @property
    def stderr(self) -> Path:
        return self.folder / STDERR


def start(launch: Launch) -> process.Child:
    """Write what the agent is told into the attempt's folder, then start it in its slot.

    Raises:
        UsageError: the adapter, the words after `--` or the environment allow no start.
        ProgramMissing, CannotStart, OSError: as `process.start`.
    """
    launch.prompt_file.write_text(launch.text, "utf-8")
    launch.task_file.write_bytes(launch.task_text)
    _put_command(launch.commands)
    launch.report.parent.mkdir(exist_ok=True)
    launch.report.unlink(missing_ok=True)
    # A sandbox of the program's own mounts each writable root: one that is not there ends it.
    (launch.slot.repo / "logs").mkdir(exist_ok=True)
    if launch.question_folder is not None:
        launch.question_folder.mkdir(parents=True, exist_ok=True)
    return process.start(_confined(launch, spec_of(launch)))


def spec_of(launch: Launch) -> process.Spec:
    """What `start` starts, but for the words of a sandbox before it; nothing is written.

    Raises:
        UsageError: as `start`.
    """
    limits = launch.config.limits
    given = adapters.given(launch.adapter, launch.text)
    return process.Spec(
        argv=tuple(words_of(launch)),
        cwd=launch.slot.tree,
        env=_environment(launch),
        stdin=given.encode() if launch.adapter.prompt.how == "stdin" else None,
        stdout=launch.transcript,
        stderr=launch.stderr,
        output_cap=limits.output,
        mark=launch.mark,
        time_limit=launch.time_limit,
        grace=limits.grace,
        signals=launch.adapter.stop.signals,
        record=launch.folder / "outcome.json",
    )


def _confined(launch: Launch, spec: process.Spec) -> process.Spec:
    """With what `swarm`, typed by the agent, reads and writes, and what its adapter names."""
    allowed, asked = launch.adapter.sandbox, launch.question_folder
    runs, runner = launch.slot.folder.parent / "runs", launch.mark.partition(".")[0]
    expanded = partial(sandbox.expanded, environ=launch.environ, has_home=launch.home is None)
    return sandbox.confine(
        spec,
        launch.config,
        launch.slot.places,
        launch.checkout,
        environ=launch.environ,
        tmpdir=launch.tmpdir,
        home=launch.home,
        read=(
            *(launch.checkout / "swarm.toml", launch.checkout / ".swarm"),
            *(launch.folder, alive_path(runs, runner)),
            *sandbox.named_files(launch.argv_extra),
            *expanded(allowed.read),
        ),
        write=(
            launch.report.parent,
            *((asked,) if asked else ()),
            *expanded(allowed.write),
        ),
    )


def _put_command(folder: Path) -> None:
    """`swarm` for whoever has the folder on PATH, wherever this one was started from."""
    folder.mkdir(exist_ok=True)
    command = folder / "swarm"
    # -P: the worktree it is typed in may hold a package of the same name as one of ours.
    words = shlex.join([sys.executable, "-P", "-m", "swarm"])
    command.write_text(f'#!/bin/sh\nexec {words} "$@"\n', "utf-8", "surrogateescape")
    command.chmod(0o755)


def words_of(launch: Launch) -> list[str]:
    """Its command line, the program first.

    Raises:
        UsageError: as `start`.
    """
    slot, adapter = launch.slot, launch.adapter
    wanted: dict[str, object] = {
        "model": launch.model,
        "turns": launch.turns,
        "cost_usd": None if launch.cost_usd is None else round(launch.cost_usd, 4),
    }
    options = {name: value for name, value in wanted.items() if name in adapter.options}
    if launch.session is not None:
        options["resume"] = launch.session
    elif "session" in adapter.options:
        options["session"] = launch.new_session  # known also of one that is ended before it says it
    return adapters.argv(
        adapter,
        values=adapters.Placeholders(
            prompt_file=launch.prompt_file,
            report_file=launch.report,
            worktree=slot.tree,
            task=launch.task,
            attempt=launch.attempt,
            python=sys.executable,
            checkout=launch.checkout,
            writable_roots=(
                slot.admin,
                slot.repo / "objects",
                slot.repo / "refs",
                slot.repo / "logs",
                launch.report.parent,
                *((launch.question_folder,) if launch.question_folder is not None else ()),
            ),
        ),
        options=options,
        permission=launch.permission,
        extra=launch.argv_extra,
        typed_in=launch.typed_in,
        path=launch.environ.get("PATH", os.defpath),
        prompt=launch.text,
    )


def _environment(launch: Launch) -> dict[str, str]:
    adapter = launch.adapter
    return environment.for_agent(
        launch.environ,
        adapter_pass=adapter.env.pass_,
        adapter_set=adapter.env.set,
        adapter_set_as_root=adapter.env.set_as_root,
        settings=launch.config.env,
        slot=environment.SlotFacts(
            name=launch.slot.name,
            worktree=launch.slot.tree,
            task=launch.task,
            attempt=launch.attempt,
        ),
        agent=environment.AgentFacts(
            run=launch.run,
            target=launch.target,
            prompt=launch.prompt_file,
            task_file=launch.task_file,
            report=launch.report,
            mark=launch.mark,
        ),
        checkout=launch.checkout,
        tmpdir=launch.tmpdir,
        home=launch.home,
        commands=launch.commands,
    )


def private_home(layout: Layout, config: Config, slot: Slot) -> Path | None:
    """The slot's own HOME, made; None: the user's."""
    home = home_of(layout, config, slot.name)
    if home is not None:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    return home


def home_of(layout: Layout, config: Config, slot: str) -> Path | None:
    """Where a slot's own HOME is; None: the user's."""
    return None if config.run.home == "user" else layout.homes / slot


def task_prompt(
    view: View,
    config: Config,
    template: str | None,
    slot: Slot,
    task: Task,
    attempt: int,
    known: Attempts,
    *,
    is_resumed: bool = False,
) -> str:
    """What the agent of a task is told, in the slot that was opened for its next attempt.

    `is_resumed`: it goes on with its own session, and has been told all but what came since.

    Raises:
        UsageError: the template is wrong.
    """
    header, occupant = task.header, slot.occupant()
    last, back, told = known.last, known.sent_back, known.told
    asked = question_of(last) if last is not None else None
    is_answered = any(one.question == asked for one in told)  # and so stands there whole
    conflicted = tuple(occupant.conflicted) if occupant else ()
    checks = [c for c in config.checks if c.when == "always" or c.name in header.checks]
    facts = prompt.PromptFacts(
        task=prompt.TaskFacts(id=header.id, title=header.title, body=task.body),
        branch=header.id,
        attempt=attempt,
        paths=tuple(header.paths),
        needs=tuple(_need(view, need) for need in header.needs),
        last=prompt.LastFacts(
            message=last.message,
            detail="" if asked is not None and is_answered else last.detail,
            conflict=conflicted,
            asked=asked is not None,
        )
        if last is not None
        else None,
        sent_back=prompt.LastFacts(message=back.message, detail=back.detail) if back else None,
        told=tuple(
            prompt.ToldFacts(text=one.text, by=one.by, question=one.question or "") for one in told
        ),
        checks=tuple(prompt.CheckFacts(name=c.name, run=c.run) for c in checks),
        rules=config.prompt.rules,
    )
    return prompt.render_resumed(facts) if is_resumed else prompt.render(facts, template)


def _need(view: View, need: str) -> prompt.NeedFacts:
    title, landed, files = need, "unknown", 0
    with contextlib.suppress(records.Undecodable):
        task, done = view.task(need), view.done(need)
        if task is not None:
            title = task.header.title
        if done is not None and done.landed is not None and done.previous is not None:
            landed = done.landed[:7]
            if (by := find_undone(view).get(need)) is not None:
                landed += f", undone since by {by}"
            files = view.hub.diff_stat(done.previous, done.landed)[0]
    return prompt.NeedFacts(id=need, title=title, landed=landed, files=files)
