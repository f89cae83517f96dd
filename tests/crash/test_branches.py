"""To and from the user's branch, killed: the same command again ends as if nothing had happened."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from swarm.doctor import Case, examine
from swarm.ledger.records import Push
from swarm.ledger.view import State
from swarm.plumbing.hub import LEDGER
from tests.team.team import Team, until
from tests.world import git

pytestmark = [pytest.mark.crash, pytest.mark.timeout(60)]

SYNC = ("sync",)
PUSH = ("push", "--pr", "--branch", "swarm/work")
REVERT = ("revert", "mine")
RUN = ("run", "-n", "1", "--", "sh", "-c", "echo work >work.txt")
# The points of the way to and from the remote, and those of a landing, by a command that has to be
# the gate itself.
LAND = ("land.before_transact", "land.between_refs", "land.after_transact")
REACHED: dict[tuple[str, ...], tuple[str, ...]] = {
    SYNC: ("sync.after_fetch", "offer.after_transact", *LAND),
    PUSH: ("sync.after_fetch", "push.after_push", "push.after_record", "push.after_pr"),
    REVERT: ("offer.after_transact", "land.between_refs"),
    RUN: ("sync.after_fetch", "offer.after_transact"),
}
SCENES = [(command, point) for command, points in REACHED.items() for point in points]


@dataclass(frozen=True)
class End:
    """What a person sees of it."""

    states: dict[str, State]
    files: dict[str, str | None]  # in the target
    pushed: bool  # the branch of the remote holds what the target holds
    requests: int


LANDED = {"mine": State.LANDED, "ours": State.LANDED}
ENDS = {
    SYNC: End(
        {**LANDED, "sync-1": State.LANDED},
        {"mine.txt": "mine\n", "mate.txt": "mate\n", "work.txt": None},
        pushed=False,
        requests=0,
    ),
    PUSH: End(
        {**LANDED},
        {"mine.txt": "mine\n", "mate.txt": None, "work.txt": None},
        pushed=True,
        requests=1,
    ),
    REVERT: End(
        {**LANDED, "revert-1": State.LANDED},
        {"mine.txt": None, "mate.txt": None, "work.txt": None},
        pushed=False,
        requests=0,
    ),
    RUN: End(
        {**LANDED, "sync-1": State.LANDED, "work": State.LANDED},
        {"mine.txt": "mine\n", "mate.txt": "mate\n", "work.txt": "work\n"},
        pushed=False,
        requests=0,
    ),
}


def a_team(folder: Path, every: str = "") -> Team:
    """Two tasks have landed, and the teammate has pushed a commit that the target lacks."""
    team = Team(folder, every=every)
    team.world.land("mine", "mine.txt", "mine\n")
    team.world.land("ours", "ours.txt", "ours\n")
    team.world.gate().close()
    team.deliver("mate.txt", "mate\n")
    return team


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    made = a_team(tmp_path)
    yield made
    made.close()


@pytest.fixture
def syncing_team(tmp_path: Path) -> Iterator[Team]:
    """The same; its runs look at the remote by themselves, and have a task to work on."""
    made = a_team(tmp_path, every="1s")
    (made.app / "tasks").mkdir()
    (made.app / "tasks" / "work.md").write_text("---\ntitle: Work\n---\nWork.\n", "utf-8")
    made.accept_checkout()
    yield made
    made.close()


def end_of(team: Team, paths: dict[str, str | None]) -> End:
    world = team.world
    view = world.ledger.view()
    held = git(team.origin, "for-each-ref", "--format=%(objectname)", "refs/heads/swarm/work")
    return End(
        {task: view.state(task) for task in world.ledger.index.ids(view)},
        {path: world.file(path) for path in paths},
        pushed=held == world.main,
        requests=len(team.requests()),
    )


def assert_ended(team: Team, command: tuple[str, ...], *, requests: int | None = None) -> None:
    """As if it had not been killed; and it does nothing more when it is typed once more."""
    wanted = ENDS[command]
    if requests is not None:
        wanted = End(wanted.states, wanted.files, wanted.pushed, requests)
    assert end_of(team, wanted.files) == wanted
    for task in wanted.states:
        kinds = team.world.events(task)
        assert kinds.count("added") == kinds.count("landed") == 1, kinds
    team.assert_sound()
    team.assert_nothing_lost()
    before = team.end()
    team.swarm(*command)
    if command != RUN:  # a run is a run: it says in the ledger that it was there
        assert team.end() == before
    assert end_of(team, wanted.files) == wanted
    found = [finding.id for finding in examine(Case(team.world.work))]
    assert found in ([], ["gate"]), found  # a gate that was killed is free for whoever comes


@pytest.mark.parametrize("command", [SYNC, PUSH, REVERT], ids=" ".join)
def test_a_command_that_nothing_stops_ends_so(team: Team, command: tuple[str, ...]) -> None:
    team.swarm(*command)
    assert_ended(team, command)


@pytest.mark.parametrize(
    ("command", "point"),
    [scene for scene in SCENES if scene[0] != RUN],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_command_killed_there_is_ended_by_the_same_command(
    team: Team, command: tuple[str, ...], point: str
) -> None:
    kill(team, command, point)
    team.swarm(*command)
    is_asked_again = point == "push.after_pr"  # nobody knows that it was asked before
    assert_ended(team, command, requests=2 if is_asked_again else None)


@pytest.mark.parametrize("point", REACHED[RUN])
def test_a_run_killed_while_it_looks_at_the_remote_is_ended_by_the_next(
    syncing_team: Team, point: str
) -> None:
    kill(syncing_team, RUN, point)
    syncing_team.swarm(*RUN)
    assert_ended(syncing_team, RUN)


def kill(team: Team, command: tuple[str, ...], point: str) -> None:
    """Type it and let it die there."""
    died = team.start(*command, env={"SWARM_FAULTS": "1", "SWARM_CRASH_AT": point})
    assert died.wait(30) == -signal.SIGKILL, team.out
    team.assert_sound()


# While a remote does not answer

HANGS = """#!/bin/sh
if [ ! -e '{folder}/hangs' ]; then exec sh -c "$2"; fi
trap '' TERM HUP
sleep 600 &
echo $$ $! >'{folder}/pids'
wait
"""


@pytest.mark.parametrize("command", [SYNC, RUN], ids=lambda command: command[0])
def test_a_command_killed_while_the_remote_hangs_leaves_no_process(
    syncing_team: Team, command: tuple[str, ...]
) -> None:
    """Nor does what hangs hold up the next one."""
    team = syncing_team
    ssh = team.folder / "ssh"
    ssh.write_text(HANGS.format(folder=team.folder), "utf-8")
    ssh.chmod(0o755)
    git(team.app, "config", "core.sshCommand", str(ssh))
    git(team.app, "config", "ssh.variant", "simple")
    git(team.app, "remote", "set-url", "origin", f"host:{team.origin}")
    team.accept_checkout()
    (team.folder / "hangs").touch()
    started = team.start(*command)
    pids = team.folder / "pids"
    until(lambda: pids.exists() and len(pids.read_text().split()) == 2, "it hangs", started)
    started.kill()
    assert started.wait(10) == -signal.SIGKILL
    team.assert_sound()
    left = [int(pid) for pid in pids.read_text().split()]
    until(lambda: not any(map(lives, left)), "what hangs is ended too")
    (team.folder / "hangs").unlink()
    team.swarm(*command)
    assert_ended(team, command)


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# At any moment

ROUNDS = 16
SEED = 7


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_commands_killed_at_any_moment_lose_and_double_nothing(team: Team) -> None:
    moments = random.Random(SEED)
    world = team.world
    landed = [world.land(f"t{n}", f"t{n}.txt", f"{n}\n") and f"t{n}" for n in range(ROUNDS // 4)]
    world.gate().close()
    killed = asked_for_nothing = merged = 0
    undone: list[str] = []
    for number in range(ROUNDS):
        if number % 4 == 3 and has_news(team):
            merged += has_pr(team)
            team.squash("swarm/work")
        else:
            team.deliver(f"mate-{number}.txt", f"{number}\n")
        command: tuple[str, ...] = moments.choice([SYNC, SYNC, PUSH, ("revert", "?")])
        if command[0] == "revert":
            undone = undone or [landed.pop()]
            command = ("revert", *undone)
        asked = len(team.requests())
        started = team.start(*command)
        wait_for_moves(team, started, moments.randint(0, 5))
        time.sleep(moments.uniform(0, 0.05))
        started.kill()
        killed += (was_killed := started.wait(10) == -signal.SIGKILL)
        if command[0] == "revert" and not was_killed:
            undone = []
        if len(team.requests()) > asked and not has_pr(team):
            asked_for_nothing += 1  # made, and killed before that was written down
        team.assert_sound()
    assert killed > ROUNDS // 2, "the commands ended before they could be killed"
    if undone:
        team.swarm("revert", *undone)
    team.swarm("sync")
    team.swarm("sync")  # the first may have waited for what an earlier one had offered
    team.swarm(*PUSH)
    view = world.ledger.view()
    states = {task: view.state(task) for task in world.ledger.index.ids(view)}
    assert set(states.values()) == {State.LANDED}, states
    assert all(team.has(commit) for commit in team.made), "all that the teammate made is in"
    for task in states:
        kinds = world.events(task)
        assert kinds.count("added") == kinds.count("landed") == 1, kinds
    undoes = [undone for task in states for undone in undoes_of(team, task)]
    assert len(undoes) == len(set(undoes)), "nothing was undone twice"
    assert git(team.origin, "rev-parse", "swarm/work") == world.main
    assert 1 <= len(team.requests()) <= 1 + asked_for_nothing + merged
    team.assert_sound()
    team.assert_nothing_lost()
    team.assert_never_red()
    team.swarm("doctor")
    assert "bug" not in team.out, team.out


def wait_for_moves(team: Team, started: subprocess.Popen[bytes], count: int) -> None:
    """Until ledger, pushed branch or requests have moved so often, or the command has ended."""
    reader, branch = team.world.hub.reader, team.origin / "refs" / "heads" / "swarm" / "work"

    def seen() -> tuple[object, ...]:
        held = branch.read_bytes() if branch.exists() else b""
        return reader.ref(LEDGER), reader.ref("refs/heads/main"), held, len(team.requests())

    last, deadline = seen(), time.monotonic() + 20
    while count and started.poll() is None and time.monotonic() < deadline:
        now = seen()
        count -= now != last
        last = now
        time.sleep(0.001)


def has_news(team: Team) -> bool:
    """Has the pushed branch something that can be merged into the remote's own branch?"""
    if not git(team.origin, "for-each-ref", "refs/heads/swarm/work"):
        return False
    merged = git(team.origin, "merge-tree", "--write-tree", "main", "swarm/work", ok=(0, 1))
    return len(merged.splitlines()) == 1 and merged != git(team.origin, "rev-parse", "main^{tree}")


def pushes(team: Team) -> list[Push]:
    known = team.world.ledger.view().upstream()
    return known.pushes if known is not None else []


def has_pr(team: Team) -> bool:
    return any(push.pr is not None for push in pushes(team))


def undoes_of(team: Team, task: str) -> list[str]:
    found = team.world.ledger.view().task(task)
    assert found is not None
    return found.header.undoes
