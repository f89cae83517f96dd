"""A person's word: approve, reject, tell, pause, resume, stop.

Enters: words. Leaves: events, and a sentence about each.
Guards: what cannot be done is refused before anything is; nobody but a proved runner is signalled.
"""

from __future__ import annotations

import time

import click

from swarm import steer
from swarm import task as tasks
from swarm.claim import find_lock
from swarm.config import shown
from swarm.errors import Exit, SwarmError, UsageError
from swarm.ledger.records import Lock, QueueEntry, Run
from swarm.ledger.view import State, View
from swarm.liveness import alive_path, is_flock_free
from swarm.output import clock, merged_text, plural
from swarm.overview import held_since, merged_entry, shown_state
from swarm.reconcile import Sweep
from swarm.task import Refusal
from swarm.tell import MOST_TOLD, Heard
from swarm.tell import tell as tell_next
from swarm.trailers import one_line, plain
from swarm.workspace import Workspace, opened, person

ANSWER_SECONDS = 20.0  # beyond three graces, for a loop to save and give back
LOOK_SECONDS = 0.1


@click.command()
@click.argument("names", metavar="TASK...", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="Every held change.")
def approve(names: tuple[str, ...], is_all: bool) -> None:
    """Let held changes go to the gate."""
    if bool(names) == is_all:
        raise UsageError(
            "name tasks, or say --all" if is_all is False else "name tasks or say --all, not both",
            hint="swarm approve --all",
        )
    with opened() as work:
        view = work.ledger.view()
        held = {entry.task: entry for entry in view.entries() if entry.is_held}
        ids = sorted(held) if is_all else [tasks.load_id(work.ledger, name) for name in names]
        for id_ in ids:
            if id_ not in held:
                state = shown_state(view, work.ledger.index, id_)
                raise UsageError(f"{id_} is {state}, not held", hint=f"swarm show {id_}")
        if not ids:
            raise SwarmError("nothing is held", hint="swarm status")
        for id_ in ids:
            answer = tasks.approve(work.ledger, id_, person())
            if isinstance(answer, Refusal):
                raise UsageError(f"{id_}: {answer.why}", hint=answer.hint or None)
            click.echo(f"approved  {id_}   {_was_held(work, view, held[id_])}")
        if not steer.live_runs(work.ledger.view(), work.layout):
            click.echo("no run works now; to judge and land it: swarm gate --once")


def _was_held(work: Workspace, view: View, entry: QueueEntry) -> str:
    """What was approved, and what will become of it as things stand."""
    since = held_since(entry)
    span = f"since {clock(since, view.now)}, " if since is not None else ""
    says = merged_text(merged_entry(work, view, entry))
    return f"head {entry.head[:7]}; was held: {_why(entry)}; {span}{says}"


def _why(entry: QueueEntry) -> str:
    reasons = [
        hold.reason + (f" {', '.join(shown(p) for p in hold.paths[:3])}" if hold.paths else "")
        for hold in entry.hold or ()
        if hold.approved_at is None
    ]
    return "; ".join(reasons)


@click.command()
@click.argument("name", metavar="TASK")
@click.argument("why")
def reject(name: str, why: str) -> None:
    """Send a held change back; WHY is what the next attempt is told. No strike."""
    if not why.strip():
        raise UsageError(
            "say why: the next attempt is told", hint=f'swarm reject {shown(name)} "why"'
        )
    with opened() as work:
        id_ = tasks.load_id(work.ledger, name)
        state = shown_state(work.ledger.view(), work.ledger.index, id_)
        if state != State.HELD.value:
            raise UsageError(f"{id_} is {state}, not held", hint=f"swarm show {id_}")
        answer = tasks.reject(work.ledger, id_, why, person(), work.bounds)
        if isinstance(answer, Refusal):
            raise UsageError(f"{id_} cannot be rejected: {answer.why}", hint=answer.hint or None)
        click.echo(f"rejected  {id_}   open again; the next attempt starts from this change")


@click.command()
@click.argument("name", metavar="TASK")
@click.argument("text")
def tell(name: str, text: str) -> None:
    """Answer a task's question, or say something to its next attempt.

    A task that waits for you is opened again. Whoever works on it now is not interrupted.
    """
    words = plain(text)
    if not words.strip(" ."):
        raise UsageError("there is nothing in it", hint=f'swarm tell {shown(name)} "per invoice"')
    size = len(words.encode())
    if size > MOST_TOLD:
        raise UsageError(
            f"the text has {size} bytes, {MOST_TOLD} at most",
            hint=f"swarm task edit {shown(name)}",
        )
    with opened() as work:
        id_ = tasks.load_id(work.ledger, name)
        answer = tell_next(work.ledger, id_, words, person())
        if isinstance(answer, Refusal):
            raise UsageError(f"{id_} cannot be told: {answer.why}", hint=answer.hint or None)
        if not answer.is_new:
            click.echo(f"told      {id_}   told before; attempt {answer.token + 1} gets it")
            return
        click.echo(f"told      {id_}   {_reaches(answer)}")


def _reaches(told: Heard) -> str:
    """When the words are read, and what happens until then."""
    reader = f"attempt {told.token + 1}"
    match told.was:
        case State.PARKED:
            how = "answered" if told.question else "it waited for you"
            return f"{how}; open again, and {reader} gets it"
        case State.CLAIMED:
            return (
                f"reaches {reader}, if this one does not land; "
                f"to end this one now: swarm stop {told.task}"
            )
        case State.QUEUED:
            return f"its change waits for the gate; {reader} gets it if that is sent back"
        case State.HELD:
            sent = f'swarm reject {told.task} "why"'
            return f"its change is held; {reader} gets it once that is sent back: {sent}"
        case _:
            return f"{reader} gets it"


