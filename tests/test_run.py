"""`swarm run` as a person meets it: what it says, what it refuses, how it is stopped.

Enters: a small repository, agents that are shell scripts, signals. Leaves: lines, exit codes, refs.
Guards: a refusal starts nothing; a stopped run leaves no process and loses no work.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib import resources
from pathlib import Path

import pytest

from swarm import process
from swarm import task as tasks
from swarm.cli import boundary
from swarm.ids import short
from swarm.invariants import checkout_facts, checkout_faults
from swarm.ledger.records import Lock
from swarm.ledger.view import State
from swarm.overview import stand
from tests.world import World, git, run_swarm, until

PATIENCE = 30.0  # seconds until a test gives up on what should happen at once

WORK = 'echo done > "$SWARM_TASK.txt"; git add -A; git commit -qm work'
# One commit, something uncommitted, a child; then it waits to be told to go on.
SLOW = f"""
{WORK}; echo more >> "$SWARM_TASK.txt"
touch "$MARKS/$SWARM_TASK"
sleep 300 & while [ ! -e "$MARKS/go" ]; do sleep 0.05; done; kill $!
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, config='[env]\npass = ["MARKS"]\n[limits]\nbackoff = "0s"\n')
    git(made.app, "add", "swarm.toml")
    git(made.app, "commit", "-q", "-m", "adopted")
    git(made.app, "push", "-q", "swarm", "main")
    yield made
    made.close()


@pytest.fixture
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "marks"
    folder.mkdir()
    monkeypatch.setenv("MARKS", str(folder))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    return folder


def agent(world: World, text: str) -> str:
    """A program outside the repository that plays an agent."""
    script = world.app.parent / "agent.sh"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    return str(script)


def task(world: World, name: str, header: str = "") -> None:
    """A task file, not yet in the ledger."""
    folder = world.app / "tasks"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.md").write_text(f"---\ntitle: Do {name}\n{header}---\nDo it.\n")


