"""To and from the user's branches: pull, sync, push, revert.

Enters: a checkout whose branch people work on. Leaves: the same branch forwarded, the upstream
branch brought in or given, landings taken back. Guards: the checkout is moved by `pull` alone, and
only forward; nothing is forced anywhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from swarm import hand, upstream
from swarm import push as pushing
from swarm import revert as reverting
from swarm.adopt import REMOTE, bring_in, is_our_remote, refuse_state_folder
from swarm.cli.gate import Printer, Say
from swarm.cli.ready import refuse_unsupported, require_checks
from swarm.config import shown
from swarm.errors import Exit, SwarmError, UsageError
from swarm.ledger.records import Last
from swarm.ledger.view import State, readable
from swarm.output import plural
from swarm.plumbing import checkout as user
from swarm.plumbing.git import Git
from swarm.task import load_id
from swarm.tend import settle_change
from swarm.trailers import one_line
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


# In and out


_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command()
@click.option("--rewritten", is_flag=True, help="The upstream branch was rewritten on purpose.")
@click.option("--no-wait", is_flag=True, help="Leave the change in the queue.")
@_as_json
def sync(rewritten: bool, no_wait: bool, as_json: bool) -> int:
    """Bring what the upstream branch has into the target, merged and checked like any change.

    Exit 1: it waits for you, and what is printed says for what.
    """
    with opened() as work:
        refuse_unsupported(work.config)
        require_checks(work.config)
        say = _quiet if as_json else click.echo
        fetched = upstream.fetch(work)
        answer = upstream.bring(work, fetched, is_rewrite_meant=rewritten)
        while isinstance(answer, upstream.Waits) and answer.state is State.QUEUED and not no_wait:
            if settle_change(work, answer.task, Printer(work, say)) is State.QUEUED:
                break
            answer = upstream.bring(work, fetched, is_rewrite_meant=rewritten)
        fetched = answer.fetched
        record: Record = {"schema": "swarm.sync/1", "upstream": fetched.name}
        record |= {"tip": fetched.tip, "task": None, "state": None, "worktree": None}
        name, target = f"{fetched.name} {fetched.tip[:7]}", work.config.target
        code = Exit.YES
        match answer:
            case upstream.UpToDate(_, left):
                record |= {"result": "up_to_date", "task": left}
                say(f"{target} has all of {name}")
                if left is not None:
                    say(f"left      {left} is not needed any more: swarm task cancel {left}")
            case upstream.Rewritten(_, known):
                raise SwarmError(
                    f"{fetched.name} was rewritten: it lacks {known[:7]}, which it had before",
                    why="nothing was taken; what it lost is still in "
                    f"{target}, and stays there if you bring in what it has now",
                    hint="swarm sync --rewritten",
                )
            case upstream.Waits(_, task, state):
                record |= {"result": "waits", "task": task, "state": state.value}
                code = _end_sync(work, task, state, fetched, record, say)
            case upstream.Offered(_, entry, commits, same):
                say(f"sync      {name}: {plural(commits, 'commit')} that {target} lacks")
                if same is not None:
                    say(f"same      {same[0][:7]} there is what {same[1][:7]} is here")
                say(f"queued    {entry.task}")
                record |= {"result": "queued", "task": entry.task, "state": "queued"}
                if not no_wait:
                    state = _await(work, entry.task, record, say)
                    code = _end_sync(work, entry.task, state, fetched, record, say)
        if as_json:
            click.echo(json.dumps(record))
        return int(code)


def _quiet(line: str) -> None:
    """Who wants JSON wants nothing else."""


def _await(work: Workspace, task: str, record: Record, say: Say) -> State:
    """The gate's word on a change of ours."""
    state = settle_change(work, task, Printer(work, say))
    record |= {"result": state.value, "task": task, "state": state.value}
    return state


def _end(work: Workspace, task: str, state: State, say: Say) -> Exit:
    """Say what a change waits for, unless it has landed."""
    if state is State.LANDED:
        return Exit.YES
    for line in _waits(work, task, state):
        say(line)
    return Exit.NO


def _end_sync(
    work: Workspace,
    task: str,
    state: State,
    fetched: upstream.Fetched,
    record: Record,
    say: Say,
) -> Exit:
    """The same; where both sides conflict a worktree is opened with both in it."""
    place: Path | None = None
    if state is State.LANDED:
        tip = work.ledger.hub.tip(work.config.target)
        say(f"{work.config.target} {tip[:7]} has all of {fetched.name} {fetched.tip[:7]}")
    elif state is State.OPEN and _conflict_of(work, task) is not None:
        joined = hand.join(work, work.checkout, task, None)
        if isinstance(joined, hand.Joined):
            record["state"] = State.CLAIMED.value
            place = joined.worktree
    elif state is State.CLAIMED:
        with contextlib.suppress(UsageError, hand.ClaimHeld):  # no claim by hand, or not from here
            place = work.layout.slots / hand.find_place(work, work.checkout, task).slot
    if place is None:
        return _end(work, task, state, say)
    for line in _resolve_lines(work, task, place, record):
        say(line)
    return Exit.NO


def _conflict_of(work: Workspace, task: str) -> Last | None:
    """How its last attempt ended, when that was in a conflict."""
    attempts = readable(work.ledger.view().attempts, task)
    last = attempts.last if attempts is not None else None
    return last if last is not None and last.outcome == "conflict" else None


