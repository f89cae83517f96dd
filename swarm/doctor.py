"""What is wrong with a hub and all that lies beside it, and what can be mended with proof.

Enters: a workspace. Leaves: findings, and what became of each.
Guards: mending never deletes work and never touches what lives: each repair proves anew that its
finding still stands, and the invariants are checked before and after.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from swarm import invariants, process
from swarm.claim import find_lock
from swarm.errors import GitFault, HubUnusable, SwarmError
from swarm.hand import is_gate_alive
from swarm.ids import new_nonce
from swarm.invariants import Policy, Violation
from swarm.land import GateHeld, leave_gate, take_gate
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.records import Landing, Paused, Undecodable, free_gate
from swarm.ledger.store import Draft, Ledger, Logged, refuse
from swarm.ledger.view import View
from swarm.liveness import alive_path, is_flock_free
from swarm.plumbing import checkout as user
from swarm.plumbing.hub import LEDGER, RESCUE, STALE_LOCK_SECONDS, WORK, branch_ref
from swarm.process import Marked
from swarm.reconcile import (
    Sweep,
    close_runs,
    find_dead,
    keep_last_landing,
    rescue_leftovers,
    settle,
    sweep,
)
from swarm.slot import Slot
from swarm.workspace import Workspace

OLDEST_GIT = (2, 39)
MOMENT_SECONDS = 0.2
_RUNNER = "doctor"
# With these the past cannot be trusted, so nothing is added to it before a person has looked.
_UNTRUSTED = frozenset({2, 9})


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong."""

    id: str  # a probe's name: what programs match
    what: str  # one sentence
    evidence: tuple[str, ...] = ()  # paths, refs, object ids
    subject: str = ""  # what a repair works on: a path, a slot
    fix: str | None = None  # what --fix does about it; None: a person must act
    hint: str | None = None  # what that person can type


class Outcome(msgspec.Struct, frozen=True):
    """What became of one finding under --fix."""

    finding: Finding
    done: str | None  # None: it is left
    why: str = ""  # it is left


class Case(msgspec.Struct, frozen=True):
    """One examination: the workspace, and what probes share."""

    work: Workspace

    def violations(self) -> list[Violation]:
        """What does not hold now, in the whole history and at present."""
        config = self.work.config
        policy = Policy(
            flaky_lands=config.gate.flaky == "land",
            path_limited=frozenset(check.name for check in config.checks if check.paths),
        )
        return invariants.check(self.work.ledger, self.work.layout, policy=policy)

    @property
    def sweep(self) -> Sweep:
        work = self.work
        grace = work.config.limits.grace
        return Sweep(work.layout, work.rules, work.bounds, grace, work.checkout)

    def lives(self, runner: str) -> bool | None:
        """False: its flock is free, it is dead. None: nothing on this disk can tell."""
        is_free = is_flock_free(alive_path(self.work.layout.runs, runner))
        return None if is_free is None else not is_free


Probe = Callable[[Case], Iterator[Finding]]
Repair = Callable[[Case, Finding], str]


class CannotMend(SwarmError):
    """A finding no longer stands, or mending it could cost something."""


def examine(case: Case) -> list[Finding]:
    """Every probe, in the order in which what it finds is mended. Reads only.

    A probe that cannot look is itself a finding.
    """
    found: list[Finding] = []
    for probe in PROBES:
        try:
            found += probe(case)
        except _TROUBLE as error:
            name = probe.__name__.removeprefix("_").replace("_", " ")
            found.append(Finding("unreadable", f"cannot look at {name}: {_words(error)}"))
    return found


_TROUBLE = (SwarmError, Undecodable, OSError)


def _words(error: Exception) -> str:
    if isinstance(error, SwarmError) and error.why:
        return f"{error.what}: {error.why}"
    return str(error)


