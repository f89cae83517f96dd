"""init, uninit and pull, on real repositories of every odd kind.

Enters: a repository as a person has it. Leaves: what was written, said and refused.
Guards: nothing that exists is changed, a refusal writes nothing, no work is ever removed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from swarm import adopt, leave
from swarm.cli.boundary import run
from swarm.liveness import Alive
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
    assert "hint: swarm init --hub PATH" in refused(typed, app, "--hub", "../place.git")


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


def test_uninit_refuses_while_landed_work_is_in_the_hub_alone(world: World, typed: Typed) -> None:
    land_something(world)
    world.close()
    code, said = typed(world.app, "uninit")
    assert code == 2 and "refs/heads/main" in said and "swarm pull" in said
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
    assert code == 2 and "refs/swarm/work/one/1" in said
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
    assert code == 2 and "refs/swarm/rescue/one/1-1" in said
    text = git(world.layout.hub, "show", "refs/swarm/rescue/one/1-1:src/late.txt")
    assert text == "written after the end"


def test_uninit_refuses_while_a_task_is_claimed_or_a_runner_lives(
    world: World, typed: Typed
) -> None:
    alive = Alive(world.layout.runs, "r9-abcdef")
    code, said = typed(world.app, "uninit")
    assert code == 2 and "r9-abcdef" in said and "hint: swarm stop" in said
    alive.close()
    world.add("one")
    world.agent()
    world.close()
    code, said = typed(world.app, "uninit")
    assert code == 2 and "1 task is claimed: one" in said and "hint: swarm stop one" in said


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
    assert code == 2 and "is a link" in said and (moved / "hub.git").is_dir()


def test_read_only_folders_in_a_worktree_are_removed_too(app: Path, typed: Typed) -> None:
    typed(app, "init", "--no-check")
    cache = state_of(app) / "slots/s1/.cache/mod"
    cache.mkdir(parents=True)
    (cache / "x").touch()
    cache.chmod(0o500)
    assert typed(app, "uninit")[0] == 0 and not state_of(app).exists()


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
    assert code == 2 and "README.md" in said, "git's own word names the file"
    assert (world.app / "README.md").read_text() == "my own edit\n"
    assert git(world.app, "rev-parse", "HEAD") == head


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
    assert code == 2 and "hint: git switch main" in said
    git(world.app, "switch", "-q", "main")
    git(world.app, "commit", "-q", "--allow-empty", "-m", "mine")
    head = git(world.app, "rev-parse", "HEAD")
    for args in (("pull",), ("pull", "--dry-run")):
        code, said = typed(world.app, *args)
        assert code == 2 and "git pull --no-rebase swarm main" in said
    assert git(world.app, "rev-parse", "HEAD") == head


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
