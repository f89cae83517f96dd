"""A world that tests script: a repository, its hub, agents by hand, a gate that they tick.

Every step ends in a check of all invariants.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from swarm import adapter as adapters
from swarm import claim as claims
from swarm import config as configuration
from swarm import invariants, plan
from swarm.change import Captured, NoWork, Rules, Sealed, Unresolved, capture, save, seal
from swarm.check import Bench
from swarm.claim import Claimed, Ending, Fenced, Mine, Released, Terms, Who
from swarm.cli import boundary
from swarm.gate import Gate
from swarm.ids import fold, new_nonce
from swarm.layout import Layout, beside
from swarm.ledger.outcome import Bounds
from swarm.ledger.records import Outcome
from swarm.ledger.store import Ledger
from swarm.ledger.view import State
from swarm.liveness import Alive
from swarm.loop import Idle, Loop, Seat, Setting
from swarm.plumbing.hub import LEDGER, Hub
from swarm.reconcile import Report, Sweep, rescue_leftovers, sweep
from swarm.slot import Furnishing, Occupant, Opened, Slot
from swarm.task import take_plan
from swarm.workspace import Workspace

# Red when a tracked file says RED; quick, and needs nothing but sh and grep.
CHECK = '! grep -rqs --exclude-dir=.git --exclude=swarm.toml "RED" .'


SUITE = new_nonce()[:8]  # of this process


def git(
    folder: Path, *args: str, ok: Sequence[int] = (0,), env: Mapping[str, str] | None = None
) -> str:
    """Plain git as a person types it; its output without the last line end."""
    done = subprocess.run(
        ["git", *args], cwd=folder, capture_output=True, env={**os.environ, **(env or {})}
    )
    assert done.returncode in ok, (args, done.returncode, done.stderr.decode())
    return done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")


def swarm(folder: Path, *args: str, ok: Sequence[int] = (0,), timeout: float = 90) -> str:
    """The command as a person types it; standard output, with errors behind it."""
    done = run_swarm(folder, *args, timeout=timeout)
    assert done.returncode in ok, (args, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def run_swarm(
    folder: Path, *args: str, env: Mapping[str, str] | None = None, timeout: float = 90
) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with this environment's interpreter first on PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [sys.executable, "-m", "swarm", *args],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path, **(env or {})},
        timeout=timeout,
        stdin=subprocess.DEVNULL,
    )


class Said(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def all(self) -> str:
        return self.out + self.err


def typed(folder: Path, *args: str) -> Said:
    """The command as a person types it, in this process: where none other has to be alive."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), redirect_stdout(out), redirect_stderr(err):
        code = boundary.run(list(args))
    return Said(code, out.getvalue(), err.getvalue())


def until(
    is_so: Callable[[], object], what: str, *, log: Path | None = None, limit: float = 60.0
) -> None:
    """Look until something is so; what never was is the failure, with what stands in the log."""
    deadline = time.monotonic() + limit
    while not is_so():
        if time.monotonic() >= deadline:
            raise AssertionError(f"never: {what}\n{log.read_text('utf-8') if log else ''}")
        time.sleep(0.02)


class TickingClock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self._now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        self._monotonic = 1000.0
        self.boot = "boot-1"

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def boot_id(self) -> str:
        return self.boot

    def pass_(self, **span: float) -> None:
        """Let time go by: `pass_(minutes=20)`."""
        step = timedelta(**span)
        self._now += step
        self._monotonic += step.total_seconds()

    def suspend(self, **span: float) -> None:
        """The machine sleeps, or its wall clock is set: monotonic time stands still."""
        self._now += timedelta(**span)

    def reboot(self) -> None:
        """The machine starts again: another boot id, monotonic time from 0."""
        self.boot += "'"
        self._monotonic = 0.0


class OwnGate(Gate):
    """A gate whose checks carry marks of their own: a sweep of another world, in another process
    of the test-suite, ends what carries the mark of a runner of the same name."""

    def _bench(self) -> Bench:
        return replace(super()._bench(), runner=f"{self.runner}-{SUITE}")


