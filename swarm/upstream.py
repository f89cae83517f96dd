"""What the user's own remote branch has comes in, as a change through the gate.

Enters: a workspace whose checkout names the remote. Leaves: a queued change, or why there is none.
Guards: history that was rewritten is never taken unasked; the checkout is only read.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from swarm import faults
from swarm.change import compare
from swarm.errors import SwarmError
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.records import MANY_STRIKES, PERSON, QueueEntry, Task, TaskHeader, Upstream
from swarm.ledger.store import Draft, refuse
from swarm.ledger.view import State, View, readable
from swarm.offer import SYNC, Offer, Waits, iter_made, make, next_id
from swarm.plumbing import checkout as user
from swarm.plumbing import remote as remotes
from swarm.plumbing.hub import Hub
from swarm.same import Same, find_same, join, tips_there
from swarm.task import cancelled
from swarm.workspace import Workspace

_ENDED = (State.ABSENT, State.LANDED, State.CANCELLED)


class Fetched(msgspec.Struct, frozen=True):
    """What the remote branch holds; its commits are in the hub."""

    remote: str
    branch: str
    tip: str

    @property
    def name(self) -> str:
        """`origin/main`."""
        return f"{self.remote}/{self.branch}"

    @property
    def at(self) -> str:
        """`origin/main 3f9c2d1`."""
        return f"{self.name} {self.tip[:7]}"


class UpToDate(msgspec.Struct, frozen=True):
    """The target has all of it."""

    fetched: Fetched
    ended: str | None = None  # a task of an earlier sync, not needed any more: cancelled with this
    left: str | None = None  # such a task at which somebody works

    def says(self, target: str) -> str:
        """One line for people; so for all outcomes of a command."""
        return f"{target} has all of {self.fetched.at}"


class SyncQueued(msgspec.Struct, frozen=True):
    """It is on its way: a change that waits for the gate."""

    fetched: Fetched
    entry: QueueEntry
    commits: int  # of upstream that the target lacks
    same: Same | None  # what upstream has of ours under another name

    def says(self, target: str) -> str:
        many = f"{self.commits} commit{'s' if self.commits != 1 else ''}"
        return f"{self.fetched.at}: {many} that {target} lacks, queued as {self.entry.task}"


class Rewritten(msgspec.Struct, frozen=True):
    """It lacks a commit that it had when it was last taken: nothing was taken."""

    fetched: Fetched
    known: str

    def says(self, target: str) -> str:
        return f"{rewritten_says(self.fetched.name, self.known)}; nothing was taken"


def rewritten_says(name: str, known: str) -> str:
    """Of a branch that lacks a commit which it had."""
    return f"{name} was rewritten: it lacks {known[:7]}, which it had before"


Sync = UpToDate | SyncQueued | Waits | Rewritten


def fetch(work: Workspace, is_unwanted: Callable[[], bool] | None = None) -> Fetched:
    """Bring the commits of the upstream branch into the hub; no ref moves.

    `is_unwanted` is asked now and then; its yes ends the conversation.

    Raises:
        UsageError: the checkout has no such remote.
        SwarmError: the remote has no such branch.
        RemoteUnreachable: it did not answer.
    """
    settings = work.config.upstream
    branch = work.config.upstream_branch
    remote = remotes.find_remote(work.checkout, settings.remote, is_unwanted)
    tip = remotes.fetch(work.ledger.hub, remote, branch)
    if tip is None:
        hint = 'in swarm.toml, below [upstream]: branch = "its name there"'
        if user.has_branch(work.checkout, branch):
            hint += f"\ngit push {shlex.quote(settings.remote)} {shlex.quote(branch)}"
        raise SwarmError(f"{settings.remote} has no branch {branch}", hint=hint)
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
        if isinstance(answer, Rewritten):
            if is_sure:
                _note_rewritten(work, fetched, answer.known)
                return answer
            # Another process may have taken what came after this was fetched.
            before, fetched = fetched, fetch(work, is_unwanted)
            is_sure = before == fetched
        elif answer is not None:
            return answer


def _bring(
    work: Workspace, view: View, fetched: Fetched, is_rewrite_meant: bool
) -> Sync | None:  # None: the target or the record moved meanwhile
    hub, known = work.ledger.hub, record_of(view, fetched.remote, fetched.branch)
    if known.tip is not None and not _has(hub, fetched.tip, known.tip):
        if not is_rewrite_meant:
            return Rewritten(fetched, known.tip)
    elif known.rewritten is not None:
        _note_again(work, fetched)
        return None
    state = _state(view, known.task) if known.task else State.ABSENT
    is_new = fetched.tip != known.tip
    if known.task and view.is_landing(known.task):
        return _waits(fetched, known.task, state, is_new)  # in the target, maybe: the gate settles
    if hub.contains(view.target, fetched.tip):
        return _note_tip(work, fetched)
    is_again = state is State.OPEN and (is_new or _was_red_with_target(view, known.task))
    if is_again and known.task and _is_begun(view, known.task):
        return _waits(fetched, known.task, state, is_new)  # what somebody made of it goes on first
    if known.task and state not in _ENDED and not is_again:
        return _waits(fetched, known.task, state, is_new)
    if hub.find_merge_base(view.target, fetched.tip) is None:
        raise SwarmError(
            f"{fetched.name} and {view.target_branch} share no commit",
            why="it is another project's branch, or its history was written anew",
            hint="git remote -v",
        )
    same = find_same(hub, view.target, fetched.tip, known.pushes)
    head = _joined(hub, view, fetched, same) if same is not None else fetched.tip
    if known.task and is_again and not is_new and _work_of(view, known.task) != head:
        # What a person made of it is theirs to offer.
        return _waits(fetched, known.task, state, is_new)
    base = hub.find_merge_base(view.target, head)
    assert base is not None  # `head` holds the fetched tip
    differs = compare(hub, view.target, base, head, work.rules)
    count = int(hub.git.run("rev-list", "--count", fetched.tip, f"^{view.target}").text)

    def decide(now: View) -> Offer | None:
        if now.target != view.target or record_of(now, fetched.remote, fetched.branch) != known:
            return None
        task = _task(now, fetched)
        if is_again and known.task:
            task = readable(now.task, known.task) or task
        if _state(now, task.id) is not (State.OPEN if is_again else State.ABSENT):
            return None
        after = replace(known, tip=fetched.tip, task=task.id, taken_at=now.now, rewritten=None)
        says = f"{fetched.at} comes in as {task.id}"
        note = upstream_event("synced", says, after, {"Swarm-Tip": fetched.tip})
        return Offer("sync", task, head, differs, is_accepted=True, note=note)

    entry = make(work.ledger, work.rules, decide)
    return SyncQueued(fetched, entry, count, same) if entry is not None else None


def _waits(fetched: Fetched, task: str, state: State, is_new: bool) -> Waits:
    wanted = (fetched.at,)
    return Waits(task, state, () if is_new else wanted, wanted if is_new else ())


def _joined(hub: Hub, view: View, fetched: Fetched, same: Same) -> str:
    """Upstream's tip, and that it has what a commit of ours had: a merge base that is right."""
    message = (
        f"{fetched.name} has what {view.target_branch} had at {same.ours[:7]}\n\n"
        "Its files say so; git's history did not.\n"
    )
    return join(hub, fetched.tip, same.ours, message)


