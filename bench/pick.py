"""Picking a task among very many: warm, in a process that just started, and with no cache at all.

Enters: how many tasks. Leaves: ratios against 100 tasks and against bare imports.
Guards: a process that just started finds its cache one event behind, as after another's claim.

A cold claim opens the workspace and acquires, as `swarm claim` does before it opens a slot.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import common
from common import Result

from swarm.claim import Claimed, Terms, Who, acquire
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.store import Draft, Ledger
from swarm.ledger.view import View
from swarm.plumbing.hub import Hub

FEW = 100
COLD = """
import sys
from pathlib import Path
from swarm.claim import Claimed, Who, acquire
from swarm.workspace import opened
with opened(Path(sys.argv[1])) as work:
    answer = acquire(work.ledger, Who(runner="hand-bench"), work.hand_terms)
    assert isinstance(answer, Claimed), answer
"""
CONFIG = '[[checks]]\nname = "tests"\nrun = "true"\n'


def adopt(place: Path, files: int, tasks: int) -> tuple[Path, Ledger, float]:
    """A checkout `app` with its state beside it; also the seconds that adding the tasks took."""
    checkout = place / "app"
    checkout.mkdir(parents=True)
    (checkout / "swarm.toml").write_text(CONFIG)
    ledger = common.make_ledger(place / "app.swarm", files, 0)
    return checkout, ledger, common.timed(lambda: common.add_tasks(ledger, tasks)) / 1e3


def pick(ledger: Ledger) -> None:
    """What a claim does up to its event."""
    view = ledger.view()
    with ledger.index.at(view):
        ledger.index.live(view)
        assert ledger.index.first_ready(view, lambda row: True) is not None


def claim(ledger: Ledger) -> None:
    assert isinstance(acquire(ledger, Who(runner="bench"), Terms()), Claimed)


def touch(ledger: Ledger, number: int) -> None:
    """One event of somebody else, written past every cache."""
    name = f"task-{number:06}"

    def decide(view: View) -> Draft[None]:
        task = view.task(name)
        assert task is not None
        edits: dict[str, bytes | None] = {
            records.task_path(name): records.encode_task(task).rstrip() + b"\nAnd more.\n"
        }
        return Draft((Event("edited", f"{name} was edited.", edits, name),), None)

    ledger.append(decide)


def start(*words: str, cwd: Path) -> None:
    """A new process of this Python."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    subprocess.run(
        [sys.executable, *words], cwd=cwd, env=environment, check=True, capture_output=True
    )


def measure(place: Path, tasks: int, rounds: int) -> Result:
    checkout, many, added = adopt(place / "many", 100, tasks)
    small, few, _ = adopt(place / "few", 100, FEW)
    builds: list[float] = []
    for _ in range(3):
        many.index.close()
        shutil.rmtree(place / "many/app.swarm/cache", ignore_errors=True)
        builds.append(common.timed(lambda: many.index.counts(many.view())) / 1e3)
    warm = common.in_turns(
        {
            "pick_few": lambda: pick(few),
            "pick_many": lambda: pick(many),
            "claim_few": lambda: claim(few),
            "claim_many": lambda: claim(many),
        },
        min(rounds * 3, FEW - 10),
    )
    many.close()
    few.close()
    other = Ledger(Hub.open(place / "many/app.swarm/hub.git"), common.BRANCH)
    numbers = iter(range(tasks - 1, 0, -1))
    cold = common.in_turns_after(
        lambda: touch(other, next(numbers)),
        {
            "cold_claim": lambda: start("-c", COLD, str(checkout), cwd=place),
            "import": lambda: start("-c", "import click, git", cwd=place),
            "status": lambda: start("-m", "swarm", "status", "--json", cwd=small),
        },
        rounds,
    )
    other.close()
    return {
        "tasks": tasks,
        "add_s": round(added, 2),
        "build_s": round(sorted(builds)[1], 2),
        "build_fastest_s": round(min(builds), 2),
        "pick_few_ms": round(warm["pick_few"], 3),
        "pick_many_ms": round(warm["pick_many"], 3),
        "pick_ratio": round(warm["pick_many"] / warm["pick_few"], 2),
        "claim_few_ms": round(warm["claim_few"], 2),
        "claim_many_ms": round(warm["claim_many"], 2),
        "claim_ratio": round(warm["claim_many"] / warm["claim_few"], 2),
        "cold_claim_ms": round(cold["cold_claim"], 1),
        "import_ms": round(cold["import"], 1),
        "cold_ratio": round(cold["cold_claim"] / cold["import"], 2),
        "status_ms": round(cold["status"], 1),
    }


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with common.workplace(options.folder) as place:
        result = measure(place, options.tasks, options.rounds)
    common.report(
        f"picking among {options.tasks:,} tasks",
        result,
        [
            ("pick_ratio", f"times picking among {FEW}, warm (to stay under 2)"),
            ("claim_ratio", "times a whole claim there"),
            ("cold_claim_ms", "milliseconds of a claim in a new process, cache one event behind"),
            ("import_ms", 'milliseconds of `python -c "import click, git"`'),
            ("cold_ratio", "times that (to stay under 2)"),
            ("status_ms", f"milliseconds of `swarm status` with {FEW} tasks"),
            ("build_s", "seconds to build the cache from nothing (3)"),
            ("add_s", "seconds to add the tasks, one event"),
        ],
        options.json,
    )


if __name__ == "__main__":
    main()
