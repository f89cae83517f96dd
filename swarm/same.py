"""What upstream has of ours under another name: squashed, rebased, picked.

Enters: the target, upstream's tip, what was pushed. Leaves: two commits with the same files.
Guards: only files decide, never a message or a name; nothing is resolved by taking a side.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from swarm.errors import GitFault
from swarm.ledger.records import Push
from swarm.merge import Attributes, Clean, merge_trees
from swarm.plumbing.hub import Hub

LOOKED_AT = 200  # of upstream's own commits, for a squash of what we pushed
MOST_MERGED = 400  # merges tried to find one
_AUTHOR = "swarm <swarm@swarm.invalid>"


class Same(msgspec.Struct, frozen=True):
    """Two commits with the same files: upstream has what we had at `ours`."""

    theirs: str  # upstream's commit
    ours: str


class _Step(msgspec.Struct, frozen=True):
    """A commit along first parents."""

    oid: str
    tree: str
    parents: tuple[str, ...]


def find_same(hub: Hub, target: str, tip: str, pushes: Iterable[Push]) -> Same | None:
    """The newest commit of ours that was pushed and that upstream has had under another name.

    Only what was pushed can be there because of us: any other state of ours with the same files is
    chance, and the team's own. Of several the newest of ours counts, since what upstream made of
    its files after that was meant. One that was made on top of what upstream had meanwhile is found
    too: it is what git makes of merging there what we pushed.

    Raises:
        GitFault: an object is missing.
    """
    before = _taken_before(hub, target, tip)
    held = [oid for oid in dict.fromkeys(p.oid for p in pushes) if hub.reader.has(oid)]
    lacking = _beyond(hub, held, before) - _beyond(hub, held, [target])
    if not lacking:
        return None
    walk = hub.git.run("rev-list", "--topo-order", target, *(f"^{oid}" for oid in before)).lines
    ours = [oid for oid in walk if oid in lacking]
    with tempfile.TemporaryDirectory(prefix="swarm-") as folder:  # a gate may use its own meanwhile
        return _Search(hub, tip, _steps(hub, tip, [target])[:LOOKED_AT], ours, Path(folder)).best(0)


class _Search:
    """Looks for one of our commits, newest first, among upstream's steps."""

    def __init__(
        self, hub: Hub, tip: str, theirs: Sequence[_Step], ours: Sequence[str], folder: Path
    ) -> None:
        self._hub = hub
        self._theirs = theirs
        self._ours = ours  # newest first
        self._attributes = Attributes(hub, folder)
        self._left = MOST_MERGED
        self._best: dict[int, Same | None] = {}
        self._touched: dict[str, set[str]] = {}
        for oid in ours:
            base = hub.find_merge_base(tip, oid)
            self._touched[oid] = set(hub.changed_paths(base, oid)) if base is not None else set()

    def best(self, start: int) -> Same | None:
        """The newest pair of those of ours from `start` on."""
        if start not in self._best:
            self._best[start] = None
            for number in range(start, len(self._ours)):
                found = self._match(self._ours[number], None)
                if found is None and (known := self.best(number + 1)) is not None:
                    # A later round: beside what it had of us before, its merge base is right.
                    found = self._match(self._ours[number], known)
                if found is not None:
                    self._best[start] = found
                    break
        return self._best[start]

    def _match(self, ours: str, known: Same | None) -> Same | None:
        """The step that has this commit of ours, newer than the known one."""
        steps: list[_Step] = []
        for step in self._theirs:
            if known is not None and step.oid == known.theirs:
                break
            steps.append(step)
        newest: dict[str, int] = {}  # tree -> step
        for number, step in enumerate(steps):
            newest.setdefault(step.tree, number)
        for number, step in enumerate(steps):
            if len(step.parents) != 1 or self._left <= 0:
                continue
            parent = step.parents[0]
            paths = set(self._hub.changed_paths(parent, step.oid))
            if not paths or not paths <= self._touched[ours]:
                continue
            self._left -= 1
            side = parent if known is None else join(self._hub, parent, known.ours)
            rules = self._attributes.at(self._hub.reader.tree_of(side))
            merged = merge_trees(self._hub, side, ours, rules)
            # Rebased, it takes several steps to get there.
            if isinstance(merged, Clean) and newest.get(merged.tree, number + 1) <= number:
                return Same(steps[newest[merged.tree]].oid, ours)
        return None


def tips_there(hub: Hub, target: str, tip: str, pushes: Iterable[Push]) -> list[str]:
    """Tips of all that upstream has, under our names for it too: it lacks what lies beyond them."""
    same = find_same(hub, target, tip, pushes)
    found = _taken_before(hub, target, tip)
    return [*found, same.ours] if same is not None else found


def _taken_before(hub: Hub, target: str, tip: str) -> list[str]:
    """Upstream's tip, and our own commits that were seen to be the same as one before it."""
    rows = hub.git.run("log", "--merges", "--format=%T %P", target, f"^{tip}", "--").lines
    joins: list[list[str]] = []
    for row in rows:
        tree, *parents = row.split(" ")
        # As `join` makes them: what came in had the files of all its parents already.
        if tree == hub.reader.tree_of(parents[0]):
            joins.append(parents)
    beyond = _beyond(hub, [parents[0] for parents in joins], [tip])
    others = (parents[1:] for parents in joins if parents[0] not in beyond)
    return list(dict.fromkeys([tip, *(oid for some in others for oid in some)]))


def _beyond(hub: Hub, commits: Iterable[str], tips: Iterable[str]) -> set[str]:
    """Those of the commits that none of the tips has."""
    wanted = set(commits)
    if not wanted:
        return set()
    but = [f"^{tip}" for tip in tips]
    return wanted.intersection(hub.git.run("rev-list", *sorted(wanted), *but, "--").lines)


def _steps(hub: Hub, tip: str, without: Iterable[str]) -> list[_Step]:
    """Along first parents from `tip`, newest first."""
    but = [f"^{oid}" for oid in without]
    rows = hub.git.run("log", "--first-parent", "--format=%H %T %P", tip, *but, "--").lines
    split = (row.split(" ") for row in rows)
    return [_Step(oid, tree, tuple(parents)) for oid, tree, *parents in split]


def join(hub: Hub, theirs: str, ours: str, message: str = "alike\n") -> str:
    """A commit with their files and both histories, so that git's merge base is right.

    On no ref; the same inputs give the same commit.

    Raises:
        GitFault: it cannot be written.
    """
    raw = hub.reader.commit(theirs).partition(b"\n\n")[0].decode("utf-8", "replace")
    when = next(line for line in raw.split("\n") if line.startswith("committer ")).rsplit(" ", 2)
    batch = hub.batch()
    tree = hub.reader.tree_of(theirs)
    oid = batch.commit(tree, [theirs, ours], message, _AUTHOR, f"{when[1]} +0000")
    try:
        batch.write()
    except OSError as error:
        raise GitFault("the hub is not writable", why=str(error)) from error
    return oid
