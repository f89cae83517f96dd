"""What a slot keeps for its next opening is replaced whole: a kill in the middle spoils nothing."""

from __future__ import annotations

import os

import pytest

from tests.world import World

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("name", ["index", "HEAD"])
def test_what_a_slot_keeps_is_never_half_written(world: World, name: str) -> None:
    """Once a run was killed in the midst of it: an empty index was kept, and no opening of the slot
    succeeded any more.
    """
    world.add("one")
    world.agent("one").write("one.txt", "1\n").seal()
    place = world.slot("s1").own / name
    world.add("two")
    with place.open("rb") as kept:
        before = kept.read()
        world.agent("two").write("two.txt", "2\n").commit()
        kept.seek(0)
        assert kept.read() == before != b"", "the old one was not written over"
        assert os.fstat(kept.fileno()).st_nlink == 0, "another one stands in its place"
