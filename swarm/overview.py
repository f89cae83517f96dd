"""What is the case now and what was: one record for each thing that people look at.

Enters: a ledger at one moment, and what lies in the state folder. Leaves: records that text and
JSON are both made from. Guards: reads only; every figure has a source and an age; what is not known
is None, never 0.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import statistics
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from swarm.check import judged
from swarm.errors import GitFault, NotFound
from swarm.layout import Layout
from swarm.ledger import records
from swarm.ledger.index import Row
from swarm.ledger.records import (
    Attempts,
    Gate,
    HoldReason,
    Landing,
    LeftByAgent,
    Lock,
    Paused,
    QueueEntry,
    Run,
    Undecodable,
    Verdict,
)
from swarm.ledger.store import Ledger, Logged
from swarm.ledger.view import State, View
from swarm.liveness import Holder, Sign, signs
from swarm.plumbing.hub import LEDGER, work_ref
from swarm.scope import overlap
from swarm.similar import nearest
from swarm.slot import Slot
from swarm.trailers import parse
from swarm.workspace import Workspace

R = TypeVar("R", bound=msgspec.Struct)

LIVE_SECONDS = 10.0  # an unchanged live file is written again after this
DISK_SECONDS = 300.0  # how long a measured size is shown before it is measured again
DISK_BUDGET = 0.5  # how long a look may measure; a run measures without a limit
LOOK_SECONDS = 5.0  # for one git call in an agent's worktree
LISTED = 50  # waiting and blocked tasks that are named; the rest are in the counts
FIRST_CHUNK, LARGEST_CHUNK = 100, 5000  # commits that one walk of the history reads


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """Something shown: its fields are the keys of `--json`."""


# The live file: what only the runner itself knows


class LiveSlot(_Record, frozen=True, kw_only=True):
    """One loop of a run."""

    slot: str
    role: str = ""
    stage: str  # idle, setup, working, ended
    task: str | None = None
    token: int | None = None
    why_idle: str = ""
    trouble: str = ""  # its last fault of ours


class LiveCheck(_Record, frozen=True, kw_only=True):
    """One check that the gate runs now."""

    tasks: list[str]  # empty: the target itself is judged
    check: str
    role: str  # what it is asked for: the candidate, alone, the base
    since: datetime


class Live(_Record, frozen=True, kw_only=True):
    """`runs/<run>/live.json`: what a runner holds in memory, for those who look."""

    format: Literal[1] = 1
    run: str
    runner: str
    at: datetime
    is_draining: bool = False
    stopped: str = ""  # why no slot claims any more: a log-in, a setup that fails
    slots: list[LiveSlot] = []
    checks: list[LiveCheck] = []


def live_path(layout: Layout, run: str) -> Path:
    """Of a run; of a gate that runs alone its runner's name stands for the run's."""
    return layout.runs / run / "live.json"


def write_live(path: Path, live: Live, last: Live | None) -> Live:
    """Replace the file when something but its time changed, or when it grows old.

    Returns what stands in the file: the next call's `last`.

    Safe: readers see the old file or the new one. Fails open: a full disk costs a line of `status`.
    """
    if last is not None:
        is_old = (live.at - last.at).total_seconds() >= LIVE_SECONDS
        if not is_old and msgspec.structs.replace(live, at=last.at) == last:
            return last
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.json.encode(live))
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return live


def read_live(path: Path) -> Live | None:
    """What the runner wrote last, or None; whether that runner lives is for its flock to say."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Live)
    except (OSError, msgspec.DecodeError):
        return None


# Disk


class Disk(_Record, frozen=True, kw_only=True):
    """How much the state folder takes; `bytes` None: not measured yet."""

    path: str
    bytes: int | None
    age_seconds: float | None


def measure_disk(layout: Layout, budget: float | None = None) -> int | None:
    """Blocks used below the state folder, also written to the cache; None: not done in time.

    Units: `budget` in seconds; None measures to the end.
    """
    deadline = None if budget is None else time.monotonic() + budget
    total = 0
    seen: set[tuple[int, int]] = set()
    for folder, _, names in os.walk(layout.root):
        if deadline is not None and time.monotonic() > deadline:
            return None
        for name in names:
            with contextlib.suppress(OSError):
                facts = (Path(folder) / name).lstat()
                if facts.st_nlink > 1:
                    if (facts.st_dev, facts.st_ino) in seen:
                        continue
                    seen.add((facts.st_dev, facts.st_ino))
                total += facts.st_blocks * 512
    with contextlib.suppress(OSError):
        layout.cache.mkdir(parents=True, exist_ok=True)
        temporary = layout.cache / f".disk.{os.getpid()}.new"
        temporary.write_text(json.dumps({"at": time.time(), "bytes": total}), "utf-8")
        temporary.replace(layout.cache / "disk.json")
    return total


def _disk(layout: Layout) -> Disk:
    known: int | None = None
    age: float | None = None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        stored = json.loads((layout.cache / "disk.json").read_text("utf-8"))
        known, age = int(stored["bytes"]), max(0.0, time.time() - float(stored["at"]))
    if age is None or age > DISK_SECONDS:
        fresh = measure_disk(layout, DISK_BUDGET)
        if fresh is not None:
            known, age = fresh, 0.0
    return Disk(path=str(layout.root), bytes=known, age_seconds=_rounded(age))


# One moment


class Reading(_Record, frozen=True, kw_only=True):
    """Which ledger commit was read, and how long ago."""

    oid: str
    age_seconds: float


@dataclass(frozen=True)
class _Moment:
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


