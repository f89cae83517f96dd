"""Notifies a person of what needs them: runs `[notify] command` once for each new line.

Enters: a workspace, looked at again and again. Leaves: the command run, and a record of the lines
that it was given. Guards: nothing is notified twice, but after a crash between a notification and
its record; what others wrote reaches the command as data; nobody waits for it beyond its limit.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from swarm import environment, process
from swarm.errors import SwarmError
from swarm.files import alone, put_whole, tail_of
from swarm.ids import new_nonce, short
from swarm.ledger import records
from swarm.overview.live import live_path, read_live
from swarm.overview.moment import Moment, read_moment
from swarm.overview.needs import Need, Notice, needs_of
from swarm.overview.queue import read_lives
from swarm.overview.standing import stand
from swarm.overview.target import target_of
from swarm.plumbing.hub import LEDGER, branch_ref
from swarm.trailers import one_line
from swarm.workspace import Workspace

LIMIT = timedelta(seconds=30)  # of one notification, and of all of them when a run ends
LOOK_SECONDS = 15.0  # between two looks at what changes with time alone
GAP_SECONDS = 1.0  # between any two looks
LOOK_COST = 20  # a look at all tasks may take a 20th of the time
BUDGET_SECONDS = 5.0  # of notifications in one look; what is left over comes with the next one
PAUSES = (15.0, 60.0)  # seconds after the first try that failed, and after the second
TRIES = len(PAUSES) + 1  # then a line is given up
_GRACE = timedelta(seconds=1)
_LATE_SECONDS = 5.0  # beyond limit and grace: the shim itself is stuck
_OUTPUT_CAP = 4 << 10
_MOST_SAID = 200  # characters of the command's last words


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """What became of notifying one line."""

    at: Annotated[datetime, msgspec.Meta(tz=True)]  # of the last try
    tries: Annotated[int, msgspec.Meta(ge=1)]
    failure: str = ""  # of the last try; "": it was accepted

    @property
    def is_over(self) -> bool:
        """Accepted, or given up."""
        return not self.failure or self.tries >= TRIES

    def pause_left(self, now: datetime, is_last: bool = False) -> float:
        """Seconds until the next try; a clock that was set back ends the pause."""
        gone = (now - self.at).total_seconds()
        pause = GAP_SECONDS if is_last else PAUSES[min(self.tries, len(PAUSES)) - 1]
        return max(0.0, pause - gone) if gone >= 0 else 0.0


class Notified(msgspec.Struct, frozen=True, kw_only=True):
    """`runs/notified.json`: the lines that stand and were notified, by their keys."""

    format: Literal[1] = 1
    notified: dict[str, Tried] = {}


class Accepted(msgspec.Struct, frozen=True):
    """The command took it: exit code 0."""


class Failed(msgspec.Struct, frozen=True):
    """The command did not take it."""

    why: str
    is_hung: bool = False


class Cut(msgspec.Struct, frozen=True):
    """It was ended because the run ends: it counts as never tried."""


class Notifier(msgspec.Struct):
    """Looks, and notifies what is new.

    Safe: any number of processes; each line is notified once between them. One thread at a time
    calls `look` or `last_look`.
    """

    work: Workspace
    runner: str  # with whose death what was started here ends
    say: Callable[[str], None]  # hears once of each way in which the command fails
    run: str = ""  # whose live file is looked at; "": the runner's
    _seen: tuple[str | None, ...] | None = None  # what the last whole look rested on
    _due_at: float = -math.inf  # when time alone is a reason to look, on the ledger's clock
    _not_before: float = -math.inf  # no look until then
    _end_at: float | None = None  # all notifications end until then, on the process's own clock
    _said: set[str] = msgspec.field(default_factory=set)
    _unsaved: dict[str, Tried] | None = None  # stands for the file while that cannot be written

    @property
    def is_on(self) -> bool:
        """Is there a command?"""
        return bool(self.work.config.notify.command)

    def look(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Notify what is new. Cheap, and without a program, while nothing can be.

        `is_over` is asked between two notifications: what is left then waits for `last_look`.
        """
        clock = self.work.ledger.clock.monotonic()
        if not self.is_on or clock < self._not_before:
            return
        with self._undisturbed():
            facts = self._facts()
            if facts == self._seen and clock < self._due_at:
                return
            self._notify(facts, is_over, until=None)

    def last_look(self) -> None:
        """Notify what is new, and once more what failed: nobody may look again.

        Returns within the limit of `hurry`, or else of one notification.
        """
        if self.is_on:
            with self._undisturbed():
                until = self._end_at or time.monotonic() + LIMIT.total_seconds()
                self._notify(self._facts(), lambda: False, until=until)

    def hurry(self, within: timedelta | None = None) -> None:
        """From now on all notifications, the one that runs included, end within one limit.

        Safe: called by another thread than the one that looks.
        """
        self._end_at = time.monotonic() + (within or LIMIT).total_seconds()

    @contextlib.contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """No trouble of ours with a look is a reason to end a run: the next one may go well."""
        try:
            yield
        except (SwarmError, OSError) as error:
            self._not_before = self.work.ledger.clock.monotonic() + LOOK_SECONDS
            self._warn(f"nobody could be notified: {error}")

    def _facts(self) -> tuple[str | None, ...]:
        """What lines come from, as far as files alone say it."""
        ledger, layout = self.work.ledger, self.work.layout
        live = read_live(live_path(layout, self.run or self.runner))
        return (
            ledger.hub.reader.ref(LEDGER),
            ledger.hub.reader.ref(branch_ref(ledger.branch)),
            live.stopped if live is not None else None,
        )

    def _notify(
        self, facts: tuple[str | None, ...], is_over: Callable[[], bool], until: float | None
    ) -> None:
        """`until`: it is the last look, which may last so long on the process's own clock."""
        clock = self.work.ledger.clock
        self._seen = None
        self._not_before = clock.monotonic() + GAP_SECONDS
        lock = self.work.layout.notified.with_suffix(".lock")
        wait = max(0.0, until - time.monotonic()) if until is not None else 0.0
        with alone(lock, wait) as is_ours:
            if not is_ours:
                return
            began = time.monotonic()
            moment = read_moment(self.work)
            needs = self._needs(moment)
            cost = LOOK_COST * (time.monotonic() - began)
            self._not_before = clock.monotonic() + max(GAP_SECONDS, cost)
            notified = self._load()
            kept = {key: tried for key, tried in notified.items() if key in needs}
            if kept != notified:
                self._save(kept)
            if not self._run_all(needs, kept, is_over, until):
                return
        waits = [tried.pause_left(clock.now()) for tried in kept.values() if not tried.is_over]
        if self._is_timed(moment):
            waits.append(LOOK_SECONDS)
        self._due_at = clock.monotonic() + min(waits, default=math.inf)
        self._seen = facts

    def _needs(self, moment: Moment) -> dict[str, Need]:
        """By key, in the order of `swarm status`."""
        known = stand(moment.view, self.work.ledger.index)
        found: dict[str, Need] = {}
        for need in needs_of(moment, known, read_lives(moment), target_of(moment)):
            found.setdefault(need.key, need)
        return found

    def _is_timed(self, moment: Moment) -> bool:
        """Could a line come or go by time alone? Through others only: that we live is known."""
        queued = {entry.task for entry in moment.entries}
        runners = {lock.runner for lock in moment.locks if lock.task not in queued}
        runners |= {run.runner for run in moment.runs}
        if moment.gate is not None and moment.gate.runner is not None:
            runners.add(moment.gate.runner)
        return bool(runners - {self.runner})

    def _run_all(
        self,
        needs: dict[str, Need],
        kept: dict[str, Tried],
        is_over: Callable[[], bool],
        until: float | None,
    ) -> bool:
        """Notify each line that is due, and record it. False: some are left for the next look."""
        clock = self.work.ledger.clock
        end = time.monotonic() + BUDGET_SECONDS if until is None else until
        for key, need in needs.items():
            before = kept.get(key)
            if before is not None:
                left = before.pause_left(clock.now(), is_last=until is not None)
                if before.is_over or left > 0:
                    continue
            if is_over() or time.monotonic() >= end:
                return False
            answer = self._run(need, until)
            if isinstance(answer, Cut):
                return False
            failure = answer.why if isinstance(answer, Failed) else ""
            tries = before.tries + 1 if before is not None else 1
            kept[key] = Tried(at=clock.now(), tries=tries, failure=failure)
            self._save(kept)
            if isinstance(answer, Failed):
                self._warn(f"failed, {failure}; a line is tried {TRIES} times")
                if answer.is_hung:  # whoever looks must not do nothing else
                    self._not_before = clock.monotonic() + PAUSES[-1]
                    return False
        return True

    def _run(self, need: Need, until: float | None) -> Accepted | Failed | Cut:
        work = self.work
        notice = Notice(
            repository=work.checkout.name,
            target=work.config.target,
            kind=need.kind,
            task=need.task,
            why=need.why,
            do=need.do,
            at=work.ledger.clock.now(),
        )
        try:
            with tempfile.TemporaryDirectory(prefix="swarm-") as folder:
                output = Path(folder, "output")
                spec = process.Spec(
                    argv=("/bin/sh", "-c", work.config.notify.command),
                    cwd=work.checkout,
                    env=environment.for_person(os.environ),
                    # Plain ASCII: inert also where the command shows it as it is.
                    stdin=json.dumps(records.jsonable(notice)).encode() + b"\n",
                    stdout=output,
                    output_cap=_OUTPUT_CAP,
                    mark=f"{self.runner}.notify.{new_nonce()[:12]}",
                    time_limit=LIMIT,
                    grace=_GRACE,
                    signals=("SIGTERM", "SIGKILL"),
                )
                return self._wait(process.start(spec), output, until)
        except (SwarmError, OSError) as error:
            why = f"{error.what}: {error.why}" if isinstance(error, process.CannotStart) else error
            return Failed(one_line(str(why), _MOST_SAID))

    def _wait(
        self, child: process.Child, output: Path, until: float | None
    ) -> Accepted | Failed | Cut:
        late = time.monotonic() + (LIMIT + _GRACE).total_seconds() + _LATE_SECONDS
        is_cut = False
        try:
            while (ended := child.wait(0.25)) is None:
                ends = [end for end in (until, self._end_at) if end is not None]
                is_cut = time.monotonic() >= min(ends, default=math.inf)
                if is_cut or time.monotonic() >= late:
                    child.kill_now("the run ends" if is_cut else "over its time limit")
                    ended = child.wait(_LATE_SECONDS)
                    break
        except BaseException:  # Ctrl-C
            child.kill_now("interrupted")
            child.wait(_LATE_SECONDS)
            raise
        if ended is not None and ended.exit_code == 0 and not ended.timed_out:
            return Accepted()
        if is_cut:
            return Cut()
        if ended is None or ended.timed_out or ended.stopped is not None:
            return Failed(f"no end within {short(LIMIT)}", is_hung=True)
        said = _last_line(output)
        return Failed(f"{ended.how}: {said}" if said else ended.how)

    def _load(self) -> dict[str, Tried]:
        if self._unsaved is not None:
            return self._unsaved
        try:
            data = self.work.layout.notified.read_bytes()
            return msgspec.json.decode(data, type=Notified).notified
        except (OSError, ValueError, RecursionError, msgspec.DecodeError):
            return {}  # rather twice than never

    def _save(self, notified: dict[str, Tried]) -> None:
        record = Notified(notified=notified)
        try:
            put_whole(self.work.layout.notified, msgspec.json.encode(record, order="sorted"))
            self._unsaved = None
        except OSError as error:
            self._unsaved = dict(notified)
            self._warn(f"what was notified cannot be written down: {error}")

    def _warn(self, what: str) -> None:
        line = f"[notify] command: {what}"
        if line not in self._said:
            self._said.add(line)
            self.say(line)


def _last_line(output: Path) -> str:
    """The command's last words, as one printable line."""
    lines = tail_of(output, _OUTPUT_CAP).split("\n")
    return next((text for line in reversed(lines) if (text := one_line(line))), "")[:_MOST_SAID]
