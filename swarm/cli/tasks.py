"""Tasks as people write them: add, import, edit, list, cancel, reopen.

Enters: words and files. Leaves: task files and events.
Guards: everything that is wrong is said in one go, and then nothing is written; a file that is
there is never overwritten but by an import of its own source.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import click
import msgspec

from swarm import plan
from swarm import task as tasks
from swarm.config import Problem, listing, shown
from swarm.errors import SwarmError, UsageError
from swarm.files import put_whole
from swarm.ids import MAX_ID, fold
from swarm.ledger import records
from swarm.ledger.view import State, View
from swarm.output import plural
from swarm.overview import shown_state
from swarm.revert import find_undone
from swarm.similar import near
from swarm.task import Refusal, Taken
from swarm.workspace import Workspace, opened, person

_ID_LENGTH = 48  # of an id that is made from a title


class _Group(click.Group):
    """`task list` lives where everything that is looked at lives."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), "list"})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "list":
            found = getattr(importlib.import_module("swarm.cli.look"), "list_tasks", None)
            return found if isinstance(found, click.Command) else None
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Group)
def task() -> None:
    """Add, list and change tasks."""


# Adding


@task.command()
@click.argument("title")
@click.option("-m", "--body", default="", help="What the agent reads; - reads standard input.")
@click.option("--id", "id_", metavar="ID", help="Default: the title, folded.")
@click.option("--needs", multiple=True, metavar="ID,...", help="Tasks that must have landed.")
@click.option("--paths", multiple=True, metavar="GLOB,...", help="What it may change.")
@click.option("--check", "checks", multiple=True, metavar="NAME,...", help="More checks.")
@click.option("--priority", type=int, default=0, help="-100 to 100, larger first.")
@click.option("--timeout", metavar="20m", help="Limit of one attempt.")
@click.option("--role", default="", help="Only a slot with this role takes it.")
def add(
    title: str,
    body: str,
    id_: str | None,
    needs: tuple[str, ...],
    paths: tuple[str, ...],
    checks: tuple[str, ...],
    priority: int,
    timeout: str | None,
    role: str,
) -> None:
    """Write a task: its file and the ledger's copy."""
    if body == "-":
        body = sys.stdin.read()
    title = plan.one_line(title)
    name = _id(title, id_)
    draft = plan.Draft(
        id=name,
        title=title,
        needs=tuple(_folded(need) for need in _split(needs)),
        priority=priority,
        role=role,
        paths=_split(paths),
        checks=_split(checks),
        timeout=timeout,
        body=body if not body or body.endswith("\n") else body + "\n",
    )
    with opened() as work:
        text = plan.render(draft, f"{name}.md")
        label = f"{work.config.tasks}/{name}.md"
        ready = _judged_new(work, label, text)
        twins = [other for other in _open_ids(work) if near(name, other)]
        _write_and_add(work, ready, text)
        click.echo(f"added     {name}   {label}")
        if twins:
            click.echo(f"note      nearly the same as {', '.join(twins[:5])}")


def _id(title: str, given: str | None) -> str:
    """
    Raises:
        UsageError: nothing of it can be an id.
    """
    try:
        if given is not None:
            return fold(given)
        return fold(_cut(title))
    except ValueError as error:
        raise UsageError(
            f'"{shown(given or title)}" is no id: {error}',
            hint=f"swarm task add {shlex.quote(shown(title, 200))} --id some-name",
        ) from error


def _cut(title: str) -> str:
    """A long title's first words: its id is typed and read often."""
    words = re.sub(r"[^a-z0-9]+", "-", title.casefold()).strip("-")
    if len(words) <= _ID_LENGTH:
        return title[: 4 * MAX_ID]
    return words[: _ID_LENGTH + 1].rpartition("-")[0] or words[:_ID_LENGTH]


def _folded(text: str) -> str:
    with contextlib.suppress(ValueError):
        return fold(text)
    return text


def _split(values: Sequence[str]) -> tuple[str, ...]:
    """`--needs a,b --needs c`."""
    return tuple(dict.fromkeys(v.strip() for one in values for v in one.split(",") if v.strip()))


def _open_ids(work: Workspace) -> list[str]:
    ended = (State.LANDED, State.CANCELLED)
    rows = work.ledger.index.rows(work.ledger.view())
    return [row.id for row in rows if row.state not in ended]