def _moment(work: Workspace) -> _Moment:
    ledger = work.ledger
    view = ledger.view()
    damage: list[tuple[str, str]] = []
    gate: Gate | None = None
    landing: Landing | None = None
    try:
        gate = view.gate()
    except Undecodable as error:
        damage.append((records.GATE_PATH, str(error)))
    try:
        landing = view.landing()
    except Undecodable as error:
        damage.append((records.LANDING_PATH, str(error)))
    all_runs: list[Run] = []
    for path, oid in view.iter_paths("runs"):
        try:
            all_runs.append(records.decode(Run, view.hub.reader.read(oid, "blob")))
        except Undecodable as error:
            damage.append((path, str(error)))
    in_flight = {c.task for c in landing.changes if view.is_landed(c.task)} if landing else set()
    locks = tuple(lock for lock in view.locks() if lock.task not in in_flight)
    runs = tuple(run for run in all_runs if run.state != "ended")
    holders = [
        Holder(lock.nonce, lock.runner, lock.boot_id, lock.claimed_monotonic_seconds)
        for lock in locks
    ]
    holders += [
        Holder(run.runner, run.runner, run.boot_id, run.started_monotonic_seconds) for run in runs
    ]
    if gate is not None and gate.runner is not None:
        taken = gate.taken_monotonic_seconds or 0.0
        holders.append(Holder(gate.nonce, gate.runner, gate.boot_id or "", taken))
    layout = work.layout
    return _Moment(
        work,
        view,
        locks,
        tuple(entry for entry in view.entries() if entry.task not in in_flight),
        runs,
        tuple(all_runs),
        gate,
        frozenset(in_flight),
        signs(ledger.hub, holders, layout.runs, layout.cache, ledger.clock),
        tuple(damage),
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _since(now: datetime, at: datetime) -> float:
    return round(max(0.0, (now - at).total_seconds()), 3)


# Tasks

STUCK = (State.PARKED, State.CANCELLED, State.DAMAGED, State.ABSENT)


class TaskLine(_Record, frozen=True, kw_only=True):
    """One task in a list. `state` tells apart ready, waiting and blocked, which are all open."""

    id: str
    title: str
    state: str
    why: str  # of waiting, blocked, parked, damaged
    priority: int
    role: str
    paths: list[str]
    needs: list[str]
    unmet: list[str]  # needs that have not landed
    token: int  # attempts so far
    strikes: int
    agent: str | None  # holder of the live claim


class Tasks(_Record, frozen=True, kw_only=True):
    """`swarm task list --json`."""

    schema: str = "swarm.tasks/1"
    at: datetime
    ledger: Reading
    tasks: list[TaskLine]  # in pick order: priority, age, id


@dataclass(frozen=True)
class _Sorted:
    """Tasks that have not landed, each with its shown state; ready ones in pick order."""

    rows: dict[str, Row]
    lines: dict[str, tuple[str, str]]  # id -> (state, why)
    unmet: dict[str, list[str]]

    def of(self, state: str) -> list[Row]:
        return [row for task, row in self.rows.items() if self.lines[task][0] == state]


def _sort(moment: _Moment) -> _Sorted:
    view, index = moment.view, moment.work.ledger.index
    rows: dict[str, Row] = {}
    for state in State:
        if state not in (State.LANDED, State.ABSENT):
            rows |= {row.id: row for row in index.rows(view, state)}
    for task in moment.in_flight:
        rows.pop(task, None)
    ordered = sorted(rows.values(), key=lambda row: (-row.priority, row.added, row.id))
    rows = {row.id: row for row in ordered}
    others: dict[str, State] = {}

    def state_of(task: str) -> State:
        if task in rows:
            return rows[task].state
        if task in moment.in_flight:
            return State.LANDED
        if task not in others:
            found = index.find(view, task)
            others[task] = found.state if found else State.ABSENT
        return others[task]

    unmet = {
        row.id: [need for need in row.needs if state_of(need) is not State.LANDED]
        for row in rows.values()
        if row.state is State.OPEN and row.unmet
    }
    blocked = _blocked(unmet, state_of)
    now = view.now.timestamp()
    lines: dict[str, tuple[str, str]] = {}
    for task, row in rows.items():
        if row.state is not State.OPEN:
            why = row.why
            if row.state is State.DAMAGED and not why:
                why = "its files are no row of the state table"
            lines[task] = (row.state.value, why)
        elif task in blocked:
            need = blocked[task]
            how = "blocked" if need in blocked else _stuck_word(state_of(need))
            lines[task] = ("blocked", f"needs {need}, {how}")
        elif unmet.get(task):
            lines[task] = ("waiting", f"needs {', '.join(unmet[task])}")
        elif row.retry_at is not None and row.retry_at > now:
            lines[task] = ("waiting", f"back-off, {_clock(row.retry_at - now)} left")
        else:
            lines[task] = ("ready", "")
    return _Sorted(rows, lines, unmet)


def _stuck_word(state: State) -> str:
    return "there is no such task" if state is State.ABSENT else state.value


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


def _blocked(unmet: dict[str, list[str]], state_of: Any) -> dict[str, str]:
    """task -> the need that can never land by itself, for each task that waits for one, directly
    or through others."""
    needed_by: dict[str, list[str]] = {}
    blocked: dict[str, str] = {}
    for task, needs in unmet.items():
        for need in needs:
            needed_by.setdefault(need, []).append(task)
            if state_of(need) in STUCK:
                blocked.setdefault(task, need)
    spread = list(blocked)
    while spread:
        need = spread.pop()
        for task in needed_by.get(need, ()):
            if task not in blocked:
                blocked[task] = need
                spread.append(task)
    return blocked


def _line(row: Row, state: str, why: str, unmet: list[str]) -> TaskLine:
    return TaskLine(
        id=row.id,
        title=row.title,
        state=state,
        why=why,
        priority=row.priority,
        role=row.role,
        paths=list(row.paths),
        needs=list(row.needs),
        unmet=unmet,
        token=row.token,
        strikes=row.strikes,
        agent=row.agent or None,
    )


def tasks(work: Workspace) -> Tasks:
    """Every task."""
    moment = _moment(work)
    known = _sort(moment)
    listed: list[TaskLine] = []
    for row in work.ledger.index.rows(moment.view):
        state, why = known.lines.get(row.id, (row.state.value, row.why))
        if row.id in moment.in_flight:
            state = State.LANDED.value
        listed.append(_line(row, state, why, known.unmet.get(row.id, [])))
    return Tasks(at=moment.view.now, ledger=moment.reading(), tasks=listed)


# Claims


class Claim(Lock, frozen=True, kw_only=True):
    """A lock file and what can be seen of its holder."""

    state: Literal["working", "queued", "held", "silent", "gone"]
    beat_age_seconds: float | None  # None: queued, where no lease runs; or its runner is gone
    sign: str  # the evidence in words


class Claims(_Record, frozen=True, kw_only=True):
    """`swarm claims --json`."""

    schema: str = "swarm.claims/1"
    at: datetime
    ledger: Reading
    claims: list[Claim]  # by task


def claims(work: Workspace) -> Claims:
    """Live and queued claims."""
    moment = _moment(work)
    entries = {entry.task: entry for entry in moment.entries}
    found = [_claim(moment, lock, entries.get(lock.task)) for lock in moment.locks]
    return Claims(at=moment.view.now, ledger=moment.reading(), claims=found)


def _claim(moment: _Moment, lock: Lock, entry: QueueEntry | None) -> Claim:
    sign = moment.sign(lock)
    state: Literal["working", "queued", "held", "silent", "gone"] = "working"
    age: float | None = None
    says = sign.says()
    if entry is not None:
        state, says = ("held" if entry.is_held else "queued"), "sealed: no lease runs"
    elif sign.is_gone:
        state = "gone"
    else:
        age = round(sign.age_seconds, 3)
        if sign.age_seconds > lock.lease_seconds:
            state = "silent"
    return Claim(**msgspec.structs.asdict(lock), state=state, beat_age_seconds=age, sign=says)


# The queue


class Change(QueueEntry, frozen=True, kw_only=True):
    """A queue entry and where it stands."""

    position: int | None  # None: held
    state: Literal["checking", "waiting", "held"]
    why: str  # of waiting or held
    check: str | None  # that runs now
    for_seconds: float | None  # how long that check has run
    usual_seconds: float | None  # median of its passed runs in verdicts/


class GateHolder(_Record, frozen=True, kw_only=True):
    """Which process is the gate."""

    runner: str
    host: str | None
    pid: int | None


class GateNow(_Record, frozen=True, kw_only=True):
    """The gate; `holder` None: nobody is."""

    strategy: str
    slots: int
    holder: GateHolder | None
    is_alive: bool
    paused: Paused | None


class Queue(_Record, frozen=True, kw_only=True):
    """`swarm queue --json`."""

    schema: str = "swarm.queue/1"
    at: datetime
    ledger: Reading
    gate: GateNow
    changes: list[Change]  # first what is checked now, then in the gate's order, held ones last


def queue(work: Workspace) -> Queue:
    """What waits for the gate."""
    moment = _moment(work)
    lives = _lives(moment)
    return Queue(
        at=moment.view.now,
        ledger=moment.reading(),
        gate=_gate(moment),
        changes=_changes(moment, lives),
    )


def queue_order(
    entry: QueueEntry, now: datetime, max_wait: timedelta
) -> tuple[bool, int, datetime, str]:
    """The gate's order: older than the age bound first, then priority, age, id."""
    is_old = now - entry.since > max_wait
    return (not is_old, 0 if is_old else -entry.priority, entry.since, entry.task)


def _lives(moment: _Moment) -> dict[str, Live]:
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


def _gate(moment: _Moment) -> GateNow:
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


def _changes(moment: _Moment, lives: dict[str, Live]) -> list[Change]:
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
                check=name,
                for_seconds=_since(view.now, check.since) if check else None,
                usual_seconds=usual.get(name or first or ""),
            )
        )
    return changes


