"""One place for an agent: a repository of its own and one worktree at a path that never changes.

Enters: a claim, the hub. Leaves: an opened worktree at the attempt's start.
Guards: an agent's git reaches nothing but its slot; nothing of an agent's runs in our processes;
a slot whose flock is held by another is never touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, Self

import msgspec
from msgspec.structs import replace

from swarm import faults
from swarm.errors import GitFault
from swarm.files import put_whole
from swarm.ids import is_oid
from swarm.ledger.records import Lock
from swarm.plumbing.git import Git
from swarm.plumbing.hub import Hub
from swarm.plumbing.install import hook_bytes
from swarm.sandbox import SlotPlaces

_SPARSE = "\tsparseCheckout = true\n\tsparseCheckoutCone = true\n"
_MOST_ALTERNATES = 8192  # bytes of one file of them
MARKERS = (b"<<<<<<<", b"|||||||", b"=======", b">>>>>>>")


class Conflicted(msgspec.Struct, frozen=True, kw_only=True):
    """A path that opening left in conflict."""

    markers: bool  # it got marker lines; else modify/delete or binary
    size: int | None  # of the file as we left it, None when there is none
    mtime_ns: int | None


class SetUp(msgspec.Struct, frozen=True, kw_only=True):
    """What `[worktree] setup` left: none of it is an agent's work."""

    is_known: bool  # False: it was cut before anybody saw what it left
    made: list[str] = []  # untracked, and not ignored; a whole new folder as one path
    changed: dict[str, str] = {}  # tracked path -> digest of what it became


class Occupant(msgspec.Struct, frozen=True, kw_only=True):
    """`<slot>.json`: whose worktree this is. Removed first and written last at opening."""

    format: Literal[1] = 1
    task: str
    token: int
    nonce: str
    agent: str
    run: str
    base: str
    start: str
    merge: str | None
    head: str  # where HEAD stood after opening
    conflicted: dict[str, Conflicted] = {}
    copied: list[str] = []  # copied and shared paths: never in a change
    kept: list[str] = []  # paths that survive between claims: never sealed
    sparse: list[str] = []  # cone folders; what is outside was never checked out
    setup: SetUp | None = None  # None: nothing of setup's lies here

    @classmethod
    def of(cls, lock: Lock) -> Self:
        """Who comes in with a claim; opening fills in what it finds."""
        return cls(
            task=lock.task,
            token=lock.token,
            nonce=lock.nonce,
            agent=lock.agent,
            run=lock.run,
            base=lock.base,
            start=lock.start,
            merge=lock.merge,
            head=lock.start,
        )


class Furnishing(msgspec.Struct, frozen=True):
    """What a worktree needs beyond the commit; from `[worktree]`."""

    checkout: Path | None = None  # where copied and shared files come from
    copies: tuple[str, ...] = ()  # ignored files of the checkout, already matched
    keep: tuple[str, ...] = ()
    made: tuple[str, ...] = ()  # what setup made before and will not make again
    share: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    sparse: tuple[str, ...] = ()
    user_excludes: str = ""  # text of the user's own excludes file
    trailers: dict[str, str] = {}  # for the prepare-commit-msg hook
    paths: tuple[str, ...] = ()  # what the scope guard warns outside of; none: it does nothing


class Opened(msgspec.Struct, frozen=True):
    """The worktree stands at the attempt's start."""

    head: str
    conflicted: tuple[str, ...]  # paths left with markers or unmerged
    is_new: bool


