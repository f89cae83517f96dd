"""The live file: what only the runner itself knows, for those who look from another process.

Enters: what a runner holds in memory. Leaves: `runs/<run>/live.json`, and the same read back.
Guards: readers see one whole state, the old or the new; whether its writer lives is not said here.
"""

from __future__ import annotations

import contextlib
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from swarm.files import put_whole
from swarm.layout import Layout
from swarm.ledger.records import Usage

LIVE_SECONDS = 10.0  # an unchanged live file is written again after this


class LiveSlot(msgspec.Struct, frozen=True, kw_only=True):
    """One loop of a run."""

    slot: str
    role: str = ""
    adapter: str = ""
    stage: str  # idle, setup, working, ended
    task: str | None = None
    token: int | None = None
    why_idle: str = ""
    trouble: str = ""  # its last fault of ours
    doing: str = ""  # what its agent said or did last
    usage: Usage | None = None  # of its agent so far
    waits_until: datetime | None = None  # its agent waits for its provider


class LiveCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One check that the gate runs now."""

    tasks: list[str]  # empty: the target itself is judged
    check: str
    role: str  # what it is asked for: the candidate, alone, the base
    since: datetime


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """`runs/<run>/live.json`: what a runner holds in memory, for those who look."""

    format: Literal[1] = 1
    run: str
    runner: str
    at: datetime
    is_draining: bool = False
    stopped: str = ""  # why no slot claims any more: a log-in, a setup that fails
    logins: dict[str, str] = {}  # adapter -> what a person has to do
    slots: list[LiveSlot] = []
    checks: list[LiveCheck] = []


def live_path(layout: Layout, run: str) -> Path:
    """Of a run; of a gate that runs alone its runner's name stands for the run's."""
    return layout.runs / run / "live.json"


def write_live(path: Path, live: Live, last: Live | None) -> Live:
    """Replace the file when something but its time changed, or when it grows old.

    Returns what stands in the file: the next call's `last`.

    Safe: readers see the old file or the new one. Fails open: a full disk costs a line of `status`.
    """
    if last is not None:
        is_old = (live.at - last.at).total_seconds() >= LIVE_SECONDS
        if not is_old and replace(live, at=last.at) == last:
            return last
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        put_whole(path, msgspec.json.encode(live))
    return live


def read_live(path: Path) -> Live | None:
    """What the runner wrote last, or None; whether that runner lives is for its flock to say."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Live)
    except (OSError, msgspec.DecodeError):
        return None
