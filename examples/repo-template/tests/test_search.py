from shop import search


def test_find_keeps_the_order():
    names = ["rye bread", "butter", "white bread"]
    assert search.find("bread", names) == ["rye bread", "white bread"]
