"""Tax on net amounts."""


def tax_of(net: int, percent: int) -> int:
    """The tax on a net amount, in cents; parts of a cent are dropped."""
    return net * percent // 100
