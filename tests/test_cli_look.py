"""The verbs that look: status, claims, queue, show, log, tail, diff, task list.

Enters: worlds, words as typed. Leaves: what is printed, and the exit code.
Guards: looking changes nothing; JSON has the documented keys; terminals get no control characters.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from swarm import adapter as adapters
from swarm.claim import Ending, release
from swarm.cli import boundary
from swarm.cli.look import list_tasks, parse_since
from swarm.errors import UsageError
from tests.test_overview import a_busy_world, begin_run, put
from tests.world import World, git


class Typed:
    """The command line, typed in the world's checkout."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> str:
        """Standard output of a command that ends with `code`."""
        self._capsys.readouterr()
        assert boundary.run(words) == code, self._capsys.readouterr()
        self.out, self.err = self._capsys.readouterr()
        return self.out

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))


@pytest.fixture
def swarm(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typed:
    monkeypatch.chdir(world.app)
    return Typed(capsys)


def start(world: World, *words: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "swarm", *words],
        cwd=world.app,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
    )


# Status


def test_status_always_ends_with_0(world: World, swarm: Typed) -> None:
    assert "judges it; 0 landed, 0 ready" in swarm("status")
    a_busy_world(world)
    assert "needs you" in swarm("status")
    put(world, "gate.json", b"{")
    assert "damaged" in swarm("status")


def test_S2_text_and_json_of_status_say_the_same(world: World, swarm: Typed) -> None:
    a_busy_world(world)
    found, text = swarm.json("status"), swarm("status")
    assert found["schema"] == "swarm.status/1"
    for need in found["needs_you"]:
        assert need["task"] in text and all(do in text for do in need["do"])
    counts = found["counts"]
    for name in ("queued", "ready", "waiting", "landed", "held", "parked", "blocked"):
        assert re.search(rf"\b{name} {counts[name]}\b", text), name
    assert f"main {found['target']['oid'][:7]}" in text
    assert f"ledger {found['ledger']['oid'][:7]}" in text
    shown = sum(counts[k] for k in ("open", "claimed", "queued", "held", "parked", "blocked"))
    assert shown + counts["landed"] + counts["cancelled"] + counts["damaged"] == counts["total"]


def test_looking_writes_nothing_to_the_hub_and_nothing_to_the_checkout(
    world: World, swarm: Typed
) -> None:
    a_busy_world(world)
    before = (world.hub.refs_below("refs"), git(world.app, "status", "--porcelain"))
    for words in (["status"], ["claims"], ["queue"], ["log"], ["show", "held-one"],
                  ["diff", "held-one"]):  # fmt: skip
        swarm(*words)
    assert (world.hub.refs_below("refs"), git(world.app, "status", "--porcelain")) == before


# Lists


def test_claims_and_queue_have_the_documented_schemas(world: World, swarm: Typed) -> None:
    a_busy_world(world)
    claims = swarm.json("claims")
    assert claims["schema"] == "swarm.claims/1"
    lock = {"task", "token", "nonce", "agent", "adapter", "role", "slot", "run", "runner", "host",
            "pid", "boot_id", "claimed_at", "claimed_monotonic_seconds", "lease_seconds", "base",
            "start", "merge", "format"}  # fmt: skip
    assert lock | {"beat_age_seconds", "state"} <= set(claims["claims"][0])
    queue = swarm.json("queue")
    assert queue["schema"] == "swarm.queue/1"
    entry = {"task", "token", "nonce", "lock", "work", "base", "start", "head", "commits", "files",
             "insertions", "deletions", "left_by_agent", "priority", "since", "sealed_at", "hold",
             "format"}  # fmt: skip
    assert entry | {"position", "state"} <= set(queue["changes"][0])
    assert [change["state"] for change in queue["changes"]] == ["waiting", "held"]


