"""A history in one stream, and the ledger's log that is read by it.

Enters: histories long and odd. Leaves: what is read of them.
Guards: the stream and the objects say the same; a history that breaks off is a fault.
"""

from __future__ import annotations

import subprocess
from itertools import islice
from pathlib import Path

import pytest

from swarm.errors import GitFault
from swarm.ledger.events import Event
from swarm.ledger.store import Draft, Logged
from swarm.plumbing.git import Git, end_group
from swarm.plumbing.history import iter_messages
from swarm.plumbing.hub import LEDGER
from tests.world import World, git

EVERY_ONE = "swarm.ledger.store._ONE_BY_ONE"


def some_events(world: World) -> World:
    for title in ("One", "One two", "Ünï 日本"):
        task = world.add(title)
        world.agent(task).write(f"{task}.txt", "x\n").commit().end("agent_failed", f"{title} broke")
        world.clock.pass_(minutes=10)
    return world


def test_the_stream_reads_what_the_objects_say(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = some_events(world).ledger
    monkeypatch.setattr(EVERY_ONE, 1000)
    slow = list(ledger.iter_log())
    assert len(slow) > 8 and slow[-1].kind == "created"
    for few in (0, 1, 4):
        monkeypatch.setattr(EVERY_ONE, few)
        assert list(ledger.iter_log()) == slow
        assert list(ledger.iter_log(slow[2].oid, slow[6].oid)) == slow[2:6]
        assert list(ledger.iter_log(slow[2].oid, slow[2].oid)) == []


def test_the_events_of_one_task_are_not_those_of_its_namesakes(world: World) -> None:
    ledger = some_events(world).ledger
    found = [event.task for event in ledger.iter_log(task="one")]
    assert len(found) >= 3 and set(found) == {"one"}


def test_the_name_of_a_task_in_another_ones_text_is_not_its_event(world: World) -> None:
    world.add("One")
    event = Event("edited", "it says Swarm-Task: one", {}, "other")
    world.ledger.append(lambda view: Draft((event,), None))
    assert [event.kind for event in world.ledger.iter_log(task="one")] == ["added"]


def test_events_since_a_moment(world: World) -> None:
    world.add("Old")
    world.clock.pass_(hours=3)
    since = world.clock.now()
    world.add("New")
    assert [event.task for event in world.ledger.iter_log(since=since)] == ["new"]
    assert list(world.ledger.iter_log(task="old", since=since)) == []


def test_events_within_the_second_of_a_moment_are_since_it(world: World) -> None:
    """Commits know whole seconds, and what they are compared with knows more."""
    world.clock.pass_(microseconds=700_000)
    since = world.clock.now()
    world.add("New")
    assert next(world.ledger.iter_log(since=since)).task == "new"
    assert [event.kind for event in world.ledger.iter_log(task="new", since=since)] == ["added"]


def test_a_short_way_starts_no_program(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = world.ledger.view().tip
    world.add("One")

    def started(*words: object) -> None:
        raise AssertionError("a git was started")

    monkeypatch.setattr("swarm.ledger.store.iter_messages", started)
    assert [event.task for event in world.ledger.iter_log(stop=before)] == ["one"]


def test_who_stops_early_leaves_no_program_behind(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = some_events(world).hub
    ended: list[subprocess.Popen[bytes]] = []

    def noted(child: subprocess.Popen[bytes]) -> None:
        end_group(child)
        ended.append(child)

    monkeypatch.setattr("swarm.plumbing.history.end_group", noted)
    stream = iter_messages(hub.git, LEDGER)
    assert next(stream)[2].startswith("released: ")
    stream.close()
    assert [child.returncode is not None for child in ended] == [True]


def test_T1_a_history_that_breaks_off_is_a_fault_after_what_could_be_read(world: World) -> None:
    ledger = some_events(world).ledger
    whole = list(ledger.iter_log())
    lost = whole[4].oid
    (world.hub.path / "objects" / lost[:2] / lost[2:]).unlink()
    read: list[Logged] = []
    with pytest.raises(GitFault):
        for event in ledger.iter_log(task="", since=world.clock.now().replace(year=2000)):
            read.append(event)
    assert read == whole[: len(read)], "nothing is invented"
    with pytest.raises(GitFault):
        list(ledger.iter_log())


def test_messages_of_other_encodings_and_empty_ones_keep_their_places(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "commit", "-q", "--allow-empty", "--allow-empty-message", "-m", "")
    git(
        tmp_path,
        "-c",
        "i18n.commitEncoding=latin1",
        "commit",
        "-q",
        "--allow-empty",
        "-m",
        "caf\xe9",
    )
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "last\n\nbody")
    found = list(iter_messages(Git(tmp_path / ".git"), "main"))
    assert [message.rstrip("\n") for _, _, message in islice(found, 3)][::2] == ["last\n\nbody", ""]
    assert len(found) == 3