def _why_waiting(moment: _Moment, entry: QueueEntry) -> str:
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


_HOLDS = {
    "review": "every change is reviewed first",
    "protected": "touches {paths} (protected)",
    "scope": "changes {paths}, outside its paths",
    "reverted": "{paths} goes back to what the target had before",
    "large_file": "left out {paths}: too large",
    "secret": "left out {paths}: looks like a secret",
    "containment": "would change {paths}, which its own commits do not",
    "side_taking": "took one whole side in {paths}",
    "markers": "conflict markers in {paths}",
}


def hold_text(holds: Iterable[HoldReason]) -> str:
    """Why a change is held, in words; approved reasons are left out."""
    said = []
    for hold in holds:
        if hold.approved_at is None:
            paths = ", ".join(hold.paths[:2])
            if len(hold.paths) > 2:
                paths += f" and {len(hold.paths) - 2} more"
            said.append(_HOLDS[hold.reason].format(paths=paths))
    return "; ".join(said)


# Status


class TargetVerdict(_Record, frozen=True, kw_only=True):
    """What the checks say of the target's tip; of several checks the worst."""

    value: str
    check: str
    age_seconds: float | None
    source: str  # the ledger file


class Target(_Record, frozen=True, kw_only=True):
    """The branch that is landed on; `verdict` None: some check never judged this tip."""

    branch: str
    oid: str | None  # None: the hub has no such branch
    verdict: TargetVerdict | None


class RunNow(_Record, frozen=True, kw_only=True):
    """The newest living run."""

    id: str
    pid: int
    host: str
    state: str  # running, draining, silent
    since: datetime
    slots: int
    others: list[str]  # further living runs


class Need(_Record, frozen=True, kw_only=True):
    """One thing that waits for a person, and what to type."""

    kind: str
    task: str | None
    why: str
    do: list[str]


class Counts(_Record, frozen=True, kw_only=True):
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


class Tokens(_Record, frozen=True, kw_only=True):
    """What an agent used so far."""

    input: int
    output: int
    source: str


class SlotNow(_Record, frozen=True, kw_only=True):
    """A slot of a living run, or a claim by hand."""

    slot: str
    run: str
    agent: str | None = None
    adapter: str
    task: str | None = None
    attempt: int | None = None
    token: int | None = None
    strikes: int | None = None
    since: datetime | None = None
    for_seconds: float | None = None
    active_age_seconds: float | None = None  # newest of transcript and changed files
    state: str  # idle, setup, working, ended, silent
    commits: int | None = None  # of this attempt
    files_changed: int | None = None  # since this attempt began, committed or not
    newest: str | None = None  # the file changed last
    tokens: Tokens | None = None
    cost_usd: float | None = None
    why: str | None = None  # of idle; None: not known
    trouble: str | None = None


class QueueLine(_Record, frozen=True, kw_only=True):
    """A change in the queue."""

    task: str
    token: int
    position: int | None
    since: datetime  # sealed
    state: str
    why: str
    check: str | None
    for_seconds: float | None
    usual_seconds: float | None


class Waiting(_Record, frozen=True, kw_only=True):
    """An open task that cannot be claimed now."""

    task: str
    state: str  # waiting, blocked
    why: str


class Cost(_Record, frozen=True, kw_only=True):
    """What all runs are known to have spent; None: no attempt said."""

    known_usd: float | None
    attempts_known: int | None
    attempts_unknown: int | None
    source: str = "runs/"


class Status(_Record, frozen=True, kw_only=True):
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
    cost: Cost
    disk: Disk


