"""Joining by hand: a person, or a program of theirs, claims, works in a slot, and submits.

Enters: a workspace and the folder where a command was typed. Leaves: one outcome per verb.
Guards: the same functions as in a loop; a slot is taken by flock only while a command runs and is
left alone while its claim lives; who lost the claim changes nothing.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from swarm import request, steer
from swarm.change import NoWork, Sealed, Unresolved, capture, save, seal
from swarm.claim import (
    AlreadyHolding,
    Claimed,
    Ending,
    Fenced,
    HeldBy,
    Mine,
    NothingClaimable,
    NotReady,
    OverBudget,
    Released,
    Who,
    acquire,
    check_fence,
    find_lock,
    release,
)
from swarm.errors import Exit, SwarmError, UsageError
from swarm.ids import fold, new_agent_id, new_nonce
from swarm.layout import Layout
from swarm.ledger import records
from swarm.ledger.records import Lock, Outcome
from swarm.ledger.view import View
from swarm.liveness import Sign, beat, sign_of
from swarm.opening import Ground, Setup, open_slot
from swarm.plumbing import checkout as user
from swarm.plumbing.hub import Hub
from swarm.reconcile import Sweep, rescue_leftovers
from swarm.slot import Occupant, Slot
from swarm.task import Refusal
from swarm.trailers import plain
from swarm.workspace import Workspace

PREFIX = "h"
PLAN_PREFIX = "p"  # of slots in which plans are made
_HAND_SLOT = re.compile(r"h[0-9]+")
_PLAN_SLOT = re.compile(r"p[0-9]+")


class ClaimHeld(SwarmError):
    """Another holds the claim; nothing was changed."""

    exit_code = Exit.HELD


class Stand(msgspec.Struct, frozen=True):
    """The slot in which a command was typed, or that holds a task's claim by hand."""

    slot: str
    occupant: Occupant | None  # None: opening never finished

    @property
    def is_hand(self) -> bool:
        """A slot of a claim by hand, and not of a loop."""
        return _HAND_SLOT.fullmatch(self.slot) is not None


def refuse_plan(stand: Stand) -> None:
    """
    Raises:
        UsageError: a plan is made in this slot, which is no attempt of a task.
    """
    if _PLAN_SLOT.fullmatch(stand.slot) is not None:
        raise UsageError(
            "a plan is made here: there is no task to ask about, to hand in or to give back",
            why="nobody answers before the task files are written",
            hint='write what a person must decide into a task file, with "role: person"',
        )


def find_stand(layout: Layout, hub: Hub, folder: Path) -> Stand | None:
    """The slot that a folder lies in, or None. Reads files only."""
    slots, place = layout.slots.resolve(), folder.resolve()
    if not place.is_relative_to(slots) or place == slots:
        return None
    name = place.relative_to(slots).parts[0]
    return Stand(name, _look(layout, hub, name).occupant())


def _look(layout: Layout, hub: Hub, name: str) -> Slot:
    """A slot to read records of, without its flock."""
    return Slot(layout.slots, name, hub, -1)


def find_place(work: Workspace, folder: Path, task: str | None) -> Stand:
    """Where a task's claim by hand lies: the slot of `folder`, or the one that holds `task`.

    Raises:
        UsageError: `folder` is in no slot and no task is named.
        ClaimHeld: a loop holds the task, or its worktree is not on this disk.
    """
    here = find_stand(work.layout, work.ledger.hub, folder)
    if here is not None and task is None:
        refuse_plan(here)
    if here is not None and (task is None or (here.occupant and here.occupant.task == task)):
        return here
    if task is None:
        raise UsageError(
            "this folder is no worktree of a claim",
            hint="cd into the one that `swarm claim` printed, or name the task",
        )
    lock = find_lock(work.ledger.view(), task)
    for name in _hand_slots(work.layout):
        occupant = _look(work.layout, work.ledger.hub, name).occupant()
        if occupant is None or occupant.task != task:
            continue
        if lock is None or lock.nonce == occupant.nonce:
            return Stand(name, occupant)
    if lock is not None and lock.adapter == "hand" and lock.boot_id == work.ledger.clock.boot_id():
        return Stand(lock.slot, None)  # claimed, but opening never finished
    if lock is not None:
        raise ClaimHeld(
            f"{task} is held by {lock.slot or lock.agent} ({lock.adapter}) on {lock.host}",
            why="only a claim by hand whose worktree is on this disk can be ended from here",
            hint=f"swarm stop {task}",
        )
    raise UsageError(f"nobody holds {task} by hand", hint=f"swarm claim {task}")


