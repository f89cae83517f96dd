"""The one grammar of our commit messages: subject, a sentence, trailers.

Enters: words and key-value pairs. Leaves: a message, or its parts again.
Guards: text of tasks and agents can neither forge a trailer nor break a line.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

_TRAILER = re.compile(r"(Swarm-[A-Za-z-]+): (.*)")
_MAX_LINE = 500


def one_line(text: str, limit: int = _MAX_LINE) -> str:
    """Untrusted text as one printable line: control characters become spaces, the end is cut."""
    if not text.isprintable():
        text = "".join(" " if unicodedata.category(c)[0] == "C" else c for c in text)
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


@dataclass(frozen=True)
class Message:
    """The parts of a commit message of ours."""

    subject: str
    body: str
    trailers: Mapping[str, str]


def compose(subject: str, body: str, trailers: Mapping[str, str]) -> str:
    """A commit message that `parse` reads back: trailers are its last paragraph.

    Raises:
        ValueError: no trailers: the body would be the last paragraph, and could forge some.
    """
    if not trailers:
        raise ValueError("a message of ours has trailers")
    lines = [f"{key}: {one_line(value)}" for key, value in trailers.items()]
    paragraphs = [one_line(subject, 200), *([one_line(body)] if body else []), "\n".join(lines)]
    return "\n\n".join(paragraphs) + "\n"


def parse(message: str) -> Message:
    """The parts; trailers are the `Swarm-` lines of the last paragraph, never of the subject's."""
    paragraphs = message.rstrip("\n").split("\n\n")
    trailers: dict[str, str] = {}
    for line in paragraphs[-1].split("\n") if len(paragraphs) > 1 else ():
        match = _TRAILER.fullmatch(line)
        if match is not None:
            trailers[match[1]] = match[2]
    middle = paragraphs[1:-1] if trailers else paragraphs[1:]
    return Message(paragraphs[0], "\n\n".join(middle), trailers)


def of_commit(raw: bytes) -> Message:
    """The message parts of a raw commit object."""
    return parse(raw.partition(b"\n\n")[2].decode("utf-8", "replace"))
