"""One goal, one attempt of one agent: task files for a person to read.

Enters: a workspace, a goal, an agent. Leaves: new files in the folder of tasks, and what is wrong
with them.
Guards: the agent runs as a run's does, and nothing of it outlives this; no file that is there is
changed, nothing is added to the ledger, and what is not taken is kept under a rescue ref.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from swarm import adapter as adapters
from swarm import gather, goal, launch, plan, process
from swarm import task as tasks
from swarm.change import Captured, capture
from swarm.config import Config, Problem
from swarm.errors import Exit, GitFault, SwarmError
from swarm.files import tail_of
from swarm.hand import PLAN_PREFIX
from swarm.ids import new_agent_id, new_nonce, short
from swarm.ledger.records import Task, TaskHeader, Usage, encode_task
from swarm.ledger.spending import find_over
from swarm.ledger.view import State, View, readable
from swarm.opening import Ground, Opening, open_slot
from swarm.overview import shown_state, stand
from swarm.plumbing import checkout as user
from swarm.plumbing.objects import TREE
from swarm.pulse import Pulse
from swarm.reconcile import rescue_leftovers
from swarm.revert import find_undone
from swarm.slot import Occupant, Slot
from swarm.trailers import one_line
from swarm.transcript import Transcript, of_attempt
from swarm.workspace import Workspace

ATTEMPT = 1  # a plan has one
TICK_SECONDS = 0.2
TAIL_LINES = 5
TAIL_BYTES = 4096  # that they are looked for in
_NAME = re.compile(r"plan-[1-9][0-9]*")

Stage = Literal["opening", "setup", "working", "taking"]


class PlanFailed(SwarmError):
    """The attempt did not end well; no task file was written."""


class AgentRefused(PlanFailed):
    """Its provider limits this account, or the agent is not logged in."""

    exit_code = Exit.LIMITED


class Planning(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt is made from."""

    work: Workspace
    goal: str
    adapter: adapters.Adapter
    argv_extra: tuple[str, ...]  # the words after `--`
    typed_in: Path
    model: str | None
    name: str  # as `begin` gave it
    environ: Mapping[str, str] = msgspec.field(default_factory=lambda: dict(os.environ))

    @property
    def folder(self) -> Path:
        """What the agent was told and what it said."""
        return self.work.layout.runs / self.name


class Doing(msgspec.Struct, frozen=True):
    """What is under way, for whoever waits."""

    stage: Stage
    slot: str
    child: process.Child | None = None
    usage: Usage | None = None  # of its agent so far


class Left(msgspec.Struct, frozen=True):
    """A path that it changed and that was not taken."""

    path: str
    why: str  # of a file in the folder of tasks; "": it is no task file


class Planned(msgspec.Struct, frozen=True):
    """An attempt that ended well."""

    base: str  # the target's tip that it saw
    files: tuple[gather.Placed, ...]
    read: plan.Plan  # every task file of the folder, judged with the ledger
    left: tuple[Left, ...]  # what else it changed, by path
    kept: tuple[str, ...]  # the refs that keep it
    usage: Usage  # what the agent said that it used

    @property
    def written(self) -> list[str]:
        """Names of the new files."""
        return [placed.name for placed in self.files if placed.is_new]


def begin(work: Workspace) -> str:
    """The next free `plan-<number>`; its folder, made here, keeps others on this host off it."""
    work.layout.runs.mkdir(parents=True, exist_ok=True)
    view, number = work.ledger.view(), 0
    while True:
        number += 1
        name = f"plan-{number}"
        if view.state(name) is not State.ABSENT:  # a task's refs would be mixed with ours
            continue
        with contextlib.suppress(FileExistsError):
            (work.layout.runs / name).mkdir()
            return name


