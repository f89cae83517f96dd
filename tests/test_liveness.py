"""Who is alive, by the first rule that applies; what happens to the claims of those who are not."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from swarm import claim as claims
from swarm import task
from swarm.change import Sealed, save
from swarm.claim import Claimed, Ending, Expired, Fenced, NotExpired, NothingClaimable
from swarm.ledger import records
from swarm.ledger.records import Lock
from swarm.ledger.store import Ledger
from swarm.ledger.view import State
from swarm.liveness import (
    Holder,
    Seen,
    Sign,
    alive_path,
    beat,
    is_flock_free,
    read_beats,
    signs,
)
from swarm.plumbing.hub import BEATS, work_ref
from swarm.reconcile import rescue_leftovers
from tests.world import Agent, TickingClock, World, git

HOLD_FLOCK = """
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
fcntl.flock(fd, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


@contextmanager
def runner_process(world: World, runner: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the runner's flock until it dies."""
    world.layout.runs.mkdir(parents=True, exist_ok=True)
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD_FLOCK, str(alive_path(world.layout.runs, runner))],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def held(world: World, name: str, **keys: str) -> Lock:
    answer = world.acquire(name, **keys)  # type: ignore[arg-type]
    assert isinstance(answer, Claimed), answer
    return answer.lock


def sign_of(world: World, lock: Lock, ledger: Ledger | None = None) -> Sign:
    """What a cold one-shot process says of a claim's holder."""
    seen = ledger or world.ledger
    holder = Holder(lock.nonce, lock.runner, lock.boot_id, lock.claimed_monotonic_seconds)
    cache = world.layout.cache
    return signs(seen.hub, [holder], world.layout.runs, cache, seen.clock)[lock.nonce]


def far_clock() -> TickingClock:
    clock = TickingClock()
    clock.boot = "another-host"
    clock.pass_(days=400)  # its monotonic clock says nothing here
    return clock


def claim_from(ledger: Ledger, world: World, name: str, runner: str) -> Lock:
    answer = claims.acquire(ledger, world.who("far", runner), world.terms, name)
    assert isinstance(answer, Claimed), answer
    return answer.lock


def lose(agent: Agent) -> None:
    """Its process dies: nothing holds the slot any more."""
    agent.slot.close()


# T10: each rule


def test_T10_a_dead_runner_is_known_by_its_free_flock_at_once(world: World) -> None:
    with runner_process(world, "r1-x") as child:
        lock = held(world, world.add("t"), runner="r1-x")
        assert not sign_of(world, lock).is_gone
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert sign_of(world, lock) == Sign(float("inf"), "flock")
    report = world.sweep()
    assert [e.why for e in report.expired] == ["its runner is gone"]


def test_T10_a_stopped_runner_holds_its_flock_and_is_judged_by_its_beats(world: World) -> None:
    with runner_process(world, "r1-x") as child:
        child.send_signal(signal.SIGSTOP)
        lock = held(world, world.add("t"), runner="r1-x")
        world.clock.pass_(minutes=14)
        assert world.sweep().expired == [], "a held flock proves nothing, and the lease still runs"
        world.clock.pass_(minutes=2)
        assert sign_of(world, lock) == Sign(16 * 60.0, "beat")
        report = world.sweep()
        assert [e.why for e in report.expired] == ["last heartbeat 960 s ago"]


def test_T10_beats_keep_a_claim_for_as_long_as_they_come(world: World) -> None:
    world.live("r1-x")
    lock = held(world, world.add("t"), runner="r1-x")
    for _ in range(6):
        world.clock.pass_(minutes=10)
        assert beat(world.hub, "r1-x", world.clock)
        assert sign_of(world, lock) == Sign(0.0, "beat")
        assert world.sweep().expired == []


def test_T10_a_one_shot_claim_is_measured_exactly_by_cold_processes(world: World) -> None:
    """No process of a claim by hand lives on, and each one that looks has never looked before."""
    lock = held(world, world.add("t"), runner="hand-k7")
    assert is_flock_free(alive_path(world.layout.runs, "hand-k7")) is None
    for minutes in (1, 5, 8):
        world.clock.pass_(minutes=minutes)
        assert sign_of(world, lock, world.other()).rule == "beat"
    assert sign_of(world, lock, world.other()) == Sign(14 * 60.0, "beat")
    beat(world.hub, "hand-k7", world.clock)  # what every command typed there does
    world.clock.pass_(minutes=14)
    assert world.sweep().expired == []
    world.clock.pass_(minutes=2)
    assert len(world.sweep().expired) == 1


def test_T10_a_suspended_laptop_expires_nothing(world: World) -> None:
    lock = held(world, world.add("t"), runner="hand-k7")
    world.clock.suspend(days=3)
    assert sign_of(world, lock) == Sign(0.0, "beat"), "its lease stood still with it"
    assert world.sweep().expired == [] and world.state("t") is State.CLAIMED


@pytest.mark.parametrize("hours", [-48, 48])
def test_T10_a_wall_clock_that_jumps_neither_kills_nor_keeps(world: World, hours: int) -> None:
    held(world, world.add("t"), runner="hand-k7")
    world.clock.suspend(hours=hours)
    assert world.sweep().expired == [], "no wall clock kills"
    world.clock.pass_(minutes=16)
    assert len(world.sweep().expired) == 1, "no wall clock keeps"


def test_T10_after_a_reboot_a_runner_of_this_disk_is_dead_at_once(world: World) -> None:
    world.live("r1-x").close()
    lock = held(world, world.add("t"), runner="r1-x")
    world.clock.reboot()
    assert sign_of(world, lock).is_gone
    assert len(world.sweep().expired) == 1


def test_T10_another_hosts_runner_is_judged_by_observation(world: World) -> None:
    clock = far_clock()
    far = world.other(clock)
    lock = claim_from(far, world, world.add("t"), "r9-far")
    beat(far.hub, "r9-far", clock)
    assert sign_of(world, lock) == Sign(0.0, "observed"), "never seen before is age 0"
    world.clock.pass_(minutes=14)
    assert sign_of(world, lock) == Sign(14 * 60.0, "observed")
    clock.suspend(days=-3)
    clock.pass_(seconds=1)
    beat(far.hub, "r9-far", clock)
    assert sign_of(world, lock) == Sign(0.0, "observed"), "a new beat, whatever its clock says"
    world.clock.pass_(minutes=14)
    assert world.sweep().expired == []
    world.clock.pass_(minutes=2)
    report = world.sweep()
    assert [e.why for e in report.expired] == ["no heartbeat seen for 960 s"]


def test_T10_observations_survive_others_who_ask_about_other_runners(world: World) -> None:
    """The sweep asks about claims, the gate about the gate, both of one file."""
    far = world.other(far_clock())
    first = claim_from(far, world, world.add("one"), "r8-far")
    second = claim_from(far, world, world.add("two"), "r9-far")
    for _ in range(4):
        sign_of(world, first)
        sign_of(world, second)
        world.clock.pass_(minutes=4)
    assert sign_of(world, first) == Sign(16 * 60.0, "observed")
    assert sign_of(world, second) == Sign(16 * 60.0, "observed")
    assert len(world.sweep().expired) == 2


def test_T10_observations_of_another_boot_count_for_nothing(world: World) -> None:
    far = world.other(far_clock())
    lock = claim_from(far, world, world.add("t"), "r9-far")
    sign_of(world, lock)
    world.clock.reboot()
    world.clock.pass_(minutes=30)
    assert sign_of(world, lock) == Sign(0.0, "observed")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"boot_id": "boot-1"}', '{"boot_id": "boot-1", "first": 3}']
)
def test_a_broken_observation_file_only_makes_everything_younger(tmp_path: Path, text: str) -> None:
    place = tmp_path / "seen.json"
    place.write_text(text, "utf-8")
    assert Seen(place, TickingClock()).age({"n": "b"}) == {"n": 0.0}
    assert json.loads(place.read_text("utf-8"))["first"] == {"n:b": 1000.0}


