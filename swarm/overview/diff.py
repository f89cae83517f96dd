"""What a task's change changes.

Enters: a workspace and a task's name. Leaves: two commits, and git's own words on them.
Guards: compared is what was landed or would be, never what others landed meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarm.overview.moment import readable
from swarm.overview.story import find_task
from swarm.plumbing.hub import work_ref
from swarm.workspace import Workspace


@dataclass(frozen=True)
class Compared:
    """Two commits whose difference is what a task changes."""

    task: str
    what: str  # landed, queued, held, saved work
    old: str
    new: str
    stat: tuple[int, int, int]


def compare(work: Workspace, task: str) -> Compared | None:
    """What a task's change changes: against its landing's parent when it has landed, else against
    where it left the target. None: nothing of it is saved yet.

    Raises:
        NotFound: there is no such task.
    """
    view, hub = work.ledger.view(), work.ledger.hub
    row = find_task(view, work.ledger, task)
    done = readable(view.done, task)
    if done is not None and done.landed is not None and done.previous is not None:
        return Compared(
            task, "landed", done.previous, done.landed, hub.diff_stat(done.previous, done.landed)
        )
    entry = readable(view.entry, task)
    attempts = readable(view.attempts, task)
    head: str | None = entry.head if entry is not None else None
    what = row.state.value if entry is not None else "saved work"
    if head is None and row.token:
        head = hub.reader.ref(work_ref(task, row.token))
    if head is None and attempts is not None and attempts.work is not None:
        head = attempts.work.head
    if head is None:
        return None
    base = hub.git.run("merge-base", view.target, head, ok=(0, 1)).text or view.target
    return Compared(task, what, base, head, hub.diff_stat(base, head))


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
