"""What is printed at the till."""

from collections.abc import Mapping

from shop import currency, money


def line(item: str, quantity: int) -> str:
    """One item, how many pieces, and what they cost together."""
    amount = money.price_of(item) * quantity
    return f"{quantity:>3} x {item:<12}{currency.plain(amount):>9}"


def receipt(pieces: Mapping[str, int]) -> str:
    """One line for each item in alphabetical order, then the sum."""
    lines = [line(item, pieces[item]) for item in sorted(pieces)]
    total = sum(money.price_of(item) * quantity for item, quantity in pieces.items())
    return "\n".join([*lines, f"{'total':<18}{currency.plain(total):>9}"])
