"""Capture, save and seal: everything an agent leaves is kept, and nothing private is landed.

Enters: worktrees in every state that agents leave them in. Leaves: changes, rescue refs, holds.
Guards: no commit and no file is lost; no secret, copied file or gitlink is in what would land.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarm.change import NoWork, Sealed, Unresolved, save
from swarm.claim import Fenced
from swarm.errors import GitFault
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.records import HoldReason, QueueEntry
from swarm.ledger.store import Draft
from swarm.ledger.view import State, View
from swarm.overview.standing import hold_text
from swarm.reconcile import rescue_leftovers
from swarm.slot import Furnishing
from swarm.trailers import unlisted
from tests.world import Agent, World, git


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Worlds of other settings, closed at the end."""
    made: list[World] = []

    def build(**keys: Any) -> World:
        made.append(World(tmp_path, **keys))
        return made[-1]

    yield build
    for world in made:
        world.close()


@pytest.fixture
def agent(world: World) -> Agent:
    """An agent that works on the task `work`."""
    return world.agent(world.add("Work"))


def sealed(agent: Agent) -> QueueEntry:
    answer = agent.seal()
    assert isinstance(answer, Sealed), answer
    return answer.entry


def files(world: World, commit: str) -> dict[str, str]:
    """path -> mode of everything in a commit."""
    rows = git(world.hub.path, "ls-tree", "-r", "-z", commit).split("\0")[:-1]
    return {row.split("\t", 1)[1]: row[:6] for row in rows}


def rescued(world: World, task: str) -> dict[str, str]:
    return world.hub.refs_below(f"refs/swarm/rescue/{task}")


def in_rescue(world: World, task: str, path: str) -> list[str | None]:
    return [world.file(path, oid) for oid in rescued(world, task).values()]


def reasons(entry: QueueEntry) -> dict[str, list[str]]:
    return {hold.reason: hold.paths for hold in entry.hold or ()}


def approve(world: World, task: str) -> None:
    """A person's word for every reason."""

    def decide(view: View) -> Draft[None]:
        entry = view.entry(task)
        assert entry is not None
        hold = [msgspec.structs.replace(h, approved_at=view.now) for h in entry.hold or ()]
        after = msgspec.structs.replace(entry, hold=hold)
        path = records.queue_path(task)
        return Draft(
            (Event("approved", "By a person.", {path: records.encode(after)}, task),), None
        )

    world.ledger.append(decide)
    world.step()


def conflicting(world: World, agent: Agent, path: str = "src/a.txt") -> Agent:
    """The next attempt of the task, with the target merged in and a conflict in `path`."""
    agent.write(path, "1\n2\nmine\n").commit("mine")
    world.push(path, "1\n2\ntheirs\n")
    sealed(agent)
    world.work_gate()
    assert world.events(agent.mine.task)[-1] == "ejected"
    again = world.agent(agent.mine.task)
    assert again.opened.conflicted == (path,)
    return again


# What is work


def test_D9_clean_but_ahead_is_work(world: World, agent: Agent) -> None:
    entry = sealed(agent.write("new.txt", "x").commit())
    assert (entry.left_by_agent.uncommitted, entry.left_by_agent.untracked) == (0, 0)
    world.work_gate()
    assert world.file("new.txt") == "x"


def test_D10_no_commit_but_changed_files_is_work(world: World, agent: Agent) -> None:
    entry = sealed(agent.write("src/a.txt", "changed\n").write("new/file.txt", "new"))
    assert (entry.left_by_agent.uncommitted, entry.left_by_agent.untracked) == (1, 1)
    assert entry.commits == 1
    world.work_gate()
    assert (world.file("src/a.txt"), world.file("new/file.txt")) == ("changed\n", "new")


def test_nothing_is_no_work(world: World, agent: Agent) -> None:
    tip = world.main
    assert agent.seal() == NoWork(())
    assert world.state("work") is State.CLAIMED, "sealing nothing writes nothing"
    agent.git("commit", "-q", "--allow-empty", "-m", "I did nothing")
    assert isinstance(agent.seal(), Sealed), "an empty commit is one that the target lacks"
    assert world.main == tip


def test_no_work_is_never_measured_from_the_start_of_the_attempt(world: World) -> None:
    first = world.agent(world.add("Finish"))
    first.write("done.txt", "done").commit("all of it")
    first.end("timed_out", "limit 1s")
    second = world.agent("finish")
    assert (second.tree / "done.txt").exists(), "it continues from the saved work"
    entry = sealed(second)
    assert entry.head == entry.start, "an attempt that adds nothing to finished work is sealed"
    world.work_gate()
    assert world.file("done.txt") == "done"


def test_work_that_somebody_landed_meanwhile_is_no_work(world: World, agent: Agent) -> None:
    agent.write("same.txt", "same").commit()
    git(world.hub.path, "fetch", "-q", str(agent.tree), "HEAD")
    tip = agent.git("rev-parse", "HEAD")
    git(world.hub.path, "update-ref", "refs/heads/main", tip)
    assert isinstance(agent.seal(), NoWork)


def test_D3_a_diverged_change_lands_with_both_histories(world: World, agent: Agent) -> None:
    theirs = world.push("other.txt", "o")
    entry = sealed(agent.write("mine.txt", "m").commit())
    world.work_gate()
    parents = git(world.hub.path, "log", "-1", "--format=%P", "main").split()
    assert parents == [theirs, entry.head]


def test_D14_the_sealed_numbers_name_deletions_and_the_outside_is_reported(world: World) -> None:
    agent = world.agent(world.add("Narrow", paths=("src/**",)))
    (agent.tree / "README.md").unlink()
    entry = sealed(agent.write("src/a.txt", "x\n"))
    assert (entry.files, entry.insertions, entry.deletions) == (2, 1, 4)
    last = next(iter(world.ledger.iter_log()))
    assert last.message.trailers["Swarm-Outside"] == '["README.md"]'


def test_D14_deletions_outside_the_tasks_paths_can_be_held(make: Callable[..., World]) -> None:
    world = make(config='[gate]\nscope = "hold"\n')
    agent = world.agent(world.add("Narrow", paths=("src/**",)))
    (agent.tree / "README.md").unlink()
    assert reasons(sealed(agent.write("src/a.txt", "x\n"))) == {"scope": ["README.md"]}
    world.work_gate()
    assert world.file("README.md") == "app\n"


