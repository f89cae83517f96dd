"""Supervising agents: what idle loops cost, how soon an agent starts and its end is seen.

Enters: how many loops, how many tasks. Leaves: CPU and memory of an idle run; milliseconds from a
task that is ready to its agent's first step, and from an agent's last step to its check's first;
the same for three quiet agents beside one that floods its output.
Guards: a real `swarm run` with real processes; quiet and flooded are measured in one run.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles

import common
import psutil
from common import Result

from swarm.adopt import make
from swarm.config import load
from swarm.layout import beside
from swarm.ledger.store import Ledger
from swarm.plumbing.hub import LEDGER, Hub

SETTLE_SECONDS = 4.0
LIMIT_SECONDS = 120.0
# Writes the time of its first and its last step where the bench reads it.
AGENT = """#!{python}
import os, sys, time
place, rate = sys.argv[1], float(sys.argv[2])
task = os.environ["SWARM_TASK"]
with open(f"{{place}}/{{task}}.started", "w") as file:
    file.write(repr(time.time()))
if "flood" in task:
    line, until = b"x" * 65535 + b"\\n", time.time() + float(sys.argv[3])
    began, written = time.time(), 0
    while time.time() < until:
        os.write(1, line)
        written += len(line)
        time.sleep(max(0.0, began + written / (rate * 1e6) - time.time()))
with open(f"{{task}}.txt", "w") as file:
    file.write(task)
with open(f"{{place}}/{{task}}.ended", "w") as file:
    file.write(repr(time.time()))
"""
CHECK = "date +%s.%N >> {place}/checks; ls >> {place}/checks; true"


def prepare(place: Path, files: int) -> Path:
    """A checkout with a hub and one check, as `swarm init` makes it."""
    app = place / "app"
    app.mkdir(parents=True)
    common.git("init", "-q", "-b", common.BRANCH, cwd=app)
    for number in range(files):
        path = app / common.file_name(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number}\n" * 20)
    check = CHECK.format(place=place)
    (app / "swarm.toml").write_text(
        f'format = 1\n[limits]\nsilence = ""\n[[checks]]\nname = "tests"\nrun = """{check}"""\n'
    )
    agent = place / "agent.py"
    agent.write_text(AGENT.format(python=sys.executable))
    agent.chmod(0o755)
    common.git("add", "-A", cwd=app)
    common.git("commit", "-q", "-m", "Seed", cwd=app)
    make(app, say=lambda _: None)
    return app


@contextlib.contextmanager
def running(app: Path, slots: int, *words: str) -> Iterator[psutil.Process]:
    """A run that waits for tasks, once it does."""
    command = [sys.executable, "-m", "swarm", "-C", str(app), "run", "-n", str(slots)]
    log = app.parent / "run.log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            [*command, "--keep-going", "--", *words],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=common.git_environment(),
        )
    try:
        wait_until(lambda: b"Ctrl-C" in log.read_bytes(), child)
        yield psutil.Process(child.pid)
    finally:
        child.terminate()
        child.wait(60)


def wait_until(is_so: Callable[[], bool], child: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not is_so():
        if time.monotonic() > deadline or (child is not None and child.poll() is not None):
            raise SystemExit("the run ended, or did not do in time what is measured")
        time.sleep(0.02)


def cost_of(run: psutil.Process) -> tuple[float, float]:
    """(CPU seconds, bytes) of the run and of the git processes that it keeps."""
    seconds = size = 0.0
    for process in [run, *run.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
            size += process.memory_full_info().uss
    return seconds, size


def idle(place: Path, loops: int, seconds: float) -> Result:
    """What an idle run of that many loops costs, beside one of a single loop."""
    found: Result = {}
    for name, slots in (("one", 1), ("all", loops)):
        app = prepare(place / name, 10)
        with running(app, slots, "true") as run:
            time.sleep(SETTLE_SECONDS)
            before, began = cost_of(run)[0], time.monotonic()
            time.sleep(seconds)
            after, size = cost_of(run)
            found[name] = (after - before) / (time.monotonic() - began) * 100
            found[f"{name}_mb"] = size / 1e6
    return found


def ledger_of(app: Path) -> Ledger:
    layout = beside(app, load(app).hub)
    return Ledger(Hub.open(layout.hub), common.BRANCH, layout.cache)


def delays(place: Path, rounds: int, flood: float, name: str) -> tuple[list[float], list[float]]:
    """Milliseconds ready -> started and ended -> checked, of three quiet agents.

    `flood`: megabytes a second that a fourth one writes meanwhile; 0: there is none.
    """
    app = prepare(place / name, 200)
    marks = place / name
    starts, ends = [], []
    with running(app, 4, str(marks / "agent.py"), str(marks), str(flood), "60") as run:
        ledger = ledger_of(app)
        if flood:
            add(ledger, "flood")
            wait_until((marks / "flood.started").exists)
        for number in range(rounds):
            names = [f"quiet-{number}-{which}" for which in range(3)]
            ready = add(ledger, *names)
            wait_until(lambda names=names: all(checked(marks, one) for one in names))
            for one in names:
                starts.append((read(marks / f"{one}.started") - ready) * 1e3)
                ends.append((checked(marks, one) - read(marks / f"{one}.ended")) * 1e3)
        assert run.is_running()
        ledger.close()
    return starts, ends


def add(ledger: Ledger, *names: str) -> float:
    """The tasks are ready; returns since when."""
    common.add_named(ledger, names)
    assert ledger.hub.reader.ref(LEDGER)
    return time.time()


def read(path: Path) -> float:
    return float(path.read_text())


def checked(marks: Path, task: str) -> float:
    """When the first check began that saw the task's file; 0: none did yet."""
    with contextlib.suppress(FileNotFoundError):
        at = 0.0
        for line in (marks / "checks").read_text().splitlines():
            if line[:1].isdigit():
                at = float(line)
            elif line == f"{task}.txt":
                return at
    return 0.0


