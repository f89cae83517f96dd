"""A run killed again and again, at any moment; one clean start ends its work."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarm import invariants
from swarm.layout import beside
from swarm.ledger.store import Ledger
from swarm.ledger.view import State
from swarm.plumbing.hub import LEDGER, Hub
from tests.crash.story import assert_nothing_lost, assert_nothing_runs, commits_of_slots
from tests.world import World, git, run_swarm, swarm

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(300)]

TEMPLATE = Path(__file__).parents[2] / "examples" / "repo-template"
TASKS = (
    "cart-model",
    "cart-totals",
    "checkout",
    "currency-format",
    "readme-typo",
    "stock-import",
    "tax-rounding",
)
ROUNDS = 20
SEED = 20


class Shop(World):
    """The template with its first tasks, adopted by `swarm init`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.app = folder / "shop"
        shutil.copytree(TEMPLATE, self.app)
        for path in (self.app / "tasks").glob("*.md"):
            if path.stem not in TASKS:
                path.unlink()
        toml = self.app / "swarm.toml"
        toml.write_text(toml.read_text().replace('backoff = "1s"', 'backoff = "0s"\ngrace = "1s"'))
        git(self.app, "init", "-q", "-b", "main")
        git(self.app, "add", "-A")
        git(self.app, "commit", "-q", "-m", "first")
        swarm(self.app, "init")
        self.layout = beside(self.app, "../shop.swarm/hub.git")
        self.hub = Hub.open(self.layout.hub)
        self.ledger = Ledger(self.hub, "main", self.layout.cache)
        self.checker = invariants.Checker(self.ledger, self.layout)

    def close(self) -> None:
        self.ledger.close()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    yield made
    made.close()


def wait_for_moves(shop: Shop, run: subprocess.Popen[bytes], count: int) -> None:
    """Until the ledger has moved so often, or the run has ended."""
    seen, deadline = shop.ledger.hub.reader.ref(LEDGER), time.monotonic() + 20
    while count and run.poll() is None and time.monotonic() < deadline:
        now = shop.ledger.hub.reader.ref(LEDGER)
        count -= now != seen
        seen = now
        time.sleep(0.001)


def test_A3_a_run_killed_at_any_moment_loses_nothing(shop: Shop) -> None:
    moments = random.Random(SEED)
    words = ("run", "-n", "3", "--agent", "scripted")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    killed = 0
    for _ in range(ROUNDS):
        with (shop.folder / "out").open("ab") as out:
            run = subprocess.Popen(
                [sys.executable, "-m", "swarm", *words],
                cwd=shop.app,
                env={**os.environ, "PATH": path},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
            wait_for_moves(shop, run, moments.randint(1, 5))
            time.sleep(moments.uniform(0, 0.1))
            run.send_signal(signal.SIGKILL)
            killed += run.wait(10) == -signal.SIGKILL
        shop.step()
    assert killed > ROUNDS // 2, "the runs ended before they could be killed"
    ended = run_swarm(shop.app, *words, timeout=120)
    said = (shop.folder / "out").read_text() + ended.stdout + ended.stderr
    assert ended.returncode == 0, said
    view = shop.ledger.view()
    states = {task: view.state(task) for task in TASKS}
    assert states == dict.fromkeys(TASKS, State.LANDED), said
    for task in TASKS:
        assert shop.events(task).count("landed") == 1
    shop.step()
    assert_nothing_lost(shop, commits_of_slots(shop.layout.slots))
    assert_nothing_runs(shop)
    assert "bug" not in said, said
