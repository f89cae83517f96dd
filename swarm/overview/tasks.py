"""Every task in one list.

Enters: a workspace. Leaves: `swarm.tasks/1`. Guards: each task of the ledger is in it once.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from swarm.ledger.index import Row
from swarm.ledger.view import State
from swarm.overview.moment import Reading, read_moment
from swarm.overview.standing import stand
from swarm.revert import find_undone
from swarm.workspace import Workspace


class TaskLine(msgspec.Struct, frozen=True, kw_only=True):
    """One task in a list. `state` tells apart ready, waiting and blocked, which are all open."""

    id: str
    title: str
    state: str
    why: str  # of waiting, blocked, held, parked, damaged
    priority: int
    role: str
    paths: list[str]
    needs: list[str]
    unmet: list[str]  # needs that have not landed
    token: int  # attempts so far
    strikes: int
    agent: str | None  # holder of the live claim


class Tasks(msgspec.Struct, frozen=True, kw_only=True):
    """`swarm task list --json`."""

    schema: str = "swarm.tasks/1"
    at: datetime
    ledger: Reading
    tasks: list[TaskLine]  # in pick order: priority, age, id


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
    moment = read_moment(work)
    known = stand(moment.view, work.ledger.index)
    gone = find_undone(moment.view)
    listed: list[TaskLine] = []
    for row in work.ledger.index.rows(moment.view):
        state, why = known.lines.get(row.id, (row.state.value, row.why))
        if row.id in moment.in_flight:
            state = State.LANDED.value
        if row.id in gone:
            why = f"undone by {gone[row.id]}"
        listed.append(_line(row, state, why, known.unmet.get(row.id, [])))
    return Tasks(at=moment.view.now, ledger=moment.reading(), tasks=listed)
