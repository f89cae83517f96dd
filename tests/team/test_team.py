"""A day of a team on one remote: agents land, a teammate pushes, squashes and rewrites."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from swarm.ledger.view import State
from tests.team.team import Team, until
from tests.world import git

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

# Each works when it is told to; every commit is written down outside of what swarm keeps.
AGENT = """#!/bin/sh
set -e
until [ -e '{go}'/$SWARM_TASK ]; do sleep 0.02; done
edit() { sed -i "s/$1/$2/" lines.txt; }
case $SWARM_TASK in
base) edit '^line 1$' 'line 1 by base' ;;
side) edit '^line 5$' 'line 5 by side' ;;
next) edit '^line 1 .*' '& and next' ;;
more) edit '^line 1 .*' '& and more' ;;
tail) edit '^line 15$' 'line 15 by tail' ;;
guarded) echo '.env' >.worktreeinclude ;;
*) echo "$SWARM_TASK" >"$SWARM_TASK.txt" ;;
esac
git add -A
git commit -q -m "$SWARM_TASK"
git rev-parse HEAD >>'{go}'.commits
"""
NEEDS = {  # an agent always waits for its word, so that the run goes on, and never in another's way
    "base": "",
    "side": "",
    "next": "base, side",
    "more": "next",
    "tail": "next",
    "guarded": "more, tail",
    "last": "more, tail",
    "end": "guarded, last",
}


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    made = Team(tmp_path, every="1s")
    yield made
    made.close()


class Day:
    """A run at work, whose agents do nothing before they are told to."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.go = team.folder / "go"
        self.go.mkdir()
        self.commits = team.folder / "go.commits"
        agent = team.folder / "agent.sh"
        agent.write_text(AGENT.replace("{go}", str(self.go)), "utf-8")
        agent.chmod(0o755)
        (team.app / "tasks").mkdir()
        for task, needs in NEEDS.items():
            text = f"---\nneeds: [{needs}]\n---\nWork on {task}.\n"
            (team.app / "tasks" / f"{task}.md").write_text(text, "utf-8")
        team.accept_checkout()
        self.run = team.start("run", "-n", "2", "--", str(agent))

    def tell(self, *tasks: str) -> None:
        for task in tasks:
            (self.go / task).touch()

    def until_landed(self, *tasks: str) -> None:
        until(lambda: self.team.landed(*tasks), f"{tasks} landed", self.run)
        self.team.assert_sound()

    def until_synced(self, commit: str) -> None:
        until(lambda: self.team.has(commit), f"{commit} was brought in", self.run)
        self.team.assert_sound()


def test_a_team_on_one_remote(team: Team) -> None:
    day = Day(team)
    world = team.world
    # What landed is pushed; agents go on with the same lines, and only then the teammate squashes.
    day.tell("base", "side")
    day.until_landed("base", "side")
    day.until_synced(team.deliver("mate.txt", "1\n"))
    said = team.swarm("push")
    assert "pushed    origin/swarm/r1" in said and "a new branch" in said
    day.tell("next")
    day.until_landed("next")
    day.until_synced(team.squash("swarm/r1"))
    assert world.file("lines.txt", world.main).startswith("line 1 by base and next\n")

    # The same file from both sides; brought in by hand while the run works.
    day.tell("more", "tail")
    oid = team.deliver("lines.txt", "line 10 by mate", line=10)
    team.swarm("sync")
    assert team.has(oid)
    day.until_landed("more", "tail")

    # Upstream is red, until the teammate mends it.
    red = team.deliver("oops.txt", "RED\n")
    until(lambda: "ejected" in world.events(team.last_sync()), "the red one came back", day.run)
    assert not team.has(red)
    day.until_synced(team.deliver("oops.txt", "mended\n"))

    # A person's word, twice.
    day.tell("guarded")
    until(lambda: world.state("guarded") is State.HELD, "it is held", day.run)
    team.swarm("approve", "--all")
    day.until_landed("guarded")
    assert "nothing is held" in team.swarm("approve", "--all", ok=(1,))
    assert "told      last" in team.swarm("tell", "last", "keep it short")
    assert "told before" in team.swarm("tell", "last", "keep it short")

    # Upstream loses a commit that was taken. The run says so and goes on without it.
    dropped = team.deliver("dropped.txt", "dropped\n")
    day.until_synced(dropped)
    rewritten = team.rewrite("instead.txt", "instead\n")
    until(lambda: "origin/main was rewritten" in team.out, "the run tells of it", day.run)
    day.tell("last", "end")
    assert day.run.wait(30) == 0, team.out
    day.until_landed(*NEEDS)
    assert not team.has(rewritten)
    assert team.out.count("was rewritten") == 1, "said once"

    # It is refused with one sentence, and taken when it is meant.
    refused = twice(team, "sync", ok=1)
    says = f"error: origin/main was rewritten: it lacks {dropped[:7]}, which it had before\n"
    assert refused.startswith(says) and refused.endswith("hint: swarm sync --rewritten\n"), refused
    assert "was not moved" in team.swarm("push", "--branch", "main", ok=(1,))
    twice(team, "sync", "--rewritten")
    assert team.has(rewritten) and team.has(dropped)
    assert world.file("dropped.txt") == "dropped\n", "what the target has it keeps"

    # Whatever is typed twice ends as if it had been typed once.
    assert "nothing new to push" in twice(team, "push")
    assert "opened before" in twice(team, "push", "--pr")
    assert team.requests() == ["swarm/r1 main app: 6 tasks by swarm"], "all but what was squashed"
    assert "has nothing of side any more" in twice(team, "revert", "side")
    assert "line 5\n" in (world.file("lines.txt") or "")
    team.assert_sound()
    team.swarm("pull")
    assert git(team.app, "rev-parse", "HEAD") == world.main
    team.accept_checkout()
    end = team.end()
    assert "nothing new has landed" in team.swarm("pull")
    assert team.end() == end

    # The end of the day.
    team.assert_sound()
    assert [move.who for move in team.moves() if move.how == "forced"] == ["mate"]
    team.assert_nothing_lost()
    for line in day.commits.read_text("utf-8").splitlines():
        assert team.has(line), f"what an agent committed is not in the target: {line}"
    team.assert_never_red()
    team.swarm("doctor")


def twice(team: Team, *args: str, ok: int = 0) -> str:
    """Type it twice: the second time nothing changes any more. What the second says."""
    team.swarm(*args, ok=(ok,))
    end = team.end()
    said = team.swarm(*args, ok=(ok,))
    assert team.end() == end, (args, said)
    return said
