"""What landed, given to the team: a branch of the upstream remote moved forward.

Enters: a workspace, a branch's name. Leaves: what was pushed, remembered; or why nothing was.
Guards: never forced, never red; what upstream has already is not given again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec

from swarm import config as configuration
from swarm import faults
from swarm.errors import SwarmError, TargetRed, UsageError
from swarm.ids import fold
from swarm.ledger.events import Event
from swarm.ledger.records import Push, Upstream
from swarm.ledger.store import Draft, refuse
from swarm.ledger.view import View
from swarm.overview.moment import read_moment
from swarm.overview.target import target_of
from swarm.plumbing import checkout as user
from swarm.plumbing import remote as remotes
from swarm.plumbing.hub import Hub
from swarm.plumbing.remote import Remote, RemoteUnreachable
from swarm.trailers import one_line
from swarm.upstream import Fetched, fetch, had_there, has_all, known_of, upstream_event
from swarm.workspace import Workspace, person

KEPT = 20  # branches whose last push is remembered, and as many pushes before those
MOST_SAID = 200  # characters of a stranger's words


class Ready(msgspec.Struct, frozen=True):
    """The branch can be moved forward, or holds the target's tip already."""

    remote: Remote
    branch: str
    old: str | None  # what it holds; None: it is new
    tip: str
    there: tuple[str, ...]  # beyond these commits upstream lacks what the target has
    over: str | None  # words of its last pull request, when upstream has all that this showed
    is_default: bool  # nobody named it


class NothingToGive(msgspec.Struct, frozen=True):
    """Upstream has all of the target, under whatever name: nothing was pushed."""

    upstream: str  # `origin/main`
    tip: str  # of the target


class Theirs(msgspec.Struct, frozen=True):
    """Commits on the branch that the target lacks."""

    count: int
    author: str  # of the newest
    subject: str


class Foreign(msgspec.Struct, frozen=True):
    """The branch has commits that the target lacks; nothing was pushed."""

    remote: str
    branch: str
    theirs: Theirs | None  # None: they could not be brought
    free: str  # a branch that can be pushed to instead
    is_upstream: bool  # it is the branch that `swarm sync` brings in
    is_default: bool


class Declined(msgspec.Struct, frozen=True):
    """The remote refused, by a hook or a rule of its own; nothing was pushed."""

    remote: str
    branch: str
    says: str
    is_upstream: bool


@dataclass(frozen=True)
class Delivered:
    """The branch of the remote holds the target's tip; `old` is what it held before."""

    remote: str
    branch: str
    old: str | None  # None: the branch is new
    new: str
    there: tuple[str, ...] = field(default=(), repr=False)  # see `Ready`
    over: str | None = None


def prepare(work: Workspace, named: str | None) -> Ready | NothingToGive | Foreign:
    """Choose the branch, and see whether it can be moved forward; nothing is changed.

    Without a name it is the branch that was given this very tip before, if the remote still holds
    it there, else as `[upstream] push_branch` says.

    Raises:
        UsageError: no name of a branch, no such remote, or no run to name the branch after.
        TargetRed: a check is known to fail on the tip.
        HubUnusable: the target is gone.
        GitFault: an object is missing.
        RemoteUnreachable: the remote did not answer.
    """
    branch = _read_name(named) if named is not None else None
    moment = read_moment(work)
    view, target, hub = moment.view, target_of(moment), work.ledger.hub
    tip = view.target or hub.tip(target.branch)  # an empty one would delete the branch
    if target.verdict is not None and target.verdict.value == "failed":
        raise TargetRed(
            f"{target.branch} {tip[:7]} is red: {target.verdict.check} failed; nothing was pushed",
            hint="swarm run --allow-red",
        )
    known = known_of(work, view)
    remote = remotes.find_remote(work.checkout, known.remote)
    there = _look(work, view, remote)
    if there and has_all(work, view, there):
        return NothingToGive(f"{known.remote}/{known.branch}", tip)
    if branch is None:
        for held in _given(known, tip):
            if remotes.tip_of(hub, remote, held, is_push=True) == tip:
                branch = held
                break
    chosen = branch or default_branch(work, view)
    old = remotes.tip_of(hub, remote, chosen, is_push=True)
    before = newest_push(known, chosen)
    is_over = before is not None and before.pr is not None and _is_within(hub, before.oid, there)
    over = before.pr if before is not None and is_over else None
    ready = Ready(remote, chosen, old, tip, tuple(there), over, named is None)
    if old is not None and not (hub.is_whole(old) and hub.contains(tip, old)):
        return _foreign(work, ready, old)
    return ready


