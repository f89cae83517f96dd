"""Whole small runs in this process: how they end, and that nothing is left behind.

Enters: a world, some tasks, an agent that is a shell script. Leaves: an end with its exit code.
Guards: every run ends; no process, no claim and no unsaved work outlives it.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from swarm import loop as loops
from swarm import overview
from swarm import supervisor as supervisors
from swarm.breaker import Breaker
from swarm.errors import Exit, GitFault, TargetRed
from swarm.gate import Gate
from swarm.ledger import records
from swarm.ledger.clock import SystemClock
from swarm.ledger.view import State
from swarm.loop import Idle
from swarm.overview.disk import folder_bytes
from swarm.plumbing.hub import LEDGER
from swarm.reconcile import rescue_leftovers
from swarm.slot import Slot
from swarm.supervisor import End, Supervisor
from swarm.workspace import Workspace
from tests.test_invariants import forge
from tests.world import World

WORK = 'echo done > "$SWARM_TASK.txt"; git add -A; git commit -qm work'


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Worlds with a real clock, closed at the end."""
    made: list[World] = []

    def build(config: str = "", **keys: Any) -> World:
        world = World(tmp_path, config=config, **keys)
        world.ledger.clock = SystemClock()
        made.append(world)
        return world

    yield build
    for world in made:
        world.close()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "GAP_SECONDS", 0.0)
    monkeypatch.setattr(loops, "IDLE_SECONDS", 0.1)


def supervise(world: World, script: str, slots: int = 2, **keys: Any) -> Supervisor:
    seat = world.seat(script, adapter=keys.pop("adapter", None))
    setting = world.setting(**keys)
    gate = Gate(
        world.ledger,
        world.layout,
        world.config,
        world.app,
        setting.runner,
        rules=world.rules,
        bounds=world.bounds,
        lease=world.config.claims.lease,
    )
    bounds = world.bounds
    breaker = Breaker(world.layout.limits, bounds.backoff, bounds.backoff_max)
    return Supervisor(setting, gate, (seat,) * slots, idle=Idle(breaker=breaker))


def run(supervisor: Supervisor, limit: float = 60.0) -> End:
    """Run to the end; what hangs is stopped and fails the test."""
    deadline = time.monotonic() + limit
    hung = threading.Event()

    def on_tick() -> None:
        if time.monotonic() > deadline and not hung.is_set():
            hung.set()
            supervisor.stop_now()

    end = supervisor.run(on_tick)
    assert not hung.is_set(), (end, supervisor.faults)
    return end


def alive(mark: str) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if mark in " ".join(process.info["cmdline"] or ())
    ]


def test_a_run_lands_everything_and_ends_with_0(make: Callable[..., World]) -> None:
    world = make()
    for number in range(3):
        world.add(f"Task {number}", needs=[f"task-{number - 1}"] if number == 2 else [])
    supervisor = supervise(world, WORK)
    assert run(supervisor) == End(Exit.YES, "all landed")
    world.step()
    assert all(world.file(f"task-{n}.txt") == "done\n" for n in range(3))
    (told,) = world.ledger.view().runs()
    assert (told.state, told.why, told.slots) == ("ended", "all landed", 2)
    gate = world.ledger.view().gate()
    assert gate is not None
    assert gate.runner is None, "the gate is left for the next run"
    for name in ("s1", "s2"):
        slot = Slot.take(world.layout.slots, name, world.hub)
        assert slot is not None, "and its slots too"
        slot.close()


def test_a_run_that_parks_something_ends_with_1(make: Callable[..., World]) -> None:
    world = make()
    world.add("Lazy", strikes=1)
    world.add("Blocked", needs=["lazy"])
    end = run(supervise(world, "exit 0"))
    assert end == End(Exit.NO, "nothing left that can move")
    assert world.state("lazy") is State.PARKED


