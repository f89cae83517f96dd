"""`swarm plan new` as a person meets it: one agent, one goal, files to read.

Enters: a small repository, agents that are shell scripts. Leaves: lines, exit codes, files, refs.
Guards: nothing of the person's is changed, nothing reaches the ledger's tasks, no process is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swarm import goal, process
from swarm.errors import UsageError
from swarm.gather import MOST_FILES
from swarm.ledger.view import State
from swarm.plumbing.hub import RESCUE
from tests.world import World, git, run_swarm, until

PATIENCE = 30.0  # seconds until a test gives up on what should happen at once

GOOD = """
mkdir -p tasks
printf -- '---\\npaths: ["src/money/**"]\\n---\\n# Money type\\n' > tasks/money-type.md
printf -- '---\\nneeds: [money-type]\\n---\\n# Report\\n' > tasks/report.md
printf -- '---\\nneeds: [money-type, report]\\n---\\n# Export\\n' > tasks/export.md
"""
# Writes a file and a mark, then waits with a child of its own.
SLOW = 'mkdir -p tasks; echo "# Half" > tasks/half.md; sleep 300 & touch "$MARKS/on"; wait'


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """A world whose checkout has a committed `swarm.toml`."""
    made: list[World] = []

    def build(config: str = "", files: dict[str, str] | None = None) -> World:
        world = World(tmp_path, config='[env]\npass = ["MARKS"]\n' + config, files=files)
        git(world.app, "add", "swarm.toml")
        git(world.app, "commit", "-q", "-m", "adopted")
        git(world.app, "push", "-q", "swarm", "main")
        made.append(world)
        return world

    yield build
    for world in made:
        world.close()


@pytest.fixture
def world(make: Callable[..., World]) -> World:
    return make()


@pytest.fixture
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "marks"
    folder.mkdir()
    monkeypatch.setenv("MARKS", str(folder))
    return folder


def plan_new(
    world: World, text: str, goal: str = "Money in cents"
) -> subprocess.CompletedProcess[str]:
    """`swarm plan new` with a shell script for an agent."""
    done = run_swarm(world.app, "plan", "new", goal, "--", "sh", "-c", text)
    world.step()
    return done


def start(world: World, text: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "swarm", "plan", "new", "Money", "--", "sh", "-c", text],
        cwd=world.app,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def task_files(world: World) -> dict[str, str]:
    folder = world.app / "tasks"
    return {f.name: f.read_text() for f in sorted(folder.glob("*"))} if folder.is_dir() else {}


def refs(world: World) -> list[str]:
    return sorted(world.hub.refs_below(RESCUE))


def kept(world: World, ref: str) -> list[str]:
    """The paths that a rescue ref has."""
    return git(world.layout.hub, "ls-tree", "-r", "--name-only", ref).splitlines()


def folder(world: World, number: int = 1) -> Path:
    return world.layout.runs / f"plan-{number}"


def mark(world: World) -> str:
    """The beginning of the mark that processes of the attempt in slot p1 carry."""
    occupant = json.loads((world.layout.slots / "p1.json").read_text())
    return f"{occupant['run']}.{occupant['agent']}."


# -- it goes well ---------------------------------------------------------------------------------


def test_three_tasks_are_written_and_it_says_what_to_type_next(world: World) -> None:
    before = git(world.app, "status", "--porcelain")
    done = plan_new(world, GOOD)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(task_files(world)) == ["export.md", "money-type.md", "report.md"]
    lines = done.stdout.splitlines()
    assert lines[0].startswith("agent     command sh")
    assert "sandbox none" in lines[1]
    assert lines[2].startswith("limits    ")
    assert lines[3].startswith(f"planning  plan-1 from main {world.main[:7]}")
    assert "wrote     tasks/report.md   Report   needs money-type" in lines
    assert "; tokens and cost unknown" in done.stdout
    read, check, run = lines[-3:]
    assert read.startswith("read them   tasks/")
    assert check == "then        swarm plan check"
    assert run == "then        swarm run -- ./my-agent.sh", "many lines are not repeated"
    assert "\x1b" not in done.stdout
    assert git(world.app, "status", "--porcelain") == (before + "\n?? tasks/").strip()


def test_nothing_is_added_to_the_ledger_and_nothing_is_left_in_the_slot(world: World) -> None:
    tip = world.ledger.view().tip
    assert plan_new(world, GOOD + "git add -A; git commit -qm plan").returncode == 0
    assert world.ledger.view().tip == tip, "no event: it is no task and nothing had to be kept"
    assert world.state("report") is State.ABSENT
    assert refs(world) == []
    doctor = run_swarm(world.app, "doctor")
    assert "unsaved-work" not in doctor.stdout, doctor.stdout


def test_what_the_agent_was_told_and_said_lies_in_its_folder(world: World) -> None:
    done = plan_new(world, "cat > /dev/null; echo thinking; echo doubts >&2;" + GOOD)
    assert done.returncode == 0
    assert (folder(world) / "transcript.jsonl").read_text() == "thinking\n"
    assert (folder(world) / "stderr.log").read_text() == "doubts\n"
    assert json.loads((folder(world) / "outcome.json").read_text())["exit_code"] == 0
    assert "Money in cents" in (folder(world) / "prompt.md").read_text()
    assert str(folder(world) / "transcript.jsonl") in done.stdout


def test_files_that_the_agent_committed_are_taken(world: World) -> None:
    done = plan_new(world, GOOD + "git add -A; git commit -qm plan")
    assert done.returncode == 0, done.stdout
    assert list(task_files(world)) == ["export.md", "money-type.md", "report.md"]
    assert "not taken" not in done.stdout


def test_files_that_git_ignores_are_taken(make: Callable[..., World]) -> None:
    world = make(files={".gitignore": "tasks/\n"})
    assert plan_new(world, GOOD).returncode == 0
    assert "report.md" in task_files(world)


def test_the_prompt_tells_checks_and_tasks_and_the_goal_is_data(world: World) -> None:
    world.add("Old {{ thing }}")
    (world.app / "tasks").mkdir()
    (world.app / "tasks/fresh.md").write_text("# Not taken yet\n")
    nasty = "Say {{ 7 * 7 }} {% for %}\n\"; rm -rf $HOME `touch x` 'q'\n--agent nobody"
    done = plan_new(world, 'cat > "$SWARM_SLOT.txt"; ' + GOOD, nasty)
    assert done.returncode == 0, done.stdout + done.stderr
    prompt = (folder(world) / "prompt.md").read_text()
    assert nasty in prompt
    assert "- tests: " in prompt
    assert "- old-thing: Old {{ thing }} (ready)" in prompt
    assert "- fresh: Not taken yet (new)" in prompt
    assert git(world.layout.hub, "show", f"{refs(world)[0]}:p1.txt") == prompt.rstrip("\n")


def test_the_goal_can_come_from_standard_input(world: World) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "swarm", "plan", "new", "-", "--", "sh", "-c", GOOD],
        cwd=world.app,
        input="From a pipe\n",
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    assert "From a pipe" in (folder(world) / "prompt.md").read_text()


def test_setup_runs_as_for_any_agent(make: Callable[..., World]) -> None:
    world = make('[worktree]\nsetup = "echo made > made.txt"\n')
    done = plan_new(world, "test -f made.txt || exit 9;" + GOOD)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not taken" not in done.stdout, "what setup left is nobody's work"


# -- what it wrote is not well --------------------------------------------------------------------


def test_files_with_problems_are_written_and_the_problems_are_said(world: World) -> None:
    bad = """
    mkdir tasks
    printf -- '---\\nneeds: [b]\\n---\\nA\\n' > tasks/a.md
    printf -- '---\\nneeds: [a]\\n---\\nB\\n' > tasks/b.md
    printf -- '---\\npriorty: 3\\n---\\nC\\n' > tasks/c.md
    """
    done = plan_new(world, bad)
    assert done.returncode == 2
    assert list(task_files(world)) == ["a.md", "b.md", "c.md"]
    judged = run_swarm(world.app, "plan", "check")
    assert judged.returncode == 2
    assert judged.stdout in done.stdout, "the same words as `plan check`"
    assert "cycle: " in judged.stdout and "priorty" in judged.stdout


def test_without_a_task_file_it_ends_with_1(world: World) -> None:
    done = plan_new(world, "echo I do not know")
    assert done.returncode == 1
    assert "nothing     the agent wrote no new task file in tasks/" in done.stdout
    assert task_files(world) == {}


def test_an_existing_file_is_never_changed(world: World) -> None:
    (world.app / "tasks").mkdir()
    (world.app / "tasks/report.md").write_text("# Mine\n")
    done = plan_new(world, GOOD)
    assert done.returncode == 2
    files = task_files(world)
    assert files["report.md"] == "# Mine\n"
    assert files["report-2.md"].endswith("# Report\n")
    assert "tasks/report-2.md" in done.stdout
    assert "was written as report.md, which has other text" in done.stdout


def test_an_id_that_clashes_is_said(world: World) -> None:
    (world.app / "tasks").mkdir()
    (world.app / "tasks/one.md").write_text("# Mine\n")
    done = plan_new(
        world, "mkdir tasks; printf -- '---\\nid: one\\n---\\nOther\\n' > tasks/other.md"
    )
    assert done.returncode == 2
    assert "is also the id of tasks/one.md" in done.stdout


def test_an_id_that_the_ledger_has_is_said(world: World) -> None:
    world.add("Report")
    done = plan_new(world, GOOD)
    assert done.returncode == 2
    assert "there is a task report already: it is ready" in done.stdout


def test_a_second_time_is_a_second_attempt(world: World) -> None:
    assert plan_new(world, GOOD).returncode == 0
    files = task_files(world)
    again = plan_new(world, GOOD.replace("# Export", "# Export all"))
    assert again.returncode == 2
    assert {**files, "export-2.md": task_files(world)["export-2.md"]} == task_files(world)
    assert "same      tasks/report.md" in again.stdout
    assert (folder(world, 2) / "prompt.md").exists()


def test_a_committed_task_file_is_not_taken_for_a_new_one(make: Callable[..., World]) -> None:
    world = make(files={"tasks/old.md": "# Old\n", "README.md": "x\n"})
    (world.app / "tasks/old.md").write_text("# Changed here\n")
    done = plan_new(world, GOOD)
    assert done.returncode == 0, done.stdout
    assert task_files(world)["old.md"] == "# Changed here\n"
    assert "old-2.md" not in task_files(world)


# -- what it must not do --------------------------------------------------------------------------


def test_other_changes_are_named_kept_and_not_taken(world: World) -> None:
    worse = GOOD + 'echo 4 >> src/a.txt; git commit -qam did-it; rm README.md; echo x > "new.txt"'
    done = plan_new(world, worse)
    assert done.returncode == 0
    assert "note      it changed 3 other files, not taken: README.md, new.txt, src/a.txt" in (
        done.stdout
    )
    assert "swarm rescue show plan-1/1-1" in done.stdout
    paths = kept(world, refs(world)[0])
    assert "new.txt" in paths and "README.md" not in paths
    assert (world.app / "src/a.txt").read_text() == "1\n2\n3\n"
    assert (world.app / "README.md").exists()
    assert run_swarm(world.app, "rescue", "show", "plan-1/1-1").returncode == 0


def test_work_that_was_undone_is_kept_too(world: World) -> None:
    undone = "echo x > x; git add x; git commit -qm x; git rm -q x; git commit -qm undo;" + GOOD
    assert plan_new(world, undone).returncode == 0
    commits = git(world.layout.hub, "log", "--format=%s", refs(world)[0]).splitlines()
    assert {"x", "undo"} <= set(commits)


def test_no_link_is_followed_and_no_odd_file_is_taken(world: World, tmp_path: Path) -> None:
    secret = tmp_path / "secret.md"
    secret.write_text("# Secret\n")
    odd = f"""{GOOD}
    ln -s {secret} tasks/link.md; ln -s /etc/passwd tasks/x.md; mkfifo tasks/pipe.md
    mkdir tasks/deep; echo "# Deep" > tasks/deep/deep.md; mkdir tasks/dir.md
    echo "# Hidden" > tasks/.hidden.md; echo text > tasks/note.txt
    printf '# Esc' > "tasks/$(printf 'a\\033[31m').md"; echo "# Dash" > tasks/-rf.md
    head -c 1048577 /dev/zero > tasks/large.md
    """
    done = plan_new(world, odd)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(task_files(world)) == ["export.md", "money-type.md", "report.md"]
    assert "\x1b" not in done.stdout
    assert "Secret" not in done.stdout
    listed = [line for line in done.stdout.splitlines() if line.startswith("note      it changed")]
    assert len(listed) == 1 and "not taken" in listed[0]


def test_a_folder_of_tasks_that_is_a_link_is_not_entered(world: World, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "stolen.md").write_text("# Stolen\n")
    done = plan_new(world, f"ln -s {other} tasks")
    assert done.returncode == 1
    assert task_files(world) == {}
    assert "not taken: tasks" in done.stdout


def test_no_more_than_200_files_are_taken(world: World) -> None:
    many = 'mkdir tasks; for n in $(seq 1000 1202); do echo "# T" > tasks/t$n.md; done'
    done = plan_new(world, many)
    assert done.returncode == 0, done.stderr
    assert len(task_files(world)) == MOST_FILES
    assert "it changed 3 other files, not taken: tasks/t1200.md (over 200 files)" in done.stdout
    assert "tasks/t1202.md" in kept(world, refs(world)[0])


# -- it ends badly --------------------------------------------------------------------------------


def test_the_next_run_is_said_with_the_same_agent(world: World) -> None:
    done = plan_new(world, one := "mkdir tasks; echo '# One' > tasks/one.md")
    assert done.stdout.splitlines()[-1] == "then        " + shlex.join(
        ["swarm", "run", "--", "sh", "-c", one]
    )


def test_whoever_plans_has_nobody_to_ask(world: World) -> None:
    verbs = ('ask "Which?"', "submit", 'release --reason "no"')
    script = "".join(f"swarm {verb}; echo ended with $?;" for verb in verbs)
    done = plan_new(world, f"{script} {GOOD}")
    assert done.returncode == 0, done.stdout + done.stderr
    said = (folder(world) / "transcript.jsonl").read_text()
    errors = (folder(world) / "stderr.log").read_text()
    assert said.count("ended with 2\n") == 3, said + errors
    assert errors.count("error: a plan is made here") == 3
    assert 'with "role: person"' in errors


def test_a_failure_is_one_error_and_what_it_wrote_is_kept(world: World) -> None:
    done = plan_new(world, GOOD + "echo no tokens left >&2; exit 3")
    assert done.returncode == 1
    assert "error: the agent failed: exit code 3" in done.stderr
    assert "no tokens left" in done.stderr
    assert f"hint: less {folder(world) / 'stderr.log'}" in done.stderr
    assert task_files(world) == {}
    assert "kept      what it changed: swarm rescue show plan-1/1-1" in done.stdout
    assert "tasks/report.md" in kept(world, refs(world)[0])


@pytest.mark.parametrize(
    "code, said",
    [(77, "the agent is not logged in"), (75, "the provider limits this account")],
)
def test_login_and_limit_end_with_15(world: World, code: int, said: str) -> None:
    done = plan_new(world, f"exit {code}")
    assert done.returncode == 15
    assert f"error: {said}" in done.stderr


def test_time_out_ends_the_whole_tree(make: Callable[..., World], marks: Path) -> None:
    world = make('[limits]\nattempt = "1s"\ngrace = "1s"\n')
    done = plan_new(world, SLOW)
    assert done.returncode == 1
    assert "error: the agent was ended after 1s" in done.stderr
    assert process.find_marked(mark(world)) == []
    assert task_files(world) == {}


def test_silence_ends_it(make: Callable[..., World], marks: Path) -> None:
    world = make('[limits]\nsilence = "1s"\ngrace = "1s"\n')
    done = plan_new(world, SLOW)
    assert done.returncode == 1
    assert "error: the agent was ended: silent for 1s" in done.stderr


def test_failed_setup_starts_no_agent(make: Callable[..., World]) -> None:
    world = make('[worktree]\nsetup = "echo no compiler; exit 4"\n')
    done = plan_new(world, GOOD)
    assert done.returncode == 1
    assert "error: setup failed: exit code 4; no agent was started" in done.stderr
    assert "no compiler" in done.stderr
    assert not (folder(world) / "transcript.jsonl").exists()
    assert task_files(world) == {}


def test_ctrl_c_during_setup_keeps_nothing_of_setups(
    make: Callable[..., World], marks: Path
) -> None:
    world = make('[worktree]\nsetup = "echo made > made.txt; touch $MARKS/on; sleep 300"\n')
    child = start(world, GOOD)
    until((marks / "on").exists, "setup works")
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=PATIENCE)
    assert child.returncode == 130, out
    assert refs(world) == []
    assert not (folder(world) / "transcript.jsonl").exists()


def test_ctrl_c_ends_the_tree_and_writes_nothing(world: World, marks: Path) -> None:
    child = start(world, SLOW)
    until((marks / "on").exists, "the agent works")
    marked = mark(world)
    assert process.find_marked(marked)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=PATIENCE)
    assert child.returncode == 130
    assert "stopped   the agent was ended; no task file was written" in out
    assert process.find_marked(marked) == []
    assert task_files(world) == {}
    assert "tasks/half.md" in kept(world, refs(world)[0]), "and what it had done is kept"
    world.step()


def test_kill_9_ends_the_agent_and_the_next_plan_saves_what_it_did(
    world: World, marks: Path
) -> None:
    child = start(world, SLOW)
    until((marks / "on").exists, "the agent works")
    marked = mark(world)
    child.kill()
    child.communicate(timeout=PATIENCE)
    until(lambda: process.find_marked(marked) == [], "its shim ends the agent")
    assert task_files(world) == {}
    assert refs(world) == []
    done = plan_new(world, GOOD)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [ref.removeprefix(f"{RESCUE}/") for ref in refs(world)] == ["plan-1/1-1"]
    assert "tasks/half.md" in kept(world, refs(world)[0])
    assert (world.layout.slots / "p1").is_dir() and not (world.layout.slots / "p2").exists()


def test_what_a_killed_shim_left_is_ended_before_its_slot_is_used(
    world: World, marks: Path
) -> None:
    child = start(world, SLOW)
    until((marks / "on").exists, "the agent works")
    marked = mark(world)
    for found in process.find_marked(marked):
        if found.is_shim:
            os.kill(found.pid, signal.SIGSTOP)
    child.kill()
    child.communicate(timeout=PATIENCE)
    assert process.find_marked(marked), "nobody ends them: their shim sleeps"
    assert plan_new(world, GOOD).returncode == 0
    assert process.find_marked(marked) == []


def test_two_at_once_have_slots_of_their_own(world: World, marks: Path) -> None:
    child = start(world, SLOW)
    until((marks / "on").exists, "the first works")
    done = plan_new(world, GOOD + 'echo "$SWARM_SLOT $SWARM_PORT $SWARM_TASK"')
    said = (folder(world, 2) / "transcript.jsonl").read_text().split()
    assert (said[0], said[2]) == ("p2", "plan-2")
    assert done.returncode == 0
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=PATIENCE)
    assert child.returncode == 130


# -- before anything starts -----------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", " \n\t ", "x" * (goal.MAX_GOAL + 1), "a\0b"])
def test_a_goal_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        goal.read_goal(text)


def test_a_refusal_starts_nothing(world: World) -> None:
    for args in (["", "--", "true"], ["Money"], ["Money", "--agent", "nobody"]):
        done = run_swarm(world.app, "plan", "new", *args)
        assert done.returncode == 2, done.stdout + done.stderr
        assert done.stderr.count("error:") == 1
    assert not list(world.layout.runs.glob("plan-*"))
    assert not (world.layout.slots / "p1").exists()


def test_hints_repeat_the_goal_so_that_they_can_be_pasted(world: World) -> None:
    done = run_swarm(world.app, "plan", "new", "Money's worth")
    assert """hint: swarm plan new 'Money'"'"'s worth' --agent claude""" in done.stderr


def test_no_more_than_200_tasks_are_told() -> None:
    many = [goal.KnownTask(id=f"t{n}", title="T\x1b[31m\nx", state="ready") for n in range(203)]
    told, more = goal.first_tasks(many)
    text = goal.render(goal.GoalFacts(goal="G", folder="tasks", tasks=told, more=more))
    assert (len(told), more) == (goal.MOST_TASKS, 3)
    assert "and 3 more" in text
    assert "\x1b" not in text and text.count("(ready)") == goal.MOST_TASKS


# -- on a terminal --------------------------------------------------------------------------------


def test_a_terminal_shows_one_line_while_it_works(world: World, marks: Path) -> None:
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "swarm", "plan", "new", "Money", "--", "sh", "-c", SLOW],
        cwd=world.app,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "20"},
        start_new_session=True,
    )
    os.close(theirs)
    seen = b""

    def shows_it() -> bool:
        nonlocal seen
        if select.select([ours], [], [], 0)[0]:
            with contextlib.suppress(OSError):
                seen += os.read(ours, 65536)
        return b"plan-1 in p1" in seen and b"tokens and cost unknown" in seen

    until(shows_it, "the line is drawn")
    child.send_signal(signal.SIGINT)
    deadline = time.monotonic() + PATIENCE
    while child.poll() is None and time.monotonic() < deadline:
        shows_it()
        time.sleep(0.02)
    assert child.wait(1) == 130
    os.close(ours)
