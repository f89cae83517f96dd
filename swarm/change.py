"""Taking an agent's work out of its slot: capture, save, seal.

Enters: a slot whose processes have ended. Leaves: a head in the hub, a work ref, a queue entry.
Guards: no commit and no file is lost, no secret and no copied file is committed, and what is
recorded is exactly what will be merged.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

from swarm import faults
from swarm.claim import Fenced, Mine, check_fence
from swarm.errors import GitFault
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.records import HoldReason, LeftByAgent, QueueEntry, Work
from swarm.ledger.store import Draft, Ledger, refuse
from swarm.ledger.view import View
from swarm.plumbing.git import Git
from swarm.plumbing.hub import RESCUE, Hub, branch_ref, work_ref
from swarm.plumbing.refs import Move
from swarm.scope import compile_globs, outside
from swarm.slot import Occupant, Slot, has_marker_line

SECRET_NAMES = ("*.pem", "*.key", "id_rsa*", "id_ed25519*", ".env", ".env.*")
NOT_SECRET = ("*.example", "*.sample", "*.template")
GITLINK = "160000"


@dataclass(frozen=True)
class Rules:
    """What sealing may take and what holds a change; from `[worktree]` and `[gate]`."""

    max_file: int = 10 << 20
    review: Literal["none", "all"] = "none"
    protect: tuple[str, ...] = ("swarm.toml", ".swarm/**", ".worktreeinclude")
    scope: Literal["warn", "hold", "eject"] = "warn"


@dataclass(frozen=True)
class Captured:
    """Everything that was in a slot, as commits in its own git dir."""

    agent_head: str  # HEAD as the agent left it
    head: str  # the same, with one commit more when something was left over
    head_was: Literal["branch", "detached"]
    uncommitted: int
    untracked: int
    rescue: str | None  # a commit holding what may not be in the change
    secret: tuple[str, ...] = ()
    large: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    @property
    def left(self) -> LeftByAgent:
        return LeftByAgent(
            uncommitted=self.uncommitted, untracked=self.untracked, head_was=self.head_was
        )


@dataclass
class _Leftovers:
    """What status found, sorted by what may be done with it."""

    tracked: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    nested: list[str] = field(default_factory=list)
    secret: list[str] = field(default_factory=list)
    large: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    @property
    def withheld(self) -> list[str]:
        return self.secret + self.large


def capture(slot: Slot, occupant: Occupant, rules: Rules) -> Captured:
    """Turn what the agent left into commits in our own git dir; its own commits stay as they are.

    Leftovers become one commit more, with every MERGE_HEAD as a further parent. Secret-looking and
    oversized new files go to a commit of their own; while a conflict is unresolved everything
    does, and `head` is the agent's.

    Raises:
        GitFault: git fails (a full disk, a broken object): nothing was deleted; keep the slot.

    Safe: reads the worktree, writes only to our git dir; twice gives the same trees.
    """
    head = slot.head() or occupant.head
    was: Literal["branch", "detached"] = "branch" if _on_branch(slot) else "detached"
    git = slot.own_git
    (slot.own / "index.lock").unlink(missing_ok=True)
    if head != _own_head(slot) or occupant.conflicted or not (slot.own / "index").exists():
        git.run("read-tree", "--reset", head)
        (slot.own / "HEAD").write_text(head + "\n", "ascii")
    found = _survey(slot, git, rules)
    unresolved = tuple(path for path, how in occupant.conflicted.items() if _is_open(slot, path))
    merging = [oid for oid in slot.merge_heads() if oid != head]
    nested = found.nested + _gitlinks(git, occupant.base, head)
    if unresolved:
        everything = found.tracked + found.new
        tree = _stage(slot, git, everything, nested, rules, found)
        rescue = _commit(git, tree, [head, *merging], "Unfinished merge, as the agent left it")
        git.run("read-tree", "--reset", head)
        return Captured(
            head, head, was, len(found.tracked), len(found.new), rescue, unresolved=unresolved
        )
    new_head = head
    withheld: str | None = None
    if found.tracked or found.new or nested or merging:
        tree = _stage(slot, git, found.tracked + found.new, nested, rules, found)
        if tree != git.run("rev-parse", f"{head}^{{tree}}").text or merging:
            told = f"Left by the agent: {len(found.tracked)} changed, {len(found.new)} new"
            new_head = _commit(git, tree, [head, *merging], told)
            (slot.own / "HEAD").write_text(new_head + "\n", "ascii")
    if found.withheld:
        withheld = _withheld(slot, git, new_head, found.withheld)
    faults.reach("seal.after_commit")
    return Captured(
        head,
        new_head,
        was,
        len(found.tracked),
        len(found.new),
        withheld,
        secret=tuple(found.secret),
        large=tuple(found.large),
        unreadable=tuple(found.unreadable),
    )


def _on_branch(slot: Slot) -> bool:
    try:
        return (slot.admin / "HEAD").read_text("utf-8", "replace").startswith("ref: ")
    except OSError:
        return False


def _own_head(slot: Slot) -> str:
    try:
        return (slot.own / "HEAD").read_text("ascii", "replace").strip()
    except OSError:
        return ""


def _survey(slot: Slot, git: Git, rules: Rules) -> _Leftovers:
    """What differs from HEAD, and what was never added; ignored files are not seen."""
    found = _Leftovers()
    status = git.run(
        "status",
        "--porcelain=v1",
        "-z",
        "--untracked-files=all",
        "--ignore-submodules=all",
        "--no-renames",
        timeout=600,
    )
    for row in status.fields:
        code, path = row[:2], row[3:]
        if code == "??":
            if path.endswith("/"):
                found.nested.append(path.rstrip("/"))
            else:
                _sort_new(slot.tree, path, rules, found)
        elif _can_take(slot.tree / path, found, path):
            found.tracked.append(path)
    return found


def _sort_new(tree: Path, path: str, rules: Rules, found: _Leftovers) -> None:
    place = tree / path
    if not _can_take(place, found, path):
        return
    if is_secret(path):
        found.secret.append(path)
    elif place.lstat().st_size > rules.max_file:
        found.large.append(path)
    else:
        found.new.append(path)


def _can_take(place: Path, found: _Leftovers, path: str) -> bool:
    """Open it before git does: one unreadable file would make git stage nothing at all."""
    try:
        mode = place.lstat().st_mode
    except FileNotFoundError:
        return True  # a deletion
    except OSError:
        found.unreadable.append(path)
        return False
    if stat.S_ISLNK(mode) or stat.S_ISDIR(mode):
        return True
    if not stat.S_ISREG(mode):
        return False  # a fifo or a socket is nothing that git keeps
    try:
        os.close(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
    except OSError:
        found.unreadable.append(path)
        return False
    return True


def is_secret(path: str) -> bool:
    """Does a new file's name look like a key or a credentials file?"""
    name = path.rsplit("/", 1)[-1].casefold()
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in NOT_SECRET):
        return False
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in SECRET_NAMES)


