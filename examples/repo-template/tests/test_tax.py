from shop import tax


def test_whole_cents():
    assert tax.tax_of(1000, 19) == 190


def test_nothing_is_taxed_with_nothing():
    assert tax.tax_of(0, 19) == 0
