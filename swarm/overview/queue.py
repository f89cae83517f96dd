"""What waits for the gate, in the gate's own order.

Enters: a workspace. Leaves: `swarm.queue/1`. Guards: what a runner says of its checks is believed
only while that runner lives and is the gate.
"""

from __future__ import annotations

import contextlib
import statistics
from datetime import datetime
from typing import Literal

import msgspec

from swarm.ledger import records
from swarm.ledger.records import Paused, QueueEntry, Undecodable, Verdict
from swarm.ledger.view import View, queue_order
from swarm.overview.live import Live, LiveCheck, live_path, read_live
from swarm.overview.merged import Merged, held_since, merged_entry
from swarm.overview.moment import Moment, Reading, read_moment, seconds_since
from swarm.overview.standing import hold_text
from swarm.workspace import Workspace


class Change(QueueEntry, frozen=True, kw_only=True):
    """A queue entry and where it stands."""

    position: int | None  # None: held
    state: Literal["checking", "waiting", "held"]
    why: str  # of waiting or held
    held_since: datetime | None = None
    merged: Merged | None = None  # of a held one: what it would be on the target now
    check: str | None  # that runs now; of a held one too, so that what is read is green
    for_seconds: float | None  # how long that check has run
    usual_seconds: float | None  # median of its passed runs in verdicts/


class GateHolder(msgspec.Struct, frozen=True, kw_only=True):
    """Which process is the gate."""

    runner: str
    host: str | None
    pid: int | None


class GateNow(msgspec.Struct, frozen=True, kw_only=True):
    """The gate; `holder` None: nobody is."""

    strategy: str
    slots: int
    holder: GateHolder | None
    is_alive: bool
    paused: Paused | None


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """`swarm queue --json`."""

    schema: str = "swarm.queue/1"
    at: datetime
    ledger: Reading
    gate: GateNow
    changes: list[Change]  # first what is checked now, then in the gate's order, held ones last


def queue(work: Workspace) -> Queue:
    """What waits for the gate."""
    moment = read_moment(work)
    lives = read_lives(moment)
    return Queue(
        at=moment.view.now,
        ledger=moment.reading(),
        gate=gate_now(moment),
        changes=changes_of(moment, lives),
    )


def read_lives(moment: Moment) -> dict[str, Live]:
    """run -> what its living runner says of itself; a gate that runs alone by its runner's name."""
    names = {run.run: run.runner for run in moment.live_runs}
    if moment.gate is not None and moment.gate.runner is not None and moment.has_gate:
        names.setdefault(moment.gate.runner, moment.gate.runner)
    found: dict[str, Live] = {}
    for run, runner in names.items():
        live = read_live(live_path(moment.work.layout, run))
        if live is not None and live.runner == runner:
            found[run] = live
    return found


def gate_now(moment: Moment) -> GateNow:
    """Who the gate is, how it works, and whether it is paused."""
    gate, config = moment.gate, moment.work.config.gate
    holder = None
    if gate is not None and gate.runner is not None:
        holder = GateHolder(runner=gate.runner, host=gate.host, pid=gate.pid)
    return GateNow(
        strategy=config.strategy,
        slots=config.slots,
        holder=holder,
        is_alive=moment.has_gate,
        paused=gate.paused if gate else None,
    )


def changes_of(moment: Moment, lives: dict[str, Live]) -> list[Change]:
    """Checked now, then in the gate's order, held ones last."""
    view, max_wait = moment.view, moment.work.config.gate.max_wait
    ordered = sorted(moment.entries, key=lambda e: queue_order(e, view.now, max_wait))
    checking: dict[str, LiveCheck] = {}
    if moment.has_gate and moment.gate is not None:
        for live in lives.values():
            if live.runner == moment.gate.runner:
                checking = {task: check for check in live.checks for task in check.tasks}
    usual = _usual(view) if ordered else {}
    first = next((c.name for c in moment.work.config.checks), None)
    changes: list[Change] = []
    position = 0
    ordered.sort(key=lambda entry: (entry.is_held, entry.task not in checking))
    for entry in ordered:
        check = checking.get(entry.task)
        state: Literal["checking", "waiting", "held"] = "waiting"
        if entry.is_held:
            state, why = "held", hold_text(entry.hold or [])
        elif check is not None:
            state, why = "checking", ""
        else:
            why = _why_waiting(moment, entry)
        position += state != "held"
        name = check.check if check else None
        changes.append(
            Change(
                **msgspec.structs.asdict(entry),
                position=None if state == "held" else position,
                state=state,
                why=why,
                held_since=held_since(entry),
                merged=merged_entry(moment.work, view, entry) if entry.is_held else None,
                check=name,
                for_seconds=seconds_since(view.now, check.since) if check else None,
                usual_seconds=usual.get(name or first or ""),
            )
        )
    return changes


def _why_waiting(moment: Moment, entry: QueueEntry) -> str:
    gate = moment.gate
    if not moment.has_gate:
        return "no gate runs"
    if gate is not None and gate.paused is not None and gate.paused.task != entry.task:
        return f"the gate is paused: {gate.paused.why}"
    return ""


def _usual(view: View) -> dict[str, float]:
    """check -> median seconds of its passed runs that the ledger still holds."""
    seconds: dict[str, list[float]] = {}
    for _, oid in view.iter_paths("verdicts"):
        with contextlib.suppress(Undecodable):
            verdict = records.decode(Verdict, view.hub.reader.read(oid, "blob"))
            if verdict.verdict == "passed" and verdict.runs:
                seconds.setdefault(verdict.check, []).append(verdict.runs[-1].seconds)
    return {check: round(statistics.median(found), 3) for check, found in seconds.items()}
