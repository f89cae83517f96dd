"""Taking turns at a hub: who waits is woken, who gives up leaves nothing locked."""

from __future__ import annotations

import fcntl
import threading
import time
from pathlib import Path

import pytest

from swarm.errors import HubUnusable
from swarm.plumbing import refs
from swarm.plumbing.refs import Turn


def is_free(path: Path) -> bool:
    """Could another process take it now?"""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_who_waits_gets_the_turn_when_it_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "hub.git.turn"
    one, other = Turn(path), Turn(path)
    order: list[str] = []

    def wait() -> None:
        with other.held():
            order.append("other")

    with one.held():
        thread = threading.Thread(target=wait)
        thread.start()
        while not any(t.name == "swarm-turn" for t in threading.enumerate()):
            time.sleep(0.001)
        order.append("one")
    thread.join()
    assert order == ["one", "other"]
    assert is_free(path)
    one.close()
    other.close()


def test_who_gives_up_waiting_does_not_hold_the_turn_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "hub.git.turn"
    one, other = Turn(path), Turn(path)
    monkeypatch.setattr(refs, "TURN_SECONDS", 0.05)
    with one.held(), pytest.raises(HubUnusable, match="busy"), other.held():
        raise AssertionError("two had the turn")
    waiting = [t for t in threading.enumerate() if t.name == "swarm-turn"]
    for thread in waiting:  # the flock that nobody wants any more comes through, and is undone
        thread.join()
    assert is_free(path)
    with other.held():
        assert not is_free(path), "it can have its turn all the same"
    one.close()
    other.close()
