"""One slot's loop, ticked by hand: agents that are shell scripts end in every way there is.

Enters: a world, a task, a script. Leaves: events, what the next attempt starts from.
Guards: no attempt ends without its processes gone and its work saved; a fault of ours is no strike.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from swarm import adapter as adapters
from swarm import claim as claims
from swarm import loop as loops
from swarm import plan
from swarm.breaker import Breaker
from swarm.change import capture
from swarm.claim import Ending, Mine, Released
from swarm.errors import GitFault, HubUnusable, SwarmError
from swarm.ledger.records import Attempts, Last
from swarm.ledger.view import State
from swarm.loop import Idle, Loop
from swarm.task import LateEdits
from tests.world import World, git

MINUTE = timedelta(minutes=1)
WORK = "echo done > done.txt; git add -A; git commit -qm work"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Worlds of other settings, closed at the end."""
    made: list[World] = []

    def build(config: str = "", **keys: Any) -> World:
        made.append(World(tmp_path, config=config, **keys))
        return made[-1]

    yield build
    for world in made:
        world.close()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for a pause between attempts, but the one about it."""
    monkeypatch.setattr(loops, "GAP_SECONDS", 0.0)
    monkeypatch.setattr(loops, "FIRST_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(loops, "MAX_RETRY_SECONDS", 0.1)
    monkeypatch.setattr(loops, "IDLE_SECONDS", 0.05)


def attempts(world: World, task: str) -> Attempts:
    found = world.ledger.view().attempts(task)
    assert found is not None
    return found


def last(world: World, task: str) -> Last:
    found = attempts(world, task).last
    assert found is not None
    return found


def is_working(loop: Loop) -> Callable[[], bool]:
    return lambda: loop.stage == "working"


def alive(mark: str) -> list[int]:
    """Processes whose command line holds these words."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if mark in " ".join(process.info["cmdline"] or ()) and process.pid != os.getpid():
            found.append(process.pid)
    return found


# How an attempt ends


def test_an_agent_that_works_is_sealed_and_its_folder_has_prompt_and_outcome(
    world: World,
) -> None:
    task = world.add("Work", body="Write done.txt.")
    loop = world.loop(
        f'cat > "$TMPDIR/prompt"; grep -q "Write done.txt" "$TMPDIR/prompt" && {WORK}'
    )
    world.work_loop(loop)
    assert world.events(task)[-3:] == ["claimed", "charged", "sealed"]
    world.work_gate()
    assert world.file("done.txt") == "done\n"
    folder = world.layout.attempt("r1", task, 1)
    assert {"prompt.md", "task.md", "transcript.jsonl", "stderr.log", "outcome.json"} <= {
        path.name for path in folder.iterdir()
    }


def test_leftovers_of_an_agent_that_says_done_are_sealed(world: World) -> None:
    task = world.add("Leave")
    world.work_loop(world.loop("echo x > new.txt; echo y >> src/a.txt"))
    entry = world.ledger.view().entry(task)
    assert entry is not None
    assert (entry.left_by_agent.uncommitted, entry.left_by_agent.untracked) == (1, 1)


def test_A7_a_killed_agent_is_noticed_at_once_and_its_work_is_kept(world: World) -> None:
    task = world.add("Die")
    loop = world.loop(f"{WORK}; echo more > more.txt; kill -9 $$")
    world.work_loop(loop)
    told = last(world, task)
    assert (told.outcome, told.strike) == ("agent_failed", True)
    assert told.message == "killed by signal 9; kept, 1 file saved"
    again = world.agent(task, slot="s2")
    assert (again.tree / "done.txt").exists()
    assert (again.tree / "more.txt").exists()


def test_A1_a_grandchild_is_gone_before_the_work_is_sealed(world: World, tmp_path: Path) -> None:
    task = world.add("Grandchild", timeout="1s")
    late = f"sleep 3; touch {tmp_path}/late; git commit -q --allow-empty -m late"
    world.work_loop(world.loop(f"setsid sh -c '{late}' & {WORK}; sleep 61.25"))
    told = last(world, task)
    assert told.outcome == "timed_out"
    assert told.message.startswith("limit 1s; ")
    assert "0 left" in told.message
    assert not alive("sleep 61.25")
    assert not alive(f"{tmp_path}/late")
    assert world.hub.reader.ref(f"refs/swarm/work/{task}/1") is not None