def test_ended_claims_are_forgotten_in_time(tmp_path: Path) -> None:
    clock = TickingClock()
    seen = Seen(tmp_path / "seen.json", clock)
    seen.age({"old": "b"})
    clock.pass_(days=8)
    seen.age({"new": "b"})
    assert list(json.loads((tmp_path / "seen.json").read_text())["first"]) == ["new:b"]


def test_T10_a_gate_that_restarts_every_few_seconds_is_never_taken_from(world: World) -> None:
    """Each life of it has a new runner name; whoever looks sees the newest one alive."""
    for life in range(5):
        runner = f"r{life}-gate"
        alive = world.live(runner)
        gate = world.gate(runner)
        world.work_gate(runner)
        assert gate.claim is not None, "it takes over from its own dead past at once"
        assert world.gate("r99-other").tick() is False, "nobody takes it from the living"
        world.clock.pass_(seconds=5)
        gate.abandon()
        alive.close()
    assert world.events().count("gate-taken") == 5


def test_T10_a_hanging_gate_is_taken_over_after_its_lease(world: World) -> None:
    world.live("r1-hangs")
    world.work_gate("r1-hangs")
    world.clock.pass_(minutes=14)
    other = world.gate("r2-other")
    assert other.tick() is False and other.claim is None
    world.clock.pass_(minutes=2)
    world.work_gate("r2-other")
    assert other.claim is not None
    hung = world.gate("r1-hangs")
    hung.tick()
    assert hung.claim is None, "when it wakes it is fenced"