def start(world: World, *args: str) -> subprocess.Popen[str]:
    """`swarm run` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "swarm", "run", *args],
        cwd=world.app,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(child: subprocess.Popen[str]) -> str:
    out, _ = child.communicate(timeout=PATIENCE)
    return out


def locks(world: World) -> list[Lock]:
    return world.ledger.view().locks()


def left_over(world: World) -> list[process.Marked]:
    """Living processes of any run of this hub."""
    runs = [run.runner for run in world.ledger.view().runs()]
    return [found for runner in runs for found in process.find_marked(f"{runner}.")]


def states(world: World) -> dict[str, State]:
    view = world.ledger.view()
    return {row.id: row.state for row in world.ledger.index.rows(view)}


# -- a run that goes well -------------------------------------------------------------------------


def test_it_says_first_what_will_run_and_last_what_to_type(world: World, marks: Path) -> None:
    task(world, "one")
    task(world, "two", "needs: [one]\n")
    before = checkout_facts(world.app)
    done = run_swarm(world.app, "run", "-n", "2", "--", agent(world, WORK))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["plan", "agent"]
    assert "2 tasks in tasks/: 2 new, 0 changed; 1 ready, 1 wait" in lines[0]
    assert "agent.sh; each runs as you, in its own worktree" in lines[1]
    assert "sandbox none" in lines[2]
    assert lines[3].startswith("limits    30m and 10m of silence per attempt, 3 strikes per task")
    assert re.match(r"checks    tests passed on main [0-9a-f]{7} in ", lines[4])
    assert re.match(r"run r1    pid \d+   Ctrl-C: finish and stop; again: stop now", lines[5])
    assert re.search(r"^\d\d:\d\d:\d\d  landed +one ", done.stdout, re.MULTILINE)
    assert "\x1b" not in done.stdout, "no terminal, no control characters"
    end = done.stdout[done.stdout.index("\nrun r1 ended after") :]
    assert "all landed" in end
    assert re.search(r"landed +2 .*main [0-9a-f]{7} -> [0-9a-f]{7}\n +one two\n", end)
    assert re.search(r"cost +unknown", end), "what is not known is never 0"
    assert re.search(r"take it +swarm pull +your main .*\(fast-forward\)", end)
    assert checkout_faults(before) == []
    world.step()


def test_verdict_of_the_target_is_reused_and_says_how_old_it_is(world: World, marks: Path) -> None:
    program = agent(world, WORK)
    task(world, "one")
    assert run_swarm(world.app, "run", "--", program).returncode == 0
    task(world, "two")
    again = run_swarm(world.app, "run", "--", program)
    reused = re.search(r"^checks    tests; main [0-9a-f]{7} passed \d+s ago$", again.stdout, re.M)
    assert reused, again.stdout
    assert "1 before this run" in again.stdout
    assert (world.layout.runs / "r2").is_dir()


def test_parked_and_blocked_are_named_with_why_and_end_with_1(world: World, marks: Path) -> None:
    task(world, "lazy", "strikes: 1\n")
    task(world, "child", "needs: [lazy]\n")
    task(world, "grandchild", "needs: [child]\n")
    done = run_swarm(world.app, "run", "--", agent(world, "true"))
    assert done.returncode == 1
    assert re.search(r"parked +1   lazy: ended without a commit.* swarm show lazy", done.stdout)
    chain = r"blocked +2   child: needs lazy, parked\n +grandchild: needs child, blocked"
    assert re.search(chain, done.stdout)
    assert "has not moved" not in done.stdout, "without a landing there is no such block"


def test_every_task_is_in_exactly_one_list(world: World) -> None:
    for name, needs in (("a", ()), ("b", ("a",)), ("c", ("b",)), ("d", ()), ("e", ("d",))):
        world.add(name, needs=needs)
    tasks.cancel(world.ledger, "a", "not wanted", "me")
    at = stand(world.ledger.view(), world.ledger.index)
    assert (at.told("cancelled"), at.told("ready")) == ([("a", "")], [("d", "")])
    blocked = [("b", "needs a, cancelled"), ("c", "needs b, blocked")]
    assert at.told("blocked") == blocked, "through needs of needs"
    assert at.told("waiting") == [("e", "needs d")]
    assert at.total == 5


def test_a_summary_names_only_what_was_cancelled_in_this_run(world: World, marks: Path) -> None:
    world.add("cancelled-before")
    tasks.cancel(world.ledger, "cancelled-before", "not wanted", "me")
    task(world, "lasting")
    task(world, "unwanted", "needs: [lasting]\n")
    runs = start(world, "-n", "1", "--", agent(world, f"touch {marks}/on; sleep 30"))
    deadline = time.monotonic() + PATIENCE
    while not (marks / "on").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    tasks.cancel(world.ledger, "unwanted", "not wanted", "me")
    runs.send_signal(signal.SIGTERM)
    said, _ = runs.communicate(timeout=PATIENCE)
    summary = said[said.index("ended after") :]
    assert re.search(r"cancelled +1   unwanted", summary), said
    assert "cancelled-before" not in summary


def test_held_change_is_named_with_its_reason(world: World, marks: Path) -> None:
    task(world, "sly")
    sly = 'echo "# x" >> swarm.toml; git commit -qam sly'
    done = run_swarm(world.app, "run", "--", agent(world, sly))
    assert done.returncode == 1
    line = r"held +1   sly: touches swarm.toml \(protected\) +swarm diff sly"
    assert re.search(line, done.stdout)


def test_agents_get_only_their_roles(world: World, marks: Path) -> None:
    task(world, "build-it", "role: build\n")
    task(world, "write-it", "role: docs\n")
    done = run_swarm(world.app, "run", "--roles", "build:1", "--", agent(world, WORK))
    assert done.returncode == 1
    assert states(world) == {"build-it": State.LANDED, "write-it": State.OPEN}
    assert re.search(r"ready +1   write-it", done.stdout)


def test_near_duplicates_are_told_when_both_are_worked_on(world: World, marks: Path) -> None:
    task(world, "fix-csv-export")
    task(world, "csv-exports")
    (marks / "go").touch()
    wait = f'touch "$MARKS/$SWARM_TASK"; until [ -e "$MARKS/csv-exports" ] && ' \
        f'[ -e "$MARKS/fix-csv-export" ]; do sleep 0.02; done; {WORK}'  # fmt: skip
    done = run_swarm(world.app, "run", "-n", "2", "--", agent(world, wait))
    assert re.search(
        r"^near +\S+ may be the same as \S+, which is being worked on", done.stdout, re.M
    )


def test_what_is_not_committed_is_told(world: World, marks: Path) -> None:
    task(world, "one")
    (world.app / "notes.txt").write_text("mine")
    done = run_swarm(world.app, "run", "--", agent(world, WORK))
    assert "1 change here is not committed; agents start from" in done.stdout
    assert "will not see it: notes.txt" in done.stdout


def mute(world: World) -> None:
    """An agent that never says what it used."""
    text = resources.files("swarm.agents").joinpath("command.toml").read_text("utf-8")
    lines = [line for line in text.splitlines() if 'in = "report"' not in line]
    own = world.app / ".swarm/agents/mute.toml"
    own.parent.mkdir(parents=True)
    own.write_text("\n".join(lines).replace('name = "command"', 'name = "mute"'))


@pytest.mark.parametrize(
    ("limit", "cure"),
    [
        ("cost_usd = 2.0", "limit time or attempts instead"),
        ("run_cost_usd = 2.0", "limit time or attempts instead"),
        ("task_cost_usd = 2.0", "limit time or attempts instead"),
        ("tokens = 1000", "limit time instead"),
        ("turns = 10", "limit time instead"),
    ],
)
def test_a_limit_that_cannot_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marks: Path, limit: str, cure: str
) -> None:
    world = World(tmp_path, config=f"[limits]\n{limit}\n")
    mute(world)
    task(world, "one")
    done = run_swarm(world.app, "run", "--agent", "mute", "--", "/bin/true")
    key = limit.partition(" ")[0]
    assert done.returncode == 2
    assert f"[limits] {key} cannot hold: mute does not say " in done.stderr
    assert cure in done.stderr
    assert world.events() == ["created", "added"] or "claimed" not in world.events()
    world.close()


def test_status_of_another_process_knows_what_the_slots_do(world: World, marks: Path) -> None:
    task(world, "one")
    child = start(world, "-n", "2", "--", agent(world, SLOW))
    until((marks / "one").exists, "the agent works")
    live = world.layout.runs / "r1" / "live.json"
    until(lambda: live.exists() and '"one"' in live.read_text(), "it tells what it does")
    seen = run_swarm(world.app, "status")
    (marks / "go").touch()
    ended(child)
    assert re.search(r"^ +s\d +one +", seen.stdout, re.MULTILINE), seen.stdout
    assert re.search(r"^ +s\d +idle +", seen.stdout, re.MULTILINE), seen.stdout


def test_a_setup_that_fails_is_said_before_any_agent_starts(tmp_path: Path, marks: Path) -> None:
    world = World(tmp_path, config='[worktree]\nsetup = "exit 3"\n')
    task(world, "one")
    done = run_swarm(world.app, "run", "--", agent(world, 'touch "$MARKS/started"'))
    assert done.returncode == 13
    assert "setup failed with exit code 3" in done.stderr
    assert not (marks / "started").exists()
    world.close()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0s"), (45, "45s"), (60, "1m"), (90, "90s"), (1800, "30m"), (5400, "1h30m"), (7200, "2h")],
)
def test_limits_are_said_as_people_write_them(seconds: int, said: str) -> None:
    assert short(timedelta(seconds=seconds)) == said


# -- refusals -------------------------------------------------------------------------------------


@pytest.fixture
def typed(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Type `swarm run ...` in this process: exit code, and all that was printed."""

    def typing(*args: str) -> tuple[int, str]:
        monkeypatch.chdir(world.app)
        code = boundary.run(["run", *args])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return typing


