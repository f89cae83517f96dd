"""Which paths a task or a check speaks of.

Enters: gitwildmatch globs from the repository root. Leaves: matches, strays, and overlaps.
Guards: two globs that can match one path always overlap; a doubt counts as an overlap.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence

import pathspec

from swarm.config import glob_fault

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
