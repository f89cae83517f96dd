"""What is asked of an attempt at work: that it stop, or end with a question, or as given up.

Enters: a person's word, or its agent's. Leaves: a file beside its run, until the attempt has ended.
Guards: a request names its claim's nonce, so that no later attempt heeds it; nothing takes the
place of a question, neither a stop nor another question; an agent needs no right but to its folder.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec.structs import replace

from swarm.claim import Ending
from swarm.files import alone, put_whole
from swarm.layout import Layout
from swarm.ledger.records import Lock, Work
from swarm.plumbing.refs import Move
from swarm.slot import read_small
from swarm.trailers import one_line, plain

MOST_ASKED = 4000  # characters of all that one attempt asks


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """`runs/<run>/.stop/<task>`: a person ends this claim's attempt."""

    nonce: str
    by: str
    why: str = ""
    is_now: bool = False  # kill; else the adapter's signals and their grace


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """`runs/<run>/.ask/<task>/question`: this claim's agent ends its attempt with a question."""

    nonce: str
    by: str  # the agent
    text: str  # its lines kept


class GivenUp(msgspec.Struct, frozen=True, kw_only=True):
    """`runs/<run>/.ask/<task>/given-up`: this claim's agent cannot do the task."""

    nonce: str
    why: str  # one line


Kind = TypeVar("Kind", Stop, Question, GivenUp)


@dataclass(frozen=True)
class Wanted:
    """All that is wanted of one claim: at least one of the three."""

    stop: Stop | None = None
    question: Question | None = None
    given_up: GivenUp | None = None

    @property
    def is_now(self) -> bool:
        """Is there no time for the adapter's signals and their grace?"""
        return self.stop is not None and self.stop.is_now

    @property
    def by(self) -> str:
        """The person whose word it is; "" when it is only the agent's."""
        return self.stop.by if self.stop is not None else ""

    @property
    def outcome(self) -> Literal["stopped", "asked", "given_up"]:
        """A question stays one, whoever stops the attempt meanwhile; a person's word is stronger
        than its agent's that it gives up.
        """
        if self.question is not None:
            return "asked"
        return "stopped" if self.stop is not None else "given_up"

    @property
    def is_agents(self) -> bool:
        """Has its agent said how it ends? Then it ends so, whatever the agent did after."""
        return self.outcome != "stopped"

    @property
    def says(self) -> str:
        """The sentence of the event."""
        parts = []
        if self.stop is not None:
            why = f": {self.stop.why}" if self.stop.why else ""
            parts.append(f"stopped by {self.stop.by}{why}")
        if self.given_up is not None:
            parts.append(f"given up: {self.given_up.why}")
        said = "; ".join(parts)
        if self.question is None:
            return said
        return f"{said}; it asks: {self.question.text}" if said else self.question.text

    def ending(
        self,
        *,
        note: str = "",
        paths: tuple[str, ...] = (),
        work: Work | None = None,
        moves: tuple[Move, ...] = (),
    ) -> Ending:
        """How the attempt ends; a question that is no single line stands whole in `detail`."""
        says = one_line(f"{note}; {self.says}" if note else self.says)
        asked = self.question.text if self.question is not None else says
        detail = asked if asked != says else ""
        return Ending(self.outcome, says, detail, paths=paths, work=work, moves=moves)


def question_folder(layout: Layout, run: str, task: str) -> Path:
    """Where the agent of a task leaves what it wants: all that it has to be able to write."""
    return layout.runs / run / ".ask" / task


def find_wanted(layout: Layout, lock: Lock) -> Wanted | None:
    """What is wanted of this very claim. Cheap enough for every poll."""
    wanted = Wanted(
        _find_stop(layout, lock), _find_question(layout, lock), _find_given_up(layout, lock)
    )
    return wanted if wanted != Wanted() else None


def put_stop(layout: Layout, lock: Lock, stop: Stop) -> None:
    """Leave a person's word; an earlier one is replaced whole.

    Raises:
        OSError: it could not be written; an earlier one stands.
    """
    path = _stop_path(layout, lock)
    path.parent.mkdir(parents=True, exist_ok=True)
    put_whole(path, msgspec.json.encode(stop))


def add_question(layout: Layout, lock: Lock, question: str) -> bool:
    """Leave a question; one that was left before stands above it, and the same is not left twice.

    False: together they would be too long, and what was left before stands.

    Raises:
        OSError: it could not be written; what was left before stands.

    Safe: any number at once.
    """
    path = _question_path(layout, lock)
    path.parent.mkdir(parents=True, exist_ok=True)
    with alone(path.parent):
        before = _find_question(layout, lock)
        text = question
        if before is not None:
            if has_asked(before.text, question):
                return True
            text = f"{before.text}\n\n{question}"
        if len(text) > MOST_ASKED:
            return False
        asked = Question(nonce=lock.nonce, by=lock.agent, text=text)
        put_whole(path, msgspec.json.encode(asked))
        return True


def put_given_up(layout: Layout, lock: Lock, why: str) -> None:
    """Leave an agent's word that it gives up; an earlier one is replaced whole.

    Raises:
        OSError: it could not be written; an earlier one stands.
    """
    path = _given_up_path(layout, lock)
    path.parent.mkdir(parents=True, exist_ok=True)
    with alone(path.parent):
        put_whole(path, msgspec.json.encode(GivenUp(nonce=lock.nonce, why=one_line(why))))


def has_asked(asked: str, question: str) -> bool:
    """Is the question one of those that were asked, each below the other?"""
    return f"\n\n{question}\n\n" in f"\n\n{asked}\n\n"


def drop(layout: Layout, lock: Lock) -> None:
    """The attempt has ended; whatever was wanted of it is done."""
    for find, path in (
        (_find_stop, _stop_path),
        (_find_question, _question_path),
        (_find_given_up, _given_up_path),
    ):
        with contextlib.suppress(OSError):
            if find(layout, lock) is not None:
                path(layout, lock).unlink()


def _stop_path(layout: Layout, lock: Lock) -> Path:
    # Beside the folders of tasks, whose names never start with a dot.
    return layout.runs / lock.run / ".stop" / lock.task


def _question_path(layout: Layout, lock: Lock) -> Path:
    return question_folder(layout, lock.run, lock.task) / "question"


def _given_up_path(layout: Layout, lock: Lock) -> Path:
    return question_folder(layout, lock.run, lock.task) / "given-up"


def _find_stop(layout: Layout, lock: Lock) -> Stop | None:
    found = _decoded(_stop_path(layout, lock), Stop)
    return found if found is not None and found.nonce == lock.nonce else None


def _find_question(layout: Layout, lock: Lock) -> Question | None:
    found = _decoded(_question_path(layout, lock), Question)
    if found is None or found.nonce != lock.nonce:
        return None
    # The agent can write there by itself.
    return replace(found, text=plain(found.text)[:MOST_ASKED])


def _find_given_up(layout: Layout, lock: Lock) -> GivenUp | None:
    found = _decoded(_given_up_path(layout, lock), GivenUp)
    if found is None or found.nonce != lock.nonce:
        return None
    return replace(found, why=one_line(found.why) or "it does not say why")


def _decoded(path: Path, kind: type[Kind]) -> Kind | None:
    text = read_small(path)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError:
        return None