def mend(case: Case, found: list[Finding]) -> list[Outcome]:
    """Mend what can be mended with proof; one outcome per finding, and one per new violation.

    Safe: any number of doctors and runs at once; killed anywhere, the next one goes on.
    """
    broken = {f.subject for f in found if f.id == "invariant"}
    is_trusted = not any(int(number) in _UNTRUSTED for number in broken if number)
    outcomes: list[Outcome] = []
    for finding in found:
        repair = REPAIRS.get(finding.id)
        if finding.fix is None or repair is None:
            outcomes.append(Outcome(finding, None, "a person must act"))
        elif not is_trusted and finding.id not in _BESIDE_LEDGER | _BY_HISTORY:
            outcomes.append(Outcome(finding, None, "the ledger's own history is damaged"))
        else:
            try:
                outcomes.append(Outcome(finding, repair(case, finding)))
            except _TROUBLE as error:
                outcomes.append(Outcome(finding, None, _words(error)))
    still = {str(violation) for violation in case.violations()}
    known = {f.what for f in found if f.id == "invariant"}
    return [
        *(_judge_again(outcome, still) for outcome in outcomes),
        *(
            Outcome(Finding("invariant", what), None, "broken while mending: report it")
            for what in sorted(still - known)
        ),
    ]


def _judge_again(outcome: Outcome, still: set[str]) -> Outcome:
    """An invariant is mended when it holds, whatever a repair said."""
    if outcome.finding.id != "invariant":
        return outcome
    if outcome.finding.what in still:
        return Outcome(outcome.finding, None, outcome.why or "it still does not hold")
    return Outcome(outcome.finding, "holds again")


# -- the hub


def _git_version(case: Case) -> Iterator[Finding]:
    text = case.work.ledger.hub.git.run("version").text
    digits = text.removeprefix("git version ").split(".")
    with contextlib.suppress(ValueError, IndexError):
        if (int(digits[0]), int(digits[1])) < OLDEST_GIT:
            yield Finding("git-version", f"{text} is older than 2.39", hint="install git 2.39")


def _hub_settings(case: Case) -> Iterator[Finding]:
    hub = case.work.ledger.hub
    try:
        changed = hub.find_changed(case.work.config.target)
    except GitFault as fault:
        config = hub.path / "config"
        yield Finding(
            "hub-settings",
            "git cannot read the hub's configuration",
            (fault.why or "",),
            hint=f"repair {config} by hand, then: swarm doctor --fix",
        )
        return
    for what in changed:
        yield Finding(
            "hub-settings", what, (str(hub.path),), fix="write the hub's settings and hook again"
        )


def _write_settings(case: Case, finding: Finding) -> str:
    hub, target = case.work.ledger.hub, case.work.config.target
    hub.configure(target)
    left = hub.find_changed(target)
    if left:
        raise CannotMend("the hub's settings do not stay", why="; ".join(left))
    return "written again"


def _not_writable(case: Case) -> Iterator[Finding]:
    work = case.work
    hub = work.ledger.hub.path
    folders = [hub, hub / "objects", hub / "refs", hub / "logs", hub.parent, work.layout.root]
    for path in dict.fromkeys(folders):
        if path.is_dir() and not os.access(path, os.W_OK | os.X_OK):
            what = f"{path} cannot be written by you: nothing can be claimed or landed"
            yield Finding("read-only", what, (str(path),), hint=f"ls -ld {shlex.quote(str(path))}")


def _ref_locks(case: Case) -> Iterator[Finding]:
    hub = case.work.ledger.hub
    seen = _lock_files(hub.path)
    if seen:
        time.sleep(MOMENT_SECONDS)  # a git at work holds one for a moment
    for path in seen & _lock_files(hub.path):
        with contextlib.suppress(OSError):
            age = time.time() - path.stat().st_mtime
            yield Finding(
                "ref-lock",
                f"a lock file that a killed git left, or that one holds now, {age:.0f} s old",
                (str(path),),
                subject=str(path),
                fix="remove it if it is ours, or empty and over a minute old, and no git of ours "
                "moves refs",
                hint=f"fuser -v {path}",
            )


def _lock_files(hub: Path) -> set[Path]:
    return {*hub.glob("*.lock"), *(hub / "refs").rglob("*.lock")}


def _heal_locks(case: Case, finding: Finding) -> str:
    ledger = case.work.ledger
    landing = None
    with contextlib.suppress(Undecodable, HubUnusable):
        landing = ledger.view().landing()
    tip = ledger.hub.reader.ref(LEDGER)
    ledger.hub.heal_locks([oid for oid in (tip, landing.new if landing else None) if oid])
    if Path(finding.subject).exists():
        raise CannotMend("it may be held: it is young, or names what is not ours")
    return "removed"


