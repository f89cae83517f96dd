import pytest

from shop.stock import OutOfStock, Stock


def test_what_is_put_in_can_be_taken_out():
    stock = Stock()
    stock.put("honey", 3)
    stock.take("honey", 2)
    assert stock.count("honey") == 1


def test_nothing_is_taken_when_there_is_not_enough():
    stock = Stock()
    stock.put("honey", 1)
    with pytest.raises(OutOfStock):
        stock.take("honey", 2)
    assert stock.count("honey") == 1
