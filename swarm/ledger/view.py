"""One moment of the ledger, read as records.

Enters: a ledger tip and the target's tip of the same moment. Leaves: records, states.
Guards: a record that does not decode makes its task damaged and stops nothing else.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec

from swarm.errors import HubUnusable
from swarm.ledger import records
from swarm.ledger.records import (
    Attempts,
    Done,
    Gate,
    Landing,
    Lock,
    Parked,
    QueueEntry,
    Run,
    Task,
    Undecodable,
    Upstream,
    Verdict,
)
from swarm.plumbing.hub import Hub, branch_ref
from swarm.plumbing.objects import TREE

R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")


class State(enum.StrEnum):
    """Where a task is. `waiting`, `ready` and `blocked` are derived from OPEN."""

    ABSENT = "absent"  # no such task
    OPEN = "open"
    CLAIMED = "claimed"
    QUEUED = "queued"
    HELD = "held"
    LANDED = "landed"
    CANCELLED = "cancelled"
    PARKED = "parked"
    DAMAGED = "damaged"  # its files are no row of the table, or one does not decode


class View:
    """Facts at one ledger tip. Cheap: reads only what is asked for."""

    def __init__(self, hub: Hub, tip: str, target_branch: str, target: str, now: datetime) -> None:
        self.hub = hub
        self.tip = tip
        self.target_branch = target_branch
        self.target = target  # its tip
        self.now = now
        self.tree = hub.reader.tree_of(tip)

    def at(self, tip: str) -> View:
        """The ledger as it was at one of its own commits, beside today's target."""
        return View(self.hub, tip, self.target_branch, self.target, self.now)

    def blob_id(self, path: str) -> str | None:
        """The blob id of a ledger file, or None: what fences compare."""
        entry = self.hub.reader.find(self.tree, path)
        return entry.oid if entry is not None and entry.mode != TREE else None

    def raw(self, path: str) -> bytes | None:
        oid = self.blob_id(path)
        return None if oid is None else self.hub.reader.read(oid, "blob")

    def _record(self, kind: type[R], path: str) -> R | None:
        data = self.raw(path)
        return None if data is None else records.decode(kind, data)

    def ref(self, name: str) -> str | None:
        """The ref's value now; under the turn this is a fact for the event."""
        return self.hub.reader.ref(name)

    def task(self, task: str) -> Task | None:
        data = self.raw(records.task_path(task))
        return None if data is None else records.decode_task(data)

    def lock(self, task: str) -> Lock | None:
        return self._record(Lock, records.lock_path(task))

    def entry(self, task: str) -> QueueEntry | None:
        return self._record(QueueEntry, records.queue_path(task))

    def attempts(self, task: str) -> Attempts | None:
        return self._record(Attempts, records.attempts_path(task))

    def done(self, task: str) -> Done | None:
        return self._record(Done, records.done_path(task))

    def parked(self, task: str) -> Parked | None:
        return self._record(Parked, records.parked_path(task))

    def verdict(self, key: str) -> Verdict | None:
        return self._record(Verdict, records.verdict_path(key))

    def gate(self) -> Gate:
        """
        Raises:
            HubUnusable: it is damaged or missing, so that nobody may be the gate.
        """
        gate = self._shared(Gate, records.GATE_PATH)
        if gate is None:
            raise _damaged(records.GATE_PATH, "it is missing")
        return gate

    def landing(self) -> Landing | None:
        """
        Raises:
            HubUnusable: it is damaged, so that what was about to land is not known.
        """
        return self._shared(Landing, records.LANDING_PATH)

    def upstream(self) -> Upstream | None:
        """What is known of the user's own remote branch; None: nothing yet, or nothing readable,
        which costs a look and no work.
        """
        try:
            return self._record(Upstream, records.UPSTREAM_PATH)
        except Undecodable:
            return None

    def _shared(self, kind: type[R], path: str) -> R | None:
        """A record of no single task: its damage stops all."""
        try:
            return self._record(kind, path)
        except Undecodable as error:
            raise _damaged(path, str(error)) from error

    def run(self, run: str) -> Run | None:
        return self._record(Run, records.run_path(run))

    def iter_paths(self, folder: str) -> Iterator[tuple[str, str]]:
        """(path, blob id) of every file below a folder of the ledger's tree, by name."""
        entry = self.hub.reader.find(self.tree, folder)
        if entry is not None and entry.mode == TREE:
            yield from self._walk(entry.oid, folder + "/")

    def _walk(self, tree: str, prefix: str) -> Iterator[tuple[str, str]]:
        for name, entry in sorted(self.hub.reader.tree(tree).items()):
            if entry.mode == TREE:
                yield from self._walk(entry.oid, prefix + name + "/")
            else:
                yield prefix + name, entry.oid

    def locks(self) -> list[Lock]:
        """Live and queued claims that decode, by task."""
        return list(self._decoded(Lock, "current_tasks"))

    def entries(self) -> list[QueueEntry]:
        """Sealed changes that decode, in no useful order."""
        return list(self._decoded(QueueEntry, "queue"))

    def runs(self) -> list[Run]:
        """Every run that decodes, by name."""
        return list(self._decoded(Run, "runs"))

    def all_attempts(self) -> Iterator[Attempts]:
        """Of every task that was ever claimed, in no useful order."""
        return self._decoded(Attempts, "attempts")

    def all_parked(self) -> list[Parked]:
        return list(self._decoded(Parked, "parked"))

    def _decoded(self, kind: type[R], folder: str) -> Iterator[R]:
        for _, oid in self.iter_paths(folder):
            try:
                yield records.decode(kind, self.hub.reader.read(oid, "blob"))
            except Undecodable:
                continue

    def iter_damage(self) -> Iterator[tuple[str, str]]:
        """(path, why) of every live record that does not decode; tasks/ and verdicts/ excluded."""
        kinds: dict[str, type[msgspec.Struct]] = {
            "current_tasks": Lock,
            "queue": QueueEntry,
            "attempts": Attempts,
            "done": Done,
            "parked": Parked,
            "runs": Run,
        }
        for folder, kind in kinds.items():
            for path, oid in self.iter_paths(folder):
                try:
                    records.decode(kind, self.hub.reader.read(oid, "blob"))
                except Undecodable as error:
                    yield path, str(error)

    def state(self, task: str) -> State:
        """The row of the state table that the task's files are."""
        try:
            return derive(
                has_task=self.blob_id(records.task_path(task)) is not None,
                lock=self.lock(task),
                entry=self.entry(task),
                done=self.done(task),
                parked=self.parked(task),
            )
        except Undecodable:
            return State.DAMAGED

    def why_damaged(self, task: str) -> str | None:
        """Which of the task's records does not decode or lacks its fellow; None: all is well."""
        try:
            entry, done, parked = self.entry(task), self.done(task), self.parked(task)
            text, lock, attempts = self.task(task), self.lock(task), self.attempts(task)
        except Undecodable as error:
            return str(error)
        if entry is not None and lock is None:
            return "it is queued and has no lock"
        if entry is not None and entry.lock != self.blob_id(records.lock_path(task)):
            return "its lock is not the one that it was queued with"
        if (entry is not None or lock is not None) and (done is not None or parked is not None):
            return "its files are no row of the state table"
        if lock is not None and (text is None or attempts is None):
            return "it is claimed and has no " + ("text" if text is None else "attempts record")
        return None

    def is_landing(self, task: str) -> bool:
        """The task is named by the landing in flight: it is settled before anything else."""
        landing = self.landing()
        return landing is not None and any(c.task == task for c in landing.changes)

    def is_landed(self, task: str) -> bool:
        """Landed, counting a landing in flight whose commit the target already has."""
        try:
            done = self.done(task)
            if done is not None:
                return done.result == "landed"
            landing = self.landing()
        except (Undecodable, HubUnusable):
            return False
        if landing is None or not any(c.task == task for c in landing.changes):
            return False
        return self.target != landing.old and self.hub.contains(self.target, landing.new)