def had_there(work: Workspace, view: View, fetched: Fetched) -> list[str]:
    """Tips of all that upstream has, under our names for it too: it lacks what lies beyond them."""
    known = record_of(view, fetched.remote, fetched.branch)
    return tips_there(work.ledger.hub, view.target, fetched.tip, known.pushes)


def has_all(work: Workspace, view: View, there: Sequence[str]) -> bool:
    """Has upstream all that the target has?

    Args:
        there: as `had_there` gives it, upstream's tip first.
    """
    hub = work.ledger.hub
    if hub.reader.tree_of(view.target) == hub.reader.tree_of(there[0]):
        return True  # by its files, whatever history says
    but = [f"^{oid}" for oid in there]
    log = ("log", "--topo-order", "--reverse", "--format=%H %T %P", view.target)
    left = [row.split(" ") for row in hub.git.run(*log, *but, "--").lines]
    ours = set(hub.git.run("rev-list", view.target, *but[:1], "--").lines) if left else set()
    for oid, tree, *parents in left:
        # A merge with upstream's own files, such as a sync leaves: it only says that they are the
        # same. With files of ours, it may be somebody's word that theirs are to go.
        if len(parents) < 2 or not any(
            parent not in ours and hub.reader.tree_of(parent) == tree for parent in parents
        ):
            return False
        ours.discard(oid)
    return True


def has_all_as_known(work: Workspace, view: View) -> bool:
    """The same of what upstream had when it was last taken; False when that is not known."""
    known = known_of(work, view)
    if known.tip is None or not work.ledger.hub.is_whole(known.tip):
        return False
    fetched = Fetched(known.remote, known.branch, known.tip)
    return has_all(work, view, had_there(work, view, fetched))


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