def _judged_new(work: Workspace, label: str, text: str) -> plan.Draft:
    """The task that the text is, when nothing has its id yet.

    Raises:
        UsageError: every problem of it.
    """
    drafts, problems = plan.parse_task(label, text.encode("utf-8", "replace"))
    folder = plan.read_folder(work.checkout / work.config.tasks, work.config.tasks)
    others = {draft.id: draft for draft in folder.drafts}
    for draft in drafts:
        if draft.id in others:
            where = Problem(others[draft.id].file, others[draft.id].line, "", "").where
            raise UsageError(f"there is a task {draft.id} already: {where}", hint=_another(draft))
        view = work.ledger.view()
        if view.state(draft.id) is not State.ABSENT:
            state = shown_state(view, work.ledger.index, draft.id)
            raise UsageError(
                f"there is a task {draft.id} already: it is {state}", hint=_another(draft)
            )
    needed = {**{d.id: d.needs for d in folder.drafts}, **tasks.known_needs(work.ledger)}
    problems = problems + plan.check(
        drafts, known=needed, checks=[check.name for check in work.config.checks]
    )
    if problems:
        raise UsageError(
            f"{plural(len(problems), 'problem')}; nothing was added", why=listing(problems)
        )
    return drafts[0]


def _another(draft: plan.Draft) -> str:
    """To change the task that has the id, or to add this one under another."""
    title = shlex.quote(shown(draft.title, 200))
    return f"swarm task edit {draft.id}\nswarm task add {title} --id {draft.id[: MAX_ID - 2]}-2"


def _write_and_add(work: Workspace, draft: plan.Draft, text: str) -> None:
    folder = work.checkout / work.config.tasks
    file = folder / f"{draft.id}.md"
    made = False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as stream:
            made = True
            stream.write(text)
    except OSError as error:
        if made:
            file.unlink(missing_ok=True)
        raise UsageError(f"cannot write {file}", why=error.strerror) from error
    try:
        answer = tasks.add(work.ledger, draft)
    except SwarmError:
        file.unlink()
        raise
    if isinstance(answer, Refusal):  # somebody added it meanwhile
        file.unlink()
        raise UsageError(answer.why, hint=_another(draft))


# Importing


@task.command("import")
@click.option("--format", "format_", type=click.Choice(["github", "jsonl"]), required=True)
@click.argument("source", type=click.File("rb"), default="-")
def import_(format_: str, source: BinaryIO) -> None:
    """Tasks from `gh issue list --json number,title,body,labels`, or one JSON object a line.

    What is known keeps its id and what you added to its file; nothing is written when anything is
    wrong.
    """
    data = source.read()
    with opened() as work:
        _import(work, format_, data)


def _import(work: Workspace, format_: str, data: bytes) -> None:
    folder = plan.read_folder(work.checkout / work.config.tasks, work.config.tasks)
    view = work.ledger.view()
    if format_ == "github":
        drafts, problems = plan.from_github(data, known=_known_sources(view, folder))
    else:
        drafts, problems = plan.from_jsonl(data)
    mine = {draft.id: draft for draft in folder.drafts}
    shared = {file for file, count in _tasks_by_file(folder).items() if count > 1}
    merged: list[plan.Draft] = []
    for draft in drafts:
        old = mine.get(draft.id)
        if old is not None and old.file in shared and _merged(old, draft) != old:
            text = f"{draft.id} stands in {old.file} beside other tasks: change it there"
            problems = [*problems, Problem(draft.file, draft.line, "id", text)]
        merged.append(_merged(old, draft) if old is not None else draft)
    coming = {draft.id for draft in merged}
    rest = [draft for draft in folder.drafts if draft.id not in coming]
    read = plan.Plan((*rest, *merged), tuple(problems) + folder.problems)
    found = tasks.judge_plan(work.ledger, read, work.config).problems
    if found:
        raise UsageError(
            f"{plural(len(found), 'problem')} in {plural(len(drafts), 'task')}; "
            "nothing was written",
            why=listing(found),
        )
    for draft in merged:
        if mine.get(draft.id) != draft:
            _put(work.checkout / work.config.tasks, draft, mine.get(draft.id))
    taken = tasks.take_plan(work.ledger, merged)
    same = len(merged) - sum(map(len, (taken.new, taken.changed, taken.waiting, taken.ended)))
    click.echo(f"imported  {len(taken.new)} new, {len(taken.changed)} changed, {same} as before")
    say_taken(msgspec.structs.replace(taken, vanished=()), view)


