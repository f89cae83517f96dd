"""What verdicts mean: pure decisions, played against tables instead of checks."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from swarm.config import Check
from swarm.judge import (
    Ask,
    BaseRed,
    CannotJudge,
    Green,
    Landing,
    Pass,
    SendBack,
    judge_change,
    judge_target,
)
from swarm.ledger.records import LeftByAgent, QueueEntry, Verdict, VerdictValue
from swarm.merge import Candidate

AT = datetime(2026, 1, 2, tzinfo=UTC)
TESTS = Check(name="tests", run="check")
ASKED = Check(name="accept", run="check", when="asked")
ENTRY = QueueEntry(
    task="t",
    token=1,
    nonce="n",
    lock="l",
    work="refs/swarm/work/t/1",
    base="target",
    start="target",
    head="head",
    commits=1,
    files=1,
    insertions=1,
    deletions=0,
    left_by_agent=LeftByAgent(uncommitted=0, untracked=0, head_was="branch"),
    priority=0,
    since=AT,
    sealed_at=AT,
    hold=None,
)
CANDIDATE = Candidate("merged", "tree", "target", ENTRY, "entry")
Values = Mapping[str, VerdictValue | Sequence[VerdictValue]]


def verdict(value: VerdictValue, tree: str = "tree", check: str = "tests") -> Verdict:
    return Verdict(tree=tree, check=check, definition="d", verdict=value, runs=[])


def play(steps: Generator[Ask, Verdict, Any], values: Values) -> tuple[Any, list[Ask]]:
    """The decision, and everything that was asked for; a commit's second value is the re-run's."""
    asked: list[Ask] = []
    try:
        ask = next(steps)
        while True:
            asked.append(ask)
            given = values[ask.commit]
            value = given if isinstance(given, str) else given[int(ask.again)]
            ask = steps.send(verdict(value, ask.commit, ask.check.name))
    except StopIteration as end:
        return end.value, asked


def decide(
    values: Values,
    *,
    checks: Sequence[Check] = (TESTS,),
    landings: int = 3,
    flaky_lands: bool = True,
    is_alone: bool = False,
    conflicts: Sequence[str] = (),
) -> tuple[Any, list[Ask]]:
    steps = judge_change(
        CANDIDATE,
        checks,
        [Landing(f"L{n}", f"task-{n}") for n in range(landings)],
        lambda step: None if step in conflicts else f"with-{step}",
        flaky_lands=flaky_lands,
        is_alone=is_alone,
    )
    return play(steps, values)


def test_green_asks_once_and_passes() -> None:
    decision, asked = decide({"merged": "passed"})
    assert isinstance(decision, Pass) and len(asked) == 1


def test_without_a_check_that_applies_nothing_is_asked() -> None:
    decision, asked = decide({}, checks=())
    assert decision == Pass(()) and not asked


@pytest.mark.parametrize("value", ["failed", "flaky", "timed_out", "could_not_run"])
def test_M5_red_on_a_green_base_is_the_changes_fault(value: VerdictValue) -> None:
    values: Values = {"merged": value, "target": "passed", "head": value}
    decision, asked = decide(values, flaky_lands=False)
    assert isinstance(decision, SendBack) and decision.base == "passed"
    assert decision.outcome == ("check_timed_out" if value == "timed_out" else "check_failed")
    assert asked[1].role == "base", "the base is the proof"


@pytest.mark.parametrize("value", ["failed", "timed_out", "could_not_run"])
def test_red_on_a_red_base_blames_nobody(value: VerdictValue) -> None:
    decision, _ = decide({"merged": "failed", "target": value})
    assert isinstance(decision, BaseRed) and decision.own is not None


@pytest.mark.parametrize("value", ["timed_out", "could_not_run"])
def test_M4_what_cannot_be_judged_on_either_side_is_not_judged(value: VerdictValue) -> None:
    decision, asked = decide({"merged": value, "target": ["passed", value]})
    assert isinstance(decision, CannotJudge)
    assert asked[1].again, "a base judged long ago says nothing of a tool that is gone now"


@pytest.mark.parametrize("value", ["timed_out", "could_not_run"])
def test_a_base_that_still_can_be_judged_proves_the_fault(value: VerdictValue) -> None:
    decision, _ = decide({"merged": value, "target": ["failed", "passed"], "head": value})
    assert isinstance(decision, SendBack)


def test_P3_flaky_lands_or_not_by_policy() -> None:
    assert isinstance(decide({"merged": "flaky"})[0], Pass)
    decision, asked = decide({"merged": "flaky", "target": "passed"}, flaky_lands=False)
    assert isinstance(decision, SendBack) and decision.partner is None
    assert len(asked) == 2, "a flaky verdict is no evidence against a landing"


def test_a_flaky_base_is_a_green_base() -> None:
    values: Values = {"merged": "failed", "target": "flaky", "head": "failed"}
    assert isinstance(decide(values)[0], SendBack)


def test_red_alone_has_no_partner() -> None:
    decision, asked = decide({"merged": "failed", "target": "passed", "head": "failed"})
    assert decision.outcome == "check_failed" and decision.partner is None
    assert [a.role for a in asked] == ["merged", "base", "alone"]


def test_a_tree_that_is_its_own_is_not_run_alone() -> None:
    decision, asked = decide({"merged": "failed", "target": "passed"}, is_alone=True, landings=0)
    assert decision.outcome == "check_failed" and len(asked) == 2


@pytest.mark.parametrize("count", [1, 2, 3, 8, 33])
def test_M8_the_first_landing_with_which_it_is_red_is_found_by_halving(count: int) -> None:
    for guilty in range(count):
        values: dict[str, VerdictValue] = {
            "merged": "failed",
            "target": "passed",
            "head": "passed",
            **{f"with-L{n}": "failed" if n >= guilty else "passed" for n in range(count)},
        }
        decision, asked = decide(values, landings=count)
        assert decision.outcome == "semantic_conflict"
        assert (decision.partner, decision.partner_commit) == (f"task-{guilty}", f"L{guilty}")
        looks = len([a for a in asked if a.role == "partner"])
        assert looks <= (count - 1).bit_length(), "halving, not trying them all"


def test_M8_a_prefix_that_conflicts_says_nothing() -> None:
    values: Values = {
        "merged": "failed",
        "target": "passed",
        "head": "passed",
        **{f"with-L{n}": "failed" for n in range(4)},
    }
    decision, _ = decide(values, landings=4, conflicts=["L0", "L1", "L2"])
    assert decision.partner == "task-3"


def test_every_check_must_pass_and_the_first_red_one_decides() -> None:
    lint = Check(name="lint", run="lint")
    steps = judge_change(
        CANDIDATE, [TESTS, lint], [], lambda _: None, flaky_lands=True, is_alone=True
    )
    first = next(steps)
    second = steps.send(verdict("passed"))
    assert (first.check.name, second.check.name) == ("tests", "lint")
    base = steps.send(verdict("failed", check="lint"))
    assert base.role == "base" and base.check.name == "lint"
    with pytest.raises(StopIteration) as end:
        steps.send(verdict("passed", check="lint"))
    assert isinstance(end.value.value, SendBack) and end.value.value.verdict.check == "lint"


def test_a_check_that_the_task_asked_for_may_be_red_on_the_target() -> None:
    decision, _ = decide({"merged": "failed", "target": "failed"}, checks=[ASKED])
    assert isinstance(decision, SendBack)
    assert (decision.outcome, decision.base, decision.partner) == ("check_failed", "failed", None)
    decision, _ = decide({"merged": "could_not_run", "target": "could_not_run"}, checks=[ASKED])
    assert isinstance(decision, CannotJudge)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("passed", Green),
        ("flaky", Green),
        ("failed", BaseRed),
        ("timed_out", CannotJudge),
        ("could_not_run", CannotJudge),
    ],
)
def test_the_targets_own_verdict(value: VerdictValue, kind: type) -> None:
    decision, _ = play(judge_target("target", [TESTS]), {"target": value})
    assert isinstance(decision, kind)