def make(planning: Planning, on_tick: Callable[[Doing], None]) -> Planned:
    """One attempt, from an empty slot to files in the folder of tasks.

    `on_tick` is called at the start of each stage and a few times a second; what it raises ends
    the attempt.

    Raises:
        PlanFailed: the agent or its setup ended badly, and how. As with any other error, all its
            processes have ended and what it changed is under a rescue ref of the plan's name.
        SwarmError: the slot cannot be opened, or nothing can be started in it.

    Safe: killed anywhere, the agent ends; its slot is saved when one is opened next, or by the
    doctor.
    """
    _refuse_limited(planning)
    with (
        contextlib.closing(_take_slot(planning.work)) as slot,
        tempfile.TemporaryDirectory(prefix="swarm-", ignore_cleanup_errors=True) as tmpdir,
    ):
        place = _place(planning, slot, Path(tmpdir), on_tick)
        with _kept_if_cut(place):
            occupant = _set_up(place, _open(place))
        with _kept_if_cut(place, occupant):
            usage = _run(place)
            return _take(place, occupant, usage)


def _refuse_limited(planning: Planning) -> None:
    """
    Raises:
        AgentRefused: its provider limits the account, as a run or another plan has learned.
    """
    name = planning.adapter.name
    limit = planning.work.breaker.find(name, datetime.now(UTC))
    if limit is not None:
        raise AgentRefused(
            f"the provider limits {name} until {limit.until.astimezone():%a %H:%M:%S}",
            hint=f"swarm agents forget {name}",
        )


def _take_slot(work: Workspace) -> Slot:
    """The first slot of the family that nobody has and nothing works in; saved."""
    number = 0
    while True:
        number += 1
        slot = Slot.take(work.layout.slots, f"{PLAN_PREFIX}{number}", work.ledger.hub)
        if slot is None:
            continue
        try:
            _end_leftovers(slot, work.config)
            if not process.find_standing(slot.tree):
                rescue_leftovers(work.ledger, slot, work.rules)
                return slot
            slot.close()
        except GitFault:  # what lies in it cannot be saved: it stays as it is
            slot.close()
        except BaseException:
            slot.close()
            raise


