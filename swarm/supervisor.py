"""One run: a gate, a loop per slot, heartbeats and sweeps, until nothing left can move.

Enters: a setting and the number of slots. Leaves: how the run ended, and why.
Guards: one event list (the ledger) that one printer reads; every thread ends; nothing of ours is
left running.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path

from msgspec.structs import replace

from swarm import process
from swarm.claim import find_claimable, find_lock
from swarm.errors import Exit, GitFault, HubUnusable, SwarmError, TargetRed
from swarm.gate import Gate
from swarm.judge import BaseRed, CannotJudge, Green
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.records import Run
from swarm.ledger.store import Draft, Ledger, refuse
from swarm.ledger.view import State, View
from swarm.liveness import Alive, beat
from swarm.loop import Idle, Loop, Seat, Setting
from swarm.notify import Notifier
from swarm.offer import Waits
from swarm.overview.disk import measure_disk
from swarm.overview.live import Live, live_path, read_live, write_live
from swarm.plumbing.hub import LEDGER
from swarm.reconcile import Report, Sweep, close_runs, rescue_leftovers, sweep
from swarm.slot import Slot
from swarm.upstream import Rewritten, Sync, SyncQueued, bring, fetch
from swarm.watch import Watch
from swarm.workspace import Workspace

GATE_SECONDS = 0.15
SWEEP_SECONDS = 15.0
ROOM_SECONDS = 120.0  # between two looks at the size of the state folder
FAULT_SECONDS = 2.0
TELL_SECONDS = 1.0  # between two questions whether a person has to be told something
LAST_WORDS = timedelta(seconds=5)  # of a run that a person stops at once; else a telling's limit


@dataclass(frozen=True)
class End:
    """How a run ended."""

    exit_code: Exit
    why: str


@dataclass
class Supervisor:
    """A run in one process.

    Safe: several may work on one hub; killed at any point, the next one ends its processes, saves
    its work and goes on.
    """

    setting: Setting
    gate: Gate
    seats: tuple[Seat, ...]  # one for each slot
    keep_going: bool = False
    loops: list[Loop] = field(default_factory=list)
    idle: Idle = field(default_factory=Idle)
    faults: list[str] = field(default_factory=list)  # what a person should read
    near: Callable[[str, tuple[str, ...]], None] | None = None  # told of near-duplicate claims
    _alive: Alive | None = None
    _wake: threading.Condition = field(default_factory=threading.Condition)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _is_still: threading.Event = field(default_factory=threading.Event)  # nothing moves any more
    _crash: BaseException | None = None
    _woken: int = 0

    @property
    def ledger(self) -> Ledger:
        return self.setting.ledger

    @property
    def team(self) -> str:
        """`claude`, or `claude:3,codex:2`."""
        counts = Counter(seat.adapter.name for seat in self.seats)
        if len(counts) == 1:
            return next(iter(counts))
        return ",".join(f"{name}:{count}" for name, count in counts.items())

    @cached_property
    def _work(self) -> Workspace:
        setting = self.setting
        return Workspace(setting.checkout, setting.config, setting.layout, setting.ledger)

    @cached_property
    def notifier(self) -> Notifier:
        return Notifier(self._work, self.setting.runner, self.faults.append, self.setting.run)

    def heal(self) -> Report:
        """What dead runners left: runs closed, processes ended, work saved, claims expired."""
        close_runs(self.ledger, self.setting.layout)
        return sweep(self.ledger, self._sweep())

    def _sweep(self) -> Sweep:
        setting = self.setting
        grace = setting.config.limits.grace
        return Sweep(setting.layout, setting.rules, setting.bounds, grace, setting.checkout)

    def sync_first(
        self,
        on_wait: Callable[[], None] | None = None,
        is_unwanted: Callable[[], bool] | None = None,
    ) -> Sync | None:
        """Bring upstream in before the first agent starts, and wait for the gate's word on it.

        `is_unwanted` is asked now and then while the remote is spoken to; its yes ends that.

        None: it could not be looked at, which is noted; the run goes on with what there is.
        """
        self._live()
        answer = self._sync(is_unwanted or self._is_over.is_set)
        task = answer.entry.task if isinstance(answer, SyncQueued) else None
        if isinstance(answer, Waits):  # an earlier one may be queued still
            task = answer.task
        while task is not None and self.ledger.view().state(task) is State.QUEUED:
            is_more = self.gate.tick()
            self._take_notes()
            if self.gate.claim is None:
                break  # another runner's gate lands it
            if not is_more:
                if self.gate.job is None and not self.gate.can_take(self.ledger.view(), task):
                    break
                time.sleep(0.02)
            if on_wait is not None:
                on_wait()
        return answer

    def _sync(self, is_unwanted: Callable[[], bool]) -> Sync | None:
        try:
            fetched = fetch(self._work, is_unwanted)
            answer = bring(self._work, fetched, is_unwanted=is_unwanted)
        except (SwarmError, OSError) as error:  # OSError: a disk is full
            if not is_unwanted():
                self._note(error)
            return None
        if isinstance(answer, Rewritten):
            line = f"{answer.says(self.ledger.branch)}: swarm sync"
            if line not in self.faults:  # said once, not each time that upstream is looked at
                self.faults.append(line)
        return answer

    def judge_target(self, on_wait: Callable[[], None] | None = None) -> Green | None:
        """Take the target's own verdict before the first agent; None: another runner is the gate.

        Raises:
            TargetRed: a check fails on the target, or cannot run there.
        """
        self._live()  # killed during the check, the next run must see at once that the gate is free
        while True:
            self.gate.tick()
            self._take_notes()
            if self.gate.claim is None:
                return None
            known = self.gate.target_verdict
            if known is not None:
                break
            if on_wait is not None:
                on_wait()
            time.sleep(0.02)
        if not isinstance(known[1], Green):
            self.notifier.last_look()  # it may well be refused, and nobody be there to read that
        match known[1]:
            case Green():
                return known[1]
            case BaseRed(verdict):
                raise TargetRed(
                    f"{self.ledger.branch} {known[0][:7]} is red: {verdict.check} failed",
                    why="\n".join(verdict.failing[:10]) or verdict.tail[-500:],
                    hint=f"less {self.setting.layout.root / (verdict.log or '')}\n"
                    "fix it, name another check in swarm.toml, or: swarm run --allow-red",
                )
            case CannotJudge(verdict):
                code = verdict.runs[-1].exit_code if verdict.runs else None
                why = verdict.why or f"{verdict.verdict.replace('_', ' ')}, exit code {code}"
                raise TargetRed(
                    f"check {verdict.check} cannot judge {self.ledger.branch} {known[0][:7]}",
                    why=f"{why}\n{verdict.tail[-500:]}".strip(),
                    hint="is the command in swarm.toml right? does it need [worktree] setup?",
                )

    def run(self, on_tick: Callable[[], None]) -> End:
        """Work until nothing left can move without a person, or until told to stop.

        `on_tick` is called from this thread, a few times a second: the printer.

        Raises:
            SwarmError: the hub is gone or unusable; everything of ours has ended by then.
        """
        alive = self._live()
        watch: Watch | None = None
        threads: list[threading.Thread] = []
        teller = threading.Thread(target=self._guarded, args=(self._notify_thread,), name="notify")
        try:
            self._start_run()
            self._take_slots()
            if self.gate.target_verdict is not None:
                self.gate.tick()  # a red target opens its repair before anything is claimed
            with contextlib.suppress(OSError):  # no inotify left: polling does it alone
                watch = Watch(self.ledger.hub.path, self.wake)
            threads = [
                threading.Thread(target=self._guarded, args=(self._gate_thread,), name="gate"),
                threading.Thread(target=self._guarded, args=(self._keeper_thread,), name="keeper"),
                *(
                    threading.Thread(
                        target=self._guarded, args=(self._loop_thread, loop), name=loop.slot.name
                    )
                    for loop in self.loops
                ),
            ]
            every = self.setting.config.upstream.every
            if every is not None:
                body = partial(self._sync_thread, every)
                threads.append(threading.Thread(target=self._guarded, args=(body,), name="sync"))
            for thread in threads:
                thread.start()
            if self.notifier.is_on:
                teller.start()
            end = self._watch_over(on_tick)
        finally:
            self._is_over.set()
            for loop in self.loops:
                if loop.attempt is not None and self._crash is not None:
                    self.idle.is_draining = self.idle.is_stopping = True
                    loop.stop("stopped")
            self.wake()
            for thread in threads:
                thread.join()
            self.notifier.hurry(LAST_WORDS if self.idle.is_stopping else None)
            self._is_still.set()
            if teller.ident is not None:
                teller.join()
            if watch is not None:
                watch.close()
            for loop in self.loops:
                try:
                    loop.let_go()
                except (SwarmError, OSError) as error:
                    self._note(error)
                loop.slot.close()
            with contextlib.suppress(SwarmError):
                self.gate.close()
            on_tick()
        if self._crash is not None:
            raise self._crash
        self._end_run(end)
        alive.close()
        return end

    def _live(self) -> Alive:
        if self._alive is None:
            self._alive = Alive(self.setting.layout.runs, self.setting.runner)
        return self._alive

    def drain(self) -> None:
        """No new claims; what runs may finish."""
        self.idle.is_draining = True
        self.wake()

    def stop_now(self) -> None:
        """End every attempt: its processes are killed, its work is saved, its claim given back."""
        self.idle.is_draining = self.idle.is_stopping = True
        for loop in self.loops:
            loop.stop("stopped")
        self.wake()

    def wake(self) -> None:
        """Something moved: whoever sleeps looks again."""
        with self._wake:
            self._woken += 1
            self._wake.notify_all()

    def _sleep(self, seconds: float, seen: int) -> None:
        with self._wake:
            if self._woken == seen:
                self._wake.wait(seconds)

    # Threads

    def _guarded(self, body: Callable[..., None], *args: object) -> None:
        try:
            body(*args)
        except BaseException as error:  # noqa: BLE001  # re-raised by `run` in the main thread
            self._crash = self._crash or error
            self._is_over.set()
            self.wake()

    def _gate_thread(self) -> None:
        while not self._is_over.is_set():
            seen = self._woken
            try:
                is_more = self.gate.tick()
                self._take_notes()
            except (GitFault, HubUnusable) as error:
                self._note(error)
                self.gate.abandon()
                self._sleep(FAULT_SECONDS, self._woken)
                continue
            if is_more:
                continue
            running = self.gate.job.running if self.gate.job is not None else None
            if running is not None and running.child is not None:
                _wait_child(running.child, GATE_SECONDS)
            else:
                self._sleep(1.0, seen)

    def _loop_thread(self, loop: Loop) -> None:
        while True:
            if self._is_over.is_set() and not loop.is_busy:
                return
            seen = self._woken
            try:
                seconds = loop.tick()
            except (GitFault, HubUnusable) as error:
                self._note(error)
                seconds = FAULT_SECONDS
                time.sleep(0.2)
            if seconds <= 0:
                continue
            child = loop.attempt.child if loop.attempt is not None else None
            if child is not None:
                _wait_child(child, seconds)
            else:
                self._sleep(seconds, seen)

    def _keeper_thread(self) -> None:
        """Beats every third of the lease; sweeps now and then."""
        period = self.setting.terms.lease.total_seconds() / 3
        next_beat = next_sweep = next_look = 0.0
        while not self._is_over.is_set():
            now = time.monotonic()
            if now >= next_beat:
                beat(self.ledger.hub, self.setting.runner, self.ledger.clock)
                next_beat = now + period
            if now >= next_sweep:
                try:
                    sweep(self.ledger, self._sweep(), own=[loop.slot for loop in self.loops])
                except SwarmError as error:
                    self._note(error)
                next_sweep = now + min(SWEEP_SECONDS, period)
            if now >= next_look:
                try:
                    self._keep_cap()
                except (SwarmError, OSError) as error:
                    self._note(error)
                next_look = now + ROOM_SECONDS
            self._is_over.wait(min(next_beat, next_sweep) - now)

    def _notify_thread(self) -> None:
        """Tells a person what needs them; the last look comes when nothing moves any more."""
        while not self._is_over.is_set():
            seen = self._woken
            self.notifier.look(self._is_over.is_set)
            self._sleep(TELL_SECONDS, seen)
        self._is_still.wait()
        if self._crash is None:
            self._write_stopped()
            self.notifier.last_look()

    def _write_stopped(self) -> None:
        """Why nobody claims any more, where whoever looks reads it: the printer may be behind."""
        setting, why = self.setting, self.idle.stuck or ""
        path, now = live_path(setting.layout, setting.run), self.ledger.clock.now()
        live = read_live(path) or Live(run=setting.run, runner=setting.runner, at=now)
        if live.stopped != why:
            write_live(path, replace(live, at=now, stopped=why), None)

    def _sync_thread(self, every: timedelta) -> None:
        """Looks at upstream now and then; its change goes through the gate like any other."""
        while not self._is_over.wait(every.total_seconds()):
            self._sync(self._is_over.is_set)

    def _keep_cap(self) -> None:
        """Above `max_total` idle worktrees are removed: of free slots here, of loops by themselves.

        Raises:
            SwarmError: what lies in a slot cannot be saved, so it stays.
        """
        setting = self.setting
        most = setting.config.worktree.max_total
        self.idle.is_over_cap = (measure_disk(setting.layout) or 0) > most
        if not self.idle.is_over_cap:
            return
        for record in sorted(setting.layout.slots.glob("*.json"), key=_modified_at):
            slot = Slot.take(setting.layout.slots, record.stem, self.ledger.hub)
            if slot is None:
                continue
            with contextlib.closing(slot):
                if not _is_claimed(self.ledger.view(), slot):
                    rescue_leftovers(self.ledger, slot, setting.rules)
                    slot.remove()
            if (measure_disk(setting.layout) or 0) <= most:
                self.idle.is_over_cap = False
                return

    def _take_notes(self) -> None:
        """What the gate has to say goes where faults do: the printer says it."""
        notes = self.gate.notes
        self.faults += notes
        notes.clear()

    def _note(self, error: SwarmError | OSError) -> None:
        line = str(error)
        if isinstance(error, SwarmError) and error.why:
            line = f"{error.what}: {error.why}"
        if line not in self.faults[-5:]:
            self.faults.append(line)

    # Start and end

    def _take_slots(self) -> None:
        number = 0
        while len(self.loops) < len(self.seats):
            number += 1
            slot = Slot.take(self.setting.layout.slots, f"s{number}", self.ledger.hub)
            if slot is None:
                continue
            if standing := process.find_standing(slot.tree):
                pids = " ".join(map(str, standing))
                self.faults.append(
                    f"slot {slot.name} is passed over: unknown processes work in it: {pids}"
                )
                slot.close()
                continue
            loop = Loop(self.setting, slot, self.idle, self.seats[len(self.loops)])
            loop.near = self.near
            self.loops.append(loop)

    def _start_run(self) -> None:
        setting = self.setting

        def decide(view: View) -> Draft[None]:
            if view.run(setting.run) is not None:
                return refuse(None)
            run = Run(
                run=setting.run,
                runner=setting.runner,
                host=socket.gethostname(),
                pid=os.getpid(),
                boot_id=self.ledger.clock.boot_id(),
                slots=len(self.seats),
                adapter=self.team,
                started_at=view.now,
                started_monotonic_seconds=self.ledger.clock.monotonic(),
                config_digest=setting.config.digest,
                limits=setting.terms.run.as_dict(),
                state="running",
            )
            event = Event(
                "run-started",
                f"{setting.run}: {len(self.seats)} slots of {self.team}.",
                {records.run_path(setting.run): records.encode(run)},
                trailers={"Swarm-Run": setting.run, "Swarm-Config": setting.config.digest[:12]},
            )
            return Draft((event,), None)

        self.ledger.append(decide)

    def _end_run(self, end: End) -> None:
        name = self.setting.run

        def decide(view: View) -> Draft[None]:
            now = view.run(name)
            if now is None or now.state == "ended":
                return refuse(None)
            ended = replace(
                now,
                state="ended",
                ended_at=view.now,
                why=end.why,
                exit_code=int(end.exit_code),
            )
            event = Event(
                "run-ended",
                f"{name}: {end.why}",
                {records.run_path(name): records.encode(ended)},
                trailers={"Swarm-Run": name, "Swarm-Exit": str(int(end.exit_code))},
            )
            return Draft((event,), None)

        self.ledger.append(decide)

    def _watch_over(self, on_tick: Callable[[], None]) -> End:
        quiet_at: str | None = None
        while True:
            on_tick()
            if self._crash is not None:
                return End(Exit.BUG, "a thread failed")
            if self.idle.is_draining and not any(loop.is_busy for loop in self.loops):
                return End(Exit.INTERRUPTED, "stopped by a person")
            tip = self.ledger.hub.reader.ref(LEDGER) or ""
            if self._is_quiet(tip):
                if quiet_at == tip:  # twice the same: nobody is about to move
                    return self._ended()
                quiet_at = tip
            else:
                quiet_at = None
            time.sleep(0.1)

    def _is_quiet(self, tip: str) -> bool:
        """Nobody is at work, nothing can be claimed on this very tip, and nothing else can move."""
        if self.keep_going or any(loop.is_busy for loop in self.loops) or self.gate.job is not None:
            return False
        view = self.ledger.view()
        return view.tip == tip and not self._can_move(view)

    def _can_move(self, view: View) -> bool:
        if view.landing() is not None or self.gate.has_unread(view):
            return True
        # What a damaged record belongs to is judged, expired and landed by nobody.
        for entry in view.entries():
            if self.gate.can_take(view, entry.task) and view.why_damaged(entry.task) is None:
                return True
        queued = {entry.task for entry in view.entries()}
        for lock in view.locks():
            is_ours = lock.task not in queued and lock.adapter != "hand"
            if is_ours and view.why_damaged(lock.task) is None:
                return True
        if self.idle.stuck is not None:
            return False
        usable = {loop.role for loop in self.loops if self._is_usable(loop)}
        if not usable:
            return False
        # One view and one moment for both: a back-off that ends between two looks is seen by one.
        now = view.now.timestamp()
        if any(
            row.unmet == 0
            and row.retry_at is not None
            and row.retry_at > now
            and row.role in ("", *usable)
            for row in self.ledger.index.rows(view, State.OPEN)
        ):
            return True
        return any(
            find_claimable(self.ledger, view, role, self.setting.terms) is not None
            for role in usable
        )

    def _is_usable(self, loop: Loop) -> bool:
        """Has the slot an agent that somebody is logged in to, and that may start before long?"""
        fallback = self.setting.fallback
        names = {loop.seat.adapter.name, *([fallback.adapter.name] if fallback else [])}
        return any(
            name not in self.idle.logins and not self._is_limited_for_long(name) for name in names
        )

    def _is_limited_for_long(self, adapter: str) -> bool:
        """Does its provider's limit end later than a run waits?"""
        breaker, most = self.idle.breaker, self.setting.config.limits.provider
        now = self.ledger.clock.now()
        limit = breaker.find(adapter, now) if breaker is not None else None
        return limit is not None and most is not None and limit.until - now > most

    def _limits_for_long(self) -> str | None:
        """The limits for which slots do not go on, in words; None: there are none."""
        names = sorted(name for name in self.idle.adapters if self._is_limited_for_long(name))
        if not names or self.idle.breaker is None:
            return None
        now = self.ledger.clock.now()
        limits = {name: self.idle.breaker.find(name, now) for name in names}
        said = (f"{n} until {one.until.astimezone():%a %H:%M}" for n, one in limits.items() if one)
        return f"provider limit: {', '.join(said)}"

    def _ended(self) -> End:
        view = self.ledger.view()
        counts = self.ledger.index.counts(view)
        left = sum(
            count
            for state, count in counts.items()
            if state not in (State.LANDED.value, State.CANCELLED.value)
        )
        if not left:
            return End(Exit.YES, "all landed")
        if self.idle.over_budget:
            return End(Exit.BUDGET, f"budget used up: {self.idle.over_budget}")
        if self.idle.is_logged_out and self.idle.stuck is not None:
            return End(Exit.LIMITED, self.idle.stuck)
        if self.idle.stuck is not None:
            return End(Exit.NO, self.idle.stuck)
        gate = view.gate()
        if gate is not None and gate.paused is not None:
            if gate.paused.by == "person":
                return End(Exit.NO, f"paused: {gate.paused.why}")
            return End(Exit.TARGET_RED, gate.paused.why)
        if counts.get(State.OPEN.value) and (why := self._limits_for_long()) is not None:
            return End(Exit.LIMITED, why)
        return End(Exit.NO, "nothing left that can move")


def _modified_at(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _is_claimed(view: View, slot: Slot) -> bool:
    """Does a live claim, by hand perhaps, work in this slot?"""
    occupant = slot.occupant()
    lock = find_lock(view, occupant.task) if occupant is not None else None
    return lock is not None and occupant is not None and lock.nonce == occupant.nonce


def _wait_child(child: process.Child, seconds: float) -> None:
    """Sleep until the child ends or the time is over."""
    with contextlib.suppress(ValueError, OSError):
        select.select([child.fileno()], [], [], seconds)
