"""Changes that a command offers to the gate: sync, revert.

Enters: what upstream has, or landed tasks. Leaves: the gate's word on it, or what it waits for.
Guards: twice gives the same end; whatever waits is said with what to type.
"""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace

from swarm import hand, upstream
from swarm import revert as reverting
from swarm.cli.gate import Printer, Say
from swarm.cli.ready import refuse_unsupported, require_checks
from swarm.config import shown
from swarm.errors import Exit, SwarmError, UsageError
from swarm.ledger import records
from swarm.ledger.records import Last
from swarm.ledger.view import State, readable
from swarm.offer import Waits
from swarm.task import load_id
from swarm.tend import settle_change
from swarm.trailers import one_line
from swarm.workspace import Workspace, opened

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class SyncRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`swarm sync --json`."""

    schema: str = "swarm.sync/1"
    upstream: str  # origin/main
    tip: str  # what it has now
    result: str
    task: str | None = None  # that brings it, or that was ended since it is not needed
    state: str | None = None  # of the task
    worktree: str | None = None  # where it is worked on by hand, on this disk


class RevertRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`swarm revert --json`."""

    schema: str = "swarm.revert/1"
    result: str
    task: str | None = None  # that takes landings back
    state: str | None = None  # of it
    undoes: list[str] = []  # by that task, newest landing first
    left: list[str] = []  # tasks that were named and that it does not undo


@click.command()
@click.option("--rewritten", is_flag=True, help="The upstream branch was rewritten on purpose.")
@click.option("--no-wait", is_flag=True, help="Leave the change in the queue.")
@_as_json
def sync(rewritten: bool, no_wait: bool, as_json: bool) -> int:
    """Bring what the upstream branch has into the target, merged and checked like any change.

    Exit 1: it waits for you, and what is printed says for what.
    """
    with opened() as work:
        refuse_unsupported(work.config)
        require_checks(work.config)
        say = _quiet if as_json else click.echo
        fetched = upstream.fetch(work)
        answer = upstream.bring(work, fetched, is_rewrite_meant=rewritten)
        while isinstance(answer, Waits) and answer.state is State.QUEUED and not no_wait:
            if _settle(work, answer.task, say) is State.QUEUED:
                break
            answer = upstream.bring(work, fetched, is_rewrite_meant=rewritten)
        target, code = work.config.target, Exit.YES
        match answer:
            case upstream.UpToDate(fetched, ended, left):
                say(answer.says(target))
                if ended is not None:
                    say(f"cancelled {ended}   not needed any more")
                if left is not None:
                    say(f"left      {left} is not needed any more: swarm task cancel {left}")
                record = _sync_record(fetched, "up_to_date", ended or left)
            case upstream.Rewritten(fetched, known):
                raise SwarmError(
                    upstream.rewritten_says(fetched.name, known),
                    why=f"nothing was taken; what it lost is still in {target}, and stays there if "
                    "you bring in what it has now",
                    hint="swarm sync --rewritten",
                )
            case Waits():
                record, code = _end_sync(work, fetched, answer, "waits", say)
            case upstream.SyncQueued(fetched, entry, _, same):
                say(f"sync      {answer.says(target)}")
                if same is not None:
                    say(f"same      {same.theirs[:7]} there is what {same.ours[:7]} is here")
                record = _sync_record(fetched, "queued", entry.task, State.QUEUED)
                if not no_wait:
                    state = _settle(work, entry.task, say)
                    waits = Waits(entry.task, state, (fetched.at,), ())
                    record, code = _end_sync(work, fetched, waits, state.value, say)
        if as_json:
            click.echo(json.dumps(records.jsonable(record)))
        return int(code)


def _sync_record(
    fetched: upstream.Fetched,
    result: str,
    task: str | None,
    state: State | None = None,
    worktree: Path | None = None,
) -> SyncRecord:
    return SyncRecord(
        upstream=fetched.name,
        tip=fetched.tip,
        result=result,
        task=task,
        state=state.value if state is not None else None,
        worktree=str(worktree) if worktree is not None else None,
    )


def _settle(work: Workspace, task: str, say: Say) -> State:
    """The gate's word on a change of ours.

    Raises:
        KeyboardInterrupt: it was said what becomes of the change.
    """
    try:
        return settle_change(work, task, Printer(work, say))
    except KeyboardInterrupt:
        line = f"queued    {task} stays in the queue and lands with the next run, or now: "
        click.echo(f"{line}swarm gate --once", err=True)
        raise


