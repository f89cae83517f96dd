"""Claims by hand: joining, submitting, giving back, and whose claim it is."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from swarm import hand
from swarm.change import NoWork, Sealed, Unresolved
from swarm.claim import AlreadyHolding, Fenced, HeldBy, Mine, NothingClaimable, NotReady, Released
from swarm.errors import GitFault, UsageError
from swarm.hand import ClaimHeld, Joined, Queued, Stand, find_place, find_stand
from swarm.ledger.outcome import RULES
from swarm.ledger.view import State
from swarm.liveness import read_beats
from swarm.plumbing.hub import RESCUE
from swarm.workspace import Workspace
from tests.world import World, git, run_swarm


@pytest.fixture
def work(world: World) -> Workspace:
    return Workspace(world.app, world.config, world.layout, world.ledger)


def join(work: Workspace, task: str | None = None, name: str | None = None) -> Joined:
    answer = hand.join(work, work.checkout, task, name)
    assert isinstance(answer, Joined), answer
    return answer


def stand(work: Workspace, joined: Joined) -> Stand:
    found = find_stand(work.layout, work.ledger.hub, joined.worktree)
    assert found is not None
    return found


def test_a_claim_by_hand_names_its_own_runner_slot_and_lease(world: World, work: Workspace) -> None:
    world.add("One")
    joined = join(work, "one")
    world.step()
    lock = world.ledger.view().lock("one")
    assert lock is not None
    assert (lock.adapter, lock.slot, lock.run) == ("hand", "h1", "")
    assert lock.runner == f"hand-{lock.agent}"
    assert lock.lease_seconds == 4 * 3600
    assert (joined.worktree / "src/a.txt").read_text() == "1\n2\n3\n"
    assert "Do it." in joined.task_file.read_text()


def test_work_by_hand_lands_like_any_other(world: World, work: Workspace) -> None:
    world.add("One")
    joined = join(work)
    (joined.worktree / "new.txt").write_text("never added\n")
    (joined.worktree / "src/a.txt").write_text("committed\n")
    git(joined.worktree, "commit", "-q", "-am", "by hand")
    answer = hand.submit(work, stand(work, joined))
    assert isinstance(answer, Sealed) and answer.entry.left_by_agent.untracked == 1
    world.work_gate()
    assert world.state("one") is State.LANDED
    assert (world.file("new.txt"), world.file("src/a.txt")) == ("never added\n", "committed\n")


def test_the_checkout_is_not_touched(world: World, work: Workspace) -> None:
    world.add("One")
    before = git(world.app, "status", "--porcelain"), git(world.app, "for-each-ref")
    joined = join(work, "one")
    (joined.worktree / "x").write_text("x")
    hand.submit(work, stand(work, joined))
    assert (git(world.app, "status", "--porcelain"), git(world.app, "for-each-ref")) == before


# Who is refused


@pytest.mark.race
def test_C1_of_two_claims_at_once_one_wins_and_one_is_told_by_whom(world: World) -> None:
    world.add("One")
    ended: list[subprocess.CompletedProcess[str]] = []

    def claim() -> None:
        ended.append(run_swarm(world.app, "claim", "one"))

    threads = [threading.Thread(target=claim) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    world.step()
    assert sorted(done.returncode for done in ended) == [0, 11], [d.stderr for d in ended]
    loser = next(done for done in ended if done.returncode == 11)
    assert loser.stdout.startswith("held: one by h")
    assert "attempt 1, beat" in loser.stdout
    assert world.events("one").count("claimed") == 1


@pytest.mark.race
def test_claims_of_the_next_task_at_once_get_different_tasks_and_slots(world: World) -> None:
    for number in range(4):
        world.add(f"Task {number}")
    ended: list[subprocess.CompletedProcess[str]] = []

    def claim() -> None:
        ended.append(run_swarm(world.app, "claim", "--next", "--json"))

    threads = [threading.Thread(target=claim) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    world.step()
    records = [json.loads(done.stdout) for done in ended]
    assert len({record["task"] for record in records}) == 4
    assert len({record["worktree"] for record in records}) == 4


def test_C22_nothing_claimable_is_an_exit_code_and_says_why(world: World) -> None:
    world.add("One", paths=("src/**",))
    world.add("Two", paths=("src/a.txt",))
    world.acquire("one")
    done = run_swarm(world.app, "claim")
    assert done.returncode == 10
    assert "1 ready but kept back (paths overlap one)" in done.stdout
    record = json.loads(run_swarm(world.app, "claim", "--json").stdout)
    assert (record["schema"], record["exit_code"]) == ("swarm.error/1", 10)


def test_nothing_claimable_names_what_is_ready_for_a_role(world: World) -> None:
    world.add("Look", role="review")
    done = run_swarm(world.app, "claim")
    assert done.returncode == 10, done.stderr
    assert "ready: look for the role review (swarm claim look)" in done.stdout
    assert run_swarm(world.app, "claim", "look").returncode == 0


def test_a_task_held_by_a_loop_names_its_holder(world: World, work: Workspace) -> None:
    world.add("One")
    world.acquire("one", slot="s3")
    answer = hand.join(work, world.app, "one", None)
    assert isinstance(answer, HeldBy) and answer.lock.slot == "s3"
    with pytest.raises(ClaimHeld, match="held by s3"):
        find_place(work, world.app, "one")


def test_a_task_that_waits_for_a_need_is_not_claimable(world: World, work: Workspace) -> None:
    world.add("One")
    world.add("Two", needs=("one",))
    answer = hand.join(work, world.app, "two", None)
    assert isinstance(answer, NotReady) and answer.why == "needs one"


def test_C11_one_name_holds_one_claim(world: World, work: Workspace) -> None:
    world.add("One")
    world.add("Two")
    join(work, "one", "W 1")
    assert hand.join(work, world.app, "two", "w-1") == AlreadyHolding("one")
    joined = join(work, "two", "other")
    assert joined.claimed.lock.agent == "other"


def test_C11_a_name_gives_no_right_to_anothers_claim(world: World, work: Workspace) -> None:
    world.add("One")
    first = join(work, "one", "w1")
    lock = first.claimed.lock
    hand.give_back(work, stand(work, first), "later", "p", give_up=False)
    stale = Mine(lock.task, lock.token, "0" * 32, "w1")
    join(work, "one", "w1")
    world.step()
    assert world.ledger.view().lock("one") is not None
    assert hand.check_fence(world.ledger.view(), stale) is not None


def test_nothing_is_claimed_in_an_empty_plan(world: World, work: Workspace) -> None:
    assert isinstance(hand.join(work, world.app, None, None), NothingClaimable)


# The slot


def test_W10_a_slot_whose_claim_lives_is_left_alone(world: World, work: Workspace) -> None:
    world.add("One")
    world.add("Two")
    first, second = join(work, "one"), join(work, "two")
    assert (first.slot, second.slot) == ("h1", "h2")
    occupant = stand(work, first).occupant
    assert occupant is not None and occupant.task == "one"


def test_W10_a_command_in_the_slot_keeps_others_out(world: World, work: Workspace) -> None:
    world.add("One")
    joined = join(work, "one")
    place = world.slot("h1")
    with pytest.raises(ClaimHeld, match="another command is at work in slot h1"):
        hand.submit(work, stand(work, joined))
    place.close()
    assert isinstance(hand.submit(work, stand(work, joined)), NoWork)


def test_a_sealed_claims_slot_is_free_to_its_holder_alone(world: World, work: Workspace) -> None:
    for title in ("One", "Two", "Three"):
        world.add(title)
    joined = join(work, "one", "ann")
    (joined.worktree / "x").write_text("x")
    hand.submit(work, stand(work, joined))
    assert join(work, "two", "bob").slot == "h2"
    again = hand.join(work, joined.worktree, "three", None)
    assert again == AlreadyHolding("one"), "one claim at a time, a queued one too"
    world.work_gate()
    third = join(work, "three", "ann")
    assert third.slot == "h1"
    assert third.rescued == (), "what landed is not rescued"


def test_what_lay_in_the_slot_is_kept_when_it_is_opened_again(
    world: World, work: Workspace
) -> None:
    world.add("One")
    world.add("Two")
    joined = join(work, "one", "ann")
    world.clock.pass_(hours=5)
    (joined.worktree / "late.txt").write_text("late\n")
    world.sweep()
    assert world.state("one") is State.OPEN
    (joined.worktree / "later.txt").write_text("later\n")
    second = join(work, "two", "ann")
    world.step()
    assert second.slot == "h1" and len(second.rescued) == 1
    kept = world.hub.reader.ref(second.rescued[0])
    assert kept is not None
    assert (world.file("late.txt", kept), world.file("later.txt", kept)) == ("late\n", "later\n")
    assert not (second.worktree / "late.txt").exists()


def test_D1_a_worktree_that_cannot_be_opened_gives_the_claim_back_without_a_strike(
    world: World, work: Workspace
) -> None:
    world.add("One")
    (world.layout.slots / "h1.json").mkdir(parents=True)  # so that opening fails
    with pytest.raises(GitFault):
        hand.join(work, world.app, "one", None)
    world.step()
    attempts = world.ledger.view().attempts("one")
    assert attempts is not None and attempts.strikes == []
    assert world.state("one") is State.OPEN


def test_a_claim_that_never_got_its_worktree_is_released_by_its_name(
    world: World, work: Workspace
) -> None:
    world.add("One")
    who = hand.Who(runner="hand-ann", agent="ann", slot="h1")
    hand.acquire(world.ledger, who, work.hand_terms, "one")
    place = find_place(work, world.app, "one")
    answer = hand.give_back(work, place, "cut off", "p", give_up=False, task="one")
    world.step()
    assert isinstance(answer, Released)
    assert world.state("one") is State.OPEN


# Submit


def test_no_work_leaves_the_claim(world: World, work: Workspace) -> None:
    world.add("One")
    joined = join(work, "one")
    assert isinstance(hand.submit(work, stand(work, joined)), NoWork)
    assert world.state("one") is State.CLAIMED


def test_submitting_twice_adds_nothing_and_keeps_what_came_later(
    world: World, work: Workspace
) -> None:
    world.add("One")
    joined = join(work, "one")
    (joined.worktree / "x").write_text("x")
    first = hand.submit(work, stand(work, joined))
    assert isinstance(first, Sealed)
    assert hand.submit(work, stand(work, joined)) == Queued("one", ())
    (joined.worktree / "y").write_text("y")
    later = hand.submit(work, stand(work, joined))
    world.step()
    assert isinstance(later, Queued) and len(later.rescued) == 1
    entry = world.ledger.view().entry("one")
    assert entry is not None and entry.head == first.entry.head


def test_markers_left_are_unresolved_and_the_claim_stands(world: World, work: Workspace) -> None:
    world.add("One")
    joined = join(work, "one")
    (joined.worktree / "src/a.txt").write_text("mine\n")
    hand.submit(work, stand(work, joined))
    world.push("src/a.txt", "theirs\n")
    world.work_gate()
    assert world.state("one") is State.OPEN
    world.clock.pass_(hours=1)
    again = join(work, "one")
    assert again.conflicted == ("src/a.txt",)
    answer = hand.submit(work, stand(work, again))
    world.step()
    assert isinstance(answer, Unresolved) and answer.paths == ("src/a.txt",)
    assert world.state("one") is State.CLAIMED
    (again.worktree / "src/a.txt").write_text("mine and theirs\n")
    assert isinstance(hand.submit(work, stand(work, again)), Sealed)
    world.work_gate()
    assert world.file("src/a.txt") == "mine and theirs\n"


# Release, renew, fence


def test_a_release_keeps_the_work_and_the_next_attempt_goes_on_from_it(
    world: World, work: Workspace
) -> None:
    world.add("One")
    joined = join(work, "one")
    (joined.worktree / "x").write_text("x")
    answer = hand.give_back(work, stand(work, joined), "lunch", "p", give_up=False)
    world.step()
    assert isinstance(answer, Released)
    assert answer.attempts.strikes == []
    assert answer.attempts.work is not None
    again = join(work, "one")
    assert again.claimed.lock.start == answer.attempts.work.head
    assert (again.worktree / "x").read_text() == "x"


def test_giving_up_is_a_strike_and_the_next_attempt_starts_fresh(
    world: World, work: Workspace
) -> None:
    world.add("One")
    joined = join(work, "one")
    (joined.worktree / "x").write_text("x")
    answer = hand.give_back(work, stand(work, joined), "too hard", "p", give_up=True)
    world.step()
    assert isinstance(answer, Released)
    assert [strike.reason for strike in answer.attempts.strikes] == ["given_up"]
    assert RULES["given_up"].strike
    assert not (join(work, "one").worktree / "x").exists()


def test_a_claim_without_a_command_for_its_lease_expires_and_is_fenced(
    world: World, work: Workspace
) -> None:
    world.add("One")
    joined = join(work, "one")
    world.clock.pass_(hours=3, minutes=59)
    world.sweep()
    assert world.state("one") is State.CLAIMED
    assert hand.renew(work, stand(work, joined)) is None
    world.clock.pass_(hours=3, minutes=59)
    world.sweep()
    assert world.state("one") is State.CLAIMED, "a renewal is a sign of life"
    world.clock.pass_(hours=4, minutes=1)
    (joined.worktree / "x").write_text("x")
    world.sweep()
    assert world.state("one") is State.OPEN
    for answer in (
        hand.renew(work, stand(work, joined)),
        hand.submit(work, stand(work, joined)),
        hand.give_back(work, stand(work, joined), "late", "p", give_up=False),
    ):
        assert isinstance(answer, Fenced)
    attempts = world.ledger.view().attempts("one")
    assert attempts is not None and attempts.work is not None
    assert world.file("x", attempts.work.head) == "x"


def test_exit_12_for_who_lost_the_claim(world: World) -> None:
    world.add("One")
    tree = Path(json.loads(run_swarm(world.app, "claim", "one", "--json").stdout)["worktree"])
    lock = world.ledger.view().lock("one")
    assert lock is not None
    hand.release(world.ledger, Mine.of(lock), hand.Ending("stopped", "x"), world.bounds)
    (tree / "x").write_text("x")
    done = run_swarm(tree, "submit")
    assert done.returncode == 12
    assert "attempt 1 of one is over: it is open" in done.stdout
    assert run_swarm(tree, "renew").returncode == 12
    assert run_swarm(tree, "release", "--reason", "x").returncode == 12
    world.step()
    assert len(world.hub.refs_below(f"{RESCUE}/one")) == 1, "what was done after it is kept"


def test_a_claim_says_that_setup_runs_while_it_runs(tmp_path: Path) -> None:
    world = World(tmp_path, config='[worktree]\nsetup = "echo made >made.txt"\n')
    world.add("One")
    world.add("Two")
    done = run_swarm(world.app, "claim", "one")
    assert done.stdout.startswith("setup     running: echo made >made.txt\nclaimed   one")
    assert "no work" in run_swarm(world.app, "submit", "one").stdout
    record = json.loads(run_swarm(world.app, "claim", "two", "--json").stdout)
    assert record["setup"] is None
    world.close()


def test_any_command_typed_in_the_worktree_renews(world: World) -> None:
    world.add("One")
    record = json.loads(run_swarm(world.app, "claim", "one", "--json", "--as", "ann").stdout)
    before = read_beats(world.hub)["hand-ann"]
    run_swarm(world.app, "log")
    assert read_beats(world.hub)["hand-ann"] == before
    run_swarm(Path(record["worktree"]) / "src", "log")
    assert read_beats(world.hub)["hand-ann"][1] > before[1]


def test_a_folder_that_is_no_worktree_is_told(world: World, work: Workspace) -> None:
    with pytest.raises(UsageError, match="no worktree of a claim"):
        find_place(work, world.app, None)
    with pytest.raises(UsageError, match="nobody holds one"):
        find_place(work, world.app, "one")


# From inside a run


def test_in_a_loops_slot_claim_and_submit_are_refused(world: World, work: Workspace) -> None:
    world.add("One")
    agent = world.agent("one", slot="s1")
    here = find_stand(work.layout, world.hub, agent.tree / "src")
    assert here is not None and not here.is_hand
    with pytest.raises(UsageError, match="s1 works for a run"):
        hand.submit(work, here)
    with pytest.raises(UsageError, match="s1 works for a run"):
        hand.join(work, agent.tree, None, None)


def test_an_agent_that_gives_up_is_ended_and_its_work_is_kept(world: World) -> None:
    world.add("One", strikes=1)
    program = world.app / "agent.sh"
    program.write_text(
        "#!/bin/sh\n"
        "echo half > half.txt && git add half.txt && git commit -qm half\n"
        "swarm release --reason 'the API is missing'\n"
        "sleep 600\n"
    )
    program.chmod(0o755)
    done = run_swarm(world.app, "run", "-n", "1", "--", "./agent.sh", timeout=60)
    assert done.returncode == 1, (done.stdout, done.stderr)
    world.step()
    attempts = world.ledger.view().attempts("one")
    assert attempts is not None and attempts.last is not None
    assert attempts.last.outcome == "given_up"
    assert "the API is missing" in attempts.last.message
    assert world.state("one") is State.PARKED
    refs = world.hub.refs_below(RESCUE) | world.hub.refs_below("refs/swarm/work")
    assert any(world.file("half.txt", oid) == "half\n" for oid in refs.values()), refs


# The gate alone


def test_the_gate_lands_what_waits_without_agents(world: World) -> None:
    world.add("One")
    tree = Path(json.loads(run_swarm(world.app, "claim", "one", "--json").stdout)["worktree"])
    (tree / "x").write_text("x")
    done = run_swarm(tree, "submit")
    assert done.returncode == 0
    assert "swarm gate --once" in done.stdout
    done = run_swarm(world.app, "gate", "--once")
    assert done.returncode == 0, done.stderr
    assert "landed" in done.stdout
    world.step()
    assert world.state("one") is State.LANDED
    gate = world.ledger.view().gate()
    assert gate is not None and gate.runner is None, "it leaves the gate free"


def test_a_gate_that_another_holds_is_left_to_it(world: World) -> None:
    world.live("r1-test")
    world.work_gate()
    done = run_swarm(world.app, "gate", "--once")
    assert done.returncode == 11
    assert "held: the gate by r1-test" in done.stdout


def test_a_red_target_is_an_exit_code(world: World) -> None:
    world.push("bad.txt", "RED\n")
    world.add("One")
    world.agent("one").write("x", "x").seal()
    done = run_swarm(world.app, "gate", "--once")
    assert done.returncode == 13
    assert "paused" in done.stdout


def test_a_red_target_is_told_although_nothing_waits(world: World) -> None:
    tip = world.push("bad.txt", "RED\n")
    done = run_swarm(world.app, "gate", "--once")
    assert done.returncode == 13
    assert f"red: main {tip[:7]}: tests failed" in done.stdout


def test_importing_the_verbs_imports_neither_git_nor_watchdog() -> None:
    code = "import swarm.cli.verbs, sys; print('git' in sys.modules, 'watchdog' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"]


def test_the_gate_refuses_a_style_that_it_cannot_keep(world: World) -> None:
    text = (world.app / "swarm.toml").read_text("utf-8")
    (world.app / "swarm.toml").write_text(text + '\n[gate]\nstyle = "rebase"\n', "utf-8")
    done = run_swarm(world.app, "gate", "--once")
    assert done.returncode == 2
    assert "rebase" in done.stderr and "hint" in done.stderr
    assert "gate-taken" not in world.events(), "it never became the gate"
