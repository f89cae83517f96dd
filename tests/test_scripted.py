"""The scripted agent does what its script says, and says in one line when it cannot."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from swarm.ids import shard

AUTHOR = {
    "GIT_AUTHOR_NAME": "Ann",
    "GIT_AUTHOR_EMAIL": "ann@example.org",
    "GIT_COMMITTER_NAME": "Ann",
    "GIT_COMMITTER_EMAIL": "ann@example.org",
}


def git(*words: str, stdin: bytes | None = None, **env: str) -> str:
    done = subprocess.run(
        ["git", *words], input=stdin, capture_output=True, env={**os.environ, **AUTHOR, **env}
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


@dataclass(frozen=True)
class Worktree:
    path: Path

    def play(self, script: str, *, attempt: int = 1, prompt: str = "") -> Played:
        process = self.start(script, attempt=attempt)
        out, err = process.communicate(prompt.encode(), timeout=60)
        return Played(process.returncode, out.decode(), err.decode())

    def start(self, script: str, *, attempt: int = 1) -> subprocess.Popen[bytes]:
        file = self.path.parent / "script.toml"
        file.write_text(script)
        words = [sys.executable, "-P", "-m", "swarm.agents.scripted", str(file)]
        return subprocess.Popen(
            [*words, "--attempt", str(attempt)],
            cwd=self.path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def read(self, name: str) -> str:
        return (self.path / name).read_text()

    def log(self) -> list[str]:
        return git("-C", str(self.path), "log", "--format=%s").splitlines()


@dataclass(frozen=True)
class Played:
    code: int
    out: str
    err: str

    def failed(self, *, code: int, saying: str) -> bool:
        """Ended with this code and exactly one line that says so."""
        assert self.code == code, self
        assert self.err.count("\n") == 1, self.err
        assert saying in self.err, self.err
        return True


@dataclass(frozen=True)
class Hub:
    path: Path

    def record(self, files: dict[str, object]) -> None:
        """One commit on the ledger that adds these files."""
        here = f"--git-dir={self.path}"
        index = {"GIT_INDEX_FILE": str(self.path / "ledger.index")}
        for path, value in files.items():
            blob = git(here, "hash-object", "-w", "--stdin", stdin=json.dumps(value).encode())
            git(here, "update-index", "--add", "--cacheinfo", f"100644,{blob},{path}", **index)
        commit = git(here, "commit-tree", "-m", "event", git(here, "write-tree", **index))
        git(here, "update-ref", "refs/swarm/ledger", commit)


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    path = tmp_path / "hub.git"
    git("init", "-q", "--bare", "-b", "main", str(path))
    tree = git(f"--git-dir={path}", "mktree", stdin=b"")
    git(f"--git-dir={path}", "branch", "main", git(f"--git-dir={path}", "commit-tree", "-m0", tree))
    return Hub(path)


@pytest.fixture
def worktree(tmp_path: Path, hub: Hub) -> Worktree:
    """A worktree of a slot repository that borrows the hub's objects."""
    slot = tmp_path / "s1.git"
    git("init", "-q", "--bare", str(slot))
    (slot / "objects/info/alternates").write_text(f"{hub.path / 'objects'}\n")
    for name, value in (("user.name", "Ann"), ("user.email", "ann@example.org")):
        git(f"--git-dir={slot}", "config", name, value)
    start = git(f"--git-dir={hub.path}", "rev-parse", "main")
    path = tmp_path / "s1"
    git(f"--git-dir={slot}", "worktree", "add", "-q", "-b", "t", str(path), start)
    (path / "a.txt").write_text("one\ntwo\n")
    git("-C", str(path), "add", "-A")
    git("-C", str(path), "commit", "-q", "-m", "start")
    return Worktree(path)


def steps(*lines: str) -> str:
    return "[[attempt]]\nstep = [\n" + "".join(f"  {{ {line} }},\n" for line in lines) + "]\n"


def test_files_are_written_extended_replaced_deleted_and_committed(worktree: Worktree) -> None:
    played = worktree.play(
        steps(
            'write = "new/deep.txt", text = "x\\n"',
            'append = "new/deep.txt", text = "y\\n"',
            'append = "fresh.txt", text = "z\\n"',
            'replace = "a.txt", old = "two", new = "2"',
            'say = "half way"',
            'commit = "-m looks like an option"',
            'delete = "fresh.txt"',
        )
    )
    assert played == Played(0, "half way\n", "")
    assert worktree.read("new/deep.txt") == "x\ny\n"
    assert worktree.read("a.txt") == "one\n2\n"
    assert worktree.log()[:2] == ["-m looks like an option", "start"]
    assert git("-C", str(worktree.path), "status", "--short") == "D fresh.txt"


