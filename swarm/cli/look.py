"""Looking: status, claims, queue, log, show, tail, diff, task list.

Enters: the folder where it is typed. Leaves: text, or the same record as JSON.
Guards: reads only; what a terminal gets holds no control character of anybody else's.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec.structs import replace

from swarm import adapter as adapters
from swarm import overview
from swarm.errors import Exit, NotFound, SwarmError, UsageError
from swarm.ids import parse_duration
from swarm.ledger import records
from swarm.ledger.store import Ledger, Logged
from swarm.output import (
    QUIET,
    clean,
    compared_lines,
    conflicted_lines,
    diff_lines,
    event_line,
    log_foot,
    render_claims,
    render_costs,
    render_queue,
    render_status,
    render_story,
    render_tasks,
)
from swarm.plumbing.hub import LEDGER
from swarm.similar import nearest
from swarm.task import load_id
from swarm.transcript import STDERR, TRANSCRIPT, Transcript, of_attempt
from swarm.workspace import Workspace, opened

FOLLOW_SECONDS = 0.3
MOST_KNOWN = 20  # agents and slots that an error names, slots first, then the newest
FOLLOWED = 10  # past events that --follow shows first
SAID_AT_ONCE = 100  # lines; each echo costs a flush
_TODAY = re.compile(r"([0-2]?\d):([0-5]\d)(?::([0-5]\d))?")

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _print(record: msgspec.Struct, as_json: bool, render: Callable[[Any], list[str]]) -> None:
    if as_json:
        click.echo(json.dumps(records.jsonable(record), indent=2))
    else:
        click.echo("\n".join(map(clean, render(record))))


@click.command()
@_as_json
def status(as_json: bool) -> None:
    """What needs you, what works, what waits."""
    with opened() as work:
        _print(overview.status(work), as_json, render_status)


@click.command()
@_as_json
def claims(as_json: bool) -> None:
    """Who holds what, and the last sign of life."""
    with opened() as work:
        _print(overview.claims(work), as_json, render_claims)


@click.command()
@_as_json
def queue(as_json: bool) -> None:
    """Sealed changes that wait for the gate or for you."""
    with opened() as work:
        _print(overview.queue(work), as_json, render_queue)


@click.command("list")
@click.option("--state", type=click.Choice(overview.SHOWN), help="Only these.")
@_as_json
def list_tasks(state: str | None, as_json: bool) -> None:
    """Every task, in the order in which agents take them."""
    with opened() as work:
        found = overview.tasks(work)
    if state is not None:
        kept = [task for task in found.tasks if task.state == state]
        found = replace(found, tasks=kept)
    _print(found, as_json, render_tasks)


@click.command()
@click.argument("task")
@_as_json
def show(task: str, as_json: bool) -> None:
    """A task's whole story: its attempts, checks, and what became of each."""
    with opened() as work:
        task = load_id(work.ledger, task)
        _print(overview.story(work, task), as_json, render_story)


@click.command()
@click.option("--run", help="Of this run only.")
@_as_json
def costs(run: str | None, as_json: bool) -> None:
    """What agents say that they used: by task, by agent, by run."""
    with opened() as work:
        if run is not None and work.ledger.view().run(run) is None:
            raise NotFound(f"there is no run {clean(run)}", hint="swarm costs")
        _print(overview.costs(work, run), as_json, render_costs)


# Events


