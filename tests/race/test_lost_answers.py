"""A git that outlives its caller, a git whose answer never comes: no event lost, no lie told."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from swarm import claim as claims
from swarm.claim import Claimed, HeldBy
from swarm.errors import HubUnusable
from swarm.ledger import store
from swarm.ledger.view import State
from swarm.plumbing import refs
from swarm.plumbing.hub import LEDGER
from tests.world import TickingClock, World, git

pytestmark = pytest.mark.race

# Reads one whole transaction, says so, and is the real git after a while: every other call passes.
SLOW_GIT = """#!/bin/sh
case " $* " in *" update-ref --stdin "*) ;; *) exec {real} "$@" ;; esac
while IFS= read -r line; do
    printf '%s\\n' "$line" >>{box}/$$
    [ "$line" = commit ] && break
done
touch {box}/read
sleep 1
exec {real} "$@" <{box}/$$ {sink}
"""

# Applies the first transaction and never answers; `when` is a command that says when.
MUTE_GIT = """#!/bin/sh
case " $* " in *" update-ref --stdin "*) ;; *) exec {real} "$@" ;; esac
if mkdir {box}/first 2>/dev/null; then
    while IFS= read -r line; do
        printf '%s\\n' "$line" >>{box}/first/text
        [ "$line" = commit ] && break
    done
    setsid sh -c '{when}; "$0" "$@" <{box}/first/text >/dev/null; touch {box}/applied' \\
        {real} "$@" </dev/null >/dev/null 2>&1 &
    exec sleep 600
fi
touch {box}/second
until [ -e {box}/applied ]; do sleep 0.02; done
exec {real} "$@"
"""

CLAIM = """
import sys
from pathlib import Path
from swarm import claim
from swarm.ledger.store import Ledger
from swarm.plumbing.hub import Hub
ledger = Ledger(Hub.open(Path(sys.argv[1])), "main", Path(sys.argv[2]))
print(claim.acquire(ledger, claim.Who("r1-killed", slot="s1"), claim.Terms(), "t"), flush=True)
"""


class RunningClock(TickingClock):
    """A second later at each look, so that no two tries write the same bytes."""

    def now(self) -> datetime:
        self.pass_(seconds=1)
        return super().now()


def wrapper(folder: Path, text: str, **words: str) -> Path:
    """A folder to put first on PATH, with a `git` in it; returns the folder."""
    real = shutil.which("git")
    assert real is not None
    box = folder / "box"
    box.mkdir()
    place = folder / "bin"
    place.mkdir()
    (place / "git").write_text(text.format(real=real, box=box, **words))
    (place / "git").chmod(0o755)
    return place


def first_on_path(place: Path) -> str:
    return f"{place}{os.pathsep}{os.environ['PATH']}"


def await_file(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)


@pytest.mark.parametrize("finishes", [True, False])
def test_T6_a_killed_coordinators_git_keeps_the_turn_until_it_has_ended(
    world: World, tmp_path: Path, finishes: bool
) -> None:
    """It finishes its transaction, or dies of its first answer because nobody reads it."""
    world.add("t")
    place = wrapper(tmp_path, SLOW_GIT, sink=">/dev/null" if finishes else "")
    victim = subprocess.Popen(
        [sys.executable, "-c", CLAIM, str(world.layout.hub), str(tmp_path / "cache")],
        env={**os.environ, "PATH": first_on_path(place)},
        stdout=subprocess.PIPE,
    )
    await_file(tmp_path / "box" / "read")
    victim.send_signal(signal.SIGKILL)
    assert victim.communicate()[0] == b"", "it died before it knew"
    assert world.state("t") is State.OPEN, "and before its git has written"
    turn = os.open(world.layout.hub.with_name(world.layout.hub.name + ".turn"), os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)  # so nobody can clean or decide now
    os.close(turn)
    answer = world.acquire("t", slot="s2", runner="r2")
    if finishes:
        assert isinstance(answer, HeldBy), "the second waited for the turn and sees the write"
        assert (answer.lock.runner, answer.lock.token) == ("r1-killed", 1)
    else:
        assert isinstance(answer, Claimed), "the first has written nothing"
    assert world.events("t") == ["added", "claimed"], "no event is lost and none is doubled"
    assert list(world.layout.hub.rglob("*.lock")) == []


def test_T6_a_git_killed_with_a_lock_in_its_hand_blocks_nobody_for_good(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What kill -9 leaves: a lock file with the new tip in it, or, a moment before, empty."""
    monkeypatch.setattr(store, "BUSY_SECONDS", 3.0)
    world.add("t")
    tip = world.ledger.view().tip
    lock_file = world.layout.hub / f"{LEDGER}.lock"
    lock_file.write_text(f"{tip}\n")
    old = time.time() - 2
    os.utime(lock_file, (old, old))
    assert isinstance(world.acquire("t"), Claimed), "an oid that only we can have written: removed"
    lock_file.touch()
    os.utime(lock_file, (old - 60, old - 60))
    world.add("u")
    assert isinstance(world.acquire("u"), Claimed), "empty and over a minute old: removed"