def _resolve_lines(work: Workspace, task: str, place: Path, record: Record) -> list[str]:
    """Where a person resolves it; the same whenever it is asked."""
    record["worktree"] = str(place)
    last = _conflict_of(work, task)
    if last is not None:
        record["result"] = "conflict"
        lines = [f"conflict  {task}   in {one_line(', '.join(last.paths[:5]), 80)}"]
        lines.append(f"worktree  {place}   both sides are in it, with markers")
    else:
        lines = [f"waits     {task}   somebody works on it", f"worktree  {place}"]
    lines.append(f"next      cd {shlex.quote(str(place))}")
    return [*lines, "          resolve, commit if you like, then there:  swarm submit"]


def _waits(work: Workspace, task: str, state: State) -> list[str]:
    """Why a change of a command does not go on, and what to type."""
    view = work.ledger.view()
    attempts = readable(view.attempts, task)
    last = attempts.last if attempts is not None else None
    match state:
        case State.OPEN:
            why = one_line(last.message, 80) if last is not None else "it waits for a person"
            return [f"waits     {task}   {why}", f"next      swarm claim {task}"]
        case State.CLAIMED:
            return [
                f"waits     {task}   somebody works on it",
                f"next      swarm show {task}",
            ]
        case State.HELD:
            return [
                f"held      {task}",
                f"next      swarm diff {task}",
                f"          swarm approve {task}",
            ]
        case State.QUEUED:
            paused = view.gate().paused
            why = f"the gate is paused: {paused.why}" if paused else "the gate has not come to it"
            return [f"queued    {task}   {one_line(why, 80)}"]
        case _:
            return [f"{state.value:<9} {task}", f"next      swarm show {task}"]


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


# Back


@click.command()
@click.argument("names", metavar="[TASK...]", nargs=-1)
@click.option("--run", "run_", metavar="RUN", help="All that landed of a run: r7.")
@click.option("--no-wait", is_flag=True, help="Leave the change in the queue.")
@_as_json
def revert(names: tuple[str, ...], run_: str | None, no_wait: bool, as_json: bool) -> int:
    """Take landings back, newest first, with one change that is checked like any other.

    What was undone stays `landed`: its history says what happened.
    """
    if bool(names) == bool(run_):
        raise UsageError("name tasks, or a run with --run", hint="swarm log")
    with opened() as work:
        refuse_unsupported(work.config)
        require_checks(work.config)
        say = _quiet if as_json else click.echo
        if run_ is not None:
            tasks = reverting.landed_in(work.ledger, run_)
            if not tasks:
                raise SwarmError(f"nothing of {run_} has landed", hint="swarm log")
        else:
            tasks = [load_id(work.ledger, name) for name in names]
        view = work.ledger.view()
        for task, state, need in reverting.dependants(work.ledger, view, tasks):
            stays = "; it stays" if state is State.LANDED else ""
            say(f"needs     {task}   needs {need}, {state.value}{stays}")
        answer = reverting.revert(work, tasks)
        record: Record = {"schema": "swarm.revert/1", "task": None, "undoes": []}
        code = Exit.YES
        match answer:
            case reverting.NotLanded(task, state):
                raise SwarmError(
                    f"{task} is {state.value}: nothing of it is in {work.config.target}",
                    hint=f"swarm show {task}",
                )
            case reverting.Entangled(task, paths, later):
                raise _entangled(task, paths, later, tasks)
            case reverting.NothingLeft(undone):
                record |= {"result": "nothing_left"}
                say(f"{work.config.target} has nothing of {', '.join(undone[:5])} any more")
            case reverting.OnItsWay(task, state, undoes):
                record |= {"result": "waits", "task": task, "undoes": list(undoes)}
                if state is State.QUEUED and not no_wait:
                    state = _await(work, task, record, say)
                code = _end(work, task, state, say)
            case reverting.Offered(entry, undoes, left):
                record |= {"result": "queued", "task": entry.task, "undoes": list(undoes)}
                for task in undoes:
                    done = view.done(task)
                    say(f"undoes    {task}   {(done.landed or '')[:7] if done else ''}")
                for task in left:
                    say(f"left      {task}   nothing of it is in {work.config.target} any more")
                word = "held" if entry.is_held else "queued"
                stat = f"{plural(entry.files, 'file')} +{entry.insertions} -{entry.deletions}"
                say(f"{word:<9} {entry.task}   {stat}")
                if not no_wait:
                    state = _await(work, entry.task, record, say)
                    code = _end(work, entry.task, state, say)
        if as_json:
            click.echo(json.dumps(record))
        return int(code)


def _entangled(
    task: str, paths: Sequence[str], later: Sequence[str], tasks: Sequence[str]
) -> SwarmError:
    """Later work stands on the same lines: what can be typed instead."""
    named = ", ".join(shown(path) for path in paths[:5])
    others = [name for name in later if name not in tasks]
    text = f"Take back what task {task} changed in {named}"
    ask = shlex.join(["swarm", "task", "add", f"Undo {task}", "-m", text])
    hints = [f"swarm revert {' '.join([*others[:8], *tasks])}"] if others else []
    by = f" by {', '.join(others[:5])}" if others else ""
    return SwarmError(
        f"{task} cannot be undone by itself: {named} was changed again{by}",
        why="nothing was added; undo those too, or let somebody take it out by hand",
        hint="\n".join([*hints, ask]),
    )
