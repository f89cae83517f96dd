"""Joining by hand: claim, submit, release, ask, renew.

Enters: the folder where it is typed. Leaves: what became of the claim, and what to type next.
Guards: who is refused learns by whom and why, with an exit code for each.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import click

from swarm import hand, request, steer
from swarm.change import NoWork, Sealed, Unresolved
from swarm.claim import (
    AlreadyHolding,
    Fenced,
    HeldBy,
    NothingClaimable,
    NotReady,
    Released,
)
from swarm.errors import Exit, SwarmError, UsageError
from swarm.hand import ClaimHeld, Joined, Queued
from swarm.ledger.records import Lock
from swarm.ledger.view import State
from swarm.output import plural
from swarm.task import Refusal, load_id
from swarm.trailers import one_line, plain
from swarm.workspace import Workspace, opened, person


class NothingToClaim(SwarmError):
    """No task can be claimed now."""

    exit_code = Exit.NOTHING


class ClaimFenced(SwarmError):
    """The claim is no longer ours; what was done is kept."""

    exit_code = Exit.FENCED


MOST_NAMED = 3  # tasks

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _show(as_json: bool, record: dict[str, Any], lines: list[str]) -> None:
    click.echo(json.dumps(record) if as_json else "\n".join(lines))


def _refuse(as_json: bool, word: str, error: SwarmError) -> NoReturn:
    """One line for people, `swarm.error/1` for programs."""
    if as_json:
        raise error
    why = f" {error.why}" if error.why else ""
    click.echo(f"{word}: {error.what}{why}")
    for hint in (error.hint or "").splitlines():
        click.echo(f"  {hint}")
    raise click.exceptions.Exit(int(error.exit_code))


@click.command()
@click.argument("task", required=False)
@click.option("--next", "is_next", is_flag=True, help="The first ready task (the default).")
@click.option("--as", "name", help="Who claims; one claim at a time for each name.")
@_as_json
def claim(task: str | None, is_next: bool, name: str | None, as_json: bool) -> None:
    """Take a task by hand: prints a worktree to work in."""
    if task is not None and is_next:
        raise click.UsageError("name a task or say --next, not both")
    with opened() as work:

        def on_setup() -> None:
            if not as_json:
                click.echo(f"setup     running: {one_line(work.config.worktree.setup, 80)}")

        task = task and load_id(work.ledger, task)
        answer = hand.join(work, Path.cwd(), task, name, on_setup)
        if isinstance(answer, Joined):
            _show(as_json, _joined_record(answer), _joined_lines(work, answer))
            return
        _refuse_claim(work, answer, as_json)


def _refuse_claim(work: Workspace, answer: hand.Joining, as_json: bool) -> NoReturn:
    match answer:
        case HeldBy(lock, state):
            how = "" if state is State.CLAIMED else f", {state.value}"
            error: SwarmError = ClaimHeld(
                f"{lock.task} by {lock.slot or lock.agent} ({lock.adapter}) on {lock.host}",
                why=f"{_since(work, lock)}{how}",
                hint=f"swarm show {lock.task}" if as_json else None,
            )
            _refuse(as_json, "held", error)
        case AlreadyHolding(task):
            error = ClaimHeld(
                f"you hold {task}",
                hint=f'swarm submit {task}\nswarm release {task} --reason "not now"',
            )
            _refuse(as_json, "held", error)
        case NothingClaimable():
            _refuse(as_json, "nothing claimable", NothingToClaim(_why_nothing(work, answer)))
        case NotReady(task, _, why):
            error = NothingToClaim(f"{task}: {why}", hint=f"swarm show {task}")
            _refuse(as_json, "not claimable", error)
        case _:
            raise AssertionError(answer)


def _since(work: Workspace, lock: Lock) -> str:
    sign = hand.sign_of_claim(work, lock)
    at = lock.claimed_at.astimezone().strftime("%H:%M:%S")
    beat = "its runner is gone" if sign.is_gone else f"beat {sign.age_seconds:.0f}s ago"
    return f"since {at}, attempt {lock.token}, {beat}"


def _why_nothing(work: Workspace, answer: NothingClaimable) -> str:
    whys = []
    for what, tasks in (("paths overlap", answer.overlaps), ("nearly the same as", answer.twins)):
        if tasks:
            whys.append(f"{what} {', '.join(tasks[:3])}")
    parts = []
    if answer.kept_back:
        parts.append(f"{len(answer.kept_back)} ready but kept back ({'; '.join(whys)})")
    if answer.other_role:
        parts += _for_roles(work)
    counts = work.ledger.index.counts(work.ledger.view())
    waiting = counts.get("open", 0) - len(answer.kept_back) - answer.other_role
    if waiting > 0:
        parts.append(f"{waiting} waiting for a need or for back-off")
    parts += [f"{counts[s]} {s}" for s in ("claimed", "queued", "held", "parked") if counts.get(s)]
    return ", ".join(parts) or "no task is open"


def _for_roles(work: Workspace) -> list[str]:
    """Ready tasks that nobody gets who does not name them, each with its role."""
    from swarm.overview.standing import stand

    ready = [r for r in stand(work.ledger.view(), work.ledger.index).of("ready") if r.role]
    named = [f"{row.id} for the role {one_line(row.role, 20)}" for row in ready[:MOST_NAMED]]
    more = f" and {len(ready) - MOST_NAMED} more" if len(ready) > MOST_NAMED else ""
    return [f"ready: {', '.join(named)}{more} (swarm claim {ready[0].id})"] if ready else []


def _joined_record(joined: Joined) -> dict[str, Any]:
    lock = joined.claimed.lock
    return {
        "schema": "swarm.claim/1",
        "task": lock.task,
        "token": lock.token,
        "agent": lock.agent,
        "slot": joined.slot,
        "worktree": str(joined.worktree),
        "task_file": str(joined.task_file),
        "base": lock.base,
        "start": lock.start,
        "merge": lock.merge,
        "conflicted": list(joined.conflicted),
        "near": list(joined.claimed.near),
        "rescued": list(joined.rescued),
        "setup": joined.setup,
        "lease_seconds": lock.lease_seconds,
    }


def _joined_lines(work: Workspace, joined: Joined) -> list[str]:
    lock, last = joined.claimed.lock, joined.claimed.attempts.last
    lease = timedelta(seconds=lock.lease_seconds)
    lines = [
        f"claimed   {lock.task}   attempt {lock.token}, as {lock.agent}",
        f"worktree  {joined.worktree}   from {lock.start[:7]}",
        f"task      {joined.task_file}",
    ]
    if last is not None:
        lines.append(f"last      {one_line(last.message, 88)}")
    if joined.conflicted:
        files = ", ".join(joined.conflicted[:5])
        lines.append(f"resolve   {work.config.target} is merged in; conflicts in {one_line(files)}")
    if joined.claimed.near:
        lines.append(
            f"note      nearly the same as {', '.join(joined.claimed.near)}, which is held"
        )
    lines += [f"kept      what lay in {joined.slot}: {ref}" for ref in joined.rescued]
    if joined.setup is not None:
        lines.append(f"warning   setup failed: {joined.setup}")
    lines += [
        f"next      cd {joined.worktree}",
        "          work, commit if you like, then there:  swarm submit",
        '          or give it back:                       swarm release --reason "why"',
        f"lease     {_hours(lease)}; any swarm command in the worktree renews it",
    ]
    return lines


def _hours(span: timedelta) -> str:
    minutes = int(span.total_seconds()) // 60
    return f"{minutes // 60}h" if minutes % 60 == 0 and minutes else f"{minutes}m"


@click.command()
@click.argument("task", required=False)
@_as_json
def submit(task: str | None, as_json: bool) -> int:
    """Hand your work to the gate: what is committed and what is not."""
    with opened() as work:
        task = task and load_id(work.ledger, task)
        stand = hand.find_place(work, Path.cwd(), task)
        answer = hand.submit(work, stand)
        record: dict[str, Any]
        match answer:
            case Sealed(entry, rescued):
                held = entry.reasons
                record = {"result": "held" if held else "queued", "hold": held}
                record |= {"task": entry.task, "head": entry.head, "rescued": list(rescued)}
                stat = plural(entry.files, "file")
                stat += f" +{entry.insertions} -{entry.deletions}"
                lines = [f"{record['result']:<9} {entry.task}   head {entry.head[:7]}, {stat}"]
                if held:
                    from swarm.overview.standing import hold_text

                    lines.append(f"why       {one_line(hold_text(entry.hold or ()))}")
                    lines.append(f"next      swarm approve {entry.task}")
                lines += [f"kept      left out of it: {ref}" for ref in rescued]
                if not hand.is_gate_alive(work):
                    lines.append("gate      nobody is the gate now:  swarm gate --once")
                code = Exit.YES
            case NoWork(rescued):
                record = {"result": "no_work", "rescued": list(rescued)}
                lines = [
                    f"no work   nothing here that {work.config.target} lacks; you still hold it"
                ]
                code = Exit.NO
            case Unresolved(paths, rescued):
                record = {"result": "unresolved", "paths": list(paths), "rescued": list(rescued)}
                named = one_line(", ".join(paths[:5]))
                lines = [f"unresolved  conflict left in {named}; you still hold the task"]
                code = Exit.NO
            case Queued(name, rescued):
                record = {"result": "queued_before", "task": name, "rescued": list(rescued)}
                lines = [f"queued    {name} waits for the gate already; nothing was added to it"]
                lines += [f"kept      what came later: {ref}" for ref in rescued]
                code = Exit.NO
            case Fenced():
                _fenced(answer, as_json)
        _show(as_json, {"schema": "swarm.submit/1", **record}, lines)
        return int(code)


def _fenced(fenced: Fenced, as_json: bool) -> NoReturn:
    error = ClaimFenced(
        f"attempt {fenced.token} of {fenced.task} is over: {fenced.now}; what you did is kept",
        hint="swarm rescue list",
    )
    _refuse(as_json, "fenced", error)


@click.command()
@click.argument("task", required=False)
@click.option("--reason", required=True, help="One sentence; the next attempt reads it.")
@click.option("--give-up", is_flag=True, help="A strike, and the next attempt starts fresh.")
@_as_json
def release(task: str | None, reason: str, give_up: bool, as_json: bool) -> None:
    """Give a claim back; your work is kept, and the next attempt goes on from it."""
    with opened() as work:
        task = task and load_id(work.ledger, task)
        stand = hand.find_place(work, Path.cwd(), task)
        if not reason.strip():
            raise UsageError(
                "--reason says nothing: the next attempt reads it",
                hint='swarm release --reason "the fixture needs a database"',
            )
        answer = hand.give_back(work, stand, one_line(reason), person(), give_up=give_up, task=task)
        if isinstance(answer, Fenced):
            _fenced(answer, as_json)
        released: Released | None = None
        match answer:
            case Refusal():
                raise UsageError(f"{answer.task}: {answer.why}", hint=answer.hint or None)
            case steer.RunnerEnds(lock):
                name = lock.task
                lines = [f"given up  {name}   this attempt ends now; the next one starts fresh"]
            case steer.Stopped(lock, released):
                name = lock.task
                lines = [f"given up  {name}   this attempt has ended; the next one starts fresh"]
            case Released():
                name, released = answer.task, answer
                work_ref = answer.attempts.work.ref if answer.attempts.work else None
                lines = [
                    f"released  {name}   work kept in {work_ref}"
                    if work_ref
                    else f"released  {name}"
                ]
        parked = released.parked if released is not None else None
        if parked is not None:
            lines.append(f"parked    {name}   {parked.message}")
        kept = released.attempts.work if released is not None else None
        record = {
            "schema": "swarm.release/1",
            "task": name,
            "parked": parked.message if parked else None,
            "work": kept.ref if kept else None,
        }
        _show(as_json, record, lines)


@click.command()
@click.argument("text")
def ask(text: str) -> None:
    """End your attempt with a question; your work is kept, and the next attempt gets the answer."""
    question = plain(text)
    if not question.strip(" ."):
        raise UsageError("there is no question in it", hint='swarm ask "Round per seat?"')
    if len(question) > request.MOST_ASKED:
        raise UsageError(
            f"the question has {len(question)} characters, {request.MOST_ASKED} at most",
            hint="put what is long into a file, and name that file in the question",
        )
    with opened() as work:
        stand = hand.find_stand(work.layout, work.ledger.hub, Path.cwd())
        if stand is None:
            raise UsageError(
                "nobody works in this folder, so nobody asks here",
                why="it is typed in a worktree, by whoever works there",
                hint='to answer a question: swarm tell TASK "..."',
            )
        answer = hand.ask(work, stand, question, person())
        match answer:
            case Fenced():
                _fenced(answer, as_json=False)
            case Refusal():
                raise UsageError(f"{answer.task}: {answer.why}", hint=answer.hint or None)
            case (
                Released(task) | steer.RunnerEnds(Lock(task=task)) | steer.Stopped(Lock(task=task))
            ):
                end = "ends now" if isinstance(answer, steer.RunnerEnds) else "has ended"
                click.echo(f"asked     {task}   this attempt {end}; the next one gets the answer")


@click.command()
@click.argument("task", required=False)
@_as_json
def renew(task: str | None, as_json: bool) -> None:
    """Say that you are still at work on your claim."""
    with opened() as work:
        task = task and load_id(work.ledger, task)
        stand = hand.find_place(work, Path.cwd(), task)
        fenced = hand.renew(work, stand)
        if fenced is not None:
            _fenced(fenced, as_json)
        name = stand.occupant.task if stand.occupant else ""
        lease = work.hand_terms.lease
        _show(
            as_json,
            {"schema": "swarm.renew/1", "task": name, "lease_seconds": lease.total_seconds()},
            [f"renewed   {name}   for {_hours(lease)}"],
        )
