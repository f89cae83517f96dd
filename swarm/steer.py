"""What is said to work that goes on, and by it: pause, resume, stop; a question, giving up.

Enters: a person's word, or an agent's. Leaves: an event, a request that a loop heeds, a signal, or
why not. Guards: only a process proved to be the runner is signalled; an attempt's work is saved
before its claim ends; a question is written before anything ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import psutil
from msgspec.structs import replace

from swarm import process, request
from swarm.claim import Fenced, Mine, Released, check_fence, find_lock
from swarm.errors import Exit, HubUnusable, SwarmError
from swarm.layout import Layout
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.records import Lock, Paused, Run
from swarm.ledger.store import Draft, Ledger, refuse
from swarm.ledger.view import State, View
from swarm.liveness import alive_path, is_flock_free
from swarm.reconcile import Report, Sweep, charge_dead, end_as_wanted, save_slot
from swarm.request import Stop, Wanted
from swarm.slot import Slot
from swarm.task import Refusal
from swarm.trailers import one_line, plain

_DRAINING = ".stop/.drain"  # below the run's folder


# Nothing lands


def pause(ledger: Ledger, why: str, by: str) -> Refusal | None:
    """Nothing lands until a person resumes; agents go on. None: done.

    A person's pause replaces the gate's own, which would end by itself.
    """

    def decide(view: View) -> Draft[Refusal | None]:
        gate = view.gate()
        if gate is None:
            raise HubUnusable("gate.json is missing", hint="swarm doctor")
        if gate.paused is not None and gate.paused.by == "person":
            return refuse(Refusal("", f"it is paused: {gate.paused.why}", "swarm resume"))
        says = one_line(why) or f"paused by {by}"
        paused = Paused(why=says, by="person", at=view.now)
        return Draft((_gate_event(view, "paused", says, paused, by),), None)

    return ledger.append(decide)


def resume(ledger: Ledger, by: str) -> Refusal | None:
    """End a person's pause. None: done.

    The gate's own pause is not ended: it would only be put back, or let a red target pass.
    """

    def decide(view: View) -> Draft[Refusal | None]:
        gate = view.gate()
        if gate is None or gate.paused is None:
            return refuse(Refusal("", "it is not paused"))
        if gate.paused.by == "gate":
            hint = "it resumes by itself at the first green target"
            return refuse(Refusal("", f"the gate paused itself: {gate.paused.why}", hint))
        return Draft((_gate_event(view, "resumed", "The gate goes on.", None, by),), None)

    return ledger.append(decide)


def _gate_event(view: View, kind: str, says: str, paused: Paused | None, by: str) -> Event:
    gate = view.gate()
    assert gate is not None
    edits: dict[str, bytes | None] = {
        records.GATE_PATH: records.encode(replace(gate, paused=paused))
    }
    return Event(kind, says, edits, trailers={"Swarm-By": by})


# One attempt


class RunnerEnds(msgspec.Struct, frozen=True):
    """Its runner ends the attempt at its next look."""

    lock: Lock


class Stopped(msgspec.Struct, frozen=True):
    """Its runner was gone, or it was claimed by hand: ended at once, its work saved."""

    lock: Lock
    released: Released
    rescued: tuple[str, ...]


def stop_task(
    ledger: Ledger, setting: Sweep, task: str, *, by: str, why: str = "", is_now: bool = False
) -> RunnerEnds | Stopped | Refusal:
    """End one task's attempt: its work is kept, it is no strike, and it waits for a person.

    It is parked, since an idle loop would claim it again at once.

    Raises:
        GitFault, HubUnusable: nothing was given back; what is in the slot stays there.

    Safe: the attempt may end by itself meanwhile; whoever comes second is refused.
    """
    view = ledger.view()
    refusal = why_not(view, task)
    if refusal is not None:
        return refusal
    lock = find_lock(view, task)
    assert lock is not None
    stop = Stop(nonce=lock.nonce, by=by, why=one_line(why), is_now=is_now)
    is_free = is_flock_free(alive_path(setting.layout.runs, lock.runner))
    if is_free is False:
        request.put_stop(setting.layout, lock, stop)
        return RunnerEnds(lock)
    if is_free is None and lock.host != socket.gethostname():
        return Refusal(task, f"its agent runs on {lock.host}", f"type it on {lock.host}")
    before = request.find_wanted(setting.layout, lock)
    before = before or Wanted()
    answer = _end_here(ledger, setting, lock, Wanted(stop, before.question, before.given_up))
    match answer:
        case Fenced():
            return Refusal(task, f"too late: {answer.now}", f"swarm show {task}")
        case SlotTaken():
            hint = f"swarm stop {task}"
            return Refusal(task, f"another process works in slot {lock.slot}; try again", hint)
        case _:
            return answer


def why_not(view: View, task: str) -> Refusal | None:
    match view.state(task):
        case State.CLAIMED:
            return None
        case State.HELD:
            hint = f'swarm reject {task} "why"'
            return Refusal(task, "no agent works on it: its change waits for a person", hint)
        case State.QUEUED:
            hint = f"swarm task cancel {task}"
            return Refusal(task, "no agent works on it: its change waits for the gate", hint)
        case State.OPEN:
            return Refusal(task, "no agent works on it")
        case state:
            return Refusal(task, f"no agent works on it: it is {state.value}")


class SlotTaken(msgspec.Struct, frozen=True):
    """Another process works in the claim's slot; the claim stands."""


