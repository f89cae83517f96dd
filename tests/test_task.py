"""What people do to tasks, as events: a plan whole or not at all, one transition at a time.

Enters: drafts and words. Leaves: events, or why not.
Guards: an edit never reaches a running attempt; a file that vanished cancels nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm import plan, task
from swarm.errors import NotFound, UsageError
from swarm.ledger.store import Ledger
from swarm.ledger.view import State
from swarm.plumbing.hub import Hub
from swarm.trailers import landings_told
from tests.world import World


def draft(id_: str, body: str = "Do it.", **keys: object) -> plan.Draft:
    return plan.Draft(id=id_, title=id_, body=body, **keys)  # type: ignore[arg-type]


def test_a_whole_plan_is_one_event(world: World) -> None:
    before = len(world.events())
    taken = task.take_plan(world.ledger, [draft("a"), draft("b"), draft("c", needs=("a",))])
    world.step()
    assert taken.new == ("a", "b", "c")
    assert world.events()[before:] == ["added"]
    assert task.take_plan(world.ledger, [draft("a")]).new == ()
    assert len(world.events()) == before + 1, "the same again writes nothing"


def test_each_state_has_its_fate(world: World) -> None:
    for name in ("open", "parked", "claimed", "queued", "cancelled"):
        world.add(name, strikes=1)
    world.land("landed", "landed.txt", "x\n")
    world.agent("parked", slot="s2").end()
    world.agent("queued", slot="s3").write("q.txt", "x\n").commit().seal()
    world.agent("claimed", slot="s4")
    task.cancel(world.ledger, "cancelled", "no", "me")
    names = ("open", "parked", "claimed", "queued", "cancelled", "landed", "fresh")
    drafts = [draft(name, "Other.") for name in names]
    seen = task.compare(world.ledger.view(), drafts)
    assert seen.changed == ("open", "parked")
    assert seen.waiting == ("claimed", "queued")
    assert seen.ended == ("cancelled", "landed")
    assert seen.new == ("fresh",)
    assert world.state("fresh") is State.ABSENT, "comparing writes nothing"
    assert task.take_plan(world.ledger, drafts) == seen
    world.step()


def test_an_edit_keeps_the_age(world: World) -> None:
    world.add("one")
    first = world.ledger.view().task("one")
    world.clock.pass_(hours=1)
    task.take_plan(world.ledger, [draft("one", "Other.")])
    second = world.ledger.view().task("one")
    assert first is not None and second is not None
    assert second.header.added_at == first.header.added_at and second.body == "Other."


def test_a_vanished_file_is_named_and_cancels_nothing(world: World) -> None:
    world.add("one")
    world.add("fix main")
    world.land("two", "two.txt", "x\n")
    taken = task.take_plan(world.ledger, [])
    assert taken.vanished == ("one",), "neither what has landed nor what swarm opened itself"
    assert world.state("one") is State.OPEN


def test_adding_an_id_that_exists_is_refused(world: World) -> None:
    assert not isinstance(task.add(world.ledger, draft("one")), task.Refusal)
    assert isinstance(task.add(world.ledger, draft("one", "Other.")), task.Refusal)
    task.cancel(world.ledger, "one", "no", "me")
    assert isinstance(task.add(world.ledger, draft("one")), task.Refusal), "its history stays"


def test_ids_are_folded_and_near_ones_offered(world: World) -> None:
    world.add("Fix T3")
    assert task.load_id(world.ledger, "FIX_t3") == "fix-t3"
    with pytest.raises(NotFound) as error:
        task.load_id(world.ledger, "fix-t4")
    assert error.value.hint == "did you mean fix-t3?"
    with pytest.raises(NotFound):
        task.load_id(world.ledger, "\x1b[31m")


def test_load_plan_says_all_problems_of_files_and_between_them(world: World) -> None:
    folder = world.app / "tasks"
    folder.mkdir()
    (folder / "a.md").write_text("---\ntimeout: 3\nneeds: [nope]\nrole: painter\n---\nx\n")
    (folder / "b.md").write_text("---\nopen\n")
    with pytest.raises(UsageError) as error:
        task.load_plan(world.ledger, folder, world.config, roles=["build"])
    why = error.value.why or ""
    assert all(word in why for word in ("timeout", "needs", "painter", "never closed"))


def test_reopen_of_a_stopped_task_starts_from_its_work(world: World) -> None:
    world.add("one", strikes=1)
    world.agent("one").write("one.txt", "half\n").commit().end()
    answer = task.reopen(world.ledger, "one", "me")
    assert answer == task.Changed("one", State.PARKED)
    world.step()
    again = world.agent("one")
    assert (again.tree / "one.txt").read_text() == "half\n"
    assert again.claimed.lock.token == 2, "the token is kept and grows"


# Another hub


def test_what_another_hub_landed_is_not_done_again(world: World, tmp_path: Path) -> None:
    """A colleague's clone has the task files and the landings, and a ledger of its own."""
    world.land("One", "one.txt", "1\n")
    hub = Hub.create(tmp_path / "other.git", "main", world.hub.path, world.main)
    other = Ledger(hub, "main", tmp_path / "other-cache", world.clock)
    other.create()
    drafts = [draft("one"), draft("two", needs=("one",)), draft("three")]
    taken = task.take_plan(other, drafts)
    assert (taken.new, taken.elsewhere) == (("two", "three"), ("one",))
    view = other.view()
    assert view.state("one") is State.ABSENT
    two = view.task("two")
    assert two is not None and two.header.needs == [], "what it needs is there"
    assert task.compare(view, drafts) == task.Taken(elsewhere=("one",)), "the same again"
    other.close()


@pytest.mark.parametrize(
    "message",
    [
        "One\n\nSays who.\n\n{trailers}",
        "Squashed (#7)\n\n* One\n\n{trailers}\n* Another\n\nmore\n",
        "Quoted\n\n{quoted}\n\nSigned-off-by: somebody\n",
    ],
)
def test_a_landing_is_told_also_by_a_squash(message: str) -> None:
    lines = ["Swarm-Task: one", "Swarm-Agent: a1", "Swarm-Token: 2", "Swarm-Tree: 44fe019"]
    text = message.format(
        trailers="\n".join(lines), quoted="\n".join(f"  > {line}" for line in lines)
    )
    assert landings_told(text) == ["one"]


def test_a_commit_of_an_agent_tells_no_landing() -> None:
    assert landings_told("work\n\nSwarm-Task: one\nSwarm-Agent: a1\nSwarm-Token: 2\n") == []
