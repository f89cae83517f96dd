"""What is shown of a hub: the records behind `swarm status` and its kin.

Enters: worlds in a known situation. Leaves: the records made of them.
Guards: every figure is right, has a source and an age, and what is not known is None.
"""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarm import overview
from swarm.claim import Ending, release
from swarm.errors import NotFound
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.records import Run
from swarm.ledger.store import Draft
from swarm.ledger.view import View
from swarm.output import render_status
from swarm.overview import Live, LiveCheck, LiveSlot, Need, Status, read_live, write_live
from swarm.plumbing.hub import LEDGER
from swarm.plumbing.objects import edit_tree
from swarm.plumbing.refs import Committed, Move
from swarm.steer import pause, resume
from swarm.task import approve, cancel, reopen
from swarm.workspace import Workspace
from tests.world import World, git


def workspace(world: World) -> Workspace:
    return Workspace(world.app, world.config, world.layout, world.ledger)


def look(world: World) -> Status:
    return overview.status(workspace(world))


def kinds(status: Status) -> list[tuple[str, str | None]]:
    return [(need.kind, need.task) for need in status.needs_you]


def need(status: Status, kind: str) -> Need:
    return next(need for need in status.needs_you if need.kind == kind)


def begin_run(world: World, run: str = "r1", runner: str = "r1-test", slots: int = 2) -> None:
    """A run of that name is going on, as its supervisor records it."""
    made = Run(
        run=run,
        runner=runner,
        host="zeno",
        pid=52077,
        boot_id=world.clock.boot_id(),
        slots=slots,
        adapter="scripted",
        started_at=world.clock.now(),
        started_monotonic_seconds=world.clock.monotonic(),
        config_digest="0" * 64,
        state="running",
    )
    event = Event("run-started", "begins", {records.run_path(run): records.encode(made)})
    world.ledger.append(lambda view: Draft((event,), None))
    world.live(runner)


def put(world: World, path: str, data: bytes) -> None:
    """Damage: a ledger file that no event of ours would write."""
    hub = world.hub
    view = world.ledger.view()
    batch = hub.batch()
    tree = edit_tree(hub.reader, batch, view.tree, {path: data})
    commit = batch.commit(tree, [view.tip], "by hand\n", "A Person <p@example.invalid>", "0 +0000")
    batch.write()
    assert isinstance(hub.transact([Move(LEDGER, view.tip, commit)]), Committed)


def a_busy_world(world: World) -> World:
    """One task in every state, and a run with one working and one idle slot."""
    world.land("Landed one", "src/a.txt", "1\n2\n4\n")
    world.add("Parked one", strikes=1)
    world.agent("parked-one").write("x.txt", "x\n").commit().end("agent_failed", "exit code 3")
    world.add("Blocked one", needs=("parked-one",))
    world.add("Blocked too", needs=("blocked-one",))
    world.add("Held one")
    world.agent("held-one").write("swarm.toml", "format = 1\n").commit().seal()
    world.add("Queued one", priority=1)
    world.agent("queued-one").write("q.txt", "q\n").commit().seal()
    world.add("Cancelled one")
    cancel(world.ledger, "cancelled-one", "not wanted", "a person")
    world.add("Working one", paths=("src/app/**",))
    world.agent("working-one").write("src/app/a.py", "1\n").commit().write("src/app/b.py", "2\n")
    world.add("Kept back", paths=("src/app/a.py",))
    world.add("Waiting one", needs=("working-one",))
    begin_run(world)
    return world


# Counts


def test_S1_every_task_is_counted_once_and_the_counts_add_up(world: World) -> None:
    counts = look(a_busy_world(world)).counts
    assert msgspec.to_builtins(counts) == {
        "open": 2,
        "ready": 1,
        "waiting": 1,
        "claimed": 1,
        "queued": 1,
        "held": 1,
        "parked": 1,
        "blocked": 2,
        "landed": 1,
        "cancelled": 1,
        "damaged": 0,
        "total": 10,
    }


def test_blocked_spreads_through_needs_and_names_the_need_that_stops_each(world: World) -> None:
    waits = {wait.task: (wait.state, wait.why) for wait in look(a_busy_world(world)).waiting}
    assert waits == {
        "blocked-one": ("blocked", "needs parked-one, parked"),
        "blocked-too": ("blocked", "needs blocked-one, blocked"),
        "waiting-one": ("waiting", "needs working-one"),
    }