def readable(read: Callable[[str], T | None], name: str) -> T | None:
    """`read(name)` for whoever goes on without the record: None too when it does not decode."""
    try:
        return read(name)
    except Undecodable:
        return None


def _damaged(path: str, why: str) -> HubUnusable:
    return HubUnusable(f"{path} in the ledger is damaged", why=why, hint="swarm doctor --fix")


def derive(
    *,
    has_task: bool,
    lock: Lock | None,
    entry: QueueEntry | None,
    done: Done | None,
    parked: Parked | None,
) -> State:
    """The state table: each combination of files is one row or damage."""
    present = (lock is not None, entry is not None, done is not None, parked is not None)
    if not has_task:
        return State.DAMAGED if any(present) else State.ABSENT
    match present:
        case (False, False, False, False):
            return State.OPEN
        case (True, False, False, False):
            return State.CLAIMED
        case (True, True, False, False):
            assert entry is not None
            return State.HELD if entry.is_held else State.QUEUED
        case (False, False, True, False):
            assert done is not None
            return State.LANDED if done.result == "landed" else State.CANCELLED
        case (False, False, False, True):
            return State.PARKED
        case _:
            return State.DAMAGED


def queue_order(
    entry: QueueEntry, now: datetime, max_wait: timedelta
) -> tuple[bool, int, datetime, str]:
    """The gate's order: older than the age bound first, then priority, age, id."""
    is_old = now - entry.since > max_wait
    return (not is_old, 0 if is_old else -entry.priority, entry.since, entry.task)


def read_view(hub: Hub, ledger_ref: str, branch: str, now: Callable[[], datetime]) -> View | None:
    """A view whose target belongs to the same moment; None when there is no ledger yet.

    Reads ledger, target, ledger: between the two refs of a landing 6.5 % of naive reads saw landed
    work as claimed. A landing in flight is for `View.is_landed`.
    """
    while True:
        tip = hub.reader.ref(ledger_ref)
        if tip is None:
            return None
        target = hub.reader.ref(branch_ref(branch))
        if hub.reader.ref(ledger_ref) == tip:
            return View(hub, tip, branch, target or "", now())