def _hand_slots(layout: Layout) -> list[str]:
    names = [path.stem for path in layout.slots.glob(f"{PREFIX}*.json")]
    return sorted((n for n in names if _HAND_SLOT.fullmatch(n)), key=lambda n: int(n[1:]))


@contextmanager
def _taken(work: Workspace, name: str) -> Iterator[Slot]:
    """The slot, its flock held for the length of one command.

    Raises:
        ClaimHeld: another command runs in it.
    """
    slot = Slot.take(work.layout.slots, name, work.ledger.hub)
    if slot is None:
        raise ClaimHeld(f"another command is at work in slot {name}", hint="try again")
    try:
        yield slot
    finally:
        slot.close()


# -- claim


class Joined(msgspec.Struct, frozen=True):
    """The claim is ours and its worktree stands."""

    claimed: Claimed
    slot: str
    worktree: Path
    task_file: Path  # the task and what the last attempt was told, as an agent gets it
    conflicted: tuple[str, ...]  # paths that opening left with markers or unmerged
    rescued: tuple[str, ...]  # refs that keep what lay in the slot before
    setup: str | None  # what went wrong with `[worktree] setup`, and where its log is


Joining = Joined | HeldBy | NothingClaimable | NotReady | AlreadyHolding


def join(
    work: Workspace,
    folder: Path,
    task: str | None,
    name: str | None,
    on_setup: Callable[[], None] = lambda: None,
) -> Joining:
    """Claim the named task, or the next ready one, and open a worktree for it.

    `name` is who claims; without one it is whoever stands in the slot already, else a new id.
    `on_setup` is called when `[worktree] setup` starts, which may take minutes.

    Raises:
        UsageError: typed in a loop's slot, or a name that folds to nothing.
        GitFault, HubUnusable: the worktree could not be opened; the claim was given back.

    Safe: any number of these at once; killed anywhere, the claim can be released by its task's
    name or expires, and the slot is opened again from scratch.
    """
    here = find_stand(work.layout, work.ledger.hub, folder)
    if here is not None and not here.is_hand:
        raise UsageError(
            f"{here.slot} works for a run, which claims for it when this attempt has ended",
            hint='swarm release --reason "why"',
        )
    agent = _agent(here, name)
    slot = _free_slot(work, agent)
    try:
        who = Who(runner=f"hand-{agent}", agent=agent, slot=slot.name)
        answer = acquire(work.ledger, who, work.hand_terms, task)
        if isinstance(answer, OverBudget):
            raise AssertionError("a claim by hand is of no run")
        if not isinstance(answer, Claimed):
            return answer
        beat(work.ledger.hub, who.runner, work.ledger.clock)
        try:
            return _open(work, slot, answer, on_setup)
        except SwarmError as error:
            ending = Ending("stopped", f"its worktree could not be opened: {error.what}")
            release(work.ledger, Mine.of(answer.lock), ending, work.bounds)
            raise
    finally:
        slot.close()


def _agent(here: Stand | None, name: str | None) -> str:
    if name is not None:
        try:
            return fold(name)
        except ValueError as error:
            raise UsageError(f"{name!r} cannot be a name", why=str(error)) from error
    if here is not None and here.occupant is not None:
        return here.occupant.agent
    return new_agent_id()


def _free_slot(work: Workspace, agent: str) -> Slot:
    """A slot whose flock is free and whose claim is over; one that this agent had comes first."""
    view = work.ledger.view()
    names = _hand_slots(work.layout)
    known = {name: _look(work.layout, work.ledger.hub, name).occupant() for name in names}
    own = [name for name, occupant in known.items() if occupant and occupant.agent == agent]
    number = 0
    while True:
        if own:
            name = own.pop(0)
        else:
            number += 1
            name = f"{PREFIX}{number}"
        slot = Slot.take(work.layout.slots, name, work.ledger.hub)
        if slot is None:
            continue
        if not _is_live(view, slot, agent):
            return slot
        slot.close()


def _is_live(view: View, slot: Slot, agent: str) -> bool:
    """Does its claim live? To who holds it the slot is free again once its change is sealed.

    To others it is not: they would change the files under the feet of who still stands in it.
    """
    occupant = slot.occupant()
    if occupant is None:
        return any(lock.slot == slot.name and lock.adapter == "hand" for lock in view.locks())
    lock = find_lock(view, occupant.task)
    if lock is None or lock.nonce != occupant.nonce:
        return False
    is_sealed = view.blob_id(records.queue_path(occupant.task)) is not None
    return occupant.agent != agent or not is_sealed