@click.command()
@click.option("--task", default="", help="Of this task only.")
@click.option("--agent", default="", help="Of this agent or slot only.")
@click.option("--since", help="10:30, 5m, or 2026-11-30T10:30.")
@click.option("--all", "wants_all", is_flag=True, help="Bookkeeping events too.")
@click.option("-n", "count", type=click.IntRange(1), help="At most this many.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens.")
@_as_json
def log(
    task: str,
    agent: str,
    since: str | None,
    wants_all: bool,
    count: int | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Events, newest first; with --follow oldest first, and then as they happen."""
    with opened() as work:
        ledger = work.ledger
        tip = ledger.view().tip
        if task:
            task = load_id(ledger, task)
        start = parse_since(since, datetime.now().astimezone()) if since is not None else None

        def wanted(logged: Logged) -> bool:
            facts = logged.message.trailers
            is_his = agent in (facts.get("Swarm-Agent"), facts.get("Swarm-Slot"))
            return (wants_all or logged.kind not in QUIET) and (not agent or is_his)

        def listed(tip: str, stop: str | None = None) -> Iterator[Logged]:
            found = ledger.iter_log(tip, stop, task=task, since=start)
            return filter(wanted, found)

        say = _Sayer(as_json)
        if follow:
            _follow(ledger, tip, count or FOLLOWED, listed, say)
            return
        limit = count if count is not None else sys.maxsize
        events = listed(tip)
        for logged in islice(events, limit):
            say(logged)
        say.flush()
        if agent and not say.count:
            _refuse_unknown(ledger, tip, agent)
        if not as_json:
            is_cut = say.count == limit and next(events, None) is not None
            click.echo(log_foot(say.count, tip, is_cut=is_cut))


def _refuse_unknown(ledger: Ledger, tip: str, agent: str) -> None:
    """
    Raises:
        NotFound: no event names this agent or slot.
    """
    slots: dict[str, None] = {}
    agents: dict[str, None] = {}
    for logged in ledger.iter_log(tip):
        facts = logged.message.trailers
        slots[facts.get("Swarm-Slot", "")] = agents[facts.get("Swarm-Agent", "")] = None
    known = [name for name in (*sorted(slots), *agents) if name]
    if agent in known:
        return
    near = nearest(agent, known)
    more = f" and {len(known) - MOST_KNOWN} more" if len(known) > MOST_KNOWN else ""
    raise NotFound(
        f"no event names an agent or slot {clean(agent)}",
        why=f"known: {clean(' '.join(known[:MOST_KNOWN]))}{more}"
        if known
        else "no event names any",
        hint=f"did you mean {clean(near)}?" if near else "swarm log",
    )


class _Sayer:
    """Prints events, many at once; the day is said when it changes and is not today."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._day = datetime.now().astimezone().date()
        self._lines: list[str] = []
        self.count = 0

    def __call__(self, logged: Logged) -> None:
        self.count += 1
        if self._as_json:
            self._lines.append(json.dumps(overview.event_json(logged)))
        else:
            at = logged.at
            if at.date() != self._day:
                self._day = at.date()
                self._lines.append(at.strftime("%Y-%m-%d"))
            stamp = (
                f"{at.hour:02d}:{at.minute:02d}:{at.second:02d}"  # strftime: three times as long
            )
            self._lines.append(event_line(logged, stamp, logged.oid[:7]))
        if len(self._lines) >= SAID_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        if self._lines:
            click.echo("\n".join(self._lines))
            self._lines.clear()


def _follow(
    ledger: Ledger,
    tip: str,
    past: int,
    listed: Callable[[str, str | None], Iterator[Logged]],
    say: _Sayer,
) -> None:
    for logged in reversed(list(islice(listed(tip, None), past))):
        say(logged)
    while True:
        say.flush()
        time.sleep(FOLLOW_SECONDS)
        now = ledger.hub.reader.ref(LEDGER)
        if now is not None and now != tip:
            for logged in reversed(list(listed(now, tip))):
                say(logged)
            tip = now


def parse_since(text: str, now: datetime) -> datetime:
    """`10:30` (the last one), `5m` (ago), or ISO 8601; local time unless it says a zone.

    Raises:
        UsageError: it is none of these.
    """
    match = _TODAY.fullmatch(text)
    if match is not None and int(match[1]) < 24:
        at = now.replace(
            hour=int(match[1]), minute=int(match[2]), second=int(match[3] or 0), microsecond=0
        )
        return at if at <= now else at - timedelta(days=1)
    try:
        return now - parse_duration(text)
    except (ValueError, OverflowError):
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"--since {clean(text)} is no time: say 10:30, 5m or 2026-11-30T10:30",
            hint="swarm log --since 5m",
        ) from error
    return at if at.tzinfo is not None else at.astimezone()


# One agent


@click.command()
@click.argument("task")
@click.option("--attempt", type=click.IntRange(1), help="Not the last one.")
@click.option(
    "-n", "count", type=click.IntRange(0), default=40, help="Lines of each to begin with."
)
@click.option("-f", "--follow", is_flag=True, help="Go on until the attempt ends.")
@click.option("--raw", is_flag=True, help="Its lines as it printed them, also where they are JSON.")
@_as_json
def tail(
    task: str, attempt: int | None, count: int, follow: bool, raw: bool, as_json: bool
) -> None:
    """What an agent said and did, then its standard error."""
    with opened() as work:
        task = load_id(work.ledger, task)
        found = overview.attempt_folder(work, task, attempt)
        if found is None:
            which = f"attempt {attempt}" if attempt is not None else "attempt"
            raise NotFound(f"no {which} of {task} on this disk", hint=f"swarm show {task}")
        token, folder = found
        reader = None if raw or as_json else _find_reader(work, task, token, folder)
        streams = [
            _Stream("transcript", folder / TRANSCRIPT, reader),
            _Stream("stderr", folder / STDERR),
        ]

        def say(stream: _Stream, lines: list[str]) -> None:
            for line in lines:
                if as_json:
                    facts = {"task": task, "token": token, "stream": stream.name, "text": line}
                    click.echo(json.dumps({"schema": "swarm.tail/1", **facts}))
                else:
                    click.echo(f"{'! ' if stream.name == 'stderr' else ''}{clean(line)}")

        if not as_json:
            click.echo(f"{task} attempt {token}   {clean(str(folder))}", err=True)
        for stream in streams:
            past = stream.more(is_last=not follow)
            say(stream, past[-count:] if count else [])
        while follow:
            sys.stdout.flush()
            is_over = _is_over(work, task, token)
            for stream in streams:
                say(stream, stream.more(is_last=is_over))
            if is_over:
                return
            time.sleep(FOLLOW_SECONDS)