def test_a_need_that_was_cancelled_blocks_too(world: World) -> None:
    world.add("First")
    world.add("Second", needs=("first",))
    cancel(world.ledger, "first", "no", "a person")
    assert [(w.task, w.why) for w in look(world).waiting] == [("second", "needs first, cancelled")]


def test_a_back_off_is_waiting_with_what_is_left_of_it(tmp_path: Path) -> None:
    world = World(tmp_path, config='[limits]\nbackoff = "90s"\n')
    try:
        world.add("Again")
        world.agent("again").end()
        world.clock.pass_(seconds=20)
        status = look(world)
        assert (status.counts.ready, status.counts.waiting) == (0, 1)
        assert status.waiting[0].why == "back-off, 01:10 left"
        world.clock.pass_(seconds=71)
        assert look(world).counts.ready == 1
    finally:
        world.close()


def test_C22_what_somebody_holds_is_never_listed_as_ready(world: World) -> None:
    for title in ("One", "Two"):
        world.add(title)
    world.agent("one", slot="s1")
    world.agent("two", slot="s2").write("t.txt", "t\n").commit().seal()
    assert look(world).counts.ready == 0
    states = {task.id: task.state for task in overview.tasks(workspace(world)).tasks}
    assert states == {"one": "claimed", "two": "queued"}


# What needs a person


def test_S4_what_needs_a_person_comes_with_why_and_what_to_type(world: World) -> None:
    status = look(a_busy_world(world))
    assert kinds(status) == [("parked", "parked-one"), ("held", "held-one")]
    assert need(status, "parked").why == "exit code 3"
    assert need(status, "parked").do == [
        "swarm show parked-one",
        "swarm task reopen parked-one",
    ]
    assert need(status, "held").why == "touches swarm.toml (protected)"
    assert need(status, "held").do == ["swarm diff held-one", "swarm approve held-one"]


def test_an_approved_change_needs_nobody_any_more(world: World) -> None:
    world.add("Held one")
    world.agent("held-one").write("swarm.toml", "format = 1\n").commit().seal()
    approve(world.ledger, "held-one", "a person")
    begin_run(world)
    assert kinds(look(world)) == []


def test_a_question_is_shown_as_asked(world: World) -> None:
    world.add("Seat billing")
    agent = world.agent("seat-billing")
    release(world.ledger, agent.mine, Ending("asked", "Per seat or per invoice?"), world.bounds)
    asked = need(look(world), "asked")
    assert asked.why == '"Per seat or per invoice?"'
    assert asked.do == ['swarm tell seat-billing "..."', "swarm show seat-billing"]


def test_M14_a_queue_that_waits_while_no_gate_lives_needs_a_person(world: World) -> None:
    world.add("Waits")
    world.agent("waits").write("w.txt", "w\n").commit().seal()
    status = look(world)
    assert need(status, "no gate").why == "1 change waits and no gate runs"
    assert status.queue[0].why == "no gate runs"
    begin_run(world)
    assert kinds(look(world)) == [], "a living run will be the gate by itself"


def test_S4_a_dead_runners_claims_are_announced_until_a_run_takes_them(world: World) -> None:
    world.add("Orphan")
    alive = world.live("r1-dead")
    world.agent("orphan", runner="r1-dead")
    assert kinds(look(world)) == [], "its runner lives"
    alive.close()
    gone = need(look(world), "gone")
    assert gone.why == "r1 was killed and holds orphan"
    assert gone.do == ["swarm run --agent scripted"], "it can be pasted: an agent is named"
    begin_run(world, "r2", "r2-test")
    assert kinds(look(world)) == [], "a living run takes it over by itself"


def test_S5_nobody_alive_is_called_dead_and_silence_is_said_with_its_proof(world: World) -> None:
    world.add("Slow")
    begin_run(world)
    world.agent("slow")
    world.clock.pass_(minutes=14)
    status = look(world)
    assert kinds(status) == []
    assert status.slots[0].state == "working"
    world.clock.pass_(minutes=2)  # beyond the lease of 15 minutes, and its flock is still held
    status = look(world)
    assert need(status, "silent").why == "r1, pid 52077 on zeno: last heartbeat 960 s ago"
    assert status.slots[0].state == "silent"
    assert [claim.state for claim in overview.claims(workspace(world)).claims] == ["silent"]


