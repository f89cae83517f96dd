"""What a task's change changes, alone or as merged with the target of now.

Enters: a workspace and a task's name. Leaves: two commits or trees, and git's own words on them.
Guards: compared is what was landed or would be, never what others landed meanwhile.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from swarm.ledger.records import QueueEntry
from swarm.ledger.view import View, readable
from swarm.overview.merged import Merged, held_since, merged, merged_entry
from swarm.overview.standing import hold_text
from swarm.overview.story import find_task
from swarm.plumbing.hub import work_ref
from swarm.workspace import Workspace


class Compared(msgspec.Struct, frozen=True):
    """Two commits, or a commit and a tree, whose difference is what a task changes."""

    task: str
    what: str  # landed, queued, held, saved work
    old: str
    new: str
    stat: tuple[int, int, int]
    at: datetime  # when it was looked at
    why: str = ""  # of a held change: what a person is asked about
    held_since: datetime | None = None
    merged: Merged | None = None  # what it would be on the target now; None too when unknown
    is_merged: bool = False  # old and new are the target's tip and that merged tree


class Conflicted(msgspec.Struct, frozen=True):
    """It cannot be merged with the target of now."""

    task: str
    what: str
    merged: Merged


class _Kept(msgspec.Struct, frozen=True):
    """The commit that a task's newest attempt came to."""

    head: str
    token: int
    what: str
    entry: QueueEntry | None


def compare(work: Workspace, task: str) -> Compared | None:
    """What a task's change changes: against its landing's parent when it has landed, else against
    where it left the target. None: nothing of it is saved yet.

    Raises:
        NotFound: there is no such task.
    """
    view, hub = work.ledger.view(), work.ledger.hub
    landed = _landing(view, task)
    if landed is not None:
        return landed
    kept = _kept(work, view, task)
    if kept is None:
        return None
    base = hub.git.run("merge-base", view.target, kept.head, ok=(0, 1)).text or view.target
    entry = kept.entry if kept.entry is not None and kept.entry.is_held else None
    return Compared(
        task,
        kept.what,
        base,
        kept.head,
        hub.diff_stat(base, kept.head),
        view.now,
        hold_text(entry.hold or []) if entry else "",
        held_since(entry) if entry else None,
        merged_entry(work, view, entry) if entry else None,
    )


def compare_merged(work: Workspace, task: str) -> Compared | Conflicted | None:
    """How the target would change if the task's change landed now; of a landed one, its landing.
    None: nothing of it is saved yet.

    Raises:
        NotFound: there is no such task.
        GitFault: git cannot merge it here.
    """
    view, hub = work.ledger.view(), work.ledger.hub
    landed = _landing(view, task)
    if landed is not None:
        return landed
    kept = _kept(work, view, task)
    if kept is None:
        return None
    found = merged(work, view, task, kept.token, kept.head, kept.entry)
    if found.tree is None:
        return Conflicted(task, kept.what, found)
    return Compared(
        task,
        kept.what,
        view.target,
        found.tree,
        hub.diff_stat(view.target, found.tree),
        view.now,
        hold_text(kept.entry.hold or []) if kept.entry else "",
        held_since(kept.entry) if kept.entry else None,
        found,
        is_merged=True,
    )


def _landing(view: View, task: str) -> Compared | None:
    done = readable(view.done, task)
    if done is None or done.landed is None or done.previous is None:
        return None
    stat = view.hub.diff_stat(done.previous, done.landed)
    return Compared(task, "landed", done.previous, done.landed, stat, view.now)


def _kept(work: Workspace, view: View, task: str) -> _Kept | None:
    """
    Raises:
        NotFound: there is no such task.
    """
    row = find_task(view, work.ledger, task)
    entry, attempts = readable(view.entry, task), readable(view.attempts, task)
    if entry is not None:
        return _Kept(entry.head, entry.token, row.state.value, entry)
    head = view.hub.reader.ref(work_ref(task, row.token)) if row.token else None
    if head is None and attempts is not None and attempts.work is not None:
        head = attempts.work.head
    return _Kept(head, row.token, "saved work", None) if head is not None else None


def diff(work: Workspace, compared: Compared, *, is_stat: bool) -> bytes:
    """Git's own words on it, without colour; bytes as git wrote them, so that they can be applied.

    What a repository holds is untrusted: clean it before a terminal sees it.
    """
    shape = ["--stat=100", "--summary"] if is_stat else ["--patch", "--binary", "--full-index"]
    return work.ledger.hub.git.run(
        "diff",
        "--no-color",
        "--no-ext-diff",
        "--no-textconv",
        "--find-renames",
        *shape,
        compared.old,
        compared.new,
        "--",
        timeout=600,
    ).out
