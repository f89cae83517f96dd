"""Healing: what dead and silent runners left is ended, saved and given back, in this order."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from swarm import process, reconcile
from swarm.claim import Claimed
from swarm.errors import GitFault
from swarm.ids import new_nonce
from swarm.land import GateClaim, GateLost, take_gate
from swarm.ledger import records
from swarm.ledger.records import Run
from swarm.ledger.store import Draft
from swarm.ledger.view import State, View
from swarm.plumbing.hub import RESCUE, work_ref
from swarm.reconcile import Sweep, close_runs, rescue_leftovers, settle, sweep
from swarm.slot import Slot
from tests.world import Agent, World

GRACE = timedelta(seconds=1)


@pytest.fixture
def runner() -> str:
    """A name that no other test's processes carry: sweeps end what carries its mark."""
    return f"r1-{new_nonce()[:8]}"


@pytest.fixture
def marked(world: World, runner: str) -> Iterator[process.Child]:
    """A process of that runner, with one more below it."""
    spec = process.Spec(
        argv=("/bin/sh", "-c", "sleep 600 & setsid sleep 600 & sleep 600"),
        cwd=world.folder,
        env={"PATH": os.environ["PATH"]},
        stdout=world.folder / "out",
        output_cap=1 << 20,
        mark=f"{runner}.a1.{new_nonce()[:12]}",
        grace=GRACE,
    )
    child = process.start(spec)
    yield child
    child.kill_now("the test ends")
    child.wait(20)


def dead(world: World, runner: str) -> None:
    """The runner's process is gone: its flock is free."""
    world.live(runner).close()


def holder(world: World, runner: str, title: str = "Left behind", slot: str = "s1") -> Agent:
    """An agent whose runner is about to die."""
    return world.agent(world.add(title), runner=runner, slot=slot)


def let_go(agent: Agent) -> None:
    """The process that held the slot has ended."""
    agent.slot.close()
    agent.slot.is_saved = False


def test_L1_D9_D10_a_dead_runners_work_is_saved_whole_and_the_next_attempt_has_it(
    world: World, runner: str
) -> None:
    agent = holder(world, runner).write("one.txt", "one\n").commit("one")
    commit = agent.git("rev-parse", "HEAD")
    agent.write("src/a.txt", "edited\n").write("never-added.txt", "new\n")
    let_go(agent)
    dead(world, runner)
    report = world.sweep()
    assert [e.task for e in report.expired] == [agent.mine.task]
    assert "its runner is gone" in report.expired[0].why
    head = world.hub.reader.ref(work_ref(agent.mine.task, 1))
    assert head is not None and world.hub.contains(head, commit)
    assert world.file("src/a.txt", head) == "edited\n"
    assert world.file("never-added.txt", head) == "new\n"
    attempts = world.ledger.view().attempts(agent.mine.task)
    assert attempts is not None and not attempts.strikes and attempts.expiries == 0
    again = world.agent(agent.mine.task, slot="s2")
    assert again.mine.token == 2 and again.git("rev-parse", "HEAD") == head
    assert (again.tree / "never-added.txt").read_text() == "new\n"


def test_a_second_sweep_finds_nothing(world: World, runner: str) -> None:
    agent = holder(world, runner).write("one.txt", "one\n").commit()
    let_go(agent)
    dead(world, runner)
    assert world.sweep().expired
    tip = world.ledger.view().tip
    again = world.sweep()
    assert not (again.expired or again.rescued or again.ended)
    assert world.ledger.view().tip == tip