def _is_open(slot: Slot, path: str) -> bool:
    """Is a path that opening left in conflict still unresolved?"""
    occupant = slot.occupant()
    how = occupant.conflicted[path] if occupant else None
    place = slot.tree / path
    try:
        status = place.lstat()
        content = place.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        size, mtime = status.st_size, status.st_mtime_ns
    except OSError:
        content, size, mtime = b"", None, None
    if how is None or how.markers:
        return has_marker_line(content)
    is_untouched = (size, mtime) == (how.size, how.mtime_ns)
    return is_untouched and _is_unmerged(slot, path)


def _is_unmerged(slot: Slot, path: str) -> bool:
    """Does the agent's own index still hold stages of the path? Read with our git, its index."""
    git = Git(slot.own, work_tree=slot.tree, index=slot.admin / "index", inherit=(slot.fd,))
    listed = git.run("ls-files", "-u", "-z", "--", f":(literal){path}", ok=(0, 128))
    return bool(listed.fields)


def _gitlinks(git: Git, base: str, head: str) -> list[str]:
    """Nested repositories that the agent committed as links where the base has none."""
    if base == head:
        return []
    rows = git.run("diff-tree", "-r", "-z", "--no-renames", base, head).fields
    return [
        path
        for meta, path in zip(rows[::2], rows[1::2], strict=True)
        if meta.split(" ")[1] == GITLINK and meta.split(" ")[0] != ":" + GITLINK
    ]


