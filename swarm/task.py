"""What people do to tasks: add, edit, cancel, reopen, approve, reject.

Enters: drafts and words of a person. Leaves: events, or why not.
Guards: a plan is added whole or not at all; nothing is done to a task that is landing now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from swarm import plan
from swarm.claim import Ending, Mine, conclude_events
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.outcome import Bounds
from swarm.ledger.records import Attempts, Done, Lock, Task
from swarm.ledger.store import Draft, Ledger, refuse
from swarm.ledger.view import State, View
from swarm.trailers import one_line


@dataclass(frozen=True)
class Refusal:
    """Nothing was changed."""

    task: str
    why: str
    hint: str = ""


@dataclass(frozen=True)
class Taken:
    """What became of a plan's tasks; each in the plan's order."""

    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()  # changed, but claimed or queued: for the next attempt
    ended: tuple[str, ...] = ()  # changed, but landed or cancelled already


def take_plan(ledger: Ledger, drafts: Sequence[plan.Draft]) -> Taken:
    """Bring the ledger's copies up to the files': one event for all that is new, one per edit.

    A file that vanished changes nothing. The plan was checked before.

    Raises:
        HubUnusable: nothing was written.
    """

    def decide(view: View) -> Draft[Taken]:
        new: list[str] = []
        changed: list[str] = []
        waiting: list[str] = []
        ended: list[str] = []
        added: dict[str, bytes | None] = {}
        edits: list[Event] = []
        for draft in drafts:
            known = _known(view, draft.id)
            if known is None:
                added[records.task_path(draft.id)] = records.encode_task(
                    plan.to_task(draft, view.now)
                )
                new.append(draft.id)
                continue
            wanted = plan.to_task(draft, known.header.added_at)
            if wanted == known:
                continue
            state = view.state(draft.id)
            if state in (State.LANDED, State.CANCELLED):
                ended.append(draft.id)
            elif state in (State.OPEN, State.PARKED):
                changed.append(draft.id)
                edits.append(_edited(wanted))
            else:
                waiting.append(draft.id)
        events = list(edits)
        if added:
            names = new[0] if len(new) == 1 else ""
            says = f"{len(new)} task{'s' if len(new) != 1 else ''} added: {', '.join(new[:20])}"
            events.insert(0, Event("added", says, added, names))
        taken = Taken(tuple(new), tuple(changed), tuple(waiting), tuple(ended))
        return Draft(tuple(events), taken)

    return ledger.append(decide)


def _known(view: View, task: str) -> Task | None:
    try:
        return view.task(task)
    except records.Undecodable:
        return None


def _edited(task: Task) -> Event:
    edits: dict[str, bytes | None] = {records.task_path(task.id): records.encode_task(task)}
    return Event("edited", f"{task.id} was edited.", edits, task.id)


@dataclass(frozen=True)
class Changed:
    """It was done."""

    task: str
    was: State


def cancel(ledger: Ledger, task: str, why: str, by: str) -> Changed | Refusal:
    """End a task that has not landed; its work refs stay."""

    def decide(view: View) -> Draft[Changed | Refusal]:
        state = view.state(task)
        if state in (State.ABSENT, State.LANDED, State.CANCELLED):
            return refuse(Refusal(task, f"it is {state.value}"))
        if view.is_landing(task):
            return refuse(Refusal(task, "it is landing now", f"swarm show {task}"))
        attempts = _attempts(view, task)
        done = Done(
            task=task,
            result="cancelled",
            token=attempts.token if attempts else 0,
            message=one_line(why),
            at=view.now,
        )
        edits: dict[str, bytes | None] = {records.done_path(task): records.encode(done)}
        for path in (
            records.lock_path(task),
            records.queue_path(task),
            records.parked_path(task),
        ):
            if view.blob_id(path) is not None:
                edits[path] = None
        event = Event(
            "cancelled",
            one_line(why) or f"{task} was cancelled.",
            edits,
            task,
            token=done.token,
            trailers={"Swarm-By": by},
        )
        return Draft((event,), Changed(task, state))

    return ledger.append(decide)


def reopen(ledger: Ledger, task: str, by: str) -> Changed | Refusal:
    """Open a parked or cancelled task again: counts cleared, token kept."""

    def decide(view: View) -> Draft[Changed | Refusal]:
        state = view.state(task)
        if state not in (State.PARKED, State.CANCELLED):
            return refuse(Refusal(task, f"it is {state.value}", f"swarm show {task}"))
        edits: dict[str, bytes | None] = {}
        for path in (records.parked_path(task), records.done_path(task)):
            if view.blob_id(path) is not None:
                edits[path] = None
        attempts = _attempts(view, task)
        if attempts is not None:
            cleared = msgspec.structs.replace(
                attempts, strikes=[], conflicts=0, expiries=0, retry_at=None
            )
            edits[records.attempts_path(task)] = records.encode(cleared)
        token = attempts.token if attempts else 0
        event = Event("reopened", f"{by} opens it again.", edits, task, "", token, {"Swarm-By": by})
        return Draft((event,), Changed(task, state))

    return ledger.append(decide)


def approve(ledger: Ledger, task: str, by: str) -> Changed | Refusal:
    """Let a held change go to the gate; the approval stays, so that it is not held twice."""

    def decide(view: View) -> Draft[Changed | Refusal]:
        state = view.state(task)
        entry = view.entry(task) if state in (State.HELD, State.QUEUED) else None
        if entry is None or state is not State.HELD:
            return refuse(Refusal(task, f"it is {state.value}, not held", "swarm status"))
        holds = [
            hold
            if hold.approved_at is not None
            else msgspec.structs.replace(hold, approved_at=view.now)
            for hold in entry.hold or ()
        ]
        after = msgspec.structs.replace(entry, hold=holds)
        event = Event(
            "approved",
            f"{by} approves it.",
            {records.queue_path(task): records.encode(after)},
            task,
            token=entry.token,
            trailers={"Swarm-By": by, "Swarm-Head": entry.head},
        )
        return Draft((event,), Changed(task, state))

    return ledger.append(decide)


def reject(ledger: Ledger, task: str, why: str, by: str, bounds: Bounds) -> Changed | Refusal:
    """Send a held change back with a sentence that reaches the next attempt; no strike."""

    def decide(view: View) -> Draft[Changed | Refusal]:
        state = view.state(task)
        if state is not State.HELD:
            return refuse(Refusal(task, f"it is {state.value}, not held", "swarm status"))
        if view.is_landing(task):
            return refuse(Refusal(task, "it is landing now", f"swarm show {task}"))
        entry, lock = view.entry(task), view.lock(task)
        assert entry is not None and lock is not None
        ending = Ending(
            "rejected",
            f"A person rejected it: {one_line(why)}",
            work=records.Work(ref=entry.work, head=entry.head),
        )
        events, _, _ = conclude_events(
            view,
            "rejected",
            Mine.of(lock),
            ending,
            bounds,
            by=by,
            gone=(records.queue_path(task),),
        )
        return Draft(events, Changed(task, state))

    return ledger.append(decide)


def _attempts(view: View, task: str) -> Attempts | None:
    try:
        return view.attempts(task)
    except records.Undecodable:
        return None


def find_held_by(view: View, slot: str) -> Lock | None:
    """The live claim of a slot, if any."""
    return next((lock for lock in view.locks() if lock.slot == slot), None)
