"""One slot's loop: claim, open, set up, run the agent, seal or give back.

Enters: a run's setting and a slot. Leaves: events of the ledger.
Guards: no attempt ends without its processes gone and its work saved; a fenced loop writes nothing.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from swarm import adapter as adapters
from swarm import budget, environment, faults, launch, process, request, sandbox
from swarm.breaker import Breaker
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
    OverBudget,
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
from swarm.ledger.records import Attempts, Charge, Outcome, Task, Usage
from swarm.ledger.spending import (
    Spent,
    find_exhausted,
    find_over,
    least,
    left_of,
    spent_in,
    spent_on,
)
from swarm.ledger.store import Ledger
from swarm.ledger.view import View
from swarm.opening import Ground, Opening, Setup, open_slot
from swarm.plumbing.hub import LEDGER
from swarm.pulse import Pulse
from swarm.reconcile import rescue_leftovers
from swarm.slot import Occupant, Slot, remove_tree
from swarm.task import LateEdits
from swarm.trailers import one_line
from swarm.transcript import STDERR, TRANSCRIPT, Transcript, of_attempt

Stage = Literal["idle", "setup", "working", "ended"]
IDLE_SECONDS = 1.0
POLL_SECONDS = 0.2
LOOK_SECONDS = 1.0  # between two looks at the fence while the ledger moves
TAIL_BYTES = 1500
_BY_LIMIT = ("over_limit", "over_budget", "provider_limit")  # why we end an agent
MAX_ERROR = 200  # characters of what a program says of its failure
MAX_SETUP_FAILURES = 2
MAX_FAULTS = 5
MAX_TRIES = 6  # at saving an attempt's work, over half a minute
FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 30.0
QUICK_SECONDS = 5.0  # an attempt that fails sooner did not work
GAP_SECONDS = 1.0  # then before the next start in its slot; doubles
MAX_GAP_SECONDS = 5.0


@dataclass(frozen=True)
class Seat:
    """Who works in a slot, and what it may take."""

    adapter: adapters.Adapter
    argv_extra: tuple[str, ...] = ()  # the words after `--`
    model: str | None = None
    role: str = ""  # "": every task


@dataclass(frozen=True)
class Setting:
    """What every loop of a run shares."""

    ledger: Ledger
    layout: Layout
    config: Config
    checkout: Path
    run: str
    runner: str
    typed_in: Path
    rules: Rules
    bounds: Bounds
    terms: Terms
    copies: tuple[str, ...]  # ignored files of the checkout that every worktree gets
    user_excludes: str
    template: str | None
    late_edits: LateEdits | None = None
    fallback: Seat | None = None  # for slots whose own agent is limited or not logged in
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
    adapters: set[str] = field(default_factory=set)  # of all slots, and the fallback
    logins: dict[str, str] = field(default_factory=dict)  # adapter -> what a person has to do
    breaker: Breaker | None = None  # None: no limit is kept, as in a test of one loop
    over_budget: str = ""  # the limit of the run that is used up
    began: float = field(default_factory=time.monotonic)  # of the run
    spent: Spent = field(default_factory=Spent)  # by attempts of the run that have ended
    live: dict[str, Usage] = field(default_factory=dict)  # loop -> what its agent used so far
    booking: threading.Lock = field(default_factory=threading.Lock)  # of the two above
    loops: list[Loop] = field(default_factory=list)
    claiming: threading.RLock = field(default_factory=threading.RLock)  # also: changing slots

    @property
    def stuck(self) -> str | None:
        """Why nobody claims any more until a person acts; None when claims go on."""
        if self.over_budget:
            return f"budget used up: {self.over_budget}"
        if self.adapters and self.adapters <= self.logins.keys():
            return f"not logged in: {'; '.join(dict.fromkeys(self.logins.values()))}"
        if self.setup_failures >= MAX_SETUP_FAILURES:
            return f"setup failed {self.setup_failures} times in a row: {self.trouble}"
        if self.faults >= MAX_FAULTS:
            return f"{self.faults} faults in a row: {self.trouble}"
        return None

    @property
    def is_logged_out(self) -> bool:
        """Is there no agent left that somebody is logged in to?"""
        return bool(self.adapters) and self.adapters <= self.logins.keys()


@dataclass
class Attempt:
    """One claim being worked on."""

    claimed: Claimed
    mine: Mine
    task: Task
    folder: Path
    mark: str
    started: float  # monotonic
    seat: Seat
    tmpdir: Path | None = None
    occupant: Occupant | None = None  # as opening and setup left it
    setup: Setup | None = None  # at work
    child: process.Child | None = None
    ended: process.Ended | None = None
    ending: Ending | None = None  # decided, and not written yet
    tries: int = 0  # at concluding it
    retry_at: float = 0.0
    stopping: Outcome | None = None  # why we end it
    limit: str = ""  # the limit for which we do, in words
    transcript: Transcript | None = None  # None: no agent was started
    began: float = 0.0  # monotonic: the agent was started
    resumed: Charge | None = None  # the attempt whose session it goes on with
    is_fresh: bool = False  # its session was not known any more
    is_answered: bool = False  # the provider works for this account
    is_charged: bool = False
    wanted: request.Wanted | None = None  # what was asked of it
    tip: str | None = None  # of the ledger, when the fence was last looked at
    next_look: float = 0.0
    next_beat: float = 0.0
    pulse: Pulse | None = None  # of the agent itself, once it is started


class Loop:
    """One slot's loop. `tick` does one bounded step and returns how long nothing will happen."""

    def __init__(self, setting: Setting, slot: Slot, idle: Idle, seat: Seat) -> None:
        self.setting = setting
        self.slot = slot
        self.idle = idle
        self.seat = seat
        idle.loops.append(self)
        self.key = str(len(idle.loops))  # stays, whichever slot the loop has
        idle.adapters.add(seat.adapter.name)
        if setting.fallback is not None:
            idle.adapters.add(setting.fallback.adapter.name)
        self.stage: Stage = "idle"
        self.attempt: Attempt | None = None
        self.why_idle = ""
        self.trouble: str = ""  # the last fault of ours, for status
        self.near: Callable[[str, tuple[str, ...]], None] | None = None
        self._asking: tuple[Who, Seat] | None = None  # of a claim whose answer was lost
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
    def role(self) -> str:
        return self.seat.role

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
        if self.idle.over_budget and attempt.stopping is None and not _is_done(attempt):
            self._end_for("over_budget", self.idle.over_budget)
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
            with idle.claiming:
                self._make_room()
        if idle.is_draining or idle.stuck is not None:
            self.why_idle = idle.stuck or "draining"
            return IDLE_SECONDS
        wait = self._not_before - now
        if wait > 0:
            self.why_idle = "the last attempt failed at once"
            return min(wait, IDLE_SECONDS)
        tip = self.setting.ledger.hub.reader.ref(LEDGER) or ""
        known = idle.nothing_at.get(self.role)
        if known is not None and known[0] == tip and now < known[1]:
            return IDLE_SECONDS
        # Kept when acquiring raises: its answer may be lost and the claim written, for that agent.
        asking = self._asking
        if asking is None:
            seat = self._choose()
            if seat is None:
                return IDLE_SECONDS
            who = Who(
                runner=self.setting.runner,
                adapter=seat.adapter.name,
                role=self.role,
                slot=self.slot.name,
                run=self.setting.run,
            )
            asking = self._asking = (who, seat)
        who, seat = asking
        with idle.claiming:
            answer = self._acquire(who)
            self._asking = None
            if isinstance(answer, AlreadyHolding):
                answer = find_claim(self.setting.ledger, answer.task) or answer
            if isinstance(answer, Claimed):
                self._move_to(answer.lock.slot)
                self._begin(answer, seat)
        if isinstance(answer, Claimed):
            self.why_idle = ""
            self._open()
            return 0.0
        self._give_way(seat)
        if isinstance(answer, OverBudget):
            self._note_budget(answer)
        if isinstance(answer, NothingClaimable):
            self.why_idle = _why_nothing(answer)
            idle.nothing_at[self.role] = (tip, time.monotonic() + IDLE_SECONDS)
        return IDLE_SECONDS

    def _choose(self) -> Seat | None:
        """The slot's own agent, else the fallback; None: neither may be started now."""
        idle, now = self.idle, self._wall()
        whys = []
        for seat in (self.seat, self.setting.fallback):
            if seat is None:
                continue
            name = seat.adapter.name
            if name in idle.logins:
                whys.append(f"{name} is not logged in: {idle.logins[name]}")
            elif idle.breaker is None or idle.breaker.may_start(name, self.key, now):
                return seat
            elif (limit := idle.breaker.find(name, now)) is not None:
                whys.append(f"{name}: provider limit until {limit.until.astimezone():%H:%M:%S}")
            else:
                whys.append(f"{name}: another slot tries whether its limit has ended")
        self.why_idle = "; ".join(whys)
        return None

    def _give_way(self, seat: Seat) -> None:
        """Nothing to do for this agent here: another slot may be the one that tries it."""
        if self.idle.breaker is not None:
            self.idle.breaker.gave_up(seat.adapter.name, self.key)

    def _wall(self) -> datetime:
        return self.setting.ledger.clock.now()

    def _note_budget(self, answer: OverBudget) -> None:
        self.why_idle = f"budget: {answer.why}"
        if not any(loop.is_busy for loop in self.idle.loops):  # else some of it may come back
            self.idle.over_budget = answer.why

    def _acquire(self, who: Who) -> Answer:
        setting = self.setting
        if not setting.late_edits:
            return acquire(setting.ledger, who, setting.terms, place=self._place)
        with setting.ledger.hub.turn.held():
            setting.late_edits.take(setting.ledger)
            return acquire(setting.ledger, who, setting.terms, place=self._place)

    def _place(self, attempts: Attempts | None) -> str:
        """The slot for a task: where its agent's session can be gone on with, if that is free.

        Sessions are kept by folder: in another worktree the agent would not find it.
        """
        session, asking = budget.find_session(attempts), self._asking
        if session is None or asking is None or session.slot == self.slot.name:
            return self.slot.name
        adapter = asking[1].adapter
        if session.adapter != adapter.name or not adapters.can_resume(adapter):
            return self.slot.name
        for loop in self.idle.loops:
            if loop.slot.name == session.slot and not loop.is_busy and loop._asking is None:
                return session.slot
        return self.slot.name

    def _move_to(self, name: str) -> None:
        """Change slots with the idle loop that has the named one; with `claiming` held."""
        if name == self.slot.name:
            return
        other = next(loop for loop in self.idle.loops if loop.slot.name == name)
        self.slot, other.slot = other.slot, self.slot
        self._is_furnished, other._is_furnished = other._is_furnished, self._is_furnished

    def _begin(self, claimed: Claimed, seat: Seat) -> None:
        setting, lock = self.setting, claimed.lock
        task = setting.ledger.view().task(lock.task)
        assert task is not None
        self.attempt = Attempt(
            claimed,
            Mine.of(lock),
            task,
            setting.layout.attempt(setting.run, lock.task, lock.token),
            f"{setting.runner}.{lock.agent}.{new_nonce()[:12]}",
            time.monotonic(),
            seat,
        )

    def _open(self) -> None:
        setting, attempt = self.setting, self._now()
        lock = attempt.claimed.lock
        if attempt.claimed.near and self.near is not None:
            self.near(lock.task, attempt.claimed.near)
        try:
            attempt.folder.mkdir(parents=True, exist_ok=True)
            attempt.tmpdir = Path(tempfile.mkdtemp(prefix="swarm-"))
            self._clear_slot()
            paths = attempt.task.header.paths
            opening = open_slot(setting.ground, self.slot, Occupant.of(lock), paths)
            attempt.occupant = self.slot.occupant()
            if not self._start_setup(attempt, opening):
                self._start_agent(attempt, setting.ledger.view())
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
        used_up = find_exhausted(spent_on(attempt.claimed.attempts), self.setting.bounds.task)
        if used_up is not None:  # a limit was lowered: nothing is spent to find that out
            self._end_with(attempt, Ending("over_budget", f"budget of the task: {used_up}"))
            return
        session = budget.find_session(attempt.claimed.attempts)
        if attempt.is_fresh or session is None or not self._can_go_on(attempt, session):
            session = None
        attempt.resumed = session
        launched = self._launch(attempt, view)
        attempt.child = launch.start(launched)
        now = time.monotonic()
        attempt.began = attempt.began or now
        attempt.next_beat = now + attempt.claimed.lock.lease_seconds / 3
        adapter = attempt.seat.adapter
        attempt.transcript = of_attempt(adapter, attempt.folder)
        if session is None and "session" in adapter.options:
            attempt.transcript.session = launched.new_session  # some say it only at their end
        attempt.pulse = Pulse(
            attempt.child,
            self.slot.tree,
            self.setting.config.limits,
            now,
            is_stream=adapter.output.format == "jsonl",
        )
        self.idle.faults = 0
        self._is_furnished = True
        self.stage = "working"
        if attempt.stopping is not None:  # asked for while there was nothing to end
            attempt.child.kill_now(attempt.stopping)
        faults.reach("agent.after_start")

    def _can_go_on(self, attempt: Attempt, session: Charge) -> bool:
        """Sessions are the program's own and are kept by folder."""
        adapter = attempt.seat.adapter
        is_same = session.adapter == adapter.name and session.slot == self.slot.name
        return is_same and adapters.can_resume(adapter)

    def _launch(self, attempt: Attempt, view: View) -> launch.Launch:
        setting, task, seat = self.setting, attempt.task, attempt.seat
        timeout = task.header.timeout
        limits = setting.config.limits
        spent = spent_on(attempt.claimed.attempts)
        run, per_task = setting.terms.run, setting.bounds.task
        # What is left of each; a program that can is told, the rest is watched.
        usd = least(
            (
                limits.cost_usd,
                left_of(per_task.cost_usd, spent.cost_usd),
                left_of(run.cost_usd, self.idle.spent.cost_usd),
            )
        )
        return launch.Launch(
            adapter=seat.adapter,
            permission=setting.config.run.permission,
            model=seat.model,
            argv_extra=seat.argv_extra,
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
                is_resumed=attempt.resumed is not None,
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
            time_limit=parse_duration(timeout) if timeout else limits.attempt,
            turns=limits.turns,
            cost_usd=usd,
            session=attempt.resumed.session if attempt.resumed else None,
            question_folder=request.question_folder(setting.layout, setting.run, attempt.mine.task),
        )

    def _poll_agent(self) -> float:
        attempt = self._now()
        assert attempt.child is not None
        ended = attempt.child.poll()
        if ended is not None:
            if self._begin_afresh(attempt, ended):
                return 0.0
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
        self._listen(attempt)
        self._watch_life(attempt, now)
        return POLL_SECONDS

    def _begin_afresh(self, attempt: Attempt, ended: process.Ended) -> bool:
        """Is the session that it was to go on with not known any more? Then without, once."""
        transcript = attempt.transcript
        if attempt.resumed is None or attempt.stopping is not None or transcript is None:
            return False
        if request.find_wanted(self.setting.layout, attempt.claimed.lock) is not None:
            return False
        transcript.finish(self._wall())
        if transcript.judge(ended.exit_code, ended.signal, self._wall()).is_ != "session":
            return False
        attempt.is_fresh = True
        attempt.transcript = None
        try:
            self._start_agent(attempt, self.setting.ledger.view())
        except (SwarmError, OSError) as error:
            self._give_back(attempt, error)
        return True

    def _watch_life(self, attempt: Attempt, now: float) -> None:
        if attempt.stopping is not None or attempt.pulse is None or attempt.child is None:
            return
        why = attempt.pulse.look(now)
        if why is not None:
            attempt.stopping = "silent"
            attempt.child.stop(why)

    # What it says, and what that costs

    def _listen(self, attempt: Attempt) -> None:
        """Read on; end what is over a limit, or waits too long for its provider."""
        transcript = attempt.transcript
        assert transcript is not None
        transcript.read(self._wall())
        if transcript.heard and not attempt.is_answered:
            self._note_answer(attempt)
        usage = self._usage(attempt)
        with self.idle.booking:
            self.idle.live[self.key] = usage
            total = self.idle.spent
            for live in self.idle.live.values():
                total = total.plus(live)
        if attempt.stopping is not None or _is_done(attempt):
            return
        over = self._find_over(attempt, usage)
        if over:
            self._end_for("over_limit", over)
            return
        why = find_exhausted(self._with_time(total), self.setting.terms.run)
        if why is not None:
            self.idle.over_budget = why
            self._end_for("over_budget", why)
            return
        patience = self.setting.config.limits.patience
        if transcript.waits_since is not None and patience is not None:
            now = self._wall()
            until = transcript.waits_until
            if now - transcript.waits_since >= patience or (until and until - now > patience):
                self._end_for("provider_limit", "it waits for its provider")

    def _with_time(self, spent: Spent) -> Spent:
        return replace(spent, seconds=time.monotonic() - self.idle.began)

    def _find_over(self, attempt: Attempt, usage: Usage) -> str:
        """The limit of the attempt, or of its task, that is used up; "" when there is room."""
        limits, resumed = self.setting.config.limits, attempt.resumed
        own = usage
        if resumed is not None and resumed.usage.cost_usd is None:
            # Its figures may hold what the attempt before it used and did not say.
            own = Usage(turns=usage.turns)
        over = find_over(own, limits.turns, limits.tokens, limits.cost_usd)
        if over is not None:
            return over
        seconds = time.monotonic() - attempt.began
        spent = spent_on(attempt.claimed.attempts).plus(usage, seconds)
        why = find_exhausted(spent, self.setting.bounds.task)
        return f"budget of the task: {why}" if why is not None else ""

    def _find_covered(self, attempt: Attempt, usage: Usage) -> int | None:
        """The attempt that it went on from, when this one's cost holds what that did not say."""
        resumed, place = attempt.resumed, attempt.seat.adapter.output.cost_usd
        if resumed is None or resumed.usage.cost_usd is not None or usage.cost_usd is None:
            return None
        return resumed.token if place is not None and place.cumulative else None

    def _usage(self, attempt: Attempt, *, is_whole: bool = True) -> Usage:
        assert attempt.transcript is not None
        before = attempt.resumed.said if attempt.resumed is not None else None
        return attempt.transcript.usage(before, is_whole=is_whole)

    def _end_for(self, outcome: Outcome, limit: str) -> None:
        attempt = self._now()
        attempt.stopping, attempt.limit = outcome, limit
        if attempt.child is not None:
            attempt.child.stop(outcome)

    def _note_answer(self, attempt: Attempt) -> None:
        attempt.is_answered = True
        if self.idle.breaker is not None:
            self.idle.breaker.answered(attempt.seat.adapter.name)

    def _charge(self, attempt: Attempt, ended: process.Ended) -> None:
        """Book what it used; a second time changes nothing.

        Raises:
            HubUnusable: it could not be booked; ask again.
        """
        transcript = attempt.transcript
        if transcript is None or attempt.is_charged:
            return
        transcript.finish(self._wall())
        before = attempt.resumed.said if attempt.resumed is not None else {}
        usage = self._usage(attempt, is_whole=not ended.output_truncated)
        made = Charge(
            token=attempt.mine.token,
            run=self.setting.run,
            adapter=attempt.seat.adapter.name,
            slot=self.slot.name,
            seconds=round(ended.seconds, 1),
            usage=usage,
            session=transcript.session or (attempt.resumed.session if attempt.resumed else None),
            said={**before, **transcript.figures},
            covers=self._find_covered(attempt, usage),
            at=self._wall(),
        )
        ledger = self.setting.ledger
        with self.idle.booking:  # or another loop would count it twice, as spent and as live
            budget.charge(ledger, attempt.mine.task, attempt.mine.agent, made)
            attempt.is_charged = True
            self.idle.live.pop(self.key, None)
            view = ledger.view()
            run = view.run(self.setting.run)
            if run is not None:
                self.idle.spent = spent_in(run, view.now)

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
        self._charge(attempt, ended)
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
                    self._quick_failures = 0
                    self._note_answer(attempt)
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
                    self._release(attempt, ending, is_saved=True)
                    return
        if outcome not in ("stopped", "asked", "provider_limit", "over_budget"):
            self._pause_after(attempt, ended)
        saved = save(setting.ledger, self.slot, attempt.mine.task, attempt.mine.token, captured)
        if outcome == "asked" and wanted is not None:
            ending = wanted.ending(
                note=captured.refusal,
                paths=captured.unresolved,
                work=saved.work,
                moves=saved.moves,
            )
            self._release(attempt, ending, is_saved=True)
            return
        left = captured.uncommitted + captured.untracked
        if saved.work is not None:
            files = f", {left} file{'s' if left > 1 else ''} saved" if left else ""
            message += f"; kept{files}"
        self._release(
            attempt,
            Ending(
                outcome,
                message,
                captured.malformed
                or _tail(attempt.folder / STDERR)
                or _tail(attempt.folder / TRANSCRIPT),
                ended.exit_code,
                captured.unresolved,
                saved.work,
                saved.moves,
            ),
            is_saved=True,
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
            if self._waited(attempt):
                return self._refused(attempt, None)
            limits = self.setting.config.limits
            if ended.stopped == "silent":
                return "silent", f"silent for {_span(limits.silence)}{left}"
            return "silent", f"no sign of life within {_span(limits.start)}{left}"
        if attempt.stopping == "provider_limit" and is_stopped:
            return self._refused(attempt, self._far_reset(attempt))
        if attempt.stopping in ("over_limit", "over_budget") and is_stopped:
            return attempt.stopping, f"{attempt.limit}{left}"
        if attempt.stopping not in (None, "silent", *_BY_LIMIT):
            assert attempt.stopping is not None
            return attempt.stopping, attempt.wanted.says if attempt.wanted else "stopped"
        if ended.timed_out:
            if self._waited(attempt):
                return self._refused(attempt, None)
            timeout = attempt.task.header.timeout
            span = timeout or _span(self.setting.config.limits.attempt)
            return "timed_out", f"limit {span}{left}"
        assert attempt.transcript is not None
        judgement = attempt.transcript.judge(ended.exit_code, ended.signal, self._wall())
        name = attempt.seat.adapter.name
        match judgement.is_:
            case "success":
                return None, ""
            case "limit":
                return self._refused(attempt, judgement.reset_at)
            case "login":
                hint = judgement.hint or f"log in to {name} with its own command"
                self.idle.logins[name] = hint
                return "not_logged_in", f"{name} is not logged in: {hint}"
            case "turns" | "cost":
                return "over_limit", f"its limit of {judgement.is_} is used up"
            case _:
                error = one_line(attempt.transcript.error, MAX_ERROR)
                return "agent_failed", f"{ended.how}: {error}" if error else ended.how

    def _waited(self, attempt: Attempt) -> bool:
        """Was it ended while it only waited for its provider?"""
        return attempt.transcript is not None and attempt.transcript.waits_since is not None

    def _far_reset(self, attempt: Attempt) -> datetime | None:
        """When its provider lets it go on, if that is further off than we wait: the end of a short
        pause of the program's own says nothing about the limit.
        """
        until = attempt.transcript.waits_until if attempt.transcript is not None else None
        patience = self.setting.config.limits.patience
        if until is None or patience is None or until - self._wall() <= patience:
            return None
        return until

    def _refused(self, attempt: Attempt, reset_at: datetime | None) -> tuple[Outcome, str]:
        """Its provider limits the account: nobody starts this agent before the limit has ended."""
        name, says = attempt.seat.adapter.name, "the provider limits this account"
        if self.idle.breaker is None:
            return "provider_limit", says
        until = self.idle.breaker.refused(name, reset_at, self._wall())
        return "provider_limit", f"{says} until {until.astimezone():%H:%M:%S}"

    def _release(self, attempt: Attempt, ending: Ending, *, is_saved: bool = False) -> None:
        """`is_saved`: what lies in the slot is in the ending's work, if the claim is still ours.

        After it the loop is idle, and may have another slot at once.
        """
        setting = self.setting
        if attempt.transcript is None and setting.terms.run.is_set:
            mine = attempt.mine
            budget.unreserve(setting.ledger, setting.run, mine.task, mine.agent, mine.token)
        by = attempt.wanted.by if attempt.wanted else ""
        answer = release(
            self.setting.ledger, attempt.mine, ending, self.setting.bounds, by=by, park=bool(by)
        )
        if is_saved and not isinstance(answer, Fenced):
            self.slot.is_saved = True
        self._reset(attempt)

    def _reset(self, attempt: Attempt) -> None:
        request.drop(self.setting.layout, attempt.claimed.lock)
        self._forget(attempt)

    def _forget(self, attempt: Attempt) -> None:
        if attempt.tmpdir is not None:
            with contextlib.suppress(OSError):
                remove_tree(attempt.tmpdir)
        self._give_way(attempt.seat)
        with self.idle.booking:
            self.idle.live.pop(self.key, None)
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


def _is_done(attempt: Attempt) -> bool:
    """Has its agent said that it is done? What it cost is spent: its work is not thrown away."""
    return attempt.transcript is not None and attempt.transcript.has_succeeded


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
