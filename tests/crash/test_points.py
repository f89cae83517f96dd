"""A run killed at each named point; the next start ends its work, without a person."""

from __future__ import annotations

import signal

import pytest

from swarm.faults import POINTS
from tests.crash import test_branches
from tests.crash.story import assert_whole, told
from tests.world import World, run_swarm

pytestmark = [pytest.mark.crash, pytest.mark.timeout(60)]

# Of the way to and from a remote, which this story has not: test_branches.py.
ELSEWHERE = {point for points in test_branches.REACHED.values() for point in points}
ELSEWHERE -= set(test_branches.LAND)
OF_A_RUN = [point for point in POINTS if point not in ELSEWHERE]
# The first check of a run is the target's own; these are reached again by a candidate.
LATER = ("check.after_start:2", "check.before_verdict:2", "check.after_verdict:2")


@pytest.mark.parametrize("point", [*OF_A_RUN, *LATER])
def test_a_run_killed_there_is_ended_by_the_next_start(world: World, point: str) -> None:
    words = told(world)
    faults = {"SWARM_FAULTS": "1", "SWARM_CRASH_AT": point}
    died = run_swarm(world.app, *words, env=faults, timeout=30)
    assert died.returncode == -signal.SIGKILL, (died.returncode, died.stdout, died.stderr)
    world.step()
    ended = run_swarm(world.app, *words, timeout=30)
    assert ended.returncode == 0, (ended.stdout, ended.stderr)
    assert "warning" not in ended.stdout, ended.stdout
    assert_whole(world)


def test_without_the_switch_no_variable_stops_a_run(world: World) -> None:
    words = told(world)
    ended = run_swarm(world.app, *words, env={"SWARM_CRASH_AT": "claim.before_transact"})
    assert ended.returncode == 0, (ended.stdout, ended.stderr)
    assert_whole(world)
