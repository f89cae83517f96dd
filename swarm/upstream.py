"""The user's own remote branch: what it has comes in through the gate, what landed goes out.

Enters: a workspace whose checkout names the remote. Leaves: a queued change, or a pushed branch.
Guards: nothing is forced in either direction; history that was rewritten is never taken unasked;
the checkout is only read.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from swarm import faults
from swarm.change import compare
from swarm.errors import GitFault, SwarmError
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.records import PERSON, Push, QueueEntry, Task, TaskHeader, Upstream
from swarm.ledger.store import Draft, refuse
from swarm.ledger.view import State, View, readable
from swarm.merge import Attributes, Clean, merge_trees
from swarm.offer import Offer, next_id, offered
from swarm.plumbing import remote as remotes
from swarm.plumbing.hub import Hub
from swarm.workspace import Workspace

PREFIX = "sync"
MANY_STRIKES = 1000  # upstream may be red for long: each new commit of it is tried
LOOKED_AT = 200  # of upstream's own commits, for a squash of what we pushed
MOST_MERGED = 400  # merges tried to find one
_ENDED = (State.ABSENT, State.LANDED, State.CANCELLED)


@dataclass(frozen=True)
class Fetched:
    """What the remote branch holds; its commits are in the hub."""

    remote: str
    branch: str
    tip: str

    @property
    def name(self) -> str:
        """`origin/main`."""
        return f"{self.remote}/{self.branch}"


@dataclass(frozen=True)
class UpToDate:
    """The target has all of it."""

    fetched: Fetched
    left: str | None  # a task of an earlier sync that is not needed any more

    def says(self, target: str) -> str:
        """One line for people; so for all answers."""
        return f"{target} has all of {self.fetched.name} {self.fetched.tip[:7]}"


@dataclass(frozen=True)
class Offered:
    """It is on its way: a change that waits for the gate."""

    fetched: Fetched
    entry: QueueEntry
    commits: int  # of upstream that the target lacks
    same_as: tuple[str, str] | None  # (upstream's commit, ours) that were seen to be the same

    def says(self, target: str) -> str:
        many = f"{self.commits} commit{'s' if self.commits != 1 else ''}"
        where = f"{self.fetched.name} {self.fetched.tip[:7]}"
        return f"{where}: {many} that {target} lacks, queued as {self.entry.task}"


@dataclass(frozen=True)
class Waits:
    """An earlier sync has not ended: nothing was added."""

    fetched: Fetched
    task: str
    state: State

    def says(self, target: str) -> str:
        where = f"{self.fetched.name} {self.fetched.tip[:7]}"
        return f"{where} waits: {self.task} is {self.state.value}"


@dataclass(frozen=True)
class Rewritten:
    """It lacks a commit that it had when it was last taken: nothing was taken."""

    fetched: Fetched
    known: str

    def says(self, target: str) -> str:
        return (
            f"{self.fetched.name} was rewritten: it lacks {self.known[:7]}, which it had before; "
            f"nothing was taken"
        )


Sync = UpToDate | Offered | Waits | Rewritten


def fetch(work: Workspace, is_unwanted: Callable[[], bool] | None = None) -> Fetched:
    """Bring the commits of the upstream branch into the hub; no ref moves.

    `is_unwanted` is asked now and then; its yes ends the conversation.

    Raises:
        UsageError: the checkout has no such remote.
        SwarmError: the remote has no such branch.
        RemoteUnreachable: it did not answer.
    """
    settings = work.config.upstream
    branch = settings.branch or work.config.target
    remote = remotes.find_remote(work.checkout, settings.remote, is_unwanted)
    tip = remotes.fetch(work.ledger.hub, remote, branch)
    if tip is None:
        raise SwarmError(
            f"{settings.remote} has no branch {branch}",
            hint=f"git push {shlex.quote(settings.remote)} {shlex.quote(branch)}\n"
            'or in swarm.toml, below [upstream]: branch = "its name there"',
        )
    faults.reach("sync.after_fetch")
    return Fetched(settings.remote, branch, tip)


def bring(
    work: Workspace,
    fetched: Fetched,
    *,
    is_rewrite_meant: bool = False,
    is_unwanted: Callable[[], bool] | None = None,
) -> Sync:
    """Offer what upstream has and the target lacks to the gate, as one change.

    Where the target only has to go forward the gate lands upstream's own commit; else a merge. A
    squash of what we pushed is seen by its tree, so that nothing of it conflicts with itself.
    `is_unwanted`: see `fetch`.

    Raises:
        SwarmError: the histories share no commit.
        RemoteUnreachable: it looks rewritten, and that could not be made sure.

    Safe: twice, and from two processes at once, there is one task; killed anywhere, again.
    """
    is_sure = False
    while True:
        view = work.ledger.view()
        answer = _bring(work, view, fetched, is_rewrite_meant)
        if isinstance(answer, Rewritten) and not is_sure:
            # Another process may have taken what came after this was fetched.
            before, fetched = fetched, fetch(work, is_unwanted)
            is_sure = before == fetched
        elif answer is not None:
            return answer


def _bring(
    work: Workspace, view: View, fetched: Fetched, is_rewrite_meant: bool
) -> Sync | None:  # None: the target or the record moved meanwhile
    hub, known = work.ledger.hub, record_of(view, fetched.remote, fetched.branch)
    before = known.tip
    if before is not None and not is_rewrite_meant and not _has(hub, fetched.tip, before):
        return Rewritten(fetched, before)
    state = _state(view, known.task) if known.task else State.ABSENT
    if known.task and view.is_landing(known.task):
        return Waits(fetched, known.task, state)  # in the target, maybe: the gate settles it first
    if hub.contains(view.target, fetched.tip):
        left = known.task if state not in _ENDED else None
        return UpToDate(fetched, left) if _note_tip(work, fetched) else None
    is_new = fetched.tip != known.tip
    is_again = state is State.OPEN and (is_new or _was_red_with_target(view, known.task))
    if known.task and state not in _ENDED and not is_again:
        return Waits(fetched, known.task, state)
    if hub.git.run("merge-base", view.target, fetched.tip, ok=(0, 1)).code:
        raise SwarmError(
            f"{fetched.name} and {view.target_branch} share no commit",
            why="it is another project's branch, or its history was written anew",
            hint="git remote -v",
        )
    same = find_same(work, view, fetched, known.pushes)
    head = _joined(hub, view, fetched, same[1]) if same else fetched.tip
    if known.task and is_again and not is_new and _work_of(view, known.task) != head:
        return Waits(fetched, known.task, state)  # what a person made of it is theirs to offer
    base = hub.git.run("merge-base", view.target, head).text
    differs = compare(hub, view.target, base, head, work.rules)
    count = int(hub.git.run("rev-list", "--count", fetched.tip, f"^{view.target}").text)

    def decide(now: View) -> Draft[Offered | None]:
        if now.target != view.target or record_of(now, fetched.remote, fetched.branch) != known:
            return refuse(None)
        task = _task(now, fetched)
        if is_again and known.task:
            task = readable(now.task, known.task) or task
        if _state(now, task.id) is not (State.OPEN if is_again else State.ABSENT):
            return refuse(None)
        offer = Offer("sync", task, head, differs, is_accepted=True)
        events, move, entry = offered(work.ledger, now, offer, work.rules)
        after = msgspec.structs.replace(known, tip=fetched.tip, task=task.id, taken_at=now.now)
        says = f"{fetched.name} {fetched.tip[:7]} comes in as {task.id}"
        note = upstream_event("synced", says, after, {"Swarm-Tip": fetched.tip})
        value = Offered(fetched, entry, count, same)
        return Draft((*events, note), value, (move,))

    answer = work.ledger.append(decide)
    faults.reach("offer.after_transact")
    return answer


def _has(hub: Hub, tip: str, commit: str) -> bool:
    """Does a whole history have a commit, which may be missing in the hub?"""
    return hub.reader.has(commit) and hub.contains(tip, commit)


def _state(view: View, task: str) -> State:
    return State.DAMAGED if view.why_damaged(task) else view.state(task)


def _was_red_with_target(view: View, task: str | None) -> bool:
    """Was it red as the target was too, which is not known to be red any more?"""
    attempts = readable(view.attempts, task) if task else None
    last = attempts.last if attempts is not None else None
    return last is not None and last.base_verdict == "failed" and view.gate().paused is None


def _work_of(view: View, task: str) -> str | None:
    """The head of what was offered last, by whomever."""
    attempts = readable(view.attempts, task)
    return attempts.work.head if attempts is not None and attempts.work is not None else None


def record_of(view: View, remote: str, branch: str) -> Upstream:
    """What is known of this very branch; of another one only what was pushed.

    A record that is gone or damaged costs a look: a sync that has not ended is found again.
    """
    known = view.upstream()
    if known is not None and (known.remote, known.branch) == (remote, branch):
        return known
    pushes = known.pushes if known is not None else []
    if known is not None and known.remote != remote:
        pushes = [msgspec.structs.replace(push, has_request=False) for push in pushes]
    source = f"{remote}/{branch}"
    live = (task.id for task in _iter_syncs(view) if task.header.source == source)
    task = next((name for name in live if _state(view, name) not in _ENDED), None)
    return Upstream(remote=remote, branch=branch, task=task, pushes=pushes)


def _iter_syncs(view: View) -> Iterator[Task]:
    """Every task of a sync that can be read, oldest first."""
    number = 1
    while view.state(name := f"{PREFIX}-{number}") is not State.ABSENT:
        number += 1
        task = readable(view.task, name)
        if task is not None and task.header.joins_history:
            yield task


def _note_tip(work: Workspace, fetched: Fetched) -> bool:
    """Remember that the target has all of it; False: it has no more."""

    def decide(view: View) -> Draft[bool]:
        known = record_of(view, fetched.remote, fetched.branch)
        if not work.ledger.hub.contains(view.target, fetched.tip):
            return refuse(False)
        if known.tip == fetched.tip:
            return refuse(True)
        after = msgspec.structs.replace(known, tip=fetched.tip, taken_at=view.now)
        says = f"{view.target_branch} has all of {fetched.name} {fetched.tip[:7]}"
        return Draft((upstream_event("synced", says, after, {"Swarm-Tip": fetched.tip}),), True)

    return work.ledger.append(decide)


def upstream_event(kind: str, says: str, record: Upstream, facts: dict[str, str]) -> Event:
    """The event that writes the record."""
    where = {"Swarm-Upstream": f"{record.remote}/{record.branch}"}
    return Event(
        kind, says, {records.UPSTREAM_PATH: records.encode(record)}, trailers=where | facts
    )


def _task(view: View, fetched: Fetched) -> Task:
    name = fetched.name
    header = TaskHeader(
        id=next_id(view, PREFIX),
        title=f"Bring in {name}",
        added_at=view.now,
        priority=100,
        role=PERSON,
        strikes=MANY_STRIKES,
        source=name,
        joins_history=True,
    )
    body = (
        f"{name} has commits that {view.target_branch} lacks. They are merged and checked like\n"
        "any change.\n\n"
        "Where both changed the same lines somebody who knows both sides resolves it: in the\n"
        "worktree of this task both are merged, with markers. Keep what both meant.\n"
    )
    return Task(header=header, body=body)


# What we have under another name


def find_same(
    work: Workspace, view: View, fetched: Fetched, pushes: Iterable[Push]
) -> tuple[str, str] | None:
    """(upstream's commit, ours) with the same files: upstream has ours, squashed or rebased.

    The newest such pair along both first parents. One that was made on top of what upstream had
    meanwhile is found too: it is what git makes of merging there what we pushed.

    Raises:
        GitFault: an object is missing.
    """
    hub = work.ledger.hub
    before = _taken_before(hub, view.target, fetched.tip)
    ours: dict[str, str] = {}
    for oid, tree, _ in _steps(hub, view.target, before):
        ours.setdefault(tree, oid)
    theirs = _steps(hub, fetched.tip, [view.target])
    found = next(
        (_Same(number, ours[tree]) for number, (_, tree, _) in enumerate(theirs) if tree in ours),
        None,
    )
    pushed = dict.fromkeys(push.oid for push in reversed(list(pushes)))
    held = [oid for oid in pushed if hub.reader.has(oid)]
    lacking = _beyond(hub, held, before) - _beyond(hub, held, [view.target])
    known = [oid for oid in held if oid in lacking]
    while newer := _merged_there(hub, theirs, known, fetched.tip, found):
        found = newer
    return (theirs[found.step][0], found.ours) if found is not None else None


@dataclass(frozen=True)
class _Same:
    """One of upstream's steps, by its place, that has the files of a commit of ours."""

    step: int
    ours: str


def _merged_there(
    hub: Hub,
    theirs: list[tuple[str, str, list[str]]],
    pushed: list[str],
    tip: str,
    known: _Same | None,
) -> _Same | None:
    """The newest of upstream's steps that some push was merged into, newer than the known one."""
    steps = theirs[: known.step if known is not None else len(theirs)][:LOOKED_AT]
    if known is not None:
        beyond = _beyond(hub, pushed, [known.ours])
        pushed = [oid for oid in pushed if oid in beyond]
    if not steps or not pushed:
        return None
    newest: dict[str, int] = {}  # tree -> step
    for number, (_, tree, _) in enumerate(steps):
        newest.setdefault(tree, number)
    touched: dict[str, set[str]] = {}
    for oid in pushed:
        base = hub.git.run("merge-base", tip, oid, ok=(0, 1)).text
        touched[oid] = set(hub.changed_paths(base, oid)) if base else set()
    left = MOST_MERGED
    with tempfile.TemporaryDirectory(prefix="swarm-") as folder:  # a gate may use its own meanwhile
        attributes = Attributes(hub, Path(folder))
        for number, (oid, _, parents) in enumerate(steps):
            if len(parents) != 1:
                continue
            paths = set(hub.changed_paths(parents[0], oid))
            for ours in pushed:
                if not paths or not paths <= touched[ours] or not left:
                    continue
                left -= 1
                side = parents[0] if known is None else _alike(hub, parents[0], known.ours)
                rules = attributes.at(hub.reader.tree_of(side))
                merged = merge_trees(hub, side, ours, rules)
                # Rebased, it takes several steps to get there.
                if isinstance(merged, Clean) and newest.get(merged.tree, number + 1) <= number:
                    return _Same(newest[merged.tree], ours)
    return None


def had_there(work: Workspace, view: View, fetched: Fetched) -> list[str]:
    """Tips of all that upstream has, under our names for it too: it lacks what lies beyond them."""
    known = record_of(view, fetched.remote, fetched.branch)
    same = find_same(work, view, fetched, known.pushes)
    found = _taken_before(work.ledger.hub, view.target, fetched.tip)
    return [*found, *(same[1:] if same else ())]


def _taken_before(hub: Hub, target: str, tip: str) -> list[str]:
    """Upstream's tip, and our own commits that were seen to be the same as one before it."""
    rows = hub.git.run("log", "--merges", "--format=%T %P", target, f"^{tip}", "--").lines
    joins: list[list[str]] = []
    for row in rows:
        tree, *parents = row.split(" ")
        # As `_joined` makes them: what came in had the files of all its parents already.
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


def _steps(hub: Hub, tip: str, without: Iterable[str]) -> list[tuple[str, str, list[str]]]:
    """(commit, tree, parents) along first parents from `tip`, newest first."""
    but = [f"^{oid}" for oid in without]
    rows = hub.git.run("log", "--first-parent", "--format=%H %T %P", tip, *but, "--").lines
    return [(oid, tree, parents) for oid, tree, *parents in (row.split(" ") for row in rows)]


def _joined(hub: Hub, view: View, fetched: Fetched, ours: str) -> str:
    """Upstream's tip, and that it has what a commit of ours had: a merge base that is right."""
    message = (
        f"{fetched.name} has what {view.target_branch} had at {ours[:7]}\n\n"
        "Its files say so; git's history did not.\n"
    )
    return _alike(hub, fetched.tip, ours, message)


def _alike(hub: Hub, theirs: str, ours: str, message: str = "alike\n") -> str:
    """A commit with their files and both histories; the same inputs give the same commit.

    Raises:
        GitFault: it cannot be written.
    """
    raw = hub.reader.commit(theirs).partition(b"\n\n")[0].decode("utf-8", "replace")
    when = next(line for line in raw.split("\n") if line.startswith("committer ")).rsplit(" ", 2)
    batch = hub.batch()
    who = "swarm <swarm@swarm.invalid>"
    tree = hub.reader.tree_of(theirs)
    oid = batch.commit(tree, [theirs, ours], message, who, f"{when[1]} +0000")
    try:
        batch.write()
    except OSError as error:
        raise GitFault("the hub is not writable", why=str(error)) from error
    return oid