def test_the_tasks_own_timeout_counts(make: Callable[..., World]) -> None:
    world = make('[limits]\nattempt = "20m"\nbackoff = "0s"\ngrace = "1s"\n')
    task = world.add("Slow", timeout="1s")
    world.work_loop(world.loop("sleep 60"))
    assert last(world, task).outcome == "timed_out"


QUIET = '[limits]\nsilence = "2s"\nbackoff = "0s"\ngrace = "1s"\n'


def test_A9_silent_and_idle_for_nine_tenths_of_the_limit_is_alive(
    make: Callable[..., World],
) -> None:
    world = make(QUIET)
    task = world.add("Think")
    world.work_loop(world.loop(f"sleep 1.8; {WORK}"))
    assert world.events(task)[-1] == "sealed"


@pytest.mark.parametrize(
    "sign",
    [
        "echo still here",
        "echo . >> src/a.txt",
        "end=$(($(date +%s) + 1)); while [ $(date +%s) -lt $end ]; do :; done",
    ],
    ids=["output", "file", "cpu"],
)
def test_A9_any_sign_of_life_counts(make: Callable[..., World], sign: str) -> None:
    world = make(QUIET)
    task = world.add("Busy")
    world.work_loop(world.loop(f"for n in 1 2 3 4; do {sign}; sleep 1; done; {WORK}"))
    assert world.events(task)[-1] == "sealed"


def test_silence_ends_an_attempt_with_a_strike_and_keeps_its_work(
    make: Callable[..., World],
) -> None:
    world = make('[limits]\nsilence = "1s"\nbackoff = "0s"\ngrace = "1s"\n')
    task = world.add("Hang")
    world.work_loop(world.loop(f"{WORK}; sleep 60"))
    told = last(world, task)
    assert (told.outcome, told.strike) == ("silent", True)
    assert told.message.startswith("silent for 1s; ")
    assert attempts(world, task).work is not None


STREAM = """
format = 1
name = "stream"
about = "prints events"
argv = []
[prompt]
how = "stdin"
[output]
format = "jsonl"
[[outcome]]
is = "limit"
text = "usage limit"
[[outcome]]
is = "success"
exit = [0]
[stop]
signals = ["SIGTERM", "SIGKILL"]
"""


def stream(world: World) -> adapters.Adapter:
    """An agent program that prints one event a line."""
    folder = world.app / ".swarm/agents"
    folder.mkdir(parents=True)
    (folder / "stream.toml").write_text(STREAM)
    return adapters.load("stream", world.app)


def test_an_agent_that_never_says_anything_is_ended_at_the_start_limit(
    make: Callable[..., World],
) -> None:
    world = make('[limits]\nstart = "1s"\nbackoff = "0s"\ngrace = "1s"\n')
    task = world.add("Mute")
    world.work_loop(world.loop("sleep 60", adapter=stream(world)))
    told = last(world, task)
    assert told.outcome == "silent"
    assert told.message.startswith("no sign of life within 1s; ")


def test_an_agent_that_has_said_something_may_take_its_time(make: Callable[..., World]) -> None:
    world = make('[limits]\nstart = "1s"\nbackoff = "0s"\ngrace = "1s"\n')
    task = world.add("Talk")
    world.work_loop(world.loop(f"echo '{{}}'; sleep 1.5; {WORK}", adapter=stream(world)))
    assert world.events(task)[-1] == "sealed"


def test_a_program_without_events_may_be_mute_until_its_end(make: Callable[..., World]) -> None:
    world = make('[limits]\nstart = "1s"\nbackoff = "0s"\ngrace = "1s"\n')
    task = world.add("Script")
    world.work_loop(world.loop(f"sleep 1.5; {WORK}"))
    assert world.events(task)[-1] == "sealed"


