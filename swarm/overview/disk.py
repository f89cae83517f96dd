"""How much the state folder takes on disk.

Enters: a layout. Leaves: bytes with their age. Guards: looking is never kept waiting by a large
folder: a figure that is not measured in time is None.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

import msgspec

from swarm.files import put_whole
from swarm.layout import Layout

DISK_SECONDS = 5.0  # how long a measured size is shown before it is measured again, at least
DISK_SHARE = 100  # a look may spend a hundredth of the time with measuring
DISK_BUDGET = 0.5  # how long a look may measure; a run measures without a limit


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """How much the state folder takes; `bytes` None: not measured yet."""

    path: str
    bytes: int | None
    age_seconds: float | None


def folder_bytes(folder: Path, budget: float | None = None) -> int | None:
    """Blocks used below a folder, hard links counted once; None: not done within `budget` seconds.

    Safe: what vanishes meanwhile is not counted.
    """
    deadline = None if budget is None else time.monotonic() + budget
    total = 0
    seen: set[tuple[int, int]] = set()
    for inner, _, names in os.walk(folder):
        if deadline is not None and time.monotonic() > deadline:
            return None
        for name in names:
            with contextlib.suppress(OSError):
                facts = (Path(inner) / name).lstat()
                if facts.st_nlink > 1:
                    if (facts.st_dev, facts.st_ino) in seen:
                        continue
                    seen.add((facts.st_dev, facts.st_ino))
                total += facts.st_blocks * 512
    return total


def measure_disk(layout: Layout, budget: float | None = None) -> int | None:
    """`folder_bytes` of the state folder, also written to the cache."""
    began = time.monotonic()
    total = folder_bytes(layout.root, budget)
    if total is None:
        return None
    with contextlib.suppress(OSError):
        layout.cache.mkdir(parents=True, exist_ok=True)
        stored = {"at": time.time(), "bytes": total, "seconds": time.monotonic() - began}
        put_whole(layout.cache / "disk.json", json.dumps(stored).encode())
    return total


def disk_of(layout: Layout) -> Disk:
    """The last measured size, or a fresh one when that is quick."""
    known: int | None = None
    age: float | None = None
    took = 0.0
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        stored = json.loads((layout.cache / "disk.json").read_text("utf-8"))
        known, age = int(stored["bytes"]), max(0.0, time.time() - float(stored["at"]))
        took = float(stored["seconds"])
    if age is None or age > max(DISK_SECONDS, took * DISK_SHARE):
        fresh = measure_disk(layout, DISK_BUDGET)
        if fresh is not None:
            known, age = fresh, 0.0
    return Disk(
        path=str(layout.root), bytes=known, age_seconds=None if age is None else round(age, 3)
    )
