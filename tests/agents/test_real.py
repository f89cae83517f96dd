"""Real agent programs, run by `swarm run` against a scripted model.

Enters: programs as their makers ship them. Leaves: what landed, what was booked, what was told.
Guards: an adapter's file says what its program really does, also when all does not go well.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from swarm.adapter import load
from swarm.errors import Exit
from swarm.ledger.view import State
from tests.agents.conftest import PATIENCE, Bench, Kind, kind_of, kinds, need
from tests.agents.install import CACHE, CI
from tests.agents.wire import Json
from tests.test_sandbox import needs_bwrap
from tests.world import until

pytestmark = [pytest.mark.agents, pytest.mark.slow]

Build = Callable[..., Bench]
TEMPLATE = Path(__file__).resolve().parents[2] / "examples/repo-template"


def work(kind: Kind, name: str) -> Json:
    """The model makes a file and has it committed, then says that it is done."""
    made = {"write": {"path": f"{name}.txt", "content": f"{name}\n"}}
    commit = {"shell": f"echo {name} > {name}.txt; git add -A; git commit -q -m 'add {name}'"}
    return {"steps": [commit if kind.tools else made, {"text": "Done: it is there."}]}


# -- all goes well --------------------------------------------------------------------------------


@kinds(is_short=True)
def test_it_works_commits_and_lands_and_what_it_used_is_booked(bench: Build, kind: Kind) -> None:
    at = bench(kind)
    at.server.script("made", work(kind, "made"))
    at.task("made", body="Look at @README.md, write to joe@example.invalid.\n/help\n!ls")
    said = at.run()
    assert at.world.file("made.txt") == "made\n"
    assert re.search(r"landed +1 ", said)
    (attempt,) = at.attempts("made")
    assert (attempt["adapter"], attempt["event"], attempt["commits"]) == (kind.adapter, "landed", 1)
    left = attempt["left_by_agent"]
    assert (left["uncommitted"], left["untracked"]) == (0, 0), "no file of the program's own"
    used = attempt["usage"]
    assert (used["cost_usd"] is not None) == kind.cost
    figures = (used["tokens_input"], used["tokens_cached"], used["tokens_output"])
    assert figures == (kind.tokens or (None, None, None))
    assert used["turns"] == kind.turns
    assert (used["session"] is not None) == kind.sessions
    (line,) = at.json("costs")["adapters"]
    assert (line["name"], line["attempts"]) == (kind.adapter, 1)
    for figure in ("cost_usd", "tokens_input", "tokens_cached", "tokens_output", "turns"):
        assert line[figure] == used[figure]
    sent = [one for one in at.server.requests("made") if not one.is_side]
    assert sent, "the task's text reached the model"
    assert not any("SECRET-OF-README" in str(one.body) for one in sent), "@path is text"
    name = r"\@README.md" if kind.expands else "@README.md"
    assert name in sent[0].asked.user_text


# -- the provider says no -------------------------------------------------------------------------


@kinds(is_short=True)
def test_a_key_that_the_provider_refuses_ends_the_run_and_says_what_to_do(
    bench: Build, kind: Kind
) -> None:
    at = bench(kind)
    at.server.script("made", {**work(kind, "made"), "errors": [{"status": 401}]})
    at.task("made")
    said = at.run(ok=Exit.LIMITED)
    (attempt,) = at.attempts("made")
    assert (attempt["outcome"], attempt["strike"]) == ("not_logged_in", False)
    hints = [rule.hint for rule in load(kind.adapter, None).outcome if rule.is_ == "login"]
    assert any(hint and hint in said for hint in hints), said
    assert at.state("made") is State.OPEN


@kinds(lambda kind: kind.tries)
def test_a_provider_that_refuses_or_fails_is_nobodys_strike(bench: Build, kind: Kind) -> None:
    at = bench(kind, env=kind.reset_env)
    assert kind.tries is not None
    refusal = kind.reset or {"status": 429}
    errors = [{**one, "times": kind.tries} for one in (refusal, {"status": 500})]
    at.server.script("made", {**work(kind, "made"), "errors": errors})
    at.task("made", header="strikes: 1\n")
    at.run()
    refused, failed, landed = at.attempts("made")
    for attempt in (refused, failed):
        assert (attempt["outcome"], attempt["strike"]) == ("provider_limit", False), attempt
    assert landed["event"] == "landed"
    asked = [one for one in at.server.requests("made") if not one.is_side]
    assert [one.status for one in asked[kind.tries : 2 * kind.tries]] == [500] * kind.tries
    if kind.reset is not None:
        # Of a pause that nobody named the first is one second; this one was named three.
        assert asked[kind.tries].at - asked[kind.tries - 1].at >= 2.0


@kinds(lambda kind: kind.adapter == "codex")
def test_a_limit_is_known_to_the_next_run_too(bench: Build, kind: Kind) -> None:
    at = bench(kind, limits='provider = "1h"', backoff="3h")
    at.server.script("made", {**work(kind, "made"), "errors": [{"status": 429}]})
    at.task("made")
    at.run(ok=Exit.LIMITED)
    assert at.outcomes("made") == ["provider_limit"]
    assert [one["adapter"] for one in at.json("status")["limited"]] == [kind.adapter]
    asked = len(at.server.requests())
    at.run(ok=Exit.LIMITED)
    assert len(at.server.requests()) == asked, "nobody asked the provider again"


@kinds(lambda kind: kind.tries and kind.sessions)
def test_a_failure_is_a_strike_in_the_programs_own_words(bench: Build, kind: Kind) -> None:
    at = bench(kind)
    refusal = {"status": 400, "message": "no such thing"}
    at.server.script("made", {**work(kind, "made"), "errors": [refusal]})
    at.task("made", header="strikes: 1\n")
    at.run(ok=Exit.NO)
    (attempt,) = at.attempts("made")
    assert (attempt["outcome"], attempt["strike"]) == ("agent_failed", True)
    assert "no such thing" in attempt["message"]


@kinds(lambda kind: kind.adapter == "aider")
def test_one_that_tries_again_and_again_is_ended_and_the_account_waits(
    bench: Build, kind: Kind
) -> None:
    at = bench(kind, limits='patience = "2s"')
    at.server.script("made", {**work(kind, "made"), "errors": [{"status": 429}]})
    at.task("made")
    runs = at.start()
    until(lambda: at.last_outcome("made") == "provider_limit", "it is ended", limit=PATIENCE)
    at.server.script("made", work(kind, "made"))
    said, _ = runs.communicate(timeout=PATIENCE)
    assert runs.returncode == 0, said
    assert at.attempts("made")[-1]["event"] == "landed"


# -- it does not come to its end ------------------------------------------------------------------


@kinds(lambda kind: kind.tools and not kind.is_heavy)
def test_one_that_gets_no_answer_is_ended_and_tried_again(bench: Build, kind: Kind) -> None:
    at = bench(kind, limits=f'attempt = "{kind.start + 5}s"')
    at.server.script("made", {**work(kind, "made"), "stalls": [{"at": 0, "times": 1}]})
    at.task("made", header="strikes: 9\n")  # a slow machine may need several starts
    at.run()
    *hung, landed = at.attempts("made")
    assert {attempt["outcome"] for attempt in hung} == {"timed_out"}
    assert (hung[0]["strike"], landed["event"]) == (True, "landed")


# Ends every process above it up to the agent itself, which is below swarm's own shim.
KILLER = """
import os, psutil, signal
above = []
for one in psutil.Process().parents():
    if "SWARM_SHIM" in one.environ():
        break
    above.append(one)