def test_A14_a_limit_told_on_stderr_is_a_limit_although_the_exit_is_0(world: World) -> None:
    task = world.add("Quota")
    loop = world.loop("echo 'usage limit reached' >&2; exit 0", adapter=stream(world))
    world.work_loop(loop)
    told = last(world, task)
    assert (told.outcome, told.strike) == ("provider_limit", False)


def test_A12_A13_a_provider_limit_pauses_every_loop_and_longer_each_time(
    make: Callable[..., World],
) -> None:
    world = make('[limits]\nbackoff = "1h"\nbackoff_max = "3h"\ngrace = "1s"\n')
    breaker = Breaker(world.layout.limits, world.bounds.backoff, world.bounds.backoff_max)
    idle = Idle(breaker=breaker)
    tasks = [world.add(f"Task {n}") for n in range(2)]
    first = world.loop("exit 75", idle=idle)
    second = world.loop(WORK, slot="s2", idle=idle)
    world.work_loop(first)
    told = last(world, tasks[0])
    assert told.outcome == "provider_limit"
    assert "until " in told.message
    assert attempts(world, tasks[0]).strikes == []
    now = world.clock.now()
    limit = breaker.find("command", now)
    assert limit is not None and limit.until - now == pytest.approx(timedelta(hours=1), abs=MINUTE)
    for loop in (first, second):
        loop.tick()
        assert not loop.is_busy, "nobody of this run claims"
        assert loop.why_idle.startswith("command: provider limit until ")
    world.clock.pass_(hours=2)
    world.work_loop(second)
    assert breaker.all(world.clock.now()) == {}, "an attempt that succeeds closes the breaker"
    assert breaker.may_start("command", "s1", world.clock.now())


def test_not_logged_in_stops_claims_without_a_strike(world: World) -> None:
    task = world.add("Log in")
    loop = world.loop("exit 77")
    world.work_loop(loop)
    told = last(world, task)
    assert (told.outcome, told.strike) == ("not_logged_in", False)
    loop.tick()
    assert not loop.is_busy
    assert loop.why_idle.startswith("not logged in: log in to command")


def test_A18_an_agent_that_fails_at_once_is_not_started_again_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "GAP_SECONDS", 100.0)
    monkeypatch.setattr(loops, "MAX_GAP_SECONDS", 300.0)
    for number in range(4):
        world.add(f"Task {number}")
    loop = world.loop("exit 0")
    gaps = []
    for _ in range(3):
        world.work_loop(loop)
        gaps.append(round(loop._not_before - time.monotonic(), -1))
        loop.tick()
        assert not loop.is_busy
        assert loop.why_idle == "the last attempt failed at once"
        loop._not_before = 0.0
    assert gaps == [100, 200, 300]


def test_A18_no_work_three_times_parks(world: World) -> None:
    task = world.add("Lazy")
    loop = world.loop("exit 0")
    for _ in range(3):
        world.work_loop(loop)
    assert world.state(task) is State.PARKED
    assert world.events(task)[-2:] == ["released", "parked"]


def test_a_conflict_left_alone_is_unresolved_and_its_commits_are_kept(world: World) -> None:
    task = world.add("Conflict")
    world.work_loop(world.loop("echo mine > src/a.txt"))
    world.push("src/a.txt", "theirs\n")
    world.work_gate()
    assert world.events(task)[-1] == "ejected"
    world.work_loop(world.loop("exit 0"))
    told = last(world, task)
    assert (told.outcome, told.paths) == ("unresolved", ["src/a.txt"])
    assert world.agent(task).opened.conflicted == ("src/a.txt",)


def test_what_the_gate_said_outlives_attempts_that_fail_by_themselves(world: World) -> None:
    task = world.add("Red first", strikes=9)
    world.work_loop(world.loop("echo RED > one.txt"))
    world.work_gate()
    assert (last(world, task).outcome, attempts(world, task).sent_back) == ("check_failed", None)
    for said in ("exit 3", "exit 4"):
        world.clock.pass_(hours=1)
        world.work_loop(world.loop(said))
        back = attempts(world, task).sent_back
        assert last(world, task).outcome == "agent_failed" and back is not None
        assert (back.outcome, back.token) == ("check_failed", 1)
    world.clock.pass_(hours=1)
    world.work_loop(world.loop("rm one.txt; echo green > two.txt"))
    prompt = (world.layout.attempt("r1", task, 4) / "prompt.md").read_text()
    assert "attempt was sent back. exit code 4" in prompt
    assert f"An earlier attempt's change was sent back. {back.message}\n{back.detail}" in prompt
    world.work_gate()
    assert world.state(task) is State.LANDED and attempts(world, task).sent_back is None


