"""What doctor finds, that it mends with proof alone, and that it never costs anybody's work."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarm import hand
from swarm.doctor import PROBES, REPAIRS, Case, Finding, Outcome, examine, mend
from swarm.errors import HubUnusable
from swarm.hand import Joined, find_stand
from swarm.land import is_gate
from swarm.ledger import records
from swarm.ledger.view import State
from swarm.liveness import alive_path, beat
from swarm.plumbing.hub import LEDGER, RESCUE, branch_ref, work_ref
from swarm.plumbing.refs import Move
from swarm.shim import MARK
from swarm.steer import pause, resume
from swarm.workspace import Workspace
from tests.test_invariants import forge
from tests.world import World, git, run_swarm


@pytest.fixture
def case(world: World) -> Case:
    return Case(Workspace(world.app, world.config, world.layout, world.ledger))


def ids(found: list[Finding]) -> list[str]:
    return [finding.id for finding in found]


def only(found: list[Finding], name: str) -> Finding:
    assert ids(found) == [name], found
    return found[0]


def healed(world: World, case: Case) -> list[Outcome]:
    """Mend what is found; afterwards nothing of it may be left and the invariants hold."""
    outcomes = mend(case, examine(case))
    assert all(outcome.done for outcome in outcomes), outcomes
    world.step()
    assert examine(case) == []
    return outcomes


def age(path: Path, seconds: float) -> None:
    moment = time.time() - seconds
    os.utime(path, (moment, moment))


def dead(world: World, runner: str) -> None:
    """A runner that lived on this disk and is gone: its file is there, its flock is free."""
    path = alive_path(world.layout.runs, runner)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_a_healthy_world_has_no_findings(world: World, case: Case) -> None:
    world.live()
    world.land("One", "one.txt", "1\n")
    world.add("Two")
    world.agent("two", slot="s2").write("a", "a")
    assert examine(case) == []


def test_without_fix_nothing_is_written(world: World, case: Case) -> None:
    world.add("One")
    world.agent("one").write("x", "x").slot.close()
    dead(world, "r1-test")
    git(world.hub.path, "config", "core.bare", "false")
    before = git(world.hub.path, "for-each-ref", "--format=%(refname) %(objectname)")
    assert set(ids(examine(case))) == {"hub-settings", "dead-claim"}
    assert git(world.hub.path, "for-each-ref", "--format=%(refname) %(objectname)") == before
    assert git(world.hub.path, "config", "core.bare") == "false"


# The hub


@pytest.mark.parametrize("name", ["core.bare", "gc.auto", "swarm.target", "core.hooksPath"])
def test_a_changed_setting_is_written_again(world: World, case: Case, name: str) -> None:
    before = git(world.hub.path, "config", name)
    git(world.hub.path, "config", name, "7" if name == "gc.auto" else "false")
    assert name in only(examine(case), "hub-settings").what
    healed(world, case)
    assert git(world.hub.path, "config", name) == before


def test_a_changed_hook_head_or_missing_ledger_log_is_made_again(world: World, case: Case) -> None:
    (world.hub.path / "hooks/update").write_text("#!/bin/sh\nexit 0\n")
    (world.hub.path / "logs" / LEDGER).unlink()
    git(world.hub.path, "symbolic-ref", "HEAD", "refs/heads/other")
    assert ids(examine(case)) == ["hub-settings"] * 3
    healed(world, case)


def test_a_configuration_that_git_cannot_read_is_left_to_a_person(world: World, case: Case) -> None:
    good = (world.hub.path / "config").read_text()
    (world.hub.path / "config").write_text(good + "[broken\n")
    world.hub.close()
    found = examine(case)
    assert "hub-settings" in ids(found)
    assert next(f for f in found if f.id == "hub-settings").fix is None
    (world.hub.path / "config").write_text(good)
    assert examine(case) == []


def test_L15_a_stale_ref_lock_is_removed_and_a_young_one_is_not(world: World, case: Case) -> None:
    lock = world.hub.path / f"{branch_ref('main')}.lock"
    lock.touch()
    finding = only(examine(case), "ref-lock")
    outcome = mend(case, [finding])[0]
    assert outcome.done is None and lock.exists(), "it may be somebody's who works right now"
    age(lock, 120)
    healed(world, case)
    assert not lock.exists()


def test_L15_a_lock_that_names_what_is_not_ours_stays(world: World, case: Case) -> None:
    lock = world.hub.path / f"{branch_ref('main')}.lock"
    lock.write_text("1" * 40 + "\n")
    age(lock, 120)
    assert mend(case, examine(case))[0].done is None
    assert lock.exists()


def test_T9_a_target_that_was_written_by_hand_is_noticed(world: World, case: Case) -> None:
    world.land("One", "one.txt", "1\n")
    tree = world.hub.reader.tree_of(world.main)
    sneaked = git(world.hub.path, "commit-tree", tree, "-p", world.main, "-m", "sneaked in")
    (world.hub.path / branch_ref("main")).write_text(sneaked + "\n")
    finding = only(examine(case), "unlogged-move")
    assert any(sneaked in text for text in finding.evidence) and finding.fix is None


def test_a_push_by_a_person_is_no_finding(world: World, case: Case) -> None:
    world.push("new.txt", "new\n")
    assert examine(case) == []


def test_a_missing_reflog_of_the_target_is_made(world: World, case: Case) -> None:
    (world.hub.path / "logs" / branch_ref("main")).unlink()
    only(examine(case), "no-reflog")
    healed(world, case)
    world.push("new.txt", "new\n")
    assert examine(case) == [], "the next move is logged again"


# The ledger


def test_an_undecodable_record_is_named_and_stops_nothing(world: World, case: Case) -> None:
    world.add("One")
    world.add("Two")
    world.agent("one").end()
    world.agent("two", slot="s2").slot.close()
    forge(world, "reopened", {records.attempts_path("one"): b"{"}, {"Swarm-Task": "one"})
    dead(world, "r1-test")
    outcomes = mend(case, examine(case))
    left = [outcome.finding.id for outcome in outcomes if outcome.done is None]
    assert "record" in left
    assert records.attempts_path("one") in " ".join(o.finding.what for o in outcomes)
    assert world.state("two") is State.OPEN, "another task is healed all the same"


def test_with_a_rewritten_past_nothing_is_added_to_it(world: World, case: Case) -> None:
    world.add("One")
    world.agent("one").slot.close()
    dead(world, "r1-test")
    forge(world, "checked", {}, event_id="twice")
    tip = forge(world, "checked", {}, event_id="twice")
    (world.hub.path / "logs" / branch_ref("main")).unlink()
    outcomes = {o.finding.id: o for o in mend(case, examine(case))}
    assert outcomes["no-reflog"].done, "what is beside the ledger is mended"
    assert outcomes["dead-claim"].done is None
    assert "history is damaged" in outcomes["dead-claim"].why
    assert world.hub.reader.ref(LEDGER) == tip


def test_a_target_that_fell_behind_our_own_landing_is_moved_again(world: World, case: Case) -> None:
    before = world.main
    landed = world.land("One", "one.txt", "1\n")
    world.gates[0].close()
    (world.hub.path / branch_ref("main")).write_text(before + "\n")
    assert {"invariant", "unlogged-move"} <= set(ids(examine(case)))
    outcomes = mend(case, examine(case))
    assert next(o for o in outcomes if o.finding.id == "invariant").done == "holds again"
    assert world.main == landed
    world.step()


def test_a_probe_that_cannot_look_is_a_finding_and_stops_no_other(world: World, case: Case) -> None:
    (world.app / ".git/config").write_text("[broken\n")
    git(world.hub.path, "config", "gc.auto", "7")
    found = examine(case)
    assert {"unreadable", "hub-settings"} == set(ids(found))
    assert {o.finding.id for o in mend(case, found) if o.done is None} == {"unreadable"}


# Records that everybody needs


DAMAGE = [b"{", b"", b"\xff\xfe", b'{"format": 1}\n', None]


def damage(world: World, path: str, data: bytes | None) -> None:
    """As a person does it who writes to the ledger with git itself."""
    forge(world, "by hand", {path: data})


@pytest.mark.parametrize("data", DAMAGE)
def test_M20_a_damaged_gate_record_is_made_free_with_a_token_above_all(
    world: World, case: Case, data: bytes | None
) -> None:
    world.land("One", "one.txt", "1\n")
    pause(world.ledger, "a look first", "person")
    before = world.ledger.view().gate()
    damage(world, records.GATE_PATH, data)
    with pytest.raises(HubUnusable) as raised:
        world.gate("r3-test").tick()
    assert raised.value.hint == "swarm doctor --fix" and "gate.json" in raised.value.what
    found = [finding for finding in examine(case) if finding.id != "invariant"]
    assert ids(found) == ["gate-record"], found
    assert mend(case, found)[0].done == f"free, token {before.token + 1}"
    gate = world.ledger.view().gate()
    assert gate.runner is None and gate.nonce != before.nonce
    assert gate.paused is not None and gate.paused.why == "a look first", "a pause is kept"
    resume(world.ledger, "person")
    third = world.gate("r3-test")
    third.tick()
    assert third.claim is not None and third.claim.token == before.token + 2


def test_M20_whoever_was_the_gate_is_fenced_by_the_new_record(world: World, case: Case) -> None:
    world.live()
    world.gate().tick()
    old = world.gate().claim
    assert old is not None
    damage(world, records.GATE_PATH, b"{")
    mend(case, examine(case))
    assert not is_gate(world.ledger.view(), old)


def in_flight(world: World, *, is_moved: bool) -> tuple[str, str]:
    """A landing that is announced, and perhaps has moved the target; its gate is gone."""
    world.add("One")
    world.agent("one").write("one.txt", "1\n").seal()
    point = "land.between_refs" if is_moved else "land.before_transact"
    crash = {"SWARM_FAULTS": "1", "SWARM_CRASH_AT": point}
    assert run_swarm(world.app, "gate", "--once", env=crash).returncode == -9
    for lock in world.hub.path.rglob("*.lock"):
        lock.unlink()
    landing = world.ledger.view().landing()
    assert landing is not None
    return "one", landing.new


@pytest.mark.parametrize("data", DAMAGE)
@pytest.mark.parametrize("is_moved", [True, False])
def test_M20_a_damaged_landing_is_written_again_and_settled_by_the_target(
    world: World, case: Case, data: bytes | None, is_moved: bool
) -> None:
    task, commit = in_flight(world, is_moved=is_moved)
    damage(world, records.LANDING_PATH, data)
    if data is not None:
        with pytest.raises(HubUnusable, match=r"landing\.json"):
            world.ledger.view().landing()
    outcomes = mend(case, examine(case))
    done = next(o.done for o in outcomes if o.finding.id == "landing-record")
    assert done is not None and done.startswith("written again; "), outcomes
    view = world.ledger.view()
    assert view.landing() is None and view.gate().runner is None
    assert view.state(task) is (State.LANDED if is_moved else State.QUEUED)
    world.gate("r3-test").tick()
    assert world.hub.contains(world.main, commit) is is_moved
    assert not {"gate-record", "landing-record", "landing"} & set(ids(examine(case)))


def test_M20_a_damaged_landing_when_none_is_under_way_is_removed(world: World, case: Case) -> None:
    world.land("One", "one.txt", "1\n")
    tip = world.main
    damage(world, records.LANDING_PATH, b"{")
    mend(case, examine(case))
    view = world.ledger.view()
    assert view.landing() is None and view.state("one") is State.LANDED and world.main == tip
    assert world.events()[-1] == "void"


@pytest.mark.parametrize("path", [records.GATE_PATH, records.LANDING_PATH])
def test_M20_status_names_a_damaged_record_and_a_run_says_what_to_type(
    world: World, path: str
) -> None:
    world.add("One")
    damage(world, path, b"{")
    done = run_swarm(world.app, "status")
    assert done.returncode == 0 and path in done.stdout and "swarm doctor --fix" in done.stdout
    done = run_swarm(world.app, "run", "--", "true")
    assert done.returncode == 16 and path in done.stderr and "swarm doctor --fix" in done.stderr
    assert "swarm doctor --fix" in run_swarm(world.app, "doctor").stdout
    run_swarm(world.app, "doctor", "--fix")
    done = run_swarm(world.app, "run", "--", "sh", "-c", "echo done > x")
    assert world.state("one") is State.LANDED, done.stderr


def test_a_hub_that_cannot_be_written_is_named(
    world: World, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.access
    monkeypatch.setattr(  # a test by root cannot take its own rights away
        os, "access", lambda path, mode: real(path, mode) and Path(path) != world.hub.path
    )
    finding = only(examine(case), "read-only")
    assert str(world.hub.path) in finding.what and finding.fix is None


# Who is gone


def test_L16_only_dead_claims_are_cleared(world: World, case: Case) -> None:
    world.live("r1-live")
    dead(world, "r2-dead")
    for number in range(5):
        world.add(f"Live {number}")
        world.add(f"Dead {number}")
        world.acquire(f"live-{number}", slot=f"s{number + 1}", runner="r1-live")
        world.acquire(f"dead-{number}", slot=f"s{number + 6}", runner="r2-dead")
    assert ids(examine(case)) == ["dead-claim"] * 5
    healed(world, case)
    assert {world.state(f"live-{number}") for number in range(5)} == {State.CLAIMED}
    assert {world.state(f"dead-{number}") for number in range(5)} == {State.OPEN}


def test_L14_a_process_number_neither_keeps_nor_ends_a_claim(world: World, case: Case) -> None:
    world.add("One")
    world.add("Two")
    mine = hand.Who(runner="hand-ann", agent="ann", slot="h1", pid=os.getpid())
    gone = hand.Who(runner="hand-bob", agent="bob", slot="h2", pid=1 << 22)
    hand.acquire(world.ledger, mine, case.work.hand_terms, "one")
    hand.acquire(world.ledger, gone, case.work.hand_terms, "two")
    world.clock.pass_(hours=3)
    assert examine(case) == [], "a pid that is gone says nothing: commands by hand end at once"
    beat(world.hub, "hand-bob", world.clock)
    world.clock.pass_(hours=2)
    assert only(examine(case), "dead-claim").subject == "one", "a living pid keeps nothing"


def test_L18_six_slots_of_a_killed_runner_are_saved_and_freed(world: World, case: Case) -> None:
    dead(world, "r1-test")
    for number in range(6):
        world.add(f"Task {number}")
        agent = world.agent(f"task-{number}", slot=f"s{number + 1}")
        agent.write(f"{number}.txt", f"{number}\n").slot.close()
    healed(world, case)
    for number in range(6):
        attempts = world.ledger.view().attempts(f"task-{number}")
        assert attempts is not None and attempts.work is not None
        assert world.file(f"{number}.txt", attempts.work.head) == f"{number}\n"
        assert world.agent(f"task-{number}", slot=f"s{number + 1}").claimed.lock.token == 2


def test_a_run_whose_runner_is_gone_is_ended(world: World, case: Case) -> None:
    run = records.Run(
        run="r1",
        runner="r1-test",
        host="zeno",
        pid=1,
        boot_id="boot-1",
        slots=1,
        adapter="scripted",
        started_at=world.clock.now(),
        started_monotonic_seconds=1.0,
        config_digest="0" * 64,
        state="running",
    )
    edits = {records.run_path("r1"): records.encode(run)}
    forge(world, "run-started", edits, {"Swarm-Run": "r1"})
    assert examine(case) == [], "without its file on this disk nothing is known"
    dead(world, "r1-test")
    only(examine(case), "dead-run")
    healed(world, case)
    ended = world.ledger.view().run("r1")
    assert ended is not None and ended.state == "ended"


@pytest.fixture
def marked() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for child in started:
        child.kill()
        child.wait()


def test_processes_of_dead_runners_are_ended_and_no_others(
    world: World, case: Case, marked: list[subprocess.Popen[bytes]]
) -> None:
    token = os.urandom(4).hex()
    dead(world, f"r1-{token}")
    world.live(f"r2-{token}")
    for runner in (f"r1-{token}", f"r2-{token}", f"r3-{token}"):
        env = {"PATH": os.environ["PATH"], MARK: f"{runner}.agent.secret"}
        marked.append(subprocess.Popen(["sleep", "600"], env=env))
    assert only(examine(case), "orphan").subject == f"r1-{token}"
    outcome = mend(case, examine(case))[0]
    assert outcome.done == "1 ended"
    assert marked[0].wait(10) != 0
    assert marked[1].poll() is None, "its runner lives"
    assert marked[2].poll() is None, "its runner is of another hub, for all we know"


@pytest.mark.crash
def test_a_landing_that_was_cut_between_the_two_refs_is_settled(world: World, case: Case) -> None:
    world.add("One")
    world.agent("one").write("one.txt", "1\n").seal()
    crash = {"SWARM_FAULTS": "1", "SWARM_CRASH_AT": "land.between_refs"}
    assert run_swarm(world.app, "gate", "--once", env=crash).returncode == -9
    for path in world.hub.path.rglob("*.lock"):
        age(path, 120)
    assert "landing" in ids(examine(case))
    healed(world, case)
    assert world.state("one") is State.LANDED
    assert world.file("one.txt") == "1\n"
    assert not list(world.hub.path.rglob("*.lock"))


def test_a_landing_of_a_living_gate_is_left_to_it(world: World, case: Case) -> None:
    world.live()
    world.work_gate()
    assert examine(case) == []
    finding = Finding("landing", "x", fix="settle")
    outcome = mend(case, [finding])[0]
    assert outcome.done is None and "lives" in outcome.why


# Slots


def leave_lock(world: World) -> Path:
    """A slot of a task that is open again, with a lock file in its git dir."""
    world.add("One")
    agent = world.agent("one")
    agent.end()
    lock = agent.slot.admin / "index.lock"
    lock.touch()
    return lock


def test_L15_an_index_lock_is_removed_only_when_old_and_unheld(world: World, case: Case) -> None:
    lock = leave_lock(world)
    age(lock, 120)
    assert examine(case) == [], "the slot is held: it is its holder's"
    world.slot("s1").close()
    only(examine(case), "slot-lock")
    lock.touch()
    assert examine(case) == [], "young: a git may be at work"
    age(lock, 120)
    healed(world, case)
    assert not lock.exists()


def test_a_lock_in_a_persons_worktree_is_not_touched(world: World, case: Case) -> None:
    world.add("One")
    joined = hand.join(case.work, world.app, "one", "ann")
    assert isinstance(joined, Joined)
    lock = world.layout.slots / "h1.git/worktrees/h1/index.lock"
    lock.touch()
    age(lock, 3600)
    assert examine(case) == [], "a commit whose editor is open holds this for hours"


def test_D10_uncommitted_work_without_a_commit_is_kept(world: World, case: Case) -> None:
    world.add("One")
    agent = world.agent("one")
    agent.end()
    agent.write("after.txt", "after\n").slot.close()
    only(examine(case), "unsaved-work")
    healed(world, case)
    refs = world.hub.refs_below(f"{RESCUE}/one")
    assert [world.file("after.txt", oid) for oid in refs.values()] == ["after\n"]
    assert (agent.tree / "after.txt").exists(), "and nothing was deleted"


def test_W16_what_landed_by_squash_is_no_unsaved_work(tmp_path: Path) -> None:
    world = World(tmp_path, config='[gate]\nstyle = "squash"\n')
    try:
        world.add("One")
        agent = world.agent("one").write("one.txt", "1\n").commit()
        agent.seal()
        world.work_gate()
        world.gates[0].close()
        assert world.state("one") is State.LANDED
        agent.slot.close()
        case = Case(Workspace(world.app, world.config, world.layout, world.ledger))
        assert examine(case) == []
        assert world.hub.reader.ref(work_ref("one", 1)) is not None, "the work ref stays"
    finally:
        world.close()


def test_a_slot_deleted_by_hand_keeps_its_commits(world: World, case: Case) -> None:
    world.add("One")
    agent = world.agent("one")
    agent.end()
    agent.write("late.txt", "late\n").commit()
    head = agent.git("rev-parse", "HEAD")
    agent.slot.close()
    subprocess.run(["rm", "-r", str(agent.tree)], check=True)
    only(examine(case), "slot-broken")
    healed(world, case)
    assert head in world.hub.refs_below(f"{RESCUE}/one").values()
    assert not agent.slot.record.exists()
    assert (world.agent("one").tree / "src/a.txt").exists(), "the slot is made anew"


def test_a_slot_without_its_repository_keeps_its_files(world: World, case: Case) -> None:
    world.add("One")
    agent = world.agent("one")
    agent.end()
    agent.write("late.txt", "late\n").slot.close()
    subprocess.run(["rm", "-r", str(agent.slot.repo)], check=True)
    finding = only(examine(case), "slot-broken")
    outcome = mend(case, [finding])[0]
    kept = [world.file("late.txt", oid) for oid in world.hub.refs_below(f"{RESCUE}/one").values()]
    assert (outcome.done and kept == ["late\n"]) or (agent.tree / "late.txt").exists()
    assert outcome.done is None or kept == ["late\n"], "never forgotten before it is kept"


def test_a_slot_with_nothing_of_ours_left_to_read_it_is_left_to_a_person(
    world: World, case: Case
) -> None:
    world.add("One")
    agent = world.agent("one")
    agent.end()
    agent.write("late.txt", "late\n").slot.close()
    subprocess.run(["rm", "-r", str(agent.slot.own)], check=True)
    outcome = mend(case, [only(examine(case), "slot-broken")])[0]
    assert outcome.done is None
    assert agent.slot.record.exists() and (agent.tree / "late.txt").exists()


# Beside


def test_a_broken_cache_is_deleted_and_built_again(world: World, case: Case) -> None:
    world.add("One")
    world.ledger.index.counts(world.ledger.view())
    world.ledger.index.close()
    (world.layout.cache / "state.sqlite").write_bytes(b"no database at all" * 100)
    (world.layout.cache / "seen.json").write_bytes(b"{")
    assert ids(examine(case)) == ["cache", "cache"]
    healed(world, case)
    assert world.ledger.index.ids(world.ledger.view()) == ["one"]


def test_a_missing_remote_is_told_with_the_command_and_not_made(world: World, case: Case) -> None:
    git(world.app, "remote", "remove", "swarm")
    finding = only(examine(case), "remote")
    assert finding.hint is not None and finding.hint.startswith("git remote add -t main swarm /")
    assert mend(case, [finding])[0].done is None
    assert git(world.app, "remote") == ""
    git(world.app, *finding.hint.split()[1:])
    assert examine(case) == []


def test_W11_a_state_folder_beyond_its_limit_is_told(tmp_path: Path) -> None:
    world = World(tmp_path, config='[worktree]\nmax_total = "1KiB"\n')
    try:
        case = Case(Workspace(world.app, world.config, world.layout, world.ledger))
        finding = only(examine(case), "disk")
        assert "max_total" in finding.what and finding.fix is None
    finally:
        world.close()


def test_a_hub_without_its_target_is_told(world: World, case: Case) -> None:
    world.hub.transact([Move(branch_ref("main"), world.main, None)])
    assert "target-missing" in ids(examine(case))


# The command


def test_exit_codes_and_json(world: World) -> None:
    done = run_swarm(world.app, "doctor")
    assert (done.returncode, done.stdout) == (0, "nothing is wrong; the invariants hold\n")
    git(world.hub.path, "config", "core.bare", "false")
    done = run_swarm(world.app, "doctor", "--json")
    record = json.loads(done.stdout)
    assert done.returncode == 1
    assert record["schema"] == "swarm.doctor/1"
    assert [(f["id"], f["state"]) for f in record["findings"]] == [("hub-settings", "found")]
    done = run_swarm(world.app, "doctor")
    assert done.returncode == 1 and "--fix would: write the hub's settings" in done.stdout
    done = run_swarm(world.app, "doctor", "--fix")
    assert done.returncode == 0 and "1 fixed, 0 left" in done.stdout
    git(world.app, "remote", "remove", "swarm")
    assert run_swarm(world.app, "doctor", "--fix").returncode == 1


def test_each_repair_has_a_probe_that_finds_it() -> None:
    source = Path(examine.__code__.co_filename).read_text("utf-8")
    probes = source.partition("\nPROBES")[0]
    assert [name for name in REPAIRS if f'"{name}"' not in probes] == []
    assert len(PROBES) == len(set(PROBES))


def test_where_a_person_stands_survives_a_doctor(world: World, case: Case) -> None:
    world.add("One")
    joined = hand.join(case.work, world.app, "one", "ann")
    assert isinstance(joined, Joined)
    (joined.worktree / "x").write_text("x")
    assert examine(case) == []
    here = find_stand(world.layout, world.hub, joined.worktree)
    assert here is not None and here.occupant is not None
