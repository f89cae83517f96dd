"""A difference on a terminal.

Enters: git's own patch. Leaves: its lines with a colour. Guards: an escape sequence in a file of
the repository does not reach the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator

from swarm.output.lists import merged_text
from swarm.output.words import WIDTH, clean, clock, cut, plural, wrapped
from swarm.overview import Compared, Conflicted
from swarm.trailers import one_line


def compared_lines(compared: Compared) -> list[str]:
    """What a shown difference is between; of a held change, what a person has to know of it."""
    files, plus, minus = compared.stat
    stat = f"{plural(files, 'file')} +{plus} -{minus}"
    between = f"{compared.old[:7]}..{compared.new[:7]}"
    if compared.is_merged and compared.merged is not None:
        between = f"as merged: {merged_text(compared.merged)}"
    lines = [cut(f"{compared.task}   {compared.what}   {stat}   {between}", WIDTH)]
    if compared.held_since is not None:
        why = f"held since {clock(compared.held_since, compared.at)}: {one_line(compared.why)}"
        told = why if compared.is_merged else f"{why}; {merged_text(compared.merged)}"
        lines += wrapped(told, WIDTH)
    return lines


def conflicted_lines(conflicted: Conflicted) -> list[str]:
    """Why there is nothing to show, and all the paths."""
    merged = conflicted.merged
    where = f"{merged.branch} {merged.target[:7]}"
    if not merged.conflicts:
        return [f"{conflicted.task}   {conflicted.what}   shares no commit with {where}"]
    count = plural(len(merged.conflicts), "file")
    head = f"{conflicted.task}   {conflicted.what}   conflicts with {where} in {count}"
    return [head, *(f"  {one_line(path)}" for path in merged.conflicts)]


def diff_lines(patch: bytes) -> Iterator[tuple[str, str]]:
    """(line, colour or "") of git's own patch, fit for a terminal."""
    for raw in patch.decode("utf-8", "replace").split("\n")[:-1]:
        line = clean(raw)
        colour = ""
        if line.startswith(("diff ", "index ", "--- ", "+++ ", "new file", "deleted file")):
            colour = "bold"
        elif line.startswith("@@"):
            colour = "cyan"
        elif line.startswith("+"):
            colour = "green"
        elif line.startswith("-"):
            colour = "red"
        yield line, colour