# Setup, teardown, environment


def test_W14_a_failing_setup_is_named_and_is_no_strike(make: Callable[..., World]) -> None:
    world = make('[worktree]\nsetup = "echo no compiler; exit 3"\n')
    task = world.add("Build")
    world.work_loop(world.loop(WORK))
    told = last(world, task)
    assert (told.outcome, told.strike, told.exit_code) == ("setup_failed", False, 3)
    assert told.message == "setup failed: exit code 3"
    assert told.detail == "no compiler"


def test_setup_that_fails_twice_in_a_row_ends_claiming(make: Callable[..., World]) -> None:
    world = make('[worktree]\nsetup = "test -e go"\n')
    idle = Idle()
    world.add("One")
    world.add("Two")
    one, two = world.loop(WORK, idle=idle), world.loop(WORK, slot="s2", idle=idle)
    world.work_loop(one)
    world.work_loop(two)
    for loop in (one, two):
        loop.tick()
        assert not loop.is_busy
        assert loop.why_idle == "setup failed 2 times in a row: exit code 1"


def test_setup_runs_again_only_when_its_inputs_changed(make: Callable[..., World]) -> None:
    world = make(
        '[worktree]\nsetup = "mkdir -p .venv; echo x >> .venv/count"\n'
        'setup_inputs = ["lock.txt"]\nkeep = [".venv"]\n'
    )
    loop = world.loop("cp .venv/count $SWARM_TASK.txt")
    for name in ("one", "two"):
        world.add(name)
        world.work_loop(loop)
        world.work_gate()
    assert world.file("two.txt") == "x\n"
    world.push("lock.txt", "new\n")
    world.add("three")
    world.work_loop(loop)
    world.work_gate()
    assert world.file("three.txt") == "x\nx\n"


def test_teardown_runs_when_the_worktree_is_let_go_and_setup_after_it(
    make: Callable[..., World], tmp_path: Path
) -> None:
    told = tmp_path / "told"
    world = make(
        f'[worktree]\nsetup = "echo up $SWARM_SLOT >> {told}"\nsetup_inputs = ["none"]\n'
        f'teardown = "echo down $SWARM_SLOT >> {told}; pwd >> {told}"\n'
    )
    world.add("one")
    loop = world.loop(WORK)
    loop.let_go()
    assert not told.exists(), "nothing was set up yet"
    world.work_loop(loop)
    loop.let_go()
    loop.let_go()
    assert told.read_text().split("\n") == ["up s1", "down s1", str(loop.slot.tree), ""]
    world.add("two")
    world.work_loop(loop)
    assert told.read_text().count("up s1") == 2


def test_a_failing_teardown_is_named(make: Callable[..., World]) -> None:
    world = make('[worktree]\nteardown = "exit 4"\n')
    world.add("one")
    loop = world.loop(WORK)
    world.work_loop(loop)
    with pytest.raises(SwarmError, match="teardown failed in s1: exit code 4"):
        loop.let_go()


def test_a_private_home_is_the_slots_own(make: Callable[..., World]) -> None:
    world = make('[run]\nhome = "private"\n[worktree]\nsetup = "echo $HOME > ~/from-setup"\n')
    world.add("one")
    world.work_loop(world.loop('ls -A ~ > home.txt; echo "$HOME" >> home.txt; touch ~/.token'))
    world.work_gate()
    home = world.layout.homes / "s1"
    assert world.file("home.txt") == f"from-setup\n{home}\n"
    assert home.stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in home.iterdir()) == [".token", "from-setup"]


