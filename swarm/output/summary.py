"""What a run leaves behind: where every task stands.

Enters: a standing, what landed in this run. Leaves: one block of lines per state.
Guards: every task is named, or counted where it landed before; but for what was cancelled before.
"""

from __future__ import annotations

from collections.abc import Sequence

from swarm.ledger.records import PERSON
from swarm.ledger.view import State
from swarm.output.words import WIDTH
from swarm.overview import Standing
from swarm.trailers import one_line


def standing_lines(
    at: Standing, landed: Sequence[str], detail: str = "", cancelled: Sequence[str] = ()
) -> list[str]:
    """One block per state, names and reasons, what needs a person with what to type.

    `landed`, `cancelled`: in this run; `detail` stands behind the number of what landed.
    """
    lines: list[str] = []
    before = at.landed - len(set(landed))
    earlier = f"   {before} before this run" if before else ""
    if at.landed:
        lines += _names("landed", sorted(set(landed)), f"{detail}{earlier}".strip())
    for state, hint in (
        ("parked", "swarm show {}"),
        ("held", "swarm diff {}"),
        ("blocked", ""),
        ("damaged", "swarm doctor"),
    ):
        lines += _reasons(state, at.told(state), hint)
    yours = {
        row.id: row.title
        for row in at.rows.values()
        if row.role == PERSON and row.state is State.OPEN and not row.unmet
    }
    lines += _reasons("yours", list(yours.items()), "swarm claim {}")
    for state, words in (
        ("queued", "sealed; the next run judges them"),
        ("claimed", ""),
        ("ready", ""),
    ):
        names = [row.id for row in at.of(state) if row.id not in yours]
        lines += _names(state, names, words) if names else []
    lines += _reasons("waiting", [row for row in at.told("waiting") if row[0] not in yours])
    return lines + (_names("cancelled", cancelled, "") if cancelled else [])


def _lead(word: str, count: int) -> str:
    return f"  {word:<9} {count:>3}   "


def _names(word: str, names: Sequence[str], detail: str) -> list[str]:
    lead = _lead(word, len(names))
    if detail:
        first = [lead + detail]
        lead = " " * len(lead)
    else:
        first = []
    lines: list[str] = []
    for name in names:
        if lines and len(lines[-1]) + 1 + len(name) <= WIDTH:
            lines[-1] += f" {name}"
        else:
            lines.append((lead if not lines else " " * len(lead)) + name)
    return first + (lines or ([] if first else [lead.rstrip()]))


def _reasons(word: str, rows: Sequence[tuple[str, str]], hint: str = "") -> list[str]:
    lines = []
    for number, (task, why) in enumerate(rows):
        lead = _lead(word, len(rows)) if number == 0 else " " * len(_lead(word, 0))
        text = f"{lead}{task}: {one_line(why)}"
        if hint:
            text = f"{text:<66}   {hint.format(task)}"
        lines.append(text)
    return lines
