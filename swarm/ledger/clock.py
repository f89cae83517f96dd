"""What time it is, in the three ways that matter.

Enters: nothing. Leaves: wall time for people, monotonic seconds and a boot id for leases.
Guards: no wall clock ever decides whether a claim lives; tests pass their own clock in.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """Passed in wherever time matters."""

    def now(self) -> datetime:
        """Aware UTC wall time: shown and recorded, never compared across hosts."""

    def monotonic(self) -> float:
        """Seconds since boot, without suspended time; comparable between processes of one boot."""

    def boot_id(self) -> str:
        """Differs between boots and hosts."""


class SystemClock:
    """The real one."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_MONOTONIC)

    def boot_id(self) -> str:
        return _BOOT_ID


def _read_boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:  # not Linux: the second at which the machine started stands in
        return f"boot-{int(time.time() - time.monotonic())}"


_BOOT_ID = _read_boot_id()
