"""Running one configured check on one exact tree, and what its end means.

Enters: a commit, a check. Leaves: a verdict of that tree.
Guards: the tree is exact before and unchanged after; what could not be judged is never `passed`;
nothing of the candidate's configures how it is judged.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import socket
import stat
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

import msgspec

from swarm import environment, faults, process, sandbox
from swarm.config import Check, Config
from swarm.files import tail_of
from swarm.ids import new_nonce
from swarm.ledger.clock import Clock
from swarm.ledger.records import CheckRun, Verdict, VerdictValue
from swarm.plumbing.hub import Hub
from swarm.scope import compile_globs
from swarm.slot import Slot, is_below, remove_tree

LOG_CAP = 16 << 20
TAIL_BYTES = 4000
MAX_FAILING = 50
_MAX_MADE = 1000  # paths that cleaning is told to spare
_PROBE_SECONDS = 120.0  # where the right tree is read it takes less than one
_GRACE = timedelta(seconds=5)
_SHELL_CANNOT = (126, 127)
_PYTEST_CANNOT = (2, 3, 4, 5)  # interrupted, internal error, usage, no tests ran

# How known runners name a failing test at the start of a line.
_FAILING = (
    # pytest; the parameters in its brackets may hold spaces
    re.compile(r"^(?:FAILED|ERROR) (\S+?::[^\s\[]+(?:\[.*?\](?= - |$))?|\S+\.py(?=\s|$))"),
    re.compile(r"^--- FAIL: (\S+)"),  # go test
    re.compile(r"^(?:FAIL|ERROR): (\S+ \(\S+\))"),  # unittest
    re.compile(r"^test (\S+) \.\.\. FAILED"),  # cargo test
    re.compile(r"^not ok \d+ - (.+)$"),  # TAP
    re.compile(r"^\s+● (.+ › .+)$"),  # jest
)


class Bench(msgspec.Struct, frozen=True):
    """Where checks run: one gate slot, and what the run was started with."""

    hub: Hub
    slot: Slot
    config: Config
    checkout: Path
    logs: Path
    runner: str
    clock: Clock


def applies(check: Check, asked: Sequence[str], changed: Sequence[str] | None) -> bool:
    """Does the check judge what would land? `changed` None: the target itself is judged."""
    if check.when == "asked" and check.name not in asked:
        return False
    if check.paths and changed is not None:
        matcher = compile_globs(check.paths)
        return any(matcher.matches(path) for path in changed)
    return True


def judged(hub: Hub, check: Check, commit: str) -> str:
    """What the verdict is keyed by: the tree, a digest of its declared part, or the commit."""
    if check.reads == "history":
        return commit
    return judged_tree(hub, check, hub.reader.tree_of(commit))


def judged_tree(hub: Hub, check: Check, tree: str) -> str:
    """The same for a tree that no commit need have yet; not of a check that reads history."""
    if not check.paths:
        return tree
    matcher = compile_globs(check.paths)
    rows = hub.git.run("ls-tree", "-r", "-z", tree).fields
    kept = [row for row in rows if matcher.matches(row.split("\t", 1)[1])]
    return hashlib.sha1("\0".join(kept).encode("utf-8", "surrogateescape")).hexdigest()


def definition(bench: Bench, check: Check, commit: str) -> str:
    """sha256 of everything but the tree that could change the verdict."""
    worktree = bench.config.worktree
    passed = sorted(n for n in os.environ if _is_passed(n, bench.config.env.pass_))
    facts = {
        "name": check.name,
        "run": check.run,
        "cwd": check.cwd,
        "timeout": check.timeout.total_seconds(),
        "env": dict(check.env),
        "set": dict(bench.config.env.set),
        "pass": passed,
        "keep": list(check.keep),
        "codes": [list(check.codes.could_not_run), list(check.codes.flaky)],
        "setup": worktree.setup,
        "setup_inputs": setup_inputs(bench.hub, worktree.setup_inputs, commit),
        "platform": [sys.platform, platform.machine()],
        "environment": _environment_id(bench, check),
        **_sandbox(bench.config),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _sandbox(config: Config) -> dict[str, object]:
    """What a check sees decides whether it can pass; without a sandbox it is as it always was."""
    run = config.run
    if run.sandbox == "none":
        return {}
    return {"sandbox": [run.sandbox, run.network, list(run.visible), list(run.writable)]}


def _is_passed(name: str, globs: Sequence[str]) -> bool:
    return any(Path(name).match(glob) for glob in globs)


_environment_ids: dict[tuple[str, str], str] = {}


def _environment_id(bench: Bench, check: Check) -> str:
    if not check.env_id:
        return ""
    key = (str(bench.checkout), check.env_id)
    if key not in _environment_ids:
        env = {n: os.environ[n] for n in ("PATH", "HOME") if n in os.environ}
        argv = ("/bin/sh", "-c", check.env_id)
        found = process.run_quick(argv, bench.checkout, env, timedelta(seconds=30))
        _environment_ids[key] = found.stdout.decode("utf-8", "replace").strip()
    return _environment_ids[key]


def setup_inputs(hub: Hub, globs: Sequence[str], commit: str) -> dict[str, str]:
    """path -> blob id of the files that setup depends on, in this commit's tree."""
    if not globs:
        return {}
    tree = hub.reader.tree_of(commit)
    if not any(c in glob for glob in globs for c in "*?[!"):
        found = {glob.strip("/"): hub.reader.find(tree, glob.strip("/")) for glob in globs}
        return {path: entry.oid for path, entry in found.items() if entry is not None}
    matcher = compile_globs(globs)
    rows = [row.split("\t", 1) for row in hub.git.run("ls-tree", "-r", "-z", tree).fields]
    return {path: meta.split(" ")[2] for meta, path in rows if matcher.matches(path)}