def deliver(work: Workspace, ready: Ready) -> Delivered | Foreign | Declined:
    """Move the branch forward to the tip, and remember it.

    Raises:
        RemoteUnreachable: whether it was pushed is seen by doing it again.
        GitFault: the record cannot be written; the branch may have moved.

    Safe: killed anywhere, again: a branch that holds the tip already is only remembered.
    """
    hub, branch = work.ledger.hub, ready.branch
    if ready.old is None:
        _forget_pr(work, branch, "is gone")
    elif ready.over is not None:
        _forget_pr(work, branch, "has been merged")
    match remotes.push(hub, ready.remote, ready.tip, branch, ready.old):
        case remotes.NotForward():  # it moved meanwhile
            old = remotes.tip_of(hub, ready.remote, branch, is_push=True)
            return _foreign(work, ready, old)
        case remotes.Declined(says):
            return Declined(ready.remote.name, branch, says, _is_upstream(work, branch))
        case remotes.Pushed(old):
            faults.reach("push.after_push")
            remember(work, branch, ready.tip)
            faults.reach("push.after_record")
            return Delivered(ready.remote.name, branch, old, ready.tip, ready.there, ready.over)


# The branch


def default_branch(work: Workspace, view: View) -> str:
    """As `[upstream] push_branch` says, for the newest run and whoever types.

    Raises:
        UsageError: it names a run and there was none, or what it names is no branch.
    """
    pattern = work.config.upstream.push_branch
    runs = sorted(view.runs(), key=lambda run: run.started_at)
    if "{run}" in pattern and not runs:
        raise UsageError(
            "there has been no run to name the branch after",
            hint=f"swarm push --branch swarm/{work.config.target}",
        )
    filled = configuration.fill_branch(
        pattern,
        run=runs[-1].run if runs else "",
        target=work.config.target,
        user=_user(work) if "{user}" in pattern else "",
    )
    return _read_name(filled)


def likely_branch(work: Workspace, view: View) -> str:
    """What `swarm push` would push to, as far as that is known without the remote.

    Raises:
        UsageError: see `default_branch`.
    """
    given = _given(known_of(work, view), view.target)
    return given[0] if given else default_branch(work, view)


def _read_name(text: str) -> str:
    try:
        return configuration.read_branch(text)
    except ValueError as error:
        raise UsageError(f"--branch: {error}", hint="swarm push --branch swarm/work") from error


def _user(work: Workspace) -> str:
    for name in (user.user_name(work.checkout), person()):
        try:
            return fold(name)
        except ValueError:  # nothing of it can stand in every branch's name
            continue
    return "user"


def _given(known: Upstream, tip: str) -> list[str]:
    """Branches whose last push was this commit, newest first."""
    names = [push.branch for push in reversed(known.pushes) if push.oid == tip]
    last = ((name, newest_push(known, name)) for name in dict.fromkeys(names))
    return [name for name, push in last if push is not None and push.oid == tip]


def _free_name(hub: Hub, ready: Ready) -> str:
    """A branch like it that the remote lacks, or that only has to move forward."""
    taken = remotes.tips_below(hub, ready.remote, f"{ready.branch}-")
    number = 2
    while True:
        name = f"{ready.branch}-{number}"
        held = taken.get(name)
        is_ours = held is None or (hub.is_whole(held) and hub.contains(ready.tip, held))
        if is_ours and not any(other.startswith(f"{name}/") for other in taken):
            return name
        number += 1


def _foreign(work: Workspace, ready: Ready, old: str | None) -> Foreign:
    return Foreign(
        ready.remote.name,
        ready.branch,
        _theirs(work.ledger.hub, ready, old) if old is not None else None,
        _free_name(work.ledger.hub, ready),
        _is_upstream(work, ready.branch),
        ready.is_default,
    )


