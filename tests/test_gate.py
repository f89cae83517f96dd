"""smoke"""
def test_smoke(world):
    t = world.land("First task", "src/b.txt", "x\n")
    assert world.file("src/b.txt") == "x\n"