def _end_sync(
    work: Workspace,
    fetched: upstream.Fetched,
    waits: Waits,
    result: str,
    say: Say,
) -> tuple[SyncRecord, Exit]:
    """Say how it ended; where both sides conflict a worktree is opened with both in it."""
    task, state = waits.task, waits.state
    if state is State.LANDED:
        tip = work.ledger.hub.tip(work.config.target)
        say(f"{work.config.target} {tip[:7]} has all of {fetched.at}")
        return _sync_record(fetched, result, task, state), Exit.YES
    place: Path | None = None
    conflict = _conflict_of(work, task)
    if state is State.OPEN and conflict is not None:
        joined = hand.join(work, work.checkout, task, None)
        if isinstance(joined, hand.Joined):
            state, place = State.CLAIMED, joined.worktree
    elif state is State.CLAIMED:
        place = _find_worktree(work, task)
    lines = _waits(work, task, state, f"swarm claim {task}")
    if place is not None:
        result = "conflict" if conflict is not None else result
        lines = _resolve_lines(work, fetched, task, conflict, place)
    for line in lines:
        say(line)
    for wanted in waits.lacks:
        say(f"then      swarm sync   {task} does not have {wanted} yet")
    return _sync_record(fetched, result, task, state, place), Exit.NO


def _find_worktree(work: Workspace, task: str) -> Path | None:
    """Where a claim by hand works; None: not on this disk, or a run's."""
    with contextlib.suppress(UsageError, hand.ClaimHeld):
        place = work.layout.slots / hand.find_place(work, work.checkout, task).slot
        return place if place.is_dir() else None
    return None


def _conflict_of(work: Workspace, task: str) -> Last | None:
    """How its last attempt ended, when that was in a conflict."""
    last = _last_of(work, task)
    return last if last is not None and last.outcome == "conflict" else None


def _last_of(work: Workspace, task: str) -> Last | None:
    attempts = readable(work.ledger.view().attempts, task)
    return attempts.last if attempts is not None else None


def _resolve_lines(
    work: Workspace, fetched: upstream.Fetched, task: str, conflict: Last | None, place: Path
) -> list[str]:
    """Where a person resolves it; the same whenever it is asked."""
    if conflict is None:
        lines = [f"waits     {task}   somebody works on it", f"worktree  {place}"]
    else:
        named = one_line(", ".join(conflict.paths[:5]), 80)
        lines = [
            f"conflict  {task}   in {named}",
            f"worktree  {place}   both sides are in it, with markers:",
            f"          HEAD is {fetched.name}, the other {work.config.target}",
        ]
    lines.append(f"next      cd {shlex.quote(str(place))}")
    return [*lines, f"          resolve, commit if you like, then:  swarm submit {task}"]


def _waits(work: Workspace, task: str, state: State, *steps: str) -> list[str]:
    """Why a change of a command does not go on, and what to type; `steps` while it is open."""
    lines = [f"{state.value:<9} {task}"]
    match state:
        case State.OPEN:
            last = _last_of(work, task)
            why = one_line(last.message, 80) if last is not None else "it waits for a person"
            lines = [f"waits     {task}   {why}"]
        case State.CLAIMED:
            lines = [f"waits     {task}   somebody works on it"]
            place = _find_worktree(work, task)
            if place is not None:
                lines.append(f"worktree  {place}")
            steps = ("swarm claims",)
        case State.HELD:
            steps = (f"swarm diff {task}", f"swarm approve {task}")
        case State.QUEUED:
            paused = work.ledger.view().gate().paused
            why = f"the gate is paused: {paused.why}" if paused else "the gate has not come to it"
            lines = [f"queued    {task}   {one_line(why, 80)}"]
            is_by_person = paused is not None and paused.by == "person"
            steps = ("swarm resume",) if is_by_person else ()
        case State.PARKED:
            steps = (f"swarm show {task}", f"swarm task reopen {task}")
        case _:
            steps = (f"swarm show {task}",)
    leads = ["next", *[""] * len(steps)]
    return [*lines, *(f"{lead:<9} {step}" for lead, step in zip(leads, steps, strict=False))]


def _quiet(line: str) -> None:
    """Who wants JSON wants nothing else."""


