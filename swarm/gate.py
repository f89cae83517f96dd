"""The gate: the only writer of the target besides people. One change at a time, never waiting.

Enters: the queue. Leaves: landings, ejections, holds, each an event of the ledger.
Guards: exactly one runner is the gate; nothing lands unchecked; a red target blames nobody.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from swarm import faults
from swarm.change import Rules
from swarm.check import (
    Bench,
    Running,
    applies,
    begin,
    definition,
    find_shadowed,
    is_reusable,
    judged,
)
from swarm.claim import Ending, conclude_events
from swarm.config import Check, Config
from swarm.errors import GitFault, UsageError
from swarm.judge import (
    Ask,
    BaseRed,
    CannotJudge,
    Green,
    Landing,
    Pass,
    SendBack,
    judge_change,
    judge_target,
)
from swarm.land import (
    GateClaim,
    GateHeld,
    GateLost,
    Landed,
    Outrun,
    Recorded,
    checked_events,
    eject_last,
    guard,
    is_gate,
    is_judged_held,
    land,
    leave_gate,
    may_land,
    may_mend,
    mine_of,
    pause_event,
    record,
    take_gate,
)
from swarm.layout import Layout
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.outcome import Bounds
from swarm.ledger.records import HoldReason, Last, Paused, QueueEntry, Task, TaskHeader, Verdict
from swarm.ledger.store import Draft, Ledger, refuse
from swarm.ledger.view import State, View, queue_order, readable
from swarm.liveness import sign_of
from swarm.merge import Attributes, Candidate, Clean, Conflict, build, merge_trees
from swarm.reconcile import keep_last_landing, settle
from swarm.scope import outside
from swarm.slot import Slot
from swarm.task import cancelled
from swarm.trailers import listed, of_commit
from swarm.workspace import Workspace

FIX_MAIN = "fix-main"
MAX_CANNOT_JUDGE = 2  # in a row, then the queue pauses
DEFER_SECONDS = 10.0  # until a change is looked at again that a fault of git's kept from judging
_FIX_ENDED = (State.LANDED, State.CANCELLED, State.PARKED, State.DAMAGED)
LOOK_AGAIN_SECONDS = 60.0  # a tool comes back, a disk is made free: nobody need say so
DETAIL_CHARACTERS = 3000


class Job(msgspec.Struct):
    """One decision in the making: its questions, the check that runs, verdicts not yet written."""

    steps: Generator[Ask, Verdict, Any]
    target: str  # the tip it rests on
    candidate: Candidate | None  # None: the target itself is judged
    ask: Ask
    running: Running | None = None
    fresh: list[Verdict] = []
    used: list[Verdict] = []


class Activity(msgspec.Struct, frozen=True):
    """What the gate does now, for `status` and the live table."""

    task: str | None  # None: the target itself
    check: str
    role: str
    since: datetime
    is_held: bool = False  # it waits for a person's word; judged so that what is read is green


class Gate:
    """One runner's gate. `tick` does one bounded step and never waits for a check.

    Safe: any number of runners have one of these; `gate.json` makes one of them the gate.
    """

    def __init__(
        self,
        ledger: Ledger,
        layout: Layout,
        config: Config,
        checkout: Path,
        runner: str,
        *,
        rules: Rules,
        bounds: Bounds,
        lease: timedelta,
    ) -> None:
        if not config.checks:
            raise UsageError(
                "no [[checks]] in swarm.toml: the gate refuses to run",
                hint='[[checks]]\nname = "tests"\nrun = "python -m pytest -q"',
            )
        self.ledger = ledger
        self.layout = layout
        self.config = config
        self.checkout = checkout
        self.runner = runner
        self.rules = rules
        self.bounds = bounds
        self.lease = lease
        self.claim: GateClaim | None = None
        self.job: Job | None = None
        self.target_verdict: tuple[str, Green | BaseRed | CannotJudge] | None = None
        self.notes: list[str] = []  # what it did to the target that nobody asked for; to be said
        self._slot: Slot | None = None
        self._attributes = Attributes(ledger.hub, layout.cache)
        self._cannot_judge = 0
        self._look_again = 0.0  # at a target that could not be judged, on the monotonic clock
        self._was_paused = False  # at the last look
        self._judging: str | None = None  # nonce of the entry at hand
        self._deferred: dict[str, float] = {}  # nonce -> not before, on the monotonic clock
        self._red_on: dict[str, str] = {}  # nonce of an entry -> red target on which it is red too
        self._read_on: dict[str, str] = {}  # nonce of a held entry -> target it was judged on

    @classmethod
    def of(cls, work: Workspace, runner: str) -> Self:
        """The gate of a runner in a workspace.

        Raises:
            UsageError: the workspace has no check.
        """
        return cls(
            work.ledger,
            work.layout,
            work.config,
            work.checkout,
            runner,
            rules=work.rules,
            bounds=work.bounds,
            lease=work.config.claims.lease,
        )

    @property
    def activity(self) -> Activity | None:
        job = self.job
        if job is None or job.running is None:
            return None
        entry = job.candidate.entry if job.candidate else None
        return Activity(
            entry.task if entry else None,
            job.ask.check.name,
            job.ask.role,
            job.running.started_at,
            entry is not None and entry.is_held,
        )

    @property
    def red(self) -> Verdict | None:
        """What is red on the tip that the target had when it was last judged."""
        known = self.target_verdict
        return known[1].verdict if known is not None and isinstance(known[1], BaseRed) else None

    def close(self) -> None:
        """Stop what runs, leave the gate and the slot; the queue stays as it is."""
        self._drop_job("the gate closes")
        if self.claim is not None:
            leave_gate(self.ledger, self.claim)
            self.claim = None
        if self._slot is not None:
            self._slot.close()
            self._slot = None

    def abandon(self) -> None:
        """Stop what runs and let the slot go, without writing anything."""
        self._drop_job("the gate stops")
        self.claim = None
        if self._slot is not None:
            self._slot.close()
            self._slot = None

    def tick(self) -> bool:
        """One bounded step; True when there may be more to do at once.

        Raises:
            SwarmError: a person must act; calling again later is safe.
        """
        if self.claim is None and not self._take():
            return False
        assert self.claim is not None
        view = self.ledger.view()
        if not is_gate(view, self.claim):
            self._lose()
            return False
        if view.landing() is not None:
            if isinstance(settle(self.ledger, self.claim), GateLost):
                self._lose()
            return True
        try:
            return self._advance(view) if self.job is not None else self._choose(view)
        except GitFault:
            if self._judging is not None:  # it keeps its place; those behind it go on
                later = self.ledger.clock.monotonic() + DEFER_SECONDS
                self._deferred[self._judging] = later
            raise

    def _take(self) -> bool:
        view = self.ledger.view()
        gate = view.gate()
        assert gate is not None
        dead: str | None = None
        if gate.runner is not None and gate.runner != self.runner:
            layout, clock = self.layout, self.ledger.clock
            sign = sign_of(self.ledger.hub, gate, layout.runs, layout.cache, clock)
            if sign.age_seconds <= (gate.lease_seconds or 0.0):
                return False
            dead = gate.nonce
        answer = take_gate(self.ledger, self.runner, self.lease, dead)
        if isinstance(answer, GateHeld):
            return False
        self.claim = answer
        if isinstance(settle(self.ledger, answer), GateLost):
            self._lose()
            return False
        kept = keep_last_landing(self.ledger)
        if kept is not None:
            self.notes.append(kept)
        return True

    def _lose(self) -> None:
        self.claim = None
        self._drop_job("the gate is another's")

    def _drop_job(self, why: str) -> None:
        job, self.job = self.job, None
        if job is not None and job.running is not None:
            job.running.stop(why)

    def _bench(self) -> Bench:
        if self._slot is None:
            self._slot = Slot.take_free(self.layout.gate, "g", self.ledger.hub)
        return Bench(
            self.ledger.hub,
            self._slot,
            self.config,
            self.checkout,
            self.layout.checks,
            self.runner,
            self.ledger.clock,
        )

    # Choosing

    def _choose(self, view: View) -> bool:
        known = self.target_verdict
        if known is None or known[0] != view.target:
            return self._judge_target(view)
        gate = view.gate()
        assert gate is not None
        paused = gate.paused
        if paused is not None and paused.by == "gate" and isinstance(known[1], Green):
            self._resume()
            return True
        if paused is None and self._was_paused and not isinstance(known[1], Green):
            self._was_paused = False
            self.target_verdict = None  # a person resumed it: look again
            return True
        self._was_paused = paused is not None
        if isinstance(known[1], CannotJudge):
            clock = self.ledger.clock.monotonic()
            if paused is None:
                self._pause(_paused(view, f"checks cannot run on {view.target_branch}", known[1]))
            elif paused.by == "gate" and clock >= self._look_again:
                return self._judge_target(view, again=True)
            return False
        entry = self.next_change(view)
        if isinstance(known[1], BaseRed) and paused is None and self._has_work(view):
            mending = [e for e in self._waiting(view) if may_mend(view, e.task)]
            entry = self._first(view, mending)
            if entry is None:
                self._open_fix_main(view, known[1])
                return True
        self._judging = entry.nonce if entry is not None else None
        return self._build(view, entry) if entry is not None else False

    def _judge_target(self, view: View, *, again: bool = False) -> bool:
        self._look_again = self.ledger.clock.monotonic() + LOOK_AGAIN_SECONDS
        checks = [c for c in self.config.checks if applies(c, (), None)]
        return self._start(view, judge_target(view.target, checks, again=again), None)

    def _has_work(self, view: View) -> bool:
        """Is there anything that a red target keeps from landing, now or soon?"""
        if next(view.iter_paths("current_tasks"), None) is not None:
            return True
        return self.ledger.index.counts(view).get(State.OPEN.value, 0) > 0

    def next_change(self, view: View) -> QueueEntry | None:
        """The change whose turn it is: one that may land, else one that a person is to read."""
        return self._first(view, self._waiting(view) or self._unread(view))

    def _first(self, view: View, entries: Iterable[QueueEntry]) -> QueueEntry | None:
        """Older than the age bound first, then priority, age, id."""
        max_wait = self.config.gate.max_wait
        return min(entries, key=lambda e: queue_order(e, view.now, max_wait), default=None)

    def can_take(self, view: View, task: str) -> bool:
        """Is it a change that this gate will judge, sooner or later, as things stand?"""
        entry = view.entry(task)
        if entry is None or entry.is_held or self._red_on.get(entry.nonce) == view.target:
            return False
        return may_land(view, task)

    def has_unread(self, view: View) -> bool:
        """Is there a held change that this gate will judge for the person who is to read it?"""
        return self.claim is not None and bool(self._unread(view))

    def _waiting(self, view: View) -> list[QueueEntry]:
        """Changes that may be judged and landed now; in no order."""
        free = [e for e in view.entries() if not e.is_held]
        return self._judgeable(view, [e for e in free if self._red_on.get(e.nonce) != view.target])

    def _unread(self, view: View) -> list[QueueEntry]:
        """Held changes that were not judged on this target yet; in no order.

        Looked at when nothing can land: once for each target, so that a person reads what is green.
        """
        held = [e for e in view.entries() if is_judged_held(e)]
        return self._judgeable(view, [e for e in held if self._read_on.get(e.nonce) != view.target])

    def _judgeable(self, view: View, entries: list[QueueEntry]) -> list[QueueEntry]:
        entries = [e for e in entries if not view.why_damaged(e.task) and may_land(view, e.task)]
        if self._deferred:
            clock = self.ledger.clock.monotonic()
            entries = [e for e in entries if self._deferred.get(e.nonce, clock) <= clock]
        return entries

    def _checks_for(self, view: View, entry: QueueEntry, candidate: Candidate) -> list[Check]:
        task = view.task(entry.task)
        asked = task.header.checks if task else []
        changed: list[str] | None = None  # upstream's own commit names no check that it passed
        if candidate.commit != entry.head:
            changed = self.ledger.hub.changed_paths(candidate.previous, candidate.commit)
        return [c for c in self.config.checks if applies(c, asked, changed)]

    def _build(self, view: View, entry: QueueEntry) -> bool:
        hub = self.ledger.hub
        task, lock = view.task(entry.task), view.lock(entry.task)
        entry_id = view.blob_id(records.queue_path(entry.task))
        if task is None or lock is None or entry_id is None:
            return False
        bench = self._bench()
        declared = [
            (c.name, definition(bench, c, entry.head))
            for c in self.config.checks
            if applies(c, task.header.checks, None)
        ]
        if hub.git.run("merge-base", view.target, entry.head, ok=(0, 1)).code:
            message = f"its history shares no commit with {view.target_branch}: nothing to merge"
            self._eject(entry, outcome="no_work", message=message)
            return True
        joins = task.header.joins_history
        if joins and self._is_ahead(view, entry):
            tree = hub.reader.tree_of(entry.head)
            ahead = Candidate(entry.head, tree, view.target, entry, entry_id)
            return self._judge(view, ahead, task)
        built = build(
            hub,
            view.target,
            entry,
            entry_id,
            task,
            attributes=self._attributes,
            style="squash" if self.config.gate.style == "squash" and not joins else "merge",
            checks=declared,
            adapter=lock.adapter,
            agent=lock.agent,
        )
        if isinstance(built, Conflict):
            self._eject_conflict(view, entry, built)
            return True
        is_joined = not joins or hub.contains(view.target, entry.head)
        if built.tree == hub.reader.tree_of(view.target) and is_joined:
            self._eject(
                entry,
                outcome="no_work",
                message="nothing that the target lacks: the merge changes no file",
            )
            return True
        return self._judge(view, built, task)

    def _is_ahead(self, view: View, entry: QueueEntry) -> bool:
        """Is it upstream's own commit, to which the target only has to go forward?"""
        known = view.upstream()
        if known is None or entry.head != known.tip or entry.head == view.target:
            return False
        return self.ledger.hub.contains(entry.head, view.target)

    def _judge(self, view: View, built: Candidate, task: Task) -> bool:
        """Guards first, then the checks that apply."""
        hub, entry = self.ledger.hub, built.entry
        strays = outside(hub.changed_paths(view.target, built.commit), task.header.paths)
        if task.header.paths and strays and self.config.gate.scope == "eject":
            message = f"changes files outside its paths: {', '.join(strays[:5])}"
            self._eject(entry, outcome="check_failed", message=message, paths=strays)
            return True
        reverted = "warn" if task.header.undoes else self.config.gate.reverted  # it says so itself
        holds = guard(hub, built, self.rules, reverted, task.header.paths)
        if holds:
            self._hold(built, holds)
            return True
        checks = self._checks_for(view, entry, built)
        landings = self._landings(built)
        is_alone = built.tree == hub.reader.tree_of(entry.head)
        steps = judge_change(
            built,
            checks,
            landings,
            self._merged_at(entry),
            flaky_lands=self.config.gate.flaky == "land",
            is_alone=is_alone,
        )
        if not checks:
            return self._decide(view, built, Pass(()), [])
        return self._start(view, steps, built)

    def _landings(self, candidate: Candidate) -> list[Landing]:
        """The target's steps since the change's merge base, oldest first."""
        hub = self.ledger.hub
        base = hub.git.run("merge-base", candidate.previous, candidate.entry.head).text
        listed = hub.git.run(
            "rev-list", "--first-parent", "--reverse", candidate.previous, f"^{base}"
        ).lines
        return [
            Landing(oid, of_commit(hub.reader.commit(oid)).trailers.get("Swarm-Task"))
            for oid in listed
        ]

    def _merged_at(self, entry: QueueEntry) -> Callable[[str], str | None]:
        hub = self.ledger.hub

        def merged(step: str) -> str | None:
            rules = self._attributes.at(hub.reader.tree_of(step))
            found = merge_trees(hub, step, entry.head, rules)
            if not isinstance(found, Clean):
                return None
            return hub.git.run(
                "commit-tree", found.tree, "-p", step, "-p", entry.head, "-m", "swarm: a prefix"
            ).text

        return merged

    # Judging

    def _start(
        self, view: View, steps: Generator[Ask, Verdict, Any], candidate: Candidate | None
    ) -> bool:
        try:
            ask = next(steps)
        except StopIteration as done:
            return self._decide(view, candidate, done.value, [])
        self.job = Job(steps, view.target, candidate, ask)
        return self._advance(view)

    def _advance(self, view: View) -> bool:
        """Answer the job's question from the store, or poll the check that runs."""
        job = self.job
        assert job is not None
        job.candidate = self._as_queued(view, job.candidate)
        if self._is_outdated(view, job):
            self._drop_job("the target or the queue moved")
            return True
        if job.running is None:
            verdict = self._find_verdict(view, job)
            if verdict is None:
                self._flush(job)
                check = job.ask.check
                if job.ask.role == "partner":  # it only names somebody: no second look
                    check = replace(check, retries=0)
                job.running = begin(self._bench(), check, job.ask.commit)
                return False
        else:
            found = job.running.poll()
            if found is None:
                return False
            verdict = found
            job.running = None
            self._probe(job, verdict)
            job.fresh.append(verdict)
            faults.reach("check.after_verdict")
        job.used.append(verdict)
        try:
            job.ask = job.steps.send(verdict)
        except StopIteration as done:
            self.job = None
            return self._decide(view, job.candidate, done.value, job.fresh)
        return True

    def _as_queued(self, view: View, built: Candidate | None) -> Candidate | None:
        """The candidate with its entry as it is now: an approval changes nothing that is judged."""
        if built is None:
            return None
        entry_id = view.blob_id(records.queue_path(built.entry.task))
        if entry_id is None or entry_id == built.entry_id:
            return built
        with contextlib.suppress(records.Undecodable):
            entry = view.entry(built.entry.task)
            if entry is not None and entry.nonce == built.entry.nonce:
                return replace(built, entry=entry, entry_id=entry_id)
        return built

    def _is_outdated(self, view: View, job: Job) -> bool:
        if view.target != job.target:
            return True
        if job.candidate is None:
            return False
        entry = job.candidate.entry
        if view.blob_id(records.queue_path(entry.task)) != job.candidate.entry_id:
            return True
        return entry.is_held and bool(self._waiting(view))  # what can land does not wait for it

    def _find_verdict(self, view: View, job: Job) -> Verdict | None:
        if job.ask.again:
            return None
        bench = self._bench()
        key = judged(self.ledger.hub, job.ask.check, job.ask.commit)
        digest = definition(bench, job.ask.check, job.ask.commit)
        for verdict in job.used:
            if (verdict.tree, verdict.check, verdict.definition) == (
                key,
                job.ask.check.name,
                digest,
            ):
                return verdict
        try:
            stored = view.verdict(f"{key}-{job.ask.check.name}-{digest[:12]}")
        except records.Undecodable:
            return None
        if stored is not None and stored.definition == digest and is_reusable(stored):
            return stored
        return None

    def _probe(self, job: Job, verdict: Verdict) -> None:
        """A new definition that passed on the target: does it read the checked tree?

        Raises:
            UsageError: it imports another copy of the code; nothing it says can be believed.
        """
        if job.candidate is not None or verdict.verdict != "passed":
            return
        shadowed = find_shadowed(self._bench(), job.ask.check, job.ask.commit)
        if shadowed is None:
            return
        self.job = None
        raise UsageError(
            f"check {job.ask.check.name} passes although {shadowed} cannot be imported here",
            why="it imports another copy of the code, so it would pass whatever an agent breaks",
            hint=_CURES,
        )

    def _flush(self, job: Job) -> None:
        """Write verdicts before the next check starts, so that a crash loses at most one."""
        self._write(job.fresh)
        job.fresh.clear()

    # Deciding

    def _decide(
        self, view: View, candidate: Candidate | None, decision: object, fresh: list[Verdict]
    ) -> bool:
        if candidate is None:
            assert isinstance(decision, Green | BaseRed | CannotJudge)
            self._write(fresh)
            self.target_verdict = (view.target, decision)
            if isinstance(decision, Green):
                self._red_on.clear()  # what was red beside it may have been so for its reasons
            return True
        entry = candidate.entry
        if entry.is_held:
            self._read_on[entry.nonce] = candidate.previous
        match decision:
            case Pass() | CannotJudge() if entry.is_held:  # a person's word is missing: it stays
                self._write(fresh)
            case Pass(verdicts):
                self._cannot_judge = 0
                self._land(candidate, [v.key for v in verdicts], fresh)
            case SendBack():
                self._cannot_judge = 0
                self._send_back(candidate, decision, fresh)
            case BaseRed(base, own) if own is not None and self._gives_way(view, entry):
                back = SendBack("check_failed", own, base.verdict, None, None)
                self._send_back(candidate, back, fresh)
            case BaseRed():
                self._red_on[entry.nonce] = view.target
                self._write(fresh)
                self.target_verdict = (view.target, decision)
                self._open_fix_main(view, decision)
            case CannotJudge():
                self._write(fresh)
                self._cannot_judge += 1
                if self._cannot_judge >= MAX_CANNOT_JUDGE:
                    why = f"checks could not run on {entry.task}, nor on its base"
                    self._pause(_paused(view, why, decision))
                    self.target_verdict = (view.target, decision)
                    self._look_again = self.ledger.clock.monotonic() + LOOK_AGAIN_SECONDS
            case _:
                raise AssertionError(decision)
        return True

    def _gives_way(self, view: View, entry: QueueEntry) -> bool:
        """Is it sent back although the target is red too? The repair itself; and what upstream has,
        since it would keep out upstream's next commit, which may be the repair.
        """
        paused = view.gate().paused
        task = readable(view.task, entry.task)
        joins = task is not None and task.header.joins_history
        return joins or (paused is not None and paused.task == entry.task)

    def _write(self, fresh: Sequence[Verdict]) -> None:
        def decide(view: View) -> Draft[None]:
            if self.claim is None or not is_gate(view, self.claim):
                return refuse(None)
            return Draft(checked_events(view, fresh), None)

        if fresh:
            self.ledger.append(decide)

    def _land(self, candidate: Candidate, applied: list[str], fresh: list[Verdict]) -> None:
        assert self.claim is not None
        recorded = record(self.ledger, self.claim, candidate, applied, fresh)
        if isinstance(recorded, GateLost):
            self._lose()
            return
        if isinstance(recorded, Outrun):
            self._write(fresh)  # the tree may come again
            return
        assert isinstance(recorded, Recorded)
        answer = land(self.ledger, self.claim, recorded)
        if isinstance(answer, GateLost):
            self._lose()
        elif isinstance(answer, Landed):
            checks = self.target_verdict
            if checks is not None and len(applied) == len(
                [c for c in self.config.checks if applies(c, (), None)]
            ):
                self.target_verdict = (candidate.commit, Green(()))

    def _send_back(self, candidate: Candidate, back: SendBack, fresh: list[Verdict]) -> None:
        verdict = back.verdict
        run = verdict.runs[-1] if verdict.runs else None
        check = next(c for c in self.config.checks if c.name == verdict.check)
        how = {"check_timed_out": "timed out"}.get(back.outcome, "failed")
        message = f"{verdict.check} {how}"
        if back.partner:
            message += f": green alone, red with {back.partner}"
        elif verdict.verdict == "flaky":
            message = f"{verdict.check} is flaky"
        elif verdict.why:
            message += f": {verdict.why}"
        elif back.base != "passed":
            message += f", on {self.ledger.branch} too"
        elif back.outcome == "check_failed":
            message += ", alone too"
        self._eject(
            candidate.entry,
            fresh=fresh,
            outcome=back.outcome,
            message=message,
            detail=self._feedback(candidate, back, check.run),
            check=verdict.check,
            exit_code=run.exit_code if run else None,
            tree=verdict.tree,
            failing=verdict.failing,
            partner=back.partner,
            base_verdict=back.base,
            log=verdict.log,
        )

    def _feedback(self, candidate: Candidate, back: SendBack, command: str) -> str:
        """What the next attempt is told: short, and where the whole log is."""
        verdict = back.verdict
        run = verdict.runs[-1] if verdict.runs else None
        lines = [f"Command: {command}"]
        lines.append(f"Exit code: {run.exit_code if run else 'unknown'}; on its base: {back.base}.")
        if verdict.failing:
            lines += ["Failing:", *(f"  {name}" for name in verdict.failing[:10])]
        if back.partner_commit:
            stat = self.ledger.hub.git.run(
                "diff", "--stat=80", f"{back.partner_commit}^1", back.partner_commit
            ).text
            lines += [f"Changed by {back.partner}, which has landed since:", stat[:1000]]
        if verdict.log:
            lines.append(f"Full log: {self.layout.root / verdict.log}")
        lines += ["Last lines:", verdict.tail]
        return "\n".join(lines)[:DETAIL_CHARACTERS]

    def _eject_conflict(self, view: View, entry: QueueEntry, conflict: Conflict) -> None:
        partner = self._conflict_partner(view, entry, conflict)
        named = ", ".join(conflict.paths[:5])
        self._eject(
            entry,
            outcome="conflict",
            message=f"conflict with {partner or view.target_branch} in {named}",
            detail="\n".join(conflict.says)[:DETAIL_CHARACTERS],
            partner=partner,
            paths=list(conflict.paths),
        )

    def _conflict_partner(self, view: View, entry: QueueEntry, conflict: Conflict) -> str | None:
        """The newest landing since the merge base that touched a conflicted path."""
        hub = self.ledger.hub
        base = hub.git.run("merge-base", view.target, entry.head, ok=(0, 1)).text
        if not base:
            return None
        paths = [f":(literal){p}" for p in conflict.paths[:100]]
        found = hub.git.run(
            "log",
            "--first-parent",
            "-m",
            "--max-count=1",
            "--format=%H",
            view.target,
            f"^{base}",
            "--",
            *paths,
        ).lines
        if not found:
            return None
        return of_commit(hub.reader.commit(found[0])).trailers.get("Swarm-Task", found[0][:10])

    def _eject(self, entry: QueueEntry, fresh: Sequence[Verdict] = (), **facts: Any) -> None:
        claim = self.claim
        assert claim is not None

        def decide(view: View) -> Draft[bool]:
            now = view.entry(entry.task)
            lock = view.lock(entry.task)
            if not is_gate(view, claim) or now != entry or lock is None:
                return refuse(False)
            if view.is_landing(entry.task):
                return refuse(False)
            last: Last = eject_last(view, entry, **facts)
            ending = Ending(
                last.outcome,
                last.message,
                work=records.Work(ref=entry.work, head=entry.head),
            )
            trailers = {
                "Swarm-Reason": last.outcome,
                **({"Swarm-Partner": last.partner} if last.partner else {}),
                **({"Swarm-Failing": listed(last.failing)} if last.failing else {}),
                **({"Swarm-Paths": listed(last.paths)} if last.paths else {}),
            }
            events, _, _ = conclude_events(
                view,
                "ejected",
                mine_of(entry, lock.agent),
                ending,
                self.bounds,
                last=last,
                gone=(records.queue_path(entry.task),),
                trailers=trailers,
            )
            return Draft((*checked_events(view, fresh), *events), True)

        self.ledger.append(decide)

    def _hold(self, candidate: Candidate, holds: Sequence[HoldReason]) -> None:
        entry, claim = candidate.entry, self.claim
        assert claim is not None

        def decide(view: View) -> Draft[bool]:
            if not is_gate(view, claim) or view.entry(entry.task) != entry:
                return refuse(False)
            dated = [replace(hold, at=view.now) for hold in holds]
            held = replace(entry, hold=[*(entry.hold or ()), *dated])
            event = Event(
                "held",
                "; ".join(_held_for(hold) for hold in holds),
                {records.queue_path(entry.task): records.encode(held)},
                entry.task,
                token=entry.token,
                trailers={"Swarm-Hold": listed([h.reason for h in holds])},
            )
            return Draft((event,), True)

        self.ledger.append(decide)

    # The base

    def _pause(self, paused: Paused | None) -> None:
        claim = self.claim
        assert claim is not None

        def decide(view: View) -> Draft[None]:
            event = pause_event(view, paused) if is_gate(view, claim) else None
            return Draft((event,), None) if event is not None else refuse(None)

        self.ledger.append(decide)

    def _resume(self) -> None:
        """The target is green: go on, and nobody need repair it who has not begun."""
        claim = self.claim
        assert claim is not None

        def decide(view: View) -> Draft[None]:
            paused = view.gate().paused
            event = pause_event(view, None) if is_gate(view, claim) else None
            if event is None or paused is None:
                return refuse(None)
            events = [event]
            if paused.task is not None and view.state(paused.task) is State.OPEN:
                why = f"{view.target_branch} {view.target[:7]} is green again"
                events.append(cancelled(view, paused.task, why, "gate"))
            return Draft(tuple(events), None)

        self.ledger.append(decide)

    def _open_fix_main(self, view: View, red: BaseRed) -> None:
        """Pause for all but one task that repairs the target; the first green tip resumes."""
        claim = self.claim
        assert claim is not None

        def decide(view: View) -> Draft[None]:
            gate = view.gate()
            if not is_gate(view, claim) or gate is None or gate.paused is not None:
                return refuse(None)
            name, number = FIX_MAIN, 1
            while view.state(name) in _FIX_ENDED:
                number += 1
                name = f"{FIX_MAIN}-{number}"
            events: list[Event] = []
            if view.state(name) is State.ABSENT:
                task = _fix_task(view, name, red.verdict)
                events.append(
                    Event(
                        "added",
                        f"{view.target_branch} is red: {red.verdict.check} failed.",
                        {records.task_path(name): records.encode_task(task)},
                        name,
                    )
                )
            why = f"{view.target_branch} {view.target[:7]} is red: {red.verdict.check} failed"
            paused = Paused(why=why, by="gate", task=name, at=view.now)
            stop = pause_event(view, paused)
            assert stop is not None
            return Draft((*events, stop), None)

        self.ledger.append(decide)


