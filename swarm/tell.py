"""What a person says to whoever works on a task next.

Enters: a task, a text. Leaves: a `told` event, with `reopened` when the task waited for a person;
or why nobody would ever read it. Guards: twice is told once; what is kept has a bound.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.outcome import question_of
from swarm.ledger.records import Attempts, Told
from swarm.ledger.store import Draft, Ledger, refuse
from swarm.ledger.view import State, View
from swarm.task import Refusal, reopened
from swarm.trailers import one_line, plain

MOST_TOLD = 16 * 1024  # bytes of one text
KEPT = 20  # texts of a task, the newest
KEPT_BYTES = 64 * 1024  # of these and their questions; the newest is always kept


class Heard(msgspec.Struct, frozen=True):
    """The next attempt of the task is told so."""

    task: str
    was: State
    token: int  # of its last attempt
    is_new: bool  # False: the same was said before, and nothing has happened since
    question: str | None  # that it answers


def tell(ledger: Ledger, task: str, text: str, by: str) -> Heard | Refusal:
    """Say something to whoever works on a task next; one that waits for a person is opened again.

    Safe: twice is told once, unless an attempt began, or the task was parked, in between.
    """
    text, by = plain(text), one_line(by, 80)

    def decide(view: View) -> Draft[Heard | Refusal]:
        refusal = _why_deaf(view, task)
        if refusal is not None:
            return refuse(refusal)
        state, attempts = view.state(task), view.attempts(task)
        assert attempts is not None
        is_parked = state is State.PARKED
        newest = [(told.text, told.by, told.token) for told in attempts.told[-1:]]
        if newest == [(text, by, attempts.token)] and not is_parked:
            return refuse(Heard(task, state, attempts.token, False, None))
        question = _unanswered(attempts, is_parked=is_parked)
        told = Told(text=text, by=by, at=view.now, token=attempts.token, question=question)
        after = replace(attempts, told=_newest([*attempts.told, told]))
        edits: dict[str, bytes | None] = {records.attempts_path(task): records.encode(after)}
        says = f"{by}: {one_line(text)}"
        event = Event("told", says, edits, task, "", after.token, {"Swarm-By": by})
        heard = Heard(task, state, after.token, True, question)
        if not is_parked:
            return Draft((event,), heard)
        return Draft((event, reopened(view, task, after, by)), heard)

    return ledger.append(decide)


def _why_deaf(view: View, task: str) -> Refusal | None:
    """Why nobody would ever be told, or None."""
    state, ill = view.state(task), view.why_damaged(task)
    if state is State.DAMAGED or ill is not None:
        return Refusal(
            task, f"its records are damaged: {ill or 'they do not go together'}", "swarm doctor"
        )
    if state is State.LANDED:
        return Refusal(task, "it has landed", f"swarm show {task}")
    if state is State.CANCELLED:
        return Refusal(task, "it is cancelled", f"swarm task reopen {task}")
    if view.is_landing(task):
        return Refusal(task, "it is landing now", f"swarm show {task}")
    parked = view.parked(task)
    if parked is not None and parked.reason == "lost":
        return Refusal(task, f"it is lost: {parked.message}", f"swarm task reopen {task}")
    if view.attempts(task) is None:
        return Refusal(
            task, "nobody has worked on it yet: write it into the task", f"swarm task edit {task}"
        )
    return None


def _unanswered(attempts: Attempts, *, is_parked: bool) -> str | None:
    """The question that the last attempt ended with, unless somebody has answered it."""
    last = attempts.last
    if last is None:
        return None
    known = [told.question for told in attempts.told if told.token >= last.token]
    question = question_of(last)
    return question if is_parked or question not in known else None


def _newest(told: list[Told]) -> list[Told]:
    kept: list[Told] = []
    room = KEPT_BYTES
    for one in reversed(told[-KEPT:]):
        room -= len(one.text.encode()) + len((one.question or "").encode())
        if kept and room < 0:
            break
        kept.insert(0, one)
    return kept
