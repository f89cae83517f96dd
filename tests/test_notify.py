"""`[notify] command`: who is told what, how often, and what a bad command can do.

Enters: worlds in which something needs a person, commands that write down what they read. Leaves:
what was told. Guards: each line once, between all runners; the command is never a danger or a wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from swarm import files, notify, overview
from swarm import loop as loops
from swarm.claim import Ending, release
from swarm.errors import Exit, TargetRed
from swarm.gate import Gate
from swarm.ledger.clock import SystemClock
from swarm.ledger.view import State
from swarm.notify import Notified, Notifier, Tried
from swarm.overview import Need
from swarm.steer import pause, resume
from swarm.supervisor import Supervisor
from swarm.task import approve, reopen
from tests.world import SUITE, World, git, run_swarm, until

PATIENCE = 30.0
HEAR = "cat >>{told}"
HOSTILE = (
    "'\"; $(touch pwned) `touch pwned` \x1b]0;pwned\x07 \\ {task} %s\n--pwned\r\x00 \u202e\u2028é"
)

Make = Callable[..., World]


@pytest.fixture(autouse=True)
def _at_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a look takes on a loaded machine puts no other look off."""
    monkeypatch.setattr(notify, "LOOK_COST", 0)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Worlds with a command; `{told}` in it is the file that `told` reads."""
    made: list[World] = []

    def build(command: str = HEAR, config: str = "", **keys: Any) -> World:
        script = tmp_path / "tell.sh"
        script.write_text(command.replace("{told}", shlex.quote(str(tmp_path / "told"))) + "\n")
        words = f"sh {shlex.quote(str(script))}"
        made.append(World(tmp_path, config=f"[notify]\ncommand = '''{words}'''\n{config}", **keys))
        return made[-1]

    yield build
    for world in made:
        world.close()


def told(world: World) -> list[dict[str, Any]]:
    """What the command heard, each a line of its own."""
    path = world.folder / "told"
    lines = path.read_text("ascii").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def kinds(world: World) -> list[tuple[str, str | None]]:
    return [(one["kind"], one["task"]) for one in told(world)]


def notifier(world: World, said: list[str] | None = None) -> Notifier:
    """As a runner that starts now has one; `said` hears its warnings."""
    # Not the runner of the World's claims: sweeps of other worlds end what carries its mark.
    return Notifier(world.work, f"r1-{SUITE}", (said if said is not None else []).append)


def look(world: World, one: Notifier, seconds: float = 2.0) -> None:
    world.clock.pass_(seconds=seconds)
    one.look()


def needs(world: World) -> list[Need]:
    return overview.status(world.work).needs_you


def record(world: World) -> dict[str, Tried]:
    path = world.layout.notified
    return msgspec.json.decode(path.read_bytes(), type=Notified).notified if path.exists() else {}


def at_work() -> list[int]:
    """Living processes of a command of this very test: they carry its mark and its HOME."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            environ = one.environ()
            is_marked = ".notify." in environ.get("SWARM_MARK", "")
            if is_marked and environ.get("HOME") == os.environ["HOME"]:
                found.append(one.pid)
    return found


# What needs a person


def park(world: World, title: str = "Parked", message: str = "exit code 3") -> str:
    task = world.add(title, strikes=1)
    world.agent(task).write("x.txt", "x\n").commit().end("agent_failed", message)
    assert world.state(task) is State.PARKED
    return task


def ask(world: World, question: str = "Per seat or per invoice?") -> str:
    task = world.add("Asked")
    release(world.ledger, world.agent(task).mine, Ending("asked", question), world.bounds)
    return task


def hold(world: World) -> str:
    task = world.add("Held")
    world.agent(task).write("swarm.toml", "format = 1\n").commit().seal()
    assert world.state(task) is State.HELD
    return task


def stop_landing(world: World) -> None:
    assert pause(world.ledger, "lunch", "a person") is None


def redden(world: World) -> None:
    world.push("bad.txt", "RED\n")
    world.work_gate()