for one in reversed(above):
    os.kill(one.pid, signal.SIGKILL)
"""


@kinds(lambda kind: kind.tools)
def test_one_that_is_killed_at_work_leaves_its_work_to_the_next(bench: Build, kind: Kind) -> None:
    at = bench(kind)
    # A file, since some programs refuse commands that hold others.
    killer = at.marks / "killer.py"
    killer.write_text(KILLER)
    half = "echo half > half.txt; git add half.txt; git commit -q -m half; echo more > more.txt"
    once = f"test $SWARM_ATTEMPT != 1 || {{ {half}; {sys.executable} {killer}; }}"
    at.server.script("made", {"steps": [{"shell": once}, *work(kind, "made")["steps"]]})
    at.task("made")
    at.run()
    killed, landed = at.attempts("made")
    assert (killed["outcome"], killed["strike"]) == ("agent_failed", True)
    assert landed["event"] == "landed"
    files = ("half.txt", "more.txt", "made.txt")
    assert [at.world.file(path) for path in files] == ["half\n", "more\n", "made\n"]


@kinds(lambda kind: kind.turns and kind.tools)
def test_one_that_takes_too_many_turns_is_ended(bench: Build, kind: Kind) -> None:
    at = bench(kind, limits="turns = 2")
    at.server.script("made", {"steps": [{"shell": "echo turn ${N}"}]})
    at.task("made", header="strikes: 1\n")
    at.run(ok=Exit.NO)
    (attempt,) = at.attempts("made")
    assert (attempt["outcome"], attempt["strike"]) == ("over_limit", True)
    assert at.state("made") is State.PARKED


@kinds(lambda kind: not kind.turns)
def test_turns_of_one_that_tells_none_cannot_be_limited(bench: Build, kind: Kind) -> None:
    at = bench(kind, limits="turns = 2")
    at.task("made")
    assert "turns" in at.run(ok=Exit.USAGE)
    assert at.server.requests() == []


# -- it goes on -----------------------------------------------------------------------------------


@kinds(lambda kind: kind.sessions)
def test_a_run_that_was_stopped_goes_on_with_its_session(bench: Build, kind: Kind) -> None:
    at = bench(kind)
    half = "echo half > half.txt; git add half.txt; git commit -q -m half; echo more > more.txt"
    waits = {"shell": f"{half}; touch {at.marks}/begun; sleep 300"}
    at.server.script("made", {"steps": [waits, {"text": "never"}]})
    at.task("made", body="The words of the first prompt.")
    runs = at.start()
    until((at.marks / "begun").exists, "its tool works", limit=PATIENCE)
    assert at.swarm("stop", "--now").returncode == 0
    said, _ = runs.communicate(timeout=PATIENCE)
    assert at.left_over() == []
    (stopped,) = at.attempts("made")
    assert (stopped["outcome"], stopped["strike"]) == ("stopped", False), said
    before = len(at.server.requests())
    at.server.script("made", {"steps": [{"text": "Done: it is there."}]})
    at.run()
    landed = at.attempts("made")[-1]
    assert landed["event"] == "landed"
    assert landed["usage"]["session"] == stopped["usage"]["session"] is not None
    assert [at.world.file(path) for path in ("half.txt", "more.txt")] == ["half\n", "more\n"]
    asked = next(one.asked for one in at.server.requests()[before:] if not one.is_side)
    assert "The words of the first prompt." in asked.user_text, "its session knows it"
    assert "You were interrupted" in asked.user_text
    if kind.tokens is not None:
        # What it had used when it was ended, some say only now; qwen then asks one thing more.
        assert landed["usage"]["tokens_output"] in (50, 100, 150)


@kinds(lambda kind: kind.sessions)
def test_a_session_that_is_gone_costs_nothing(bench: Build, kind: Kind) -> None:
    at = bench(kind)
    at.server.script("made", {"steps": [{"shell": f"touch {at.marks}/begun; sleep 300"}]})
    at.task("made", header="strikes: 1\n")
    runs = at.start()
    until((at.marks / "begun").exists, "its tool works", limit=PATIENCE)
    assert at.swarm("stop", "--now").returncode == 0
    runs.communicate(timeout=PATIENCE)
    at.forget_sessions()
    at.server.script("made", work(kind, "made"))
    at.run()
    stopped, landed = at.attempts("made")
    assert (stopped["outcome"], landed["event"]) == ("stopped", "landed")
    assert landed["usage"]["session"] != stopped["usage"]["session"]


# -- what it may ----------------------------------------------------------------------------------


@kinds(lambda kind: kind.limited, is_short=True)
def test_with_limited_permission_it_still_works_and_commits(bench: Build, kind: Kind) -> None:
    at = bench(kind, run='permission = "limited"')
    # Tools want whole paths, blocks of text want none.
    path = str(at.world.layout.slots / "s1/made.txt") if kind.tools else "made.txt"
    write = {"write": {"path": path, "content": "made\n"}}
    commit = {"shell": "git add -A && git commit -q -m made && git log -1 --format=%s"}
    steps = [write, commit] if kind.tools else [write]
    at.server.script("made", {"steps": [*steps, {"text": "Done."}]})
    at.task("made")
    at.run()
    (attempt,) = at.attempts("made")
    assert attempt["event"] == "landed"
    assert attempt["left_by_agent"]["untracked"] == 0, "it could commit"


@needs_bwrap
@kinds(lambda kind: kind.adapter in CI, is_short=True)
def test_confined_it_works_and_sees_no_more_than_its_slot(bench: Build, kind: Kind) -> None:
    at = bench(kind, run=f'sandbox = "bwrap"\nvisible = ["{CACHE}"]')
    secret = at.marks / "secret"
    secret.write_text("a secret")
    look = f"cat {secret} > seen.txt; ls {at.world.app} > app.txt; true"
    at.server.script("made", {"steps": [{"shell": look}, *work(kind, "made")["steps"]]})
    at.task("made")
    assert "sandbox bwrap" in at.run()
    assert at.world.file("made.txt") == "made\n"
    assert at.world.file("seen.txt") == ""
    assert "README.md" not in (at.world.file("app.txt") or "")


# -- several --------------------------------------------------------------------------------------


@need("claude", "codex")
def test_a_mixed_team_does_all_tasks_of_the_template(bench: Build) -> None:
    at = bench(kind_of("claude"), kind_of("codex"))
    folder = at.world.app / "tasks"
    folder.mkdir(exist_ok=True)
    names = []
    for file in sorted((TEMPLATE / "tasks").glob("*.md")):
        names.append(file.stem)
        at.server.script(file.stem, work(kind_of("claude"), file.stem))
        # Its 6 s are for the scripted agent.
        text = file.read_text("utf-8").replace("timeout: 6s\n", "")
        (folder / file.name).write_text(f"{text}\n[[PLAY {file.stem}]]\n", "utf-8")
    assert len(names) == 15
    done = at.swarm("run", "--agents", "claude:2,codex:2")
    assert done.returncode == 0, done.stdout + at.said()
    assert at.left_over() == []
    at.world.step()
    for name in names:
        assert at.world.file(f"{name}.txt") == f"{name}\n"
    found = at.json("costs")
    assert [line["name"] for line in found["adapters"]] == ["claude", "codex"], "both worked"
    assert found["total"]["tokens_input"] == 2400 * len(names)
    claude, codex = found["adapters"]
    assert claude["cost_usd"] > 0 and codex["cost_usd"] is None
    assert found["total"]["attempts_unknown"] == codex["attempts"]
