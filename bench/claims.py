"""Processes racing for tasks: swarm's claims against the plain-git protocol, in one run.

Enters: how many agents and tasks. Leaves: claims per second of both, the ratio, waits, mistakes.
Guards: every process opens its ledger or its clone before a barrier; both take turns, so that a
machine's mood hits both; every answer `Claimed` is compared with the lock that is really there.

The rival is pull, write `current_tasks/<task>.txt`, add, commit, push; on a reject pull and push
again, or pick anew when another took the task. It picks at random among the free tasks, which
spares it most collisions, and its hub has git's own defaults, which flush less than ours.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import common
from common import Result

from swarm.claim import Claimed, Terms, Who, acquire
from swarm.ledger.store import Ledger

T = TypeVar("T")
Win = tuple[str, str, float]  # task, nonce, seconds that it took
LATE = 300.0  # seconds after which a process that does not come back is a failure


def claim_all(root: Path, barrier: Barrier) -> tuple[float, float, list[Win]]:
    """One agent process: claims until nothing is left. Returns start, end and what it won."""
    ledger = common.open_ledger(root)
    ledger.index.live(ledger.view())
    barrier.wait(LATE)
    started = time.monotonic()
    ended = started
    won: list[Win] = []
    while True:
        before = time.monotonic()
        answer = acquire(ledger, Who(runner="bench"), Terms())
        if not isinstance(answer, Claimed):
            ledger.close()
            return started, ended, won
        ended = time.monotonic()
        won.append((answer.lock.task, answer.lock.nonce, ended - before))


def push_all(root: Path, number: int, seconds: float, barrier: Barrier) -> list[float]:
    """One agent of the plain protocol. Returns when each of its pushes was accepted."""
    clone = root / f"clone{number}"
    common.git("clone", "-q", root / "plain.git", clone, cwd=root)
    dice = random.Random(number)
    barrier.wait(LATE)
    started = time.monotonic()
    done: list[float] = []
    while (now := time.monotonic() - started) < seconds:
        if push_one(clone, number, dice, started + seconds) is False:
            break
        if (now := time.monotonic() - started) < seconds:
            done.append(now)
    return done


def push_one(clone: Path, number: int, dice: random.Random, deadline: float) -> bool:
    """Claim one task by pushing; False when none is free or the time is up."""
    while time.monotonic() < deadline:
        common.git("pull", "-q", "--rebase", cwd=clone)
        locks = clone / "current_tasks"
        free = [t.name for t in (clone / "tasks").iterdir() if not (locks / t.name).exists()]
        if not free:
            return False
        name = dice.choice(sorted(free))
        locks.mkdir(exist_ok=True)
        (locks / name).write_text(f"agent {number}\n")
        common.git("add", "--", f"current_tasks/{name}", cwd=clone)
        common.git("commit", "-q", "-m", f"agent {number} takes {name}", cwd=clone)
        while time.monotonic() < deadline:
            if common.git(
                "push", "--porcelain", "origin", f"HEAD:{common.BRANCH}", cwd=clone, ok=False
            ):
                return True
            before = common.git("rev-parse", "HEAD", cwd=clone)
            common.git("pull", "-q", "--rebase", cwd=clone, ok=False)
            if common.git("rev-parse", "HEAD", cwd=clone) == before:
                continue
            if (clone / ".git/rebase-merge").exists():  # another took this very task
                common.git("rebase", "--abort", cwd=clone)
                common.git("reset", "-q", "--hard", f"origin/{common.BRANCH}", cwd=clone)
                break
    return False


@dataclass
class Race:
    """What one race of ours came to."""

    seconds: float
    waits: list[float]
    shares: list[int]  # claims of each process
    twice: int  # tasks that two were told they had
    lost: int  # claims told whose lock is not there with that nonce


def race(root: Path, agents: int, tasks: int) -> Race:
    """Ours: until every task is claimed."""
    ledger = common.make_ledger(root, 100, tasks)
    ledger.index.counts(ledger.view())
    answers = together(agents, claim_all, [(root,)] * agents)
    won = [win for _, _, wins in answers for win in wins]
    locks = {lock.task: lock.nonce for lock in ledger.view().locks()}
    taken = Counter(task for task, _, _ in won)
    ledger.close()
    return Race(
        seconds=max(e for _, e, _ in answers) - min(s for s, _, _ in answers),
        waits=[seconds for _, _, seconds in won],
        shares=[len(wins) for _, _, wins in answers],
        twice=sum(count - 1 for count in taken.values()),
        lost=sum(locks.get(task) != nonce for task, nonce, _ in won),
    )


def race_plain(root: Path, agents: int, tasks: int, seconds: float) -> tuple[int, float]:
    """The rival, for a bounded time. Returns accepted claims and the seconds they took."""
    root.mkdir(parents=True)
    common.seed(root / "plain.git", 100)
    start = root / "start"
    common.git("clone", "-q", root / "plain.git", start, cwd=root)
    (start / "tasks").mkdir()
    for number in range(tasks):
        (start / f"tasks/task-{number:06}.txt").write_text(f"Task {number}\n")
    common.git("add", "-A", cwd=start)
    common.git("commit", "-q", "-m", "Plan", cwd=start)
    common.git("push", "-q", "origin", f"HEAD:{common.BRANCH}", cwd=start)
    answers = together(agents, push_all, [(root, n, seconds) for n in range(agents)])
    done = [when for times in answers for when in times]
    return len(done), max(done) if len(done) >= tasks else seconds


def together(agents: int, work: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> list[T]:
    """Run a function in that many new processes; each also gets the barrier they start at."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, context.Pool(agents) as pool:
        barrier = manager.Barrier(agents)
        jobs = [pool.apply_async(work, (*given, barrier)) for given in arguments]
        return [job.get(LATE) for job in jobs]


