"""The exclusive right to a task: taking it, keeping it, giving it back, losing it.

Enters: a ledger, who asks. Leaves: one outcome value per verb.
Guards: one winner per task whatever the clocks, names or bytes; a holder that lost its claim is
fenced; a token never falls and never repeats.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Literal

import msgspec
from msgspec.structs import replace

from swarm import budget, faults
from swarm.ids import new_agent_id, new_nonce
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.index import Row
from swarm.ledger.outcome import SAYS, Bounds, conclude, next_start
from swarm.ledger.records import Attempts, Last, Lock, Outcome, Undecodable, Work
from swarm.ledger.spending import NO_CAPS, Caps, why_no_start
from swarm.ledger.store import Draft, Ledger, refuse
from swarm.ledger.view import State, View, readable
from swarm.plumbing.refs import Move
from swarm.scope import overlap
from swarm.similar import near
from swarm.trailers import one_line


class Who(msgspec.Struct, frozen=True):
    """Who asks for a claim."""

    runner: str  # whose beat keeps it: a run's runner, or hand-<agent>
    agent: str = msgspec.field(default_factory=new_agent_id)
    adapter: str = "hand"
    role: str = ""
    slot: str = ""
    run: str = ""
    host: str = msgspec.field(default_factory=socket.gethostname)
    pid: int = msgspec.field(default_factory=os.getpid)


class Terms(msgspec.Struct, frozen=True):
    """The rules of `[claims]`."""

    lease: timedelta = timedelta(minutes=15)
    overlap: Literal["skip", "allow"] = "skip"
    duplicates: Literal["warn", "refuse", "off"] = "warn"
    run: Caps = NO_CAPS  # what a run may use
    attempt_usd: float | None = None  # what is reserved of it for one attempt


class Claimed(msgspec.Struct, frozen=True):
    """It is ours. `lock_id` is the lock's blob: the byte-for-byte fence."""

    lock: Lock
    lock_id: str
    attempts: Attempts
    near: tuple[str, ...] = ()  # live claims that mean nearly the same


class HeldBy(msgspec.Struct, frozen=True):
    """Another holds it."""

    lock: Lock
    state: State


class NothingClaimable(msgspec.Struct, frozen=True):
    """No task is ready for this agent; why, counted."""

    kept_back: tuple[str, ...]  # ready tasks that a live claim stands in the way of
    overlaps: tuple[str, ...]  # tasks of live claims whose paths overlap theirs
    other_role: int
    twins: tuple[str, ...] = ()  # tasks of live claims that mean nearly the same, when refused


class NotReady(msgspec.Struct, frozen=True):
    """The named task cannot be claimed now."""

    task: str
    state: State
    why: str


class OverBudget(msgspec.Struct, frozen=True):
    """The run may not start one attempt more."""

    why: str


class AlreadyHolding(msgspec.Struct, frozen=True):
    """This agent has a claim; one at a time."""

    task: str


Answer = Claimed | HeldBy | NothingClaimable | NotReady | OverBudget | AlreadyHolding


class Mine(msgspec.Struct, frozen=True):
    """What a holder knows of its own claim, and all that it needs to prove it."""

    task: str
    token: int
    nonce: str
    agent: str

    @classmethod
    def of(cls, lock: Lock) -> Mine:
        return cls(lock.task, lock.token, lock.nonce, lock.agent)


class Fenced(msgspec.Struct, frozen=True):
    """The claim is no longer ours: stop, and change nothing outside the slot."""

    task: str
    token: int
    now: str  # who has it, or what became of it


