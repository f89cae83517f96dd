"""What every bench shares: a machine to name, repositories to measure in, one way to print.

Enters: sizes. Leaves: hubs with files and tasks, medians, one table or one JSON object.
Guards: rivals are timed in the same run, in turns, on the same file system; ratios are of medians.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from swarm.ids import new_nonce
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.records import Task, TaskHeader
from swarm.ledger.store import AUTHOR, Draft, Ledger
from swarm.plumbing.hub import Hub
from swarm.plumbing.refs import Committed, Move

BRANCH = "main"
Result = dict[str, float | int | str | None]


def machine() -> Result:
    """Where it was measured; ratios travel, times do not."""
    return {
        "cores": os.cpu_count() or 0,
        "git": _words("git", "--version")[2],
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
    }


def _words(*argv: str) -> list[str]:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The options that every bench has."""
    found = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    found.add_argument("--json", action="store_true", help="one JSON object")
    found.add_argument("--folder", type=Path, help="measure below this folder (default: TMPDIR)")
    return found


@contextmanager
def workplace(folder: Path | None) -> Iterator[Path]:
    """A temporary folder, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="swarm-bench-", dir=folder) as name:
        yield Path(name)


def report(title: str, result: Result, rows: Sequence[tuple[str, str]], as_json: bool) -> None:
    """Print the result whole as JSON, or the named keys as a table: (key, what it is)."""
    whole: Mapping[str, Any] = machine() | result
    if as_json:
        print(json.dumps(whole))
        return
    where = machine()
    print(
        f"{title} ({where['cores']} cores, git {where['git']}, python {where['python']},"
        f" load {where['load']})"
    )
    for key, words in rows:
        print(f"  {result[key]!s:>10}  {words}")


def git(
    *arguments: str | Path,
    cwd: Path,
    feed: bytes = b"",
    ok: bool = True,
    extra: Mapping[str, str] | None = None,
) -> str:
    """One git call as a rival makes it: no user configuration, an identity, a clean environment.

    Returns standard output; with `ok` False, an empty text when git fails.
    """
    done = subprocess.run(
        ["git", *map(str, arguments)],
        cwd=cwd,
        env=git_environment() | dict(extra or {}),
        input=feed,
        capture_output=True,
        check=ok,
    )
    return done.stdout.decode().strip() if done.returncode == 0 else ""


def git_environment() -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    return environment | {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "bench",
        "GIT_AUTHOR_EMAIL": "bench@swarm.invalid",
        "GIT_COMMITTER_NAME": "bench",
        "GIT_COMMITTER_EMAIL": "bench@swarm.invalid",
    }


def seed(at: Path, files: int) -> str:
    """A bare repository at `at` with one commit of `files` small files; returns the commit."""
    git("init", "-q", "--bare", "-b", BRANCH, at, cwd=at.parent)
    lines = [f"commit refs/heads/{BRANCH}", "committer bench <b@swarm.invalid> 1700000000 +0000"]
    lines += ["data 4", "Seed"]
    for number in range(files):
        text = f"{number}\n" * 20
        lines += [f"M 100644 inline {file_name(number)}", f"data {len(text)}", text]
    git("fast-import", "--quiet", cwd=at, feed="\n".join([*lines, ""]).encode())
    return git("rev-parse", BRANCH, cwd=at)


def file_name(number: int) -> str:
    return f"src/part{number % 100:02}/file{number:05}.txt"


def make_ledger(root: Path, files: int, tasks: int) -> Ledger:
    """A hub as `Hub.create` makes it, with a ledger and that many open tasks."""
    root.mkdir(parents=True, exist_ok=True)
    tip = seed(root / "seed.git", files)
    hub = Hub.create(root / "hub.git", BRANCH, root / "seed.git", tip)
    ledger = Ledger(hub, BRANCH, root / "cache")
    ledger.create()
    add_tasks(ledger, tasks)
    return ledger


def open_ledger(root: Path) -> Ledger:
    """What another process does to reach the same hub."""
    return Ledger(Hub.open(root / "hub.git"), BRANCH, root / "cache")


def add_tasks(ledger: Ledger, count: int, first: int = 0) -> None:
    """One `added` event with `count` tasks, as importing a plan writes it."""
    add_named(ledger, [f"task-{number:06}" for number in range(first, first + count)])


def add_named(ledger: Ledger, names: Sequence[str]) -> None:
    """The same with names of your own."""
    now = datetime.now(UTC)
    added: dict[str, bytes | None] = {}
    for name in names:
        header = TaskHeader(id=name, title=name.capitalize(), added_at=now)
        task = Task(header=header, body=f"Do the thing that has the name {name}.\n")
        added[records.task_path(task.id)] = records.encode_task(task)
    event = Event("added", f"{len(names)} tasks added", added)
    ledger.append(lambda view: Draft((event,), None))


def write_event(ledger: Ledger) -> None:
    """What an event costs by the cheapest means: seven objects, one flush, one ref moved."""
    hub, ref = ledger.hub, "refs/bench/event"
    old = hub.reader.ref(ref)
    batch = hub.batch()
    for _ in range(2):
        batch.blob(new_nonce().encode() * 12)
    for _ in range(4):
        tree = batch.add("tree", f"100644 {new_nonce()}\0".encode() + secrets.token_bytes(20))
    tip = batch.commit(tree, [old] if old else [], new_nonce() * 8, AUTHOR, "1700000000 +0000")
    batch.write()
    with hub.turn.held():
        moved = hub.refs.transact([Move(ref, old, tip)])
    assert isinstance(moved, Committed)


def timed(work: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


def in_turns(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each side, taken in turns so that the machine's mood hits all."""
    return in_turns_after(lambda: None, sides, rounds)


def in_turns_after(
    before: Callable[[], object], sides: Mapping[str, Callable[[], object]], rounds: int
) -> dict[str, float]:
    """The same; `before` runs ahead of every call and is not counted."""
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, work in sides.items():
            before()
            took = timed(work)
            if number > 0:  # the first round warms the caches
                spent[name].append(took)
    return {name: median(values) for name, values in spent.items()}