def _stage(
    slot: Slot,
    git: Git,
    paths: Iterable[str],
    nested: Sequence[str],
    rules: Rules,
    found: _Leftovers,
) -> str:
    """The tree of our index with these paths as they are in the worktree."""
    wanted = list(paths)
    links = [path for path in nested if (slot.tree / path).is_dir()]
    if nested:
        data = "".join(f"{path}\0" for path in nested)
        git.run("update-index", "--force-remove", "-z", "--stdin", input=_encoded(data))
    for folder in links:
        wanted += _nested_files(slot, folder, rules, found)
    if wanted:
        data = "".join(f"{path}\0" for path in wanted)
        git.run("update-index", "--add", "--remove", "-z", "--stdin", input=_encoded(data))
    return git.run("write-tree").text


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _nested_files(slot: Slot, folder: str, rules: Rules, found: _Leftovers) -> list[str]:
    """Files of a nested repository as plain files; its own git dir is left out.

    Its .gitignore files count as anywhere else.
    """
    index = slot.own / "index.nested"
    index.unlink(missing_ok=True)
    git = Git(slot.own, work_tree=slot.tree / folder, index=index, inherit=(slot.fd,))
    before = len(found.new)
    for name in git.run("ls-files", "-o", "--exclude-standard", "-z").fields:
        path = f"{folder}/{name}"
        if path.endswith("/"):
            inner = path.rstrip("/")
            _nested_files(slot, inner, rules, found)
        else:
            _sort_new(slot.tree, path, rules, found)
    index.unlink(missing_ok=True)
    return found.new[before:]


def _withheld(slot: Slot, git: Git, head: str, paths: Sequence[str]) -> str:
    """A commit beside the change that holds secret-looking and oversized files."""
    index = slot.own / "index.withheld"
    shutil.copyfile(slot.own / "index", index)
    beside = Git(slot.own, work_tree=slot.tree, index=index, inherit=(slot.fd,))
    data = "".join(f"{path}\0" for path in paths)
    beside.run("update-index", "--add", "-z", "--stdin", input=_encoded(data))
    tree = beside.run("write-tree").text
    index.unlink(missing_ok=True)
    return _commit(git, tree, [head], "Left out of the change: secret-looking or oversized files")


def _commit(git: Git, tree: str, parents: Sequence[str], message: str) -> str:
    args = [arg for parent in parents for arg in ("-p", parent)]
    return git.run("commit-tree", tree, *args, "-m", message).text


@dataclass(frozen=True)
class Saved:
    """What was saved of an attempt that is not sealed."""

    work: Work | None  # None: nothing beyond its start
    moves: tuple[Move, ...]  # of the work ref, to travel with the event
    rescued: tuple[str, ...] = ()  # refs written already


def save(ledger: Ledger, slot: Slot, task: str, token: int, captured: Captured) -> Saved:
    """Bring a captured head into the hub and prepare its work ref; rescue what may not be in it.

    Raises:
        GitFault, HubUnusable: nothing was deleted; keep the slot.
    """
    hub = ledger.hub
    rescued: list[str] = []
    if captured.rescue is not None:
        hub.fetch(slot.own, captured.rescue, inherit=(slot.fd,))
        why = "unfinished merge" if captured.unresolved else "left out of the change"
        rescued.append(rescue(ledger, task, token, captured.rescue, why))
    occupant = slot.occupant()
    ref = work_ref(task, token)
    old = hub.reader.ref(ref)
    if occupant is not None and captured.head == occupant.start and old is None:
        return Saved(None, (), tuple(rescued))
    hub.fetch(slot.own, captured.head, inherit=(slot.fd,))
    if old is not None and old != captured.head and not hub.contains(captured.head, old):
        rescued.append(rescue(ledger, task, token, old, "the agent rewrote its history"))
    work = Work(ref=ref, head=captured.head)
    return Saved(work, (Move(ref, old, captured.head),), tuple(rescued))


