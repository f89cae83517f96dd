"""The hub's and the slots' hooks, run by real git with the system's sh, and by dash.

Enters: pushes and commits. Leaves: what they moved, and what was said.
Guards: people move the target forward only; a commit names its task once; nothing is evaluated.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

HOOKS = Path(__file__).resolve().parent.parent / "hooks"
TRAILERS = "Swarm-Task: report-export\nSwarm-Agent: 7f3k2m9q\nSwarm-Token: 2\n"


def run_git(
    *arguments: str | Path, cwd: Path, fails: bool = False, **environment: str
) -> tuple[str, str]:
    """Standard output and error of one git command that must succeed, or must fail."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    clean |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        ["git", *map(str, arguments)],
        cwd=cwd,
        env=clean | {"GIT_EDITOR": "false"} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode != 0) is fails, f"git {arguments}: {done.stdout}{done.stderr}"
    return done.stdout, done.stderr


def identify(repository: Path) -> None:
    run_git("config", "user.name", "t", cwd=repository)
    run_git("config", "user.email", "t@swarm.invalid", cwd=repository)


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("name", ["update", "prepare-commit-msg"])
@pytest.mark.parametrize("shell", ["sh", "dash"])
def test_hooks_parse_in_every_shell_we_name(name: str, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    subprocess.run([shell, "-n", HOOKS / name], check=True)
    assert (HOOKS / name).read_text().startswith("#!/bin/sh\n")


# -- the hub -----------------------------------------------------------------------------------


@dataclass
class Hub:
    """A bare hub with our update hook, and a person's clone of it at two commits."""

    path: Path
    clone: Path
    first: str
    second: str

    def push(self, *refspecs: str, fails: bool = False) -> str:
        return run_git("push", self.path, *refspecs, cwd=self.clone, fails=fails)[1]

    def tip(self, ref: str) -> str:
        return run_git("for-each-ref", "--format=%(objectname)", ref, cwd=self.path)[0].strip()


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    path, clone = tmp_path / "hub.git", tmp_path / "clone"
    run_git("init", "-q", "--bare", "-b", "trunk", path, cwd=tmp_path)
    run_git("init", "-q", "-b", "trunk", clone, cwd=tmp_path)
    identify(clone)
    tips = []
    for text in ("one", "two"):
        put(clone, "file.txt", text)
        run_git("add", "-A", cwd=clone)
        run_git("commit", "-q", "-m", text, cwd=clone)
        tips.append(run_git("rev-parse", "HEAD", cwd=clone)[0].strip())
    shutil.rmtree(path / "hooks", ignore_errors=True)
    (path / "hooks").mkdir()
    shutil.copy2(HOOKS / "update", path / "hooks/update")
    (path / "hooks/update").chmod(0o755)
    for key, value in {
        "core.hooksPath": "hooks",
        "swarm.target": "trunk",
        "receive.denyDeleteCurrent": "ignore",  # else git refuses before the hook is asked
    }.items():
        run_git("config", key, value, cwd=path)
    return Hub(path, clone, tips[0], tips[1])


def test_people_create_the_target_and_move_it_forward(hub: Hub) -> None:
    hub.push(f"{hub.first}:refs/heads/trunk")
    hub.push(f"{hub.second}:refs/heads/trunk")
    assert hub.tip("refs/heads/trunk") == hub.second


@pytest.mark.parametrize("ref", ["refs/heads/trunk", "refs/heads/mine"])
def test_an_agent_pushes_no_branch_by_path(
    hub: Hub, ref: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push(f"{hub.first}:refs/heads/trunk")
    monkeypatch.setenv("SWARM_MARK", "r1-abc.agent.secret")
    assert "an agent does not push" in hub.push(f"{hub.second}:{ref}", fails=True)
    assert hub.tip("refs/heads/trunk") == hub.first
    assert hub.tip("refs/heads/mine") == ""


def test_the_target_never_moves_back_even_by_force(hub: Hub) -> None:
    hub.push(f"{hub.second}:refs/heads/trunk")
    said = hub.push(f"+{hub.first}:refs/heads/trunk", fails=True)
    assert hub.tip("refs/heads/trunk") == hub.second
    assert "branch trunk only moves forward" in said
    assert "hint: git pull --rebase" in said


def test_a_replace_ref_does_not_make_an_unrelated_commit_look_like_the_future(hub: Hub) -> None:
    hub.push(f"{hub.second}:refs/heads/trunk")
    run_git("checkout", "-q", "--orphan", "other", cwd=hub.clone)
    run_git("commit", "-q", "-m", "unrelated", cwd=hub.clone)
    unrelated = run_git("rev-parse", "HEAD", cwd=hub.clone)[0].strip()
    run_git("replace", "--graft", unrelated, hub.second, cwd=hub.clone)
    hub.push("refs/replace/*:refs/replace/*")
    hub.push(f"+{unrelated}:refs/heads/trunk", fails=True)
    assert hub.tip("refs/heads/trunk") == hub.second


def test_the_target_is_not_deleted(hub: Hub) -> None:
    hub.push(f"{hub.second}:refs/heads/trunk")
    assert "branch trunk is not deleted" in hub.push(":refs/heads/trunk", fails=True)
    assert hub.tip("refs/heads/trunk") == hub.second


def test_without_the_setting_the_branch_of_head_is_the_target(hub: Hub) -> None:
    run_git("config", "--unset", "swarm.target", cwd=hub.path)
    hub.push(f"{hub.second}:refs/heads/trunk")
    hub.push(f"+{hub.first}:refs/heads/trunk", fails=True)
    assert hub.tip("refs/heads/trunk") == hub.second


def test_T20_other_branches_and_tags_belong_to_people(hub: Hub) -> None:
    hub.push(f"{hub.second}:refs/heads/trunk", f"{hub.second}:refs/heads/swarm")
    hub.push(f"+{hub.first}:refs/heads/swarm", f"{hub.first}:refs/tags/v1")
    assert hub.tip("refs/heads/swarm") == hub.first
    hub.push(":refs/heads/swarm", ":refs/tags/v1")
    assert hub.tip("refs/heads/swarm") == hub.tip("refs/tags/v1") == ""


@pytest.mark.parametrize(
    "ref",
    ["refs/swarm/ledger", "refs/swarm/work/a/1", "refs/Swarm/ledger"],
)
def test_nobody_creates_a_ref_below_refs_swarm(hub: Hub, ref: str) -> None:
    said = hub.push(f"{hub.first}:{ref}", fails=True)
    assert hub.tip(ref) == ""
    assert "nobody pushes below refs/swarm/" in said
    assert "hint: " in said


@pytest.mark.parametrize("refspec", ["{second}:{ref}", "+{first}:{ref}", ":{ref}"])
def test_the_ledger_is_neither_moved_nor_deleted_by_a_push(hub: Hub, refspec: str) -> None:
    hub.push(f"{hub.second}:refs/heads/trunk")
    run_git("update-ref", "refs/swarm/ledger", hub.second, "", cwd=hub.path)
    ref = "refs/swarm/ledger"
    if not refspec.startswith("{second}"):
        hub.push(refspec.format(first=hub.first, ref=ref), fails=True)
    else:
        put(hub.clone, "file.txt", "three")
        run_git("commit", "-qam", "three", cwd=hub.clone)
        third = run_git("rev-parse", "HEAD", cwd=hub.clone)[0].strip()
        hub.push(refspec.format(second=third, ref=ref), fails=True)
    assert hub.tip(ref) == hub.second


def test_a_refused_ref_does_not_stop_the_others_of_the_same_push(hub: Hub) -> None:
    hub.push(f"{hub.first}:refs/heads/topic", f"{hub.first}:refs/swarm/beats/x", fails=True)
    assert hub.tip("refs/heads/topic") == hub.first
    assert hub.tip("refs/swarm/beats/x") == ""


# -- a slot ------------------------------------------------------------------------------------


@dataclass
class Slot:
    """A bare slot repository with our hook, and its linked worktree at one commit."""

    hooks: Path
    worktree: Path

    def declare(self, *globs: str, mode: str = "warn") -> None:
        (self.hooks / "swarm.paths").write_text("".join(f"{glob}\n" for glob in globs))
        (self.hooks / "swarm.mode").write_text(f"{mode}\n")
        (self.hooks / "swarm-task").write_text("task=report-export\nagent=7f3k2m9q\ntoken=2\n")

    def git(self, *arguments: str | Path, fails: bool = False, **environment: str) -> str:
        """What git said on standard error."""
        return run_git(*arguments, cwd=self.worktree, fails=fails, **environment)[1]

    def commit(self, *arguments: str, fails: bool = False, **environment: str) -> str:
        self.git("add", "-A")
        return self.git("commit", "-q", *arguments, fails=fails, **environment)

    def message(self) -> str:
        return run_git("log", "-1", "--format=%B", cwd=self.worktree)[0].rstrip("\n") + "\n"

    def trailers(self) -> str:
        """The last commit's trailers, as git itself reads them."""
        shown = run_git("log", "-1", "--format=%(trailers:only)", cwd=self.worktree)[0]
        return shown.rstrip("\n") + "\n"

    def commits(self) -> int:
        return int(run_git("rev-list", "--count", "HEAD", cwd=self.worktree)[0])


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    seed, path, worktree = tmp_path / "seed", tmp_path / "s1.git", tmp_path / "s1"
    run_git("init", "-q", "-b", "main", seed, cwd=tmp_path)
    identify(seed)
    put(seed, "src/app.py", "app = 1\n")
    put(seed, "docs/guide.md", "guide\n")
    run_git("add", "-A", cwd=seed)
    run_git("commit", "-q", "-m", "Seed", cwd=seed)
    run_git("clone", "-q", "--bare", seed, path, cwd=tmp_path)
    identify(path)
    shutil.rmtree(path / "hooks", ignore_errors=True)
    (path / "hooks").mkdir()
    run_git("config", "core.hooksPath", path / "hooks", cwd=path)
    run_git("config", "gc.auto", "0", cwd=path)
    run_git("worktree", "add", "-q", "-b", "report-export", worktree, "main", cwd=path)
    shutil.copy2(HOOKS / "prepare-commit-msg", path / "hooks/prepare-commit-msg")
    (path / "hooks/prepare-commit-msg").chmod(0o755)
    made = Slot(path / "hooks", worktree)
    made.declare()
    return made


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("Add export", "Add export\n\n"),
        ("fix: a title that looks like a trailer", "fix: a title that looks like a trailer\n\n"),
        ("Add export\n\nNote: this\nis prose", "Add export\n\nNote: this\nis prose\n\n"),
        (
            "Add export\n\nWhy.\n\nCo-Authored-By: A <a@b>\nRefs: #1",
            "Add export\n\nWhy.\n\nCo-Authored-By: A <a@b>\nRefs: #1\n",
        ),
        ("Add export\n\n# not a comment here", "Add export\n\n# not a comment here\n\n"),
        ("-n\n\n\\n %s $(touch x) `touch x`", "-n\n\n\\n %s $(touch x) `touch x`\n\n"),
    ],
)
def test_a_commit_ends_with_the_trailers_of_its_task(slot: Slot, written: str, kept: str) -> None:
    put(slot.worktree, "src/new.py", "")
    slot.commit("-m", written)
    assert slot.message() == kept + TRAILERS
    assert slot.trailers().endswith(TRAILERS)
    assert not (slot.worktree / "x").exists()