def _logs(case: Case) -> Iterator[Finding]:
    hub, branch = case.work.ledger.hub, case.work.config.target
    path = hub.path / "logs" / branch_ref(branch)
    if hub.reader.ref(branch_ref(branch)) is None:
        yield Finding("target-missing", f"the hub has no branch {branch}", (str(hub.path),))
        return
    if not path.is_file():
        yield Finding(
            "no-reflog",
            f"{branch} has no reflog: moves of it are not recorded",
            (str(path),),
            subject=str(path),
            fix="make an empty one, which git goes on with",
        )
    for name in (branch_ref(branch), LEDGER):
        moved = _unlogged(case, name)
        if moved is not None:
            yield Finding(
                "unlogged-move",
                f"{name} was moved past git: somebody wrote its file by hand",
                (f"its last logged move ended at {moved[0]}", f"it is now at {moved[1]}"),
                hint=f"git -C {shlex.quote(str(hub.path))} log -g {name}",
            )


def _unlogged(case: Case, name: str) -> tuple[str, str] | None:
    """(last logged value, value now) when they differ, looked at between two moves."""
    hub = case.work.ledger.hub
    for _ in range(5):
        before = hub.reader.ref(name)
        try:
            lines = (hub.path / "logs" / name).read_bytes().splitlines()
        except OSError:
            return None
        if not lines or before is None:
            return None
        logged = lines[-1].split(b" ", 2)[1].decode("ascii", "replace")
        if logged == before:
            return None
        if hub.reader.ref(name) == before:
            time.sleep(0.02)  # git writes the log and then renames the ref
            if hub.reader.ref(name) == before:
                return logged, before
    return None


def _make_log(case: Case, finding: Finding) -> str:
    path = Path(finding.subject)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return "made"


# -- the ledger


def _invariants(case: Case) -> Iterator[Finding]:
    for violation in case.violations():
        yield _told(violation)


def _told(violation: Violation) -> Finding:
    is_target = violation.number == 3 and "lacks the landing commit" in violation.what
    return Finding(
        "invariant",
        str(violation),
        violation.evidence,
        subject=str(violation.number),
        fix="redo our own move of the target, or say which task is lost" if is_target else None,
        hint="swarm rescue list" if violation.number == 5 else None,
    )


def _records(case: Case) -> Iterator[Finding]:
    view = case.work.ledger.view()
    for path, why in view.iter_damage():
        yield Finding(
            "record",
            f"{path} does not decode: {why}",
            (path,),
            hint=f"git -C {shlex.quote(str(view.hub.path))} show {LEDGER}:{path}",
        )
    for path, oid in view.iter_paths("tasks"):
        try:
            records.decode_task(view.hub.reader.read(oid, "blob"))
        except Undecodable as error:
            yield Finding("record", f"{path} does not decode: {error}", (path,))


def _shared_records(case: Case) -> Iterator[Finding]:
    """What belongs to no single task and stops all while it is damaged."""
    view = case.work.ledger.view()
    history = f"git -C {shlex.quote(str(view.hub.path))} log -p {LEDGER} -- "
    try:
        view.gate()
    except HubUnusable as error:
        yield Finding(
            "gate-record",
            error.what,
            (error.why or "",),
            fix="write a free gate, with a token above any that was given",
            hint=history + records.GATE_PATH,
        )
    try:
        is_gone = view.landing() is None and _cut_off(case.work.ledger, view) is not None
        what, why = f"{records.LANDING_PATH} was removed and the landing did not end", ""
    except HubUnusable as error:
        is_gone, what, why = True, error.what, error.why or ""
    if is_gone:
        yield Finding(
            "landing-record",
            what,
            (why,),
            fix="write it again as it was announced, and settle it by the target; else remove it",
            hint=history + records.LANDING_PATH,
        )