def test_T7_a_write_that_was_applied_without_an_answer_is_ours(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refs, "ANSWER_SECONDS", 1.0)
    world.add("t")
    world.hub.refs.close()
    place = wrapper(tmp_path, MUTE_GIT, when="true")
    monkeypatch.setenv("PATH", first_on_path(place))
    answer = world.acquire("t")
    assert isinstance(answer, Claimed) and answer.lock.token == 1
    assert (tmp_path / "box" / "applied").exists() and not (tmp_path / "box" / "second").exists()
    assert world.events("t") == ["added", "claimed"]


@pytest.mark.parametrize("named", [True, False])
def test_T7_a_write_applied_after_the_reread_said_old_is_found_by_its_event_id(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """It must be `Claimed` with the bytes that were written, never held by another or twice."""
    world.ledger.clock = RunningClock()
    world.add("t")
    world.add("u", priority=-1)
    world.hub.refs.close()
    box = tmp_path / "box"
    place = wrapper(tmp_path, MUTE_GIT, when=f"until [ -e {box}/second ]; do sleep 0.02; done")
    monkeypatch.setenv("PATH", first_on_path(place))
    monkeypatch.setattr(refs, "ANSWER_SECONDS", 1.0)
    answer = world.acquire("t" if named else None)
    assert (box / "second").exists(), "the re-read said old and the write was tried again"
    assert isinstance(answer, Claimed), "ours, not held by another"
    view = world.ledger.view()
    assert view.lock("t") == answer.lock and answer.lock.token == 1
    assert world.events("t") == ["added", "claimed"], "once"
    assert world.state("u") is State.OPEN, "and nothing else was taken"


def test_T7_an_event_that_a_new_decision_would_refuse_is_still_ours(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release whose answer is lost: asked again, the claim is gone, because it was given back."""
    agent = world.agent(world.add("t"))
    transact = world.hub.refs.transact
    calls = []

    def mute(moves: list[refs.Move]) -> refs.Outcome:
        calls.append(transact(moves))
        return refs.Moved((LEDGER,)) if len(calls) == 1 else calls[-1]

    monkeypatch.setattr(world.hub.refs, "transact", mute)
    answer = claims.release(
        world.ledger, agent.mine, claims.Ending("stopped", "given back"), world.bounds
    )
    assert isinstance(answer, claims.Released), "given back, not fenced"
    assert len(calls) == 1 and world.events("t").count("released") == 1


def test_T7_a_write_that_comes_after_the_last_try_is_not_called_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "BUSY_SECONDS", 0.0)
    world.add("t")
    transact = world.hub.refs.transact

    def late(moves: list[refs.Move]) -> refs.Outcome:
        transact(moves)
        return refs.Refused("the answer was lost")

    monkeypatch.setattr(world.hub.refs, "transact", late)
    assert isinstance(world.acquire("t"), Claimed)


def test_an_unknown_answer_says_unknown_and_not_no(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add("t")
    monkeypatch.setattr(world.hub.refs, "transact", lambda moves: refs.Unknown())
    with pytest.raises(HubUnusable, match="unknown"):
        world.acquire("t")


def test_a_dead_git_between_two_events_is_replaced(world: World) -> None:
    world.add("t")
    child = world.hub.refs._child
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert isinstance(world.acquire("t"), Claimed)


def test_a_foreign_git_that_moves_the_ledger_first_loses_nothing_of_ours(world: World) -> None:
    """Somebody else's compare-and-swap between our read and our write: decided again."""
    world.add("t")
    moved = []

    def decide(view: store.View) -> store.Draft[str]:
        if not moved:
            moved.append(view.tip)
            foreign = git(
                world.layout.hub, "commit-tree", f"{view.tip}^{{tree}}", "-p", view.tip,
                "-m", "rescued\n\nKept.\n\nSwarm-Event: rescued\nSwarm-Event-Id: 00\n",
            )  # fmt: skip
            git(world.layout.hub, "update-ref", LEDGER, foreign, view.tip)
        event = store.Event("rescued", "Kept.", {}, "t", trailers={"Swarm-Ref": "x"})
        return store.Draft((event,), view.tip)

    decided_on = world.ledger.append(decide)
    assert decided_on != moved[0]
    log = [logged.oid for logged in world.ledger.iter_log()]
    assert log[1] == decided_on, "written on top of the foreign one"
