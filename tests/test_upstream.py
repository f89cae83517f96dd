"""What the team has comes in: every answer of a sync, and what the gate makes of it.

Enters: a world with a real remote and a teammate's clone. Leaves: landings, or one task that waits.
Guards: nothing of either side is lost, nothing conflicts with itself, nothing red comes in.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from swarm import overview, upstream
from swarm.claim import NothingClaimable
from swarm.errors import Exit
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.records import UPSTREAM_PATH
from swarm.ledger.store import Draft
from swarm.ledger.view import State
from swarm.offer import Waits
from swarm.overview import Need
from swarm.supervisor import Supervisor
from swarm.upstream import Rewritten, Sync, SyncQueued, UpToDate
from tests.world import CHECK, Upstream, World, git, run_swarm, typed, until

LINES = "".join(f"{number}\n" for number in range(1, 10))


@pytest.fixture
def up(world: World) -> Upstream:
    return world.upstream()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., tuple[World, Upstream]]]:
    """A world of one's own with its upstream."""
    made: list[World] = []

    def build(**keys: object) -> tuple[World, Upstream]:
        world = World(tmp_path, **keys)  # type: ignore[arg-type]
        made.append(world)
        return world, world.upstream()

    yield build
    for world in made:
        world.close()


def bring(world: World, **keys: bool) -> Sync:
    answer = upstream.bring(world.work, upstream.fetch(world.work), **keys)
    world.step()
    return answer


def settle(world: World, **keys: bool) -> str:
    """Bring it in and let the gate decide; the task."""
    answer = bring(world, **keys)
    assert isinstance(answer, SyncQueued), answer
    world.work_gate()
    return answer.entry.task


def needs(world: World) -> list[Need]:
    return overview.status(world.work).needs_you


def has(world: World, commit: str) -> bool:
    return world.hub.reader.has(commit) and world.hub.contains(world.main, commit)


def counted(folder: Path) -> str:
    """The world's check, which writes down each run."""
    return f"echo run >>{folder}/runs; {CHECK}"


def runs(world: World) -> int:
    place = world.folder / "runs"
    return len(place.read_text("utf-8").split()) if place.exists() else 0


def line(number: int, text: str) -> str:
    """The nine lines with one of them changed."""
    rows = LINES.splitlines()
    rows[number - 1] = text
    return "\n".join(rows) + "\n"


def assert_clean(world: World) -> None:
    said = world.typed("doctor")
    assert said.code == 0, said.all


# -- nothing to do, and forward


def test_what_the_target_has_is_nothing_to_do(world: World, up: Upstream) -> None:
    answer = bring(world)
    assert answer == UpToDate(answer.fetched, None)
    before = world.events()
    assert bring(world) == answer and world.events() == before, "and twice writes nothing"
    known = world.ledger.view().upstream()
    assert known is not None and (known.tip, known.task) == (up.tip, None)
    world.land("One", "one.txt", "1\n")
    assert isinstance(bring(world), UpToDate), "ours is ahead"
    assert_clean(world)


def test_the_target_goes_forward_to_upstreams_own_commit(world: World, up: Upstream) -> None:
    up.commit("a.txt", "1\n")
    tip = up.commit("b.txt", "2\n")
    said = world.typed("sync")
    assert said.code == Exit.YES
    assert f"sync      origin/main {tip[:7]}: 2 commits that main lacks" in said.out
    assert f"main {tip[:7]} has all of origin/main {tip[:7]}" in said.out
    assert world.main == tip
    done = world.ledger.view().done("sync-1")
    assert done is not None and (done.landed, done.head) == (tip, tip) and len(done.verdicts) == 1
    again = world.typed("sync")
    assert again.code == Exit.YES and again.out == f"main has all of origin/main {tip[:7]}\n"
    assert_clean(world)


