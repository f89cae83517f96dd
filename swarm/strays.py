"""What an agent committed and its HEAD does not hold; and what of its commits git can take over.

Enters: a slot whose processes have ended. Leaves: one commit that holds all that is left.
Guards: no commit of an attempt is lost, however many there are and wherever in the slot they
stand; one broken object costs the commits that need it and nothing else.
"""

from __future__ import annotations

import bisect
import os
import shutil
import stat
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from swarm.errors import GitFault, MalformedObjects
from swarm.ids import is_oid
from swarm.plumbing.git import Git
from swarm.slot import Occupant, Slot, packed_refs, read_small, shut_in

MISSING = "an object of its commits is missing or broken"
MAX_PARENTS = 16  # of a commit that keeps others; what is beyond goes into one before it
MOST_SAID = 400  # characters of git's words that a record repeats
_MANY = 20  # broken commits that a message names
_SLACK = 2.0  # seconds: a file system's clock is coarse
_UNKEPT = ("--not", "--exclude=refs/swarm/ledger", "--exclude=refs/swarm/beats/*", "--all")


def why_refused(slot: Slot, oid: str, store: Path | None = None) -> str:
    """Bring a commit of the slot into the hub; in one line why that cannot be, else empty.

    Its own fault is what git's fsck refuses, and an object that is missing or broken while git
    reads the attempt's start. What is refused stays in the slot's own objects, which nothing
    prunes. `store`: a git dir of ours that has the objects, when it is not the usual one.

    Raises:
        GitFault: it could not be brought for another reason (a full disk, our own git dir).
    """
    source = store or slot.own
    try:
        slot.hub.fetch(source, oid, inherit=(slot.fd,))
    except MalformedObjects as fault:
        return _said(fault.why or fault.what)
    except GitFault:
        why = _why_unreadable(slot, Git(source, inherit=(slot.fd,)), oid)
        if not why:
            raise
        return f"{MISSING}: {why}"
    return ""


def _why_unreadable(slot: Slot, git: Git, oid: str) -> str:
    """Git's words when it cannot read all that the commit added; empty when that is no proof."""
    occupant = slot.occupant()
    if occupant is None:
        return ""
    start = occupant.start
    call = ("rev-list", "--verify-objects", "--quiet", oid, "--not", start, occupant.base)
    found = git.run(*call, ok=(0, 1, 128), timeout=600)
    if found.code == 0 and not found.complaint:  # a wrong content is told with exit 0
        return ""
    known = git.run("rev-list", "--objects", "--quiet", "--no-walk", start, ok=(0, 1, 128))
    return _said(found.complaint or "git rev-list failed") if known.code == 0 else ""


def _said(text: str) -> str:
    """Fit for a commit message: one line, without NUL."""
    return " ".join(text.replace("\0", " ").split())[:MOST_SAID]


def newest_whole(slot: Slot, line: Sequence[str], store: Path | None = None) -> int:
    """Index of the first commit of a line, newest first, that the hub can have; its length: none.

    What is whole below is whole all the way down.
    """
    return bisect.bisect_left(
        range(len(line)), True, key=lambda index: not why_refused(slot, line[index], store)
    )


def fall_back(slot: Slot, occupant: Occupant, oid: str) -> str:
    """What stands for a HEAD that is refused: its newest whole ancestor of the attempt, or where
    the attempt began.
    """
    git = slot.own_git
    line = _line(_read_commits(git, occupant, _made(slot, git, [slot.repo]), ()), oid)
    found = newest_whole(slot, line)
    if found < len(line):
        return line[found]
    return occupant.head if not why_refused(slot, occupant.head) else occupant.start


def keep_elsewhere(
    slot: Slot, occupant: Occupant, head: str, refused: str, nested: Sequence[str], at: int
) -> str | None:
    """One commit, in the hub, that holds every commit of the attempt which neither `head` nor a
    ref of the hub does; None when there is none.

    Other branches, tags, the stash, other worktrees of the slot's repository, and what no ref names
    any more: amended, reset, rebased. Of other repositories in the worktree (`nested` are folders)
    what their remotes did not bring. A commit that git cannot take over is named in the message;
    `refused` is one of which that is told already.

    Raises:
        GitFault: something could not be read or brought; nothing is forgotten, ask again.

    Safe: twice keeps nothing twice; killed between, the next call finds the same.
    """
    stores = _other_stores(slot, nested)
    git = slot.own_git
    named = list(_tips(slot.repo, (slot.admin, *_worktrees(slot))))
    made = _made(slot, git, [slot.repo, *stores])
    for place in stores:
        named += _tips(place, (), remotes=False)
    if not {*named, *made} - {head, occupant.head, occupant.start, occupant.base}:
        return None
    store: Path | None = None
    if stores:
        store = _join(slot, stores)
        git = Git(store, inherit=(slot.fd,))
    try:
        graph = _read_commits(git, occupant, made, named)
        theirs = [oid for repo in stores for oid in _brought(repo)]
        held = _reached(graph, [head, occupant.head, *theirs])
        lacking = _not_kept(slot, {oid: graph[oid] for oid in graph if oid not in held})
        if not lacking:
            return None
        return _Keeper(slot, git, store, lacking, head, refused, at).keep()
    finally:
        if store is not None:
            shutil.rmtree(store)