def _tasks_by_file(folder: plan.Plan) -> Mapping[str, int]:
    """How many tasks each file holds."""
    return Counter(draft.file for draft in folder.drafts)


def _known_sources(view: View, folder: plan.Plan) -> dict[str, str]:
    known = {draft.source: draft.id for draft in folder.drafts if draft.source}
    for path, _ in view.iter_paths("tasks"):
        with contextlib.suppress(records.Undecodable):
            found = view.task(Path(path).stem)
            if found is not None and found.header.source:
                known[found.header.source] = found.id
    return known


def _merged(old: plan.Draft, new: plan.Draft) -> plan.Draft:
    """The file's task with what the source says: needs or paths that a person added stay."""
    given = {key: getattr(new, key) for key in new.lines if key != "id" and hasattr(new, key)}
    return dataclasses.replace(old, body=new.body or old.body, **given)


def _put(folder: Path, draft: plan.Draft, old: plan.Draft | None) -> None:
    """Write one task's file whole, or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    name = Path(old.file).name if old is not None else f"{draft.id}.md"
    put_whole(folder / name, plan.render(draft, name).encode())


# Changing


@task.command()
@click.argument("name", metavar="TASK")
@click.option("--no-editor", is_flag=True, help="Take the file as it is.")
def edit(name: str, no_editor: bool) -> None:
    """Open a task's file in $EDITOR, check it, and bring the ledger's copy up to it."""
    with opened() as work:
        _edit(work, name, no_editor)


def _edit(work: Workspace, name: str, no_editor: bool) -> None:
    id_ = _find_anywhere(work, name)
    if plan.OURS.fullmatch(id_):
        raise UsageError(
            f"{id_} is a task of swarm's own: no file says it", hint=f"swarm show {id_}"
        )
    view = work.ledger.view()
    state = view.state(id_)
    if state in (State.LANDED, State.CANCELLED):
        raise UsageError(
            f"{id_} is {state.value}: an edit would change nothing",
            hint=f"swarm task reopen {id_}" if state is State.CANCELLED else f"swarm show {id_}",
        )
    folder = work.checkout / work.config.tasks
    read = plan.read_folder(folder, work.config.tasks)
    old = next((draft for draft in read.drafts if draft.id == id_), None)
    if old is not None:
        file = folder / Path(old.file).name
    else:
        known = view.task(id_)
        assert known is not None
        file = folder / f"{id_}.md"
        _put(folder, _draft_of(known), None)
        click.echo(f"wrote     {work.config.tasks}/{id_}.md   from the ledger's copy")
    if not no_editor:
        _open_editor(file, id_)
    so = "the ledger keeps what it has"
    drafts = tasks.load_plan(work.ledger, folder, work.config, so=so)
    mine = [draft for draft in drafts if Path(draft.file).name == file.name]
    if id_ not in [draft.id for draft in mine]:
        raise UsageError(
            f"{file.name} does not say {id_} any more; the ledger keeps what it has",
            hint=f"give it back its id: {id_}",
        )
    taken = tasks.take_plan(work.ledger, mine)
    if not (taken.new or taken.changed or taken.waiting):
        click.echo(f"same      {id_}")
    say_taken(msgspec.structs.replace(taken, vanished=()), view)


def _find_anywhere(work: Workspace, name: str) -> str:
    """A task's id, also when only its file says it."""
    read = plan.read_folder(work.checkout / work.config.tasks, work.config.tasks)
    id_ = _folded(name)
    return id_ if id_ in [d.id for d in read.drafts] else tasks.load_id(work.ledger, name)


def _draft_of(known: records.Task) -> plan.Draft:
    header = known.header
    return plan.Draft(
        id=header.id,
        title=header.title,
        needs=tuple(header.needs),
        priority=header.priority,
        role=header.role,
        paths=tuple(header.paths),
        checks=tuple(header.checks),
        timeout=header.timeout,
        strikes=header.strikes,
        source=header.source,
        body=known.body,
    )


def _has_terminal() -> bool:
    return sys.stdin.isatty()


