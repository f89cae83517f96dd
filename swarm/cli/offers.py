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
from typing import Any

import click

from swarm import hand, upstream
from swarm import revert as reverting
from swarm.cli.gate import Printer, Say
from swarm.cli.ready import refuse_unsupported, require_checks
from swarm.config import shown
from swarm.errors import Exit, SwarmError, UsageError
from swarm.ledger.records import Last
from swarm.ledger.view import State, readable
from swarm.output import plural
from swarm.task import load_id
from swarm.tend import settle_change
from swarm.trailers import one_line
from swarm.workspace import Workspace, opened

Record = dict[str, Any]  # what `--json` prints

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


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
        while isinstance(answer, upstream.Waits) and answer.state is State.QUEUED and not no_wait:
            if settle_change(work, answer.task, Printer(work, say)) is State.QUEUED:
                break
            answer = upstream.bring(work, fetched, is_rewrite_meant=rewritten)
        fetched = answer.fetched
        record: Record = {"schema": "swarm.sync/1", "upstream": fetched.name}
        record |= {"tip": fetched.tip, "task": None, "state": None, "worktree": None}
        name, target = f"{fetched.name} {fetched.tip[:7]}", work.config.target
        code = Exit.YES
        match answer:
            case upstream.UpToDate(_, left):
                record |= {"result": "up_to_date", "task": left}
                say(f"{target} has all of {name}")
                if left is not None:
                    say(f"left      {left} is not needed any more: swarm task cancel {left}")
            case upstream.Rewritten(_, known):
                raise SwarmError(
                    f"{fetched.name} was rewritten: it lacks {known[:7]}, which it had before",
                    why="nothing was taken; what it lost is still in "
                    f"{target}, and stays there if you bring in what it has now",
                    hint="swarm sync --rewritten",
                )
            case upstream.Waits(_, task, state):
                record |= {"result": "waits", "task": task, "state": state.value}
                code = _end_sync(work, task, state, fetched, record, say)
            case upstream.Offered(_, entry, commits, same):
                say(f"sync      {name}: {plural(commits, 'commit')} that {target} lacks")
                if same is not None:
                    say(f"same      {same[0][:7]} there is what {same[1][:7]} is here")
                say(f"queued    {entry.task}")
                record |= {"result": "queued", "task": entry.task, "state": "queued"}
                if not no_wait:
                    state = _await(work, entry.task, record, say)
                    code = _end_sync(work, entry.task, state, fetched, record, say)
        if as_json:
            click.echo(json.dumps(record))
        return int(code)


def _await(work: Workspace, task: str, record: Record, say: Say) -> State:
    """The gate's word on a change of ours."""
    state = settle_change(work, task, Printer(work, say))
    record |= {"result": state.value, "task": task, "state": state.value}
    return state


def _end(work: Workspace, task: str, state: State, say: Say) -> Exit:
    """Say what a change waits for, unless it has landed."""
    if state is State.LANDED:
        return Exit.YES
    for line in _waits(work, task, state):
        say(line)
    return Exit.NO


def _end_sync(
    work: Workspace,
    task: str,
    state: State,
    fetched: upstream.Fetched,
    record: Record,
    say: Say,
) -> Exit:
    """The same; where both sides conflict a worktree is opened with both in it."""
    place: Path | None = None
    if state is State.LANDED:
        tip = work.ledger.hub.tip(work.config.target)
        say(f"{work.config.target} {tip[:7]} has all of {fetched.name} {fetched.tip[:7]}")
    elif state is State.OPEN and _conflict_of(work, task) is not None:
        joined = hand.join(work, work.checkout, task, None)
        if isinstance(joined, hand.Joined):
            record["state"] = State.CLAIMED.value
            place = joined.worktree
    elif state is State.CLAIMED:
        with contextlib.suppress(UsageError, hand.ClaimHeld):  # no claim by hand, or not from here
            place = work.layout.slots / hand.find_place(work, work.checkout, task).slot
    if place is None:
        return _end(work, task, state, say)
    for line in _resolve_lines(work, task, place, record):
        say(line)
    return Exit.NO


def _conflict_of(work: Workspace, task: str) -> Last | None:
    """How its last attempt ended, when that was in a conflict."""
    attempts = readable(work.ledger.view().attempts, task)
    last = attempts.last if attempts is not None else None
    return last if last is not None and last.outcome == "conflict" else None


