"""Landing: the two refs, what a crash leaves between them, and who may still write."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from swarm import claim as claims
from swarm import gate as gates
from swarm import plan
from swarm.errors import HubUnusable
from swarm.gate import Gate
from swarm.land import GateLost, Landed, Outrun, Recorded, land, record, take_gate
from swarm.ledger import records
from swarm.ledger import store as ledgers
from swarm.ledger.records import Paused
from swarm.ledger.view import State
from swarm.plumbing.hub import LEDGER, branch_ref, work_ref
from swarm.plumbing.refs import Committed, Move
from swarm.reconcile import Settled, keep_last_landing, settle
from swarm.task import Refusal, cancel, reopen, take_plan
from tests.world import World, git

Make = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Worlds with a configuration of their own."""
    made: list[World] = []

    def build(**how: object) -> World:
        folder = tmp_path / f"w{len(made)}"
        folder.mkdir()
        made.append(World(folder, **how))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for world in made:
        world.close()


class Cut(Exception):
    """The process of a gate ends here."""


def cut_between_refs(world: World, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """The gate dies after the target has moved and before the ledger has; returns the intention."""
    kept: list[Recorded] = []

    def half(ledger: object, claim: object, recorded: Recorded) -> object:
        landing = recorded.landing
        move = Move(branch_ref(landing.target), landing.old, landing.new)
        assert isinstance(world.hub.transact([move]), Committed)
        kept.append(recorded)
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(gates, "land", half)
        with pytest.raises(Cut):
            world.work_gate()
    world.gate().abandon()
    return kept[0]


def sealed(world: World, title: str, path: str = "new.txt", text: str = "new\n") -> str:
    """A task whose change waits in the queue."""
    task = world.add(title)
    world.agent(task).write(path, text).commit(title).seal()
    return task


def another_gate(world: World, runner: str = "r2-test") -> Gate:
    """The first runner is dead; another one becomes the gate."""
    world.live("r1-test").close()
    gate = world.gate(runner)
    gate.tick()
    assert gate.claim is not None
    world.step()
    return gate


# Between the two refs


@pytest.mark.parametrize("style", ["merge", "squash"])
def test_T1_a_revert_by_a_person_stands_and_the_work_has_landed_once(
    make: Make, monkeypatch: pytest.MonkeyPatch, style: str
) -> None:
    world = make(config=f'[gate]\nstyle = "{style}"\n')
    task = sealed(world, "Half done")
    cut_between_refs(world, monkeypatch)
    assert world.state(task) is State.QUEUED
    git(world.app, "fetch", "-q", "swarm", "main")
    git(world.app, "reset", "-q", "--hard", "FETCH_HEAD")
    mainline = ("-m", "1") if style == "merge" else ()
    git(world.app, "revert", "--no-edit", *mainline, "HEAD")
    git(world.app, "push", "-q", "swarm", "HEAD:main")
    another_gate(world)
    world.work_gate("r2-test")
    assert world.state(task) is State.LANDED
    assert world.events(task).count("landed") == 1
    assert world.file("new.txt") is None, "the revert stands"


def test_T2_a_head_that_is_reachable_has_not_landed(world: World) -> None:
    first = world.add("First")
    one = world.agent(first).write("one.txt", "one\n").commit()
    one.end()
    second = world.add("Second")
    two = world.agent(second, slot="s2")
    two.git("merge", "-q", "--no-edit", world.hub.reader.ref(work_ref(first, 1)) or "")
    two.git("rm", "-q", "one.txt")
    two.write("two.txt", "two\n").commit().seal()
    world.work_gate()
    assert world.state(second) is State.LANDED
    assert world.hub.contains(world.main, world.hub.reader.ref(work_ref(first, 1)) or "")
    assert world.state(first) is State.OPEN, "its own landing commit decides, and there is none"


def test_T3_nothing_is_done_to_a_task_in_the_middle_of_its_landing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = sealed(world, "Half done")
    lock = world.ledger.view().lock(task)
    lock_id = world.ledger.view().blob_id(records.lock_path(task))
    assert lock is not None and lock_id is not None
    cut_between_refs(world, monkeypatch)
    refused = cancel(world.ledger, task, "not wanted", "person")
    assert isinstance(refused, Refusal) and refused.why == "it is landing now"
    draft = plan.Draft(id=task, title="Something else", body="Else.")
    assert take_plan(world.ledger, [draft]).waiting == (task,)
    expired = claims.expire(world.ledger, lock, lock_id, "silent", world.bounds, runner_gone=True)
    assert isinstance(expired, claims.NotExpired)
    assert world.ledger.view().is_landed(task), "readers count it as landed already"
    another_gate(world)
    assert world.state(task) is State.LANDED
    assert world.events(task).count("landed") == 1


def test_a_landing_that_never_moved_the_target_is_void_and_built_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = sealed(world, "Not begun")

    def never(*_: object) -> object:
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(gates, "land", never)
        with pytest.raises(Cut):
            world.work_gate()
    world.gate().abandon()
    another_gate(world)
    assert world.events()[-1] == "void"
    world.work_gate("r2-test")
    assert world.state(task) is State.LANDED
    assert world.events(task).count("landed") == 1


def test_T4_a_log_that_cannot_be_written_lands_once_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git answers 128 with the target moved: nothing of that is believed but what is read back."""
    task = sealed(world, "Unloggable")
    logs = (world.layout.hub / "logs" / LEDGER).parent
    aside = world.folder / "logs"
    real = gates.land

    def blocked(ledger: object, claim: object, recorded: Recorded) -> object:
        logs.rename(aside)
        logs.touch()

        def free() -> None:
            deadline = time.monotonic() + 20
            while world.main != recorded.landing.new and time.monotonic() < deadline:
                time.sleep(0.005)
            time.sleep(0.05)
            logs.unlink()
            aside.rename(logs)

        with monkeypatch.context() as inner:
            inner.setattr(gates, "land", real)
            freeing = threading.Thread(target=free)
            freeing.start()
            answer = real(world.ledger, claim, recorded)  # type: ignore[arg-type]
            freeing.join()
        return answer

    monkeypatch.setattr(gates, "land", blocked)
    world.work_gate()
    assert world.state(task) is State.LANDED
    assert world.events(task).count("landed") == 1
    assert world.file("new.txt") == "new\n"


def test_T4_a_log_that_stays_unwritable_is_settled_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = sealed(world, "Unloggable")
    logs = (world.layout.hub / "logs" / LEDGER).parent
    aside = world.folder / "logs"
    real = gates.land

    def blocked(*given: object) -> object:
        logs.rename(aside)
        logs.touch()
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(ledgers, "BUSY_SECONDS", 0.1)
    monkeypatch.setattr(gates, "land", blocked)
    with pytest.raises(HubUnusable):
        world.work_gate()
    world.gate().abandon()
    assert world.state(task) is State.QUEUED
    assert world.ledger.view().is_landed(task), "the target is the authority"
    logs.unlink()
    aside.rename(logs)
    monkeypatch.setattr(gates, "land", real)
    another_gate(world)
    assert world.state(task) is State.LANDED
    assert world.events(task).count("landed") == 1


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_T5_a_second_rename_that_fails_lands_once_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = sealed(world, "Torn")
    real = gates.land
    traced: list[str] = []

    def torn(*given: object) -> object:
        recorded = given[2]
        assert isinstance(recorded, Recorded)
        with world.hub.turn.held():
            child = world.hub.refs._start()
        trace = world.folder / "trace"
        inject = "inject=rename,renameat,renameat2:error=EIO:when=2"
        tracer = subprocess.Popen(
            ["strace", "-qq", "-o", str(trace), "-e", "trace=rename,renameat,renameat2",
             "-e", inject, "-p", str(child.pid)],
            stderr=subprocess.PIPE,
        )  # fmt: skip
        status = Path(f"/proc/{child.pid}/status")
        deadline = time.monotonic() + 10
        while "TracerPid:\t0\n" in status.read_text():
            if tracer.poll() is not None or time.monotonic() > deadline:
                pytest.skip(f"strace cannot attach: {tracer.communicate()[1]!r}")
            time.sleep(0.01)
        try:
            return real(*given)  # type: ignore[arg-type]
        finally:
            tracer.wait(10)
            assert tracer.stderr is not None
            tracer.stderr.close()
            traced.append(trace.read_text())

    monkeypatch.setattr(gates, "land", torn)
    world.work_gate()
    assert "EIO" in traced[0] and "INJECTED" in traced[0], traced
    assert world.state(task) is State.LANDED
    assert world.events(task).count("landed") == 1


# Who may still write


def test_T13_a_gate_that_slept_past_its_lease_changes_nothing(world: World) -> None:
    """Whatever it was about to do: land, record, send back, hold, pause, write a verdict."""
    task = sealed(world, "Slept over")
    sleeper = world.gate("r1-test")
    sleeper.tick()
    assert sleeper.claim is not None
    view = world.ledger.view()
    built = build_of(sleeper, task)
    recorded = record(world.ledger, sleeper.claim, built, [], [])
    assert isinstance(recorded, Recorded)
    world.clock.pass_(hours=1)
    other = world.gate("r2-test")
    other.tick()
    assert other.claim is not None and sleeper.claim.token < other.claim.token
    before = world.ledger.view()
    entry = view.entry(task)
    assert entry is not None
    assert isinstance(land(world.ledger, sleeper.claim, recorded), GateLost)
    assert isinstance(record(world.ledger, sleeper.claim, built, [], []), GateLost)
    assert isinstance(settle(world.ledger, sleeper.claim), GateLost)
    sleeper._eject(entry, outcome="check_failed", message="red")
    hold = records.HoldReason(reason="scope", paths=["a"], at=view.now)
    sleeper._hold(built, [hold])
    sleeper._pause(Paused(why="asleep", by="gate", at=view.now))
    verdict = records.Verdict(
        tree=built.tree, check="tests", definition="d" * 64, verdict="failed", runs=[]
    )
    sleeper._write([verdict])
    after = world.ledger.view()
    assert (after.tip, after.target) == (before.tip, before.target), "nothing was written"
    assert sleeper.tick() is False and sleeper.claim is None
    world.work_gate("r2-test")
    assert world.state(task) is State.LANDED


def build_of(gate: Gate, task: str):  # type: ignore[no-untyped-def]
    """The candidate that the gate would build of a queued task."""
    from swarm.merge import Candidate, build

    view = gate.ledger.view()
    entry, known = view.entry(task), view.task(task)
    assert entry is not None and known is not None
    built = build(
        gate.ledger.hub,
        view.target,
        entry,
        view.blob_id(records.queue_path(task)) or "",
        known,
        attributes=gate._attributes,
        style="merge",
        checks=[],
        adapter="scripted",
        agent="a",
    )
    assert isinstance(built, Candidate)
    return built


def test_a_living_gate_is_left_alone(world: World) -> None:
    first, second = world.gate("r1-test"), world.gate("r2-test")
    world.live("r1-test")
    first.tick()
    world.clock.pass_(minutes=5)
    assert second.tick() is False and second.claim is None
    assert first.claim is not None


def test_a_candidate_is_outrun_by_a_push_and_by_a_changed_entry(world: World) -> None:
    task = sealed(world, "Outrun")
    gate = world.gate()
    claim = take_gate(world.ledger, "r1-test", timedelta(minutes=15), None)
    built = build_of(gate, task)
    world.push("by-hand.txt", "hand\n")
    outrun = record(world.ledger, claim, built, [], [])  # type: ignore[arg-type]
    assert isinstance(outrun, Outrun) and "moved" in outrun.why
    built = build_of(gate, task)
    recorded = record(world.ledger, claim, built, [], [])  # type: ignore[arg-type]
    assert isinstance(recorded, Recorded)
    world.push("again.txt", "hand\n")
    outrun = land(world.ledger, claim, recorded)  # type: ignore[arg-type]
    assert isinstance(outrun, Outrun) and "moved" in outrun.why
    assert isinstance(settle(world.ledger, claim), Settled)  # type: ignore[arg-type]
    built = build_of(gate, task)
    assert not isinstance(cancel(world.ledger, task, "no", "person"), Refusal)
    outrun = record(world.ledger, claim, built, [], [])  # type: ignore[arg-type]
    assert isinstance(outrun, Outrun) and "entry" in outrun.why


def test_nothing_is_recorded_while_a_person_has_paused_the_gate(world: World) -> None:
    task = sealed(world, "Paused")
    gate = world.gate()
    gate.tick()
    assert gate.claim is not None
    built = build_of(gate, task)
    gate._pause(Paused(why="wait", by="person", at=world.clock.now()))
    assert isinstance(record(world.ledger, gate.claim, built, [], []), Outrun)


def test_landing_twice_is_landing_once(world: World) -> None:
    task = sealed(world, "Twice")
    gate = world.gate()
    claim = take_gate(world.ledger, "r1-test", timedelta(minutes=15), None)
    built = build_of(gate, task)
    recorded = record(world.ledger, claim, built, [], [])  # type: ignore[arg-type]
    assert isinstance(recorded, Recorded)
    assert isinstance(land(world.ledger, claim, recorded), Landed)  # type: ignore[arg-type]
    assert isinstance(land(world.ledger, claim, recorded), Landed)  # type: ignore[arg-type]
    assert world.events(task).count("landed") == 1


# A target that went back


def test_M17_a_move_that_a_crash_undid_is_made_again_and_told(world: World) -> None:
    """The disk lost the target's rename: by its log nobody ever moved it away from the landing."""
    before = world.main
    task = sealed(world, "Undone")
    world.work_gate()
    landed = world.main
    (world.hub.path / branch_ref("main")).write_text(before + "\n")
    world.gate().abandon()
    gate = another_gate(world)
    assert world.main == landed and world.state(task) is State.LANDED
    said = f"main was back at {before[:7]}; moved to {landed[:7]} again"
    assert gate.notes == [said], "never silently"
    told = [e for e in world.ledger.iter_log() if e.kind == "rescued"]
    assert [e.message.body for e in told] == [said]
    assert keep_last_landing(world.ledger) is None, "once"


def test_M17_a_target_that_a_person_set_back_by_one_landing_stays_there(world: World) -> None:
    before = world.main
    task = sealed(world, "Set back")
    world.work_gate()
    landed = world.main
    git(world.layout.hub, "update-ref", "refs/heads/main", before)
    world.gate().abandon()
    gate = another_gate(world)
    assert world.main == before, "what a person decided stands"
    parked = world.ledger.view().parked(task)
    assert parked is not None and parked.reason == "lost" and parked.work is not None
    assert landed[:7] in gate.notes[0]
    world.work_gate("r2-test")
    assert world.main == before, "and nothing brings it back by itself"


def test_M17_a_landing_that_is_back_in_the_target_is_never_said_to_be_lost(world: World) -> None:
    before = world.main
    task = sealed(world, "Back again")
    world.work_gate()
    landed = world.main
    git(world.layout.hub, "update-ref", "refs/heads/main", before)
    git(world.layout.hub, "update-ref", "refs/heads/main", landed)
    world.gate().abandon()
    another_gate(world)
    assert world.main == landed and world.state(task) is State.LANDED


def test_M17_work_that_the_target_no_longer_has_is_said_to_be_lost(world: World) -> None:
    before = world.main
    tasks = []
    for number in range(3):
        tasks.append(sealed(world, f"Number {number}", f"{number}.txt"))
        world.work_gate()
        if number == 0:
            before = world.main
    git(world.layout.hub, "update-ref", "refs/heads/main", before)
    world.gate().abandon()
    said = keep_last_landing(world.ledger)
    assert said is not None
    assert [world.state(task) for task in tasks] == [State.LANDED, State.PARKED, State.PARKED]
    parked = world.ledger.view().parked(tasks[1])
    assert parked is not None and parked.reason == "lost" and parked.work is not None
    world.step()
    assert keep_last_landing(world.ledger) is None, "said once"
    reopen(world.ledger, tasks[1], "person")
    agent = world.agent(tasks[1])
    assert agent.mine.token == 2
    agent.write("1.txt", "again\n").commit().seal()
    another_gate(world)
    world.work_gate("r2-test")
    assert world.state(tasks[1]) is State.LANDED


# Readers

READER = """
import json, sys
from pathlib import Path
from swarm.ledger.store import Ledger
from swarm.plumbing.hub import Hub

hub, branch, stop = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
ledger = Ledger(Hub.open(hub), branch)
seen = {}
print("ready", flush=True)
while not stop.exists():
    view = ledger.view()
    done = {Path(path).stem for path, _ in view.iter_paths("done")}
    landing = view.landing()
    if landing is not None:
        done |= {change.task for change in landing.changes if view.is_landed(change.task)}
    states = [view.state(change.task).value for change in landing.changes] if landing else []
    seen.setdefault((view.target, len(done), *states), 0)
    seen[(view.target, len(done), *states)] += 1
ledger.close()
print(json.dumps([[*key, count] for key, count in seen.items()]))
"""


@pytest.mark.race
@pytest.mark.timeout(180)
def test_T18_a_reader_never_sees_landed_work_as_claimed_nor_the_reverse(world: World) -> None:
    tasks = [f"t{number}" for number in range(100)]
    take_plan(world.ledger, [plan.Draft(id=t, title=t, body="Do it.") for t in tasks])
    stop = world.folder / "stop"
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(world.layout.hub), "main", str(stop)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert reader.stdout is not None and reader.stdout.readline() == "ready\n"
        claim = take_gate(world.ledger, "r1-test", timedelta(minutes=15), None)
        gate = world.gate()
        targets = [world.main]
        for task in tasks:
            queue_without_a_worktree(world, task)
            recorded = record(world.ledger, claim, build_of(gate, task), [], [])  # type: ignore[arg-type]
            assert isinstance(recorded, Recorded)
            assert isinstance(land(world.ledger, claim, recorded), Landed)  # type: ignore[arg-type]
            targets.append(world.main)
    finally:
        stop.touch()
        out = reader.communicate(timeout=30)[0]
    count = {target: number for number, target in enumerate(targets)}
    looks = json.loads(out)
    assert len({row[0] for row in looks}) > len(tasks) // 4, "the readers hardly looked"
    for target, landed, *_ in looks:
        assert landed == count[target], (target, landed, count[target])


def queue_without_a_worktree(world: World, task: str) -> None:
    """A claim and a sealed change of one new file, made by plumbing alone: quick."""
    from swarm.ledger.events import Event
    from swarm.ledger.store import Draft
    from swarm.ledger.view import View

    answer = claims.acquire(world.ledger, world.who(), world.terms, task)
    assert isinstance(answer, claims.Claimed)
    hub = world.hub
    blob = hub.git.run("hash-object", "-w", "--stdin", input=task.encode()).text
    row = f"100644 blob {blob}\t{task}.txt\n".encode()
    tree = hub.git.run("mktree", input=row).text
    # Below the first commit's tree nothing is needed: what is merged is one added file.
    base = world.hub.reader.tree_of(answer.lock.base)
    listed = hub.git.run("ls-tree", base).out + row
    tree = hub.git.run("mktree", input=listed).text
    head = hub.git.run("commit-tree", tree, "-p", answer.lock.base, "-m", task).text

    def decide(view: View) -> Draft[None]:
        lock_id = view.blob_id(records.lock_path(task)) or ""
        entry = records.QueueEntry(
            task=task,
            token=answer.lock.token,
            nonce=answer.lock.nonce,
            lock=lock_id,
            work=work_ref(task, answer.lock.token),
            base=answer.lock.base,
            start=answer.lock.start,
            head=head,
            commits=1,
            files=1,
            insertions=1,
            deletions=0,
            left_by_agent=records.LeftByAgent(uncommitted=0, untracked=0, head_was="branch"),
            priority=0,
            since=answer.attempts.since,
            sealed_at=view.now,
            hold=None,
        )
        facts = {"Swarm-Head": head, "Swarm-Base": answer.lock.base, "Swarm-Lock": lock_id}
        data = records.encode(entry)
        event = Event(
            "sealed", "by plumbing", {records.queue_path(task): data}, task,
            answer.lock.agent, answer.lock.token, facts,
        )  # fmt: skip
        move = Move(work_ref(task, answer.lock.token), None, head)
        return Draft((event,), None, (move,))

    world.ledger.append(decide)


# Names and places


@pytest.mark.parametrize("target", ["trunk", "zz", "feature/deep", "swarm", "refs-like"])
def test_T20_any_name_of_the_target_works(make: Make, target: str) -> None:
    """In name order, in which git renames, the target comes before the ledger whatever it is."""
    world = make(target=target)
    assert branch_ref(target) < LEDGER
    task = sealed(world, "Named")
    world.work_gate()
    assert world.state(task) is State.LANDED
    git(world.app, "pull", "-q", "--ff-only", "swarm", target)
    assert git(world.app, "rev-parse", "HEAD") == world.main
    clone = world.folder / "clone"
    git(world.folder, "clone", "-q", str(world.layout.hub), str(clone))
    assert git(clone, "branch", "--show-current") == target
    assert git(clone, "branch", "-r").count("swarm/") == 0, "a clone brings branches alone"


def test_T20_a_users_branch_called_swarm_and_hooks_of_the_project(make: Make) -> None:
    world = make()
    git(world.app, "branch", "swarm")
    git(world.app, "push", "-q", "swarm", "swarm")
    hooks = world.app / ".husky"
    hooks.mkdir()
    for name in ("pre-commit", "post-checkout", "post-merge", "reference-transaction", "update"):
        hook = hooks / name
        hook.write_text(f"#!/bin/sh\ntouch {world.folder}/ran-{name}\nexit 1\n")
        hook.chmod(0o755)
    git(world.app, "config", "core.hooksPath", ".husky")
    task = sealed(world, "Hooked")
    world.work_gate()
    assert world.state(task) is State.LANDED
    assert not list(world.folder.glob("ran-*")), "no hook of the project runs in our processes"


def test_T20_a_hub_whose_head_is_unborn(make: Make) -> None:
    world = make()
    git(world.layout.hub, "symbolic-ref", "HEAD", "refs/heads/nobody")
    task = sealed(world, "Unborn")
    world.work_gate()
    assert world.state(task) is State.LANDED


def test_W16_after_a_squash_the_work_ref_stays_and_the_record_decides(make: Make) -> None:
    world = make(config='[gate]\nstyle = "squash"\n')
    task = world.add("Squashed")
    agent = (
        world.agent(task).write("a.txt", "a\n").commit("one").write("b.txt", "b\n").commit("two")
    )
    head = agent.git("rev-parse", "HEAD")
    agent.seal()
    world.work_gate()
    assert world.state(task) is State.LANDED
    parents = git(world.layout.hub, "show", "-s", "--format=%P", world.main).split()
    assert len(parents) == 1, "one commit with one parent"
    assert not world.hub.contains(world.main, head)
    assert world.hub.reader.ref(work_ref(task, 1)) == head, "its commits are kept"
    done = world.ledger.view().done(task)
    assert done is not None and done.landed == world.main and done.head == head


def test_D3_a_merge_has_two_parents_and_says_who_did_what(world: World) -> None:
    task = world.add("Add the greeting", body="Greet.", source="#12")
    agent = world.agent(task).write("greet.txt", "hi\n").commit("greet")
    head = agent.git("rev-parse", "HEAD")
    agent.seal()
    before = world.main
    world.work_gate()
    raw = git(world.layout.hub, "cat-file", "commit", world.main)
    assert git(world.layout.hub, "show", "-s", "--format=%P", world.main).split() == [before, head]
    for line in (
        "Add the greeting",
        f"Swarm-Task: {task}",
        "Swarm-Token: 1",
        "Swarm-Check: tests ",
        "#12",
    ):
        assert line in raw, raw
