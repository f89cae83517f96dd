"""What is kept and has not landed: listed with its reason, shown, and taken out again."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from swarm.errors import NotFound, UsageError
from swarm.kept import export, find_kept, list_kept, stat_lines
from tests.world import World, git, run_swarm


def leave(world: World, title: str = "One", path: str = "late.txt") -> None:
    """Work beyond an attempt's end, kept when the slot is used again."""
    task = world.add(title)
    agent = world.agent(task)
    agent.end()
    agent.write(path, "late\n").commit("late work").slot.close()
    other = world.add(f"{title} again")
    world.agent(other)


def test_a_rescue_is_listed_with_its_reason_and_size(world: World) -> None:
    leave(world)
    (kept,) = list_kept(world.ledger)
    assert (kept.kind, kept.task, kept.token, kept.name) == ("rescue", "one", 1, "one/1-1")
    assert kept.why == "left in a slot"
    assert (kept.files, kept.insertions, kept.deletions) == (1, 1, 0)


def test_the_work_of_a_task_that_goes_on_is_listed_with_its_state(world: World) -> None:
    world.add("One")
    world.agent("one").write("half.txt", "half\n").end()
    (kept,) = list_kept(world.ledger)
    assert (kept.kind, kept.name) == ("work", "one/1")
    assert kept.why == "open; the next attempt may start from it, last attempt: exit code 1"


def test_what_has_landed_is_not_listed(world: World) -> None:
    world.land("One", "one.txt", "1\n")
    assert list_kept(world.ledger) == []


def test_what_landed_by_squash_is_not_listed(tmp_path: Path) -> None:
    world = World(tmp_path, config='[gate]\nstyle = "squash"\n')
    try:
        world.land("One", "one.txt", "1\n")
        assert list_kept(world.ledger) == []
    finally:
        world.close()


def test_the_newest_comes_first_and_is_what_a_tasks_name_means(world: World) -> None:
    leave(world)
    leave(world, "Two", "two.txt")
    names = [kept.name for kept in list_kept(world.ledger)]
    assert {"one/1-1", "two/1-1"} <= set(names)
    assert find_kept(world.ledger, "two").name == "two/1-1"
    assert find_kept(world.ledger, "refs/swarm/rescue/one/1-1").name == "one/1-1"
    with pytest.raises(NotFound, match="nothing is kept under three"):
        find_kept(world.ledger, "three")


def test_showing_prints_no_control_characters(world: World) -> None:
    task = world.add("One")
    agent = world.agent(task)
    agent.write("late.txt", "late\n").commit("evil \x1b]0;title\x07 message").end()
    lines = stat_lines(world.ledger, find_kept(world.ledger, "one"))
    text = "\n".join(lines)
    assert "evil" in text and "late.txt | 1 +" in text
    assert "\x1b" not in text and "\x07" not in text


def test_its_files_go_into_a_new_folder(world: World, tmp_path: Path) -> None:
    task = world.add("One")
    agent = world.agent(task)
    agent.write(".gitattributes", "*.txt export-ignore\n").write("sub/late.txt", "late\n").end()
    folder = tmp_path / "out"
    count = export(world.ledger, find_kept(world.ledger, "one"), folder, world.app)
    assert count == 4
    assert (folder / "sub/late.txt").read_text() == "late\n", "export-ignore hides nothing"
    assert not (folder / ".git").exists()


def test_a_folder_that_exists_or_lies_in_the_checkout_is_refused(
    world: World, tmp_path: Path
) -> None:
    leave(world)
    kept = find_kept(world.ledger, "one")
    before = git(world.app, "status", "--porcelain")
    with pytest.raises(UsageError, match="exists"):
        export(world.ledger, kept, tmp_path, world.app)
    with pytest.raises(UsageError, match="lies in your checkout"):
        export(world.ledger, kept, world.app / "out", world.app)
    (tmp_path / "link").symlink_to(world.app)
    with pytest.raises(UsageError, match="lies in your checkout"):
        export(world.ledger, kept, tmp_path / "link/out", world.app)
    assert git(world.app, "status", "--porcelain") == before


def test_the_printed_command_makes_a_branch_of_it(world: World) -> None:
    leave(world)
    done = run_swarm(world.app, "rescue", "restore", "one/1-1", "--json")
    record = json.loads(done.stdout)
    assert record["schema"] == "swarm.restore/1"
    assert git(world.app, "branch", "--list", "rescue/*") == "", "the command is only printed"
    git(world.app, *shlex.split(record["command"])[1:])
    assert git(world.app, "show", "rescue/one-1-1:late.txt") == "late"


def test_the_command_line(world: World, tmp_path: Path) -> None:
    assert "nothing is kept" in run_swarm(world.app, "rescue", "list").stdout
    leave(world)
    shown = run_swarm(world.app, "rescue", "list")
    assert shown.returncode == 0
    assert shown.stdout.startswith("rescue  one/1-1") and "left in a slot" in shown.stdout
    rows = json.loads(run_swarm(world.app, "rescue", "list", "--json").stdout)["kept"]
    assert [row["name"] for row in rows] == ["one/1-1"]
    assert "late work" in run_swarm(world.app, "rescue", "show", "one").stdout
    done = run_swarm(world.app, "rescue", "restore", "one", "--to", str(tmp_path / "out"))
    assert "3 files of one/1-1" in done.stdout
    done = run_swarm(world.app, "rescue", "show", "other")
    assert done.returncode == 2 and "swarm rescue list" in done.stderr
