"""One attempt of a task, from its claim to its end.

Enters: the task's events, and the ledger as it was right after each. Leaves: one line per attempt.
Guards: what happened then is told with the records of then, not with today's.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec.structs import replace

from swarm.ledger import records
from swarm.ledger.outcome import question_of
from swarm.ledger.records import (
    Attempts,
    Done,
    HoldReason,
    LeftByAgent,
    Lock,
    QueueEntry,
    Undecodable,
    Verdict,
)
from swarm.ledger.store import Logged
from swarm.ledger.view import View, readable
from swarm.overview.costs import UsageLine
from swarm.overview.events import number_of
from swarm.overview.moment import Moment, seconds_since
from swarm.overview.target import newest_verdict
from swarm.workspace import Workspace

R = TypeVar("R", bound=msgspec.Struct)


class CheckLine(msgspec.Struct, frozen=True, kw_only=True):
    """One verdict that counted for an attempt."""

    check: str
    about: Literal["merged", "alone"]  # the candidate, or the change by itself
    verdict: str
    tree: str
    seconds: float | None
    exit_code: int | None
    failing: list[str]
    tail: str
    why: str
    log: str | None  # below the state folder
    source: str  # the ledger file


class Partner(msgspec.Struct, frozen=True, kw_only=True):
    """The landing with which an attempt did not go together."""

    task: str
    landed: str | None
    at: datetime | None
    paths: list[str]


class AttemptLine(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt, from its claim to its end."""

    token: int
    agent: str
    adapter: str | None
    slot: str | None
    run: str | None
    host: str | None
    state: str  # claimed, queued, held; ended
    claimed_at: datetime
    ended_at: datetime | None = None
    for_seconds: float
    base: str | None
    start: str | None
    merge: str | None
    head: str | None = None
    commits: int | None = None
    files: int | None = None
    insertions: int | None = None
    deletions: int | None = None
    left_by_agent: LeftByAgent | None = None
    hold: list[HoldReason] = []
    event: str | None = None  # that ended it
    outcome: str | None = None
    message: str = ""
    detail: str = ""
    question: str | None = None  # that it ended with, its lines kept
    strike: bool | None = None
    strikes: str | None = None  # "1 of 3"
    paths: list[str] = []
    failing: list[str] = []
    partner: Partner | None = None
    checks: list[CheckLine] = []
    landed: str | None = None
    previous: str | None = None
    rescued: list[str] = []  # refs
    usage: UsageLine | None = None  # None: not ended, or no agent was started
    folder: str | None = None  # None: not on this disk
    holds: list[str] = []  # file names in that folder


def attempts_of(moment: Moment, task: str, logged: list[Logged]) -> list[AttemptLine]:
    by_token: dict[int, list[Logged]] = {}
    for event in logged:
        token = number_of(event.message.trailers.get("Swarm-Token"))
        if isinstance(token, int):
            by_token.setdefault(token, []).append(event)
    return [
        _attempt(moment, task, token, events)
        for token, events in sorted(by_token.items())
        if any(event.kind == "claimed" for event in events)
    ]


_ENDS = ("landed", "ejected", "released", "expired", "rejected", "cancelled")


def _attempt(moment: Moment, task: str, token: int, events: list[Logged]) -> AttemptLine:
    view = moment.view
    claimed = next(event for event in events if event.kind == "claimed")
    ended = next((event for event in events if event.kind in _ENDS), None)
    sealed = next((event for event in events if event.kind == "sealed"), None)
    facts = claimed.message.trailers
    lock = _record_at(view, claimed.oid, Lock, records.lock_path(task))
    entry = None
    for event in events:
        if event.kind in ("sealed", "held", "approved"):
            found = _record_at(view, event.oid, QueueEntry, records.queue_path(task))
            entry = found or entry
    claimed_at = lock.claimed_at if lock else claimed.at
    run = lock.run if lock else ""
    folder = moment.work.layout.attempt(run, task, token)
    line = AttemptLine(
        token=token,
        agent=facts.get("Swarm-Agent", ""),
        adapter=facts.get("Swarm-Adapter"),
        slot=facts.get("Swarm-Slot") or None,
        run=run or None,
        host=lock.host if lock else None,
        state="claimed" if entry is None else "held" if entry.is_held else "queued",
        claimed_at=claimed_at,
        for_seconds=seconds_since(view.now, claimed_at),
        base=lock.base if lock else None,
        start=facts.get("Swarm-Start"),
        merge=facts.get("Swarm-Merge"),
        head=sealed.message.trailers.get("Swarm-Head") if sealed else None,
        rescued=[
            e.message.trailers["Swarm-Ref"]
            for e in events
            if e.kind == "rescued" and "Swarm-Ref" in e.message.trailers
        ],
        usage=usage_of(view, task, token),
        folder=str(folder) if folder.is_dir() else None,
        holds=sorted(path.name for path in folder.iterdir() if path.is_file())
        if folder.is_dir()
        else [],
    )
    if entry is not None:
        line = replace(
            line,
            commits=entry.commits,
            files=entry.files,
            insertions=entry.insertions,
            deletions=entry.deletions,
            left_by_agent=entry.left_by_agent,
            hold=entry.hold or [],
        )
    return line if ended is None else _ended(moment, task, line, ended)


