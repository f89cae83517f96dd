"""Who holds what, and the last sign of life.

Enters: a workspace. Leaves: `swarm.claims/1`. Guards: silence is shown with its proof; no wall
clock calls anybody dead.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from swarm.ledger.records import Lock, QueueEntry
from swarm.overview.moment import Moment, Reading, read_moment
from swarm.workspace import Workspace


class Claim(Lock, frozen=True, kw_only=True):
    """A lock file and what can be seen of its holder."""

    state: Literal["working", "queued", "held", "silent", "gone"]
    beat_age_seconds: float | None  # None: queued, where no lease runs; or its runner is gone
    sign: str  # the evidence in words


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """`swarm claims --json`."""

    schema: str = "swarm.claims/1"
    at: datetime
    ledger: Reading
    claims: list[Claim]  # by task


def claims(work: Workspace) -> Claims:
    """Live and queued claims."""
    moment = read_moment(work)
    entries = {entry.task: entry for entry in moment.entries}
    found = [_claim(moment, lock, entries.get(lock.task)) for lock in moment.locks]
    return Claims(at=moment.view.now, ledger=moment.reading(), claims=found)


def _claim(moment: Moment, lock: Lock, entry: QueueEntry | None) -> Claim:
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