_CURES = (
    'Python, nothing to install: env = { PYTHONPATH = "src" } in the check\n'
    'uv:  [worktree] setup = "uv sync --frozen", keep = [".venv"]\n'
    'pip: [worktree] setup = "python3 -m venv .venv && .venv/bin/pip install -e .", '
    'keep = [".venv"]'
)


def _held_for(hold: HoldReason) -> str:
    return hold.reason + (f": {', '.join(hold.paths[:5])}" if hold.paths else "")


def _paused(view: View, why: str, decision: CannotJudge) -> Paused:
    verdict = decision.verdict
    detail = verdict.why or f"{verdict.check} {verdict.verdict.replace('_', ' ')}"
    return Paused(why=f"{why}: {detail}", by="gate", task=None, at=view.now)


def _fix_task(view: View, name: str, verdict: Verdict) -> Task:
    header = TaskHeader(
        id=name,
        title=f"Make {view.target_branch} green again: {verdict.check} fails",
        added_at=view.now,
        priority=100,
    )
    failing = "".join(f"- {test}\n" for test in verdict.failing[:20])
    body = (
        f"The check `{verdict.check}` fails on {view.target_branch} at {view.target}, before any "
        f"change.\n\n{failing}\nRepair the cause. Do not weaken or delete the tests.\n\n"
        f"Last lines of its output:\n\n{verdict.tail}\n"
    )
    return Task(header=header, body=body)