def test_D17_tmpdir_is_private_outside_the_worktree_and_goes_with_the_attempt(
    world: World,
) -> None:
    world.add("one")
    world.work_loop(world.loop('echo x > "$TMPDIR/kept-nowhere"; echo "$TMPDIR" > where.txt'))
    world.work_gate()
    tmpdir = Path((world.file("where.txt") or "").strip())
    assert not tmpdir.is_relative_to(world.layout.root)
    assert not tmpdir.exists()
    assert world.file("kept-nowhere") is None
    prompt = (world.layout.attempt("r1", "one", 1) / "prompt.md").read_text()
    assert "work in this folder only" in prompt


def test_sparse_shared_kept_and_copied_reach_the_worktree(make: Callable[..., World]) -> None:
    world = make(
        '[worktree]\nsparse = ["src"]\nshare = ["data"]\nkeep = [".venv"]\n',
        files={"src/a.txt": "1\n", "web/b.txt": "2\n", ".gitignore": ".env\ndata\n.venv\n"},
    )
    (world.app / "data").mkdir()
    (world.app / "data/x").write_text("x")
    (world.app / ".env").write_text("T=1")
    script = "ls -A > seen.txt; cat data/x .env >> seen.txt; mkdir -p .venv; touch .venv/t"
    world.add("one")
    loop = world.loop(script, copies=(".env",))
    world.work_loop(loop)
    world.work_gate()
    assert world.file("seen.txt") == ".env\n.git\n.gitignore\ndata\nseen.txt\nsrc\nxT=1"
    assert world.file("web/b.txt") == "2\n"
    world.add("two")
    world.work_loop(loop)
    assert (loop.slot.tree / ".venv/t").exists()


def test_over_the_cap_an_idle_worktree_is_removed_and_made_again(world: World) -> None:
    loop = world.loop(f"{WORK}; git rev-parse HEAD >> done.txt")
    world.add("one")
    world.work_loop(loop)
    loop.idle.is_over_cap = True
    world.tick(loop, lambda: not loop.slot.record.exists())
    assert not loop.slot.tree.exists()
    world.work_gate()
    assert world.state("one") is State.LANDED
    world.add("two")
    world.work_loop(loop)
    assert world.events("two")[-1] == "sealed"


def test_over_the_cap_work_is_kept(world: World) -> None:
    world.agent(world.add("one")).write("unsaved.txt", "u")
    loop = world.loop(WORK)
    loop.idle.is_over_cap = loop.idle.is_draining = True
    world.tick(loop, lambda: not loop.slot.record.exists())
    (kept,) = world.hub.refs_below("refs/swarm/rescue/one").values()
    assert world.file("unsaved.txt", kept) == "u"


# Losing the claim


def test_a_claim_that_is_ended_by_another_ends_the_agent_and_keeps_its_work(
    world: World,
) -> None:
    task = world.add("Fenced")
    loop = world.loop(f"{WORK}; echo dirty > dirty.txt; touch ready; sleep 62.25")
    world.tick(loop, lambda: (loop.slot.tree / "ready").exists())
    lock = world.ledger.view().lock(task)
    assert lock is not None
    answer = claims.release(
        world.ledger, Mine.of(lock), Ending("stopped", "a person's word"), world.bounds
    )
    assert isinstance(answer, Released)
    world.tick(loop, lambda: not loop.is_busy)
    assert not alive("sleep 62.25")
    assert world.events(task)[-1] == "rescued"
    (kept,) = world.hub.refs_below(f"refs/swarm/rescue/{task}").values()
    assert world.file("dirty.txt", kept) == "dirty\n"
    assert world.file("done.txt", kept) == "done\n"
    world.tick(loop, is_working(loop))
    assert attempts(world, task).token == 2, "and the loop goes on"


