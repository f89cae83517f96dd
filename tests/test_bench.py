"""The benches run, say what they promise, and make no mistakes; how fast they are is not asked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench"
MACHINE = {"cores", "git", "python", "load"}


def run(name: str, tmp_path: Path, *words: str) -> dict[str, Any]:
    """One bench at a tiny size; its JSON object."""
    command = [sys.executable, str(BENCH / name), "--json", "--folder", str(tmp_path), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    assert set(found) >= MACHINE
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"
    return found


@pytest.mark.race
def test_racing_claims_make_no_mistake_and_are_compared(tmp_path: Path) -> None:
    words = ("--agents", "3", "--tasks", "12", "--plain-seconds", "4", "--repeat", "1")
    found = run("claims.py", tmp_path, *words, "--rounds", "2")
    assert found["twice"] == 0
    assert found["lost"] == 0
    assert found["claimed"] == 12
    assert set(found) >= {
        "claims_per_s",
        "plain_claims_per_s",
        "ratio",
        "min_wait_s",
        "median_wait_s",
        "max_wait_s",
        "one_claim_ratio",
    }
    assert 0 < found["plain_claimed"] <= 12


def test_picking_is_measured_warm_cold_and_from_nothing(tmp_path: Path) -> None:
    found = run("pick.py", tmp_path, "--tasks", "600", "--rounds", "2")
    assert found["tasks"] == 600
    assert set(found) >= {"pick_ratio", "claim_ratio", "cold_ratio", "status_ms", "build_s"}


def test_slots_and_seals_are_measured(tmp_path: Path) -> None:
    found = run("slot.py", tmp_path, "--files", "200", "--rounds", "2")
    assert found["files"] == 200
    assert set(found) >= {"worktree_add_ms", "new_ratio", "reused_times_faster", "seal_ratio"}


def test_landings_all_land_and_are_measured(tmp_path: Path) -> None:
    found = run("land.py", tmp_path, "--files", "200", "--landings", "3", "--rounds", "2")
    assert found["landed"] == 3
    assert set(found) >= {"land_ms", "land_ratio", "batch_ms", "batch_ratio"}


def test_supervising_agents_is_measured_idle_quiet_and_flooded(tmp_path: Path) -> None:
    found = run("supervise.py", tmp_path, "--loops", "2", "--seconds", "0.2", "--rounds", "1")
    assert found["loops"] == 2
    assert set(found) >= {"idle_core_percent", "idle_mb", "started_ratio", "ended_ratio"}
    assert found["ready_to_started_ms"] > 0 and found["ended_to_checked_ms"] > 0