def test_a_run_waits_for_back_off_and_goes_on(make: Callable[..., World]) -> None:
    world = make('[limits]\nbackoff = "1s"\ngrace = "1s"\n')
    world.add("Twice")
    end = run(supervise(world, f'test "$SWARM_ATTEMPT" = 2 || exit 1; {WORK}'))
    assert end.exit_code is Exit.YES
    assert world.events("twice").count("claimed") == 2


def test_a_run_never_ends_at_the_second_a_back_off_ends(make: Callable[..., World]) -> None:
    world = make('[limits]\nbackoff = "1s"\nstrikes = 3\n')
    tasks = [world.add(f"Red {number}") for number in range(2)]
    end = run(supervise(world, "exit 3"))
    assert end.why == "nothing left that can move"
    assert [world.state(task) for task in tasks] == [State.PARKED] * 2, "all strikes were used"
    assert all(world.events(task).count("claimed") == 3 for task in tasks)


def test_what_a_slot_waits_for_does_not_hold_up_the_end(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "GAP_SECONDS", 300.0)
    monkeypatch.setattr(loops, "MAX_GAP_SECONDS", 300.0)
    world = make('[limits]\nbackoff = "0s"\nstrikes = 1\n')
    task = world.add("Red")
    assert run(supervise(world, "exit 3"), limit=20).exit_code is Exit.NO
    assert world.state(task) is State.PARKED


def test_a_red_target_opens_its_repair_before_anything_is_claimed(
    make: Callable[..., World],
) -> None:
    world = make(files={"bad.txt": "RED\n"}, config="[limits]\nstrikes = 1\n")
    world.add("Other")
    supervisor = supervise(world, "exit 3", slots=1)
    with pytest.raises(TargetRed):
        supervisor.judge_target()
    run(supervisor)
    kinds = [(e.kind, e.task) for e in reversed(list(world.ledger.iter_log()))]
    claimed = [task for kind, task in kinds if kind == "claimed"]
    assert claimed[0] == "fix-main", "what repairs the target comes first"


@pytest.mark.parametrize("path", [records.attempts_path, records.lock_path])
@pytest.mark.parametrize("data", [b"{", None, b"{}\n"])
@pytest.mark.parametrize("is_queued", [True, False])
def test_M20_a_run_ends_although_a_task_is_damaged(
    make: Callable[..., World],
    path: Callable[[str], str],
    data: bytes | None,
    is_queued: bool,
) -> None:
    world = make()
    bad = world.add("Bad", priority=1)
    agent = world.agent(bad, slot="s9", runner="r9-other").write("damaged.txt", "x\n")
    if is_queued:
        agent.seal()
    world.live("r9-other")
    world.add("Good")
    forge(world, "by hand", {path(bad): data})
    end = run(supervise(world, WORK, slots=1), limit=30)
    if path is records.lock_path and data is None and not is_queued:
        assert end.exit_code is Exit.YES, "without its lock it is open, and is done anew"
    else:
        assert end == End(Exit.NO, "nothing left that can move")
        work = Workspace(world.app, world.config, world.layout, world.ledger)
        needs = [need.task for need in overview.status(work).needs_you if need.kind == "damaged"]
        assert needs == [bad], "status names it"
    assert world.state("good") is State.LANDED, "and nobody else is kept back"
    assert world.file("damaged.txt") is None


def test_not_logged_in_ends_the_run_with_15(make: Callable[..., World]) -> None:
    world = make()
    for number in range(3):
        world.add(f"Task {number}")
    end = run(supervise(world, "exit 77"))
    assert end.exit_code is Exit.LIMITED
    assert end.why.startswith("not logged in: ")
    view = world.ledger.view()
    assert list(view.locks()) == []
    assert all(not a.strikes for n in range(3) if (a := view.attempts(f"task-{n}")))


def test_A13_a_provider_limit_is_waited_out_with_few_starts(make: Callable[..., World]) -> None:
    world = make('[limits]\nbackoff = "1s"\nbackoff_max = "1s"\ngrace = "1s"\n')
    for number in range(4):
        world.add(f"Task {number}")
    until = time.time() + 2
    end = run(supervise(world, f'test "$(date +%s)" -ge {int(until) + 1} || exit 75; {WORK}'))
    assert end.exit_code is Exit.YES
    starts = world.events().count("claimed")
    assert starts <= 4 + 2 * 4, f"{starts} starts: each loop at most once per pause"