def acquire(
    ledger: Ledger,
    who: Who,
    terms: Terms,
    task: str | None = None,
    *,
    place: Callable[[Attempts | None], str] | None = None,
) -> Answer:
    """Claim the named task, or the first ready one in (priority, age, id) order.

    The pick is made again on each new tip, so that racers never pick what is gone. `place` names
    the slot by the picked task's earlier attempts; without it the slot is who's.

    Raises:
        HubUnusable: the hub stayed busy; nothing is claimed.

    Safe: against any number of processes; killed anywhere, the claim is either there with this
    runner's name or not at all.
    """
    nonce = new_nonce()

    def decide(view: View) -> Draft[Answer]:
        with ledger.index.at(view):
            live = ledger.index.live(view)
            for row in live:
                if row.agent == who.agent:
                    return refuse(AlreadyHolding(row.id))
            found = _pick(ledger, view, who, terms, live, task)
        if not isinstance(found, Row):
            return refuse(found)
        twins = _twins(found, live) if terms.duplicates == "warn" else []
        run = view.run(who.run) if terms.run.is_set and who.run else None
        if run is not None:
            why = why_no_start(run, terms.run, terms.attempt_usd, view.now)
            if why is not None:
                return refuse(OverBudget(why))
        here = who
        if place is not None:
            here = replace(who, slot=place(view.attempts(found.id)))
        event, lock, after = claimed(ledger, view, here, terms.lease, found.id, nonce)
        if run is not None:
            held = budget.reserve(run, found.id, lock.token, terms.attempt_usd)
            edits = {**event.edits, records.run_path(run.run): records.encode(held)}
            event = replace(event, edits=edits)
        faults.reach("claim.before_transact")
        return Draft((event,), Claimed(lock, "", after, tuple(twins)))

    answer = ledger.append(decide)
    if not isinstance(answer, Claimed):
        return answer
    faults.reach("claim.after_transact")
    view = ledger.view()
    lock = find_lock(view, answer.lock.task)
    if lock is None or lock.nonce != nonce:
        state = view.state(answer.lock.task)
        if lock is not None:
            return HeldBy(lock, state)
        return NotReady(answer.lock.task, state, f"taken away at once: it is {state.value}")
    faults.reach("claim.after_read_back")
    lock_id = view.blob_id(records.lock_path(answer.lock.task)) or ""
    return replace(answer, lock=lock, lock_id=lock_id)


def _pick(
    ledger: Ledger,
    view: View,
    who: Who,
    terms: Terms,
    live: list[Row],
    task: str | None,
) -> Row | Answer:
    if task is not None:
        return _named(ledger, view, who, terms, live, task)
    kept_back: list[str] = []
    overlaps: set[str] = set()
    same: set[str] = set()
    other_role = 0
    busy = [row for row in live if row.paths] if terms.overlap == "skip" else []
    judged: dict[tuple[str, ...], list[str]] = {}

    def wanted(row: Row) -> bool:
        nonlocal other_role
        if row.role and row.role != who.role:
            other_role += 1
            return False
        if row.paths and busy:
            if row.paths not in judged:
                judged[row.paths] = [b.id for b in busy if overlap(row.paths, b.paths)]
            if judged[row.paths]:
                kept_back.append(row.id)
                overlaps.update(judged[row.paths])
                return False
        if terms.duplicates == "refuse" and (twins := _twins(row, live)):
            kept_back.append(row.id)
            same.update(twins)
            return False
        return _is_truly_ready(view, row)

    row = ledger.index.first_ready(view, wanted)
    if row is None:
        return NothingClaimable(
            tuple(kept_back), tuple(sorted(overlaps)), other_role, tuple(sorted(same))
        )
    return row


def find_claimable(ledger: Ledger, view: View, role: str, terms: Terms) -> str | None:
    """The task that a loop with this role would claim on this view; nothing is written."""
    live = ledger.index.live(view)
    found = _pick(ledger, view, Who(runner="", role=role), terms, live, None)
    return found.id if isinstance(found, Row) else None


def _is_truly_ready(view: View, row: Row) -> bool:
    """The cache only proposes; the ledger's own files decide."""
    return view.state(row.id) is State.OPEN and all(view.is_landed(n) for n in row.needs)


