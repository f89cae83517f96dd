"""approve, reject, pause, resume, stop: a person's word, and what it does to real processes.

Enters: a world, or a run in a process of its own. Leaves: events, ended agents, saved work.
Guards: a stopped attempt loses nothing and is no strike; nobody but the runner is signalled.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from swarm import steer
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.records import Run
from swarm.ledger.store import Draft
from swarm.ledger.view import State, View
from swarm.liveness import alive_path
from swarm.request import find_wanted
from tests.world import World, git, typed, until

PATIENCE = 60.0


def held(tmp_path: Path) -> World:
    """A world in which every change waits for a person."""
    return World(tmp_path, config='[gate]\nreview = "all"\n')


# -- approve and reject ----------------------------------------------------------------------------


def test_approve_lets_a_held_change_land(tmp_path: Path) -> None:
    world = held(tmp_path)
    world.add("One")
    world.agent("one").write("one.txt", "1\n").commit().seal()
    assert world.state("one") is State.HELD
    said = typed(world.app, "approve", "ONE")
    assert said.code == 0 and "approved  one" in said.all and "was held: review" in said.all
    assert "swarm gate --once" in said.all, "nobody is there to land it"
    world.work_gate()
    assert world.state("one") is State.LANDED
    said = typed(world.app, "approve", "one")
    assert said.code == 2 and "landed, not held" in said.all
    world.close()


def test_approve_all_takes_every_held_one_and_says_when_there_is_none(tmp_path: Path) -> None:
    world = held(tmp_path)
    for number in ("1", "2"):
        world.add(f"Task {number}")
        agent = world.agent(f"task-{number}", slot=f"s{number}")
        agent.write(f"{number}.txt", "x\n").commit().seal()
    said = typed(world.app, "approve", "--all")
    assert said.code == 0 and said.all.count("approved  task-") == 2
    assert typed(world.app, "approve", "--all").code == 1
    assert typed(world.app, "approve").code == 2
    world.close()


def test_approve_of_several_is_all_or_nothing(tmp_path: Path) -> None:
    world = held(tmp_path)
    world.add("One")
    world.add("Two")
    world.agent("one").write("one.txt", "1\n").commit().seal()
    assert typed(world.app, "approve", "one", "two").code == 2
    assert world.state("one") is State.HELD
    world.close()


def test_reject_reaches_the_next_attempt_and_is_no_strike(tmp_path: Path) -> None:
    world = held(tmp_path)
    world.add("One")
    world.agent("one").write("one.txt", "1\n").commit().seal()
    assert typed(world.app, "reject", "one", "  ").code == 2
    said = typed(world.app, "reject", "one", "use the\x1b[31m cart's own total")
    assert said.code == 0
    world.step()
    attempts = world.ledger.view().attempts("one")
    assert attempts is not None and attempts.last is not None and attempts.strikes == []
    assert "use the [31m cart's own total" in attempts.last.message
    assert world.agent("one").opened.head == attempts.work.head if attempts.work else False
    assert typed(world.app, "reject", "one", "again").code == 2
    world.close()


# -- pause and resume ------------------------------------------------------------------------------


def test_while_paused_nothing_lands(world: World) -> None:
    assert typed(world.app, "pause", "release day").code == 0
    said = typed(world.app, "pause")
    assert said.code == 1 and "release day" in said.all and "hint: swarm resume" in said.all
    world.add("One")
    world.agent("one").write("one.txt", "1\n").commit().seal()
    world.work_gate()
    assert world.state("one") is State.QUEUED
    assert typed(world.app, "resume").code == 0
    world.step()
    world.work_gate()
    assert world.state("one") is State.LANDED
    assert typed(world.app, "resume").code == 1


def test_a_person_cannot_resume_over_a_red_target(world: World) -> None:
    world.push("bad.txt", "RED\n")
    world.add("One")
    world.agent("one").write("one.txt", "1\n").commit().seal()
    world.work_gate()
    said = typed(world.app, "resume")
    assert said.code == 1 and "is red" in said.all
    assert typed(world.app, "pause", "I look at it").code == 0, "but pause on top of it"
    gate = world.ledger.view().gate()
    assert gate is not None and gate.paused is not None and gate.paused.by == "person"


# -- stop: without a runner ------------------------------------------------------------------------


def test_stop_of_a_claim_whose_runner_is_gone_saves_and_parks(world: World) -> None:
    world.add("One")
    agent = world.agent("one")
    agent.write("one.txt", "1\n").commit()
    agent.write("two.txt", "uncommitted\n")
    agent.slot.close()
    alive_path(world.layout.runs, "r1-test").parent.mkdir(parents=True, exist_ok=True)
    alive_path(world.layout.runs, "r1-test").touch()
    said = typed(world.app, "stop", "one", "--reason", "wrong idea")
    assert said.code == 0, said.all
    assert "stopped   one" in said.all and "swarm task reopen one" in said.all
    world.step()
    view = world.ledger.view()
    parked, attempts = view.parked("one"), view.attempts("one")
    assert parked is not None and "wrong idea" in parked.message
    assert attempts is not None and attempts.strikes == [] and attempts.work is not None
    assert git(world.layout.hub, "show", f"{attempts.work.head}:two.txt") == "uncommitted"


def test_stop_of_a_claim_by_hand_ends_it(world: World) -> None:
    world.add("One")
    agent = world.agent("one", slot="h1", runner="hand-me")
    agent.write("one.txt", "1\n")
    agent.slot.close()
    said = typed(world.app, "stop", "one")
    assert said.code == 0 and world.state("one") is State.PARKED, said.all
    assert typed(world.app, "task", "reopen", "one").code == 0
    world.step()


@pytest.mark.parametrize("state", ["open", "queued", "landed", "absent"])
def test_stop_of_what_nobody_works_on_is_refused(world: World, state: str) -> None:
    if state != "absent":
        world.add("One")
    if state in ("queued", "landed"):
        world.agent("one").write("one.txt", "1\n").commit().seal()
    if state == "landed":
        world.work_gate()
    tip = world.ledger.view().tip
    said = typed(world.app, "stop", "one")
    assert said.code == 2 and said.all.startswith("error: ") and "hint" in said.all
    assert world.ledger.view().tip == tip


def test_stop_of_a_claim_on_another_host_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add("One")
    world.agent("one")
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    said = typed(world.app, "stop", "one")
    assert said.code == 2 and "type it on" in said.all and world.state("one") is State.CLAIMED


def test_stop_without_a_run_is_a_plain_no(world: World) -> None:
    said = typed(world.app, "stop")
    assert said.code == 1 and "no run of this repository works" in said.all


def test_stop_never_signals_a_process_that_is_not_the_runner(world: World) -> None:
    """The record names a live process of somebody else's; the flock is another's."""
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        world.live("r1-test")
        start_record(world, pid=bystander.pid)
        for args in (("stop",), ("stop", "--now")):
            said = typed(world.app, *args)
            assert said.code == 1 and "is not proved to be the runner" in said.all
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_stop_of_a_run_whose_process_number_is_gone(world: World) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    world.live("r1-test")
    start_record(world, pid=gone.pid)
    assert typed(world.app, "stop").code == 1


def start_record(world: World, pid: int) -> None:
    record = Run(
        run="r1",
        runner="r1-test",
        host=os.uname().nodename,
        pid=pid,
        boot_id=world.clock.boot_id(),
        slots=1,
        adapter="command",
        started_at=world.clock.now(),
        started_monotonic_seconds=world.clock.monotonic(),
        config_digest="",
        state="running",
    )

    def decide(_: View) -> Draft[None]:
        edits: dict[str, bytes | None] = {records.run_path("r1"): records.encode(record)}
        return Draft((Event("run-started", "r1", edits),), None)

    world.ledger.append(decide)


# -- stop: real runs -------------------------------------------------------------------------------


@contextlib.contextmanager
def running(world: World, agent: str, slots: int = 1) -> Iterator[subprocess.Popen[str]]:
    """`swarm run` in a process of its own; its agents are `/bin/sh agent.sh`."""
    script = world.folder / "agent.sh"
    script.write_text(agent)
    command = ["-m", "swarm", "run", "-n", str(slots), "--", "/bin/sh", str(script)]
    output = world.folder / "run.log"
    with output.open("w") as log:
        child = subprocess.Popen(
            [sys.executable, *command], cwd=world.app, stdout=log, stderr=log, text=True
        )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(20)
        if child.poll() is None:
            child.kill()
            child.wait()


def pid_of(world: World, name: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int((world.folder / name).read_text())
    return None


def is_gone(pid: int | None) -> bool:
    if pid is None or not psutil.pid_exists(pid):
        return True
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


# Commits once, leaves a file, says who it is and waits; `trap` makes it deaf to all but KILL.
WAITS = """
{trap}
echo 1 > "$SWARM_TASK.txt"; git add -A; git commit -qm one
echo left > "$SWARM_TASK-left.txt"
echo $$ > {folder}/$SWARM_TASK.pid
while :; do sleep 0.1; done
"""
DEAF = "trap '' INT TERM"


def waiting(world: World, trap: str = "") -> str:
    return WAITS.format(folder=world.folder, trap=trap)


@pytest.mark.parametrize("now", [False, True])
def test_stop_of_one_task_ends_its_agent_and_keeps_its_work(world: World, now: bool) -> None:
    world.add("One")
    world.add("Two")
    log = world.folder / "run.log"
    with running(world, waiting(world, DEAF if now else ""), slots=2) as child:
        until(
            lambda: pid_of(world, "one.pid") and pid_of(world, "two.pid"), "agents start", log=log
        )
        pid = pid_of(world, "one.pid")
        said = typed(world.app, "stop", "one", *(["--now"] if now else []))
        assert said.code == 0, said.all + log.read_text()
        assert "stopped   one   its work is kept at" in said.all
        assert is_gone(pid)
        assert not is_gone(pid_of(world, "two.pid")) and child.poll() is None, "only that one"
        view = world.ledger.view()
        attempts, parked = view.attempts("one"), view.parked("one")
        assert attempts is not None and attempts.work is not None and attempts.strikes == []
        assert attempts.last is not None and attempts.last.outcome == "stopped"
        assert parked is not None and parked.message.startswith("stopped by ")
        assert git(world.layout.hub, "show", f"{attempts.work.head}:one-left.txt") == "left"
        assert not list(world.layout.runs.glob("*/.stop/*")), "the request is gone with it"
        world.step()


def test_a_stopped_task_goes_on_from_its_work_when_reopened(world: World) -> None:
    world.add("One")
    log = world.folder / "run.log"
    agent = "if test -e one.txt; then echo 2 > two.txt; exit 0; fi\n" + waiting(world)
    with running(world, agent) as child:
        world.add("Two", needs=("one",))
        until(lambda: pid_of(world, "one.pid"), "the agent starts", log=log)
        assert typed(world.app, "stop", "one").code == 0
        child.wait(PATIENCE)
    assert child.returncode == 1, "a parked task is left"
    assert typed(world.app, "task", "reopen", "one").code == 0
    assert typed(world.app, "task", "cancel", "two").code == 0
    with running(world, agent) as child:
        child.wait(PATIENCE)
    assert world.state("one") is State.LANDED, log.read_text()
    assert world.file("one-left.txt") == "left\n" and world.file("two.txt") == "2\n"
    world.step()


def test_a_cancelled_task_ends_its_agent_soon(world: World) -> None:
    world.add("One")
    log = world.folder / "run.log"
    with running(world, waiting(world, DEAF)):
        until(lambda: pid_of(world, "one.pid"), "the agent starts", log=log)
        assert typed(world.app, "task", "cancel", "one").code == 0
        until(lambda: is_gone(pid_of(world, "one.pid")), "the fence is seen", log=log)
        until(lambda: world.hub.refs_below("refs/swarm/rescue/one"), "its work is rescued", log=log)
    world.step()


def test_stop_of_a_run_lets_agents_finish_and_claims_nothing_new(world: World) -> None:
    world.add("One")
    world.add("Two")
    log = world.folder / "run.log"
    agent = f"echo $$ > {world.folder}/$SWARM_TASK.pid; echo 1 > $SWARM_TASK.txt\n"
    agent += f"until test -e {world.folder}/go; do sleep 0.1; done\n"
    with running(world, agent) as child:
        until(lambda: pid_of(world, "one.pid"), "the agent starts", log=log)
        said = typed(world.app, "stop")
        assert said.code == 0 and "draining  r1" in said.all and "1 attempt finishes" in said.all
        said = typed(world.app, "stop")
        assert said.code == 0 and "asked before" in said.all
        time.sleep(0.5)
        assert child.poll() is None, "a second plain stop is no harder than the first"
        (world.folder / "go").touch()
        child.wait(PATIENCE)
    assert child.returncode == 130, log.read_text()
    assert pid_of(world, "two.pid") is None and world.state("two") is State.OPEN
    assert world.state("one") in (State.QUEUED, State.LANDED)
    world.step()


def test_stop_now_ends_a_run_and_everything_of_it(world: World) -> None:
    world.add("One")
    log = world.folder / "run.log"
    with running(world, waiting(world, DEAF)) as child:
        until(lambda: pid_of(world, "one.pid"), "the agent starts", log=log)
        said = typed(world.app, "stop", "--now")
        assert said.code == 0, said.all + log.read_text()
        assert "stopped   r1" in said.all and "1 attempt ended" in said.all
        child.wait(PATIENCE)
    assert is_gone(pid_of(world, "one.pid"))
    assert world.state("one") is State.OPEN, "a stopped run's tasks go on in the next one"
    attempts = world.ledger.view().attempts("one")
    assert attempts is not None and attempts.work is not None and attempts.strikes == []
    world.step()


def test_stop_of_a_task_whose_runner_hangs_says_so_and_loses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.cli.steer.ANSWER_SECONDS", 0.3)
    world.add("One")
    log = world.folder / "run.log"
    with running(world, waiting(world)) as child:
        until(lambda: pid_of(world, "one.pid"), "the agent starts", log=log)
        os.kill(child.pid, signal.SIGSTOP)
        try:
            said = typed(world.app, "stop", "one")
            assert said.code == 1 and "has not answered" in said.all
            assert world.state("one") is State.CLAIMED
        finally:
            os.kill(child.pid, signal.SIGCONT)
        until(lambda: world.state("one") is State.PARKED, "it heeds the request later", log=log)


def test_stop_during_setup_ends_the_setup_and_is_no_failure_of_it(tmp_path: Path) -> None:
    setup = f'case "$PWD" in */slots/*) echo $$ > {tmp_path}/setup.pid; sleep 60;; esac'
    world = World(tmp_path, config=f"[worktree]\nsetup = '''{setup}'''\n")
    world.add("One")
    log = tmp_path / "run.log"
    with running(world, "exit 1") as child:
        until(lambda: pid_of(world, "setup.pid"), "setup starts", log=log)
        assert typed(world.app, "stop", "one", "--now").code == 0, log.read_text()
        assert is_gone(pid_of(world, "setup.pid"))
        child.wait(PATIENCE)
    attempts = world.ledger.view().attempts("one")
    assert attempts is not None and attempts.last is not None
    assert attempts.last.outcome == "stopped" and world.state("one") is State.PARKED
    world.step()
    world.close()


def test_a_run_that_only_a_pause_holds_up_ends_with_a_plain_no(world: World) -> None:
    assert typed(world.app, "pause", "release day").code == 0
    world.add("One")
    with running(world, "echo 1 > one.txt") as child:
        child.wait(PATIENCE)
    assert child.returncode == 1, (world.folder / "run.log").read_text()
    assert "paused: release day" in (world.folder / "run.log").read_text()
    assert world.state("one") is State.QUEUED


def test_a_request_never_stops_a_later_attempt(world: World) -> None:
    world.add("One")
    first = world.agent("one")
    world.live("r1-test")
    setting = steer.Sweep(world.layout, world.rules, world.bounds)
    answer = steer.stop_task(world.ledger, setting, "one", by="me")
    assert isinstance(answer, steer.RunnerEnds)
    assert find_wanted(world.layout, first.claimed.lock) is not None
    first.end()
    second = world.agent("one")
    assert find_wanted(world.layout, second.claimed.lock) is None
