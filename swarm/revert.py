"""Taking landings back: one change that undoes them, newest first, on top of what the target is.

Enters: landed tasks. Leaves: a queued change, or why there is none.
Guards: the target only goes forward; what was undone stays landed in the ledger, since it did land;
what others built on it is named, and judged by the checks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import msgspec

from swarm.change import compare
from swarm.errors import NotFound
from swarm.ledger.records import Done, QueueEntry, Task, TaskHeader, run_path
from swarm.ledger.store import Ledger
from swarm.ledger.view import State, View, readable
from swarm.merge import Attributes, Conflict, merge_trees
from swarm.offer import REVERT, SYNC, Offer, Waits, iter_made, make, next_id
from swarm.plumbing.hub import Hub
from swarm.trailers import one_line
from swarm.workspace import Workspace

ROUNDS = 6  # times that what stands on it is added, to find a set that can be undone
MOST_HINTED = 20  # tasks that a person is asked to name
MOST_PATHS = 100  # of a conflict that are looked at for other people's commits
MOST_COMMITS = 5  # that are named
_AUTHOR = "swarm <swarm@swarm.invalid>"
_LIVE = (State.OPEN, State.CLAIMED, State.QUEUED, State.HELD, State.PARKED)


class RevertQueued(msgspec.Struct, frozen=True):
    """A change that undoes these waits for the gate."""

    entry: QueueEntry
    undoes: tuple[str, ...]  # newest landing first
    left: tuple[str, ...]  # the target has nothing of these any more
    never: tuple[str, ...]  # landed, and changed no file

    def says(self, target: str) -> str:
        """One line for people; so for all outcomes of a command."""
        entry, word = self.entry, "held" if self.entry.is_held else "queued"
        stat = f"{entry.files} file{'s' if entry.files != 1 else ''}"
        return f"{stat} +{entry.insertions} -{entry.deletions} on {target}, {word} as {entry.task}"


class NothingLeft(msgspec.Struct, frozen=True):
    """The target has nothing of them; nothing was added."""

    left: tuple[str, ...]  # any more
    never: tuple[str, ...] = ()  # landed, and changed no file

    def says(self, target: str) -> str:
        said = [left_says(self.left, target)] if self.left else []
        return "; ".join(said + ([never_says(self.never, target)] if self.never else []))


def left_says(tasks: Sequence[str], target: str) -> str:
    """Of tasks that were undone already, or whose work others took out."""
    return f"{target} has nothing of {_named(tasks)} any more"


def never_says(tasks: Sequence[str], target: str) -> str:
    """Of tasks whose landing left every file as it was."""
    return f"{_named(tasks)} changed no file of {target}"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


class Later(msgspec.Struct, frozen=True):
    """A commit that no landing of a task's made, and that changed the same lines, it may be."""

    oid: str
    author: str  # printable
    subject: str  # printable

    def says(self) -> str:
        """`3f9c2d1 by Ada "Tidy up"`."""
        return f'{self.oid[:7]} by {self.author} "{self.subject}"'


class Entangled(msgspec.Struct, frozen=True):
    """Later work changed the same lines: it cannot be undone by itself; nothing was added."""

    task: str
    paths: tuple[str, ...]
    later: tuple[str, ...]  # landed tasks that changed these paths since, newest first
    commits: tuple[Later, ...]  # of people and of upstream that did, newest first
    together: tuple[str, ...]  # what can be undone at once, the wanted ones last; empty: not known

    def says(self, target: str) -> str:
        by = [*self.later[:5], *(commit.says() for commit in self.commits)]
        named = ", ".join(one_line(path, 80) for path in self.paths[:5])
        changed = f"{named} was changed again" + (f" by {', '.join(by)}" if by else "")
        return f"{self.task} cannot be undone by itself: {changed}"


class NotLanded(msgspec.Struct, frozen=True):
    """Nothing of it is in the target."""

    task: str
    state: State

    def says(self, target: str) -> str:
        return f"{self.task} is {self.state.value}: nothing of it is in {target}"


