"""Taking an agent's work out of its slot: capture, save, seal.

Enters: a slot whose processes have ended. Leaves: a head in the hub, a work ref, a queue entry.
Guards: no commit and no file is lost, no secret and no copied file is committed, and what is
recorded is exactly what will be merged.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from swarm import faults
from swarm.claim import Fenced, Mine, check_fence
from swarm.errors import GitFault
from swarm.ids import is_oid
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.records import (
    Attempts,
    Hold,
    HoldReason,
    LeftByAgent,
    Lock,
    QueueEntry,
    Task,
    Work,
)
from swarm.ledger.store import Draft, Ledger, refuse
from swarm.ledger.view import View
from swarm.plumbing.git import Git
from swarm.plumbing.hub import RESCUE, Hub, work_ref
from swarm.plumbing.refs import Committed, Move
from swarm.scope import outside, protected
from swarm.secret import has_secret, is_secret
from swarm.slot import Occupant, Slot, has_marker_line, in_cone, is_below, shut_in
from swarm.strays import MISSING, fall_back, keep_elsewhere, why_refused
from swarm.trailers import listed

GITLINK = "160000"
REBASING = ".git/rebase-merge"  # stands for a rebase that was stopped with nothing unmerged
MAX_SCANNED = 1 << 20  # bytes of a file that is looked through for keys; larger ones are data
MANY = 64  # blobs for which a process of their own is worth its start
MAX_SCANNED_ALL = 64 << 20  # and of all files of a change
JUDGED = (".gitmodules", ".gitattributes")  # files whose content git's fsck can refuse
_IGNORED = re.compile(r"^Ignoring path (.*)$", re.MULTILINE)  # `git~1`, `.git.`: with exit 0
_REFUSED = re.compile(r"^fatal: Unable to process path (.*)$", re.MULTILINE)
_UNOPENED = re.compile(r"^warning: could not open directory '(.*?)/?':", re.MULTILINE)


class Rules(msgspec.Struct, frozen=True):
    """What sealing may take and what holds a change; from `[worktree]` and `[gate]`."""

    max_file: int = 10 << 20
    review: Literal["none", "all"] = "none"
    protect: tuple[str, ...] = ("swarm.toml", ".swarm/**", ".worktreeinclude")
    scope: Literal["warn", "hold", "eject"] = "warn"


class Captured(msgspec.Struct, frozen=True):
    """Everything that was in a slot, as commits in its own git dir."""

    agent_head: str  # HEAD as the agent left it
    head: str  # the same, with one commit more when something was left over
    head_was: Literal["branch", "detached"]
    uncommitted: int
    untracked: int
    rescue: str | None  # a commit holding what may not be in the change
    elsewhere: str | None = None  # a commit holding what only other refs of the slot named
    secret: tuple[str, ...] = ()
    large: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    malformed: str = ""  # why git refuses the agent's commits; then its files stand for them
    flattened: tuple[str, ...] = ()  # submodules of a .gitmodules that became plain files

    @property
    def refusal(self) -> str:
        """A sentence of why an attempt failed whose commits git refuses; empty when it does not."""
        if not self.malformed:
            return ""
        is_missing = self.malformed.startswith(MISSING)
        return MISSING if is_missing else "git refuses a commit of it as malformed"

    @property
    def left(self) -> LeftByAgent:
        return LeftByAgent(
            uncommitted=self.uncommitted, untracked=self.untracked, head_was=self.head_was
        )


class _Leftovers(msgspec.Struct):
    """What status found, sorted by what may be done with it."""

    tracked: list[str] = []
    new: list[str] = []
    nested: list[str] = []
    folders: list[str] = []  # the same, and those of a cut setup
    secret: list[str] = []
    large: list[str] = []
    unclear: list[str] = []  # an agent's, or a setup's that was cut
    unreadable: list[str] = []

    @property
    def withheld(self) -> list[str]:
        return self.secret + self.large + self.unclear


def capture(slot: Slot, occupant: Occupant, rules: Rules) -> Captured:
    """Turn what the agent left into commits in our own git dir; its own commits stay as they are.

    Leftovers become one commit more, with every MERGE_HEAD as a further parent. Secret-looking and
    oversized new files go to a commit of their own; while a conflict is unresolved everything
    does, and `head` is the agent's. In the middle of a rebase, `head` is where that began, since
    HEAD has only a part of the work. Commits that git's fsck refuses, or that need an object that
    is missing, stay in the slot's own objects: what they changed is taken from the files. A
    worktree that is gone holds nothing. What it returns is in the hub.

    Raises:
        GitFault: git fails (a full disk, a hub that is damaged): nothing was deleted; keep the
            slot.

    Safe: reads the worktree, writes only to our git dir; twice gives the same commit, so that what
    is sealed or saved already is not taken for something new.
    """
    try:
        shut_in(slot, slot.repo)
        captured = _capture(slot, occupant, rules, slot.own_git)
        why = _why_refused(slot, captured, None)
        if why:  # a file's object that an agent broke is not written again beside its own
            captured = _capture(slot, occupant, rules, slot.sound_git())
            why = _why_refused(slot, captured, slot.sound)
        if why:
            captured = _capture(slot, occupant, rules, slot.sound_git(), skip=JUDGED)
            captured = replace(captured, malformed=captured.malformed or why)
            why = _why_refused(slot, captured, slot.sound)
    except OSError as error:
        raise GitFault(f"slot {slot.name} cannot be captured", why=str(error)) from error
    if why:
        raise GitFault(f"slot {slot.name} cannot be captured", why=why)
    return captured


def _why_refused(slot: Slot, captured: Captured, store: Path | None) -> str:
    made = [oid for oid in (captured.head, captured.rescue) if oid is not None]
    return next((why for oid in made if (why := why_refused(slot, oid, store))), "")


def _capture(
    slot: Slot, occupant: Occupant, rules: Rules, git: Git, skip: Sequence[str] = ()
) -> Captured:
    was: Literal["branch", "detached"] = "branch" if slot.is_on_branch else "detached"
    named = slot.named_head()
    refused = head = slot.head() or occupant.head
    malformed = why_refused(slot, head)
    if not malformed and is_oid(named or "") and named != head:
        refused, malformed = named or "", f"{MISSING}: HEAD is {named}"
    elif malformed:
        head = fall_back(slot, occupant, head)
    if not slot.is_real_tree:
        elsewhere = keep_elsewhere(slot, occupant, head, refused, (), _opened_at(slot))
        return Captured(head, head, was, 0, 0, None, elsewhere, malformed=malformed)
    (slot.own / "index.lock").unlink(missing_ok=True)
    before = _own_head(slot)
    if head != before or occupant.conflicted or not (slot.own / "index").exists():
        git.run("read-tree", "--reset", head)
        (slot.own / "HEAD").write_text(head + "\n", "ascii")
    merging: list[str] = []
    for oid in slot.merge_heads():
        why = why_refused(slot, oid) if oid != head else ""
        malformed = malformed or why
        merging += [oid] if oid != head and not why else []
    found = _survey(slot, git, occupant, rules, merging, skip)
    began = slot.interrupted_rebase()
    if began and (why := why_refused(slot, began)):
        began, malformed = "", malformed or why
    unresolved = tuple(path for path, how in occupant.conflicted.items() if _is_open(slot, path))
    if began is not None:
        unresolved += tuple(p for p in _unmerged(slot) if p not in unresolved) or (REBASING,)
    links = _gitlinks(git, occupant.base, head)
    folders = [*found.folders, *links]
    elsewhere = keep_elsewhere(slot, occupant, head, refused, folders, _opened_at(slot))
    nested = found.nested + links
    flattened = _submodules(slot, git, nested)
    if merging and occupant.sparse:
        _take_unseen(slot, git, occupant.sparse)
    if unresolved:
        everything = found.tracked + found.new
        tree = _stage(slot, git, everything, nested, rules, found)
        if found.withheld:
            tree = _with(slot, git, found.withheld)
        told = "Unfinished merge, as the agent left it"
        rescue = _commit(git, tree, [head, *merging], told, _opened_at(slot))
        git.run("read-tree", "--reset", head)
        return Captured(
            head,
            began or head,
            was,
            len(found.tracked),
            len(found.new),
            rescue,
            elsewhere,
            unresolved=unresolved,
            unreadable=tuple(found.unreadable),
            malformed=malformed,
        )
    new_head = head
    withheld: str | None = None
    if found.tracked or found.new or nested or merging:
        tree = _stage(slot, git, found.tracked + found.new, nested, rules, found)
        if tree != git.run("rev-parse", f"{head}^{{tree}}").text or merging:
            told = f"Left by the agent: {len(found.tracked)} changed, {len(found.new)} new"
            made = _same(git, before, tree, [head, *merging])
            new_head = made or _commit(git, tree, [head, *merging], told)
            (slot.own / "HEAD").write_text(new_head + "\n", "ascii")
    if found.withheld:
        told = "Left out of the change: secret-looking or oversized files"
        if found.unclear:
            told = "Left out of the change: its setup was cut, and some of this may be setup's"
        tree = _with(slot, git, found.withheld)
        withheld = _commit(git, tree, [new_head], told, _opened_at(slot))
    faults.reach("seal.after_commit")
    return Captured(
        head,
        new_head,
        was,
        len(found.tracked),
        len(found.new),
        withheld,
        elsewhere,
        secret=tuple(found.secret),
        large=tuple(found.large),
        unreadable=tuple(found.unreadable),
        malformed=malformed,
        flattened=flattened,
    )


def _same(git: Git, commit: str, tree: str, parents: Sequence[str]) -> str | None:
    """The commit that an earlier capture made of the very same leftovers, if it did."""
    if not is_oid(commit):
        return None
    found = git.run("rev-parse", f"{commit}^{{tree}}", f"{commit}^@", ok=(0, 128))
    return commit if found.lines == [tree, *parents] else None


def _opened_at(slot: Slot) -> int:
    """A date for what is only kept: the same at every try, so that one thing is kept once."""
    return int(slot.record.stat().st_mtime)


def _own_head(slot: Slot) -> str:
    try:
        return (slot.own / "HEAD").read_text("ascii", "replace").strip()
    except OSError:
        return ""


def _survey(
    slot: Slot,
    git: Git,
    occupant: Occupant,
    rules: Rules,
    merging: Sequence[str],
    skip: Sequence[str],
) -> _Leftovers:
    """What differs from HEAD, and what was never added; ignored files are not seen, nor what we
    or setup put there. Files with a name in `skip` are left out and named.
    """
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
    found.unreadable += _UNOPENED.findall(status.complaint)
    for row in status.fields:
        code, path = row[:2], row[3:]
        if slot.is_given(occupant, code, path):
            continue
        if path.rpartition("/")[2] in skip:
            found.unreadable.append(path)
            continue
        if code == "??":
            if path.endswith("/"):
                found.nested.append(path.rstrip("/"))
            else:
                _sort_new(slot.tree, path, rules, found)
        elif not os.path.lexists(slot.tree / path) and not in_cone(path, occupant.sparse):
            continue  # never checked out; an agent that means it commits the deletion
        elif _can_take(slot.tree / path, found, path):
            found.tracked.append(path)
    if merging:  # what the target has is not the agent's to leave out
        _take_back(git, merging, found)
    found.folders = list(found.nested)
    is_cut = occupant.setup is not None and not occupant.setup.is_known
    if is_cut and not occupant.conflicted:  # else the merge would lack the target's side
        for folder in found.nested:
            _nested_files(slot, folder, rules, found)
        found.unclear = found.tracked + found.new
        found.tracked, found.new, found.nested = [], [], []
    return found


def _take_back(git: Git, merging: Sequence[str], found: _Leftovers) -> None:
    """Files that look secret or are too large, and that a commit being merged in brought."""
    if not found.withheld:
        return
    call = ("ls-tree", "-r", "-z", "--name-only")
    known = {path for oid in merging for path in git.run(*call, oid).fields}
    for withheld in (found.secret, found.large):
        found.new += [path for path in withheld if path in known]
        withheld[:] = [path for path in withheld if path not in known]


def _sort_new(tree: Path, path: str, rules: Rules, found: _Leftovers) -> None:
    place = tree / path
    if not _can_take(place, found, path):
        return
    status = place.lstat()
    if is_secret(path) or (stat.S_ISREG(status.st_mode) and _holds_secret(place)):
        found.secret.append(path)
    elif status.st_size > rules.max_file:
        found.large.append(path)
    else:
        found.new.append(path)


def _can_take(place: Path, found: _Leftovers, path: str) -> bool:
    """Open it before git does: one unreadable file would make git stage nothing at all."""
    try:
        mode = place.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
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


def _holds_secret(place: Path) -> bool:
    try:
        if place.stat().st_size > MAX_SCANNED:
            return False
        return has_secret(place.read_bytes())
    except FileNotFoundError:
        return False  # removed meanwhile


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
    return path in _unmerged(slot)


def _unmerged(slot: Slot) -> list[str]:
    """Paths of which the agent's own index still holds stages."""
    rows = _agents_index(slot).run("ls-files", "-u", "-z", ok=(0, 128)).fields
    return list(dict.fromkeys(row.partition("\t")[2] for row in rows))


