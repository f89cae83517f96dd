"""The one kind of exception that a person must act on.

Enters: what happened, why, a hint. Leaves: one error on the terminal and an exit code.
Guards: outcomes (held, fenced, conflict) are values and never exceptions; anything else is a bug.
"""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    """Exit codes of every command (docs/cli.md)."""

    YES = 0  # done, or the answer is yes
    NO = 1  # something was parked, is red, or differs
    USAGE = 2  # the command line or a configuration file is wrong
    BUG = 3  # our fault; a report was written
    NOTHING = 10  # nothing claimable
    HELD = 11  # held by another
    FENCED = 12  # the claim is no longer ours
    TARGET_RED = 13  # the target's own checks fail
    BUDGET = 14  # the budget is used up
    LIMITED = 15  # provider limited, or not logged in
    BUSY = 16  # the hub is busy or unreachable
    INTERRUPTED = 130  # Ctrl-C


class SwarmError(Exception):
    """A person must act: what happened, why, and a hint that can be pasted.

    Attributes:
        what: one sentence, without a full stop after an id.
        why: the cause, or None when `what` says it.
        hint: commands or edits that help, one a line, or None.
        exit_code: how the process ends when nobody handles this.
    """

    exit_code: Exit = Exit.NO

    def __init__(self, what: str, *, why: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.hint = hint


class UsageError(SwarmError):
    """The command line, a task file or a configuration file is wrong; nothing was started."""

    exit_code = Exit.USAGE


class NotFound(SwarmError):
    """A task, run or file that was named does not exist."""

    exit_code = Exit.USAGE


class HubUnusable(SwarmError):
    """The hub is missing, not a hub, of an unknown format, busy or not writable."""

    exit_code = Exit.BUSY


class TargetRed(SwarmError):
    """The target's own checks fail, or could not run: nothing can be judged against it."""

    exit_code = Exit.TARGET_RED


class GitFault(SwarmError):
    """A git command failed in a way that is no outcome: its words are in `why`."""

    exit_code = Exit.BUSY


class MalformedObjects(GitFault):
    """An agent made objects that git's own fsck refuses; nothing of them was taken."""