def test_D17_only_the_worktree_is_taken(world: World, agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.txt").write_text("not in the worktree")
    entry = sealed(agent.write("here.txt", "h"))
    assert set(files(world, entry.head)) == {"README.md", "src/a.txt", "here.txt"}


# Nothing is lost


def test_D1_a_failed_merge_keeps_the_work_and_counts_no_strike(world: World, agent: Agent) -> None:
    head = agent.write("src/a.txt", "mine\n").commit().git("rev-parse", "HEAD")
    world.push("src/a.txt", "theirs\n")
    sealed(agent)
    world.work_gate()
    assert world.state("work") is State.OPEN
    attempts = world.ledger.view().attempts("work")
    assert attempts is not None
    assert attempts.strikes == []
    assert attempts.conflicts == 1
    assert world.hub.reader.ref("refs/swarm/work/work/1") == head


def test_D2_work_is_in_a_ref_before_the_slot_is_used_again(
    world: World, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.write("precious.txt", "p").commit()

    def refuse(*_: object, **__: object) -> None:
        raise GitFault("the disk is full")

    monkeypatch.setattr(type(world.hub), "fetch", refuse)
    with pytest.raises(GitFault):
        rescue_leftovers(world.ledger, agent.slot, world.rules)
    assert not agent.slot.is_saved
    assert (agent.tree / "precious.txt").read_text() == "p"
    monkeypatch.undo()
    refs = rescue_leftovers(world.ledger, agent.slot, world.rules)
    assert [world.hub.reader.ref(ref) for ref in refs] == [agent.git("rev-parse", "HEAD")]


def test_D4_a_guard_that_fails_keeps_everything(world: World, agent: Agent) -> None:
    agent.write("precious.txt", "p").commit().write("more.txt", "m")
    alternates = agent.slot.own / "objects/info/alternates"
    right = alternates.read_bytes()
    alternates.write_text("/nowhere/objects\n")  # it looks in the wrong place
    with pytest.raises(GitFault):
        rescue_leftovers(world.ledger, agent.slot, world.rules)
    assert (agent.tree / "more.txt").read_text() == "m"
    alternates.write_bytes(right)
    assert rescue_leftovers(world.ledger, agent.slot, world.rules)


def test_D4_a_killed_loops_commits_and_files_are_saved(world: World, agent: Agent) -> None:
    agent.write("committed.txt", "c").commit().write("dirty.txt", "d")
    world.live("r1-test").close()
    agent.slot.close()
    report = world.sweep()
    assert [e.task for e in report.expired] == ["work"]
    following = world.agent("work", slot="s2", runner="r2")
    assert (following.tree / "committed.txt").read_text() == "c"
    assert (following.tree / "dirty.txt").read_text() == "d"


def test_D5_age_deletes_nothing(world: World, agent: Agent) -> None:
    agent.write("old.txt", "o")
    agent.git("checkout", "-q", "--detach")
    agent.write("detached.txt", "d").commit()
    agent.write("older.txt", "o")
    for path in (agent.tree, agent.tree / "older.txt", agent.slot.record):
        os.utime(path, (0, 0))
    world.agent(world.add("Next"))
    (kept,) = rescued(world, "work").values()
    assert {"old.txt", "detached.txt", "older.txt"} <= set(files(world, kept))


def test_D11_a_clean_slot_that_is_ahead_is_rescued(world: World, agent: Agent) -> None:
    head = agent.write("ahead.txt", "a").commit().git("rev-parse", "HEAD")
    world.agent(world.add("Next"))
    assert list(rescued(world, "work").values()) == [head]


def test_D12_landing_leaves_the_users_checkout_alone(world: World, agent: Agent) -> None:
    (world.app / "src/a.txt").write_text("a person's uncommitted edit\n")
    (world.app / "untracked.txt").write_text("u")
    before = git(world.app, "status", "--porcelain"), git(world.app, "rev-parse", "HEAD")
    sealed(agent.write("src/a.txt", "agent\n").write("untracked.txt", "agent"))
    world.work_gate()
    assert world.file("src/a.txt") == "agent\n"
    assert (world.app / "src/a.txt").read_text() == "a person's uncommitted edit\n"
    assert (world.app / "untracked.txt").read_text() == "u"
    assert (git(world.app, "status", "--porcelain"), git(world.app, "rev-parse", "HEAD")) == before


def test_W7_the_target_moves_though_the_user_has_it_checked_out(world: World, agent: Agent) -> None:
    assert git(world.app, "symbolic-ref", "--short", "HEAD") == "main"
    sealed(agent.write("new.txt", "n"))
    world.work_gate()
    assert world.file("new.txt") == "n"
    git(world.app, "pull", "-q", "--ff-only", "swarm", "main")
    assert (world.app / "new.txt").read_text() == "n"


def test_D16_no_side_is_ever_taken(world: World) -> None:
    first, second = world.add("First"), world.add("Second")
    one = world.agent(first).write("src/a.txt", "one\n2\n3\n").commit()
    two = world.agent(second, slot="s2").write("src/a.txt", "two\n2\n3\n").commit()
    sealed(two)
    sealed(one)
    world.work_gate()
    assert world.state(first) is State.LANDED, "the older goes first, whatever was sealed first"
    assert world.file("src/a.txt") == "one\n2\n3\n"
    assert world.state(second) is State.OPEN
    again = world.agent(second, slot="s2")
    text = (again.tree / "src/a.txt").read_text()
    assert "one" in text
    assert "two" in text


def test_commits_of_other_branches_and_the_stash_are_kept(world: World, agent: Agent) -> None:
    agent.git("checkout", "-q", "-b", "experiment")
    agent.write("experiment.txt", "e").commit("tried")
    agent.git("tag", "-a", "-m", "t", "marked")
    agent.git("checkout", "-q", "work")
    agent.write("src/a.txt", "stashed\n")
    agent.git("stash")
    entry = sealed(agent.write("main.txt", "m").commit())
    assert "experiment.txt" not in files(world, entry.head)
    (ref,) = rescued(world, "work").values()
    reached = git(world.hub.path, "log", "--format=%s", ref, f"^{entry.head}")
    assert "tried" in reached
    assert "WIP on work" in reached
    world.agent(world.add("Next"))
    assert len(rescued(world, "work")) == 1, "kept once, however often it is looked at"


def test_refs_that_name_what_the_hub_has_are_not_kept_again(world: World, agent: Agent) -> None:
    world.push("theirs.txt", "t")
    agent.git("fetch", "-q", str(world.hub.path), "main:refs/heads/upstream")
    sealed(agent.write("mine.txt", "m").commit())
    assert rescued(world, "work") == {}


def unkept(world: World, *oids: str) -> list[str]:
    """Those of the commits that no ref of the hub reaches."""
    hub = world.hub.path
    there = [oid for oid in oids if world.hub.reader.has(oid)]
    lost = set(git(hub, "rev-list", *there, "--not", "--all").split()) if there else set()
    return [oid for oid in oids if oid not in there or oid in lost]


@pytest.mark.parametrize("packed", [False, True])
def test_no_number_of_branches_is_too_many(world: World, agent: Agent, packed: bool) -> None:
    made = []
    for number in range(40):
        made.append(agent.git("commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", f"b{number}"))
        agent.git("update-ref", f"refs/heads/b{number}", made[-1])
    if packed:
        agent.git("pack-refs", "--all")
    sealed(agent.write("mine.txt", "m"))
    assert unkept(world, *made) == []
    world.agent(world.add("Next"))
    assert len(rescued(world, "work")) == 1, "and they are kept once"


def out_of_sight(agent: Agent, how: str) -> list[str]:
    """Commits that the agent makes and its HEAD does not hold in the end."""
    commit = ("commit", "-q", "--allow-empty", "-m", "made here")
    if how == "amended":
        tip = agent.write("a.txt", "first").commit().git("rev-parse", "HEAD")
        agent.write("a.txt", "second").git("commit", "-q", "-a", "--amend", "-m", "again")
    elif how.startswith("reset"):
        tip = agent.write("a.txt", "first").commit().git("rev-parse", "HEAD")
        agent.git("reset", "-q", f"--{how.split()[1]}", "HEAD~1")
    elif how == "packed and unnamed":
        agent.git("checkout", "-q", "-b", "other")
        tip = agent.write("a.txt", "first").commit().git("rev-parse", "HEAD")
        agent.git("repack", "-q", "-a", "-d")
        agent.git("checkout", "-q", "work")
        agent.git("branch", "-q", "-D", "other")
    elif how == "a dropped stash":
        agent.write("src/a.txt", "stashed").git("stash")
        tip = agent.git("rev-parse", "stash")
        agent.git("stash", "drop")
    elif how == "another worktree":
        place = agent.tree.parent / "private"
        agent.git("worktree", "add", "-q", "--detach", str(place))
        git(place, *commit)
        tip = git(place, "rev-parse", "HEAD")
        agent.git("repack", "-q", "-a", "-d")
    elif how == "a nested repository":
        git(agent.tree, "init", "-q", "deep/lib")
        git(agent.tree / "deep/lib", *commit)
        tip = git(agent.tree / "deep/lib", "rev-parse", "HEAD")
    else:
        assert how == "a repository of its own"
        (agent.tree / ".git").unlink()
        agent.git("init", "-q")
        agent.git("commit", "-q", "--allow-empty", "-m", "first")
        tip = agent.git("rev-parse", "HEAD")
        agent.git("commit", "-q", "--allow-empty", "--amend", "-m", "second")
        return [tip, agent.git("rev-parse", "HEAD")]
    return [tip]


@pytest.mark.parametrize("ended", ["sealed", "found in the slot"])
@pytest.mark.parametrize(
    "how",
    [
        "amended",
        "reset hard",
        "reset soft",
        "packed and unnamed",
        "a dropped stash",
        "another worktree",
        "a nested repository",
        "a repository of its own",
    ],
)
def test_a_commit_that_HEAD_does_not_hold_is_kept(
    world: World, agent: Agent, how: str, ended: str
) -> None:
    made = out_of_sight(agent, how)
    if ended == "sealed":
        agent.write("more.txt", "m").seal()
    world.agent(world.add("Next"))
    assert unkept(world, *made) == []
    world.agent(world.add("Third"), slot="s2")
    assert len(rescued(world, "work")) <= 2, "each is kept once"
    assert agent.slot.own.exists()
    assert not (agent.slot.own / "joined").exists()


def test_what_a_nested_clones_remote_brought_is_not_kept(
    world: World, agent: Agent, tmp_path: Path
) -> None:
    git(tmp_path, "init", "-q", "library")
    git(tmp_path / "library", "commit", "-q", "--allow-empty", "-m", "theirs")
    theirs = git(tmp_path / "library", "rev-parse", "HEAD")
    git(agent.tree, "clone", "-q", str(tmp_path / "library"), "lib")
    agent.write("lib/a.txt", "a").seal()
    assert rescued(world, "work") == {}
    assert unkept(world, theirs) == [theirs]


def test_a_rescue_that_was_cut_is_made_the_next_time(
    world: World, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = out_of_sight(agent, "amended")
    captured = agent.capture()
    assert captured.elsewhere is not None
    assert world.hub.reader.has(captured.elsewhere), "it lies in the hub, and no ref names it"
    assert unkept(world, *made) == made
    world.agent(world.add("Next"))
    assert unkept(world, *made) == []


LEADS_OUT = ["modules", "objects", "objects/pack", "refs", "worktrees", "objects/ab", "packed-refs"]


@pytest.mark.parametrize("where", ["its own", "nested"])
@pytest.mark.parametrize("place", [*LEADS_OUT, "alternates", "alternates of alternates"])
def test_nobody_elses_commits_come_in_by_a_link_of_the_agents(
    world: World, agent: Agent, place: str, where: str
) -> None:
    """We read more than an agent in a sandbox can: what it has us take, the hub shows it."""
    private = world.folder / "private"
    git(world.folder, "init", "-q", str(private))
    (private / "key.txt").write_text("s3cret\n")
    git(private, "add", "key.txt")
    git(private, "commit", "-q", "-m", "private")
    if place == "objects/pack":
        git(private, "repack", "-q", "-a", "-d")
    tip = git(private, "rev-parse", "HEAD")
    repo = agent.slot.repo
    if where == "nested":
        git(agent.tree, "init", "-q", "lib")
        repo = agent.tree / "lib/.git"
    there = repo / place
    if place.startswith("alternates"):
        middle = agent.slot.repo / "middle"
        (middle / "info").mkdir(parents=True)
        lines = {"a": f"{private}/.git/objects\n", "b": f"{middle}\n"}
        (middle / "info/alternates").write_text(lines["a"])
        (repo / "objects/info").mkdir(exist_ok=True)
        name = "a" if place == "alternates" else "b"
        (repo / "objects/info/alternates").write_text(lines[name])
    else:
        if there.is_dir():
            there.rename(repo / "was")
        there.unlink(missing_ok=True)
        leads = {
            "modules": private,
            "worktrees": private,
            "objects/ab": private / f".git/objects/{tip[:2]}",
        }
        there.symlink_to(leads.get(place, private / ".git" / place))
    (repo / "refs/heads").mkdir(parents=True, exist_ok=True)
    if place != "refs":
        (repo / "refs/heads/guessed").write_text(f"{tip}\n")
    agent.write("new.txt", "n")
    answer = agent.seal()
    assert not isinstance(answer, Fenced)
    world.agent(world.add("Next"))
    assert not world.hub.reader.has(tip)
    told = [
        git(world.hub.path, "log", "--format=%B", oid) for oid in rescued(world, "work").values()
    ]
    assert place != "refs" or not any(tip in text for text in told)
    assert git(private, "status", "--porcelain") == "" and git(private, "fsck") == ""


def test_a_fifo_among_the_objects_blocks_nothing(world: World, agent: Agent) -> None:
    made = out_of_sight(agent, "a nested repository")
    for repo in (agent.slot.repo, agent.tree / "deep/lib/.git"):
        (repo / "objects/info/alternates").unlink(missing_ok=True)
        os.mkfifo(repo / "objects/info/alternates")
        os.mkfifo(repo / "packed-refs")
    sealed(agent.write("new.txt", "n"))
    assert unkept(world, *made) == []


def loose(agent: Agent, name: str) -> Path:
    oid = agent.git("rev-parse", name)
    return agent.slot.repo / "objects" / oid[:2] / oid[2:]


def spoil(place: Path, how: str) -> None:
    place.chmod(0o644)
    if how == "gone":
        place.unlink()
    elif how == "empty":
        place.write_bytes(b"")
    else:
        place.write_bytes(place.read_bytes()[:12])


@pytest.mark.parametrize("how", ["gone", "empty", "cut"])
@pytest.mark.parametrize("what", ["HEAD~1:src/a.txt", "HEAD~1^{tree}", "HEAD~1", "HEAD"])
def test_a_broken_object_of_the_agents_poisons_no_slot(
    world: World, agent: Agent, what: str, how: str
) -> None:
    whole = agent.write("whole.txt", "w").commit().git("rev-parse", "HEAD")
    agent.write("src/a.txt", "spoilt\n").commit()
    agent.write("src/a.txt", "last\n").commit()
    spoil(loose(agent, what), how)
    captured = agent.capture()
    assert "missing or broken" in captured.refusal
    assert "\n" not in captured.malformed
    assert "\0" not in captured.malformed
    assert world.file("src/a.txt", captured.head) == "last\n", "its files stand for its commits"
    saved = save(world.ledger, agent.slot, "work", 1, captured)
    assert saved.work is not None
    world.agent(world.add("Next"))
    assert unkept(world, whole) == []


def test_the_newest_whole_commit_stays_the_agents_own(world: World, agent: Agent) -> None:
    for number in range(5):
        agent.write("src/a.txt", f"{number}\n").commit(f"c{number}")
    spoil(loose(agent, "HEAD~1:src/a.txt"), "gone")
    captured = agent.capture()
    assert captured.agent_head == agent.git("rev-parse", "HEAD~2")


def test_a_broken_branch_costs_no_other_branch(world: World, agent: Agent) -> None:
    made = []
    for number in range(20):
        agent.git("checkout", "-q", "-b", f"b{number}", agent.opened.head)
        agent.write(f"{number}.txt", f"whole {number}\n").commit()
        made.append(agent.git("rev-parse", "HEAD"))
        agent.write(f"{number}.txt", f"more {number}\n").commit()
    spoil(loose(agent, "b7:7.txt"), "gone")
    broken = agent.git("rev-parse", "b7")
    agent.git("checkout", "-q", "-f", "work")
    sealed(agent.write("mine.txt", "m"))
    assert unkept(world, *made) == []
    (ref,) = rescued(world, "work").values()
    assert broken in git(world.hub.path, "log", "-1", "--format=%b", ref), "it says what is not"


@pytest.mark.parametrize("how", ["empty", "cut"])
def test_a_broken_object_of_a_file_that_was_only_added_is_written_again(
    world: World, agent: Agent, how: str
) -> None:
    agent.write("added.txt", "added").git("add", "-A")
    spoil(loose(agent, ":added.txt"), how)
    entry = sealed(agent.write("key.pem", "k"))
    assert world.file("added.txt", entry.head) == "added"
    assert in_rescue(world, "work", "key.pem") == ["k"]


def test_a_leftover_that_fsck_refuses_is_named_and_the_rest_is_kept(
    world: World, agent: Agent
) -> None:
    agent.write("good.txt", "g")
    agent.write(".gitmodules", '[submodule "a"]\n\tpath = a\n\turl = -u./payload\n')
    captured = agent.capture()
    assert captured.unreadable == (".gitmodules",)
    assert "malformed" in captured.refusal
    assert world.file("good.txt", captured.head) == "g"


def test_a_damaged_hub_is_nobodys_fault(world: World) -> None:
    world.push("loose.txt", "l")
    agent = world.agent(world.add("Work")).write("precious.txt", "p").commit()
    oid = git(world.hub.path, "rev-parse", f"{agent.opened.head}^{{tree}}")
    place = world.hub.path / "objects" / oid[:2] / oid[2:]
    content = place.read_bytes()
    place.unlink()
    with pytest.raises(GitFault):
        agent.capture()
    place.write_bytes(content)
    assert agent.capture().malformed == ""


@pytest.mark.parametrize("committed", [True, False])
def test_a_submodule_that_the_agent_adds_holds_the_change(
    world: World, agent: Agent, tmp_path: Path, committed: bool
) -> None:
    git(tmp_path, "init", "-q", "library")
    (tmp_path / "library/a.c").write_text("a")
    git(tmp_path / "library", "add", "-A")
    git(tmp_path / "library", "commit", "-q", "-m", "theirs")
    add = ("submodule", "--quiet", "add", str(tmp_path / "library"), "lib")
    agent.git("-c", "protocol.file.allow=always", *add)
    if committed:
        agent.commit("a real submodule")
    entry = sealed(agent)
    assert reasons(entry) == {"protected": [".gitmodules"]}
    assert files(world, entry.head)["lib/a.c"] == "100644"
    says = next(iter(world.ledger.iter_log())).message.body
    assert "submodules taken as plain files: lib" in says
    assert rescued(world, "work") == {}, "its remote has its commits"


def test_a_worktree_that_is_gone_still_gives_its_commits(world: World, agent: Agent) -> None:
    head = agent.write("kept.txt", "k").commit().git("rev-parse", "HEAD")
    subprocess.run(["rm", "-r", agent.tree], check=True)
    world.agent(world.add("Next"))
    assert list(rescued(world, "work").values()) == [head]


def test_a_fenced_seal_keeps_the_work_for_the_next_opening(world: World, agent: Agent) -> None:
    agent.write("late.txt", "late").commit().write("later.txt", "later")
    world.clock.pass_(hours=1)
    world.live("r1-test").close()
    world.sweep()
    world.acquire("work", slot="s2", runner="r2")
    assert isinstance(agent.seal(), Fenced)
    assert not agent.slot.is_saved
    world.agent(world.add("Next"))
    reachable = {**rescued(world, "work"), **world.hub.refs_below("refs/swarm/work/work")}
    assert any({"late.txt", "later.txt"} <= set(files(world, oid)) for oid in reachable.values())


def test_capturing_twice_keeps_everything_once(world: World, agent: Agent) -> None:
    agent.write("left.txt", "l").write("key.pem", "k")
    agent.git("branch", "other", agent.git("commit-tree", "-m", "o", "HEAD^{tree}"))
    first, second = agent.capture(), agent.capture()
    assert first == second
    for captured in (first, second):
        save(world.ledger, agent.slot, "work", 1, captured)
    assert len(rescued(world, "work")) == 2, "what was withheld, and the other branch"


# What agents leave (T14)


def test_T14_an_env_file_is_kept_beside_the_change_and_holds_it(world: World, agent: Agent) -> None:
    agent.write(".env", "TOKEN=1").write(".env.example", "TOKEN=").write("app.py", "x")
    agent.write("deploy/id_rsa_prod", "key").write("server.pem", "pem")
    entry = sealed(agent)
    assert reasons(entry) == {"secret": [".env", "deploy/id_rsa_prod", "server.pem"]}
    landed = set(files(world, entry.head))
    assert {".env.example", "app.py"} <= landed
    assert landed.isdisjoint({".env", "server.pem", "deploy/id_rsa_prod"})
    assert in_rescue(world, "work", ".env") == ["TOKEN=1"]
    world.work_gate()
    assert world.state("work") is State.HELD
    approve(world, "work")
    world.work_gate()
    assert world.file("app.py") == "x"
    assert world.file(".env") is None, "approved, it lands without them"


KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----\n"
TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9" * 2


def held(entry: QueueEntry) -> list[tuple[str, list[str], bool]]:
    return [(hold.reason, hold.paths, hold.is_left_out) for hold in entry.hold or ()]


def test_T14_a_new_file_with_a_key_in_it_is_left_out(world: World, agent: Agent) -> None:
    entry = sealed(agent.write("docs/notes.txt", f"login:\n{KEY}").write("fine.txt", "f"))
    assert held(entry) == [("secret", ["docs/notes.txt"], True)]
    assert world.file("docs/notes.txt", entry.head) is None
    assert in_rescue(world, "work", "docs/notes.txt") == [f"login:\n{KEY}"]


def test_T14_a_changed_file_with_a_key_is_sealed_whole_and_held(world: World, agent: Agent) -> None:
    agent.write("src/a.txt", f"1\n2\n3\ntoken = {TOKEN}\n")
    entry = sealed(agent)
    assert held(entry) == [("secret", ["src/a.txt"], False)], "half a file cannot be left out"
    assert TOKEN in (world.file("src/a.txt", entry.head) or "")


def test_T14_a_key_in_any_commit_is_named_and_lands_when_approved(
    world: World, agent: Agent
) -> None:
    agent.write("tests/x.py", f"K = '{TOKEN}'").write("src/a.txt", KEY).commit()
    entry = sealed(agent.write("src/a.txt", "no more").commit("and away"))
    assert held(entry) == [("secret", ["tests/x.py", "src/a.txt"], False)]
    approve(world, "work")
    world.work_gate()
    assert world.state("work") is State.LANDED
    assert TOKEN in (world.file("tests/x.py") or "")


def test_T14_a_key_that_the_target_has_holds_nobody(world: World) -> None:
    world.push("tests/key.txt", KEY)
    agent = world.agent(world.add("Edit")).write("tests/key.txt", f"# for tests\n{KEY}").commit()
    entry = sealed(agent)
    assert entry.hold is None
    agent = world.agent(world.add("Second"), slot="s2").write("tests/key.txt", KEY + KEY)
    assert held(sealed(agent)) == [("secret", ["tests/key.txt"], False)], "one more is one more"


def test_T14_large_and_binary_files_are_not_looked_through(world: World, agent: Agent) -> None:
    agent.write("data.txt", "x" * (2 << 20) + KEY).write("data.bin", b"\0" + KEY.encode())
    assert sealed(agent).hold is None


def test_T14_many_files_are_looked_through(world: World, agent: Agent) -> None:
    for number in range(100):
        agent.write(f"many/{number}.txt", f"{number}\n")
    entry = sealed(agent.write("many/key.txt", KEY).commit())
    assert held(entry) == [("secret", ["many/key.txt"], False)]


def test_T14_a_key_that_came_with_the_target_is_not_left_out_of_a_merge(
    world: World, agent: Agent
) -> None:
    world.push("tls/test.pem", "pem")
    world.push("tls/notes", KEY)
    again = conflicting(world, agent)
    entry = sealed(again.write("src/a.txt", "both\n"))
    assert entry.hold is None
    assert world.file("tls/test.pem", entry.head) == "pem", "the landing would have removed it"
    assert world.file("tls/notes", entry.head) == KEY


def test_what_is_left_out_and_what_is_contained_are_two_things(world: World, agent: Agent) -> None:
    agent.write("id_rsa", "k").commit("oops")
    entry = sealed(agent.write(".env", "T=1"))
    assert held(entry) == [("secret", [".env"], True), ("secret", ["id_rsa"], False)]
    assert entry.reasons == ["secret"], "said once in the log"
    assert hold_text(entry.hold or ()) == (
        "left out .env: looks like a secret; kept under refs/swarm/rescue; "
        "contains id_rsa: looks like a secret; approving lands it"
    )
    approve(world, "work")
    world.work_gate()
    assert (world.file("id_rsa"), world.file(".env")) == ("k", None)


def test_T14_a_copied_file_is_never_in_the_change(world: World) -> None:
    world.push(".gitignore", ".env\nlocal.toml\n")
    (world.app / ".env").write_text("TOKEN=1")
    (world.app / "local.toml").write_text("a = 1")
    furnishing = Furnishing(checkout=world.app, copies=(".env", "local.toml"))
    agent = world.agent(world.add("Copy"), furnishing=furnishing)
    agent.write(".env", "TOKEN=2").write("local.toml", "a = 2").write("work.txt", "w")
    agent.write(".gitignore", "!local.toml\n!.env\n")  # stronger than an exclude file
    entry = sealed(agent)
    assert entry.hold is None
    assert set(files(world, entry.head)) == {".gitignore", "README.md", "src/a.txt", "work.txt"}


def test_T14_a_copied_file_that_was_forced_into_a_commit_holds_the_change(world: World) -> None:
    world.push(".gitignore", "local.toml\ndata\n")
    (world.app / "local.toml").write_text("a = 1")
    (world.app / "data").mkdir()
    furnishing = Furnishing(checkout=world.app, copies=("local.toml",), share=("data",))
    agent = world.agent(world.add("Force"), furnishing=furnishing)
    agent.git("add", "-f", "local.toml", "data")
    agent.git("commit", "-q", "-m", "by force")
    assert reasons(sealed(agent)) == {"secret": ["data", "local.toml"]}


def test_a_secret_in_any_commit_of_the_change_holds_it(world: World, agent: Agent) -> None:
    agent.write("prod.key", "k").commit("oops")
    (agent.tree / "prod.key").unlink()
    entry = sealed(agent.write("fine.txt", "f").commit("and away"))
    assert "prod.key" not in files(world, entry.head)
    assert reasons(entry) == {"secret": ["prod.key"]}, "its history would land"
    assert entry.commits == 2


def test_a_secret_looking_file_that_the_target_has_is_no_secret(world: World) -> None:
    world.push("tests/fixture.pem", "not secret")
    agent = world.agent(world.add("Edit")).write("tests/fixture.pem", "still not")
    entry = sealed(agent)
    assert entry.hold is None
    assert world.file("tests/fixture.pem", entry.head) == "still not"


def test_an_oversized_file_is_kept_beside_the_change_and_holds_it(
    world: World, agent: Agent
) -> None:
    with (agent.tree / "dump.bin").open("wb") as file:
        file.truncate(50 << 20)
    entry = sealed(agent.write("small.txt", "s"))
    assert reasons(entry) == {"large_file": ["dump.bin"]}
    assert "dump.bin" not in files(world, entry.head)
    (kept,) = rescued(world, "work").values()
    assert git(world.hub.path, "cat-file", "-s", f"{kept}:dump.bin") == str(50 << 20)
    approve(world, "work")
    world.work_gate()
    assert world.state("work") is State.LANDED
    assert "dump.bin" not in files(world, world.main)


def test_an_oversized_file_in_a_commit_holds_the_change(make: Callable[..., World]) -> None:
    world = make(config='[worktree]\nmax_file = "1KiB"\n')
    agent = world.agent(world.add("Big")).write("big.txt", "x" * 2000).commit()
    assert reasons(sealed(agent)) == {"large_file": ["big.txt"]}


def test_ignored_and_excluded_files_are_not_work(make: Callable[..., World]) -> None:
    world = make(config='[worktree]\nexclude = ["*.pyc", "build/"]\n')
    world.push(".gitignore", "node_modules/\n")
    agent = world.agent(world.add("Ignored"))
    agent.write("node_modules/m/index.js", "x").write("a.pyc", "x").write("build/out", "x")
    assert isinstance(agent.seal(), NoWork)


@pytest.mark.parametrize("commits", [0, 1])
def test_T14_a_nested_repository_becomes_plain_files(
    world: World, agent: Agent, commits: int
) -> None:
    nested = agent.write("vendor/lib/a.c", "a").write("vendor/lib/sub/b.c", "b").tree / "vendor/lib"
    git(nested, "init", "-q")
    (nested / ".gitignore").write_text("*.o\n")
    (nested / "a.o").write_text("object")
    if commits:
        git(nested, "add", "-A")
        git(nested, "commit", "-q", "-m", "nested")
    inner = nested / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    (inner / "c.c").write_text("c")
    got = files(world, sealed(agent).head)
    paths = {path for path in got if path.startswith("vendor")}
    assert paths == {f"vendor/lib/{n}" for n in (".gitignore", "a.c", "sub/b.c", "inner/c.c")}
    assert "160000" not in got.values()


def test_T14_a_committed_gitlink_becomes_plain_files(world: World, agent: Agent) -> None:
    nested = agent.write("lib/a.c", "a").tree / "lib"
    git(nested, "init", "-q")
    git(nested, "add", "-A")
    git(nested, "commit", "-q", "-m", "nested")
    (nested / "secret.key").write_text("k")
    agent.git("add", "lib")
    agent.git("commit", "-q", "-m", "a link that nobody can follow")
    entry = sealed(agent)
    assert files(world, entry.head) == {
        "README.md": "100644",
        "src/a.txt": "100644",
        "lib/a.c": "100644",
    }
    assert reasons(entry) == {"secret": ["lib/secret.key"]}
    assert "k" in in_rescue(world, "work", "lib/secret.key")


def test_a_gitlink_that_the_base_has_stays(world: World) -> None:
    other = world.folder / "other"
    other.mkdir()
    git(other, "init", "-q")
    git(other, "commit", "-q", "--allow-empty", "-m", "sub")
    oid = git(other, "rev-parse", "HEAD")
    git(world.app, "update-index", "--add", "--cacheinfo", f"160000,{oid},sub")
    git(world.app, "commit", "-q", "-m", "a submodule")
    git(world.app, "push", "-q", "swarm", "HEAD:main")
    entry = sealed(world.agent(world.add("Beside")).write("new.txt", "n"))
    assert files(world, entry.head)["sub"] == "160000"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file, whatever its mode")
def test_T14_an_unreadable_file_is_named_and_the_rest_kept(world: World, agent: Agent) -> None:
    agent.write("locked.txt", "l").write("open.txt", "o").write("shut/in.txt", "i")
    (agent.tree / "locked.txt").chmod(0)
    (agent.tree / "shut").chmod(0)
    captured = agent.capture()
    assert set(captured.unreadable) == {"locked.txt", "shut"}
    entry = sealed(agent)
    assert world.file("open.txt", entry.head) == "o"
    (agent.tree / "shut").chmod(0o700)


def test_T14_a_name_that_git_refuses_is_named_and_the_rest_kept(world: World, agent: Agent) -> None:
    agent.write("git~1", "refused").write("a/.git./x", "refused").write("fine.txt", "f")
    captured = agent.capture()
    assert set(captured.unreadable) == {"git~1", "a/.git./x"}
    entry = sealed(agent)
    assert set(files(world, entry.head)) == {"README.md", "src/a.txt", "fine.txt"}
    last = next(iter(world.ledger.iter_log()))
    assert set(unlisted(last.message.trailers["Swarm-Unreadable"])) == set(captured.unreadable)


def test_T14_pipes_sockets_and_dangling_links_stop_nothing(
    world: World, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(agent.tree / "pipe")
    monkeypatch.chdir(agent.tree)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("sock")
        (agent.tree / "dangling").symlink_to("nowhere")
        (agent.tree / "src/a.txt").unlink()
        os.mkfifo(agent.tree / "src/a.txt")
        entry = sealed(agent.write("new.txt", "n"))
    got = files(world, entry.head)
    assert got["dangling"] == "120000"
    assert got["new.txt"] == "100644"
    assert "pipe" not in got
    assert "sock" not in got


def test_T14_a_fifo_in_place_of_git_files_blocks_nothing(world: World, agent: Agent) -> None:
    agent.write("new.txt", "n").commit()
    for name in ("MERGE_HEAD", "ORIG_HEAD"):
        os.mkfifo(agent.slot.admin / name)
    (agent.slot.admin / "HEAD").unlink()
    os.mkfifo(agent.slot.admin / "HEAD")
    captured = agent.capture()
    assert captured.head_was == "detached"
    assert captured.untracked == 1, "its commit is unknown without HEAD, its file is not"
    assert world.hub.reader.has(captured.head) or captured.elsewhere is not None


def test_T14_a_file_removed_meanwhile_stops_nothing(
    world: World, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.write("gone.txt", "g").write("gone.pem", "g").write("stays.txt", "s")
    from swarm import change

    stage = change._stage

    def removing(*args: Any, **keys: Any) -> str:
        (agent.tree / "gone.txt").unlink(missing_ok=True)
        (agent.tree / "gone.pem").unlink(missing_ok=True)
        return stage(*args, **keys)

    monkeypatch.setattr(change, "_stage", removing)
    entry = sealed(agent)
    assert set(files(world, entry.head)) == {"README.md", "src/a.txt", "stays.txt"}


def test_T14_files_that_became_folders_and_back(world: World, agent: Agent) -> None:
    (agent.tree / "README.md").unlink()
    agent.write("README.md/inner.txt", "i")
    subprocess.run(["rm", "-r", agent.tree / "src"], check=True)
    agent.write("src", "a file now")
    assert set(files(world, sealed(agent).head)) == {"README.md/inner.txt", "src"}


def test_T14_odd_names_are_kept_as_they_are(world: World, agent: Agent) -> None:
    names = {"-rf", "a b", "tab\there", "new\nline", "ü.txt", "*", "[x]", ":(top)y", "#c", '"q"'}
    for name in names:
        agent.write(name, "x")
    (agent.tree / os.fsdecode(b"not-\xff-utf8")).write_text("x")
    got = set(files(world, sealed(agent).head))
    assert names <= got
    assert os.fsdecode(b"not-\xff-utf8") in got


def test_T14_an_executable_bit_and_a_link_are_kept(world: World, agent: Agent) -> None:
    (agent.write("run.sh", "#!/bin/sh").tree / "run.sh").chmod(0o755)
    (agent.tree / "link").symlink_to("run.sh")
    got = files(world, sealed(agent).head)
    assert (got["run.sh"], got["link"]) == ("100755", "120000")


def test_T14_an_unmerged_index_of_the_agents_own_is_not_in_the_way(
    world: World, agent: Agent
) -> None:
    agent.git("checkout", "-q", "-b", "side")
    agent.write("src/a.txt", "side\n").commit("side")
    agent.git("checkout", "-q", "work")
    agent.write("src/a.txt", "main\n").commit("main")
    agent.git("merge", "side", ok=(1,))
    assert agent.git("ls-files", "-u")
    entry = sealed(agent.write("src/a.txt", "both\n"))
    assert world.file("src/a.txt", entry.head) == "both\n"
    parents = git(world.hub.path, "log", "-1", "--format=%P", entry.head).split()
    assert len(parents) == 2, "the merge that it did not finish is finished"
    assert agent.git("ls-files", "-u"), "and its own index is left as it was"


def test_T14_a_stale_index_lock_is_not_in_the_way(world: World, agent: Agent) -> None:
    agent.write("new.txt", "n")
    (agent.slot.admin / "index.lock").write_text("")
    (agent.slot.own / "index.lock").write_text("")
    assert world.file("new.txt", sealed(agent).head) == "n"


@pytest.mark.parametrize("where", ["detached", "other branch", "unborn branch", "deleted ref"])
def test_T14_head_is_taken_wherever_it_stands(world: World, agent: Agent, where: str) -> None:
    agent.write("one.txt", "1").commit()
    if where == "detached":
        agent.git("checkout", "-q", "--detach")
    elif where == "other branch":
        agent.git("checkout", "-q", "-b", "deep/other")
        agent.git("pack-refs", "--all")
    elif where == "unborn branch":
        agent.git("checkout", "-q", "--orphan", "fresh")
    else:
        agent.git("update-ref", "-d", "refs/heads/work")
    if where in ("detached", "other branch"):
        agent.write("two.txt", "2").commit()
    else:
        agent.write("two.txt", "2")
    entry = sealed(agent)
    assert {"one.txt", "two.txt"} <= set(files(world, entry.head))
    assert entry.left_by_agent.head_was == ("detached" if where == "detached" else "branch")


def test_T14_a_rebase_in_progress_is_not_sealed_in_its_middle(world: World, agent: Agent) -> None:
    base = agent.git("rev-parse", "HEAD")
    agent.write("src/a.txt", "mine\n").commit("first")
    agent.write("second.txt", "2").commit("second")
    tip = agent.git("rev-parse", "HEAD")
    agent.git("checkout", "-q", "-b", "onto", base)
    agent.write("src/a.txt", "onto\n").commit("onto")
    agent.git("checkout", "-q", "work")
    agent.git("rebase", "onto", ok=(1,))
    answer = agent.seal()
    assert isinstance(answer, Unresolved)
    assert answer.paths == ("src/a.txt",)
    assert answer.saved.work is not None
    assert answer.saved.work.head == tip, "where it began has all of the work"
    assert any("<<<<" in (text or "") for text in in_rescue(world, "work", "src/a.txt"))


def test_T14_a_heading_of_seven_equal_signs_is_no_conflict(world: World, agent: Agent) -> None:
    again = conflicting(world, agent)
    text = "Title\n=======\n\n1\n2\nmine and theirs\n"
    entry = sealed(again.write("src/a.txt", text))
    world.work_gate()
    assert world.file("src/a.txt") == text
    assert len(git(world.hub.path, "log", "-1", "--format=%P", entry.head).split()) == 2


# Conflicts


def test_a_conflict_left_with_markers_is_unresolved_and_rescued(world: World, agent: Agent) -> None:
    again = conflicting(world, agent).write("other.txt", "o").write("new.pem", "p")
    answer = again.seal()
    assert isinstance(answer, Unresolved)
    assert answer.paths == ("src/a.txt",)
    assert world.state("work") is State.CLAIMED
    assert "o" in in_rescue(world, "work", "other.txt")
    assert "p" in in_rescue(world, "work", "new.pem"), "a secret-looking file is kept there too"
    again.end("unresolved", "conflict left in src/a.txt")
    third = world.agent("work")
    assert third.opened.conflicted == ("src/a.txt",), "the same merge, again with markers"


def test_edited_but_never_added_is_resolved_and_does_not_come_back(
    world: World, agent: Agent
) -> None:
    again = conflicting(world, agent).write("src/a.txt", "1\n2\nmine theirs\n")
    merged = again.claimed.lock.merge
    entry = sealed(again)
    assert merged in git(world.hub.path, "log", "-1", "--format=%P", entry.head).split()
    world.push("elsewhere.txt", "e")
    world.work_gate()
    assert world.state("work") is State.LANDED, "the conflict is settled for good"
    assert world.file("src/a.txt") == "1\n2\nmine theirs\n"


def test_a_conflict_that_the_agent_committed_itself_is_resolved(world: World, agent: Agent) -> None:
    again = conflicting(world, agent).write("src/a.txt", "1\n2\nboth\n").commit("resolved")
    entry = sealed(again)
    assert entry.left_by_agent.uncommitted == 0
    world.work_gate()
    assert world.file("src/a.txt") == "1\n2\nboth\n"


def test_markers_that_the_agent_committed_are_unresolved(world: World, agent: Agent) -> None:
    again = conflicting(world, agent).commit("looks fine to me")
    assert isinstance(again.seal(), Unresolved)


def modify_delete(world: World, agent: Agent) -> Agent:
    """The agent changed what the target deleted."""
    agent.write("src/a.txt", "mine\n").commit()
    git(world.app, "rm", "-q", "src/a.txt")
    git(world.app, "commit", "-q", "-m", "away with it")
    git(world.app, "push", "-q", "swarm", "HEAD:main")
    sealed(agent)
    world.work_gate()
    again = world.agent("work")
    assert again.opened.conflicted == ("src/a.txt",)
    return again


def test_modify_delete_left_as_it_was_is_unresolved(world: World, agent: Agent) -> None:
    assert isinstance(modify_delete(world, agent).seal(), Unresolved)


@pytest.mark.parametrize("how", ["deleted", "edited", "added", "removed"])
def test_modify_delete_is_resolved_by_any_word_of_the_agent(
    world: World, agent: Agent, how: str
) -> None:
    again = modify_delete(world, agent)
    if how == "deleted":
        (again.tree / "src/a.txt").unlink()
    elif how == "edited":
        again.write("src/a.txt", "mine, edited\n")
    elif how == "added":
        again.git("add", "src/a.txt")
    else:
        again.git("rm", "-q", "src/a.txt")
    entry = sealed(again.write("more.txt", "m"))
    there = "src/a.txt" in files(world, entry.head)
    assert there is (how in ("edited", "added"))


def test_a_binary_conflict_is_resolved_by_a_choice_that_was_added(
    world: World, agent: Agent
) -> None:
    world.push("logo.bin", "a\0b")
    agent = world.agent(world.add("Logo"), slot="s2").write("logo.bin", b"a\0mine").commit()
    world.push("logo.bin", "a\0theirs")
    sealed(agent)
    world.work_gate()
    again = world.agent("logo", slot="s2")
    assert again.opened.conflicted == ("logo.bin",)
    assert isinstance(again.seal(), Unresolved)
    again.git("checkout", "--ours", "logo.bin")
    again.git("add", "logo.bin")
    assert isinstance(again.seal(), Sealed)


def test_a_target_that_merges_cleanly_is_committed_for_the_agent(
    world: World, agent: Agent
) -> None:
    agent.write("mine.txt", "RED").commit()
    world.push("theirs.txt", "t")
    sealed(agent)
    world.work_gate()
    again = world.agent("work")
    assert again.opened.conflicted == ()
    assert (again.tree / "theirs.txt").exists()
    assert again.git("status", "--porcelain") == ""
    sealed(again.write("mine.txt", "green"))
    world.work_gate()
    assert world.file("mine.txt") == "green"


# Holds


def test_protected_paths_and_review_hold(make: Callable[..., World]) -> None:
    world = make(config='[gate]\nreview = "all"\n')
    entry = sealed(world.agent(world.add("Settings")).write("swarm.toml", "x = 1"))
    assert reasons(entry) == {"protected": ["swarm.toml"], "review": []}
    assert entry.is_held
    assert all(isinstance(hold, HoldReason) for hold in entry.hold or ())
