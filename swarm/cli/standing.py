"""Where every task is, as one list per state, and the lines that say it.

Enters: a view. Leaves: names and reasons. Guards: every task of the ledger is in exactly one list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from swarm.ledger.index import Index, Row
from swarm.ledger.records import QueueEntry
from swarm.ledger.view import State, View
from swarm.output import span_text
from swarm.trailers import one_line

WIDTH = 100


@dataclass(frozen=True)
class Standing:
    """Every task of the ledger, once; each list in pick order, with why where there is one."""

    landed: tuple[str, ...] = ()
    working: tuple[str, ...] = ()
    queued: tuple[str, ...] = ()
    ready: tuple[str, ...] = ()
    cancelled: tuple[str, ...] = ()
    waiting: tuple[tuple[str, str], ...] = ()  # open; a need has not landed, or back-off runs
    blocked: tuple[tuple[str, str], ...] = ()  # open; a need is parked or cancelled
    held: tuple[tuple[str, str], ...] = ()
    parked: tuple[tuple[str, str], ...] = ()
    damaged: tuple[tuple[str, str], ...] = ()

    @property
    def total(self) -> int:
        kinds = (self.landed, self.working, self.queued, self.ready, self.cancelled)
        pairs = (self.waiting, self.blocked, self.held, self.parked, self.damaged)
        return sum(map(len, kinds)) + sum(map(len, pairs))


def standing(view: View, index: Index) -> Standing:
    """Where every task is at the view's moment."""
    rows = index.rows(view)
    states = {row.id: row.state for row in rows}
    blocked = _blocked(rows)
    holds = {entry.task: entry for entry in view.entries() if entry.is_held}
    plain: dict[State, list[str]] = {}
    ready: list[str] = []
    waiting: list[tuple[str, str]] = []
    told: dict[State, list[tuple[str, str]]] = {}
    now = view.now.timestamp()
    for row in rows:
        if row.state in (State.PARKED, State.DAMAGED):
            told.setdefault(row.state, []).append((row.id, one_line(row.why)))
        elif row.state is State.HELD:
            told.setdefault(row.state, []).append((row.id, _why_held(holds.get(row.id))))
        elif row.state is not State.OPEN:
            plain.setdefault(row.state, []).append(row.id)
        elif row.id in blocked:
            continue
        elif row.unmet:
            missing = [need for need in row.needs if states.get(need) is not State.LANDED]
            waiting.append((row.id, f"needs {', '.join(missing[:3])}"))
        elif row.retry_at is not None and row.retry_at > now:
            left = timedelta(seconds=row.retry_at - now)
            waiting.append((row.id, f"back-off, {span_text(left)} left"))
        else:
            ready.append(row.id)
    return Standing(
        landed=tuple(plain.get(State.LANDED, ())),
        working=tuple(plain.get(State.CLAIMED, ())),
        queued=tuple(plain.get(State.QUEUED, ())),
        ready=tuple(ready),
        cancelled=tuple(plain.get(State.CANCELLED, ())),
        waiting=tuple(waiting),
        blocked=tuple((r.id, f"needs {blocked[r.id]}") for r in rows if r.id in blocked),
        held=tuple(told.get(State.HELD, ())),
        parked=tuple(told.get(State.PARKED, ())),
        damaged=tuple(told.get(State.DAMAGED, ())),
    )


def _why_held(entry: QueueEntry | None) -> str:
    holds = [h for h in (entry.hold or ()) if h.approved_at is None] if entry is not None else []
    whys = (f"{h.reason}: {', '.join(h.paths[:3])}" if h.paths else h.reason for h in holds)
    return one_line("; ".join(whys))


def _blocked(rows: Iterable[Row]) -> dict[str, str]:
    """Open task -> a need of it that cannot land without a person, needs of needs included."""
    states: dict[str, State] = {}
    needed_by: dict[str, list[str]] = {}
    for row in rows:
        states[row.id] = row.state
        for need in row.needs:
            needed_by.setdefault(need, []).append(row.id)
    dead = (State.PARKED, State.CANCELLED, State.DAMAGED)
    rest = [task for task, state in states.items() if state in dead]
    blocked: dict[str, str] = {}
    while rest:
        need = rest.pop()
        for task in needed_by.get(need, ()):
            if task not in blocked and states[task] is State.OPEN:
                blocked[task] = need
                rest.append(task)
    return blocked


def standing_lines(at: Standing, landed: Sequence[str], detail: str = "") -> list[str]:
    """One block per state, names and reasons, what needs a person with what to type.

    `landed`: in this run; `detail` stands behind their number.
    """
    lines: list[str] = []
    before = len(at.landed) - len(set(landed))
    earlier = f"   {before} before this run" if before else ""
    if landed or at.landed:
        lines += _names("landed", sorted(set(landed)), f"{detail}{earlier}".strip())
    lines += _reasons("parked", at.parked, "swarm show {}")
    lines += _reasons("held", at.held, "swarm diff {}")
    lines += _reasons("blocked", at.blocked)
    lines += _reasons("damaged", at.damaged, "swarm doctor")
    if at.queued:
        lines += _names("queued", at.queued, "sealed; the next run judges them")
    if at.working:
        lines += _names("claimed", at.working, "")
    if at.ready:
        lines += _names("open", at.ready, "")
    lines += _reasons("waiting", at.waiting)
    if at.cancelled:
        lines += _names("cancelled", at.cancelled, "")
    return lines


def _lead(word: str, count: int) -> str:
    return f"  {word:<9} {count:>3}   "


def _names(word: str, names: Sequence[str], detail: str) -> list[str]:
    lead = _lead(word, len(names))
    if detail:
        first = [lead + detail]
        lead = " " * len(lead)
    else:
        first = []
    lines: list[str] = []
    for name in names:
        if lines and len(lines[-1]) + 1 + len(name) <= WIDTH:
            lines[-1] += f" {name}"
        else:
            lines.append((lead if not lines else " " * len(lead)) + name)
    return first + (lines or ([] if first else [lead.rstrip()]))


def _reasons(word: str, rows: Sequence[tuple[str, str]], hint: str = "") -> list[str]:
    lines = []
    for number, (task, why) in enumerate(rows):
        lead = _lead(word, len(rows)) if number == 0 else " " * len(_lead(word, 0))
        text = f"{lead}{task}: {why}"
        if hint:
            text = f"{text:<66}   {hint.format(task)}"
        lines.append(text)
    return lines


def short(span: timedelta) -> str:
    """A limit as people write it: `45s`, `21m`, `1h30m`, `3d`."""
    seconds = max(int(span.total_seconds()), 0)
    if seconds < 60 or (seconds < 120 and seconds % 60):
        return f"{seconds}s"
    hours, minutes = divmod(seconds // 60, 60)
    if not hours:
        return f"{minutes}m"
    if hours < 48:
        return f"{hours}h{minutes}m" if minutes else f"{hours}h"
    return f"{hours // 24}d"