def _agents_index(slot: Slot) -> Git:
    """Our git and configuration, its index."""
    return Git(slot.own, work_tree=slot.tree, index=slot.admin / "index", inherit=(slot.fd,))


def _take_unseen(slot: Slot, git: Git, sparse: Sequence[str]) -> None:
    """What an unfinished merge brought in outside the cone stands in the agent's index alone."""

    def unseen(by: Git) -> dict[str, str]:
        rows = [row.split("\t", 1) for row in by.run("ls-files", "-s", "-z", ok=(0, 128)).fields]
        return {
            path: meta
            for meta, path in rows
            if meta.endswith(" 0")
            and not in_cone(path, sparse)
            and not os.path.lexists(slot.tree / path)
        }

    theirs, ours = unseen(_agents_index(slot)), unseen(git)
    if not theirs:
        return
    gone = f"0 {'0' * (40 if slot.hub.hash_name == 'sha1' else 64)} 0"
    lines = [f"{meta}\t{path}\0" for path, meta in theirs.items() if ours.get(path) != meta]
    lines += [f"{gone}\t{path}\0" for path in ours if path not in theirs]
    git.run("update-index", "-z", "--index-info", input=_encoded("".join(lines)))


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


def _submodules(slot: Slot, git: Git, nested: Sequence[str]) -> tuple[str, ...]:
    """Those of the folders that the worktree's .gitmodules names."""
    place = slot.tree / ".gitmodules"
    if not nested or not place.is_file() or place.is_symlink():
        return ()
    call = ("config", "--file", str(place), "-z", "--get-regexp", r"^submodule\..*\.path$")
    rows = git.run(*call, ok=(0, 1, 3, 128)).fields
    named = {row.partition("\n")[2].rstrip("/") for row in rows}
    return tuple(path for path in nested if path in named)


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
    _add(git, wanted, found)
    return git.run("write-tree").text


