"""`swarm costs` as text.

Enters: its record. Leaves: a line for each task, agent and run, and the sum.
Guards: what did not say its cost is counted beside what did.
"""

from __future__ import annotations

from collections.abc import Sequence

from swarm.output.words import WIDTH, cut, for_text, plural, table
from swarm.overview import CostLine, Costs, Sum
from swarm.trailers import one_line

LISTED = 40  # tasks that are named; --json has all


def render_costs(costs: Costs) -> list[str]:
    """`swarm costs`."""
    foot = f"{_sum_text(costs.total)}; ledger {costs.ledger.oid[:7]}"
    if not costs.tasks:
        of = f" of {one_line(costs.run)}" if costs.run is not None else ""
        return [cut(f"no attempt{of} has ended yet; ledger {costs.ledger.oid[:7]}", WIDTH)]
    lines = _table("task", costs.tasks[:LISTED])
    if len(costs.tasks) > LISTED:
        lines.append(f"and {len(costs.tasks) - LISTED} tasks more: --json")
    if len(costs.adapters) > 1:
        lines += ["", *_table("agent", costs.adapters)]
    if len(costs.runs) > 1:
        lines += ["", *_table("run", costs.runs)]
    if costs.total.is_priced:
        lines.append("* tokens times the [price] of its adapter")
    return [*lines, "", cut(foot, WIDTH)]


def _table(what: str, sums: Sequence[Sum]) -> list[str]:
    rows = [
        (
            one_line(one.name) or "by hand",
            one.state if isinstance(one, CostLine) else "",
            str(one.attempts),
            cost_text(one.cost_usd) + ("*" if one.is_priced else ""),
            str(one.attempts_unknown) if one.attempts_unknown else "-",
            tokens_text(one.tokens_input),
            tokens_text(one.tokens_cached),
            tokens_text(one.tokens_output),
            str(one.turns) if one.turns is not None else "-",
            for_text(one.seconds),
        )
        for one in sums
    ]
    head = (what, "", "att", "cost", "unknown", "input", "cached", "output", "turns", "worked")
    return table(head, rows, (26, 9, 4, 9, 8, 8, 8, 8, 6), whole=0)


def _sum_text(total: Sum) -> str:
    known = total.attempts - total.attempts_unknown
    of = f"in {known} of {plural(total.attempts, 'attempt')}"
    unknown = f"; {total.attempts_unknown} did not say" if total.attempts_unknown else ""
    return f"{cost_text(total.cost_usd)} {of}{unknown}"


def cost_text(usd: float | None) -> str:
    """`$0.61`; what is less than a cent is not shown as nothing."""
    if usd is None:
        return "unknown"
    return "<$0.01" if 0 < usd < 0.01 else f"${usd:.2f}"


def tokens_text(count: int | None) -> str:
    """`182k`; `-` where it is not known."""
    if count is None:
        return "-"
    if count < 10_000:
        return str(count)
    return f"{count / 1000:.0f}k" if count < 10_000_000 else f"{count / 1e6:.1f}M"
