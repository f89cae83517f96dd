from shop import money, receipt


def test_line_shows_what_the_pieces_cost_together():
    amount = f"{2 * money.price_of('bread') // 100}.00"
    assert receipt.line("bread", 2).split() == ["2", "x", "bread", amount]


def test_receipt_is_sorted_and_ends_with_the_sum():
    text = receipt.receipt({"honey": 1, "apple": 2})
    assert [row.split()[-1] for row in text.splitlines()] == ["0.60", "6.15", "6.75"]