def _theirs(hub: Hub, ready: Ready, old: str) -> Theirs | None:
    there = replace(ready.remote, url=ready.remote.push_url)
    try:
        if not hub.is_whole(old) and remotes.fetch(hub, there, ready.branch) != old:
            return None
    except SwarmError:  # their words are a service; that they are there is the answer
        return None
    count = hub.git.run("rev-list", "--count", old, f"^{ready.tip}", "--").text
    said = hub.git.run("log", "-1", "--format=%an%x00%s", old, "--").text
    author, _, subject = (
        said.encode("utf-8", "surrogateescape").decode("utf-8", "replace").partition("\0")
    )
    return Theirs(int(count), one_line(author, 60), one_line(subject, MOST_SAID))


# What upstream has


def _look(work: Workspace, view: View, remote: Remote) -> list[str]:
    """Commits beyond which upstream lacks what the target has; as known when it has no answer."""
    try:
        return had_there(work, view, fetch(work))
    except RemoteUnreachable:
        if remote.url == remote.push_url:
            raise
    except SwarmError:  # no such branch, or one that git refuses
        pass
    known = known_of(work, view)
    if known.tip is None or not work.ledger.hub.is_whole(known.tip):
        return []
    return had_there(work, view, Fetched(known.remote, known.branch, known.tip))


def _is_within(hub: Hub, commit: str, tips: Iterable[str]) -> bool:
    if not hub.reader.has(commit):
        return False
    but = [f"^{tip}" for tip in tips]
    return not hub.git.run("rev-list", "--max-count=1", commit, *but, "--").lines


def _is_upstream(work: Workspace, branch: str) -> bool:
    return branch == work.config.upstream_branch


# What is remembered


def newest_push(record: Upstream, branch: str) -> Push | None:
    """The last one of a branch."""
    return next((push for push in reversed(record.pushes) if push.branch == branch), None)


def remember(work: Workspace, branch: str, oid: str, pr: str | None = None) -> None:
    """Write what a branch holds, and the words of a pull request that was opened for it.

    `pr` None: what is known of one stays.
    """

    def decide(view: View) -> Draft[None]:
        known = known_of(work, view)
        before = newest_push(known, branch)
        said = pr if pr is not None or before is None else before.pr
        if before is not None and (before.oid, before.pr) == (oid, said):
            return refuse(None)
        after = Push(branch=branch, oid=oid, at=view.now, pr=said)
        says = f"{known.remote}/{branch} holds {oid[:7]}"
        says += ", and has a pull request" if said is not None else ""
        return Draft((_pushed(known, after, says),), None)

    work.ledger.append(decide)


def _forget_pr(work: Workspace, branch: str, why: str) -> None:
    """The pull request is over, or its branch gone: the next one is a new one.

    Before the push: killed after it, the next one finds a branch that is there.
    """

    def decide(view: View) -> Draft[None]:
        known = known_of(work, view)
        before = newest_push(known, branch)
        if before is None or before.pr is None:
            return refuse(None)
        after = msgspec.structs.replace(before, pr=None, at=view.now)
        return Draft((_pushed(known, after, f"{known.remote}/{branch} {why}"),), None)

    work.ledger.append(decide)


def _pushed(known: Upstream, push: Push, says: str) -> Event:
    """The event that makes this the newest push of its branch."""
    earlier = [p for p in known.pushes if (p.branch, p.oid) != (push.branch, push.oid)]
    pushes = [*earlier, push]
    newest: dict[str, Push] = {}
    for known_push in reversed(pushes):
        newest.setdefault(known_push.branch, known_push)
    kept = list(newest.values())[:KEPT]
    kept += [p for p in pushes if p not in kept][-KEPT:]  # what was squashed may be an older one
    record = msgspec.structs.replace(known, pushes=[p for p in pushes if p in kept])
    facts = {"Swarm-Branch": push.branch, "Swarm-Head": push.oid}
    return upstream_event("pushed", says, record, facts)