def test_several_sweeps_at_once_expire_once(world: World, runner: str) -> None:
    agent = holder(world, runner).write("one.txt", "one\n").commit()
    let_go(agent)
    dead(world, runner)
    setting = Sweep(world.layout, world.rules, world.bounds, GRACE)
    others = [world.other() for _ in range(3)]
    threads = [threading.Thread(target=sweep, args=(ledger, setting)) for ledger in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    world.step()
    assert world.events(agent.mine.task).count("expired") == 1
    head = world.hub.reader.ref(work_ref(agent.mine.task, 1))
    kept = [*world.hub.refs_below(RESCUE).values(), head]
    assert (
        any(oid and world.file("one.txt", oid) == "one\n" for oid in kept)
        or (world.slot("s1").tree / "one.txt").exists()
    )


def test_A3_A4_A5_processes_of_a_dead_runner_are_ended_and_no_others(
    world: World, runner: str, marked: process.Child
) -> None:
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        agent = holder(world, runner)
        let_go(agent)
        world.live(runner)
        assert not world.sweep().expired and process.find_marked(f"{runner}.")
        world.alive.pop().close()
        report = world.sweep()
        assert report.ended >= 3, "whatever they are called, and their children"
        assert not process.find_marked(f"{runner}.")
        assert marked.wait(10) is not None
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_the_processes_are_ended_before_the_work_is_saved(
    world: World, runner: str, marked: process.Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they write until then belongs to the work that is saved."""
    agent = holder(world, runner)
    let_go(agent)
    dead(world, runner)
    real = reconcile.capture
    living: list[int] = []

    def look(*given: object) -> object:
        living.append(len(process.find_marked(f"{runner}.")))
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(reconcile, "capture", look)
    assert world.sweep().expired
    assert living == [0]
    assert marked.wait(10) is not None


def test_A3_a_dead_run_whose_claims_are_all_queued_leaves_no_check_running(
    world: World, runner: str, marked: process.Child
) -> None:
    """Checks hold no claim, so that no sweep of claims would find them."""
    begin_run(world, runner)
    world.live(runner)
    assert close_runs(world.ledger, world.layout) == []
    world.alive.pop().close()
    assert close_runs(world.ledger, world.layout) == ["r9"]
    assert not process.find_marked(f"{runner}.") and marked.wait(10) is not None
    run = world.ledger.view().run("r9")
    assert run is not None and run.state == "ended" and "killed" in run.why
    assert close_runs(world.ledger, world.layout) == [], "once"


def begin_run(world: World, runner: str) -> None:
    from swarm.ledger.events import Event

    run = Run(
        run="r9",
        runner=runner,
        host="h",
        pid=1,
        boot_id=world.clock.boot_id(),
        slots=1,
        adapter="command",
        started_at=world.clock.now(),
        started_monotonic_seconds=world.clock.monotonic(),
        config_digest="d",
        state="running",
    )
    event = Event("run-started", "r9", {records.run_path("r9"): records.encode(run)})

    def decide(view: View) -> Draft[None]:
        return Draft((event,), None)

    world.ledger.append(decide)


def test_L16_only_dead_claims_are_cleared(world: World, runner: str) -> None:
    living = f"{runner}-b"
    world.live(living)
    tasks = []
    for number in range(6):
        task = world.add(f"Number {number}")
        answer = world.acquire(task, slot=f"s{number}", runner=living if number % 2 else runner)
        assert isinstance(answer, Claimed)
        tasks.append(task)
    dead(world, runner)
    world.sweep()
    states = [world.state(task) for task in tasks]
    assert states == [State.OPEN, State.CLAIMED] * 3


def test_W10_a_slot_that_another_process_has_is_left_alone(world: World, runner: str) -> None:
    agent = holder(world, runner).write("one.txt", "one\n").commit()
    code = (
        "import fcntl, os, sys, time; fd = os.open(sys.argv[1], os.O_RDWR);"
        "fcntl.flock(fd, fcntl.LOCK_EX); print('ok', flush=True); time.sleep(600)"
    )
    let_go(agent)
    flock = world.layout.slots / "s1.flock"
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(flock)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None and other.stdout.readline() == "ok\n"
        dead(world, runner)
        report = world.sweep()
        assert report.expired and not report.rescued
        assert (agent.tree / "one.txt").read_text() == "one\n"
    finally:
        other.kill()
        other.wait()
        assert other.stdout is not None
        other.stdout.close()
    # Whoever opens it next keeps what lies in it, under the task and token of its own nonce.
    world.agent(world.add("Next"), slot="s1")
    kept = world.hub.refs_below(f"{RESCUE}/{agent.mine.task}")
    assert [world.file("one.txt", oid) for oid in kept.values()] == ["one\n"]
    assert list(kept) == [f"{RESCUE}/{agent.mine.task}/1-1"]


def test_D4_D7_when_saving_fails_everything_is_kept(
    world: World, runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = holder(world, runner).write("one.txt", "one\n").commit()
    let_go(agent)
    dead(world, runner)

    def fail(*_: object) -> object:
        raise GitFault("git commit-tree failed", why="no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(reconcile, "capture", fail)
        report = world.sweep()
        assert report.kept and "s1" in report.kept[0]
        slot = Slot.take(world.layout.slots, "s1", world.hub)
        assert slot is not None
        world.slots.append(slot)
        with pytest.raises(GitFault):
            rescue_leftovers(world.ledger, slot, world.rules)
    assert (agent.tree / "one.txt").read_text() == "one\n", "nothing was deleted"
    assert rescue_leftovers(world.ledger, slot, world.rules), "and it is kept when that is possible"


def test_M18_A1_what_is_committed_after_the_seal_is_rescued_and_never_lands(
    world: World,
) -> None:
    task = world.add("Sealed")
    agent = world.agent(task).write("one.txt", "one\n").commit()
    agent.seal()
    agent.write("late.txt", "late\n").commit("too late")
    late = agent.git("rev-parse", "HEAD")
    agent.slot.is_saved = False
    world.work_gate()
    assert world.state(task) is State.LANDED and world.file("late.txt") is None
    answer = world.acquire(task)
    assert not isinstance(answer, Claimed), "a task that has landed is never started again"
    world.agent(world.add("Next"), slot="s1")
    assert late in world.hub.refs_below(f"{RESCUE}/{task}").values()
    assert world.events(task)[-1] == "rescued"


def test_L6_unmerged_paths_extend_a_silent_claim_three_times_and_no_more(world: World) -> None:
    lines = "".join(f"{n}\n" for n in range(20))
    world.push("f.txt", lines)
    task = world.add("Merging")
    agent = world.agent(task).write("f.txt", lines.replace("10\n", "mine\n")).commit()
    world.land("Other", "f.txt", lines.replace("10\n", "other\n"), slot="s2")
    agent.seal()
    world.work_gate()
    again = world.agent(task)
    assert again.opened.conflicted == ("f.txt",)
    for number in range(1, 4):
        world.clock.pass_(minutes=15 * number + 1)
        report = world.sweep()
        assert [e.extensions for e in report.extended] == [number], report
    world.clock.pass_(minutes=61)
    report = world.sweep()
    assert [e.task for e in report.expired] == [task]
    assert world.events(task).count("extended") == 3


def test_a_living_but_silent_runner_is_expired_by_age_with_its_reason(world: World) -> None:
    task = world.add("Silent")
    world.acquire(task)
    world.live()
    world.clock.pass_(minutes=10)
    assert not world.sweep().expired
    world.clock.pass_(minutes=6)
    report = world.sweep()
    assert [e.why for e in report.expired] == ["last heartbeat 960 s ago"]
    attempts = world.ledger.view().attempts(task)
    assert attempts is not None and attempts.expiries == 1 and not attempts.strikes


def test_settling_is_for_the_gate_alone_and_needs_a_landing(world: World) -> None:
    claim = take_gate(world.ledger, "r1-test", timedelta(minutes=15), None)
    assert isinstance(claim, GateClaim)
    assert settle(world.ledger, claim) is None
    foreign = GateClaim(claim.token, "another", claim.runner)
    assert isinstance(settle(world.ledger, foreign), GateLost)


def test_W11_a_worktree_gone_from_disk_stops_nothing(world: World, runner: str) -> None:
    agent = holder(world, runner).write("one.txt", "one\n").commit()
    head = agent.git("rev-parse", "HEAD")
    let_go(agent)
    shutil.rmtree(agent.tree)
    dead(world, runner)
    assert world.sweep().expired
    ref = world.hub.reader.ref(work_ref(agent.mine.task, 1))
    assert ref is not None and world.hub.contains(ref, head), "its commits were not in there"
    assert isinstance(world.agent(agent.mine.task), Agent)


def test_an_empty_ledger_is_swept_in_no_time(tmp_path: Path) -> None:
    made = World(tmp_path)
    try:
        assert made.sweep() == reconcile.Report()
    finally:
        made.close()
