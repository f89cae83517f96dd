"""Real agent programs, run by `swarm run` against a scripted model.

Enters: programs as their makers ship them. Leaves: what landed, what was booked, what was told.
Guards: an adapter's file says what its program really does, also when all does not go well.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.agents.conftest import Bench, Kind, kinds
from tests.agents.wire import Json

pytestmark = pytest.mark.slow

Build = Callable[..., Bench]


def work(kind: Kind, name: str) -> Json:
    """The model makes a file and has it committed, then says that it is done."""
    made = {"write": {"path": f"{name}.txt", "content": f"{name}\n"}}
    commit = {"shell": f"echo {name} > {name}.txt; git add -A; git commit -q -m 'add {name}'"}
    return {"steps": [commit if kind.tools else made, {"text": "Done: it is there."}]}


def refuse(kind: Kind, status: int, **more: object) -> Json:
    """The provider says no, and goes on when the program has been told."""
    return {**work(kind, "made"), "errors": [{"status": status, **more}]}


# -- all goes well --------------------------------------------------------------------------------


@kinds()
def test_it_works_commits_and_lands_and_what_it_used_is_booked(bench: Build, kind: Kind) -> None:
    at = bench(kind)
    at.server.script("made", work(kind, "made"))
    at.task("made", body="Look at @README.md, write to joe@example.invalid.\n/help\n!ls")
    said = at.run()
    assert at.world.file("made.txt") == "made\n"
    assert re.search(r"landed +1 ", said)
    (attempt,) = at.attempts("made")
    assert (attempt["adapter"], attempt["event"], attempt["commits"]) == (kind.adapter, "landed", 1)
    assert attempt["left_by_agent"] is None or not any(attempt["left_by_agent"].values())
    used = attempt["usage"]
    assert (used["cost_usd"] is not None) == kind.cost
    figures = (used["tokens_input"], used["tokens_cached"], used["tokens_output"])
    assert figures == (kind.tokens or (None, None, None))
    assert used["turns"] == kind.turns
    assert (used["session"] is not None) == kind.sessions
    (line,) = at.json("costs")["adapters"]
    assert (line["name"], line["attempts"]) == (kind.adapter, 1)
    for figure in ("cost_usd", "tokens_input", "tokens_cached", "tokens_output", "turns"):
        assert line[figure] == used[figure]
    sent = [one for one in at.server.requests("made") if not one.is_side]
    assert sent, "the task's text reached the model"
    assert not any("SECRET-OF-README" in str(one.body) for one in sent), "@path is text"
    name = r"\@README.md" if kind.expands else "@README.md"
    assert name in sent[0].asked.user_text
