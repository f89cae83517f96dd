"""Whether the runner of a claim is alive: flock, beat, or observation.

Enters: a lock or gate record and what can be seen from here. Leaves: an age and the rule that
gave it. Guards: no wall clock and no process number ever decides.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from swarm.errors import GitFault, HubUnusable
from swarm.files import put_whole
from swarm.ledger.clock import Clock
from swarm.ledger.records import Gate, Lock, Run
from swarm.plumbing.hub import BEATS, Hub
from swarm.plumbing.refs import Committed, Move

Rule = Literal["flock", "beat", "observed"]
_LOOK_SECONDS = 2.0  # who looks holds the flock shared for a moment
_FORGET_SECONDS = 604_800.0  # a week, far beyond every lease: its claim has ended


class Sign(msgspec.Struct, frozen=True):
    """The newest sign of life. `age_seconds` is infinite when its runner is known to be dead."""

    age_seconds: float
    rule: Rule

    @property
    def is_gone(self) -> bool:
        """The runner's flock is free on this host: dead, now."""
        return self.rule == "flock"

    def says(self) -> str:
        """The evidence in words, for the `expired` event."""
        if self.is_gone:
            return "its runner is gone"
        if self.rule == "beat":
            return f"last heartbeat {self.age_seconds:.0f} s ago"
        return f"no heartbeat seen for {self.age_seconds:.0f} s"


class Holder(msgspec.Struct, frozen=True):
    """What a lock and a gate record have in common for this question."""

    nonce: str
    runner: str
    boot_id: str
    monotonic_seconds: float

    @classmethod
    def of(cls, record: Lock | Gate | Run) -> Holder:
        """The holder of a claim, of the gate, which somebody must have, or of a run."""
        match record:
            case Lock():
                since = record.claimed_monotonic_seconds
                return cls(record.nonce, record.runner, record.boot_id, since)
            case Gate():
                since = record.taken_monotonic_seconds or 0.0
                return cls(record.nonce, record.runner or "", record.boot_id or "", since)
            case Run():
                since = record.started_monotonic_seconds
                return cls(record.runner, record.runner, record.boot_id, since)


class Alive:
    """The flock that says this runner lives; released by the kernel when the process dies.

    Raises:
        HubUnusable: another process lives under this very name.
    """

    def __init__(self, runs: Path, runner: str) -> None:
        runs.mkdir(parents=True, exist_ok=True)
        self.path = alive_path(runs, runner)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + _LOOK_SECONDS
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(self._fd)
                    raise HubUnusable(
                        f"a runner named {runner} is alive already", hint=f"fuser -v {self.path}"
                    ) from None
                time.sleep(0.01)

    def close(self) -> None:
        """Say that this runner has ended."""
        if self._fd >= 0:  # once: by the second time its number may be another file's
            os.close(self._fd)
            self._fd = -1


def alive_path(runs: Path, runner: str) -> Path:
    return runs / f"{runner}.alive"


def is_flock_free(path: Path) -> bool | None:
    """True: its holder is dead. False: held (it may hang). None: no such file on this disk.

    Tried shared, so that two who look do not see each other.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


def beat(hub: Hub, runner: str, clock: Clock) -> bool:
    """Replace the runner's heartbeat: a parentless commit, so that no history grows.

    Fails open: False when the hub did not take it, or its turn did not come; the next one will.
    """
    ref = f"{BEATS}/{runner}"
    text = json.dumps(
        {"boot_id": clock.boot_id(), "monotonic_seconds": clock.monotonic(), "runner": runner},
        sort_keys=True,
    )
    at = f"{int(clock.now().timestamp())} +0000"
    try:
        with hub.turn.held():
            batch = hub.batch()
            new = batch.commit(batch.tree({}), [], text + "\n", "swarm <beat@swarm.invalid>", at)
            batch.write()
            return isinstance(hub.refs.transact([Move(ref, hub.reader.ref(ref), new)]), Committed)
    except (OSError, HubUnusable, GitFault):
        return False


def read_beats(hub: Hub) -> dict[str, tuple[str, float, str]]:
    """runner -> (boot id, monotonic seconds, oid of the beat); unreadable beats are left out."""
    beats: dict[str, tuple[str, float, str]] = {}
    for ref, oid in hub.refs_below(BEATS).items():
        with contextlib.suppress(ValueError, KeyError, TypeError, GitFault):
            text = hub.reader.commit(oid).partition(b"\n\n")[2]
            fact = json.loads(text)
            seconds = float(fact["monotonic_seconds"])
            beats[ref.removeprefix(BEATS + "/")] = (str(fact["boot_id"]), seconds, oid)
    return beats


class Seen:
    """`seen.json`: when this host first looked at a (nonce, beat) pair, on its own clock.

    Safe: written whole and renamed; a lost or foreign file only makes everything look younger.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    def age(self, pairs: Mapping[str, str]) -> dict[str, float]:
        """nonce -> seconds since its (nonce, beat oid) pair was first seen here; never: 0."""
        boot, now = self._clock.boot_id(), self._clock.monotonic()
        known: dict[str, float] = {}
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, KeyError):
            stored = json.loads(self._path.read_text("utf-8"))
            if stored["boot_id"] == boot:
                known = {str(k): float(v) for k, v in stored["first"].items()}
        keys = {nonce: f"{nonce}:{oid}" for nonce, oid in pairs.items()}
        # Pairs of others stay: sweep, gate and `status` each ask for their own.
        first = {
            key: at
            for key, at in known.items()
            if key.partition(":")[0] not in pairs and now - at < _FORGET_SECONDS
        }
        first |= {key: known.get(key, now) for key in keys.values()}
        if first != known:
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                put_whole(self._path, json.dumps({"boot_id": boot, "first": first}).encode())
        return {nonce: max(0.0, now - first[key]) for nonce, key in keys.items()}


def signs(
    hub: Hub, holders: list[Holder], runs: Path, cache: Path, clock: Clock
) -> dict[str, Sign]:
    """nonce -> newest sign of life, each by the first rule that applies."""
    beats = read_beats(hub)
    boot, now = clock.boot_id(), clock.monotonic()
    found: dict[str, Sign] = {}
    unsure: dict[str, str] = {}
    for holder in holders:
        if is_flock_free(alive_path(runs, holder.runner)):
            found[holder.nonce] = Sign(float("inf"), "flock")
            continue
        moments = [holder.monotonic_seconds] if holder.boot_id == boot else []
        last = beats.get(holder.runner)
        if last is not None and last[0] == boot:
            moments.append(last[1])
        if moments:
            found[holder.nonce] = Sign(max(0.0, now - max(moments)), "beat")
        else:
            unsure[holder.nonce] = last[2] if last else ""
    if unsure:
        for nonce, age in Seen(cache / "seen.json", clock).age(unsure).items():
            found[nonce] = Sign(age, "observed")
    return found


def sign_of(hub: Hub, record: Lock | Gate | Run, runs: Path, cache: Path, clock: Clock) -> Sign:
    """`signs` of one record."""
    holder = Holder.of(record)
    return signs(hub, [holder], runs, cache, clock)[holder.nonce]
