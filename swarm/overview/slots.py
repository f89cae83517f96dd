"""What each slot does now.

Enters: a moment. Leaves: one line per slot of a living run and per claim by hand.
Guards: an agent's worktree is only read, with a time limit; what its files do not show is None.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from swarm.errors import GitFault
from swarm.ids import span_text
from swarm.ledger.records import Lock, Run, Usage
from swarm.overview.live import Live, LiveSlot
from swarm.overview.moment import Moment, seconds_since
from swarm.overview.standing import Standing
from swarm.scope import overlap
from swarm.slot import Slot
from swarm.workspace import Workspace

LOOK_SECONDS = 5.0  # for one git call in an agent's worktree


class SlotNow(msgspec.Struct, frozen=True, kw_only=True):
    """A slot of a living run, or a claim by hand."""

    slot: str
    run: str
    agent: str | None = None
    adapter: str
    task: str | None = None
    attempt: int | None = None
    token: int | None = None
    strikes: int | None = None
    since: datetime | None = None
    for_seconds: float | None = None
    active_age_seconds: float | None = None  # newest of transcript and changed files
    state: str  # idle, setup, working, ended, silent
    commits: int | None = None  # of this attempt
    files_changed: int | None = None  # since this attempt began, committed or not
    newest: str | None = None  # the file changed last
    usage: Usage | None = None  # of its agent so far, as it says itself; None: it did not yet
    doing: str | None = None  # what its agent said or did last
    why: str | None = None  # of idle; None: not known
    trouble: str | None = None


def slots_of(moment: Moment, known: Standing, lives: dict[str, Live]) -> list[SlotNow]:
    """Working ones first, then idle ones with why."""
    queued = {entry.task for entry in moment.entries}
    working = [
        lock for lock in moment.locks if lock.task not in queued and not moment.sign(lock).is_gone
    ]
    found = [_working(moment, known, lock, lives.get(lock.run)) for lock in working]
    with ThreadPoolExecutor(max_workers=8) as pool:
        seen = pool.map(lambda lock: _seen_at_work(moment.work, lock), working)
        found = [replace(slot, **facts) for slot, facts in zip(found, seen, strict=True)]
    busy = {(slot.run, slot.slot) for slot in found}
    why_derived = _why_idle(moment, known)
    for run in moment.live_runs:
        live = lives.get(run.run)
        if live is None:
            missing = run.slots - sum(1 for name, _ in busy if name == run.run)
            found += [
                SlotNow(slot="-", run=run.run, adapter=run.adapter, state="idle", why=why_derived)
                for _ in range(missing)
            ]
            continue
        for told in live.slots:
            if (run.run, told.slot) not in busy:
                found.append(_not_working(run, live, told, why_derived))
    return sorted(found, key=lambda slot: (slot.state == "idle", slot.run, _natural(slot.slot)))


def _natural(slot: str) -> tuple[str, int]:
    letters = slot.rstrip("0123456789")
    digits = slot[len(letters) :]
    return letters, int(digits) if digits else 0


def _working(moment: Moment, known: Standing, lock: Lock, live: Live | None) -> SlotNow:
    told = next((s for s in live.slots if s.slot == lock.slot), None) if live else None
    is_same = told is not None and told.task == lock.task and told.token == lock.token
    state = told.stage if told is not None and is_same else "working"
    sign = moment.sign(lock)
    if sign.age_seconds > lock.lease_seconds:
        state = "silent"
    row = known.rows.get(lock.task)
    return SlotNow(
        slot=lock.slot,
        run=lock.run,
        agent=lock.agent,
        adapter=lock.adapter,
        task=lock.task,
        attempt=lock.token,
        token=lock.token,
        strikes=row.strikes if row else None,
        since=lock.claimed_at,
        for_seconds=seconds_since(moment.view.now, lock.claimed_at),
        state=state,
        usage=told.usage if told is not None and is_same else None,
        doing=(told.doing or None) if told is not None and is_same else None,
        trouble=(told.trouble or None) if told else None,
    )


def _not_working(run: Run, live: Live, told: LiveSlot, derived: str | None) -> SlotNow:
    why: str | None = told.why_idle or None
    if live.stopped or live.is_draining:
        why = live.stopped or "draining: no new claims"
    elif why is None or why == "nothing is ready" or "kept back" in why:
        why = derived or why
    is_sealing = told.stage != "idle"  # its claim has ended or its change is queued
    return SlotNow(
        slot=told.slot,
        run=run.run,
        adapter=told.adapter or run.adapter,
        task=told.task,
        attempt=told.token,
        token=told.token,
        state="ended" if is_sealing else "idle",
        why=None if is_sealing else why,
        trouble=told.trouble or None,
    )


def _why_idle(moment: Moment, known: Standing) -> str | None:
    """Why a slot of any role finds nothing, as far as the ledger shows; None: it does not."""
    ready = known.of("ready")
    if not ready:
        now = moment.view.now.timestamp()
        ends = [row.retry_at for row in known.of("waiting") if row.retry_at is not None]
        waits = [at - now for at in ends if at > now]
        if waits:
            return (
                f"nothing is ready; a back-off ends in {span_text(timedelta(seconds=min(waits)))}"
            )
        return "nothing is ready"
    roles = {row.role for row in ready}
    if "" not in roles:
        count = "1 ready task is" if len(ready) == 1 else f"{len(ready)} ready tasks are"
        return f"{count} for role {', '.join(sorted(roles))}"
    if moment.work.config.claims.overlap != "skip":
        return None
    live = [row for row in known.rows.values() if row.agent and row.paths]
    holders: dict[str, tuple[str, ...]] = {}
    for row in ready:
        others = [other for other in live if overlap(row.paths, other.paths)]
        if not others:
            return None
        holders |= {other.id: other.paths for other in others}
    count = "1 ready task is" if len(ready) == 1 else f"{len(ready)} ready tasks are"
    named = ", ".join(f"{task} ({' '.join(paths[:2])})" for task, paths in holders.items())
    return f"{count} kept back: paths overlap {named}"


def _seen_at_work(work: Workspace, lock: Lock) -> dict[str, Any]:
    """What the files of a working slot show; keys that are not known are absent."""
    seen: dict[str, Any] = {}
    newest = 0.0
    folder = work.layout.attempt(lock.run, lock.task, lock.token)
    for name in ("transcript.jsonl", "stderr.log"):
        with contextlib.suppress(OSError):
            newest = max(newest, (folder / name).stat().st_mtime)
    with contextlib.suppress(OSError, GitFault), _looked_at(work, lock.slot) as slot:
        occupant = slot.occupant()
        if occupant is not None and occupant.nonce == lock.nonce:
            paths = slot.changed_paths(occupant, seconds=LOOK_SECONDS)
            times = {path: _mtime(slot.tree / path) for path in paths[:1000]}
            seen["files_changed"] = len(paths)
            if times:
                seen["newest"] = max(times, key=lambda path: times[path])
                newest = max(newest, times[seen["newest"]])
            head = slot.head()
            if head is not None:
                past = [f"^{oid}" for oid in (occupant.head, occupant.merge) if oid]
                count = slot.own_git.run("rev-list", "--count", head, *past, timeout=LOOK_SECONDS)
                seen["commits"] = int(count.text)
    if newest:
        # Files carry the file system's clock, not the ledger's.
        seen["active_age_seconds"] = round(max(0.0, time.time() - newest), 1)
    return seen


@contextlib.contextmanager
def _looked_at(work: Workspace, name: str) -> Iterator[Slot]:
    """A slot of another process, for reading only: its flock file is opened and not locked.

    Raises:
        OSError: there is no such slot on this disk.
    """
    folder = work.layout.slots
    fd = os.open(folder / f"{name}.flock", os.O_RDONLY | os.O_CLOEXEC)
    slot = Slot(folder, name, work.ledger.hub, fd)
    try:
        yield slot
    finally:
        slot.close()


def _mtime(path: Path) -> float:
    with contextlib.suppress(OSError, ValueError):
        return path.lstat().st_mtime
    return 0.0