def p95(values: list[float]) -> float:
    return quantiles(values, n=20)[-1] if len(values) > 1 else values[0]


def measure(place: Path, loops: int, seconds: float, rounds: int) -> Result:
    costs = idle(place, loops, seconds)
    starts, ends = delays(place, rounds, 0.0, "quiet")
    flooded_starts, flooded_ends = delays(place, rounds, 50.0, "flooded")
    return {
        "loops": loops,
        "idle_core_percent": round(float(costs["all"] or 0), 2),
        "idle_one_core_percent": round(float(costs["one"] or 0), 2),
        "idle_mb": round(float(costs["all_mb"] or 0), 1),
        "idle_one_mb": round(float(costs["one_mb"] or 0), 1),
        "ready_to_started_ms": round(median(starts), 1),
        "ended_to_checked_ms": round(median(ends), 1),
        "started_p95_ms": round(p95(starts), 1),
        "flooded_started_p95_ms": round(p95(flooded_starts), 1),
        "started_ratio": round(p95(flooded_starts) / p95(starts), 2),
        "ended_p95_ms": round(p95(ends), 1),
        "flooded_ended_p95_ms": round(p95(flooded_ends), 1),
        "ended_ratio": round(p95(flooded_ends) / p95(ends), 2),
    }


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--loops", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0, help="that an idle run is watched")
    parser.add_argument("--rounds", type=int, default=8, help="of three quiet agents")
    options = parser.parse_args()
    os.environ.update(common.git_environment())
    with common.workplace(options.folder) as place:
        result = measure(place, options.loops, options.seconds, options.rounds)
    common.report(
        f"{options.loops} loops",
        result,
        [
            ("idle_core_percent", "percent of a core, all idle (2)"),
            ("idle_one_core_percent", "the same of one loop"),
            ("idle_mb", "megabytes of its own, git included (200)"),
            ("idle_one_mb", "the same of one loop"),
            ("ready_to_started_ms", "milliseconds from ready to the agent's first step"),
            ("ended_to_checked_ms", "milliseconds from its last step to the check's first"),
            ("started_ratio", "times the p95 of the former beside 50 MB/s (2)"),
            ("ended_ratio", "times that of the latter (2)"),
        ],
        options.json,
    )


if __name__ == "__main__":
    main()