def _add(git: Git, wanted: Sequence[str], found: _Leftovers) -> None:
    """Take files as they are now into the index; a name that git refuses is left out and named.

    Raises:
        GitFault: anything else, a full disk included.
    """
    left = list(dict.fromkeys(wanted))
    # A present file that the index calls skipped would be taken for a deletion.
    call = ("update-index", "--ignore-skip-worktree-entries", "--add", "--remove", "-z", "--stdin")
    while left:
        data = "".join(f"{path}\0" for path in left)
        done = git.run(*call, input=_encoded(data), ok=(0, 128))
        told = done.err.decode("utf-8", "surrogateescape")
        if done.code == 0:
            found.unreadable += [path for path in _IGNORED.findall(told) if path in left]
            return
        named = _REFUSED.search(told)
        if named is None or named[1] not in left:
            raise GitFault("git update-index failed", why=done.complaint)
        left.remove(named[1])
        found.unreadable.append(named[1])


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


def _with(slot: Slot, git: Git, paths: Sequence[str]) -> str:
    """The tree of our index with files that may not be in the change."""
    index = slot.own / "index.withheld"
    shutil.copyfile(slot.own / "index", index)
    beside = replace(git, index=index)
    _add(beside, paths, _Leftovers())
    tree = beside.run("write-tree").text
    index.unlink(missing_ok=True)
    return tree


