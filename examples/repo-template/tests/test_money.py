import pytest

from shop import money


def test_price_of_one_piece():
    assert money.price_of("bread") == 250


def test_what_is_not_sold_has_no_price():
    with pytest.raises(money.UnknownItem):
        money.price_of("unicorn")
