"""A small story that passes every crash point, and what must be true once it has ended."""

from __future__ import annotations

import time
from pathlib import Path

from swarm import process
from swarm.ledger.view import State
from swarm.plumbing.hub import RESCUE, WORK, branch_ref
from tests.world import World, git

# Every commit and every file that would be missed is written down outside of what swarm keeps.
AGENT = """#!/bin/sh
set -e
made() { git add -A -- "$1"; git commit -q -m "$2"; git rev-parse HEAD >>'{record}/commits'; }
case $SWARM_TASK in
beta)  # fails once, with a commit and a secret left behind; then repairs it
  if [ "$SWARM_ATTEMPT" = 1 ]; then
    echo one >beta.txt; made beta.txt 'half of beta'
    echo "token $SWARM_ATTEMPT" >.env
    cp .env '{record}/secret'
    exit 1
  fi
  [ -f beta.done ] || { echo two >beta.done; made beta.done 'rest of beta'; }
  ;;
*)  # one commit, one file left over
  [ -f $SWARM_TASK.txt ] || { echo $SWARM_TASK >$SWARM_TASK.txt; made $SWARM_TASK.txt work; }
  echo left >$SWARM_TASK.left
  ;;
esac
"""
TASKS = {
    "alpha": "---\ntitle: Alpha\n---\nWork.\n",
    "beta": "---\ntitle: Beta\npriority: 5\n---\nWork.\n",
    "gamma": "---\ntitle: Gamma\nneeds: [alpha]\n---\nWork.\n",
}


def told(world: World) -> tuple[str, ...]:
    """Write the story's tasks and its agent; returns the words that start a run."""
    folder = world.app / "tasks"
    folder.mkdir()
    for name, text in TASKS.items():
        (folder / f"{name}.md").write_text(text, "utf-8")
    record = world.folder / "record"
    record.mkdir()
    agent = world.folder / "agent.sh"
    agent.write_text(AGENT.replace("{record}", str(record)), "utf-8")
    agent.chmod(0o755)
    return ("run", "-n", "2", "--", str(agent))


def assert_whole(world: World) -> None:
    """The story has ended well: all landed once, nothing lost, nothing left running."""
    view = world.ledger.view()
    states = {task: view.state(task) for task in TASKS}
    assert states == dict.fromkeys(TASKS, State.LANDED)
    for task in TASKS:
        assert world.events(task).count("landed") == 1, world.events(task)
    world.step()
    assert view.landing() is None
    assert world.file("beta.done") == "two\n"
    assert world.file("alpha.left") == "left\n"
    assert_nothing_lost(world, (world.folder / "record" / "commits").read_text().split())
    secret = world.folder / "record" / "secret"
    kept = [world.file(".env", oid) for oid in world.hub.refs_below(RESCUE).values()]
    if secret.exists():  # not when the first attempt was killed before it began
        assert secret.read_text() in kept, "the secret file is in no rescue ref"
    assert world.file(".env") is None, "the secret file has landed"
    assert_nothing_runs(world)


def reachable(world: World) -> set[str]:
    """Commits that the target, a work ref or a rescue ref holds."""
    tips = [*world.hub.refs_below(WORK).values(), *world.hub.refs_below(RESCUE).values()]
    tips.append(world.hub.refs_below(branch_ref(world.ledger.branch)).popitem()[1])
    return set(git(world.layout.hub, "rev-list", *tips).split())


def assert_nothing_lost(world: World, commits: list[str]) -> None:
    """Commit by commit."""
    assert commits
    kept = reachable(world)
    for commit in commits:
        assert commit in kept, f"{commit} is on no target, work or rescue ref"


def assert_nothing_runs(world: World) -> None:
    """No process carries the mark of a runner of this world."""
    runners = {path.stem for path in world.layout.runs.glob("*.alive")}
    assert runners
    deadline = time.monotonic() + 10
    while left := [m for name in runners for m in process.find_marked(f"{name}.")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def commits_of_slots(folder: Path) -> list[str]:
    """Every commit that an agent made, read from the slots' own objects, whatever names it."""
    found: list[str] = []
    for slot in sorted(folder.glob("s*.git")):
        listed = git(
            slot, "cat-file", "--batch-all-objects", "--batch-check=%(objecttype) %(objectname)"
        )
        commits = [line[7:] for line in listed.splitlines() if line.startswith("commit ")]
        if commits:
            format_ = "--format=%H%x09%cn <%ce>%x09%s"
            rows = git(slot, "log", "--no-walk", format_, *commits).splitlines()
            found += [
                oid for oid, who, says in (r.split("\t", 2) for r in rows) if _is_agents(who, says)
            ]
    return found


def _is_agents(committer: str, subject: str) -> bool:
    # Opening merges the target in by itself, under the same name: that can be made again.
    return committer.startswith("swarm agent <agent@") and not subject.startswith(
        "Merge the target "
    )
