"""Making a slot ready for a claim: opened at its start, furnished, set up.

Enters: a claim, a slot whose work is saved. Leaves: a worktree to work in.
Guards: a run and a claim by hand get the same; what setup leaves is nobody's work.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from swarm import environment, faults, process, sandbox
from swarm.check import made_before, mark_setup, needs_setup, setup_digest, unmark_setup
from swarm.config import Config
from swarm.plumbing.hub import Hub
from swarm.slot import Furnishing, Occupant, Opened, Slot


class Ground(msgspec.Struct, frozen=True):
    """What every worktree of a run, or of a command, is made from."""

    hub: Hub
    config: Config
    checkout: Path
    copies: tuple[str, ...]  # ignored files of the checkout that every worktree gets
    user_excludes: str  # text of the user's own excludes file
    environ: Mapping[str, str] = msgspec.field(default_factory=lambda: dict(os.environ))


class Opening(msgspec.Struct, frozen=True):
    """A slot that was opened for an attempt; `begin_setup` is what is left to do."""

    ground: Ground
    slot: Slot
    occupant: Occupant
    furnishing: Furnishing
    opened: Opened

    def begin_setup(
        self, *, log: Path, mark: str, tmpdir: Path, home: Path | None = None
    ) -> Setup | None:
        """Start `[worktree] setup`; None when there is none, or its inputs are as they were.

        Raises:
            SwarmError: it cannot be started.
        """
        worktree = self.ground.config.worktree
        digest = self._digest() if worktree.setup else ""
        is_done = digest and not needs_setup(
            self.slot, worktree.setup_inputs, worktree.keep, digest
        )
        if not worktree.setup or is_done:
            faults.reach("worktree.after_setup")
            return None
        unmark_setup(self.slot)  # until it succeeds nobody knows what is installed
        self.slot.begin_setup()
        facts = environment.SlotFacts(
            name=self.slot.name,
            worktree=self.slot.tree,
            task=self.occupant.task,
            attempt=self.occupant.token,
        )
        env = environment.for_check(
            self.ground.environ,
            settings=self.ground.config.env,
            check_env={},
            slot=facts,
            checkout=self.ground.checkout,
            tmpdir=tmpdir,
            home=home,
        )
        limits = self.ground.config.limits
        spec = process.Spec(
            argv=("/bin/sh", "-c", worktree.setup),
            cwd=self.slot.tree,
            env=env,
            stdout=log,
            output_cap=limits.output,
            mark=mark,
            time_limit=worktree.setup_timeout,
            grace=limits.grace,
        )
        # It runs what an agent may have written: the attempt before this one.
        confined = sandbox.confine(
            spec,
            self.ground.config,
            self.slot.places,
            self.ground.checkout,
            environ=self.ground.environ,
            tmpdir=tmpdir,
            home=home,
        )
        return Setup(self.slot, self.furnishing, digest, process.start(confined))

    def _digest(self) -> str:
        """Of what setup depends on; empty where no commit of the hub says what is checked out."""
        head, hub = self.opened.head, self.ground.hub
        if self.opened.conflicted or not hub.reader.has(head):
            return ""
        return setup_digest(hub, self.ground.config, head)


class Setup(msgspec.Struct, frozen=True):
    """`[worktree] setup` at work."""

    slot: Slot
    furnishing: Furnishing
    digest: str
    child: process.Child

    def finish(self, ended: process.Ended) -> str | None:
        """Tell what it left from an agent's work; how it went wrong, None when all is well.

        Raises:
            GitFault: the worktree cannot be looked at.
        """
        made = self.slot.end_setup(self.furnishing)
        if ended.exit_code != 0:
            return ended.how
        if self.digest:
            mark_setup(self.slot, self.digest, made)
        faults.reach("worktree.after_setup")
        return None


def open_slot(ground: Ground, slot: Slot, occupant: Occupant, paths: Sequence[str] = ()) -> Opening:
    """Open the slot at the start of an attempt; what lay in it was saved before.

    `paths`: what the task may change; none: anything.

    Raises:
        GitFault: see `Slot.open`.
    """
    worktree = ground.config.worktree
    furnishing = Furnishing(
        checkout=ground.checkout,
        copies=ground.copies,
        keep=worktree.keep,
        made=made_before(slot, worktree.setup_inputs) if worktree.setup else (),
        share=worktree.share,
        exclude=worktree.exclude,
        sparse=worktree.sparse,
        user_excludes=ground.user_excludes,
        trailers={
            "task": occupant.task,
            "agent": occupant.agent,
            "token": str(occupant.token),
        },
        # Where a stray path only warns, sealing tells it: a guard at each commit costs a git more.
        paths=tuple(paths) if ground.config.gate.scope != "warn" else (),
    )
    return Opening(ground, slot, occupant, furnishing, slot.open(occupant, furnishing))
