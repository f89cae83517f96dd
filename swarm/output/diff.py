"""A difference on a terminal.

Enters: git's own patch. Leaves: its lines with a colour. Guards: an escape sequence in a file of
the repository does not reach the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator

from swarm.output.words import WIDTH, clean, cut, plural
from swarm.overview import Compared


def compared_line(compared: Compared) -> str:
    """What a shown difference is between."""
    files, plus, minus = compared.stat
    what = f"{compared.task}   {compared.what}   {compared.old[:7]}..{compared.new[:7]}"
    return cut(f"{what}   {plural(files, 'file')} +{plus} -{minus}", WIDTH)


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