Typed = Callable[..., tuple[int, str]]


def refused(world: World, answer: tuple[int, str], code: int, *says: str) -> None:
    """One error with a hint, and nothing was written."""
    assert answer[0] == code, answer[1]
    assert answer[1].count("error:") == 1
    for text in says:
        assert text in answer[1], answer[1]
    assert world.ledger.view().runs() == []
    assert world.ledger.index.ids(world.ledger.view()) == [], "not even the tasks were taken"


def put_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """A PATH with git's folder and these programs alone."""
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    for name in ("git", "sh"):
        found = next(p for e in os.get_exec_path() if (p := Path(e) / name).exists())
        (folder / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))


def test_without_an_agent_it_lists_what_is_there(
    world: World, typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task(world, "one")
    put_on_path(tmp_path / "bin", monkeypatch, claude="echo '2.1.332 (Claude Code)'")
    answer = typed("-n", "4")
    refused(world, answer, 2, "no agent named", "found on PATH: claude 2.1.332")
    assert "  hint: swarm run -n 4 --agent claude\n  hint: swarm run -n 4 -- ./my" in answer[1]


def test_an_unknown_agent_names_the_nearest(world: World, typed: Typed) -> None:
    task(world, "one")
    refused(world, typed("--agent", "claud"), 2, "there is no agent claud", "did you mean claude?")


def test_a_missing_program_is_refused_before_anything(
    world: World, typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task(world, "one")
    put_on_path(tmp_path / "bin", monkeypatch, claude="echo 2.1.332")
    answer = typed("--agent", "codex")
    refused(world, answer, 2, "agent codex: cannot start codex", "found on PATH: claude 2.1.332")
    assert "hint: install codex" in answer[1]
    refused(world, typed("--", "./nowhere.sh"), 2, "cannot start ./nowhere.sh", "hint: ")


def test_all_problems_of_the_plan_come_at_once(world: World, typed: Typed) -> None:
    task(world, "one", "needs: [tow]\ntimeout: 1200\n")
    task(world, "two")
    answer = typed("--", "/bin/true")
    refused(world, answer, 2, "nothing was started", "timeout")
    task(world, "one", "needs: [tow]\n")
    task(world, "three", "checks: [tset]\n")
    answer = typed("--", "/bin/true")
    refused(world, answer, 2, "2 problems in 3 tasks", "did you mean two?", 'no check "tset"')


def test_an_empty_plan_says_how_to_add_a_task(world: World, typed: Typed) -> None:
    refused(world, typed("--", "/bin/true"), 2, "there is no task", "hint: swarm task add")


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ('[gate]\nstyle = "rebase"', 'style = "rebase" is not done by this version'),
    ],
)
def test_a_promise_that_cannot_be_kept_is_refused(
    world: World, typed: Typed, setting: str, named: str
) -> None:
    task(world, "one")
    config = (world.app / "swarm.toml").read_text()
    (world.app / "swarm.toml").write_text(config + f"\n{setting}\n")
    refused(world, typed("--", "/bin/true"), 2, named, "hint: ")