def test_the_last_attempt_repeats_when_more_are_played_than_written(worktree: Worktree) -> None:
    script = steps('say = "first"') + steps('say = "second"')
    said = [worktree.play(script, attempt=n).out for n in (1, 2, 3, 99)]
    assert said == ["first\n", "second\n", "second\n", "second\n"]


def test_replace_wants_exactly_one_match(worktree: Worktree) -> None:
    replace = 'replace = "a.txt", old = "{}", new = "!"'
    assert worktree.play(steps(replace.format("o"))).failed(code=1, saying="2 times, want once")
    assert worktree.play(steps(replace.format("x"))).failed(code=1, saying="0 times, want once")
    assert worktree.read("a.txt") == "one\ntwo\n"


def test_commit_with_nothing_to_commit_fails(worktree: Worktree) -> None:
    played = worktree.play(steps('commit = "nothing"', 'say = "never said"'))
    assert played.code == 1
    assert "step 1, commit: git commit" in played.err
    assert "never said" not in played.out


def test_no_step_leaves_the_worktree_by_name_or_by_link(worktree: Worktree, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("kept")
    (worktree.path / "link").symlink_to(outside)
    (worktree.path / "folder").symlink_to(tmp_path)
    for step in (
        'write = "../outside.txt", text = ""',
        f'write = "{outside}", text = ""',
        'append = "link", text = "!"',
        'replace = "folder/outside.txt", old = "kept", new = "lost"',
        'delete = "folder/outside.txt"',
        'delete = ".."',
        'expect = "kept", in = "link"',
        'write = ".", text = ""',
    ):
        assert worktree.play(steps(step)).failed(code=1, saying="is not inside the worktree")
    assert outside.read_text() == "kept"
    assert worktree.play(steps('delete = "link"')).code == 0
    assert outside.exists(), "deleting a link deletes no file outside"


def test_expect_reads_files_and_the_prompt(worktree: Worktree) -> None:
    prompt = "Resolve <<<<<<< please"
    here = 'expect = "<<<<<<<", in = "{prompt}"'
    assert worktree.play(steps(here), prompt=prompt).code == 0
    assert worktree.play(steps(here), prompt="x").failed(code=1, saying="is not in {prompt}")
    assert worktree.play(steps('expect = "two", in = "a.txt"')).code == 0
    assert worktree.play(steps('expect = "2", in = "a.txt"')).failed(code=1, saying="in a.txt")
    assert worktree.play(steps('expect = "2", in = "gone"')).failed(code=1, saying="No such file")


def test_A19_a_large_prompt_is_read_to_its_end_before_the_first_step(worktree: Worktree) -> None:
    end = worktree.play(
        steps('expect = "the end", in = "{prompt}"'), prompt="x" * 300_000 + "the end"
    )
    assert end.code == 0


def test_run_fails_the_script_unless_the_exit_code_is_allowed(worktree: Worktree) -> None:
    code = 'run = ["python", "-c", "raise SystemExit(3)"]'
    assert worktree.play(steps(code)).failed(code=1, saying="exit 3")
    assert worktree.play(steps(code + ", ok = [0, 3]")).code == 0
    assert worktree.play(steps('run = ["no-such-program"]')).failed(
        code=1, saying="no-such-program"
    )
    same = f'run = ["python", "-c", "import sys; assert sys.executable == {sys.executable!r}"]'
    assert worktree.play(steps(same)).code == 0


def test_run_takes_words_and_no_shell(worktree: Worktree) -> None:
    echo = 'run = ["python", "-c", "import sys; print(sys.argv[1])", "$HOME; touch x"]'
    assert worktree.play(steps(echo)).out == "$HOME; touch x\n"


def test_a_detached_child_outlives_the_agent_in_a_session_of_its_own(worktree: Worktree) -> None:
    code = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(60)"
    until_written = "import os, time\\nwhile not os.path.exists('pid'): time.sleep(0.01)"
    played = worktree.play(
        steps(
            f'spawn = ["python", "-c", "{code}"], detached = true',
            f'run = ["python", "-c", "{until_written}"]',
        )
    )
    assert played.code == 0, "its output pipes are not held open"
    while not (text := worktree.read("pid")):
        time.sleep(0.01)
    child = psutil.Process(int(text))
    assert os.getsid(child.pid) == child.pid
    child.kill()


def test_exit_and_crash_end_it_as_they_say(worktree: Worktree) -> None:
    assert worktree.play(steps("exit = 3", 'say = "never"')) == Played(3, "", "")
    assert worktree.play(steps("exit = 0", 'say = "never"')) == Played(0, "", "")
    for name in ("SIGKILL", "SIGTERM", "SIGINT"):
        played = worktree.play(steps('say = "before"', f'crash = "{name}"'))
        assert played == Played(-signal.Signals[name], "before\n", "")


def test_an_interrupt_ends_a_sleeping_agent_without_a_traceback(worktree: Worktree) -> None:
    process = worktree.start(steps('say = "sleeping"', 'sleep = "60s"'))
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    assert process.stdout.readline() == b"sleeping\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == -signal.SIGINT
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stdout.close()
    process.stderr.close()


def test_wait_sees_another_task_claimed_and_landed_from_inside_a_slot(
    worktree: Worktree, hub: Hub
) -> None:
    hub.record({"format": 1})
    script = steps(
        'wait = "other", is = "claimed", within = "60s"',
        'say = "claimed"',
        'wait = "Other", is = "landed"',
        'say = "landed"',
    )
    process = worktree.start(script)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    hub.record({"current_tasks/other.lock": {"task": "other"}})
    assert process.stdout.readline() == b"claimed\n"
    hub.record({f"done/{shard('other')}/other.json": {"result": "cancelled"}})
    assert process.poll() is None, "cancelled is not landed"
    hub.record({f"done/{shard('other')}/other.json": {"result": "landed"}})
    assert process.stdout.readline() == b"landed\n"
    assert process.wait(30) == 0
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()


def test_a_claim_that_is_over_counts_as_claimed(worktree: Worktree, hub: Hub) -> None:
    hub.record({f"attempts/{shard('other')}/other.json": {"task": "other", "token": 1}})
    assert worktree.play(steps('wait = "other", is = "claimed", within = "1s"')).code == 0


def test_wait_gives_up_after_its_time(worktree: Worktree, hub: Hub) -> None:
    hub.record({"current_tasks/other-too.lock": {}})
    late = 'wait = "other", is = "claimed", within = "0s"'
    assert worktree.play(steps(late)).failed(code=1, saying="other is not claimed within 0s")


def test_wait_outside_a_slot_fails_at_once(tmp_path: Path) -> None:
    wait = steps('wait = "other", is = "landed"')
    (tmp_path / "plain").mkdir()
    assert Worktree(tmp_path / "plain").play(wait).failed(code=1, saying="not in a git worktree")
    git("init", "-q", str(tmp_path / "repository"))
    assert Worktree(tmp_path / "repository").play(wait).failed(code=1, saying="borrows from no hub")


@pytest.mark.parametrize(
    ("script", "saying"),
    [
        ("", "no [[attempt]]"),
        ("attempt = [\n", "at end of document"),
        ("format = 2\n" + steps(), "unknown format"),
        ("[[atempt]]\nstep = []", "unknown key atempt"),
        ("[[attempt]]\nsteps = []", "attempt 1: want one key, step"),
        (
            steps('say = "a"') + steps('say = "b"', 'shout = "c"'),
            "attempt 2, step 2: want exactly one",
        ),
        (steps('say = "a", exit = 1'), "found say and exit"),
        (steps('write = "a", txt = "b"'), "unknown key txt of write, known: write text"),
        (steps('write = "a"'), "missing required field `text`"),
        (steps('exit = "3"'), "Expected `int`"),
        (steps("exit = 256"), "exit wants 0 to 255"),
        (steps('run = "ls"'), "Expected `array`"),
        (steps("run = []"), "run wants a program"),
        (steps('sleep = "5"'), "want a duration like 20m, got 5"),
        (steps('wait = "a", is = "landed", within = "soon"'), "want a duration"),
        (steps('wait = "a", is = "parked"'), "Invalid enum value 'parked'"),
        (steps('wait = "/", is = "landed"'), "no letter or digit"),
        (steps('crash = "SIGNOPE"'), "there is no signal SIGNOPE"),
        (steps('delete = "a\\u0000b"'), "holds a NUL character"),
    ],
)
def test_a_script_that_cannot_be_played_is_one_line_and_exit_2(
    worktree: Worktree, script: str, saying: str
) -> None:
    assert worktree.play(script).failed(code=2, saying=saying)


def test_nothing_of_a_script_is_played_when_any_attempt_of_it_is_wrong(worktree: Worktree) -> None:
    script = steps('write = "b.txt", text = ""') + steps('nonsense = "x"')
    assert worktree.play(script).failed(code=2, saying="attempt 2, step 1")
    assert not (worktree.path / "b.txt").exists()


@pytest.mark.parametrize(
    "words", [[], ["x.toml"], ["x.toml", "--attempt", "0"], ["x.toml", "--attempt", "-1"]]
)
def test_a_wrong_command_line_is_one_line_and_exit_2(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "swarm.agents.scripted", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")
    assert done.stderr.count("\n") == 1


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "swarm.agents.scripted", str(tmp_path / "x.toml"), "--attempt", "1"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (
        2,
        f"{tmp_path / 'x.toml'}: No such file or directory\n",
    )


def test_modules_of_the_worktree_are_not_imported(worktree: Worktree) -> None:
    (worktree.path / "tomllib.py").write_text("raise SystemExit('imported from the worktree')")
    assert worktree.play(steps('say = "sound"')) == Played(0, "sound\n", "")