def status(work: Workspace) -> Status:
    """What needs a person, what works, what waits.

    Raises:
        HubUnusable: there is no ledger to read.
    """
    moment = _moment(work)
    known = _sort(moment)
    lives = _lives(moment)
    target = _target(moment)
    changes = _changes(moment, lives)
    waits = [
        Waiting(task=task, state=state, why=why)
        for state in ("waiting", "blocked")
        for task, (found, why) in known.lines.items()
        if found == state
    ]
    return Status(
        at=moment.view.now,
        repository=work.checkout.name,
        target=target,
        run=_run(moment),
        needs_you=_needs_you(moment, known, lives, target),
        counts=_counts(moment, known),
        slots=_slots(moment, known, lives),
        queue=[_queue_line(change) for change in changes],
        gate=_gate(moment),
        waiting=waits[:LISTED],
        cost=_cost(moment.all_runs),
        disk=_disk(work.layout),
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
        check=change.check,
        for_seconds=change.for_seconds,
        usual_seconds=change.usual_seconds,
    )


_WORST = ("failed", "timed_out", "could_not_run", "flaky", "passed")


def _target(moment: _Moment) -> Target:
    view = moment.view
    if not view.target:
        return Target(branch=view.target_branch, oid=None, verdict=None)
    found: list[tuple[int, TargetVerdict]] = []
    is_whole = bool(moment.work.config.checks)
    for check in moment.work.config.checks:
        if check.when != "always":
            continue
        key = judged(view.hub, check, view.target)
        path, verdict = _newest_verdict(view, view.tree, key, check.name)
        if verdict is None:
            is_whole = False
            continue
        at = verdict.runs[-1].at if verdict.runs else None
        said = TargetVerdict(
            value=verdict.verdict,
            check=check.name,
            age_seconds=_since(view.now, at) if at else None,
            source=path,
        )
        found.append((_WORST.index(verdict.verdict), said))
    worst = min(found, key=lambda pair: pair[0], default=None)
    if worst is not None and not is_whole and worst[1].value in ("passed", "flaky"):
        worst = None  # one check passed and another never ran: nothing is known of the whole
    return Target(branch=view.target_branch, oid=view.target, verdict=worst[1] if worst else None)


def _newest_verdict(view: View, tree: str, key: str, check: str) -> tuple[str, Verdict | None]:
    """(ledger file, verdict) of what was judged, in a ledger tree; of several definitions the
    one that ran last."""
    newest: tuple[str, Verdict | None] = ("", None)
    folder = records.verdict_path(f"{key}-{check}-").rpartition("/")[0]
    entry = view.hub.reader.find(tree, folder)
    if entry is None:
        return newest
    for name, blob in view.hub.reader.tree(entry.oid).items():
        if not re.fullmatch(rf"{re.escape(f'{key}-{check}')}-[0-9a-f]{{12}}\.json", name):
            continue
        with contextlib.suppress(Undecodable):
            verdict = records.decode(Verdict, view.hub.reader.read(blob.oid, "blob"))
            known = newest[1]
            if known is None or _ran_at(verdict) > _ran_at(known):
                newest = (f"{folder}/{name}", verdict)
    return newest


def _ran_at(verdict: Verdict) -> datetime:
    return verdict.runs[-1].at if verdict.runs else datetime.min.replace(tzinfo=UTC)


def _run(moment: _Moment) -> RunNow | None:
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


def _counts(moment: _Moment, known: _Sorted) -> Counts:
    stored = moment.work.ledger.index.counts(moment.view)
    shown: dict[str, int] = {}
    for state, _ in known.lines.values():
        shown[state] = shown.get(state, 0) + 1
    landed = stored.get("landed", 0) + len(moment.in_flight)
    ready, waiting = shown.get("ready", 0), shown.get("waiting", 0)
    names = ("claimed", "queued", "held", "parked", "blocked", "cancelled", "damaged")
    return Counts(
        open=ready + waiting,
        ready=ready,
        waiting=waiting,
        landed=landed,
        total=len(known.lines) + landed,
        **{name: shown.get(name, 0) for name in names},
    )


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


def _needs_you(
    moment: _Moment, known: _Sorted, lives: dict[str, Live], target: Target
) -> list[Need]:
    return [
        *_damaged(moment, known, target),
        *_stopped_gate(moment, target),
        *_runs_in_trouble(moment, lives),
        *_parked(moment),
        *_held(moment),
        *_expiring(moment, known),
    ]


def _damaged(moment: _Moment, known: _Sorted, target: Target) -> Iterator[Need]:
    if target.oid is None:
        why = f"the hub has no branch {target.branch}"
        yield Need(kind="damaged", task=None, why=why, do=["swarm doctor"])
    for path, why in moment.damage:
        yield Need(kind="damaged", task=None, why=f"{path}: {why}", do=["swarm doctor"])
    for row in known.of("damaged"):
        why = known.lines[row.id][1]
        yield Need(kind="damaged", task=row.id, why=why, do=["swarm doctor"])


def _stopped_gate(moment: _Moment, target: Target) -> Iterator[Need]:
    paused = moment.gate.paused if moment.gate else None
    verdict = target.verdict
    if paused is not None:
        by_person = paused.by == "person"
        do = ["swarm resume"] if by_person else []
        if not by_person and paused.task is not None:
            do = [f"swarm show {paused.task}"]
        yield Need(kind="paused", task=paused.task, why=paused.why, do=do)
    elif target.oid and verdict is not None and verdict.value not in ("passed", "flaky"):
        words = verdict.value.replace("_", " ")
        why = f"{target.branch} {target.oid[:7]} is red: {verdict.check} {words}"
        yield Need(kind="red", task=None, why=why, do=["swarm run --allow-red"])
    waits = [entry for entry in moment.entries if not entry.is_held]
    if waits and not moment.has_gate and not moment.live_runs:
        what = "1 change waits" if len(waits) == 1 else f"{len(waits)} changes wait"
        yield Need(kind="no gate", task=None, why=f"{what} and no gate runs", do=["swarm run"])


def _runs_in_trouble(moment: _Moment, lives: dict[str, Live]) -> Iterator[Need]:
    lease = moment.work.config.claims.lease.total_seconds()
    for run in moment.live_runs:
        sign = moment.signs[run.runner]
        if sign.age_seconds > lease:
            why = f"{run.run}, pid {run.pid} on {run.host}: {sign.says()}"
            yield Need(kind="silent", task=None, why=why, do=["swarm doctor"])
        live = lives.get(run.run)
        if live is not None and live.stopped:
            yield Need(kind="stopped", task=None, why=f"{run.run}: {live.stopped}", do=[])
    if moment.live_runs:
        return  # it takes dead runners' claims over by itself
    queued = {entry.task for entry in moment.entries}
    gone: dict[str, list[str]] = {}
    for lock in moment.locks:
        if lock.task not in queued and moment.sign(lock).is_gone:
            gone.setdefault(lock.run or lock.runner, []).append(lock.task)
    for name, left in gone.items():
        why = f"{name} was killed and holds {', '.join(left[:3])}"
        if len(left) > 3:
            why += f" and {len(left) - 3} more"
        yield Need(kind="gone", task=None, why=why, do=["swarm run"])


