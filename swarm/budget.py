"""Booking what attempts used: reserved before they start, charged when they have ended.

Enters: a claim, what its agent said it used. Leaves: `charged` events.
Guards: an attempt is charged once, whoever writes it and whatever was killed before; a reservation
does not outlive its attempt.
"""

from __future__ import annotations

from msgspec.structs import replace

from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.records import Attempts, Charge, Run, Usage
from swarm.ledger.store import Draft, Ledger, refuse
from swarm.ledger.view import View, readable


def reserve(run: Run, task: str, usd: float | None) -> Run:
    """The run's record with one live attempt more."""
    return replace(run, reserved={**run.reserved, task: usd or 0.0})


def charge(ledger: Ledger, task: str, agent: str, made: Charge) -> bool:
    """Write what an attempt used into its task's and its run's record.

    False: it was charged before, or the task's record is gone or damaged.

    Raises:
        HubUnusable: busy or not writable; charging again is safe.
    """

    def decide(view: View) -> Draft[bool]:
        before = readable(view.attempts, task)
        if before is None or any(one.token == made.token for one in before.charges):
            return refuse(False)
        after = replace(before, charges=[*before.charges, made])
        edits = {records.attempts_path(task): records.encode(after), **_run_edits(view, task, made)}
        event = Event("charged", says(made), edits, task, agent, made.token, _trailers(made))
        return Draft((event,), True)

    return ledger.append(decide)


def unreserve(ledger: Ledger, run: str, task: str, agent: str, token: int) -> None:
    """No agent was started for a claim: what was reserved for it is free again."""

    def decide(view: View) -> Draft[None]:
        known = view.run(run)
        if known is None or task not in known.reserved:
            return refuse(None)
        after = replace(known, reserved=_without(known, task))
        edits = {records.run_path(run): records.encode(after)}
        said = "Nothing: no agent was started."
        return Draft((Event("charged", said, edits, task, agent, token),), None)

    ledger.append(decide)


def find_session(attempts: Attempts | None) -> Charge | None:
    """The agent's own session that the next attempt can go on with; None: it begins afresh.

    It does after an end that says nothing against what the agent was doing.
    """
    if attempts is None or attempts.last is None or not attempts.charges:
        return None
    last = attempts.charges[-1]
    is_same = last.token == attempts.last.token and last.session is not None
    return last if is_same and attempts.last.outcome in RESUMED else None


RESUMED = frozenset(
    {"stopped", "expired", "provider_limit", "not_logged_in", "over_budget", "asked"}
)


def says(made: Charge) -> str:
    """`$0.61, 182k tokens, 14 turns`, as far as it is known."""
    usage = made.usage
    parts = [cost_text(usage.cost_usd)]
    if usage.tokens is not None:
        parts.append(f"{usage.tokens} tokens")
    if usage.turns is not None:
        parts.append(f"{usage.turns} turns")
    return ", ".join(parts)


def cost_text(usd: float | None) -> str:
    return "cost unknown" if usd is None else f"${usd:.2f}"


def _run_edits(view: View, task: str, made: Charge) -> dict[str, bytes]:
    run = readable(view.run, made.run) if made.run else None
    if run is None:
        return {}
    usd, tokens = made.usage.cost_usd, made.usage.tokens
    assumed = run.reserved.get(task, 0.0) if usd is None else 0.0
    after = replace(
        run,
        reserved=_without(run, task),
        assumed_usd=round(run.assumed_usd + assumed, 6),
        spent_usd=run.spent_usd if usd is None else round((run.spent_usd or 0.0) + usd, 6),
        spent_tokens=run.spent_tokens if tokens is None else (run.spent_tokens or 0) + tokens,
        attempts=run.attempts + 1,
        attempts_unknown=run.attempts_unknown + (usd is None),
        attempts_mute=run.attempts_mute + (tokens is None),
    )
    return {records.run_path(made.run): records.encode(after)}


def _without(run: Run, task: str) -> dict[str, float]:
    return {name: usd for name, usd in run.reserved.items() if name != task}


def _trailers(made: Charge) -> dict[str, str]:
    usage: Usage = made.usage
    known = {
        "Swarm-Run": made.run or None,
        "Swarm-Adapter": made.adapter,
        "Swarm-Slot": made.slot or None,
        "Swarm-Seconds": f"{made.seconds:.1f}",
        "Swarm-Cost-Usd": usage.cost_usd,
        "Swarm-Tokens-Input": usage.tokens_input,
        "Swarm-Tokens-Cached": usage.tokens_cached,
        "Swarm-Tokens-Output": usage.tokens_output,
        "Swarm-Turns": usage.turns,
        "Swarm-Session": made.session,
    }
    return {name: str(value) for name, value in known.items() if value is not None}