def _open(work: Workspace, slot: Slot, claimed: Claimed, on_setup: Callable[[], None]) -> Joined:
    lock = claimed.lock
    task = work.ledger.view().task(lock.task)
    assert task is not None
    rescued = rescue_leftovers(work.ledger, slot, work.rules)
    copies = tuple(user.ignored_matching(work.checkout, work.config.worktree.copy))
    excludes = user.user_excludes(work.checkout)
    ground = Ground(work.ledger.hub, work.config, work.checkout, copies, excludes)
    opening = open_slot(ground, slot, Occupant.of(lock), task.header.paths)
    folder = work.layout.attempt("", lock.task, lock.token)
    folder.mkdir(parents=True, exist_ok=True)
    last = claimed.attempts.last
    more = f"\n\nThe last attempt: {last.message}\n{last.detail}\n" if last else ""
    if (back := claimed.attempts.sent_back) is not None:
        more += f"\nSent back before that: {back.message}\n{back.detail}\n"
    for told in claimed.attempts.told:
        asked = f"The question: {told.question}\n" if told.question else ""
        more += f"\n{asked}{told.by} said: {told.text}\n"
    task_file = folder / "task.md"
    task_file.write_bytes(records.encode_task(task) + more.encode("utf-8", "replace"))
    log, how = folder / "setup.log", None
    with tempfile.TemporaryDirectory(prefix="swarm-", ignore_cleanup_errors=True) as tmpdir:
        mark = f"{lock.runner}.{lock.agent}.{new_nonce()[:12]}"
        setup = opening.begin_setup(log=log, mark=mark, tmpdir=Path(tmpdir))
        if setup is not None:
            how = _finish(setup, on_setup)
    return Joined(
        claimed,
        slot.name,
        slot.tree,
        task_file,
        opening.opened.conflicted,
        tuple(rescued),
        f"{how}, log {log}" if how else None,
    )


def _finish(setup: Setup, on_setup: Callable[[], None]) -> str | None:
    """Wait for its end. Interrupted, it is ended: the claim stands, and its worktree can be used
    without what setup makes.
    """
    try:
        on_setup()
        while (ended := setup.child.wait(60.0)) is None:
            pass
    except BaseException:
        setup.child.kill_now("interrupted")
        ended = setup.child.wait(60.0)
        if ended is not None:
            setup.finish(ended)
        raise
    return setup.finish(ended)


# -- submit, release, ask, renew


class Queued(msgspec.Struct, frozen=True):
    """The change of this claim waits for the gate already; what came later is kept, not in it."""

    task: str
    rescued: tuple[str, ...]


def submit(work: Workspace, stand: Stand) -> Sealed | NoWork | Unresolved | Fenced | Queued:
    """Seal what lies in the worktree as the claim's change. The claim stands unless sealed.

    Raises:
        UsageError: a loop's slot, which its runner seals, or one that never finished opening.
        GitFault, HubUnusable: nothing changed, the worktree still holds everything.

    Safe: twice is `Queued` the second time; what a fenced holder did is kept under a rescue ref.
    """
    if not stand.is_hand:
        raise UsageError(
            f"{stand.slot} works for a run, which seals what lies here when the agent ends",
            hint="commit and exit",
        )
    with _taken(work, stand.slot) as slot:
        occupant, mine = _whose(slot)
        view = work.ledger.view()
        fenced = check_fence(view, mine)
        if fenced is not None:
            rescue_leftovers(work.ledger, slot, work.rules)
            return fenced
        if view.blob_id(records.queue_path(mine.task)) is not None:
            return Queued(mine.task, tuple(rescue_leftovers(work.ledger, slot, work.rules)))
        captured = capture(slot, occupant, work.rules)
        return seal(work.ledger, slot, mine, captured, work.rules)


def _whose(slot: Slot) -> tuple[Occupant, Mine]:
    occupant = slot.occupant()
    if occupant is None:
        raise UsageError(f"the worktree of slot {slot.name} was never opened", hint="swarm claim")
    return occupant, _mine(occupant)


def _mine(occupant: Occupant) -> Mine:
    return Mine(occupant.task, occupant.token, occupant.nonce, occupant.agent)


