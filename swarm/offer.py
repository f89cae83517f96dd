"""A change that a command makes by itself: its task, its claim and its sealed work in one move.

Enters: a task, a commit in the hub. Leaves: a queued change.
Guards: killed anywhere there is all of it or nothing; the gate judges it like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Literal

import msgspec

from swarm import faults
from swarm.change import Captured, Difference, Rules, sealed
from swarm.claim import Who, claimed
from swarm.ids import new_agent_id, new_nonce
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.records import QueueEntry, Task
from swarm.ledger.store import Draft, Ledger, refuse
from swarm.ledger.view import State, View
from swarm.plumbing.refs import Move
from swarm.task import added

SYNC, REVERT = "sync", "revert"  # what the ids of their tasks begin with
LEASE = timedelta(hours=1)  # never runs: the change is sealed in the move that claims


class Offer(msgspec.Struct, frozen=True):
    """What a command wants landed."""

    kind: Literal["sync", "revert"]  # the command; the adapter of its claim
    task: Task  # new, or open and offered again
    head: str  # in the hub, whole
    differs: Difference  # what it brings
    is_accepted: bool = False  # by people, where it comes from: nothing holds it
    note: Event | None = None  # travels in the same move


class Waits(msgspec.Struct, frozen=True):
    """A task that a command made earlier has not ended: nothing was added."""

    task: str
    state: State
    brings: tuple[str, ...]  # of what is wanted: what this task brings when it lands
    lacks: tuple[str, ...]  # and what it does not

    def says(self, target: str) -> str:
        """One line for people; so for all outcomes of a command."""
        wanted = ", ".join((*self.brings, *self.lacks))
        return f"{wanted} waits: {self.task} is {self.state.value}"


def make(ledger: Ledger, rules: Rules, decide: Callable[[View], Offer | None]) -> QueueEntry | None:
    """Write an offer: all its events in one move. None: `decide` wants none on this view.

    `decide` may be called several times; the offer's task must be absent or open on its view.
    """
    agent, nonce = new_agent_id(), new_nonce()

    def draft(view: View) -> Draft[QueueEntry | None]:
        offer = decide(view)
        if offer is None:
            return refuse(None)
        return _drafted(ledger, view, offer, rules, Who(f"hand-{agent}", agent, offer.kind), nonce)

    entry = ledger.append(draft)
    faults.reach("offer.after_transact")
    return entry


def _drafted(
    ledger: Ledger, view: View, offer: Offer, rules: Rules, who: Who, nonce: str
) -> Draft[QueueEntry | None]:
    task = offer.task
    claim, lock, attempts = claimed(ledger, view, who, LEASE, task.id, nonce)
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
    notes = (offer.note,) if offer.note is not None else ()
    move = Move(entry.work, view.ref(entry.work), offer.head)
    return Draft((*opens, claim, seal, *notes), entry, (move,))


def iter_made(view: View, prefix: str) -> Iterator[str]:
    """Ids of the tasks that a command made, `<prefix>-<n>`, oldest first; whatever their state."""
    number = 1
    while view.state(name := f"{prefix}-{number}") is not State.ABSENT:
        number += 1
        yield name


def next_id(view: View, prefix: str) -> str:
    """`<prefix>-<n>`, the first that no task has had."""
    return f"{prefix}-{1 + sum(1 for _ in iter_made(view, prefix))}"