def rescue(ledger: Ledger, task: str, token: int, oid: str, why: str) -> str:
    """Keep a commit under a rescue ref and say so in the ledger; returns the ref.

    Safe: a commit that is already under one of the task's rescue refs is not kept twice.
    """
    prefix = f"{RESCUE}/{task}"
    for ref, kept in ledger.hub.refs_below(prefix).items():
        if kept == oid:
            return ref
    faults.reach("cleanup.before_rescue")

    def decide(view: View) -> Draft[str]:
        number = 1
        while view.ref(f"{prefix}/{token}-{number}") is not None:
            number += 1
        ref = f"{prefix}/{token}-{number}"
        event = Event(
            "rescued",
            f"Kept: {why}.",
            {},
            task,
            token=token,
            trailers={"Swarm-Ref": ref, "Swarm-Head": oid, "Swarm-Reason": why},
        )
        return Draft((event,), ref, (Move(ref, None, oid),))

    ref = ledger.append(decide)
    if ledger.hub.reader.ref(ref) != oid:
        raise GitFault(f"{ref} was written and does not hold {oid}")
    faults.reach("cleanup.after_rescue")
    return ref


def take_commits(ledger: Ledger, slot: Slot, mine: Mine) -> str | None:
    """At a heartbeat: move the work ref to HEAD's commit, so that a lost disk loses little.

    Returns the commit, or None when there is nothing new or the claim is no longer ours.

    Raises:
        GitFault, HubUnusable: try again at the next heartbeat.
    """
    occupant = slot.occupant()
    head = slot.head()
    if occupant is None or occupant.nonce != mine.nonce or head is None:
        return None
    ref = work_ref(mine.task, mine.token)
    old = ledger.hub.reader.ref(ref)
    if head in (old, occupant.start):
        return None
    ledger.hub.fetch(slot.own, head, inherit=(slot.fd,))
    if old is not None and not ledger.hub.contains(head, old):
        rescue(ledger, mine.task, mine.token, old, "the agent rewrote its history")
    with ledger.hub.turn.held():
        if check_fence(ledger.view(), mine) is not None:
            return None
        ledger.hub.refs.transact([Move(ref, old, head)])
    return head


@dataclass(frozen=True)
class Sealed:
    """The change waits for the gate, or for a person when it is held."""

    entry: QueueEntry
    rescued: tuple[str, ...]


@dataclass(frozen=True)
class NoWork:
    """There is nothing that the target lacks."""

    rescued: tuple[str, ...]


@dataclass(frozen=True)
class Unresolved:
    """Conflict markers or unmerged paths are left; everything is in a rescue ref."""

    paths: tuple[str, ...]
    rescued: tuple[str, ...]


