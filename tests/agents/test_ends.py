"""Real agent programs, end to end: they edit, commit and land, and are limited.

Each is driven through `swarm run` in a process of its own against a model on 127.0.0.1 that plays a
script. A program that could not be installed is skipped with the reason.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarm import process
from tests.agents.drive import DRIVEN, Project, edit, edit_by_text, need
from tests.agents.install import CACHE
from tests.agents.model_server import ModelServer
from tests.test_sandbox import needs_bwrap

ALL = list(DRIVEN)
pytestmark = pytest.mark.agents


@pytest.fixture(autouse=True)
def _no_process_is_left(tmp_path: Path) -> Iterator[None]:
    """After every test no live process carries a mark of its runs."""
    yield
    runners = {path.stem for path in tmp_path.glob("app.swarm/runs/*.alive")}
    left = [one for runner in runners for one in process.find_marked(f"{runner}.")]
    assert left == []


def play(name: str, tmp_path: Path, server: ModelServer, settings: str = "") -> Project:
    need(name)
    return Project(tmp_path, server, (name,), settings)


def script_of(name: str) -> dict[str, object]:
    made = edit_by_text if DRIVEN[name].edits_by_text else edit
    return made("made.txt", "hello")


@pytest.mark.parametrize("name", ALL)
def test_not_logged_in_stops_it_with_what_cures_it(name: str, tmp_path: Path) -> None:
    need(name)
    script = script_of(name) | {"errors": [{"status": 401, "message": "invalid api key"}]}
    with ModelServer(script) as server:
        project = play(name, tmp_path, server)
        project.task("Make it")
        done = project.run()
        assert done.returncode == 15, done.stdout + done.stderr
        (attempt,) = project.attempts("make-it")
        assert (attempt["outcome"], attempt["strike"]) == ("not_logged_in", False)
        said = done.stdout
        assert f"not logged in: {_hint(name)}" in said.replace("\n", " "), said


def _hint(name: str) -> str:
    from swarm import adapter

    rules = adapter.load(name, None).outcome
    return next(rule.hint for rule in rules if rule.is_ == "login" and rule.hint)


@pytest.mark.parametrize("name", [one for one in ALL if one not in ("aider", "mini-swe-agent")])
def test_a_rate_limit_is_no_strike_and_closes_its_account(name: str, tmp_path: Path) -> None:
    """Without a time: the pause is short here, and the run ends since it would not wait."""
    need(name)
    script = script_of(name) | {"errors": [{"status": 429, "message": "rate limit"}]}
    limits = '[limits]\nbackoff = "3h"\nbackoff_max = "3h"\nprovider = "1h"\npatience = "5s"\n'
    with ModelServer(script) as server:
        project = play(name, tmp_path, server, limits)
        project.task("Make it")
        done = project.run()
        assert done.returncode == 15, done.stdout + done.stderr
        (attempt,) = project.attempts("make-it")
        assert (attempt["outcome"], attempt["strike"]) == ("provider_limit", False), attempt
        status = json.loads(project.swarm("status", "--json").stdout)
        assert [one["adapter"] for one in status["limited"]] == [name]
        asked = len(server.requests())
        assert project.run().returncode == 15, "it holds for the next run too"
        assert len(server.requests()) == asked, "nobody asked the provider again"


@pytest.mark.parametrize("name", ["claude", "codex", "gemini"])
def test_an_error_of_the_server_is_a_strike_in_its_own_words(name: str, tmp_path: Path) -> None:
    need(name)
    script = script_of(name) | {"errors": [{"status": 400, "message": "no such thing"}]}
    with ModelServer(script) as server:
        project = play(name, tmp_path, server, "[limits]\nstrikes = 1\n")
        project.task("Make it")
        done = project.run()
        assert done.returncode == 1, done.stdout + done.stderr
        (attempt,) = project.attempts("make-it")
        assert (attempt["outcome"], attempt["strike"]) == ("agent_failed", True)
        assert "no such thing" in attempt["message"]


@pytest.mark.parametrize("name", ["claude", "codex", "gemini", "opencode", "qwen", "copilot"])
def test_a_model_that_never_answers_is_ended_by_silence(name: str, tmp_path: Path) -> None:
    need(name)
    script = script_of(name) | {"stalls": [{"at": 0}]}
    limits = '[limits]\nattempt = "12s"\ngrace = "1s"\nstrikes = 1\n'
    with ModelServer(script) as server:
        project = play(name, tmp_path, server, limits)
        project.task("Make it")
        done = project.run()
        assert done.returncode == 1, done.stdout + done.stderr
        (attempt,) = project.attempts("make-it")
        assert (attempt["outcome"], attempt["strike"]) == ("timed_out", True)
        assert ", 0 left" in attempt["message"]


# Ends every process above it up to the agent itself, which is below swarm's own shim.
KILLER = """
import os, signal
import psutil
above = []
for one in psutil.Process().parents():
    if "SWARM_SHIM" in one.environ():
        break
    above.append(one)
for one in reversed(above):
    os.kill(one.pid, signal.SIGKILL)
