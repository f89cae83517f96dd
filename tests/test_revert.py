"""Landings taken back: one change on top of what the target is, judged like any other.

Enters: a world with landings. Leaves: what they changed undone, or why it cannot be.
Guards: the target only goes forward, what was undone stays landed, and nobody's later work is lost.
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swarm import config as configuration
from swarm import revert as reverting
from swarm.claim import Claimed
from swarm.errors import Exit, NotFound
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.store import Draft
from swarm.ledger.view import State
from swarm.offer import Waits
from swarm.revert import Entangled, NothingLeft, NotLanded, RevertQueued
from tests.world import Said, World, git, typed

LINES = "".join(f"{number}\n" for number in range(1, 10))


def line(number: int, text: str) -> str:
    """The nine lines with one of them changed."""
    rows = LINES.splitlines()
    rows[number - 1] = text
    return "\n".join(rows) + "\n"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, files={"a.txt": LINES, "b.txt": LINES})
    yield made
    made.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """A world of one's own."""
    made: list[World] = []

    def build(**keys: object) -> World:
        made.append(World(tmp_path, files={"a.txt": LINES}, **keys))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for world in made:
        world.close()


def revert(world: World, *tasks: str) -> reverting.Answer:
    answer = reverting.revert(world.work, tasks)
    world.step()
    return answer


def settle(world: World, *tasks: str) -> str:
    """Offer it and let the gate decide; the task."""
    answer = revert(world, *tasks)
    assert isinstance(answer, RevertQueued), answer
    world.work_gate()
    assert world.state(answer.entry.task) is State.LANDED
    return answer.entry.task


# -- one, and several


def test_one_landing_is_taken_back_by_a_change_like_any_other(world: World) -> None:
    before = world.hub.reader.tree_of(world.main)
    landed = world.land("Add search", "a.txt", line(5, "search"))
    said = world.typed("revert", "add-search", "--json")
    assert said.code == Exit.YES
    assert json.loads(said.out) == {
        "schema": "swarm.revert/1",
        "task": "revert-1",
        "undoes": ["add-search"],
        "left": [],
        "result": "landed",
        "state": "landed",
    }
    assert world.hub.reader.tree_of(world.main) == before
    assert world.hub.contains(world.main, landed), "the target only goes forward"
    assert world.state("add-search") is State.LANDED, "it did land"
    done = world.ledger.view().done("revert-1")
    assert done is not None and len(done.verdicts) == 1
    made = git(world.layout.hub, "log", "-1", "--format=%B", "main^2")
    assert made.splitlines() == [
        'Revert "Add search"',
        "",
        "Takes back what task add-search changed.",
        f"This reverts commit {landed}.",
    ]
    assert "undone    by revert-1" in world.typed("show", "add-search").out
    said = world.typed("doctor")
    assert said.code == 0, said


def test_twice_is_the_same_as_once(world: World) -> None:
    world.land("One", "a.txt", line(5, "one"))
    assert world.typed("revert", "one", "--no-wait").code == Exit.YES
    answer = revert(world, "one")
    assert answer == Waits("revert-1", State.QUEUED, ("one",), ())
    said = world.typed("revert", "ONE")
    assert said.code == Exit.YES and world.state("revert-1") is State.LANDED, said
    events = world.events()
    said = world.typed("revert", "one")
    assert said.code == Exit.YES and said.out == "main has nothing of one any more\n"
    assert world.events() == events and revert(world, "one") == NothingLeft(("one",))