def _resolve_lines(work: Workspace, task: str, place: Path, record: Record) -> list[str]:
    """Where a person resolves it; the same whenever it is asked."""
    record["worktree"] = str(place)
    last = _conflict_of(work, task)
    if last is not None:
        record["result"] = "conflict"
        lines = [f"conflict  {task}   in {one_line(', '.join(last.paths[:5]), 80)}"]
        lines.append(f"worktree  {place}   both sides are in it, with markers")
    else:
        lines = [f"waits     {task}   somebody works on it", f"worktree  {place}"]
    lines.append(f"next      cd {shlex.quote(str(place))}")
    return [*lines, "          resolve, commit if you like, then there:  swarm submit"]


def _waits(work: Workspace, task: str, state: State) -> list[str]:
    """Why a change of a command does not go on, and what to type."""
    view = work.ledger.view()
    attempts = readable(view.attempts, task)
    last = attempts.last if attempts is not None else None
    match state:
        case State.OPEN:
            why = one_line(last.message, 80) if last is not None else "it waits for a person"
            return [f"waits     {task}   {why}", f"next      swarm claim {task}"]
        case State.CLAIMED:
            return [
                f"waits     {task}   somebody works on it",
                f"next      swarm show {task}",
            ]
        case State.HELD:
            return [
                f"held      {task}",
                f"next      swarm diff {task}",
                f"          swarm approve {task}",
            ]
        case State.QUEUED:
            paused = view.gate().paused
            why = f"the gate is paused: {paused.why}" if paused else "the gate has not come to it"
            return [f"queued    {task}   {one_line(why, 80)}"]
        case _:
            return [f"{state.value:<9} {task}", f"next      swarm show {task}"]


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
            tasks = reverting.landed_in(work.ledger, run_)
            if not tasks:
                raise SwarmError(f"nothing of {run_} has landed", hint="swarm log")
        else:
            tasks = [load_id(work.ledger, name) for name in names]
        view = work.ledger.view()
        for task, state, need in reverting.dependants(work.ledger, view, tasks):
            stays = "; it stays" if state is State.LANDED else ""
            say(f"needs     {task}   needs {need}, {state.value}{stays}")
        answer = reverting.revert(work, tasks)
        record: Record = {"schema": "swarm.revert/1", "task": None, "undoes": []}
        code = Exit.YES
        match answer:
            case reverting.NotLanded(task, state):
                raise SwarmError(
                    f"{task} is {state.value}: nothing of it is in {work.config.target}",
                    hint=f"swarm show {task}",
                )
            case reverting.Entangled(task, paths, later):
                raise _entangled(task, paths, later, tasks)
            case reverting.NothingLeft(undone):
                record |= {"result": "nothing_left"}
                say(f"{work.config.target} has nothing of {', '.join(undone[:5])} any more")
            case reverting.OnItsWay(task, state, undoes):
                record |= {"result": "waits", "task": task, "undoes": list(undoes)}
                if state is State.QUEUED and not no_wait:
                    state = _await(work, task, record, say)
                code = _end(work, task, state, say)
            case reverting.Offered(entry, undoes, left):
                record |= {"result": "queued", "task": entry.task, "undoes": list(undoes)}
                for task in undoes:
                    done = view.done(task)
                    say(f"undoes    {task}   {(done.landed or '')[:7] if done else ''}")
                for task in left:
                    say(f"left      {task}   nothing of it is in {work.config.target} any more")
                word = "held" if entry.is_held else "queued"
                stat = f"{plural(entry.files, 'file')} +{entry.insertions} -{entry.deletions}"
                say(f"{word:<9} {entry.task}   {stat}")
                if not no_wait:
                    state = _await(work, entry.task, record, say)
                    code = _end(work, entry.task, state, say)
        if as_json:
            click.echo(json.dumps(record))
        return int(code)


def _entangled(
    task: str, paths: Sequence[str], later: Sequence[str], tasks: Sequence[str]
) -> SwarmError:
    """Later work stands on the same lines: what can be typed instead."""
    named = ", ".join(shown(path) for path in paths[:5])
    others = [name for name in later if name not in tasks]
    text = f"Take back what task {task} changed in {named}"
    ask = shlex.join(["swarm", "task", "add", f"Undo {task}", "-m", text])
    hints = [f"swarm revert {' '.join([*others[:8], *tasks])}"] if others else []
    by = f" by {', '.join(others[:5])}" if others else ""
    return SwarmError(
        f"{task} cannot be undone by itself: {named} was changed again{by}",
        why="nothing was added; undo those too, or let somebody take it out by hand",
        hint="\n".join([*hints, ask]),
    )
