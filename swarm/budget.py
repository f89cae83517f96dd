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

# Ends that say nothing against what the agent was doing; `asked` has been answered when it goes on.
RESUMED = frozenset(
    {"stopped", "expired", "provider_limit", "not_logged_in", "over_budget", "asked"}
)


def reserve(run: Run, task: str, token: int, usd: float | None) -> Run:
    """The run's record with one live attempt more."""
    return replace(run, reserved={**run.reserved, _key(task, token): usd or 0.0})


def _key(task: str, token: int) -> str:
    return f"{task}/{token}"


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
        run = readable(view.run, made.run) if made.run else None
        held = run.reserved.get(_key(task, made.token), 0.0) if run is not None else 0.0
        booked = replace(made, assumed_usd=held if made.usage.cost_usd is None else 0.0)
        after = replace(before, charges=[*before.charges, booked])
        edits = {records.attempts_path(task): records.encode(after)}
        if run is not None:
            covered = next((one for one in before.charges if one.token == made.covers), None)
            edits[records.run_path(run.run)] = records.encode(_booked(run, task, booked, covered))
        event = Event("charged", says(made), edits, task, agent, made.token, _trailers(made))
        return Draft((event,), True)

    return ledger.append(decide)


def unreserve(ledger: Ledger, run: str, task: str, agent: str, token: int) -> None:
    """No agent was started for a claim: what was reserved for it is free again."""

    def decide(view: View) -> Draft[None]:
        known = view.run(run)
        if known is None or _key(task, token) not in known.reserved:
            return refuse(None)
        after = replace(known, reserved=_without(known, task, token))
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


def says(made: Charge) -> str:
    """`$0.61, 182k tokens, 14 turns`, as far as it is known."""
    usage = made.usage
    parts = [_cost(usage.cost_usd)]
    if usage.tokens is not None:
        parts.append(f"{usage.tokens} tokens")
    if usage.turns is not None:
        parts.append(f"{usage.turns} turns")
    return ", ".join(parts)


def _cost(usd: float | None) -> str:
    return "cost unknown" if usd is None else f"${usd:.2f}"


def _booked(run: Run, task: str, made: Charge, covered: Charge | None) -> Run:
    """The run's record with an ended attempt; `covered`: an earlier one whose cost it holds."""
    usd, tokens = made.usage.cost_usd, made.usage.tokens
    assumed = run.assumed_usd + made.assumed_usd
    if covered is not None and covered.run == run.run:
        assumed = max(0.0, assumed - covered.assumed_usd)
    return replace(
        run,
        reserved=_without(run, task, made.token),
        assumed_usd=round(assumed, 6),
        spent_usd=run.spent_usd if usd is None else round((run.spent_usd or 0.0) + usd, 6),
        spent_tokens=run.spent_tokens if tokens is None else (run.spent_tokens or 0) + tokens,
        attempts=run.attempts + 1,
        attempts_unknown=run.attempts_unknown + (usd is None),
        attempts_mute=run.attempts_mute + (tokens is None),
    )


def _without(run: Run, task: str, token: int) -> dict[str, float]:
    return {key: usd for key, usd in run.reserved.items() if key != _key(task, token)}


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