def _commit(
    git: Git, tree: str, parents: Sequence[str], message: str, at: int | None = None
) -> str:
    args = [arg for parent in parents for arg in ("-p", parent)]
    dates = {} if at is None else {"GIT_AUTHOR_DATE": f"{at} +0000"}
    dates |= {} if at is None else {"GIT_COMMITTER_DATE": f"{at} +0000"}
    return git.run("commit-tree", tree, *args, "-m", message, env=dates).text


class Saved(msgspec.Struct, frozen=True):
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
    out = "unfinished merge" if captured.unresolved else "left out of the change"
    for oid, why in ((captured.rescue, out), (captured.elsewhere, "not on the agent's HEAD")):
        if oid is not None:
            rescued.append(rescue(ledger, task, token, oid, why))
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
        moved = ledger.hub.refs.transact([Move(ref, old, head)])
    return head if isinstance(moved, Committed) else None


class Sealed(msgspec.Struct, frozen=True):
    """The change waits for the gate, or for a person when it is held."""

    entry: QueueEntry
    rescued: tuple[str, ...]


class NoWork(msgspec.Struct, frozen=True):
    """There is nothing that the target lacks."""

    rescued: tuple[str, ...]


class Unresolved(msgspec.Struct, frozen=True):
    """Conflict markers or unmerged paths are left; everything is in a rescue ref."""

    paths: tuple[str, ...]
    rescued: tuple[str, ...]
    saved: Saved  # the agent's own commits, to travel with the release


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
        return Unresolved(captured.unresolved, saved.rescued, saved)
    target = hub.tip(ledger.branch)
    hub.fetch(slot.own, captured.head, inherit=(slot.fd,))
    base = hub.git.run("merge-base", target, captured.head, ok=(0, 1)).text or target
    if base == captured.head:
        return NoWork(saved.rescued)
    occupant = slot.occupant()
    copied = occupant.copied if occupant else ()
    differs = compare(hub, target, base, captured.head, rules, copied)
    faults.reach("seal.before_queue")

    def decide(view: View) -> Draft[Sealed | NoWork | Unresolved | Fenced]:
        fenced = check_fence(view, mine)
        if fenced is not None:
            return refuse(fenced)
        if view.blob_id(records.queue_path(mine.task)) is not None:
            return refuse(Fenced(mine.task, mine.token, "its change is queued already"))
        lock, attempts, task = view.lock(mine.task), view.attempts(mine.task), view.task(mine.task)
        assert lock is not None and attempts is not None and task is not None
        lock_id = view.blob_id(records.lock_path(mine.task)) or ""
        entry, event = sealed(
            view,
            lock,
            lock_id,
            attempts,
            task,
            captured,
            differs,
            rules,
            is_accepted=task.header.joins_history,  # a person has resolved it
        )
        move = Move(entry.work, view.ref(entry.work), captured.head)
        return Draft((event,), Sealed(entry, saved.rescued), (move,))

    answer = ledger.append(decide)
    faults.reach("seal.after_queue")
    return answer


