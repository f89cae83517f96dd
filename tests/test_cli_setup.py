"""init, uninit and pull, on real repositories of every odd kind.

Enters: a repository as a person has it. Leaves: what was written, said and refused.
Guards: nothing that exists is changed, a refusal writes nothing, no work is ever removed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from swarm import adopt, leave
from swarm.cli.boundary import run
from swarm.land import take_gate
from swarm.ledger.store import Ledger
from swarm.liveness import Alive
from swarm.plumbing.hub import Hub
from tests.world import World, git, swarm

Typed = Callable[..., tuple[int, str]]
GREEN = "test:\n\t@echo 3 passed\n"
RED = "test:\n\t@echo FAILED tests/test_a.py::test_b; exit 1\n"


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Type a command in a folder: its exit code, and all that it said."""

    def run_there(folder: Path, *args: str) -> tuple[int, str]:
        monkeypatch.chdir(folder)
        capsys.readouterr()
        code = run(list(args))
        said = capsys.readouterr()
        return code, said.out + said.err

    return run_there


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A repository with one commit and a green `make test`."""
    return repository(tmp_path / "app")


def repository(folder: Path, makefile: str = GREEN, branch: str = "main") -> Path:
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", branch)
    (folder / "Makefile").write_text(makefile)
    (folder / "src.txt").write_text("1\n2\n3\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def state_of(app: Path) -> Path:
    return app.with_name(app.name + ".swarm")


def everything(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, git's own included, but for the index's cached times."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.name != "index"
    }


def is_untouched(app: Path, before: dict[str, bytes]) -> bool:
    return everything(app) == before and not state_of(app).exists()


# -- init ----------------------------------------------------------------------------------------


def test_init_names_everything_it_writes_and_changes_nothing_else(app: Path, typed: Typed) -> None:
    (app / "notes.txt").write_text("mine")
    (app / "src.txt").write_text("edited")
    before = everything(app)
    code, said = typed(app, "init")
    assert code == 0
    after = everything(app)
    written = {path for path in after if after[path] != before.get(path)}
    assert written == {"swarm.toml", ".git/config"}
    assert before.keys() <= after.keys()
    assert git(app, "config", "remote.swarm.fetch") == "+refs/heads/main:refs/remotes/swarm/main"
    assert (app / "tasks").is_dir()
    for named in ("../app.swarm/hub.git", "swarm.toml", "tasks/", "remote    swarm", "make test"):
        assert named in said
    assert "passed on main" in said and "(3 tests)" in said
    assert "2 changes here are not committed" in said
    assert " M src.txt" in said and "?? notes.txt" in said
    assert "undo      swarm uninit" in said
    assert all(len(line) <= 100 for line in said.splitlines())


def test_init_twice_says_what_is_there_and_changes_nothing(app: Path, typed: Typed) -> None:
    typed(app, "init")
    before = everything(app)
    refs = git(state_of(app) / "hub.git", "for-each-ref", "refs/heads")
    code, said = typed(app, "init")
    assert code == 0 and everything(app) == before
    assert refs == git(state_of(app) / "hub.git", "for-each-ref", "refs/heads")
    assert said.count("there already") == 4
    assert "note" not in said, "its own new files are no uncommitted work"


def test_a_red_target_is_exit_13_with_everything_made(tmp_path: Path, typed: Typed) -> None:
    app = repository(tmp_path / "app", RED)
    code, said = typed(app, "init")
    assert code == 13
    assert "tests FAILED on main" in said and "FAILED tests/test_a.py::test_b" in said
    assert "swarm run --allow-red" in said
    log = next(line for line in said.splitlines() if line.strip().startswith("log "))
    assert "FAILED" in Path(log.strip().removeprefix("log ")).read_text()
    assert (app / "swarm.toml").is_file() and (state_of(app) / "hub.git").is_dir()


def test_a_red_check_is_repeated_each_time(tmp_path: Path, typed: Typed) -> None:
    switch = tmp_path / "on"
    app = repository(tmp_path / "app", f"test:\n\t@test -e {switch} && echo 1 passed\n")
    assert typed(app, "init")[0] == 13
    switch.touch()
    code, said = typed(app, "init")
    assert code == 0, "what made it red was no part of the tree"
    assert "passed" in said or "flaky" in said


def test_a_check_that_cannot_run_is_exit_13_and_says_what_is_missing(
    app: Path, typed: Typed
) -> None:
    typed(app, "init", "--no-check")
    toml = app / "swarm.toml"
    toml.write_text(toml.read_text().replace("make test", "nosuchtool --all"))
    code, said = typed(app, "init")
    assert code == 13 and "COULD NOT RUN" in said and "nosuchtool" in said


def test_no_check_runs_nothing(tmp_path: Path, typed: Typed) -> None:
    app = repository(tmp_path / "app", RED)
    code, said = typed(app, "init", "--no-check")
    assert code == 0 and "not run, as you asked" in said


def test_without_a_test_command_it_is_exit_1_and_shows_an_example(
    tmp_path: Path, typed: Typed
) -> None:
    app = repository(tmp_path / "app", "all:\n\ttrue\n")
    code, said = typed(app, "init")
    assert code == 1 and "no test command found" in said
    assert "# [[checks]]" in (app / "swarm.toml").read_text()
    assert state_of(app).is_dir()


def test_the_users_commits_reach_the_hub_when_it_is_typed_again(app: Path, typed: Typed) -> None:
    typed(app, "init")
    git(app, "commit", "-q", "--allow-empty", "-m", "more")
    code, said = typed(app, "init")
    head = git(app, "rev-parse", "HEAD")
    assert code == 0 and f"main = {head[:7]}, as here" in said
    assert git(state_of(app) / "hub.git", "rev-parse", "main") == head


def test_more_than_ten_uncommitted_files_become_a_count(app: Path, typed: Typed) -> None:
    for number in range(14):
        (app / f"new-{number}").touch()
    said = typed(app, "init", "--no-check")[1]
    assert said.count("?? new-") == 10 and "and 4 more" in said


def test_a_token_in_the_origins_url_is_not_shown(app: Path, typed: Typed) -> None:
    git(app, "remote", "add", "origin", "https://me:s3cret@example.invalid/app.git")
    said = typed(app, "init", "--no-check")[1]
    assert "s3cret" not in said and "https://example.invalid/app.git" in said


def test_a_committed_swarm_toml_is_used_as_it_is(app: Path, typed: Typed) -> None:
    text = 'target = "main"\n[[checks]]\nname = "own"\nrun = "true"\n'
    (app / "swarm.toml").write_text(text)
    git(app, "add", "-A")
    git(app, "commit", "-q", "-m", "config")
    code, said = typed(app, "init")
    assert code == 0 and "there already" in said and "own passed" in said
    assert (app / "swarm.toml").read_text() == text


def test_a_tasks_folder_of_the_projects_own_is_left_to_it(app: Path, typed: Typed) -> None:
    (app / "tasks").mkdir()
    (app / "tasks/celery.py").write_text("import this\n")
    git(app, "add", "-A")
    git(app, "commit", "-q", "-m", "celery")
    code, said = typed(app, "init", "--no-check")
    assert code == 0 and "swarm-tasks/" in said
    assert 'tasks = "swarm-tasks"' in (app / "swarm.toml").read_text()
    assert typed(app, "plan", "check")[0] == 0


def test_filters_and_submodules_are_said(app: Path, typed: Typed, tmp_path: Path) -> None:
    (app / ".gitattributes").write_text("*.bin filter=lfs diff=lfs merge=lfs -text\n")
    other = repository(tmp_path / "other")
    git(app, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")
    git(app, "add", "-A")
    git(app, "commit", "-q", "-m", "lfs")
    said = typed(app, "init", "--no-check")[1]
    assert "filter=lfs" in said and "pointer files" in said
    assert "submodules are not checked out" in said


@pytest.mark.parametrize("name", ["my app", "größe-日本", "a'b\"c", "-dash", "a:b", "a#b%20$(x)"])
def test_odd_but_printable_paths_work(tmp_path: Path, typed: Typed, name: str) -> None:
    app = repository(tmp_path / "in here" / name)
    code, said = typed(app, "init")
    assert code == 0, said
    (app / "tasks/x.md").write_text("do it\n")
    assert typed(app, "plan", "check")[0] == 0
    assert typed(app, "pull")[0] == 0
    (app / "tasks/x.md").unlink()
    assert typed(app, "uninit")[0] == 0
    assert git(app, "status", "--short") == "" and not state_of(app).exists()


def test_a_linked_worktree_of_the_users_works(app: Path, typed: Typed, tmp_path: Path) -> None:
    git(app, "worktree", "add", "-q", "-b", "feature", str(tmp_path / "wt"))
    code, said = typed(tmp_path / "wt", "init")
    assert code == 0 and "branch feature" in said
    assert git(tmp_path / "wt.swarm/hub.git", "symbolic-ref", "HEAD") == "refs/heads/feature"
    assert typed(tmp_path / "wt", "uninit")[0] == 0


def test_W7_a_target_that_is_checked_out_elsewhere_is_no_obstacle(
    app: Path, typed: Typed, tmp_path: Path
) -> None:
    git(app, "branch", "dev")
    git(app, "worktree", "add", "-q", str(tmp_path / "wt"), "dev")
    code, said = typed(app, "init", "--target", "dev")
    assert code == 0 and "dev = " in said
    assert git(state_of(app) / "hub.git", "symbolic-ref", "HEAD") == "refs/heads/dev"


@pytest.mark.parametrize("branch", ["trunk", "zz", "swarm", "feature/a-b"])
def test_T20_any_target_name_works_and_a_users_branch_called_swarm(
    tmp_path: Path, typed: Typed, branch: str
) -> None:
    app = repository(tmp_path / "app", branch=branch)
    if branch != "swarm":
        git(app, "branch", "swarm")
    git(app, "config", "core.hooksPath", ".husky")
    code, said = typed(app, "init")
    assert code == 0, said
    assert git(app, "config", "core.hooksPath") == ".husky"
    assert git(state_of(app) / "hub.git", "symbolic-ref", "HEAD") == f"refs/heads/{branch}"
    assert typed(app, "pull")[0] == 0


def test_a_kill_anywhere_is_continued(app: Path, typed: Typed) -> None:
    """Each state that a kill can leave: the folder, the hub without ledger, no remote."""
    state_of(app).mkdir()
    (state_of(app) / "made.json").write_text("{}")
    git(app, "init", "-q", "--bare", "--template=", str(state_of(app) / "hub.git"))
    code, said = typed(app, "init", "--no-check")
    assert code == 0 and "new; main = " in said
    git(app, "remote", "remove", "swarm")
    (app / "swarm.toml").unlink()
    code, said = typed(app, "init", "--no-check")
    assert code == 0 and "added to this checkout" in said


# -- init: refusals --------------------------------------------------------------------------------


def refused(typed: Typed, app: Path, *args: str) -> str:
    """It was refused with one error and a hint, and nothing changed."""
    before = everything(app)
    beside = sorted(path.name for path in app.parent.iterdir())
    code, said = typed(app, "init", *args)
    assert code == 2, said
    assert said.startswith("error: ") and "  hint: " in said, said
    assert everything(app) == before
    assert sorted(path.name for path in app.parent.iterdir()) == beside
    return said


def test_no_repository(tmp_path: Path, typed: Typed) -> None:
    (tmp_path / "app").mkdir()
    assert "in no git repository" in refused(typed, tmp_path / "app")


def test_a_bare_repository(tmp_path: Path, typed: Typed) -> None:
    git(tmp_path, "init", "-q", "--bare", "app")
    assert "bare repository" in refused(typed, tmp_path / "app")


def test_no_commit(tmp_path: Path, typed: Typed) -> None:
    git(tmp_path, "init", "-q", "app")
    assert "no commit yet" in refused(typed, tmp_path / "app")


def test_a_detached_head(app: Path, typed: Typed) -> None:
    git(app, "checkout", "-q", "--detach")
    assert "detached" in refused(typed, app)


def test_a_shallow_clone_and_its_cure(app: Path, typed: Typed, tmp_path: Path) -> None:
    git(app, "commit", "-q", "--allow-empty", "-m", "second")
    git(tmp_path, "clone", "-q", "--depth=1", app.as_uri(), "clone")
    said = refused(typed, tmp_path / "clone")
    assert "shallow" in said and "git fetch --unshallow" in said
    git(tmp_path / "clone", "fetch", "-q", "--unshallow")
    assert typed(tmp_path / "clone", "init")[0] == 0


def test_a_partial_clone_and_its_cure(app: Path, typed: Typed, tmp_path: Path) -> None:
    git(app, "config", "uploadpack.allowFilter", "true")
    (app / "src.txt").write_text("other\n")
    git(app, "commit", "-q", "-am", "second")
    git(tmp_path, "clone", "-q", "--filter=blob:none", app.as_uri(), "clone")
    said = refused(typed, tmp_path / "clone")
    hint = said.rpartition("hint: ")[2].strip()
    for command in hint.split(" && "):
        git(tmp_path / "clone", *command.split()[1:])
    assert typed(tmp_path / "clone", "init")[0] == 0


def test_a_submodule(app: Path, typed: Typed, tmp_path: Path) -> None:
    above = repository(tmp_path / "above")
    git(above, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(app), "sub")
    assert "is a submodule" in refused(typed, above / "sub")


def test_a_swarm_toml_that_does_not_parse(app: Path, typed: Typed) -> None:
    (app / "swarm.toml").write_text('target = 3\ntimeout = "x"\n')
    code, said = typed(app, "init")
    assert code == 2 and "2 problems" in said and not state_of(app).exists()


def test_a_remote_named_swarm_that_is_not_ours(app: Path, typed: Typed) -> None:
    git(app, "remote", "add", "swarm", "https://me:pw@example.invalid/x.git")
    said = refused(typed, app)
    assert "git remote rename swarm" in said and "pw" not in said


@pytest.mark.parametrize("kind", ["file", "folder", "foreign repository"])
def test_something_else_at_the_hubs_place(app: Path, typed: Typed, kind: str) -> None:
    hub = app.parent / "place.git"
    if kind == "file":
        hub.write_text("x")
    elif kind == "folder":
        hub.mkdir()
        (hub / "x").write_text("x")
    else:
        git(app, "clone", "-q", "--bare", str(app), str(hub))
    said = refused(typed, app, "--hub", "../place.git")
    paste(app, hints(said)[0])
    assert (app.parent / "app-hub.git/HEAD").is_file()


def test_a_foreign_folder_at_the_state_folders_place(app: Path, typed: Typed) -> None:
    state_of(app).mkdir()
    (state_of(app) / "photos").mkdir()
    assert "swarm did not make it" in refused(typed, app)


def test_the_hub_of_another_repository(app: Path, typed: Typed, tmp_path: Path) -> None:
    other = repository(tmp_path / "other", "test:\n\ttrue\n")
    assert typed(other, "init", "--hub", "../shared/hub.git", "--no-check")[0] == 0
    assert "another repository" in refused(typed, app, "--hub", "../shared/hub.git")


def test_a_target_that_is_not_the_checkouts(app: Path, typed: Typed) -> None:
    (app / "swarm.toml").write_text('target = "release"\n')
    said = refused(typed, app)
    assert "git switch release" in said
    (app / "swarm.toml").unlink()
    assert "no branch nope" in refused(typed, app, "--target", "nope")


def test_a_hub_that_lands_on_another_branch(app: Path, typed: Typed) -> None:
    typed(app, "init", "--no-check")
    (app / "swarm.toml").unlink()
    git(app, "switch", "-q", "-c", "feature")
    assert "lands on main, not on feature" in refused(typed, app)


def test_a_path_with_a_newline(tmp_path: Path, typed: Typed) -> None:
    app = repository(tmp_path / "a\nb")
    assert "characters" in refused(typed, app)


def test_an_old_git(
    app: Path, tmp_path: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "git").write_text("#!/bin/sh\necho git version 2.38.1\n")
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    code, said = typed(app, "init")
    assert code == 2 and "git 2.39 or newer" in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(app: Path, typed: Typed) -> None:
    app.parent.chmod(0o500)
    try:
        code, said = typed(app, "init")
    finally:
        app.parent.chmod(0o700)
    assert code == 2 and "cannot write" in said and not (app / "swarm.toml").exists()


def test_a_folder_that_only_looking_made_is_no_strangers(app: Path, typed: Typed) -> None:
    cache = app.with_name(f"{app.name}.swarm") / "cache"
    cache.mkdir(parents=True)
    (cache / "disk.json").write_text("{}")
    code, said = typed(app, "init", "--no-check")
    assert code in (0, 1) and (app / "swarm.toml").exists(), said
    (app / "swarm.toml").unlink()


def test_an_agent_cannot_set_up_or_take_back_its_own_worktree(world: World, typed: Typed) -> None:
    world.add("one")
    tree = world.agent().tree
    for verb in ("init", "uninit", "pull"):
        code, said = typed(tree, verb)
        assert code == 2 and "belongs to swarm" in said
    assert not tree.with_name(tree.name + ".swarm").exists()


# -- uninit ----------------------------------------------------------------------------------------


def test_uninit_leaves_the_checkout_as_it_was(app: Path, typed: Typed) -> None:
    (app / "notes.txt").write_text("mine")
    before = everything(app)
    assert typed(app, "init")[0] == 0
    code, said = typed(app, "uninit")
    assert code == 0
    assert is_untouched(app, before), said
    assert typed(app, "uninit") == (1, "error: swarm is not set up here\n  hint: swarm init\n")


def test_uninit_leaves_and_names_what_a_person_made_of_it(app: Path, typed: Typed) -> None:
    typed(app, "init", "--no-check")
    (app / "swarm.toml").write_text((app / "swarm.toml").read_text() + "# mine\n")
    (app / "tasks/a.md").write_text("a\n")
    code, said = typed(app, "uninit")
    assert code == 0 and "you changed it" in said and "1 file" in said
    assert (app / "swarm.toml").is_file() and (app / "tasks/a.md").is_file()
    assert not state_of(app).exists()


def test_uninit_leaves_a_committed_swarm_toml(app: Path, typed: Typed) -> None:
    typed(app, "init", "--no-check")
    git(app, "add", "swarm.toml")
    git(app, "commit", "-q", "-m", "config")
    said = typed(app, "uninit")[1]
    assert "it is committed" in said and git(app, "status", "--short") == ""


def land_something(world: World) -> None:
    world.land("one", "src/one.txt", "1\n")
    world.gate().close()  # its runner has ended, and not been killed


def test_uninit_refuses_while_landed_work_is_in_the_hub_alone(world: World, typed: Typed) -> None:
    land_something(world)
    world.close()
    code, said = typed(world.app, "uninit")
    assert code == 1 and "refs/heads/main" in said and "swarm pull" in said
    assert world.layout.hub.is_dir() and "swarm" in git(world.app, "remote").split()
    assert typed(world.app, "pull")[0] == 0
    code, said = typed(world.app, "uninit")
    assert code == 0, said
    assert not world.layout.root.exists()


def test_uninit_refuses_for_unlanded_work_and_its_hint_saves_it(world: World, typed: Typed) -> None:
    world.add("one")
    world.agent().write("src/one.txt", "half\n").commit().end()
    head = next(iter(world.hub.refs_below("refs/swarm/work").values()))
    world.close()
    code, said = typed(world.app, "uninit")
    assert code == 1 and "refs/swarm/work/one/1" in said
    fetch = next(line for line in said.splitlines() if "git fetch swarm" in line)
    git(world.app, "fetch", "-q", "swarm", fetch.split("'")[1])
    code, said = typed(world.app, "uninit")
    assert code == 0, said
    assert git(world.app, "cat-file", "-t", head) == "commit"


def test_uninit_saves_what_an_agent_left_uncommitted_and_refuses_for_it(
    world: World, typed: Typed
) -> None:
    world.add("one")
    agent = world.agent()
    agent.write("src/one.txt", "half\n").commit().end()
    agent.slot.is_saved = False
    agent.write("src/late.txt", "written after the end\n")
    world.close()
    code, said = typed(world.app, "uninit")
    assert code == 1 and "refs/swarm/rescue/one/1-1" in said
    text = git(world.layout.hub, "show", "refs/swarm/rescue/one/1-1:src/late.txt")
    assert text == "written after the end"


def test_uninit_refuses_while_a_task_is_claimed_or_a_runner_lives(
    world: World, typed: Typed
) -> None:
    alive = Alive(world.layout.runs, "r9-abcdef")
    code, said = typed(world.app, "uninit")
    assert code == 1 and "r9-abcdef" in said and "hint: swarm stop" in said
    alive.close()
    world.add("one")
    world.agent()
    world.close()
    code, said = typed(world.app, "uninit")
    assert code == 1 and "1 task is claimed: one" in said and "hint: swarm stop one" in said


def test_uninit_keep_hub_leaves_the_state_folder(world: World, typed: Typed) -> None:
    land_something(world)
    world.close()
    code, _ = typed(world.app, "uninit", "--keep-hub")
    assert code == 0 and world.layout.hub.is_dir()
    assert git(world.app, "remote") == ""


def test_a_squashed_landing_does_not_stand_in_the_way(tmp_path: Path, typed: Typed) -> None:
    world = World(tmp_path, config='[gate]\nstyle = "squash"\n')
    land_something(world)
    world.close()
    assert typed(world.app, "pull")[0] == 0
    code, said = typed(world.app, "uninit")
    assert code == 0, said


def test_uninit_goes_on_after_a_kill(app: Path, typed: Typed) -> None:
    typed(app, "init", "--no-check")
    state_of(app).rename(app.with_name("app.swarm.removing"))
    code, _ = typed(app, "uninit")
    assert code == 0 and not app.with_name("app.swarm.removing").exists()


def test_uninit_never_follows_a_link(app: Path, typed: Typed, tmp_path: Path) -> None:
    typed(app, "init", "--no-check")
    moved = tmp_path / "elsewhere"
    state_of(app).rename(moved)
    state_of(app).symlink_to(moved)
    code, said = typed(app, "uninit")
    assert code == 1 and "is a link" in said and (moved / "hub.git").is_dir()


def test_read_only_folders_in_a_worktree_are_removed_too(app: Path, typed: Typed) -> None:
    typed(app, "init", "--no-check")
    cache = state_of(app) / "slots/s1/.cache/mod"
    cache.mkdir(parents=True)
    (cache / "x").touch()
    cache.chmod(0o500)
    assert typed(app, "uninit")[0] == 0 and not state_of(app).exists()


HUBS = {
    "a wrong path": 'hub = "../app.swarm/other.git"\n',
    "another place": 'hub = "../elsewhere/hub.git"\n',
    "no toml at all": "hub = [",
    "a wrong key": "nosuchkey = 1\n",
    "no file": None,
}


@pytest.mark.parametrize("said_of_hub", list(HUBS))
def test_what_uninit_looks_at_is_what_it_removes_whatever_swarm_toml_says(
    world: World, typed: Typed, said_of_hub: str
) -> None:
    land_something(world)
    head = world.main
    world.close()
    text = HUBS[said_of_hub]
    toml = world.app / "swarm.toml"
    if text is None:
        toml.unlink()
    else:
        toml.write_text(text)
    code, said = typed(world.app, "uninit")
    assert code == 1 and "refs/heads/main" in said and world.layout.hub.is_dir(), said
    assert git(world.layout.hub, "rev-parse", "main") == head
    hint = next(line for line in said.splitlines() if "hint: git pull" in line)
    git(world.app, *hint.partition("git ")[2].split())
    assert (world.app / "src/one.txt").read_text() == "1\n"
    code, said = typed(world.app, "uninit")
    assert code == 0, said
    assert not world.layout.root.exists() and git(world.app, "remote") == ""
    assert git(world.app, "rev-parse", "HEAD") == head


def test_a_wrong_hub_is_looked_at_too_when_the_right_one_is_kept(
    world: World, typed: Typed
) -> None:
    world.add("one")
    world.agent()
    world.close()
    (world.app / "swarm.toml").write_text("hub = [")
    code, said = typed(world.app, "uninit", "--keep-hub")
    assert code == 1 and "1 task is claimed: one" in said
    assert (world.app / "swarm.toml").is_file() and git(world.app, "remote") == "swarm"


def test_a_hub_of_another_name_in_the_state_folder_is_looked_at(app: Path, typed: Typed) -> None:
    assert typed(app, "init", "--no-check", "--hub", "../app.swarm/store.git")[0] == 0
    store = state_of(app) / "store.git"
    tree = git(app, "rev-parse", "HEAD^{tree}")
    oid = git(store, "commit-tree", tree, "-m", "only here", env=AUTHOR)
    git(store, "branch", "feature", oid)
    (app / "swarm.toml").unlink()
    code, said = typed(app, "uninit")
    assert code == 1 and "refs/heads/feature" in said and store.is_dir()
    git(store, "branch", "-D", "feature")
    assert typed(app, "uninit")[0] == 0 and not state_of(app).exists()


AUTHOR = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.invalid",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.invalid",
}


@pytest.mark.parametrize("ref", ["refs/tags/v1", "refs/notes/mine", "refs/heads/a-b/c"])
def test_every_kind_of_ref_counts_and_its_hint_brings_it_here(
    app: Path, typed: Typed, ref: str
) -> None:
    typed(app, "init", "--no-check")
    hub = state_of(app) / "hub.git"
    oid = git(hub, "commit-tree", git(app, "rev-parse", "HEAD^{tree}"), "-m", "x", env=AUTHOR)
    if ref.startswith("refs/tags/"):
        git(hub, "tag", "-a", "v1", "-m", "one", oid, env=AUTHOR)
        git(hub, "tag", "-a", "v2", "-m", "two", "v1", env=AUTHOR)
    else:
        git(hub, "update-ref", ref, oid)
    code, said = typed(app, "uninit")
    assert code == 1 and ref in said
    for line in said.splitlines():
        if "hint: git fetch" in line:
            git(app, *line.partition("git ")[2].replace("'", "").split())
    code, said = typed(app, "uninit")
    assert code == 0, said
    assert git(app, "cat-file", "-t", oid) == "commit"


def test_a_landing_that_the_target_lost_still_counts_as_work(world: World, typed: Typed) -> None:
    first = world.main
    land_something(world)
    head = git(world.layout.hub, "rev-parse", "refs/swarm/work/one/1")
    world.close()
    git(world.layout.hub, "update-ref", "refs/heads/main", first)
    code, said = typed(world.app, "uninit")
    assert code == 1 and "refs/swarm/work/one/1" in said and head[:7] in said


def test_uninit_removes_nothing_that_swarm_did_not_make(app: Path, typed: Typed) -> None:
    typed(app, "init", "--no-check")
    (state_of(app) / "my notes.txt").write_text("mine")
    code, said = typed(app, "uninit")
    assert code == 1 and "my notes.txt" in said
    hint = said.partition("hint: ")[2].strip()
    assert hint.startswith("mv '") and hint.endswith(f" {app.parent}/")
    (state_of(app) / "my notes.txt").rename(app.parent / "my notes.txt")
    assert typed(app, "uninit")[0] == 0


def test_what_was_moved_aside_unseen_is_looked_at_again(world: World, typed: Typed) -> None:
    """A kill between the move and the mark, or somebody who moved it by hand."""
    land_something(world)
    world.close()
    gone = world.layout.root.with_name("app.swarm.removing")
    world.layout.root.rename(gone)
    code, said = typed(world.app, "uninit")
    assert code == 1 and "refs/heads/main" in said and world.layout.hub.is_dir()
    world.layout.root.rename(gone)
    world.layout.root.mkdir()
    code, said = typed(world.app, "uninit")
    assert code == 1 and "are both there" in said and (gone / "hub.git").is_dir()


def test_a_removal_that_was_cut_off_goes_on(app: Path, typed: Typed) -> None:
    typed(app, "init", "--no-check")
    gone = state_of(app).with_name("app.swarm.removing")
    state_of(app).rename(gone)
    (gone / "removing").touch()
    (gone / "hub.git/HEAD").unlink()
    code, said = typed(app, "uninit")
    assert code == 0, said
    assert not gone.exists() and git(app, "remote") == "" and not (app / "swarm.toml").exists()


def test_a_runner_beside_another_checkout_counts(world: World, typed: Typed) -> None:
    """Its flock is not on this side; its gate claim and its beats are in the hub."""
    ledger = Ledger(Hub.open(world.layout.hub), "main")
    take_gate(ledger, "r7-other", timedelta(minutes=5), None)
    ledger.close()
    world.close()
    code, said = typed(world.app, "uninit")
    assert code == 1 and "r7-other may still work" in said and world.layout.hub.is_dir()
    assert typed(world.app, "uninit", "--keep-hub")[0] == 0


def test_what_lands_while_uninit_waits_for_the_turn_is_seen(world: World) -> None:
    tree = git(world.app, "rev-parse", "HEAD^{tree}")
    with world.hub.turn.held():
        child = subprocess.Popen(
            [sys.executable, "-m", "swarm", "uninit"],
            cwd=world.app,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        turn = world.layout.root / "hub.git.turn"
        while not _waits_for(turn, child.pid):
            assert child.poll() is None, child.stdout and child.stdout.read()
            time.sleep(0.02)
        oid = git(world.layout.hub, "commit-tree", tree, "-p", "main", "-m", "late", env=AUTHOR)
        git(world.layout.hub, "update-ref", "refs/heads/main", oid)
    said, _ = child.communicate(timeout=60)
    assert child.returncode == 1 and oid[:7] in said and world.layout.hub.is_dir()
    git(world.layout.hub, "update-ref", "refs/heads/main", "main~1")


def _waits_for(turn: Path, pid: int) -> bool:
    inode = turn.stat().st_ino
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and f" {pid} " in line and f":{inode} " in line for line in lines)


def test_a_repository_that_borrows_from_the_hub_is_not_robbed(app: Path, typed: Typed) -> None:
    typed(app, "init", "--no-check")
    objects = state_of(app) / "hub.git/objects"
    (app / ".git/objects/info").mkdir(exist_ok=True)
    (app / ".git/objects/info/alternates").write_text(f"{objects}\n")
    code, said = typed(app, "uninit")
    assert code == 1 and "borrows its objects" in said
    for command in said.partition("hint: ")[2].strip().split(" && "):
        subprocess.run(command, shell=True, cwd=app, check=True, capture_output=True)
    assert typed(app, "uninit")[0] == 0
    assert git(app, "fsck", "--full") == ""


def test_a_damaged_claim_is_a_claim(world: World, typed: Typed) -> None:
    world.add("one")
    world.acquire("one")
    damage(world, "current_tasks/one.lock")
    world.close()
    code, said = typed(world.app, "uninit")
    assert code == 1 and "1 task is claimed: one" in said and "swarm task cancel one" in said


def damage(world: World, path: str) -> None:
    """Write rubbish into one ledger file, past all rules."""
    hub = world.layout.hub
    index = {"GIT_INDEX_FILE": str(world.folder / "index"), **AUTHOR}
    blob = git(hub, "hash-object", "-w", str(world.app / "README.md"))
    git(hub, "read-tree", "refs/swarm/ledger", env=index)
    git(hub, "update-index", "--add", "--cacheinfo", f"100644,{blob},{path}", env=index)
    tree = git(hub, "write-tree", env=index)
    oid = git(hub, "commit-tree", tree, "-p", "refs/swarm/ledger", "-m", "x", env=index)
    git(hub, "update-ref", "refs/swarm/ledger", oid)


# -- pull ------------------------------------------------------------------------------------------


def test_pull_says_commits_and_files_and_a_dry_run_changes_nothing(
    world: World, typed: Typed
) -> None:
    land_something(world)
    world.close()
    before = everything(world.app)
    code, said = typed(world.app, "pull", "--dry-run")
    assert code == 0 and "would go" in said and "src/one.txt" in said and "+1 -0 in 1 file" in said
    assert everything(world.app) == before
    code, said = typed(world.app, "pull")
    assert code == 0 and "main went" in said
    assert (world.app / "src/one.txt").read_text() == "1\n"
    assert "nothing new has landed" in typed(world.app, "pull")[1]


def test_D12_uncommitted_edits_are_never_written_over(world: World, typed: Typed) -> None:
    (world.app / "README.md").write_text("my own edit\n")
    world.add("one")
    world.agent().write("README.md", "theirs\n").commit().seal()
    world.work_gate()
    assert (world.app / "README.md").read_text() == "my own edit\n", "landing touches no checkout"
    world.close()
    head = git(world.app, "rev-parse", "HEAD")
    code, said = typed(world.app, "pull")
    assert code == 1 and "README.md" in said, "git's own word names the file"
    assert (world.app / "README.md").read_text() == "my own edit\n"
    assert git(world.app, "rev-parse", "HEAD") == head
    assert hints(said) == ["git stash && git pull --ff-only swarm main && git stash pop"]
    paste(world.app, hints(said)[0], ok=(1,))
    assert git(world.app, "rev-parse", "HEAD") == world.main
    assert "my own edit" in (world.app / "README.md").read_text(), "beside theirs, as a conflict"


def test_D12_edits_elsewhere_survive_a_pull(world: World, typed: Typed) -> None:
    (world.app / "README.md").write_text("my own edit\n")
    land_something(world)
    world.close()
    assert typed(world.app, "pull")[0] == 0
    assert (world.app / "README.md").read_text() == "my own edit\n"


def test_pull_on_another_branch_or_apart_is_refused(world: World, typed: Typed) -> None:
    land_something(world)
    world.close()
    git(world.app, "switch", "-q", "-c", "feature")
    code, said = typed(world.app, "pull")
    assert code == 1 and hints(said) == ["git switch main", "git fetch swarm main"]
    git(world.app, "switch", "-q", "main")
    git(world.app, "commit", "-q", "--allow-empty", "-m", "mine")
    head = git(world.app, "rev-parse", "HEAD")
    for args in (("pull",), ("pull", "--dry-run")):
        code, said = typed(world.app, *args)
        assert code == 1 and "not checked before it is the target" in said
        assert hints(said) == ["git pull --rebase swarm main", "git push swarm HEAD:main"]
    assert git(world.app, "rev-parse", "HEAD") == head
    (world.app / "README.md").write_text("being edited\n")
    for command in hints(typed(world.app, "pull")[1]):
        paste(world.app, command)
    assert (world.app / "README.md").read_text() == "being edited\n"
    head = git(world.app, "rev-parse", "HEAD")
    assert git(world.layout.hub, "rev-parse", "main") == head
    assert git(world.app, "log", "-1", "--format=%s") == "mine"
    assert "nothing new has landed" in typed(world.app, "pull")[1]


def test_commits_of_the_team_are_not_written_anew_by_what_pull_says(
    world: World, typed: Typed
) -> None:
    up = world.upstream()
    land_something(world)
    world.close()
    assert typed(world.app, "push", "--branch", "work")[0] == 0
    up.squash("work")
    up.commit("theirs.txt", "1\n")
    git(world.app, "pull", "-q", "origin", "main")
    head = git(world.app, "rev-parse", "HEAD")
    assert head == up.tip
    code, said = typed(world.app, "pull")
    assert code == 1 and "origin/main has them" in said
    assert hints(said) == ["swarm sync", "swarm pull"]
    for command in hints(said):
        paste(world.app, command)
    assert git(world.app, "rev-parse", "HEAD") == world.main
    git(world.app, "merge-base", "--is-ancestor", head, "HEAD")
    assert (world.app / "theirs.txt").exists() and (world.app / "src/one.txt").exists()
    git(world.app, "commit", "-q", "--allow-empty", "-m", "mine")
    assert hints(typed(world.app, "pull")[1]) == [], "nothing new has landed"
    up.commit("more.txt", "1\n")
    assert typed(world.app, "sync")[0] == 0
    hint = hints(typed(world.app, "pull")[1])[0]
    assert hint.startswith("git pull --rebase"), "one of mine is not the team's"


@pytest.mark.parametrize("others", [0, 12])
def test_an_untracked_file_in_the_way_of_a_pull_has_a_cure_to_paste(
    app: Path, typed: Typed, others: int
) -> None:
    """`swarm.toml` is untracked after `init`, and an approved change to it landed."""
    typed(app, "init", "--no-check")
    mine = (app / "swarm.toml").read_text()
    clone = app.with_name("clone")
    git(app.parent, "clone", "-q", str(state_of(app) / "hub.git"), str(clone))
    for number in range(others):
        for folder in (app, clone):
            (folder / f"it's {number}").write_text(str(folder))
    (clone / "swarm.toml").write_text(mine + "# theirs\n")
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", "toml")
    git(clone, "push", "-q", "origin", "main")
    code, said = typed(app, "pull")
    assert code == 1 and "swarm.toml" in said, said
    paste(app, hints(said)[0])
    assert (app / "swarm.toml").read_text() == mine + "# theirs\n"
    assert git(app, "show", "stash@{0}^3:swarm.toml") == mine.rstrip("\n"), "mine is kept"
    assert "nothing new has landed" in typed(app, "pull")[1]


def test_a_file_that_a_command_would_not_survive_is_quoted(app: Path, typed: Typed) -> None:
    typed(app, "init", "--no-check")
    name = "a b'$(touch pwned)"
    (app / name).write_text("mine")
    hub = state_of(app) / "hub.git"
    blob = git(hub, "hash-object", "-w", str(app / name))
    index = {"GIT_INDEX_FILE": str(app.with_name("index")), **AUTHOR}
    git(hub, "read-tree", "main", env=index)
    git(hub, "update-index", "--add", "--cacheinfo", f"100644,{blob},{name}", env=index)
    tree = git(hub, "write-tree", env=index)
    oid = git(hub, "commit-tree", tree, "-p", "main", "-m", "x", env=AUTHOR)
    git(hub, "update-ref", "refs/heads/main", oid)
    (app / name).write_text("other")
    code, said = typed(app, "pull")
    assert code == 1
    paste(app, hints(said)[0])
    assert (app / name).read_text() == "mine" and not (app / "pwned").exists()


def test_a_pull_through_a_remote_that_is_not_the_hub_is_refused(app: Path, typed: Typed) -> None:
    typed(app, "init", "--no-check")
    git(app, "remote", "set-url", "swarm", str(app.with_name("nowhere")))
    code, said = typed(app, "pull")
    assert code == 1 and "is not this hub" in said
    paste(app, hints(said)[0])
    assert typed(app, "pull")[0] == 0


def hints(said: str) -> list[str]:
    """The hints of an error, each as it is pasted."""
    lines = [line.strip() for line in said.splitlines()]
    return [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]


def paste(folder: Path, command: str, ok: tuple[int, ...] = (0,)) -> None:
    """A shell does what a hint says."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
    )
    assert done.returncode in ok, (command, done.stdout, done.stderr)


