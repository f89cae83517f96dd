"""The bench of a long ledger: what it writes is a ledger, and what it times is all of it."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from swarm.ledger.events import stray_paths
from swarm.ledger.store import Ledger

BENCH = Path(__file__).resolve().parent.parent / "bench"


def test_a_long_ledger_is_read_whole_and_compared(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "log.py"), "--json", "--folder", str(tmp_path)]
    done = subprocess.run(
        [*command, "--events", "60", "--rounds", "1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["events"], found["tasks"]) == (62, 12), "two come before: created, added"
    assert {"git_log_ms", "log_ratio", "status_ratio", "show_ratio"} <= set(found)
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


def test_the_ledger_that_it_writes_is_one_that_every_reader_understands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    common, log = importlib.import_module("common"), importlib.import_module("log")
    story = list(log.iter_story(1, "a" * 40, datetime.now(UTC)))
    assert [stray_paths(event) for event in story] == [[]] * log.EVENTS_OF_A_TASK
    ledger: Ledger = common.make_ledger(tmp_path / "app.swarm", 3, 80)
    log.lengthen(ledger, 400)
    view = ledger.view()
    assert ledger.index.counts(view) == {"landed": 80}
    assert list(view.iter_damage()) == []
    assert len(list(view.iter_paths("verdicts"))) == log.KEPT_VERDICTS
    assert [event.kind for event in ledger.iter_log()][:5] == [e.kind for e in story][::-1]
    ledger.close()