@dataclass
class Agent:
    """Whoever holds a claim, working in a slot by hand."""

    world: World
    claimed: Claimed
    slot: Slot
    opened: Opened

    @property
    def mine(self) -> Mine:
        return Mine.of(self.claimed.lock)

    @property
    def tree(self) -> Path:
        return self.slot.tree

    def write(self, path: str, text: str | bytes) -> Agent:
        """Write a file in the worktree."""
        place = self.tree / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text.encode() if isinstance(text, str) else text)
        return self

    def git(self, *args: str, ok: Sequence[int] = (0,)) -> str:
        """The agent's own git."""
        return git(self.tree, *args, ok=ok)

    def commit(self, message: str = "work") -> Agent:
        """Commit everything, as an agent would."""
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self

    def capture(self) -> Captured:
        occupant = self.slot.occupant()
        assert occupant is not None
        return capture(self.slot, occupant, self.world.rules)

    def seal(self) -> Sealed | NoWork | Unresolved | Fenced:
        """End as a success: capture and seal."""
        answer = self.seal_unchecked()
        self.world.step()
        return answer

    def seal_unchecked(self) -> Sealed | NoWork | Unresolved | Fenced:
        """The same in a world that was damaged on purpose."""
        answer = seal(self.world.ledger, self.slot, self.mine, self.capture(), self.world.rules)
        self.slot.is_saved = not isinstance(answer, Fenced)
        return answer

    def end(
        self, outcome: Outcome = "agent_failed", message: str = "exit code 1"
    ) -> Released | Fenced:
        """End as a failure: save and release."""
        captured = self.capture()
        saved = save(self.world.ledger, self.slot, self.mine.task, self.mine.token, captured)
        answer = claims.release(
            self.world.ledger,
            self.mine,
            Ending(
                outcome,
                message,
                paths=captured.unresolved,
                work=saved.work,
                moves=saved.moves,
            ),
            self.world.bounds,
        )
        self.slot.is_saved = not isinstance(answer, Fenced)
        self.world.step()
        return answer


@dataclass(frozen=True)
class Upstream:
    """`origin`, a bare repository that the checkout knows, and `mate`, a teammate's clone of it."""

    origin: Path
    mate: Path
    branch: str

    @property
    def tip(self) -> str:
        """What the branch holds there."""
        return git(self.origin, "rev-parse", f"refs/heads/{self.branch}")

    def git(self, *args: str, ok: Sequence[int] = (0,)) -> str:
        """The teammate's own git."""
        return git(self.mate, *args, ok=ok)

    def commit(self, path: str, text: str | None, message: str = "by mate") -> str:
        """The teammate's commit on top of what the branch holds, pushed; None removes the file."""
        self.git("fetch", "-q", "origin")
        self.git("reset", "-q", "--hard", f"origin/{self.branch}")
        place = self.mate / path
        if text is None:
            place.unlink()
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, "utf-8")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self.push()

    def squash(self, branch: str, message: str = "") -> str:
        """What a forge makes of a request for `branch` that is squashed; pushed."""
        self.git("fetch", "-q", "origin")
        self.git("reset", "-q", "--hard", f"origin/{self.branch}")
        self.git("merge", "-q", "--squash", f"origin/{branch}")
        self.git("commit", "-q", "-m", message or f"{branch} (#1)")
        return self.push()

    def push(self, *options: str) -> str:
        """Push what the teammate's clone has checked out to the branch."""
        self.git("push", "-q", *options, "origin", f"HEAD:{self.branch}")
        return self.git("rev-parse", "HEAD")


class Firsts:
    """Of worlds that begin the same, the first is made, with 25 calls of git; the others are
    copies of it, byte for byte.
    """

    folder: Path  # of this process of the test-suite
    made: dict[object, Path] = {}


