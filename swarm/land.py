"""Landing a checked candidate: the intention first, then the target and the ledger at once.

Enters: a candidate with its verdicts. Leaves: landed, outrun or fenced.
Guards: the commit that was checked is the commit that lands; the target is the authority; a gate
that slept changes nothing.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from datetime import timedelta

import msgspec
from msgspec.structs import replace

from swarm import faults
from swarm.change import Rules
from swarm.claim import Mine
from swarm.errors import GitFault
from swarm.ids import new_nonce
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.records import (
    Attempts,
    Done,
    Gate,
    HoldReason,
    Landing,
    LandingChange,
    Last,
    Paused,
    QueueEntry,
    Verdict,
)
from swarm.ledger.store import Draft, Ledger, refuse
from swarm.ledger.view import View, readable
from swarm.merge import Candidate
from swarm.plumbing.hub import LEDGER, Hub, branch_ref
from swarm.plumbing.refs import Move
from swarm.scope import outside, protected
from swarm.slot import has_markers

KEPT_VERDICTS = 64  # in the present; older ones are in the ledger's history
RECENT_LANDINGS = 300  # how far back the blob guard looks
_MOST_PATHSPECS = 500  # of one command line


class GateClaim(msgspec.Struct, frozen=True):
    """What the gate knows of its own claim."""

    token: int
    nonce: str
    runner: str


class GateHeld(msgspec.Struct, frozen=True):
    """Another runner is the gate."""

    gate: Gate


class GateLost(msgspec.Struct, frozen=True):
    """The gate is no longer ours: stop, change nothing."""


def take_gate(ledger: Ledger, runner: str, lease: timedelta, judged: str | None) -> (
    GateClaim | GateHeld
):  # fmt: skip
    """Become the gate. `judged`: nonce of a claim that was found dead; None takes a free one only.

    Safe: moving the ledger makes any landing of an older gate fail.
    """
    nonce = new_nonce()

    def decide(view: View) -> Draft[GateClaim | GateHeld]:
        gate = view.gate()
        assert gate is not None
        if gate.runner is not None and gate.runner != runner and gate.nonce != judged:
            return refuse(GateHeld(gate))
        taken = replace(
            gate,
            token=gate.token + 1,
            nonce=nonce,
            runner=runner,
            host=socket.gethostname(),
            pid=os.getpid(),
            boot_id=ledger.clock.boot_id(),
            taken_at=view.now,
            taken_monotonic_seconds=ledger.clock.monotonic(),
            lease_seconds=lease.total_seconds(),
        )
        event = Event(
            "gate-taken",
            f"{runner} is the gate.",
            {records.GATE_PATH: records.encode(taken)},
            trailers={"Swarm-Gate": str(taken.token), "Swarm-Runner": runner},
        )
        return Draft((event,), GateClaim(taken.token, nonce, runner))

    return ledger.append(decide)


def leave_gate(ledger: Ledger, claim: GateClaim) -> None:
    """Free the gate; nothing happens when it is not ours any more."""

    def decide(view: View) -> Draft[None]:
        gate = view.gate()
        if gate is None or gate.nonce != claim.nonce:
            return refuse(None)
        free = records.free_gate(gate.token, gate.nonce, gate.paused)
        event = Event(
            "gate-left",
            f"{claim.runner} leaves the gate.",
            {records.GATE_PATH: records.encode(free)},
            trailers={"Swarm-Gate": str(claim.token), "Swarm-Runner": claim.runner},
        )
        return Draft((event,), None)

    ledger.append(decide)


def is_gate(view: View, claim: GateClaim) -> bool:
    """Is the gate still ours?"""
    gate = view.gate()
    return gate is not None and gate.nonce == claim.nonce and gate.runner == claim.runner


def pause_event(view: View, paused: Paused | None) -> Event | None:
    """The event that pauses or resumes the gate; None when that changes nothing."""
    gate = view.gate()
    if gate is None or (gate.paused is None) == (paused is None):
        return None
    edits: dict[str, bytes | None] = {
        records.GATE_PATH: records.encode(replace(gate, paused=paused))
    }
    if paused is None:
        return Event("resumed", "The gate goes on.", edits)
    return Event("paused", paused.why, edits, trailers={"Swarm-By": paused.by})


def checked_events(view: View, verdicts: Sequence[Verdict]) -> tuple[Event, ...]:
    """One `checked` event per new verdict; the first also drops what is old."""
    events: list[Event] = []
    stale = _stale_verdicts(view, len(verdicts))
    for verdict in verdicts:
        path = records.verdict_path(verdict.key)
        says = f"{verdict.check} {verdict.verdict} on {verdict.tree[:7]}"
        if verdict.why:
            says += f": {verdict.why}"
        run = verdict.runs[-1] if verdict.runs else None
        facts = {
            "Swarm-Tree": verdict.tree,
            "Swarm-Check": verdict.check,
            "Swarm-Verdict": verdict.verdict,
            "Swarm-Definition": verdict.definition[:12],
            **({"Swarm-Seconds": f"{run.seconds:.1f}"} if run else {}),
        }
        edits = dict.fromkeys(p for p in stale if p != path) | {path: records.encode(verdict)}
        stale = ()
        events.append(Event("checked", says, edits, trailers=facts))
    return tuple(events)


def _stale_verdicts(view: View, coming: int) -> tuple[str, ...]:
    paths = [path for path, _ in view.iter_paths("verdicts")]
    if len(paths) + coming <= KEPT_VERDICTS:
        return ()
    now = view.hub.reader.tree_of(view.target)
    found: list[tuple[str, str]] = []
    for path in paths:
        data = view.raw(path)
        try:
            verdict = records.decode(Verdict, data or b"")
            at = verdict.runs[-1].at.isoformat() if verdict.runs else ""
        except records.Undecodable:
            at = ""
        if not path.rpartition("/")[2].startswith(now):
            found.append((at, path))
    return tuple(path for _, path in sorted(found)[: len(paths) + coming - KEPT_VERDICTS])


class Recorded(msgspec.Struct, frozen=True):
    """`landing.json` is written; now the target may move."""

    landing: Landing
    landing_id: str


class Outrun(msgspec.Struct, frozen=True):
    """The target or the entry moved first: build it again."""

    why: str


def record(
    ledger: Ledger,
    claim: GateClaim,
    candidate: Candidate,
    applied: Sequence[str],
    fresh: Sequence[Verdict],
) -> Recorded | Outrun | GateLost:
    """Write the new verdicts and the intention to land, in one move.

    `applied` are the keys of every verdict that the landing rests on.
    """

    def decide(view: View) -> Draft[Recorded | Outrun | GateLost]:
        if not is_gate(view, claim):
            return refuse(GateLost())
        if view.landing() is not None:
            return refuse(Outrun("another landing is in flight"))
        stale = _stale_reason(view, candidate)
        if stale:
            return refuse(Outrun(stale))
        entry = candidate.entry
        change = LandingChange(
            task=entry.task,
            token=entry.token,
            head=entry.head,
            landed=candidate.commit,
            previous=candidate.previous,
            tree=candidate.tree,
            verdicts=list(applied),
            entry=candidate.entry_id,
            lock=entry.lock,
        )
        landing = Landing(
            gate_token=claim.token,
            target=view.target_branch,
            old=candidate.previous,
            new=candidate.commit,
            changes=[change],
            at=view.now,
        )
        data = records.encode(landing)
        event = Event(
            "landing",
            f"About to land {candidate.commit[:7]} on {view.target_branch}.",
            {records.LANDING_PATH: data},
            entry.task,
            token=entry.token,
            trailers={
                "Swarm-Landed": candidate.commit,
                "Swarm-Target": candidate.previous,
                "Swarm-Head": entry.head,
            },
        )
        oid = ledger.hub.batch().blob(data)
        return Draft((*checked_events(view, fresh), event), Recorded(landing, oid))

    return ledger.append(decide)


def may_land(view: View, task: str) -> bool:
    """May the task's change land now, for all that the gate is paused for?

    While the target is red that is the repair, and what may mend it.
    """
    paused = view.gate().paused
    if paused is None or paused.task == task:
        return True
    return paused.by == "gate" and paused.task is not None and may_mend(view, task)


def may_mend(view: View, task: str) -> bool:
    """May it make a red target green, although it is no repair: what upstream has, or a landing
    taken back?"""
    found = readable(view.task, task)
    return found is not None and (found.header.joins_history or bool(found.header.undoes))


def is_judged_held(entry: QueueEntry) -> bool:
    """Is it judged while a person's word is missing, so that what is read is green?

    Its checks run what the checks of any change run. But not when it brings what looks like a
    secret: what a check prints is kept in the ledger and told to agents.
    """
    return entry.is_held and not any(
        hold.reason == "secret" and hold.approved_at is None and not hold.is_left_out
        for hold in entry.hold or ()
    )


def _stale_reason(view: View, candidate: Candidate) -> str | None:
    """Why a candidate can no longer land as it was built."""
    task = candidate.entry.task
    if not may_land(view, task):
        return "the gate was paused"
    if view.target != candidate.previous:
        return f"{view.target_branch} moved to {view.target[:7]}"
    if view.blob_id(records.queue_path(task)) != candidate.entry_id:
        return "its queue entry changed"
    if view.blob_id(records.lock_path(task)) != candidate.entry.lock:
        return "its lock changed"
    return None


class Landed(msgspec.Struct, frozen=True):
    """The target holds the candidate and the ledger says so."""

    changes: tuple[LandingChange, ...]


def land(ledger: Ledger, claim: GateClaim, recorded: Recorded) -> Landed | Outrun | GateLost:
    """Move the target to the recorded commit and end the claim, in one transaction.

    Safe: killed between the two refs, the next gate settles it from `landing.json`.
    """
    landing = recorded.landing
    faults.reach("land.before_transact")

    def decide(view: View) -> Draft[Landed | Outrun | GateLost]:
        if not is_gate(view, claim):
            return refuse(GateLost())
        if view.blob_id(records.LANDING_PATH) != recorded.landing_id:
            if all(view.is_landed(change.task) for change in landing.changes):
                return refuse(Landed(tuple(landing.changes)))
            return refuse(Outrun("the landing was settled by another"))
        if view.target != landing.old and not ledger.hub.contains(view.target, landing.new):
            return refuse(Outrun(f"{landing.target} moved to {view.target[:7]}"))
        for change in landing.changes:
            if view.blob_id(records.queue_path(change.task)) != change.entry:
                return refuse(Outrun(f"the queue entry of {change.task} changed"))
            if view.blob_id(records.lock_path(change.task)) != change.lock:
                return refuse(Outrun(f"the lock of {change.task} changed"))
        moves: tuple[Move, ...] = ()
        if view.target == landing.old:
            moves = (Move(branch_ref(landing.target), landing.old, landing.new),)
            _die_between_refs(ledger.hub, view, landing)
        return Draft(landed_events(view, landing), Landed(tuple(landing.changes)), moves)

    answer = ledger.append(decide)
    faults.reach("land.after_transact")
    return answer


def landed_events(view: View, landing: Landing) -> tuple[Event, ...]:
    """One `landed` event per change; the last one also ends the landing."""
    events: list[Event] = []
    for number, change in enumerate(landing.changes, 1):
        # It is in the target whatever became of these records: damage must not keep it unsaid.
        lock = readable(view.lock, change.task)
        attempts = readable(view.attempts, change.task)
        entry = readable(view.entry, change.task)
        done = Done(
            task=change.task,
            result="landed",
            token=change.token,
            landed=change.landed,
            previous=change.previous,
            head=change.head,
            tree=change.tree,
            verdicts=change.verdicts,
            run=lock.run if lock else "",
            at=view.now,
        )
        edits: dict[str, bytes | None] = {
            records.lock_path(change.task): None,
            records.queue_path(change.task): None,
            records.done_path(change.task): records.encode(done),
        }
        if attempts is not None:
            edits[records.attempts_path(change.task)] = records.encode(_reset(view, attempts))
        if number == len(landing.changes):
            edits[records.LANDING_PATH] = None
        stat = ""
        if entry is not None:
            files, plus, minus = view.hub.diff_stat(change.previous, change.landed)
            stat = f"{files} file{'s' if files != 1 else ''} +{plus} -{minus}"
        names = " ".join(key.split("-", 1)[1].rpartition("-")[0] for key in change.verdicts)
        took = _seconds(view, change)
        unread = sum(told.token >= change.token for told in attempts.told) if attempts else 0
        late = f"told and not read: {unread} text{'s' if unread != 1 else ''}; " if unread else ""
        events.append(
            Event(
                "landed",
                f"{names} passed; {stat}; {late}{landing.target} {change.landed[:7]}",
                edits,
                change.task,
                lock.agent if lock else "",
                change.token,
                {
                    "Swarm-Landed": change.landed,
                    "Swarm-Previous": change.previous,
                    "Swarm-Head": change.head,
                    "Swarm-Tree": change.tree,
                    "Swarm-Checks": names,
                    "Swarm-Stat": stat,
                    **({"Swarm-Seconds": f"{took:.1f}"} if took is not None else {}),
                    **({"Swarm-Unread": str(unread)} if unread else {}),
                    "Swarm-Slot": lock.slot if lock else "",
                    **({"Swarm-Run": lock.run} if lock and lock.run else {}),
                },
            )
        )
    return tuple(events)


def _seconds(view: View, change: LandingChange) -> float | None:
    """How long the checks that it rests on ran; None: not known of all of them."""
    total = 0.0
    for key in change.verdicts:
        verdict = readable(view.verdict, key)
        if verdict is None or not verdict.runs:
            return None
        total += verdict.runs[-1].seconds
    return total if change.verdicts else None


def _reset(view: View, attempts: Attempts) -> Attempts:
    last = Last(
        token=attempts.token, outcome="landed", strike=False, message="landed", ended_at=view.now
    )
    return replace(
        attempts,
        strikes=[],
        conflicts=0,
        expiries=0,
        extensions=0,
        retry_at=None,
        last=last,
        sent_back=None,
        told=[],
    )


def _die_between_refs(hub: Hub, view: View, landing: Landing) -> None:
    """For crash tests: what git leaves when it is killed between the two renames."""
    if not faults.is_armed("land.between_refs"):
        return
    hub.refs.transact([Move(branch_ref(landing.target), landing.old, landing.new)])
    (hub.path / f"{LEDGER}.lock").write_text(view.tip + "\n", "ascii")
    (hub.path / "HEAD.lock").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def eject_last(view: View, entry: QueueEntry, **facts: object) -> Last:
    """The `last` record of an ejection."""
    return msgspec.convert(
        {"token": entry.token, "strike": False, "ended_at": view.now, **facts}, Last
    )


def mine_of(entry: QueueEntry, agent: str) -> Mine:
    """The claim that a queue entry belongs to."""
    return Mine(entry.task, entry.token, entry.nonce, agent)


def guard(
    hub: Hub, candidate: Candidate, rules: Rules, reverted: str, declared: Sequence[str]
) -> list[HoldReason]:
    """Cheap looks at what would land; each reason holds the change until a person approves.

    `reverted`: "hold" where a path that goes back to what the target moved on from is odd.

    Returns reasons that are not approved in the entry already; empty: nothing is odd.

    Raises:
        GitFault: an object is missing.
    """
    entry = candidate.entry
    if entry.is_accepted:
        return []
    landed = hub.changed_paths(candidate.previous, candidate.commit)
    found: list[tuple[str, list[str]]] = []
    meant = set(hub.changed_paths(entry.base, entry.head))
    stray = [path for path in landed if path not in meant]
    if stray:
        followed = _renames(hub, entry.base, candidate.previous)
        stray = [path for path in stray if followed.get(path) not in meant]
    if stray:
        found.append(("containment", stray))
    sided = _side_taken(hub, candidate.previous, entry)
    if sided:
        found.append(("side_taking", sided))
    if reverted == "hold":
        back = _gone_back(hub, candidate, landed)
        if back:
            found.append(("reverted", back))
    marked = _marked(hub, candidate, landed)
    if marked:
        found.append(("markers", marked))
    if rules.scope == "hold" and declared:
        strays = outside(landed, declared)
        if strays:
            found.append(("scope", strays))
    guarded = protected(landed, rules.protect)  # the target may have moved a path there since
    if guarded:
        found.append(("protected", guarded))
    if rules.review == "all":  # it may have been sealed before a person asked for that
        found.append(("review", []))
    known = {hold.reason for hold in entry.hold or ()}
    return [
        msgspec.convert({"reason": reason, "paths": paths, "at": entry.sealed_at}, HoldReason)
        for reason, paths in found
        if reason not in known
    ]


def _renames(hub: Hub, old: str, new: str) -> dict[str, str]:
    """New name -> old name of what was renamed between two commits."""
    rows = hub.git.run("diff-tree", "-r", "-z", "--name-status", "--diff-filter=R", "-M", old, new)
    fields = rows.fields
    return dict(zip(fields[2::3], fields[1::3], strict=True))


def _side_taken(hub: Hub, target: str, entry: QueueEntry) -> list[str]:
    """Paths to which a merge commit of the change gives its own side's blob, although the other
    side's was git's own merge of the parents or in conflict with it."""
    merges = hub.git.run("rev-list", "--merges", entry.head, f"^{target}").lines
    taken: set[str] = set()
    for commit in merges:
        parents = hub.git.run("rev-parse", f"{commit}^@").lines
        if len(parents) != 2:
            continue
        call = ("merge-tree", "--write-tree", "--name-only", "-z", "--allow-unrelated-histories")
        merged = hub.git.run(*call, *parents, ok=(0, 1))
        fields = merged.fields
        if not fields:
            raise GitFault("git merge-tree failed", why=merged.complaint)
        end = fields.index("") if "" in fields else len(fields)
        conflicted = set(fields[1:end])
        ours, result = hub.reader.tree_of(parents[0]), hub.reader.tree_of(commit)
        for path, got, wanted in hub.reader.iter_changes(result, fields[0]):
            own = hub.reader.find(ours, path)
            theirs = hub.reader.find(hub.reader.tree_of(parents[1]), path)
            own_oid, their_oid = own.oid if own else None, theirs.oid if theirs else None
            if got == own_oid and (path in conflicted or wanted == their_oid):
                taken.add(path)
    return sorted(taken)


def _gone_back(hub: Hub, candidate: Candidate, landed: Sequence[str]) -> list[str]:
    """Paths that return to a blob which the target had and has since moved on from."""
    back: set[str] = set()
    for start in range(0, len(landed), _MOST_PATHSPECS):
        back |= _gone_back_among(hub, candidate, landed[start : start + _MOST_PATHSPECS])
    return sorted(back)


def _gone_back_among(hub: Hub, candidate: Candidate, landed: Sequence[str]) -> set[str]:
    rows = hub.git.run(
        "log",
        "--first-parent",
        "-m",
        f"--max-count={RECENT_LANDINGS}",
        "--format=",
        "--raw",
        "--no-renames",
        "--no-abbrev",
        "-z",
        candidate.previous,
        "--",
        *[f":(literal){path}" for path in landed],
    )
    back: set[str] = set()
    fields = rows.fields
    for meta, path in zip(fields[::2], fields[1::2], strict=False):
        old = meta.split(" ")[2]
        entry = hub.reader.find(candidate.tree, path)
        if entry is not None and entry.oid == old:
            now = hub.reader.find(hub.reader.tree_of(candidate.previous), path)
            if now is None or now.oid != old:
                back.add(path)
    return back


def _marked(hub: Hub, candidate: Candidate, landed: Sequence[str]) -> list[str]:
    """Landed files that hold a whole conflict which the target's file did not."""
    before = hub.reader.tree_of(candidate.previous)
    marked: list[str] = []
    for path in landed:
        entry = hub.reader.find(candidate.tree, path)
        if entry is None or entry.mode not in (0o100644, 0o100755):
            continue
        if has_markers(hub.reader.read(entry.oid, "blob")):
            old = hub.reader.find(before, path)
            if old is None or not has_markers(hub.reader.read(old.oid, "blob")):
                marked.append(path)
    return marked
