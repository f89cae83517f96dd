"""What upstream has of ours under another name: squashed, rebased, picked.

Enters: the target, upstream's tip, what was pushed. Leaves: two commits with the same files.
Guards: only files decide, never a message or a name; nothing is resolved by taking a side.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from swarm.errors import GitFault
from swarm.ledger.records import Push
from swarm.merge import Attributes, Clean, merge_trees
from swarm.plumbing.hub import Hub

LOOKED_AT = 200  # of upstream's own commits, for a squash of what we pushed
MOST_MERGED = 400  # merges tried to find one
_AUTHOR = "swarm <swarm@swarm.invalid>"


@dataclass(frozen=True)
class Same:
    """Two commits with the same files: upstream has what we had at `ours`."""

    theirs: str  # upstream's commit
    ours: str


@dataclass(frozen=True)
class _Step:
    """A commit along first parents."""

    oid: str
    tree: str
    parents: tuple[str, ...]


def find_same(hub: Hub, target: str, tip: str, pushes: Iterable[Push]) -> Same | None:
    """The newest such pair along both first parents.

    One that was made on top of what upstream had meanwhile is found too: it is what git makes of
    merging there what we pushed.

    Raises:
        GitFault: an object is missing.
    """
    before = _taken_before(hub, target, tip)
    ours: dict[str, str] = {}
    for step in _steps(hub, target, before):
        ours.setdefault(step.tree, step.oid)
    theirs = _steps(hub, tip, [target])
    found = next((Same(step.oid, ours[step.tree]) for step in theirs if step.tree in ours), None)
    pushed = dict.fromkeys(push.oid for push in reversed(list(pushes)))
    held = [oid for oid in pushed if hub.reader.has(oid)]
    lacking = _beyond(hub, held, before) - _beyond(hub, held, [target])
    known = [oid for oid in held if oid in lacking]
    while newer := _merged_there(hub, theirs, known, tip, found):
        found = newer
    return found


def _merged_there(
    hub: Hub, theirs: Sequence[_Step], pushed: list[str], tip: str, known: Same | None
) -> Same | None:
    """The newest of upstream's steps that some push was merged into, newer than the known one."""
    steps: list[_Step] = []
    for step in theirs[:LOOKED_AT]:
        if known is not None and step.oid == known.theirs:
            break
        steps.append(step)
    if known is not None:
        beyond = _beyond(hub, pushed, [known.ours])
        pushed = [oid for oid in pushed if oid in beyond]
    if not steps or not pushed:
        return None
    newest: dict[str, int] = {}  # tree -> step
    for number, step in enumerate(steps):
        newest.setdefault(step.tree, number)
    touched: dict[str, set[str]] = {}
    for oid in pushed:
        base = hub.find_merge_base(tip, oid)
        touched[oid] = set(hub.changed_paths(base, oid)) if base is not None else set()
    left = MOST_MERGED
    with tempfile.TemporaryDirectory(prefix="swarm-") as folder:  # a gate may use its own meanwhile
        attributes = Attributes(hub, Path(folder))
        for number, step in enumerate(steps):
            if len(step.parents) != 1:
                continue
            parent = step.parents[0]
            paths = set(hub.changed_paths(parent, step.oid))
            for ours in pushed:
                if not paths or not paths <= touched[ours] or not left:
                    continue
                left -= 1
                side = parent if known is None else join(hub, parent, known.ours)
                rules = attributes.at(hub.reader.tree_of(side))
                merged = merge_trees(hub, side, ours, rules)
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
