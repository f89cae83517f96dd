"""A world with a real remote: `origin`, the user's checkout `app`, and a teammate's clone `mate`.

Everybody says who they are to the remote, which writes down every move of a branch.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from swarm import invariants
from swarm.ledger.view import State
from tests.crash.story import commits_of_slots, reachable
from tests.world import World, git, run_swarm
from tests.world import until as look_until

# Runs after the branch has moved; what is written is what everybody sees.
_HOOK = """#!/bin/sh
while read -r old new ref; do
  how=forced
  case $old:$new in
  *[!0]*:*[!0]*) if git merge-base --is-ancestor "$old" "$new"; then how=forward; fi ;;
  *:*[!0]*) how=new ;;
  *) how=deleted ;;
  esac
  echo "${TEAM_WHO:-nobody} $ref $old $new $how" >>{log}
done
"""
# `[upstream] pr`: what a forge would be asked, one line for each time.
_REQUEST = """#!/bin/sh
printf '%s\\n' "$*" >>{log}
"""
LINES = "".join(f"line {number}\n" for number in range(1, 16))


@dataclass(frozen=True)
class Moved:
    """One move of a branch of the remote."""

    who: str
    ref: str
    old: str
    new: str
    how: str  # forward, new, forced, deleted


class Team:
    """A user with swarm and a teammate without, on one remote."""

    def __init__(self, folder: Path, config: str = "", every: str = "") -> None:
        self.folder = folder
        self.origin = folder / "origin.git"
        self.log = folder / "origin.log"
        self.asked = folder / "requests"
        request = folder / "request.sh"
        request.write_text(_REQUEST.replace("{log}", shlex.quote(str(self.asked))), "utf-8")
        request.chmod(0o755)
        upstream = f"[upstream]\nevery = {every!r}\n"
        upstream += f"pr = '{shlex.quote(str(request))} {{branch}} {{target}} {{title}}'\n"
        files = {"README.md": "app\n", "lines.txt": LINES}
        self.world = World(folder, files=files, config=config + upstream)
        self.app = self.world.app
        git(folder, "init", "-q", "--bare", "-b", "main", str(self.origin))
        hook = self.origin / "hooks" / "post-receive"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(_HOOK.replace("{log}", shlex.quote(str(self.log))), "utf-8")
        hook.chmod(0o755)
        git(self.app, "remote", "add", "origin", str(self.origin))
        git(self.app, "push", "-q", "origin", "main", env={"TEAM_WHO": "user"})
        git(folder, "clone", "-q", str(self.origin), "mate")
        self.mate = folder / "mate"
        self.made: list[str] = []  # commits of the teammate, dropped ones included
        self.facts = invariants.checkout_facts(self.app)
        self.started: list[subprocess.Popen[bytes]] = []

    @property
    def upstream(self) -> str:
        """What the remote's branch holds."""
        return git(self.origin, "rev-parse", "refs/heads/main")

    # The teammate

    def mates(self, *args: str) -> str:
        """The teammate's git."""
        return git(self.mate, *args, env={"TEAM_WHO": "mate"})

    def change(self, path: str, text: str, *, line: int = 0, message: str = "") -> str:
        """The teammate commits: a whole file, or one line of one; on what the remote has."""
        place = self.mate / path
        if line:
            rows = place.read_text("utf-8").splitlines()
            rows[line - 1] = text.rstrip("\n")
            text = "\n".join(rows) + "\n"
        place.write_text(text, "utf-8")
        return self._commit(message or f"mate: {path}")

    def _commit(self, message: str) -> str:
        self.mates("add", "-A")
        self.mates("commit", "-q", "-m", message)
        self.made.append(self.mates("rev-parse", "HEAD"))
        return self.made[-1]

    def deliver(self, path: str, text: str, *, line: int = 0) -> str:
        """The same, pushed."""
        self.mates("pull", "-q", "--ff-only", "origin", "main")
        oid = self.change(path, text, line=line)
        self.mates("push", "-q", "origin", "HEAD:main")
        return oid

    def squash(self, branch: str) -> str:
        """The teammate merges a branch as forges do when asked to squash, and pushes."""
        self.mates("fetch", "-q", "origin")
        self.mates("merge", "-q", "--ff-only", "origin/main")
        self.mates("merge", "-q", "--squash", f"origin/{branch}")
        oid = self._commit(f"Squash {branch}")
        self.mates("push", "-q", "origin", "HEAD:main")
        return oid

    def rewrite(self, path: str, text: str) -> str:
        """The teammate drops the last commit, makes another, and forces it onto the remote."""
        self.mates("reset", "-q", "--hard", "HEAD~1")
        oid = self.change(path, text)
        self.mates("push", "-q", "--force", "origin", "HEAD:main")
        return oid

    # The user

    def accept_checkout(self) -> None:
        """The checkout as it is now is how it should stay."""
        self.facts = invariants.checkout_facts(self.app)

    def swarm(
        self, *args: str, ok: tuple[int, ...] = (0,), env: Mapping[str, str] | None = None
    ) -> str:
        """The command as the user types it; all that it says."""
        done = run_swarm(self.app, *args, env={"TEAM_WHO": "swarm", **(env or {})}, timeout=60)
        assert done.returncode in ok, (args, done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr

    def start(self, *args: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """The same, not waited for; what it says goes to the file `out`."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        with (self.folder / "out").open("ab") as out:
            started = subprocess.Popen(
                [sys.executable, "-m", "swarm", *args],
                cwd=self.app,
                env={**os.environ, "PATH": path, "TEAM_WHO": "swarm", **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        self.started.append(started)
        return started

    @property
    def out(self) -> str:
        """What started commands have said so far."""
        return (self.folder / "out").read_text("utf-8", "replace")

    def has(self, commit: str) -> bool:
        """Does the target hold a commit of the remote?"""
        hub = self.world.hub
        return hub.reader.has(commit) and hub.contains(self.world.main, commit)

    # What must be so

    def moves(self) -> list[Moved]:
        """Every move of a branch of the remote, in order."""
        return [Moved(*line.split(" ")) for line in self.log.read_text("utf-8").splitlines()]

    def requests(self) -> list[str]:
        """What a forge was asked for, in order."""
        return self.asked.read_text("utf-8").splitlines() if self.asked.exists() else []

    def assert_sound(self) -> None:
        """All that holds at any time: invariants, the user's checkout, no force by us."""
        self.world.step()
        faults = invariants.checkout_faults(self.facts)
        assert not faults, faults
        ours = [move for move in self.moves() if move.who == "swarm"]
        assert all(move.how in ("forward", "new") for move in ours), ours
        assert all(move.who != "nobody" for move in self.moves())

    def assert_nothing_lost(self) -> None:
        """Every commit that anybody made is in the hub's target, work or rescue, or on the remote:
        the teammate's once a sync took it, whatever became of it there.
        """
        kept = reachable(self.world) | set(git(self.origin, "rev-list", "--all").split())
        for commit in self.made:
            assert commit in kept, f"the teammate's {commit} is nowhere"
        for commit in commits_of_slots(self.world.layout.slots):
            assert commit in kept, f"an agent's {commit} is nowhere"
        sealed = landed = 0
        for logged in self.world.ledger.iter_log():
            facts = logged.message.trailers
            if logged.kind == "sealed":
                sealed += 1
                assert facts["Swarm-Head"] in kept, f"the sealed {facts['Swarm-Head']} is nowhere"
            elif logged.kind == "landed":
                landed += 1
                assert facts["Swarm-Landed"] in kept, f"the landing of {logged.task} is nowhere"
        assert sealed >= landed > 0

    def assert_never_red(self) -> None:
        """Every value that the target ever had passes the check, by a person's own hand."""
        log = self.world.layout.hub / "logs" / "refs" / "heads" / "main"
        tips = [line.split(" ")[1] for line in log.read_text("utf-8").splitlines()]
        assert len(tips) > 1
        check = self.world.config.checks[0].run
        for number, tip in enumerate(dict.fromkeys(tips)):
            tree = self.folder / "tips" / str(number)
            tree.mkdir(parents=True)
            git(self.world.layout.hub, "archive", "-o", str(tree / "tar"), tip)
            subprocess.run(["tar", "-xf", "tar"], cwd=tree, check=True)
            (tree / "tar").unlink()
            judged = subprocess.run(["/bin/sh", "-c", check], cwd=tree)
            assert judged.returncode == 0, f"the target was red at {tip}"

    def landed(self, *tasks: str) -> bool:
        view = self.world.ledger.view()
        return all(view.state(task) is State.LANDED for task in tasks)

    def end(self) -> tuple[object, ...]:
        """Everything that a command may change; equal means that nothing was done."""
        git_dirs = (self.world.layout.hub, self.origin)
        refs = [
            git(folder, "for-each-ref", "--format=%(refname) %(objectname)") for folder in git_dirs
        ]
        return (*refs, self.requests(), invariants.checkout_facts(self.app))

    def last_sync(self) -> str:
        """The task that brought what the remote had, or brings it."""
        known = self.world.ledger.view().upstream()
        assert known is not None and known.task is not None
        return known.task

    def close(self) -> None:
        for started in self.started:
            if started.poll() is None:
                started.kill()  # the shims of its agents end with it
                started.wait(10)
        self.world.close()


def until(
    is_so: Callable[[], bool],
    what: str,
    run: subprocess.Popen[bytes] | None = None,
    *,
    limit: float = 40.0,
) -> None:
    """Look until something is so; a run that ends before it is a failure."""

    def is_over() -> bool:
        return run is not None and run.poll() is not None

    look_until(lambda: is_so() or is_over(), what, limit=limit)
    assert not is_over() or is_so(), f"the run ended before: {what}"
