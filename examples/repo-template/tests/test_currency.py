import pytest

from shop import currency


@pytest.mark.parametrize(
    ("cents", "text"),
    [(0, "0.00"), (5, "0.05"), (1250, "12.50"), (-30, "-0.30")],
)
def test_plain(cents, text):
    assert currency.plain(cents) == text
