"""The one grammar of our commit messages: subject, a sentence, trailers.

Enters: words and key-value pairs. Leaves: a message, or its parts again.
Guards: text of tasks and agents can neither forge a trailer nor break a line.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_TRAILERS = re.compile(r"^(Swarm-[A-Za-z-]+): (.*)$", re.MULTILINE)
_MAX_LINE = 500
_MOST_LISTED = 20
_MAX_LISTED = 200  # characters of one listed value


def one_line(text: str, limit: int = _MAX_LINE) -> str:
    """Untrusted text as one printable line: control characters become spaces, the end is cut."""
    line = text.strip()
    if not line.isprintable():
        text = "".join(" " if unicodedata.category(c)[0] == "C" else c for c in text)
        line = " ".join(text.split())
    elif "  " in line:
        line = " ".join(line.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def plain(text: str) -> str:
    """Untrusted text, its lines and tabs kept: whatever else is no printable character becomes a
    space.
    """
    lines = text.replace("\r\n", "\n")
    return "".join(c if c.isprintable() or c in "\n\t" else " " for c in lines).strip()


class Message(NamedTuple):
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
    subject, _, rest = message.rstrip("\n").partition("\n\n")
    body, _, last = rest.rpartition("\n\n")
    trailers = dict(_TRAILERS.findall(last))
    return Message(subject, body if trailers else rest, trailers)


def of_commit(raw: bytes) -> Message:
    """The message parts of a raw commit object."""
    return parse(raw.partition(b"\n\n")[2].decode("utf-8", "replace"))


def listed(values: Sequence[str]) -> str:
    """Names as the value of one trailer, which `unlisted` reads back: a JSON array in one line.

    Shape: at most 20, and no more than fit into a line; a very long one is cut and ends in `...`.
    """
    parts: list[str] = []
    room = _MAX_LINE - 2
    for value in values[:_MOST_LISTED]:
        part = _quoted(value)
        kept = min(len(value), _MAX_LISTED)
        while len(part) > _MAX_LISTED:
            kept -= max(1, kept // 8)
            part = _quoted(value[:kept] + "...")
        room -= len(part) + 2
        if room < 0:
            break
        parts.append(part)
    return f"[{', '.join(parts)}]"


def _quoted(text: str) -> str:
    """A JSON string that `one_line` leaves as it is."""
    plain = json.dumps(text, ensure_ascii=False).replace("  ", " \\u0020")
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in plain)


def unlisted(text: str) -> list[str]:
    """What `listed` was given; a text that is no such list is one name."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, list):
        return [str(value) for value in found]
    return [text] if text else []


_LINE = r"^[ \t>*-]*Swarm-"
_LANDING = re.compile(
    rf"{_LINE}Task: ([a-z0-9-]+)[ \t]*\n{_LINE}Agent: .*\n{_LINE}Token: .*\n{_LINE}Tree: [0-9a-f]+",
    re.MULTILINE,
)


def landings_told(message: str) -> list[str]:
    """Tasks whose landings a commit's message tells: its own, or those whose messages a squash has
    put into one, where they are trailers no more.
    """
    return _LANDING.findall(message)