def test_task_list_can_be_narrowed_to_a_state(
    world: World, swarm: Typed, capsys: pytest.CaptureFixture[str]
) -> None:
    a_busy_world(world)
    capsys.readouterr()
    list_tasks.main(["--state", "blocked", "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "swarm.tasks/1"
    assert [task["id"] for task in found["tasks"]] == ["blocked-one", "blocked-too"]
    assert set(found["tasks"][0]) == {
        "id", "title", "state", "why", "priority", "role", "paths", "needs", "unmet", "token",
        "strikes", "agent",
    }  # fmt: skip


# Show


def test_show_has_the_documented_schema(world: World, swarm: Typed) -> None:
    world.land("One", "a.txt", "a\n")
    found = swarm.json("show", "one")
    assert found["schema"] == "swarm.show/1"
    assert {"task", "title", "state", "needs", "paths", "checks", "landed", "attempts",
            "events"} <= set(found)  # fmt: skip
    attempt = found["attempts"][0]
    assert {"token", "agent", "slot", "outcome", "head", "commits", "checks", "strike",
            "usage"} <= set(attempt)  # fmt: skip
    assert attempt["usage"] is None, "no agent was started"
    assert all(event["schema"] == "swarm.event/1" for event in found["events"])


@pytest.mark.parametrize("verb", [["show"], ["diff"], ["tail"], ["log", "--task"]])
def test_an_unknown_task_is_refused_with_the_nearest_name(
    world: World, swarm: Typed, verb: Sequence[str]
) -> None:
    world.add("Report totals")
    swarm(*verb, "report-total", code=2)
    assert "there is no task report-total" in swarm.err
    assert "hint: did you mean report-totals?" in swarm.err


def test_titles_and_questions_of_others_never_become_escape_sequences(
    world: World, swarm: Typed
) -> None:
    world.add("T", body="x")
    task = world.ledger.view().task("t")
    assert task is not None
    agent = world.agent("t")
    evil = "\x1b]0;owned\x07\x1b[31m\u202e\x9b2J why"
    release(world.ledger, agent.mine, Ending("asked", evil), world.bounds)
    for words in (["status"], ["log"], ["show", "t"]):
        said = swarm(*words)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", said)
        assert "why" in said
        said = swarm(*words, "--json")
        assert said.isascii()


# Log


def test_log_is_newest_first_and_hides_bookkeeping_until_asked(world: World, swarm: Typed) -> None:
    world.land("One", "a.txt", "a\n")
    lines = swarm("log").splitlines()
    words = [line.split()[1] for line in lines if re.match(r"\d\d:\d\d:\d\d", line)]
    assert words == ["landed", "sealed", "claimed", "added"]
    assert lines[0] == "2026-01-02", "another day than today is said"
    assert re.fullmatch(r"4 events, newest first; ledger [0-9a-f]{7}", lines[-1])
    kinds = [json.loads(line)["event"] for line in swarm("log", "--all", "--json").splitlines()]
    assert kinds == world.events()[::-1]


def test_log_can_be_narrowed(world: World, swarm: Typed) -> None:
    a_busy_world(world)
    of_task = [json.loads(line) for line in swarm("log", "--task", "held-one", "--json").split("\n")
               if line]  # fmt: skip
    assert [event["event"] for event in of_task] == ["sealed", "claimed", "added"]
    agent = of_task[0]["agent"]
    of_agent = swarm("log", "--agent", agent, "--json").splitlines()
    assert [json.loads(line)["event"] for line in of_agent] == ["sealed", "claimed"]
    assert len(swarm("log", "--agent", "s1", "--json").splitlines()) > 2
    assert len(swarm("log", "-n", "2", "--json").splitlines()) == 2
    assert "there are more: -n" in swarm("log", "-n", "2")
    assert swarm("log", "--since", "5m").startswith("0 events")
    assert len(swarm("log", "--since", "2026-01-01", "--json").splitlines()) > 10


NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("10:30", NOON.replace(hour=10, minute=30)),
        ("10:30:05", NOON.replace(hour=10, minute=30, second=5)),
        ("13:00", NOON.replace(hour=13) - timedelta(days=1)),
        ("5m", NOON - timedelta(minutes=5)),
        ("1h30m", NOON - timedelta(minutes=90)),
        ("2026-11-29T08:00:00+00:00", NOON.replace(day=29, hour=8)),
        ("2026-11-29T08:00:00Z", NOON.replace(day=29, hour=8)),
    ],
)
def test_since_is_a_time_of_day_a_span_or_a_date(text: str, at: datetime) -> None:
    assert parse_since(text, NOON) == at


