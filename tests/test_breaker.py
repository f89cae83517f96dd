"""One breaker for each agent account: what is learned holds for all loops and after a restart."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from swarm.breaker import Breaker, read_limits

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs/limits.json"


def breaker(path: Path) -> Breaker:
    return Breaker(path, first=10 * SECOND, most=MINUTE)


def test_A13_a_refusal_without_a_time_pauses_twice_as_long_each_time(path: Path) -> None:
    one = breaker(path)
    now, spans = NOW, []
    for _ in range(5):
        until = one.refused("claude", None, now)
        spans.append((until - now).total_seconds())
        now = until + SECOND
    assert spans == [10, 20, 40, 60, 60], "doubled up to the longest"


def test_A12_a_reset_time_that_the_provider_names_is_kept(path: Path) -> None:
    one = breaker(path)
    assert one.refused("claude", NOW + timedelta(hours=3), NOW) == NOW + timedelta(hours=3)
    known = one.find("claude", NOW + timedelta(hours=2))
    assert known is not None and known.is_said
    assert one.find("claude", NOW + timedelta(hours=3)) is None
    assert one.refused("codex", NOW - MINUTE, NOW) == NOW + 10 * SECOND, "a time that is over"


def test_agents_that_are_refused_together_count_once(path: Path) -> None:
    one = breaker(path)
    first = one.refused("claude", None, NOW)
    assert one.refused("claude", None, NOW + SECOND) == first
    assert one.refused("claude", None, first + SECOND) == first + 21 * SECOND, "the second in a row"


def test_A13_it_holds_after_a_restart_and_in_other_runs(path: Path) -> None:
    until = breaker(path).refused("claude", NOW + timedelta(hours=1), NOW)
    other = breaker(path)
    assert not other.may_start("claude", "s1", NOW + MINUTE)
    assert other.all(NOW) == {"claude": other.find("claude", NOW)}
    assert other.may_start("codex", "s1", NOW), "another account is free"
    assert read_limits(path).adapters["claude"].until == until
    assert json.loads(path.read_text())["adapters"]["claude"]["count"] == 1


def test_what_another_process_learns_is_seen_at_once(path: Path) -> None:
    one, other = breaker(path), breaker(path)
    assert one.may_start("claude", "s1", NOW)
    other.refused("claude", None, NOW)
    assert not one.may_start("claude", "s1", NOW)
    other.answered("claude")
    assert one.may_start("claude", "s1", NOW)


def test_when_the_time_has_come_one_tries_and_the_others_wait_for_its_word(path: Path) -> None:
    one = breaker(path)
    now = one.refused("claude", None, NOW) + SECOND
    assert one.may_start("claude", "s1", now)
    assert one.may_start("claude", "s1", now), "it is the one that tries"
    assert not one.may_start("claude", "s2", now)
    one.gave_up("claude", "s2")
    assert not one.may_start("claude", "s2", now), "only who tries can give up"
    one.gave_up("claude", "s1")
    assert one.may_start("claude", "s2", now)
    one.answered("claude")
    assert one.may_start("claude", "s1", now) and one.may_start("claude", "s3", now)
    assert one.refused("claude", None, now) == now + 10 * SECOND, "an answer ends the row"


def test_a_try_that_is_refused_lets_another_try_the_next_time(path: Path) -> None:
    one = breaker(path)
    now = one.refused("claude", None, NOW) + SECOND
    assert one.may_start("claude", "s1", now)
    now = one.refused("claude", None, now) + SECOND
    assert one.may_start("claude", "s2", now)


def test_a_person_can_forget_it(path: Path) -> None:
    one = breaker(path)
    assert not one.forget("claude")
    one.refused("claude", NOW + timedelta(days=5), NOW)
    assert breaker(path).forget("claude")
    assert one.may_start("claude", "s1", NOW)


@pytest.mark.parametrize("text", ["", "{", '{"adapters": 3}', "\0\xff", "[]"])
def test_a_file_that_is_not_ours_is_no_limit_and_is_written_anew(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text)
    one = breaker(path)
    assert one.may_start("claude", "s1", NOW)
    one.refused("claude", None, NOW)
    assert not breaker(path).may_start("claude", "s1", NOW)


def test_where_nothing_can_be_written_the_run_itself_remembers(path: Path) -> None:
    path.parent.write_text("a file where the folder should be")
    one = breaker(path)
    one.refused("claude", None, NOW)
    assert not one.may_start("claude", "s1", NOW)
    one.answered("claude")
    assert one.may_start("claude", "s1", NOW)
