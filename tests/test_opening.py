"""Opening and setup: what setup leaves is nobody's work, in a run, by hand, after a kill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swarm import hand
from swarm.change import NoWork, Sealed
from swarm.cli.live import Follower, Plain, Signals
from swarm.errors import GitFault
from swarm.hand import Joined, find_stand
from swarm.ledger.records import Last
from swarm.ledger.view import State
from swarm.loop import Loop
from swarm.slot import Slot
from swarm.supervisor import Supervisor
from swarm.workspace import Workspace
from tests.world import World, git

INFO = "src/shop.egg-info"
INSTALL = f"mkdir -p {INFO} && touch {INFO}/top && echo x >>{INFO}/PKG-INFO && echo y >made.txt"
ONCE = f'[worktree]\nsetup = "{INSTALL}"\nsetup_inputs = ["src/a.txt"]\n'
ALWAYS = f'[worktree]\nsetup = "{INSTALL}"\n'


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Worlds of other settings, closed at the end."""
    made: list[World] = []

    def build(config: str, **keys: Any) -> World:
        made.append(World(tmp_path, config=config, **keys))
        return made[-1]

    yield build
    for world in made:
        world.close()


def last(world: World, task: str) -> Last:
    attempts = world.ledger.view().attempts(task)
    assert attempts is not None and attempts.last is not None
    return attempts.last


def sealed(world: World, task: str) -> set[str]:
    """Names that the task's queued change brings."""
    entry = world.ledger.view().entry(task)
    assert entry is not None
    return set(world.hub.changed_paths(entry.base, entry.head))


def rescues(world: World) -> dict[str, str]:
    return world.hub.refs_below("refs/swarm/rescue")


def attempt(world: World, script: str, title: str = "Work") -> tuple[str, Loop]:
    """One attempt of an agent that is this script."""
    task = world.add(title)
    loop = world.loop(script)
    world.work_loop(loop)
    return task, loop


@pytest.mark.parametrize("config", [ONCE, ALWAYS])
def test_an_agent_that_does_nothing_did_not_do_what_setup_did(
    make: Callable[..., World], config: str
) -> None:
    world = make(config)
    task, loop = attempt(world, "test -e made.txt && test -e src/shop.egg-info")
    assert last(world, task).outcome == "no_work"
    world.add("Next")
    world.work_loop(loop)
    assert rescues(world) == {}


def test_an_attempt_that_fails_saves_no_file_of_setups(make: Callable[..., World]) -> None:
    world = make(ALWAYS)
    task, _ = attempt(world, "exit 4")
    assert last(world, task).message == "exit code 4"
    attempts = world.ledger.view().attempts(task)
    assert attempts is not None and attempts.work is None


def test_a_file_that_the_agent_makes_beside_setups_is_its_work(make: Callable[..., World]) -> None:
    world = make(ONCE)
    task, _ = attempt(world, "echo z >src/new.py; echo z >beside.txt; echo z >>made.txt")
    assert sealed(world, task) == {"src/new.py", "beside.txt"}
    entry = world.ledger.view().entry(task)
    assert entry is not None and entry.left_by_agent.untracked == 2
    world.work_gate()
    assert world.state(task) is State.LANDED
    assert world.file("made.txt") is None


def test_an_agents_add_of_everything_takes_none_of_setups_and_by_force_does(
    make: Callable[..., World],
) -> None:
    world = make(ONCE)
    task, _ = attempt(world, "echo z >z.txt; git add -A; git commit -qm all")
    assert sealed(world, task) == {"z.txt"}
    forced, _ = attempt(world, "git add -f made.txt; git commit -qm meant", "Meant")
    assert sealed(world, forced) == {"made.txt"}


def test_a_new_folder_with_one_folder_of_setups_in_it_stays_the_agents(
    make: Callable[..., World],
) -> None:
    world = make(ALWAYS, files={"README.md": "no src yet\n"})
    task, _ = attempt(world, "echo z >src/shop.py; echo z >src/shop.egg-info/late")
    assert sealed(world, task) == {"src/shop.py"}


def test_tracked_files_that_setup_changed_count_once_the_agent_changed_them(
    make: Callable[..., World],
) -> None:
    world = make('[worktree]\nsetup = "echo s >>src/a.txt; rm README.md; echo >>lock"\n',
                 files={"README.md": "r\n", "src/a.txt": "1\n", "lock": "1\n"})  # fmt: skip
    task, loop = attempt(world, "true")
    assert last(world, task).outcome == "no_work"
    loop.seat = world.seat("touch src/a.txt lock; echo mine >>src/a.txt")
    world.work_loop(loop)
    assert sealed(world, task) == {"src/a.txt"}
    assert rescues(world) == {}