class Running(msgspec.Struct):
    """One check on one commit, retried in place; `poll` until it gives a verdict."""

    bench: Bench
    check: Check
    commit: str
    key: str  # what is judged
    definition: str
    started_at: datetime
    runs: list[CheckRun] = []
    values: list[VerdictValue] = []
    why: str = ""
    child: process.Child | None = None
    is_setup: bool = False
    tmpdir: Path | None = None

    @property
    def log(self) -> Path:
        number = f".{len(self.runs) + 1}" if self.runs else ""
        return self.bench.logs / f"{self.key}-{self.check.name}{number}.log"

    def poll(self) -> Verdict | None:
        """The verdict, or None while it runs. Never waits for the check itself.

        Raises:
            GitFault: the worktree could not be looked at.
        """
        if self.child is None:
            return self._finish()
        ended = self.child.poll()
        if ended is None:
            return None
        self.child = None
        if self.is_setup:
            self.is_setup = False
            if ended.exit_code != 0:
                self.why = f"setup failed with exit code {ended.exit_code}"
                return self._record(ended, "could_not_run")
            _mark_setup(self.bench, self.check, self.commit)
            self._start_check()
            return None
        return self._record(ended, self._value(ended))

    def stop(self, why: str) -> None:
        """End it; no verdict comes of it."""
        if self.child is not None:
            self.child.kill_now(why)
            self.child.wait(30)
            self.child = None
        self._drop_tmpdir()

    def _value(self, ended: process.Ended) -> VerdictValue:
        if ended.timed_out:
            return "timed_out"
        code = ended.exit_code
        if code is None:
            self.why = f"ended by signal {ended.signal}"
            return "could_not_run"
        changed = self.bench.slot.changed_tracked()
        if code == 0 and changed:
            self.why = f"the check changed tracked files: {', '.join(changed[:5])}"
            return "could_not_run"
        if code == 0:
            return "passed"
        if code in self.check.codes.flaky:
            return "flaky"
        if code in cannot_run_codes(self.check):
            self.why = f"exit code {code}: it could not judge"
            return "could_not_run"
        return "failed"

    def _record(self, ended: process.Ended, value: VerdictValue) -> Verdict | None:
        self.runs.append(
            CheckRun(
                exit_code=ended.exit_code,
                signal=ended.signal,
                seconds=round(ended.seconds, 3),
                host=socket.gethostname(),
                at=self.bench.clock.now(),
            )
        )
        self.values.append(value)
        faults.reach("check.before_verdict")
        is_final = value in ("passed", "flaky", "could_not_run")
        if is_final or len(self.runs) > self.check.retries:
            return self._finish()
        self.bench.slot.check_out(self.commit, _kept(self.bench, self.check))
        self._start_check()
        return None

    def _finish(self) -> Verdict:
        self._drop_tmpdir()
        value = self.values[-1] if self.values else "could_not_run"
        if value == "passed" and len(self.values) > 1:
            value = "flaky"
        last = self._last_log()
        text = _tail(last)
        failing = [] if value == "passed" else self._failing(text)
        where = str(last.relative_to(self.bench.logs.parent)) if last.exists() else None
        return Verdict(
            tree=self.key,
            check=self.check.name,
            definition=self.definition,
            verdict=value,
            failing=failing,
            tail=text[-1500:] if value != "passed" else _last_line(text),
            why=self.why,
            runs=self.runs,
            log=where,
        )

    def _last_log(self) -> Path:
        number = f".{len(self.runs)}" if len(self.runs) > 1 else ""
        return self.bench.logs / f"{self.key}-{self.check.name}{number}.log"

    def _failing(self, text: str) -> list[str]:
        if self.check.junit:
            report = self.bench.slot.tree / self.check.junit
            with contextlib.suppress(OSError, ElementTree.ParseError, ValueError):
                return _junit_failing(report)
        return failing_ids(text)

    def start(self) -> None:
        """Put the worktree at the commit, run setup when its inputs changed, then the check.

        Raises:
            GitFault: the worktree could not be put there.
            SwarmError: the check's folder or shell is missing.
        """
        self.bench.logs.mkdir(parents=True, exist_ok=True)
        self.bench.slot.check_out(self.commit, _kept(self.bench, self.check))
        worktree = self.bench.config.worktree
        if worktree.setup and _needs_setup(self.bench, self.commit):
            self.is_setup = True
            self._run(worktree.setup, worktree.setup_timeout, self.bench.slot.tree, {})
        else:
            self._start_check()

    def _start_check(self) -> None:
        folder = self.bench.slot.tree / self.check.cwd
        if not folder.is_dir():
            self.why = f"there is no folder {self.check.cwd}"
            self.values.append("could_not_run")
            return
        self._run(self.check.run, self.check.timeout, folder, dict(self.check.env))
        faults.reach("check.after_start")

    def _run(self, command: str, limit: timedelta, folder: Path, env: dict[str, str]) -> None:
        if self.tmpdir is None:
            self.tmpdir = Path(tempfile.mkdtemp(prefix="swarm-"))
        facts = environment.SlotFacts(name=self.bench.slot.name, worktree=self.bench.slot.tree)
        full = environment.for_check(
            os.environ,
            settings=self.bench.config.env,
            check_env=env,
            slot=facts,
            checkout=self.bench.checkout,
            tmpdir=self.tmpdir,
        )
        spec = process.Spec(
            argv=("/bin/sh", "-c", command),
            cwd=folder,
            env=full,
            stdout=self.log,
            output_cap=LOG_CAP,
            mark=f"{self.bench.runner}.{self.bench.slot.name}.{new_nonce()[:12]}",
            time_limit=limit,
            grace=_GRACE,
            signals=("SIGTERM", "SIGKILL"),
        )
        # It runs what an agent wrote, before any person has read it.
        confined = sandbox.confine(
            spec,
            self.bench.config,
            self.bench.slot.places,
            self.bench.checkout,
            environ=os.environ,
            tmpdir=self.tmpdir,
        )
        self.child = process.start(confined)

    def _drop_tmpdir(self) -> None:
        if self.tmpdir is not None:
            with contextlib.suppress(OSError):
                remove_tree(self.tmpdir)
            self.tmpdir = None