def test_the_trailers_join_a_sign_off(slot: Slot) -> None:
    put(slot.worktree, "src/new.py", "")
    slot.commit("-s", "-m", "Add export")
    assert slot.trailers() == "Signed-off-by: t <t@swarm.invalid>\n" + TRAILERS


def test_amending_does_not_repeat_the_trailers(slot: Slot) -> None:
    put(slot.worktree, "src/new.py", "")
    slot.commit("-m", "Add export")
    slot.git("commit", "-q", "--amend", "--no-edit")
    assert slot.message() == "Add export\n\n" + TRAILERS


def test_amending_an_earlier_attempt_takes_the_new_attempt_s_name(slot: Slot) -> None:
    old = TRAILERS.replace("7f3k2m9q", "aaaaaaaa").replace("Token: 2", "Token: 1")
    put(slot.worktree, "src/new.py", "")
    slot.commit("-m", f"Add export\n\n{old}")
    assert sorted(slot.trailers().splitlines()) == sorted(TRAILERS.splitlines())


def test_an_empty_message_stays_empty_so_that_git_refuses_it(slot: Slot) -> None:
    put(slot.worktree, "src/new.py", "")
    assert "empty commit message" in slot.commit("-m", "", fails=True)
    assert slot.commits() == 1


def test_an_editor_left_untouched_still_aborts(slot: Slot) -> None:
    put(slot.worktree, "src/new.py", "")
    assert "empty commit message" in slot.commit(fails=True, GIT_EDITOR="true")
    assert slot.commits() == 1


