"""What people do to tasks: add, edit, cancel, reopen, approve, reject.

Enters: drafts and words of a person. Leaves: events, or why not.
Guards: a plan is added whole or not at all; nothing is done to a task that is landing now.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from swarm import plan
from swarm.claim import Ending, Mine, conclude_events
from swarm.config import Config, listing
from swarm.errors import NotFound, UsageError
from swarm.ids import fold
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.outcome import Bounds
from swarm.ledger.records import Attempts, Done, Task
from swarm.ledger.store import Draft, Ledger, refuse
from swarm.ledger.view import State, View, readable
from swarm.plumbing.history import iter_messages
from swarm.similar import nearest
from swarm.trailers import landings_told, one_line


class Refusal(msgspec.Struct, frozen=True):
    """Nothing was changed."""

    task: str
    why: str
    hint: str = ""


class Taken(msgspec.Struct, frozen=True):
    """What becomes of a plan's tasks; each in the plan's order."""

    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()  # changed, but claimed or queued: for the next attempt
    ended: tuple[str, ...] = ()  # changed, but landed or cancelled already
    vanished: tuple[str, ...] = ()  # not ended, and no file says them any more; by id
    elsewhere: tuple[str, ...] = ()  # not taken: the target has them, landed by another hub


def read_plan(
    ledger: Ledger, folder: Path, config: Config, roles: Collection[str] | None = None
) -> plan.Plan:
    """The task files of a folder, judged against the ledger; see `judge_plan`."""
    return judge_plan(ledger, plan.read_folder(folder, config.tasks), config, roles)


def judge_plan(
    ledger: Ledger, read: plan.Plan, config: Config, roles: Collection[str] | None = None
) -> plan.Plan:
    """The plan with all that is wrong in its files, between its drafts, and with what they name.

    Args:
        roles: those that slots have; the configuration's when left out.
    """
    if roles is None and config.run.roles:
        roles = [name for name, _ in config.run.roles]
    found = plan.check(
        read.drafts,
        known=known_needs(ledger),
        checks=[check.name for check in config.checks],
        roles=roles,
    )
    return plan.Plan(read.drafts, tuple(sorted({*read.problems, *found})))


def known_needs(ledger: Ledger) -> Mapping[str, Collection[str]]:
    """id and needs of every task of the ledger."""
    view = ledger.view()
    needs = ledger.index.needs(view)
    return {task: needs.get(task, []) for task in ledger.index.ids(view)}


def load_plan(
    ledger: Ledger,
    folder: Path,
    config: Config,
    roles: Collection[str] | None = None,
    *,
    so: str = "nothing was started",
) -> tuple[plan.Draft, ...]:
    """The drafts of a folder of task files, fit to be taken.

    Args:
        so: what a refusal means to whoever asked.

    Raises:
        UsageError: `why` lists every problem, one a line; nothing was taken.
    """
    read = read_plan(ledger, folder, config, roles)
    if read.problems:
        raise UsageError(
            f"{count_problems(read)}; {so}", why=listing(read.problems), hint="swarm plan check"
        )
    return read.drafts


def count_problems(read: plan.Plan) -> str:
    """`4 problems in 14 tasks`."""
    problems, tasks = len(read.problems), max(len(read.drafts), 1)
    return (
        f"{problems} problem{'s' if problems != 1 else ''} in "
        f"{tasks} task{'s' if tasks != 1 else ''}"
    )


def find_elsewhere(view: View, drafts: Sequence[plan.Draft]) -> dict[str, str]:
    """Tasks of these drafts, or that they need, which this ledger does not know and the target's
    history does: each with the commit that says so. A colleague's hub landed them.

    Reads the whole history when a task is unknown.

    Raises:
        GitFault: a commit is missing.
    """
    named = {name for draft in drafts for name in (draft.id, *draft.needs)}
    unknown = {name for name in named if view.state(name) is State.ABSENT}
    found: dict[str, str] = {}
    if not unknown:
        return found
    wanted = ("--fixed-strings", "--grep=Swarm-Tree: ")
    for oid, _, message in iter_messages(view.hub.git, view.target, None, wanted, is_whole=True):
        for name in landings_told(message):
            if name in unknown:
                found.setdefault(name, oid)
    return found


def _without(draft: plan.Draft, elsewhere: Collection[str]) -> plan.Draft:
    """The draft without needs that the target has from elsewhere."""
    needs = tuple(need for need in draft.needs if need not in elsewhere)
    return dataclasses.replace(draft, needs=needs)


def compare(
    view: View, drafts: Sequence[plan.Draft], elsewhere: Collection[str] | None = None
) -> Taken:
    """What taking these drafts would do, without doing it; `elsewhere`: see `find_elsewhere`."""
    if elsewhere is None:
        elsewhere = find_elsewhere(view, drafts)
    kinds = ("new", "changed", "waiting", "ended", "elsewhere")
    rows: dict[str, list[str]] = {kind: [] for kind in kinds}
    for draft in (_without(draft, elsewhere) for draft in drafts):
        known = readable(view.task, draft.id)
        if known is None:
            rows["elsewhere" if draft.id in elsewhere else "new"].append(draft.id)
        elif plan.to_task(draft, known.header.added_at) != known:
            rows[_fate(view.state(draft.id))].append(draft.id)
    files = {draft.id for draft in drafts}
    vanished = [
        task
        for path, _ in view.iter_paths("tasks")
        if (task := Path(path).stem) not in files
        and not plan.OURS.fullmatch(task)
        and view.state(task) not in (State.LANDED, State.CANCELLED)
    ]
    return Taken(
        **{name: tuple(tasks) for name, tasks in rows.items()}, vanished=tuple(sorted(vanished))
    )


def _fate(state: State) -> str:
    """What happens to an edit of a task in this state."""
    if state in (State.LANDED, State.CANCELLED):
        return "ended"
    return "changed" if state in (State.OPEN, State.PARKED) else "waiting"


def take_plan(ledger: Ledger, drafts: Sequence[plan.Draft]) -> Taken:
    """Bring the ledger's copies up to the files': one event for all that is new, one per edit.

    A file that vanished changes nothing. The plan was checked before.

    Raises:
        HubUnusable: nothing was written.
    """
    elsewhere = find_elsewhere(ledger.view(), drafts)
    by_id = {draft.id: _without(draft, elsewhere) for draft in drafts}

    def decide(view: View) -> Draft[Taken]:
        taken = compare(view, drafts, elsewhere)
        events: list[Event] = []
        if taken.new:
            events.append(added([plan.to_task(by_id[task], view.now) for task in taken.new]))
        for task in taken.changed:
            known = readable(view.task, task)
            assert known is not None
            events.append(_edited(plan.to_task(by_id[task], known.header.added_at)))
        return Draft(tuple(events), taken)

    return ledger.append(decide)


class LateEdits:
    """Edited files of tasks that were being worked on: taken as soon as such a task is open again.

    Safe: loops of one process share it; each takes it under the turn in which it then claims, so
    that no loop of theirs starts an attempt with the old text.
    """

    def __init__(self, ledger: Ledger, drafts: Sequence[plan.Draft] = ()) -> None:
        waiting = compare(ledger.view(), drafts).waiting if drafts else ()
        self._drafts = [draft for draft in drafts if draft.id in waiting]

    def __bool__(self) -> bool:
        return bool(self._drafts)

    def take(self, ledger: Ledger) -> None:
        """Take what can be taken now; what cannot any more is dropped."""
        waiting = take_plan(ledger, self._drafts).waiting
        self._drafts = [draft for draft in self._drafts if draft.id in waiting]


def add(ledger: Ledger, draft: plan.Draft) -> Task | Refusal:
    """Add one task; an id that exists, however it is spelled, is refused."""

    def decide(view: View) -> Draft[Task | Refusal]:
        state = view.state(draft.id)
        if state is not State.ABSENT:
            return refuse(Refusal(draft.id, f"there is a task {draft.id} already"))
        task = plan.to_task(draft, view.now)
        return Draft((added([task]),), task)

    return ledger.append(decide)


def load_id(ledger: Ledger, text: str) -> str:
    """The id of a task that a person named, folded.

    Raises:
        NotFound: there is no such task.
    """
    view = ledger.view()
    try:
        task = fold(text)
    except ValueError:
        task = ""
    if task and view.state(task) is not State.ABSENT:
        return task
    raise no_task(ledger, view, text)


def no_task(ledger: Ledger, view: View, text: str) -> NotFound:
    """The error for a name that no task has; the hint names the nearest."""
    near = None
    with contextlib.suppress(ValueError):
        near = nearest(fold(text), ledger.index.ids(view))
    return NotFound(
        f"there is no task {one_line(text, 80)}",
        hint=f"did you mean {near}?" if near else "swarm task list",
    )


def added(tasks: Sequence[Task]) -> Event:
    """The event that opens tasks whose ids are new; at least one."""
    ids = [task.id for task in tasks]
    says = f"{len(ids)} task{'s' if len(ids) != 1 else ''} added: {', '.join(ids[:20])}"
    edits: dict[str, bytes | None] = {
        records.task_path(task.id): records.encode_task(task) for task in tasks
    }
    return Event("added", says, edits, ids[0] if len(ids) == 1 else "")


def _edited(task: Task) -> Event:
    edits: dict[str, bytes | None] = {records.task_path(task.id): records.encode_task(task)}
    return Event("edited", f"{task.id} was edited.", edits, task.id)


class Changed(msgspec.Struct, frozen=True):
    """It was done."""

    task: str
    was: State


def cancelled(view: View, task: str, why: str, by: str) -> Event:
    """The event that ends a task which has not landed and is not landing now."""
    attempts = readable(view.attempts, task)
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
    return Event(
        "cancelled",
        one_line(why) or f"{task} was cancelled.",
        edits,
        task,
        token=done.token,
        trailers={"Swarm-By": by},
    )


def cancel(ledger: Ledger, task: str, why: str, by: str) -> Changed | Refusal:
    """End a task that has not landed; its work refs stay."""

    def decide(view: View) -> Draft[Changed | Refusal]:
        state = view.state(task)
        if state is State.CANCELLED:
            return refuse(Refusal(task, "it is cancelled already", f"swarm task reopen {task}"))
        if state in (State.ABSENT, State.LANDED):
            return refuse(Refusal(task, f"it is {state.value}", f"swarm show {task}"))
        if view.is_landing(task):
            return refuse(Refusal(task, "it is landing now", f"swarm show {task}"))
        event = cancelled(view, task, why, by)
        return Draft((event,), Changed(task, state))

    return ledger.append(decide)


def reopen(ledger: Ledger, task: str, by: str) -> Changed | Refusal:
    """Open a parked or cancelled task again: counts cleared, token kept."""

    def decide(view: View) -> Draft[Changed | Refusal]:
        state = view.state(task)
        if state not in (State.PARKED, State.CANCELLED):
            return refuse(Refusal(task, "it is not parked or cancelled", f"swarm show {task}"))
        event = reopened(view, task, readable(view.attempts, task), by)
        return Draft((event,), Changed(task, state))

    return ledger.append(decide)


def reopened(view: View, task: str, attempts: Attempts | None, by: str) -> Event:
    """The event that opens a parked or cancelled task again, with these attempts behind it."""
    edits: dict[str, bytes | None] = {}
    for path in (records.parked_path(task), records.done_path(task)):
        if view.blob_id(path) is not None:
            edits[path] = None
    if attempts is not None:
        cleared = msgspec.structs.replace(
            attempts,
            strikes=[],
            conflicts=0,
            expiries=0,
            retry_at=None,
            budget_from=attempts.token,
        )
        edits[records.attempts_path(task)] = records.encode(cleared)
    token = attempts.token if attempts else 0
    return Event("reopened", f"{by} opens it again.", edits, task, "", token, {"Swarm-By": by})


def approve(ledger: Ledger, task: str, by: str) -> Changed | Refusal:
    """Let a held change go to the gate; the approval stays, so that it is not held twice."""

    def decide(view: View) -> Draft[Changed | Refusal]:
        state = view.state(task)
        entry = view.entry(task) if state in (State.HELD, State.QUEUED) else None
        if entry is None or state is not State.HELD:
            return refuse(Refusal(task, "its change is not held", "swarm status"))
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
            return refuse(Refusal(task, "its change is not held", "swarm status"))
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
