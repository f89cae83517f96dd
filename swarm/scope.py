"""Which paths a task or a check speaks of.

Enters: gitwildmatch globs from the repository root. Leaves: matches, strays, and overlaps.
Guards: two globs that can match one path always overlap; a doubt counts as an overlap.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from swarm.config import glob_fault

if TYPE_CHECKING:  # imported where a glob is compiled: most commands compile none
    import pathspec

_WILD = re.compile(r"[*?\[\\]")


class Matcher:
    """Compiled globs; the last one that matches a path decides, `!` takes back."""

    __slots__ = ("_spec",)

    def __init__(self, spec: pathspec.GitIgnoreSpec) -> None:
        self._spec = spec

    def matches(self, path: str) -> bool:
        """True when `path`, from the repository root, is meant. No globs match nothing."""
        return self._spec.match_file(path)


def compile_globs(globs: Iterable[str]) -> Matcher:
    """
    Raises:
        ValueError: a glob cannot match as its author hoped; the message names it.
    """
    return _compiled(tuple(globs))


@functools.lru_cache(maxsize=256)
def _compiled(globs: tuple[str, ...]) -> Matcher:
    for glob in globs:
        if fault := glob_fault(glob):
            raise ValueError(f"glob {glob!r} {fault}")
    import pathspec

    return Matcher(pathspec.GitIgnoreSpec.from_lines(globs))


def outside(paths: Iterable[str], globs: Sequence[str]) -> list[str]:
    """The paths that no glob covers, in the order given; none when there are no globs.

    Raises:
        ValueError: see `compile_globs`.
    """
    if not globs:
        return []
    matcher = compile_globs(globs)
    return [path for path in paths if not matcher.matches(path)]


def protected(paths: Iterable[str], globs: Sequence[str]) -> list[str]:
    """The paths that touch what the globs mean, in the order given.

    In whatever case and Unicode form: a checkout on macOS or Windows takes `Swarm.TOML` for
    `swarm.toml`. Also a path where a glob has a folder: a link there would lead all that is meant
    elsewhere.

    Raises:
        ValueError: see `compile_globs`.
    """
    exact, folded = compile_globs(globs), compile_globs([_fold(glob) for glob in globs])
    below = [_literal(_fold(glob)) for glob in globs if not glob.startswith("!")]
    return [
        path
        for path in paths
        if exact.matches(path)
        or folded.matches(plain := _fold(path))
        or folded.matches(plain + "/any")
        or any(place.startswith(plain + "/") for place in below)
    ]


def _fold(text: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def overlap(a: Sequence[str], b: Sequence[str]) -> bool:
    """True when a path may exist that both `a` and `b` cover.

    Compares the literal parts before the first wildcard, so `src/**/x.py` and `src/**/y.py` do
    overlap: keeping a task back for nothing costs minutes, a conflict costs an attempt. A glob
    that starts with a wildcard, or has no slash but at its end, matches at any depth and overlaps
    everything. `!` globs only take away and are passed over. A task without globs may change
    anything and yet overlaps nothing, or it would never run beside another. Symmetric.
    """
    ours = [_literal(glob) for glob in a if not glob.startswith("!")]
    theirs = [_literal(glob) for glob in b if not glob.startswith("!")]
    return any(x.startswith(y) or y.startswith(x) for x in ours for y in theirs)


def _literal(glob: str) -> str:
    """What every path that `glob` matches begins with, if paths are written with a slash at the
    end: that slash keeps `src/a.py` and `src/ab.py` apart and `src/a*` and `src/ab.py` together.
    """
    text = glob.rstrip()
    if "/" not in text.rstrip("/"):
        return ""
    text = text.removeprefix("/")
    wild = _WILD.search(text)
    return text[: wild.start()] if wild else text.rstrip("/") + "/"
