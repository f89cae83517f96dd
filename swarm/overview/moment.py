"""One consistent reading of a hub: what several records of the same look need, read once.

Enters: a workspace. Leaves: the moment that every figure of one screen is of.
Guards: a landing in flight counts as landed from the instant its commit is in the target; a record
that does not decode is named and stops nothing else.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from swarm.errors import HubUnusable
from swarm.ledger import records
from swarm.ledger.records import Gate, Lock, QueueEntry, Run, Undecodable
from swarm.ledger.view import View
from swarm.liveness import Holder, Sign, signs
from swarm.overview.standing import landed_in_flight
from swarm.workspace import Workspace


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """Which ledger commit was read, and how long ago."""

    oid: str
    age_seconds: float


class Moment(msgspec.Struct, frozen=True):
    """Everything that several records need, read once."""

    work: Workspace
    view: View
    locks: tuple[Lock, ...]
    entries: tuple[QueueEntry, ...]  # without those that a landing in flight has landed
    runs: tuple[Run, ...]  # not ended
    all_runs: tuple[Run, ...]
    gate: Gate | None  # None: it does not decode
    in_flight: frozenset[str]  # tasks landed by the landing in flight
    signs: dict[str, Sign]  # by nonce of a lock or the gate, by runner of a run
    damage: tuple[tuple[str, str], ...]  # (ledger file, why) of records that belong to no task

    def is_alive(self, run: Run) -> bool:
        return not self.signs[run.runner].is_gone

    @property
    def live_runs(self) -> list[Run]:
        """Newest first."""
        found = [run for run in self.runs if self.is_alive(run)]
        return sorted(found, key=lambda run: run.started_at, reverse=True)

    @property
    def has_gate(self) -> bool:
        """Some runner is the gate, and gave a sign of life within its lease."""
        gate = self.gate
        if gate is None or gate.runner is None:
            return False
        return self.signs[gate.nonce].age_seconds <= (gate.lease_seconds or 0.0)

    def sign(self, lock: Lock) -> Sign:
        return self.signs[lock.nonce]

    def reading(self) -> Reading:
        now = self.work.ledger.clock.now()
        age = max(0.0, (now - self.view.now).total_seconds())
        return Reading(oid=self.view.tip, age_seconds=round(age, 3))


def read_moment(work: Workspace) -> Moment:
    """
    Raises:
        HubUnusable: there is no ledger to read.
    """
    ledger = work.ledger
    view = ledger.view()
    damage: list[tuple[str, str]] = []
    gate: Gate | None = None
    try:
        gate = view.gate()
    except HubUnusable as error:
        damage.append((records.GATE_PATH, error.why or error.what))
    try:
        view.landing()
    except HubUnusable as error:
        damage.append((records.LANDING_PATH, error.why or error.what))
    all_runs: list[Run] = []
    for path, oid in view.iter_paths("runs"):
        try:
            all_runs.append(records.decode(Run, view.hub.reader.read(oid, "blob")))
        except Undecodable as error:
            damage.append((path, str(error)))
    in_flight = landed_in_flight(view)
    locks = tuple(lock for lock in view.locks() if lock.task not in in_flight)
    runs = tuple(run for run in all_runs if run.state != "ended")
    holders = [*(Holder.of(lock) for lock in locks), *(Holder.of(run) for run in runs)]
    if gate is not None and gate.runner is not None:
        holders.append(Holder.of(gate))
    layout = work.layout
    return Moment(
        work,
        view,
        locks,
        tuple(entry for entry in view.entries() if entry.task not in in_flight),
        runs,
        tuple(all_runs),
        gate,
        in_flight,
        signs(ledger.hub, holders, layout.runs, layout.cache, ledger.clock),
        tuple(damage),
    )


def seconds_since(now: datetime, at: datetime) -> float:
    """How long ago; a time in the future is 0 ago."""
    return round(max(0.0, (now - at).total_seconds()), 3)