def _named(
    ledger: Ledger, view: View, who: Who, terms: Terms, live: list[Row], task: str
) -> Row | Answer:
    state = view.state(task)
    row = ledger.index.find(view, task)
    if state in (State.CLAIMED, State.QUEUED, State.HELD):
        lock = view.lock(task)
        assert lock is not None
        return HeldBy(lock, state)
    if state is not State.OPEN or row is None:
        return NotReady(task, state, f"it is {state.value}")
    if row.state is not State.OPEN:  # a record beside the claim's own files does not decode
        return NotReady(task, row.state, row.why)
    missing = [n for n in row.needs if not view.is_landed(n)]
    if missing:
        return NotReady(task, state, f"needs {', '.join(missing)}")
    if row.role and who.role != row.role and who.adapter != "hand":
        return NotReady(task, state, f"only for role {row.role}")
    waits = row.retry_at is not None and who.adapter != "hand"  # a person need not wait
    if waits and row.retry_at is not None and row.retry_at > view.now.timestamp():
        return NotReady(task, state, f"back-off for {row.retry_at - view.now.timestamp():.0f} s")
    if terms.overlap == "skip" and row.paths:
        overlaps = [b.id for b in live if b.paths and overlap(row.paths, b.paths)]
        if overlaps:
            return NotReady(task, state, f"its paths overlap {', '.join(overlaps)}")
    if terms.duplicates == "refuse" and (twins := _twins(row, live)):
        return NotReady(task, state, f"nearly the same as {', '.join(twins)}")
    return row


def _twins(row: Row, live: list[Row]) -> list[str]:
    return [b.id for b in live if b.id != row.id and near(row.id, b.id)]


def claimed(
    ledger: Ledger, view: View, who: Who, lease: timedelta, task: str, nonce: str
) -> tuple[Event, Lock, Attempts]:
    """The event that claims a task which can be claimed, and the records that it writes."""
    before = view.attempts(task)
    start, merge = next_start(before, view.target)
    token = (before.token if before else 0) + 1
    now = view.now
    lock = Lock(
        task=task,
        token=token,
        nonce=nonce,
        agent=who.agent,
        adapter=who.adapter,
        role=who.role,
        slot=who.slot,
        run=who.run,
        runner=who.runner,
        host=who.host,
        pid=who.pid,
        boot_id=ledger.clock.boot_id(),
        claimed_at=now,
        claimed_monotonic_seconds=ledger.clock.monotonic(),
        lease_seconds=lease.total_seconds(),
        base=before.base if before else view.target,
        start=start,
        merge=merge,
    )
    if before is None:
        after = Attempts(task=task, token=token, base=view.target, since=now)
    else:
        after = replace(before, token=token, extensions=0, retry_at=None)
    where = "from the target" if start == view.target else f"from {start[:7]}"
    if merge is not None:
        where += f" with {view.target_branch} {merge[:7]} merged in"
    event = Event(
        kind="claimed",
        task=task,
        agent=who.agent,
        token=token,
        says=f"{who.slot or who.agent} on {who.host} takes attempt {token}, {where}.",
        edits={
            records.lock_path(task): records.encode(lock),
            records.attempts_path(task): records.encode(after),
        },
        trailers={
            "Swarm-Nonce": nonce,
            "Swarm-Slot": who.slot,
            "Swarm-Adapter": who.adapter,
            "Swarm-Start": start,
            **({"Swarm-Merge": merge} if merge else {}),
            "Swarm-Target": view.target,
        },
    )
    return event, lock, after


class Ending(msgspec.Struct, frozen=True):
    """How an attempt ended, and the work that was saved of it."""

    outcome: Outcome
    message: str
    detail: str = ""
    exit_code: int | None = None
    paths: tuple[str, ...] = ()  # unresolved or otherwise named
    work: Work | None = None  # None: the work recorded before stays the newest
    moves: tuple[Move, ...] = ()  # the work ref, in the same transaction


class Released(msgspec.Struct, frozen=True):
    """The task is open again, or parked when `parked` says why."""

    task: str
    attempts: Attempts
    parked: records.Parked | None


