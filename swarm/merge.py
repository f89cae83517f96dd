"""Three-way merges in the bare repository, without a checkout.

Enters: a tip and a change. Leaves: a candidate commit, or the conflict as git names it.
Guards: nothing is resolved by taking a side; a fault of git's is never a conflict and never clean;
a candidate's id depends on its inputs alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from swarm import faults
from swarm.errors import GitFault
from swarm.ids import is_oid
from swarm.ledger.records import QueueEntry, Task
from swarm.plumbing.hub import Hub
from swarm.trailers import compose

_NAME = ".gitattributes"
_COMMITTER = "swarm <gate@swarm.invalid>"
_NO_IDENT = re.compile(r"[<>\x00-\x1f]")  # would end a name or an address of a commit
_MAX_LINE = 2048  # git ignores longer ones, and says so
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"\s*(.*)')
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)")
_ESCAPED = dict(zip(b"abfnrtv", b"\a\b\f\n\r\t\v", strict=True))
_WORD = re.compile(rb"(?!builtin_)[-!]?[A-Za-z0-9_.][-A-Za-z0-9_.]*(=.*)?")


class Clean(msgspec.Struct, frozen=True):
    """The merged tree."""

    tree: str


class Conflict(msgspec.Struct, frozen=True):
    """What git could not merge. `paths` is sorted and not empty; `says` are git's messages."""

    paths: tuple[str, ...]
    says: tuple[str, ...]


class Candidate(msgspec.Struct, frozen=True):
    """The merged commit that is judged, and lands as it is."""

    commit: str
    tree: str
    previous: str  # its first parent: the tip it was built on
    entry: QueueEntry
    entry_id: str  # blob of the queue entry that it was built from


class Attributes:
    """The target's `.gitattributes` as one file, since a bare repository reads none from a tree.

    Always the target's own rules, never a candidate's. Kept between merges: only folders that
    differ from the last tree are looked at.
    """

    def __init__(self, hub: Hub, folder: Path) -> None:
        self._hub = hub
        self._path = folder / f"attributes.{os.getpid()}"
        self._tree: str | None = None
        self._found: dict[str, str] = {}  # path -> blob id

    def at(self, tree: str) -> Path:
        """The file to name in `core.attributesFile` for merges onto this tree."""
        if tree == self._tree and self._path.exists():
            return self._path
        known = dict(self._found)
        if self._tree is None:
            rows = self._hub.git.run("ls-tree", "-r", "-z", tree).fields
            for row in rows:
                meta, path = row.split("\t", 1)
                if path.rsplit("/", 1)[-1] == _NAME and meta.startswith("100"):
                    self._found[path] = meta.split(" ")[2]
        else:
            for path, _, new in self._hub.reader.iter_changes(self._tree, tree):
                if path.rsplit("/", 1)[-1] == _NAME:
                    self._found.pop(path, None)
                    entry = self._hub.reader.find(tree, path)
                    if new is not None and entry is not None and entry.mode & 0o170000 == 0o100000:
                        self._found[path] = new
        self._tree = tree
        if self._found == known and self._path.exists():
            return self._path
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_bytes(self._text())
        return self._path

    def _text(self) -> bytes:
        lines: list[bytes] = []
        for path in sorted(self._found, key=lambda p: p.count("/")):
            folder = path.rpartition("/")[0].encode("utf-8", "surrogateescape")
            text = self._hub.reader.read(self._found[path], "blob")
            lines += [_from_root(folder, line) for line in text.split(b"\n")]
        return b"".join(line + b"\n" for line in lines if 0 < len(line) < _MAX_LINE)


def _from_root(folder: bytes, line: bytes) -> bytes:
    """One line of a folder's file as the root would write it, or nothing.

    What git would complain about is left out: a complaint of git's makes a merge a fault.
    """
    line = line.strip(b" \t\r\n\xef\xbb\xbf")
    quoted = _QUOTED.fullmatch(line)
    pattern, rest = quoted.groups() if quoted else [*line.split(maxsplit=1), b"", b""][:2]
    words = rest.split()
    if line.startswith(b"#") or not words or not all(map(_WORD.fullmatch, words)):
        return b""
    if pattern.startswith(b"[attr]") and not quoted:
        is_sound = not folder and _WORD.fullmatch(pattern[6:])
        return line if is_sound else b""
    if quoted:
        pattern = _ESCAPE.sub(_unescaped, pattern)
    if pattern.startswith(b"!"):
        return b""
    if folder:
        anchor = b"" if b"/" in pattern.rstrip(b"/") else b"**/"
        literal = re.sub(rb"([*?\[\\])", rb"\\\1", folder)
        pattern = literal + b"/" + anchor + pattern.lstrip(b"/")
    safe = pattern.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    return b'"%s" %s' % (safe, b" ".join(words))