def sealed(
    view: View,
    lock: Lock,
    lock_id: str,
    attempts: Attempts,
    task: Task,
    captured: Captured,
    differs: Difference,
    rules: Rules,
    *,
    is_accepted: bool = False,
) -> tuple[QueueEntry, Event]:
    """The queue entry of a captured head, and the event that writes it.

    `is_accepted`: people have accepted it where it comes from, so that nothing holds it.
    """
    scope = outside(differs.paths, task.header.paths) if task.header.paths else []
    holds = [] if is_accepted else _holds(captured, differs, scope, rules, view.now)
    entry = QueueEntry(
        task=lock.task,
        token=lock.token,
        nonce=lock.nonce,
        lock=lock_id,
        work=work_ref(lock.task, lock.token),
        base=lock.base,
        start=lock.start,
        head=captured.head,
        commits=differs.commits,
        files=len(differs.paths),
        insertions=differs.insertions,
        deletions=differs.deletions,
        left_by_agent=captured.left,
        priority=task.header.priority,
        since=attempts.since,
        sealed_at=view.now,
        hold=holds or None,
        is_accepted=is_accepted,
    )
    facts = {
        "Swarm-Head": captured.head,
        "Swarm-Base": lock.base,
        "Swarm-Lock": entry.lock,
        "Swarm-Slot": lock.slot,
        **({"Swarm-Outside": listed(scope)} if scope else {}),
        **({"Swarm-Hold": listed(entry.reasons)} if holds else {}),
        **({"Swarm-Unreadable": listed(captured.unreadable)} if captured.unreadable else {}),
    }
    says = _seal_says(entry, scope, captured.flattened)
    edits: dict[str, bytes | None] = {records.queue_path(lock.task): records.encode(entry)}
    return entry, Event("sealed", says, edits, lock.task, lock.agent, lock.token, facts)


class Difference(msgspec.Struct, frozen=True):
    """What a change brings, beyond where it left the target."""

    paths: list[str]
    insertions: int
    deletions: int
    commits: int
    secret: list[str]  # in any of its commits: history lands too
    large: list[str]


class _Blob(msgspec.Struct, frozen=True):
    """A file's content that some commit of a change brings."""

    path: str
    oid: str
    before: str  # blob that it replaces; empty or zeros: none


