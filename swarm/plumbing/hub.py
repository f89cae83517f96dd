"""The hub: the shared bare repository, opened for reading and for moving refs.

Enters: a path. Leaves: readers, a writer, the turn. Guards: a hub of another layout is refused;
its own hooks and settings are what we wrote.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

from swarm.errors import GitFault, HubUnusable, MalformedObjects
from swarm.plumbing.git import Git, Result
from swarm.plumbing.objects import Batch, Reader
from swarm.plumbing.refs import Move, Outcome, RefWriter, Turn

LEDGER = "refs/swarm/ledger"
WORK = "refs/swarm/work"
BEATS = "refs/swarm/beats"
RESCUE = "refs/swarm/rescue"
STALE_LOCK_SECONDS = 60.0
_SAME_TRANSACTION = 2.0  # seconds between the locks of one transaction

_SETTINGS = {
    "core.bare": "true",
    "core.fsync": "committed",
    "core.logAllRefUpdates": "true",
    "core.hooksPath": "hooks",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "receive.autogc": "false",
    "receive.denyNonFastForwards": "true",
    "receive.denyDeletes": "false",
    "receive.denyCurrentBranch": "ignore",
    "transfer.fsckObjects": "true",
    "transfer.hideRefs": "refs/swarm/beats",
    "uploadpack.allowAnySHA1InWant": "true",
}


def branch_ref(branch: str) -> str:
    return f"refs/heads/{branch}"


def work_ref(task: str, token: int) -> str:
    return f"{WORK}/{task}/{token}"


class Hub:
    """One opened hub.

    Safe: threads of a process share it; processes of a host take turns through `turn`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.git = Git(path)
        self.turn = Turn(path.with_name(path.name + ".turn"))
        self.reader = Reader(self.git)
        self.refs = RefWriter(self.git, self.reader, self.turn)
        self.hash_name = "sha1"
        self._whole: set[str] = set()  # commits that this process found or fetched whole

    @classmethod
    def open(cls, path: Path) -> Hub:
        """
        Raises:
            HubUnusable: there is no bare repository of git's at `path`.
        """
        if not (path / "objects").is_dir() or not (path / "HEAD").is_file():
            raise HubUnusable(f"no hub at {path}", hint="swarm init")
        hub = cls(path)
        config = (path / "config").read_text("utf-8", "replace").lower()
        if "objectformat" in config and "sha256" in config:
            hub.hash_name = "sha256"
        return hub

    @classmethod
    def create(cls, path: Path, target: str, source: Path, tip: str) -> Hub:
        """A new hub whose target is the commit `tip` of the repository at `source`.

        Safe twice: an existing hub is opened, its settings and hooks are written again, and its
        target is left alone.

        Raises:
            GitFault: git refuses; the folder is left as it is and creating again continues.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        known = Git(source).run("rev-parse", "--show-object-format").text
        Git(path.parent).run(
            "init", "--quiet", "--bare", "--template=", f"--object-format={known}", str(path)
        )
        hub = cls(path)
        hub.hash_name = known
        hub.configure(target)
        if hub.reader.ref(branch_ref(target)) is None:
            hub.git.run(
                "fetch",
                "--quiet",
                "--no-tags",
                "--no-write-fetch-head",
                "--no-auto-maintenance",
                str(source),
                f"{tip}:{branch_ref(target)}",
                env={"GIT_CONFIG_COUNT": "0"},
                timeout=3600,
            )
        return hub

    def configure(self, target: str) -> None:
        """Write our settings, HEAD, hooks and the ledger's log; idempotent."""
        settings = _SETTINGS | {"swarm.target": target}
        for name, value in settings.items():
            self.git.run("config", name, value)
        self.git.run("symbolic-ref", "HEAD", branch_ref(target))
        log = self.path / "logs" / LEDGER
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        folder = self.path / "hooks"
        folder.mkdir(exist_ok=True)
        hook = folder / "update"
        hook.write_bytes(files("swarm.hooks").joinpath("update").read_bytes())
        hook.chmod(0o755)

    def find_changed(self, target: str) -> list[str]:
        """What is no longer as `configure` wrote it, one sentence each; empty when all is well.

        Raises:
            GitFault: the configuration cannot be read.
        """
        listed = self.git.run("config", "--local", "--list", "-z").fields
        now = {key.lower(): value for key, _, value in (row.partition("\n") for row in listed)}
        wanted = _SETTINGS | {"swarm.target": target}
        found = [
            f"{name} is {now.get(name.lower(), 'not set')}, not {value}"
            for name, value in wanted.items()
            if now.get(name.lower()) != value
        ]
        head = self.git.run("symbolic-ref", "-q", "HEAD", ok=(0, 1)).text
        if head != branch_ref(target):
            found.append(f"HEAD is {head or 'detached'}, not {branch_ref(target)}")
        if not (self.path / "logs" / LEDGER).is_file():
            found.append("the ledger has no reflog")
        hook = self.path / "hooks/update"
        ours = files("swarm.hooks").joinpath("update").read_bytes()
        if not hook.is_file() or hook.read_bytes() != ours or not os.access(hook, os.X_OK):
            found.append("the update hook is missing or changed")
        return found

    def close(self) -> None:
        """End the long-lived children; the hub can still be used and starts new ones."""
        self.refs.close()
        self.reader.close()
        self.turn.close()

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tip(self, branch: str) -> str:
        """
        Raises:
            HubUnusable: the branch does not exist.
        """
        found = self.reader.ref(branch_ref(branch))
        if found is None:
            raise HubUnusable(f"the hub has no branch {branch}", hint="swarm doctor")
        return found

    def contains(self, tip: str, commit: str) -> bool:
        """Is `commit` reachable from `tip`?

        Raises:
            GitFault: one of them is missing.
        """
        if tip == commit:
            return True
        return self.git.run("merge-base", "--is-ancestor", commit, tip, ok=(0, 1)).code == 0

    def find_merge_base(self, one: str, other: str) -> str | None:
        """A newest commit that both have; None: they share none.

        Raises:
            GitFault: one of them is missing.
        """
        return self.git.run("merge-base", one, other, ok=(0, 1)).text or None

    def was_left(self, ref: str, oid: str) -> bool:
        """Did somebody move the ref away from this value, by the ref's own log?"""
        try:
            rows = (self.path / "logs" / ref).read_bytes().splitlines()
        except OSError:
            return False
        return any(row.startswith(oid.encode() + b" ") for row in rows)

    def refs_below(self, prefix: str) -> dict[str, str]:
        """Refs whose names start with the folder `prefix`, with their object ids, by name."""
        listing = self.git.run("for-each-ref", "--format=%(objectname) %(refname)", prefix)
        return {name: oid for oid, name in (line.split(" ", 1) for line in listing.lines)}

    def batch(self) -> Batch:
        """A place for new objects of one event."""
        return Batch(self.git, self.hash_name)

    def transact(self, moves: Sequence[Move]) -> Outcome:
        """See `RefWriter.transact`; takes the turn when it is not held yet."""
        with self.turn.held():
            return self.refs.transact(moves)

    def fetch(self, source: Path, oid: str, *, inherit: tuple[int, ...] = ()) -> None:
        """Copy a commit and all it needs from another repository, objects checked, no ref moved.

        Raises:
            MalformedObjects: fsck refuses an object; nothing of it is kept.
            GitFault: an object is missing, or git fails.
        """
        if self.is_whole(oid):
            return
        git = Git(self.path, inherit=inherit)
        fetched = git.run(
            "-c",
            "transfer.fsckObjects=true",
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-write-fetch-head",
            "--no-auto-maintenance",
            str(source),
            oid,
            ok=(0, 1, 128),
            timeout=600,
        )
        if "fsck error" in fetched.complaint:
            raise MalformedObjects(f"{oid} holds a malformed object", why=fetched.complaint)
        if fetched.code != 0:
            raise GitFault("git fetch failed", why=fetched.complaint or None)
        if not self.reader.has(oid):
            raise GitFault(f"{oid} is not in the hub after a fetch that said yes")
        self._whole.add(oid)

    def is_whole(self, oid: str) -> bool:
        """Has the hub the commit and all that it needs?

        A fetch that was killed leaves a part, and git writes the commit before its files.
        """
        if oid in self._whole:
            return True
        if not self.reader.has(oid):
            return False
        walk = self.git.run("rev-list", "--objects", "--quiet", oid, "--not", "--all", ok=(0, 128))
        if walk.code == 0:
            self._whole.add(oid)
        return walk.code == 0

    def heal_locks(self, ours: Iterable[str] = ()) -> list[Path]:
        """Remove lock files that a killed git left; returns what was removed.

        Only while holding the turn (so no git of ours is alive), and only a file that names an
        object id which only we could have written, one that is empty and was made within the same
        two seconds (git locks HEAD, empty, in the same transaction), or an empty one that is over
        a minute old.
        """
        removed: list[Path] = []
        known = set(ours)
        with self.turn.held():
            empty: list[tuple[Path, float]] = []
            our_times: list[float] = []
            for path in [*self.path.glob("*.lock"), *(self.path / "refs").rglob("*.lock")]:
                with contextlib.suppress(FileNotFoundError):
                    text = path.read_text("utf-8", "replace").strip()
                    made = path.stat().st_mtime
                    is_below_ours = "refs/swarm/" in str(path) and time.time() - made > 1
                    if not text:
                        empty.append((path, made))
                    elif text in known or is_below_ours:
                        path.unlink()
                        removed.append(path)
                        our_times.append(made)
            for path, made in empty:
                is_sibling = any(abs(made - other) < _SAME_TRANSACTION for other in our_times)
                if is_sibling or time.time() - made > STALE_LOCK_SECONDS:
                    path.unlink(missing_ok=True)
                    removed.append(path)
        return removed

    def diff_stat(self, old: str, new: str) -> tuple[int, int, int]:
        """Files, insertions and deletions between two commits or trees (binary counts as 0)."""
        out = self.git.run("diff-tree", "-r", "--numstat", "-z", "--no-renames", old, new)
        files_changed = added = removed = 0
        for row in out.fields:
            plus, minus, _ = row.split("\t", 2)
            files_changed += 1
            added += int(plus) if plus != "-" else 0
            removed += int(minus) if minus != "-" else 0
        return files_changed, added, removed

    def changed_paths(self, old: str, new: str, *, renames: bool = False) -> list[str]:
        """Paths that differ between two commits or trees, sorted; with `renames` both names."""
        flag = "-M" if renames else "--no-renames"
        out: Result = self.git.run("diff-tree", "-r", "--name-only", "-z", flag, old, new)
        return sorted(set(out.fields))
