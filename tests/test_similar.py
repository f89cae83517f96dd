from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.similar import near, nearest

ids = st.lists(
    st.sampled_from(["fix", "add", "tax", "taxes", "report", "reports", "csv", "cart", "as"]),
    min_size=1,
    max_size=5,
).map("-".join)


def test_C16_one_job_under_two_names_is_near() -> None:
    assert near("fix_static_locals", "implement_static_local_variables")
    assert near("csv-export", "export-as-csv")
    assert near("fix-static-locals", "add-static-local")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("tax-rounding", "tax-report"),  # siblings share one word
        ("discount-flat", "discount-percent"),
        ("cart-model", "cart-totals"),
        ("fix-parser", "add-parser"),  # only one word is left
        ("csv-export-monthly", "csv-export-daily"),  # neither contains the other
        ("fix", "add"),
    ],
)
def test_siblings_are_not_duplicates(a: str, b: str) -> None:
    assert not near(a, b)


@pytest.mark.parametrize(
    ("plural", "singular"),
    [("entries", "entry"), ("classes", "class"), ("boxes", "box"), ("branches", "branch")],
)
def test_plural_endings_do_not_count(plural: str, singular: str) -> None:
    assert near(f"list-{plural}", f"list-{singular}")


@given(ids, ids)
def test_near_is_symmetric(a: str, b: str) -> None:
    assert near(a, b) == near(b, a)


def test_nearest_finds_the_slip_and_nothing_far_away() -> None:
    names = ["cart-model", "cart-totals", "checkout"]
    assert nearest("cart-modle", names) == "cart-model"
    assert nearest("zzz", names) is None
    assert nearest("anything", []) is None


def test_a_name_that_begins_with_what_was_typed_is_nearest() -> None:
    names = ["gh-1-multiply", "gh-12-add-a-mul", "gh-12-add-a-multiplication", "gh-13"]
    assert nearest("gh-12", names) == "gh-12-add-a-mul", "and not gh-13, which looks more alike"
    assert nearest("gh-12-add-a-mult", names) == "gh-12-add-a-multiplication"
    assert nearest("", names) is None