def test_two_at_once_are_one_change(world: World) -> None:
    world.land("One", "a.txt", line(5, "one"))
    world.close_gates()
    argv = [sys.executable, "-m", "swarm", "revert", "one"]
    both = [
        subprocess.Popen(
            argv, cwd=world.app, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(2)
    ]
    said = [one.communicate(timeout=60)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    world.step()
    assert world.state("revert-1") is State.LANDED and world.state("revert-2") is State.ABSENT
    assert world.file("a.txt") == LINES


def test_several_are_one_change_newest_landing_first(world: World) -> None:
    world.land("One", "a.txt", line(5, "one"))
    world.land("Two", "a.txt", line(5, "two"))
    world.land("Three", "b.txt", line(1, "three"))
    said = world.typed("revert", "one", "two")
    assert said.code == Exit.YES, said
    order = [row.split()[1] for row in said.out.splitlines() if row.startswith("undoes")]
    assert order == ["two", "one"], "else the first of them would be in the way of the other"
    assert world.file("a.txt") == LINES and world.file("b.txt") == line(1, "three")
    steps = git(world.layout.hub, "log", "--format=%s", "main^1..main^2").splitlines()
    assert steps == ['Revert "One"', 'Revert "Two"'], "a commit each, in git's order"
    task = world.ledger.view().task("revert-1")
    assert task is not None and task.header.undoes == ["two", "one"]


def test_what_was_undone_before_is_left_out_of_the_rest(world: World) -> None:
    world.land("One", "a.txt", line(5, "one"))
    world.land("Two", "b.txt", line(5, "two"))
    settle(world, "one")
    answer = revert(world, "one", "two", "one")
    assert isinstance(answer, RevertQueued)
    assert (answer.undoes, answer.left) == (("two",), ("one",))


def test_all_of_a_run_goes_at_once(world: World) -> None:
    world.push("by-hand.txt", "stays\n")
    before = world.hub.reader.tree_of(world.main)
    world.land("One", "a.txt", line(2, "one"))
    world.land("Two", "a.txt", line(8, "two"))
    said = world.typed("revert", "--run", "r1")
    assert said.code == Exit.USAGE and "there is no run r1" in said.err
    known_run(world, "r1")
    assert reverting.landed_in(world.ledger, "r1") == ["two", "one"]
    said = world.typed("revert", "--run", "r1", "--json")
    assert said.code == Exit.YES and json.loads(said.out)["undoes"] == ["two", "one"]
    assert world.hub.reader.tree_of(world.main) == before
    said = world.typed("revert", "--run", "r1")
    assert said.code == Exit.YES and "has nothing of" in said.out
    known_run(world, "r2")
    said = world.typed("revert", "--run", "r2")
    assert said.code == Exit.NO and "nothing of r2 has landed" in said.err
    with pytest.raises(NotFound) as missing:
        reverting.landed_in(world.ledger, "r3")
    assert missing.value.hint == "known: r1, r2"
    for args in (("revert",), ("revert", "one", "--run", "r1")):
        assert world.typed(*args).code == Exit.USAGE


def known_run(world: World, name: str) -> None:
    """The ledger knows a run."""

    def decide(_: object) -> Draft[None]:
        now = world.clock.now()
        run = records.Run(
            run=name,
            runner=f"{name}-test",
            host="here",
            pid=1,
            boot_id="boot-1",
            slots=1,
            adapter="command",
            started_at=now,
            started_monotonic_seconds=0.0,
            config_digest="0" * 64,
            state="ended",
            ended_at=now,
        )
        data = records.encode(run)
        event = Event("charged", ".", {records.run_path(name): data}, trailers={"Swarm-Run": name})
        return Draft((event,), None)

    world.ledger.append(decide)
    world.clock.pass_(seconds=1)


def test_a_task_belongs_to_the_run_that_claimed_it_whoever_landed_it(world: World) -> None:
    world.add("One")
    world.agent("one", runner="r1-dead").write("a.txt", line(5, "one")).commit().seal()
    known_run(world, "r1")
    known_run(world, "r2")
    world.work_gate("r2-test")
    assert world.state("one") is State.LANDED
    assert reverting.landed_in(world.ledger, "r1") == ["one"]
    assert reverting.landed_in(world.ledger, "r2") == []


def test_a_run_whose_record_is_damaged_is_a_run_all_the_same(world: World) -> None:
    world.land("One", "a.txt", line(5, "one"))

    def decide(_: object) -> Draft[None]:
        return Draft((Event("charged", ".", {records.run_path("r1"): b"{"}),), None)

    world.ledger.append(decide)
    assert reverting.landed_in(world.ledger, "r1") == ["one"]


# -- who stands on it


def test_who_needs_it_is_named_before_however_far(world: World) -> None:
    world.land("One", "a.txt", line(5, "one"))
    world.land("Two", "b.txt", line(5, "two"), needs=["one"])
    world.add("Three", needs=["two"])
    world.add("Four", needs=["one"])
    world.add("Away", needs=["one"])
    assert world.typed("task", "cancel", "away").code == 0
    said = world.typed("revert", "one")
    assert said.code == Exit.YES
    assert said.out.startswith(
        "needs     four   needs one, open\n"
        "needs     two   needs one, landed; it stays\n"
        "needs     three   needs two, open\n"
        "undoes    one"
    ), said.out
    assert world.file("b.txt") == line(5, "two")


def test_what_later_work_stands_on_is_named_with_whose_it_is(world: World) -> None:
    world.land("One", "a.txt", line(5, "one"))
    world.land("Two", "a.txt", line(5, "two"))
    world.land("Three", "a.txt", line(5, "two").replace("9\n", "three\n"))
    world.land("Four", "b.txt", line(5, "four"))
    world.close_gates()
    events = world.events()
    answer = revert(world, "one")
    together = ("three", "two", "one")
    assert answer == Entangled("one", ("a.txt",), ("three", "two"), (), together)
    said = world.typed("revert", "one")
    assert said.code == Exit.NO
    assert "one cannot be undone by itself: a.txt was changed again by three, two" in said.err
    hints = hints_of(said)
    assert hints[0] == "swarm revert three two one"
    assert world.events() == events, "nothing was added"
    assert paste(world, hints[1]).code == 0, "the other hint can be pasted too"
    assert paste(world, hints[0]).code == Exit.YES
    assert world.file("a.txt") == LINES and world.file("b.txt") == line(5, "four")


def hints_of(said: Said) -> list[str]:
    return [row.removeprefix("  hint: ") for row in said.err.splitlines() if "hint:" in row]


def paste(world: World, hint: str) -> Said:
    """A hint, typed as it stands."""
    command, *args = shlex.split(hint)
    assert command == "swarm"
    return world.typed(*args)


def test_the_hint_of_what_is_entangled_with_reverts_can_be_pasted(world: World) -> None:
    """Undone, brought back, and undone again: the set is undone with what undid it."""
    world.land("Bye", "a.txt", line(5, "bye"))
    for name in ("base", "mid", "top"):
        world.land(name.title(), "a.txt", line(5, name))
    settle(world, "base", "mid", "top")
    assert settle(world, "revert-1") == "revert-2"
    assert settle(world, "top") == "revert-3"
    assert world.file("a.txt") == line(5, "mid")
    said = world.typed("revert", "base", "bye")
    assert said.code == Exit.NO, said
    first, ask = hints_of(said)
    assert first.startswith("swarm revert ") and first.endswith(" base bye")
    assert "Undo base, bye" in shlex.split(ask), "all that was named stays"
    pasted = paste(world, first)
    assert pasted.code == Exit.YES, pasted
    assert world.file("a.txt") == LINES


def test_a_set_that_cannot_be_undone_is_no_hint(world: World) -> None:
    world.land("One", "a.txt", line(5, "one"))
    world.land("Two", "a.txt", line(5, "two"))
    oid = world.push("a.txt", line(5, "by hand"), "Fix \x1b[2J it")
    answer = revert(world, "one")
    assert isinstance(answer, Entangled)
    assert (answer.task, answer.later, answer.together) == ("one", ("two",), ())
    assert [commit.oid for commit in answer.commits] == [oid]
    said = world.typed("revert", "one")
    assert said.code == Exit.NO and "\x1b" not in said.err
    assert f"a.txt was changed again by two, {oid[:7]} by " in said.err
    assert '"Fix [2J it"' in said.err
    (ask,) = hints_of(said)
    assert paste(world, ask).code == 0


@pytest.mark.parametrize("has_own", [False, True])
def test_what_came_from_the_team_since_is_named_with_the_sync_that_brought_it(
    world: World, has_own: bool
) -> None:
    """Whether the target went forward to their own commit, or was merged with it."""
    world.land("One", "a.txt", line(5, "one"))
    up = world.upstream()
    git(world.app, "pull", "-q", "--ff-only", "swarm", "main")
    git(world.app, "push", "-q", "origin", "HEAD:main")
    if has_own:
        world.land("Two", "b.txt", line(5, "two"))
    tip = up.commit("a.txt", line(5, "theirs"), "Theirs")
    assert world.typed("sync").code == Exit.YES
    assert (world.main == tip) is not has_own
    answer = revert(world, "one")
    assert isinstance(answer, Entangled)
    assert (answer.later, answer.together) == (("sync-1",), ("sync-1", "one"))
    assert [(commit.oid, commit.subject) for commit in answer.commits] == [(tip, "Theirs")]
    said = world.typed("revert", "one")
    assert f"was changed again by sync-1, {tip[:7]} by " in said.err and '"Theirs"' in said.err
    first, _ = hints_of(said)
    assert first == "swarm revert sync-1 one"
    assert paste(world, first).code == Exit.YES
    assert world.file("a.txt") == LINES


def open_revert(world: World) -> None:
    """`revert-1` undoes one and two, and came back; three has landed and is not in it."""
    for number, name in enumerate(("one", "two", "three")):
        world.land(name.title(), "a.txt" if number < 2 else "b.txt", line(5, name))
    assert isinstance(revert(world, "two", "one"), RevertQueued)
    world.push("a.txt", line(5, "two and more"))
    world.work_gate()
    assert world.state("revert-1") is State.OPEN


def test_a_revert_that_waits_says_what_it_undoes_and_what_not(world: World) -> None:
    open_revert(world)
    assert revert(world, "three", "one") == Waits("revert-1", State.OPEN, ("one",), ("three",))
    said = world.typed("revert", "three", "one")
    assert said.code == Exit.NO
    waits, *rest = said.out.splitlines()
    assert waits.startswith("waits     revert-1   conflict")
    assert rest == [
        "next      swarm run",
        "          swarm claim revert-1   by hand",
        "undoes    one",
        "left      revert-1 does not undo three",
        "instead   swarm task cancel revert-1",
        "          swarm revert three one",
    ]
    found = json.loads(world.typed("revert", "three", "one", "--json").out)
    assert (found["undoes"], found["left"]) == (["two", "one"], ["three"])
    assert (found["result"], found["state"]) == ("waits", "open")
    assert world.typed("claim", "revert-1").code == 0, "as it says"
    assert typed(world.app, "release", "revert-1", "--reason", "not now").code == 0
    assert world.typed("task", "cancel", "revert-1").code == 0
    assert world.typed("revert", "three").code == Exit.YES, "nothing is in its way any more"
    assert world.file("b.txt") == LINES


def test_a_parked_revert_can_be_opened_again_or_given_up(world: World) -> None:
    open_revert(world)
    for number in range(3):
        world.agent("revert-1", slot=f"s{number + 1}").end()
    assert world.state("revert-1") is State.PARKED
    said = world.typed("revert", "one")
    assert said.code == Exit.NO
    rows = [
        row.removeprefix("next").removeprefix("instead").strip() for row in said.out.split("\n")
    ]
    for step in ("swarm task reopen revert-1", "swarm task cancel revert-1", "swarm revert one"):
        assert step in rows, said.out
    assert world.typed("task", "reopen", "revert-1").code == 0
    assert world.state("revert-1") is State.OPEN


def test_what_a_queued_revert_lacks_follows_it(world: World) -> None:
    world.land("One", "a.txt", line(5, "one"))
    world.land("Two", "b.txt", line(5, "two"))
    assert isinstance(revert(world, "one"), RevertQueued)
    said = world.typed("revert", "one", "two", "--json")
    assert said.code == Exit.YES, said
    found = json.loads(said.out)
    assert (found["task"], found["undoes"], found["left"]) == ("revert-2", ["two"], ["one"])
    assert world.file("a.txt") == LINES and world.file("b.txt") == LINES


def test_a_revert_and_what_it_undid_together_are_nothing(world: World) -> None:
    world.land("One", "a.txt", line(5, "one"))
    settle(world, "one")
    assert revert(world, "revert-1", "one") == NothingLeft(("revert-1", "one"))


def test_what_needs_it_and_was_undone_does_not_stay(world: World) -> None:
    world.land("One", "a.txt", line(5, "one"))
    world.land("Two", "b.txt", line(5, "two"), needs=["one"])
    settle(world, "two")
    said = world.typed("revert", "one")
    assert said.code == Exit.YES and said.out.startswith("undoes    one"), said.out


def test_what_never_changed_a_file_is_not_said_to_be_gone(world: World) -> None:
    up = world.upstream()
    up.git("commit", "-q", "--allow-empty", "-m", "nothing")
    up.push()
    assert world.typed("sync").code == Exit.YES
    assert revert(world, "sync-1") == NothingLeft((), ("sync-1",))
    assert world.typed("revert", "sync-1").out == "sync-1 changed no file of main\n"


def test_a_revert_that_is_interrupted_says_what_becomes_of_it(
    make: Callable[..., World], tmp_path: Path
) -> None:
    check = f"test ! -e {tmp_path}/slow || {{ touch {tmp_path}/began; exec sleep 60; }}"
    world = make(check=check)
    world.land("One", "a.txt", line(5, "one"))
    world.push("more.txt", "1\n")  # else the tree without it was judged before
    world.close_gates()
    (tmp_path / "slow").touch()
    argv = [sys.executable, "-m", "swarm", "revert", "one"]
    one = subprocess.Popen(
        argv, cwd=world.app, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "began").exists():
        assert one.poll() is None, one.communicate()
        time.sleep(0.02)
    one.send_signal(signal.SIGINT)
    _, err = one.communicate(timeout=30)
    assert one.returncode == Exit.INTERRUPTED
    line_ = "queued    revert-1 stays in the queue and lands with the next run, or now: "
    assert err.strip() == f"{line_}swarm gate --once"
    world.step()
    assert world.state("revert-1") is State.QUEUED
    (tmp_path / "slow").unlink()
    assert world.typed("gate", "--once").code == 0
    assert world.file("a.txt") == LINES


def test_a_path_that_would_be_a_command_is_quoted_in_the_hint(world: World) -> None:
    name = "a'$(touch y)\"`touch z`\x1b[2J"
    world.land("One", name, "1\n")
    world.land("Two", name, "2\n")
    said = world.typed("revert", "one")
    assert said.code == Exit.NO and "\x1b" not in said.err
    ask = said.err.splitlines()[-1].removeprefix("  hint: ")
    assert len(shlex.split(ask)) == 6 and shlex.split(ask)[3] == "Undo one"


def test_who_changed_it_is_found_behind_merges_of_the_team(world: World) -> None:
    """Upstream's own merge of what was pushed, to which the target then went forward."""
    up = world.upstream()
    world.land("One", "a.txt", line(5, "one"))
    world.land("Two", "a.txt", line(5, "two"))
    assert world.typed("push", "--branch", "work").code == 0
    up.commit("theirs.txt", "1\n")
    up.git("fetch", "-q", "origin")
    up.git("merge", "-q", "--no-ff", "-m", "merge", "origin/work")
    up.push()
    assert world.typed("sync").code == 0 and world.main == up.tip
    assert revert(world, "one") == Entangled("one", ("a.txt",), ("two",), (), ("two", "one"))
    settle(world, "two")
    assert world.file("a.txt") == line(5, "one") and world.file("theirs.txt") == "1\n"


# -- again and again


def test_a_revert_can_be_reverted_and_done_again(world: World) -> None:
    world.land("One", "a.txt", line(5, "one"))
    assert settle(world, "one") == "revert-1"
    assert world.file("a.txt") == LINES
    assert settle(world, "revert-1") == "revert-2"
    assert world.file("a.txt") == line(5, "one"), "it is back"
    assert revert(world, "revert-1") == NothingLeft(("revert-1",))
    assert settle(world, "one") == "revert-3"
    assert world.file("a.txt") == LINES, "and gone again"
    assert revert(world, "one") == NothingLeft(("one",))
    assert revert(world, "revert-1") == NothingLeft(("revert-1",)), "it had been undone"
    story = world.typed("show", "one").out
    assert "revert-1" in story and "revert-3" in story


def test_a_cancelled_revert_was_none(world: World) -> None:
    world.land("One", "a.txt", line(5, "one"))
    assert isinstance(revert(world, "one"), RevertQueued)
    assert world.typed("task", "cancel", "revert-1").code == 0
    assert settle(world, "one") == "revert-2"


# -- whatever it was


@pytest.mark.parametrize("style", ["merge", "squash"])
def test_any_kind_of_change_is_undone(make: Callable[..., World], style: str) -> None:
    world = make(config=f'[gate]\nstyle = "{style}"\n')
    world.push("old.txt", LINES)
    world.push("gone.txt", "gone\n")
    world.push("run.sh", "#!/bin/sh\n")
    before = world.hub.reader.tree_of(world.main)
    world.add("All")
    agent = world.agent("all")
    agent.git("mv", "old.txt", "new.txt")
    agent.git("rm", "-q", "gone.txt")
    (agent.tree / "run.sh").chmod(0o755)
    (agent.tree / "link").symlink_to("a.txt")
    agent.write("blob.bin", bytes(range(256))).write("deep/er/x.txt", "1\n").commit().seal()
    world.work_gate()
    assert world.state("all") is State.LANDED
    world.push("later.txt", "stays\n")
    settle(world, "all")
    git(world.layout.hub, "diff", "--exit-code", before, "main", "--", ".", ":!later.txt")
    assert world.file("later.txt") == "stays\n"


def test_what_others_changed_in_a_file_since_stays(world: World) -> None:
    world.land("One", "a.txt", line(2, "one"))
    world.land("Two", "a.txt", line(2, "one").replace("8\n", "two\n"))
    settle(world, "one")
    assert world.file("a.txt") == line(8, "two")


def test_what_a_sync_brought_in_can_be_taken_back(world: World) -> None:
    up = world.upstream()
    world.land("Mine", "b.txt", line(5, "mine"))
    up.commit("a.txt", line(5, "theirs"))
    tip = up.commit("theirs.txt", "1\n")
    assert world.typed("sync").code == 0
    said = world.typed("revert", "sync-1")
    assert said.code == Exit.YES, said
    assert world.file("a.txt") == LINES and world.file("theirs.txt") is None
    assert world.file("b.txt") == line(5, "mine") and world.hub.contains(world.main, tip)
    later = up.commit("later.txt", "1\n")
    assert world.typed("sync").code == 0, "what comes after it comes in as ever"
    assert world.hub.contains(world.main, later) and world.file("theirs.txt") is None


def test_a_red_target_is_mended_by_taking_back_what_broke_it(world: World) -> None:
    """What is wrong with it is seen by a check that came later."""
    world.land("One", "a.txt", line(5, "RE_D"))
    toml = (world.app / "swarm.toml").read_text("utf-8")
    (world.app / "swarm.toml").write_text(toml.replace('"RED"', '"RE_D"'), "utf-8")
    world.config = configuration.load(world.app)
    world.close_gates()
    world.add("Waits")
    world.agent("waits").write("w.txt", "1\n").commit().seal()
    world.work_gate()
    paused = world.ledger.view().gate().paused
    assert paused is not None and paused.task == "fix-main"
    said = world.typed("revert", "one")
    assert said.code == Exit.YES, said
    world.work_gate()
    assert world.ledger.view().gate().paused is None
    assert world.state("waits") is State.LANDED and world.file("a.txt") == LINES


# -- what stands in its way


def test_a_revert_is_read_by_a_person_where_all_is(make: Callable[..., World]) -> None:
    world = make(config='[gate]\nreview = "all"\nprotect = ["a.txt"]\n')
    world.add("One")
    world.agent("one").write("a.txt", line(5, "one")).commit().seal()
    assert world.typed("approve", "one").code == 0
    world.work_gate()
    before = world.main
    said = world.typed("revert", "one")
    assert said.code == Exit.NO
    assert said.out.count("\nheld      revert-1") == 1, said.out
    assert "swarm approve revert-1" in said.out
    entry = world.ledger.view().entry("revert-1")
    assert entry is not None and set(entry.reasons) == {"protected", "review"}, entry.reasons
    assert world.main == before
    assert world.typed("revert", "one").out.endswith("swarm approve revert-1\n"), "and twice"
    assert world.typed("approve", "revert-1").code == 0
    assert world.typed("gate", "--once").code == 0
    assert world.file("a.txt") == LINES


def test_the_target_moves_between_the_offer_and_the_landing(world: World) -> None:
    world.land("One", "a.txt", line(5, "one"))
    assert isinstance(revert(world, "one"), RevertQueued)
    world.push("by-hand.txt", "1\n")
    world.push("a.txt", line(5, "one").replace("9\n", "hand\n"))
    world.work_gate()
    assert world.state("revert-1") is State.LANDED
    assert world.file("a.txt") == line(9, "hand") and world.file("by-hand.txt") == "1\n"


def test_a_conflict_comes_back_for_the_next_attempt(world: World) -> None:
    world.land("One", "a.txt", line(5, "one"))
    assert isinstance(revert(world, "one"), RevertQueued)
    world.push("a.txt", line(5, "one and more"))
    world.work_gate()
    assert world.state("revert-1") is State.OPEN
    assert revert(world, "one") == Waits("revert-1", State.OPEN, ("one",), ())
    said = world.typed("revert", "one")
    assert said.code == Exit.NO and "waits     revert-1   conflict" in said.out
    agent = world.agent("revert-1")
    assert isinstance(agent.claimed, Claimed) and agent.claimed.lock.token == 2
    assert set(agent.opened.conflicted) == {"a.txt"}, "any agent takes it up, with both in it"
    agent.write("a.txt", line(5, "more")).commit().seal()
    world.work_gate()
    assert world.state("revert-1") is State.LANDED and world.file("a.txt") == line(5, "more")
    assert revert(world, "one") == NothingLeft(("one",))


def test_what_is_not_in_the_target_cannot_be_taken_out(world: World) -> None:
    world.add("Open")
    world.add("Away")
    assert world.typed("task", "cancel", "away").code == 0
    assert revert(world, "open") == NotLanded("open", State.OPEN)
    assert revert(world, "away") == NotLanded("away", State.CANCELLED)
    assert revert(world, "nobody") == NotLanded("nobody", State.ABSENT)
    said = world.typed("revert", "open")
    assert said.code == Exit.NO and "open is open: nothing of it is in main" in said.err
    said = world.typed("revert", "opne")
    assert said.code == Exit.USAGE and "did you mean open?" in said.err
    world.land("One", "a.txt", line(5, "one"))
    assert revert(world, "one", "open") == NotLanded("open", State.OPEN), "none of them, then"
    assert world.state("revert-1") is State.ABSENT


def test_a_landing_that_is_lost_is_not_in_the_target(world: World) -> None:
    world.land("One", "a.txt", line(5, "one"))
    git(world.layout.hub, "update-ref", "refs/heads/main", f"{world.main}^1")
    answer = reverting.revert(world.work, ["one"])
    assert answer == NotLanded("one", State.LANDED)
    said = typed(world.app, "revert", "one")
    assert said.code == Exit.NO and "nothing of it is in main" in said.err


@pytest.mark.parametrize(
    "title",
    [
        'x"; $(touch y) `touch z`',
        "Swarm-Task: two\n\nSwarm-Landed: x",
        "\x1b[2Jred",
        "-m --amend x",
    ],
)
def test_no_title_steers_a_commit(world: World, title: str) -> None:
    world.land(title, "a.txt", line(5, "one"))
    task = next(e.task for e in world.ledger.iter_log() if e.kind == "landed")
    settle(world, task)
    message = git(world.layout.hub, "log", "-1", "--format=%B", "main^2")
    flat = " ".join("".join(c if c.isprintable() else " " for c in title).split())
    assert message.splitlines()[0] == f'Revert "{flat}"'
    own = git(
        world.layout.hub, "log", "-1", "--format=%(trailers:key=Swarm-Task,valueonly)", "main"
    )
    assert own.strip() == "revert-1"
    for name in "yz":
        assert not list(world.folder.rglob(name))


def test_a_damaged_text_keeps_nothing_from_being_taken_back(world: World) -> None:
    world.land("One", "a.txt", line(5, "one"))

    def decide(_: object) -> Draft[None]:
        return Draft((Event("edited", ".", {records.task_path("one"): b"{"}),), None)

    world.ledger.append(decide)
    answer = reverting.revert(world.work, ["one"])
    assert isinstance(answer, RevertQueued) and answer.undoes == ("one",)
