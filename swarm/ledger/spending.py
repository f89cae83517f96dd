"""What was spent, and whether a limit of it is reached: for a task, and for a run.

Enters: records, limits. Leaves: sums, and the limit that is used up, in words.
Guards: what is not known is not counted and is told apart; pure, so that whoever looks at one
moment of the ledger comes to the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from swarm.ids import short
from swarm.ledger.records import Attempts, Run, Usage


@dataclass(frozen=True)
class Caps:
    """The limits of one scope; None is no limit."""

    cost_usd: float | None = None
    tokens: int | None = None
    seconds: float | None = None
    attempts: int | None = None

    @property
    def is_set(self) -> bool:
        return any(
            cap is not None for cap in (self.cost_usd, self.tokens, self.seconds, self.attempts)
        )

    def as_dict(self) -> dict[str, float]:
        """Those that are set, as a run's record holds them."""
        names = ("cost_usd", "tokens", "seconds", "attempts")
        return {name: float(cap) for name in names if (cap := getattr(self, name)) is not None}


NO_CAPS = Caps()


@dataclass(frozen=True)
class Spent:
    """What is known to be spent, and how many attempts did not say."""

    cost_usd: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    attempts: int = 0
    attempts_unknown: int = 0  # of these: their cost is not known
    assumed_usd: float = 0.0  # the part of the cost that is only assumed

    @property
    def known_usd(self) -> float:
        return self.cost_usd - self.assumed_usd

    def plus(self, usage: Usage, seconds: float = 0.0, attempts: int = 0) -> Spent:
        """With what an attempt says it used so far, or in all."""
        return Spent(
            self.cost_usd + (usage.cost_usd or 0.0),
            self.tokens + (usage.tokens or 0),
            self.seconds + seconds,
            self.attempts + attempts,
            self.attempts_unknown,
            self.assumed_usd,
        )


def spent_on(attempts: Attempts | None) -> Spent:
    """On a task, since a person reopened it last."""
    charges = [c for c in attempts.charges if c.token > attempts.budget_from] if attempts else []
    return Spent(
        sum(charge.usage.cost_usd or 0.0 for charge in charges),
        sum(charge.usage.tokens or 0 for charge in charges),
        sum(charge.seconds for charge in charges),
        sum(not charge.is_free for charge in charges),
        sum(charge.usage.cost_usd is None for charge in charges),
    )


def spent_in(run: Run, now: datetime) -> Spent:
    """In a run; its seconds are those since its start, its cost has what is only assumed."""
    return Spent(
        (run.spent_usd or 0.0) + run.assumed_usd,
        run.spent_tokens or 0,
        max(0.0, (now - run.started_at).total_seconds()),
        run.attempts,
        run.attempts_unknown,
        run.assumed_usd,
    )


def find_exhausted(spent: Spent, caps: Caps) -> str | None:
    """The first limit that is reached, as `cost $6.02 of $6`; None: there is room."""
    if caps.cost_usd is not None and spent.cost_usd >= caps.cost_usd:
        assumed = f", ${spent.assumed_usd:.2f} of it assumed" if spent.assumed_usd else ""
        return f"cost ${spent.cost_usd:.2f} of ${caps.cost_usd:g}{assumed}"
    if caps.tokens is not None and spent.tokens >= caps.tokens:
        return f"tokens {spent.tokens} of {caps.tokens}"
    if caps.seconds is not None and spent.seconds >= caps.seconds:
        return f"time {_span(spent.seconds)} of {_span(caps.seconds)}"
    if caps.attempts is not None and spent.attempts >= caps.attempts:
        return f"attempts {spent.attempts} of {caps.attempts}"
    return None


def find_over(
    usage: Usage, turns: int | None, tokens: int | None, cost_usd: float | None
) -> str | None:
    """The limit of one attempt that it is over, in words; None: it is within all of them."""
    if turns is not None and (usage.turns or 0) > turns:
        return f"limit {turns} turns"
    if tokens is not None and (usage.tokens or 0) > tokens:
        return f"limit {tokens} tokens, used {usage.tokens}"
    if cost_usd is not None and (usage.cost_usd or 0.0) > cost_usd:
        return f"limit ${cost_usd:g}, cost ${usage.cost_usd:.2f}"
    return None


def why_no_start(run: Run, caps: Caps, usd: float | None, now: datetime) -> str | None:
    """Why one attempt more may not start in a run: what it may cost is reserved before.

    `usd`: what it may cost; None: no limit is set for an attempt, so that nothing is reserved.
    """
    spent = spent_in(run, now)
    reserved = sum(run.reserved.values())
    with_live = Spent(
        spent.cost_usd + reserved,
        spent.tokens,
        spent.seconds,
        spent.attempts + len(run.reserved),
    )
    why = find_exhausted(with_live, caps)
    if why is None and usd is not None and caps.cost_usd is not None:
        left = caps.cost_usd - with_live.cost_usd
        if usd > left + 1e-9:
            why = f"cost ${left:.2f} left of ${caps.cost_usd:g}, an attempt may cost ${usd:g}"
    if why is not None and reserved:
        why += f", ${reserved:.2f} of it reserved"
    return why


def left_of(cap: float | None, *used: float) -> float | None:
    """What is left of a limit; None: there is none."""
    return None if cap is None else max(0.0, cap - sum(used))


def least(caps: Iterable[float | None]) -> float | None:
    """The narrowest of several limits."""
    return min((cap for cap in caps if cap is not None), default=None)


def _span(seconds: float) -> str:
    return short(timedelta(seconds=round(seconds)))
