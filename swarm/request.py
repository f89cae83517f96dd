"""What is asked of an attempt at work: that it stop, or that it end with a question.

Enters: a person's word, or an agent's question. Leaves: a file beside its run, until the attempt
has ended. Guards: a request names its claim's nonce, so that no later attempt heeds it; nothing
takes the place of a question, neither a stop nor another question.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from swarm.claim import Ending
from swarm.layout import Layout
from swarm.ledger.records import Lock, Work
from swarm.plumbing.refs import Move
from swarm.slot import read_small
from swarm.trailers import one_line

Kind = Literal["stop", "ask"]
MOST_ASKED = 4000  # characters of all that one attempt asks


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """`runs/<run>/.stop/<task>` or `.ask/<task>/question`: this claim's attempt is to end."""

    kind: Kind
    nonce: str
    by: str  # a person; of a question the agent that asks
    text: str  # why; or the question, its lines kept
    now: bool = False  # kill; else the adapter's signals and their grace


@dataclass(frozen=True)
class Wanted:
    """All that is asked of one claim: at least one of the two."""

    stop: Request | None = None
    ask: Request | None = None

    @property
    def now(self) -> bool:
        """Is there no time for the adapter's signals and their grace?"""
        return self.stop is not None and self.stop.now

    @property
    def by(self) -> str:
        """The person whose word it is; "" when it is only the agent's."""
        return self.stop.by if self.stop is not None else ""

    @property
    def outcome(self) -> Literal["stopped", "asked"]:
        """A question stays one, whoever stops the attempt meanwhile."""
        return "stopped" if self.ask is None else "asked"

    @property
    def says(self) -> str:
        """The sentence of the event."""
        parts = []
        if self.stop is not None:
            why = f": {self.stop.text}" if self.stop.text else ""
            parts.append(f"stopped by {self.stop.by}{why}")
        if self.ask is not None:
            parts.append(self.ask.text)
        return "; it asks: ".join(parts)

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
        asked = self.ask.text if self.ask is not None else says
        detail = asked if asked != says else ""
        return Ending(self.outcome, says, detail, paths=paths, work=work, moves=moves)


def asks(layout: Layout, run: str, task: str) -> Path:
    """Where the agent of a task leaves a question: all that it has to be able to write for that."""
    return layout.runs / run / ".ask" / task


def find_wanted(layout: Layout, lock: Lock) -> Wanted | None:
    """What is asked of this very claim. Cheap enough for every poll."""
    stop, ask = _read(layout, lock, "stop"), _read(layout, lock, "ask")
    return Wanted(stop, ask) if stop is not None or ask is not None else None


def put(layout: Layout, lock: Lock, request: Request) -> None:
    """Leave a request; an older one of its kind is replaced whole.

    Raises:
        OSError: it could not be written; an older one stands.
    """
    path = _path(layout, lock, request.kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{lock.task}.{os.getpid()}")
    temporary.write_bytes(msgspec.json.encode(request))
    temporary.replace(path)


def add_question(layout: Layout, lock: Lock, question: str) -> bool:
    """Leave a question; one that was left before stands above it, and the same is not left twice.

    False: together they would be too long, and what was left before stands.

    Raises:
        OSError: it could not be written; what was left before stands.

    Safe: any number at once.
    """
    with _alone(_path(layout, lock, "ask").parent):
        before = _read(layout, lock, "ask")
        text = question
        if before is not None:
            if f"\n\n{before.text}".endswith(f"\n\n{question}"):
                return True
            text = f"{before.text}\n\n{question}"
        if len(text) > MOST_ASKED:
            return False
        put(layout, lock, Request(kind="ask", nonce=lock.nonce, by=lock.agent, text=text))
        return True


def drop(layout: Layout, lock: Lock) -> None:
    """The attempt has ended; whatever was asked of it is done."""
    for kind in ("stop", "ask"):
        if _read(layout, lock, kind) is not None:
            with contextlib.suppress(OSError):
                _path(layout, lock, kind).unlink()


def _path(layout: Layout, lock: Lock, kind: Kind) -> Path:
    # Beside the folders of tasks, whose names never start with a dot.
    if kind == "ask":
        return asks(layout, lock.run, lock.task) / "question"
    return layout.runs / lock.run / ".stop" / lock.task


def _read(layout: Layout, lock: Lock, kind: Kind) -> Request | None:
    text = read_small(_path(layout, lock, kind))
    if text is None:
        return None
    try:
        request = msgspec.json.decode(text, type=Request)
    except msgspec.DecodeError:
        return None
    if request.nonce != lock.nonce or request.kind != kind:
        return None
    # The agent can write there by itself.
    return msgspec.structs.replace(request, text=plain(request.text)[:MOST_ASKED])


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def plain(text: str) -> str:
    """What a person or an agent wrote, its lines and tabs kept: whatever else is no printable
    character becomes a space.
    """
    lines = text.replace("\r\n", "\n")
    return "".join(c if c.isprintable() or c in "\n\t" else " " for c in lines).strip()