def _end_here(
    ledger: Ledger, setting: Sweep, lock: Lock, wanted: Wanted
) -> Stopped | Refusal | Fenced | SlotTaken:
    """What a runner would do, in the place of one that is gone."""
    marked = process.find_marked(f"{lock.runner}.")
    if marked:
        process.end_marked(marked, setting.grace)
    slot = Slot.take(setting.layout.slots, lock.slot, ledger.hub) if lock.slot else None
    if slot is None and lock.slot:
        return SlotTaken()
    try:
        charge_dead(ledger, setting, lock)
        report = Report()
        held = {slot.name: slot} if slot else {}
        saved, unresolved = save_slot(ledger, setting, lock, held, report)
        if report.kept:
            return Refusal(lock.task, f"its work could not be saved: {report.kept[0]}")
        answer = end_as_wanted(ledger, setting, lock, wanted, saved, unresolved)
    finally:
        if slot is not None:
            slot.close()
    if isinstance(answer, Fenced):
        return answer
    return Stopped(lock, answer, tuple(report.rescued))


# An agent's own word


def ask(
    ledger: Ledger, setting: Sweep, mine: Mine, question: str
) -> RunnerEnds | Stopped | Refusal | Fenced:
    """End an agent's own attempt with a question: its work is kept, it is no strike, and the task
    waits for a person.

    `RunnerEnds` also where nobody can end the attempt now: whoever ends its claim heeds the
    question. A second one is asked below the first.

    Raises:
        SwarmError: the question could not be written; nothing was asked.
        GitFault, HubUnusable: it is written, and whoever ends the claim heeds it.

    Safe: the attempt may end meanwhile, by itself or by a person's word: the question is not lost
    while the claim stands.
    """
    question = plain(question)

    def leave(lock: Lock) -> Refusal | None:
        if request.add_question(setting.layout, lock, question):
            return None
        return Refusal(
            mine.task,
            f"with what was asked before it is over {request.MOST_ASKED} characters",
            "what was asked before stands: end here",
        )

    was_heard = partial(_was_asked, task=mine.task, question=question)
    return _say(ledger, setting, mine, "the question", leave, was_heard)


def give_up(
    ledger: Ledger, setting: Sweep, mine: Mine, why: str
) -> RunnerEnds | Stopped | Refusal | Fenced:
    """End an agent's own attempt as given up: a strike, its work is kept, and the next attempt
    starts fresh. Otherwise as `ask`.
    """

    def leave(lock: Lock) -> None:
        request.put_given_up(setting.layout, lock, why)

    return _say(ledger, setting, mine, "the word", leave, partial(_was_given_up, mine=mine))


