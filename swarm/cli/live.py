"""A run as a person follows it: event lines, below them a table that is drawn again and again.

Enters: a supervisor at work, signals. Leaves: lines on a screen; requests to drain or to stop.
Guards: one thread prints; a signal only sets a mark, which the next tick reads; text of tasks and
agents reaches the terminal as plain printable lines.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol

import click
import msgspec

from swarm.ids import parse_duration, short, span_text
from swarm.ledger.store import Ledger, Logged
from swarm.ledger.view import State, View
from swarm.loop import Attempt, Loop
from swarm.output import QUIET, cost_text, event_line, plural, tokens_text
from swarm.overview import Live as Told
from swarm.overview import LiveCheck, LiveSlot, Standing, live_path, stand, write_live
from swarm.plumbing.hub import LEDGER
from swarm.supervisor import Supervisor
from swarm.trailers import one_line

if TYPE_CHECKING:
    from rich.live import Live

TABLE_SECONDS = 0.5
SETUP_SECONDS = 5.0  # a shorter setup is not worth a line
STANDING_COST = 20  # a look at all tasks may take a 20th of the time
MOST_NEEDS_YOU = 3  # lines of the table; `swarm status` has all

# -- screens --------------------------------------------------------------------------------------


class Screen(Protocol):
    """Where a run is shown. Used by one thread."""

    is_live: bool

    def say(self, line: str) -> None:
        """One line that stays."""

    def show(self, lines: Sequence[str]) -> None:
        """What stands below them until it is shown anew; nothing where there is no terminal."""

    def close(self) -> None:
        """Take away what `show` drew."""


class Plain:
    """Lines alone: a pipe, a file, a dumb terminal."""

    is_live = False

    def say(self, line: str) -> None:
        click.echo(line)

    def show(self, lines: Sequence[str]) -> None:
        pass

    def close(self) -> None:
        pass


class Terminal:
    """Lines that scroll, and a table below them."""

    is_live = True

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False, markup=False, emoji=False)
        self._live: Live | None = None

    def say(self, line: str) -> None:
        from rich.text import Text

        # The terminal folds what is too long, so that a copied line is whole.
        self._console.print(Text(line), soft_wrap=True)

    def show(self, lines: Sequence[str]) -> None:
        from rich.console import Group
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            # Without a thread of its own: it draws when told to, in the thread that prints.
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start()
        texts = [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]
        self._live.update(Group(*texts), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def screen() -> Screen:
    """The screen that fits standard output."""
    if not sys.stdout.isatty():
        return Plain()
    terminal = Terminal()
    return terminal if not terminal._console.is_dumb_terminal else Plain()


# -- signals --------------------------------------------------------------------------------------


class Signals:
    """Ctrl-C and SIGTERM, counted. A handler does nothing else: it may run in the midst of a line.

    While `is_hard`, a second one raises KeyboardInterrupt: before agents run there is nothing to
    save, and a check may be in the way of a polite end.
    """

    def __init__(self) -> None:
        self.interrupts = 0
        self.terminated = False
        self.is_hard = False
        self._old: dict[int, signal.Handlers | Callable[[int, FrameType | None], object]] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                old = signal.signal(number, self._handle)
                self._old[number] = old if old is not None else signal.SIG_DFL  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    @property
    def wants_drain(self) -> bool:
        return self.interrupts > 0 or self.terminated

    @property
    def wants_stop(self) -> bool:
        return self.interrupts > 1 or self.terminated

    def _handle(self, number: int, frame: FrameType | None) -> None:
        was_asked = self.wants_drain
        if number == signal.SIGTERM:
            self.terminated = True
        else:
            self.interrupts += 1
        if self.is_hard and was_asked:
            raise KeyboardInterrupt


# -- the table ------------------------------------------------------------------------------------


def table(
    supervisor: Supervisor, at: Standing, began: datetime, usual: dict[str, float]
) -> list[str]:
    """What a person wants to see at a glance: counts, what needs them, slots, the gate."""
    now = datetime.now(UTC)
    setting = supervisor.setting
    counts = [f"landed {at.landed} of {at.total - len(at.of('cancelled'))}"]
    for state in ("claimed", "queued", "held", "parked", "blocked"):
        found = len(at.of(state))
        if found:
            counts.append(f"{'working' if state == 'claimed' else state} {found}")
    name = setting.checkout.name
    head = f"{name} -> {supervisor.ledger.branch}   " + "   ".join(counts)
    lines = ["", f"{head}   {span_text(now - began)}   {_cost_so_far(supervisor)}"]
    lines += _needs_you(at)
    lines += [
        "",
        f"{'slot':<5} {'task':<24} {'att':<4} {'for':<8} {'tokens':>7} {'cost':>7}  doing",
    ]
    idle: dict[str, list[str]] = {}
    for loop in supervisor.loops:
        line = _slot_line(loop, setting.config.limits.attempt)
        if line is not None:
            lines.append(line)
        else:
            idle.setdefault(loop.why_idle or "looking for work", []).append(loop.slot.name)
    lines += [f"{' '.join(names)}   idle: {why}" for why, names in idle.items()]
    lines.append(_gate_line(supervisor, at, now, usual))
    return lines


def _needs_you(at: Standing) -> list[str]:
    rows = [(state, *told) for state in ("parked", "held") for told in at.told(state)]
    lines = []
    for number, (word, task, why) in enumerate(rows[:MOST_NEEDS_YOU]):
        lead = f"needs you {len(rows)}" if number == 0 else ""
        verb = "show" if word == "parked" else "diff"
        lines.append(f"{lead:<13} {word} {task}: {one_line(why, 60)}    swarm {verb} {task}")
    return lines


def _slot_line(loop: Loop, limit: timedelta | None) -> str | None:
    """None: the slot is idle."""
    attempt = loop.attempt
    if attempt is None:
        return None
    span = timedelta(seconds=time.monotonic() - attempt.started)
    return (
        f"{loop.slot.name:<5} {attempt.mine.task:<24} {attempt.mine.token:<4} "
        f"{span_text(span):<8} {_used(loop)}  {_doing(loop)}"
    )


def _used(loop: Loop) -> str:
    usage = loop.idle.live.get(loop.key)
    tokens = tokens_text(usage.tokens if usage else None)
    cost = "-" if usage is None or usage.cost_usd is None else cost_text(usage.cost_usd)
    return f"{tokens:>7} {cost:>7}"


def _cost_so_far(supervisor: Supervisor) -> str:
    """Of ended attempts and of those at work, as far as it is known."""
    idle = supervisor.idle
    known = [usage.cost_usd for usage in list(idle.live.values()) if usage.cost_usd is not None]
    spent = idle.spent.attempts - idle.spent.attempts_unknown
    if not known and not spent:
        return "cost unknown"
    total = idle.spent.known_usd + sum(known)
    cap = supervisor.setting.terms.run.cost_usd
    return f"{cost_text(total)} known" + (f" of ${cap:g}" if cap is not None else "")


def _said_last(attempt: Attempt | None) -> str:
    transcript = attempt.transcript if attempt is not None else None
    return one_line(transcript.doing, 80) if transcript is not None else ""


def _doing(loop: Loop) -> str:
    attempt = loop.attempt
    if attempt is None:
        return "ending"
    if attempt.stopping is not None:
        return f"ending: {attempt.stopping.replace('_', ' ')}"
    match loop.stage:
        case "idle":
            return "opening its worktree"
        case "setup":
            return "setup"
        case "ended":
            return "its work is being taken"
        case "working":
            child = attempt.child
            if child is None:
                return "working"
            if child.output_at <= child.started_at:
                return "no output yet"
            waits = attempt.transcript
            if waits is not None and waits.waits_since is not None:
                until = waits.waits_until
                when = f" until {until.astimezone():%H:%M:%S}" if until is not None else ""
                return f"waits for its provider{when}"
            quiet = (datetime.now(UTC) - child.output_at).total_seconds()
            since = f"{max(quiet, 0):.0f}s"
            if quiet >= 30:
                return f"no output for {since}"
            return _said_last(attempt) or f"output {since} ago"


def _gate_line(supervisor: Supervisor, at: Standing, now: datetime, usual: dict[str, float]) -> str:
    gate = supervisor.gate
    queue = f"queue {len(at.of('queued'))}"
    doing = gate.activity
    if doing is None:
        state = "waits for changes" if gate.claim is not None else "another runner is the gate"
        return f"{'gate':<5} {state}   {queue}"
    what = f"{doing.check} on the merged tree"
    if doing.role != "merged":
        what = f"{doing.check}, {doing.role}"
    if doing.is_held:
        what = f"held, checking {what}"
    if doing.check in usual:
        what += f", usually {usual[doing.check]:.0f}s"
    task = doing.task or supervisor.ledger.branch
    return f"{'gate':<5} {task:<24} {'':<4} {span_text(now - doing.since):<8} {what}   {queue}"


# -- the follower ---------------------------------------------------------------------------------


class Stopped(msgspec.Struct, frozen=True):
    """An attempt that was ended by a person's word."""

    slot: str
    task: str
    token: int
    folder: Path