def test_trailers_stand_above_the_editor_s_comments_and_diff(slot: Slot) -> None:
    put(slot.worktree, "src/app.py", "app = 2\n")
    slot.commit("-v", "-e", "-m", "Add export", GIT_EDITOR="true")
    assert slot.message() == "Add export\n\n" + TRAILERS


def test_without_a_mode_it_warns(slot: Slot) -> None:
    slot.declare("src/**")
    (slot.hooks / "swarm.mode").unlink()
    put(slot.worktree, "docs/guide.md", "changed\n")
    assert "docs/guide.md" in slot.commit("-m", "Add export")
    assert slot.commits() == 2


def test_a_slot_without_a_task_adds_nothing(slot: Slot) -> None:
    (slot.hooks / "swarm-task").unlink()
    put(slot.worktree, "docs/new.md", "")
    assert slot.commit("-m", "By hand") == ""
    assert slot.message() == "By hand\n"


def test_the_task_file_is_read_and_never_run(slot: Slot) -> None:
    hostile = "task=$(touch ran)\nagent=`touch ran`\ntoken=;touch ran\nPATH=/nowhere"
    (slot.hooks / "swarm-task").write_text(hostile)
    put(slot.worktree, "src/new.py", "")
    slot.commit("-m", "Add export")
    assert "Swarm-Task: $(touch ran)" in slot.trailers()
    assert not list(slot.worktree.glob("ran"))