def seal(
    ledger: Ledger, slot: Slot, mine: Mine, captured: Captured, rules: Rules
) -> Sealed | NoWork | Unresolved | Fenced:
    """Record the captured head as the task's change: one move of its work ref and the ledger.

    Raises:
        GitFault, HubUnusable: the claim still stands and the slot still holds everything.

    Safe: killed anywhere, the work is in the slot, in the work ref, or queued.
    """
    hub = ledger.hub
    saved = save(ledger, slot, mine.task, mine.token, captured)
    if captured.unresolved:
        return Unresolved(captured.unresolved, saved.rescued)
    target = hub.tip(ledger.branch)
    hub.fetch(slot.own, captured.head, inherit=(slot.fd,))
    if hub.contains(target, captured.head):
        return NoWork(saved.rescued)
    base = hub.git.run("merge-base", target, captured.head, ok=(0, 1)).text or target
    commits = int(hub.git.run("rev-list", "--count", captured.head, f"^{target}").text)
    numbers = hub.diff_stat(base, captured.head)
    paths = hub.changed_paths(base, captured.head)
    ref = work_ref(mine.task, mine.token)
    faults.reach("seal.before_queue")

    def decide(view: View) -> Draft[Sealed | NoWork | Unresolved | Fenced]:
        fenced = check_fence(view, mine)
        if fenced is not None:
            return refuse(fenced)
        if view.blob_id(records.queue_path(mine.task)) is not None:
            return refuse(Fenced(mine.task, mine.token, "its change is queued already"))
        lock, attempts, task = view.lock(mine.task), view.attempts(mine.task), view.task(mine.task)
        assert lock is not None and attempts is not None and task is not None
        scope = outside(paths, task.header.paths) if task.header.paths else []
        entry = QueueEntry(
            task=mine.task,
            token=mine.token,
            nonce=mine.nonce,
            lock=view.blob_id(records.lock_path(mine.task)) or "",
            work=ref,
            base=lock.base,
            start=lock.start,
            head=captured.head,
            commits=commits,
            files=numbers[0],
            insertions=numbers[1],
            deletions=numbers[2],
            left_by_agent=captured.left,
            priority=task.header.priority,
            since=attempts.since,
            sealed_at=view.now,
            hold=_holds(captured, paths, scope, rules, view.now) or None,
        )
        event = Event(
            "sealed",
            _seal_says(entry, scope),
            {records.queue_path(mine.task): records.encode(entry)},
            mine.task,
            mine.agent,
            mine.token,
            {
                "Swarm-Head": captured.head,
                "Swarm-Base": lock.base,
                "Swarm-Lock": entry.lock,
                "Swarm-Slot": lock.slot,
                **({"Swarm-Outside": ", ".join(scope[:20])} if scope else {}),
                **({"Swarm-Hold": ",".join(h.reason for h in entry.hold)} if entry.hold else {}),
                **(
                    {"Swarm-Unreadable": ", ".join(captured.unreadable[:20])}
                    if captured.unreadable
                    else {}
                ),
            },
        )
        move = Move(ref, view.ref(ref), captured.head)
        return Draft((event,), Sealed(entry, saved.rescued), (move,))

    answer = ledger.append(decide)
    faults.reach("seal.after_queue")
    return answer


def _holds(
    captured: Captured,
    paths: Sequence[str],
    scope: Sequence[str],
    rules: Rules,
    now: datetime,
) -> list[HoldReason]:
    protected = [p for p in paths if compile_globs(rules.protect).matches(p)]
    found: list[HoldReason] = []
    if captured.secret:
        found.append(HoldReason(reason="secret", paths=list(captured.secret), at=now))
    if captured.large:
        found.append(HoldReason(reason="large_file", paths=list(captured.large), at=now))
    if protected:
        found.append(HoldReason(reason="protected", paths=protected, at=now))
    if scope and rules.scope == "hold":
        found.append(HoldReason(reason="scope", paths=list(scope), at=now))
    if rules.review == "all":
        found.append(HoldReason(reason="review", paths=[], at=now))
    return found


def _seal_says(entry: QueueEntry, scope: Sequence[str]) -> str:
    says = f"head {entry.head[:7]}, {entry.commits} commit{'s' if entry.commits != 1 else ''}"
    left = entry.left_by_agent
    if left.uncommitted or left.untracked:
        says += f"; {left.uncommitted} uncommitted and {left.untracked} untracked sealed by swarm"
    if entry.hold:
        says += "; held: " + ", ".join(hold.reason for hold in entry.hold)
    if scope:
        says += f"; outside its paths: {', '.join(scope[:5])}"
    return says


def has_landed(hub: Hub, branch: str, commit: str) -> bool:
    """Is a recorded landing commit in the target? The only proof that work has landed."""
    tip = hub.reader.ref(branch_ref(branch))
    return tip is not None and hub.contains(tip, commit)
