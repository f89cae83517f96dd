"""One slot's loop: claim, open, set up, run the agent, seal or give back.

Enters: a run's setting and a slot. Leaves: events of the ledger.
Guards: no attempt ends without its processes gone and its work saved; a fenced loop writes nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from swarm import adapter as adapters
from swarm import environment, faults, launch, process, request, sandbox
from swarm.change import (
    NoWork,
    Rules,
    Sealed,
    Unresolved,
    capture,
    save,
    seal,
    take_commits,
)
from swarm.check import unmark_setup
from swarm.claim import (
    AlreadyHolding,
    Answer,
    Claimed,
    Ending,
    Fenced,
    Mine,
    NothingClaimable,
    Terms,
    Who,
    acquire,
    check_fence,
    find_claim,
    release,
)
from swarm.config import Config
from swarm.errors import GitFault, HubUnusable, SwarmError
from swarm.files import tail_of
from swarm.ids import new_nonce, parse_duration
from swarm.layout import Layout
from swarm.ledger import records
from swarm.ledger.outcome import Bounds
from swarm.ledger.records import Outcome, Task
from swarm.ledger.store import Ledger
from swarm.ledger.view import View
from swarm.opening import Ground, Opening, Setup, open_slot
from swarm.plumbing.hub import LEDGER
from swarm.pulse import Pulse
from swarm.reconcile import rescue_leftovers
from swarm.slot import Occupant, Slot
from swarm.task import LateEdits

Stage = Literal["idle", "setup", "working", "ended"]
IDLE_SECONDS = 1.0
POLL_SECONDS = 0.2
LOOK_SECONDS = 1.0  # between two looks at the fence while the ledger moves
TAIL_BYTES = 1500
MAX_SETUP_FAILURES = 2
MAX_FAULTS = 5
MAX_TRIES = 6  # at saving an attempt's work, over half a minute
FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 30.0
QUICK_SECONDS = 5.0  # an attempt that fails sooner did not work
GAP_SECONDS = 1.0  # then before the next start in its slot; doubles
MAX_GAP_SECONDS = 5.0


@dataclass(frozen=True)
class Setting:
    """What every loop of a run shares."""

    ledger: Ledger
    layout: Layout
    config: Config
    checkout: Path
    run: str
    runner: str
    adapter: adapters.Adapter
    argv_extra: tuple[str, ...]  # the words after `--`
    typed_in: Path
    rules: Rules
    bounds: Bounds
    terms: Terms
    copies: tuple[str, ...]  # ignored files of the checkout that every worktree gets
    user_excludes: str
    template: str | None
    late_edits: LateEdits | None = None
    model: str | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @property
    def ground(self) -> Ground:
        """What every worktree of the run is made from."""
        hub, copies = self.ledger.hub, self.copies
        return Ground(hub, self.config, self.checkout, copies, self.user_excludes, self.environ)


@dataclass
class Idle:
    """What the loops of a run know together, so that one look for work serves them all."""

    nothing_at: dict[str, tuple[str, float]] = field(default_factory=dict)  # role -> tip, until
    setup_failures: int = 0  # in a row
    faults: int = 0  # of ours or of the machine, in a row
    trouble: str = ""  # the last of either
    is_draining: bool = False
    is_stopping: bool = False  # attempts that are only being opened end too
    is_over_cap: bool = False  # `max_total`: idle worktrees are removed
    login_hint: str | None = None  # the adapter cannot go on until a person logs in
    limits: int = 0  # provider limits in a row
    limited_until: float = 0.0  # monotonic: no claims before

    @property
    def stuck(self) -> str | None:
        """Why nobody claims any more until a person acts; None when claims go on."""
        if self.login_hint:
            return f"not logged in: {self.login_hint}"
        if self.setup_failures >= MAX_SETUP_FAILURES:
            return f"setup failed {self.setup_failures} times in a row: {self.trouble}"
        if self.faults >= MAX_FAULTS:
            return f"{self.faults} faults in a row: {self.trouble}"
        return None

    def note_limit(self, first: timedelta, most: timedelta) -> None:
        """The provider said no: all loops pause, longer each time, until an attempt succeeds."""
        self.limits += 1
        span = min(first * 2 ** min(self.limits - 1, 30), most)
        self.limited_until = time.monotonic() + max(span.total_seconds(), GAP_SECONDS)


@dataclass
class Attempt:
    """One claim being worked on."""

    claimed: Claimed
    mine: Mine
    task: Task
    folder: Path
    mark: str
    started: float  # monotonic
    tmpdir: Path | None = None
    occupant: Occupant | None = None  # as opening and setup left it
    setup: Setup | None = None  # at work
    child: process.Child | None = None
    ended: process.Ended | None = None
    ending: Ending | None = None  # decided, and not written yet
    tries: int = 0  # at concluding it
    retry_at: float = 0.0
    stopping: Outcome | None = None  # why we end it
    wanted: request.Wanted | None = None  # what was asked of it
    tip: str | None = None  # of the ledger, when the fence was last looked at
    next_look: float = 0.0
    next_beat: float = 0.0
    pulse: Pulse | None = None  # of the agent itself, once it is started


class Loop:
    """One slot's loop. `tick` does one bounded step and returns how long nothing will happen."""

    def __init__(self, setting: Setting, slot: Slot, idle: Idle, role: str = "") -> None:
        self.setting = setting
        self.slot = slot
        self.idle = idle
        self.role = role
        self.stage: Stage = "idle"
        self.attempt: Attempt | None = None
        self.why_idle = ""
        self.trouble: str = ""  # the last fault of ours, for status
        self.near: Callable[[str, tuple[str, ...]], None] | None = None
        self._who: Who | None = None  # of a claim whose answer was lost
        self._not_before = 0.0  # monotonic: no claim
        self._quick_failures = 0  # in a row
        self._is_furnished = False  # teardown has something to take down

    def tick(self) -> float:
        """One step; seconds until the next one is useful (an ended child or a wake comes first)."""
        if self.stage in ("setup", "working"):
            self._heed()
        match self.stage:
            case "idle":
                return self._claim()
            case "setup":
                return self._poll_setup()
            case "working":
                return self._poll_agent()
            case "ended":
                return self._finish()

    def stop(self, why: Outcome = "stopped", *, now: bool = True) -> None:
        """End the attempt's processes; the next ticks save its work and give the claim back."""
        attempt = self.attempt
        if attempt is None:
            return
        attempt.stopping = attempt.stopping or why
        if attempt.child is not None:
            if now:
                attempt.child.kill_now(why)
            else:
                attempt.child.stop(why)

    @property
    def is_busy(self) -> bool:
        return self.attempt is not None or self.stage != "idle"

    def _heed(self) -> None:
        """The agent may have asked a question or given up, a person may have asked to stop this
        attempt or ended its claim (a cancelled task).
        """
        attempt = self._now()
        if self.idle.is_stopping and attempt.stopping is None:
            self.stop("stopped")
        wanted = request.find_wanted(self.setting.layout, attempt.claimed.lock)
        if wanted is not None and wanted != attempt.wanted:
            attempt.wanted = wanted
            self.stop(wanted.outcome, now=wanted.is_now)
        now = time.monotonic()
        tip = self.setting.ledger.hub.reader.ref(LEDGER)
        if tip == attempt.tip or now < attempt.next_look or attempt.child is None:
            return
        attempt.tip, attempt.next_look = tip, now + LOOK_SECONDS
        if check_fence(self.setting.ledger.view(), attempt.mine) is not None:
            self.stop("stopped")

    # Claim and open

    def _claim(self) -> float:
        idle, now = self.idle, time.monotonic()
        if idle.is_over_cap and self.slot.record.exists():
            self._make_room()
        if idle.is_draining or idle.stuck is not None:
            self.why_idle = idle.stuck or "draining"
            return IDLE_SECONDS
        wait = max(idle.limited_until, self._not_before) - now
        if wait > 0:
            self.why_idle = "the last attempt failed at once"
            if idle.limited_until > self._not_before:
                until = datetime.now().astimezone() + timedelta(seconds=wait)
                self.why_idle = f"provider limit; next try {until:%H:%M:%S}"
            return min(wait, IDLE_SECONDS)
        tip = self.setting.ledger.hub.reader.ref(LEDGER) or ""
        known = idle.nothing_at.get(self.role)
        if known is not None and known[0] == tip and now < known[1]:
            return IDLE_SECONDS
        # Kept when acquiring raises: its answer may be lost and the claim written.
        self._who = self._who or Who(
            runner=self.setting.runner,
            adapter=self.setting.adapter.name,
            role=self.role,
            slot=self.slot.name,
            run=self.setting.run,
        )
        answer = self._acquire(self._who)
        self._who = None
        if isinstance(answer, AlreadyHolding):
            answer = find_claim(self.setting.ledger, answer.task) or answer
        if isinstance(answer, Claimed):
            self.why_idle = ""
            self._open(answer)
            return 0.0
        if isinstance(answer, NothingClaimable):
            self.why_idle = _why_nothing(answer)
            idle.nothing_at[self.role] = (tip, time.monotonic() + IDLE_SECONDS)
        return IDLE_SECONDS

    def _acquire(self, who: Who) -> Answer:
        setting = self.setting
        if not setting.late_edits:
            return acquire(setting.ledger, who, setting.terms)
        with setting.ledger.hub.turn.held():
            setting.late_edits.take(setting.ledger)
            return acquire(setting.ledger, who, setting.terms)

    def _open(self, claimed: Claimed) -> None:
        setting, lock = self.setting, claimed.lock
        folder = setting.layout.attempt(setting.run, lock.task, lock.token)
        view = setting.ledger.view()
        task = view.task(lock.task)
        assert task is not None
        attempt = Attempt(
            claimed,
            Mine.of(lock),
            task,
            folder,
            f"{setting.runner}.{lock.agent}.{new_nonce()[:12]}",
            time.monotonic(),
        )
        self.attempt = attempt
        if claimed.near and self.near is not None:
            self.near(lock.task, claimed.near)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            attempt.tmpdir = Path(tempfile.mkdtemp(prefix="swarm-"))
            self._clear_slot()
            opening = open_slot(setting.ground, self.slot, Occupant.of(lock), task.header.paths)
            attempt.occupant = self.slot.occupant()
            if not self._start_setup(attempt, opening):
                self._start_agent(attempt, view)
        except (SwarmError, OSError) as error:
            self._give_back(attempt, error)

    def _clear_slot(self) -> None:
        """
        Raises:
            GitFault: what lies in the slot cannot be saved. It is left alone, and the next claim
                gets another slot.
        """
        try:
            rescue_leftovers(self.setting.ledger, self.slot, self.setting.rules)
        except GitFault:
            self._set_slot_aside()
            raise

    def _set_slot_aside(self) -> None:
        kept = self.slot
        self.slot = Slot.take_free(kept.folder, "s", kept.hub)
        self._is_furnished = False
        kept.close()

    def _make_room(self) -> None:
        """Remove the idle worktree; work that is not saved elsewhere is saved first."""
        try:
            rescue_leftovers(self.setting.ledger, self.slot, self.setting.rules)
            self.let_go()
            self.slot.remove()
        except (SwarmError, OSError) as error:
            self._note(error)

    def _note(self, error: SwarmError | OSError) -> None:
        self.trouble = self.idle.trouble = _says(error)

    def _give_back(self, attempt: Attempt, error: SwarmError | OSError) -> None:
        """A fault of ours or of the environment: no strike, the claim is released at once."""
        self._note(error)
        self.idle.faults += 1
        self._end_with(attempt, Ending("setup_failed", _says(error)))

    def _end_with(self, attempt: Attempt, ending: Ending) -> None:
        """Nothing is left to save: the next tick gives the claim back, and the next if it fails."""
        attempt.ending = ending
        self.stage = "ended"

    # Setup

    def _start_setup(self, attempt: Attempt, opening: Opening) -> bool:
        attempt.setup = opening.begin_setup(
            log=attempt.folder / "setup.log",
            mark=attempt.mark,
            tmpdir=_made(attempt.tmpdir),
            home=self._home(),
        )
        if attempt.setup is None:
            return False
        attempt.child = attempt.setup.child
        self._is_furnished = True
        self.stage = "setup"
        return True

    def _home(self) -> Path | None:
        return launch.private_home(self.setting.layout, self.setting.config, self.slot)

    def _poll_setup(self) -> float:
        attempt = self._now()
        assert attempt.setup is not None and attempt.child is not None
        ended = attempt.child.poll()
        if ended is None:
            return POLL_SECONDS
        attempt.child = None
        try:
            how = attempt.setup.finish(ended)
            attempt.occupant = self.slot.occupant()
            if attempt.stopping is not None:
                ending = Ending(attempt.stopping, "stopped during setup")
                self._end_with(attempt, attempt.wanted.ending() if attempt.wanted else ending)
            elif how is not None:
                tail = _tail(attempt.folder / "setup.log")
                self.idle.setup_failures += 1
                self.trouble = self.idle.trouble = how
                ending = Ending("setup_failed", f"setup failed: {how}", tail, ended.exit_code)
                self._end_with(attempt, ending)
            else:
                self.idle.setup_failures = 0
                self._start_agent(attempt, self.setting.ledger.view())
        except (SwarmError, OSError) as error:
            self._give_back(attempt, error)
        return 0.0

    # The agent

    def _start_agent(self, attempt: Attempt, view: View) -> None:
        lock = attempt.claimed.lock
        attempt.child = launch.start(self._launch(attempt, view))
        attempt.next_beat = time.monotonic() + lock.lease_seconds / 3
        attempt.pulse = Pulse(
            attempt.child,
            self.slot.tree,
            self.setting.config.limits,
            time.monotonic(),
            is_stream=self.setting.adapter.output.format == "jsonl",
        )
        self.idle.faults = 0
        self._is_furnished = True
        self.stage = "working"
        if attempt.stopping is not None:  # asked for while there was nothing to end
            attempt.child.kill_now(attempt.stopping)
        faults.reach("agent.after_start")

    def _launch(self, attempt: Attempt, view: View) -> launch.Launch:
        setting, task = self.setting, attempt.task
        timeout = task.header.timeout
        return launch.Launch(
            adapter=setting.adapter,
            permission=setting.config.run.permission,
            model=setting.model,
            argv_extra=setting.argv_extra,
            typed_in=setting.typed_in,
            environ=setting.environ,
            config=setting.config,
            checkout=setting.checkout,
            slot=self.slot,
            text=launch.task_prompt(
                view,
                setting.config,
                setting.template,
                self.slot,
                task,
                attempt.mine.token,
                attempt.claimed.attempts,
            ),
            task_text=records.encode_task(task),
            folder=attempt.folder,
            mark=attempt.mark,
            tmpdir=_made(attempt.tmpdir),
            home=self._home(),
            task=attempt.mine.task,
            attempt=attempt.mine.token,
            run=setting.run,
            target=setting.ledger.branch,
            time_limit=parse_duration(timeout) if timeout else setting.config.limits.attempt,
            question_folder=request.question_folder(setting.layout, setting.run, attempt.mine.task),
        )

    def _poll_agent(self) -> float:
        attempt = self._now()
        assert attempt.child is not None
        if attempt.child.poll() is not None:
            self.stage = "ended"
            return 0.0
        now = time.monotonic()
        if now >= attempt.next_beat:
            attempt.next_beat = now + attempt.claimed.lock.lease_seconds / 3
            if check_fence(self.setting.ledger.view(), attempt.mine) is not None:
                attempt.child.kill_now("fenced")
            else:
                with contextlib.suppress(SwarmError):  # renewal fails open
                    take_commits(self.setting.ledger, self.slot, attempt.mine)
        self._watch_life(attempt, now)
        return POLL_SECONDS

    def _watch_life(self, attempt: Attempt, now: float) -> None:
        if attempt.stopping is not None or attempt.pulse is None or attempt.child is None:
            return
        why = attempt.pulse.look(now)
        if why is not None:
            attempt.stopping = "silent"
            attempt.child.stop(why)

    # The end

    def _finish(self) -> float:
        """Save, seal or give back. What fails is tried again; the claim stands meanwhile."""
        attempt = self._now()
        wait = attempt.retry_at - time.monotonic()
        if wait > 0:
            return wait
        try:
            if attempt.ending is not None:
                self._release(attempt, attempt.ending)
            else:
                self._conclude(attempt, self._ended(attempt))
        except (SwarmError, OSError) as error:
            self._note(error)
            attempt.tries += 1
            span = min(FIRST_RETRY_SECONDS * 2 ** (attempt.tries - 1), MAX_RETRY_SECONDS)
            attempt.retry_at = time.monotonic() + span
            if attempt.tries >= MAX_TRIES:
                self._give_up(attempt, error)
        return 0.0

    def _ended(self, attempt: Attempt) -> process.Ended:
        if attempt.ended is None:
            assert attempt.child is not None
            attempt.ended = attempt.child.poll()
            faults.reach("seal.after_tree_ended")
        assert attempt.ended is not None
        return attempt.ended

    def _give_up(self, attempt: Attempt, error: SwarmError | OSError) -> None:
        """The work cannot be taken out of the slot: it stays there, and the claim goes back.

        While the hub itself is away the claim stands. A run that ends leaves it behind: its runner
        is gone then, and anyone may expire the claim and save the slot.
        """
        if attempt.ending is not None or isinstance(error, HubUnusable):
            if self.idle.is_draining:
                self._forget(attempt)  # what was asked of it is for whoever ends its claim
            return
        self.idle.faults += 1
        says = f"its work is kept in slot {self.slot.name}: {_says(error)}"
        wanted = attempt.wanted
        attempt.ending = wanted.ending(note=says) if wanted else Ending("stopped", says)
        attempt.retry_at = 0.0
        self._set_slot_aside()

    def _conclude(self, attempt: Attempt, ended: process.Ended) -> None:
        setting = self.setting
        occupant = attempt.occupant
        assert occupant is not None
        self.slot.put_record(occupant)  # whatever the agent did to it: we hold the slot
        if check_fence(setting.ledger.view(), attempt.mine) is not None:
            rescue_leftovers(setting.ledger, self.slot, setting.rules)
            self._reset(attempt)
            return
        # Once more: the agent's word may have come with the end.
        wanted = request.find_wanted(setting.layout, attempt.claimed.lock) or attempt.wanted
        attempt.wanted = wanted
        outcome, message = self._judge(attempt, ended)
        captured = capture(self.slot, occupant, setting.rules)
        if outcome is None and captured.malformed:
            outcome, message = "agent_failed", captured.refusal
        if outcome is None:
            answer = seal(setting.ledger, self.slot, attempt.mine, captured, setting.rules)
            match answer:
                case Sealed():
                    self.slot.is_saved = True
                    self.idle.limits = self._quick_failures = 0
                    self._reset(attempt)
                    return
                case Fenced():  # its work ref did not move: keep it before the next claim
                    rescue_leftovers(setting.ledger, self.slot, setting.rules)
                    self._reset(attempt)
                    return
                case NoWork():
                    self.slot.is_saved = True
                    self._pause_after(attempt, ended)
                    self._release(
                        attempt,
                        Ending("no_work", "ended without a commit or a changed file"),
                    )
                    return
                case Unresolved(paths, _, kept):
                    named = ", ".join(paths[:5])
                    ending = Ending(
                        "unresolved",
                        f"conflict left in {named}",
                        paths=paths,
                        work=kept.work,
                        moves=kept.moves,
                    )
                    self.slot.is_saved = self._release(attempt, ending)
                    return
        if outcome == "provider_limit":
            self.idle.note_limit(setting.bounds.backoff, setting.bounds.backoff_max)
        elif outcome not in ("stopped", "asked"):
            self._pause_after(attempt, ended)
        saved = save(setting.ledger, self.slot, attempt.mine.task, attempt.mine.token, captured)
        if outcome == "asked" and wanted is not None:
            ending = wanted.ending(
                note=captured.refusal,
                paths=captured.unresolved,
                work=saved.work,
                moves=saved.moves,
            )
            self.slot.is_saved = self._release(attempt, ending)
            return
        left = captured.uncommitted + captured.untracked
        if saved.work is not None:
            files = f", {left} file{'s' if left > 1 else ''} saved" if left else ""
            message += f"; kept{files}"
        self.slot.is_saved = self._release(
            attempt,
            Ending(
                outcome,
                message,
                captured.malformed
                or _tail(attempt.folder / "stderr.log")
                or _tail(attempt.folder / "transcript.jsonl"),
                ended.exit_code,
                captured.unresolved,
                saved.work,
                saved.moves,
            ),
        )

    def _pause_after(self, attempt: Attempt, ended: process.Ended) -> None:
        """Agents that fail at once are not started again at once, whatever task comes next."""
        if ended.seconds >= QUICK_SECONDS:
            self._quick_failures = 0
            return
        self._quick_failures += 1
        span = min(GAP_SECONDS * 2 ** (self._quick_failures - 1), MAX_GAP_SECONDS)
        self._not_before = time.monotonic() + span

    def _judge(self, attempt: Attempt, ended: process.Ended) -> tuple[Outcome | None, str]:
        """(None, "") when the agent says that it is done; else the outcome and a sentence."""
        if attempt.wanted is not None and attempt.wanted.is_agents:
            return attempt.wanted.outcome, attempt.wanted.says  # however it ended then
        left = f"; {ended.killed} processes ended, {len(ended.survivors)} left"
        is_stopped = ended.stopped is not None  # else it ended by itself just before
        if attempt.stopping == "silent" and is_stopped:
            limits = self.setting.config.limits
            if ended.stopped == "silent":
                return "silent", f"silent for {_span(limits.silence)}{left}"
            return "silent", f"no sign of life within {_span(limits.start)}{left}"
        if attempt.stopping not in (None, "silent"):
            assert attempt.stopping is not None
            return attempt.stopping, attempt.wanted.says if attempt.wanted else "stopped"
        if ended.timed_out:
            timeout = attempt.task.header.timeout
            span = timeout or _span(self.setting.config.limits.attempt)
            return "timed_out", f"limit {span}{left}"
        judgement = adapters.judge(
            self.setting.adapter,
            ended.exit_code,
            ended.signal,
            attempt.folder / "transcript.jsonl",
            attempt.folder / "stderr.log",
        )
        match judgement.is_:
            case "success":
                return None, ""
            case "limit":
                return "provider_limit", "the provider limits this account"
            case "login":
                hint = judgement.hint or "the agent ended with the exit code for that"
                self.idle.login_hint = hint
                return "not_logged_in", f"not logged in: {hint}"
            case "turns" | "cost":
                return "agent_failed", f"its limit of {judgement.is_} is used up"
            case _:
                return "agent_failed", ended.how

    def _release(self, attempt: Attempt, ending: Ending) -> bool:
        """False when the claim was no longer ours, so that nothing of it was written."""
        by = attempt.wanted.by if attempt.wanted else ""
        answer = release(
            self.setting.ledger, attempt.mine, ending, self.setting.bounds, by=by, park=bool(by)
        )
        self._reset(attempt)
        return not isinstance(answer, Fenced)

    def _reset(self, attempt: Attempt) -> None:
        request.drop(self.setting.layout, attempt.claimed.lock)
        self._forget(attempt)

    def _forget(self, attempt: Attempt) -> None:
        if attempt.tmpdir is not None:
            shutil.rmtree(attempt.tmpdir, ignore_errors=True)
        self.attempt = None
        self.stage = "idle"
        self.idle.nothing_at.clear()

    def let_go(self) -> None:
        """Run teardown in the worktree when this run made it ready; setup runs again after it.

        Raises:
            SwarmError: it failed, or could not be started.
        """
        setting = self.setting
        worktree = setting.config.worktree
        if not worktree.teardown or not self._is_furnished or not self.slot.is_real_tree:
            return
        self._is_furnished = False
        unmark_setup(self.slot)
        log = setting.layout.runs / setting.run / f"teardown-{self.slot.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="swarm-") as tmpdir:
            env = environment.for_check(
                setting.environ,
                settings=setting.config.env,
                check_env={},
                slot=environment.SlotFacts(name=self.slot.name, worktree=self.slot.tree),
                checkout=setting.checkout,
                tmpdir=Path(tmpdir),
                home=self._home(),
            )
            spec = process.Spec(
                argv=("/bin/sh", "-c", worktree.teardown),
                cwd=self.slot.tree,
                env=env,
                stdout=log,
                output_cap=setting.config.limits.output,
                mark=f"{setting.runner}.{self.slot.name}.{new_nonce()[:12]}",
                time_limit=worktree.setup_timeout,
                grace=setting.config.limits.grace,
            )
            confined = sandbox.confine(
                spec,
                setting.config,
                self.slot.places,
                setting.checkout,
                environ=setting.environ,
                tmpdir=Path(tmpdir),
                home=self._home(),
            )
            ended = process.start(confined).wait()
        if ended is not None and ended.exit_code != 0:
            what = f"teardown failed in {self.slot.name}: {ended.how}"
            raise SwarmError(what, hint=f"less {log}")

    def _now(self) -> Attempt:
        assert self.attempt is not None
        return self.attempt


def _says(error: SwarmError | OSError) -> str:
    if isinstance(error, SwarmError):
        return f"{error.what}: {error.why}" if error.why else error.what
    return str(error)


def _made(tmpdir: Path | None) -> Path:
    assert tmpdir is not None
    return tmpdir


def _why_nothing(answer: NothingClaimable) -> str:
    if answer.kept_back:
        count = len(answer.kept_back)
        whys = [
            f"{what} {', '.join(tasks[:3])}"
            for what, tasks in (("paths overlap", answer.overlaps), ("same as", answer.twins))
            if tasks
        ]
        return f"{count} ready task{'s are' if count != 1 else ' is'} kept back: " + "; ".join(whys)
    if answer.other_role:
        count = answer.other_role
        return f"{count} ready task{'s are' if count != 1 else ' is'} for another role"
    return "nothing is ready"


def _tail(path: Path) -> str:
    return tail_of(path, TAIL_BYTES).strip()


def _span(span: timedelta | None) -> str:
    if span is None:
        return "none"
    seconds = int(span.total_seconds())
    return f"{seconds // 60}m" if seconds % 60 == 0 else f"{seconds}s"
