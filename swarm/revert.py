"""Taking landings back: one change that undoes them, newest first, on top of what the target is.

Enters: landed tasks. Leaves: a queued change, or why there is none.
Guards: the target only goes forward; what was undone stays landed in the ledger, since it did land;
what others built on it is named, and judged by the checks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from swarm import faults
from swarm.change import compare
from swarm.errors import NotFound
from swarm.ledger.records import Done, QueueEntry, Task, TaskHeader, run_path
from swarm.ledger.store import Draft, Ledger, refuse
from swarm.ledger.view import State, View, readable
from swarm.merge import Attributes, Conflict, merge_trees
from swarm.offer import Offer, next_id, offered
from swarm.plumbing.hub import Hub
from swarm.trailers import one_line
from swarm.workspace import Workspace

PREFIX = "revert"
_AUTHOR = "swarm <swarm@swarm.invalid>"
_LIVE = (State.OPEN, State.CLAIMED, State.QUEUED, State.HELD, State.PARKED)


@dataclass(frozen=True)
class Offered:
    """A change that undoes these waits for the gate; `left` had been undone already."""

    entry: QueueEntry
    undoes: tuple[str, ...]  # newest landing first
    left: tuple[str, ...]


@dataclass(frozen=True)
class NothingLeft:
    """The target has nothing of them any more."""

    tasks: tuple[str, ...]


@dataclass(frozen=True)
class OnItsWay:
    """A task that undoes one of them has not ended: nothing was added."""

    task: str
    state: State
    undoes: tuple[str, ...]


@dataclass(frozen=True)
class Entangled:
    """Later work changed the same lines: it cannot be undone by itself; nothing was added."""

    task: str
    paths: tuple[str, ...]
    later: tuple[str, ...]  # landed tasks that changed these paths since, newest first


@dataclass(frozen=True)
class NotLanded:
    """Nothing of it is in the target."""

    task: str
    state: State


Answer = Offered | NothingLeft | OnItsWay | Entangled | NotLanded


def landed_in(ledger: Ledger, run: str) -> list[str]:
    """Tasks whose claim was of the run and that have landed, newest first; may be empty.

    Raises:
        NotFound: there is no such run.
    """
    view = ledger.view()
    if not run or view.blob_id(run_path(run)) is None:
        newest = sorted(view.runs(), key=lambda one: one.started_at)[-5:]
        runs = ", ".join(one.run for one in newest)
        raise NotFound(
            f"there is no run {one_line(run, 40)}", hint=f"known: {runs}" if runs else "swarm log"
        )
    found: list[str] = []
    for logged in ledger.iter_log(view.tip):
        facts = logged.message.trailers
        if facts.get("Swarm-Run") != run:
            continue
        if logged.kind == "run-started":
            break
        if logged.kind == "landed" and view.state(logged.task) is State.LANDED:
            found.append(logged.task)
    return found


def dependants(ledger: Ledger, view: View, tasks: Sequence[str]) -> list[tuple[str, State, str]]:
    """(task, its state, what it needs) of all that build on these, directly or through others.

    By distance, then id; cancelled ones are left out.
    """
    builds_on: dict[str, list[str]] = {}
    for task, needs in ledger.index.needs(view).items():
        for need in needs:
            builds_on.setdefault(need, []).append(task)
    found: dict[str, str] = {}
    ring = sorted(set(tasks))
    while ring:
        fresh: dict[str, str] = {}
        for need in ring:
            for task in builds_on.get(need, ()):
                if task not in found and task not in tasks:
                    fresh.setdefault(task, need)
        found |= dict(sorted(fresh.items()))
        ring = sorted(fresh)
    known = ((task, view.state(task), need) for task, need in found.items())
    return [row for row in known if row[1] is not State.CANCELLED]


def undone_by(view: View, task: str) -> list[str]:
    """Tasks that undo a landed one and were not cancelled, oldest first."""
    return [
        other.id
        for other in _reverts(view)
        if task in other.header.undoes and view.state(other.id) is not State.CANCELLED
    ]


def find_undone(view: View) -> dict[str, str]:
    """Landed tasks that the target has no more, each with the newest task that undid it."""
    by: dict[str, list[str]] = {}
    for other in _reverts(view):
        if view.state(other.id) is State.LANDED:
            for task in other.header.undoes:
                by.setdefault(task, []).append(other.id)

    def undoers(task: str) -> list[str]:
        return [other for other in by.get(task, ()) if not undoers(other)]

    found = {task: undoers(task) for task in by}
    return {task: others[-1] for task, others in found.items() if others}


def _reverts(view: View) -> Iterator[Task]:
    number = 1
    while view.state(name := f"{PREFIX}-{number}") is not State.ABSENT:
        number += 1
        found = readable(view.task, name)
        if found is not None and found.header.undoes:
            yield found


def revert(work: Workspace, tasks: Sequence[str]) -> Answer:
    """Offer a change to the gate that takes these tasks' landings back.

    Each is undone as `git revert` would: a three-way merge whose base is the landing and whose
    other side is what the target was before it.

    Raises:
        GitFault: an object is missing; nothing was added.

    Safe: twice, and from two processes at once, there is one task; killed anywhere, again.
    """
    while True:
        answer = _revert(work, work.ledger.view(), tuple(dict.fromkeys(tasks)))
        if answer is not None:
            return answer


def _revert(work: Workspace, view: View, tasks: tuple[str, ...]) -> Answer | None:
    """None: the target moved meanwhile."""
    hub = work.ledger.hub
    landings: dict[str, Done] = {}
    for task in tasks:
        done = view.done(task) if view.state(task) is State.LANDED else None
        if done is None or done.landed is None or not hub.contains(view.target, done.landed):
            return NotLanded(task, view.state(task))
        landings[task] = done
    on_its_way = _find_live(view, tasks)
    if on_its_way is not None:
        return on_its_way
    gone = find_undone(view)
    left = [task for task in tasks if task in gone]
    for task in left:
        del landings[task]
    if not landings:
        return NothingLeft(tasks)
    undone: list[str] = []
    head = view.target
    with tempfile.TemporaryDirectory(prefix="swarm-") as folder:
        rules = Attributes(hub, Path(folder)).at(hub.reader.tree_of(view.target))
        for task in _newest_first(hub, view.target, landings):
            merged = merge_trees(hub, head, _before(hub, view, landings[task]), rules)
            if isinstance(merged, Conflict):
                later = _later(view, landings[task], merged.paths)
                return Entangled(task, merged.paths, later)
            if merged.tree != hub.reader.tree_of(head):
                head = _step(hub, view, task, landings[task], merged.tree, head)
                undone.append(task)
    if not undone:
        return NothingLeft(tasks)
    rest = tuple(task for task in tasks if task not in undone)
    differs = compare(hub, view.target, view.target, head, work.rules)

    def decide(now: View) -> Draft[Answer | None]:
        if now.target != view.target or _find_live(now, tasks) is not None:
            return refuse(None)
        offer = Offer("revert", _task(now, undone), head, differs)
        events, move, entry = offered(work.ledger, now, offer, work.rules)
        return Draft(events, Offered(entry, tuple(undone), rest), (move,))

    answer = work.ledger.append(decide)
    faults.reach("offer.after_transact")
    return answer


def _find_live(view: View, tasks: Iterable[str]) -> OnItsWay | None:
    wanted = set(tasks)
    for other in _reverts(view):
        state = view.state(other.id)
        if state in _LIVE and wanted & set(other.header.undoes):
            return OnItsWay(other.id, state, tuple(other.header.undoes))
    return None


def _newest_first(hub: Hub, target: str, landings: dict[str, Done]) -> list[str]:
    """In the order in which the target's history holds them."""
    bottoms = [done.previous or "" for done in landings.values()]
    oldest = hub.git.run("merge-base", "--octopus", *bottoms).text
    walk = hub.git.run("rev-list", "--topo-order", target, f"^{oldest}").lines
    place = {oid: number for number, oid in enumerate(walk)}
    return sorted(landings, key=lambda task: place[landings[task].landed or ""])