class _Keeper(msgspec.Struct):
    """Brings commits into the hub as parents of one, around those that are broken."""

    slot: Slot
    git: Git
    store: Path | None
    graph: Mapping[str, Sequence[str]]  # commit -> parents, of all that are lacking
    head: str  # whose tree is known to be whole
    refused: str  # a commit that is known to be broken
    at: int  # date of what is made: the same at every try
    whole: list[str] = []
    broken: dict[str, str] = {}  # commit -> why

    def keep(self) -> str | None:
        behind = {parent for parents in self.graph.values() for parent in parents}
        groups = [[oid for oid in self.graph if oid not in behind]]
        seen = set(groups[0])
        while groups:
            group = groups.pop()
            why = why_refused(self.slot, self._chain(group, "Tried"), self.store)
            if not why:
                self.whole += group
            elif len(group) > 1:
                half = len(group) // 2
                groups += [group[half:], group[:half]]
            else:
                below = [oid for oid in self._go_below(group[0], why) if oid not in seen]
                seen.update(below)
                groups += [below] if below else []
        told = "Commits of the agent that were not on its HEAD: other branches, tags, the stash"
        if self.broken:
            told += "\n\nNot kept, but left in the slot's own objects:\n" + "\n".join(
                f"{oid}: {why}" for oid, why in list(self.broken.items())[:_MANY]
            )
            told += f"\nand {len(self.broken) - _MANY} more" if len(self.broken) > _MANY else ""
        if not self.whole and set(self.broken) <= {self.refused}:
            return None
        kept = self._chain(self.whole, told)
        why = why_refused(self.slot, kept, self.store)
        if why:
            raise GitFault("commits of an agent cannot be kept", why=why)
        return kept

    def _go_below(self, oid: str, why: str) -> list[str]:
        """Note a broken commit; what is to be tried in its place."""
        line = _line(self.graph, oid)
        found = newest_whole(self.slot, line, self.store)
        self.broken[oid] = why
        sides = [p for broken in line[:found] for p in self.graph[broken][1:] if p in self.graph]
        return list(dict.fromkeys([*line[found : found + 1], *sides]))

    def _chain(self, commits: Sequence[str], told: str) -> str:
        """A commit whose parents, or theirs in turn, are all of these."""
        tree = self._tree(commits[0]) if commits else self._tree(self.head)
        left, last = list(commits), ""
        while True:
            room = MAX_PARENTS - (1 if last else 0)
            part, left = left[:room], left[room:]
            parents = [*part, last] if last else part
            last = self._commit(tree, parents or [self.head], told)
            if not left:
                return last

    def _tree(self, commit: str) -> str:
        found = self.git.run("rev-parse", f"{commit}^{{tree}}", ok=(0, 128))
        if found.code == 0 and self.git.run("cat-file", "-t", found.text, ok=(0, 128)).code == 0:
            return found.text
        return self.git.run("rev-parse", f"{self.head}^{{tree}}").text

    def _commit(self, tree: str, parents: Sequence[str], told: str) -> str:
        args = [arg for parent in parents for arg in ("-p", parent)]
        dates = {f"GIT_{who}_DATE": f"{self.at} +0000" for who in ("AUTHOR", "COMMITTER")}
        return self.git.run("commit-tree", tree, *args, "-m", told, env=dates).text


def _line(graph: Mapping[str, Sequence[str]], oid: str) -> list[str]:
    """A commit and its first parents, as far down as the graph goes."""
    line: list[str] = []
    while oid in graph:
        line.append(oid)
        oid = graph[oid][0] if graph[oid] else ""
    return line


def _reached(graph: Mapping[str, Sequence[str]], tips: Iterable[str]) -> set[str]:
    reached: set[str] = set()
    left = list(tips)
    while left:
        oid = left.pop()
        if oid not in reached:
            reached.add(oid)
            left += graph.get(oid, ())
    return reached