Answer = RevertQueued | NothingLeft | Waits | Entangled | NotLanded


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

    By distance, then id; cancelled ones, and landed ones that were undone, are left out.
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
    undone = find_undone(view)
    known = ((task, view.state(task), need) for task, need in found.items() if task not in undone)
    return [row for row in known if row[1] is not State.CANCELLED]


def undone_by(view: View, task: str) -> list[str]:
    """Tasks that undo a landed one and were not cancelled, oldest first."""
    return [
        other.id
        for other in _reverts(view)
        if task in other.header.undoes and view.state(other.id) is not State.CANCELLED
    ]


def find_undone(view: View, without: Collection[str] = ()) -> dict[str, str]:
    """Landed tasks that the target has no more, each with the newest task that undid it.

    Args:
        without: tasks that count as not landed.
    """
    by: dict[str, list[str]] = {}
    for other in _reverts(view):
        if other.id not in without and view.state(other.id) is State.LANDED:
            for task in other.header.undoes:
                by.setdefault(task, []).append(other.id)

    def undoers(task: str) -> list[str]:
        return [other for other in by.get(task, ()) if not undoers(other)]

    found = {task: undoers(task) for task in by}
    return {task: others[-1] for task, others in found.items() if others}


def _reverts(view: View) -> Iterator[Task]:
    for name in iter_made(view, REVERT):
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
    for task in tasks:
        if _landing(view, task) is None:
            return NotLanded(task, view.state(task))
    waits = _find_live(view, tasks)
    if waits is not None:
        return waits
    undoing = _undo(view, tasks)
    if isinstance(undoing, _Clash):
        done = _landing(view, undoing.task)
        assert done is not None
        return Entangled(
            undoing.task,
            undoing.paths,
            _later(view, done, undoing.paths),
            _later_commits(view, done, undoing.paths),
            _together(view, tasks, undoing),
        )
    never = tuple(task for task in undoing.left if _is_empty(view, task))
    left = tuple(task for task in undoing.left if task not in never)
    if not undoing.undone:
        return NothingLeft(left, never)
    differs = compare(hub, view.target, view.target, undoing.head, work.rules)

    def decide(now: View) -> Offer | None:
        if now.target != view.target or _find_live(now, tasks) is not None:
            return None
        return Offer("revert", _task(now, undoing.undone), undoing.head, differs)

    entry = make(work.ledger, work.rules, decide)
    return RevertQueued(entry, undoing.undone, left, never) if entry is not None else None


def _landing(view: View, task: str) -> Done | None:
    """The record of a task that the target has; None: it has it not."""
    done = view.done(task) if view.state(task) is State.LANDED else None
    if done is None or done.landed is None or not view.hub.contains(view.target, done.landed):
        return None
    return done


def _is_empty(view: View, task: str) -> bool:
    """Did its landing leave every file as it was?"""
    done, reader = _landing(view, task), view.hub.reader
    if done is None or done.landed is None or done.previous is None:
        return False
    return reader.tree_of(done.landed) == reader.tree_of(done.previous)


def _find_live(view: View, tasks: Sequence[str]) -> Waits | None:
    for other in _reverts(view):
        state, undoes = view.state(other.id), other.header.undoes
        if state in _LIVE and set(tasks) & set(undoes):
            brings = tuple(task for task in tasks if task in undoes)
            return Waits(other.id, state, brings, tuple(t for t in tasks if t not in undoes))
    return None


class _Undoing(msgspec.Struct, frozen=True):
    """A commit on top of the target in which these are undone; on no ref."""

    head: str
    undone: tuple[str, ...]  # newest landing first
    left: tuple[str, ...]  # there was nothing to undo of these


class _Clash(msgspec.Struct, frozen=True):
    """The first of them that cannot be undone."""

    task: str
    paths: tuple[str, ...]


