"""The small words: folded ids, durations, sizes, and trailers that nobody can forge."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swarm import ids
from swarm.trailers import Message, compose, listed, of_commit, one_line, parse, unlisted

hostile = st.one_of(
    st.text(),
    st.lists(
        st.sampled_from(
            [
                "\n",
                "\n\n",
                "\r",
                "\r\n\r\n",
                "\u2028",
                "\u2029",
                "\x85",
                "\x0b",
                "\x0c",
                "\x00",
                "\x1b[31m",
                "\u202e",
                "Swarm-Event: landed",
                "Swarm-Token: 99",
                "Swarm-Nonce:",
                ": ",
                "x",
                " ",
                "---",
                "\ud800",
            ]
        )
    ).map("".join),
)
keys = st.from_regex(r"Swarm-[A-Z][a-z]{0,8}(-[A-Z][a-z]{0,5})?", fullmatch=True)


# Trailers


@given(hostile, hostile, st.dictionaries(keys, hostile, min_size=1, max_size=5))
@example("x\n\nSwarm-Event: landed", "y\n\nSwarm-Event: landed\n", {"Swarm-Event": "claimed"})
@example("Swarm-Event: landed", "", {"Swarm-Event": "claimed"})
def test_hostile_text_forges_no_trailer(subject: str, body: str, trailers: dict[str, str]) -> None:
    read = parse(compose(subject, body, trailers))
    assert read.trailers == {key: one_line(value) for key, value in trailers.items()}


@given(hostile, hostile, st.dictionaries(keys, hostile, min_size=1, max_size=5))
def test_a_message_reads_back_as_it_was_composed(
    subject: str, body: str, trailers: dict[str, str]
) -> None:
    message = compose(subject, body, trailers)
    assert parse(message) == Message(
        one_line(subject, 200), one_line(body), {k: one_line(v) for k, v in trailers.items()}
    )


@given(hostile, hostile, st.dictionaries(keys, hostile, min_size=1, max_size=5))
def test_a_message_survives_a_commit_object(
    subject: str, body: str, trailers: dict[str, str]
) -> None:
    message = compose(subject, body, trailers)
    raw = f"tree {'0' * 40}\nauthor a <b> 1 +0000\n\n{message}".encode()
    assert of_commit(raw) == parse(message)


@given(hostile)
def test_one_line_is_one_printable_line_and_stays_as_it_is(text: str) -> None:
    line = one_line(text)
    assert len(line.splitlines()) <= 1 and len(line) <= 500
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", line)
    assert one_line(line) == line


def test_a_long_line_says_that_it_was_cut() -> None:
    assert one_line("x" * 600).endswith("x...") and len(one_line("x" * 600)) == 500


def test_a_message_without_trailers_is_not_composed_as_its_body_could_forge_some() -> None:
    with pytest.raises(ValueError, match="trailers"):
        compose("subject", "Swarm-Event: landed", {})


def test_a_subject_alone_is_never_read_as_a_trailer() -> None:
    assert parse("Swarm-Event: landed\n") == Message("Swarm-Event: landed", "", {})


def test_a_message_of_another_tool_has_no_trailers() -> None:
    read = parse("Merge x\n\nSigned-off-by: A\nSwarm-Ish\n")
    assert (read.subject, read.trailers) == ("Merge x", {})


@given(st.lists(st.text(max_size=60), max_size=6))
def test_a_list_comes_back_from_its_trailer_as_it_was(values: list[str]) -> None:
    message = compose("subject", "", {"Swarm-Paths": listed(values)})
    read = unlisted(parse(message).trailers["Swarm-Paths"])
    assert read == values[: len(read)]
    assert len(read) == len(values) or len(listed(values)) > 100, "short ones are whole"


@given(st.lists(st.text(min_size=50), min_size=15))
def test_a_list_that_is_too_long_for_a_line_is_cut_and_still_one(values: list[str]) -> None:
    text = listed(values)
    assert len(text) <= 500 and one_line(text) == text
    assert 1 <= len(unlisted(text)) <= 20


def test_names_with_spaces_commas_and_strange_bytes_stay_whole() -> None:
    names = ["a, b.txt", "x  y", " lead", "t::test[1 km]", "caf\udce9", "\u202eevil", "日本"]
    assert unlisted(one_line(listed(names))) == names
    assert listed(["a.py", "b c.py"]) == '["a.py", "b c.py"]'
    assert unlisted("src/app.py") == ["src/app.py"], "no list: one name"
    assert unlisted("") == []
    (long,) = unlisted(listed(["y" * 900]))
    assert re.fullmatch(r"y{150,198}\.\.\.", long), "cut, and it says so"


# Ids


@given(st.text(max_size=80))
def test_folding_twice_is_folding_once(text: str) -> None:
    try:
        folded = ids.fold(text)
    except ValueError:
        return
    assert ids.fold(folded) == folded
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", folded) and len(folded) <= ids.MAX_ID
    assert ids.fold(text.upper().lower()) == ids.fold(text.lower())


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("T3", "t3"),
        ("t3", "t3"),
        ("  Fix: the ＣＳＶ export! ", "fix-the-csv-export"),
        ("../../etc/passwd", "etc-passwd"),
        ("--force", "force"),
        ("ﬁx", "fix"),
        ("a.lock", "a-lock"),
    ],
)
def test_C24_names_fold_to_one_spelling(text: str, folded: str) -> None:
    assert ids.fold(text) == folded


@pytest.mark.parametrize("text", ["", "---", "日本", "x" * 65])
def test_what_leaves_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"left|longer"):
        ids.fold(text)


def test_random_ids_differ_and_have_their_form() -> None:
    for make, form in (
        (ids.new_nonce, r"[0-9a-f]{32}"),
        (ids.new_event_id, r"[0-9a-f]{16}"),
        (ids.new_agent_id, r"[0-9a-hjkmnp-tv-z]{8}"),
    ):
        made = {make() for _ in range(100)}
        assert len(made) == 100 and all(re.fullmatch(form, one) for one in made)


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_durations_read_as_written(hours: int, minutes: int, seconds: int) -> None:
    text = f"{hours}h{minutes}m{seconds}s"
    assert ids.parse_duration(text) == timedelta(hours=hours, minutes=minutes, seconds=seconds)


@pytest.mark.parametrize("text", ["", "20", "1.5h", "5d", "m5", "1s1m", "-1s", " 1s", "1s\n", "٣s"])
def test_a_duration_without_a_unit_or_out_of_order_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        ids.parse_duration(text)


@pytest.mark.parametrize("text", ["", "10", "10MB", "1.5GiB", "KiB", "-1B", "1B\n"])
def test_a_size_without_a_binary_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        ids.parse_size(text)


def test_sizes_read_as_written() -> None:
    assert [ids.parse_size(t) for t in ("1B", "2KiB", "3MiB", "4GiB")] == [
        1,
        2 << 10,
        3 << 20,
        4 << 30,
    ]


@pytest.mark.parametrize("length", [40, 64])
def test_full_object_ids_of_both_hashes(length: int) -> None:
    assert ids.is_oid("a" * length)
    for wrong in ("a" * (length - 1), "A" * length, "g" * length, "a" * length + "\n"):
        assert not ids.is_oid(wrong)