"""


@pytest.mark.parametrize("name", ["claude", "codex", "gemini", "opencode", "qwen", "copilot"])
def test_killed_in_the_middle_its_work_is_kept_and_gone_on_with(name: str, tmp_path: Path) -> None:
    need(name)
    half = "printf half > half.txt && git add half.txt && git commit -qm half"
    # A file, since some programs refuse commands that have others within them.
    killer = tmp_path / "killer.py"
    killer.write_text(KILLER)
    command = f"{half}; test $SWARM_ATTEMPT != 1 || {sys.executable} {killer}"
    script = {"steps": [{"shell": command}, {"text": "done"}]}
    with ModelServer(script) as server:
        project = play(name, tmp_path, server, '[limits]\nbackoff = "0s"\n')
        project.task("Make it")
        done = project.run()
        assert done.returncode == 0, done.stdout + done.stderr
        first = project.attempts("make-it")[0]
        assert (first["outcome"], first["strike"]) == ("agent_failed", True), first
        assert project.landed("half.txt") == "half"


@pytest.mark.parametrize("name", ["claude", "qwen", "gemini"])
def test_a_turn_limit_ends_it(name: str, tmp_path: Path) -> None:
    need(name)
    script = {"steps": [{"shell": "date >> log.txt"}]}
    with ModelServer(script) as server:
        limits = "[limits]\nstrikes = 1\nturns = 3\n"
        project = play(name, tmp_path, server, limits)
        project.task("Make it")
        done = project.run()
        assert done.returncode == 1, done.stdout + done.stderr
        (attempt,) = project.attempts("make-it")
        assert (attempt["outcome"], attempt["strike"]) == ("over_limit", True), attempt
        assert len(server.requests()) < 12


@pytest.mark.parametrize("name", ["claude", "codex", "gemini", "opencode", "qwen", "copilot"])
def test_after_a_stop_its_own_session_goes_on(name: str, tmp_path: Path) -> None:
    need(name)
    stop = f"{sys.executable} -m swarm -C {tmp_path}/app stop --now make-it"
    first = f"printf one > one.txt; git add one.txt; git commit -qm one; {stop}; sleep 60"
    second = "printf two > two.txt; git add two.txt; git commit -qm two"
    script = {
        "steps": [
            {"shell": f"test $SWARM_ATTEMPT = 1 || exit 0; {first}"},
            {"shell": second},
            {"text": "done"},
        ],
        "usage": {"input": 1200, "cached": 200, "output": 50},
    }
    with ModelServer(script) as server:
        project = play(name, tmp_path, server)
        project.task("Make it", "A body that is told once.")
        stopped = project.run()
        assert stopped.returncode == 1, stopped.stdout + stopped.stderr
        assert project.swarm("task", "reopen", "make-it").returncode == 0
        done = project.run()
        assert done.returncode == 0, done.stdout + done.stderr
        before, after = project.attempts("make-it")
        assert before["outcome"] == "stopped"
        assert after["usage"]["session"] == before["usage"]["session"] is not None
        assert project.landed("one.txt") == "one"
        assert "Go on with your task: Make it" in server.requests()[-1].prompt


def test_a_mixed_team_of_real_programs_lands_everything(tmp_path: Path) -> None:
    need("claude", "codex")
    with ModelServer() as server:
        project = Project(tmp_path, server, ("claude", "codex"))
        for number in range(6):
            steps = json.dumps(edit(f"f{number}.txt", str(number)))
            project.task(f"Task {number}", f"[[PLAY {steps}]]")
        done = project.run("--agents", "claude:2,codex:2")
        assert done.returncode == 0, done.stdout + done.stderr
        for number in range(6):
            assert project.landed(f"f{number}.txt") == str(number)
        costs = json.loads(project.swarm("costs", "--json").stdout)
        assert {one["name"] for one in costs["adapters"]} <= {"claude", "codex"}
        assert costs["total"]["attempts"] == 6


@needs_bwrap
@pytest.mark.parametrize("name", ["claude", "codex", "gemini"])
def test_confined_it_lands_and_sees_no_more_than_its_slot(name: str, tmp_path: Path) -> None:
    need(name)
    look = f"cat {tmp_path}/home/secret > seen.txt; ls {tmp_path}/app > app.txt; true"
    made = edit("made.txt", "hello", "all")["steps"]
    made[0]["shell"] = made[0]["shell"].replace("git add made.txt", "git add -A")
    script = {"steps": [{"shell": look}, *made]}
    settings = f'[run]\nsandbox = "bwrap"\nvisible = ["{CACHE}"]\n'
    with ModelServer(script) as server:
        project = play(name, tmp_path, server, settings)
        (tmp_path / "home/secret").write_text("a secret")
        project.task("Make it")
        done = project.run()
        assert done.returncode == 0, done.stdout + done.stderr
        assert "sandbox bwrap" in done.stdout
        assert project.landed("made.txt") == "hello"
        assert project.landed("seen.txt") == "", "another file of HOME is not there"
        assert "README.md" not in project.landed("app.txt"), "nor is the checkout"
