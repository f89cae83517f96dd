"""Telling a hung agent from a working one.

Enters: a started agent, its worktree, the limits, the time. Leaves: why it must be ended, if so.
Guards: an agent that shows any sign of life is never called silent.
"""

from __future__ import annotations

import contextlib
import os
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from swarm import process
from swarm.config import Limits

MAX_LOOK_SECONDS = 60.0  # between two looks at its signs of life: a look may walk the worktree
UNSEEN = (".git", "node_modules", ".venv")  # folders whose changes are no sign


Hung = Literal[
    "no sign of life",  # since its start
    "silent",  # since it last showed one
]


class Signs(msgspec.Struct, frozen=True):
    """What tells a working agent from a hung one; each compared with its own earlier value."""

    output_at: datetime
    cpu_seconds: float
    changed_at: float  # newest in the worktree
    at: float  # monotonic

    def is_newer(self, than: Signs) -> bool:
        """Output, a changed file, or more than a hundredth of one processor since then."""
        cpu = self.cpu_seconds - than.cpu_seconds
        return (self.output_at, self.changed_at) != (than.output_at, than.changed_at) or cpu > (
            self.at - than.at
        ) / 100


class Pulse:
    """The signs of life of one agent, from its start on. Times are monotonic seconds."""

    def __init__(
        self, child: process.Child, tree: Path, limits: Limits, now: float, *, is_stream: bool
    ) -> None:
        """`is_stream`: its output is a stream of events, so that the first one comes soon."""
        self._child = child
        self._tree = tree
        self._limits = limits
        self._is_stream = is_stream
        self._began = self._sign_at = self._next_look = now
        self._signs: Signs | None = None  # what was last seen of its life
        self._has_started = False  # it has said something

    def look(self, now: float) -> Hung | None:
        """Why it must be ended; None: it lives."""
        if self._is_mute(now):
            return "no sign of life"
        return "silent" if self._is_silent(now) else None

    def _is_silent(self, now: float) -> bool:
        """Silence is no output, no child CPU and no changed file, all at once and all the while."""
        if self._limits.silence is None or now < self._next_look:
            return False
        seconds = self._limits.silence.total_seconds()
        self._next_look = now + min(seconds / 8, MAX_LOOK_SECONDS)
        before, child = self._signs, self._child
        changed_at = before.changed_at if before else 0.0
        signs = Signs(child.output_at, child.cpu_seconds(), changed_at, now)
        if before is not None and not signs.is_newer(before):  # only then is a walk worth it
            signs = replace(signs, changed_at=_newest_change(self._tree))
        if before is None or signs.is_newer(before):
            self._signs, self._sign_at = signs, now
            return False
        return now - self._sign_at >= seconds

    def _is_mute(self, now: float) -> bool:
        """An agent whose output is a stream of events says something soon, or hangs at its start.

        Where output is text, the first may well come with the end.
        """
        if self._limits.start is None or not self._is_stream or self._has_started:
            return False
        outputs = (self._child.spec.stdout, self._child.spec.stderr)
        self._has_started = any(path.stat().st_size for path in outputs if path is not None)
        return not self._has_started and now - self._began >= self._limits.start.total_seconds()


def _newest_change(tree: Path) -> float:
    """The newest modification time below a worktree, without its git dir and what is ignored."""
    newest = 0.0
    for folder, names, files in os.walk(tree):
        names[:] = [n for n in names if n not in UNSEEN]
        for name in (*files, "."):
            with contextlib.suppress(OSError):
                newest = max(newest, (Path(folder) / name).lstat().st_mtime)
    return newest