ODD_NAMES = [
    "with space.py",
    "two\nlines.py",
    "-n",
    "--exit-code",
    "ümläut-日本.py",
    'quote".py',
    "back\\slash.py",
    ":(top)magic",
    "*",
    "$(touch ran)",
]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_any_file_name_inside_the_paths_is_inside(slot: Slot, name: str) -> None:
    slot.declare("src/**", mode="refuse")
    put(slot.worktree, f"src/{name}", "x\n")
    assert slot.commit("-m", "Add export") == ""
    assert slot.commits() == 2


@pytest.mark.parametrize("name", ODD_NAMES)
def test_any_file_name_outside_the_paths_is_outside(slot: Slot, name: str) -> None:
    slot.declare("src/**", mode="refuse")
    put(slot.worktree, name, "x\n")
    said = slot.commit("-m", "Add export", fails=True)
    assert said.count("outside the paths of report-export: ") == 1
    assert slot.commits() == 1
    assert not (slot.worktree / "ran").exists()


def test_a_warning_names_each_path_outside_and_the_commit_is_made(slot: Slot) -> None:
    slot.declare("src/**")
    put(slot.worktree, "src/app.py", "app = 2\n")
    put(slot.worktree, "docs/größe.md", "x\n")
    slot.git("rm", "-q", "docs/guide.md")
    said = slot.commit("-m", "Add export")
    assert said.splitlines() == [
        "swarm: outside the paths of report-export: docs/größe.md",
        "swarm: outside the paths of report-export: docs/guide.md",
    ]
    assert slot.message() == "Add export\n\n" + TRAILERS


def test_a_refusal_says_what_to_do(slot: Slot) -> None:
    slot.declare("src/**", mode="refuse")
    put(slot.worktree, "docs/guide.md", "changed\n")
    said = slot.commit("-m", "Add export", fails=True)
    assert "docs/guide.md" in said
    assert "hint: git restore --staged" in said
    assert slot.commits() == 1