@pytest.mark.parametrize(
    ("kind", "arrange"),
    [("parked", park), ("asked", ask), ("held", hold), ("paused", stop_landing), ("red", redden)],
)
def test_S5_each_kind_is_told_once_as_status_has_it(
    make: Make, kind: str, arrange: Callable[[World], object]
) -> None:
    world = make()
    first = notifier(world)
    look(world, first)
    assert told(world) == [], "nothing needs anybody yet"
    arrange(world)
    look(world, first)
    (heard,) = told(world)
    (need,) = needs(world)
    assert need.kind == kind
    assert heard.pop("at") == world.clock.now().isoformat().replace("+00:00", "Z")
    assert heard == {
        "schema": "swarm.need/1",
        "repository": "app",
        "target": "main",
        "kind": kind,
        "task": need.task,
        "why": need.why,
        "do": need.do,
    }
    for _ in range(3):
        look(world, first, seconds=20)
    look(world, notifier(world))
    assert len(told(world)) == 1, "a restart does not tell it again"
    assert [(key, tried.tries) for key, tried in record(world).items()] == [(need.key, 1)]


def test_what_is_there_at_the_start_is_told_in_the_order_of_status(make: Make) -> None:
    world = make()
    hold(world)
    park(world)
    stop_landing(world)
    look(world, notifier(world))
    assert kinds(world) == [(need.kind, need.task) for need in needs(world)]
    assert len(told(world)) == 3


def test_what_vanished_and_came_back_is_new(make: Make) -> None:
    world = make()
    one = notifier(world)
    for _ in range(2):
        stop_landing(world)
        look(world, one)
        assert resume(world.ledger, "a person") is None
        look(world, one)
        assert record(world) == {}, "what vanished is forgotten"
    assert kinds(world) == [("paused", None)] * 2


def test_the_same_task_parked_again_is_new_also_when_nobody_looked_between(make: Make) -> None:
    world = make()
    one = notifier(world)
    task = park(world)
    look(world, one)
    reopen(world.ledger, task, "a person")
    world.clock.pass_(seconds=1)
    world.agent(task).write("y.txt", "y\n").commit().end("agent_failed", "exit code 3")
    assert world.state(task) is State.PARKED
    look(world, one)
    assert kinds(world) == [("parked", task)] * 2


def test_a_line_whose_count_or_age_changes_is_one_line(make: Make) -> None:
    world = make()
    one = notifier(world)
    for number in range(2):
        task = world.add(f"Waits {number}")
        world.agent(task, slot=f"s{number + 1}").write(f"w{number}.txt", "w\n").commit().seal()
        look(world, one)
    assert needs(world)[0].why == "2 changes wait and no gate runs"
    assert [one["why"] for one in told(world)] == ["1 change waits and no gate runs"]


def test_held_for_one_more_reason_is_new_and_approved_is_gone(make: Make) -> None:
    world = make()
    one = notifier(world)
    task = hold(world)
    look(world, one)
    approve(world.ledger, task, "a person")
    look(world, one)
    assert kinds(world) == [("held", task), ("no gate", None)]
    assert list(record(world)) == ["no gate"]


# Several runners, and restarts

RUNNER = """
import sys, time
from pathlib import Path
from swarm.notify import Notifier
from swarm.workspace import opened
app, runner, folder = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
with opened(app) as work:
    one = Notifier(work, runner, print)
    (folder / runner).touch()
    while not (folder / "go").exists():
        time.sleep(0.005)
    one.last_look()
"""


