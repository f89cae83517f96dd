"""Prices, in whole cents: no float ever holds money."""

PRICES = {
    "apple": 30,
    "bread": 250,
    "coffee": 420,
    "honey": 615,
}


class UnknownItem(LookupError):
    """Nothing of that name is sold here."""


def price_of(item: str) -> int:
    """The price of one piece, in cents.

    Raises UnknownItem when it is not sold here.
    """
    if item not in PRICES:
        raise UnknownItem(item)
    return PRICES[item]
