"""To and from the user's own branches: pull, push.

Enters: what became of it. Leaves: lines, or JSON; an error with commands to paste.
Guards: the checkout is moved by `pull` alone, and only forward; nothing is forced.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import click
import msgspec
from msgspec.structs import replace

from swarm import pull as pulling
from swarm import pull_request as pull_requests
from swarm import push as pushing
from swarm.adopt import REMOTE, bring_in, refuse_state_folder
from swarm.config import shown
from swarm.errors import Exit, SwarmError
from swarm.output import plural
from swarm.workspace import Workspace, opened

MOST_LANDED = 30  # commits named by `pull`; then a count
MOST_STASHED = 8  # files named in a command; then all of them go
MOST_SAID = 20  # lines of a command's output


class Interrupted(SwarmError):
    """Ctrl-C: what is so now, and what to type."""

    exit_code = Exit.INTERRUPTED


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say what would come.")
def pull(dry_run: bool) -> None:
    """Fast-forward this branch to what landed.

    Exit 1: the branch was not moved; git's own words say why, and the hint is to be pasted.
    """
    refuse_state_folder(Path.cwd())
    with opened() as work:
        target = work.config.target
        match pulling.pull(work, dry_run=dry_run):
            case pulling.NothingNew(head):
                click.echo(f"{target} {head[:7]}: nothing new has landed")
            case pulling.Forwarded() as forwarded:
                for line in _forwarded_lines(target, forwarded, dry_run):
                    click.echo(line)
            case refused:
                raise _not_pulled(work, refused)


def _forwarded_lines(target: str, it: pulling.Forwarded, dry_run: bool) -> Iterator[str]:
    verb, files = "would go" if dry_run else "went", plural(len(it.paths), "file")
    span = f"{it.old[:7]} -> {it.new[:7]}"
    yield f"{target} {verb} {span}   +{it.insertions} -{it.deletions} in {files}"
    for many, word in ((it.commits, "more commit"), (it.paths, "more file")):
        yield from (f"  {shown(one, 96)}" for one in many[:MOST_LANDED])
        if len(many) > MOST_LANDED:
            yield f"  and {plural(len(many) - MOST_LANDED, word)}"


def _not_pulled(
    work: Workspace,
    refused: pulling.Elsewhere | pulling.NotOurs | pulling.Apart | pulling.Blocked,
) -> SwarmError:
    target, settings = work.config.target, work.config.upstream
    match refused:
        case pulling.Elsewhere(branch):
            where = f"on {branch}" if branch else "on no branch"
            return SwarmError(
                f"this checkout is {where}, and what landed is on {target}",
                hint=f"git switch {shlex.quote(target)}\ngit fetch {REMOTE} {shlex.quote(target)}",
            )
        case pulling.NotOurs(url):
            if url is None:
                return SwarmError(f"the remote {REMOTE} is gone", hint="swarm init")
            hub = shlex.quote(str(work.ledger.hub.path))
            return SwarmError(
                f"the remote {REMOTE} is not this hub",
                why=f"it is {shown(url, 200)}",
                hint=f"git remote set-url {REMOTE} {hub}",
            )
        case pulling.Apart(is_published, is_dirty):
            what = f"{target} here has commits that the hub lacks: it cannot be fast-forwarded"
            if is_published:
                upstream = f"{settings.remote}/{work.config.upstream_branch}"
                why = f"they are your team's: {upstream} has them"
                return SwarmError(what, why=why, hint="swarm sync\nswarm pull")
            return SwarmError(
                what,
                why="the first command puts them on top of what landed, the second gives them to "
                "agents;\n"
                "a push is not checked before it is the target: the next run judges it first",
                hint="\n".join(bring_in(target, is_dirty=is_dirty)),
            )
        case pulling.Blocked(says) as blocked:
            return SwarmError(
                f"git would not fast-forward {target}; nothing was changed",
                why=f"{says}\nwhat the command below stashes stays in git's stash",
                hint=_out_of_the_way(target, blocked),
            )


def _out_of_the_way(target: str, blocked: pulling.Blocked) -> str:
    """What to paste when files here stand in the way of a fast-forward.

    Plain git: `swarm.toml` itself may be one of them. What git stashes it keeps.
    """
    command, new = f"git pull --ff-only {REMOTE} {shlex.quote(target)}", blocked.new
    if blocked.is_edited:
        return f"git stash{' -u' if new else ''} && {command} && git stash pop"
    if not new:
        return "git status"
    if len(new) > MOST_STASHED:
        return f"git stash -u && {command}"
    return f"git stash -u -- {shlex.join(new)} && {command}"


# Push


class PullRequestNow(msgspec.Struct, frozen=True, kw_only=True):
    """What became of `--pr`."""

    result: Literal["opened", "opened_before", "not_opened"]
    says: str = ""  # the command's last line, most often an address
    over: str | None = None  # the same of one before, which the team has merged
    why: str | None = None  # why it was not opened


class PushNow(msgspec.Struct, frozen=True, kw_only=True):
    """What became of `swarm push`: what `--json` prints, and its lines are made of."""

    schema: str = "swarm.push/1"
    result: Literal["pushed", "nothing_new", "upstream_has_all"]
    remote: str
    upstream: str  # its branch: `origin/main`
    branch: str | None  # None: upstream has all, nothing was pushed
    old: str | None
    new: str
    pr: PullRequestNow | None = None


_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command()
@click.option("--branch", metavar="B", help="Default: [upstream] push_branch, swarm/<run>.")
@click.option("--pr", "is_pr", is_flag=True, help="Then run [upstream] pr, once a branch.")
@_as_json
def push(branch: str | None, is_pr: bool, as_json: bool) -> int:
    """Give what landed to a branch of the upstream remote; never forced."""
    say = _quiet if as_json else click.echo
    with opened() as work:
        if is_pr:
            pull_requests.require_command(work)
        answer = _push(work, branch, is_pr)
        now = _push_now(work, answer)
        for line in _push_lines(work, now):
            say(line)
        if is_pr and isinstance(answer, pushing.Delivered):
            opening, output = _open_pr(work, answer)
            now = replace(now, pr=opening)
            for line in _pr_lines(now, opening, output):
                say(line)
        if as_json:
            click.echo(json.dumps(msgspec.to_builtins(now)))
        is_failed = now.pr is not None and now.pr.result == "not_opened"
        return int(Exit.NO if is_failed else Exit.YES)


def _push(
    work: Workspace, branch: str | None, is_pr: bool
) -> pushing.Delivered | pushing.NothingToGive:
    """
    Raises:
        SwarmError: nothing was pushed.
        Interrupted: Ctrl-C.
    """
    again = _command(branch, is_pr)
    with _interruptible("interrupted: nothing was pushed", again):
        ready = pushing.prepare(work, branch)
    if isinstance(ready, pushing.NothingToGive):
        return ready
    match _deliver(work, ready, again) if isinstance(ready, pushing.Ready) else ready:
        case pushing.Delivered() as delivered:
            return delivered
        case pushing.Foreign() as foreign:
            raise _foreign(work, foreign, is_pr)
        case pushing.Declined(remote, name, says, is_upstream):
            raise SwarmError(
                f"{remote} refused {shown(name)}; nothing was pushed",
                why="\n".join(shown(line, 200) for line in says.splitlines()[:MOST_SAID]),
                hint=_command(None, is_pr) if is_upstream else None,
            )


def _deliver(
    work: Workspace, ready: pushing.Ready, again: str
) -> pushing.Delivered | pushing.Foreign | pushing.Declined:
    where = f"{ready.remote.name}/{shown(ready.branch)}"
    with _interruptible(f"interrupted: {where} may have been pushed", again):
        return pushing.deliver(work, ready)


def _foreign(work: Workspace, it: pushing.Foreign, is_pr: bool) -> SwarmError:
    target = work.config.target
    where = f"{it.remote}/{shown(it.branch)}"
    whys = ["nothing is ever forced"]
    many = "commits"
    if it.theirs is not None:
        many = plural(it.theirs.count, "commit")
        newest = f"{it.theirs.author}: {it.theirs.subject}"
        whys.insert(0, f"by {newest}" if it.theirs.count == 1 else f"the newest by {newest}")
    if it.is_upstream:
        hints = ["swarm sync"]
    else:
        hints = [_command(it.free, is_pr), _take_in(target, it)]
        whys.append(
            "the first command below takes another branch; the second brings these commits in,\n"
            "not checked before they are the target: the next run judges them first"
        )
        if it.is_default and "{user}" not in work.config.upstream.push_branch:
            whys.append("two people, two hubs: push_branch with {user} keeps their branches apart")
    return SwarmError(
        f"{where} was not moved: it has {many} that {target} lacks",
        why="\n".join(whys),
        hint="\n".join(hints),
    )


def _take_in(target: str, it: pushing.Foreign) -> str:
    """Plain git in the checkout: the hub takes what moves its target forward."""
    return (
        f"swarm pull && git fetch {shlex.quote(it.remote)} {shlex.quote(it.branch)} && "
        f"git merge --ff --no-edit FETCH_HEAD && git push {REMOTE} {shlex.quote(f'HEAD:{target}')}"
    )


def _push_now(work: Workspace, answer: pushing.Delivered | pushing.NothingToGive) -> PushNow:
    settings = work.config.upstream
    upstream = f"{settings.remote}/{work.config.upstream_branch}"
    if isinstance(answer, pushing.NothingToGive):
        return PushNow(
            result="upstream_has_all",
            remote=settings.remote,
            upstream=upstream,
            branch=None,
            old=None,
            new=answer.tip,
        )
    return PushNow(
        result="nothing_new" if answer.old == answer.new else "pushed",
        remote=answer.remote,
        upstream=upstream,
        branch=answer.branch,
        old=answer.old,
        new=answer.new,
    )


def _push_lines(work: Workspace, now: PushNow) -> Iterator[str]:
    where = f"{now.remote}/{shown(now.branch or '')}"
    match now.result:
        case "upstream_has_all":
            yield f"{now.upstream} has all of {work.config.target}: nothing to push"
        case "nothing_new":
            yield f"{where} {now.new[:7]}: nothing new to push"
        case "pushed" if now.old is None:
            yield f"pushed    {where} {now.new[:7]}, a new branch"
        case "pushed":
            yield f"pushed    {where} {(now.old or '')[:7]} -> {now.new[:7]}"


def _open_pr(
    work: Workspace, delivered: pushing.Delivered
) -> tuple[PullRequestNow, list[str]]:  # and what a command that failed has printed
    where = f"{delivered.remote}/{shown(delivered.branch)}"
    stopped = f"interrupted: {where} is pushed; [upstream] pr was ended before it said yes"
    with _interruptible(stopped, _command(delivered.branch, True)):
        answer = pull_requests.open_pr(work, delivered)
    match answer:
        case pull_requests.OpenedBefore(says):
            return PullRequestNow(result="opened_before", says=says), []
        case pull_requests.Opened(says):
            return PullRequestNow(result="opened", says=says, over=delivered.over), []
        case pull_requests.NotOpened(why, output):
            said = pull_requests.last_line(output)
            now = PullRequestNow(result="not_opened", says=said, over=delivered.over, why=why)
            return now, output.splitlines()[-MOST_SAID:]


def _pr_lines(now: PushNow, pr: PullRequestNow, output: list[str]) -> Iterator[str]:
    said = f": {pr.says}" if pr.says else ""
    if pr.over is not None:
        before = f" ({pr.over})" if pr.over else ""
        yield f"pr        the one before{before} is over: {now.upstream} has what it showed"
    match pr.result:
        case "opened":
            yield f"pr        opened{said}"
        case "opened_before":
            yield f"pr        opened before{said}; it shows what was pushed"
        case "not_opened":
            yield f"pr        not opened: [upstream] pr: {pr.why}; the branch is pushed"
            yield from (f"  {shown(line, 200)}" for line in output)
            yield f"next      {_command(now.branch, True)}"


@contextmanager
def _interruptible(says: str, again: str) -> Iterator[None]:
    """Ctrl-C in here is told in one line, with what to type."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        raise Interrupted(says, hint=again) from stopped


def _command(branch: str | None, is_pr: bool) -> str:
    named = f" --branch {shlex.quote(branch)}" if branch is not None else ""
    return f"swarm push{named}{' --pr' if is_pr else ''}"


def _quiet(line: str) -> None:
    """Who wants JSON wants nothing else."""
