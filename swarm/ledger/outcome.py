"""What ends an attempt, whether it is a strike, and where the next one starts.

Enters: a task's attempts record and how its attempt ended. Leaves: the next record, and whether
the task is parked. Guards: one table, and every ending goes through it.
"""

from __future__ import annotations

import enum
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from swarm.ledger.records import Attempts, Last, Outcome, Parked, ParkedReason, Strike
from swarm.ledger.spending import NO_CAPS, Caps, find_exhausted, spent_on


class Start(enum.Enum):
    """Where the next attempt begins."""

    FRESH = "the target's tip"
    CONTINUE = "its own saved work"
    REMERGE = "its own head with the target merged in"


class Rule(msgspec.Struct, frozen=True):
    """One row of the table."""

    strike: bool
    start: Start
    is_conflict: bool = False  # counts towards [limits] conflicts
    backs_off: bool = False  # beyond strikes, which always do
    is_sent_back: bool = False  # its change was judged: later attempts have to know what was said


RULES: dict[Outcome, Rule] = {
    "landed": Rule(False, Start.FRESH),
    "check_failed": Rule(True, Start.REMERGE, is_sent_back=True),
    "semantic_conflict": Rule(False, Start.REMERGE, is_conflict=True, is_sent_back=True),
    "conflict": Rule(False, Start.REMERGE, is_conflict=True, is_sent_back=True),
    "check_timed_out": Rule(True, Start.REMERGE, is_sent_back=True),
    "agent_failed": Rule(True, Start.CONTINUE),
    "over_limit": Rule(True, Start.CONTINUE),
    "over_budget": Rule(False, Start.CONTINUE),
    "timed_out": Rule(True, Start.CONTINUE),
    "silent": Rule(True, Start.CONTINUE),
    "no_work": Rule(True, Start.FRESH),
    "unresolved": Rule(True, Start.REMERGE),
    "setup_failed": Rule(False, Start.FRESH, backs_off=True),
    "provider_limit": Rule(False, Start.CONTINUE, backs_off=True),
    "not_logged_in": Rule(False, Start.CONTINUE, backs_off=True),
    "stopped": Rule(False, Start.CONTINUE),
    "expired": Rule(False, Start.CONTINUE),
    "asked": Rule(False, Start.CONTINUE),
    "given_up": Rule(True, Start.FRESH),
    "rejected": Rule(False, Start.REMERGE, is_sent_back=True),
    "cancelled": Rule(False, Start.CONTINUE),
}

SAYS: dict[Outcome, str] = {
    "landed": "landed",
    "check_failed": "checks failed",
    "semantic_conflict": "red with another landing",
    "conflict": "conflict",
    "check_timed_out": "check timed out",
    "agent_failed": "agent failed",
    "over_limit": "over its limit",
    "over_budget": "the run's budget is used up",
    "timed_out": "timed out",
    "silent": "silent",
    "no_work": "no work",
    "unresolved": "conflict left unresolved",
    "setup_failed": "setup failed",
    "provider_limit": "provider limit",
    "not_logged_in": "not logged in",
    "stopped": "stopped",
    "expired": "expired",
    "asked": "asked a question",
    "given_up": "given up",
    "rejected": "rejected",
    "cancelled": "cancelled",
}


class Bounds(msgspec.Struct, frozen=True):
    """When a task is parked, and how long it waits before the next attempt."""

    strikes: int = 3
    conflicts: int = 5
    expiries: int = 3  # in a row
    task: Caps = NO_CAPS  # what all attempts of a task may use
    backoff: timedelta = timedelta(seconds=10)  # doubles per strike
    backoff_max: timedelta = timedelta(minutes=10)


def conclude(
    attempts: Attempts, last: Last, bounds: Bounds, now: datetime, *, runner_gone: bool = False
) -> tuple[Attempts, Parked | None]:
    """The record after an attempt ended as `last` says, and the parked record if a bound is met.

    `runner_gone`: the claim expired because its runner is known to be dead, which is nobody's
    expiry. A release of any kind ends a row of expiries.
    """
    rule = RULES[last.outcome]
    strikes = attempts.strikes
    if rule.strike:
        strikes = [*strikes, Strike(token=last.token, reason=last.outcome)]
    conflicts = attempts.conflicts + (1 if rule.is_conflict else 0)
    expiries = 0
    if last.outcome == "expired":
        expiries = attempts.expiries if runner_gone else attempts.expiries + 1
    retry_at = None
    if rule.strike or rule.backs_off:
        doublings = min(max(len(strikes) - 1, 0), 30)
        retry_at = now + min(bounds.backoff * 2**doublings, bounds.backoff_max)
    after = replace(
        attempts,
        strikes=strikes,
        conflicts=conflicts,
        expiries=expiries,
        extensions=0,
        retry_at=retry_at,
        last=last,
        sent_back=_sent_back(attempts, rule),
        charges=[
            replace(charge, is_free=True)
            if charge.token == last.token and last.outcome in ("provider_limit", "not_logged_in")
            else charge
            for charge in attempts.charges
        ],
    )
    reason, message = _bound(after, bounds, last)
    if reason is None:
        return after, None
    parked = Parked(
        task=attempts.task,
        reason=reason,
        message=message,
        question=question_of(last),
        strikes=strikes,
        work=after.work,
        at=now,
    )
    return after, parked


def _sent_back(attempts: Attempts, rule: Rule) -> Last | None:
    if rule.is_sent_back:
        return None
    before = attempts.last
    return before if before and RULES[before.outcome].is_sent_back else attempts.sent_back


def question_of(last: Last) -> str | None:
    """What the attempt ended with, its lines kept; None when it was no question."""
    return (last.detail or last.message) if last.outcome == "asked" else None


def _bound(after: Attempts, bounds: Bounds, last: Last) -> tuple[ParkedReason | None, str]:
    if last.outcome == "asked":
        return "asked", last.message
    if RULES[last.outcome].strike and len(after.strikes) >= bounds.strikes:
        return "strikes", _strikes_say(after.strikes, last)
    if RULES[last.outcome].is_conflict and after.conflicts >= bounds.conflicts:
        return "conflicts", f"{after.conflicts} conflicts: {last.message}"
    why = find_exhausted(spent_on(after), bounds.task)
    if why is not None:
        return "budget", f"its budget is used up: {why}"
    if last.outcome == "expired" and after.expiries >= bounds.expiries:
        return "expiries", f"{after.expiries} claims in a row gave no sign of life"
    return None, ""


def _strikes_say(strikes: list[Strike], last: Last) -> str:
    kinds = {s.reason for s in strikes}
    if len(strikes) == 1:
        return last.message
    if len(kinds) == 1:
        return f"{len(strikes)} strikes: {SAYS[strikes[0].reason]} {len(strikes)} times"
    return f"{len(strikes)} strikes: " + ", ".join(SAYS[s.reason] for s in strikes)


def next_start(attempts: Attempts | None, target: str) -> tuple[str, str | None]:
    """(start, merge) of the next attempt: the commit it begins at, and the tip merged into it."""
    if attempts is None or attempts.last is None or attempts.work is None:
        return target, None
    start = RULES[attempts.last.outcome].start
    if attempts.last.paths and start is Start.CONTINUE:
        start = Start.REMERGE  # it was interrupted inside an unfinished merge
    match start:
        case Start.FRESH:
            return target, None
        case Start.CONTINUE:
            return attempts.work.head, None
        case Start.REMERGE:
            return attempts.work.head, target