def begin(bench: Bench, check: Check, commit: str) -> Running:
    """Start a check on a commit; see `Running.start` for what it raises."""
    running = Running(
        bench,
        check,
        commit,
        judged(bench.hub, check, commit),
        definition(bench, check, commit),
        bench.clock.now(),
    )
    running.start()
    return running


def cannot_run_codes(check: Check) -> tuple[int, ...]:
    """Exit codes that say nothing about the tree, unless its base can run."""
    codes = _SHELL_CANNOT + tuple(check.codes.could_not_run)
    return codes + _PYTEST_CANNOT if "pytest" in check.run else codes


def is_reusable(verdict: Verdict) -> bool:
    """Only `passed` and twice-confirmed `failed` are taken from the store."""
    return verdict.verdict == "passed" or (verdict.verdict == "failed" and len(verdict.runs) > 1)


def failing_ids(text: str) -> list[str]:
    """Failing test ids in the output of a known runner, in order, without doubles."""
    found: dict[str, None] = {}
    for line in text.splitlines():
        for pattern in _FAILING:
            match = pattern.match(line)
            if match is not None:
                found.setdefault(match[1])
        if len(found) >= MAX_FAILING:
            break
    return list(found)


def _junit_failing(report: Path) -> list[str]:
    status = report.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > LOG_CAP:
        raise ValueError("the report is too large, or no file")
    text = report.read_text("utf-8", "replace")
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError("entities are refused")
    found: list[str] = []
    for case in ElementTree.fromstring(text).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            place = case.get("file") or case.get("classname", "")
            found.append(f"{place}::{case.get('name', '?')}")
    return found[:MAX_FAILING]