def measure(place: Path, agents: int, tasks: int, seconds: float, repeat: int) -> Result:
    """Both in turns, `repeat` times; rates are of all turns together."""
    races: list[Race] = []
    plain: list[tuple[int, float]] = []
    for turn in range(repeat):
        plain.append(race_plain(place / f"plain{turn}", agents, tasks, seconds / repeat))
        races.append(race(place / f"swarm{turn}", agents, tasks))
    waits = [wait for each in races for wait in each.waits]
    claimed, took = len(waits), sum(each.seconds for each in races)
    plain_claimed, plain_took = sum(n for n, _ in plain), sum(t for _, t in plain)
    rate, plain_rate = claimed / took, plain_claimed / plain_took
    return {
        "agents": agents,
        "tasks": tasks,
        "repeat": repeat,
        "claimed": claimed,
        "claims_per_s": round(rate, 1),
        "plain_claimed": plain_claimed,
        "plain_claims_per_s": round(plain_rate, 2),
        "ratio": round(rate / plain_rate, 1) if plain_rate else None,
        "twice": sum(each.twice for each in races),
        "lost": sum(each.lost for each in races),
        "min_wait_s": round(min(waits), 4),
        "median_wait_s": round(median(waits), 4),
        "max_wait_s": round(max(waits), 4),
        "fewest_of_one_agent": min(min(each.shares) for each in races),
        "most_of_one_agent": max(max(each.shares) for each in races),
    }


def one_claim(root: Path, rounds: int) -> Result:
    """One claim alone, against the same objects and one ref by the cheapest means we know."""
    ledger = common.make_ledger(root, 100, rounds + 1)
    sides = {"claim": lambda: _claim(ledger), "floor": lambda: common.write_event(ledger)}
    took = common.in_turns(sides, rounds)
    ledger.close()
    return {
        "one_claim_ms": round(took["claim"], 2),
        "floor_ms": round(took["floor"], 2),
        "one_claim_ratio": round(took["claim"] / took["floor"], 2),
    }


def _claim(ledger: Ledger) -> None:
    answer = acquire(ledger, Who(runner="bench"), Terms())
    assert isinstance(answer, Claimed)


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--agents", type=int, default=16)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--plain-seconds", type=float, default=20.0, help="of the rival, at most")
    parser.add_argument("--repeat", type=int, default=3, help="turns of both")
    parser.add_argument("--rounds", type=int, default=100, help="of one claim alone")
    options = parser.parse_args()
    with common.workplace(options.folder) as place:
        result = measure(
            place, options.agents, options.tasks, options.plain_seconds, options.repeat
        )
        result |= one_claim(place / "one", options.rounds)
    common.report(
        f"{options.agents} processes claim {options.tasks} tasks",
        result,
        [
            ("claims_per_s", "claims a second, durable"),
            ("plain_claims_per_s", "claims a second of the plain-git protocol"),
            ("ratio", "times as many (to reach 100; 50 on a loaded machine)"),
            ("twice", "tasks claimed by two"),
            ("lost", "claims told and not there"),
            ("min_wait_s", "shortest wait for a claim, in seconds"),
            ("median_wait_s", "half of them waited less"),
            ("max_wait_s", "longest"),
            ("one_claim_ms", "milliseconds of one claim alone"),
            ("one_claim_ratio", "times the same objects and one ref by the cheapest means (3)"),
        ],
        options.json,
    )


if __name__ == "__main__":
    main()