def test_a_claim_that_was_taken_over_is_not_disturbed(world: World) -> None:
    task = world.add("Fenced")
    loop = world.loop("echo late > late.txt; touch ready; while [ ! -e go ]; do sleep 0.05; done")
    world.tick(loop, lambda: (loop.slot.tree / "ready").exists())
    world.clock.pass_(hours=2)
    lock = world.ledger.view().lock(task)
    view = world.ledger.view()
    assert lock is not None
    claims.expire(
        world.ledger,
        lock,
        view.blob_id(f"current_tasks/{task}.lock") or "",
        "no heartbeat",
        world.bounds,
        runner_gone=False,
    )
    other = world.agent(task, slot="s2", runner="r2-other")
    (loop.slot.tree / "go").touch()
    world.tick(loop, lambda: not loop.is_busy)
    held = world.ledger.view().lock(task)
    assert held == other.claimed.lock
    kept = world.hub.refs_below(f"refs/swarm/rescue/{task}")
    assert [ref.rsplit("/", 1)[1] for ref in kept] == ["1-1"], "filed under its own token"


def test_fenced_during_setup_starts_no_agent(make: Callable[..., World], tmp_path: Path) -> None:
    world = make(f'[worktree]\nsetup = "touch {tmp_path}/up; sleep 63.25"\n')
    task = world.add("Fenced")
    loop = world.loop(f"touch {tmp_path}/started")
    world.tick(loop, lambda: (tmp_path / "up").exists())
    lock = world.ledger.view().lock(task)
    assert lock is not None
    claims.release(world.ledger, Mine.of(lock), Ending("stopped", "a word"), world.bounds)
    loop.idle.is_draining = True
    world.tick(loop, lambda: not loop.is_busy)
    assert not (tmp_path / "started").exists()
    assert not alive("sleep 63.25")


def test_stopping_while_the_worktree_is_opened_leaves_no_agent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = world.add("Stop")
    loop = world.loop("sleep 64.25")
    start = loop._start_agent

    def stopped_meanwhile(*args: Any) -> None:
        loop.stop("stopped")
        start(*args)

    monkeypatch.setattr(loop, "_start_agent", stopped_meanwhile)
    world.work_loop(loop)
    assert last(world, task).outcome == "stopped"
    assert not alive("sleep 64.25")


def test_stopping_all_ends_an_attempt_that_begins_just_then(world: World) -> None:
    task = world.add("Stop")
    loop = world.loop("sleep 65.25")
    world.tick(loop, is_working(loop))
    loop.idle.is_draining = loop.idle.is_stopping = True
    world.tick(loop, lambda: not loop.is_busy)
    assert last(world, task).outcome == "stopped"


# Faults of ours


def failing(times: int, real: Callable[..., Any], error: SwarmError) -> Callable[..., Any]:
    """Raises that many times, then does it."""
    left = [times]

    def call(*args: Any, **keys: Any) -> Any:
        if left[0] > 0:
            left[0] -= 1
            raise error
        return real(*args, **keys)

    return call


def test_D1_a_fault_while_the_work_is_taken_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = world.add("Full disk")
    fault = GitFault("no space left")
    monkeypatch.setattr(loops, "capture", failing(3, capture, fault))
    loop = world.loop(WORK)
    world.work_loop(loop)
    assert world.events(task)[-1] == "sealed"
    assert attempts(world, task).strikes == []
    assert loop.trouble == "no space left"


def test_D1_work_that_cannot_be_taken_stays_in_its_slot_and_the_claim_goes_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = world.add("Broken")
    monkeypatch.setattr(loops, "capture", failing(99, capture, GitFault("broken objects")))
    loop = world.loop(WORK)
    world.work_loop(loop)
    told = last(world, task)
    assert (told.outcome, told.strike) == ("stopped", False)
    assert told.message == "its work is kept in slot s1: broken objects"
    assert (world.layout.slots / "s1/done.txt").read_text() == "done\n"
    assert loop.slot.name == "s2", "the next claim gets another place"
    monkeypatch.undo()
    world.work_loop(loop)
    assert world.events(task)[-1] == "sealed"
    world.agent(world.add("Later"))
    (kept,) = world.hub.refs_below(f"refs/swarm/rescue/{task}").values()
    assert world.file("done.txt", kept) == "done\n", "whoever opens that slot saves it first"


