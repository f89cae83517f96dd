"""What a person says to work that goes on: pause, resume, stop.

Enters: a person's word. Leaves: an event, a request that a loop heeds, a signal, or why not.
Guards: only a process proved to be the runner is signalled; a stopped attempt's work is saved
before its claim ends; a request names its claim's nonce, so that no later attempt is stopped by it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from swarm import process
from swarm.claim import Ending, Fenced, Mine, Released, find_lock, release
from swarm.errors import Exit, HubUnusable, SwarmError
from swarm.layout import Layout
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.records import Lock, Paused, Run
from swarm.ledger.store import Draft, Ledger, refuse
from swarm.ledger.view import State, View
from swarm.liveness import alive_path, is_flock_free
from swarm.reconcile import Report, Sweep, save_slot
from swarm.slot import Slot
from swarm.task import Refusal
from swarm.trailers import one_line

# Beside the folders of tasks, whose names never start with a dot.
_REQUESTS = ".stop"
_DRAINING = ".drain"


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
        records.GATE_PATH: records.encode(msgspec.structs.replace(gate, paused=paused))
    }
    return Event(kind, says, edits, trailers={"Swarm-By": by})


# One attempt


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """`runs/<run>/.stop/<task>`: a person wants this claim's attempt ended."""

    nonce: str
    by: str
    why: str
    now: bool  # kill; else the adapter's signals and their grace

    @property
    def says(self) -> str:
        """The sentence of the event."""
        return f"stopped by {self.by}" + (f": {self.why}" if self.why else "")


def find_request(layout: Layout, lock: Lock) -> Request | None:
    """What a person asked of this very claim. Cheap enough for every poll."""
    try:
        data = _request_path(layout, lock).read_bytes()
        request = msgspec.json.decode(data, type=Request)
    except (OSError, msgspec.DecodeError):
        return None
    return request if request.nonce == lock.nonce else None


def drop_request(layout: Layout, lock: Lock) -> None:
    """The attempt has ended; whatever was asked of it is done."""
    with contextlib.suppress(OSError):
        _request_path(layout, lock).unlink()


def _request_path(layout: Layout, lock: Lock) -> Path:
    return layout.runs / lock.run / _REQUESTS / lock.task


@dataclass(frozen=True)
class Asked:
    """Its runner lives here and ends the attempt at its next look."""

    lock: Lock


@dataclass(frozen=True)
class Stopped:
    """Its runner was gone, or it was claimed by hand: ended at once, its work saved."""

    lock: Lock
    released: Released
    rescued: tuple[str, ...]


def stop_task(
    ledger: Ledger, setting: Sweep, task: str, *, by: str, why: str = "", now: bool = False
) -> Asked | Stopped | Refusal:
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
    request = Request(nonce=lock.nonce, by=by, why=one_line(why), now=now)
    is_free = is_flock_free(alive_path(setting.layout.runs, lock.runner))
    if is_free is False:
        path = _request_path(setting.layout, lock)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{task}.{os.getpid()}")
        temporary.write_bytes(msgspec.json.encode(request))
        temporary.replace(path)
        return Asked(lock)
    if is_free is None and lock.host != socket.gethostname():
        return Refusal(task, f"its agent runs on {lock.host}", f"type it on {lock.host}")
    return _stop_here(ledger, setting, lock, request)


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


def _stop_here(ledger: Ledger, setting: Sweep, lock: Lock, request: Request) -> Stopped | Refusal:
    """What a runner would do, in the place of one that is gone."""
    marked = process.find_marked(f"{lock.runner}.")
    if marked:
        process.end_marked(marked, setting.grace)
    slot = Slot.take(setting.layout.slots, lock.slot, ledger.hub) if lock.slot else None
    if slot is None and lock.slot:
        hint = f"swarm stop {lock.task}"
        return Refusal(lock.task, f"another process works in slot {lock.slot}; try again", hint)
    try:
        report = Report()
        held = {slot.name: slot} if slot else {}
        saved, unresolved = save_slot(ledger, setting, lock, held, report)
        if report.kept:
            return Refusal(lock.task, f"its work could not be saved: {report.kept[0]}")
        ending = Ending(
            "stopped",
            request.says,
            paths=unresolved,
            work=saved.work if saved else None,
            moves=saved.moves if saved else (),
        )
        answer = release(ledger, Mine.of(lock), ending, setting.bounds, by=request.by, park=True)
    finally:
        if slot is not None:
            slot.close()
    if isinstance(answer, Fenced):
        return Refusal(lock.task, f"too late: {answer.now}", f"swarm show {lock.task}")
    return Stopped(lock, answer, tuple(report.rescued))


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
    return (layout.runs / run.run / _REQUESTS / _DRAINING).exists()


def stop_run(layout: Layout, run: Run, *, now: bool) -> None:
    """SIGINT (finish what runs, claim nothing new), or SIGTERM (end everything, keep the work).

    Raises:
        NotProved: the process is not, or cannot be shown to be, this runner; nothing was sent.
    """
    if run.host != socket.gethostname():
        raise NotProved(f"{run.run} works on {run.host}", hint=f"type it on {run.host}")
    with _proved(layout, run) as send:
        if not now:
            marker = layout.runs / run.run / _REQUESTS / _DRAINING
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
        send(signal.SIGTERM if now else signal.SIGINT)


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
