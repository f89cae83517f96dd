"""Amounts as text."""


def plain(cents: int) -> str:
    """`1250` as `12.50`."""
    sign = "-" if cents < 0 else ""
    whole, rest = divmod(abs(cents), 100)
    return f"{sign}{whole}.{rest:02}"