def test_init_says_what_to_commit_until_it_is_committed(app: Path, typed: Typed) -> None:
    said = typed(app, "init", "--no-check")[1]
    command = next(line.strip() for line in said.splitlines() if "git add" in line)
    assert command.startswith("git add swarm.toml && git commit")
    paste(app, command)
    assert git(app, "status", "--short") == "" and git(app, "ls-files", "swarm.toml") != ""
    head = git(app, "rev-parse", "HEAD")
    assert git(state_of(app) / "hub.git", "rev-parse", "main") == head
    assert "git add" not in typed(app, "init", "--no-check")[1]
    (app / "tasks/a b.md").write_text("x\n")
    said = typed(app, "init", "--no-check")[1]
    assert "git add tasks && git commit" in said


def test_init_does_not_ask_to_commit_what_git_ignores(app: Path, typed: Typed) -> None:
    (app / ".git/info/exclude").write_text("swarm.toml\ntasks/\n")
    assert "git add" not in typed(app, "init", "--no-check")[1]


# -- what others use -------------------------------------------------------------------------------


def test_make_is_what_the_demo_uses(app: Path) -> None:
    lines: list[str] = []
    made = adopt.make(app, say=lines.append)
    assert made.checkout == app and made.layout.hub.is_dir()
    assert made.tip == git(app, "rev-parse", "HEAD")
    assert [line.split()[0] for line in lines] == [
        "app",
        "hub",
        "config",
        "copy",
        "tasks",
        "remote",
    ]
    leave.unmake(app, keep_hub=False, say=lines.append)


def test_errors_are_json_when_asked(tmp_path: Path, typed: Typed) -> None:
    code, said = typed(tmp_path, "plan", "check", "--json")
    assert code == 2 and json.loads(said)["hint"] == "swarm init"


def test_in_a_process_of_its_own(app: Path) -> None:
    assert "passed on main" in swarm(app, "init")
    assert "removed" in swarm(app, "uninit")


@pytest.mark.parametrize("lines", [0, 1, 3])
def test_a_reader_that_goes_away_stops_nothing_halfway(app: Path, lines: int) -> None:
    """`swarm init | head -3`: all is made, and taken back whole."""
    for verb, code in (("init", 0), ("uninit", 0)):
        child = subprocess.Popen(
            [sys.executable, "-m", "swarm", verb],
            cwd=app,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert child.stdout is not None and child.stderr is not None
        for _ in range(lines):
            child.stdout.readline()
        child.stdout.close()
        said = child.stderr.read()
        child.stderr.close()
        assert child.wait(60) == code, said
        is_made = verb == "init"
        assert (app / "swarm.toml").is_file() is is_made
        assert ("swarm" in git(app, "remote")) is is_made
        assert state_of(app).exists() is is_made
    assert git(app, "status", "--short") == ""