def _cut_off(ledger: Ledger, view: View) -> tuple[Landing, Logged] | None:
    """The landing that was announced last and did not end, as its event wrote it; None when there
    is none, or when its queue entries or locks moved on."""
    for logged in ledger.iter_log(view.tip):
        if logged.kind in ("landed", "void"):
            return None
        if logged.kind == "landing":
            break
    else:
        return None
    try:
        landing = view.at(logged.oid).landing()
    except HubUnusable:
        return None
    if landing is None:
        return None
    for change in landing.changes:
        if view.blob_id(records.queue_path(change.task)) != change.entry:
            return None
        if view.blob_id(records.lock_path(change.task)) != change.lock:
            return None
    return landing, logged


def _free_gate(case: Case, finding: Finding) -> str:
    """Whoever was the gate is fenced by the new nonce; a pause stays."""
    ledger = case.work.ledger
    tip = ledger.view().tip
    token, paused = _last_gate(ledger, tip)

    def decide(view: View) -> Draft[bool]:
        with contextlib.suppress(HubUnusable):
            view.gate()
            return refuse(False)
        free = free_gate(token + 1, new_nonce(), paused)
        event = Event(
            "gate-left",
            f"{records.GATE_PATH} was damaged; the gate is free.",
            {records.GATE_PATH: records.encode(free)},
            trailers={"Swarm-Gate": str(free.token), "Swarm-Runner": _RUNNER},
        )
        return Draft((event,), True)

    return f"free, token {token + 1}" if ledger.append(decide) else "it reads again"


def _last_gate(ledger: Ledger, tip: str) -> tuple[int, Paused | None]:
    """The highest token in the history, and the pause of the newest version that reads."""
    token, newest = 0, None
    for logged in ledger.iter_log(tip):
        said = logged.message.trailers.get("Swarm-Gate", "")
        if said.isdecimal():
            token = max(token, int(said))
        if newest is None:
            with contextlib.suppress(HubUnusable):
                newest = ledger.view().at(logged.oid).gate()
                token = max(token, newest.token)
    return token, newest.paused if newest is not None else None


def _rebuild_landing(case: Case, finding: Finding) -> str:
    ledger = case.work.ledger

    def decide(view: View) -> Draft[str]:
        is_damaged = False
        try:
            if view.landing() is not None:
                return refuse("it reads again")
        except HubUnusable:
            is_damaged = True
        found = _cut_off(ledger, view)
        if found is not None:
            landing, logged = found
            event = Event(
                "landing",
                f"{records.LANDING_PATH} was damaged; written again.",
                {records.LANDING_PATH: records.encode(landing)},
                logged.task,
                token=landing.changes[0].token if landing.changes else 0,
                trailers={"Swarm-Landed": landing.new, "Swarm-Target": landing.old},
            )
            return Draft((event,), "written again")
        if not is_damaged:
            return refuse("no landing is cut off")
        event = Event(
            "void",
            f"{records.LANDING_PATH} was damaged and no landing was under way; removed.",
            {records.LANDING_PATH: None},
            trailers={"Swarm-Target": view.target},
        )
        return Draft((event,), "removed")

    done = ledger.append(decide)
    if done != "written again" or is_gate_alive(case.work):
        return done
    return f"{done}; {_settle(case, finding)}"


# -- who is gone


def _orphans(case: Case) -> Iterator[Finding]:
    for marked in _dead_marked(case):
        runner = marked.mark.partition(".")[0]
        yield Finding(
            "orphan",
            f"process {marked.pid} outlived its runner {runner}",
            (" ".join(marked.cmdline)[:200],),
            subject=runner,
            fix="end it and all that it started",
        )


def _dead_marked(case: Case, runner: str | None = None) -> list[Marked]:
    """Marked processes whose runner's flock on this disk is free; of other hubs nothing is told."""
    found = process.find_marked(f"{runner}." if runner else "")
    return [m for m in found if case.lives(m.mark.partition(".")[0]) is False]


def _end_orphans(case: Case, finding: Finding) -> str:
    marked = _dead_marked(case, finding.subject)
    if not marked:
        return "gone"
    ended = process.end_marked(marked, case.work.config.limits.grace)
    if ended.survivors:
        raise CannotMend("no signal ended it", why=", ".join(map(str, ended.survivors)))
    return f"{ended.ended} ended"


