"""To and from the user's own branches: pull, push.

Enters: a checkout whose branch people work on. Leaves: it forwarded, or what landed given to a
branch of the remote.
Guards: the checkout is moved by `pull` alone, and only forward; nothing is forced.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from swarm import push as pushing
from swarm.adopt import REMOTE, bring_in, is_our_remote, refuse_state_folder
from swarm.cli.gate import Say
from swarm.config import shown
from swarm.errors import Exit, SwarmError
from swarm.output import plural
from swarm.plumbing import checkout as user
from swarm.plumbing.git import Git
from swarm.workspace import Workspace, opened

MOST_LANDED = 30  # commits named by `pull`; then a count
MOST_STASHED = 8  # files named in a command; then all of them go
MOST_SAID = 20  # lines of a command's output

Record = dict[str, Any]  # what `--json` prints


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say what would come.")
def pull(dry_run: bool) -> None:
    """Fast-forward this branch to what landed.

    Exit 1: the branch was not moved; git's own words say why, and the hint is to be pasted.
    """
    refuse_state_folder(Path.cwd())
    with opened() as work:
        _pull(work, dry_run)


def _pull(work: Workspace, dry_run: bool) -> None:
    target, hub = work.config.target, work.ledger.hub
    here = user.look(work.checkout)
    if here.branch != target or here.head is None:
        where = f"on {here.branch}" if here.branch else "on no branch"
        raise SwarmError(
            f"this checkout is {where}, and what landed is on {target}",
            hint=f"git switch {shlex.quote(target)}\ngit fetch {REMOTE} {shlex.quote(target)}",
        )
    url = user.remotes(work.checkout).get(REMOTE)
    if url is None:
        raise SwarmError(f"the remote {REMOTE} is gone", hint="swarm init")
    if not is_our_remote(url, work.checkout, work.layout):
        raise SwarmError(
            f"the remote {REMOTE} is not this hub",
            why=f"it is {shown(url, 200)}",
            hint=f"git remote set-url {REMOTE} {shlex.quote(str(hub.path))}",
        )
    old, new = here.head, hub.tip(target)
    if old == new or Git(here.git_dir).run(
        "merge-base", "--is-ancestor", new, old, ok=(0, 1, 128)
    ).code == 0:  # fmt: skip
        click.echo(f"{target} {old[:7]}: nothing new has landed")
        return
    if not (hub.reader.has(old) and hub.contains(new, old)):
        raise _apart(target, here)
    if not dry_run:
        answer = user.pull(work.checkout, REMOTE, target)
        if isinstance(answer, str):
            raise SwarmError(
                f"git would not fast-forward {target}; nothing was changed",
                why=f"{answer}\nwhat the command below stashes stays in git's stash",
                hint=_out_of_the_way(work, here, hub.changed_paths(old, new)),
            )
        old, new = answer.old, answer.new
    verb = "would go" if dry_run else "went"
    files, plus, minus = hub.diff_stat(old, new)
    click.echo(
        f"{target} {verb} {old[:7]} -> {new[:7]}   +{plus} -{minus} in {plural(files, 'file')}"
    )
    _say_commits(hub.git, old, new)
    for path in hub.changed_paths(old, new)[:MOST_LANDED]:
        click.echo(f"  {shown(path, 90)}")
    if files > MOST_LANDED:
        click.echo(f"  and {plural(files - MOST_LANDED, 'more file')}")


def _apart(target: str, here: user.Checkout) -> SwarmError:
    """Both sides have commits of their own."""
    return SwarmError(
        f"{target} here has commits that the hub lacks: it cannot be fast-forwarded",
        why="the first command puts them on top of what landed, the second gives them to agents;\n"
        "a push is not checked before it is the target: the next run judges it first",
        hint="\n".join(bring_in(target, is_dirty=any(code != "??" for code, _ in here.dirty))),
    )


def _out_of_the_way(work: Workspace, here: user.Checkout, coming: Sequence[str]) -> str:
    """What to paste when files here stand in the way of a fast-forward.

    Plain git: `swarm.toml` itself may be one of them. What git stashes it keeps.
    """
    target = shlex.quote(work.config.target)
    pull = f"git pull --ff-only {REMOTE} {target}"
    tracked = set(user.tracked_files(work.checkout))
    new = [p for p in coming if p not in tracked and os.path.lexists(work.checkout / p)]
    is_edited = any(code != "??" and path in coming for code, path in here.dirty)
    if is_edited:
        return f"git stash{' -u' if new else ''} && {pull} && git stash pop"
    if not new:
        return "git status"
    if len(new) > MOST_STASHED:
        return f"git stash -u && {pull}"
    return f"git stash -u -- {shlex.join(new)} && {pull}"


def _say_commits(git: Git, old: str, new: str) -> None:
    """What landed, oldest first: the target's own steps, not all of every agent's commits."""
    listed = git.run("log", "--first-parent", "--reverse", "-z", "--format=%h %s", f"{old}..{new}")
    commits = listed.fields
    for commit in commits[:MOST_LANDED]:
        click.echo(f"  {shown(commit, 96)}")
    if len(commits) > MOST_LANDED:
        click.echo(f"  and {plural(len(commits) - MOST_LANDED, 'more commit')}")


_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command()
@click.option("--branch", metavar="B", help="Default: [upstream] push_branch, swarm/<run>.")
@click.option("--pr", "is_request", is_flag=True, help="Then run [upstream] pr, once a branch.")
@_as_json
def push(branch: str | None, is_request: bool, as_json: bool) -> int:
    """Give what landed to a branch of the upstream remote; never forced."""
    with opened() as work:
        say = _quiet if as_json else click.echo
        if is_request:
            pushing.require_command(work)
        name = pushing.branch_name(work, branch)
        answer = pushing.deliver(work, name)
        if isinstance(answer, pushing.Refused):
            raise SwarmError(
                f"{answer.remote}/{shown(name)} was not moved: nothing is ever forced",
                why="\n".join(shown(line, 200) for line in answer.says.splitlines()[:MOST_SAID]),
                hint="swarm sync" if answer.is_upstream else "swarm push --branch ANOTHER",
            )
        where = f"{answer.remote}/{shown(name)}"
        if answer.old == answer.new:
            say(f"{where} {answer.new[:7]}: nothing new to push")
        elif answer.old is None:
            say(f"pushed    {where} {answer.new[:7]}, a new branch")
        else:
            say(f"pushed    {where} {answer.old[:7]} -> {answer.new[:7]}")
        record: Record = {"schema": "swarm.push/1", "remote": answer.remote}
        record |= {"branch": name, "old": answer.old, "new": answer.new, "request": None}
        code = Exit.YES
        if is_request:
            code = _request(work, answer, record, say)
        if as_json:
            click.echo(json.dumps(record))
        return int(code)


def _request(work: Workspace, delivered: pushing.Delivered, record: Record, say: Say) -> Exit:
    match pushing.ask(work, delivered):
        case pushing.AskedBefore():
            record["request"] = "before"
            say("request   made before; it shows what was pushed")
        case pushing.Asked(output):
            record["request"] = "made"
            said = [shown(line, 200) for line in output.splitlines() if line.strip()]
            say(f"request   made{': ' + said[-1] if said else ''}")
        case pushing.NotAsked(why, output):
            record["request"] = "failed"
            say(f"request   not made: [upstream] pr: {why}; the branch is pushed")
            for line in output.splitlines()[-MOST_SAID:]:
                say(f"  {shown(line, 200)}")
            say(f"next      swarm push --branch {shlex.quote(delivered.branch)} --pr")
            return Exit.NO
    return Exit.YES


def _quiet(line: str) -> None:
    """Who wants JSON wants nothing else."""