def _open_editor(file: Path, id_: str) -> None:
    """No shell: a file's name is the repository's text.

    Raises:
        UsageError: there is no terminal to edit in, or the editor failed.
    """
    if not _has_terminal():
        raise UsageError(
            "an editor needs a terminal, and standard input is none",
            why=f"edit {file} in your own way, and then:",
            hint=f"swarm task edit {id_} --no-editor",
        )
    words = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    argv = [*shlex.split(words), str(file)]
    try:
        code = os.spawnvp(os.P_WAIT, argv[0], argv)
    except OSError as error:
        raise UsageError(f"the editor {words} did not start", why=error.strerror) from error
    if code != 0:
        raise UsageError(
            f"the editor {words} ended with exit code {code}; the ledger keeps what it has",
            hint=f"EDITOR=nano swarm task edit {id_}" if code == 127 else None,
        )


@task.command()
@click.argument("names", metavar="TASK...", nargs=-1, required=True)
@click.option("--reason", default="", help="Kept in the log.")
def cancel(names: tuple[str, ...], reason: str) -> None:
    """End tasks that have not landed; whoever works on one is stopped, and its work stays."""
    with opened() as work:
        ids = [tasks.load_id(work.ledger, name) for name in names]
        view = work.ledger.view()
        ended = {State.LANDED: "it has landed", State.CANCELLED: "it is cancelled already"}
        for id_ in ids:
            if (state := view.state(id_)) in ended:
                verb = "task reopen" if state is State.CANCELLED else "show"
                raise UsageError(
                    f"{id_} cannot be cancelled: {ended[state]}", hint=f"swarm {verb} {id_}"
                )
            if view.is_landing(id_):
                raise UsageError(f"{id_} is landing now", hint=f"swarm show {id_}")
        for id_ in ids:
            answer = tasks.cancel(work.ledger, id_, reason, person())
            if isinstance(answer, Refusal):
                raise UsageError(f"{id_}: {answer.why}", hint=answer.hint or None)
            was = "" if answer.was is State.OPEN else f"   it was {answer.was.value}"
            click.echo(f"cancelled {id_}{was}")
        _say_blocked(work, ids)


def _say_blocked(work: Workspace, ids: Sequence[str]) -> None:
    view = work.ledger.view()
    for task_, needs in work.ledger.index.needs(view).items():
        lost = [need for need in needs if need in ids]
        if lost and view.state(task_) in (State.OPEN, State.PARKED):
            click.echo(f"blocked   {task_}   needs {', '.join(lost)}")


@task.command()
@click.argument("names", metavar="TASK...", nargs=-1, required=True)
def reopen(names: tuple[str, ...]) -> None:
    """Open parked or cancelled tasks again; their strikes are cleared, their work stays."""
    with opened() as work:
        ids = [tasks.load_id(work.ledger, name) for name in names]
        view = work.ledger.view()
        for id_ in ids:
            if view.state(id_) not in (State.PARKED, State.CANCELLED):
                state = shown_state(view, work.ledger.index, id_)
                by = find_undone(view).get(id_)
                if by is not None:
                    raise UsageError(
                        f"{id_} has landed and was undone by {by}: nothing opens it again",
                        why="undoing that brings its work back; a new task does it anew",
                        hint=f"swarm revert {by}",
                    )
                raise UsageError(
                    f"{id_} is {state}: only what is parked or cancelled is opened again",
                    hint=f"swarm show {id_}",
                )
        for id_ in ids:
            answer = tasks.reopen(work.ledger, id_, person())
            if isinstance(answer, Refusal):
                raise UsageError(f"{id_}: {answer.why}", hint=answer.hint or None)
            click.echo(f"reopened  {id_}{_continues(work.ledger.view(), id_)}")


def _continues(view: View, id_: str) -> str:
    with contextlib.suppress(records.Undecodable):
        attempts = view.attempts(id_)
        if attempts is not None:
            work = f" from {attempts.work.head[:7]}" if attempts.work else ""
            return f"   next is attempt {attempts.token + 1}{work}"
    return ""


# What becomes of it


def say_taken(taken: Taken, view: View) -> None:
    """A line for each task that is not as the ledger has it."""
    for id_ in taken.new:
        click.echo(f"new       {id_}")
    for id_ in taken.changed:
        click.echo(f"changed   {id_}")
    for id_ in taken.waiting:
        click.echo(f"waits     {id_}   {view.state(id_).value}: reaches its next attempt, if any")
    for id_ in taken.ended:
        click.echo(f"too late  {id_}   {view.state(id_).value}: the change has no effect")
    for id_ in taken.elsewhere:
        click.echo(f"elsewhere {id_}   it landed through another hub: give it another id to do it")
    for id_ in taken.vanished:
        click.echo(f"vanished  {id_}   its file is gone, it stays: swarm task cancel {id_}")