def _end_leftovers(slot: Slot, config: Config) -> None:
    """End what a killed `swarm` left: whoever has the slot's flock has its processes too."""
    occupant = slot.occupant()
    if occupant is None or not _NAME.fullmatch(occupant.run) or not occupant.agent:
        return
    left = process.find_marked(f"{occupant.run}.{occupant.agent}.")
    if left:
        process.end_marked(left, config.limits.grace)


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where an attempt works, and as whom."""

    planning: Planning
    slot: Slot  # ours
    tmpdir: Path
    home: Path | None
    comer: Occupant
    mark: str
    on_tick: Callable[[Doing], None]

    @property
    def work(self) -> Workspace:
        return self.planning.work


def _place(
    planning: Planning, slot: Slot, tmpdir: Path, on_tick: Callable[[Doing], None]
) -> _Place:
    comer = _comer(planning)
    return _Place(
        planning=planning,
        slot=slot,
        tmpdir=tmpdir,
        home=launch.private_home(planning.work.layout, planning.work.config, slot),
        comer=comer,
        mark=f"{planning.name}.{comer.agent}.{new_nonce()[:12]}",
        on_tick=on_tick,
    )


@contextlib.contextmanager
def _kept_if_cut(place: _Place, occupant: Occupant | None = None) -> Iterator[None]:
    try:
        yield
    except BaseException:
        _keep(place, occupant)
        raise


def _keep(place: _Place, occupant: Occupant | None) -> list[str]:
    """Rescue refs of what lies in the slot; what cannot be kept stays in it.

    `occupant`: as opening and setup left it, whatever the agent did to the record.
    """
    with contextlib.suppress(SwarmError, OSError):
        if occupant is not None:
            place.slot.put_record(occupant)
        return rescue_leftovers(place.work.ledger, place.slot, place.work.rules)
    return []


def _open(place: _Place) -> Opening:
    place.on_tick(Doing("opening", place.slot.name))
    work = place.work
    copies = tuple(user.ignored_matching(work.checkout, work.config.worktree.copy))
    excludes = user.user_excludes(work.checkout)
    environ = place.planning.environ
    ground = Ground(work.ledger.hub, work.config, work.checkout, copies, excludes, environ)
    return open_slot(ground, place.slot, place.comer, _task(place.planning).header.paths)


def _set_up(place: _Place, opening: Opening) -> Occupant:
    """The slot's occupant as the agent finds it.

    Raises:
        PlanFailed: setup ended badly.
    """
    log = place.planning.folder / "setup.log"
    setup = opening.begin_setup(log=log, mark=place.mark, tmpdir=place.tmpdir, home=place.home)
    how: str | None = None
    if setup is not None:
        try:
            _wait(place, setup.child, "setup")
        finally:  # also when it was cut: what it left is no agent's work
            ended = setup.child.poll()
            if ended is not None:
                how = setup.finish(ended)
    if how is not None:
        raise PlanFailed(
            f"setup failed: {how}; no agent was started",
            why=_tail(log) or None,
            hint=f"less {shlex.quote(str(log))}",
        )
    return place.slot.occupant() or place.comer


def _run(place: _Place) -> Usage:
    """The agent, to its end. Returns what it said that it used.

    Raises:
        PlanFailed: it did not end well.
    """
    limits = place.work.config.limits
    launched = _launch(place)
    child = launch.start(launched)
    is_stream = launched.adapter.output.format == "jsonl"
    pulse = Pulse(child, place.slot.tree, limits, time.monotonic(), is_stream=is_stream)
    said = of_attempt(launched.adapter, launched.folder)
    ended = _wait(place, child, "working", pulse, said)
    said.finish()
    _judge(place, launched, ended, said)
    return said.usage(is_whole=not ended.output_truncated)


def _launch(place: _Place) -> launch.Launch:
    planning, work = place.planning, place.work
    return launch.Launch(
        adapter=planning.adapter,
        permission=work.config.run.permission,
        model=planning.model,
        argv_extra=planning.argv_extra,
        typed_in=planning.typed_in,
        environ=planning.environ,
        config=work.config,
        checkout=work.checkout,
        slot=place.slot,
        text=goal.render(_facts(planning)),
        task_text=encode_task(_task(planning)),
        folder=planning.folder,
        mark=place.mark,
        tmpdir=place.tmpdir,
        home=place.home,
        task=planning.name,
        attempt=ATTEMPT,
        run=planning.name,
        target=work.ledger.branch,
        time_limit=work.config.limits.attempt,
        turns=work.config.limits.turns,
        cost_usd=work.config.limits.cost_usd,
    )


def _task(planning: Planning) -> Task:
    """What the slot and the agent are told as their task; the ledger never has it."""
    header = TaskHeader(
        id=planning.name,
        title=one_line(planning.goal, 100),
        added_at=planning.work.ledger.clock.now(),
        paths=[f"{planning.work.config.tasks}/*.md"],
    )
    return Task(header=header, body=planning.goal + "\n")


def _wait(
    place: _Place,
    child: process.Child,
    stage: Stage,
    pulse: Pulse | None = None,
    said: Transcript | None = None,
) -> process.Ended:
    limits = place.work.config.limits
    try:
        why: str | None = None
        while (ended := child.poll()) is None:
            usage = None
            if said is not None:
                said.read()
                usage = said.usage()
            place.on_tick(Doing(stage, place.slot.name, child, usage))
            if why is None and pulse is not None and usage is not None:
                over = find_over(usage, limits.turns, limits.tokens, limits.cost_usd)
                why = over or pulse.look(time.monotonic())
                if why is not None:
                    child.stop(why)
            child.wait(TICK_SECONDS)
        return ended
    except BaseException:
        child.kill_now("stopped")
        child.wait()
        raise


def _take(place: _Place, occupant: Occupant, usage: Usage) -> Planned:
    """Its task files, into the person's folder; the rest, under a rescue ref."""
    place.on_tick(Doing("taking", place.slot.name))
    work, slot = place.work, place.slot
    slot.put_record(occupant)  # whatever the agent did to it: we hold the slot
    captured = capture(slot, occupant, work.rules)
    differs = _differing(slot, occupant, captured)
    folder = work.config.tasks
    known = {name for name in _names_at(work, occupant.start) if f"{folder}/{name}" not in differs}
    found = gather.read_files(slot, folder, known)
    files = [one for one in found if isinstance(one, gather.Found)]
    placed = tuple(gather.put_files(files, work.checkout / folder))
    taken = {f"{folder}/{file.name}" for file in files}
    refused = {f"{folder}/{r.name}": r.why for r in found if isinstance(r, gather.Refused)}
    left = sorted((differs | refused.keys()) - taken)
    is_more = left or captured.elsewhere or _touched(slot, occupant, captured) - taken
    kept = _keep(place, occupant) if is_more else []
    if not is_more or slot.is_saved:
        slot.record.unlink(missing_ok=True)  # nothing of it is only there any more
    return Planned(
        occupant.start,
        placed,
        _judged(work, placed),
        tuple(Left(path, refused.get(path, "")) for path in left),
        tuple(kept),
        usage,
    )


