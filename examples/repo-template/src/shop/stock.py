"""How many pieces of each item are on the shelf."""

from collections import Counter


class OutOfStock(Exception):
    """More pieces were asked for than are there."""


class Stock:
    """The shelf: what is put in can be taken out, and no more."""

    def __init__(self) -> None:
        self._pieces: Counter[str] = Counter()

    def count(self, item: str) -> int:
        """How many pieces are there; 0 for an item never seen."""
        return self._pieces[item]

    def put(self, item: str, quantity: int) -> None:
        """Put pieces on the shelf."""
        self._pieces[item] += quantity

    def take(self, item: str, quantity: int) -> None:
        """Take pieces from the shelf.

        Raises OutOfStock, and takes nothing, when there are not enough.
        """
        if quantity > self._pieces[item]:
            raise OutOfStock(f"{item}: {quantity} wanted, {self._pieces[item]} there")
        self._pieces[item] -= quantity