def compare(
    hub: Hub, target: str, base: str, head: str, rules: Rules, copied: Sequence[str] = ()
) -> Difference:
    """What `head` brings beyond `base`, where it left the target; `copied`: the user's own files,
    which no change may hold.

    Raises:
        GitFault: an object is missing.
    """
    call = ("diff-tree", "-r", "-z", "--no-renames", "--raw", "--no-abbrev", "--numstat")
    rows = iter(hub.git.run(*call, base, head).fields)
    brought: dict[_Blob, None] = {}
    paths: list[str] = []
    insertions = deletions = 0
    for row in rows:
        if row.startswith(":"):
            _note_brought(row, next(rows), brought)
            continue
        plus, minus, path = row.split("\t", 2)
        paths.append(path)
        insertions += int(plus) if plus != "-" else 0
        deletions += int(minus) if minus != "-" else 0
    history = ("log", "-z", "--format=%H", "--raw", "--no-abbrev", "--no-renames")
    commits = 0
    rows = iter(hub.git.run(*history, head, f"^{target}").fields)
    for row in rows:
        if row.lstrip("\n").startswith(":"):
            _note_brought(row.lstrip("\n"), next(rows), brought)
        elif row:
            commits += 1
    new = [blob for blob in brought if not blob.before.strip("0")]
    most, size = rules.max_file, hub.reader.size
    large = dict.fromkeys(blob.path for blob in new if size(blob.oid) > most)
    secret = [blob.path for blob in new if is_secret(blob.path) or is_below(blob.path, copied)]
    secret += _with_secret(hub, brought)
    unique = list(dict.fromkeys(secret))
    return Difference(sorted(paths), insertions, deletions, commits, unique, list(large))


def _note_brought(meta: str, path: str, brought: dict[_Blob, None]) -> None:
    old_mode, mode, before, oid, status = meta.split(" ")
    if old_mode == ":" + GITLINK:
        before = ""
    if status != "D" and mode != GITLINK:
        brought[_Blob(path, oid, before)] = None


def _with_secret(hub: Hub, brought: Iterable[_Blob]) -> Iterator[str]:
    """Paths at which a commit adds what reads like a key, and the file before it did not."""
    read, size = hub.reader.read, hub.reader.size
    wanted, total = [], 0
    for blob in brought:
        bytes_ = size(blob.oid)
        if bytes_ <= MAX_SCANNED and total + bytes_ <= MAX_SCANNED_ALL:
            wanted.append(blob)
            total += bytes_
    oids = [blob.oid for blob in wanted]
    is_bulk = len(oids) > MANY
    contents = hub.reader.iter_blobs(oids) if is_bulk else (read(oid, "blob") for oid in oids)
    for blob, content in zip(wanted, contents, strict=True):
        if has_secret(content) and (
            not blob.before.strip("0") or has_secret(content, read(blob.before, "blob"))
        ):
            yield blob.path


def _holds(
    captured: Captured,
    differs: Difference,
    scope: Sequence[str],
    rules: Rules,
    now: datetime,
) -> list[HoldReason]:
    guarded = protected(differs.paths, rules.protect)
    if captured.flattened and ".gitmodules" not in guarded:
        guarded.append(".gitmodules")  # it names what the change has as plain files
    found: list[HoldReason] = []
    looked: list[tuple[Hold, Sequence[str], bool]] = [
        ("secret", captured.secret, True),
        ("secret", differs.secret, False),
        ("large_file", captured.large, True),
        ("large_file", differs.large, False),
    ]
    for reason, paths, is_out in looked:
        if paths:
            hold = HoldReason(reason=reason, paths=list(paths), at=now, is_left_out=is_out)
            found.append(hold)
    if guarded:
        found.append(HoldReason(reason="protected", paths=guarded, at=now))
    if scope and rules.scope == "hold":
        found.append(HoldReason(reason="scope", paths=list(scope), at=now))
    if rules.review == "all":
        found.append(HoldReason(reason="review", paths=[], at=now))
    return found


def _seal_says(entry: QueueEntry, scope: Sequence[str], flattened: Sequence[str]) -> str:
    says = f"head {entry.head[:7]}, {entry.commits} commit{'s' if entry.commits != 1 else ''}"
    left = entry.left_by_agent
    if left.uncommitted or left.untracked:
        says += f"; {left.uncommitted} uncommitted and {left.untracked} untracked sealed by swarm"
    if entry.is_held:
        says += f"; held: {', '.join(entry.reasons)}"
    if flattened:
        says += f"; submodules taken as plain files: {', '.join(flattened[:5])}"
    if scope:
        says += f"; outside its paths: {', '.join(scope[:5])}"
    return says
