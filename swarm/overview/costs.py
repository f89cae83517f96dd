"""What was spent, as far as agents say: by task, by agent program, by run.

Enters: a workspace. Leaves: `swarm.costs/1`. Guards: a sum is of what is known, and beside it
stands how many attempts did not say; nothing known is None, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

import msgspec

from swarm.ledger.records import Charge, Usage
from swarm.ledger.view import View
from swarm.overview.moment import Moment, Reading, read_moment
from swarm.workspace import Workspace


class UsageLine(Usage, frozen=True, kw_only=True):
    """What one attempt used, and by which session of the agent's own."""

    session: str | None = None
    seconds: float | None = None  # that its agent worked
    source: str = ""  # the ledger file


class Sum(msgspec.Struct, frozen=True, kw_only=True):
    """What several attempts used; None: none of them said."""

    name: str  # a task, an adapter, a run; "" for all
    attempts: int
    attempts_unknown: int  # of these: their cost is not known
    cost_usd: float | None
    is_priced: bool  # a part of the cost is tokens times a price, not the agent's word
    tokens_input: int | None
    tokens_cached: int | None
    tokens_output: int | None
    turns: int | None
    seconds: float


class CostLine(Sum, frozen=True, kw_only=True):
    """Of one task."""

    state: str


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """`swarm costs --json`."""

    schema: str = "swarm.costs/1"
    at: datetime
    ledger: Reading
    run: str | None  # only this one's attempts; None: all
    tasks: list[CostLine]  # the dearest first, those of unknown cost last
    adapters: list[Sum]  # by name
    runs: list[Sum]  # by name, the newest last
    total: Sum
    source: str = "attempts/"


def costs(work: Workspace, run: str | None = None) -> Costs:
    """What all attempts, or those of one run, are known to have used."""
    moment = read_moment(work)
    by_task = dict(_charges(moment.view, run))
    all_of = [one for charges in by_task.values() for one in charges]
    lines = [
        CostLine(**msgspec.structs.asdict(_sum(task, charges)), state=_state(moment, task))
        for task, charges in by_task.items()
    ]
    lines.sort(key=lambda line: (line.cost_usd is None, -(line.cost_usd or 0.0), line.name))
    return Costs(
        at=moment.view.now,
        ledger=moment.reading(),
        run=run,
        tasks=lines,
        adapters=_grouped(all_of, lambda one: one.adapter, lambda name: (0, name)),
        runs=_grouped(all_of, lambda one: one.run, _natural),
        total=_sum("", all_of),
    )


def _charges(view: View, run: str | None) -> Iterator[tuple[str, list[Charge]]]:
    for attempts in view.all_attempts():
        charges = [one for one in attempts.charges if run is None or one.run == run]
        if charges:
            yield attempts.task, charges


def _state(moment: Moment, task: str) -> str:
    return "landed" if task in moment.in_flight else moment.view.state(task).value


def _grouped(
    charges: list[Charge], key: Callable[[Charge], str], order: Callable[[str], tuple[int, str]]
) -> list[Sum]:
    groups: dict[str, list[Charge]] = {}
    for one in charges:
        groups.setdefault(key(one), []).append(one)
    return [_sum(name, groups[name]) for name in sorted(groups, key=order)]


def _natural(run: str) -> tuple[int, str]:
    digits = run.removeprefix("r")
    return (int(digits) if digits.isdecimal() else 0, run)


def _sum(name: str, charges: list[Charge]) -> Sum:
    used = [one.usage for one in charges]

    def added(field: str) -> int | None:
        known = [value for one in used if (value := getattr(one, field)) is not None]
        return sum(known) if known else None

    costs = [one.cost_usd for one in used if one.cost_usd is not None]
    return Sum(
        name=name,
        attempts=len(charges),
        attempts_unknown=len(charges) - len(costs),
        cost_usd=round(sum(costs), 6) if costs else None,
        is_priced=any(one.is_priced for one in used),
        tokens_input=added("tokens_input"),
        tokens_cached=added("tokens_cached"),
        tokens_output=added("tokens_output"),
        turns=added("turns"),
        seconds=round(sum(one.seconds for one in charges), 1),
    )