def release(
    ledger: Ledger,
    mine: Mine,
    ending: Ending,
    bounds: Bounds,
    *,
    by: str = "",
    park: bool = False,
) -> Released | Fenced:
    """Give a claim back and say why; parks the task when a bound is met, in the same move.

    The claim is recognised by its nonce, never by a host or display name. `park`: it waits for a
    person whatever the bounds say, or the next idle loop would take it up again.

    Safe: twice is `Fenced` the second time; killed anywhere, the claim is given back or expires.
    """

    def decide(view: View) -> Draft[Released | Fenced]:
        fenced = check_fence(view, mine)
        if fenced is not None:
            return refuse(fenced)
        if view.blob_id(records.queue_path(mine.task)) is not None:
            return refuse(Fenced(mine.task, mine.token, "its change is queued"))
        events, attempts, parked = conclude_events(view, "released", mine, ending, bounds, by=by)
        if park and parked is None:
            parked = records.Parked(
                task=mine.task,
                reason="not_retryable",
                message=one_line(ending.message),
                work=attempts.work,
                at=view.now,
            )
            events = (*events, _parked_event(mine, parked))
        faults.reach("release.before_transact")
        return Draft(events, Released(mine.task, attempts, parked), ending.moves)

    answer = ledger.append(decide)
    faults.reach("release.after_transact")
    return answer


def conclude_events(
    view: View,
    kind: str,
    mine: Mine,
    ending: Ending,
    bounds: Bounds,
    *,
    by: str = "",
    last: Last | None = None,
    gone: tuple[str, ...] = (),
    runner_gone: bool = False,
    trailers: dict[str, str] | None = None,
) -> tuple[tuple[Event, ...], Attempts, records.Parked | None]:
    """The events that end a claim: `kind`, and `parked` when a bound is met.

    `gone` names further ledger files that the event removes (a queue entry).
    """
    before = view.attempts(mine.task)
    if before is None:
        raise Undecodable(f"{mine.task} is claimed and has no attempts record")
    lock = find_lock(view, mine.task)
    with contextlib.suppress(Undecodable):  # a damaged text is no reason to keep the claim
        task = view.task(mine.task)
        if task is not None and task.header.strikes is not None:
            bounds = replace(bounds, strikes=task.header.strikes)
            if task.header.joins_history:  # each may be of another commit of upstream's
                bounds = replace(bounds, conflicts=task.header.strikes)
    if ending.work is not None:
        before = replace(before, work=ending.work)
    known = last or Last(
        token=mine.token,
        outcome=ending.outcome,
        strike=False,
        message=one_line(ending.message),
        detail=ending.detail,
        exit_code=ending.exit_code,
        paths=list(ending.paths),
        ended_at=view.now,
    )
    strikes_before = len(before.strikes)
    after, parked = conclude(before, known, bounds, view.now, runner_gone=runner_gone)
    is_strike = len(after.strikes) > strikes_before
    after = replace(after, last=replace(known, strike=is_strike))
    edits: dict[str, bytes | None] = {
        records.lock_path(mine.task): None,
        records.attempts_path(mine.task): records.encode(after),
        **dict.fromkeys(gone),
    }
    facts = {
        "Swarm-Outcome": known.outcome,
        "Swarm-Slot": lock.slot if lock else "",
        "Swarm-Strike": f"{len(after.strikes)} of {bounds.strikes}" if is_strike else "no",
        **({"Swarm-By": by} if by else {}),
        **({"Swarm-Work": ending.work.head} if ending.work else {}),
        **(trailers or {}),
    }
    says = known.message or SAYS[known.outcome]
    ended = Event(kind, says, edits, mine.task, mine.agent, mine.token, facts)
    if parked is None:
        return (ended,), after, None
    return (ended, _parked_event(mine, parked)), after, parked


def _parked_event(mine: Mine, parked: records.Parked) -> Event:
    return Event(
        "parked",
        parked.message,
        {records.parked_path(mine.task): records.encode(parked)},
        mine.task,
        mine.agent,
        mine.token,
        {"Swarm-Reason": parked.reason},
    )