def _is_begun(view: View, task: str) -> bool:
    """Did somebody give back a resolution that is not finished, or lose their claim of it?"""
    attempts = readable(view.attempts, task)
    last = attempts.last if attempts is not None else None
    return last is not None and last.outcome in ("stopped", "asked", "expired")


def _work_of(view: View, task: str) -> str | None:
    """The head of what was offered last, by whomever."""
    attempts = readable(view.attempts, task)
    return attempts.work.head if attempts is not None and attempts.work is not None else None


def known_of(work: Workspace, view: View) -> Upstream:
    """What is remembered of the configured branch of the remote."""
    return record_of(view, work.config.upstream.remote, work.config.upstream_branch)


def record_of(view: View, remote: str, branch: str) -> Upstream:
    """What is known of this very branch; of another one only what was pushed.

    A record that is gone or damaged costs a look: a sync that has not ended is found again.
    """
    known = view.upstream()
    if known is not None and (known.remote, known.branch) == (remote, branch):
        return known
    pushes = known.pushes if known is not None else []
    if known is not None and known.remote != remote:
        pushes = [replace(push, pr=None) for push in pushes]
    source = f"{remote}/{branch}"
    live = (task.id for task in _iter_syncs(view) if task.header.source == source)
    task = next((name for name in live if _state(view, name) not in _ENDED), None)
    return Upstream(remote=remote, branch=branch, task=task, pushes=pushes)


def _iter_syncs(view: View) -> Iterator[Task]:
    """Every task of a sync that can be read, oldest first."""
    for name in iter_made(view, SYNC):
        task = readable(view.task, name)
        if task is not None and task.header.joins_history:
            yield task


def _note_tip(work: Workspace, fetched: Fetched) -> UpToDate | None:
    """Remember that the target has all of it, and end a task that would bring it; None: it has no
    more.
    """

    def decide(view: View) -> Draft[UpToDate | None]:
        known = record_of(view, fetched.remote, fetched.branch)
        if not work.ledger.hub.contains(view.target, fetched.tip):
            return refuse(None)
        says = f"{view.target_branch} has all of {fetched.at}"
        after = replace(known, tip=fetched.tip, rewritten=None)
        events: list[Event] = []
        if after != known:
            after = replace(after, taken_at=view.now)
            events.append(upstream_event("synced", says, after, {"Swarm-Tip": fetched.tip}))
        state = _state(view, known.task) if known.task else State.ABSENT
        ended = known.task if state is State.OPEN else None
        if ended is not None:
            events.append(cancelled(view, ended, f"not needed any more: {says}", "sync"))
        left = known.task if state not in (*_ENDED, State.OPEN) else None
        return Draft(tuple(events), UpToDate(fetched, ended, left))

    return work.ledger.append(decide)


def _note_rewritten(work: Workspace, fetched: Fetched, known_tip: str) -> None:
    """Remember, once for each tip, that it lacks what is known of it: a person has to say."""

    def decide(view: View) -> Draft[None]:
        known = record_of(view, fetched.remote, fetched.branch)
        if known.tip != known_tip or known.rewritten == fetched.tip:
            return refuse(None)
        after = replace(known, rewritten=fetched.tip)
        says = f"{fetched.at} lacks {known_tip[:7]}, which was taken before; not taken"
        return Draft(
            (upstream_event("synced", says, after, {"Swarm-Rewritten": fetched.tip}),), None
        )

    work.ledger.append(decide)


def _note_again(work: Workspace, fetched: Fetched) -> None:
    """Forget that it was rewritten: it has again what is known of it."""

    def decide(view: View) -> Draft[None]:
        known = record_of(view, fetched.remote, fetched.branch)
        if known.rewritten is None:
            return refuse(None)
        after = replace(known, rewritten=None)
        says = f"{fetched.at} has again what it had before"
        return Draft((upstream_event("synced", says, after, {}),), None)

    work.ledger.append(decide)


def upstream_event(kind: str, says: str, record: Upstream, facts: dict[str, str]) -> Event:
    """The event that writes the record."""
    where = {"Swarm-Upstream": f"{record.remote}/{record.branch}"}
    return Event(
        kind, says, {records.UPSTREAM_PATH: records.encode(record)}, trailers=where | facts
    )


def _task(view: View, fetched: Fetched) -> Task:
    name = fetched.name
    header = TaskHeader(
        id=next_id(view, SYNC),
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