def test_setup_failing_twice_ends_the_run_and_says_so(make: Callable[..., World]) -> None:
    world = make("[worktree]\nsetup = 'case $PWD in */slots/*) exit 9;; esac'\n")
    for number in range(5):
        world.add(f"Task {number}")
    end = run(supervise(world, WORK))
    assert end.exit_code is Exit.NO
    assert end.why.startswith("setup failed ")
    assert end.why.endswith(" times in a row: exit code 9")
    assert world.events().count("claimed") <= 3, "the other loop may have claimed just then"


def test_draining_lets_attempts_finish(make: Callable[..., World], tmp_path: Path) -> None:
    world = make()
    for number in range(6):
        world.add(f"Task {number}")
    wait = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    script = f"touch {tmp_path}/$SWARM_TASK.ready; {wait}; {WORK}"
    supervisor = supervise(world, script)

    def drain() -> None:
        while len(list(tmp_path.glob("*.ready"))) < 2:
            time.sleep(0.02)
        supervisor.drain()
        (tmp_path / "go").touch()

    thread = threading.Thread(target=drain)
    thread.start()
    end = run(supervisor)
    thread.join()
    assert end == End(Exit.INTERRUPTED, "stopped by a person")
    assert world.events().count("sealed") == 2
    assert world.events().count("claimed") == 2


def test_stopping_now_ends_every_process_and_keeps_the_work(
    make: Callable[..., World], tmp_path: Path
) -> None:
    world = make()
    world.add("One")
    world.add("Two")
    script = f"{WORK}; echo more > more.txt; touch {tmp_path}/$SWARM_TASK.ready; sleep 71.25"
    supervisor = supervise(world, script)

    def stop() -> None:
        while len(list(tmp_path.glob("*.ready"))) < 2:
            time.sleep(0.02)
        supervisor.stop_now()

    thread = threading.Thread(target=stop)
    thread.start()
    end = run(supervisor)
    thread.join()
    assert end.exit_code is Exit.INTERRUPTED
    assert not alive("sleep 71.25")
    view = world.ledger.view()
    assert list(view.locks()) == []
    for task in ("one", "two"):
        known = view.attempts(task)
        assert known is not None
        assert known.work is not None
        assert world.file("more.txt", known.work.head) == "more\n"