def test_claims_that_expire_again_and_again_are_told_before_they_park(world: World) -> None:
    world.add("Flaky")
    for _ in range(2):
        world.agent("flaky")
        world.clock.pass_(minutes=20)
        world.sweep()
    assert need(look(world), "expired").why == "2 claims in a row gave no sign of life"


def test_a_red_target_says_so_and_a_paused_gate_says_why(tmp_path: Path) -> None:
    world = World(tmp_path, files={"a.txt": "RED\n"})
    try:
        world.add("Any")
        world.agent("any").write("b.txt", "b\n").commit().seal()
        world.work_gate()
        status = look(world)
        tip = world.main[:7]
        assert status.target.verdict is not None
        assert status.target.verdict.value == "failed"
        assert need(status, "paused").why == f"main {tip} is red: tests failed"
        assert need(status, "paused").do == ["swarm show fix-main"]
        assert status.queue[0].why == f"the gate is paused: main {tip} is red: tests failed"
    finally:
        world.close()


def test_M20_a_damaged_record_heads_the_list_and_hides_nothing_else(world: World) -> None:
    a_busy_world(world)
    put(world, records.task_path("landed-one"), b"nothing like a task")
    put(world, "runs/r9.json", b"{}")
    status = look(world)
    assert kinds(status)[:2] == [("damaged", None), ("damaged", "landed-one")]
    assert need(status, "damaged").why.startswith("runs/r9.json: run record: ")
    assert status.counts.damaged == 1
    assert ("parked", "parked-one") in kinds(status)


def test_S5_a_line_keeps_its_key_while_only_its_wording_changes(world: World) -> None:
    first, second = world.add("First"), world.add("Second")
    alive = world.live("r1-dead")
    world.agent(first, runner="r1-dead")
    alive.close()
    gone = need(look(world), "gone")
    world.agent(second, slot="s2", runner="r1-dead")
    more = need(look(world), "gone")
    assert (gone.key, more.key) == ("gone:r1", "gone:r1") and gone.why != more.why
    begin_run(world, "r2", "r2-test")
    world.clock.pass_(minutes=20)
    silent = need(look(world), "silent")
    world.clock.pass_(minutes=1)
    older = need(look(world), "silent")
    assert silent.key == older.key == "silent:r2" and silent.why != older.why


def test_S5_no_two_lines_have_one_key_and_a_new_trouble_has_another(world: World) -> None:
    a_busy_world(world)
    pause(world.ledger, "lunch", "a person")
    live_file(world, stopped="not logged in")
    before = look(world).needs_you
    reopen(world.ledger, "parked-one", "a person")
    world.clock.pass_(seconds=1)
    world.agent("parked-one", slot="s7").write("y.txt", "y\n").commit().end()
    resume(world.ledger, "a person")
    pause(world.ledger, "dinner", "a person")
    live_file(world, stopped="setup fails")
    after = look(world)
    for kind in ("parked", "paused", "stopped"):
        assert need(after, kind).key not in {need.key for need in before}, kind
    assert need(after, "held").key in {need.key for need in before}
    put(world, "runs/r9.json", b"{}")
    put(world, "runs/r10.json", b"{")
    found = look(world).needs_you
    assert len({need.key for need in found}) == len(found) == 6
    assert {need.key.partition(":")[0] for need in found} == {need.kind for need in found}


# The target


def test_the_targets_verdict_has_a_source_and_an_age(world: World) -> None:
    world.land("One", "src/a.txt", "1\n")
    world.clock.pass_(minutes=2)
    target = look(world).target
    assert target.oid == world.main
    assert target.verdict is not None
    assert (target.verdict.value, target.verdict.check) == ("passed", "tests")
    assert target.verdict.age_seconds == 120
    assert world.ledger.view().blob_id(target.verdict.source) is not None


def test_S1_what_was_never_judged_is_null_and_not_green(world: World) -> None:
    assert look(world).target.verdict is None
    world.land("One", "src/a.txt", "1\n")
    world.push("src/a.txt", "by a person\n")
    assert look(world).target.verdict is None, "the verdict of another tree is not its verdict"


# Slots