def begin(folder: Path, files: Mapping[str, str], target: str) -> None:
    """`app` with one commit, and its new hub beside it."""
    settings = Path.home() / ".gitconfig"
    known = settings.read_text("utf-8") if settings.exists() else ""
    environ = tuple((k, v) for k, v in sorted(os.environ.items()) if k.startswith("GIT_"))
    key = (tuple(files.items()), target, known, environ)
    first = Firsts.made.get(key)
    if first is None:
        first = Firsts.folder / str(len(Firsts.made))
        first.mkdir()
        make(first, files, target)
        Firsts.made[key] = first
    for made in first.iterdir():
        shutil.copytree(made, folder / made.name, symlinks=True)
    git(folder / "app", "remote", "set-url", "swarm", str(folder / "app.swarm/hub.git"))
    git(folder / "app", "update-index", "-q", "--refresh")  # the files are others now


def make(folder: Path, files: Mapping[str, str], target: str) -> None:
    """The same, made."""
    app = folder / "app"
    app.mkdir()
    git(app, "init", "-q", "-b", target)
    for path, text in files.items():
        place = app / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, "utf-8")
    git(app, "add", "-A")
    git(app, "commit", "-q", "-m", "first")
    layout = beside(app, "../app.swarm/hub.git")
    head = git(app, "rev-parse", "HEAD")
    with Hub.create(layout.hub, target, app / ".git", head) as hub:
        ledger = Ledger(hub, target, layout.cache, TickingClock())
        ledger.create()
        ledger.close()
    git(app, "remote", "add", "-t", target, "swarm", str(layout.hub))


