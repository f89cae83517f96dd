"""Claims: one winner, the right owner, never a claim that the hub does not hold."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from swarm import claim as claims
from swarm import faults, task
from swarm.change import Sealed
from swarm.claim import (
    AlreadyHolding,
    Claimed,
    Ending,
    Fenced,
    HeldBy,
    Mine,
    NothingClaimable,
    NotReady,
    Released,
    Who,
)
from swarm.errors import Exit, HubUnusable
from swarm.ids import fold
from swarm.ledger import records, store
from swarm.ledger.events import Event
from swarm.ledger.store import Draft
from swarm.ledger.view import State, View
from swarm.liveness import Alive
from swarm.plumbing.hub import LEDGER
from swarm.plumbing.refs import Move
from tests.world import World, git


def corrupt(world: World, path: str, data: bytes = b"{not json") -> None:
    """Overwrite one ledger file below the product, as a bad disk or a foreign tool would."""
    hub = world.hub
    with hub.turn.held():
        view = world.ledger.view()
        batch = hub.batch()
        tree = store.edit_tree(hub.reader, batch, view.tree, {path: data})
        message = "rescued\n\nDamage.\n\nSwarm-Event: rescued\nSwarm-Event-Id: 0\n"
        tip = batch.commit(tree, [view.tip], message, store.AUTHOR, "1 +0000")
        batch.write()
        hub.refs.transact([Move(LEDGER, view.tip, tip)])


# C: two winners, lost claims, wrong owner


def test_C1_the_nonce_is_read_back_and_a_claim_that_is_gone_is_no_success(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = world.add("t")
    thief = world.other()

    def steal(point: str) -> None:
        if point != "claim.after_transact":
            return
        monkeypatch.setattr(faults, "reach", lambda _: None)
        lock = thief.view().lock(name)
        assert lock is not None
        claims.release(thief, Mine.of(lock), Ending("stopped", "by hand"), world.bounds)
        claims.acquire(thief, world.who("s2"), world.terms, name)

    monkeypatch.setattr(faults, "reach", steal)
    answer = world.acquire(name)
    assert isinstance(answer, HeldBy), "the claim was written and yet is no longer ours"
    assert (answer.lock.slot, answer.lock.token) == ("s2", 2)


def test_C1_a_claim_that_was_cancelled_before_the_read_back_is_no_success(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = world.add("t")
    person = world.other()

    def cancel(point: str) -> None:
        if point == "claim.after_transact":
            task.cancel(person, name, "not wanted", "a person")

    monkeypatch.setattr(faults, "reach", cancel)
    answer = world.acquire(name)
    assert isinstance(answer, NotReady) and answer.state is State.CANCELLED


def test_C2_byte_identical_claimants_in_one_second_get_different_locks(world: World) -> None:
    name = world.add("t")
    who = Who("r1", agent="same", host="same", pid=1, slot="s1")
    first = claims.acquire(world.ledger, who, world.terms, name)
    second = claims.acquire(world.other(), who, world.terms, name)
    assert isinstance(first, Claimed) and not isinstance(second, Claimed), "exactly one winner"
    claims.release(world.ledger, Mine.of(first.lock), Ending("stopped", ""), world.bounds)
    again = claims.acquire(world.ledger, who, world.terms, name)
    assert isinstance(again, Claimed)
    alike = msgspec.structs.replace(again.lock, nonce=first.lock.nonce, token=first.lock.token)
    assert alike == first.lock, "but for token and nonce the two locks are byte-equal"
    assert again.lock.nonce != first.lock.nonce


def test_C4_a_stale_list_never_gives_a_claim(world: World) -> None:
    name = world.add("t")
    b = world.other()
    listed = b.view()
    assert [row.id for row in b.index.rows(listed, State.OPEN)] == [name]
    assert isinstance(world.acquire(name), Claimed)
    assert b.index.find(listed, name).state is State.OPEN, "B's list still shows it free"  # type: ignore[union-attr]
    answer = claims.acquire(b, world.who("s2"), world.terms, name)
    assert isinstance(answer, HeldBy) and answer.lock.slot == "s1", "the hub refuses, not a cache"


def test_C5_two_loops_of_one_configuration_get_two_tasks_and_own_them(world: World) -> None:
    world.add("one")
    world.add("two")
    a, b = world.acquire(), world.acquire(slot="s2")
    assert isinstance(a, Claimed) and isinstance(b, Claimed)
    assert {a.lock.task, b.lock.task} == {"one", "two"}
    assert a.lock.agent != b.lock.agent, "the owner is the loop's own id, never a default"


def test_C7_a_hub_that_stays_busy_refuses_with_16_and_claims_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "BUSY_SECONDS", 0.2)
    world.add("t")
    before = world.hub.reader.ref(LEDGER)
    lock_file = world.layout.hub / f"{LEDGER}.lock"
    lock_file.touch()  # fresh and empty: another git may be about to write in it
    with pytest.raises(HubUnusable) as refused:
        world.acquire()
    assert refused.value.exit_code is Exit.BUSY
    assert str(lock_file) in (refused.value.why or ""), "the error names what is in the way"
    assert world.hub.reader.ref(LEDGER) == before and lock_file.exists()
    assert world.state("t") is State.OPEN, "there is no local-only claim"
    lock_file.unlink()
    assert isinstance(world.acquire(), Claimed), "and the next try goes through"


def test_C7_a_turn_that_never_comes_refuses_with_16(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.plumbing.refs.TURN_SECONDS", 0.1)
    world.add("t")
    with world.other().hub.turn.held(), pytest.raises(HubUnusable) as refused:
        claims.acquire(world.ledger, world.who(), world.terms)
    assert refused.value.exit_code is Exit.BUSY
    assert isinstance(world.acquire(), Claimed)


def test_C10_changes_of_two_tasks_at_once_both_survive(world: World) -> None:
    """B decides on a tip that A moves before B writes; neither loses anything."""
    world.add("a")
    world.add("b")
    b = world.other()
    calls: list[str] = []

    def decide(view: View) -> Draft[None]:
        calls.append(view.tip)
        if len(calls) == 1:  # as a writer outside the turn would: plain git, another host
            hub = world.hub
            batch = hub.batch()
            old = view.task("a")
            assert old is not None
            data = records.encode_task(msgspec.structs.replace(old, body="A's words\n"))
            tree = store.edit_tree(hub.reader, batch, view.tree, {records.task_path("a"): data})
            message = (
                "edited: a\n\nBy A.\n\nSwarm-Event: edited\nSwarm-Event-Id: 1\nSwarm-Task: a\n"
            )
            tip = batch.commit(tree, [view.tip], message, store.AUTHOR, "1 +0000")
            batch.write()
            git(world.layout.hub, "update-ref", LEDGER, tip, view.tip)
        known = view.task("b")
        assert known is not None
        data = records.encode_task(msgspec.structs.replace(known, body="B's words\n"))
        event = Event("edited", "By B.", {records.task_path("b"): data}, "b")
        return Draft((event,), None)

    b.append(decide)
    view = world.ledger.view()
    a_now, b_now = view.task("a"), view.task("b")
    assert a_now is not None and a_now.body == "A's words\n"
    assert b_now is not None and b_now.body == "B's words\n"
    assert len(calls) == 2, "decided again on the tip that A left"


def test_C11_two_runners_of_one_name_cannot_both_live(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.liveness._LOOK_SECONDS", 0.05)
    first = world.live("w1")
    with pytest.raises(HubUnusable, match="w1 is alive already"):
        Alive(world.layout.runs, "w1")
    first.close()
    Alive(world.layout.runs, "w1").close()


def test_C11_the_same_display_name_owns_nothing_of_the_other(world: World) -> None:
    world.add("one")
    world.add("two")
    a, b = world.acquire(slot="w1"), world.acquire(slot="w1")
    assert isinstance(a, Claimed) and isinstance(b, Claimed)
    theirs = Mine(a.lock.task, a.lock.token, b.lock.nonce, b.lock.agent)
    answer = claims.release(world.ledger, theirs, Ending("stopped", ""), world.bounds)
    assert isinstance(answer, Fenced), "the other's task is not theirs, whatever the name"


def test_C12_a_new_loop_in_the_slot_does_not_inherit_its_claim(world: World) -> None:
    name = world.add("t")
    alive = world.live("r1-dead")
    dead = world.agent(name, runner="r1-dead").write("src/a.txt", "half\n")
    alive.close()
    new = world.acquire(slot="s1", runner="r2")
    assert isinstance(new, NothingClaimable), "the claim is held until it is expired"
    posing = replace(dead.mine, agent=world.who().agent, nonce="0" * 32)
    assert isinstance(
        claims.release(world.ledger, posing, Ending("stopped", ""), world.bounds), Fenced
    )
    world.sweep()
    again = world.acquire(slot="s1", runner="r2")
    assert isinstance(again, Claimed)
    assert again.lock.agent != dead.claimed.lock.agent and again.lock.token == 2


def test_C14_a_renamed_host_can_still_release(world: World) -> None:
    name = world.add("t")
    who = world.who(host="old-name")
    answer = claims.acquire(world.ledger, who, world.terms, name)
    assert isinstance(answer, Claimed)
    mine = Mine.of(msgspec.structs.replace(answer.lock, host="new-name", agent="renamed"))
    released = claims.release(world.ledger, mine, Ending("stopped", ""), world.bounds)
    assert isinstance(released, Released), "the nonce is compared, never a name"
    world.step()


def test_C15_a_red_target_is_one_task_with_one_holder(world: World) -> None:
    queued = world.add("feature")
    world.agent(queued).write("src/b.txt", "1\n").commit().seal()
    world.push("src/bad.txt", "RED\n")
    world.work_gate()
    assert world.state("fix-main") is State.OPEN
    answers = [world.acquire(slot=f"s{n}") for n in (1, 2, 3)]
    winners = [a for a in answers if isinstance(a, Claimed)]
    assert [w.lock.task for w in winners] == ["fix-main"], "one repairs, the others wait"
    assert all(isinstance(a, NothingClaimable) for a in answers if a not in winners)


def test_C16_a_near_duplicate_is_named_with_its_holder(world: World) -> None:
    held = world.add("implement static local variables", priority=1)
    twin = world.add("fix static locals variables")
    world.add("tax report")
    assert isinstance(world.acquire(held), Claimed)
    answer = world.acquire(twin, slot="s2")
    assert isinstance(answer, Claimed) and answer.near == (held,), "warned, not stopped"


def test_C16_refused_duplicates_are_passed_over_not_in_the_way(tmp_path: Path) -> None:
    world = World(tmp_path, config='[claims]\nduplicates = "refuse"\n')
    held = world.add("implement static local variables", priority=2)
    twin = world.add("fix static local variables", priority=1)
    assert isinstance(world.acquire(held), Claimed)
    named = world.acquire(twin, slot="s2")
    assert isinstance(named, NotReady) and held in named.why
    nothing = world.acquire(slot="s2")
    assert isinstance(nothing, NothingClaimable)
    assert (nothing.kept_back, nothing.twins, nothing.overlaps) == ((twin,), (held,), ())
    other = world.add("tax report")
    answer = world.acquire(slot="s2")
    assert isinstance(answer, Claimed) and answer.lock.task == other
    world.close()


def test_C20_overlapping_paths_are_kept_back_and_free_at_once_after_release(world: World) -> None:
    wide = world.add("wide", priority=2, paths=("src/**",))
    narrow = world.add("narrow", priority=1, paths=("src/a.py",))
    apart = world.add("apart", paths=("docs/**",))
    a = world.agent(wide)
    b = world.acquire(slot="s2")
    assert isinstance(b, Claimed) and b.lock.task == apart
    refused = world.acquire(slot="s3")
    assert refused == NothingClaimable((narrow,), (wide,), 0), "it says which and why"
    named = world.acquire(narrow, slot="s3")
    assert isinstance(named, NotReady) and wide in named.why, "by name it is refused as well"
    a.end("stopped")
    c = world.acquire(narrow, slot="s3")
    assert isinstance(c, Claimed), "a released scope is free at once"


def test_C20_overlap_can_be_allowed(tmp_path: Path) -> None:
    world = World(tmp_path, config='[claims]\noverlap = "allow"\n')
    world.add("wide", paths=("src/**",))
    world.add("narrow", paths=("src/a.py",))
    assert isinstance(world.acquire(), Claimed)
    assert isinstance(world.acquire(slot="s2"), Claimed)
    world.close()


def test_C21_a_role_gets_its_own_tasks_and_never_anothers(world: World) -> None:
    build = world.add("build it", role="build", priority=1)
    reviewer = world.who("s2", role="review")
    answer = claims.acquire(world.ledger, reviewer, world.terms)
    assert answer == NothingClaimable((), (), 1), "work for another role is counted, not claimed"
    named = claims.acquire(world.ledger, reviewer, world.terms, build)
    assert isinstance(named, NotReady) and "build" in named.why
    review = world.add("review it", role="review")
    answer = claims.acquire(world.ledger, reviewer, world.terms)
    assert isinstance(answer, Claimed) and answer.lock.task == review
    world.step()


def test_C22_nothing_is_recommended_that_is_held(world: World) -> None:
    for name in ("one", "two"):
        world.add(name)
        assert isinstance(world.acquire(slot=name), Claimed)
    assert world.acquire(slot="s3") == NothingClaimable((), (), 0)


def test_C23_a_lock_replaced_by_hand_fences_its_old_holder(world: World) -> None:
    name = world.add("t")
    a = world.agent(name).write("src/a.txt", "A\n").commit()
    head = git(a.tree, "rev-parse", "HEAD")
    theirs = msgspec.structs.replace(a.claimed.lock, nonce="f" * 32, agent="b", slot="s2")
    # What `pull --rebase -X theirs` and a push would do; the hub's own hook refuses the push.
    clone = world.folder / "clone"
    git(world.folder, "clone", "-q", str(world.layout.hub), str(clone))
    git(clone, "fetch", "-q", "origin", f"{LEDGER}:{LEDGER}")
    git(clone, "checkout", "-q", LEDGER)
    (clone / records.lock_path(name)).write_bytes(records.encode(theirs))
    git(clone, "commit", "-q", "-a", "-m", "mine now")
    git(clone, "push", "-q", "origin", f"HEAD:{LEDGER}", ok=(1,))
    assert world.ledger.view().lock(name) == a.claimed.lock, "people cannot push the ledger"
    corrupt(world, records.lock_path(name), records.encode(theirs))
    answer = a.seal_unchecked()
    assert isinstance(answer, Fenced)
    assert git(world.layout.hub, "for-each-ref", "refs/heads/main", "--contains", head) == ""


def test_C24_names_that_differ_by_case_are_one_task(world: World) -> None:
    assert world.add("T3") == world.add("t3") == fold("T3")
    assert world.events().count("added") == 1
    assert isinstance(world.acquire(fold("T3")), Claimed)
    assert isinstance(world.acquire(fold("t3"), slot="s2"), HeldBy)


# What the rows do not name


def test_an_agent_has_one_claim_at_a_time(world: World) -> None:
    world.add("one")
    world.add("two")
    who = world.who()
    assert isinstance(claims.acquire(world.ledger, who, world.terms), Claimed)
    assert claims.acquire(world.ledger, who, world.terms) == AlreadyHolding("one")


def test_the_pick_is_by_priority_then_age_then_id(world: World) -> None:
    world.add("b old")
    world.add("a old")
    world.clock.pass_(minutes=1)
    world.add("young")
    world.add("urgent", priority=5)
    picked = [world.acquire(slot=f"s{n}") for n in range(4)]
    names = [p.lock.task for p in picked if isinstance(p, Claimed)]
    assert names == ["urgent", "a-old", "b-old", "young"]


def test_a_need_that_has_not_landed_keeps_a_task_from_pick_and_name(world: World) -> None:
    need = world.add("need", priority=-1)
    world.add("needy", needs=(need,))
    named = world.acquire("needy")
    assert isinstance(named, NotReady) and need in named.why
    picked = world.acquire()
    assert isinstance(picked, Claimed) and picked.lock.task == need


def test_a_task_in_back_off_is_not_ready_for_anyone(tmp_path: Path) -> None:
    world = World(tmp_path, config='[limits]\nbackoff = "10s"\nstrikes = 9\n')
    name = world.add("t")
    world.agent(name).end()
    assert isinstance(world.acquire(), NothingClaimable)
    named = world.acquire(name)
    assert isinstance(named, NotReady) and "back-off" in named.why
    world.clock.pass_(seconds=11)
    assert isinstance(world.acquire(name), Claimed)
    world.close()


def test_a_person_who_names_a_task_need_not_wait_for_its_back_off(tmp_path: Path) -> None:
    world = World(tmp_path, config='[limits]\nbackoff = "10s"\nstrikes = 9\n')
    name = world.add("t")
    world.agent(name).end()
    by_hand = Who(runner="hand-ada", adapter="hand", slot="h1")
    assert isinstance(claims.acquire(world.ledger, by_hand, world.terms, name), Claimed)
    world.step()
    world.close()


def test_a_release_is_done_once(world: World) -> None:
    a = world.agent(world.add("t"))
    assert isinstance(a.end("stopped"), Released)
    twice = claims.release(world.ledger, a.mine, Ending("stopped", ""), world.bounds)
    assert isinstance(twice, Fenced) and twice.now == "it is open"


def test_a_sealed_change_cannot_be_released_by_its_holder(world: World) -> None:
    a = world.agent(world.add("t")).write("src/a.txt", "A\n")
    assert isinstance(a.seal(), Sealed)
    answer = claims.release(world.ledger, a.mine, Ending("stopped", ""), world.bounds)
    assert isinstance(answer, Fenced) and "queued" in answer.now


def test_T11_a_token_only_grows_and_no_work_ref_is_used_twice(world: World) -> None:
    name = world.add("t", strikes=1)
    tokens: list[int] = []

    def attempt(text: str) -> None:
        a = world.agent(name).write("src/a.txt", text)
        tokens.append(a.claimed.lock.token)
        a.end("agent_failed")
        assert world.state(name) is State.PARKED
        task.reopen(world.ledger, name, "a person")
        world.step()

    attempt("1st\n")
    attempt("2nd\n")
    a = world.agent(name).write("src/a.txt", "3rd\n")
    tokens.append(a.claimed.lock.token)
    a.seal()
    task.cancel(world.ledger, name, "changed my mind", "a person")
    task.reopen(world.ledger, name, "a person")
    world.step()
    a = world.agent(name).write("src/a.txt", "4th\n")
    tokens.append(a.claimed.lock.token)
    a.seal()
    world.work_gate()
    assert world.state(name) is State.LANDED
    refused = task.reopen(world.ledger, name, "a person")
    assert isinstance(refused, task.Refusal), "landed work is not opened again"
    assert tokens == [1, 2, 3, 4]
    refs = world.hub.refs_below(f"refs/swarm/work/{name}")
    assert sorted(refs) == [f"refs/swarm/work/{name}/{n}" for n in tokens]
    texts = [world.file("src/a.txt", at=refs[ref]) for ref in sorted(refs)]
    assert texts == ["1st\n", "2nd\n", "3rd\n", "4th\n"], "each attempt's work is still there"


def test_T12_a_queued_change_never_expires_and_lands_when_a_gate_runs(world: World) -> None:
    name = world.add("t")
    alive = world.live("r1-gone")
    world.agent(name, runner="r1-gone").write("src/a.txt", "done\n").seal()
    alive.close()
    world.clock.pass_(days=1)
    report = world.sweep()
    assert report.expired == [] and world.state(name) is State.QUEUED
    world.work_gate("r2")
    assert world.state(name) is State.LANDED and world.file("src/a.txt") == "done\n"


@pytest.mark.parametrize("folder", ["tasks", "attempts", "current_tasks"])
def test_M20_a_damaged_record_stops_its_own_task_and_nothing_else(
    world: World, folder: str
) -> None:
    for name in ("bad", "good"):
        world.add(name)
        world.agent(name, slot=name, runner="r1-dead").end("stopped")
    bad = world.agent("bad", slot="bad", runner="r1-dead")
    good = world.agent("good", slot="good", runner="r1-dead")
    path = {
        "tasks": records.task_path("bad"),
        "attempts": records.attempts_path("bad"),
        "current_tasks": records.lock_path("bad"),
    }[folder]
    corrupt(world, path)
    ledger = world.ledger
    row = ledger.index.find(ledger.view(), "bad")
    assert row is not None and row.state is State.DAMAGED and row.why
    answer = claims.acquire(ledger, world.who("s3"), world.terms, "bad")
    assert isinstance(answer, NotReady | HeldBy), "it cannot be claimed, and says so"
    ended = claims.release(ledger, bad.mine, Ending("stopped", ""), world.bounds)
    assert isinstance(ended, Fenced), "its holder stops instead of crashing"
    world.live("r1-dead").close()
    for slot in world.slots:
        slot.close()
    report = world.sweep_unchecked()
    assert "good" in [e.task for e in report.expired], "the other claim is healed all the same"
    again = claims.acquire(ledger, world.who("s3"), world.terms)
    assert isinstance(again, Claimed) and again.lock.task == good.mine.task


def test_the_lease_of_a_claim_is_the_configured_one(tmp_path: Path) -> None:
    world = World(tmp_path, config='[claims]\nlease = "7m"\n')
    world.add("t")
    answer = world.acquire()
    assert isinstance(answer, Claimed)
    assert answer.lock.lease_seconds == timedelta(minutes=7).total_seconds()
    world.close()