def _find_reader(work: Workspace, task: str, token: int, folder: Path) -> Transcript | None:
    """What reads an agent's JSON for people; None: it prints text, or is not known any more."""
    for logged in work.ledger.iter_log(task=task):
        facts = logged.message.trailers
        if logged.kind == "claimed" and facts.get("Swarm-Token") == str(token):
            with contextlib.suppress(SwarmError):
                adapter = adapters.load(facts.get("Swarm-Adapter", ""), work.checkout)
                return of_attempt(adapter, folder) if adapter.output.format == "jsonl" else None
            return None
    return None


def _is_over(work: Workspace, task: str, token: int) -> bool:
    view = work.ledger.view()
    try:
        lock = view.lock(task)
    except records.Undecodable:
        return True
    is_sealed = view.blob_id(records.queue_path(task)) is not None
    return lock is None or lock.token != token or is_sealed


class _Stream:
    """A file that grows, read line by line; a line is shown when its end is there."""

    def __init__(self, name: str, path: Path, reader: Transcript | None = None) -> None:
        self.name = name
        self._reader = reader
        self._message = ""  # the last one
        self._path = path
        self._at = 0
        self._rest = b""

    def more(self, *, is_last: bool) -> list[str]:
        """Lines since the last call; at the end also one that was never ended."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except OSError:
            data = b""
        self._at += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        if is_last and self._rest:
            whole, self._rest = [*whole, self._rest], b""
        if self._reader is None:
            return [line.decode("utf-8", "replace") for line in whole]
        return [said for line in whole for said in self._told(line, self._reader)]

    def _told(self, line: bytes, reader: Transcript) -> list[str]:
        """Events in words; a line that is no event as it is; what says nothing to people not."""
        events = reader.hear(line)
        if not events and not line.lstrip().startswith(b"{"):
            return [line.decode("utf-8", "replace")]
        lines = []
        for event in events:
            if event.kind == "result" and event.text == self._message:
                continue  # told once
            self._message = event.text if event.kind == "message" else self._message
            for number, text in enumerate(event.text.splitlines() if event.text else ()):
                lines.append(f"{event.kind if number == 0 else '':<8} {text}")
        return lines


@click.command()
@click.argument("task")
@click.option("--merged", "is_merged", is_flag=True, help="As merged with the target of now.")
@click.option("--stat", "is_stat", is_flag=True, help="Only which files, and how much.")
@_as_json
def diff(task: str, is_merged: bool, is_stat: bool, as_json: bool) -> int:
    """What a task's change changes. Into a file or a pipe: git's own patch, byte for byte."""
    with opened() as work:
        task = load_id(work.ledger, task)
        read = overview.compare_merged if is_merged else overview.compare
        compared = read(work, task)
        if as_json:
            click.echo(json.dumps(_diff_json(work, task, compared), indent=2))
            return int(Exit.YES if isinstance(compared, overview.Compared) else Exit.NO)
        if compared is None:
            click.echo(f"{task}: nothing of it is saved yet")
            return int(Exit.NO)
        if isinstance(compared, overview.Conflicted):
            click.echo("\n".join(map(clean, conflicted_lines(compared))), err=True)
            return int(Exit.NO)
        patch = overview.diff(work, compared, is_stat=is_stat)
        click.echo("\n".join(map(clean, compared_lines(compared))), err=True)
        if not sys.stdout.isatty():
            click.echo(patch, nl=False)
            return int(Exit.YES)
        for line, colour in diff_lines(patch):
            if colour == "bold":
                click.secho(line, bold=True)
            else:
                click.secho(line, fg=colour or None)
        return int(Exit.YES)


def _diff_json(
    work: Workspace, task: str, compared: overview.Compared | overview.Conflicted | None
) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "schema": "swarm.diff/1",
        "task": task,
        "what": compared.what if compared is not None else None,
        "old": None,
        "new": None,
        "files": None,
        "merged": None,
    }
    if compared is None:
        return facts
    facts["merged"] = records.jsonable(compared.merged) if compared.merged is not None else None
    if isinstance(compared, overview.Conflicted):
        return facts | {"old": compared.merged.target}
    paths = work.ledger.hub.changed_paths(compared.old, compared.new, renames=True)
    named = [path.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for path in paths]
    since = compared.held_since
    return facts | {
        "old": compared.old,
        "new": compared.new,
        "files": compared.stat[0],
        "insertions": compared.stat[1],
        "deletions": compared.stat[2],
        "paths": named,
        "why": compared.why,
        "held_since": msgspec.to_builtins(since) if since is not None else None,
    }