def _unescaped(found: re.Match[bytes]) -> bytes:
    code = found[1]
    return bytes([int(code, 8) & 255 if code.isdigit() else _ESCAPED.get(code[0], code[0])])


def merge_trees(hub: Hub, ours: str, theirs: str, attributes: Path) -> Clean | Conflict:
    """Merge two commits given by full ids.

    Raises:
        GitFault: a missing object, a bad id, a crashed driver: try again or call a person.
    """
    with _private_folder(attributes) as private:
        result = hub.git.run(
            "-c",
            f"core.attributesFile={attributes}",
            "merge-tree",
            "--write-tree",
            "--name-only",
            "-z",
            ours,
            theirs,
            ok=(0, 1),
            env={"TMPDIR": private} if private else {},
            timeout=600,
        )
    fields = result.fields
    tree = fields[0] if fields else ""
    if result.complaint or not is_oid(tree):
        raise GitFault("git merge-tree failed", why=result.complaint or result.text[:500])
    if result.code == 0:
        if len(fields) != 1:
            raise GitFault("git merge-tree said clean and more", why=result.text[:500])
        faults.reach("merge.after_tree")
        return Clean(tree)
    end = fields.index("") if "" in fields else len(fields)
    paths = tuple(sorted(set(fields[1:end])))
    return Conflict(paths or ("?",), tuple(_messages(fields[end + 1 :])))


def _private_folder(attributes: Path) -> contextlib.AbstractContextManager[str | None]:
    """Where a merge driver may leave its files; without attributes none can run."""
    if attributes.stat().st_size == 0:
        return contextlib.nullcontext()
    return tempfile.TemporaryDirectory(prefix="swarm-merge-")


def _messages(fields: Sequence[str]) -> list[str]:
    """Message texts of `-z` output: count, that many paths, a type, a text."""
    found: list[str] = []
    at = 0
    while at < len(fields) and fields[at].isdigit():
        at += 1 + int(fields[at])
        if at + 1 < len(fields) and not fields[at].startswith("Auto-merging"):
            found.append(fields[at + 1].strip())
        at += 2
    return found


def build(
    hub: Hub,
    previous: str,
    entry: QueueEntry,
    entry_id: str,
    task: Task,
    *,
    attributes: Attributes,
    style: Literal["merge", "squash"],
    checks: Sequence[tuple[str, str]],
    adapter: str,
    agent: str,
) -> Candidate | Conflict:
    """The candidate that lands this change on `previous`; the same inputs give the same id.

    `checks` are the (name, definition) pairs that it has to pass.

    Raises:
        GitFault: see `merge_trees`.
    """
    rules = attributes.at(hub.reader.tree_of(previous))
    merged = merge_trees(hub, previous, entry.head, rules)
    if isinstance(merged, Conflict):
        return merged
    parents = [previous, entry.head] if style == "merge" else [previous]
    message = landing_message(task, entry, merged.tree, checks, adapter, agent)
    at = f"{int(entry.sealed_at.timestamp())} +0000"
    author = f"{_NO_IDENT.sub('', adapter)} (swarm) <{_NO_IDENT.sub('', agent)}@swarm.invalid>"
    batch = hub.batch()
    commit = batch.commit(merged.tree, parents, message, author, at, _COMMITTER)
    try:
        batch.write()
    except OSError as error:
        raise GitFault("the hub is not writable", why=str(error)) from error
    return Candidate(commit, merged.tree, previous, entry, entry_id)


def landing_message(
    task: Task,
    entry: QueueEntry,
    tree: str,
    checks: Sequence[tuple[str, str]],
    adapter: str,
    agent: str,
) -> str:
    """Title, who and which attempt, trailers; the verdicts are in `done/`, which is younger."""
    source = f" ({task.header.source})" if task.header.source else ""
    names = ", ".join(name for name, _ in checks)
    says = f"Task {task.id}{source}, attempt {entry.token}, by {adapter}. "
    says += f"Landed only if green: {names}."
    trailers = {
        "Swarm-Task": task.id,
        "Swarm-Agent": agent,
        "Swarm-Token": str(entry.token),
        "Swarm-Tree": tree,
    }
    text = compose(task.header.title, says, trailers)
    return text + "".join(f"Swarm-Check: {name} {digest[:12]}\n" for name, digest in checks)