class Slot:
    """One slot, its flock held for the life of this object.

    Safe: exactly one process has it; the flock is inherited by every git call of ours in the slot
    and by nothing else, so that a free flock means that git is gone too.
    """

    def __init__(self, folder: Path, name: str, hub: Hub, fd: int) -> None:
        self.folder = folder
        self.name = name
        self.hub = hub
        self.fd = fd
        self.repo = folder / f"{name}.git"
        self.tree = folder / name
        self.own = folder / f"{name}.own"
        self.record = folder / f"{name}.json"
        self.is_saved = False  # everything in it was captured by us while we held the flock

    @classmethod
    def take(cls, folder: Path, name: str, hub: Hub) -> Slot | None:
        """The slot, or None when another process has it."""
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder / f"{name}.flock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return cls(folder, name, hub, fd)

    @classmethod
    def take_free(cls, folder: Path, prefix: str, hub: Hub, limit: int = 1000) -> Slot:
        """The first slot `<prefix>1`, `<prefix>2`, ... that nobody has."""
        for number in range(1, limit):
            slot = cls.take(folder, f"{prefix}{number}", hub)
            if slot is not None:
                return slot
        raise AssertionError(f"{limit} slots are taken")

    def close(self) -> None:
        """Let the slot go."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    @property
    def admin(self) -> Path:
        """The worktree's git dir."""
        return self.repo / "worktrees" / self.name

    @property
    def places(self) -> SlotPlaces:
        """What a sandbox shows of it."""
        return SlotPlaces(self.tree, self.repo, self.record, self.hub.path)

    @property
    def slot_git(self) -> Git:
        """Git as opening uses it, after the configuration was rewritten."""
        return Git(self.admin, work_tree=self.tree, inherit=(self.fd,))

    @property
    def own_git(self) -> Git:
        """Git for an agent's worktree: our git dir, our index, the slot's objects borrowed."""
        tree = self.tree if self.is_real_tree else None  # commits are read without one too
        return Git(self.own, work_tree=tree, index=self.own / "index", inherit=(self.fd,))

    @property
    def sound(self) -> Path:
        """A git dir of ours that borrows the hub's objects and none of the slot's."""
        return self.own / "sound"

    def sound_git(self) -> Git:
        """As `own_git`, with objects that no agent can have broken; what it makes is in `sound`."""
        alternates = self.sound / "objects/info/alternates"
        alternates.parent.mkdir(parents=True, exist_ok=True)
        (self.sound / "refs").mkdir(exist_ok=True)
        _write_file(self.sound / "HEAD", b"ref: refs/heads/none\n")
        _write_file(self.sound / "config", (self.own / "config").read_bytes())
        _write_file(alternates, f"{self.hub.path / 'objects'}\n".encode())
        return replace(self.own_git, env={"GIT_OBJECT_DIRECTORY": str(self.sound / "objects")})

    def occupant(self) -> Occupant | None:
        """Whose work lies in the worktree, or None when opening never finished."""
        try:
            return msgspec.convert(json.loads(self.record.read_bytes()), Occupant)
        except (OSError, ValueError, RecursionError, msgspec.DecodeError):
            return None

    def put_record(self, occupant: Occupant) -> None:
        """Say again whose work lies in the worktree, unless the record says so."""
        if self.occupant() != occupant:
            # Not by msgspec, which has no spelling for a name that is not UTF-8.
            text = json.dumps(msgspec.to_builtins(occupant), separators=(",", ":"))
            _write_file(self.record, text.encode())

    def head(self) -> str | None:
        """HEAD's commit as the agent left it, on whatever branch; None when it names none.

        Reads files only: the agent's configuration could stop or steer a git call.
        """
        text = self.named_head() or ""
        return text if is_oid(text) and self._has(text) else None

    def named_head(self) -> str | None:
        """What HEAD names in the end, whether there is such a commit or not."""
        text = read_small(self.admin / "HEAD")
        for _ in range(5):
            if text is None:
                return None
            text = text.strip()
            if not text.startswith("ref: "):
                return text
            text = self._ref(text[5:])
        return None

    @property
    def is_on_branch(self) -> bool:
        return (read_small(self.admin / "HEAD") or "").startswith("ref: ")

    def _ref(self, name: str) -> str | None:
        if not name.startswith("refs/") or ".." in name:
            return None
        for root in (self.admin, self.repo):
            text = read_small(root / name)
            if text is not None:
                return text
        return next((oid for oid, ref in packed_refs(self.repo) if ref == name), None)

    def _has(self, oid: str) -> bool:
        found = self.own_git.run("cat-file", "-t", oid, ok=(0, 1, 128))
        return found.code == 0 and found.text == "commit"

    def merge_heads(self) -> list[str]:
        """What an unfinished merge still has to bring in."""
        text = read_small(self.admin / "MERGE_HEAD") or ""
        return [line for line in text.split() if len(line) in (40, 64) and self._has(line)]

    def open(self, occupant: Occupant, furnishing: Furnishing) -> Opened:
        """Check out the attempt's start, merge the target in when the claim says so, furnish.

        What lies in the worktree must have been captured before.

        Raises:
            GitFault: git cannot check out or merge (a full disk, a missing object); the slot has
                no occupant then and is opened again from scratch.

        Safe: killed anywhere, the next opening starts over.
        """
        try:
            return self._open(occupant, furnishing)
        except OSError as error:
            raise GitFault(f"slot {self.name} cannot be opened", why=str(error)) from error

    def _open(self, occupant: Occupant, furnishing: Furnishing) -> Opened:
        self.record.unlink(missing_ok=True)
        is_new = not self.admin.is_dir() or not self.is_real_tree
        self._rewrite(furnishing)
        git = self.slot_git
        if not is_new and self._has_index_for(furnishing):
            shutil.copyfile(self.own / "index", self.admin / "index")
        if furnishing.sparse and not is_new:
            self._drop_outside("", furnishing)
        git.run("checkout", "-q", "-f", "-B", occupant.task, occupant.start, timeout=1800)
        faults.reach("worktree.after_add")
        self._clean(git, (*furnishing.keep, *furnishing.made))
        if not is_new:
            faults.reach("cleanup.after_delete")
        conflicted = self._merge(occupant) if occupant.merge else {}
        copied = self._furnish(furnishing)
        # Whole or not at all: half an index, kept, would fail every opening from then on.
        _write_file(self.own / "index", (self.admin / "index").read_bytes())
        head = self.head()
        if head is None:
            raise GitFault(f"slot {self.name} has no HEAD after opening")
        _write_file(self.own / "HEAD", f"{head}\n".encode())
        done = replace(
            occupant,
            head=head,
            conflicted=conflicted,
            copied=copied,
            kept=[path.strip("/") for path in furnishing.keep],
            sparse=list(furnishing.sparse),
            setup=SetUp(is_known=True, made=self.still(furnishing.made)),
        )
        self.put_record(done)
        self.is_saved = False
        return Opened(head, tuple(conflicted), is_new)

    def _has_index_for(self, furnishing: Furnishing) -> bool:
        """Is the kept index of this very cone? Bits of another one would hide or delete files."""
        mark = self.own / "cone"
        wanted = "\n".join(furnishing.sparse)
        if (self.own / "index").is_file() and (read_small(mark) or "") == wanted:
            return True
        _write_file(mark, wanted.encode("utf-8", "surrogateescape"))
        return False

    def _drop_outside(self, folder: str, furnishing: Furnishing) -> None:
        """No checkout takes away what an agent, a merge or another cone put outside the cone."""
        for entry in os.scandir(self.tree / folder):
            if not entry.is_dir(follow_symlinks=False) or entry.name == ".git":
                continue
            path = f"{folder}{entry.name}"
            kept = [keep.strip("/") for keep in (*furnishing.keep, *furnishing.made)]
            if path in kept or any(f"{path}/".startswith(f"{f}/") for f in furnishing.sparse):
                continue
            if any(f.startswith(f"{path}/") for f in (*kept, *furnishing.sparse)):
                self._drop_outside(f"{path}/", furnishing)
            else:
                remove_tree(Path(entry.path))

    # Setup

    def still(self, paths: Sequence[str]) -> list[str]:
        """Those of the paths at which there is something."""
        return [path for path in paths if os.path.lexists(self.tree / path)]

    def begin_setup(self) -> None:
        """From here until `end_setup` nobody can tell whose an uncommitted file is."""
        occupant = self.occupant()
        if occupant is not None:
            self.put_record(replace(occupant, setup=SetUp(is_known=False)))

    def end_setup(self, furnishing: Furnishing) -> list[str]:
        """Remember what setup left, so that it is not sealed; returns the untracked paths of it.

        Raises:
            GitFault: git cannot look; whose a file is stays unknown.
        """
        occupant = self.occupant()
        if occupant is None:
            raise GitFault(f"slot {self.name} has no record any more")
        made = list(dict.fromkeys([*self.still(furnishing.made), *self.made(furnishing.exclude)]))
        # The agent's merge would lack what the target did to a path that was taken for setup's.
        changed = {} if occupant.conflicted else self._changed_by_setup()
        exclude = _exclude_text(furnishing, made)
        _write_file(self.repo / "info/exclude", exclude)
        _write_file(self.own / "info/exclude", exclude)
        left = SetUp(is_known=True, made=made, changed=changed)
        self.put_record(replace(occupant, setup=left))
        return made

    def made(self, exclude: Sequence[str]) -> list[str]:
        """Untracked paths that are not ignored. A folder without a tracked file is one path, down
        to where its files part: a new `src/x.egg-info` does not make all of a new `src` setup's.
        """
        git = self.own_git
        call = ["ls-files", "-o", "-z", "--exclude-standard", *(f"--exclude={e}" for e in exclude)]
        rows = git.run(*call, "--directory", "--no-empty-directory", timeout=600).fields
        found = {row: [row] for row in rows if not row.endswith("/")}
        folders: dict[str, list[str]] = {row: [] for row in rows if row.endswith("/")}
        for path in git.run(*call, timeout=600).fields if folders else ():
            ends = [at + 1 for at, char in enumerate(path) if char == "/"]
            folder = next((path[:end] for end in ends if path[:end] in folders), None)
            if folder is not None:
                folders[folder].append(path)
        return sorted(
            os.path.commonpath(paths).rstrip("/") for paths in (found | folders).values() if paths
        )

    def _changed_by_setup(self) -> dict[str, str]:
        rows = self.own_git.run(
            "status", "--porcelain=v1", "-z", "--untracked-files=no",
            "--ignore-submodules=all", "--no-renames", timeout=600,
        ).fields  # fmt: skip
        return {row[3:]: _digest(self.tree / row[3:]) for row in rows}

    def is_given(self, occupant: Occupant, code: str, path: str) -> bool:
        """Does a row of `git status` tell of what we or setup put there, as it was then?"""
        setup = occupant.setup
        if code != "??":
            return setup is not None and setup.changed.get(path) == _digest(self.tree / path)
        # An agent's `.gitignore` is stronger than the exclude file that names them.
        given = (*occupant.copied, *occupant.kept, *(setup.made if setup else ()))
        return is_below(path.rstrip("/"), given)

    def changed_paths(self, occupant: Occupant, *, seconds: float = 600) -> list[str]:
        """What differs from HEAD as it was at opening and is not there by us or by setup."""
        rows = self.own_git.run(
            "status", "--porcelain=v1", "-z", "--untracked-files=all",
            "--ignore-submodules=all", "--no-renames", timeout=seconds,
        ).fields  # fmt: skip
        return [row[3:] for row in rows if not self.is_given(occupant, row[:2], row[3:])]

    def _is_inside(self, place: Path) -> bool:
        return place.parent.resolve().is_relative_to(self.tree.resolve())

    def check_out(self, commit: str, keep: Sequence[str]) -> None:
        """Put a gate worktree at exactly this commit, cleaned but for kept paths.

        Whatever an earlier check wrote into the slot's repository or index is undone: a filter or
        an assume-unchanged bit of its own would choose what the next check sees.

        Raises:
            GitFault: the worktree could not be put there.
        """
        try:
            self._rewrite(Furnishing())
            for lock in self.own.glob("*.lock"):  # of a killed git: we hold the slot's flock
                lock.unlink()
            self.own_git.run("checkout", "-q", "-f", "--detach", commit, timeout=1800)
            self.clean(keep)
            shutil.copyfile(self.own / "index", self.admin / "index")
            _write_file(self.admin / "HEAD", f"{commit}\n".encode())
        except OSError as error:
            raise GitFault(f"slot {self.name} cannot be put there", why=str(error)) from error

    def clean(self, keep: Sequence[str]) -> None:
        """Remove everything from a gate worktree that is neither tracked nor kept."""
        self._clean(self.own_git, keep)

    def _clean(self, git: Git, keep: Sequence[str]) -> None:
        kept = [arg for path in keep for arg in ("-e", "/" + _glob_quoted(path.strip("/")))]
        done = git.run("clean", "-ffdxq", *kept, ok=(0, 1), timeout=1800)
        if done.code:  # folders that an agent or a package cache made read-only
            _make_removable(self.tree)
            git.run("clean", "-ffdxq", *kept, timeout=1800)

    def changed_tracked(self) -> list[str]:
        """Tracked files of a gate worktree that differ from its commit, by name."""
        git = self.own_git
        git.run("update-index", "-q", "--refresh", ok=(0, 1))
        return git.run("diff-index", "--name-only", "-z", "HEAD").fields

    def remove(self) -> None:
        """Delete the worktree and its repositories; what lay in them must have been saved.

        Raises:
            OSError: something could not be deleted; the slot has no occupant any more.
        """
        self.record.unlink(missing_ok=True)
        (self.folder / f"{self.name}.setup").unlink(missing_ok=True)
        for place in (self.tree, self.repo, self.own):
            remove_tree(place)
        self.is_saved = True
        faults.reach("cleanup.after_delete")

    @property
    def opened_at(self) -> float:
        """When the slot was last opened, by the file system's clock; 0 when that is not known."""
        try:
            return (self.own / "config").stat().st_mtime  # written then, and then only
        except OSError:
            return 0.0

    @property
    def is_real_tree(self) -> bool:
        """Is the worktree a folder? What a link in its place leads to is nobody's work here."""
        with contextlib.suppress(OSError):
            return stat.S_ISDIR(self.tree.lstat().st_mode)
        return False

    def interrupted_rebase(self) -> str | None:
        """The commit that a rebase in progress began with, "" when it is not known, else None."""
        for name in ("rebase-merge", "rebase-apply"):
            if (self.admin / name).is_dir():
                text = (read_small(self.admin / name / "orig-head") or "").strip()
                return text if is_oid(text) and self._has(text) else ""
        return None

    def _rewrite(self, furnishing: Furnishing) -> None:
        """Make the slot's repository ours again: config, hooks, info, alternates, no refs."""
        # A link at one of these places would make us rewrite what it leads to: the hub, say.
        for place in (self.repo, self.own, self.repo / "worktrees", self.repo / "objects"):
            if place.is_symlink() or (os.path.lexists(place) and not place.is_dir()):
                place.unlink()
        if not (self.repo / "objects").is_dir():
            Git(self.folder).run(
                "init",
                "--quiet",
                "--bare",
                "--template=",
                f"--object-format={self.hub.hash_name}",
                str(self.repo),
            )
        for name in ("hooks", "refs", "logs", "info"):
            remove_tree(self.repo / name)
        for name in ("packed-refs", "config.worktree", "ORIG_HEAD", "FETCH_HEAD", "shallow"):
            remove_tree(self.repo / name)
        remove_tree(self.repo / "objects/info")  # a commit graph of the agent's may lie
        for folder in ("refs/heads", "info", "hooks", "objects/info"):
            (self.repo / folder).mkdir(parents=True, exist_ok=True)
        _write_file(self.repo / "HEAD", b"ref: refs/heads/none\n")
        _write_file(self.repo / "config", self._config(furnishing).encode())
        alternates = f"{self.hub.path / 'objects'}\n".encode()
        _write_file(self.repo / "objects/info/alternates", alternates)
        exclude = _exclude_text(furnishing, furnishing.made)
        _write_file(self.repo / "info/exclude", exclude)
        self._write_hooks(furnishing)
        remove_tree(self.repo / "worktrees")
        self.admin.mkdir(parents=True)
        _write_file(self.admin / "HEAD", b"ref: refs/heads/none\n")
        _write_file(self.admin / "commondir", b"../..\n")
        _write_file(self.admin / "gitdir", f"{self.tree / '.git'}\n".encode())
        if furnishing.sparse:
            (self.admin / "info").mkdir()
            _write_file(self.admin / "info/sparse-checkout", _cone_text(furnishing.sparse))
        if not self.is_real_tree:
            self.tree.unlink(missing_ok=True)  # a symlink or a file that an agent put there
            self.tree.mkdir()
        remove_tree(self.tree / ".git")
        _write_file(self.tree / ".git", f"gitdir: {self.admin}\n".encode())
        self._rewrite_own(exclude, furnishing.sparse)

    def _rewrite_own(self, exclude: bytes, sparse: Sequence[str]) -> None:
        for folder in ("objects/info", "refs", "info"):
            (self.own / folder).mkdir(parents=True, exist_ok=True)
        if not (self.own / "HEAD").exists():
            _write_file(self.own / "HEAD", b"ref: refs/heads/none\n")
        version, extension = self._format()
        text = (
            f"[core]\n\trepositoryformatversion = {version}\n\tbare = false\n"
            f"\tlogAllRefUpdates = false\n\tcommitGraph = false\n\tmultiPackIndex = false\n"
            f"{_SPARSE if sparse else ''}{extension}"
            "[uploadpack]\n\tallowAnySHA1InWant = true\n"
        )
        _write_file(self.own / "config", text.encode())
        borrowed = f"{self.repo / 'objects'}\n{self.hub.path / 'objects'}\n".encode()
        _write_file(self.own / "objects/info/alternates", borrowed)
        _write_file(self.own / "info/exclude", exclude)
        if sparse:
            _write_file(self.own / "info/sparse-checkout", _cone_text(sparse))

    def _format(self) -> tuple[int, str]:
        if self.hub.hash_name == "sha1":
            return 0, ""
        return 1, f"[extensions]\n\tobjectFormat = {self.hub.hash_name}\n"

    def _config(self, furnishing: Furnishing) -> str:
        version, extension = self._format()
        return (
            f"[core]\n\trepositoryformatversion = {version}\n\tbare = true\n"
            f"\thooksPath = {_quoted(self.repo / 'hooks')}\n\tlogAllRefUpdates = false\n"
            "\tfsmonitor = false\n"
            f"{_SPARSE if furnishing.sparse else ''}{extension}"
            "[user]\n\tname = swarm agent\n\temail = agent@swarm.invalid\n"
            "[commit]\n\tgpgSign = false\n[tag]\n\tgpgSign = false\n"
            "[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n"
            "[merge]\n\tconflictStyle = diff3\n[rerere]\n\tenabled = false\n"
        )

    def _write_hooks(self, furnishing: Furnishing) -> None:
        folder = self.repo / "hooks"
        hook = hook_bytes("prepare-commit-msg")
        if hook is not None:
            _write_file(folder / "prepare-commit-msg", hook)
            (folder / "prepare-commit-msg").chmod(0o755)
        facts = "".join(f"{key}={value}\n" for key, value in furnishing.trailers.items())
        _write_file(folder / "swarm-task", facts.encode())
        _write_file(folder / "swarm.paths", "".join(f"{p}\n" for p in furnishing.paths).encode())
        _write_file(folder / "swarm.mode", b"warn\n")

    def _merge(self, occupant: Occupant) -> dict[str, Conflicted]:
        assert occupant.merge is not None
        git = self.slot_git
        merged = git.run(
            "-c",
            "merge.conflictStyle=diff3",
            "-c",
            "rerere.enabled=false",
            "merge",
            "--quiet",
            "--no-commit",
            "--no-ff",
            "--no-verify",
            occupant.merge,
            ok=(0, 1),
            timeout=600,
        )
        if merged.code == 1:
            paths = git.run("diff", "--name-only", "--diff-filter=U", "-z").fields
            if not paths:
                raise GitFault("git merge failed without a conflict", why=merged.complaint)
            return {path: self._conflicted(path) for path in sorted(set(paths))}
        if (self.admin / "MERGE_HEAD").exists():
            git.run(
                "commit",
                "--quiet",
                "--no-verify",
                "-m",
                f"Merge the target {occupant.merge[:10]} into {occupant.task}",
            )
        return {}

    def _conflicted(self, path: str) -> Conflicted:
        try:
            status = (self.tree / path).lstat()
            content = (self.tree / path).read_bytes() if stat.S_ISREG(status.st_mode) else b""
        except OSError:
            return Conflicted(markers=False, size=None, mtime_ns=None)
        return Conflicted(
            markers=has_markers(content), size=status.st_size, mtime_ns=status.st_mtime_ns
        )

    def _furnish(self, furnishing: Furnishing) -> list[str]:
        """Copy and link what the checkout has and git does not; returns those paths.

        What is there already, tracked, stays. Nothing is written through a link that is tracked.
        """
        source = furnishing.checkout
        if source is None:
            return []
        done: list[str] = []
        for name in (*furnishing.copies, *furnishing.share):
            origin, place = source / name, self.tree / name
            if os.path.lexists(place) or not origin.exists() or not self._is_inside(place):
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            if name in furnishing.share:
                place.symlink_to(origin.resolve())
            else:
                try:
                    shutil.copy2(origin, place, follow_symlinks=False)
                except OSError as error:
                    raise GitFault(
                        f"{name} cannot be copied into a worktree", why=str(error)
                    ) from error
            done.append(name.strip("/"))
        return done