@click.command()
@click.argument("why", default="")
def pause(why: str) -> None:
    """Nothing lands until `swarm resume`; agents go on."""
    with opened() as work:
        answer = steer.pause(work.ledger, why, person())
        if answer is not None:
            raise SwarmError(answer.why, hint=answer.hint or None)
        click.echo("paused    nothing lands until: swarm resume")


@click.command()
def resume() -> None:
    """Let the gate go on after `swarm pause`."""
    with opened() as work:
        answer = steer.resume(work.ledger, person())
        if answer is not None:
            raise SwarmError(answer.why, hint=answer.hint or None)
        click.echo("resumed   the gate goes on")


@click.command()
@click.argument("names", metavar="[TASK...]", nargs=-1)
@click.option("--now", is_flag=True, help="Kill; do not wait for what runs.")
@click.option("--reason", default="", help="Kept in the log, with a task.")
def stop(names: tuple[str, ...], now: bool, reason: str) -> int:
    """Stop the run of this repository, or the attempts of single tasks.

    A run finishes what it works on and claims nothing new; with --now its attempts end and their
    work is kept. A task's attempt ends, its work is kept, it is no strike, and the task is parked
    until you reopen it.
    """
    with opened() as work:
        return int(_stop_tasks(work, names, now, reason) if names else _stop_runs(work, now))


# A run


def _stop_runs(work: Workspace, now: bool) -> Exit:
    view = work.ledger.view()
    runs = steer.live_runs(view, work.layout)
    if not runs:
        others = [run for run in view.runs() if run.state != "ended"]
        raise SwarmError(
            "no run of this repository works on this machine",
            why="\n".join(f"{run.run} began on {run.host} and did not end" for run in others[:5])
            or None,
            hint="swarm status",
        )
    for run in runs:
        if not now and steer.is_draining(work.layout, run):
            click.echo(f"draining  {run.run} was asked before; at once: swarm stop --now")
            continue
        steer.stop_run(work.layout, run, is_now=now)
        busy = sum(1 for lock in view.locks() if lock.run == run.run and _is_worked_on(view, lock))
        many = plural(busy, "attempt")
        if not now:
            claims = f"{many} finish{'es' if busy == 1 else ''}, no new claims"
            click.echo(f"draining  {run.run} pid {run.pid}: {claims}; at once: swarm stop --now")
        elif _wait_gone(work, run):
            click.echo(f"stopped   {run.run} pid {run.pid}: {many} ended, their work is kept")
        else:
            click.echo(f"stopping  {run.run} pid {run.pid}: still ending {many}: swarm status")
            return Exit.NO
    return Exit.YES


def _is_worked_on(view: View, lock: Lock) -> bool:
    return view.state(lock.task) is State.CLAIMED


def _wait_gone(work: Workspace, run: Run) -> bool:
    path = alive_path(work.layout.runs, run.runner)
    deadline = time.monotonic() + _patience(work)
    while time.monotonic() < deadline:
        if is_flock_free(path) is not False:
            return True
        time.sleep(LOOK_SECONDS)
    return False


def _patience(work: Workspace) -> float:
    return 3 * work.config.limits.grace.total_seconds() + ANSWER_SECONDS


# Single tasks


def _stop_tasks(work: Workspace, names: tuple[str, ...], now: bool, reason: str) -> Exit:
    ids = [tasks.load_id(work.ledger, name) for name in names]
    for id_ in ids:
        refusal = steer.why_not(work.ledger.view(), id_)
        if refusal is not None:
            _refuse(refusal)
    grace = work.config.limits.grace
    setting = Sweep(work.layout, work.rules, work.bounds, grace, work.checkout)
    asked: list[Lock] = []
    for id_ in ids:
        match steer.stop_task(work.ledger, setting, id_, by=person(), why=reason, is_now=now):
            case Refusal() as refusal:
                _refuse(refusal)
            case steer.RunnerEnds(lock):
                asked.append(lock)
            case steer.Stopped(lock):
                _say_stopped(work, lock.task)
    late = [lock for lock in asked if not _wait_released(work, lock)]
    for lock in late:
        click.echo(
            f"asked     {lock.task}   its runner {lock.runner} has not answered; "
            "nothing of it was lost: swarm status"
        )
    return Exit.NO if late else Exit.YES


def _refuse(refusal: Refusal) -> None:
    raise UsageError(
        f"{refusal.task} cannot be stopped: {refusal.why}", hint=refusal.hint or "swarm status"
    )


def _wait_released(work: Workspace, lock: Lock) -> bool:
    deadline = time.monotonic() + _patience(work)
    while time.monotonic() < deadline:
        held = find_lock(work.ledger.view(), lock.task)
        if held is None or held.nonce != lock.nonce:
            _say_stopped(work, lock.task)
            return True
        if work.ledger.view().state(lock.task) is not State.CLAIMED:
            click.echo(f"too late  {lock.task}   its change is sealed: swarm show {lock.task}")
            return True
        time.sleep(LOOK_SECONDS)
    return False


def _say_stopped(work: Workspace, id_: str) -> None:
    view = work.ledger.view()
    attempts = view.attempts(id_)
    kept = attempts.work if attempts else None
    head = f"its work is kept at {kept.head[:7]}; " if kept else ""
    word, on = "stopped", f"swarm task reopen {id_}"
    if view.state(id_) is not State.PARKED:
        word = view.state(id_).value
    elif (parked := view.parked(id_)) is not None and parked.question is not None:
        head += f'it asks "{one_line(parked.question, 60)}"; '
        on = f'swarm tell {id_} "..."'
    click.echo(f"{word:<9} {id_}   {head}goes on with: {on}")