def _comer(planning: Planning) -> Occupant:
    """Who comes into the slot: no claim of the ledger's, so nothing but the flock keeps it."""
    ledger = planning.work.ledger
    tip = ledger.hub.tip(ledger.branch)
    return Occupant(
        task=planning.name,
        token=ATTEMPT,
        nonce=new_nonce(),
        agent=new_agent_id(),
        run=planning.name,
        base=tip,
        start=tip,
        merge=None,
        head=tip,
    )


def _facts(planning: Planning) -> goal.GoalFacts:
    config = planning.work.config
    known, more = goal.first_tasks(list(_known_tasks(planning.work)))
    return goal.GoalFacts(
        goal=planning.goal,
        folder=config.tasks,
        checks=tuple(
            goal.CheckFacts(name=check.name, run=check.run, when=check.when)
            for check in config.checks
        ),
        roles=tuple(name for name, _ in config.run.roles or ()),
        tasks=known,
        more=more,
        rules=config.prompt.rules,
    )


def _known_tasks(work: Workspace) -> Iterator[goal.KnownTask]:
    """What has not landed, what only a file says yet, and what has landed."""
    view, index = work.ledger.view(), work.ledger.index
    at = stand(view, index)
    for row in at.rows.values():
        yield goal.KnownTask(id=row.id, title=row.title, state=at.lines[row.id][0])
    for draft in plan.read_folder(work.checkout / work.config.tasks, work.config.tasks).drafts:
        if view.state(draft.id) is State.ABSENT:
            yield goal.KnownTask(id=draft.id, title=draft.title, state="new")
    gone = find_undone(view)
    for row in index.rows(view, State.LANDED):
        if not _is_join(view, row.id):
            state = "undone" if row.id in gone else row.state.value
            yield goal.KnownTask(id=row.id, title=row.title, state=state)


def _is_join(view: View, task: str) -> bool:
    """Is it a sync? It says nothing about what was done."""
    found = readable(view.task, task)
    return found is not None and found.header.joins_history