def test_S6_a_working_slot_shows_its_activity_and_unknown_cost_is_null(world: World) -> None:
    a_busy_world(world)
    slot = look(world).slots[0]
    assert (slot.slot, slot.task, slot.attempt, slot.state) == ("s1", "working-one", 1, "working")
    assert (slot.commits, slot.files_changed, slot.newest) == (1, 2, "src/app/b.py")
    assert slot.active_age_seconds is not None
    assert slot.usage is None and slot.doing is None
    cost = look(world).cost
    assert (cost.known_usd, cost.attempts_known, cost.attempts_unknown) == (None, None, None)


def test_a_slot_whose_worktree_is_anothers_shows_nothing_of_it(world: World) -> None:
    world.add("One")
    world.agent("one").write("a.txt", "a\n")
    world.slots[0].record.unlink()
    slot = look(world).slots[0]
    assert (slot.commits, slot.files_changed, slot.newest) == (None, None, None)


def test_looking_at_a_slot_changes_nothing_in_it(world: World) -> None:
    world.add("One")
    agent = world.agent("one").write("a.txt", "a\n").commit()
    own = agent.slot.own / "index"
    before = (own.read_bytes(), own.stat().st_mtime_ns, world.ledger.view().tip)
    look(world)
    assert (own.read_bytes(), own.stat().st_mtime_ns, world.ledger.view().tip) == before
    assert agent.capture().head == agent.slot.head()


def test_idle_slots_say_whose_paths_keep_the_ready_tasks_back(world: World) -> None:
    idle = [slot for slot in look(a_busy_world(world)).slots if slot.state == "idle"]
    assert [slot.why for slot in idle] == [
        "1 ready task is kept back: paths overlap working-one (src/app/**)"
    ]


def test_idle_slots_say_that_what_is_ready_is_for_another_role(world: World) -> None:
    world.add("Review it", role="review")
    begin_run(world, slots=1)
    assert look(world).slots[0].why == "1 ready task is for role review"


def test_why_a_slot_is_idle_is_unknown_rather_than_guessed(world: World) -> None:
    world.add("Ready")
    begin_run(world, slots=1)
    assert look(world).slots[0].why is None


def live_file(world: World, **facts: Any) -> Path:
    path = overview.live_path(world.layout, "r1")
    write_live(path, Live(run="r1", runner="r1-test", at=world.clock.now(), **facts), None)
    return path


def test_what_only_the_runner_knows_comes_from_its_live_file(world: World) -> None:
    a_busy_world(world)
    since = world.clock.now()
    world.clock.pass_(seconds=23)
    assert world.gate()._take()
    live_file(
        world,
        stopped="not logged in: run claude, then /login",
        slots=[
            LiveSlot(slot="s1", stage="working", task="working-one", token=1),
            LiveSlot(slot="s2", stage="idle", why_idle="nothing is ready"),
        ],
        checks=[LiveCheck(tasks=["queued-one"], check="tests", role="candidate", since=since)],
    )
    status = look(world)
    assert [(s.slot, s.state, s.why) for s in status.slots] == [
        ("s1", "working", None),
        ("s2", "idle", "not logged in: run claude, then /login"),
    ]
    assert need(status, "stopped").why == "r1: not logged in: run claude, then /login"
    queued = status.queue[0]
    assert (queued.task, queued.state, queued.for_seconds) == ("queued-one", "checking", 23)
    assert queued.usual_seconds is not None and queued.usual_seconds > 0


def test_S1_a_dead_runners_live_file_is_not_believed(world: World) -> None:
    a_busy_world(world)
    live_file(world, stopped="not logged in")
    for alive in world.alive:
        alive.close()
    status = look(world)
    assert status.run is None
    assert "stopped" not in [need.kind for need in status.needs_you]


def test_the_live_file_is_written_when_something_changed_or_it_grows_old(world: World) -> None:
    path = overview.live_path(world.layout, "r1")
    now = world.clock.now()
    first = write_live(path, Live(run="r1", runner="r1-test", at=now), None)
    assert read_live(path) == first
    later = Live(run="r1", runner="r1-test", at=now + timedelta(seconds=1))
    assert write_live(path, later, first) == first == read_live(path)
    busy = msgspec.structs.replace(later, slots=[LiveSlot(slot="s1", stage="setup")])
    assert write_live(path, busy, first) == busy == read_live(path)
    old = msgspec.structs.replace(busy, at=now + timedelta(seconds=12))
    assert write_live(path, old, busy) == old == read_live(path)


