"""Slots: a place that an agent can do anything in, and none of it reaches the hub or a neighbour.

Enters: worlds in which agents misbehave with their own git. Leaves: what the hub and others see.
Guards: nothing that an agent planted runs in our processes; what lies in a slot is never another's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swarm.change import NoWork, Sealed
from swarm.claim import Claimed
from swarm.errors import GitFault, HubUnusable
from swarm.ledger.view import State
from swarm.liveness import beat
from swarm.overview.disk import folder_bytes
from swarm.plumbing import refs
from swarm.plumbing.hub import LEDGER
from swarm.reconcile import rescue_leftovers
from swarm.slot import Furnishing, Occupant, Slot, in_cone
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


def furnished(world: World, **keys: object) -> Furnishing:
    return Furnishing(checkout=world.app, **keys)  # type: ignore[arg-type]


def occupant(world: World, task: str = "t", start: str | None = None) -> Occupant:
    tip = start or world.main
    return Occupant(
        task=task,
        token=1,
        nonce=task,
        agent="a",
        run="r1",
        base=tip,
        start=tip,
        merge=None,
        head=tip,
    )


def all_refs(world: World) -> dict[str, str]:
    return world.hub.refs_below("refs")


def again(world: World, agent: Agent, **keys: object) -> Agent:
    """The same slot, opened for the next attempt of the task."""
    return world.agent(agent.mine.task, slot=agent.slot.name, furnishing=furnished(world, **keys))


# Opening


def test_W1_eight_slots_are_opened_at_once_and_leave_no_branch_in_the_hub(world: World) -> None:
    before = all_refs(world)
    slots = [world.slot(f"s{n}") for n in range(1, 9)]
    failed: list[BaseException] = []
    ready = threading.Barrier(8)

    def open_one(slot: Slot) -> None:
        ready.wait()
        try:
            slot.open(occupant(world, f"t-{slot.name}"), furnished(world))
        except GitFault as fault:
            failed.append(fault)

    threads = [threading.Thread(target=open_one, args=(slot,)) for slot in slots]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert all((slot.tree / "src/a.txt").read_text() == "1\n2\n3\n" for slot in slots)
    assert all_refs(world) == before, "opening a slot writes nothing into the hub"


def test_W2_a_turn_that_does_not_come_is_refused_never_taken(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = world.add("Wait for the turn")
    tip = world.hub.reader.ref(LEDGER)
    monkeypatch.setattr(refs, "TURN_SECONDS", 0.3)
    hold = "import fcntl, sys, time; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); "
    hold += "print('held', flush=True); time.sleep(60)"
    turn = str(world.hub.path) + ".turn"
    with subprocess.Popen([sys.executable, "-c", hold, turn], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(HubUnusable, match="busy"):
            world.acquire(task)
        assert world.hub.reader.ref(LEDGER) == tip, "nothing was claimed without the turn"
        holder.kill()
    assert isinstance(world.acquire(task), Claimed), "and once it is free the claim is made"


def test_W4_the_hub_has_no_checkout_that_could_be_switched(world: World) -> None:
    before = all_refs(world)
    git(world.hub.path, "checkout", "-b", "elsewhere", ok=(128,))
    git(world.hub.path, "switch", "main", ok=(128,))
    assert all_refs(world) == before
    assert git(world.hub.path, "symbolic-ref", "HEAD") == "refs/heads/main"


@pytest.mark.parametrize("left", ["nothing", "half", "locked", "no-worktree", "no-repository"])
def test_W5_an_opening_that_was_cut_is_simply_done_again(world: World, left: str) -> None:
    slot = world.slot("s1")
    slot.open(occupant(world, "first"), furnished(world))
    slot.record.unlink()  # removed first and written last: this opening never ended
    if left == "half":
        (slot.tree / "src/a.txt").unlink()
        (slot.tree / "junk").write_text("half written")
    elif left == "locked":
        (slot.admin / "index.lock").write_text("")
        (slot.own / "index.lock").write_text("")
        (slot.admin / "locked").write_text("initializing")
    elif left == "no-worktree":
        subprocess.run(["rm", "-r", slot.tree], check=True)
    elif left == "no-repository":
        subprocess.run(["rm", "-r", slot.repo], check=True)
    assert rescue_leftovers(world.ledger, slot, world.rules) == []
    slot.open(occupant(world, "second"), furnished(world))
    assert git(slot.tree, "status", "--porcelain", "--ignored") == ""
    assert git(slot.tree, "symbolic-ref", "HEAD") == "refs/heads/second"


def test_W6_branches_of_the_same_name_in_hub_and_checkout_do_not_matter(world: World) -> None:
    task = world.add("Report")
    git(world.app, "checkout", "-q", "-b", task)
    git(world.app, "commit", "-q", "--allow-empty", "-m", "somebody else's report")
    git(world.app, "push", "-q", "swarm", f"HEAD:{task}")
    git(world.hub.path, "branch", "report/deeper", ok=(128,))
    theirs = git(world.app, "rev-parse", task)
    agent = world.agent(task)
    assert agent.git("rev-parse", "HEAD") == world.main, "it starts at the target, not there"
    assert isinstance(agent.write("r", "r").commit().seal(), Sealed)
    world.work_gate()
    assert world.state(task) is State.LANDED
    assert git(world.hub.path, "rev-parse", task) == theirs, "their branch is left alone"


def test_W9_a_reused_slot_starts_at_the_targets_tip_of_the_claim(world: World) -> None:
    first = world.agent(world.add("First"))
    first.write("stale.txt", "stale").write("src/a.txt", "dirty")
    for number in range(20):
        world.push("src/a.txt", f"{number}\n")
    dirty = first.git("status", "--porcelain")
    assert dirty
    second = world.agent(world.add("Second"))
    assert second.claimed.lock.base == world.main, "the base is recorded"
    assert second.git("rev-parse", "HEAD") == world.main
    assert second.git("status", "--porcelain", "--ignored") == "", "nothing of before is left"
    kept = world.hub.refs_below("refs/swarm/rescue/first")
    assert [world.file("stale.txt", oid) for oid in kept.values()] == ["stale"]


def test_W10_a_slot_is_one_processs_alone(world: World) -> None:
    world.slot("s1")
    assert Slot.take(world.layout.slots, "s1", world.hub) is None
    other = Slot.take_free(world.layout.slots, "s", world.hub)
    assert other.name == "s2", "the next number is taken instead"
    other.close()


def test_W11_finished_tasks_leave_no_worktrees_behind(world: World) -> None:
    for number in range(4):
        world.land(f"Task {number}", f"f{number}", "x")
    places = sorted(path.name for path in world.layout.slots.iterdir() if path.is_dir())
    assert places == ["s1", "s1.git", "s1.own"]
    size = folder_bytes(world.layout.slots)
    assert size > 0
    slot = world.slot("s1")
    slot.remove()
    assert folder_bytes(world.layout.slots) < size
    assert not [path for path in world.layout.slots.iterdir() if path.is_dir()]
    world.agent(world.add("After removal"))


def test_D7_what_cannot_be_removed_is_an_error_and_no_other_way_is_tried(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = world.agent(world.add("Busy")).slot

    def busy(path: Path) -> None:
        raise OSError(16, "Device or resource busy", str(path))

    monkeypatch.setattr("swarm.slot.shutil.rmtree", busy)
    with pytest.raises(OSError, match="busy"):
        slot.remove()
    assert (slot.tree / "src/a.txt").exists()


def test_folders_made_read_only_do_not_stop_the_next_opening(world: World) -> None:
    agent = world.agent(world.add("Go modules"))
    agent.write("cache/deep/file", "x")
    (agent.tree / "cache/deep").chmod(0o500)
    (agent.tree / "cache").chmod(0o500)
    agent.end()
    opened = world.agent(world.add("Next"))
    assert not (opened.tree / "cache").exists()


def test_W16_squash_landed_work_is_neither_lost_nor_rescued_again(
    make: Callable[..., World],
) -> None:
    world = make(config='[gate]\nstyle = "squash"\n')
    landed = world.land("Squashed", "f", "x")
    head = world.hub.reader.ref("refs/swarm/work/squashed/1")
    assert head is not None
    assert head != landed
    world.agent(world.add("Next"))
    assert world.hub.refs_below("refs/swarm/rescue") == {}, "its landing commit is in the target"
    assert world.hub.reader.ref("refs/swarm/work/squashed/1") == head, "and the work ref stays"


def test_W17_git_collects_nothing_by_itself_and_beats_leave_no_history(world: World) -> None:
    agent = world.agent(world.add("Collect"))
    for folder in (agent.tree, world.hub.path):
        assert git(folder, "config", "gc.auto") == "0"
        assert git(folder, "config", "maintenance.auto") == "false"
    for _ in range(20):
        world.clock.pass_(seconds=1)
        assert beat(world.hub, "r1-test", world.clock)
    ref = "refs/swarm/beats/r1-test"
    assert git(world.hub.path, "rev-list", "--count", ref) == "1"
    assert not (world.hub.path / "logs" / ref).exists()


def test_W18_heartbeats_add_nothing_to_the_ledger(world: World) -> None:
    world.agent(world.add("Beats"))
    before = git(world.hub.path, "rev-list", "--count", LEDGER)
    for _ in range(50):
        world.clock.pass_(minutes=5)
        beat(world.hub, "r1-test", world.clock)
    assert git(world.hub.path, "rev-list", "--count", LEDGER) == before
    agent_ref = world.hub.refs_below("refs/swarm/beats")
    assert len(agent_ref) == 1


# Furnishing


def ignored(world: World) -> None:
    """The checkout has ignored files that worktrees need."""
    world.push(".gitignore", ".env\nconfig/*.local.toml\ndata/\n.venv/\n")
    (world.app / ".env").write_text("TOKEN=1\n")
    (world.app / "config").mkdir()
    (world.app / "config/dev.local.toml").write_text("a = 1\n")
    (world.app / "data").mkdir()
    (world.app / "data/big.bin").write_text("data")


COPIES = (".env", "config/dev.local.toml")


def test_W14_ignored_files_are_copied_into_a_new_and_into_a_reused_worktree(world: World) -> None:
    ignored(world)
    first = world.agent(world.add("First"), furnishing=furnished(world, copies=COPIES))
    assert (first.tree / ".env").read_text() == "TOKEN=1\n"
    (first.tree / ".env").write_text("TOKEN=changed by the agent\n")
    first.end()
    second = again(world, first, copies=COPIES)
    assert (second.tree / ".env").read_text() == "TOKEN=1\n"
    assert (second.tree / "config/dev.local.toml").read_text() == "a = 1\n"
    assert second.git("status", "--porcelain") == ""
    assert (world.app / ".env").read_text() == "TOKEN=1\n"


def test_W14_a_file_that_cannot_be_copied_is_named(world: World) -> None:
    os.mkfifo(world.app / "pipe")
    world.add("Furnish")
    with pytest.raises(GitFault, match=r"pipe cannot be copied"):
        world.slot("s1").open(occupant(world), furnished(world, copies=("pipe",)))
    assert world.slot("s1").occupant() is None


def test_a_copy_never_replaces_or_follows_what_is_tracked(world: World) -> None:
    outside = world.folder / "outside"
    outside.mkdir()
    (outside / ".env").write_text("mine\n")
    (world.app / "linked").symlink_to(outside)
    git(world.app, "add", "linked")
    git(world.app, "commit", "-q", "-m", "a link that leaves the repository")
    git(world.app, "push", "-q", "swarm", "HEAD:main")
    (world.app / ".env").write_text("theirs\n")
    slot = world.slot("s1")
    slot.open(occupant(world), furnished(world, copies=("linked/.env", "README.md")))
    assert (outside / ".env").read_text() == "mine\n"
    assert git(slot.tree, "status", "--porcelain") == ""


def test_shared_folders_are_links_and_never_sealed(world: World) -> None:
    ignored(world)
    keys = {"share": ("data",)}
    agent = world.agent(world.add("Share"), furnishing=furnished(world, **keys))
    assert (agent.tree / "data").is_symlink()
    assert (agent.tree / "data/big.bin").read_text() == "data"
    agent.write(".gitignore", "").write("real.txt", "work")
    assert "data" not in agent.git("ls-files", "--others", "--exclude-standard").split()
    sealed = agent.seal()
    assert isinstance(sealed, Sealed)
    assert world.file("real.txt", sealed.entry.head) == "work"
    tree = git(world.hub.path, "ls-tree", "-r", "--name-only", sealed.entry.head)
    assert "data" not in tree.split()
    again_opened = world.agent(world.add("Next"), furnishing=furnished(world))
    assert not (again_opened.tree / "data").exists()
    assert (world.app / "data/big.bin").read_text() == "data", "the link went, not what it names"


def test_what_lies_untracked_is_named_down_to_where_its_files_part(world: World) -> None:
    world.push(".gitignore", "*.log\nbuild/\n")
    agent = world.agent(world.add("Made"))
    agent.write("new/only/one.txt", "1").write("info/x/a", "a").write("info/x/b/c", "c")
    agent.write("src/b.txt", "b").write("src/c/d", "d").write("odd [1]\n/a", "a")
    agent.write("odd [1]\n/b", "b").write("noise/a.log", "i").write("build/out", "i")
    agent.write("skipped/x.pyc", "i")
    git(agent.tree, "init", "-q", "inner")
    made = agent.slot.made(("*.pyc",))
    assert made == sorted(
        ["new/only/one.txt", "info/x", "src/b.txt", "src/c/d", "odd [1]\n", "inner"]
    )


def test_what_setup_made_survives_an_opening_that_says_so_and_is_not_seen(world: World) -> None:
    ignored(world)
    agent = world.agent(world.add("Setup"))
    agent.write("src/gen [1]/a", "a").write("src/gen [1]/b", "b").write("tool", "t")
    agent.write("src/a.txt", "changed by setup\n")
    made = agent.slot.end_setup(furnished(world))
    assert made == ["src/gen [1]", "tool"]
    occupant = agent.slot.occupant()
    assert occupant is not None
    assert agent.slot.changed_paths(occupant) == [], "nothing for doctor and status to count"
    assert agent.git("status", "--porcelain") == " M src/a.txt"
    agent.write("src/a.txt", "by hand\n").write("tool", "other").write("mine", "m")
    agent.write(".gitignore", "!tool\n!src/**\n")  # stronger than an exclude file
    assert agent.slot.changed_paths(occupant) == [".gitignore", "src/a.txt", "mine"]
    agent.end()
    kept = again(world, agent, made=tuple(made))
    assert (kept.tree / "src/gen [1]/b").read_text() == "b"
    assert (kept.tree / "tool").read_text() == "other"
    kept.end()
    assert not (again(world, kept).tree / "tool").exists(), "nobody said so"


def test_kept_folders_survive_and_are_never_sealed(world: World) -> None:
    ignored(world)
    keys = {"keep": (".venv", "node [1]")}
    agent = world.agent(world.add("Keep"), furnishing=furnished(world, **keys))
    agent.write(".venv/bin/tool", "#!/bin/sh").write("node [1]/m", "x").write("other", "gone")
    agent.write(".gitignore", "!.venv\n")
    agent.end()
    kept = again(world, agent, **keys)
    assert (kept.tree / ".venv/bin/tool").read_text() == "#!/bin/sh"
    assert (kept.tree / "node [1]/m").read_text() == "x"
    sealed = kept.write("w", "w").seal()
    assert isinstance(sealed, Sealed)
    names = git(world.hub.path, "ls-tree", "-r", "-z", "--name-only", sealed.entry.head)
    assert not [n for n in names.split("\0") if n.startswith((".venv", "node "))]


# Sparse


@pytest.fixture
def wide(make: Callable[..., World]) -> World:
    """A repository of which an agent needs one folder."""
    files = {
        "README.md": "app\n",
        "libs/core/a.py": "1\n",
        "libs/core/deep/b.py": "2\n",
        "libs/index.txt": "i\n",
        "libs/other/c.py": "3\n",
        "web/page.html": "<p>\n",
    }
    return make(files=files)


def test_sparse_worktrees_hold_the_cone_and_nothing_else(wide: World) -> None:
    agent = wide.agent(wide.add("Cone"), furnishing=furnished(wide, sparse=("libs/core",)))
    held = sorted(str(p.relative_to(agent.tree)) for p in agent.tree.rglob("*") if p.is_file())
    assert held == [".git", "README.md", "libs/core/a.py", "libs/core/deep/b.py", "libs/index.txt"]
    assert agent.git("status", "--porcelain") == ""
    assert agent.git("sparse-checkout", "list") == "libs/core"
    for path in git(wide.app, "ls-files").split("\n"):
        assert in_cone(path, ["libs/core"]) == (path in held), path


def test_D14_sealing_a_sparse_worktree_deletes_nothing_that_is_outside(wide: World) -> None:
    keys = {"sparse": ("libs/core",)}
    agent = wide.agent(wide.add("Cone"), furnishing=furnished(wide, **keys))
    agent.write("libs/core/a.py", "changed\n").write("libs/core/new.py", "new\n")
    agent.git("commit", "-q", "-am", "one committed")
    agent.write("libs/core/deep/b.py", "left\n")
    sealed = agent.seal()
    assert isinstance(sealed, Sealed)
    assert sealed.entry.deletions == 2, "the two changed lines"
    assert wide.file("libs/other/c.py", sealed.entry.head) == "3\n"
    wide.work_gate()
    assert wide.file("web/page.html") == "<p>\n"
    assert wide.file("libs/core/a.py") == "changed\n"


def test_D14_a_sparse_attempt_with_the_target_merged_in_deletes_nothing(wide: World) -> None:
    keys = {"sparse": ("libs/core",)}
    agent = wide.agent(wide.add("Cone"), furnishing=furnished(wide, **keys))
    agent.write("libs/core/a.py", "mine\n").commit()
    wide.push("libs/core/a.py", "theirs\n")
    wide.push("web/added.html", "<b>\n")
    agent.seal()
    wide.work_gate()
    assert wide.state("cone") is State.OPEN, "it conflicts and goes back"
    merged = again(wide, agent, **keys)
    assert merged.opened.conflicted == ("libs/core/a.py",)
    sealed = merged.write("libs/core/a.py", "both\n").seal()
    assert isinstance(sealed, Sealed)
    wide.work_gate()
    assert wide.state("cone") is State.LANDED
    assert wide.file("web/added.html") == "<b>\n"
    assert wide.file("web/page.html") == "<p>\n"


def test_what_an_agent_writes_outside_its_cone_is_work_and_not_the_next_ones(wide: World) -> None:
    keys = {"sparse": ("libs/core",)}
    agent = wide.agent(wide.add("Outside"), furnishing=furnished(wide, **keys))
    agent.write("web/page.html", "changed\n").write("web/new.html", "new\n")
    sealed = agent.seal()
    assert isinstance(sealed, Sealed)
    assert wide.file("web/page.html", sealed.entry.head) == "changed\n"
    assert wide.file("web/new.html", sealed.entry.head) == "new\n"
    following = wide.agent(wide.add("Next"), furnishing=furnished(wide, **keys))
    assert not (following.tree / "web").exists()
    assert isinstance(following.seal(), NoWork), "nothing of before is taken for its work"


def test_a_cone_that_changes_or_goes_changes_the_worktree(wide: World) -> None:
    first = wide.agent(wide.add("Cone"), furnishing=furnished(wide, sparse=("libs/core",)))
    first.end()
    second = again(wide, first, sparse=("web",))
    assert (second.tree / "web/page.html").exists()
    assert not (second.tree / "libs").exists()
    second.end()
    third = again(wide, second)
    assert (third.tree / "libs/other/c.py").exists()
    assert third.git("status", "--porcelain") == ""


# Hostile agents


def test_T8_an_agents_ordinary_git_reaches_neither_hub_nor_neighbour(world: World) -> None:
    neighbour = world.agent(world.add("Neighbour"), slot="s2").write("mine.txt", "mine")
    agent = world.agent(world.add("Hostile"))
    before = all_refs(world)
    agent.write("bad.txt", "bad").commit("bad")
    agent.git("update-ref", "refs/heads/main", "HEAD")
    agent.git("branch", "-f", "main", "HEAD")
    agent.git("checkout", "-q", "main")
    agent.write("worse.txt", "worse").commit("worse")
    agent.git("push", ".", "HEAD:refs/heads/main", ok=(0, 1))
    agent.git("update-ref", "refs/swarm/ledger", "HEAD")
    agent.write("bad.txt", "stashed")
    agent.git("stash")
    agent.git("worktree", "prune")
    agent.git("gc", "-q", "--prune=now")
    agent.git("config", "core.repositoryFormatVersion", "1")
    agent.git("config", "extensions.nosuch", "true")
    agent.git("status", ok=(128,))
    assert all_refs(world) == before
    assert git(world.hub.path, "config", "--get", "extensions.nosuch", ok=(1,)) == ""
    assert neighbour.git("status", "--porcelain") == "?? mine.txt"
    sealed = agent.seal()
    assert isinstance(sealed, Sealed), "even its own repository stopped, its work is taken"
    assert world.file("worse.txt", sealed.entry.head) == "worse"
    opened = world.agent(world.add("Next"))
    assert opened.git("for-each-ref", "--format=%(refname)") == "refs/heads/next"
    assert opened.git("status", "--porcelain") == ""


def plant(agent: Agent, witness: Path) -> None:
    """Everything in a git repository that can make git run a program."""
    program = agent.tree.parent / "planted.sh"
    program.write_text(f'#!/bin/sh\necho "$0 $*" >> {witness}\ncat\n')
    program.chmod(0o755)
    common, admin = agent.slot.repo, agent.slot.admin
    for name in ("filter.x.clean", "filter.x.smudge", "filter.x.process", "diff.x.command"):
        agent.git("config", name, str(program))
    for name in ("diff.x.textconv", "merge.x.driver", "core.fsmonitor", "core.editor"):
        agent.git("config", name, str(program))
    for name in ("core.pager", "gpg.program", "core.sshCommand", "uploadpack.packObjectsHook"):
        agent.git("config", name, str(program))
    agent.git("config", "core.alternateRefsCommand", str(program))
    agent.git("config", "commit.gpgSign", "true")
    agent.git("config", "core.hooksPath", str(agent.tree / ".husky"))
    hooks = ("pre-commit", "post-checkout", "post-commit", "reference-transaction", "pre-push")
    for folder in (agent.tree / ".husky", common / "hooks"):
        folder.mkdir(exist_ok=True)
        for name in (*hooks, "post-index-change", "post-merge", "pre-merge-commit"):
            (folder / name).write_text(program.read_text())
            (folder / name).chmod(0o755)
    (agent.tree / ".gitattributes").write_text("* filter=x diff=x merge=x\n")
    for folder in (common / "info", admin / "info"):
        folder.mkdir(exist_ok=True)
        (folder / "attributes").write_text("* filter=x diff=x merge=x\n")
    (admin / "config.worktree").write_text(f"[core]\n\tfsmonitor = {program}\n")


def test_T8_nothing_that_an_agent_planted_runs_in_our_processes(world: World) -> None:
    witness = world.folder / "witness"
    task = world.add("Plant")
    agent = world.agent(task).write("src/a.txt", "1\n2\nmine\n").commit("work")
    plant(agent, witness)
    agent.write("left.txt", "left over").write("src/a.txt", "1\n2\nmore\n")
    world.push("src/a.txt", "1\n2\ntheirs\n")
    sealed = agent.seal()
    assert isinstance(sealed, Sealed)
    assert world.file("left.txt", sealed.entry.head) == "left over"
    world.work_gate()
    assert world.state(task) is State.OPEN, "a conflict, so that the target is merged in next"
    second = world.agent(task)
    assert second.opened.conflicted == ("src/a.txt",)
    assert not witness.exists()
    plant(second, witness)
    second.end()
    world.agent(world.add("Next"))
    assert not witness.exists(), witness.read_text()


def test_T8_what_a_check_planted_does_not_choose_what_the_next_check_sees(
    make: Callable[..., World], tmp_path: Path
) -> None:
    """The gate's worktree runs the agents' code too."""
    witness = tmp_path / "witness"
    check = f"""
    if [ -e evil ]; then
        git update-index --assume-unchanged src/a.txt; echo tampered > src/a.txt
        git config filter.x.smudge 'sh -c "echo ran >> {witness}; sed s/RED/green/"'
        git config filter.x.clean 'sh -c "echo ran >> {witness}; cat"'
        mkdir -p "$(git rev-parse --git-common-dir)/info"
        echo '* filter=x' > "$(git rev-parse --git-common-dir)/info/attributes"
    fi
    ! grep -q RED src/a.txt && ! grep -q tampered src/a.txt || [ -e evil ]
    """
    world = make(check=check)
    evil = world.add("Evil")
    world.agent(evil).write("evil", "x").commit().seal()
    world.work_gate()
    evil_landed = world.state(evil)
    task = world.add("Red")
    agent = world.agent(task).write("src/a.txt", "RED\n")
    if evil_landed is State.LANDED:
        (agent.tree / "evil").unlink()
    agent.commit().seal()
    world.work_gate()
    assert world.state(task) is not State.LANDED, "it is judged as it is"
    good = world.add("Good")
    agent = world.agent(good, slot="s2").write("src/a.txt", "fine\n")
    (agent.tree / "evil").unlink(missing_ok=True)
    agent.commit().seal()
    world.work_gate()
    assert world.state(good) is State.LANDED
    assert not witness.exists()


def test_T8_links_in_place_of_a_slots_folders_are_not_followed(world: World) -> None:
    agent = world.agent(world.add("Links"))
    slot, before = agent.slot, all_refs(world)
    for place in (slot.tree, slot.repo, slot.own):
        subprocess.run(["rm", "-r", place], check=True)
    slot.tree.symlink_to(world.app)
    slot.repo.symlink_to(world.hub.path)
    slot.own.symlink_to(world.hub.path)
    (world.app / "unsaved.txt").write_text("a person's")
    slot.is_saved = True
    slot.open(occupant(world, "next"), furnished(world))
    assert all_refs(world) == before, "the hub was not rewritten"
    assert git(world.hub.path, "rev-parse", "--is-bare-repository") == "true"
    assert (world.app / "unsaved.txt").read_text() == "a person's"
    assert not slot.tree.is_symlink()
    assert git(slot.tree, "status", "--porcelain") == ""


def test_T8_a_worktree_replaced_by_a_link_gives_no_foreign_files(world: World) -> None:
    agent = world.agent(world.add("Link")).write("done.txt", "done").commit()
    head = agent.git("rev-parse", "HEAD")
    subprocess.run(["rm", "-r", agent.tree], check=True)
    agent.tree.symlink_to(world.app)
    (world.app / "private.txt").write_text("a person's")
    captured = agent.capture()
    assert captured.head == head, "its commits count, what the link leads to does not"
    assert (captured.uncommitted, captured.untracked) == (0, 0)


def test_T8_replace_refs_and_alternates_of_an_agent_change_nothing(world: World) -> None:
    agent = world.agent(world.add("Replace"))
    real = agent.write("a", "a").commit("real").git("rev-parse", "HEAD")
    fake = agent.write("b", "b").commit("fake").git("rev-parse", "HEAD")
    agent.git("reset", "-q", "--hard", real)
    agent.git("replace", real, fake)
    alternates = agent.slot.repo / "objects/info/alternates"
    alternates.write_text(alternates.read_text() + str(world.folder / "nowhere") + "\n")
    (agent.slot.repo / "objects/info/commit-graph").write_bytes(b"CGPH nonsense")
    sealed = agent.seal()
    assert isinstance(sealed, Sealed)
    assert sealed.entry.head == real
    assert world.file("b", real) is None


def test_T8_a_git_dir_of_its_own_hides_no_work(world: World) -> None:
    agent = world.agent(world.add("Own"))
    (agent.tree / ".git").unlink()
    agent.git("init", "-q")
    agent.write("new.txt", "new").commit("in a repository of its own")
    sealed = agent.seal()
    assert isinstance(sealed, Sealed)
    assert world.file("new.txt", sealed.entry.head) == "new"
    following = world.agent(world.add("Next"))
    assert following.git("rev-parse", "HEAD") == world.main


def test_a_lock_that_a_killed_git_left_does_not_stop_the_gate(world: World) -> None:
    world.land("First", "a.txt", "1\n")
    gate = world.layout.gate
    for name in ("HEAD.lock", "index.lock", "config.lock"):
        (gate / "g1.own" / name).touch()
    world.land("Second", "b.txt", "2\n")
    assert world.file("b.txt") == "2\n"


def test_an_agent_that_loses_its_own_objects_is_at_fault_and_the_slot_goes_on(world: World) -> None:
    task = world.add("Clumsy")
    loses = (
        "echo $RANDOM precious > kept.txt; git add -A; git commit -qm made;"
        "b=$(git rev-parse HEAD:kept.txt);"
        'rm -f "$(git rev-parse --git-common-dir)/objects/$(echo $b | cut -c1-2)/"'
        "$(echo $b | cut -c3-)"
    )
    world.work_loop(world.loop("sh", "-c", loses))
    attempts = world.ledger.view().attempts(task)
    assert attempts is not None and attempts.last is not None and attempts.work is not None
    assert attempts.last.outcome == "agent_failed" and attempts.last.strike
    assert "an object of its commits is missing" in attempts.last.message
    assert "precious" in (world.file("kept.txt", attempts.work.head) or "")
    assert world.agent(world.add("Next")).git("rev-parse", "HEAD") == world.main


def test_what_an_earlier_attempt_left_in_the_slots_objects_is_not_looked_at_again(
    world: World,
) -> None:
    first = world.agent(world.add("First")).write("a.txt", "1").commit()
    first.git("commit", "-q", "--amend", "-m", "again")
    assert isinstance(first.seal(), Sealed)
    world.work_gate()
    for objects in (first.slot.repo / "objects").glob("??/*"):
        os.utime(objects, (0, 0))
    kept = world.hub.refs_below("refs/swarm/rescue")
    second = world.agent(world.add("Second")).write("b.txt", "2").commit()
    assert isinstance(second.seal(), Sealed)
    assert world.hub.refs_below("refs/swarm/rescue") == kept