def check_fence(view: View, mine: Mine) -> Fenced | None:
    """None while the claim is ours; the lock's nonce decides.

    With records that do not decode nothing can be written for the task: fenced as well.
    """
    lock = find_lock(view, mine.task)
    if lock is not None and lock.nonce == mine.nonce and lock.token == mine.token:
        why = view.why_damaged(mine.task)
        return Fenced(mine.task, mine.token, f"damaged: {why}") if why else None
    if lock is not None:
        return Fenced(mine.task, mine.token, f"claimed again as attempt {lock.token}")
    return Fenced(mine.task, mine.token, f"it is {view.state(mine.task).value}")


def find_claim(ledger: Ledger, task: str) -> Claimed | None:
    """A live claim as `acquire` answered it; None when there is none or its change is sealed."""
    view = ledger.view()
    lock, attempts = find_lock(view, task), view.attempts(task)
    lock_id = view.blob_id(records.lock_path(task))
    if lock is None or lock_id is None or attempts is None:
        return None
    if view.blob_id(records.queue_path(task)) is not None:
        return None
    return Claimed(lock, lock_id, attempts)


def find_lock(view: View, task: str) -> Lock | None:
    """The claim's lock, or None when there is none or it does not decode."""
    return readable(view.lock, task)


class Expired(msgspec.Struct, frozen=True):
    """The claim was taken away; the task is open, or parked."""

    task: str
    token: int
    why: str
    parked: records.Parked | None


class Extended(msgspec.Struct, frozen=True):
    """Unmerged paths: one lease more, at most three times."""

    task: str
    extensions: int


class NotExpired(msgspec.Struct, frozen=True):
    """It changed since it was judged, its change is sealed, or its records are damaged."""

    task: str
    why: str
    is_damaged: bool = False


MAX_EXTENSIONS = 3


def expire(
    ledger: Ledger,
    lock: Lock,
    lock_id: str,
    why: str,
    bounds: Bounds,
    *,
    runner_gone: bool,
    work: Work | None = None,
    moves: tuple[Move, ...] = (),
    unmerged: tuple[str, ...] = (),
) -> Expired | Extended | NotExpired:
    """Take a claim away whose holder gave no sign of life for longer than its lease.

    `lock_id` is the blob that was judged: any other lock now means it lives again. `work` is what
    was saved of it, `unmerged` the conflicted paths found in its worktree.
    """
    mine = Mine.of(lock)

    def decide(view: View) -> Draft[Expired | Extended | NotExpired]:
        if view.blob_id(records.lock_path(lock.task)) != lock_id:
            return refuse(NotExpired(lock.task, "the claim changed"))
        if view.blob_id(records.queue_path(lock.task)) is not None:
            return refuse(NotExpired(lock.task, "its change is sealed and waits for the gate"))
        try:
            before = view.attempts(lock.task)
        except Undecodable as error:
            return refuse(NotExpired(lock.task, str(error), is_damaged=True))
        if before is None:
            return refuse(NotExpired(lock.task, "no attempts record", is_damaged=True))
        if unmerged and not runner_gone and before.extensions < MAX_EXTENSIONS:
            after = replace(before, extensions=before.extensions + 1)
            event = Event(
                "extended",
                f"Unmerged paths in its worktree; extension {after.extensions} of 3.",
                {records.attempts_path(lock.task): records.encode(after)},
                lock.task,
                lock.agent,
                lock.token,
                {"Swarm-Extensions": str(after.extensions), "Swarm-Rule": why},
            )
            return Draft((event,), Extended(lock.task, after.extensions))
        ending = Ending("expired", why, work=work, paths=unmerged)
        events, _, parked = conclude_events(
            view, "expired", mine, ending, bounds, runner_gone=runner_gone
        )
        return Draft(events, Expired(lock.task, lock.token, why, parked), moves)

    return ledger.append(decide)