@pytest.mark.parametrize("data", [b"", b"{", b'{"format": 2}', b"\xff"])
def test_a_broken_live_file_is_no_live_file(world: World, data: bytes) -> None:
    path = overview.live_path(world.layout, "r1")
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    assert read_live(path) is None


# Queue, claims, tasks


def test_the_queue_is_in_the_gates_order_and_held_changes_have_no_position(world: World) -> None:
    a_busy_world(world)
    world.add("Later")
    world.agent("later", slot="s5").write("l.txt", "l\n").commit().seal()
    found = overview.queue(workspace(world))
    assert [(c.task, c.position, c.state) for c in found.changes] == [
        ("queued-one", 1, "waiting"),
        ("later", 2, "waiting"),
        ("held-one", None, "held"),
    ]
    taken = world.gate().next_change(world.ledger.view())
    assert taken is not None and taken.task == found.changes[0].task


def test_M12_a_change_older_than_the_bound_goes_first_whatever_its_priority(world: World) -> None:
    world.add("Old")
    world.agent("old", slot="s1").write("o.txt", "o\n").commit().seal()
    world.clock.pass_(hours=2)
    world.add("Urgent", priority=50)
    world.agent("urgent", slot="s2").write("u.txt", "u\n").commit().seal()
    assert [c.task for c in overview.queue(workspace(world)).changes] == ["old", "urgent"]
    taken = world.gate().next_change(world.ledger.view())
    assert taken is not None and taken.task == "old"


def test_claims_are_the_lock_files_and_what_is_seen_of_their_holders(world: World) -> None:
    a_busy_world(world)
    world.clock.pass_(seconds=30)
    found = {claim.task: claim for claim in overview.claims(workspace(world)).claims}
    assert {task: claim.state for task, claim in found.items()} == {
        "held-one": "held",
        "queued-one": "queued",
        "working-one": "working",
    }
    assert found["working-one"].beat_age_seconds == 30
    assert found["queued-one"].beat_age_seconds is None
    lock = world.ledger.view().lock("working-one")
    assert lock is not None and found["working-one"].nonce == lock.nonce


def test_what_is_checked_now_comes_first_in_the_queue(world: World) -> None:
    for title in ("Old", "New"):
        world.add(title)
        world.agent(title.lower(), slot=title).write(f"{title}.txt", "x\n").commit().seal()
        world.clock.pass_(seconds=1)
    begin_run(world)
    assert world.gate()._take()
    check = LiveCheck(tasks=["new"], check="tests", role="candidate", since=world.clock.now())
    live_file(world, checks=[check])
    changes = overview.queue(workspace(world)).changes
    assert [(c.task, c.position, c.state) for c in changes] == [
        ("new", 1, "checking"),
        ("old", 2, "waiting"),
    ]


# Landings in flight


def test_T18_a_change_whose_landing_is_half_done_counts_as_landed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add("First")
    world.add("Second", needs=("first",))
    world.agent("first").write("f.txt", "f\n").commit().seal()
    gate = world.gate()
    cut = half_land(world, gate, monkeypatch)
    status = look(world)
    assert world.ledger.view().landing() is not None, cut
    assert (status.counts.landed, status.counts.queued, status.counts.ready) == (1, 0, 1)
    assert status.queue == []