def _not_kept(slot: Slot, graph: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Without what a branch, a work ref or a rescue ref of the hub reaches. To lie there is not
    enough: a try that was cut leaves objects that nothing names.
    """
    if not graph:
        return {}
    git = slot.hub.git
    asked = "".join(f"{oid}\n" for oid in graph).encode()
    rows = git.run("cat-file", "--batch-check=%(objectname)", input=asked).lines
    there = [row for row in rows if is_oid(row)]
    if not there:
        return dict(graph)
    asked = "".join(f"{oid}\n" for oid in there).encode()
    unkept = set(git.run("rev-list", "--stdin", *_UNKEPT, input=asked, timeout=600).lines)
    kept = set(there) - unkept
    return {oid: parents for oid, parents in graph.items() if oid not in kept}


# Where commits are found


def _worktrees(slot: Slot) -> list[Path]:
    """Admin folders of the worktrees that an agent made."""
    try:
        found = sorted(e.path for e in os.scandir(slot.repo / "worktrees") if e.is_dir())
    except OSError:
        return []
    return [Path(path) for path in found if Path(path) != slot.admin]


def _tips(repo: Path, worktrees: Sequence[Path], *, remotes: bool = True) -> dict[str, None]:
    """What HEADs and refs name, in the order of their names; read from files, as HEAD is."""
    found: dict[str, None] = {}
    for root in (repo, *worktrees):
        found[(read_small(root / "HEAD") or "").strip()] = None
        for folder, folders, names in os.walk(root / "refs"):
            folders.sort()
            if not remotes and Path(folder) == root / "refs":
                folders[:] = [name for name in folders if name != "remotes"]
            for name in sorted(names):
                found[(read_small(Path(folder) / name) or "").strip()] = None
    for oid, name in packed_refs(repo):
        if remotes or not name.startswith("refs/remotes/"):
            found[oid] = None
    return {oid: None for oid in found if is_oid(oid)}


def _brought(repo: Path) -> list[str]:
    """What the remotes of a repository brought: it is theirs."""
    found = [(read_small(p) or "").strip() for p in sorted((repo / "refs/remotes").rglob("*"))]
    found += [oid for oid, name in packed_refs(repo) if name.startswith("refs/remotes/")]
    return [oid for oid in found if is_oid(oid)]


def _made(slot: Slot, git: Git, stores: Iterable[Path]) -> dict[str, bool]:
    """Objects that came since the slot was opened, older ones were saved then; True for those that
    are commits, False where git has to be asked.

    The folders' own times tell which to look into: a slot gathers the objects of all its attempts.
    """
    since = slot.opened_at - _SLACK
    found: dict[str, bool] = {}
    for store in stores:
        objects = store / "objects"
        for pack in _fresh(objects / "pack", since):
            if pack.name.endswith(".idx") and pack.is_file(follow_symlinks=False):
                if not os.access(pack, os.R_OK):
                    continue  # git cannot read it either
                content = Path(pack.path).read_bytes()
                call = ("show-index", f"--object-format={slot.hub.hash_name}")
                rows = git.run(*call, input=content, ok=(0, 1, 128), timeout=600).lines
                found |= dict.fromkeys((row.split(" ")[1] for row in rows if " " in row), False)
        for folder in _fresh(objects, since):
            if len(folder.name) == 2 and folder.is_dir(follow_symlinks=False):
                for file in _fresh(Path(folder.path), since):
                    if is_oid(folder.name + file.name) and _is_commit(Path(file.path)):
                        found[folder.name + file.name] = True
    return dict(sorted(found.items()))


def _fresh(folder: Path, since: float) -> list[os.DirEntry[str]]:
    """What was put into a folder since then."""
    try:
        with os.scandir(folder) as entries:
            return [e for e in entries if e.stat(follow_symlinks=False).st_mtime >= since]
    except OSError:
        return []


def _is_commit(place: Path) -> bool:
    try:
        fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            return zlib.decompressobj().decompress(file.read(64), 7) == b"commit "
    except (OSError, zlib.error):
        return False  # git cannot read it either


def _read_commits(
    git: Git, occupant: Occupant, made: Mapping[str, bool], named: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Those of the objects that are commits, tags peeled, with their parents.

    Raises:
        GitFault: git does not even see the attempt's start: it looks in the wrong place.
    """
    asked = list(dict.fromkeys([occupant.start, *named, *made]))
    kinds = dict(zip(asked, _ask(git, "--batch-check=%(objecttype)", asked), strict=True))
    if kinds[occupant.start] != "commit":
        raise GitFault("the attempt's start cannot be read where its slot is looked at")
    tags = [f"{oid}^{{commit}}" for oid in named if kinds[oid] == "tag"]
    peeled = _ask(git, "--batch-check=%(objectname)", tags)
    surely = [oid for oid in asked[1:] if kinds[oid] == "commit" or made.get(oid)]
    commits = dict.fromkeys([*surely, *(oid for oid in peeled if is_oid(oid))])
    return _read_parents(git, list(commits))


def _ask(git: Git, call: str, names: Sequence[str]) -> list[str]:
    """A line for each name; empty for an object at which git gives up."""
    found: list[str] = []
    while len(found) < len(names):
        asked = "".join(f"{name}\n" for name in names[len(found) :]).encode()
        done = git.run("cat-file", call, input=asked, ok=(0, 128), timeout=600)
        found += done.lines
        if done.code:
            found.append("")
    return found


def _read_parents(git: Git, commits: Sequence[str]) -> dict[str, tuple[str, ...]]:
    graph: dict[str, tuple[str, ...]] = {}
    while len(graph) < len(commits):
        asked = "".join(f"{oid}\n" for oid in commits[len(graph) :]).encode()
        done = git.run("cat-file", "--batch", input=asked, ok=(0, 128), timeout=600)
        graph |= _parse_commits(done.out)
        if done.code:
            graph[commits[len(graph)]] = ()  # it cannot be read, and git gave up there
    return graph


def _parse_commits(out: bytes) -> dict[str, tuple[str, ...]]:
    """What `cat-file --batch` says of commits; one that is missing has no parents."""
    found: dict[str, tuple[str, ...]] = {}
    at = 0
    while (end := out.find(b"\n", at)) >= 0:
        words = out[at:end].decode("ascii", "replace").split(" ")
        if len(words) != 3:
            found[words[0]] = ()
            at = end + 1
            continue
        size = int(words[2])
        head = out[end + 1 : end + 1 + size].split(b"\n\n", 1)[0].decode("utf-8", "replace")
        parents = [line[7:] for line in head.split("\n") if line.startswith("parent ")]
        found[words[0]] = tuple(parents)
        at = end + 1 + size + 1
    return found


def _other_stores(slot: Slot, nested: Sequence[str]) -> list[Path]:
    """Git dirs of other repositories in the slot: nested ones, submodules, one that an agent put in
    the place of its worktree's `.git`. Only below our own folders, and never run git in.
    """
    found: dict[Path, None] = {}
    if slot.is_real_tree:
        _note_store(slot, slot.tree / ".git", found)
    for nest in nested:
        for folder, folders, names in os.walk(slot.tree / nest):
            if ".git" in folders or ".git" in names:
                _note_store(slot, Path(folder) / ".git", found)
            folders[:] = [name for name in folders if name != ".git"]
    for admin in (slot.repo, slot.admin, *_worktrees(slot)):
        for folder, folders, _ in os.walk(admin / "modules"):
            if "objects" in folders and "refs" in folders:
                shut_in(slot, Path(folder))
                found[Path(folder)] = None
                folders[:] = [name for name in folders if name == "modules"]
    return list(found)


def _note_store(slot: Slot, place: Path, found: dict[Path, None]) -> None:
    text = read_small(place)
    if text is not None and text.startswith("gitdir: "):
        place = place.parent / text[8:].strip()
    try:
        place = place.resolve()
        is_ours = any(place.is_relative_to(root.resolve()) for root in (slot.tree, slot.repo))
        if is_ours and stat.S_ISDIR((place / "objects").lstat().st_mode):
            shut_in(slot, place)
            found[place] = None
    except (OSError, ValueError):  # ValueError: a NUL in the agent's file
        return


def _join(slot: Slot, stores: Sequence[Path]) -> Path:
    """A git dir of ours that borrows the slot's objects and those of other repositories in it."""
    place = slot.own / "joined"
    if place.exists():  # of a call that was killed
        shutil.rmtree(place)
    (place / "objects/info").mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "HEAD").write_text("ref: refs/heads/none\n")
    shutil.copyfile(slot.own / "config", place / "config")
    roots = [*stores, slot.own, slot.repo, slot.hub.path]
    text = "".join(f"{_line_of(root / 'objects')}\n" for root in roots)
    (place / "objects/info/alternates").write_bytes(text.encode("utf-8", "surrogateescape"))
    return place


def _line_of(path: Path) -> str:
    """A path as the alternates file has it: quoted as in C where it would end the line."""
    text = str(path)
    if "\n" not in text:
        return text
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'