def _parked(moment: _Moment) -> Iterator[Need]:
    records_of = moment.view.all_parked()
    for parked in sorted(records_of, key=lambda p: (p.reason != "lost", p.at)):
        do = [f"swarm show {parked.task}"]
        if parked.reason == "asked":
            why = f'"{parked.question or parked.message}"'
            do.append(f"swarm task reopen {parked.task}")
            yield Need(kind="asked", task=parked.task, why=why, do=do)
        else:
            kind = "lost" if parked.reason == "lost" else "parked"
            yield Need(kind=kind, task=parked.task, why=parked.message, do=do)


def _held(moment: _Moment) -> Iterator[Need]:
    for entry in sorted(moment.entries, key=lambda e: e.sealed_at):
        if entry.is_held:
            do = [f"swarm diff {entry.task}", f"swarm approve {entry.task}"]
            why = hold_text(entry.hold or [])
            yield Need(kind="held", task=entry.task, why=why, do=do)


def _expiring(moment: _Moment, known: _Sorted) -> Iterator[Need]:
    """Tasks whose last claims expired one after the other, before that parks them."""
    for task, row in known.rows.items():
        if row.token < 2 or row.state not in (State.OPEN, State.CLAIMED):
            continue
        attempts = moment.view.attempts(task)
        if attempts is not None and attempts.expiries >= 2:
            why = f"{attempts.expiries} claims in a row gave no sign of life"
            yield Need(kind="expired", task=task, why=why, do=[f"swarm show {task}"])


def _slots(moment: _Moment, known: _Sorted, lives: dict[str, Live]) -> list[SlotNow]:
    queued = {entry.task for entry in moment.entries}
    working = [
        lock for lock in moment.locks if lock.task not in queued and not moment.sign(lock).is_gone
    ]
    found = [_working(moment, known, lock, lives.get(lock.run)) for lock in working]
    with ThreadPoolExecutor(max_workers=8) as pool:
        seen = pool.map(lambda lock: _seen_at_work(moment.work, lock), working)
        found = [
            msgspec.structs.replace(slot, **facts) for slot, facts in zip(found, seen, strict=True)
        ]
    busy = {(slot.run, slot.slot) for slot in found}
    why_derived = _why_idle(moment, known)
    for run in moment.live_runs:
        live = lives.get(run.run)
        if live is None:
            missing = run.slots - sum(1 for name, _ in busy if name == run.run)
            found += [
                SlotNow(slot="-", run=run.run, adapter=run.adapter, state="idle", why=why_derived)
                for _ in range(missing)
            ]
            continue
        for told in live.slots:
            if (run.run, told.slot) not in busy:
                found.append(_not_working(run, live, told, why_derived))
    return sorted(found, key=lambda slot: (slot.state == "idle", slot.run, _natural(slot.slot)))


def _natural(slot: str) -> tuple[str, int]:
    letters = slot.rstrip("0123456789")
    digits = slot[len(letters) :]
    return letters, int(digits) if digits else 0


def _working(moment: _Moment, known: _Sorted, lock: Lock, live: Live | None) -> SlotNow:
    told = next((s for s in live.slots if s.slot == lock.slot), None) if live else None
    is_same = told is not None and told.task == lock.task and told.token == lock.token
    state = told.stage if told is not None and is_same else "working"
    sign = moment.sign(lock)
    if sign.age_seconds > lock.lease_seconds:
        state = "silent"
    row = known.rows.get(lock.task)
    return SlotNow(
        slot=lock.slot,
        run=lock.run,
        agent=lock.agent,
        adapter=lock.adapter,
        task=lock.task,
        attempt=lock.token,
        token=lock.token,
        strikes=row.strikes if row else None,
        since=lock.claimed_at,
        for_seconds=_since(moment.view.now, lock.claimed_at),
        state=state,
        trouble=(told.trouble or None) if told else None,
    )


def _not_working(run: Run, live: Live, told: LiveSlot, derived: str | None) -> SlotNow:
    why: str | None = told.why_idle or None
    if live.stopped or live.is_draining:
        why = live.stopped or "draining: no new claims"
    elif why is None or why == "nothing is ready" or "kept back" in why:
        why = derived or why
    is_sealing = told.stage != "idle"  # its claim has ended or its change is queued
    return SlotNow(
        slot=told.slot,
        run=run.run,
        adapter=run.adapter,
        task=told.task,
        attempt=told.token,
        token=told.token,
        state="ended" if is_sealing else "idle",
        why=None if is_sealing else why,
        trouble=told.trouble or None,
    )


def _why_idle(moment: _Moment, known: _Sorted) -> str | None:
    """Why a slot of any role finds nothing, as far as the ledger shows; None: it does not."""
    ready = known.of("ready")
    if not ready:
        now = moment.view.now.timestamp()
        ends = [row.retry_at for row in known.of("waiting") if row.retry_at is not None]
        waits = [at - now for at in ends if at > now]
        if waits:
            return f"nothing is ready; a back-off ends in {_clock(min(waits))}"
        return "nothing is ready"
    roles = {row.role for row in ready}
    if "" not in roles:
        count = "1 ready task is" if len(ready) == 1 else f"{len(ready)} ready tasks are"
        return f"{count} for role {', '.join(sorted(roles))}"
    if moment.work.config.claims.overlap != "skip":
        return None
    live = [row for row in known.rows.values() if row.agent and row.paths]
    holders: dict[str, tuple[str, ...]] = {}
    for row in ready:
        others = [other for other in live if overlap(row.paths, other.paths)]
        if not others:
            return None
        holders |= {other.id: other.paths for other in others}
    count = "1 ready task is" if len(ready) == 1 else f"{len(ready)} ready tasks are"
    named = ", ".join(f"{task} ({' '.join(paths[:2])})" for task, paths in holders.items())
    return f"{count} kept back: paths overlap {named}"