def _say(
    ledger: Ledger,
    setting: Sweep,
    mine: Mine,
    what: str,
    leave: Callable[[Lock], Refusal | None],
    was_heard: Callable[[View], bool],
) -> RunnerEnds | Stopped | Refusal | Fenced:
    """Leave an agent's word for its runner, or do what its runner would when that is gone."""
    view = ledger.view()
    fenced = _why_fenced(view, mine)
    lock = find_lock(view, mine.task)
    if fenced is not None or lock is None:
        return fenced or Fenced(mine.task, mine.token, "it has no claim")
    try:
        refusal = leave(lock)
    except OSError as error:
        raise SwarmError(
            f"{what} could not be left for the runner",
            why=str(error),
            hint="say it in your last words, and end without a change",
        ) from error
    if refusal is not None:
        return refusal
    is_free = is_flock_free(alive_path(setting.layout.runs, lock.runner))
    is_gone = is_free or (is_free is None and lock.host == socket.gethostname())
    if is_gone and (wanted := request.find_wanted(setting.layout, lock)) is not None:
        answer = _end_here(ledger, setting, lock, wanted)
        if isinstance(answer, Stopped):
            return answer
    view = ledger.view()
    fenced = _why_fenced(view, mine)
    if fenced is None or was_heard(view):
        return RunnerEnds(lock)
    request.drop(setting.layout, lock)
    return fenced


def _was_asked(view: View, task: str, question: str) -> bool:
    with contextlib.suppress(records.Undecodable):
        parked = view.parked(task)
        return parked is not None and request.has_asked(parked.question or "", question)
    return False


def _was_given_up(view: View, mine: Mine) -> bool:
    with contextlib.suppress(records.Undecodable):
        attempts = view.attempts(mine.task)
        last = attempts.last if attempts is not None else None
        return last is not None and (last.token, last.outcome) == (mine.token, "given_up")
    return False


def _why_fenced(view: View, mine: Mine) -> Fenced | None:
    fenced = check_fence(view, mine)
    if fenced is None and view.state(mine.task) is not State.CLAIMED:
        return Fenced(mine.task, mine.token, "its change is sealed")
    return fenced


# A whole run


class NotProved(SwarmError):
    """The process that a run record names could not be proved to be that runner."""

    exit_code = Exit.NO


def live_runners(layout: Layout) -> list[str]:
    """Names of the runners whose flock is held on this disk, sorted."""
    if not layout.runs.is_dir():
        return []
    alive = sorted(layout.runs.glob("*.alive"))
    return [path.name.removesuffix(".alive") for path in alive if is_flock_free(path) is False]


def live_runs(view: View, layout: Layout) -> list[Run]:
    """Runs that have not ended and whose runner lives here, by name."""
    alive = live_runners(layout)
    return [run for run in view.runs() if run.state != "ended" and run.runner in alive]


def is_draining(layout: Layout, run: Run) -> bool:
    """Was it asked to finish before? A second SIGINT would stop it now."""
    return (layout.runs / run.run / _DRAINING).exists()


def stop_run(layout: Layout, run: Run, *, is_now: bool) -> None:
    """SIGINT (finish what runs, claim nothing new), or SIGTERM (end everything, keep the work).

    Raises:
        NotProved: the process is not, or cannot be shown to be, this runner; nothing was sent.
    """
    if run.host != socket.gethostname():
        raise NotProved(f"{run.run} works on {run.host}", hint=f"type it on {run.host}")
    with _proved(layout, run) as send:
        if not is_now:
            marker = layout.runs / run.run / _DRAINING
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
        send(signal.SIGTERM if is_now else signal.SIGINT)


class _Send:
    """Sends a signal to one process and never to another that got its number."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.fd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1

    def __call__(self, number: signal.Signals) -> None:
        if self.fd >= 0:
            signal.pidfd_send_signal(self.fd, number)
        else:
            os.kill(self.pid, number)


@contextlib.contextmanager
def _proved(layout: Layout, run: Run) -> Iterator[_Send]:
    """The process is held first and judged then, so that its number cannot change hands."""
    what = f"process {run.pid} is not proved to be the runner of {run.run}"
    path = alive_path(layout.runs, run.runner)
    try:
        send = _Send(run.pid)
    except OSError as error:
        raise NotProved(what, why=error.strerror, hint=_by_hand(path)) from error
    try:
        opened = {os.path.realpath(file.path) for file in psutil.Process(run.pid).open_files()}
        if os.path.realpath(path) not in opened or is_flock_free(path) is not False:
            raise NotProved(what, why=f"it does not hold {path}", hint=_by_hand(path))
        yield send
    except (psutil.Error, OSError) as error:
        raise NotProved(what, why=str(error), hint=_by_hand(path)) from error
    finally:
        if send.fd >= 0:
            os.close(send.fd)


def _by_hand(path: Path) -> str:
    return f"fuser -v {path}"