def test_a_file_moved_out_of_the_paths_is_outside(slot: Slot) -> None:
    slot.declare("docs/**", mode="refuse")
    slot.git("mv", "src/app.py", "docs/app.py")
    assert "of report-export: src/app.py" in slot.commit("-m", "Move", fails=True)


@pytest.mark.parametrize(
    ("glob", "inside"),
    [
        ("src/**", {"src/app.py", "src/deep/x.py"}),
        ("src/", {"src/app.py", "src/deep/x.py", "lib/src/x.py"}),
        ("/src", {"src/app.py", "src/deep/x.py"}),
        ("src/*", {"src/app.py", "src/deep/x.py"}),
        ("*.py", {"src/app.py", "src/deep/x.py", "lib/src/x.py", "top.py"}),
        ("/*.py", {"top.py"}),
        ("src/deep/x.py", {"src/deep/x.py"}),
        ("**/x.py", {"src/deep/x.py", "lib/src/x.py"}),
        ("src/**/x.py", {"src/deep/x.py"}),
    ],
)
def test_globs_mean_what_they_mean_in_task_files(slot: Slot, glob: str, inside: set[str]) -> None:
    every = {"src/app.py", "src/deep/x.py", "lib/src/x.py", "top.py", "docs/guide.md"}
    slot.declare(glob)
    for name in every:
        put(slot.worktree, name, "changed\n")
    said = slot.commit("-m", "Add export")
    prefix = "swarm: outside the paths of report-export: "
    assert {line.removeprefix(prefix) for line in said.splitlines()} == every - inside


def test_no_globs_or_only_exceptions_leave_nothing_outside(slot: Slot) -> None:
    for globs in ((), ("",), ("!docs/**",)):
        slot.declare(*globs, mode="refuse")
        put(slot.worktree, "docs/guide.md", f"{globs}\n")
        assert slot.commit("-m", "Add export") == ""


def test_concluding_a_merge_does_not_blame_the_agent_for_the_target(slot: Slot) -> None:
    slot.declare("src/**", mode="refuse")
    slot.git("checkout", "-q", "-b", "theirs", "main")
    put(slot.worktree, "docs/guide.md", "theirs\n")
    put(slot.worktree, "src/app.py", "app = 'theirs'\n")
    slot.git("-c", "core.hooksPath=/dev/null", "commit", "-qam", "Theirs")
    slot.git("checkout", "-q", "report-export")
    put(slot.worktree, "src/app.py", "app = 'ours'\n")
    slot.commit("-m", "Ours")
    slot.git("merge", "-q", "theirs", fails=True)
    put(slot.worktree, "src/app.py", "app = 'both'\n")
    assert slot.commit("--no-edit") == ""
    assert slot.trailers() == TRAILERS


def test_literal_pathspecs_of_the_caller_do_not_reach_the_guard(slot: Slot) -> None:
    slot.declare("src/**", mode="refuse")
    put(slot.worktree, "src/new.py", "")
    slot.git("add", "-A")
    assert slot.git("--literal-pathspecs", "commit", "-q", "-m", "x", "src/new.py") == ""


def test_a_commit_on_an_unborn_branch_is_looked_at_too(slot: Slot) -> None:
    slot.declare("src/**")
    slot.git("checkout", "-q", "--orphan", "fresh")
    said = slot.commit("-m", "Start again")
    assert said == "swarm: outside the paths of report-export: docs/guide.md\n"
    assert slot.trailers() == TRAILERS


def test_the_hook_leaves_the_project_s_diff_settings_out(slot: Slot) -> None:
    slot.declare("src/**")
    for key, value in {
        "color.ui": "always",
        "diff.renames": "copies",
        "diff.external": "touch ran",
        "core.pager": "touch ran",
        "diff.relative": "true",
    }.items():
        slot.git("config", key, value)
    put(slot.worktree, "docs/guide.md", "changed\n")
    said = slot.commit("-m", "Add export")
    assert said == "swarm: outside the paths of report-export: docs/guide.md\n"
    assert not (slot.worktree / "ran").exists()
