"""One task's whole story.

Enters: a workspace and a task's name. Leaves: `swarm.show/1`. Guards: reads the events of that
task alone, whatever the length of the ledger.
"""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Any

import msgspec

from swarm.ledger.index import Row
from swarm.ledger.records import Told, Undecodable
from swarm.ledger.store import Ledger
from swarm.ledger.view import State, View, readable
from swarm.overview.attempts import AttemptLine, attempts_of
from swarm.overview.events import event_json
from swarm.overview.moment import Moment, Reading, read_moment
from swarm.overview.standing import stand
from swarm.revert import undone_by
from swarm.task import no_task
from swarm.workspace import Workspace


class NeedLine(msgspec.Struct, frozen=True, kw_only=True):
    """A need of the task."""

    task: str
    state: str
    landed: str | None
    at: datetime | None


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """`swarm show TASK --json`."""

    schema: str = "swarm.show/1"
    at: datetime
    ledger: Reading
    target: str  # branch
    task: str
    title: str
    body: str
    file: str
    state: str
    why: str
    priority: int
    role: str
    needs: list[NeedLine]
    paths: list[str]
    checks: list[str]  # that decide on it
    source: str
    added_at: datetime | None
    landed: str | None
    landed_at: datetime | None
    previous: str | None
    undoes: list[str]  # landed tasks that it takes back
    undone_by: list[str]  # tasks that take it back, oldest first
    question: str | None  # that waits for an answer
    told: list[Told]  # what people said since it last landed, oldest first
    work: str | None  # newest saved commit
    attempts: list[AttemptLine]
    events: list[dict[str, Any]]  # swarm.event/1, oldest first


def find_task(view: View, ledger: Ledger, task: str) -> Row:
    """
    Raises:
        NotFound: there is no such task; the hint names the nearest.
    """
    row = ledger.index.find(view, task)
    if row is None:
        raise no_task(ledger, view, task)
    return row


def story(work: Workspace, task: str) -> Story:
    """Everything that happened to one task; reads the events of that task alone.

    Raises:
        NotFound: there is no such task.
    """
    moment = read_moment(work)
    view, ledger = moment.view, work.ledger
    row = find_task(view, ledger, task)
    state, why = row.state.value, row.why
    if row.state is State.OPEN:
        state, why = stand(view, ledger.index).lines[task]
    header, body = None, ""
    with contextlib.suppress(Undecodable):
        found = view.task(task)
        if found is not None:
            header, body = found.header, found.body
    since = header.added_at if header is not None else None
    logged = list(ledger.iter_log(view.tip, task=task, since=since))[::-1]
    done = readable(view.done, task)
    parked = readable(view.parked, task)
    attempts = readable(view.attempts, task)
    asked = header.checks if header else []
    return Story(
        at=view.now,
        target=view.target_branch,
        task=task,
        title=row.title,
        body=body,
        file=f"{work.config.tasks}/{task}.md",
        state=State.LANDED.value if task in moment.in_flight else state,
        why=why,
        priority=row.priority,
        role=row.role,
        needs=[_need_line(moment, need) for need in row.needs],
        paths=list(row.paths),
        checks=[c.name for c in work.config.checks if c.when == "always" or c.name in asked],
        source=header.source if header else "",
        added_at=since,
        landed=done.landed if done else None,
        landed_at=done.at if done and done.landed else None,
        previous=done.previous if done else None,
        undoes=header.undoes if header else [],
        undone_by=undone_by(view, task) if done and done.landed else [],
        question=parked.question if parked else None,
        told=attempts.told if attempts else [],
        work=attempts.work.head if attempts and attempts.work else None,
        attempts=attempts_of(moment, task, logged),
        events=[event_json(event) for event in logged],
        ledger=moment.reading(),
    )


def _need_line(moment: Moment, need: str) -> NeedLine:
    state = moment.view.state(need).value
    done = readable(moment.view.done, need)
    if done is None or done.result != "landed":
        return NeedLine(task=need, state=state, landed=None, at=None)
    return NeedLine(task=need, state=state, landed=done.landed, at=done.at)