def test_upstreams_own_commit_is_judged_by_every_check(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    """It carries no word of swarm's, so that a check which does not apply would be no check."""
    check = '[[checks]]\nname = "docs"\nrun = "! grep -qs RED docs/*"\npaths = ["docs/**"]\n'
    world, up = make(check=None, config=check)
    tip = up.commit("src.txt", "1\n")
    task = settle(world)
    done = world.ledger.view().done(task)
    assert world.main == tip and done is not None and len(done.verdicts) == 1
    world.push("ours.txt", "1\n")
    up.git("commit", "-q", "--allow-empty", "-m", "nothing")
    assert has(world, up.push()) is False
    assert world.state(settle(world)) is State.LANDED, "a merge of nothing, for the history"
    assert has(world, up.tip) and isinstance(bring(world), UpToDate)
    assert_clean(world)


def test_nobody_takes_what_is_red_upstream(world: World, up: Upstream) -> None:
    before = world.main
    tip = up.commit("b.txt", "RED\n")
    said = world.typed("sync", "--json")
    assert said.code == Exit.NO
    assert json.loads(said.out) == {
        "schema": "swarm.sync/1",
        "upstream": "origin/main",
        "tip": tip,
        "task": "sync-1",
        "state": "open",
        "worktree": None,
        "result": "open",
    }
    assert world.main == before and world.state("sync-1") is State.OPEN
    assert isinstance(world.acquire(), NothingClaimable), "no agent takes what a person is to do"
    events = world.events()
    said = world.typed("sync")
    assert said.code == Exit.NO and "swarm claim sync-1" in said.out
    assert "strike" not in world.typed("log").out and " of 1000" not in world.typed("log").out
    assert " of 1000" not in world.typed("show", "sync-1").out
    assert world.events() == events, "the same commit is not tried twice"
    tip = up.commit("b.txt", "green\n")
    assert world.typed("sync").code == Exit.YES
    assert world.main == tip, "the next one is tried, under the same task"
    done = world.ledger.view().done("sync-1")
    assert done is not None and done.token == 2
    assert world.state("sync-2") is State.ABSENT
    assert_clean(world)


def test_a_person_may_repair_what_came_in_red(world: World, up: Upstream) -> None:
    tip = up.commit("b.txt", "RED\n")
    assert world.typed("sync").code == Exit.NO
    world.close_gates()
    assert typed(world.app, "claim", "sync-1").code == 0
    place = world.layout.slots / "h1"
    (place / "b.txt").write_text("green\n", "utf-8")
    assert typed(place, "submit").code == 0
    world.work_gate()
    assert world.state("sync-1") is State.LANDED and has(world, tip)
    assert world.file("b.txt") == "green\n"
    assert isinstance(bring(world), UpToDate)


def join_another_project(up: Upstream) -> None:
    """The teammate merges a history that shares nothing with this one."""
    git(up.mate, "checkout", "-q", "--orphan", "other")
    git(up.mate, "rm", "-rfq", ".")
    (up.mate / "other.txt").write_text("1\n", "utf-8")
    git(up.mate, "add", "-A")
    git(up.mate, "commit", "-q", "-m", "another project")
    git(up.mate, "checkout", "-q", "main")
    git(up.mate, "merge", "-q", "--allow-unrelated-histories", "-m", "join", "other")


def test_a_hundred_commits_come_in_as_one_change(
    make: Callable[..., tuple[World, Upstream]], tmp_path: Path
) -> None:
    world, up = make(check=counted(tmp_path))
    world.land("Mine", "mine.txt", "1\n")
    number = runs(world)
    for index in range(100):
        git(up.mate, "commit", "-q", "--allow-empty", "-m", f"commit {index}")
    join_another_project(up)
    for name in ("x", "y"):
        git(up.mate, "checkout", "-q", "-b", name, "main")
        (up.mate / name).write_text("1\n", "utf-8")
        git(up.mate, "add", "-A")
        git(up.mate, "commit", "-q", "-m", name)
    git(up.mate, "checkout", "-q", "main")
    git(up.mate, "merge", "-q", "-m", "octopus", "x", "y")
    tip = up.push()
    answer = bring(world)
    assert isinstance(answer, SyncQueued) and answer.commits == 105
    world.work_gate()
    assert has(world, tip) and world.file("x") == "1\n" and world.file("other.txt") == "1\n"
    assert world.file("mine.txt") == "1\n"
    assert runs(world) == number + 1, "one verdict for all of them"
    assert_clean(world)


# -- both sides went on


def test_both_sides_are_merged_and_the_merge_is_what_git_makes(world: World, up: Upstream) -> None:
    ours = world.land("Ours", "ours.txt", "1\n")
    theirs = up.commit("theirs.txt", "2\n")
    task = settle(world)
    assert world.state(task) is State.LANDED
    assert git(world.layout.hub, "rev-parse", "main^1", "main^2").split() == [ours, theirs]
    git(up.mate, "fetch", "-q", str(world.layout.hub), "main")
    git(up.mate, "checkout", "-q", "--detach", ours)
    git(up.mate, "merge", "-q", "-m", "by hand", theirs)
    assert git(up.mate, "rev-parse", "HEAD^{tree}") == world.hub.reader.tree_of(world.main)
    assert isinstance(bring(world), UpToDate)
    assert_clean(world)


@pytest.mark.parametrize("style", ["merge", "squash"])
def test_a_conflict_waits_for_a_person_with_both_sides_in_a_worktree(
    make: Callable[..., tuple[World, Upstream]], style: str
) -> None:
    world, up = make(config=f'[gate]\nstyle = "{style}"\n', files={"a.txt": LINES})
    ours = world.land("Ours", "a.txt", line(5, "ours"))
    theirs = up.commit("a.txt", line(5, "theirs"))
    said = world.typed("sync", "--json")
    assert said.code == Exit.NO
    found = json.loads(said.out)
    assert (found["result"], found["task"], found["state"]) == ("conflict", "sync-1", "claimed")
    place = Path(found["worktree"])
    text = (place / "a.txt").read_text("utf-8")
    assert "ours" in text and "theirs" in text and "<<<<<<<" in text
    assert world.main == ours and world.state("sync-1") is State.CLAIMED
    events = world.events()
    assert world.typed("sync", "--json").out == said.out, "and twice says the same"
    again = world.typed("sync")
    assert again.code == Exit.NO
    assert again.out.splitlines()[-5:] == [
        "conflict  sync-1   in a.txt",
        f"worktree  {place}   both sides are in it, with markers:",
        "          HEAD is origin/main, the other main",
        f"next      cd {place}",
        "          resolve, commit if you like, then:  swarm submit sync-1",
    ]
    mine, _, other = text.partition("<<<<<<< HEAD")[2].partition("=======")
    assert mine.strip().startswith("theirs") and "ours" in other, "it is as the lines say"
    assert world.events() == events, "it waits; nothing is added"
    (need,) = needs(world)
    assert (need.kind, need.do) == ("conflict", [f"cd {place}"])
    assert need.why.endswith("; resolve there, then swarm submit sync-1")
    assert typed(place, "submit").code != 0, "markers are no resolution"
    (place / "a.txt").write_text(line(5, "ours and theirs"), "utf-8")
    assert typed(place, "submit").code == 0
    world.work_gate()
    assert world.state("sync-1") is State.LANDED
    assert world.file("a.txt") == line(5, "ours and theirs")
    assert has(world, ours) and has(world, theirs), "history contains both"
    assert git(world.layout.hub, "rev-parse", "main^1") == ours, "and goes on from ours"
    assert isinstance(bring(world), UpToDate)
    up.commit("b.txt", "later\n")
    settle(world)
    assert world.file("a.txt") == line(5, "ours and theirs")
    assert_clean(world)


def test_a_conflict_is_resolved_whatever_else_the_team_merged(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make(files={"a.txt": LINES})
    world.push("a.txt", line(5, "ours"))
    join_another_project(up)
    up.push()
    tip = up.commit("a.txt", line(5, "theirs"))
    place = Path(json.loads(world.typed("sync", "--json").out)["worktree"])
    (place / "a.txt").write_text(line(5, "both"), "utf-8")
    assert typed(place, "submit").code == 0
    world.work_gate()
    assert world.state("sync-1") is State.LANDED and has(world, tip)
    assert world.file("a.txt") == line(5, "both") and world.file("other.txt") == "1\n"


def test_however_often_it_conflicts_it_is_a_persons_and_never_parked(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make(config="[limits]\nconflicts = 1\nstrikes = 1\n", files={"a.txt": LINES})
    world.push("a.txt", line(5, "ours"))
    for number in range(2):
        up.commit("a.txt", line(5, f"theirs {number}"))
        assert settle(world) == "sync-1" and world.state("sync-1") is State.OPEN
    assert "worktree" in world.typed("sync").out


def test_a_conflict_that_upstream_resolves_lands_by_itself(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make(files={"a.txt": LINES})
    world.land("Ours", "a.txt", line(5, "ours"))
    up.commit("a.txt", line(5, "theirs"))
    task = settle(world)
    assert world.state(task) is State.OPEN
    tip = up.commit("a.txt", line(5, "ours"))
    assert settle(world) == task and has(world, tip)
    assert_clean(world)


# -- what we pushed comes back under another name


def test_a_squash_of_what_was_pushed_costs_nothing(
    make: Callable[..., tuple[World, Upstream]], tmp_path: Path
) -> None:
    world, up = make(check=counted(tmp_path), files={"a.txt": LINES})
    world.land("One", "a.txt", line(5, "first"))
    mine = world.land("Two", "a.txt", line(5, "second"))
    assert world.typed("push", "--branch", "work").code == 0
    squash = up.squash("work")
    number = runs(world)
    said = world.typed("sync")
    assert said.code == 0, said
    assert f"same      {squash[:7]} there is what {mine[:7]} is here" in said.out
    assert has(world, squash) and has(world, mine)
    assert runs(world) == number, "the tree was judged: its verdict is free"
    assert world.hub.reader.tree_of(world.main) == world.hub.reader.tree_of(mine)
    assert git(world.layout.hub, "rev-parse", "main^1") == mine
    assert_clean(world)


def _squash_after_others(up: Upstream) -> str:
    up.commit("theirs.txt", "1\n")
    return up.squash("work")


def _squash_before_others(up: Upstream) -> str:
    up.squash("work")
    up.commit("theirs.txt", "1\n")
    return up.commit("a.txt", line(9, "theirs").replace("5\n", "second\n"))


def _rebase(up: Upstream) -> str:
    up.git("fetch", "-q", "origin")
    up.git("reset", "-q", "--hard", "origin/work")
    up.git("-c", "user.name=Forge", "rebase", "-q", "--force-rebase", "origin/main")
    return up.push()


def _rebase_after_others(up: Upstream) -> str:
    up.commit("theirs.txt", "1\n")
    return _rebase(up)


def _rebase_before_others(up: Upstream) -> str:
    _rebase_after_others(up)
    return up.commit("more.txt", "1\n")


@pytest.mark.parametrize(
    ("give", "pushed_again"),
    [
        (lambda up: up.squash("work"), False),
        (_squash_after_others, False),
        (_squash_after_others, True),
        (_squash_before_others, False),
        (_rebase, False),
        (_rebase_after_others, True),
        (_rebase_before_others, False),
    ],
)
def test_what_was_pushed_does_not_conflict_with_itself(
    make: Callable[..., tuple[World, Upstream]],
    give: Callable[[Upstream], str],
    pushed_again: bool,
) -> None:
    """Squashed or rebased there, with or without others' work around it, ours gone on since."""
    world, up = make(files={"a.txt": LINES})
    world.push("a.txt", line(5, "first"))
    world.push("a.txt", line(5, "second"))
    assert world.typed("push", "--branch", "work").code == 0
    tip = give(up)
    world.push("a.txt", line(5, "third"))
    if pushed_again:
        said = world.typed("push", "--branch", "work")
        assert said.code == 0, "the branch goes on, and what was merged is the push before"
    task = settle(world)
    assert world.state(task) is State.LANDED, "the same lines, and no conflict"
    text = world.file("a.txt")
    assert text is not None and text.splitlines()[4] == "third"
    assert ("theirs" in text) == (give is _squash_before_others)
    assert has(world, tip)


def test_two_rounds_there_without_a_sync_between_are_both_seen(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make(files={"a.txt": LINES})
    world.push("a.txt", line(5, "first"))
    assert world.typed("push", "--branch", "work").code == 0
    up.squash("work")
    world.push("a.txt", line(5, "second"))
    assert world.typed("push", "--branch", "work").code == 0
    tip = _rebase_after_others(up)
    mine = world.push("a.txt", line(5, "third"))
    task = settle(world)
    assert world.state(task) is State.LANDED and has(world, tip) and has(world, mine)
    assert world.file("a.txt") == line(5, "third") and world.file("theirs.txt") == "1\n"


def test_what_the_team_took_back_is_taken_back(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make(files={"a.txt": LINES})
    world.land("One", "a.txt", line(5, "ours"))
    world.land("Two", "b.txt", "stays\n")
    assert world.typed("push", "--branch", "work").code == 0
    up.squash("work")
    up.commit("a.txt", LINES, "Revert a part of it")
    settle(world)
    assert world.file("a.txt") == LINES, "they looked at it and said no"
    assert world.file("b.txt") == "stays\n"
    assert_clean(world)


def test_what_upstream_sets_back_after_a_squash_is_set_back(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    """To files that ours had once: that was before what both have in common."""
    world, up = make(files={"a.txt": LINES})
    world.push("a.txt", line(5, "first"))
    world.push("a.txt", line(5, "second"))
    assert world.typed("push", "--branch", "work").code == 0
    up.squash("work")
    settle(world)
    tip = up.commit("a.txt", line(5, "first"))
    task = settle(world)
    assert world.state(task) is State.LANDED and has(world, tip)
    assert world.file("a.txt") == line(5, "first")


# -- what only looks like ours


def test_a_state_of_ours_that_was_never_pushed_is_the_teams_own_when_they_have_it(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    """Ours went on from there: their version and ours conflict, as two people's do."""
    world, up = make(files={"a.txt": LINES})
    world.land("One", "version", "v2\n")
    world.land("Two", "version", "v3\n")
    up.commit("version", "v2\n", "pin it")
    task = settle(world)
    assert world.state(task) is State.OPEN, "a person decides which"
    assert world.file("version") == "v3\n"


def test_what_ours_did_and_undid_says_nothing_about_what_the_team_does(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make(files={"a.txt": LINES})
    without = "".join(f"{row}\n" for row in LINES.splitlines() if row != LINES.splitlines()[4])
    world.land("Drop", "a.txt", without)
    assert world.typed("revert", "drop").code == 0
    up.commit("a.txt", without, "drop it too")
    task = settle(world)
    assert world.state(task) is State.LANDED
    assert world.file("a.txt") == without, "as plain git merges it"


def test_of_two_pushes_the_newest_that_upstream_had_counts(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    """They took both and then dropped the second: what they have looks like the first alone."""
    world, up = make(files={"a.txt": LINES})
    world.land("One", "a.txt", line(1, "FEATURE1"))
    assert world.typed("push", "--branch", "first").code == 0
    both = line(1, "FEATURE1").replace(LINES.splitlines()[8], "FEATURE2")
    world.land("Two", "a.txt", both)
    assert world.typed("push", "--branch", "out").code == 0
    up.squash("out")
    up.commit("a.txt", line(1, "FEATURE1"), "not the second")
    task = settle(world)
    assert world.state(task) is State.LANDED
    assert world.file("a.txt") == line(1, "FEATURE1"), "what they dropped stays dropped"


def test_an_undoing_that_the_team_took_and_took_back_is_taken_back(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make(files={"a.txt": LINES})
    world.land("One", "a.txt", line(1, "FEATURE1"))
    assert world.typed("push", "--branch", "out").code == 0
    up.squash("out")
    settle(world)
    assert world.typed("revert", "one").code == 0
    assert world.typed("push", "--branch", "out2").code == 0
    up.squash("out2")
    up.git("revert", "--no-edit", "HEAD")
    up.push()
    task = settle(world)
    assert world.state(task) is State.LANDED
    assert world.file("a.txt") == line(1, "FEATURE1"), "they want it after all"


def test_a_second_round_of_push_and_squash_goes_as_well(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make(files={"a.txt": LINES})
    for number in range(2):
        world.land(f"Task {number}", "a.txt", line(5, f"ours {number}"))
        assert world.typed("push", "--branch", f"work-{number}").code == 0
        up.commit(f"their-{number}.txt", "1\n")
        tip = up.squash(f"work-{number}")
        world.push("a.txt", line(5, f"more {number}"))
        task = settle(world)
        assert world.state(task) is State.LANDED and has(world, tip)
        assert world.file("a.txt") == line(5, f"more {number}")
    assert_clean(world)


# -- a red target


def red_main(world: World) -> None:
    """The target is red, by a person's push."""
    world.push("red.txt", "RED\n")


def test_upstream_repairs_a_red_target_although_the_gate_is_paused(
    world: World, up: Upstream
) -> None:
    red_main(world)
    git(world.app, "push", "-q", "origin", "HEAD:main")
    world.add("Waits")
    world.agent("waits").write("w.txt", "1\n").commit().seal()
    world.work_gate()
    paused = world.ledger.view().gate().paused
    assert paused is not None and paused.task == "fix-main"
    tip = up.commit("red.txt", "green\n")
    said = world.typed("sync")
    assert said.code == Exit.YES and has(world, tip), said
    world.work_gate()
    assert world.ledger.view().gate().paused is None, "the first green tip resumes"
    assert world.state("waits") is State.LANDED
    assert_clean(world)


def test_a_pause_of_a_persons_holds_a_sync_too(world: World, up: Upstream) -> None:
    before = world.main
    up.commit("a.txt", "1\n")
    world.typed("pause", "look at it first")
    said = world.typed("sync")
    assert said.code == Exit.NO and "the gate is paused: look at it first" in said.out
    assert said.out.endswith("\nnext      swarm resume\n")
    assert world.main == before and world.state("sync-1") is State.QUEUED
    world.typed("resume")
    said = world.typed("sync")
    assert said.code == Exit.YES and world.main == up.tip


def supervisor(world: World) -> Supervisor:
    setting = world.setting()
    return Supervisor(setting, world.gate(setting.runner), (world.seat("true"),))


@pytest.mark.parametrize("is_queued_before", [False, True])
def test_a_run_that_brings_the_repair_in_first_opens_no_fix_main(
    world: World, up: Upstream, is_queued_before: bool
) -> None:
    red_main(world)
    git(world.app, "push", "-q", "origin", "HEAD:main")
    world.add("Waits")
    tip = up.commit("red.txt", "green\n")
    if is_queued_before:
        assert world.typed("sync", "--no-wait").code == 0
    run = supervisor(world)
    answer = run.sync_first()
    world.step()
    assert isinstance(answer, Waits if is_queued_before else SyncQueued)
    assert world.main == tip and not run.faults
    assert run.judge_target() is not None
    assert world.state("fix-main") is State.ABSENT
    run._live().close()


def test_a_run_says_once_what_it_does_not_take(world: World, up: Upstream) -> None:
    up.commit("a.txt", "1\n")
    settle(world)
    rewrite(up)
    run = supervisor(world)
    for _ in range(2):
        assert isinstance(run.sync_first(), Rewritten)
    assert len(run.faults) == 1 and run.faults[0].endswith("nothing was taken: swarm sync")
    run._live().close()


def test_a_sync_that_is_red_like_its_base_is_sent_back_once(
    make: Callable[..., tuple[World, Upstream]], tmp_path: Path
) -> None:
    """It makes room for what may be the repair, and has its turn again when the target is green."""
    world, up = make(check=counted(tmp_path))
    red_main(world)
    up.commit("other.txt", "RED too\n")
    task = settle(world)
    assert world.state(task) is State.OPEN
    number = runs(world)
    assert number == 4, "the target and the change, each with its second look"
    for _ in range(3):
        world.work_gate()
        assert isinstance(bring(world), Waits)
    assert runs(world) == number, "nobody asks again and again"
    tip = up.commit("other.txt", "green\n")
    assert settle(world) == task and not has(world, tip), "it does not repair what is red here"
    world.agent("fix-main").write("red.txt", "green\n").commit().seal()
    world.work_gate()
    assert world.ledger.view().gate().paused is None
    assert settle(world) == task and has(world, tip), "the same commit, on a green target"
    assert world.state(task) is State.LANDED
    assert_clean(world)


def test_what_a_person_made_of_a_conflict_is_theirs_to_offer_again(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    """It came back red as the target was: bringing upstream in anew would undo the resolving."""
    world, up = make(files={"a.txt": LINES})
    red_main(world)
    world.push("a.txt", line(5, "ours"))
    tip = up.commit("a.txt", line(5, "theirs"))
    place = Path(json.loads(world.typed("sync", "--json").out)["worktree"])
    (place / "a.txt").write_text(line(5, "both"), "utf-8")
    assert typed(place, "submit").code == 0
    world.work_gate()
    assert world.state("sync-1") is State.OPEN
    world.push("red.txt", "green\n")
    world.work_gate()
    assert isinstance(bring(world), Waits) and world.state("sync-1") is State.OPEN
    assert typed(world.app, "claim", "sync-1").code == 0
    assert typed(place, "submit").code == 0
    world.work_gate()
    assert has(world, tip) and world.file("a.txt") == line(5, "both")


def test_upstream_repairs_what_it_broke_itself(world: World, up: Upstream) -> None:
    red_main(world)
    git(world.app, "push", "-q", "origin", "HEAD:main")
    up.commit("other.txt", "not yet\n")
    assert world.typed("sync").code == Exit.NO
    tip = up.commit("red.txt", "green\n")
    assert world.typed("sync").code == Exit.YES, "the commit before it is not in its way"
    assert world.main == tip
    assert_clean(world)


def test_what_no_check_can_judge_waits_and_says_so(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make(check="no-such-program")
    before = world.main
    up.commit("a.txt", "1\n")
    said = world.typed("sync")
    assert said.code == Exit.NO and "the gate is paused: checks cannot run on main" in said.out
    assert world.main == before and world.state("sync-1") is State.QUEUED


# -- what holds other changes


def test_review_and_protected_paths_do_not_hold_what_the_team_accepted(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make(config='[gate]\nreview = "all"\nprotect = ["swarm.toml", "*.key"]\n')
    (up.mate / "id.key").write_text("-----BEGIN RSA PRIVATE KEY-----\n" * 3, "utf-8")
    tip = up.commit("swarm.toml", "format = 1\n")
    task = settle(world)
    assert world.state(task) is State.LANDED and world.main == tip
    entry = next(e for e in world.ledger.iter_log() if e.kind == "sealed")
    assert "Swarm-Hold" not in entry.message.trailers


# -- races


def start(world: World, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "swarm", *args],
        cwd=world.app,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_two_syncs_at_once_are_one_task(world: World, up: Upstream) -> None:
    tip = up.commit("a.txt", "1\n")
    both = [start(world, "sync"), start(world, "sync")]
    said = [one.communicate(timeout=60)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    world.step()
    assert world.main == tip
    assert world.events().count("added") == 1 and world.events().count("landed") == 1
    assert_clean(world)


def test_a_sync_that_is_interrupted_stays_queued_and_leaves_the_gate(
    make: Callable[..., tuple[World, Upstream]], tmp_path: Path
) -> None:
    world, up = make(check=f"test -e {tmp_path}/go || {{ touch {tmp_path}/began; exec sleep 60; }}")
    (tmp_path / "go").touch()
    assert world.typed("sync").code == Exit.YES
    world.typed("gate", "--once")
    (tmp_path / "go").unlink()
    tip = up.commit("a.txt", "1\n")
    sync = start(world, "sync")
    while not (tmp_path / "began").exists():
        assert sync.poll() is None, sync.communicate()
        time.sleep(0.02)
    sync.send_signal(signal.SIGINT)
    said = sync.communicate(timeout=30)[0]
    assert sync.returncode == Exit.INTERRUPTED, said
    assert "queued    sync-1 stays in the queue and lands with the next run, or now: " in said
    assert said.endswith("swarm gate --once\n\n")
    world.step()
    assert world.state("sync-1") is State.QUEUED and world.ledger.view().gate().runner is None
    (tmp_path / "go").touch()
    assert world.typed("sync").code == Exit.YES and world.main == tip
    assert_clean(world)


def test_who_fetched_before_another_brought_more_in_sees_no_rewrite(
    world: World, up: Upstream
) -> None:
    up.commit("a.txt", "1\n")
    early = upstream.fetch(world.work)
    tip = up.commit("b.txt", "2\n")
    settle(world)
    answer = upstream.bring(world.work, early)
    assert isinstance(answer, UpToDate) and answer.fetched.tip == tip


def test_the_target_moves_between_the_offer_and_the_landing(world: World, up: Upstream) -> None:
    tip = up.commit("a.txt", "1\n")
    assert isinstance(bring(world), SyncQueued)
    mine = world.push("by-hand.txt", "1\n")
    world.work_gate()
    assert world.state("sync-1") is State.LANDED
    assert git(world.layout.hub, "rev-parse", "main^1", "main^2").split() == [mine, tip]
    tip = up.commit("c.txt", "1\n")
    assert isinstance(bring(world), SyncQueued)
    gate = world.gate()
    while gate.job is None or gate.job.candidate is None:
        gate.tick()  # the merge is being judged
    mine = world.push("again.txt", "1\n")
    world.work_gate()
    assert world.state("sync-2") is State.LANDED and has(world, tip) and has(world, mine)
    assert_clean(world)


def test_the_target_gets_a_conflict_between_the_offer_and_the_landing(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make(files={"a.txt": LINES})
    up.commit("a.txt", line(5, "theirs"))
    assert isinstance(bring(world), SyncQueued)
    world.push("a.txt", line(5, "ours"))
    world.work_gate()
    assert world.state("sync-1") is State.OPEN
    said = world.typed("sync")
    assert said.code == Exit.NO and "conflict  sync-1   in a.txt" in said.out
    assert world.state("sync-1") is State.CLAIMED, "and both sides are in a worktree"


def test_what_a_person_brought_in_by_hand_is_not_wanted_any_more(
    world: World, up: Upstream
) -> None:
    tip = up.commit("a.txt", "1\n")
    assert isinstance(bring(world), SyncQueued)
    git(world.app, "pull", "-q", "--ff-only", "origin", "main")
    git(world.app, "push", "-q", "swarm", "HEAD:main")
    world.work_gate()
    assert world.main == tip and world.state("sync-1") is State.OPEN
    said = world.typed("sync", "--json")
    assert said.code == Exit.YES
    found = json.loads(said.out)
    assert (found["result"], found["task"]) == ("up_to_date", "sync-1")
    assert world.state("sync-1") is State.CANCELLED and world.events()[-1] == "cancelled"
    assert "not needed any more" in world.typed("show", "sync-1").out
    events = world.events()
    assert world.typed("sync").out == f"main has all of origin/main {tip[:7]}\n"
    assert world.events() == events
    later = up.commit("b.txt", "1\n")
    assert settle(world) == "sync-2" and world.main == later


def test_what_is_not_wanted_any_more_is_left_to_who_works_on_it(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make(files={"a.txt": LINES})
    world.push("a.txt", line(5, "ours"))
    up.commit("a.txt", line(5, "theirs"))
    assert world.typed("sync").code == Exit.NO
    assert world.state("sync-1") is State.CLAIMED
    git(world.app, "pull", "-q", "--no-rebase", "-X", "ours", "origin", "main")
    git(world.app, "push", "-q", "swarm", "HEAD:main")
    world.step()
    said = world.typed("sync")
    assert said.code == Exit.YES and world.state("sync-1") is State.CLAIMED
    assert "left      sync-1 is not needed any more: swarm task cancel sync-1" in said.out


def test_what_came_since_an_earlier_sync_was_queued_comes_too(world: World, up: Upstream) -> None:
    up.commit("a.txt", "1\n")
    assert world.typed("sync", "--no-wait").code == Exit.YES
    tip = up.commit("b.txt", "1\n")
    assert isinstance(bring(world), Waits)
    said = world.typed("sync")
    assert said.code == Exit.YES, said
    assert world.main == tip and f"main {tip[:7]} has all of origin/main {tip[:7]}" in said.out


def test_a_sync_that_was_cancelled_is_offered_anew(world: World, up: Upstream) -> None:
    tip = up.commit("a.txt", "1\n")
    assert world.typed("sync", "--no-wait").code == Exit.YES
    assert world.typed("task", "cancel", "sync-1").code == 0
    assert world.typed("sync").code == Exit.YES
    assert world.main == tip and world.state("sync-2") is State.LANDED


# -- rewritten, unrelated, damaged


def rewrite(up: Upstream) -> str:
    """The teammate drops the branch's last commit, makes another and forces it there."""
    up.git("fetch", "-q", "origin")
    up.git("reset", "-q", "--hard", f"origin/{up.branch}~1")
    (up.mate / "anew.txt").write_text("1\n", "utf-8")
    up.git("add", "-A")
    up.git("commit", "-q", "-m", "anew")
    return up.push("--force")


@pytest.mark.parametrize("is_landed", [True, False])
def test_history_that_was_rewritten_is_not_taken_unasked(
    world: World, up: Upstream, is_landed: bool
) -> None:
    old = up.commit("a.txt", "1\n" if is_landed else "RED\n")
    settle(world)
    assert (world.main == old) is is_landed
    world.close_gates()
    before = world.main
    new = rewrite(up)
    said = world.typed("sync")
    assert said.code == Exit.NO
    events = world.events()
    assert f"origin/main was rewritten: it lacks {old[:7]}, which it had before" in said.err
    assert "swarm sync --rewritten" in said.err
    assert world.typed("sync").err == said.err and world.events() == events
    assert world.main == before
    need = next(need for need in needs(world) if need.kind == "rewritten")
    assert need.why.startswith(f"origin/main was rewritten: it lacks {old[:7]}, which it had")
    assert (need.task, need.do) == (None, ["swarm sync --rewritten"]) and new in need.key
    said = world.typed("sync", "--rewritten")
    assert said.code == Exit.YES, said
    assert not any(need.kind == "rewritten" for need in needs(world))
    assert has(world, new) and has(world, old) is is_landed
    assert world.file("anew.txt") == "1\n" and (world.file("a.txt") is not None) is is_landed
    assert world.typed("sync").code == Exit.YES, "and from then on it is what is known"
    assert_clean(world)


def test_a_branch_that_was_set_back_is_rewritten_too(world: World, up: Upstream) -> None:
    up.commit("a.txt", "1\n")
    settle(world)
    up.git("push", "-q", "--force", "origin", "HEAD~1:main")
    assert isinstance(bring(world), Rewritten), "although the target has all of it"
    assert isinstance(bring(world, is_rewrite_meant=True), UpToDate)
    assert isinstance(bring(world), UpToDate), "and from then on it is what is known"


def test_each_tip_of_a_rewritten_branch_is_remembered_once_until_it_is_as_before(
    world: World, up: Upstream
) -> None:
    old = up.commit("a.txt", "1\n")
    settle(world)
    number = world.events().count("synced")
    keys = []
    for give in (rewrite, lambda up: up.commit("more.txt", "1\n")):
        new = give(up)
        assert isinstance(bring(world), Rewritten) and isinstance(bring(world), Rewritten)
        known = world.ledger.view().upstream()
        assert known is not None and (known.tip, known.rewritten) == (old, new)
        keys += [need.key for need in needs(world) if need.kind == "rewritten"]
    assert len(set(keys)) == 2, "a new trouble has a new key, so that it is told"
    assert world.events().count("synced") == number + 2
    up.git("push", "-q", "--force", "origin", f"{old}:main")
    assert isinstance(bring(world), UpToDate)
    known = world.ledger.view().upstream()
    assert known is not None and known.rewritten is None and not needs(world)
    up.git("push", "-q", "--force", "origin", f"{new}:main")
    assert isinstance(bring(world), Rewritten)
    toml = (world.app / "swarm.toml").read_text("utf-8")
    (world.app / "swarm.toml").write_text(f'{toml}[upstream]\nbranch = "other"\n', "utf-8")
    said = json.loads(world.typed("status", "--json").out)
    assert said["needs_you"] == [], "nobody asks for that branch any more"


def test_a_run_that_sees_a_rewritten_branch_leaves_word_of_it(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make(config='[upstream]\nevery = "1h"\n')
    up.commit("a.txt", "1\n")
    settle(world)
    new = rewrite(up)
    world.typed("run", "-n", "1", "--", "true")
    assert [need.key for need in needs(world)] == [f"rewritten:{new}"]


def test_a_branch_that_is_not_there_is_named_in_the_configuration(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, _ = make(config='[upstream]\nbranch = "mian"\n')
    said = world.typed("sync")
    assert said.code == Exit.NO and "origin has no branch mian" in said.err
    toml = '  hint: in swarm.toml, below [upstream]: branch = "its name there"'
    assert said.err.splitlines()[1:] == [toml], "there is no such branch to be pushed"
    git(world.app, "branch", "mian")
    said = world.typed("sync")
    assert said.err.splitlines()[1:] == [toml, "  hint: git push origin mian"]


def test_another_projects_branch_is_refused(world: World, up: Upstream) -> None:
    up.git("checkout", "-q", "--orphan", "other")
    up.git("commit", "-q", "-m", "another project")
    up.push("--force")
    said = world.typed("sync")
    assert said.code == Exit.NO and "origin/main and main share no commit" in said.err
    assert world.state("sync-1") is State.ABSENT


def damage(world: World, path: str, text: bytes = b"{") -> None:
    """Overwrite a file of the ledger."""

    def decide(_: object) -> Draft[None]:
        kind = "synced" if path == UPSTREAM_PATH else "edited"
        return Draft((Event(kind, "Damaged.", {path: text}),), None)

    world.ledger.append(decide)


def test_a_damaged_record_costs_a_look_and_no_second_task(world: World, up: Upstream) -> None:
    up.commit("a.txt", "1\n")
    assert isinstance(bring(world), SyncQueued)
    damage(world, UPSTREAM_PATH)
    answer = upstream.bring(world.work, upstream.fetch(world.work))
    assert isinstance(answer, Waits) and answer.task == "sync-1"
    assert typed(world.app, "status").code in (0, 1)
    assert typed(world.app, "sync").code == Exit.YES
    assert has(world, up.tip) and world.state("sync-2") is State.ABSENT
    assert typed(world.app, "sync").code == Exit.YES
    known = world.ledger.view().upstream()
    assert known is not None and known.tip == up.tip, "and it is known again"


def test_a_damaged_task_of_a_sync_stops_nothing_else(world: World, up: Upstream) -> None:
    up.commit("a.txt", "RED\n")
    settle(world)
    damage(world, records.task_path("sync-1"))
    tip = up.commit("a.txt", "green\n")
    answer = upstream.bring(world.work, upstream.fetch(world.work))
    assert isinstance(answer, Waits) and answer.state is State.DAMAGED
    said = typed(world.app, "sync")
    assert said.code == Exit.NO and "damaged" in said.out and not has(world, tip)


def test_what_is_known_of_another_branch_is_not_known_of_this_one(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make(config='[upstream]\nbranch = "develop"\n')
    git(up.mate, "push", "-q", "origin", "HEAD:develop")
    up.commit("a.txt", "1\n")
    first = world.main
    assert isinstance(bring(world), UpToDate), "develop is what is asked for, not main"
    git(up.mate, "push", "-q", "origin", "HEAD:develop")
    settle(world)
    assert world.main == up.tip != first
    world.push("ours.txt", "1\n")
    said = world.typed("push", "--branch", "work")
    assert said.code == 0
    toml = (world.app / "swarm.toml").read_text("utf-8").replace('branch = "develop"', "")
    (world.app / "swarm.toml").write_text(toml, "utf-8")
    rewrite(up)
    assert world.typed("sync").code == Exit.YES, "of main nothing was known that it could lack"
    known = world.ledger.view().upstream()
    assert known is not None and known.branch == "main"
    assert [push.branch for push in known.pushes] == ["work"], "what was pushed is still known"


# -- in a run


@pytest.fixture
def follow() -> Iterator[Callable[[World], tuple[subprocess.Popen[bytes], Path]]]:
    """Start a run that waits for tasks; it and the file that it writes to."""
    started: list[subprocess.Popen[bytes]] = []

    def run(world: World) -> tuple[subprocess.Popen[bytes], Path]:
        out = world.folder / "out"
        argv = ["run", "-n", "1", "--keep-going", "--", "sh", "-c", "exit 1"]
        with out.open("wb") as file:
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "swarm", *argv],
                    cwd=world.app,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                )
            )
        until(lambda: "run r1" in out.read_text("utf-8"), "it begins", log=out)
        return started[0], out

    yield run
    for one in started:
        one.kill()
        one.wait(10)


def serve(world: World, script: str) -> None:
    """What answers for the remote from now on; `$at` is the world's folder."""
    server = world.folder / "serve"
    server.write_text(f"#!/bin/sh\nat={world.folder}\n{script}\n", "utf-8")
    server.chmod(0o755)
    git(world.app, "config", "remote.origin.uploadpack", str(server))


def test_a_run_brings_the_teams_work_in_now_and_then(
    make: Callable[..., tuple[World, Upstream]], follow: Callable[..., tuple[Any, Path]]
) -> None:
    world, up = make(config='[upstream]\nevery = "1s"\n')
    serve(world, 'test -e $at/away && echo x >>$at/looks && exit 1\nexec git-upload-pack "$@"')
    first = up.commit("a.txt", "1\n")
    run, out = follow(world)
    assert world.main == first, "before the first agent"
    assert f"sync      origin/main {first[:7]}: 1 commit that main lacks" in out.read_text("utf-8")
    second = up.commit("b.txt", "1\n")
    until(lambda: world.main == second, "the second is taken", log=out)
    (world.folder / "away").touch()
    looks = world.folder / "looks"
    until(lambda: looks.exists() and len(looks.read_text("utf-8")) > 4, "it looks again", log=out)
    (world.folder / "away").unlink()
    third = up.commit("c.txt", "1\n")
    until(lambda: world.main == third, "the third is taken", log=out)
    run.send_signal(signal.SIGINT)
    run.wait(30)
    said = out.read_text("utf-8")
    assert said.count("origin cannot be reached") == 1, said
    assert "Traceback" not in said
    world.step()
    assert_clean(world)


@pytest.mark.parametrize("is_conflict", [False, True])
def test_a_run_ends_with_what_to_type_for_a_sync_that_waits(
    make: Callable[..., tuple[World, Upstream]], is_conflict: bool
) -> None:
    world, up = make(config='[upstream]\nevery = "1h"\n', files={"a.txt": LINES})
    world.push("a.txt", line(5, "ours"))
    up.commit("a.txt", line(5, "theirs")) if is_conflict else up.commit("b.txt", "RED\n")
    world.add("Work")
    said = world.typed("run", "-n", "1", "--", "sh", "-c", "echo 1 >w.txt")
    assert world.state("work") is State.LANDED, said
    assert world.state("sync-1") is State.OPEN
    (row,) = [row for row in said.out.splitlines() if row.startswith("  yours ")]
    assert " ".join(row.split()) == "yours 1 sync-1: Bring in origin/main swarm claim sync-1"
    assert "  ready " not in said.out
    assert world.typed("claim", "sync-1").code == 0


def test_the_first_interrupt_of_a_run_ends_its_first_talk_with_a_remote(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, _ = make(config='[upstream]\nevery = "1h"\n')
    world.add("Work")
    serve(world, "echo $$ >>$at/pids; exec sleep 600")
    run = start(world, "run", "-n", "1", "--", "sh", "-c", "exit 1")
    pids = world.folder / "pids"
    while not pids.exists() or not pids.read_text("utf-8"):
        assert run.poll() is None, run.communicate()
        time.sleep(0.02)
    before = time.monotonic()
    run.send_signal(signal.SIGINT)
    said = run.communicate(timeout=60)[0]
    assert run.returncode == Exit.INTERRUPTED, said
    assert time.monotonic() - before < 20
    assert "stopped   no agent was started" in said and "cannot be reached" not in said
    pid = int(pids.read_text("utf-8").split()[-1])
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"
    assert world.state("work") is State.OPEN


def test_a_live_terminal_is_told_that_a_run_talks_to_the_remote(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, _ = make(config='[upstream]\nevery = "1h"\n')
    world.add("Work")
    serve(world, "echo $$ >>$at/pids; exec sleep 600")
    ours, theirs = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-m", "swarm", "run", "-n", "1", "--", "true"],
        cwd=world.app,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    said = b""
    while b"talking to origin" not in said:
        assert select.select([ours], [], [], 40)[0], said
        said += os.read(ours, 4096)
    run.send_signal(signal.SIGINT)
    with contextlib.suppress(OSError):  # its end
        while os.read(ours, 4096):
            pass
    assert run.wait(30) == Exit.INTERRUPTED
    os.close(ours)


def test_a_run_ends_while_a_remote_hangs(
    make: Callable[..., tuple[World, Upstream]], follow: Callable[..., tuple[Any, Path]]
) -> None:
    world, up = make(config='[upstream]\nevery = "1s"\n')
    hang = "if test -e $at/hang; then echo $$ >>$at/pids; exec sleep 600; fi"
    serve(world, f'{hang}\nexec git-upload-pack "$@"')
    run, out = follow(world)
    (world.folder / "hang").touch()
    pids = world.folder / "pids"
    until(lambda: pids.exists() and pids.read_text("utf-8"), "it works", log=out)
    before = time.monotonic()
    run.send_signal(signal.SIGINT)
    run.wait(30)
    assert time.monotonic() - before < 20
    assert "cannot be reached" not in out.read_text("utf-8"), "nobody waited for it"
    pid = int(pids.read_text("utf-8").split()[-1])
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"
    assert up.tip == world.main


# -- any order of things


STEPS = ("land", "theirs", "push", "squash", "sync", "by hand")


@settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(st.sampled_from(STEPS), min_size=5, max_size=9))
def test_whatever_the_order_nothing_of_either_side_is_lost(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    world = World(tmp_path_factory.mktemp("order"), files={"a.txt": LINES})
    up = world.upstream()
    ours: list[str] = []
    files: dict[str, str] = {}
    pushed = 0
    for number, step in enumerate([*steps, "sync"]):
        name = f"{step[:2]}-{number}.txt"
        match step:
            case "land":
                ours.append(world.land(f"Task {number}", name, f"{number}\n"))
                files[name] = f"{number}\n"
            case "by hand":
                ours.append(world.push(name, f"{number}\n"))
                files[name] = f"{number}\n"
            case "theirs":
                up.commit(name, f"{number}\n")
                files[name] = f"{number}\n"
            case "push":
                assert world.typed("push", "--branch", f"work-{number}").code == 0
                pushed = number
            case "squash" if pushed:
                up.git("fetch", "-q", "origin")
                up.git("reset", "-q", "--hard", "origin/main")
                up.git("merge", "-q", "--squash", f"origin/work-{pushed}")
                up.git("commit", "-q", "--allow-empty", "-m", f"squash {number}")
                up.push()
            case "sync":
                before, tip = world.main, up.tip
                expected = _merged(up, world, before, tip)
                answer = bring(world)
                world.work_gate()
                assert has(world, tip), (steps, answer)
                if expected is not None:
                    assert world.hub.reader.tree_of(world.main) == expected, steps
    for commit in ours:
        assert has(world, commit)
    for name, text in files.items():
        assert world.file(name) == text
    world.step()
    world.close()


def _merged(up: Upstream, world: World, ours: str, theirs: str) -> str | None:
    """The tree that plain git makes of the two; None: a conflict."""
    up.git("fetch", "-q", str(world.layout.hub), "main")
    up.git("checkout", "-q", "--detach", ours)
    up.git("merge", "-q", "-m", "by hand", theirs, ok=(0, 1))
    if up.git("status", "--porcelain"):
        up.git("merge", "--abort")
        return None
    return up.git("rev-parse", "HEAD^{tree}")


def test_a_resolution_that_a_person_gave_back_goes_on_before_what_came_since(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    """Upstream moves meanwhile: what they did is where the next claim starts."""
    world, up = make(files={"a.txt": LINES})
    world.push("a.txt", line(5, "ours"))
    up.commit("a.txt", line(5, "theirs"))
    task = settle(world)
    place = world.layout.slots / "h1"
    assert run_swarm(world.app, "claim", task).returncode == 0
    (place / "a.txt").write_text(line(5, "both"), "utf-8")
    git(place, "add", "-A")
    git(place, "commit", "-q", "--no-edit")
    half = git(place, "rev-parse", "HEAD")
    assert run_swarm(place, "release", "--reason", "later").returncode == 0
    up.commit("other.txt", "1\n")
    assert isinstance(bring(world), Waits)
    assert run_swarm(world.app, "claim", task).returncode == 0
    assert git(place, "rev-parse", "HEAD") == half
    assert run_swarm(place, "submit").returncode == 0
    world.work_gate()
    assert world.state(task) is State.LANDED and world.file("a.txt") == line(5, "both")
    assert world.state(settle(world)) is State.LANDED and world.file("other.txt") == "1\n"