def has_markers(content: bytes) -> bool:
    """Does it hold a whole conflict as git writes one, and not merely a heading of seven `=`?"""
    stage = 0
    for line in content.split(b"\n"):
        line = line.rstrip(b"\r")
        if line.startswith(MARKERS[0] + b" "):
            stage = 1
        elif stage == 1 and line == MARKERS[2]:
            stage = 2
        elif stage == 2 and line.startswith(MARKERS[3] + b" "):
            return True
    return False


def has_marker_line(content: bytes) -> bool:
    """Does any line look like one of git's, as an agent leaves them half resolved?"""
    for line in content.split(b"\n"):
        if line.startswith((MARKERS[0] + b" ", MARKERS[3] + b" ", MARKERS[1] + b" ")):
            return True
    return False


def is_below(path: str, folders: Sequence[str]) -> bool:
    """Is the path one of these, or in one of them?"""
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def in_cone(path: str, sparse: Sequence[str]) -> bool:
    """Does a sparse checkout of these folders hold the path? Without folders everything is."""
    folder = path.rpartition("/")[0]
    if not sparse or not folder:
        return True
    inside = f"{folder}/"
    return any(inside.startswith(f"{f}/") or f"{f}/".startswith(inside) for f in sparse)


def _cone_text(sparse: Sequence[str]) -> bytes:
    """The pattern file of a cone, as `git sparse-checkout set` writes it."""
    leaves = [f for f in sparse if not any(f.startswith(f"{other}/") for other in sparse)]
    parents = {"/".join(f.split("/")[:n]) for f in leaves for n in range(1, f.count("/") + 1)}
    lines = ["/*", "!/*/"]
    for folder in sorted(parents):
        name = _glob_quoted(folder)
        lines += [f"/{name}/", f"!/{name}/*/"]
    lines += [f"/{_glob_quoted(folder)}/" for folder in sorted(leaves)]
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def _exclude_text(furnishing: Furnishing, made: Sequence[str]) -> bytes:
    lines = [furnishing.user_excludes.rstrip("\n")] if furnishing.user_excludes else []
    lines += furnishing.exclude
    for path in (*furnishing.copies, *furnishing.keep, *furnishing.share, *made):
        if "\n" not in path:  # there is no spelling for it
            lines.append("/" + _glob_quoted(path.strip("/")))
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def _glob_quoted(path: str) -> str:
    return "".join("\\" + c if c in "*?[\\ " else c for c in path)


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def read_small(path: Path, limit: int = 65536) -> str | None:
    """A small regular file's text, or None; never follows a symlink, never blocks on a fifo."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        return os.read(fd, limit).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(fd)


def shut_in(slot: Slot, repo: Path) -> None:
    """Take away what would lead our git out of a repository in a slot, or make it wait for ever: a
    link where it has a folder, alternates that lie elsewhere, a fifo in their place.

    We can read more than an agent in a sandbox, and whatever we take the hub shows it.
    """
    for place in (repo, *_entries(repo / "worktrees")):
        for name in ("objects", "refs", "modules", "worktrees"):
            _drop_link(place / name)
    for admin in _entries(repo / "worktrees"):
        _drop_link(admin)
    _shut_objects(slot, repo / "objects", set())


def _shut_objects(slot: Slot, objects: Path, seen: set[Path]) -> None:
    seen.add(objects.resolve())
    for folder in (objects, objects / "info", objects / "pack"):
        for place in _entries(folder):
            _drop_link(place)
    alternates = objects / "info/alternates"
    text = read_small(alternates, _MOST_ALTERNATES)
    if text is None:
        remove_tree(alternates)
        return
    kept = ""
    for line in text.splitlines():
        with contextlib.suppress(OSError, ValueError):  # ValueError: a NUL
            place = (objects / line).resolve()
            is_own = any(place.is_relative_to(root.resolve()) for root in (slot.tree, slot.repo))
            if is_own and place not in seen:
                _shut_objects(slot, place, seen)
            if is_own or place.is_relative_to(slot.hub.path.resolve()):
                kept += f"{line}\n"
    if kept != text or len(text) >= _MOST_ALTERNATES:
        _write_file(alternates, kept.encode("utf-8", "surrogateescape"))


def _entries(folder: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder)]
    except OSError:
        return []


def _drop_link(place: Path) -> None:
    if place.is_symlink():
        place.unlink()


def packed_refs(repo: Path) -> Iterator[tuple[str, str]]:
    """(object id, name) of each packed ref of a repository, read as `read_small` reads."""
    try:
        fd = os.open(repo / "packed-refs", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return
        while line := file.readline(8192):
            oid, _, name = line.decode("utf-8", "replace").rstrip("\n").partition(" ")
            if is_oid(oid):
                yield oid, name


def _write_file(path: Path, data: bytes) -> None:
    """Replace a file whole; what an agent left at its place (a folder, a link) goes first."""
    if path.is_symlink() or path.is_dir():
        remove_tree(path)
    put_whole(path, data)


def remove_tree(path: Path) -> None:
    """Remove what is at a path of ours, read-only folders too; a symlink is never followed."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        path.unlink()
        return
    try:
        shutil.rmtree(path)
    except PermissionError:
        _make_removable(path)
        shutil.rmtree(path)


def _make_removable(folder: Path) -> None:
    """Give ourselves the right to empty every folder below; links are not followed."""
    for place, names, _ in os.walk(folder):
        for name in (".", *names):
            with contextlib.suppress(OSError):
                child = Path(place) / name
                if stat.S_ISDIR(child.lstat().st_mode):
                    child.chmod(stat.S_IMODE(child.lstat().st_mode) | stat.S_IRWXU)


def _digest(place: Path) -> str:
    """Kind, executable bit and content of what is at a path; links are not followed."""
    try:
        mode = place.lstat().st_mode
        if stat.S_ISLNK(mode):
            return f"link {hashlib.sha256(os.fsencode(place.readlink())).hexdigest()}"
        if not stat.S_ISREG(mode):
            return f"mode {stat.S_IFMT(mode):o}"
        fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        return f"{'exec' if mode & stat.S_IXUSR else 'file'} {content}"
    except (FileNotFoundError, NotADirectoryError):
        return "gone"
    except OSError:
        return "unreadable"
