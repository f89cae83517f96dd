"""Coming and going: init, uninit, pull.

Enters: a checkout. Leaves: a hub and a configuration beside it, what landed, or all taken back.
Guards: the checkout gets new files and one remote, each named; nothing existing is changed.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path

import click

from swarm.adopt import (
    REMOTE,
    Made,
    check_lines,
    judge_target_once,
    make,
    note_lines,
)
from swarm.check import Running
from swarm.config import FILE, shown
from swarm.errors import Exit
from swarm.judge import Green
from swarm.leave import unmake
from swarm.plumbing import checkout as user
from swarm.probe import found_on_path
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
    found = found_on_path(os.environ.get("PATH", os.defpath))
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