def give_back(
    work: Workspace, stand: Stand, reason: str, by: str, *, give_up: bool, task: str | None = None
) -> Released | Fenced | steer.RunnerEnds | steer.Stopped | Refusal:
    """End a claim: by hand its work is saved and the next attempt goes on from it.

    `give_up`, and always in a loop's slot, whose agent says so itself: a strike, and the next
    attempt starts fresh. There its runner does that, as with a question; `RunnerEnds`: it will.
    `task` is needed when the claim never got its worktree.

    Raises:
        SwarmError: a loop's agent could not leave its word; nothing was given back.
        GitFault, HubUnusable: the claim still stands and the worktree still holds everything.
    """
    if not stand.is_hand:
        return steer.give_up(work.ledger, _sweep(work), _at_work(stand), reason)
    outcome: Outcome = "given_up" if give_up else "stopped"
    message = f"given up: {reason}" if give_up else f"released: {reason}"
    return _end_by_hand(work, stand, partial(Ending, outcome, message), by, task)


def _end_by_hand(
    work: Workspace, stand: Stand, ending: Callable[..., Ending], by: str, task: str | None
) -> Released | Fenced:
    with _taken(work, stand.slot) as slot:
        occupant = slot.occupant()
        if occupant is None:
            lock = find_lock(work.ledger.view(), task) if task else None
            if lock is None or lock.slot != slot.name:
                raise UsageError(f"no claim lives in slot {slot.name}", hint="swarm claims")
            return release(work.ledger, Mine.of(lock), ending(), work.bounds, by=by)
        mine = _mine(occupant)
        fenced = check_fence(work.ledger.view(), mine)
        if fenced is not None:
            rescue_leftovers(work.ledger, slot, work.rules)
            return fenced
        captured = capture(slot, occupant, work.rules)
        saved = save(work.ledger, slot, mine.task, mine.token, captured)
        ended = ending(paths=captured.unresolved, work=saved.work, moves=saved.moves)
        return release(work.ledger, mine, ended, work.bounds, by=by)


def ask(
    work: Workspace, stand: Stand, question: str, by: str
) -> Released | Fenced | steer.RunnerEnds | steer.Stopped | Refusal:
    """End a claim with a question: its work is saved, and the task waits for the answer.

    In a loop's slot, whose agent asks, its runner does that; `RunnerEnds`: it will.

    Raises:
        UsageError: nothing is claimed in this slot, or a plan is made in it.
        SwarmError: the question could not be left for the runner; nothing was asked.
        GitFault, HubUnusable: as `give_back`; in a loop's slot the question is not lost.
    """
    refuse_plan(stand)
    mine = _at_work(stand)
    if not stand.is_hand:
        return steer.ask(work.ledger, _sweep(work), mine, question)
    asked = request.Question(nonce=mine.nonce, by=mine.agent, text=plain(question))
    return _end_by_hand(work, stand, request.Wanted(question=asked).ending, by, mine.task)


def _at_work(stand: Stand) -> Mine:
    if stand.occupant is None:
        raise UsageError(f"no attempt is under way in slot {stand.slot}", hint="swarm status")
    return _mine(stand.occupant)


def _sweep(work: Workspace) -> Sweep:
    grace = work.config.limits.grace
    return Sweep(work.layout, work.rules, work.bounds, grace, work.checkout)


def renew(work: Workspace, stand: Stand) -> Fenced | None:
    """Replace the heartbeat of a claim by hand; None when the claim is still ours.

    Raises:
        UsageError: a loop's slot, whose runner does this, or one without a claim.

    Safe: a lost heartbeat costs nothing until the lease is over; the next command beats again.
    """
    occupant = stand.occupant
    if occupant is None or not stand.is_hand:
        raise UsageError(f"no claim by hand is at work in slot {stand.slot}", hint="swarm status")
    fenced = check_fence(work.ledger.view(), _mine(occupant))
    if fenced is None:
        beat(work.ledger.hub, f"hand-{occupant.agent}", work.ledger.clock)
    return fenced


# -- who else


def sign_of_claim(work: Workspace, lock: Lock) -> Sign:
    """The newest sign of life of a claim's runner."""
    layout, hub = work.layout, work.ledger.hub
    return sign_of(hub, lock, layout.runs, layout.cache, work.ledger.clock)


def is_gate_alive(work: Workspace) -> bool:
    """Is some runner the gate, and gave it a sign of life within its lease?"""
    gate = work.ledger.view().gate()
    if gate is None or gate.runner is None:
        return False
    layout, hub = work.layout, work.ledger.hub
    sign = sign_of(hub, gate, layout.runs, layout.cache, work.ledger.clock)
    return sign.age_seconds <= (gate.lease_seconds or 0.0)
