"""What the verdicts of a candidate mean: pure decisions, as generators that ask for verdicts.

Enters: a candidate, its base, the checks that apply. Leaves: a decision.
Guards: nobody is blamed for a red base or a check that cannot run; what is green alone and red as
merged names its partner; a change is only sent back for failing on a base that was green.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Literal

import msgspec

from swarm.config import Check
from swarm.ledger.records import Outcome, Verdict, VerdictValue
from swarm.merge import Candidate


class Ask(msgspec.Struct, frozen=True):
    """A verdict that a decision needs: of this check on this commit."""

    commit: str
    check: Check
    role: Literal["merged", "base", "alone", "partner"]
    again: bool = False  # run it now, whatever the store says


class Pass(msgspec.Struct, frozen=True):
    """Every check that applies passed."""

    verdicts: tuple[Verdict, ...]


class SendBack(msgspec.Struct, frozen=True):
    """The change is at fault, alone or with a partner."""

    outcome: Outcome
    verdict: Verdict
    base: VerdictValue
    partner: str | None  # the landed task or commit with which it is red
    partner_commit: str | None


class BaseRed(msgspec.Struct, frozen=True):
    """The target fails the check too: nobody's fault, the change keeps its place."""

    verdict: Verdict
    own: Verdict | None = None  # the change's, when one was judged


class CannotJudge(msgspec.Struct, frozen=True):
    """Neither the candidate nor its base can be judged by this check."""

    verdict: Verdict


Decision = Pass | SendBack | BaseRed | CannotJudge
Judging = Generator[Ask, Verdict, Decision]


class Landing(msgspec.Struct, frozen=True):
    """One step of the target since the change's merge base."""

    commit: str
    task: str | None  # None: a person's push


def is_good(verdict: Verdict, *, flaky_lands: bool) -> bool:
    """Does the verdict let something land?"""
    return verdict.verdict == "passed" or (verdict.verdict == "flaky" and flaky_lands)


def judge_change(
    candidate: Candidate,
    checks: Sequence[Check],
    landings: Sequence[Landing],
    merge_at: Callable[[str], str | None],
    *,
    flaky_lands: bool,
    is_alone: bool,
) -> Judging:
    """Decide about one candidate.

    `landings` are the target's steps since the merge base, oldest first; `is_alone`: the merged
    tree is the change's own, since the target has not moved; `merge_at` gives the commit of the
    change merged onto one of the landings, or None for a conflict.
    """
    verdicts: list[Verdict] = []
    for check in checks:
        verdict = yield Ask(candidate.commit, check, "merged")
        if is_good(verdict, flaky_lands=flaky_lands):
            verdicts.append(verdict)
            continue
        # A tool that is gone or hangs now says nothing of a base judged while it was well.
        is_mute = verdict.verdict in ("could_not_run", "timed_out")
        base = yield Ask(candidate.previous, check, "base", again=is_mute)
        is_base_good = is_good(base, flaky_lands=True)
        if is_mute and base.verdict == verdict.verdict:
            return CannotJudge(verdict)
        # What only this task asks for may be red until it is done: that is no red target.
        if not is_base_good and check.when == "always":
            return BaseRed(base, verdict)
        if verdict.verdict == "timed_out":
            return SendBack("check_timed_out", verdict, base.verdict, None, None)
        if verdict.verdict == "flaky":  # no evidence against anything that landed
            return SendBack("check_failed", verdict, base.verdict, None, None)
        if is_base_good and not is_alone and landings:
            alone = yield Ask(candidate.entry.head, check, "alone")
            if is_good(alone, flaky_lands=True):
                step = yield from _partner(check, landings, merge_at)
                name = step.task or step.commit[:10]
                return SendBack("semantic_conflict", verdict, base.verdict, name, step.commit)
        return SendBack("check_failed", verdict, base.verdict, None, None)
    return Pass(tuple(verdicts))


def _partner(
    check: Check, landings: Sequence[Landing], merge_at: Callable[[str], str | None]
) -> Generator[Ask, Verdict, Landing]:
    """The first landing with which the change is red: binary search over prefixes.

    Green before the first one and red at the last one are known. A prefix that conflicts is taken
    as green, since it says nothing.
    """
    low, high = 0, len(landings) - 1
    while low < high:
        middle = (low + high) // 2
        commit = merge_at(landings[middle].commit)
        is_red = False
        if commit is not None:
            verdict = yield Ask(commit, check, "partner")
            is_red = not is_good(verdict, flaky_lands=True)
        if is_red:
            high = middle
        else:
            low = middle + 1
    return landings[low]


class Green(msgspec.Struct, frozen=True):
    """The target passes."""

    verdicts: tuple[Verdict, ...]


def judge_target(
    tip: str, checks: Sequence[Check], *, again: bool = False
) -> Generator[Ask, Verdict, Green | BaseRed | CannotJudge]:
    """The target's own verdict, on which every other one rests; `again`: not from the store."""
    verdicts: list[Verdict] = []
    for check in checks:
        verdict = yield Ask(tip, check, "base", again)
        if verdict.verdict in ("could_not_run", "timed_out"):
            return CannotJudge(verdict)
        if not is_good(verdict, flaky_lands=True):
            return BaseRed(verdict)
        verdicts.append(verdict)
    return Green(tuple(verdicts))