def _tail(path: Path) -> str:
    return tail_of(path, 64 * 1024)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].strip("= ")[:200] if lines else ""


def _kept(bench: Bench, check: Check) -> tuple[str, ...]:
    worktree = bench.config.worktree
    made = made_before(bench.slot, worktree.setup_inputs) if worktree.setup else ()
    return tuple(dict.fromkeys((*worktree.keep, *check.keep, *made)))


def _needs_setup(bench: Bench, commit: str) -> bool:
    return needs_setup(
        bench.slot, bench.config.worktree.setup_inputs, bench.config.worktree.keep,
        setup_digest(bench.hub, bench.config, commit),
    )  # fmt: skip


def needs_setup(slot: Slot, inputs: Sequence[str], keep: Sequence[str], digest: str) -> bool:
    """Setup runs when its inputs' digest, stored after a success, differs, or when a kept path or
    what it made is gone.

    Without declared inputs it runs every time.
    """
    mark = _read_mark(slot)
    if not inputs or mark is None or mark.digest != digest:
        return True
    if any(not (slot.tree / path.strip("/")).exists() for path in keep):
        return True
    return slot.still(mark.made) != mark.made


class _Mark(msgspec.Struct, frozen=True, kw_only=True):
    """`<slot>.setup`: that setup succeeded, with what, and what it made."""

    digest: str
    made: list[str]  # untracked and not ignored


def _read_mark(slot: Slot) -> _Mark | None:
    try:
        text = (slot.folder / f"{slot.name}.setup").read_bytes()
        return msgspec.convert(json.loads(text), _Mark)
    except (OSError, ValueError, RecursionError, msgspec.DecodeError):
        return None


def made_before(slot: Slot, inputs: Sequence[str]) -> tuple[str, ...]:
    """What setup made here and will not make again while its inputs stay: it survives cleaning."""
    mark = _read_mark(slot) if inputs else None
    return tuple(mark.made) if mark else ()


def _mark_setup(bench: Bench, check: Check, commit: str) -> None:
    kept = [path.strip("/") for path in (*bench.config.worktree.keep, *check.keep)]
    made = bench.slot.made(bench.config.worktree.exclude)
    made = [path for path in made if not is_below(path, kept)]
    mark_setup(bench.slot, setup_digest(bench.hub, bench.config, commit), made)


def mark_setup(slot: Slot, digest: str, made: Sequence[str]) -> None:
    """Remember that setup succeeded with these inputs; where it strewed files it runs again."""
    unmark_setup(slot)
    if len(made) <= _MAX_MADE:
        text = json.dumps({"digest": digest, "made": list(made)})
        (slot.folder / f"{slot.name}.setup").write_text(text, "ascii")


def unmark_setup(slot: Slot) -> None:
    """Setup runs at the next opening, whatever its inputs, and in a clean worktree."""
    (slot.folder / f"{slot.name}.setup").unlink(missing_ok=True)


def setup_digest(hub: Hub, config: Config, commit: str) -> str:
    """What setup depends on: its command and its input blobs in this commit."""
    facts = [config.worktree.setup, setup_inputs(hub, config.worktree.setup_inputs, commit)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def find_shadowed(bench: Bench, check: Check, commit: str) -> str | None:
    """The probe that the checked tree is the imported one, for Python.

    With every top package's `__init__` made to raise in the worktree the check must not pass; if it
    does, some other copy of the code is what it imports. Returns the packages then, None when all
    is well or there is no Python package to probe.

    Raises:
        GitFault: the worktree could not be put back.
    """
    tree = bench.slot.tree
    roots = [tree / check.cwd, tree / check.cwd / "src"]
    inits = [i for root in roots if root.is_dir() for i in sorted(root.glob("*/__init__.py"))]
    tracked = set(bench.slot.own_git.run("ls-files", "-z", "--", "*__init__.py").fields)
    inits = [
        i for i in inits if str(i.relative_to(tree)) in tracked and "test" not in i.parent.name
    ]
    if not inits:
        return None
    for init in inits:
        init.write_text("raise RuntimeError('swarm probe: this is the checked tree')\n", "utf-8")
    probe = Running(bench, check, commit, "probe", "", bench.clock.now())
    try:
        probe._start_check()
        ended = probe.child.wait(_PROBE_SECONDS) if probe.child else None
    finally:
        probe.stop("probe ended")
        bench.slot.check_out(commit, _kept(bench, check))
    if ended is not None and ended.exit_code == 0:
        return ", ".join(i.parent.name for i in inits)
    return None
