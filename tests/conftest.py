"""One seal for every test: private HOME, no configuration of the machine, nothing inherited."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.world import Firsts, World

# PYTHON: also PYTHONDONTWRITEBYTECODE, with which every `swarm` would compile itself anew.
_NEVER = ("GIT_", "SWARM_", "XDG_", "PYTEST_ADDOPTS", "VIRTUAL_ENV", "PYTHON")


def pytest_xdist_auto_num_workers() -> int:
    """Most tests wait for git, for agents and for checks: two for each processor keep it busy."""
    return 2 * (os.cpu_count() or 1)


@pytest.fixture(autouse=True)
def seal(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Private HOME with an identity, no system configuration, an editor that fails."""
    home = tmp_path_factory.mktemp("home")
    for name in list(os.environ):
        if name.startswith(_NEVER):
            monkeypatch.delenv(name)
    (home / ".gitconfig").write_text(
        "[user]\n\tname = A Person\n\temail = person@example.invalid\n"
        "[init]\n\tdefaultBranch = main\n[advice]\n\tdetachedHead = false\n",
        "utf-8",
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_EDITOR", "false")
    monkeypatch.setenv("EDITOR", "false")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")


@pytest.fixture(autouse=True, scope="session")
def firsts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where what worlds are copied from is kept."""
    Firsts.folder = tmp_path_factory.mktemp("worlds")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A repository with one commit, adopted, with one check that passes when no file says RED."""
    made = World(tmp_path)
    yield made
    made.close()
