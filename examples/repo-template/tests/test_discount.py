from shop import discount


def test_without_a_discount_the_price_stays():
    assert discount.discounted(250) == 250
