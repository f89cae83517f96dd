"""task add, import, edit, cancel, reopen; plan check: files and ledger, both or neither.

Enters: words as people type them. Leaves: task files, the ledger's copies, refusals.
Guards: every problem is said in one go and then nothing is written; one id however it is spelled.
"""

from __future__ import annotations

import io
import json
import os
import pwd
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from swarm import land
from swarm.cli.boundary import run
from swarm.ledger.view import State
from tests.world import World

Typed = Callable[..., tuple[int, str]]


@pytest.fixture
def typed(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Typed:
    """Type a command in the world's checkout: its exit code, and all that it said."""
    monkeypatch.chdir(world.app)

    def run_there(*args: str, stdin: str | bytes = b"") -> tuple[int, str]:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        capsys.readouterr()
        code = run(list(args))
        said = capsys.readouterr()
        world.step()
        return code, said.out + said.err

    return run_there


def editor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> None:
    """$EDITOR is a shell script that gets the file's name; standard input is a terminal."""
    monkeypatch.setattr("swarm.cli.tasks._has_terminal", lambda: True)
    file = tmp_path / "an editor"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    monkeypatch.setenv("EDITOR", f"'{file}'")


def tip(world: World) -> str:
    return world.ledger.view().tip


def files(world: World) -> dict[str, str]:
    folder = world.app / "tasks"
    return {f.name: f.read_text() for f in folder.iterdir()} if folder.is_dir() else {}


def refused(world: World, typed: Typed, *args: str, stdin: str = "") -> str:
    """Exit 2, one error, nothing written."""
    before, was = files(world), tip(world)
    code, said = typed(*args, stdin=stdin)
    assert code == 2, said
    assert said.startswith("error: ")
    assert (files(world), tip(world)) == (before, was)
    return said


# -- add -------------------------------------------------------------------------------------------


def test_add_writes_the_file_and_the_ledger(world: World, typed: Typed) -> None:
    world.add("Money type")
    code, said = typed(
        *("task", "add", "Refuse an empty cart", "-m", "Body.\nMore.", "--needs", "Money-Type"),
        *("--paths", "src/**, tests/**", "--priority", "3", "--timeout", "20m"),
    )
    assert code == 0 and "tasks/refuse-an-empty-cart.md" in said
    task = world.ledger.view().task("refuse-an-empty-cart")
    assert task is not None
    header = task.header
    assert header.title == "Refuse an empty cart" and task.body == "Body.\nMore.\n"
    assert (header.needs, header.paths) == (["money-type"], ["src/**", "tests/**"])
    assert (header.priority, header.timeout) == (3, "20m")
    assert typed("plan", "check")[1].startswith("1 task in tasks/: 0 new, 0 changed, 1 as the")


def test_a_body_comes_from_standard_input(world: World, typed: Typed) -> None:
    typed("task", "add", "Piped", "-m", "-", stdin="from a pipe\n")
    task = world.ledger.view().task("piped")
    assert task is not None and task.body == "from a pipe\n"


def test_a_long_title_gets_a_short_id_and_stays_whole(world: World, typed: Typed) -> None:
    title = "Refuse an order whose cart is empty and say so in the language of the customer"
    assert typed("task", "add", title)[0] == 0
    (name,) = files(world)
    assert len(name) <= 51 and name.startswith("refuse-an-order-whose-cart")
    task = world.ledger.view().task(name.removesuffix(".md"))
    assert task is not None and task.header.title == title


def test_C24_one_id_however_it_is_spelled(world: World, typed: Typed) -> None:
    assert typed("task", "add", "Fix T3")[0] == 0
    for spelling in ("fix t3", "FIX_T3", "fix--t3!", "ＦＩＸ Ｔ３"):
        assert "there is a task fix-t3 already" in refused(world, typed, "task", "add", spelling)
    (world.app / "tasks/OTHER_one.md").write_text("x\n")
    said = refused(world, typed, "task", "add", "other one")
    assert "tasks/OTHER_one.md" in said, "a file that no run has taken yet counts too"


def test_every_problem_is_said_at_once(world: World, typed: Typed) -> None:
    said = refused(
        *(world, typed, "task", "add", "X", "--paths", "/etc/**", "--timeout", "1200"),
        *("--needs", "nosuch", "--check", "lint", "--priority", "1000"),
    )
    for key in ("paths", "timeout", "needs", "checks", "priority"):
        assert f"   {key} " in said, key
    assert "5 problems" in said


@pytest.mark.parametrize("title", ["", "  ", "!!!", "日本"])
def test_a_title_without_an_id_is_refused(world: World, typed: Typed, title: str) -> None:
    refused(world, typed, "task", "add", title)


def test_an_id_for_a_title_without_one(world: World, typed: Typed) -> None:
    assert typed("task", "add", "日本語", "--id", "Japanese")[0] == 0
    assert world.state("japanese") is State.OPEN


def test_text_of_a_task_cannot_forge_its_header(world: World, typed: Typed) -> None:
    body = "---\nid: other\npriority: 100\n---\nrest\n"
    assert typed("task", "add", "Plain", "-m", body)[0] == 0
    task = world.ledger.view().task("plain")
    assert task is not None and task.body == body and task.header.priority == 0
    assert world.state("other") is State.ABSENT
    assert "1 as the ledger has them" in typed("plan", "check")[1]


def test_a_near_duplicate_is_noted(world: World, typed: Typed) -> None:
    world.add("csv export")
    assert "nearly the same as csv-export" in typed("task", "add", "Add the CSV export")[1]


# -- import ----------------------------------------------------------------------------------------


def issues(*rows: tuple[int, str, str]) -> str:
    return json.dumps([{"number": n, "title": t, "body": b, "labels": []} for n, t, b in rows])


def test_import_from_github_twice_changes_only_what_changed(world: World, typed: Typed) -> None:
    command = ("task", "import", "--format", "github", "-")
    code, said = typed(*command, stdin=issues((7, "Login", "Do\r\nit"), (8, "Logout", "")))
    assert code == 0 and "2 new, 0 changed, 0 as before" in said
    assert set(files(world)) == {"gh-7-login.md", "gh-8-logout.md"}
    path = world.app / "tasks/gh-7-login.md"
    path.write_text(path.read_text().replace("source:", "paths: [src/**]\nsource:"))
    code, said = typed(*command, stdin=issues((7, "Log in again", "Do\r\nit"), (8, "Logout", "")))
    assert code == 0 and "0 new, 1 changed, 1 as before" in said
    assert set(files(world)) == {"gh-7-login.md", "gh-8-logout.md"}, "a new title keeps its id"
    task = world.ledger.view().task("gh-7-login")
    assert task is not None and task.header.title == "Log in again"
    assert task.header.paths == ["src/**"], "what a person added stays"


def test_import_of_json_lines(world: World, typed: Typed) -> None:
    lines = '{"title": "One", "needs": ["two"]}\n\n{"id": "Two", "title": "2", "body": "b"}\n'
    code, said = typed("task", "import", "--format", "jsonl", stdin=lines)
    assert code == 0 and "2 new" in said
    assert world.state("one") is State.OPEN and world.state("two") is State.OPEN


def test_import_with_problems_writes_nothing(world: World, typed: Typed) -> None:
    lines = '{"title": "One"}\n{"title": "Two", "needs": ["nope"]}\nnot json\n{"id": "ONE"}\n'
    said = refused(world, typed, "task", "import", "--format", "jsonl", stdin=lines)
    assert "stdin:2" in said and "stdin:3" in said and "stdin:4" in said


def test_import_does_not_rewrite_a_file_of_several_tasks(world: World, typed: Typed) -> None:
    (world.app / "tasks").mkdir()
    (world.app / "tasks/all.md").write_text("---\nid: a\n---\nA\n---\nid: b\n---\nB\n")
    said = refused(
        world, typed, "task", "import", "--format", "jsonl", stdin='{"id": "a", "title": "new"}'
    )
    assert "tasks/all.md" in said


# -- edit ------------------------------------------------------------------------------------------


def test_edit_opens_the_file_and_updates_the_ledger(
    world: World, typed: Typed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    typed("task", "add", "One", "-m", "old")
    editor(monkeypatch, tmp_path, 'sed -i s/old/new/ "$1"')
    code, said = typed("task", "edit", "ONE")
    assert code == 0 and "changed   one" in said
    task = world.ledger.view().task("one")
    assert task is not None and task.body == "new\n"
    editor(monkeypatch, tmp_path, "true")
    assert typed("task", "edit", "one")[1] == "same      one\n"


def test_edit_with_a_problem_keeps_the_file_and_leaves_the_ledger(
    world: World, typed: Typed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    typed("task", "add", "One", "-m", "old")
    was = tip(world)
    editor(monkeypatch, tmp_path, 'printf -- "---\\nneeds: [nope]\\n---\\nmuch work\\n" > "$1"')
    code, said = typed("task", "edit", "one")
    assert code == 2 and 'no task "nope"' in said
    assert "1 problem in 1 task; the ledger keeps what it has" in said
    assert tip(world) == was and "much work" in files(world)["one.md"]


def test_edit_of_a_claimed_task_waits_and_says_so(
    world: World, typed: Typed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    typed("task", "add", "One", "-m", "old")
    world.agent("one")
    editor(monkeypatch, tmp_path, 'sed -i s/old/new/ "$1"')
    code, said = typed("task", "edit", "one")
    assert code == 0 and "waits     one   claimed" in said
    task = world.ledger.view().task("one")
    assert task is not None and task.body == "old\n"


def test_edit_of_a_task_without_a_file_writes_it_first(
    world: World, typed: Typed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world.add("One", "from the ledger\n", priority=5)
    editor(monkeypatch, tmp_path, 'sed -i s/ledger/file/ "$1"')
    code, said = typed("task", "edit", "one")
    assert code == 0 and "wrote     tasks/one.md" in said
    task = world.ledger.view().task("one")
    assert task is not None and task.body == "from the file\n" and task.header.priority == 5


def test_edit_that_fails_or_changes_the_id_is_refused(
    world: World, typed: Typed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    typed("task", "add", "One", "-m", "old")
    editor(monkeypatch, tmp_path, "exit 1")
    code, said = typed("task", "edit", "one")
    assert code == 2 and "exit code 1" in said
    monkeypatch.setenv("EDITOR", "nosuch-editor")
    assert typed("task", "edit", "one")[0] == 2
    editor(monkeypatch, tmp_path, 'printf -- "---\\nid: two\\n---\\nx\\n" > "$1"')
    code, said = typed("task", "edit", "one")
    assert code == 2 and "does not say one any more" in said
    assert world.state("two") is State.ABSENT


def test_a_file_name_never_reaches_a_shell(
    world: World, typed: Typed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (world.app / "tasks").mkdir()
    (world.app / "tasks/a$(touch pwned);b.md").write_text("x\n")
    editor(monkeypatch, tmp_path, 'echo y > "$1"')
    assert typed("task", "edit", "a-touch-pwned-b")[0] == 0
    assert not (world.app / "pwned").exists()
    task = world.ledger.view().task("a-touch-pwned-b")
    assert task is not None and task.body == "y\n"


def test_without_a_terminal_no_editor_is_started(
    world: World, typed: Typed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mark = tmp_path / "started"
    editor(monkeypatch, tmp_path, f"touch {mark}")
    monkeypatch.undo()
    monkeypatch.chdir(world.app)
    monkeypatch.setenv("VISUAL", f"touch {mark}")
    world.add("One", "from the ledger\n")
    code, said = typed("task", "edit", "one")
    assert code == 2 and "needs a terminal" in said
    assert not mark.exists() and "hint: swarm task edit one --no-editor" in said
    file = world.app / "tasks/one.md"
    file.write_text(file.read_text().replace("ledger", "file"))
    code, said = typed("task", "edit", "one", "--no-editor")
    assert code == 0 and "changed   one" in said and not mark.exists()
    task = world.ledger.view().task("one")
    assert task is not None and task.body == "from the file\n"


def test_every_hint_of_a_refused_add_can_be_pasted(world: World, typed: Typed) -> None:
    typed("task", "add", "It's one")
    said = refused(world, typed, "task", "add", "It's one")
    hints = [line.partition("hint: ")[2] for line in said.splitlines() if "hint: " in line]
    assert hints == [
        "swarm task edit it-s-one",
        "swarm task add 'It'\"'\"'s one' --id it-s-one-2",
    ]
    assert typed(*shlex.split(hints[1])[1:])[0] == 0
    (world.app / "tasks/it-s-one.md").unlink()
    said = refused(world, typed, "task", "add", "It's one")
    assert "there is a task it-s-one already: it is ready" in said


def test_a_name_that_no_task_has_is_told_the_id_that_begins_so(world: World, typed: Typed) -> None:
    world.add("gh-12-add-a-mul")
    world.add("gh-13-add-a-div")
    for words in (
        ("task", "cancel", "GH-12"),
        ("show", "gh-12"),
        ("claim", "gh-12"),
        ("submit", "gh-12"),
        ("release", "gh-12", "--reason", "x"),
        ("renew", "gh-12"),
        ("log", "--task", "gh-12"),
        ("stop", "gh-12"),
        ("diff", "gh-12"),
        ("tail", "gh-12"),
    ):
        code, said = typed(*words)
        assert code == 2, (words, said)
        assert "there is no task" in said and "did you mean gh-12-add-a-mul?" in said, words
    assert typed("show", "GH-12 add a mul")[0] == 0, "an id however it is spelled"


# -- cancel and reopen -----------------------------------------------------------------------------


def test_cancel_ends_open_and_claimed_tasks_and_names_what_is_blocked(
    world: World, typed: Typed
) -> None:
    world.add("One")
    world.add("Two")
    world.add("Three", needs=("one",))
    agent = world.agent("two")
    code, said = typed("task", "cancel", "One", "two", "--reason", "not wanted")
    assert code == 0 and "cancelled one" in said and "it was claimed" in said
    assert "blocked   three   needs one" in said
    assert world.state("one") is State.CANCELLED and world.state("two") is State.CANCELLED
    agent.write("x", "y").commit().seal()
    assert world.state("two") is State.CANCELLED, "the old holder is fenced"


def test_cancel_refuses_all_when_one_cannot(world: World, typed: Typed) -> None:
    world.land("One", "one.txt", "1\n")
    world.add("Two")
    assert "has landed" in refused(world, typed, "task", "cancel", "two", "one")
    assert "did you mean two?" in refused(world, typed, "task", "cancel", "tow")
    assert world.state("two") is State.OPEN


def test_T3_a_task_that_is_landing_is_not_cancelled(
    world: World, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add("One")
    world.agent("one").write("one.txt", "1\n").commit().seal()
    monkeypatch.setattr("swarm.gate.land", lambda *_: land.Outrun("stopped between the refs"))
    gate = world.gate()
    while world.ledger.view().landing() is None:
        gate.tick()
    said = refused(world, typed, "task", "cancel", "one")
    assert "one is landing now" in said and "hint: swarm show one" in said
    assert world.state("one") is State.QUEUED


def test_reopen_clears_and_keeps(world: World, typed: Typed) -> None:
    world.add("One", strikes=1)
    world.agent("one").write("one.txt", "half\n").commit().end()
    assert world.state("one") is State.PARKED
    code, said = typed("task", "reopen", "one")
    assert code == 0 and "next is attempt 2 from " in said
    assert world.state("one") is State.OPEN
    assert "one is ready: only what is parked" in refused(world, typed, "task", "reopen", "one")
    assert world.events("one")[-1] == "reopened"


def test_what_is_cancelled_or_landed_cannot_be_cancelled_and_the_hint_goes_on(
    world: World, typed: Typed
) -> None:
    world.add("One")
    typed("task", "cancel", "one")
    said = refused(world, typed, "task", "cancel", "one")
    assert "cancelled already" in said and "hint: swarm task reopen one" in said
    world.land("two", "two.txt", "2\n")
    said = refused(world, typed, "task", "cancel", "two")
    assert "it has landed" in said and "hint: swarm show two" in said


def test_who_types_is_named_when_no_variable_says_it(
    world: World, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SWARM_USER", "USER", "LOGNAME"):
        monkeypatch.delenv(name, raising=False)
    world.add("One")
    typed("task", "cancel", "one")
    typed("task", "reopen", "one")
    name = pwd.getpwuid(os.getuid()).pw_name
    assert f"{name} opens it again" in typed("log")[1]


# -- plan check ------------------------------------------------------------------------------------


def test_plan_check_says_every_problem_and_starts_nothing(world: World, typed: Typed) -> None:
    folder = world.app / "tasks"
    folder.mkdir()
    (folder / "cart-model.md").write_text("Cart\n")
    (folder / "checkout.md").write_text("---\nneeds: [cart-modle]\n---\nx\n")
    (folder / "tax.md").write_text("---\ntimeout: 1200\n---\nx\n")
    (folder / "Fix_T3.md").write_text("x\n")
    (folder / "fix-t3.md").write_text("x\n")
    was = tip(world)
    code, said = typed("plan", "check")
    assert code == 2 and tip(world) == was
    assert 'no task "cart-modle"; did you mean cart-model?' in said
    assert "want a duration like 20m, got 1200" in said
    assert "folds to fix-t3, and so does tasks/fix-t3.md" in said
    assert said.endswith("3 problems in 5 tasks\n")
    code, said = typed("plan", "check", "--json")
    record = json.loads(said)
    assert code == 2 and record["schema"] == "swarm.plan/1" and len(record["problems"]) == 3


def test_plan_check_says_what_taking_it_would_do(world: World, typed: Typed) -> None:
    typed("task", "add", "Same", "-m", "x")
    typed("task", "add", "Changed", "-m", "x")
    typed("task", "add", "Busy", "-m", "x")
    typed("task", "add", "Gone", "-m", "x")
    world.agent("busy")
    folder = world.app / "tasks"
    for name in ("changed", "busy"):
        (folder / f"{name}.md").write_text("other text\n")
    (folder / "fresh.md").write_text("x\n")
    (folder / "gone.md").unlink()
    code, said = typed("plan", "check")
    assert code == 0
    assert said.splitlines() == [
        "4 tasks in tasks/: 1 new, 1 changed, 1 as the ledger has them",
        "new       fresh",
        "changed   changed",
        "waits     busy   claimed: reaches its next attempt, if any",
        "vanished  gone   its file is gone, it stays: swarm task cancel gone",
    ]
    assert world.state("fresh") is State.ABSENT


def test_plan_check_of_no_folder_is_no_problem(typed: Typed) -> None:
    assert typed("plan", "check") == (
        0,
        "0 tasks in tasks/: 0 new, 0 changed, 0 as the ledger has them\n",
    )


def test_a_hostile_file_name_steers_no_terminal(world: World, typed: Typed) -> None:
    (world.app / "tasks").mkdir()
    (world.app / "tasks/a\x1b[2Jb.md").write_text("---\nneeds: 3\n---\nx\n")
    code, said = typed("plan", "check")
    assert code == 2 and "\x1b" not in said


def test_task_list_is_there(world: World, typed: Typed) -> None:
    world.add("One")
    code, said = typed("task", "list")
    assert code == 0 and "one" in said