@click.command()
@click.argument("names", metavar="[TASK...]", nargs=-1)
@click.option("--run", "run_", metavar="RUN", help="All that landed of a run: r7.")
@click.option("--no-wait", is_flag=True, help="Leave the change in the queue.")
@_as_json
def revert(names: tuple[str, ...], run_: str | None, no_wait: bool, as_json: bool) -> int:
    """Take landings back, newest first, with one change that is checked like any other.

    What was undone stays `landed`: its history says what happened.
    """
    if bool(names) == bool(run_):
        raise UsageError("name tasks, or a run with --run", hint="swarm log")
    with opened() as work:
        refuse_unsupported(work.config)
        require_checks(work.config)
        say = _quiet if as_json else click.echo
        if run_ is not None:
            again = shlex.join(["swarm", "revert", "--run", run_])
            tasks = reverting.landed_in(work.ledger, run_)
            if not tasks:
                raise SwarmError(f"nothing of {run_} has landed", hint="swarm log")
        else:
            tasks = [load_id(work.ledger, name) for name in names]
            again = shlex.join(["swarm", "revert", *tasks])
        view, target = work.ledger.view(), work.config.target
        for task, state, need in reverting.dependants(work.ledger, view, tasks):
            stays = "; it stays" if state is State.LANDED else ""
            say(f"needs     {task}   needs {need}, {state.value}{stays}")
        answer = reverting.revert(work, tasks)
        result = "waits"
        while isinstance(answer, Waits) and answer.state is State.QUEUED and not no_wait:
            answer = replace(answer, state=_settle(work, answer.task, say))
            result = answer.state.value
            if answer.state is not State.LANDED or not answer.lacks:
                break
            answer = reverting.revert(work, tasks)
        code = Exit.YES
        match answer:
            case reverting.NotLanded(task):
                raise SwarmError(answer.says(target), hint=f"swarm show {task}")
            case reverting.Entangled():
                raise _entangled(answer, tasks, target)
            case reverting.NothingLeft(left, never):
                say(answer.says(target))
                record = RevertRecord(result="nothing_left", left=[*left, *never])
            case Waits(task, state):
                undoes = work.ledger.view().task(task)
                code = _end_revert(work, answer, again, say)
                record = RevertRecord(
                    result=result,
                    task=task,
                    state=state.value,
                    undoes=undoes.header.undoes if undoes is not None else [],
                    left=list(answer.lacks),
                )
            case reverting.RevertQueued(entry, done, left, never):
                for task in done:
                    landing = view.done(task)
                    say(f"undoes    {task}   {(landing.landed or '')[:7] if landing else ''}")
                if left:
                    say(f"left      {reverting.left_says(left, target)}")
                if never:
                    say(f"left      {reverting.never_says(never, target)}")
                state = State.HELD if entry.is_held else State.QUEUED
                result = "queued"
                say(f"revert    {answer.says(target)}")
                if not no_wait:
                    state = _settle(work, entry.task, say)
                    result = state.value
                    waits = Waits(entry.task, state, done, ())
                    code = _end_revert(work, waits, again, say)
                elif state is State.HELD:
                    for line in _waits(work, entry.task, state):
                        say(line)
                record = RevertRecord(
                    result=result,
                    task=entry.task,
                    state=state.value,
                    undoes=list(done),
                    left=[*left, *never],
                )
        if as_json:
            click.echo(json.dumps(records.jsonable(record)))
        return int(code)


def _end_revert(work: Workspace, waits: Waits, again: str, say: Say) -> Exit:
    """Say how it ended: of the tasks that were named which it undoes, and the ways out."""
    task, state = waits.task, waits.state
    if state is State.LANDED:
        return Exit.YES
    for line in _waits(work, task, state, "swarm run", f"swarm claim {task}   by hand"):
        say(line)
    if state in (State.OPEN, State.PARKED) or waits.lacks:
        say(f"undoes    {', '.join(waits.brings)}")
    if waits.lacks:
        say(f"left      {task} does not undo {', '.join(waits.lacks)}")
    if state in (State.OPEN, State.PARKED) or waits.lacks:
        say(f"instead   swarm task cancel {task}")
        say(f"          {again}")
    return Exit.NO


def _entangled(answer: reverting.Entangled, tasks: Sequence[str], target: str) -> SwarmError:
    """Later work stands on the same lines: what can be typed instead."""
    named = ", ".join(shown(path) for path in answer.paths[:5])
    wanted = ", ".join(tasks)
    text = f"Take back what these tasks changed: {wanted}. Later work stands on it in {named}"
    ask = shlex.join(["swarm", "task", "add", f"Undo {wanted}", "-m", text])
    hints = [shlex.join(["swarm", "revert", *answer.together])] if answer.together else []
    return SwarmError(
        answer.says(target),
        why="nothing was added; undo those too, or let somebody take it out by hand"
        if answer.together
        else "nothing was added; let somebody take it out by hand",
        hint="\n".join([*hints, ask]),
    )
