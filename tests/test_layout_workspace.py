"""Where things lie, and which configuration a command works with.

Enters: folders in and around a checkout, slots among them. Leaves: one workspace or one error.
Guards: everything of ours is below one folder; a slot's own swarm.toml configures nothing.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from swarm.errors import HubUnusable, UsageError
from swarm.layout import Layout, beside
from swarm.workspace import find_checkout, opened
from tests.world import World


def test_everything_of_ours_is_below_the_folder_beside_the_checkout(tmp_path: Path) -> None:
    layout = beside(tmp_path / "app", "../app.swarm/hub.git")
    assert layout.root == tmp_path / "app.swarm"
    places = (
        layout.hub,
        layout.slots,
        layout.homes,
        layout.gate,
        layout.runs,
        layout.checks,
        layout.cache,
        layout.attempt("r1", "task", 2),
    )
    assert all(place.is_relative_to(layout.root) for place in places)
    assert len(set(places)) == len(places)


def test_a_hub_elsewhere_leaves_the_rest_beside_the_checkout(tmp_path: Path) -> None:
    layout = beside(tmp_path / "app", "/srv/hubs/app.git")
    assert layout == Layout(tmp_path / "app.swarm", Path("/srv/hubs/app.git"))


def test_a_checkout_behind_a_link_has_one_state_folder(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "link").symlink_to("app")
    hub = "../app.swarm/hub.git"
    assert beside(tmp_path / "link", hub) == beside(tmp_path / "app", hub)


def test_attempts_by_hand_have_a_folder_of_their_own(tmp_path: Path) -> None:
    layout = beside(tmp_path / "app", "../app.swarm/hub.git")
    assert layout.attempt("", "task", 1) == layout.runs / "hand/task/1"


def test_the_checkout_is_found_from_any_folder_below_it(world: World) -> None:
    (world.app / "src/deep").mkdir()
    for folder in (world.app, world.app / "src/deep"):
        assert find_checkout(folder) == world.app


def test_in_a_slot_the_checkouts_own_configuration_counts(world: World) -> None:
    world.push("swarm.toml", (world.app / "swarm.toml").read_text())
    agent = world.agent(world.add("Work"))
    agent.write("swarm.toml", "format = 1\ntarget = 'elsewhere'\n")
    agent.write("deep/swarm.toml", "format = 1\ntarget = 'elsewhere'\n")
    for folder in (agent.tree, agent.tree / "deep"):
        assert find_checkout(folder) == world.app
        with opened(folder) as work:
            assert work.checkout == world.app
            assert work.config.target == "main"


def test_in_a_slot_of_a_hub_elsewhere_too(tmp_path: Path) -> None:
    app, slot = tmp_path / "app", tmp_path / "app.swarm/slots/s1"
    for folder in (app, slot):
        folder.mkdir(parents=True)
        (folder / "swarm.toml").write_text('format = 1\nhub = "/srv/hubs/app.git"\n')
    assert find_checkout(slot) == app


def test_without_a_configuration_it_says_how_to_begin(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        find_checkout(tmp_path)
    assert caught.value.hint == "swarm init"


def test_a_missing_hub_is_named(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app/swarm.toml").write_text('format = 1\ntarget = "main"\n')
    with (
        pytest.raises(HubUnusable, match=r"no hub at .*app\.swarm/hub\.git"),
        opened(tmp_path / "app"),
    ):
        pass


def test_the_configuration_gives_the_rules_of_claims_sealing_and_parking(tmp_path: Path) -> None:
    config = """
[limits]
strikes = 7
conflicts = 8
backoff = "1s"
backoff_max = "2s"
[claims]
lease = "3m"
hand_lease = "9h"
overlap = "allow"
duplicates = "refuse"
[worktree]
max_file = "1KiB"
[gate]
review = "all"
protect = ["x"]
scope = "hold"
"""
    world = World(tmp_path, config=config)
    with opened(world.app) as work:
        assert (work.rules.max_file, work.rules.review) == (1024, "all")
        assert (work.rules.protect, work.rules.scope) == (("x",), "hold")
        assert (work.bounds.strikes, work.bounds.conflicts) == (7, 8)
        assert (work.bounds.backoff, work.bounds.backoff_max) == (
            timedelta(seconds=1),
            timedelta(seconds=2),
        )
        assert work.terms.lease == timedelta(minutes=3)
        assert work.hand_terms.lease == timedelta(hours=9)
        assert (work.terms.overlap, work.terms.duplicates) == ("allow", "refuse")
    world.close()
