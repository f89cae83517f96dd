"""What a change would be on the target as it is now, and what the checks say of that very tree.

Enters: a workspace, a view, a change. Leaves: the merged tree or its conflict; the worst verdict.
Guards: what some check has not judged is not called green; nothing is decided by it, so what cannot
be found out is None.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from swarm.check import applies, judged_tree
from swarm.config import Check
from swarm.errors import GitFault
from swarm.files import put_whole
from swarm.land import is_judged_held
from swarm.ledger.records import QueueEntry, TaskHeader
from swarm.ledger.view import View, readable
from swarm.merge import Attributes, Conflict, merge_trees
from swarm.overview.target import TargetVerdict, worst_verdict
from swarm.plumbing.hub import Hub
from swarm.trailers import of_commit
from swarm.workspace import Workspace


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """A change as merged with the target's tip of this moment: what would land."""

    branch: str
    target: str  # its tip
    tree: str | None  # None: it cannot be merged
    conflicts: list[str]  # empty and no tree: the two histories share no commit
    checks: list[str]  # those that apply to what it changes
    verdict: TargetVerdict | None  # theirs, the worst; None: not judged yet, or no check applies
    is_kept_back: bool  # not judged before a person's word: it may bring a secret


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """A tree, or the paths in conflict."""

    tree: str | None
    conflicts: list[str]


class _Cache(msgspec.Struct, frozen=True, kw_only=True):
    """`cache/merged.json`: merges with one tip of the target, by the change's head."""

    target: str
    found: dict[str, _Found]


def merged_entry(work: Workspace, view: View, entry: QueueEntry) -> Merged | None:
    """What a queued or held change would be; None: git cannot say."""
    with contextlib.suppress(GitFault):
        return merged(work, view, entry.task, entry.token, entry.head, entry)
    return None


def merged(
    work: Workspace, view: View, task: str, token: int, head: str, entry: QueueEntry | None
) -> Merged:
    """What the commit of a task's attempt would be on the target; `entry`: where it waits.

    Raises:
        GitFault: git cannot merge it here: an object is missing, the hub takes none.
    """
    record = readable(view.task, task)
    header = (
        record.header if record is not None else TaskHeader(id=task, title="", added_at=view.now)
    )
    found = _merge(view, head, work.layout.cache)
    checks, verdict = [], None
    if found.tree is not None:
        changed = None
        if any(check.paths for check in work.config.checks):
            changed = view.hub.changed_paths(view.target, found.tree)
        checks = [c for c in work.config.checks if applies(c, header.checks, changed)]
        keys = [(c, _key(view, c, found.tree, header, token, head)) for c in checks]
        verdict = worst_verdict(view, keys)
    return Merged(
        branch=view.target_branch,
        target=view.target,
        tree=found.tree,
        conflicts=found.conflicts,
        checks=[check.name for check in checks],
        verdict=verdict,
        is_kept_back=entry is not None and entry.is_held and not is_judged_held(entry),
    )


def held_since(entry: QueueEntry) -> datetime | None:
    """When the first reason was found for which a person's word is missing; None: not held."""
    return min((h.at for h in entry.hold or () if h.approved_at is None), default=None)


def _merge(view: View, head: str, cache: Path) -> _Found:
    """Raises GitFault: see `merged`."""
    hub, target = view.hub, view.target
    kept = _read(cache / "merged.json")
    known = kept.found if kept is not None and kept.target == target else {}
    found = known.get(head)
    if found is None or (found.tree is not None and not hub.reader.has(found.tree)):
        found = _merge_anew(hub, target, head)
        _write(cache / "merged.json", _Cache(target=target, found=known | {head: found}))
    return found


def _merge_anew(hub: Hub, target: str, head: str) -> _Found:
    base = hub.git.run("merge-base", target, head, ok=(0, 1)).text
    if base == target:
        return _Found(tree=hub.reader.tree_of(head), conflicts=[])
    if not base:
        return _Found(tree=None, conflicts=[])
    with tempfile.TemporaryDirectory(prefix="swarm-") as folder:  # a gate may use its own meanwhile
        rules = Attributes(hub, Path(folder)).at(hub.reader.tree_of(target))
        answer = merge_trees(hub, target, head, rules)
    if isinstance(answer, Conflict):
        named = [path.encode("utf-8", "surrogateescape") for path in answer.paths]
        return _Found(tree=None, conflicts=[path.decode("utf-8", "replace") for path in named])
    return _Found(tree=answer.tree, conflicts=[])


def _read(path: Path) -> _Cache | None:
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(path.read_bytes(), type=_Cache)
    return None


def _write(path: Path, cache: _Cache) -> None:
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        put_whole(path, msgspec.json.encode(cache))


def _key(
    view: View, check: Check, tree: str, header: TaskHeader, token: int, head: str
) -> str | None:
    """What the check's verdict on the merged tree is keyed by; None: it judged nothing like it."""
    if check.reads != "history":
        return judged_tree(view.hub, check, tree)
    for commit in _judged_commits(view, check):
        with contextlib.suppress(GitFault):  # a tree: by another definition it did not read history
            raw = view.hub.reader.commit(commit)
            facts = of_commit(raw).trailers
            is_its = (facts.get("Swarm-Task"), facts.get("Swarm-Token")) == (header.id, str(token))
            if is_its and raw.startswith(f"tree {tree}\nparent {view.target}\n".encode()):
                return commit
    return head if header.joins_history and view.hub.contains(head, view.target) else None


def _judged_commits(view: View, check: Check) -> Iterator[str]:
    name = re.compile(
        rf".*/([0-9a-f]{{40}}|[0-9a-f]{{64}})-{re.escape(check.name)}-[0-9a-f]{{12}}\.json"
    )
    for path, _ in view.iter_paths("verdicts"):
        match = name.fullmatch(path)
        if match is not None:
            yield match[1]
