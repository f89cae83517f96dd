"""A change that a command makes by itself: its task, its claim and its sealed work in one move.

Enters: a task, a commit in the hub. Leaves: a queued change.
Guards: killed anywhere there is all of it or nothing; the gate judges it like any other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from swarm.change import Captured, Difference, Rules, sealed
from swarm.claim import Who, claimed
from swarm.ids import new_agent_id, new_nonce
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.records import QueueEntry, Task
from swarm.ledger.store import Ledger
from swarm.ledger.view import State, View
from swarm.plumbing.refs import Move
from swarm.task import added

LEASE = timedelta(hours=1)  # never runs: the change is sealed in the move that claims


@dataclass(frozen=True)
class Offer:
    """What a command wants landed."""

    kind: Literal["sync", "revert"]  # the command; the adapter of its claim
    task: Task  # new, or open and offered again
    head: str  # in the hub, whole
    differs: Difference  # what it brings
    is_accepted: bool = False  # by people, where it comes from: nothing holds it
    agent: str = field(default_factory=new_agent_id)
    nonce: str = field(default_factory=new_nonce)


def offered(
    ledger: Ledger, view: View, offer: Offer, rules: Rules
) -> tuple[tuple[Event, ...], Move, QueueEntry]:
    """The events of the offer, in order, and its work ref's move: for one draft.

    The task must be absent or open on this view.
    """
    task = offer.task
    who = Who(runner=f"hand-{offer.agent}", agent=offer.agent, adapter=offer.kind)
    claim, lock, attempts = claimed(ledger, view, who, LEASE, task.id, offer.nonce)
    lock_id = ledger.hub.batch().blob(records.encode(lock))
    captured = Captured(
        agent_head=offer.head,
        head=offer.head,
        head_was="branch",
        uncommitted=0,
        untracked=0,
        rescue=None,
    )
    entry, seal = sealed(
        view,
        lock,
        lock_id,
        attempts,
        task,
        captured,
        offer.differs,
        rules,
        is_accepted=offer.is_accepted,
    )
    opens = (added([task]),) if view.state(task.id) is State.ABSENT else ()
    move = Move(entry.work, view.ref(entry.work), offer.head)
    return (*opens, claim, seal), move, entry


def next_id(view: View, prefix: str) -> str:
    """`<prefix>-<n>`, the first that no task has had."""
    number = 1
    while view.state(f"{prefix}-{number}") is not State.ABSENT:
        number += 1
    return f"{prefix}-{number}"