def _gate(case: Case) -> Iterator[Finding]:
    """A landing in flight, or a gate claim, that nobody alive will end."""
    view = case.work.ledger.view()
    try:
        gate, landing = view.gate(), view.landing()
    except HubUnusable:
        return  # told by the record's own name
    if gate.runner is None and landing is None:
        return
    if is_gate_alive(case.work):
        return
    if landing is not None:
        names = ", ".join(change.task for change in landing.changes)
        what, fix = f"the landing of {names} was cut off", "settle it as landed or void"
        where = f"landing commit {landing.new} for {landing.target}"
        yield Finding("landing", what, (where,), fix=fix)
    else:
        what = f"{gate.runner} was the gate and is gone"
        yield Finding("gate", what, (f"nonce of its claim {gate.nonce}",), fix="free the gate")


def _settle(case: Case, finding: Finding) -> str:
    """Take the gate, which fences an older landing; settle; see that the last one holds; leave."""
    ledger = case.work.ledger
    gate = ledger.view().gate()
    dead = None
    if gate.runner is not None:
        if is_gate_alive(case.work):
            raise CannotMend(f"{gate.runner} is the gate and lives: it settles what it began")
        dead = gate.nonce
    claim = take_gate(ledger, _RUNNER, case.work.config.claims.lease, dead)
    if isinstance(claim, GateHeld):
        raise CannotMend(f"{claim.gate.runner} is the gate now")
    try:
        settled = settle(ledger, claim)
        kept = keep_last_landing(ledger)
    finally:
        leave_gate(ledger, claim)
    parts = [getattr(settled, "kind", None), kept]
    return "; ".join(part for part in parts if part) or "the gate is free"


def _dead_runs(case: Case) -> Iterator[Finding]:
    for run in case.work.ledger.view().runs():
        if run.state != "ended" and case.lives(run.runner) is False:
            what = f"{run.run} is not ended and its runner is gone"
            runner = f"runner {run.runner} on {run.host}, pid {run.pid}"
            yield Finding("dead-run", what, (runner,), run.run, fix="say that it ended")


def _end_runs(case: Case, finding: Finding) -> str:
    closed = close_runs(case.work.ledger, case.work.layout)
    return "ended" if finding.subject in closed else "had ended"


def _dead_claims(case: Case) -> Iterator[Finding]:
    """Claims without a sign of life for longer than their lease; never one that lives."""
    for lock, sign in find_dead(case.work.ledger, case.work.layout):
        yield Finding(
            "dead-claim",
            f"{lock.task} is held by {lock.slot or lock.agent}: {sign.says()}",
            (f"runner {lock.runner}", f"nonce of its claim {lock.nonce}"),
            lock.task,
            fix="end its processes, save its work, expire the claim",
        )


def _expire(case: Case, finding: Finding) -> str:
    before = find_lock(case.work.ledger.view(), finding.subject)
    report = sweep(case.work.ledger, case.sweep)
    after = find_lock(case.work.ledger.view(), finding.subject)
    if before is not None and after is not None and before.nonce == after.nonce:
        kept = "; ".join(report.kept) or "it lives again, or was extended"
        raise CannotMend(f"{finding.subject} is still held", why=kept)
    how = "ended as was asked; " if report.heeded else "expired; "
    return how + (", ".join(report.rescued) or "its work is in its work ref, if any")


# -- slots


def _slots(case: Case) -> list[str]:
    names = {path.stem for path in case.work.layout.slots.glob("*.json")}
    return sorted(names, key=lambda name: (len(name), name))


@contextlib.contextmanager
def _free(case: Case, name: str) -> Iterator[Slot | None]:
    """The slot with its flock, or None while another has it or its claim lives."""
    slot = Slot.take(case.work.layout.slots, name, case.work.ledger.hub)
    if slot is None:
        yield None
        return
    try:
        occupant = slot.occupant()
        lock = find_lock(case.work.ledger.view(), occupant.task) if occupant else None
        is_live = lock is not None and occupant is not None and lock.nonce == occupant.nonce
        yield None if is_live and lock is not None and lock.adapter == "hand" else slot
    finally:
        slot.close()


