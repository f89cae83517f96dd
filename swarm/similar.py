"""Names that mean nearly the same.

Enters: task ids, and what a person typed. Leaves: whether two ids are one job, the nearest name.
Guards: siblings (`tax-rounding`, `tax-report`) are never called duplicates; a guess is only a hint.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

_WORD = re.compile(r"[a-z0-9]+")

# What people put before the thing itself. Two jobs that differ in these alone are one job.
_VERBS = frozenset(
    _WORD.findall("""
    add adjust allow change complete convert correct create delete do drop enable ensure extend
    finish fix handle implement improve introduce investigate make migrate move optimize polish
    provide refactor remove rename repair replace resolve rework rewrite simplify support tidy
    tweak update write
    """)
)
_FEWEST_SHARED = 2  # one shared word makes siblings, not duplicates


def near(a: str, b: str) -> bool:
    """True when two ids mean nearly the same job: one's words contain the other's.

    Verbs of doing (fix, add, implement ...) and plural endings do not count, and two or more
    words must be shared. Symmetric. Rejected: the same words in any order (finds nothing on a
    real log of 2,064 claims), a Jaccard index of 0.6 (flags mostly siblings).
    """
    left, right = _words(a), _words(b)
    shared = left & right
    return len(shared) >= _FEWEST_SHARED and shared in (left, right)


def nearest(name: str, names: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The name that `name` was probably meant to be, or None when nothing is close.

    Names that begin with what was typed come first, the shortest of them.

    Units: `cutoff` is difflib's ratio: 0 takes anything, 1 only the same.
    """
    from difflib import get_close_matches  # only a refusal needs it

    known = list(names)
    longer = [other for other in known if name and other.startswith(name)]
    if longer:
        return min(longer, key=lambda other: (len(other), other))
    return next(iter(get_close_matches(name, known, n=1, cutoff=cutoff)), None)


@functools.lru_cache(maxsize=4096)
def _words(text: str) -> frozenset[str]:
    words = _WORD.findall(text.casefold())
    return frozenset(_singular(w) for w in words if w not in _VERBS)


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and word.endswith(("sses", "shes", "ches", "xes")):
        return word[:-2]
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word
