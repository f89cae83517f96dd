"""Healing: settle a landing that a crash cut, end what a dead runner left, expire its claims.

Enters: a ledger and what can be seen of the past. Leaves: the invariants restored.
Guards: idempotent; nothing is removed before its work is saved; nobody alive is touched.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import msgspec
from msgspec.structs import replace

from swarm import adapter as adapters
from swarm import budget, claim, process, request
from swarm import transcript as transcripts
from swarm.change import Rules, Saved, capture, rescue, save
from swarm.errors import GitFault, SwarmError
from swarm.land import GateClaim, GateLost, is_gate, landed_events
from swarm.layout import Layout
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.outcome import Bounds
from swarm.ledger.records import Charge, Lock, Parked, Work
from swarm.ledger.store import Draft, Ledger, refuse
from swarm.ledger.view import View, readable
from swarm.liveness import Holder, Sign, sign_of, signs
from swarm.plumbing.hub import branch_ref, work_ref
from swarm.plumbing.refs import Move
from swarm.slot import Slot


class Settled(msgspec.Struct, frozen=True):
    """What became of the landing in flight."""

    kind: str  # "landed" or "void"
    tasks: tuple[str, ...]


def settle(ledger: Ledger, gate: GateClaim) -> Settled | GateLost | None:
    """End the landing in flight, if any: landed when the target has its commit, else void.

    The recorded landing commit decides, never a head: a revert by a person or a squash would make
    that wrong both ways.
    """

    def decide(view: View) -> Draft[Settled | GateLost | None]:
        if not is_gate(view, gate):
            return refuse(GateLost())
        landing = view.landing()
        if landing is None:
            return refuse(None)
        tasks = tuple(change.task for change in landing.changes)
        if ledger.hub.contains(view.target, landing.new):
            return Draft(landed_events(view, landing), Settled("landed", tasks))
        event = Event(
            "void",
            f"{landing.target} does not have {landing.new[:7]}; built again.",
            {records.LANDING_PATH: None},
            tasks[0] if tasks else "",
            trailers={"Swarm-Landed": landing.new, "Swarm-Target": view.target},
        )
        return Draft((event,), Settled("void", tasks))

    return ledger.append(decide)


def keep_last_landing(ledger: Ledger) -> str | None:
    """The last landed commits must be in the target: redo the move, or say that they are lost.

    Returns what was done, or None when all is well. Only the move that we ourselves made is redone,
    and only where a crash may have undone it: one landing is missing, the target is that commit's
    first parent, and nobody moved it away from that commit. An event tells it.
    """
    view = ledger.view()
    missing = _missing_landings(ledger, view)
    if not missing:
        return None
    if len(missing) == 1 and _never_arrived(ledger, view, missing[0]):
        said = _move_again(ledger, missing[0])
        if said is not None:
            return said
    for lost in missing:
        _say_lost(ledger, lost)
    return f"{view.target_branch} no longer has {', '.join(lost.landed[:7] for lost in missing)}"


class _Missing(msgspec.Struct, frozen=True):
    """A landing that the ledger records and the target lacks."""

    task: str
    token: int
    landed: str
    previous: str


def _missing_landings(ledger: Ledger, view: View) -> list[_Missing]:
    """Newest first, down to the first one that the target has."""
    found: list[_Missing] = []
    for logged in ledger.iter_log(view.tip):
        if logged.kind != "landed":
            continue
        try:
            done = view.done(logged.task)
        except records.Undecodable:
            continue
        if done is None or done.landed is None or done.previous is None:
            continue
        if _has(ledger, view, done.landed):
            break
        found.append(_Missing(done.task, done.token, done.landed, done.previous))
    return found


def _has(ledger: Ledger, view: View, landed: str) -> bool:
    """Has the target this commit?"""
    return ledger.hub.reader.has(landed) and ledger.hub.contains(view.target, landed)


def _never_arrived(ledger: Ledger, view: View, last: _Missing) -> bool:
    """May a crash have undone our own move? A deliberate one away from it is in the reflog."""
    if view.target != last.previous or not ledger.hub.reader.has(last.landed):
        return False
    return not ledger.hub.was_left(branch_ref(view.target_branch), last.landed)


def _move_again(ledger: Ledger, last: _Missing) -> str | None:
    """The sentence that tells it; None: the target or the task moved meanwhile."""

    def decide(view: View) -> Draft[str | None]:
        done = view.done(last.task)
        if view.target != last.previous or done is None or done.landed != last.landed:
            return refuse(None)
        name = view.target_branch
        said = f"{name} was back at {last.previous[:7]}; moved to {last.landed[:7]} again"
        facts = {
            "Swarm-Landed": last.landed,
            "Swarm-Target": last.previous,
            "Swarm-Reason": "the target's last move was undone",
        }
        event = Event("rescued", said, {}, last.task, token=last.token, trailers=facts)
        return Draft((event,), said, (Move(branch_ref(name), last.previous, last.landed),))

    return ledger.append(decide)


def _say_lost(ledger: Ledger, lost: _Missing) -> None:
    def decide(view: View) -> Draft[None]:
        done = view.done(lost.task)
        if done is None or done.landed != lost.landed or _has(ledger, view, lost.landed):
            return refuse(None)
        message = f"{view.target_branch} no longer has its landing commit {lost.landed}"
        parked = Parked(
            task=lost.task,
            reason="lost",
            message=message,
            work=Work(ref=work_ref(lost.task, lost.token), head=done.head) if done.head else None,
            at=view.now,
        )
        event = Event(
            "lost",
            message,
            {
                records.done_path(lost.task): None,
                records.parked_path(lost.task): records.encode(parked),
            },
            lost.task,
            token=lost.token,
            trailers={"Swarm-Landed": lost.landed, "Swarm-Target": view.target},
        )
        return Draft((event,), None)

    ledger.append(decide)


class Report(msgspec.Struct):
    """What a sweep did; each list in the order done."""

    expired: list[claim.Expired] = []
    heeded: list[claim.Released] = []  # as was asked of their attempts
    extended: list[claim.Extended] = []
    rescued: list[str] = []  # refs
    ended: int = 0  # processes of dead runners
    kept: list[str] = []  # slots that could not be saved, and why


class Sweep(msgspec.Struct, frozen=True):
    """What a sweep needs to know of the configuration."""

    layout: Layout
    rules: Rules
    bounds: Bounds
    grace: timedelta = timedelta(seconds=5)
    checkout: Path | None = None  # whose own adapters an attempt may have been of


def sweep(ledger: Ledger, setting: Sweep, *, own: Iterable[Slot] = ()) -> Report:
    """End, save and expire what runners left that are dead or silent beyond their lease.

    In this order: their agents' processes, their slots' work, their claims. `own`: slots that this
    process holds itself.

    Safe: twice does nothing the second time; several processes may sweep at once.
    """
    report = Report()
    held = {slot.name: slot for slot in own}
    for lock, sign in find_dead(ledger, setting.layout):
        _expire_one(ledger, setting, lock, sign, held, report)
    return report


def find_dead(ledger: Ledger, layout: Layout) -> list[tuple[Lock, Sign]]:
    """Claims that gave no sign of life for longer than their lease, by task; sealed ones never."""
    view = ledger.view()
    locks = [lock for lock in view.locks() if view.blob_id(records.queue_path(lock.task)) is None]
    if not locks:
        return []
    holders = [Holder.of(lock) for lock in locks]
    found = signs(ledger.hub, holders, layout.runs, layout.cache, ledger.clock)
    dead = [(lock, found[lock.nonce]) for lock in locks]
    return [(lock, sign) for lock, sign in dead if sign.age_seconds > _lease_seconds(view, lock)]


def _lease_seconds(view: View, lock: Lock) -> float:
    """How long a claim holds without a sign of life, its extensions included."""
    try:
        attempts = view.attempts(lock.task)
    except records.Undecodable:
        attempts = None
    extensions = attempts.extensions if attempts else 0
    return lock.lease_seconds * (1 + extensions)


def _expire_one(
    ledger: Ledger,
    setting: Sweep,
    lock: Lock,
    sign: Sign,
    held: dict[str, Slot],
    report: Report,
) -> None:
    view = ledger.view()
    lock_id = view.blob_id(records.lock_path(lock.task))
    if lock_id is None or claim.find_lock(view, lock.task) != lock:
        return
    if sign.is_gone:
        marked = process.find_marked(f"{lock.runner}.")
        if marked:
            ended = process.end_marked(marked, setting.grace)
            report.ended += ended.ended
    if sign.is_gone:  # else its own runner books it when it wakes, also when it was fenced
        charge_dead(ledger, setting, lock)
    saved, unmerged = save_slot(ledger, setting, lock, held, report)
    if (heeded := _heed(ledger, setting, lock, saved, unmerged)) is not None:
        report.heeded.append(heeded)
        return
    answer = claim.expire(
        ledger,
        lock,
        lock_id,
        sign.says(),
        setting.bounds,
        runner_gone=sign.is_gone,
        work=saved.work if saved else None,
        moves=saved.moves if saved else (),
        unmerged=unmerged,
    )
    if isinstance(answer, claim.NotExpired):
        if answer.is_damaged:
            report.kept.append(f"{lock.task}: {answer.why}")
    elif isinstance(answer, claim.Expired):
        report.expired.append(answer)
    elif isinstance(answer, claim.Extended):
        report.extended.append(answer)


def charge_dead(ledger: Ledger, setting: Sweep, lock: Lock) -> None:
    """Book what a dead attempt's agent said that it used; what was booked before stays.

    Its transcript lies on this disk, or nobody knows and nothing is booked.
    """
    folder = setting.layout.attempt(lock.run, lock.task, lock.token)
    if not lock.run or not (folder / transcripts.TRANSCRIPT).exists():
        return
    try:
        adapter = adapters.load(lock.adapter, setting.checkout)
    except SwarmError:  # its file is gone or broken since
        return
    transcript = transcripts.of_attempt(adapter, folder)
    transcript.finish()
    attempts = readable(ledger.view().attempts, lock.task)
    past = attempts.charges if attempts is not None else []
    resumed = next((one for one in reversed(past) if one.session == transcript.session), None)
    before = resumed.said if resumed is not None and transcript.session is not None else {}
    ended = process.find_record(folder / "outcome.json")
    is_whole = ended is not None and not ended.output_truncated
    made = Charge(
        token=lock.token,
        run=lock.run,
        adapter=lock.adapter,
        slot=lock.slot,
        seconds=round(ended.seconds, 1) if ended is not None else 0.0,
        usage=transcript.usage(before, is_whole=is_whole),
        session=transcript.session,
        said={**before, **transcript.figures},
        at=ledger.clock.now(),
    )
    budget.charge(ledger, lock.task, lock.agent, made)


def _heed(
    ledger: Ledger, setting: Sweep, lock: Lock, saved: Saved | None, unmerged: tuple[str, ...]
) -> claim.Released | None:
    """End the claim as was asked before its runner was gone; None: nothing was, or it is too late.

    A question that only a file knows would be lost with an expiry.
    """
    wanted = request.find_wanted(setting.layout, lock)
    if wanted is None:
        return None
    answer = end_as_wanted(ledger, setting, lock, wanted, saved, unmerged)
    return None if isinstance(answer, claim.Fenced) else answer


def end_as_wanted(
    ledger: Ledger,
    setting: Sweep,
    lock: Lock,
    wanted: request.Wanted,
    saved: Saved | None,
    unmerged: tuple[str, ...],
) -> claim.Released | claim.Fenced:
    """End a claim as a person or its agent wants it, its work saved before; nothing is wanted of
    it after that, also when it had ended already.

    Raises:
        GitFault, HubUnusable: the claim stands, and what is wanted of it too.
    """
    ending = wanted.ending(
        paths=unmerged,
        work=saved.work if saved else None,
        moves=saved.moves if saved else (),
    )
    mine = claim.Mine.of(lock)
    park = wanted.outcome != "given_up"  # which the next attempt may do better
    answer = claim.release(ledger, mine, ending, setting.bounds, by=wanted.by, park=park)
    request.drop(setting.layout, lock)
    return answer


def save_slot(
    ledger: Ledger, setting: Sweep, lock: Lock, held: dict[str, Slot], report: Report
) -> tuple[Saved | None, tuple[str, ...]]:
    """What lies in the claim's slot, saved; nothing when another process has the slot."""
    if not lock.slot:
        return None, ()
    slot = held.get(lock.slot)
    taken = None if slot else Slot.take(setting.layout.slots, lock.slot, ledger.hub)
    slot = slot or taken
    if slot is None:
        return None, ()
    try:
        occupant = slot.occupant()
        if occupant is None or occupant.nonce != lock.nonce:
            return None, ()
        captured = capture(slot, occupant, setting.rules)
        saved = save(ledger, slot, lock.task, lock.token, captured)
        report.rescued += saved.rescued
        return saved, captured.unresolved
    except GitFault as fault:
        report.kept.append(f"{lock.slot}: {fault.what}")
        return None, ()
    finally:
        if taken is not None:
            taken.close()