def test_without_a_check_it_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    world = World(tmp_path, check=None)
    task(world, "one")
    monkeypatch.chdir(world.app)
    code = boundary.run(["run", "--", "/bin/true"])
    said = capsys.readouterr()
    refused(world, (code, said.err), 2, "no [[checks]]", "swarm.toml:\n\n    [[checks]]\n    name")
    world.close()


def test_a_missing_hub_is_one_error(world: World, typed: Typed) -> None:
    world.layout.hub.rename(world.layout.root / "gone.git")
    code, said = typed("--", "/bin/true")
    (world.layout.root / "gone.git").rename(world.layout.hub)
    assert code == 16
    assert "no hub at" in said and "hint: swarm init" in said


def test_options_that_the_agent_or_the_slots_lack(world: World, typed: Typed) -> None:
    task(world, "one")
    refused(world, typed("--model", "big", "--", "/bin/true"), 2, "has no option model")
    refused(world, typed("--roles", "build", "--", "/bin/true"), 2, "--roles: want name:count")
    answer = typed("-n", "1", "--roles", "build:1,docs:2", "--", "/bin/true")
    refused(world, answer, 2, "3 slots have a role, but there are only 1", "hint: -n 3")


def test_an_unknown_placeholder_is_refused_before_anything(world: World, typed: Typed) -> None:
    text = (world.app / "swarm.toml").read_text()
    (world.app / "swarm.toml").write_text(text + '[env.set]\nDATABASE = "app_{slto}"\n')
    task(world, "a")
    refused(world, typed("--", "true"), 2, "slto", "[env.set]")


def test_a_red_target_ends_with_13_and_starts_no_agent(world: World, marks: Path) -> None:
    (world.app / "bad.txt").write_text("RED\n")
    git(world.app, "add", "-A")
    git(world.app, "commit", "-q", "-m", "oops")
    git(world.app, "push", "-q", "swarm", "main")
    task(world, "one")
    program = agent(world, f'touch "$MARKS/started"; git rm -q bad.txt; {WORK}')
    done = run_swarm(world.app, "run", "--", program)
    assert done.returncode == 13, done.stdout + done.stderr
    assert re.search(r"error: main [0-9a-f]{7} is red: tests failed", done.stderr)
    assert "swarm run --allow-red" in done.stderr
    assert not (marks / "started").exists()
    forced = run_swarm(world.app, "run", "--allow-red", "--", program)
    assert "is red: tests failed; started all the same (--allow-red)" in forced.stdout
    assert (marks / "started").exists()


