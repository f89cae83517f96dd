"""Finding items by a word of their name."""

from collections.abc import Iterable


def find(word: str, names: Iterable[str]) -> list[str]:
    """The names that contain the word, in the order given."""
    return [name for name in names if word in name]