def test_a_claim_whose_release_fails_stands_until_it_succeeds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = world.add("Busy")
    busy = HubUnusable("the hub is busy")
    monkeypatch.setattr(loops, "release", failing(9, claims.release, busy))
    loop = world.loop("exit 1")
    world.tick(loop, lambda: loop.attempt is not None and loop.attempt.tries > 6)
    assert world.state(task) is State.CLAIMED
    world.tick(loop, lambda: not loop.is_busy)
    assert last(world, task).outcome == "agent_failed"


def test_a_run_that_ends_does_not_wait_for_a_dead_hub(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = world.add("Gone")
    monkeypatch.setattr(loops, "release", failing(99, claims.release, HubUnusable("gone")))
    loop = world.loop("exit 1")
    world.tick(loop, is_working(loop))
    loop.idle.is_draining = True
    world.tick(loop, lambda: not loop.is_busy)
    assert world.state(task) is State.CLAIMED, "it expires: its runner is gone then"


def test_a_fault_at_opening_is_no_strike_and_a_row_of_them_ends_claiming(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = world.add("Open")
    loop = world.loop(WORK)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(loop.slot), "_open", full)
    for number in range(loops.MAX_FAULTS):
        world.work_loop(loop)
        assert loop.idle.faults == number + 1
    assert attempts(world, task).strikes == []
    assert world.state(task) is State.OPEN
    loop.tick()
    assert not loop.is_busy
    assert "No space left on device" in loop.why_idle


def test_D4_a_slot_that_cannot_be_saved_is_left_alone_and_another_is_used(
    world: World,
) -> None:
    agent = world.agent(world.add("First")).write("precious.txt", "p")
    (agent.slot.own / "objects/info/alternates").write_text("/nowhere\n")
    world.add("Second")
    loop = world.loop(WORK)
    world.work_loop(loop)
    assert last(world, "second").outcome == "setup_failed"
    assert loop.slot.name == "s2"
    world.work_loop(loop)
    assert world.events("second")[-1] == "sealed"
    assert (world.layout.slots / "s1/precious.txt").read_text() == "p"


def test_a_claim_whose_answer_was_lost_is_worked_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = world.add("Lost answer")
    real = loops.acquire

    def lost(*args: Any, **keys: Any) -> None:
        real(*args, **keys)
        monkeypatch.setattr(loops, "acquire", real)
        raise HubUnusable("git did not answer: whether it was written is unknown")

    monkeypatch.setattr(loops, "acquire", lost)
    loop = world.loop(WORK)
    with pytest.raises(HubUnusable):
        loop.tick()
    assert world.state(task) is State.CLAIMED
    world.work_loop(loop)
    assert world.events(task)[-3:] == ["claimed", "charged", "sealed"], "claimed once"


def test_an_agent_program_that_is_missing_is_no_strike(world: World) -> None:
    task = world.add("Missing")
    loop = world.loop("no-such-agent", "--now")
    world.work_loop(loop)
    told = last(world, task)
    assert (told.outcome, told.strike) == ("setup_failed", False)
    assert "no-such-agent" in told.message


@pytest.mark.parametrize("what", ["record", "worktree", "repository"])
def test_an_agent_that_deletes_its_place_does_not_stop_the_loop(world: World, what: str) -> None:
    task = world.add("Delete")
    name = {"record": "s1.json", "worktree": "s1", "repository": "s1.git"}[what]
    place = world.layout.slots / name
    loop = world.loop(f"{WORK}; rm -rf {place}")
    world.work_loop(loop)
    assert world.events(task)[-1] == "sealed"
    entry = world.ledger.view().entry(task)
    assert entry is not None
    assert world.file("done.txt", entry.head) == "done\n", "commits or files, one of them is there"
    world.add("Next")
    second = world.loop(WORK, slot="s3")
    world.work_loop(second)


def test_heartbeats_bring_commits_into_the_hub_while_the_agent_works(
    make: Callable[..., World],
) -> None:
    world = make('[claims]\nlease = "1s"\n')
    task = world.add("Long")
    loop = world.loop(f"{WORK}; touch ready; while [ ! -e go ]; do sleep 0.05; done")
    ref = f"refs/swarm/work/{task}/1"
    world.tick(loop, lambda: world.hub.reader.ref(ref) is not None)
    assert world.file("done.txt", world.hub.reader.ref(ref)) == "done\n"
    (loop.slot.tree / "go").touch()
    world.tick(loop, lambda: not loop.is_busy)


def test_L15_locks_that_a_killed_git_left_do_not_block_the_next_attempt(world: World) -> None:
    task = world.add("Locked")
    admin = "$(git rev-parse --git-dir)"
    world.work_loop(world.loop(f"echo x > new.txt; touch {admin}/index.lock {admin}/HEAD.lock"))
    assert world.events(task)[-1] == "sealed"
    world.add("Next")
    world.work_loop(world.loop(WORK))
    assert world.events("next")[-1] == "sealed"


def test_A5_a_wrapper_script_is_ended_like_any_agent(world: World, tmp_path: Path) -> None:
    inner = tmp_path / "inner.sh"
    inner.write_text("#!/bin/sh\nsleep 66.25\n")
    inner.chmod(0o755)
    task = world.add("Wrap", timeout="1s")
    world.work_loop(world.loop(f"{inner} & wait"))
    assert last(world, task).outcome == "timed_out"
    assert not alive("sleep 66.25")


def test_a_signal_for_the_agent_alone_is_an_agent_failure(world: World) -> None:
    task = world.add("Term")
    loop = world.loop("sleep 67.25")
    world.tick(loop, is_working(loop))
    assert loop.attempt is not None
    assert loop.attempt.child is not None
    os.kill(loop.attempt.child.pid, signal.SIGTERM)
    world.tick(loop, lambda: not loop.is_busy)
    assert last(world, task).message.startswith("killed by signal 15")


def test_what_an_agent_is_given_can_be_committed_by_it(world: World) -> None:
    world.add("Identity")
    world.work_loop(world.loop(WORK))
    world.work_gate()
    entry = git(world.hub.path, "log", "-1", "--format=%an%n%(trailers:key=Swarm-Task)", "main^2")
    assert entry.split("\n")[:2] == ["swarm agent", "Swarm-Task: identity"]
    assert msgspec.to_builtins(attempts(world, "identity"))["strikes"] == []
    assert subprocess.run(["git", "-C", str(world.app), "status", "--porcelain"]).returncode == 0


def test_an_edit_of_a_claimed_task_waits_for_its_next_attempt(world: World) -> None:
    task = world.add("Say it", body="old words")
    edited = [plan.Draft(id=task, title="Say it", body="new words")]
    agent = world.agent(task)
    late = LateEdits(world.ledger, edited)
    late.take(world.ledger)
    known = world.ledger.view().task(task)
    assert known is not None and known.body == "old words", "while it is claimed nothing changes"
    agent.end()
    loop = world.loop("sh", "-c", "cat > said.txt", slot="s2", late_edits=late)
    world.work_loop(loop)
    assert world.state(task) is State.QUEUED
    entry = world.ledger.view().entry(task)
    assert entry is not None
    assert "new words" in (world.file("said.txt", entry.head) or "")
    assert not late


def test_a_malformed_commit_is_the_agents_fault_and_its_files_are_kept(world: World) -> None:
    task = world.add("Odd tree")
    # A tree with an entry called .git passes no fsck; the file beside it is ordinary work.
    raw = "import sys; sys.stdout.buffer.write(b'100644 .git\\0' + bytes.fromhex(sys.argv[1]))"
    odd = (
        "echo good > good.txt; git add good.txt; git commit -qm good;"
        f'{sys.executable} -c "{raw}" $(git rev-parse HEAD:good.txt) > ../odd;'
        "t=$(git hash-object -t tree -w --literally ../odd); rm ../odd;"
        "git update-ref HEAD $(git commit-tree $t -p HEAD -m odd)"
    )
    world.work_loop(world.loop("sh", "-c", odd))
    attempts = world.ledger.view().attempts(task)
    assert attempts is not None and attempts.last is not None and attempts.work is not None
    assert attempts.last.outcome == "agent_failed" and attempts.last.strike
    assert "malformed" in attempts.last.message
    assert world.file("good.txt", attempts.work.head) == "good\n", "its files stand for it"
    assert world.events(task)[-1] == "released", "nothing is retried for ever"