def test_a_fault_of_git_in_a_loop_is_told_and_the_run_goes_on(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make()
    world.add("One")
    real, left = loops.seal, [2]

    def faulty(*args: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise GitFault("no space left")
        return real(*args)

    monkeypatch.setattr(loops, "seal", faulty)
    monkeypatch.setattr(loops, "FIRST_RETRY_SECONDS", 0.05)
    assert run(supervise(world, WORK)).exit_code is Exit.YES


def test_a_bug_in_a_thread_ends_the_run_and_its_agents(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world = make()
    world.add("One")
    supervisor = supervise(world, f"touch {tmp_path}/ready; sleep 72.25", slots=1)

    def broken() -> bool:
        if not (tmp_path / "ready").exists():
            return False
        raise ZeroDivisionError

    monkeypatch.setattr(supervisor.gate, "tick", broken)
    with pytest.raises(ZeroDivisionError):
        run(supervisor)
    assert not alive("sleep 72.25")
    assert world.state("one") is State.OPEN, "its claim went back"


def test_a_red_target_is_named_before_anything_starts(make: Callable[..., World]) -> None:
    world = make(files={"README.md": "RED\n"})
    world.add("One")
    supervisor = supervise(world, WORK)
    with pytest.raises(TargetRed, match="is red: tests failed"):
        supervisor.judge_target()
    supervisor.gate.close()
    assert "claimed" not in world.events()


def test_teardown_runs_for_every_slot_that_worked(
    make: Callable[..., World], tmp_path: Path
) -> None:
    world = make(f'[worktree]\nteardown = "echo $SWARM_SLOT >> {tmp_path}/down; exit 1"\n')
    world.add("One")
    supervisor = supervise(world, WORK, slots=1)
    assert run(supervisor).exit_code is Exit.YES, "a failing teardown fails nothing"
    assert (tmp_path / "down").read_text() == "s1\n"
    assert any("teardown failed in s1" in line for line in supervisor.faults)


def test_W11_over_max_total_idle_worktrees_go_and_work_stays(
    make: Callable[..., World],
) -> None:
    world = make('[worktree]\nmax_total = "1KiB"\n')
    free = world.agent(world.add("Left"), slot="s7").write("unsaved.txt", "u")
    free.end()
    idle = world.agent(world.add("Dirty"), slot="s8").write("dirty.txt", "d")
    by_hand = world.agent(world.add("By hand"), slot="h1", runner="hand-me").write("h.txt", "h")
    idle.end()
    by_hand.slot.close()
    idle.slot.close()
    free.slot.close()
    before = folder_bytes(world.layout.slots)
    supervisor = supervise(world, WORK, slots=1)
    supervisor._keep_cap()
    assert folder_bytes(world.layout.slots) < before
    assert not free.tree.exists()
    assert not idle.tree.exists()
    assert (by_hand.tree / "h.txt").exists(), "a claim by hand works there"
    refs = world.hub.refs_below("refs/swarm/work")
    assert {world.file("unsaved.txt", oid) for oid in refs.values()} >= {"u"}
    assert supervisor.idle.is_over_cap, "loops let go of their own when they are idle"


def test_W11_below_max_total_nothing_is_removed(make: Callable[..., World]) -> None:
    world = make()
    agent = world.agent(world.add("Kept"))
    agent.slot.close()
    supervisor = supervise(world, WORK)
    supervisor._keep_cap()
    assert agent.slot.record.exists()
    assert not supervisor.idle.is_over_cap


def test_a_slot_that_another_process_has_is_passed_over(make: Callable[..., World]) -> None:
    world = make()
    world.add("One")
    taken = world.slot("s1")
    assert run(supervise(world, WORK, slots=1)).exit_code is Exit.YES
    lock_slots = [e.message.trailers.get("Swarm-Slot") for e in world.ledger.iter_log()]
    assert "s2" in lock_slots
    assert "s1" not in lock_slots
    assert rescue_leftovers(world.ledger, taken, world.rules) == []


def test_an_idle_run_writes_nothing(make: Callable[..., World]) -> None:
    world = make()
    supervisor = supervise(world, WORK)
    supervisor.keep_going = True
    tips: list[str | None] = []

    def on_tick() -> None:
        tips.append(world.hub.reader.ref(LEDGER))
        if len(tips) == 12:
            supervisor.drain()

    assert supervisor.run(on_tick).exit_code is Exit.INTERRUPTED
    assert len(set(tips[5:12])) == 1, "no event while nothing happens"
    assert supervisors.SWEEP_SECONDS > 1


def test_a_slot_in_which_an_unknown_daemon_works_is_passed_over(make: Callable[..., World]) -> None:
    world = make()
    task = world.add("Work")
    world.slot("s1").tree.mkdir(parents=True)
    world.slot("s1").close()
    tree = world.layout.slots / "s1"
    daemon = subprocess.Popen(
        ["sleep", "60"], cwd=tree, env={}, start_new_session=True, stdin=subprocess.DEVNULL
    )
    try:
        supervisor = supervise(world, WORK, slots=1)
        assert run(supervisor).exit_code is Exit.YES
        claims = [e for e in world.ledger.iter_log() if e.kind == "claimed"]
        assert [e.message.trailers["Swarm-Slot"] for e in claims] == ["s2"]
        assert str(daemon.pid) in supervisor.faults[0]
        assert daemon.poll() is None, "nobody ends what nobody knows"
        assert world.state(task) is State.LANDED
    finally:
        daemon.kill()
        daemon.wait()