def test_a_check_that_cannot_run_ends_with_13_even_with_allow_red(
    tmp_path: Path, marks: Path
) -> None:
    world = World(tmp_path, check="no-such-program")
    task(world, "one")
    program = agent(world, 'touch "$MARKS/started"')
    for args in ((), ("--allow-red",)):
        done = run_swarm(world.app, "run", *args, "--", program)
        assert done.returncode == 13, done.stdout + done.stderr
        assert "check tests cannot judge main" in done.stderr
        assert "hint: " in done.stderr
    assert not (marks / "started").exists()
    world.close()


# -- being stopped --------------------------------------------------------------------------------


def test_ctrl_c_lets_attempts_finish_and_claims_nothing_new(world: World, marks: Path) -> None:
    for name in ("one", "two", "three"):
        task(world, name)
    child = start(world, "-n", "2", "--", agent(world, SLOW))
    until(lambda: len(list(marks.iterdir())) == 2, "two agents work")
    os.kill(child.pid, signal.SIGINT)
    assert child.stdout is not None
    line = next(line for line in child.stdout if line.startswith("draining"))
    assert re.fullmatch(
        r"draining: 2 attempts finish \(longest has (29|30)m left\), no new claims; "
        r"Ctrl-C again stops now\n",
        line,
    )
    (marks / "go").touch()
    said = ended(child)
    assert child.returncode == 130, said
    assert "stopped by a person" in said
    assert len(list(marks.glob("[ot]*"))) == 2, "the third was not begun"
    assert left_over(world) == [] and "stopped   s" not in said
    assert run_swarm(world.app, "run", "-n", "2", "--", agent(world, SLOW)).returncode == 0
    assert set(states(world).values()) == {State.LANDED}
    world.step()


@pytest.mark.parametrize("signals", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM,)], ids=str)
def test_stopping_now_leaves_no_process_and_keeps_all_work(
    world: World, marks: Path, signals: tuple[signal.Signals, ...]
) -> None:
    task(world, "one")
    task(world, "two")
    before = checkout_facts(world.app)
    child = start(world, "-n", "2", "--", agent(world, SLOW))
    until(lambda: len(list(marks.iterdir())) == 2, "two agents work")
    running = left_over(world)
    assert running, "the marks are seen while they live"
    for number in signals:
        os.kill(child.pid, number)
        time.sleep(0.2)  # two signals at once are one
    said = ended(child)
    assert child.returncode == 130, said
    assert re.search(r"^stopping: (Ctrl-C|SIGTERM); ending 2 attempts", said, re.MULTILINE)
    assert re.search(r"^stopped   s1 s2 \(\d+ processes ended, 0 left\)$", said, re.MULTILINE)
    for name in ("one", "two"):
        kept = rf"^  {name} +1 commit kept, uncommitted files saved +continues at the next run,"
        assert re.search(kept, said, re.MULTILINE), said
    assert left_over(world) == []
    assert locks(world) == [], "the claims were given back"
    for name in ("one", "two"):
        record = world.ledger.view().attempts(name)
        assert record is not None and record.strikes == [] and record.work is not None
        assert world.file(f"{name}.txt", record.work.head) == "done\nmore\n"
    assert checkout_faults(before) == []
    finish = 'test "$(cat $SWARM_TASK.txt)" = "done\nmore" && echo 3 >> $SWARM_TASK.txt'
    again = run_swarm(world.app, "run", "-n", "2", "--", agent(world, finish))
    assert again.returncode == 0, again.stdout
    assert world.file("one.txt") == "done\nmore\n3\n", "the next run continued from what was kept"
    world.step()


class Tty:
    """`swarm run` on a terminal of its own."""

    def __init__(self, world: World, *args: str) -> None:
        self.out = b""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(world.app)
            os.environ["TERM"] = "xterm"
            os.execv(sys.executable, [sys.executable, "-m", "swarm", "run", *args])
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 110, 0, 0))

    def read_until(self, is_so: Callable[[], bool], what: str) -> None:
        until(lambda: self._read() or is_so(), what)

    def press_ctrl_c(self) -> None:
        os.write(self._fd, b"\x03")

    def end(self) -> int:
        status: list[int] = []

        def has_ended() -> bool:
            pid, code = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                status.append(code)
            return bool(pid)

        self.read_until(has_ended, "the run ends")
        self._read()
        os.close(self._fd)
        return os.waitstatus_to_exitcode(status[0])

    def _read(self) -> bool:
        with contextlib.suppress(OSError):
            while select.select([self._fd], [], [], 0)[0]:
                data = os.read(self._fd, 65536)
                if not data:
                    break
                self.out += data
        return False