def rescue_leftovers(ledger: Ledger, slot: Slot, rules: Rules) -> list[str]:
    """Before a slot is opened again: keep what is dirty or ahead in it, under its own nonce's task.

    Returns the rescue refs written.

    Raises:
        GitFault, HubUnusable: it could not be kept: do not open the slot.
    """
    occupant = slot.occupant()
    if slot.is_saved or occupant is None:
        return []
    captured = capture(slot, occupant, rules)
    refs: list[str] = []
    for oid in (captured.rescue, captured.elsewhere, captured.head):
        if oid is None or oid in (occupant.start, occupant.head):
            continue
        if _is_kept(ledger, occupant.task, oid):
            continue
        refs.append(rescue(ledger, occupant.task, occupant.token, oid, "left in a slot"))
    slot.is_saved = True
    return refs


def _is_kept(ledger: Ledger, task: str, oid: str) -> bool:
    """Is the commit reachable from the target, or from a work or rescue ref of its task?"""
    hub = ledger.hub
    refs = hub.refs_below(f"refs/swarm/work/{task}") | hub.refs_below(f"refs/swarm/rescue/{task}")
    tips = [hub.tip(ledger.branch), *refs.values()]
    return any(hub.contains(tip, oid) for tip in tips)


def close_runs(ledger: Ledger, layout: Layout) -> list[str]:
    """End what dead runners left running and say `run-ended` for them; returns the runs' names."""
    view = ledger.view()
    closed: list[str] = []
    for run in view.runs():
        if run.state == "ended":
            continue
        sign = sign_of(ledger.hub, run, layout.runs, layout.cache, ledger.clock)
        if not sign.is_gone:
            continue
        left = process.find_marked(f"{run.runner}.")  # of its checks too, which hold no claim
        if left:
            process.end_marked(left, timedelta(seconds=1))

        def decide(view: View, name: str = run.run) -> Draft[None]:
            now = view.run(name)
            if now is None or now.state == "ended":
                return refuse(None)
            ended = replace(now, state="ended", ended_at=view.now, why="its runner was killed")
            event = Event(
                "run-ended",
                f"{name}: its runner was killed.",
                {records.run_path(name): records.encode(ended)},
                trailers={"Swarm-Run": name},
            )
            return Draft((event,), None)

        ledger.append(decide)
        closed.append(run.run)
    return closed
