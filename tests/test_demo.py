"""The demo: the template played to its end by the same functions as `swarm run`.

Enters: an empty folder. Leaves: every task ended as expected.toml says, or what differs.
Guards: the demo removes only what a demo made; it needs no configuration and no account.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarm import adopt, demo
from swarm.errors import UsageError
from tests.world import git


def play(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """`make demo`, as a person without git configuration types it in a folder."""
    env = {k: v for k, v in os.environ.items() if k != "HOME"} | {"HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-m", "swarm.demo", *args],
        cwd=folder,
        env=env | {"GIT_DIR": "/nowhere"},  # as in a hook; it must not matter
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
    )


@pytest.mark.slow
def test_every_task_ends_as_the_template_says(tmp_path: Path) -> None:
    done = play(tmp_path, "-n", "2")  # the fewest slots that it can be played with
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout
    assert "15 of 15 tasks ended as expected.toml says; the invariants hold" in said
    for line in ("conflict with discount-flat", "red with rename-price", "crashed", "timed out"):
        assert line in said, f"the story of {line} is told"
    assert "agents    2 slots, scripted: no model, no account, no network" in said
    assert "\nlook around\n" in said
    log = git(tmp_path / ".demo/shop.swarm/hub.git", "log", "--format=%s", "--first-parent", "main")
    assert len(log.splitlines()) == 13, "the first commit and twelve landings"
    shop = tmp_path / ".demo/shop"
    assert (
        git(shop, "status", "--porcelain") == "" and git(shop, "log", "--format=%an") == "A Person"
    )


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A shop that was set up and not played."""
    with demo.claimed(tmp_path / ".demo") as place:
        made = demo.make_shop(place)
        adopt.make(made, say=lambda _: None)
        yield made


def test_each_difference_is_named(shop: Path) -> None:
    with demo.opened(shop) as work:
        ready = demo.prepare(work, demo.Order(slots=2, agent="scripted"))
        demo.take_plan(work.ledger, ready.drafts)
        wanted = {"readme-typo": demo.expected(shop)["readme-typo"]}
        lines = demo.differences(work.ledger, wanted)
    assert "readme-typo: end open, expected landed" in lines
    assert "readme-typo: attempts 0, expected 1" in lines
    assert "readme-typo: events none, expected claimed sealed landed" in lines
    assert "cart-model: nobody expected it" in lines
    assert "sla-report: nobody expected it" in lines


def test_a_task_that_vanished_is_a_difference(shop: Path) -> None:
    with demo.opened(shop) as work:
        lines = demo.differences(work.ledger, demo.expected(shop))
    assert len(lines) == 15
    assert lines[0] == "audit-names: the ledger does not have it"


def test_a_key_that_nobody_knows_is_refused(shop: Path) -> None:
    (shop / "expected.toml").write_text('[one]\nend = "landed"\nattempts = 1\nstrikes = 0\nx = 1\n')
    with pytest.raises(UsageError, match=r"expected\.toml"):
        demo.expected(shop)


def test_twice_in_one_place_begins_anew(tmp_path: Path) -> None:
    place = tmp_path / ".demo"
    with demo.claimed(place):
        demo.make_shop(place)
        (place / "shop" / "left.txt").write_text("old")
        (place / "mine.txt").write_text("of a person")
    with demo.claimed(place):
        assert sorted(p.name for p in place.iterdir()) == [demo.MARK, "mine.txt"]
        demo.make_shop(place)
    assert not (place / "shop" / "left.txt").exists()


def test_what_no_demo_made_is_left_alone(tmp_path: Path) -> None:
    place = tmp_path / ".demo"
    (place / "shop").mkdir(parents=True)
    (place / "shop" / "precious.txt").write_text("mine")
    done = play(tmp_path)
    assert done.returncode == 2
    assert "was not made by the demo" in done.stderr and "hint: " in done.stderr
    assert (place / "shop" / "precious.txt").read_text() == "mine"
    shutil.rmtree(place)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / demo.MARK).touch()
    place.symlink_to(elsewhere)
    assert play(tmp_path).returncode == 2, "a link may lead anywhere"


def test_two_demos_in_one_place_do_not_meet(tmp_path: Path) -> None:
    place = tmp_path / ".demo"
    with (
        demo.claimed(place),
        pytest.raises(UsageError, match="is being played"),
        demo.claimed(place),
    ):
        pass


def test_the_template_is_found_in_the_package_when_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages" / "swarm"
    shutil.copytree(demo.template(), installed / "template")
    monkeypatch.setattr(demo, "__file__", str(installed / "demo.py"))
    assert demo.template() == installed / "template"
    shutil.rmtree(installed / "template")
    with pytest.raises(UsageError, match="not installed"):
        demo.template()