def test_two_who_look_at_a_flock_do_not_see_each_other(world: World) -> None:
    path = world.live("r1-x").path
    assert is_flock_free(path) is False
    world.alive[0].close()
    looking = os.open(path, os.O_RDWR)
    fcntl.flock(looking, fcntl.LOCK_SH)
    assert is_flock_free(path) is True
    os.close(looking)


# Beats


def test_beats_leave_no_history_and_no_log(world: World) -> None:
    for _ in range(3):
        world.clock.pass_(seconds=1)
        assert beat(world.hub, "r1-x", world.clock)
    tip = world.hub.reader.ref(f"{BEATS}/r1-x")
    assert tip is not None and b"\nparent " not in world.hub.reader.commit(tip)
    assert not (world.layout.hub / "logs" / BEATS / "r1-x").exists()


def test_a_heartbeat_fails_open_when_the_turn_does_not_come(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.plumbing.refs.TURN_SECONDS", 0.05)
    with world.other().hub.turn.held():
        assert beat(world.hub, "r1-x", world.clock) is False
    assert beat(world.hub, "r1-x", world.clock) is True


def test_an_unreadable_beat_is_left_out_and_the_others_count(world: World) -> None:
    beat(world.hub, "r1-x", world.clock)
    git(world.layout.hub, "update-ref", f"{BEATS}/r2-y", world.main)
    assert list(read_beats(world.hub)) == ["r1-x"]


# L: leases and recovery


def test_L1_a_killed_loops_task_is_claimable_again_and_the_log_says_why(world: World) -> None:
    name = world.add("t")
    with runner_process(world, "r1-x") as child:
        held(world, name, runner="r1-x")
        beat(world.hub, "r1-x", world.clock)
        child.kill()
        child.wait()
        world.sweep()
    answer = world.acquire(name, runner="r2")
    assert isinstance(answer, Claimed) and answer.lock.token == 2
    said = next(e.message.body for e in world.ledger.iter_log() if e.kind == "expired")
    assert said == "its runner is gone"


def test_L2_a_claim_of_the_first_second_is_safe_from_a_sweep_with_a_cold_cache(
    world: World,
) -> None:
    held(world, world.add("t"), runner="r1-never-beat")
    world.ledger.index.close()
    for path in world.layout.cache.iterdir():
        path.unlink()
    assert world.sweep().expired == [] and world.state("t") is State.CLAIMED


def test_L2_a_claim_is_expired_only_as_it_was_judged(world: World) -> None:
    """Judged, then given back and claimed anew before the expiry is written."""
    name = world.add("t")
    old = held(world, name)
    old_id = world.ledger.view().blob_id(records.lock_path(name))
    assert old_id is not None
    claims.release(world.ledger, claims.Mine.of(old), Ending("stopped", ""), world.bounds)
    new = held(world, name)
    answer = claims.expire(world.ledger, old, old_id, "silent", world.bounds, runner_gone=False)
    assert isinstance(answer, NotExpired)
    assert world.ledger.view().lock(name) == new


def test_L4_a_zombies_late_seal_is_refused_and_its_work_is_kept(world: World) -> None:
    name = world.add("t")
    a = world.agent(name, slot="s1", runner="r1-asleep").write("src/a.txt", "A\n").commit()
    world.clock.pass_(minutes=16)
    world.sweep()
    b = world.agent(name, slot="s2", runner="r2")
    assert b.claimed.lock.token == 2
    a.write("src/late.txt", "after the expiry\n").commit("late")
    late = git(a.tree, "rev-parse", "HEAD")
    before = world.events()
    answer = a.seal()
    assert isinstance(answer, Fenced)
    assert (answer.token, answer.now) == (1, "claimed again as attempt 2")
    assert world.events() == before, "nothing outside its slot has changed"
    refs = rescue_leftovers(world.ledger, a.slot, world.rules)
    assert [world.hub.reader.ref(ref) for ref in refs] == [late], "and nothing of it is lost"
    assert refs == [f"refs/swarm/rescue/{name}/1-1"]
    b.write("src/b.txt", "B\n").seal()
    world.work_gate()
    assert world.state(name) is State.LANDED and world.file("src/late.txt") is None


def test_L4_a_zombies_late_release_changes_nothing_and_its_work_is_kept(world: World) -> None:
    name = world.add("t")
    a = world.agent(name, slot="s1", runner="r1-asleep")
    world.clock.pass_(minutes=16)
    world.sweep()
    a.write("src/late.txt", "late\n")
    assert isinstance(a.end("agent_failed"), Fenced)
    attempts = world.ledger.view().attempts(name)
    assert attempts is not None and attempts.strikes == [] and attempts.work is None
    refs = rescue_leftovers(world.ledger, a.slot, world.rules)
    assert len(refs) == 1 and world.file("src/late.txt", world.hub.reader.ref(refs[0])) == "late\n"


def conflicted(world: World, runner: str) -> Agent:
    """An agent whose worktree was opened with markers in it."""
    name = world.add("t")
    world.agent(name).write("src/a.txt", "mine\n").commit().seal()
    world.push("src/a.txt", "theirs\n")
    world.work_gate()
    assert world.state(name) is State.OPEN, "ejected for its conflict"
    agent = world.agent(name, runner=runner)
    assert agent.opened.conflicted == ("src/a.txt",)
    return agent


def test_L6_unmerged_paths_extend_a_lease_at_most_three_times(world: World) -> None:
    agent = conflicted(world, "r1-silent")
    lease = agent.claimed.lock.lease_seconds
    for number in (1, 2, 3):
        world.clock.pass_(seconds=lease + 1)
        report = world.sweep()
        assert [e.extensions for e in report.extended] == [number] and report.expired == []
        assert world.sweep().extended == [], "once for each lease"
    world.clock.pass_(seconds=lease + 1)
    report = world.sweep()
    assert len(report.expired) == 1 and world.state("t") is State.OPEN
    assert world.events("t").count("extended") == 3, "each one is in the log"


def test_L6_a_dead_runner_gets_no_extension(world: World) -> None:
    alive = world.live("r1-dies")
    lose(conflicted(world, "r1-dies"))
    alive.close()
    report = world.sweep()
    assert report.extended == [] and len(report.expired) == 1


def test_L7_an_agent_that_dies_at_once_is_parked_after_three_strikes(world: World) -> None:
    name = world.add("t")
    for number in (1, 2, 3):
        world.agent(name).end("agent_failed", f"exit code {number}")
    assert world.state(name) is State.PARKED
    parked = world.ledger.view().parked(name)
    assert parked is not None and parked.reason == "strikes"
    assert [(s.token, s.reason) for s in parked.strikes] == [
        (1, "agent_failed"),
        (2, "agent_failed"),
        (3, "agent_failed"),
    ]
    assert parked.message == "3 strikes: agent failed 3 times"
    assert world.events(name)[-2:] == ["released", "parked"], "in the same move"


def test_L7_three_silent_expiries_in_a_row_park_too(world: World) -> None:
    name = world.add("t")
    for _ in range(3):
        held(world, name, runner="r1-silent")
        world.clock.pass_(minutes=16)
        world.sweep()
    parked = world.ledger.view().parked(name)
    assert parked is not None and parked.reason == "expiries"


def test_killed_runners_never_park_a_task(world: World) -> None:
    name = world.add("t")
    for number in range(5):
        world.live(f"r{number}").close()
        held(world, name, runner=f"r{number}")
        assert len(world.sweep().expired) == 1
    assert world.state(name) is State.OPEN, "a killed runner is nobody's fault"


def test_L9_the_next_attempt_has_the_commits_of_the_one_that_died(world: World) -> None:
    name = world.add("t")
    alive = world.live("r1-dies")
    a = world.agent(name, runner="r1-dies")
    for number in (1, 2, 3):
        a.write("src/a.txt", f"step {number}\n").commit(f"step {number}")
    a.write("src/new.txt", "not committed\n")
    lose(a)
    alive.close()
    world.sweep()
    attempts = world.ledger.view().attempts(name)
    assert attempts is not None and attempts.work is not None and attempts.last is not None
    assert attempts.work.ref == work_ref(name, 1), "the branch is named"
    assert attempts.last.outcome == "expired" and attempts.last.message == "its runner is gone"
    b = world.agent(name, slot="s2", runner="r2")
    assert b.claimed.lock.start == attempts.work.head
    log = b.git("log", "--format=%s", f"{b.claimed.lock.base}..HEAD").split("\n")
    assert log[-3:] == ["step 3", "step 2", "step 1"]
    assert (b.tree / "src/new.txt").read_text() == "not committed\n"


def test_L10_strikes_are_cleared_by_success(world: World) -> None:
    name = world.add("t")
    for _ in range(2):
        world.agent(name).end()
    before = world.ledger.view().attempts(name)
    assert before is not None and len(before.strikes) == 2
    world.agent(name).write("src/a.txt", "done\n").seal()
    world.work_gate()
    after = world.ledger.view().attempts(name)
    assert after is not None and (after.strikes, after.conflicts, after.expiries) == ([], 0, 0)
    assert after.token == before.token + 1, "only the token goes on"


def test_L11_a_dirty_leftover_is_rescued_and_a_clean_one_reused(world: World) -> None:
    first = world.add("first")
    second = world.add("second")
    third = world.add("third")
    alive = world.live("r1-dies")
    a = world.agent(first, runner="r1-dies").write("src/half.txt", "half\n")
    task.cancel(world.ledger, first, "not wanted", "a person")
    lose(a)
    alive.close()
    b = world.agent(second, runner="r2")
    assert not b.opened.is_new and not (b.tree / "src/half.txt").exists()
    kept = world.hub.refs_below(f"refs/swarm/rescue/{first}")
    assert [world.file("src/half.txt", oid) for oid in kept.values()] == ["half\n"]
    task.cancel(world.ledger, second, "not wanted", "a person")
    world.agent(third, runner="r2")
    assert world.hub.refs_below(f"refs/swarm/rescue/{second}") == {}, "nothing to keep, none kept"


def test_L12_a_claim_that_cannot_go_on_is_given_back_with_its_reason_in_one_move(
    world: World,
) -> None:
    name = world.add("t")
    a = world.agent(name)
    before = world.ledger.view().tip
    a.end("setup_failed", "bad config: no such model")
    moves = git(world.layout.hub, "rev-list", f"{before}..refs/swarm/ledger").split("\n")
    assert len(moves) == 1
    view = world.ledger.view()
    attempts = view.attempts(name)
    assert view.lock(name) is None and attempts is not None and attempts.last is not None
    assert attempts.last.message == "bad config: no such model" and attempts.strikes == []


def test_L14_no_process_number_decides_anything(world: World) -> None:
    """A lock with pid 1, and one with the number of this very process, which lives."""
    for name, pid in (("one", 1), ("two", os.getpid())):
        who = claims.Who("hand-x", pid=pid, slot="h1", adapter="hand")
        assert isinstance(claims.acquire(world.ledger, who, world.terms, world.add(name)), Claimed)
    world.clock.pass_(minutes=14)
    assert world.sweep().expired == [], "a pid that is nobody's here does not shorten a lease"
    world.clock.pass_(minutes=2)
    assert len(world.sweep().expired) == 2, "and a living one does not lengthen it"


def test_L16_a_restart_clears_the_dead_claims_and_only_those(world: World) -> None:
    living, dead = world.live("r1-lives"), world.live("r2-dies")
    for number in range(5):
        held(world, world.add(f"live {number}"), slot=f"a{number}", runner="r1-lives")
        held(world, world.add(f"dead {number}"), slot=f"b{number}", runner="r2-dies")
    dead.close()
    report = world.sweep()
    assert sorted(e.task for e in report.expired) == [f"dead-{n}" for n in range(5)]
    assert sorted(lock.task for lock in world.ledger.view().locks()) == [
        f"live-{n}" for n in range(5)
    ]
    assert world.sweep().expired == [], "twice does nothing"
    assert not is_flock_free(living.path)


def test_L18_locked_worktrees_of_a_killed_runner_are_saved_and_used_again(world: World) -> None:
    alive = world.live("r1-dies")
    names = [world.add(f"task {number}") for number in range(6)]
    agents = [
        world.agent(name, slot=f"s{number}", runner="r1-dies").write("src/a.txt", f"{name}\n")
        for number, name in enumerate(names, 1)
    ]
    for agent in agents:
        (agent.slot.admin / "locked").write_text("pid 4242\n")
        (agent.slot.admin / "index.lock").touch()
        lose(agent)
    alive.close()
    report = world.sweep()
    assert sorted(e.task for e in report.expired) == names and report.kept == []
    for number, name in enumerate(names, 1):
        again = world.agent(name, slot=f"s{number}", runner="r2")
        assert not again.opened.is_new, "the worktree is used again"
        assert (again.tree / "src/a.txt").read_text() == f"{name}\n", "with the work in it"
        assert not (again.slot.admin / "locked").exists()


def test_a_slot_that_another_process_holds_is_never_touched_by_a_sweep(world: World) -> None:
    """Its runner is silent beyond the lease, yet its slot is in use: the work stays there."""
    a = world.agent(world.add("t"), runner="r1-silent").write("src/a.txt", "still at it\n")
    world.clock.pass_(minutes=16)
    slots, world.slots = world.slots, []  # as another process sees it
    report = world.sweep()
    world.slots = slots
    assert len(report.expired) == 1 and report.rescued == []
    assert (a.tree / "src/a.txt").read_text() == "still at it\n"
    assert isinstance(a.seal(), Fenced)


def test_an_expired_claims_holder_that_comes_back_in_time_to_seal_wins(world: World) -> None:
    a = world.agent(world.add("t"), runner="r1-slow").write("src/a.txt", "done\n")
    lock_id = world.ledger.view().blob_id(records.lock_path("t"))
    assert lock_id is not None
    assert isinstance(a.seal(), Sealed)
    answer = claims.expire(
        world.ledger, a.claimed.lock, lock_id, "silent", world.bounds, runner_gone=False
    )
    assert isinstance(answer, NotExpired) and "sealed" in answer.why


def test_expiry_moves_the_saved_work_and_the_event_together(world: World) -> None:
    a = world.agent(world.add("t"), runner="r1-silent").write("src/a.txt", "half\n").commit()
    saved = save(world.ledger, a.slot, "t", 1, a.capture())
    lock_id = world.ledger.view().blob_id(records.lock_path("t"))
    assert lock_id is not None and world.hub.reader.ref(work_ref("t", 1)) is None
    answer = claims.expire(
        world.ledger,
        a.claimed.lock,
        lock_id,
        "silent",
        world.bounds,
        runner_gone=False,
        work=saved.work,
        moves=saved.moves,
    )
    assert isinstance(answer, Expired) and saved.work is not None
    assert world.hub.reader.ref(work_ref("t", 1)) == saved.work.head
    assert isinstance(world.acquire(), Claimed | NothingClaimable)
    world.step()
