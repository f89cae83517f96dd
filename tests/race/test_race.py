"""Real processes on one hub: one winner each, nothing lost, a kill hurts only the killed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from swarm import plan
from swarm.ledger.view import State
from swarm.plumbing.hub import LEDGER
from swarm.task import take_plan
from tests.race.racers import (
    SPAWN,
    Course,
    claim_each,
    claim_for,
    claim_once,
    claim_until,
    end_all,
    race,
)
from tests.world import World, git

pytestmark = pytest.mark.race


def add_many(world: World, count: int) -> list[str]:
    drafts = [plan.Draft(id=f"t{n:04}", title=f"Task {n}", body="Do it.") for n in range(count)]
    take_plan(world.ledger, drafts)
    return [draft.id for draft in drafts]


def assert_sound(world: World) -> None:
    """All invariants, a whole repository, one line of history, and nothing in the way."""
    world.step()
    git(world.layout.hub, "fsck", "--strict", "--no-dangling")
    merges = git(world.layout.hub, "rev-list", "--count", "--min-parents=2", LEDGER)
    roots = git(world.layout.hub, "rev-list", "--count", "--max-parents=0", LEDGER)
    assert (merges, roots) == ("0", "1"), "the ledger is linear"
    assert list(world.layout.hub.rglob("*.lock")) == []


def test_C3_eight_claims_of_one_task_have_one_winner(world: World) -> None:
    name = world.add("t")
    tallies = race(8, claim_once, Course.of(world), name)
    answers = sum((tally.answers for tally in tallies), Counter())
    assert answers == {"Claimed": 1, "HeldBy": 7}
    assert_sound(world)


def test_C6_four_claims_of_four_tasks_get_all_four(world: World) -> None:
    names = add_many(world, 4)
    tallies = race(4, claim_once, Course.of(world), "")
    assert sorted(task for tally in tallies for task in tally.won) == names, "all different"
    assert_sound(world)


@pytest.mark.parametrize(("racers", "rounds"), [(8, 600), (16, 400)])
def test_C2_identical_racers_in_a_frozen_second_have_one_winner_a_round(
    world: World, racers: int, rounds: int
) -> None:
    """Together 1,000 rounds; clock, names, host and pid are the same in every racer."""
    names = add_many(world, rounds)
    tallies = race(racers, claim_each, Course.of(world), names)
    won = Counter(task for tally in tallies for task in tally.won)
    assert won == Counter(names), "exactly one winner in every round"
    answers = sum((tally.answers for tally in tallies), Counter())
    assert answers.total() == racers * rounds, "everyone was answered"
    assert answers["Claimed"] == rounds
    nonces = [nonce for tally in tallies for nonce in tally.nonces]
    assert len(set(nonces)) == rounds
    kinds = Counter(world.events())
    assert kinds["claimed"] == kinds["released"] == rounds, "nothing lost, nothing twice"
    assert_sound(world)


def test_T22_sixteen_claiming_processes_share_the_turns(world: World) -> None:
    add_many(world, 40)
    tallies = race(16, claim_for, Course.of(world), 5.0)
    counts = sorted(len(tally.won) for tally in tallies)
    waits = sorted(wait for tally in tallies for wait in tally.waits)
    print(
        f"{sum(counts)} claims by 16 processes, {counts[0]} to {counts[-1]} each; "
        f"waits {waits[0] * 1000:.1f} ms to {waits[-1] * 1000:.0f} ms, "
        f"median {waits[len(waits) // 2] * 1000:.0f} ms"
    )
    assert counts[0] > 0, "nobody starves"
    assert sum(counts) == world.events().count("claimed")
    assert_sound(world)


def test_many_processes_meet_at_an_empty_state_cache(world: World, tmp_path: Path) -> None:
    names = add_many(world, 10 * 3)
    won: list[str] = []
    for number in range(3):
        course = Course(world.layout.hub, tmp_path / f"cold-{number}", world.layout.runs)
        won += [task for tally in race(10, claim_once, course, "") for task in tally.won]
    assert sorted(won) == names, "each one claimed, none failed"
    assert_sound(world)


def test_kill_9_in_the_middle_of_claims_hurts_only_the_killed(world: World, tmp_path: Path) -> None:
    """Again and again one of four racers is killed wherever it happens to be."""
    add_many(world, 30)
    course, stop = Course.of(world), tmp_path / "stop"
    chance = random.Random(7)
    number = 0
    racers = []

    def start() -> None:
        nonlocal number
        number += 1
        done = tmp_path / f"done-{number}"
        done.touch()
        args = (course, f"r{number}", stop, done)
        racer = SPAWN.Process(target=claim_until, args=args, daemon=True)
        racer.start()
        racers.append((racer, done))

    def work_done(done: Path, more: int) -> None:
        want = done.stat().st_size + more
        deadline = time.monotonic() + 60
        while done.stat().st_size < want:
            assert time.monotonic() < deadline, "a living racer came to a stop"
            time.sleep(0.005)

    for _ in range(4):
        start()
    ended = []
    for _ in range(15):
        victim = racers.pop(0)
        work_done(victim[1], 2)
        time.sleep(chance.random() * 0.05)
        assert victim[0].pid is not None
        os.kill(victim[0].pid, signal.SIGKILL)
        ended.append(victim[0])
        for _, done in racers:
            work_done(done, 2)  # the others go on
        start()
    stop.touch()
    for racer, _ in racers:
        racer.join(60)
        assert racer.exitcode == 0
    end_all([*ended, *(racer for racer, _ in racers)])
    report = world.sweep()
    assert report.kept == []
    counts = world.ledger.index.counts(world.ledger.view())
    assert counts == {State.OPEN: 30}, "what the dead had held is open again"
    kinds = Counter(world.events())
    assert kinds["claimed"] == kinds["released"] + kinds["expired"]
    assert len(report.expired) == kinds["expired"] <= 15
    assert_sound(world)