def _undo(view: View, tasks: Sequence[str]) -> _Undoing | _Clash:
    """Undo landed tasks on top of the target; only objects are written."""
    hub = view.hub
    gone = find_undone(view, without=tasks)  # what they undid is back once they are undone
    landings = {task: done for task in tasks if task not in gone and (done := _landing(view, task))}
    undone: list[str] = []
    head = view.target
    with tempfile.TemporaryDirectory(prefix="swarm-") as folder:
        rules = Attributes(hub, Path(folder)).at(hub.reader.tree_of(view.target))
        for task in _newest_first(hub, view.target, landings) if landings else ():
            merged = merge_trees(hub, head, _before(hub, view, landings[task]), rules)
            if isinstance(merged, Conflict):
                return _Clash(task, merged.paths)
            if merged.tree != hub.reader.tree_of(head):
                head = _step(hub, view, task, landings[task], merged.tree, head)
                undone.append(task)
    if hub.reader.tree_of(head) == hub.reader.tree_of(view.target):
        head, undone = view.target, []  # a revert and what it undid
    return _Undoing(head, tuple(undone), tuple(task for task in tasks if task not in undone))


def _together(view: View, tasks: tuple[str, ...], clash: _Clash) -> tuple[str, ...]:
    """These and the later ones that stand on them, if all that can be undone at once."""
    wanted = tasks
    for _ in range(ROUNDS):
        done = _landing(view, clash.task)
        later = _later(view, done, clash.paths) if done is not None else ()
        more = tuple(task for task in later if task not in wanted and _landing(view, task))
        wanted = (*more, *wanted)
        if not more or len(wanted) > MOST_HINTED or _find_live(view, wanted) is not None:
            return ()
        tried = _undo(view, wanted)
        if isinstance(tried, _Undoing):
            return wanted if tried.undone else ()
        clash = tried
    return ()


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
    return tuple(
        task
        for task, landing in _landings_since(view, done)
        if wanted.intersection(hub.changed_paths(landing.previous or "", landing.landed or ""))
    )


def _landings_since(view: View, done: Done) -> list[tuple[str, Done]]:
    """What landed after it, newest first."""
    # What upstream's own commit brought in has no word of ours in it.
    syncs = {
        landing.landed: task
        for task in iter_made(view, SYNC)
        if (landing := readable(view.done, task)) is not None and landing.landed is not None
    }
    own = "--format=%H %(trailers:key=Swarm-Task,valueonly,separator=%x20)"
    found: list[tuple[str, Done]] = []
    for row in view.hub.git.run("log", "-z", own, view.target, f"^{done.landed}").fields:
        oid, _, named = row.partition(" ")
        name = syncs.get(oid) or (named if named.isascii() else "")
        landing = readable(view.done, name) if name else None
        if landing is None or landing.landed != oid or landing.previous is None:
            continue  # an agent's commit may say anything
        found.append((name, landing))
    return found


def _later_commits(view: View, done: Done, paths: Sequence[str]) -> tuple[Later, ...]:
    """Commits since that changed one of these paths and that no task of ours made, newest first."""
    git = view.hub.git
    made: set[str] = set()
    for task, landing in _landings_since(view, done):
        known = readable(view.task, task)
        if known is None or not known.header.joins_history:
            made.update(git.run("rev-list", landing.landed or "", f"^{landing.previous}").lines)
    listed = git.run(
        "--literal-pathspecs",
        "log",
        "-z",
        "--no-merges",
        "--full-history",
        "--format=%H%x1f%an%x1f%s",
        view.target,
        f"^{done.landed}",
        "--",
        *paths[:MOST_PATHS],
    ).fields
    found: list[Later] = []
    for row in listed:
        oid, author, subject = row.split("\x1f", 2)
        if oid not in made:
            found.append(Later(oid, one_line(author, 30), one_line(subject, 50)))
    return tuple(found[:MOST_COMMITS])


def _task(view: View, undone: Sequence[str]) -> Task:
    named = undone[0] if len(undone) == 1 else f"{len(undone)} tasks"
    header = TaskHeader(
        id=next_id(view, REVERT),
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
