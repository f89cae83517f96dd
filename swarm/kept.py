"""Work that is kept and has not landed: rescue refs, and work refs of tasks that go on.

Enters: a ledger. Leaves: what there is, why, and the files themselves.
Guards: reads the hub and writes a new folder only; a checkout is never touched.
"""

from __future__ import annotations

import contextlib
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from swarm.errors import NotFound, UsageError
from swarm.ledger.records import Undecodable
from swarm.ledger.store import Ledger
from swarm.ledger.view import View
from swarm.plumbing.git import Git
from swarm.plumbing.hub import RESCUE, WORK
from swarm.trailers import one_line


class Kept(msgspec.Struct, frozen=True):
    """One ref that keeps work which the target lacks."""

    kind: Literal["rescue", "work"]
    ref: str
    oid: str
    task: str
    token: int
    why: str  # from the ledger
    files: int  # that it changes, against where it left the target
    insertions: int
    deletions: int
    at: datetime  # of the commit

    @property
    def name(self) -> str:
        """What people type: `task/token` or `task/token-number`."""
        return self.ref.split("/", 3)[3]

    @property
    def branch(self) -> str:
        """A branch name for it in somebody's checkout."""
        return f"rescue/{self.name.replace('/', '-')}"


def list_kept(ledger: Ledger) -> list[Kept]:
    """Newest first. What the target contains is not listed: nothing of it is missing there."""
    hub, view = ledger.hub, ledger.view()
    reasons: dict[str, str] = {}
    for logged in ledger.iter_log():
        if logged.kind == "rescued":
            facts = logged.message.trailers
            reasons.setdefault(facts.get("Swarm-Ref", ""), facts.get("Swarm-Reason", ""))
    found: list[Kept] = []
    for prefix in (RESCUE, WORK):
        for ref, oid in hub.refs_below(prefix).items():
            task, _, rest = ref.removeprefix(prefix + "/").partition("/")
            token = rest.partition("-")[0]
            if not token.isdigit() or hub.contains(view.target, oid):
                continue
            if prefix == WORK and view.is_landed(task):
                continue  # a squash or rebase landed it, and the work ref stays
            base = hub.git.run("merge-base", view.target, oid, ok=(0, 1)).text or view.target
            why = reasons.get(ref, "") if prefix == RESCUE else _why(view, task, int(token), oid)
            found.append(
                Kept(
                    "rescue" if prefix == RESCUE else "work",
                    ref,
                    oid,
                    task,
                    int(token),
                    one_line(why, 200),
                    *hub.diff_stat(base, oid),
                    _committed_at(hub.reader.commit(oid)),
                )
            )
    return sorted(found, key=lambda kept: (kept.at, kept.ref), reverse=True)


def _why(view: View, task: str, token: int, oid: str) -> str:
    with contextlib.suppress(Undecodable):
        state, attempts = view.state(task).value, view.attempts(task)
        lock = view.lock(task)
        if lock is not None and lock.token == token:
            return f"{state}; the attempt that holds the task"
        if attempts is not None and attempts.work is not None and attempts.work.head == oid:
            last = f", last attempt: {attempts.last.message}" if attempts.last else ""
            return f"{state}; the next attempt may start from it{last}"
        return f"{state}; an older attempt" if attempts is not None else state
    return "its records do not decode"


def _committed_at(raw: bytes) -> datetime:
    for line in raw.partition(b"\n\n")[0].split(b"\n"):
        if line.startswith(b"committer "):
            return datetime.fromtimestamp(int(line.rsplit(b" ", 2)[1]), UTC)
    return datetime.fromtimestamp(0, UTC)


def find_kept(ledger: Ledger, name: str) -> Kept:
    """By ref, by `task/token[-number]`, or the newest of a task.

    Raises:
        NotFound: nothing of that name is kept.
    """
    for kept in list_kept(ledger):
        if name in (kept.ref, kept.name, kept.task):
            return kept
    raise NotFound(f"nothing is kept under {one_line(name, 80)}", hint="swarm rescue list")


def stat_lines(ledger: Ledger, kept: Kept) -> list[str]:
    """Message and changed files, as git shows them, safe to print."""
    shown = ledger.hub.git.run(
        "show", "--stat=96", "--no-color", "--no-ext-diff", "-m", "--first-parent", kept.oid
    )
    return [" " * (len(line) - len(line.lstrip())) + one_line(line) for line in shown.lines]


def export(ledger: Ledger, kept: Kept, folder: Path, checkout: Path) -> int:
    """Write all its files into a new folder; returns how many.

    Raises:
        UsageError: the folder exists, or lies in the checkout, which no rescue ever writes.
    """
    place = folder.absolute()
    if place.exists() or place.is_symlink():
        raise UsageError(f"{folder} exists", hint="name a folder that does not")
    if place.resolve().is_relative_to(checkout.resolve()):
        raise UsageError(f"{folder} lies in your checkout", hint="name a folder outside it")
    place.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="swarm-") as private:
        git = Git(ledger.hub.path, work_tree=place, index=Path(private) / "index")
        git.run("read-tree", kept.oid)
        git.run("checkout-index", "--all", "--quiet", timeout=1800)
        return len(git.run("ls-files", "-z").fields)
