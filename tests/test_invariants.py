"""That the invariants hold in a healthy world, and that each breach of one is seen."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from swarm.claim import Claimed
from swarm.ids import new_event_id
from swarm.invariants import (
    Checker,
    Policy,
    Violation,
    agent_environment_faults,
    check,
    checkout_facts,
)
from swarm.ledger import records
from swarm.plumbing.hub import LEDGER, RESCUE, branch_ref, work_ref
from swarm.plumbing.objects import edit_tree
from swarm.plumbing.refs import Committed, Move
from swarm.trailers import compose
from tests.world import World, git


def forge(
    world: World,
    kind: str,
    edits: Mapping[str, bytes | None],
    trailers: Mapping[str, str] | None = None,
    *,
    parents: list[str] | None = None,
    event_id: str | None = None,
) -> str:
    """A ledger commit that no code of ours would write, put on top; the invariants are not run."""
    hub = world.hub
    tip = hub.reader.ref(LEDGER)
    assert tip is not None
    batch = hub.batch()
    tree = edit_tree(hub.reader, batch, hub.reader.tree_of(tip), edits)
    facts = {"Swarm-Event": kind, "Swarm-Event-Id": event_id or new_event_id(), **(trailers or {})}
    new = batch.commit(
        tree,
        parents if parents is not None else [tip],
        compose(kind, "forged", facts),
        "swarm <ledger@swarm.invalid>",
        "1767323045 +0000",
    )
    batch.write()
    assert isinstance(hub.transact([Move(LEDGER, tip, new)]), Committed)
    return new


def numbers(found: list[Violation]) -> set[int]:
    return {violation.number for violation in found}


def says(found: list[Violation]) -> str:
    return "\n".join(str(violation) for violation in found)


def move(world: World, ref: str, new: str | None) -> None:
    """Move any ref by force, as somebody with a shell in the hub could."""
    old = world.hub.reader.ref(ref)
    assert isinstance(world.hub.transact([Move(ref, old, new)]), Committed)


def test_a_world_with_landings_conflicts_and_failures_holds(world: World) -> None:
    world.add("One")
    world.add("Two")
    one, two = world.agent("one", slot="s1"), world.agent("two", slot="s2")
    one.write("src/a.txt", "one\n").seal()
    two.write("src/a.txt", "two\n").seal()
    world.work_gate()
    world.add("Three")
    world.agent("three", slot="s3").write("b.txt", "b\n").end()
    world.push("c.txt", "c\n")
    world.land("Four", "d.txt", "d\n", slot="s4")
    assert "ejected" in world.events() and "released" in world.events()
    assert check(world.ledger, world.layout) == []


def test_what_is_new_is_found_once_and_the_past_is_not_walked_again(world: World) -> None:
    world.land("One", "one.txt", "1\n")
    forge(world, "checked", {}, {"Swarm-Task": "one"}, event_id="twice")
    forge(world, "checked", {}, event_id="twice")
    assert numbers(world.checker.step()) == {9}
    assert world.checker.step() == []
    assert numbers(check(world.ledger)) == {9}


# 1


def test_1_a_queue_entry_without_a_lock_is_no_row(world: World) -> None:
    world.add("One")
    world.agent("one").write("a", "1").seal()
    forge(world, "released", {records.lock_path("one"): None}, {"Swarm-Task": "one"})
    assert 1 in numbers(world.checker.step())


def test_1_an_event_that_skips_a_state_is_seen(world: World) -> None:
    world.add("One")
    done = records.Done(task="one", result="cancelled", token=0, at=world.clock.now())
    forge(world, "lost", {records.done_path("one"): records.encode(done)}, {"Swarm-Task": "one"})
    assert "lost took one from open to cancelled" in says(world.checker.step())


def test_1_a_record_that_does_not_decode_is_named_by_its_path(world: World) -> None:
    world.add("One")
    world.acquire("one")
    forge(world, "extended", {records.attempts_path("one"): b"{"}, {"Swarm-Task": "one"})
    assert f"{records.attempts_path('one')} does not decode" in says(world.checker.step())


def test_1_attempts_are_never_deleted(world: World) -> None:
    world.add("One")
    world.agent("one").end()
    forge(world, "reopened", {records.attempts_path("one"): None}, {"Swarm-Task": "one"})
    assert "the attempts record of one is gone" in says(world.checker.step())


# 2


def attempts_of(world: World, task: str, **changes: object) -> bytes:
    known = world.ledger.view().attempts(task)
    assert known is not None
    return records.encode(msgspec.structs.replace(known, **changes))


def test_2_a_token_that_falls_is_seen(world: World) -> None:
    world.add("One")
    world.agent("one").end()
    world.agent("one").end()
    edits = {records.attempts_path("one"): attempts_of(world, "one", token=1)}
    forge(world, "reopened", edits, {"Swarm-Task": "one"})
    assert 2 in numbers(world.checker.step())


def test_2_a_token_that_is_given_twice_is_seen(world: World) -> None:
    world.add("One")
    answer = world.acquire("one")
    assert isinstance(answer, Claimed)
    lock = records.encode(answer.lock)
    facts = {"Swarm-Task": "one", "Swarm-Token": "1"}
    attempts = attempts_of(world, "one")
    forge(
        world,
        "released",
        {records.lock_path("one"): None, records.attempts_path("one"): attempts},
        facts,
    )
    world.checker.step()
    again = {**facts, "Swarm-Agent": answer.lock.agent, "Swarm-Nonce": answer.lock.nonce}
    forge(world, "claimed", {records.lock_path("one"): lock}, again)
    assert "token 1 of one was given before" in says(world.checker.step())


# 3 and 4


def test_3_T9_a_target_that_goes_back_behind_a_landing_is_seen(world: World) -> None:
    before = world.main
    landed = world.land("One", "one.txt", "1\n")
    (world.hub.path / branch_ref("main")).write_text(before + "\n", "ascii")
    assert f"main lacks the landing commit of one ({landed}" in says(world.checker.step())


def test_3_a_move_of_ours_that_is_no_fast_forward_is_seen(world: World) -> None:
    before = world.main
    world.land("One", "one.txt", "1\n")
    move(world, branch_ref("main"), before)
    assert "we moved main other than forward" in says(world.checker.step())


def test_3_a_landing_commit_with_another_tree_than_recorded_is_seen(world: World) -> None:
    world.land("One", "one.txt", "1\n")
    done = world.ledger.view().done("one")
    assert done is not None
    other = world.hub.git.run(
        "commit-tree", world.hub.reader.tree_of(done.previous or ""), "-p", world.main, "-m", "x"
    ).text
    world.add("Two")
    world.agent("two").write("two.txt", "2\n").seal()
    move(world, branch_ref("main"), other)
    forged = msgspec.structs.replace(done, task="two", landed=other, previous=done.landed)
    forge(
        world,
        "landed",
        {
            records.lock_path("two"): None,
            records.queue_path("two"): None,
            records.done_path("two"): records.encode(forged),
        },
        {"Swarm-Task": "two", "Swarm-Token": "1", "Swarm-Landed": other},
    )
    told = says(world.checker.step())
    assert "invariant 3: the landing commit of two shows another tree than was recorded" in told
    assert "invariant 4: two landed on a verdict of another tree" in told


def test_4_a_landing_without_its_verdict_is_seen(world: World) -> None:
    world.land("One", "one.txt", "1\n")
    checker = Checker(world.ledger)
    assert checker.step() == []
    checker._seen.verdicts.clear()
    world.add("Two")
    checker.step()
    world.agent("two").write("two.txt", "2\n").seal()
    done = world.ledger.view().done("one")
    assert done is not None
    world.work_gate()
    assert checker.step() == []  # its own verdict was written since
    broken = Checker(world.ledger)
    broken._learn = lambda event: None  # type: ignore[method-assign]
    assert "landed on a verdict that nobody wrote" in says(broken.step())


def test_4_a_flaky_verdict_lands_only_by_policy(world: World) -> None:
    world.land("One", "one.txt", "1\n")
    for policy, wanted in ((Policy(), {4}), (Policy(flaky_lands=True), set())):
        checker = Checker(world.ledger, policy=policy)
        learn = checker._learn

        def flaky(event: object, checker: Checker = checker, learn: object = learn) -> None:
            learn(event)  # type: ignore[operator]
            for key, (_, tree) in checker._seen.verdicts.items():
                checker._seen.verdicts[key] = ("flaky", tree)

        checker._learn = flaky  # type: ignore[method-assign]
        assert numbers(checker.step()) == wanted


def test_12_a_landing_without_any_check_is_seen(world: World) -> None:
    world.add("One")
    world.agent("one").write("one.txt", "1\n").seal()
    entry = world.ledger.view().entry("one")
    assert entry is not None
    old = world.main
    tree = world.hub.reader.tree_of(entry.head)
    new = world.hub.git.run("commit-tree", tree, "-p", old, "-p", entry.head, "-m", "x").text
    move(world, branch_ref("main"), new)
    done = records.Done(
        task="one",
        result="landed",
        token=1,
        landed=new,
        previous=old,
        head=entry.head,
        tree=tree,
        at=world.clock.now(),
    )
    forge(
        world,
        "landed",
        {
            records.lock_path("one"): None,
            records.queue_path("one"): None,
            records.done_path("one"): records.encode(done),
        },
        {"Swarm-Task": "one", "Swarm-Token": "1", "Swarm-Landed": new},
    )
    found = world.checker.step()
    assert 12 in numbers(found)
    assert "landed without landing.json" in says(found)


# 5


def test_5_a_sealed_head_whose_work_ref_is_gone_is_seen(world: World) -> None:
    world.add("One")
    world.agent("one").write("one.txt", "1\n").seal()
    head = world.hub.reader.ref(work_ref("one", 1))
    move(world, work_ref("one", 1), None)
    assert f"{head} is on no ref of the hub" in says(world.checker.step())
    assert numbers(world.checker.step()) == {5}, "it is told until it is mended"
    move(world, f"{RESCUE}/one/1-1", head)
    assert world.checker.step() == []


def test_5_a_recorded_commit_that_does_not_exist_is_seen(world: World) -> None:
    world.add("One")
    gone = "1" * 40
    forge(world, "rescued", {}, {"Swarm-Task": "one", "Swarm-Head": gone})
    assert f"{gone} is on no ref of the hub" in says(world.checker.step())


# 6


def test_6_an_event_of_an_older_claim_is_seen(world: World) -> None:
    world.add("One")
    world.agent("one").end()
    world.acquire("one")
    forge(
        world,
        "released",
        {records.lock_path("one"): None},
        {"Swarm-Task": "one", "Swarm-Token": "1"},
    )
    assert "released of one by a holder of an older claim" in says(world.checker.step())


def test_6_two_worktrees_with_one_claim_are_seen(world: World) -> None:
    world.add("One")
    agent = world.agent("one", slot="s1")
    (world.layout.slots / "s2.json").write_bytes(agent.slot.record.read_bytes())
    assert "s1 and s2 carry one claim" in says(world.checker.step())


# 8


def test_8_a_changed_index_head_or_file_of_the_checkout_is_seen(world: World) -> None:
    checker = Checker(world.ledger, checkout=checkout_facts(world.app))
    world.land("One", "one.txt", "1\n")
    assert checker.step() == []
    (world.app / "README.md").write_text("changed\n", "utf-8")
    assert "files of the user's checkout changed" in says(checker.step())
    git(world.app, "add", "README.md")
    assert "index of the user's checkout changed" in says(checker.step())
    git(world.app, "commit", "-q", "-m", "x")
    assert "head of the user's checkout changed" in says(checker.step())
    git(world.app, "config", "core.bare", "true")
    assert "config of the user's checkout changed" in says(checker.step())
    checker.accept_checkout()
    assert checker.step() == []


def test_8_looking_at_a_checkout_does_not_change_it(world: World) -> None:
    index = (world.app / ".git/index").read_bytes()
    (world.app / "README.md").touch()
    checkout_facts(world.app)
    assert (world.app / ".git/index").read_bytes() == index


# 9


def test_9_a_rewritten_ledger_is_seen(world: World) -> None:
    world.add("One")
    tip = world.hub.reader.ref(LEDGER)
    assert tip is not None
    parent = git(world.hub.path, "rev-parse", f"{tip}^")
    world.hub.transact([Move(LEDGER, tip, parent)])
    assert "the ledger does not continue what it was" in says(world.checker.step())


def test_9_a_merge_in_the_ledger_is_seen(world: World) -> None:
    tip = world.hub.reader.ref(LEDGER) or ""
    forge(world, "checked", {}, parents=[tip, tip])
    assert "the ledger has a merge" in says(world.checker.step())


def test_9_an_event_outside_its_row_is_seen(world: World) -> None:
    world.add("One")
    forge(world, "checked", {records.LANDING_PATH: b"{}"})
    assert "checked may not change landing.json" in says(world.checker.step())


def test_9_an_event_that_changes_another_task_is_seen(world: World) -> None:
    world.add("One")
    world.add("Two")
    known = world.ledger.view().task("two")
    assert known is not None
    edits = {records.task_path("two"): records.encode_task(msgspec.structs.replace(known, body=""))}
    forge(world, "edited", edits, {"Swarm-Task": "one"})
    assert f"edited of one changes {records.task_path('two')}" in says(world.checker.step())


def test_9_trailers_that_differ_from_the_files_are_seen(world: World) -> None:
    world.add("One")
    answer = world.acquire("one")
    assert isinstance(answer, Claimed)
    world.add("Two")
    lock = msgspec.structs.replace(answer.lock, task="two", agent="other")
    attempts = records.Attempts(task="two", token=1, base=lock.base, since=world.clock.now())
    forge(
        world,
        "claimed",
        {
            records.lock_path("two"): records.encode(lock),
            records.attempts_path("two"): records.encode(attempts),
        },
        {"Swarm-Task": "two", "Swarm-Token": "1", "Swarm-Nonce": "f" * 32},
    )
    assert f"claimed says Swarm-Nonce {'f' * 32}, its files {lock.nonce}" in says(
        world.checker.step()
    )


def test_9_an_agent_with_two_claims_is_seen(world: World) -> None:
    world.add("One")
    world.add("Two")
    answer = world.acquire("one")
    assert isinstance(answer, Claimed)
    lock = msgspec.structs.replace(answer.lock, task="two", nonce="f" * 32)
    attempts = records.Attempts(task="two", token=1, base=lock.base, since=world.clock.now())
    edits = {
        records.lock_path("two"): records.encode(lock),
        records.attempts_path("two"): records.encode(attempts),
    }
    facts = {"Swarm-Task": "two", "Swarm-Token": "1", "Swarm-Nonce": lock.nonce}
    forge(world, "claimed", edits, facts)
    assert f"{lock.agent} holds one and claimed two" in says(world.checker.step())


def test_a_kind_of_a_newer_version_is_let_be(world: World) -> None:
    forge(world, "delegated", {})
    assert world.checker.step() == []


# 10


@pytest.mark.parametrize("name", ["GIT_DIR", "GIT_CONFIG_COUNT", "git_ssh_command"])
def test_10_a_variable_that_steers_git_is_named(name: str) -> None:
    assert agent_environment_faults({"PATH": "/bin", name: "x"}) == [name]


def test_10_an_ordinary_environment_is_fine() -> None:
    assert agent_environment_faults({"PATH": "/bin", "SWARM_TASK": "x", "DIGIT_": "1"}) == []


def test_10_an_agents_git_moves_no_ref_of_the_hub(world: World) -> None:
    world.add("One")
    agent = world.agent("one").write("a.txt", "a").commit()
    refs = git(world.hub.path, "for-each-ref")
    agent.git("branch", "extra")
    agent.git("stash", "list")
    agent.git("update-ref", "refs/swarm/ledger", "HEAD")
    agent.git("push", "origin", "HEAD:main", ok=(1, 128))
    agent.git("gc", "--quiet", "--prune=now")
    assert git(world.hub.path, "for-each-ref") == refs
    assert world.checker.step() == []


def test_the_walk_spawns_no_process_per_event(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for number in range(20):
        world.add(f"Task {number}")
    checker = Checker(world.ledger)
    checker.step()
    for number in range(20, 60):
        forge(world, "checked", {}, {"Swarm-Number": str(number)})
    started: list[object] = []
    real = subprocess.Popen

    def counted(*args: object, **keys: object) -> object:
        started.append(args)
        return real(*args, **keys)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", counted)
    checker.step()
    assert len(started) <= 4, "the history costs no process per event"