def half_land(world: World, gate: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The target has moved and the ledger does not say so yet."""

    def move_only(ledger: Any, claim: Any, recorded: Any) -> Any:
        landing = recorded.landing
        move = Move(f"refs/heads/{landing.target}", landing.old, landing.new)
        assert isinstance(ledger.hub.transact([move]), Committed)
        raise Stopped

    class Stopped(Exception):
        pass

    monkeypatch.setattr("swarm.gate.land", move_only)
    with pytest.raises(Stopped):
        for _ in range(1000):
            gate.tick()
            running = gate.job.running if gate.job is not None else None
            if running is not None and running.child is not None:
                running.child.wait(1.0)
    return "cut between the refs"


# Events and stories


def test_an_event_as_json_has_the_documented_keys(world: World) -> None:
    world.add("One", strikes=3)
    world.agent("one").write("a.txt", "RED\n").commit().seal()
    world.work_gate()
    logged = next(e for e in world.ledger.iter_log() if e.kind == "ejected")
    found = overview.event_json(logged)
    assert found["schema"] == "swarm.event/1"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", found["at"])
    assert (found["event"], found["task"], found["token"]) == ("ejected", "one", 1)
    assert (found["reason"], found["strike"], found["strikes"]) == ("check_failed", True, "1 of 3")
    assert found["adapter"] is None, "what an event does not say is null"


def test_a_landing_says_how_long_its_checks_took(world: World) -> None:
    world.land("One", "src/a.txt", "1\n")
    landed = next(e for e in world.ledger.iter_log() if e.kind == "landed")
    verdict = world.ledger.view().verdict(landed_verdict(world, "one"))
    assert verdict is not None
    seconds = overview.event_json(landed)["seconds"]
    assert seconds == round(verdict.runs[-1].seconds, 1)


def landed_verdict(world: World, task: str) -> str:
    done = world.ledger.view().done(task)
    assert done is not None
    (key,) = done.verdicts
    return key


def test_names_in_an_event_come_back_as_a_list(world: World) -> None:
    world.add("Odd", strikes=3, paths=("src/**",))
    world.agent("odd").write("a, b  c.txt", "x\n").write("swarm.toml", "format = 1\n").seal()
    found = overview.event_json(next(e for e in world.ledger.iter_log() if e.kind == "sealed"))
    assert found["outside"] == ["a, b  c.txt", "swarm.toml"]
    assert found["hold"] == ["protected"]


def test_L9_a_story_names_the_commits_and_the_verdicts_of_every_attempt(world: World) -> None:
    world.land("Partner", "src/a.txt", "1\n")
    world.add("Two tries", strikes=3, needs=("partner",))
    world.agent("two-tries").write("a.txt", "RED\n").commit().seal()
    world.work_gate()
    world.agent("two-tries").write("a.txt", "green\n").commit().seal()
    world.work_gate()
    story = overview.story(workspace(world), "two-tries")
    assert (story.state, story.landed) == ("landed", world.main)
    assert [(n.task, n.state) for n in story.needs] == [("partner", "landed")]
    red, green = story.attempts
    assert (red.event, red.outcome, red.strike, red.strikes) == (
        "ejected",
        "check_failed",
        True,
        "1 of 3",
    )
    assert [(c.check, c.about, c.verdict, c.exit_code) for c in red.checks] == [
        ("tests", "merged", "failed", 1)
    ]
    assert (red.commits, red.files) == (1, 1)
    assert red.head is not None and world.file("a.txt", red.head) == "RED\n"
    assert green.start == red.head and green.merge is not None
    assert [(c.about, c.verdict) for c in green.checks] == [("merged", "passed")]
    assert green.landed == world.main
    assert [e["event"] for e in story.events if e["event"] not in ("landing",)] == [
        "added",
        "claimed",
        "sealed",
        "ejected",
        "claimed",
        "sealed",
        "landed",
    ]


def test_a_story_of_a_conflict_names_the_paths_and_the_partner(world: World) -> None:
    world.add("Other")
    world.add("Mine")
    mine = world.agent("mine", slot="s2").write("src/a.txt", "mine\n").commit()
    world.agent("other", slot="s1").write("src/a.txt", "other\n").commit().seal()
    world.work_gate()
    mine.seal()
    world.work_gate()
    attempt = overview.story(workspace(world), "mine").attempts[0]
    assert (attempt.outcome, attempt.paths, attempt.strike) == ("conflict", ["src/a.txt"], False)
    assert attempt.partner is not None
    assert (attempt.partner.task, attempt.partner.paths) == ("other", ["src/a.txt"])


def test_a_story_reads_the_events_of_its_task_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_busy_world(world)
    others = {e.oid for e in world.ledger.iter_log() if e.task != "landed-one"}
    read: list[str] = []
    commit = world.hub.reader.commit

    def noted(oid: str) -> bytes:
        read.append(oid)
        return commit(oid)

    monkeypatch.setattr(world.hub.reader, "commit", noted)
    story = overview.story(workspace(world), "landed-one")
    assert set(read) & others <= {story.ledger.oid}


def test_an_unknown_task_is_answered_with_the_nearest_name(world: World) -> None:
    world.add("Landed one")
    for ask in (overview.story, overview.compare):
        with pytest.raises(NotFound) as caught:
            ask(workspace(world), "landed-on")
        assert caught.value.hint == "did you mean landed-one?"


# Differences


def test_a_change_is_compared_with_where_it_left_the_target(world: World) -> None:
    work = workspace(world)
    world.add("Mine")
    assert overview.compare(work, "mine") is None, "nothing is saved yet"
    mine = world.agent("mine", slot="s2").write("m.txt", "m\n").commit()
    world.land("Other", "o.txt", "o\n")
    mine.seal()
    queued = overview.compare(work, "mine")
    assert queued is not None
    assert (queued.what, queued.stat) == ("queued", (1, 1, 0))
    assert b"o.txt" not in overview.diff(work, queued, is_stat=False)
    world.work_gate()
    landed = overview.compare(work, "mine")
    assert landed is not None
    assert (landed.what, landed.new, landed.stat) == ("landed", world.main, (1, 1, 0))


def test_saved_work_of_a_failed_attempt_can_be_compared(world: World) -> None:
    world.add("Mine")
    world.agent("mine").write("m.txt", "m\n").commit().end()
    saved = overview.compare(workspace(world), "mine")
    assert saved is not None
    assert (saved.what, saved.stat) == ("saved work", (1, 1, 0))


def test_a_patch_can_be_applied_as_it_is(world: World) -> None:
    work = workspace(world)
    world.land("Mine", "b.bin", "\x00\x01 odd \x1b[31m\n")
    landed = overview.compare(work, "mine")
    assert landed is not None
    patch = world.folder / "x.patch"
    patch.write_bytes(overview.diff(work, landed, is_stat=False))
    git(world.app, "apply", str(patch))
    assert (world.app / "b.bin").read_text() == "\x00\x01 odd \x1b[31m\n"


def test_the_story_of_a_task_begins_within_the_second_of_its_addition(world: World) -> None:
    world.clock.pass_(microseconds=700_000)
    world.land("Quick", "q.txt", "q\n")
    story = overview.story(workspace(world), "quick")
    assert [attempt.outcome for attempt in story.attempts] == ["landed"]
    assert story.attempts[0].for_seconds == 0
    assert [event["event"] for event in story.events] == ["added", "claimed", "sealed",
                                                          "landing", "landed"]  # fmt: skip


def test_a_target_that_a_person_pushed_is_not_called_fine_before_it_was_judged(
    world: World,
) -> None:
    world.land("One", "one.txt", "1\n")
    assert render_status(look(world))[1].startswith("nothing needs you; ")
    world.push("new.txt", "new\n")
    said = render_status(look(world))[1]
    assert said.startswith("main not judged yet: the next run or swarm gate --once judges it; ")
    world.work_gate()
    assert render_status(look(world))[1].startswith("nothing needs you; ")


# Disk


def test_disk_is_measured_with_an_age_and_unknown_is_null(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.overview.disk.DISK_BUDGET", -1.0)
    disk = look(world).disk
    assert (disk.bytes, disk.age_seconds) == (None, None)
    measured = overview.measure_disk(world.layout)
    disk = look(world).disk
    assert disk.bytes == measured and measured is not None and measured > 0
    assert disk.age_seconds is not None


def test_the_documented_keys_of_status(world: World) -> None:
    found = records.jsonable(look(a_busy_world(world)))
    assert found["schema"] == "swarm.status/1"
    assert set(found) == {
        "schema", "at", "repository", "ledger", "target", "run", "needs_you", "counts", "slots",
        "queue", "gate", "waiting", "upstream", "limited", "cost", "disk",
    }  # fmt: skip
    assert found["repository"] == "app"
    assert set(found["ledger"]) == {"oid", "age_seconds"}
    assert found["run"]["id"] == "r1" and found["run"]["pid"] == 52077
    assert {"slot", "agent", "adapter", "task", "attempt", "token", "strikes", "since", "state",
            "active_age_seconds", "commits", "files_changed", "usage", "doing", "why"} <= set(
        found["slots"][0]
    )  # fmt: skip
    assert {"task", "token", "position", "since", "state", "check", "for_seconds",
            "usual_seconds"} <= set(found["queue"][0])  # fmt: skip


def test_a_view_of_another_moment_is_not_mixed_in(world: World) -> None:
    """The reading names the very commit that every figure comes from."""
    world.add("One")
    status = look(world)
    view: View = world.ledger.view()
    assert status.ledger.oid == view.tip