def _before(hub: Hub, view: View, done: Done) -> str:
    """A commit on top of the landing that holds what the target was before it; on no ref."""
    assert done.landed is not None and done.previous is not None
    batch = hub.batch()
    at = f"{int(view.now.timestamp())} +0000"
    tree = hub.reader.tree_of(done.previous)
    oid = batch.commit(tree, [done.landed], "before\n", _AUTHOR, at)
    batch.write()
    return oid


def _step(hub: Hub, view: View, task: str, done: Done, tree: str, parent: str) -> str:
    known = readable(view.task, task)
    title = one_line(known.header.title, 120) if known is not None else task
    message = (
        f'Revert "{title}"\n\nTakes back what task {task} changed.\n'
        f"This reverts commit {done.landed}.\n"
    )
    batch = hub.batch()
    at = f"{int(view.now.timestamp())} +0000"
    oid = batch.commit(tree, [parent], message, _AUTHOR, at)
    batch.write()
    return oid


def _later(view: View, done: Done, paths: Sequence[str]) -> tuple[str, ...]:
    """Tasks that landed after it and changed one of these paths, newest first."""
    hub, wanted = view.hub, set(paths)
    own = "--format=%H %(trailers:key=Swarm-Task,valueonly,separator=%x20)"
    found: list[str] = []
    for row in hub.git.run("log", "-z", own, view.target, f"^{done.landed}").fields:
        oid, _, name = row.partition(" ")
        landing = readable(view.done, name) if name and name.isascii() else None
        if landing is None or landing.landed != oid or landing.previous is None:
            continue  # an agent's commit may say anything
        if wanted.intersection(hub.changed_paths(landing.previous, oid)):
            found.append(name)
    return tuple(found)


def _task(view: View, undone: Sequence[str]) -> Task:
    named = undone[0] if len(undone) == 1 else f"{len(undone)} tasks"
    header = TaskHeader(
        id=next_id(view, PREFIX),
        title=f"Undo {named}",
        added_at=view.now,
        priority=100,
        source=one_line(f"revert of {', '.join(undone)}", 200),
        undoes=list(undone),
    )
    listed = "".join(f"- {task}\n" for task in undone)
    body = (
        "Take back what these tasks changed; keep what others built since, as far as it can stand\n"
        f"without them:\n\n{listed}\nThe work so far is what `git revert` makes of it.\n"
    )
    return Task(header=header, body=body)