def _seen_at_work(work: Workspace, lock: Lock) -> dict[str, Any]:
    """What the files of a working slot show; keys that are not known are absent."""
    seen: dict[str, Any] = {}
    newest = 0.0
    folder = work.layout.attempt(lock.run, lock.task, lock.token)
    for name in ("transcript.jsonl", "stderr.log"):
        with contextlib.suppress(OSError):
            newest = max(newest, (folder / name).stat().st_mtime)
    with contextlib.suppress(OSError, GitFault), _looked_at(work, lock.slot) as slot:
        occupant = slot.occupant()
        if occupant is not None and occupant.nonce == lock.nonce:
            listed = slot.own_git.run(
                "status",
                "--porcelain=v1",
                "-z",
                "--untracked-files=all",
                "--ignore-submodules=all",
                "--no-renames",
                timeout=LOOK_SECONDS,
            ).fields
            paths = [row[3:] for row in listed]
            times = {path: _mtime(slot.tree / path) for path in paths[:1000]}
            seen["files_changed"] = len(paths)
            if times:
                seen["newest"] = max(times, key=lambda path: times[path])
                newest = max(newest, times[seen["newest"]])
            head = slot.head()
            if head is not None:
                past = [f"^{oid}" for oid in (occupant.head, occupant.merge) if oid]
                count = slot.own_git.run("rev-list", "--count", head, *past, timeout=LOOK_SECONDS)
                seen["commits"] = int(count.text)
    if newest:
        # Files carry the file system's clock, not the ledger's.
        seen["active_age_seconds"] = round(max(0.0, time.time() - newest), 1)
    return seen


@contextlib.contextmanager
def _looked_at(work: Workspace, name: str) -> Iterator[Slot]:
    """A slot of another process, for reading only: its flock file is opened and not locked.

    Raises:
        OSError: there is no such slot on this disk.
    """
    folder = work.layout.slots
    fd = os.open(folder / f"{name}.flock", os.O_RDONLY | os.O_CLOEXEC)
    slot = Slot(folder, name, work.ledger.hub, fd)
    try:
        yield slot
    finally:
        slot.close()


def _mtime(path: Path) -> float:
    with contextlib.suppress(OSError, ValueError):
        return path.lstat().st_mtime
    return 0.0


# Events


def iter_events(
    ledger: Ledger,
    *,
    task: str = "",
    since: datetime | None = None,
    tip: str | None = None,
    stop: str | None = None,
) -> Iterator[Logged]:
    """Events, newest first, down to `stop` (not included); of one task when named.

    Read by git itself in chunks that grow: the first ones come at once and memory stays small
    however long the history is.
    """
    wanted = [f"--grep=^Swarm-Task: {task}$"] if task else []
    if since is not None:  # an hour's slack for a clock that was set back; the filter below decides
        wanted.append(f"--since=@{int(since.timestamp()) - 3600}")
    oid = tip or ledger.hub.reader.ref(LEDGER)
    size = FIRST_CHUNK
    while oid is not None:
        rest = [f"^{stop}"] if stop else []
        fields = ledger.hub.git.run(
            "log",
            "-z",
            "--encoding=UTF-8",
            f"--max-count={size}",
            "--format=%H%x00%ct%x00%P%x00%B",
            *wanted,
            oid,
            *rest,
            "--",
            timeout=3600,
        ).fields
        oid = None
        for name, seconds, parents, message in zip(*[iter(fields)] * 4, strict=True):
            at = datetime.fromtimestamp(int(seconds), UTC).astimezone()
            text = message.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            logged = Logged(name, at, parse(text))
            oid = parents.split(" ")[0] or None
            if (not task or logged.task == task) and (since is None or at >= since):
                yield logged
        if len(fields) < 4 * size or oid == stop:
            return
        size = min(size * 4, LARGEST_CHUNK)


_FACTS = {
    "Swarm-Event": "event",
    "Swarm-Event-Id": "id",
    "Swarm-Task": "task",
    "Swarm-Agent": "agent",
    "Swarm-Slot": "slot",
    "Swarm-Adapter": "adapter",
    "Swarm-Token": "token",
}


def event_json(logged: Logged) -> dict[str, Any]:
    """`swarm.event/1`: what every event has, then its own trailers, each by its name in snake case.

    Numbers, lists and yes or no are such; a key that an event lacks is absent, but for those that
    all have, which are null.
    """
    trailers = logged.message.trailers
    found: dict[str, Any] = {
        "schema": "swarm.event/1",
        "oid": logged.oid,
        "at": _utc(logged.at),
        **dict.fromkeys(_FACTS.values()),
        "says": logged.message.body,
    }
    for key, value in trailers.items():
        name = _FACTS.get(key) or key.removeprefix("Swarm-").replace("-", "_").lower()
        found[name] = value or None
    if found["token"] is not None:
        found["token"] = _number(found["token"])
    if "seconds" in found:
        found["seconds"] = _number(found["seconds"])
    if "strike" in found:
        said = str(found["strike"] or "no")
        found["strike"] = said != "no"
        if said != "no":
            found["strikes"] = said
    for name in ("paths", "outside", "unreadable", "hold"):
        if found.get(name):
            found[name] = [part.strip() for part in str(found[name]).split(",")]
    if found.get("failing"):
        found["failing"] = failing_of(str(found["failing"]))
    return found