@pytest.mark.parametrize("text", ["", "yesterday", "25:00", "5", "10:99", "99999999999h", "\x1b["])
def test_any_other_since_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_since(text, NOON)


def test_follow_goes_on_with_what_happens_oldest_first(world: World) -> None:
    world.add("One")
    world.add("Two")
    child = start(world, "log", "--follow", "--json")
    assert child.stdout is not None
    try:
        first = [json.loads(child.stdout.readline())["task"] for _ in range(2)]
        assert first == ["one", "two"]
        world.add("Three")
        assert json.loads(child.stdout.readline())["task"] == "three"
    finally:
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=30)
    assert child.returncode == 130


# Tail


def transcript(world: World, task: str, token: int, data: bytes, stderr: bytes = b"") -> Path:
    folder = world.layout.attempt("r1", task, token)
    folder.mkdir(parents=True)
    (folder / "transcript.jsonl").write_bytes(data)
    (folder / "stderr.log").write_bytes(stderr)
    return folder


def test_tail_shows_the_last_lines_without_control_characters(world: World, swarm: Typed) -> None:
    world.add("One")
    said = b"".join(b"line %d\n" % n for n in range(50)) + b"  \x1b[31mred\x1b[0m\tx\r"
    transcript(world, "one", 1, said, b"\x9bboom\n")
    lines = swarm("tail", "one", "-n", "2").splitlines()
    assert lines == ["line 49", "  red\tx", "! \ufffdboom"]
    assert "one attempt 1" in swarm.err
    found = [json.loads(line) for line in swarm("tail", "one", "-n", "1", "--json").splitlines()]
    assert [(f["schema"], f["stream"], f["token"]) for f in found] == [
        ("swarm.tail/1", "transcript", 1),
        ("swarm.tail/1", "stderr", 1),
    ]


def test_tail_tells_an_agents_json_in_words(world: World, swarm: Typed) -> None:
    world.add("One")
    stream = (
        '{"type": "system", "subtype": "init", "session_id": "934c"}\n'
        '{"type": "assistant", "message": {"content": [{"text": "Two\\nlines"}]}}\n'
        "a warning that is no JSON\n"
        '{"type": "assistant", "message": {"content": [{"name": "Bash\\u001b[31m"}]}}\n'
        '{"type": "user", "message": {}}\n'
    )
    loop = world.loop(f"printf '%s' '{stream}'; exit 1", adapter=adapters.load("claude", None))
    loop.seat = replace(loop.seat, adapter=structs.replace(loop.seat.adapter, program=None))
    loop.seat = replace(loop.seat, adapter=structs.replace(loop.seat.adapter, argv=()))
    world.work_loop(loop)
    told = swarm("tail", "one").splitlines()
    assert told[:4] == [
        "started  934c",
        "message  Two",
        "         lines",
        "a warning that is no JSON",
    ]
    assert told[4].startswith("tool     Bash") and "\x1b" not in told[4] and len(told) == 5
    assert swarm("tail", "one", "--raw").splitlines()[0].startswith('{"type": "system"')


def test_tail_shows_the_last_attempt_or_the_named_one(world: World, swarm: Typed) -> None:
    world.add("One")
    for token in (2, 10):
        transcript(world, "one", token, b"attempt %d\n" % token)
    assert swarm("tail", "one") == "attempt 10\n"
    assert swarm("tail", "one", "--attempt", "2") == "attempt 2\n"
    swarm("tail", "one", "--attempt", "3", code=2)
    assert "no attempt 3 of one on this disk" in swarm.err


def test_tail_follows_until_the_attempt_ends(world: World) -> None:
    world.add("One")
    agent = world.agent("one")
    folder = transcript(world, "one", 1, b"first\nhalf")
    child = start(world, "tail", "one", "-f")
    assert child.stdout is not None
    assert child.stdout.readline() == b"first\n"
    with (folder / "transcript.jsonl").open("ab") as file:
        file.write(b" a line\nand the rest")
    assert child.stdout.readline() == b"half a line\n"
    agent.end()
    out, err = child.communicate(timeout=30)
    assert (out, child.returncode) == (b"and the rest\n", 0), err