def test_what_setup_made_survives_with_it_and_is_made_again_when_it_is_gone(
    make: Callable[..., World],
) -> None:
    world = make(ONCE)
    seen = 'cat src/shop.egg-info/PKG-INFO made.txt | tr -d "\\n" >seen.txt'
    world.add("one")
    loop = world.loop(seen)
    world.work_loop(loop)
    world.work_gate()
    assert world.file("seen.txt") == "xy"
    loop.seat = world.seat(f"{seen}; rm made.txt; git add -A; git commit -qm t; echo t >t")
    world.add("two")
    world.work_loop(loop)
    assert sealed(world, "two") == {"t"}, "setup did not run again and all it made was there"
    world.work_gate()
    loop.seat = world.seat(seen)
    world.add("three")
    world.work_loop(loop)
    world.work_gate()
    assert world.file("seen.txt") == "xxy", "a part was gone: it ran again"


def test_without_inputs_setup_gets_a_clean_worktree_each_time(make: Callable[..., World]) -> None:
    world = make(ALWAYS)
    loop = world.loop("cp src/shop.egg-info/PKG-INFO $SWARM_TASK.txt")
    for task in ("one", "two"):
        world.add(task)
        world.work_loop(loop)
        world.work_gate()
        assert world.file(f"{task}.txt") == "x\n"


def test_a_setup_that_fails_or_is_stopped_leaves_nothing_to_rescue(
    make: Callable[..., World], tmp_path: Path
) -> None:
    world = make(f'[worktree]\nsetup = "touch half; test -e {tmp_path}/on || exit 3; sleep 61.5"\n')
    task, loop = attempt(world, "true")
    assert last(world, task).outcome == "setup_failed"
    (tmp_path / "on").touch()
    world.tick(loop, lambda: loop.stage == "setup" and (loop.slot.tree / "half").exists())
    loop.stop()
    world.tick(loop, lambda: not loop.is_busy)
    assert last(world, task).outcome == "stopped"
    again = world.slot("s1")
    occupant = again.occupant()
    assert occupant is not None and occupant.setup is not None
    assert (occupant.setup.is_known, occupant.setup.made) == (True, ["half"])


def abandon(world: World, loop: Loop) -> None:
    """The runner is killed, and whoever comes next saves what is in the slot."""
    attempt = loop.attempt
    assert attempt is not None and attempt.child is not None
    attempt.child.kill_now()
    attempt.child.wait(10)
    runner = attempt.claimed.lock.runner
    world.live(runner).close()
    loop.slot.close()
    world.sweep()


def test_D4_a_killed_run_saves_the_agents_files_and_none_of_setups(
    make: Callable[..., World], tmp_path: Path
) -> None:
    world = make(ALWAYS)
    task = world.add("Work")
    loop = world.loop(f"echo z >z.txt; touch {tmp_path}/on; sleep 62.5")
    world.tick(loop, lambda: (tmp_path / "on").exists())
    abandon(world, loop)
    attempts = world.ledger.view().attempts(task)
    assert attempts is not None and attempts.work is not None
    assert set(world.hub.changed_paths(attempts.base, attempts.work.head)) == {"z.txt"}


def test_D4_a_run_killed_in_setup_leaves_no_work_to_go_on_from(
    make: Callable[..., World], tmp_path: Path
) -> None:
    world = make(f'[worktree]\nsetup = "{INSTALL}; touch {tmp_path}/on; sleep 63.5"\n')
    task = world.add("Work")
    loop = world.loop("true")
    world.tick(loop, lambda: (tmp_path / "on").exists())
    abandon(world, loop)
    attempts = world.ledger.view().attempts(task)
    assert attempts is not None and attempts.work is None
    (kept,) = rescues(world).values()
    assert world.file("made.txt", kept) == "y\n", "it could have been somebody's: kept, not used"


def test_a_name_that_is_not_text_is_remembered(make: Callable[..., World]) -> None:
    world = make("""[worktree]\nsetup = "touch \\"$(printf 'a\\\\351b')\\""\n""")
    task, loop = attempt(world, "true")
    assert last(world, task).outcome == "no_work"
    occupant = loop.slot.occupant()
    assert occupant is not None and occupant.setup is not None
    assert occupant.setup.made == ["a\udce9b"]


def test_a_slot_whose_record_is_gone_gives_the_claim_back(make: Callable[..., World]) -> None:
    world = make('[worktree]\nsetup = "rm ../s1.json"\n')
    task, _ = attempt(world, "true")
    assert last(world, task).outcome == "setup_failed"
    assert not last(world, task).strike


