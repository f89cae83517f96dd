"""One slot's loop: claim, open, set up, run the agent, seal or give back.

Enters: a run's setting and a slot. Leaves: events of the ledger.
Guards: no attempt ends without its processes gone and its work saved; a fenced loop writes nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal

from swarm import adapter as adapters
from swarm import environment, faults, process, prompt
from swarm.change import (
    NoWork,
    Rules,
    Sealed,
    Unresolved,
    capture,
    save,
    seal,
    take_commits,
)
from swarm.check import mark_setup, needs_setup, setup_digest
from swarm.claim import (
    Claimed,
    Ending,
    Fenced,
    Mine,
    NothingClaimable,
    Terms,
    Who,
    acquire,
    check_fence,
    release,
)
from swarm.config import Config
from swarm.errors import SwarmError
from swarm.ids import new_nonce, parse_duration
from swarm.layout import Layout
from swarm.ledger import records
from swarm.ledger.outcome import Bounds
from swarm.ledger.records import Outcome, Task
from swarm.ledger.store import Ledger
from swarm.ledger.view import View
from swarm.plumbing.hub import LEDGER
from swarm.reconcile import rescue_leftovers
from swarm.slot import Furnishing, Occupant, Slot

Stage = Literal["idle", "setup", "working", "ended"]
IDLE_SECONDS = 1.0
POLL_SECONDS = 0.2
TAIL_BYTES = 1500


@dataclass(frozen=True)
class Setting:
    """What every loop of a run shares."""

    ledger: Ledger
    layout: Layout
    config: Config
    checkout: Path
    run: str
    runner: str
    adapter: adapters.Adapter
    argv_extra: tuple[str, ...]  # the words after `--`
    typed_in: Path
    rules: Rules
    bounds: Bounds
    terms: Terms
    copies: tuple[str, ...]  # ignored files of the checkout that every worktree gets
    user_excludes: str
    template: str | None
    model: str | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


@dataclass
class Idle:
    """What the loops of a run know together, so that one look for work serves them all."""

    nothing_at: dict[str, tuple[str, float]] = field(default_factory=dict)  # role -> tip, until
    setup_failures: int = 0  # in a row
    is_draining: bool = False
    login_hint: str | None = None  # the adapter cannot go on until a person logs in


@dataclass
class Attempt:
    """One claim being worked on."""

    claimed: Claimed
    mine: Mine
    task: Task
    folder: Path
    mark: str
    tmpdir: Path
    started: float  # monotonic
    child: process.Child | None = None
    stopping: Outcome | None = None  # why we end it
    next_beat: float = 0.0
    digest: str = ""  # of setup
    signs: tuple[object, ...] = ()  # what was last seen of its life
    sign_at: float = 0.0


class Loop:
    """One slot's loop. `tick` does one bounded step and returns how long nothing will happen."""

    def __init__(self, setting: Setting, slot: Slot, idle: Idle, role: str = "") -> None:
        self.setting = setting
        self.slot = slot
        self.idle = idle
        self.role = role
        self.stage: Stage = "idle"
        self.attempt: Attempt | None = None
        self.why_idle = ""
        self.trouble: str = ""  # the last fault of ours, for status
        self.near: Callable[[str, tuple[str, ...]], None] | None = None

    def tick(self) -> float:
        """One step; seconds until the next one is useful (an ended child or a wake comes first)."""
        match self.stage:
            case "idle":
                return self._claim()
            case "setup":
                return self._poll_setup()
            case "working":
                return self._poll_agent()
            case "ended":
                return self._finish()

    def stop(self, why: Outcome = "stopped", *, now: bool = True) -> None:
        """End the attempt's processes; the next ticks save its work and give the claim back."""
        attempt = self.attempt
        if attempt is None:
            return
        attempt.stopping = attempt.stopping or why
        if attempt.child is not None:
            if now:
                attempt.child.kill_now(why)
            else:
                attempt.child.stop(why)

    @property
    def is_busy(self) -> bool:
        return self.stage != "idle"

    # Claim and open

    def _claim(self) -> float:
        idle = self.idle
        if idle.is_draining or idle.login_hint or idle.setup_failures >= 2:
            self.why_idle = _why_stopped(idle)
            return IDLE_SECONDS
        tip = self.setting.ledger.hub.reader.ref(LEDGER) or ""
        known = idle.nothing_at.get(self.role)
        if known is not None and known[0] == tip and time.monotonic() < known[1]:
            return IDLE_SECONDS
        who = Who(
            runner=self.setting.runner,
            adapter=self.setting.adapter.name,
            role=self.role,
            slot=self.slot.name,
            run=self.setting.run,
        )
        answer = acquire(self.setting.ledger, who, self.setting.terms)
        if isinstance(answer, Claimed):
            self.why_idle = ""
            self._open(answer)
            return 0.0
        if isinstance(answer, NothingClaimable):
            self.why_idle = _why_nothing(answer)
            idle.nothing_at[self.role] = (tip, time.monotonic() + IDLE_SECONDS)
        return IDLE_SECONDS

    def _open(self, claimed: Claimed) -> None:
        setting, lock = self.setting, claimed.lock
        folder = setting.layout.attempt(setting.run, lock.task, lock.token)
        folder.mkdir(parents=True, exist_ok=True)
        view = setting.ledger.view()
        task = view.task(lock.task)
        assert task is not None
        attempt = Attempt(
            claimed,
            Mine.of(lock),
            task,
            folder,
            f"{setting.runner}.{lock.agent}.{new_nonce()[:12]}",
            Path(tempfile.mkdtemp(prefix="swarm-")),
            time.monotonic(),
        )
        self.attempt = attempt
        if claimed.near and self.near is not None:
            self.near(lock.task, claimed.near)
        try:
            rescue_leftovers(setting.ledger, self.slot, setting.rules)
            self.slot.open(
                Occupant(
                    task=lock.task,
                    token=lock.token,
                    nonce=lock.nonce,
                    agent=lock.agent,
                    run=lock.run,
                    base=lock.base,
                    start=lock.start,
                    merge=lock.merge,
                    head=lock.start,
                ),
                self._furnishing(attempt),
            )
            if not self._start_setup(attempt):
                self._start_agent(attempt, view)
        except SwarmError as error:
            self._give_back(attempt, error)

    def _furnishing(self, attempt: Attempt) -> Furnishing:
        worktree = self.setting.config.worktree
        lock = attempt.claimed.lock
        return Furnishing(
            checkout=self.setting.checkout,
            copies=self.setting.copies,
            keep=worktree.keep,
            share=worktree.share,
            exclude=worktree.exclude,
            sparse=worktree.sparse,
            user_excludes=self.setting.user_excludes,
            trailers={"task": lock.task, "agent": lock.agent, "token": str(lock.token)},
            paths=tuple(attempt.task.header.paths),
        )

    def _give_back(self, attempt: Attempt, error: SwarmError) -> None:
        """A fault of ours or of the environment: no strike, the claim is released at once."""
        self.trouble = error.what
        self._release(attempt, Ending("setup_failed", f"{error.what}: {error.why or ''}"))
        self.idle.setup_failures += 1

    # Setup

    def _start_setup(self, attempt: Attempt) -> bool:
        worktree = self.setting.config.worktree
        if not worktree.setup:
            faults.reach("worktree.after_setup")
            return False
        head = self.slot.head() or attempt.claimed.lock.start
        attempt.digest = setup_digest(self.setting.ledger.hub, self.setting.config, head) if (
            self.setting.ledger.hub.reader.has(head)
        ) else ""  # fmt: skip
        if not needs_setup(self.slot, worktree.setup_inputs, worktree.keep, attempt.digest):
            faults.reach("worktree.after_setup")
            return False
        attempt.child = process.start(
            process.Spec(
                argv=("/bin/sh", "-c", worktree.setup),
                cwd=self.slot.tree,
                env=self._check_env(attempt),
                stdout=attempt.folder / "setup.log",
                output_cap=self.setting.config.limits.output,
                mark=attempt.mark,
                time_limit=worktree.setup_timeout,
                grace=self.setting.config.limits.grace,
            )
        )
        self.stage = "setup"
        return True

    def _check_env(self, attempt: Attempt) -> dict[str, str]:
        return environment.for_check(
            self.setting.environ,
            settings=self.setting.config.env,
            check_env={},
            slot=self._facts(attempt),
            checkout=self.setting.checkout,
            tmpdir=attempt.tmpdir,
        )

    def _poll_setup(self) -> float:
        attempt = self._now()
        assert attempt.child is not None
        ended = attempt.child.poll()
        if ended is None:
            return POLL_SECONDS
        attempt.child = None
        if attempt.stopping is not None:
            self._release(attempt, Ending(attempt.stopping, "stopped during setup"))
            return 0.0
        if ended.exit_code != 0:
            how = "timed out" if ended.timed_out else f"exit code {ended.exit_code}"
            tail = _tail(attempt.folder / "setup.log")
            self.idle.setup_failures += 1
            self._release(
                attempt,
                Ending("setup_failed", f"setup failed: {how}", tail, ended.exit_code),
            )
            return 0.0
        self.idle.setup_failures = 0
        mark_setup(self.slot, attempt.digest)
        faults.reach("worktree.after_setup")
        try:
            self._start_agent(attempt, self.setting.ledger.view())
        except SwarmError as error:
            self._give_back(attempt, error)
        return 0.0

    # The agent

    def _facts(self, attempt: Attempt) -> environment.SlotFacts:
        return environment.SlotFacts(
            name=self.slot.name,
            worktree=self.slot.tree,
            task=attempt.mine.task,
            attempt=attempt.mine.token,
        )

    def _start_agent(self, attempt: Attempt, view: View) -> None:
        setting, lock = self.setting, attempt.claimed.lock
        text = self._prompt(attempt, view)
        prompt_file = attempt.folder / "prompt.md"
        prompt_file.write_text(text, "utf-8")
        task_file = attempt.folder / "task.md"
        task_file.write_bytes(records.encode_task(attempt.task))
        values = adapters.Placeholders(
            prompt_file=prompt_file,
            worktree=self.slot.tree,
            task=lock.task,
            attempt=lock.token,
            python=sys.executable,
            checkout=setting.checkout,
            writable_roots=(
                self.slot.admin,
                self.slot.repo / "objects",
                self.slot.repo / "refs",
                self.slot.repo / "logs",
            ),
        )
        limits = setting.config.limits
        wanted = {"model": setting.model, "turns": limits.turns, "cost_usd": limits.cost_usd}
        chosen = adapters.argv(
            setting.adapter,
            values=values,
            options={k: v for k, v in wanted.items() if k in setting.adapter.options},
            permission=setting.config.run.permission,
            extra=setting.argv_extra,
            typed_in=setting.typed_in,
            path=setting.environ.get("PATH", os.defpath),
            prompt=text,
        )
        env = environment.for_agent(
            setting.environ,
            adapter_pass=setting.adapter.env.pass_,
            adapter_set=setting.adapter.env.set,
            adapter_set_as_root=setting.adapter.env.set_as_root,
            settings=setting.config.env,
            slot=self._facts(attempt),
            agent=environment.AgentFacts(
                run=setting.run,
                target=setting.ledger.branch,
                prompt=prompt_file,
                task_file=task_file,
                mark=attempt.mark,
            ),
            checkout=setting.checkout,
            tmpdir=attempt.tmpdir,
        )
        timeout = attempt.task.header.timeout
        attempt.child = process.start(
            process.Spec(
                argv=tuple(chosen),
                cwd=self.slot.tree,
                env=env,
                stdin=text.encode() if setting.adapter.prompt.how == "stdin" else None,
                stdout=attempt.folder / "transcript.jsonl",
                stderr=attempt.folder / "stderr.log",
                output_cap=limits.output,
                mark=attempt.mark,
                time_limit=parse_duration(timeout) if timeout else limits.attempt,
                grace=limits.grace,
                signals=setting.adapter.stop.signals,
                record=attempt.folder / "outcome.json",
            )
        )
        attempt.next_beat = time.monotonic() + lock.lease_seconds / 3
        attempt.sign_at = time.monotonic()
        self.stage = "working"
        faults.reach("agent.after_start")

    def _prompt(self, attempt: Attempt, view: View) -> str:
        header = attempt.task.header
        last = attempt.claimed.attempts.last
        occupant = self.slot.occupant()
        conflicted = tuple(occupant.conflicted) if occupant else ()
        checks = [
            c for c in self.setting.config.checks if c.when == "always" or c.name in header.checks
        ]
        facts = prompt.PromptFacts(
            task=prompt.TaskFacts(id=header.id, title=header.title, body=attempt.task.body),
            branch=header.id,
            attempt=attempt.mine.token,
            paths=tuple(header.paths),
            needs=tuple(_need(view, need) for need in header.needs),
            last=prompt.LastFacts(message=last.message, detail=last.detail, conflict=conflicted)
            if last is not None
            else None,
            checks=tuple(prompt.CheckFacts(name=c.name, run=c.run) for c in checks),
            rules=self.setting.config.prompt.rules,
        )
        return prompt.render(facts, self.setting.template)

    def _poll_agent(self) -> float:
        attempt = self._now()
        assert attempt.child is not None
        if attempt.child.poll() is not None:
            self.stage = "ended"
            return 0.0
        now = time.monotonic()
        if now >= attempt.next_beat:
            attempt.next_beat = now + attempt.claimed.lock.lease_seconds / 3
            if check_fence(self.setting.ledger.view(), attempt.mine) is not None:
                attempt.child.kill_now("fenced")
            else:
                with contextlib.suppress(SwarmError):  # renewal fails open
                    take_commits(self.setting.ledger, self.slot, attempt.mine)
        self._watch_silence(attempt, now)
        return POLL_SECONDS

    def _watch_silence(self, attempt: Attempt, now: float) -> None:
        """Silence is no output, no child CPU and no changed file, all at once."""
        limit = self.setting.config.limits.silence
        if limit is None or attempt.child is None or attempt.stopping is not None:
            return
        seconds = limit.total_seconds()
        if now - attempt.sign_at < min(seconds / 4, 15.0):
            return
        signs = (attempt.child.output_at, round(attempt.child.cpu_seconds(), 1))
        if signs != attempt.signs or now - attempt.sign_at < seconds:
            if signs != attempt.signs:
                attempt.signs, attempt.sign_at = signs, now
            return
        if _newest_change(self.slot.tree) > time.time() - seconds:
            attempt.sign_at = now
            return
        attempt.stopping = "silent"
        attempt.child.stop("silent")

    # The end

    def _finish(self) -> float:
        attempt = self._now()
        assert attempt.child is not None
        ended = attempt.child.poll()
        assert ended is not None
        faults.reach("seal.after_tree_ended")
        try:
            self._conclude(attempt, ended)
        except SwarmError as error:
            self.trouble = error.what
            self._reset(attempt)
        return 0.0

    def _conclude(self, attempt: Attempt, ended: process.Ended) -> None:
        setting = self.setting
        occupant = self.slot.occupant()
        if occupant is None or occupant.nonce != attempt.mine.nonce:
            self._reset(attempt)
            return
        if check_fence(setting.ledger.view(), attempt.mine) is not None:
            rescue_leftovers(setting.ledger, self.slot, setting.rules)
            self._reset(attempt)
            return
        outcome, message = self._judge(attempt, ended)
        captured = capture(self.slot, occupant, setting.rules)
        if outcome is None:
            answer = seal(setting.ledger, self.slot, attempt.mine, captured, setting.rules)
            match answer:
                case Sealed() | Fenced():
                    self.slot.is_saved = True
                    self._reset(attempt)
                    return
                case NoWork():
                    self.slot.is_saved = True
                    self._release(
                        attempt,
                        Ending("no_work", "ended without a commit or a changed file"),
                    )
                    return
                case Unresolved(paths):
                    self.slot.is_saved = True
                    named = ", ".join(paths[:5])
                    self._release(
                        attempt,
                        Ending("unresolved", f"conflict left in {named}", paths=paths),
                    )
                    return
        saved = save(setting.ledger, self.slot, attempt.mine.task, attempt.mine.token, captured)
        self.slot.is_saved = True
        left = captured.uncommitted + captured.untracked
        if saved.work is not None:
            message += "; kept" if not left else f"; kept, {left} files saved"
        self._release(
            attempt,
            Ending(
                outcome,
                message,
                _tail(attempt.folder / "stderr.log") or _tail(attempt.folder / "transcript.jsonl"),
                ended.exit_code,
                captured.unresolved,
                saved.work,
                saved.moves,
            ),
        )

    def _judge(self, attempt: Attempt, ended: process.Ended) -> tuple[Outcome | None, str]:
        """(None, "") when the agent says that it is done; else the outcome and a sentence."""
        left = f"; {ended.killed} processes ended, {len(ended.survivors)} left"
        if attempt.stopping == "silent":
            limit = self.setting.config.limits.silence
            return "silent", f"silent for {_span(limit)}{left}"
        if attempt.stopping is not None:
            return attempt.stopping, "stopped"
        if ended.timed_out:
            timeout = attempt.task.header.timeout
            span = timeout or _span(self.setting.config.limits.attempt)
            return "timed_out", f"limit {span}{left}"
        judgement = adapters.judge(
            self.setting.adapter,
            ended.exit_code,
            ended.signal,
            attempt.folder / "transcript.jsonl",
            attempt.folder / "stderr.log",
        )
        match judgement.is_:
            case "success":
                return None, ""
            case "limit":
                return "provider_limit", "the provider limits this account"
            case "login":
                hint = judgement.hint or f"log in to {self.setting.adapter.name}"
                self.idle.login_hint = hint
                return "not_logged_in", f"not logged in: {hint}"
            case "turns" | "cost":
                return "agent_failed", f"its limit of {judgement.is_} is used up"
            case _:
                if ended.signal is not None:
                    return "agent_failed", f"killed by signal {ended.signal}"
                if ended.exit_code is None:
                    return "agent_failed", "its shim was killed"
                return "agent_failed", f"exit code {ended.exit_code}"

    def _release(self, attempt: Attempt, ending: Ending) -> None:
        try:
            release(self.setting.ledger, attempt.mine, ending, self.setting.bounds)
        finally:
            self._reset(attempt)

    def _reset(self, attempt: Attempt) -> None:
        shutil.rmtree(attempt.tmpdir, ignore_errors=True)
        self.attempt = None
        self.stage = "idle"
        self.idle.nothing_at.clear()

    def _now(self) -> Attempt:
        assert self.attempt is not None
        return self.attempt