def test_a_terminal_shows_the_table_and_ctrl_c_works_there(world: World, marks: Path) -> None:
    task(world, "one")
    task(world, "two")
    tty = Tty(world, "-n", "3", "--", agent(world, SLOW))
    tty.read_until(lambda: len(list(marks.iterdir())) == 2, "two agents work")
    tty.read_until(lambda: b"working 2" in tty.out, "the table shows them")
    tty.press_ctrl_c()
    tty.read_until(lambda: b"draining: 2 attempts finish" in tty.out, "it drains")
    tty.press_ctrl_c()
    assert tty.end() == 130
    said = tty.out.decode()
    assert re.search(r"app -> main   landed 0 of 2   working 2 ", said)
    assert re.search(r"slot +task +att +for +tokens +cost +doing", said)
    assert re.search(r"s\d +one +1 +00:0\d +- +- +", said)
    assert re.search(r"s\d   idle: ", said)
    assert re.search(r"gate +waits for changes +queue 0", said)
    assert said.rindex("\x1b[?25h") > said.rindex("\x1b[?25l"), "the cursor is back"
    after = said[said.rindex("\x1b") :]
    assert "run r1 ended after" in after and "slot " not in after, "the table is gone at the end"
    assert left_over(world) == []


def test_ctrl_c_during_the_targets_check_starts_no_agent(tmp_path: Path, marks: Path) -> None:
    check = 'touch "$MARKS/checking"; while [ ! -e "$MARKS/go" ]; do sleep 0.05; done'
    world = World(tmp_path, check=check, config='[env]\npass = ["MARKS"]\n')
    task(world, "one")
    child = start(world, "--", agent(world, f'touch "$MARKS/started"; {WORK}'))
    until((marks / "checking").exists, "the target is checked")
    os.kill(child.pid, signal.SIGINT)
    said = ended(child)
    assert child.returncode == 130, said
    assert "no agent was started" in said
    assert not (marks / "started").exists() and world.ledger.view().runs() == []
    gate = world.ledger.view().gate()
    assert gate is not None and gate.runner is None, "the gate was left"
    world.close()


def test_killed_during_the_targets_check_the_next_run_is_the_gate_at_once(
    tmp_path: Path, marks: Path
) -> None:
    check = 'touch "$MARKS/checking"; while [ ! -e "$MARKS/go" ]; do sleep 0.05; done'
    world = World(tmp_path, check=check, config='[env]\npass = ["MARKS"]\n')
    task(world, "one")
    child = start(world, "--", agent(world, WORK))
    until((marks / "checking").exists, "the target is checked")
    child.kill()
    ended(child)
    (marks / "go").touch()
    done = run_swarm(world.app, "run", "--", agent(world, WORK))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is the gate and judges" not in done.stdout
    world.close()


def test_a_killed_run_is_healed_and_told_by_the_next(world: World, marks: Path) -> None:
    task(world, "one")
    child = start(world, "-n", "1", "--", agent(world, SLOW))
    until((marks / "one").exists, "the agent works")
    child.kill()
    ended(child)
    (marks / "go").touch()
    done = run_swarm(world.app, "run", "--", agent(world, "echo 3 >> one.txt"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "healed    a run was killed: one open again, work kept" in done.stdout
    assert world.file("one.txt") == "done\nmore\n3\n"
    assert left_over(world) == []
    world.step()


def test_when_nobody_reads_any_more_it_ends_and_leaves_nothing(world: World, marks: Path) -> None:
    task(world, "one")
    task(world, "two")
    child = start(world, "-n", "1", "--", agent(world, f"{WORK}; echo $SWARM_TASK; {SLOW}"))
    assert child.stdout is not None
    assert any("claimed" in line for line in iter(child.stdout.readline, ""))
    child.stdout.close()
    until((marks / "one").exists, "the agent works")
    (marks / "go").touch()  # the next event has no reader
    assert child.wait(PATIENCE) != 0, "it was not done"
    until(lambda: left_over(world) == [], "no process is left")
    found = states(world)
    assert all(found[lock.task] is State.QUEUED for lock in locks(world)), "sealed or given back"