class Lines(Plain):
    """A screen whose lines can be read."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, line: str) -> None:
        self.said.append(line)


def test_a_setup_that_takes_its_time_is_told_once(
    make: Callable[..., World], tmp_path: Path
) -> None:
    world = make(f'[worktree]\nsetup = "touch {tmp_path}/on; sleep 65.5"\n')
    world.add("Work")
    loop = world.loop("true")
    world.tick(loop, lambda: (tmp_path / "on").exists())
    supervisor = Supervisor(loop.setting, world.gate(), (loop.seat,), loops=[loop])
    screen = Lines()
    follower = Follower(supervisor, screen, Signals(), lambda _: "", {})
    follower.tick()
    assert screen.said == []
    assert loop.attempt is not None
    loop.attempt.started -= 6
    follower.tick()
    follower.tick()
    (line,) = screen.said
    assert line.startswith(f"setup     s1 for work, running: touch {tmp_path}"[:60])
    loop.stop()
    world.tick(loop, lambda: not loop.is_busy)


# The gate


def test_a_check_finds_what_setup_made_each_time_and_no_other_checks_files(
    make: Callable[..., World],
) -> None:
    world = make(ONCE, check="test -e made.txt && test ! -e stray && touch stray")
    for task in ("one", "two"):
        attempt(world, f"echo z >{task}.txt", task)
        world.work_gate()
        assert world.state(task) is State.LANDED
    (gate,) = [path for path in world.layout.root.rglob("made.txt") if "g1" in path.parts]
    assert (gate.parent / "src/shop.egg-info/PKG-INFO").read_text() == "x\n", "it ran once"


def test_bytecode_that_setup_left_does_not_survive_for_a_check(make: Callable[..., World]) -> None:
    setup = "mkdir -p src/__pycache__ && touch src/__pycache__/a.pyc"
    check = "test ! -e src/__pycache__ || test ! -e two.txt"
    world = make(f'[worktree]\nsetup = "{setup}"\nsetup_inputs = ["src/a.txt"]\n', check=check)
    attempt(world, "echo z >one.txt", "one")
    world.work_gate()
    attempt(world, "echo z >two.txt", "two")
    world.work_gate()
    assert world.state("two") is State.LANDED


# By hand


def joined(world: World, on_setup: Callable[[], None] = lambda: None) -> tuple[Workspace, Joined]:
    work = Workspace(world.app, world.config, world.layout, world.ledger)
    answer = hand.join(work, work.checkout, None, "me", on_setup)
    assert isinstance(answer, Joined), answer
    return work, answer


def submit(work: Workspace, claim: Joined) -> object:
    stand = find_stand(work.layout, work.ledger.hub, claim.worktree)
    assert stand is not None
    return hand.submit(work, stand)


def test_by_hand_nothing_touched_is_no_work(make: Callable[..., World]) -> None:
    world = make(ONCE)
    world.add("Work")
    told: list[bool] = []
    work, claim = joined(world, lambda: told.append(True))
    assert (claim.worktree / "made.txt").exists() and told == [True]
    assert git(claim.worktree, "status", "--porcelain") == ""
    assert submit(work, claim) == NoWork(())
    (claim.worktree / "z.txt").write_text("z")
    answer = submit(work, claim)
    assert isinstance(answer, Sealed) and answer.entry.files == 1


def test_by_hand_a_failed_setup_is_told_and_is_run_again(make: Callable[..., World]) -> None:
    world = make(f'[worktree]\nsetup = "{INSTALL}; test -e src/b.txt"\nsetup_inputs = ["none"]\n')
    world.add("Work")
    work, claim = joined(world)
    assert claim.setup is not None and "exit code 1" in claim.setup
    assert submit(work, claim) == NoWork(())
    stand = find_stand(work.layout, work.ledger.hub, claim.worktree)
    assert stand is not None
    hand.give_back(work, stand, "later", "me", give_up=False)
    world.push("src/b.txt", "b\n")
    _, claim = joined(world)
    assert claim.setup is None
    assert rescues(world) == {}


def test_by_hand_an_interrupted_setup_is_ended_and_the_worktree_is_ready(
    make: Callable[..., World],
) -> None:
    world = make(f'[worktree]\nsetup = "{INSTALL}; sleep 64.5"\n')
    world.add("Work")

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        joined(world, interrupt)
    work = Workspace(world.app, world.config, world.layout, world.ledger)
    stand = hand.find_place(work, work.checkout, "work")
    assert stand.occupant is not None and stand.occupant.setup is not None
    assert stand.occupant.setup.is_known
    assert hand.submit(work, stand) == NoWork(())


def test_by_hand_after_a_kill_in_setup_commits_count_and_the_rest_is_kept(
    make: Callable[..., World],
) -> None:
    world = make("")
    world.add("Work")
    work, claim = joined(world)
    slot = Slot.take(world.layout.slots, claim.slot, world.hub)
    assert slot is not None
    slot.begin_setup()
    slot.close()
    (claim.worktree / "mine.txt").write_text("m")
    git(claim.worktree, "add", "mine.txt")
    git(claim.worktree, "commit", "-q", "-m", "mine")
    (claim.worktree / "whose.txt").write_text("w")
    answer = submit(work, claim)
    assert isinstance(answer, Sealed) and answer.entry.files == 1
    (kept,) = answer.rescued
    assert world.file("whose.txt", world.hub.refs_below(kept)[kept]) == "w"


def test_a_setup_that_cannot_be_looked_at_gives_the_claim_back_by_hand(
    make: Callable[..., World],
) -> None:
    world = make('[worktree]\nsetup = "rm ../h1.json"\n')
    world.add("Work")
    with pytest.raises(GitFault):
        joined(world)
    assert world.state("work") is State.OPEN