# Diff


def test_diff_into_a_pipe_is_a_patch_that_git_applies(world: World, swarm: Typed) -> None:
    world.add("One")
    world.agent("one").write("odd.txt", "\x1b[31m red \n").commit().seal()
    done = start(world, "diff", "one")
    patch, err = done.communicate(timeout=30)
    assert done.returncode == 0
    assert b"one   queued" in err and b"1 file +1 -0" in err
    subprocess.run(["git", "apply"], cwd=world.app, input=patch, check=True)
    assert (world.app / "odd.txt").read_text() == "\x1b[31m red \n"
    assert " odd.txt | 1 +" in swarm("diff", "one", "--stat")
    found = swarm.json("diff", "one")
    assert (found["schema"], found["what"], found["paths"]) == ("swarm.diff/1", "queued",
                                                                ["odd.txt"])  # fmt: skip


def test_diff_on_a_terminal_holds_no_escape_sequence_but_our_colours(world: World) -> None:
    world.add("One")
    world.agent("one").write("odd.txt", "\x1b]0;owned\x07 red \u202e\n").commit().seal()
    ours, theirs = os.openpty()
    child = start(world, "diff", "one", stdout=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:  # Linux: the other end is closed
            break
        if not data:
            break
        shown += data
    os.close(ours)
    child.communicate(timeout=30)
    text = shown.decode()
    assert "\x1b[32m+ red " in text, "added lines are green"
    assert "owned" not in text and "\u202e" not in text
    assert set(re.findall(r"\x1b.{1,3}m?", text)) <= {
        "\x1b[32m", "\x1b[31m", "\x1b[36m", "\x1b[1m", "\x1b[0m",
    }  # fmt: skip


def test_diff_of_a_task_without_any_work_is_a_no(world: World, swarm: Typed) -> None:
    world.add("One")
    assert swarm("diff", "one", code=1) == "one: nothing of it is saved yet\n"


def test_a_run_that_goes_on_is_in_the_first_line(world: World, swarm: Typed) -> None:
    begin_run(world, "r8")
    assert "run r8 pid 52077" in swarm("status").splitlines()[0]


def test_an_id_is_never_cut_and_stands_in_every_list(world: World, swarm: Typed) -> None:
    name = "gh-12-a-very-long-name-of-an-issue-that-somebody-wrote-in-haste"
    world.add(name, priority=3)
    other = world.add("short")
    world.agent(name)
    for words in (("task", "list"), ("claims",), ("status",)):
        said = swarm(*words)
        assert name in said, words
        assert all(len(line) <= 100 for line in said.splitlines())
    assert other in swarm("task", "list")


def test_an_unknown_state_agent_or_task_is_an_error_with_the_known_ones(
    world: World, swarm: Typed
) -> None:
    world.add("one")
    world.agent("one")
    swarm("task", "list", "--state", "foo", code=2)
    assert "'ready'" in swarm.err and "'damaged'" in swarm.err
    swarm("task", "list", "--state", "open", code=2)
    swarm("log", "--agent", "nosuch", code=2)
    assert "no event names an agent or slot nosuch" in swarm.err and "known: s1 " in swarm.err
    swarm("log", "--agent", "s10", code=2)
    assert "did you mean s1?" in swarm.err
    assert "claimed" in swarm("log", "--agent", "s1")
    assert "0 events" in swarm("log", "--agent", "s1", "--since", "0s")
    assert swarm("log", "--agent", "s1", "--task", "one")


def test_every_state_of_a_list_can_be_asked_for(world: World, swarm: Typed) -> None:
    a_busy_world(world)
    shown = {task["state"] for task in swarm.json("task", "list")["tasks"]}
    for state in shown:
        asked = swarm.json("task", "list", "--state", state)["tasks"]
        assert asked and all(task["state"] == state for task in asked)
