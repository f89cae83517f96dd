"""The one table of endings: strikes, parking, back-off, and where the next attempt starts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.ledger.outcome import RULES, SAYS, Bounds, Start, conclude, next_start
from swarm.ledger.records import Attempts, Last, Outcome, Parked, Work

NOW = datetime(2026, 1, 2, tzinfo=UTC)
TARGET, HEAD = "a" * 40, "b" * 40
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
# `landed` and `cancelled` do not go through `conclude`: they write `done`.
ENDINGS = tuple(o for o in OUTCOMES if o not in ("landed", "cancelled"))


def begun(token: int = 1) -> Attempts:
    return Attempts(task="t", token=token, base=TARGET, since=NOW)


def last(outcome: Outcome, token: int = 1, paths: list[str] | None = None) -> Last:
    return Last(
        token=token, outcome=outcome, strike=False, message="why", paths=paths or [], ended_at=NOW
    )


@dataclass(frozen=True)
class Step:
    """One attempt's end."""

    outcome: Outcome
    runner_gone: bool = False
    is_reopened: bool = True  # by a person, when it was parked
    has_work: bool = True


bounds_of = st.builds(
    Bounds,
    strikes=st.integers(1, 5),
    conflicts=st.integers(1, 5),
    expiries=st.integers(1, 4),
    backoff=st.integers(0, 100).map(lambda n: timedelta(seconds=n)),
    backoff_max=st.integers(0, 1000).map(lambda n: timedelta(seconds=n)),
)
histories = st.lists(
    st.builds(Step, st.sampled_from(ENDINGS), st.booleans(), has_work=st.booleans()),
    max_size=30,
)


@given(histories, bounds_of)
def test_no_history_gets_past_a_bound_or_repeats_a_token(
    history: list[Step], bounds: Bounds
) -> None:
    """Plays a task's whole life: claim, end, park, reopen, as claim and task do it."""
    attempts = begun(0)
    tokens: list[int] = []
    for step in history:
        attempts = msgspec.structs.replace(attempts, token=attempts.token + 1, extensions=0)
        tokens.append(attempts.token)
        if step.has_work:
            work = Work(ref=f"refs/swarm/work/t/{attempts.token}", head=HEAD)
            attempts = msgspec.structs.replace(attempts, work=work)
        before = attempts
        gone = step.runner_gone and step.outcome == "expired"
        ended = last(step.outcome, attempts.token)
        attempts, parked = conclude(before, ended, bounds, NOW, runner_gone=gone)
        _assert_one_step(before, attempts, parked, ended, bounds, gone=gone)
        if parked is not None:
            attempts = msgspec.structs.replace(
                attempts, strikes=[], conflicts=0, expiries=0, retry_at=None
            )
    assert tokens == list(range(1, len(tokens) + 1)), "a token grows by one and never repeats"


def _assert_one_step(
    before: Attempts,
    after: Attempts,
    parked: Parked | None,
    ended: Last,
    bounds: Bounds,
    *,
    gone: bool,
) -> None:
    rule = RULES[ended.outcome]
    assert after.token == before.token and after.base == before.base and after.work == before.work
    assert len(after.strikes) == len(before.strikes) + rule.strike
    assert after.conflicts == before.conflicts + rule.is_conflict
    if ended.outcome != "expired":
        assert after.expiries == 0, "a release of any kind ends a row of expiries"
    elif gone:
        assert after.expiries == before.expiries, "a dead runner is nobody's expiry"
    assert after.extensions == 0
    met = (
        ended.outcome == "asked"
        or (rule.strike and len(after.strikes) >= bounds.strikes)
        or (rule.is_conflict and after.conflicts >= bounds.conflicts)
        or (ended.outcome == "expired" and after.expiries >= bounds.expiries)
    )
    assert (parked is not None) == met, "parked exactly when a bound is met"
    if parked is None:
        assert len(after.strikes) < bounds.strikes or not rule.strike
    else:
        assert parked.message and parked.strikes == after.strikes and parked.work == after.work
    if after.retry_at is not None:
        assert NOW <= after.retry_at <= NOW + bounds.backoff_max, "back-off has a cap"


@given(st.integers(1, 40), bounds_of)
def test_A13_back_off_doubles_with_each_strike_up_to_its_cap(count: int, bounds: Bounds) -> None:
    attempts, spans = begun(), []
    for _ in range(count):
        attempts, _ = conclude(attempts, last("agent_failed"), bounds, NOW)
        assert attempts.retry_at is not None
        spans.append(attempts.retry_at - NOW)
    assert spans[0] == min(bounds.backoff, bounds.backoff_max)
    for one, following in pairwise(spans):
        assert following == min(one * 2, bounds.backoff_max)


def test_every_outcome_has_its_rule_and_its_words() -> None:
    assert set(RULES) == set(OUTCOMES) == set(SAYS)


@pytest.mark.parametrize(
    "outcome",
    [
        "conflict",
        "semantic_conflict",
        "setup_failed",
        "provider_limit",
        "not_logged_in",
        "stopped",
        "expired",
        "rejected",
    ],
)
def test_what_is_not_the_agents_fault_is_no_strike(outcome: Outcome) -> None:
    after, _ = conclude(begun(), last(outcome), Bounds(), NOW)
    assert after.strikes == []


@pytest.mark.parametrize("outcome", ["provider_limit", "not_logged_in", "setup_failed"])
def test_a_closed_door_is_not_knocked_at_again_at_once(outcome: Outcome) -> None:
    after, _ = conclude(begun(), last(outcome), Bounds(), NOW)
    assert after.retry_at == NOW + Bounds().backoff


def test_a_question_parks_with_the_question_in_it() -> None:
    _, parked = conclude(begun(), last("asked"), Bounds(), NOW)
    assert parked is not None and (parked.reason, parked.question) == ("asked", "why")


def test_the_last_verdict_stays_until_there_is_another() -> None:
    now = begun()
    for number, outcome, kept in (
        (1, "agent_failed", None),
        (2, "rejected", None),
        (3, "given_up", 2),
        (4, "expired", 2),
        (5, "conflict", None),
        (6, "silent", 5),
    ):
        now, _ = conclude(now, last(outcome, number), Bounds(strikes=9), NOW)  # type: ignore[arg-type]
        assert (now.sent_back.token if now.sent_back else None) == kept, outcome


def with_work(outcome: Outcome, paths: list[str] | None = None) -> Attempts:
    work = Work(ref="refs/swarm/work/t/1", head=HEAD)
    return msgspec.structs.replace(begun(), work=work, last=last(outcome, paths=paths))


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_the_next_attempt_starts_where_the_table_says(outcome: Outcome) -> None:
    want = {
        Start.FRESH: (TARGET, None),
        Start.CONTINUE: (HEAD, None),
        Start.REMERGE: (HEAD, TARGET),
    }[RULES[outcome].start]
    assert next_start(with_work(outcome), TARGET) == want


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_without_saved_work_every_attempt_starts_fresh(outcome: Outcome) -> None:
    attempts = msgspec.structs.replace(begun(), last=last(outcome))
    assert next_start(attempts, TARGET) == (TARGET, None)
    assert next_start(None, TARGET) == (TARGET, None)


def test_an_attempt_interrupted_inside_a_merge_gets_the_same_merge_again() -> None:
    assert next_start(with_work("expired", ["a.py"]), TARGET) == (HEAD, TARGET)