def runners(world: World, count: int) -> list[subprocess.Popen[str]]:
    """Processes that look at the same moment."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RUNNER, str(world.app), f"{SUITE}-{number}", str(world.folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(count)
    ]
    until(lambda: all((world.folder / f"{SUITE}-{n}").exists() for n in range(count)), "all begin")
    (world.folder / "go").touch()
    return started


def test_runners_that_look_at_once_tell_once_between_them(make: Make) -> None:
    world = make("sleep 0.2; " + HEAR)
    tasks = [park(world, f"Parked {number}") for number in range(3)]
    said = [child.communicate(timeout=PATIENCE)[0] for child in runners(world, 4)]
    assert said == [""] * 4
    assert sorted(kinds(world)) == [("parked", task) for task in tasks]


def test_while_another_tells_a_look_does_not_wait(make: Make) -> None:
    world = make()
    park(world)
    one = notifier(world)
    with files.alone(world.layout.notified.with_suffix(".lock")):
        began = time.monotonic()
        look(world, one)
        assert time.monotonic() - began < 5
        assert told(world) == []
    look(world, one)
    assert len(told(world)) == 1


def test_a_runner_killed_while_it_tells_leaves_nothing_and_the_next_one_tells(make: Make) -> None:
    world = make('cd "$(dirname {told})"; test -e up || { touch on; sleep 300; }; cat >>told')
    park(world)
    (killed,) = runners(world, 1)
    until((world.folder / "on").exists, "the command works")
    killed.kill()
    killed.communicate(timeout=PATIENCE)
    until(lambda: at_work() == [], "it has ended")
    (world.folder / "up").touch()
    look(world, notifier(world))
    assert kinds(world) == [("parked", "parked")], "at least once: nobody recorded the first"


DAMAGE = [
    b"",
    b"{",
    b"[]",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"format": 2, "notified": {}}',
    b'{"notified": {"x": {"at": "2026-01-02T03:04:05", "tries": 1}}}',
    b'{"notified": {"x": {"at": "2026-01-02T03:04:05Z", "tries": 0, "failure": "x"}}}',
]


@pytest.mark.parametrize("data", DAMAGE, ids=range(len(DAMAGE)))
def test_a_damaged_record_is_no_record(make: Make, data: bytes) -> None:
    world = make()
    park(world)
    look(world, notifier(world))
    world.layout.notified.write_bytes(data)
    said: list[str] = []
    look(world, notifier(world, said))
    assert kinds(world) == [("parked", "parked")] * 2
    assert said == []
    look(world, notifier(world))
    assert len(told(world)) == 2, "and is sound again"


def test_a_record_that_cannot_be_written_is_kept_in_mind_and_said_once(make: Make) -> None:
    world = make()
    world.layout.notified.mkdir(parents=True)
    said: list[str] = []
    one = notifier(world, said)
    park(world)
    for _ in range(3):
        look(world, one, seconds=20)
    park(world, "Another")
    look(world, one)
    assert kinds(world) == [("parked", "parked"), ("parked", "another")]
    (line,) = said
    assert line.startswith("[notify] command: what was notified cannot be written down: ")
    assert [path.name for path in world.layout.runs.iterdir() if path.name.startswith(".")] == []


# A command that fails


def test_M24_a_failure_is_said_once_tried_three_times_and_given_up(make: Make) -> None:
    world = make("cat >>{told}; echo one; echo no route to host >&2; exit 7")
    said: list[str] = []
    one = notifier(world, said)
    task = park(world)
    for seconds, tries in ((2, 1), (10, 1), (10, 2), (40, 2), (30, 3), (3600, 3)):
        look(world, one, seconds)
        assert len(told(world)) == tries, (seconds, tries)
        if tries == 2:
            one = notifier(world, said)  # a restart in between starts no new count
            said.clear()
    assert said == [
        "[notify] command: failed, exit code 7: no route to host; a line is tried 3 times"
    ]
    (tried,) = record(world).values()
    assert (tried.tries, tried.failure) == (3, "exit code 7: no route to host")
    hold(world)
    look(world, one)
    assert kinds(world) == [("parked", task)] * 3 + [("held", "held")], "another line is tried"


def test_what_failed_once_and_then_went_well_is_told(make: Make) -> None:
    world = make('test -e "$(dirname {told})/up" || exit 1; ' + HEAR)
    one = notifier(world)
    task = park(world)
    look(world, one)
    (world.folder / "up").touch()
    look(world, one)
    assert told(world) == [], "not at once"
    look(world, one, seconds=15)
    assert kinds(world) == [("parked", task)]
    look(world, one, seconds=3600)
    assert len(told(world)) == 1


def test_the_last_look_waits_for_no_pause(make: Make) -> None:
    world = make('test -e "$(dirname {told})/up" || exit 1; ' + HEAR)
    one = notifier(world)
    park(world)
    look(world, one)
    (world.folder / "up").touch()
    one.last_look()
    assert told(world) == [], "but what was tried just now"
    world.clock.pass_(seconds=2)
    one.last_look()
    assert len(told(world)) == 1


def test_a_clock_that_was_set_back_ends_a_pause() -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    tried = Tried(at=now, tries=1, failure="x")
    assert tried.pause_left(now) == notify.PAUSES[0]
    assert tried.pause_left(now - timedelta(hours=1)) == 0
    assert tried.pause_left(now + timedelta(hours=1)) == 0


def test_one_that_hangs_is_ended_with_its_children(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "LIMIT", timedelta(seconds=1))
    world = make(
        "trap '' TERM; cd \"$(dirname {told})\"\n"
        "(trap '' TERM; setsid sleep 300) & sleep 300 & touch on; wait; sleep 300"
    )
    park(world)
    park(world, "Another")
    said: list[str] = []
    one = notifier(world, said)
    look(world, one)
    assert said == ["[notify] command: failed, no end within 1s; a line is tried 3 times"]
    assert (world.folder / "on").exists() and at_work() == []
    assert len(record(world)) == 1, "one time limit a look: whoever looks has other things to do"
    look(world, one, seconds=20)
    assert len(record(world)) == 1
    look(world, one, seconds=60)
    assert sum(tried.tries for tried in record(world).values()) == 2


def test_what_it_leaves_running_is_ended(make: Make) -> None:
    world = make("cat >>{told}; sleep 300 &")
    park(world)
    look(world, notifier(world))
    assert len(told(world)) == 1
    assert at_work() == []


@pytest.mark.parametrize("code", [0, 3])
def test_much_output_holds_nobody_up_and_is_dropped(make: Make, code: int) -> None:
    world = make(f"head -c 1000000 /dev/zero | tr '\\0' x; {HEAR}; exit {code}")
    park(world)
    said: list[str] = []
    look(world, notifier(world, said))
    assert len(told(world)) == 1
    assert all(len(line) < 300 for line in said) and len(said) == bool(code)


def test_one_that_reads_nothing_is_told_all_the_same(make: Make) -> None:
    world = make("exit 0")
    park(world, message="x" * 200_000)
    said: list[str] = []
    look(world, notifier(world, said))
    assert said == [] and len(record(world)) == 1


def test_one_that_cannot_be_started_is_a_failure(make: Make) -> None:
    world = make()
    park(world)
    said: list[str] = []
    one = notifier(world, said)
    world.app.rename(world.folder / "elsewhere")
    look(world, one)
    (world.folder / "elsewhere").rename(world.app)
    assert len(said) == 1 and "cannot start in" in said[0]
    look(world, one, seconds=15)
    assert len(told(world)) == 1


def test_a_hub_that_cannot_be_read_forgets_nothing(make: Make) -> None:
    world = make()
    park(world)
    said: list[str] = []
    one = notifier(world, said)
    look(world, one)
    hub = world.layout.hub
    world.hub.reader.close()
    hub.rename(hub.with_name("gone.git"))
    look(world, one, seconds=20)
    look(world, one, seconds=20)
    hub.with_name("gone.git").rename(hub)
    assert len(said) == 1, said
    look(world, one, seconds=20)
    assert len(told(world)) == 1 and len(record(world)) == 1


def test_a_run_that_ends_cuts_a_telling_short_and_it_counts_as_none(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make('test -e "$(dirname {told})/up" || sleep 300; ' + HEAR)
    park(world)
    one = notifier(world)
    monkeypatch.setattr(notify, "LIMIT", timedelta(seconds=0.5))
    one.hurry()
    monkeypatch.undo()
    began = time.monotonic()
    one.last_look()
    assert time.monotonic() - began < 20
    assert record(world) == {}
    (world.folder / "up").touch()
    look(world, notifier(world))
    assert len(told(world)) == 1


def test_slow_tellings_are_spread_over_looks(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "BUDGET_SECONDS", 0.4)
    world = make("sleep 0.5; " + HEAR)
    tasks = [park(world, f"Parked {number}") for number in range(3)]
    one = notifier(world)
    for number in range(1, 4):
        look(world, one)
        assert len(told(world)) == number
    assert sorted(kinds(world)) == [("parked", task) for task in tasks]


def test_what_a_run_that_is_over_leaves_is_told_by_the_last_look(make: Make) -> None:
    world = make()
    park(world)
    one = notifier(world)
    world.clock.pass_(seconds=2)
    one.look(lambda: True)
    assert told(world) == []
    one.last_look()
    assert len(told(world)) == 1


# What the command is given


def test_hostile_text_arrives_as_data_and_on_standard_input_alone(make: Make) -> None:
    world = make(
        'cd "$(dirname {told})"; cat >>told; env >environ\n'
        "tr '\\0' '\\n' </proc/$$/cmdline >words"
    )
    ask(world, HOSTILE)
    park(world, "Title " + HOSTILE.replace("\x00", ""), HOSTILE)
    look(world, notifier(world))
    assert [one["why"] for one in told(world)] == [need.why for need in needs(world)]
    raw = (world.folder / "told").read_bytes()
    assert raw.count(b"\n") == 2 and re.fullmatch(rb"[\n -~]*", raw), "one line each, plain ASCII"
    words = (world.folder / "words").read_text().split("\n")
    assert words[0].endswith("sh") and "pwned" not in "".join(words)
    assert "pwned" not in (world.folder / "environ").read_text()
    assert list(world.folder.rglob("pwned")) == []


def test_a_question_arrives_with_its_line_ends(make: Make) -> None:
    world = make()
    ask(world, "One?\n\nTwo?")
    look(world, notifier(world))
    assert told(world)[0]["why"] == needs(world)[0].why


def test_it_runs_in_the_checkout_with_the_persons_own_environment(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make('pwd >"$(dirname {told})/cwd"; env >"$(dirname {told})/environ"')
    park(world)
    monkeypatch.setenv("CHAT_URL", "https://chat.example.invalid/x")
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("SWARM_TASK", "outer")
    look(world, notifier(world))
    found = dict(
        line.split("=", 1)
        for line in (world.folder / "environ").read_text().splitlines()
        if "=" in line
    )
    assert (found["CHAT_URL"], found["DISPLAY"]) == ("https://chat.example.invalid/x", ":0")
    assert found["HOME"] == os.environ["HOME"] and found["PATH"] == os.environ["PATH"]
    assert [name for name in found if name.startswith("GIT_") or name == "PYTHONPATH"] == []
    assert [name for name in found if name.startswith("SWARM_")] == ["SWARM_MARK"]
    assert (world.folder / "cwd").read_text().strip() == str(world.app)


# When it looks


def test_an_idle_look_starts_no_program(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make()
    park(world)
    one = notifier(world)
    look(world, one)
    started: list[object] = []
    real = subprocess.Popen.__init__

    def spy(self: Any, *args: Any, **keys: Any) -> None:
        started.append(args)
        real(self, *args, **keys)

    monkeypatch.setattr(subprocess.Popen, "__init__", spy)
    for _ in range(20):
        look(world, one, seconds=20)
    assert started == [], "nothing moved, and nobody else is at work"
    world.live("r2-test")
    world.add("Worked on")
    world.acquire("worked-on", runner="r2-test")
    look(world, one)
    started.clear()
    look(world, one, seconds=10)
    assert started == [], "with others, too, time is asked only now and then"
    look(world, one, seconds=10)
    assert started != [], "but theirs may fall silent"


def test_looks_that_take_long_are_few_but_the_last_one_comes(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make()
    one = notifier(world)
    look(world, one)
    park(world)
    look(world, one, seconds=0.5)
    assert told(world) == [], "never twice in a second"
    monkeypatch.setattr(notify, "LOOK_COST", 1_000_000)
    look(world, one)
    assert len(told(world)) == 1
    hold(world)
    look(world, one, seconds=20)
    assert len(told(world)) == 1
    one.last_look()
    assert kinds(world) == [("parked", "parked"), ("held", "held")]


def test_what_comes_with_time_alone_is_told(make: Make) -> None:
    world = make()
    world.add("Orphan")
    alive = world.live("r2-test")
    world.acquire("orphan", runner="r2-test")
    one = notifier(world)
    look(world, one)
    alive.close()
    look(world, one, seconds=16)
    assert kinds(world) == [("gone", None)]


def test_without_a_command_nothing_is_done(tmp_path: Path) -> None:
    world = World(tmp_path)
    try:
        park(world)
        one = notifier(world)
        assert not one.is_on
        look(world, one)
        one.last_look()
        assert not list(world.layout.root.rglob("notified*"))
    finally:
        world.close()


# In a run


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "GAP_SECONDS", 0.0)
    monkeypatch.setattr(loops, "IDLE_SECONDS", 0.1)


def supervise(world: World, script: str) -> Supervisor:
    world.ledger.clock = SystemClock()
    setting = world.setting()
    return Supervisor(setting, Gate.of(world.work, setting.runner), (world.seat(script),))


def run(supervisor: Supervisor) -> tuple[Exit, set[str]]:
    """How it ended, and the names of the threads that lived on the way."""
    deadline = time.monotonic() + 60
    names: set[str] = set()

    def on_tick() -> None:
        names.update(thread.name for thread in threading.enumerate())
        if time.monotonic() > deadline:
            supervisor.stop_now()

    end = supervisor.run(on_tick)
    assert time.monotonic() < deadline, "it hung"
    assert "notify" not in {thread.name for thread in threading.enumerate()}
    return end.exit_code, names


@pytest.mark.usefixtures("_soon")
def test_a_run_tells_what_made_it_end_before_it_ends(make: Make) -> None:
    world = make()
    task = world.add("Lazy", strikes=1)
    supervisor = supervise(world, "exit 3")
    assert run(supervisor)[0] is Exit.NO
    assert kinds(world) == [("parked", task)]
    ended = [e.at for e in world.ledger.iter_log() if e.kind == "run-ended"]
    assert datetime.fromisoformat(told(world)[0]["at"]) <= ended[0] + timedelta(seconds=1)
    assert supervisor.faults == []
    world.step()


@pytest.mark.usefixtures("_soon")
def test_a_run_that_stops_for_a_log_in_says_so(make: Make) -> None:
    world = make()
    world.add("One")
    assert run(supervise(world, "exit 77"))[0] is Exit.LIMITED
    (heard,) = told(world)
    assert heard["kind"] == "stopped" and heard["why"].startswith("r1: ")


@pytest.mark.usefixtures("_soon")
def test_a_command_that_hangs_slows_no_run_and_its_end_only_by_the_limit(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "LIMIT", timedelta(seconds=2))
    world = make("sleep 300")
    park(world)
    for number in range(3):
        world.add(f"Task {number}")
    script = 'echo done > "$SWARM_TASK.txt"; git add -A; git commit -qm work'
    supervisor = supervise(world, script)
    assert run(supervisor)[0] is Exit.NO
    assert [world.state(f"task-{n}") for n in range(3)] == [State.LANDED] * 3
    assert list(supervisor.faults) == [
        "[notify] command: failed, no end within 2s; a line is tried 3 times"
    ]
    assert at_work() == []


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("is_on", [True, False])
def test_only_with_a_command_is_there_a_thread(tmp_path: Path, make: Make, is_on: bool) -> None:
    world = make() if is_on else World(tmp_path)
    try:
        world.add("Lazy", strikes=1)
        _, names = run(supervise(world, "exit 3"))
        assert ("notify" in names) == is_on
        assert bool(list(world.layout.root.rglob("notified*"))) == is_on
    finally:
        if not is_on:
            world.close()


def test_a_run_that_is_refused_for_a_red_target_tells_it(make: Make) -> None:
    world = make(files={"bad.txt": "RED\n"})
    supervisor = supervise(world, "exit 3")
    with pytest.raises(TargetRed):
        supervisor.judge_target()
    supervisor.gate.close()
    assert kinds(world) == [("red", None)]


# As typed


def typed(world: World) -> None:
    """What `swarm run` needs: the settings are committed, and an agent is at hand."""
    git(world.app, "add", "swarm.toml")
    git(world.app, "commit", "-q", "-m", "adopted")
    git(world.app, "push", "-q", "swarm", "main")
    folder = world.app / "tasks"
    folder.mkdir()
    (folder / "lazy.md").write_text("---\ntitle: Lazy\nstrikes: 1\n---\nDo it.\n")


def test_a_run_as_typed_tells_a_parked_task_once(make: Make) -> None:
    world = make()
    typed(world)
    for _ in range(2):
        done = run_swarm(world.app, "run", "-n", "1", "--", "/bin/sh", "-c", "exit 3")
        assert done.returncode == 1, done.stdout + done.stderr
        assert "warning" not in done.stdout and "notify" not in done.stdout
    (heard,) = told(world)
    assert (heard["kind"], heard["task"]) == ("parked", "lazy")
    assert heard["do"] == ["swarm show lazy", "swarm task reopen lazy"]


def test_a_run_as_typed_says_that_nobody_could_be_told(make: Make) -> None:
    world = make("echo no such chat >&2; exit 22")
    typed(world)
    (world.app / "tasks/other.md").write_text("---\ntitle: Other\nstrikes: 1\n---\nDo it.\n")
    done = run_swarm(world.app, "run", "-n", "2", "--", "/bin/sh", "-c", "exit 3")
    assert done.returncode == 1
    line = "warning   [notify] command: failed, exit code 22: no such chat; a line is tried 3 times"
    assert done.stdout.splitlines().count(line) == 1


def test_a_run_stopped_at_once_waits_for_no_command_that_hangs(make: Make) -> None:
    world = make("sleep 300")
    typed(world)
    park(world)
    started = subprocess.Popen(
        [sys.executable, "-m", "swarm", "run", "--keep-going", "--", "/bin/sh", "-c", "exit 3"],
        cwd=world.app,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    until(lambda: at_work() != [], "it works")
    started.send_signal(signal.SIGTERM)
    said, _ = started.communicate(timeout=2 * PATIENCE)
    assert started.returncode == 130, said
    assert at_work() == []


def test_a_gate_as_typed_tells_what_it_holds_and_what_made_it_end(make: Make) -> None:
    world = make(config='[gate]\nreverted = "hold"\n')
    world.land("Change it", "src/a.txt", "new\n")
    task = world.add("Old again")
    world.agent(task).write("src/a.txt", "1\n2\n3\n").commit().seal()
    world.gate().close()
    for _ in range(2):
        done = run_swarm(world.app, "gate", "--once")
        assert done.returncode == 1, done.stdout + done.stderr
    assert kinds(world) == [("held", task)]


def test_a_gate_as_typed_says_that_nobody_could_be_told(make: Make) -> None:
    world = make("exit 22")
    hold(world)
    done = run_swarm(world.app, "gate", "--once")
    line = "warning   [notify] command: failed, exit code 22; a line is tried 3 times"
    assert done.stdout.splitlines().count(line) == 1
    assert [tried.tries for tried in record(world).values()] == [1]
