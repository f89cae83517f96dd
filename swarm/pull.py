"""What landed, into the user's own branch: a fast-forward, or why there is none.

Enters: a workspace. Leaves: an outcome; the checkout moved forward only for `Forwarded`.
Guards: git itself says whether uncommitted work is safe; what is published is not written anew.
"""

from __future__ import annotations

import os

import msgspec

from swarm.adopt import REMOTE, is_our_remote
from swarm.plumbing import checkout as user
from swarm.plumbing.checkout import Checkout
from swarm.plumbing.git import Git
from swarm.plumbing.hub import Hub
from swarm.workspace import Workspace


class Forwarded(msgspec.Struct, frozen=True):
    """The branch went from `old` to `new`; in a dry run it would."""

    old: str
    new: str
    commits: tuple[str, ...]  # the target's own steps, oldest first: `abc1234 subject`
    paths: tuple[str, ...]  # that differ, sorted
    insertions: int
    deletions: int


class NothingNew(msgspec.Struct, frozen=True):
    """The branch has all that landed."""

    head: str


class Elsewhere(msgspec.Struct, frozen=True):
    """The checkout is not on the target's branch, or has no commit."""

    branch: str | None  # None: detached


class NotOurs(msgspec.Struct, frozen=True):
    """The remote through which the hub is reached is gone, or leads elsewhere."""

    url: str | None  # None: it is gone


class Apart(msgspec.Struct, frozen=True):
    """The branch has commits that the hub lacks."""

    is_published: bool  # all of these are on the upstream branch, as last fetched
    is_dirty: bool  # tracked files are edited


class Blocked(msgspec.Struct, frozen=True):
    """Git would not fast-forward; nothing was changed."""

    says: str  # git's own words
    is_edited: bool  # a file that comes is edited here
    new: tuple[str, ...]  # files that come, and are here though git does not track them


def pull(
    work: Workspace, *, dry_run: bool = False
) -> Forwarded | NothingNew | Elsewhere | NotOurs | Apart | Blocked:
    """Fast-forward the checkout's branch to the hub's target.

    Raises:
        UsageError: not in a checkout.
        HubUnusable: the hub has no target.
        GitFault: the checkout or the hub cannot be read; nothing was changed.
    """
    target, hub = work.config.target, work.ledger.hub
    here = user.look(work.checkout)
    if here.branch != target or here.head is None:
        return Elsewhere(here.branch)
    url = user.remotes(work.checkout).get(REMOTE)
    if url is None or not is_our_remote(url, work.checkout, work.layout):
        return NotOurs(url)
    old, new = here.head, hub.tip(target)
    if _has(Git(here.git_dir), old, new):
        return NothingNew(old)
    if not (hub.reader.has(old) and hub.contains(new, old)):
        return Apart(is_published(work, here), any(code != "??" for code, _ in here.dirty))
    if not dry_run:
        answer = user.pull(work.checkout, REMOTE, target)
        if isinstance(answer, str):
            return _blocked(work, here, answer, hub.changed_paths(old, new))
        old, new = answer.old, answer.new
    return _forwarded(hub, old, new)


def is_published(work: Workspace, here: Checkout) -> bool:
    """Is all that the checkout has beyond the hub's target on the upstream branch?

    As the checkout knows that branch; nobody is asked.
    """
    if here.head is None:
        return False
    git = Git(here.git_dir)
    theirs = f"refs/remotes/{work.config.upstream.remote}/{work.config.upstream_branch}"
    if git.run("show-ref", "--verify", "-q", theirs, ok=(0, 1)).code:
        return False
    but = [f"^{theirs}"]
    landed = work.ledger.hub.tip(work.config.target)
    if git.run("cat-file", "-e", f"{landed}^{{commit}}", ok=(0, 1, 128)).code == 0:
        but.append(f"^{landed}")
    return not git.run("rev-list", "--max-count=1", here.head, *but, "--").lines


def _has(git: Git, head: str, commit: str) -> bool:
    if head == commit:
        return True
    asked = git.run("merge-base", "--is-ancestor", commit, head, ok=(0, 1, 128))
    return asked.code == 0  # 128: the checkout has not heard of it


def _blocked(work: Workspace, here: Checkout, says: str, coming: list[str]) -> Blocked:
    tracked = set(user.tracked_files(work.checkout))
    new = [p for p in coming if p not in tracked and os.path.lexists(work.checkout / p)]
    is_edited = any(code != "??" and path in coming for code, path in here.dirty)
    return Blocked(says, is_edited, tuple(new))


def _forwarded(hub: Hub, old: str, new: str) -> Forwarded:
    listed = hub.git.run(
        "log", "--first-parent", "--reverse", "-z", "--format=%h %s", f"{old}..{new}", "--"
    )
    _, plus, minus = hub.diff_stat(old, new)
    return Forwarded(
        old, new, tuple(listed.fields), tuple(hub.changed_paths(old, new)), plus, minus
    )