class Follower:
    """Follows one run: prints each event once and in order, obeys signals, draws the table.

    `tick` is called by the run's main thread, which is the one that prints.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        where: Screen,
        signals: Signals,
        stamp: Callable[[Logged], str],
        usual: dict[str, float],
    ) -> None:
        self.supervisor = supervisor
        self.stopped: list[Stopped] = []
        self.landed: list[str] = []  # in this run, in order
        self._screen = where
        self._signals = signals
        self._stamp = stamp
        self._usual = usual
        self._began = datetime.now(UTC)
        self._seen = supervisor.ledger.hub.reader.ref(LEDGER)
        self._near: deque[tuple[str, tuple[str, ...]]] = deque()
        self._set_up: set[str] = set()  # nonces of claims whose setup was told of
        self._faults = 0
        self._is_draining = False
        self._is_stopping = False
        self._is_mute = False
        self._next_table = self._next_told = 0.0
        self._told: Told | None = None
        self._standing: Standing | None = None
        self._standing_tip: str | None = None
        self._next_standing = 0.0

    def near(self, task: str, twins: tuple[str, ...]) -> None:
        """A claim means nearly the same as others that live. Called by any thread."""
        self._near.append((task, twins))

    def tick(self) -> None:
        """What is new, on the screen; what was asked, to the supervisor."""
        self._obey()
        self._print_events()
        while self._near:
            task, twins = self._near.popleft()
            self._say(
                f"near      {task} may be the same as {', '.join(twins)}, which is being worked on"
                f"; if so: swarm task cancel {task}"
            )
        self._print_setups()
        faults = self.supervisor.faults
        for line in faults[self._faults :]:
            self._say(f"warning   {one_line(line)}")
        self._faults = len(faults)
        self._tell()
        self._draw()

    def _say(self, line: str) -> None:
        if self._is_mute:
            return
        try:
            self._screen.say(line)
        except OSError:  # nobody reads any more: end as every program in a pipe does
            self._is_mute = True
            self._signals.terminated = True

    # Signals

    def _obey(self) -> None:
        signals, supervisor = self._signals, self.supervisor
        if signals.wants_stop:
            if not self._is_stopping:
                self._is_stopping = True
                busy = [loop for loop in supervisor.loops if loop.attempt is not None]
                how = "SIGTERM" if signals.terminated else "Ctrl-C"
                count = plural(len(busy), "attempt")
                self._say(f"stopping: {how}; ending {count}, what they did is kept")
            # Again at each tick: an attempt that was being opened had no process to end yet.
            self._note_stopped()
            supervisor.stop_now()
        elif signals.wants_drain and not self._is_draining:
            self._is_draining = True
            supervisor.drain()
            self._say(self._drain_text())

    def _note_stopped(self) -> None:
        known = {(s.task, s.token) for s in self.stopped}
        for loop in self.supervisor.loops:
            attempt = loop.attempt
            if attempt is not None and (attempt.mine.task, attempt.mine.token) not in known:
                mine = attempt.mine
                self.stopped.append(Stopped(loop.slot.name, mine.task, mine.token, attempt.folder))

    def _drain_text(self) -> str:
        left: list[timedelta | None] = []
        default = self.supervisor.setting.config.limits.attempt
        for loop in self.supervisor.loops:
            attempt = loop.attempt
            if attempt is None:
                continue
            own = attempt.task.header.timeout
            limit = parse_duration(own) if own else default
            spent = timedelta(seconds=time.monotonic() - attempt.started)
            left.append(None if limit is None else max(limit - spent, timedelta(0)))
        if not left:
            return "draining: nothing is being worked on; ending"
        limits = [span for span in left if span is not None]
        longest = (
            f"longest has {short(max(limits))} left" if len(limits) == len(left) else "no limit"
        )
        verb = "finishes" if len(left) == 1 else "finish"
        return (
            f"draining: {plural(len(left), 'attempt')} {verb} ({longest}), no new claims; "
            "Ctrl-C again stops now"
        )

    # Lines

    def _print_events(self) -> None:
        ledger = self.supervisor.ledger
        tip = ledger.hub.reader.ref(LEDGER)
        if tip == self._seen:
            return
        for logged in reversed(list(ledger.iter_log(tip, self._seen))):
            if logged.kind == "landed":
                self.landed.append(logged.task)
            if logged.kind not in QUIET:
                self._say(event_line(logged, self._stamp(logged)))
        self._seen = tip

    def _print_setups(self) -> None:
        """One line for a setup that takes its time; a table shows it anyway."""
        if self._screen.is_live:
            return
        for loop in self.supervisor.loops:
            attempt = loop.attempt
            if loop.stage != "setup" or attempt is None or attempt.mine.nonce in self._set_up:
                continue
            if time.monotonic() - attempt.started > SETUP_SECONDS:
                self._set_up.add(attempt.mine.nonce)
                command = one_line(self.supervisor.setting.config.worktree.setup, 60)
                self._say(f"setup     {loop.slot.name} for {attempt.mine.task}, running: {command}")

    def _tell(self) -> None:
        """What only this process knows, for `swarm status` in another."""
        now = time.monotonic()
        if now >= self._next_told:
            self._next_told = now + TABLE_SECONDS
            setting = self.supervisor.setting
            path = live_path(setting.layout, setting.run)
            self._told = write_live(path, told(self.supervisor), self._told)

    def _draw(self) -> None:
        now = time.monotonic()
        if not self._screen.is_live or self._is_mute or now < self._next_table:
            return
        self._next_table = now + TABLE_SECONDS
        ledger = self.supervisor.ledger
        at = self._standing
        if at is None or (self._standing_tip != self._seen and now >= self._next_standing):
            self._standing = at = stand(ledger.view(), ledger.index)
            self._standing_tip = self._seen
            self._next_standing = now + STANDING_COST * (time.monotonic() - now)
        try:
            self._screen.show(table(self.supervisor, at, self._began, self._usual))
        except OSError:
            self._is_mute = True
            self._signals.terminated = True


def told(supervisor: Supervisor) -> Told:
    """What a runner holds in memory, as `swarm status` reads it."""
    slots = []
    for loop in supervisor.loops:
        attempt = loop.attempt
        transcript = attempt.transcript if attempt else None
        slots.append(
            LiveSlot(
                slot=loop.slot.name,
                role=loop.role,
                adapter=(attempt.seat if attempt else loop.seat).adapter.name,
                stage=loop.stage,
                task=attempt.mine.task if attempt else None,
                token=attempt.mine.token if attempt else None,
                why_idle=loop.why_idle,
                trouble=loop.trouble,
                doing=_said_last(attempt),
                usage=supervisor.idle.live.get(loop.key),
                waits_until=transcript.waits_until if transcript is not None else None,
            )
        )
    doing = supervisor.gate.activity
    checks = []
    if doing is not None:
        tasks = [doing.task] if doing.task else []
        checks = [LiveCheck(tasks=tasks, check=doing.check, role=doing.role, since=doing.since)]
    idle = supervisor.idle
    return Told(
        run=supervisor.setting.run,
        runner=supervisor.setting.runner,
        at=datetime.now(UTC),
        is_draining=idle.is_draining,
        stopped=idle.stuck or "",
        logins=dict(idle.logins),
        slots=slots,
        checks=checks,
    )


# -- the end --------------------------------------------------------------------------------------


def stopped_lines(ledger: Ledger, stopped: Sequence[Stopped]) -> list[str]:
    """What became of attempts that a person ended: per task what was kept."""
    from swarm.process import find_record

    if not stopped:
        return []
    killed = survivors = 0
    for one in stopped:
        ended = find_record(one.folder / "outcome.json")
        if ended is not None:
            killed += ended.killed
            survivors += len(ended.survivors)
    slots = " ".join(dict.fromkeys(one.slot for one in stopped))
    count = plural(killed, "process", "processes")
    lines = [f"stopped   {slots} ({count} ended, {survivors} left)"]
    view = ledger.view()
    width = max(len(one.task) for one in stopped)
    for one in stopped:
        kept, then = _kept(view, one)
        lines.append(f"  {one.task:<{width}}   {kept:<38} {then}".rstrip())
    return lines


def _kept(view: View, one: Stopped) -> tuple[str, str]:
    state = view.state(one.task)
    if state in (State.QUEUED, State.HELD, State.LANDED):
        return f"it had ended: {state.value}", ""
    attempts = view.attempts(one.task)
    last = attempts.last if attempts is not None else None
    if attempts is None or last is None or last.token != one.token:
        return "still being given back", "swarm status"
    then = "continues at the next run, no strike" if not last.strike else "strike"
    if state is State.PARKED:
        then = "parked"
    if attempts.work is None:
        return "nothing yet", then
    hub, head = view.hub, attempts.work.head
    count = int(
        hub.git.run("rev-list", "--count", head, f"^{view.target}", f"^{attempts.base}").text
    )
    left = hub.reader.commit(head).partition(b"\n\n")[2].startswith(b"Left by the agent")
    kept = [plural(count - left, "commit") + " kept"] if count - left else []
    if left:
        kept.append("uncommitted files saved")
    if last.paths:
        kept.append("unfinished merge saved")
    return ", ".join(kept) or "nothing yet", then