def _slot_locks(case: Case) -> Iterator[Finding]:
    for name in _slots(case):
        with _free(case, name) as slot:
            for path in _old_locks(slot) if slot is not None else ():
                yield Finding(
                    "slot-lock",
                    f"slot {name} has a lock file and nobody works in it",
                    (str(path),),
                    f"{name}:{path}",
                    fix="remove it",
                )


def _old_locks(slot: Slot) -> list[Path]:
    found = []
    for folder in (slot.admin, slot.own, slot.repo):
        for path in folder.glob("*.lock"):
            with contextlib.suppress(OSError):
                if time.time() - path.lstat().st_mtime > STALE_LOCK_SECONDS:
                    found.append(path)
    return found


def _remove_slot_lock(case: Case, finding: Finding) -> str:
    name, _, path = finding.subject.partition(":")
    with _free(case, name) as slot:
        if slot is None or Path(path) not in _old_locks(slot):
            raise CannotMend("somebody works in the slot now")
        Path(path).unlink(missing_ok=True)
    return "removed"


def _broken_slots(case: Case) -> Iterator[Finding]:
    for name in _slots(case):
        with _free(case, name) as slot:
            if slot is not None and _is_broken(slot):
                yield Finding(
                    "slot-broken",
                    f"slot {name} lost its worktree or its repository",
                    (str(slot.tree),),
                    name,
                    fix="keep its last commits under a rescue ref, then forget what it was; "
                    "the next claim there makes it anew",
                )


def _is_broken(slot: Slot) -> bool:
    if slot.occupant() is None:
        return False  # opening never finished: the next one starts over
    parts = (slot.admin, slot.repo / "objects", slot.own)
    return not slot.is_real_tree or not all(part.is_dir() for part in parts)


def _forget_slot(case: Case, finding: Finding) -> str:
    work = case.work
    with _free(case, finding.subject) as slot:
        occupant = slot.occupant() if slot is not None else None
        if slot is None or occupant is None or not _is_broken(slot):
            raise CannotMend("somebody works in the slot now")
        lock = find_lock(work.ledger.view(), occupant.task)
        if lock is not None and lock.nonce == occupant.nonce:
            raise CannotMend(
                f"{occupant.task} is claimed for it", hint=f"swarm stop {occupant.task}"
            )
        refs = _keep_broken(work, slot)
        slot.record.unlink(missing_ok=True)
    return "forgotten" + (f"; kept {', '.join(refs)}" if refs else "; a ref has all it held")


def _keep_broken(work: Workspace, slot: Slot) -> list[str]:
    """Rescue refs of what is left of a broken slot.

    Raises:
        CannotMend: there is something, and no repository of ours to read it with.
        GitFault: git cannot read it.
    """
    if slot.own.is_dir():
        return rescue_leftovers(work.ledger, slot, work.rules)
    if slot.is_real_tree or (slot.repo / "objects").is_dir():
        raise CannotMend(f"{slot.own} is gone", why=f"look at {slot.tree} and {slot.repo}")
    return []


def is_kept(ledger: Ledger, oid: str) -> bool:
    """Is the commit on the target, a work or a rescue ref?"""
    if not ledger.hub.reader.has(oid):
        return False
    names = (branch_ref(ledger.branch), WORK, RESCUE)
    found = ledger.hub.git.run("for-each-ref", "--count=1", f"--contains={oid}", *names)
    return bool(found.lines)


def _unsaved(case: Case) -> Iterator[Finding]:
    """Work in slots that nobody claims; looked at by changes of files, without our git."""
    for name in _slots(case):
        with _free(case, name) as slot:
            occupant = slot.occupant() if slot is not None else None
            if slot is None or occupant is None or _is_broken(slot):
                continue
            lock = find_lock(case.work.ledger.view(), occupant.task)
            if lock is not None and lock.nonce == occupant.nonce:
                continue
            head = slot.head() or occupant.head
            is_known = head in (occupant.head, occupant.start) or is_kept(case.work.ledger, head)
            if not is_known or slot.changed_paths(occupant):
                yield Finding(
                    "unsaved-work",
                    f"slot {name} holds work on {occupant.task}, attempt {occupant.token}",
                    (str(slot.tree),),
                    name,
                    fix="keep it under a rescue ref unless a ref has it already",
                )


