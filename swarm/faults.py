"""Named points at which a test may kill this process.

Enters: a point's name. Leaves: nothing, or SIGKILL. Guards: inert unless the test-suite has
switched faults on, so that no environment variable of a user can stop a run.
"""

from __future__ import annotations

import os
import signal

POINTS = (
    "claim.before_transact",
    "claim.after_transact",
    "claim.after_read_back",
    "worktree.after_add",
    "worktree.after_setup",
    "agent.after_start",
    "seal.after_tree_ended",
    "seal.after_commit",
    "seal.before_queue",
    "seal.after_queue",
    "merge.after_tree",
    "check.after_start",
    "check.before_verdict",
    "check.after_verdict",
    "land.before_transact",
    "land.between_refs",
    "land.after_transact",
    "cleanup.before_rescue",
    "cleanup.after_rescue",
    "cleanup.after_delete",
    "release.before_transact",
    "release.after_transact",
    "sync.after_fetch",
    "offer.after_transact",
    "push.after_push",
    "push.after_record",
    "push.after_pr",
)

_hits: dict[str, int] = {}


def is_armed(point: str) -> bool:
    """Is this the point to die at, at this hit? Counts the hit."""
    if point not in POINTS:
        raise ValueError(f"{point} is not a named crash point")
    if os.environ.get("SWARM_FAULTS") != "1":
        return False
    wanted, _, count = os.environ.get("SWARM_CRASH_AT", "").partition(":")
    if wanted != point:
        return False
    _hits[point] = _hits.get(point, 0) + 1
    return _hits[point] >= int(count or "1")


def reach(point: str) -> None:
    """Die here by SIGKILL when armed: `SWARM_FAULTS=1 SWARM_CRASH_AT=name[:n]`, n-th time."""
    if is_armed(point):
        os.kill(os.getpid(), signal.SIGKILL)
