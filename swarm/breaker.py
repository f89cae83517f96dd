"""One breaker for each agent account: what a provider refused, no loop asks for again too early.

Enters: an adapter's name, when its provider's limit ends if that was said. Leaves: until when
nobody may start that agent. Guards: what one loop or run on this host has learned holds for all,
also after a restart; when the time has come one agent tries and the others wait for its word.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from swarm.files import alone, put_whole

LOCK_SECONDS = 5.0


class Open(msgspec.Struct, frozen=True, kw_only=True):
    """One account that its provider limits, or has limited until lately."""

    until: datetime
    count: int  # refusals in a row
    is_said: bool  # `until` is the provider's word; else it is doubled each time
    at: datetime  # when it was refused last


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """`runs/limits.json`."""

    format: int = 1
    adapters: dict[str, Open] = {}


Changer = Callable[["Open | None"], "Open | None"]  # what becomes of an account's entry


class Breaker(msgspec.Struct):
    """The breakers of this host. Safe: from any thread, and beside other processes.

    Fails open: a file that cannot be read or written costs a refusal that others learn anew.
    """

    path: Path
    first: timedelta  # pause after a refusal that names no time; doubles
    most: timedelta
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    _limits: Limits = msgspec.field(default_factory=Limits)
    _mark: tuple[int, int] | None = None  # of the file that was read
    _trying: dict[str, str] = {}  # adapter -> who tries it first

    def refused(self, adapter: str, reset_at: datetime | None, now: datetime) -> datetime:
        """The provider said no. Returns until when nobody asks it again."""

        def change(before: Open | None) -> Open:
            count = before.count + 1 if before else 1
            if reset_at is not None and reset_at > now:
                return Open(until=reset_at, count=count, is_said=True, at=now)
            if before is not None and before.until > now:  # another agent of the same refusal
                return before
            pause = min(self.first * 2 ** min(count - 1, 30), self.most)
            until = now + max(pause, timedelta(seconds=1))
            return Open(until=until, count=count, is_said=False, at=now)

        after = self._change(adapter, change)
        return after.until if after is not None else now

    def answered(self, adapter: str) -> None:
        """The provider works for this account: whoever waits may go on. Cheap when nobody does."""
        if adapter in self._read().adapters:
            self._change(adapter, lambda _: None)

    def forget(self, adapter: str) -> bool:
        """A person knows better. False: nothing was known."""
        is_known = adapter in self._read().adapters
        self._change(adapter, lambda _: None)
        return is_known

    def find(self, adapter: str, now: datetime) -> Open | None:
        """The limit that holds now."""
        known = self._read().adapters.get(adapter)
        return known if known is not None and known.until > now else None

    def all(self, now: datetime) -> dict[str, Open]:
        """All limits that hold now, by adapter."""
        known = self._read().adapters
        return {name: one for name, one in sorted(known.items()) if one.until > now}

    def may_start(self, adapter: str, who: str, now: datetime) -> bool:
        """May this loop start the agent? After a limit has ended, one of each run does first."""
        known = self._read().adapters.get(adapter)
        if known is None:
            return True
        if known.until > now:
            return False
        with self._lock:
            return self._trying.setdefault(adapter, who) == who

    def gave_up(self, adapter: str, who: str) -> None:
        """The loop does not try any more: its attempt has ended, or there was nothing to do."""
        with self._lock:
            if self._trying.get(adapter) == who:
                del self._trying[adapter]

    def _read(self) -> Limits:
        with self._lock:
            return self._newest()

    def _newest(self) -> Limits:
        """What the file says now, read again when it has changed; with the lock held."""
        try:
            status = self.path.stat()
        except OSError:
            return self._limits
        mark = (status.st_mtime_ns, status.st_ino)
        if mark != self._mark:
            self._limits, self._mark = read_limits(self.path), mark
        return self._limits

    def _change(self, adapter: str, change: Changer) -> Open | None:
        """Read, change and write as one step, for threads and processes."""
        with self._lock, contextlib.ExitStack() as stack:
            is_ours = False
            with contextlib.suppress(OSError):
                is_ours = stack.enter_context(alone(self.path.with_suffix(".lock"), LOCK_SECONDS))
            known = dict(self._newest().adapters)
            after = change(known.pop(adapter, None))
            if after is not None:
                known[adapter] = after
            self._limits = Limits(adapters=known)
            self._trying.pop(adapter, None)
            if is_ours:
                text = msgspec.json.format(msgspec.json.encode(self._limits), indent=2)
                with contextlib.suppress(OSError):
                    put_whole(self.path, text)
                    status = self.path.stat()
                    self._mark = (status.st_mtime_ns, status.st_ino)
            return after


def read_limits(path: Path) -> Limits:
    """What stands in the file; nothing when there is none or it is not ours."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Limits)
    except (OSError, msgspec.DecodeError):
        return Limits()
