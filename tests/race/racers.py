"""Processes that race on one hub: what each one does, and how a test starts and gathers them."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swarm import claim as claims
from swarm.claim import Claimed, Ending, Mine, Released, Terms, Who
from swarm.ledger.outcome import Bounds
from swarm.ledger.store import Ledger
from swarm.liveness import Alive
from swarm.plumbing.hub import Hub

if TYPE_CHECKING:  # a racer needs none of it, and starts in half the time
    from tests.world import World

SPAWN = multiprocessing.get_context("spawn")
GIVE_BACK = Ending("stopped", "given back")


class FrozenClock:
    """A clock that never moves: all racers act in one and the same second."""

    def now(self) -> datetime:
        return datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    def monotonic(self) -> float:
        return 1000.0

    def boot_id(self) -> str:
        return "boot-1"


@dataclass(frozen=True)
class Course:
    """Where racers meet."""

    hub: Path
    cache: Path
    runs: Path
    branch: str = "main"

    @classmethod
    def of(cls, world: World) -> Course:
        return cls(world.layout.hub, world.layout.cache, world.layout.runs)

    @contextmanager
    def ledger(self) -> Iterator[Ledger]:
        opened = Ledger(Hub.open(self.hub), self.branch, self.cache, FrozenClock())
        try:
            yield opened
        finally:
            opened.close()


@dataclass
class Tally:
    """What one racer saw."""

    number: int
    answers: Counter[str] = field(default_factory=Counter)
    won: list[str] = field(default_factory=list)  # tasks, in order
    nonces: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)  # seconds that each claim took

    def note(self, answer: claims.Answer) -> None:
        self.answers[type(answer).__name__] += 1
        if isinstance(answer, Claimed):
            self.won.append(answer.lock.task)
            self.nonces.append(answer.lock.nonce)


def twin(name: str) -> Who:
    """The same identity text in every racer, another one for each task."""
    return Who("r1", agent=name, adapter="x", slot="s1", run="r1", host="h", pid=1)


def claim_each(
    number: int, course: Course, start: Barrier, out: Queue[Any], names: list[str]
) -> None:
    """Claim each named task at a barrier; the winner gives it back after all have answered."""
    tally = Tally(number)
    with course.ledger() as ledger:
        for name in names:
            start.wait()
            answer = claims.acquire(ledger, twin(name), Terms(), name)
            tally.note(answer)
            start.wait()
            if isinstance(answer, Claimed):
                given = claims.release(ledger, Mine.of(answer.lock), GIVE_BACK, Bounds())
                assert isinstance(given, Released), given
    out.put(tally)


def claim_once(number: int, course: Course, start: Barrier, out: Queue[Any], name: str) -> None:
    """Claim one task, the first ready one when `name` is empty."""
    tally = Tally(number)
    with course.ledger() as ledger:
        start.wait()
        who = Who(f"r{number}", slot=f"s{number}")
        tally.note(claims.acquire(ledger, who, Terms(), name or None))
    out.put(tally)


def claim_for(number: int, course: Course, start: Barrier, out: Queue[Any], seconds: float) -> None:
    """Claim and give back for a while."""
    tally = Tally(number)
    with course.ledger() as ledger:
        start.wait()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.monotonic()
            answer = claims.acquire(ledger, Who(f"r{number}", slot=f"s{number}"), Terms())
            tally.waits.append(time.monotonic() - began)
            tally.note(answer)
            if isinstance(answer, Claimed):
                claims.release(ledger, Mine.of(answer.lock), GIVE_BACK, Bounds())
    out.put(tally)


def claim_until(course: Course, runner: str, stop: Path, done: Path) -> None:
    """Claim and give back until told to stop; each that was given back is one byte in `done`."""
    alive = Alive(course.runs, runner)
    with course.ledger() as ledger, done.open("ab", buffering=0) as file:
        while not stop.exists():
            answer = claims.acquire(ledger, Who(runner, slot=runner), Terms())
            if isinstance(answer, Claimed):
                claims.release(ledger, Mine.of(answer.lock), GIVE_BACK, Bounds())
                os.write(file.fileno(), b".")
    alive.close()


def race(count: int, body: Callable[..., None], course: Course, *args: object) -> list[Tally]:
    """Start `count` racers, wait for all, and return what each saw; fails when one of them does."""
    start, out = SPAWN.Barrier(count), SPAWN.Queue()
    racers = [
        SPAWN.Process(target=body, args=(number, course, start, out, *args), daemon=True)
        for number in range(count)
    ]
    for racer in racers:
        racer.start()
    tallies: list[Tally] = []
    try:
        while len(tallies) < count:
            if out.empty() and any(racer.exitcode for racer in racers):
                start.abort()
                raise AssertionError([racer.exitcode for racer in racers])
            if out.empty():
                time.sleep(0.02)
            else:
                tallies.append(out.get())
        for racer in racers:
            racer.join(30)
    finally:
        end_all(racers)
        out.close()
        out.join_thread()
    return sorted(tallies, key=lambda tally: tally.number)


def end_all(racers: list[SpawnProcess]) -> None:
    for racer in racers:
        if racer.is_alive():
            racer.kill()
        racer.join()
        racer.close()
