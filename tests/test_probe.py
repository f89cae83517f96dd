"""Programs are asked what they are, and no agent is started for it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from swarm.probe import found_on_path
from tests.world import until

SLEEP = f"sleep 301.{os.getpid()}"  # known from those of other processes of the suite


def program(folder: Path, name: str, body: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return file


def test_programs_on_path_are_found_with_their_versions(tmp_path: Path) -> None:
    program(tmp_path / "bin", "claude", 'echo "2.1.332 (Claude Code)"')
    program(tmp_path / "bin", "codex", "echo broken; exit 1")
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    assert found_on_path(path) == [("claude", "2.1.332"), ("codex", None)]
    assert found_on_path(f"{tmp_path}/nowhere") == []
    assert found_on_path("") == []


def test_a_version_probe_sees_no_key_and_cannot_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setattr("swarm.probe.PROBE_SECONDS", 0.5)
    program(tmp_path / "bin", "claude", f"{SLEEP} & {SLEEP}")
    program(
        tmp_path / "bin",
        "codex",
        f'env > {tmp_path}/seen; {SLEEP} & echo "codex-cli 0.171.0"',
    )
    found = found_on_path(f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert found == [("claude", None), ("codex", "0.171.0")]
    seen = dict(line.split("=", 1) for line in (tmp_path / "seen").read_text().splitlines())
    assert set(seen) - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "HOME"}

    def is_gone() -> bool:
        listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
        return SLEEP not in listed.splitlines()

    # A process that was killed is gone once it is its turn.
    until(is_gone, "what the probes left behind is gone")


# -- the command line -----------------------------------------------------------------------------