def _save_leftovers(case: Case, finding: Finding) -> str:
    with _free(case, finding.subject) as slot:
        if slot is None:
            raise CannotMend("somebody works in the slot now")
        refs = rescue_leftovers(case.work.ledger, slot, case.work.rules)
    return f"kept {', '.join(refs)}" if refs else "a work or rescue ref has it already"


# -- beside


def _remote(case: Case) -> Iterator[Finding]:
    work = case.work
    hub = work.layout.hub
    url = user.remotes(work.checkout).get("swarm")
    hint = f"git remote add -t {shlex.quote(work.config.target)} swarm {shlex.quote(str(hub))}"
    if url is None:
        yield Finding("remote", "this checkout has no remote swarm", (), hint=hint)
    elif (work.checkout / url).resolve() != hub.resolve():
        hint = f"git remote set-url swarm {shlex.quote(str(hub))}"
        yield Finding("remote", "the remote swarm is not this hub", (f"it is {url}",), hint=hint)


def _cache(case: Case) -> Iterator[Finding]:
    for path in _broken_caches(case.work.layout.cache):
        what = "a cache file cannot be read"
        yield Finding("cache", what, (str(path),), str(path), fix="delete it; it is built again")


def _broken_caches(folder: Path) -> list[Path]:
    broken = []
    state, seen = folder / "state.sqlite", folder / "seen.json"
    if state.exists():
        try:
            with contextlib.closing(sqlite3.connect(f"file:{state}?mode=ro", uri=True)) as db:
                if db.execute("pragma quick_check").fetchone() != ("ok",):
                    broken.append(state)
        except sqlite3.OperationalError:
            pass  # busy, or not to be opened now: no proof
        except sqlite3.DatabaseError:
            broken.append(state)
    if seen.exists():
        try:
            json.loads(seen.read_bytes())
        except (ValueError, OSError):
            broken.append(seen)
    return broken


def _drop_cache(case: Case, finding: Finding) -> str:
    if Path(finding.subject) in _broken_caches(case.work.layout.cache):
        if finding.subject.endswith(".sqlite"):
            case.work.ledger.index.close()
        for name in ("", "-wal", "-shm"):
            Path(finding.subject + name).unlink(missing_ok=True)
    return "deleted"


def _disk(case: Case) -> Iterator[Finding]:
    total, limit = 0, case.work.config.worktree.max_total
    for path in case.work.layout.root.rglob("*"):
        with contextlib.suppress(OSError):
            if not path.is_symlink():
                total += path.lstat().st_size
    if total > limit:
        yield Finding(
            "disk",
            f"{case.work.layout.root} has {total >> 20} MiB; max_total is {limit >> 20} MiB",
            hint="raise [worktree] max_total; idle worktrees are deleted by the next run",
        )


# In the order in which things are mended: the hub, who is gone, what they left.
PROBES: tuple[Probe, ...] = (
    _git_version,
    _not_writable,
    _hub_settings,
    _ref_locks,
    _logs,
    _cache,
    _invariants,
    _records,
    _shared_records,
    _orphans,
    _gate,
    _dead_runs,
    _dead_claims,
    _slot_locks,
    _broken_slots,
    _unsaved,
    _remote,
    _disk,
)

REPAIRS: dict[str, Repair] = {
    "hub-settings": _write_settings,
    "ref-lock": _heal_locks,
    "no-reflog": _make_log,
    "cache": _drop_cache,
    "invariant": _settle,
    "orphan": _end_orphans,
    "gate-record": _free_gate,
    "landing-record": _rebuild_landing,
    "landing": _settle,
    "gate": _settle,
    "dead-run": _end_runs,
    "dead-claim": _expire,
    "slot-lock": _remove_slot_lock,
    "slot-broken": _forget_slot,
    "unsaved-work": _save_leftovers,
}
# Repairs that write no event.
_BESIDE_LEDGER = frozenset(
    {"hub-settings", "ref-lock", "no-reflog", "cache", "orphan", "slot-lock"}
)
# Repairs of what else stops everything: by what our own events of the history say, not by its end.
_BY_HISTORY = frozenset({"gate-record", "landing-record"})
