"""Coming and going: init, uninit, pull.

Enters: a checkout. Leaves: a hub and a configuration beside it, what landed, or all taken back.
Guards: the checkout gets new files and one remote, each named; nothing existing is changed.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from swarm import adapter as adapters
from swarm.adopt import (
    REMOTE,
    Made,
    bring_in,
    check_lines,
    is_our_remote,
    judge_target_once,
    make,
    note_lines,
    refuse_state_folder,
)
from swarm.check import Running
from swarm.config import FILE, shown
from swarm.errors import Exit, SwarmError
from swarm.judge import Green
from swarm.leave import unmake
from swarm.output import plural
from swarm.plumbing import checkout as user
from swarm.plumbing.git import Git
from swarm.workspace import Workspace, opened

MOST_LANDED = 30  # commits named by `pull`; then a count
MOST_STASHED = 8  # files named in a command; then all of them go


@click.command()
@click.option("--no-check", is_flag=True, help="Do not run the checks on the target.")
@click.option(
    "--target", metavar="BRANCH", help="Land on this branch; default: the one you are on."
)
@click.option("--hub", metavar="PATH", help="Keep the hub there; default: beside this repository.")
def init(no_check: bool, target: str | None, hub: str | None) -> int:
    """Set this repository up: a hub beside it, swarm.toml, and one run of your tests.

    Nothing that exists is changed, .gitignore included. Doing it again makes what is missing and
    repeats the check. Exit 13: the checks do not pass on the target; exit 1: no test command was
    found. All else was made then.
    """
    made = make(Path.cwd(), target=target, hub=hub, say=click.echo)
    code = Exit.YES if made.config.checks else Exit.NO
    if not made.config.checks:
        click.echo("checks    none: nothing can land")
    elif no_check:
        click.echo("checks    not run, as you asked: swarm run takes the target's verdict first")
    else:
        with opened(made.checkout) as work:
            code = _check(work)
    click.echo("")
    for line in (*note_lines(made), *_next_lines(made)):
        click.echo(line)
    return int(code)


def _check(work: Workspace) -> Exit:
    watch = _Watch()
    try:
        judged = judge_target_once(work, watch)
    finally:
        watch.clear()
    for line in check_lines(judged, work.config, work.layout):
        click.echo(line)
    is_fine = judged.answer is None or isinstance(judged.answer, Green)
    return Exit.YES if is_fine else Exit.TARGET_RED


class _Watch:
    """One line on a terminal that says what runs, and for how long; nothing anywhere else."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._shown = ""

    def __call__(self, running: Running | None) -> None:
        if not sys.stderr.isatty():
            return
        what = "setup" if running and running.is_setup else running.check.name if running else "..."
        seconds = int(time.monotonic() - self._began)
        line = f"checks    {what} {seconds // 60:02d}:{seconds % 60:02d}"
        if line != self._shown:
            click.echo(f"\r{line}", nl=False, err=True)
            self._shown = line

    def clear(self) -> None:
        if self._shown:
            click.echo("\r" + " " * len(self._shown) + "\r", nl=False, err=True)


def _next_lines(made: Made) -> list[str]:
    found = adapters.found_on_path(os.environ.get("PATH", os.defpath))
    if not made.config.checks:
        return [
            f"next      name your test command in {FILE}, and again: swarm init",
            "undo      swarm uninit",
        ]
    run = f"swarm run -n 4 --agent {found[0][0]}" if found else "swarm run -n 2 -- ./my-agent.sh"
    names = " and ".join(shown(f"{name} {version or ''}".strip()) for name, version in found)
    seen = f"{names} {'are' if len(found) > 1 else 'is'} on PATH" if found else (
        "no agent of swarm's list is on PATH"
    )  # fmt: skip
    return [
        *_commit_lines(made),
        f'next      swarm task add "What should be done"      or write {made.config.tasks}/*.md',
        f"          {run:<41} {seen}",
        "undo      swarm uninit                              "
        "refuses while a commit is in the hub alone",
    ]


def _commit_lines(made: Made) -> list[str]:
    """How to commit our own files while they are not: once an approved change to one of them has
    landed, an untracked one would be in the way of every pull."""
    here = user.look(made.checkout)
    ours = (FILE, made.config.tasks)
    paths = [path for _, path in here.dirty]
    new = [name for name in ours if any(p == name or p.startswith(f"{name}/") for p in paths)]
    if not new:
        return []
    branch = shlex.quote(made.config.target)
    give = f" && git push {REMOTE} {branch}" if here.branch == made.config.target else ""
    return [
        f"commit    {FILE}, and {made.config.tasks}/ once it has files: a change to them may land",
        f'          git add {shlex.join(new)} && git commit -m "Set up swarm"{give}',
    ]


@click.command()
@click.option("--keep-hub", is_flag=True, help="Leave the hub and all that is beside it.")
def uninit(keep_hub: bool) -> None:
    """Take back what init made.

    Refuses while a run works, a task is claimed, or the hub has a commit that this repository
    lacks. What you changed or committed is left, and named.
    """
    unmake(Path.cwd(), keep_hub=keep_hub, say=click.echo)


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
