"""What needs a person, what works, what waits: all of it on one screen.

Enters: a workspace. Leaves: `swarm.status/1`. Guards: all figures are of one moment, whose commit
and age it names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

import msgspec

from swarm.breaker import read_limits
from swarm.ledger.records import Run
from swarm.ledger.view import State
from swarm.overview.disk import Disk, disk_of
from swarm.overview.merged import Merged
from swarm.overview.moment import Moment, Reading, read_moment, seconds_since
from swarm.overview.needs import Need, needs_of
from swarm.overview.queue import Change, GateNow, changes_of, gate_now, read_lives
from swarm.overview.slots import SlotNow, slots_of
from swarm.overview.standing import Standing, stand
from swarm.overview.target import Target, target_of
from swarm.workspace import Workspace

LISTED = 50  # waiting and blocked tasks that are named; the rest are in the counts


class RunNow(msgspec.Struct, frozen=True, kw_only=True):
    """The newest living run."""

    id: str
    pid: int
    host: str
    state: str  # running, draining, silent
    since: datetime
    slots: int
    others: list[str]  # further living runs


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """ready + waiting = open; blocked tasks are counted once, there."""

    open: int
    ready: int
    waiting: int
    claimed: int
    queued: int
    held: int
    parked: int
    blocked: int
    landed: int
    cancelled: int
    damaged: int
    total: int


class QueueLine(msgspec.Struct, frozen=True, kw_only=True):
    """A change in the queue."""

    task: str
    token: int
    position: int | None
    since: datetime  # sealed
    state: str
    why: str
    held_since: datetime | None = None
    merged: Merged | None = None  # of a held one: what it would be on the target now
    check: str | None
    for_seconds: float | None
    usual_seconds: float | None


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """An open task that cannot be claimed now."""

    task: str
    state: str  # waiting, blocked
    why: str


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What all runs are known to have spent; None: no attempt said."""

    known_usd: float | None
    attempts_known: int | None
    attempts_unknown: int | None
    source: str = "runs/"


class Limited(msgspec.Struct, frozen=True, kw_only=True):
    """An agent account that its provider limits."""

    adapter: str
    until: datetime
    is_said: bool  # the provider named the time; else it is doubled each time
    source: str = "runs/limits.json"


class UpstreamNow(msgspec.Struct, frozen=True, kw_only=True):
    """The team's branch, as it was when it was last looked at."""

    remote: str
    branch: str
    tip: str | None  # its newest commit that was taken, or is on its way; None: never synced
    age_seconds: float | None  # since then
    task: str | None  # that brings it, while it has not ended
    pushed_branch: str | None  # the newest push
    pushed: str | None
    source: str = "upstream.json"


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """`swarm status --json`."""

    schema: str = "swarm.status/1"
    at: datetime
    repository: str
    ledger: Reading
    target: Target
    run: RunNow | None
    needs_you: list[Need]
    counts: Counts
    slots: list[SlotNow]
    queue: list[QueueLine]
    gate: GateNow
    waiting: list[Waiting]
    upstream: UpstreamNow | None  # None: neither synced nor pushed yet
    limited: list[Limited]  # agents that nobody starts now
    cost: Cost
    disk: Disk


def status(work: Workspace) -> Status:
    """What needs a person, what works, what waits.

    Raises:
        HubUnusable: there is no ledger to read.
    """
    moment = read_moment(work)
    known = stand(moment.view, work.ledger.index)
    lives = read_lives(moment)
    target = target_of(moment)
    changes = changes_of(moment, lives)
    waits = [
        Waiting(task=task, state=state, why=why)
        for state in ("waiting", "blocked")
        for task, why in known.told(state)
    ]
    return Status(
        at=moment.view.now,
        repository=work.checkout.name,
        target=target,
        run=_run(moment),
        needs_you=needs_of(moment, known, lives, target),
        counts=_counts(known),
        slots=slots_of(moment, known, lives),
        queue=[_queue_line(change) for change in changes],
        gate=gate_now(moment),
        waiting=waits[:LISTED],
        upstream=_upstream(moment),
        limited=_limited(moment),
        cost=_cost(moment.all_runs),
        disk=disk_of(work.layout),
        ledger=moment.reading(),
    )


def _queue_line(change: Change) -> QueueLine:
    return QueueLine(
        task=change.task,
        token=change.token,
        position=change.position,
        since=change.sealed_at,
        state=change.state,
        why=change.why,
        held_since=change.held_since,
        merged=change.merged,
        check=change.check,
        for_seconds=change.for_seconds,
        usual_seconds=change.usual_seconds,
    )


def _run(moment: Moment) -> RunNow | None:
    live = moment.live_runs
    if not live:
        return None
    run = live[0]
    state: str = run.state
    if moment.signs[run.runner].age_seconds > moment.work.config.claims.lease.total_seconds():
        state = "silent"
    return RunNow(
        id=run.run,
        pid=run.pid,
        host=run.host,
        state=state,
        since=run.started_at,
        slots=run.slots,
        others=[other.run for other in live[1:]],
    )


def _upstream(moment: Moment) -> UpstreamNow | None:
    view = moment.view
    known = view.upstream()
    if known is None:
        return None
    is_on_its_way = known.task is not None and view.state(known.task) not in (
        State.LANDED,
        State.CANCELLED,
    )
    last = known.pushes[-1] if known.pushes else None
    return UpstreamNow(
        remote=known.remote,
        branch=known.branch,
        tip=known.tip,
        age_seconds=seconds_since(view.now, known.taken_at) if known.taken_at else None,
        task=known.task if is_on_its_way else None,
        pushed_branch=last.branch if last else None,
        pushed=last.oid if last else None,
    )


def _counts(known: Standing) -> Counts:
    shown = Counter(state for state, _ in known.lines.values())
    names = (
        "ready",
        "waiting",
        "claimed",
        "queued",
        "held",
        "parked",
        "blocked",
        "cancelled",
        "damaged",
    )
    return Counts(
        open=shown["ready"] + shown["waiting"],
        landed=known.landed,
        total=known.total,
        **{name: shown[name] for name in names},
    )


def _limited(moment: Moment) -> list[Limited]:
    known = read_limits(moment.work.layout.limits).adapters
    return [
        Limited(adapter=name, until=one.until, is_said=one.is_said)
        for name, one in sorted(known.items())
        if one.until > moment.view.now
    ]


def _cost(runs: Iterable[Run]) -> Cost:
    charged = [run for run in runs if run.attempts or run.spent_usd is not None]
    spent = [run.spent_usd for run in charged if run.spent_usd is not None]
    if not charged:
        return Cost(known_usd=None, attempts_known=None, attempts_unknown=None)
    return Cost(
        known_usd=round(sum(spent), 6) if spent else None,
        attempts_known=sum(run.attempts - run.attempts_unknown for run in charged),
        attempts_unknown=sum(run.attempts_unknown for run in charged),
    )
