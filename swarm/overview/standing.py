"""Where every task stands: one sorting, which every list, count and summary is made from.

Enters: a view and its cache. Leaves: each task once, with its shown state and why.
Guards: ready, waiting and blocked are derived here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta

import msgspec

from swarm.errors import HubUnusable
from swarm.ids import span_text
from swarm.ledger.index import Index, Row
from swarm.ledger.records import HoldReason
from swarm.ledger.view import State, View

SHOWN = (
    "ready",
    "waiting",
    "blocked",
    "claimed",
    "queued",
    "held",
    "parked",
    "landed",
    "cancelled",
    "damaged",
)  # every state as people read it
STUCK = (State.PARKED, State.CANCELLED, State.DAMAGED, State.ABSENT)


class Standing(msgspec.Struct, frozen=True):
    """Every task once: how many landed, and the others by name with the state that is shown.

    Shown states: ready, waiting and blocked (all three are open), claimed, queued, held, parked,
    cancelled, damaged. In pick order: priority, age, id.
    """

    rows: dict[str, Row]
    lines: dict[str, tuple[str, str]]  # id -> (shown state, why)
    unmet: dict[str, list[str]]  # open tasks with needs that have not landed
    landed: int

    @property
    def total(self) -> int:
        return self.landed + len(self.rows)

    def of(self, state: str) -> list[Row]:
        """The tasks in a shown state."""
        return [row for task, row in self.rows.items() if self.lines[task][0] == state]

    def told(self, state: str) -> list[tuple[str, str]]:
        """(task, why) of the tasks in a shown state."""
        return [(task, why) for task, (found, why) in self.lines.items() if found == state]


def landed_in_flight(view: View) -> frozenset[str]:
    """Tasks that the landing in flight has landed, although no `landed` event says so yet."""
    try:
        landing = view.landing()
    except HubUnusable:
        return frozenset()
    if landing is None:
        return frozenset()
    return frozenset(change.task for change in landing.changes if view.is_landed(change.task))


def stand(view: View, index: Index) -> Standing:
    """Where every task is at the view's moment."""
    in_flight = landed_in_flight(view)
    found: list[Row] = []
    for state in State:
        if state not in (State.LANDED, State.ABSENT):
            found += [row for row in index.rows(view, state) if row.id not in in_flight]
    found.sort(key=lambda row: (-row.priority, row.added, row.id))
    rows = {row.id: row for row in found}
    others: dict[str, State] = {}

    def state_of(task: str) -> State:
        if task in rows:
            return rows[task].state
        if task in in_flight:
            return State.LANDED
        if task not in others:
            row = index.find(view, task)
            others[task] = row.state if row else State.ABSENT
        return others[task]

    unmet = {
        row.id: [need for need in row.needs if state_of(need) is not State.LANDED]
        for row in found
        if row.state is State.OPEN and row.unmet
    }
    blocked = _blocked(unmet, state_of)
    held = {entry.task: entry for entry in view.entries()} if _has_held(found) else {}
    now = view.now.timestamp()
    lines: dict[str, tuple[str, str]] = {}
    for task, row in rows.items():
        if row.state is State.HELD:
            lines[task] = ("held", hold_text(held[task].hold or ()) if task in held else "")
        elif row.state is not State.OPEN:
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
            left = span_text(timedelta(seconds=row.retry_at - now))
            lines[task] = ("waiting", f"back-off, {left} left")
        else:
            lines[task] = ("ready", "")
    landed = index.counts(view).get(State.LANDED.value, 0) + len(in_flight)
    return Standing(rows, lines, unmet, landed)


def shown_state(view: View, index: Index, task: str) -> str:
    """The state of one task as every list shows it: ready, waiting or blocked, never open."""
    state = view.state(task)
    if state is not State.OPEN:
        return state.value
    line = stand(view, index).lines.get(task)
    return line[0] if line is not None else state.value


def _has_held(rows: Iterable[Row]) -> bool:
    return any(row.state is State.HELD for row in rows)


def _stuck_word(state: State) -> str:
    return "there is no such task" if state is State.ABSENT else state.value


def _blocked(unmet: dict[str, list[str]], state_of: Callable[[str], State]) -> dict[str, str]:
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


_HOLDS = {
    "review": "every change is reviewed first",
    "protected": "touches {paths} (protected)",
    "scope": "changes {paths}, outside its paths",
    "reverted": "{paths} goes back to what the target had before",
    "large_file": "contains {paths}: too large; approving lands it",
    "secret": "contains {paths}: looks like a secret; approving lands it",
    "containment": "would change {paths}, which its own commits do not",
    "side_taking": "took one whole side in {paths}",
    "markers": "conflict markers in {paths}",
}

_LEFT_OUT = _HOLDS | {
    "large_file": "left out {paths}: too large; kept under refs/swarm/rescue",
    "secret": "left out {paths}: looks like a secret; kept under refs/swarm/rescue",
}


def hold_text(holds: Iterable[HoldReason]) -> str:
    """Why a change is held, in words; approved reasons are left out."""
    said = []
    for hold in holds:
        if hold.approved_at is None:
            paths = ", ".join(hold.paths[:2])
            if len(hold.paths) > 2:
                paths += f" and {len(hold.paths) - 2} more"
            said.append(
                (_LEFT_OUT if hold.is_left_out else _HOLDS)[hold.reason].format(paths=paths)
            )
    return "; ".join(said)