def _utc(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _number(text: str | None) -> int | float | None:
    """What a trailer says as a number; None when it says none."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text or "")
    return None


def failing_of(text: str) -> list[str]:
    """Test ids of a `Swarm-Failing` trailer; an id of pytest's may hold spaces in its brackets."""
    parts: list[str] = []
    for word in text.split(" "):
        if parts and "::" in parts[0] and "::" not in word:
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    return parts


# One task's story


class NeedLine(_Record, frozen=True, kw_only=True):
    """A need of the task."""

    task: str
    state: str
    landed: str | None
    at: datetime | None


class CheckLine(_Record, frozen=True, kw_only=True):
    """One verdict that counted for an attempt."""

    check: str
    about: Literal["merged", "alone"]  # the candidate, or the change by itself
    verdict: str
    tree: str
    seconds: float | None
    exit_code: int | None
    failing: list[str]
    tail: str
    why: str
    log: str | None  # below the state folder
    source: str  # the ledger file


class Partner(_Record, frozen=True, kw_only=True):
    """The landing with which an attempt did not go together."""

    task: str
    landed: str | None
    at: datetime | None
    paths: list[str]


class AttemptLine(_Record, frozen=True, kw_only=True):
    """One attempt, from its claim to its end."""

    token: int
    agent: str
    adapter: str | None
    slot: str | None
    run: str | None
    host: str | None
    state: str  # claimed, queued, held; ended
    claimed_at: datetime
    ended_at: datetime | None = None
    for_seconds: float
    base: str | None
    start: str | None
    merge: str | None
    head: str | None = None
    commits: int | None = None
    files: int | None = None
    insertions: int | None = None
    deletions: int | None = None
    left_by_agent: LeftByAgent | None = None
    hold: list[HoldReason] = []
    event: str | None = None  # that ended it
    outcome: str | None = None
    message: str = ""
    detail: str = ""
    strike: bool | None = None
    strikes: str | None = None  # "1 of 3"
    paths: list[str] = []
    failing: list[str] = []
    partner: Partner | None = None
    checks: list[CheckLine] = []
    landed: str | None = None
    previous: str | None = None
    rescued: list[str] = []  # refs
    cost_usd: float | None = None
    folder: str | None = None  # None: not on this disk
    holds: list[str] = []  # file names in that folder


class Story(_Record, frozen=True, kw_only=True):
    """`swarm show TASK --json`."""

    schema: str = "swarm.show/1"
    at: datetime
    ledger: Reading
    target: str  # branch
    task: str
    title: str
    body: str
    file: str
    state: str
    why: str
    priority: int
    role: str
    needs: list[NeedLine]
    paths: list[str]
    checks: list[str]  # that decide on it
    source: str
    added_at: datetime | None
    landed: str | None
    landed_at: datetime | None
    previous: str | None
    question: str | None
    work: str | None  # newest saved commit
    attempts: list[AttemptLine]
    events: list[dict[str, Any]]  # swarm.event/1, oldest first


def find_task(view: View, ledger: Ledger, task: str) -> Row:
    """
    Raises:
        NotFound: there is no such task; the hint names the nearest.
    """
    row = ledger.index.find(view, task)
    if row is None:
        near = nearest(task, ledger.index.ids(view))
        raise NotFound(
            f"there is no task {task}", hint=f"did you mean {near}?" if near else "swarm task list"
        )
    return row


def story(work: Workspace, task: str) -> Story:
    """Everything that happened to one task; reads the events of that task alone.

    Raises:
        NotFound: there is no such task.
    """
    moment = _moment(work)
    view, ledger = moment.view, work.ledger
    row = find_task(view, ledger, task)
    state, why = row.state.value, row.why
    if row.state is State.OPEN:
        state, why = _sort(moment).lines[task]
    header, body = None, ""
    with contextlib.suppress(Undecodable):
        found = view.task(task)
        if found is not None:
            header, body = found.header, found.body
    since = header.added_at if header is not None else None
    logged = list(iter_events(ledger, task=task, since=since, tip=view.tip))[::-1]
    done = _quietly(lambda: view.done(task))
    parked = _quietly(lambda: view.parked(task))
    attempts = _quietly(lambda: view.attempts(task))
    asked = header.checks if header else []
    return Story(
        at=view.now,
        target=view.target_branch,
        task=task,
        title=row.title,
        body=body,
        file=f"{work.config.tasks}/{task}.md",
        state=State.LANDED.value if task in moment.in_flight else state,
        why=why,
        priority=row.priority,
        role=row.role,
        needs=[_need_line(moment, need) for need in row.needs],
        paths=list(row.paths),
        checks=[c.name for c in work.config.checks if c.when == "always" or c.name in asked],
        source=header.source if header else "",
        added_at=since,
        landed=done.landed if done else None,
        landed_at=done.at if done and done.landed else None,
        previous=done.previous if done else None,
        question=parked.question if parked else None,
        work=attempts.work.head if attempts and attempts.work else None,
        attempts=_attempts(moment, task, logged),
        events=[event_json(event) for event in logged],
        ledger=moment.reading(),
    )


def _quietly(read: Any) -> Any:
    try:
        return read()
    except Undecodable:
        return None


def _need_line(moment: _Moment, need: str) -> NeedLine:
    view = moment.view
    done = _quietly(lambda: view.done(need))
    is_landed = done is not None and done.result == "landed"
    return NeedLine(
        task=need,
        state=view.state(need).value,
        landed=done.landed if is_landed else None,
        at=done.at if is_landed else None,
    )


def _attempts(moment: _Moment, task: str, logged: list[Logged]) -> list[AttemptLine]:
    by_token: dict[int, list[Logged]] = {}
    for event in logged:
        token = _number(event.message.trailers.get("Swarm-Token"))
        if isinstance(token, int):
            by_token.setdefault(token, []).append(event)
    return [
        _attempt(moment, task, token, events)
        for token, events in sorted(by_token.items())
        if any(event.kind == "claimed" for event in events)
    ]


_ENDS = ("landed", "ejected", "released", "expired", "rejected", "cancelled")


def _attempt(moment: _Moment, task: str, token: int, events: list[Logged]) -> AttemptLine:
    view = moment.view
    claimed = next(event for event in events if event.kind == "claimed")
    ended = next((event for event in events if event.kind in _ENDS), None)
    sealed = next((event for event in events if event.kind == "sealed"), None)
    facts = claimed.message.trailers
    lock = _record_at(view, claimed.oid, Lock, records.lock_path(task))
    entry = None
    for event in events:
        if event.kind in ("sealed", "held", "approved"):
            found = _record_at(view, event.oid, QueueEntry, records.queue_path(task))
            entry = found or entry
    claimed_at = lock.claimed_at if lock else claimed.at
    run = lock.run if lock else ""
    folder = moment.work.layout.attempt(run, task, token)
    line = AttemptLine(
        token=token,
        agent=facts.get("Swarm-Agent", ""),
        adapter=facts.get("Swarm-Adapter"),
        slot=facts.get("Swarm-Slot") or None,
        run=run or None,
        host=lock.host if lock else None,
        state="claimed" if entry is None else "held" if entry.is_held else "queued",
        claimed_at=claimed_at,
        for_seconds=_since(view.now, claimed_at),
        base=lock.base if lock else None,
        start=facts.get("Swarm-Start"),
        merge=facts.get("Swarm-Merge"),
        head=sealed.message.trailers.get("Swarm-Head") if sealed else None,
        rescued=[e.message.trailers.get("Swarm-Ref", "") for e in events if e.kind == "rescued"],
        folder=str(folder) if folder.is_dir() else None,
        holds=sorted(path.name for path in folder.iterdir()) if folder.is_dir() else [],
    )
    if entry is not None:
        line = msgspec.structs.replace(
            line,
            commits=entry.commits,
            files=entry.files,
            insertions=entry.insertions,
            deletions=entry.deletions,
            left_by_agent=entry.left_by_agent,
            hold=entry.hold or [],
        )
    return line if ended is None else _ended(moment, task, line, ended)


def _ended(moment: _Moment, task: str, line: AttemptLine, ended: Logged) -> AttemptLine:
    view, facts = moment.view, ended.message.trailers
    attempts = _record_at(view, ended.oid, Attempts, records.attempts_path(task))
    last = attempts.last if attempts is not None else None
    if last is not None and last.token != line.token:
        last = None
    ended_at = last.ended_at if last else ended.at
    said = facts.get("Swarm-Strike", "no")
    outcome = facts.get("Swarm-Outcome") or ended.kind
    line = msgspec.structs.replace(
        line,
        state="ended",
        ended_at=ended_at,
        for_seconds=_since(ended_at, line.claimed_at),
        event=ended.kind,
        outcome=outcome,
        message=ended.message.body,
        strike=None if ended.kind in ("landed", "cancelled") else said != "no",
        strikes=None if said == "no" else said,
        head=facts.get("Swarm-Head") or line.head or facts.get("Swarm-Work"),
    )
    if ended.kind == "landed":
        keys = facts.get("Swarm-Tree", "")
        done = _record_at(view, ended.oid, records.Done, records.done_path(task))
        return msgspec.structs.replace(
            line,
            landed=facts.get("Swarm-Landed"),
            previous=facts.get("Swarm-Previous"),
            checks=[
                found
                for key in (done.verdicts if done else [])
                if (found := _check_line(view, ended.oid, key, "merged")) is not None
            ],
            message=f"{facts.get('Swarm-Stat', '')} on tree {keys[:7]}".strip(),
        )
    if last is None:
        return line
    checks: list[CheckLine] = []
    if last.check is not None and last.tree is not None:
        tree = view.hub.reader.tree_of(ended.oid)
        path, _ = _newest_verdict(view, tree, last.tree, last.check)
        merged = _check_line(view, ended.oid, Path(path).stem, "merged") if path else None
        if merged is not None:
            checks.append(merged)
        if line.head is not None and view.hub.reader.has(line.head):
            own = view.hub.reader.tree_of(line.head)
            path, _ = _newest_verdict(view, tree, own, last.check)
            alone = _check_line(view, ended.oid, Path(path).stem, "alone") if path else None
            if alone is not None and own != last.tree:
                checks.append(alone)
    return msgspec.structs.replace(
        line,
        detail=last.detail,
        paths=last.paths,
        failing=last.failing,
        partner=_partner(view, last.partner) if last.partner else None,
        checks=checks,
    )


def _record_at(view: View, commit: str, kind: type[R], path: str) -> R | None:
    """A ledger file as it was right after an event."""
    entry = view.hub.reader.find(view.hub.reader.tree_of(commit), path)
    if entry is None:
        return None
    try:
        return records.decode(kind, view.hub.reader.read(entry.oid, "blob"))
    except Undecodable:
        return None


def _check_line(
    view: View, commit: str, key: str, about: Literal["merged", "alone"]
) -> CheckLine | None:
    path = records.verdict_path(key)
    verdict = _record_at(view, commit, Verdict, path)
    if verdict is None:
        return None
    run = verdict.runs[-1] if verdict.runs else None
    return CheckLine(
        check=verdict.check,
        about=about,
        verdict=verdict.verdict,
        tree=verdict.tree,
        seconds=run.seconds if run else None,
        exit_code=run.exit_code if run else None,
        failing=verdict.failing,
        tail=verdict.tail,
        why=verdict.why,
        log=verdict.log,
        source=path,
    )


def _partner(view: View, task: str) -> Partner:
    done = _quietly(lambda: view.done(task))
    paths: list[str] = []
    if done is not None and done.landed is not None and done.previous is not None:
        paths = view.hub.changed_paths(done.previous, done.landed)
    landed = done.landed if done is not None else None
    return Partner(task=task, landed=landed, at=done.at if landed else None, paths=paths)


# What a change changes


@dataclass(frozen=True)
class Compared:
    """Two commits whose difference is what a task changes."""

    task: str
    what: str  # landed, queued, held, saved work
    old: str
    new: str
    stat: tuple[int, int, int]


def compare(work: Workspace, task: str) -> Compared | None:
    """What a task's change changes: against its landing's parent when it has landed, else against
    where it left the target. None: nothing of it is saved yet.

    Raises:
        NotFound: there is no such task.
    """
    view, hub = work.ledger.view(), work.ledger.hub
    row = find_task(view, work.ledger, task)
    done = _quietly(lambda: view.done(task))
    if done is not None and done.landed is not None and done.previous is not None:
        return Compared(
            task, "landed", done.previous, done.landed, hub.diff_stat(done.previous, done.landed)
        )
    entry = _quietly(lambda: view.entry(task))
    attempts = _quietly(lambda: view.attempts(task))
    head: str | None = entry.head if entry is not None else None
    what = row.state.value if entry is not None else "saved work"
    if head is None and row.token:
        head = hub.reader.ref(work_ref(task, row.token))
    if head is None and attempts is not None and attempts.work is not None:
        head = attempts.work.head
    if head is None:
        return None
    base = hub.git.run("merge-base", view.target, head, ok=(0, 1)).text or view.target
    return Compared(task, what, base, head, hub.diff_stat(base, head))


def diff(work: Workspace, compared: Compared, *, is_stat: bool) -> bytes:
    """Git's own words on it, without colour; bytes as git wrote them, so that they can be applied.

    What a repository holds is untrusted: clean it before a terminal sees it.
    """
    shape = ["--stat=100", "--summary"] if is_stat else ["--patch", "--binary", "--full-index"]
    return work.ledger.hub.git.run(
        "diff",
        "--no-color",
        "--no-ext-diff",
        "--no-textconv",
        "--find-renames",
        *shape,
        compared.old,
        compared.new,
        "--",
        timeout=600,
    ).out


def attempt_folder(work: Workspace, task: str, token: int | None = None) -> tuple[int, Path] | None:
    """(token, folder) of an attempt's transcript on this disk: the named one, or the last."""
    found: list[tuple[int, Path]] = []
    for folder in work.layout.runs.glob(f"*/{task}/*"):
        if folder.name.isdecimal() and folder.is_dir():
            found.append((int(folder.name), folder))
    if token is not None:
        found = [pair for pair in found if pair[0] == token]
    return max(found, default=None)