class World:
    """A user's repository `app`, adopted by swarm, and everything around it."""

    def __init__(
        self,
        folder: Path,
        *,
        files: Mapping[str, str] | None = None,
        config: str = "",
        check: str | None = CHECK,
        target: str = "main",
    ) -> None:
        self.folder = folder
        self.app = folder / "app"
        begin(folder, files or {"README.md": "app\n", "src/a.txt": "1\n2\n3\n"}, target)
        toml = f'format = 1\ntarget = "{target}"\n'
        if "[limits]" not in config:
            toml += '[limits]\nbackoff = "0s"\ngrace = "1s"\n'
        toml += config
        if check is not None:
            toml += f"\n[[checks]]\nname = \"tests\"\nrun = '''{check}'''\n"
        (self.app / "swarm.toml").write_text(toml, "utf-8")
        self.config = configuration.load(self.app)
        self.layout: Layout = beside(self.app, self.config.hub)
        self.clock = TickingClock()
        self.hub = Hub.open(self.layout.hub)
        self.ledger = Ledger(self.hub, target, self.layout.cache, self.clock)
        self.gates: list[Gate] = []
        self.slots: list[Slot] = []
        self.alive: list[Alive] = []
        self.loops: list[Loop] = []
        self.others: list[Ledger] = []
        gate, checks = self.config.gate, self.config.checks
        policy = invariants.Policy(
            flaky_lands=gate.flaky == "land",
            path_limited=frozenset(c.name for c in checks if c.paths or c.when == "asked"),
        )
        self.checker = invariants.Checker(self.ledger, self.layout, policy=policy)
        self.step()

    @property
    def work(self) -> Workspace:
        """The same as a command opens it: what the configuration means is told there."""
        return Workspace(self.app, self.config, self.layout, self.ledger)

    @property
    def rules(self) -> Rules:
        return self.work.rules

    @property
    def bounds(self) -> Bounds:
        return self.work.bounds

    @property
    def terms(self) -> Terms:
        return self.work.terms

    @property
    def main(self) -> str:
        """The target's tip."""
        return self.hub.tip(self.ledger.branch)

    def file(self, path: str, at: str | None = None) -> str | None:
        """A file's text in the target (or at a commit), None when it is not there."""
        commit = at or self.main
        found = self.hub.reader.find(self.hub.reader.tree_of(commit), path)
        return self.hub.reader.read(found.oid, "blob").decode() if found else None

    def add(self, title: str, body: str = "Do it.", **keys: object) -> str:
        """Add a task; its id is the folded title."""
        draft = plan.Draft(id=fold(title), title=title, body=body, **keys)  # type: ignore[arg-type]
        take_plan(self.ledger, [draft])
        self.step()
        return draft.id

    def state(self, task: str) -> State:
        return self.ledger.view().state(task)

    def who(self, slot: str = "s1", runner: str = "r1-test", **keys: str) -> Who:
        return Who(runner=runner, adapter="scripted", slot=slot, run="r1", **keys)

    def acquire(
        self, task: str | None = None, *, slot: str = "s1", runner: str = "r1-test"
    ) -> claims.Answer:
        """A claim without a worktree."""
        answer = claims.acquire(self.ledger, self.who(slot, runner), self.terms, task)
        self.step()
        return answer

    def agent(
        self,
        task: str | None = None,
        *,
        slot: str = "s1",
        runner: str = "r1-test",
        furnishing: Furnishing | None = None,
    ) -> Agent:
        """Claim and open a worktree, as a loop does."""
        answer = self.acquire(task, slot=slot, runner=runner)
        assert isinstance(answer, Claimed), answer
        place = self.slot(slot)
        rescue_leftovers(self.ledger, place, self.rules)
        opened = place.open(
            Occupant.of(answer.lock),
            furnishing or Furnishing(checkout=self.app, exclude=self.config.worktree.exclude),
        )
        self.step()
        return Agent(self, answer, place, opened)

    def slot(self, name: str) -> Slot:
        """The slot of that name, taken once and kept."""
        for slot in self.slots:
            if slot.name == name and slot.fd >= 0:
                return slot
        slot = Slot.take(self.layout.slots, name, self.hub)
        assert slot is not None, f"slot {name} is taken"
        self.slots.append(slot)
        return slot

    def gate(self, runner: str = "r1-test") -> Gate:
        """The gate of a runner; the same object each time."""
        for gate in self.gates:
            if gate.runner == runner:
                return gate
        gate = OwnGate.of(self.work, runner)
        self.gates.append(gate)
        return gate

    def other(self, clock: TickingClock | None = None) -> Ledger:
        """The same ledger as another process sees it: children, cache and turn of its own."""
        made = Ledger(
            Hub.open(self.layout.hub),
            self.ledger.branch,
            self.folder / f"cache-{len(self.others)}",
            clock or self.clock,
        )
        self.others.append(made)
        return made

    def work_gate(self, runner: str = "r1-test", *, limit: float = 60.0) -> None:
        """Tick the gate until it has nothing to do; waits for the checks that it starts."""
        gate = self.gate(runner)
        deadline = datetime.now(UTC) + timedelta(seconds=limit)
        while datetime.now(UTC) < deadline:
            is_more = gate.tick()
            self.step()
            running = gate.job.running if gate.job is not None else None
            if running is not None and running.child is not None:
                running.child.wait(1.0)
            elif not is_more and gate.job is None:
                return
        raise AssertionError("the gate never came to rest")

    def land(self, title: str, path: str, text: str, *, slot: str = "s1", **keys: object) -> str:
        """A task from its title to the target; returns the landing commit."""
        task = self.add(title, **keys)
        self.agent(task, slot=slot).write(path, text).commit(title).seal()
        self.work_gate()
        assert self.state(task) is State.LANDED, (task, self.state(task))
        return self.main

    def push(self, path: str, text: str, message: str = "by hand") -> str:
        """A person's commit on the target, pushed to the hub from the checkout."""
        git(self.app, "pull", "-q", "--ff-only", "swarm", self.ledger.branch)
        place = self.app / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, "utf-8")
        git(self.app, "add", path)
        git(self.app, "commit", "-q", "-m", message)
        git(self.app, "push", "-q", "swarm", f"HEAD:{self.ledger.branch}")
        self.step()
        return git(self.app, "rev-parse", "HEAD")

    def upstream(self, *, branch: str | None = None) -> Upstream:
        """Give the checkout a remote `origin` that holds what the checkout has committed."""
        made = Upstream(
            self.folder / "origin.git", self.folder / "mate", branch or self.ledger.branch
        )
        git(self.folder, "init", "-q", "--bare", "-b", made.branch, str(made.origin))
        git(self.app, "remote", "add", "origin", str(made.origin))
        git(self.app, "push", "-q", "origin", f"HEAD:refs/heads/{made.branch}")
        git(self.folder, "clone", "-q", str(made.origin), str(made.mate))
        return made

    def typed(self, *args: str) -> Said:
        """A command in the checkout. Gates of this world are closed, so that it can be one."""
        self.close_gates()
        said = typed(self.app, *args)
        self.step()
        return said

    def close_gates(self) -> None:
        """Nobody is the gate any more."""
        for gate in self.gates:
            gate.close()
        self.gates.clear()

    def sweep(self) -> Report:
        """What any process does about dead and silent runners."""
        report = self.sweep_unchecked()
        self.step()
        return report

    def sweep_unchecked(self) -> Report:
        """The same in a world that was damaged on purpose."""
        return sweep(
            self.ledger,
            Sweep(self.layout, self.rules, self.bounds, timedelta(seconds=1)),
            own=[slot for slot in self.slots if slot.fd >= 0],
        )

    def seat(self, *command: str, adapter: adapters.Adapter | None = None, role: str = "") -> Seat:
        """Who works in a slot; `command` is the agent, a shell script when it is one word."""
        argv = ("/bin/sh", "-c", *command) if len(command) == 1 else command
        return Seat(adapter or adapters.load("command", self.app), argv, role=role)

    def setting(self, **changes: Any) -> Setting:
        """What the loops of a run share."""
        known: dict[str, Any] = {
            "ledger": self.ledger,
            "layout": self.layout,
            "config": self.config,
            "checkout": self.app,
            "run": "r1",
            # Not the one of `who`: sweeps of other worlds end what carries its mark.
            "runner": f"r1-{new_nonce()[:6]}",
            "typed_in": self.app,
            "rules": self.rules,
            "bounds": self.bounds,
            "terms": self.terms,
            "copies": (),
            "user_excludes": "",
            "template": None,
        }
        return Setting(**(known | changes))

    def loop(self, *command: str, slot: str = "s1", idle: Idle | None = None, **keys: Any) -> Loop:
        """A loop that the test ticks; the slot is taken."""
        seat = self.seat(*command, adapter=keys.pop("adapter", None), role=keys.pop("role", ""))
        loop = Loop(self.setting(**keys), self.slot(slot), idle or Idle(), seat)
        self.loops.append(loop)
        return loop

    def tick(self, loop: Loop, until: Callable[[], bool], *, limit: float = 30.0) -> None:
        """Tick a loop until something is so, and check the invariants whenever it wrote."""
        deadline = time.monotonic() + limit
        seen = None
        while not until():
            assert time.monotonic() < deadline, (loop.stage, loop.trouble, loop.why_idle)
            seconds = loop.tick()
            tip = self.hub.reader.ref(LEDGER)
            if tip != seen:
                self.step()
                seen = tip
            child = loop.attempt.child if loop.attempt is not None else None
            if child is not None and seconds > 0:
                child.wait(min(seconds, 0.05))
            else:
                time.sleep(min(seconds, 0.01))

    def work_loop(self, loop: Loop, *, limit: float = 30.0) -> None:
        """One attempt of a loop, from its claim to its end."""
        self.tick(loop, lambda: loop.is_busy, limit=limit)
        self.tick(loop, lambda: not loop.is_busy, limit=limit)

    def live(self, runner: str = "r1-test") -> Alive:
        """Hold the runner's flock, as a living runner does."""
        alive = Alive(self.layout.runs, runner)
        self.alive.append(alive)
        return alive

    def events(self, task: str | None = None) -> list[str]:
        """Kinds of the events written so far, oldest first; of one task when named."""
        logged = [e for e in self.ledger.iter_log() if task is None or e.task == task]
        return [e.kind for e in reversed(logged)]

    def step(self) -> None:
        """All invariants, after every step."""
        found = self.checker.step()
        assert not found, "\n".join(str(violation) for violation in found)

    def close(self) -> None:
        for gate in self.gates:
            gate.abandon()
        for slot in self.slots:
            slot.close()
        for loop in self.loops:
            if loop.attempt is not None and loop.attempt.child is not None:
                loop.attempt.child.kill_now("the test ends")
                loop.attempt.child.wait(30)
            loop.slot.close()
        for alive in self.alive:
            alive.close()
        for ledger in (*self.others, self.ledger):
            ledger.close()