def _need(view: View, need: str) -> prompt.NeedFacts:
    title, landed, files = need, "unknown", 0
    with contextlib.suppress(records.Undecodable):
        task, done = view.task(need), view.done(need)
        if task is not None:
            title = task.header.title
        if done is not None and done.landed is not None and done.previous is not None:
            landed = done.landed[:7]
            files = view.hub.diff_stat(done.previous, done.landed)[0]
    return prompt.NeedFacts(id=need, title=title, landed=landed, files=files)


def _why_stopped(idle: Idle) -> str:
    if idle.login_hint:
        return f"not logged in: {idle.login_hint}"
    if idle.setup_failures >= 2:
        return "setup failed twice in a row; no new claims"
    return "draining"


def _why_nothing(answer: NothingClaimable) -> str:
    if answer.kept_back:
        count = len(answer.kept_back)
        return (
            f"{count} ready task{'s are' if count != 1 else ' is'} kept back: "
            f"paths overlap {', '.join(answer.overlaps[:3])}"
        )
    if answer.other_role:
        return f"{answer.other_role} ready tasks are for another role"
    return "nothing is ready"


def _tail(path: Path) -> str:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        return file.read().decode("utf-8", "replace").strip()
    return ""


def _span(span: timedelta | None) -> str:
    if span is None:
        return "none"
    seconds = int(span.total_seconds())
    return f"{seconds // 60}m" if seconds % 60 == 0 else f"{seconds}s"


def _newest_change(tree: Path) -> float:
    """The newest modification time below a worktree, without its git dir and what is ignored."""
    newest = 0.0
    for folder, names, files in os.walk(tree):
        names[:] = [n for n in names if n not in (".git", "node_modules", ".venv")]
        for name in (*files, "."):
            with contextlib.suppress(OSError):
                newest = max(newest, (Path(folder) / name).lstat().st_mtime)
    return newest