def _judge(place: _Place, launched: launch.Launch, ended: process.Ended, said: Transcript) -> None:
    """
    Raises:
        PlanFailed: it was ended, or its adapter does not call this a success.
    """
    limits = launched.config.limits
    hint = f"less {shlex.quote(str(_said(launched)))}"
    if ended.timed_out and limits.attempt is not None:
        raise PlanFailed(f"the agent was ended after {short(limits.attempt)}", hint=hint)
    over = find_over(said.usage(), limits.turns, limits.tokens, limits.cost_usd)
    if ended.stopped is not None and over is not None:
        raise PlanFailed(f"the agent was ended: {over}", hint=hint)
    if ended.stopped is not None:
        span = limits.start if ended.stopped != "silent" else limits.silence
        after = f" for {short(span)}" if span is not None else ""
        raise PlanFailed(f"the agent was ended: {ended.stopped}{after}", hint=hint)
    judgement = said.judge(ended.exit_code, ended.signal)
    match judgement.is_:
        case "success":
            return
        case "login":
            does = judgement.hint or "log in with the agent's own command"
            raise AgentRefused("the agent is not logged in", why=does, hint=hint)
        case "limit":
            now = datetime.now(UTC)
            until = place.work.breaker.refused(
                launched.adapter.name, judgement.reset_at, now
            ).astimezone()
            what = f"the provider limits this account until {until:%a %H:%M:%S}"
            raise AgentRefused(what, hint=hint)
        case "turns" | "cost":
            raise PlanFailed(f"the agent's limit of {judgement.is_} is used up", hint=hint)
        case "failed":
            why = _tail(launched.stderr) or _tail(launched.transcript) or None
            raise PlanFailed(f"the agent failed: {ended.how}", why=why, hint=hint)


def _said(launched: launch.Launch) -> Path:
    """The file that has what the agent said; its transcript when both are empty."""
    files = [f for f in (launched.transcript, launched.stderr) if f.exists() and f.stat().st_size]
    return files[0] if files else launched.transcript


def _tail(file: Path) -> str:
    """The last lines of an output, as a terminal may show them."""
    lines = [one_line(one, 200) for one in tail_of(file, TAIL_BYTES).splitlines()]
    return "\n".join([one for one in lines if one][-TAIL_LINES:])


def _differing(slot: Slot, occupant: Occupant, captured: Captured) -> set[str]:
    """Paths at which the worktree is not as it was opened, by us or by setup."""
    last = captured.rescue or captured.head
    call = ("diff-tree", "-r", "-z", "--no-renames", "--name-only", occupant.start, last)
    return set(slot.own_git.run(*call, timeout=600).fields)


def _touched(slot: Slot, occupant: Occupant, captured: Captured) -> set[str]:
    """Paths that any of its commits changed, also back again."""
    git = slot.own_git
    commits = git.run("rev-list", captured.head, f"^{occupant.start}").text
    call = (
        "diff-tree",
        "--stdin",
        "-r",
        "-z",
        "-m",
        "--no-renames",
        "--no-commit-id",
        "--name-only",
    )
    return (
        set(git.run(*call, input=f"{commits}\n".encode(), timeout=600).fields) if commits else set()
    )


def _names_at(work: Workspace, commit: str) -> Iterable[str]:
    """Names in the folder of tasks at a commit."""
    reader = work.ledger.hub.reader
    entry = reader.find(reader.tree_of(commit), work.config.tasks)
    return reader.tree(entry.oid) if entry is not None and entry.mode == TREE else ()


def _judged(work: Workspace, placed: Iterable[gather.Placed]) -> plan.Plan:
    """The folder as `plan check` judges it, and what is wrong with new files beside old ones."""
    folder = work.config.tasks
    read = tasks.read_plan(work.ledger, work.checkout / folder, work.config)
    view, index = work.ledger.view(), work.ledger.index
    new = {f"{folder}/{one.name}" for one in placed if one.is_new}
    problems = [
        Problem(
            f"{folder}/{one.name}", 0, "file", f"was written as {one.wanted}, which has other text"
        )
        for one in placed
        if one.is_new and one.name != one.wanted
    ]
    for draft in read.drafts:
        if draft.file in new and view.state(draft.id) is not State.ABSENT:
            state = shown_state(view, index, draft.id)
            text = f"there is a task {draft.id} already: it is {state}"
            problems.append(Problem(draft.file, draft.lines.get("id", 0), "id", text))
    return plan.Plan(read.drafts, tuple(sorted({*read.problems, *problems})))
