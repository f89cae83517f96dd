"""Words and widths: how a text becomes a part of a line.

Enters: text, numbers, times. Leaves: text of a known width.
Guards: what is left of untrusted output holds no control character.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from swarm.ids import span_text

WIDTH = 100


def columns(text: str) -> int:
    """How many columns a terminal gives the text."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def cut(text: str, width: int) -> str:
    """The text in at most `width` columns, with `...` where something is missing."""
    if columns(text) <= width:
        return text
    kept = ""
    for c in text:
        if columns(kept + c) > width - 3:
            break
        kept += c
    return kept.rstrip() + "..."


def pad(text: str, width: int) -> str:
    return text + " " * (width - columns(text))


def beside(left: str, right: str, width: int = WIDTH) -> str:
    """`right` ends at the last column; what has no room beside it is cut from `left`."""
    if not right:
        return cut(left, width)
    left = cut(left, width - columns(right) - 2)
    return pad(left, width - columns(right)) + right


_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, moves
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)"  # OSC, DCS, SOS, PM, APC up to their end
    r"|\x1b[@-Z\\^_]"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)


def clean(line: str) -> str:
    """One line of untrusted output, its spaces and tabs kept: no escape sequence, no control,
    direction or other format character is left."""
    plain = _ESCAPES.sub("", line)
    return "".join(c for c in plain if c == "\t" or unicodedata.category(c)[0] != "C")


def plural(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def since_text(at: datetime, start: datetime) -> str:
    """`00:01.6`: minutes and seconds since the run began."""
    span = max((at - start).total_seconds(), 0.0)
    return f"{int(span // 60):02d}:{span % 60:04.1f}"


def for_text(seconds: float | None) -> str:
    """How long something takes; `-` when that is not known."""
    return "-" if seconds is None else span_text(timedelta(seconds=seconds))


def ago(seconds: float | None) -> str:
    """`3s ago`, `2m ago`, `14h ago`, `3d ago`; `unknown` for None."""
    if seconds is None:
        return "at an unknown time"
    for unit, size in (("d", 172_800), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // (86_400 if unit == 'd' else size))}{unit} ago"
    return f"{int(seconds)}s ago"


def clock(at: datetime, now: datetime) -> str:
    """Local time of day; with its date when that is not today."""
    local = at.astimezone()
    same_day = local.date() == now.astimezone().date()
    return local.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M")


def size_text(size: int) -> str:
    """`3.1 GB`."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit in ("B", "kB") else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def wrapped(text: str, width: int, *, is_cut: bool = True) -> list[str]:
    """The text in lines of at most `width` columns, cut between words.

    `is_cut`: so is a word that has no room in a line; else it has a longer one, to be copied.
    """
    if columns(text) <= width:
        return [text]
    if text.isascii():
        return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=is_cut)
    # Wide characters: half as many to a line as there are columns is always safe.
    return textwrap.wrap(text, max(width // 2, 1), break_on_hyphens=False, break_long_words=is_cut)


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    widest: Sequence[int],
    indent: str = "",
    *,
    whole: int | None = None,
) -> list[str]:
    """Columns two spaces apart, each as wide as what is in it up to its bound; the last one has no
    bound and gets what is left. The column `whole` holds names that are there to be copied: it is
    never cut, and a longer one moves the rest of its row to the right."""
    body = [list(row) for row in rows]
    sizes = [
        min(bound, max(columns(row[number]) for row in [list(head), *body]))
        for number, bound in enumerate(widest)
    ]
    lines = []
    for row in [list(head), *body]:
        cells = [
            pad(cell if number == whole else cut(cell, size), size)
            for number, (cell, size) in enumerate(zip(row[:-1], sizes, strict=True))
        ]
        lines.append(cut(indent + "  ".join([*cells, row[-1]]), WIDTH).rstrip())
    return lines