def _ended(moment: Moment, task: str, line: AttemptLine, ended: Logged) -> AttemptLine:
    view, facts = moment.view, ended.message.trailers
    attempts = _record_at(view, ended.oid, Attempts, records.attempts_path(task))
    last = attempts.last if attempts is not None else None
    if last is not None and last.token != line.token:
        last = None
    ended_at = last.ended_at if last else ended.at
    said = facts.get("Swarm-Strike", "no")
    outcome = facts.get("Swarm-Outcome") or ended.kind
    line = replace(
        line,
        state="ended",
        ended_at=ended_at,
        for_seconds=seconds_since(ended_at, line.claimed_at),
        event=ended.kind,
        outcome=outcome,
        message=ended.message.body,
        strike=None if ended.kind in ("landed", "cancelled") else said != "no",
        strikes=None if said == "no" else said,
        head=facts.get("Swarm-Head") or line.head or facts.get("Swarm-Work"),
    )
    if ended.kind == "landed":
        keys = facts.get("Swarm-Tree", "")
        done = _record_at(view, ended.oid, Done, records.done_path(task))
        return replace(
            line,
            landed=facts.get("Swarm-Landed"),
            previous=facts.get("Swarm-Previous"),
            checks=[
                found
                for key in (done.verdicts if done else [])
                if (found := _check_line(view, ended.oid, key, "merged")) is not None
            ],
            message=f"{facts.get('Swarm-Stat', '')} on tree {keys[:7]}".strip(),
        )
    if last is None:
        return line
    checks: list[CheckLine] = []
    if last.check is not None and last.tree is not None:
        tree = view.hub.reader.tree_of(ended.oid)
        path, _ = newest_verdict(view, tree, last.tree, last.check)
        merged = _check_line(view, ended.oid, Path(path).stem, "merged") if path else None
        if merged is not None:
            checks.append(merged)
        if line.head is not None and view.hub.reader.has(line.head):
            own = view.hub.reader.tree_of(line.head)
            path, _ = newest_verdict(view, tree, own, last.check)
            alone = _check_line(view, ended.oid, Path(path).stem, "alone") if path else None
            if alone is not None and own != last.tree:
                checks.append(alone)
    return replace(
        line,
        detail=last.detail,
        question=question_of(last),
        paths=last.paths,
        failing=last.failing,
        partner=_partner(view, last.partner) if last.partner else None,
        checks=checks,
    )


def usage_of(view: View, task: str, token: int) -> UsageLine | None:
    """What an attempt was charged for; None: nothing yet."""
    attempts = readable(view.attempts, task)
    made = next((one for one in attempts.charges if one.token == token), None) if attempts else None
    if made is None:
        return None
    known = msgspec.structs.asdict(made.usage)
    path = records.attempts_path(task)
    return UsageLine(**known, session=made.session, seconds=made.seconds, source=path)


def _record_at(view: View, commit: str, kind: type[R], path: str) -> R | None:
    """A ledger file as it was right after an event."""
    entry = view.hub.reader.find(view.hub.reader.tree_of(commit), path)
    if entry is None:
        return None
    try:
        return records.decode(kind, view.hub.reader.read(entry.oid, "blob"))
    except Undecodable:
        return None


def _check_line(
    view: View, commit: str, key: str, about: Literal["merged", "alone"]
) -> CheckLine | None:
    path = records.verdict_path(key)
    verdict = _record_at(view, commit, Verdict, path)
    if verdict is None:
        return None
    run = verdict.runs[-1] if verdict.runs else None
    return CheckLine(
        check=verdict.check,
        about=about,
        verdict=verdict.verdict,
        tree=verdict.tree,
        seconds=run.seconds if run else None,
        exit_code=run.exit_code if run else None,
        failing=verdict.failing,
        tail=verdict.tail,
        why=verdict.why,
        log=verdict.log,
        source=path,
    )


def _partner(view: View, task: str) -> Partner:
    done = readable(view.done, task)
    if done is None or done.landed is None:
        return Partner(task=task, landed=None, at=None, paths=[])
    paths = view.hub.changed_paths(done.previous, done.landed) if done.previous else []
    return Partner(task=task, landed=done.landed, at=done.at, paths=paths)


def attempt_folder(work: Workspace, task: str, token: int | None = None) -> tuple[int, Path] | None:
    """(token, folder) of an attempt's transcript on this disk: the named one, or the last."""
    found: list[tuple[int, Path]] = []
    for folder in work.layout.runs.glob(f"*/{task}/*"):
        if folder.name.isdecimal() and folder.is_dir():
            found.append((int(folder.name), folder))
    if token is not None:
        found = [pair for pair in found if pair[0] == token]
    return max(found, default=None)
