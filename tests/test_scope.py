from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.config import glob_fault
from swarm.scope import compile_globs, outside, overlap

words = st.text(alphabet="ab", min_size=1, max_size=3)
paths = st.lists(words, min_size=1, max_size=4).map("/".join)
pieces = st.one_of(words, words.map(lambda w: w + "*"), st.sampled_from(["*", "**", "a?", "[ab]"]))
globs = st.builds(
    lambda lead, parts, tail: lead + "/".join(parts) + tail,
    st.sampled_from(["", "", "/"]),
    st.lists(pieces, min_size=1, max_size=4),
    st.sampled_from(["", "", "/"]),
)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("src/shop/**", "src/shop/a.py", True),
        ("src/a.py", "src/ab.py", False),
        ("src/a*", "src/b*", False),
        ("src/a*", "src/ab.py", True),
        ("src/shop", "src/shop/a.py", True),  # a folder without a slash means all below it
        ("src/shop/", "src/shop/a.py", True),
        ("src/shop", "src/shopping/a.py", False),
        ("src/app/**", "tests/app/**", False),
        ("src/**/x.py", "src/**/y.py", True),  # literal parts only: a doubt is an overlap
        ("*.py", "docs/guide.md", True),  # no slash: matches at any depth
        ("**/x.py", "docs/guide.md", True),
        ("README.md", "src/app/**", True),  # src/app/README.md is both
        ("src/", "docs/guide.md", True),  # docs/src/ is a src/ too
        ("/src", "docs/guide.md", False),
        ("a/[id]/b", "a/x/b", True),
        ("a/\\*/b", "a/*/b", True),
    ],
)
def test_overlap_compares_the_literal_parts(a: str, b: str, expected: bool) -> None:
    assert overlap([a], [b]) is expected
    assert overlap([b], [a]) is expected


def test_C20_a_folder_and_a_file_in_it_overlap() -> None:
    assert overlap(["docs/x.md", "src/app/**"], ["src/app/a.py"])


def test_a_task_without_paths_overlaps_nothing() -> None:
    assert not overlap([], ["src/**"])
    assert not overlap(["src/**"], [])
    assert not overlap([], [])


def test_globs_that_take_away_are_passed_over() -> None:
    assert not overlap(["src/a/**", "!docs/x/**"], ["docs/x/**"])


@given(st.lists(globs, max_size=3), st.lists(globs, max_size=3))
def test_overlap_is_symmetric(a: list[str], b: list[str]) -> None:
    assert overlap(a, b) == overlap(b, a)


@given(globs, globs, paths)
def test_globs_that_match_one_path_overlap(a: str, b: str, path: str) -> None:
    if compile_globs([a]).matches(path) and compile_globs([b]).matches(path):
        assert overlap([a], [b])


@given(globs, paths)
def test_a_matched_file_overlaps_its_glob(glob: str, path: str) -> None:
    if compile_globs([glob]).matches(path):
        assert overlap([glob], [f"/{path}"])


def test_outside_names_the_strays_in_order() -> None:
    changed = ["src/shop/b.py", "README.md", "src/shop/deep/a.py", "tests/t.py"]
    assert outside(changed, ["src/shop/**"]) == ["README.md", "tests/t.py"]
    assert outside(changed, []) == []
    assert outside(changed, ["src/**", "!src/shop/deep/**", "tests/"]) == [
        "README.md",
        "src/shop/deep/a.py",
    ]


def test_no_globs_match_nothing() -> None:
    assert not compile_globs([]).matches("a")


def test_compiling_twice_gives_the_same_matcher() -> None:
    assert compile_globs(["a/**"]) is compile_globs(("a/**",))


@pytest.mark.parametrize(
    "glob",
    [
        *("", " ", "/", "!", "#x", "a//b", "../a", "a/./b", "a\nb", "a\\", "src\\shop"),
        *("a/[b", "[z-a]", "[[:alpha:]]", "[a/b]", "[a--b]", "a/[\\]]"),
    ],
)
def test_a_glob_that_cannot_mean_what_it_says_is_refused(glob: str) -> None:
    assert glob_fault(glob)
    with pytest.raises(ValueError, match="glob"):
        compile_globs([glob])


@given(st.text(alphabet="ab/*?[]!^-#\\ .|&~:", min_size=1, max_size=12))
def test_every_accepted_glob_compiles_without_a_warning(glob: str) -> None:
    if glob_fault(glob) is None:
        compile_globs([glob]).matches("a/b")


@pytest.mark.parametrize("glob", ["*.pyc", "__pycache__/", "!keep.me", "/build", "a/\\[id\\]/p.ts"])
def test_ordinary_globs_are_accepted(glob: str) -> None:
    assert glob_fault(glob) is None
