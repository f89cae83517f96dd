"""What the slot's hook costs a commit, in a repository of 1,000 files.

Enters: nothing. Leaves: medians over alternating commits of one run, as text or `--json`.
Guards: both sides do the same work in the same slot; only the hook's presence differs.

`ratio` is of `git commit -m` alone, as slots are set up by default: the hook adds the trailers.
`guarded_ratio` is with `[gate] scope = "hold"` or `"eject"` and declared paths, where it also has
git compare the staged paths with two globs; a bare shell and a bare git process already make 1.4 of
that. `guarded_with_add_ratio` counts the `git add` before each commit in.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

FILES = 1000
HOOK = Path(__file__).resolve().parent.parent / "hooks" / "prepare-commit-msg"


def git(*arguments: str | Path, cwd: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", *map(str, arguments)]
    subprocess.run(command, cwd=cwd, env=environment, check=True, stdout=subprocess.DEVNULL)


def build_slot(at: Path) -> tuple[Path, Path]:
    """A hub of one commit, a slot that borrows its objects, and the slot's worktree.

    Returns:
        The worktree and the slot's folder of hooks, which is empty.
    """
    hub, slot, worktree = at / "hub.git", at / "s1.git", at / "s1"
    seed = at / "seed"
    git("init", "-q", "-b", "main", seed, cwd=at)
    for number in range(FILES):
        path = seed / f"src/part{number % 40:02}/file{number:04}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number}\n" * 20)
    identity = ("-c", "user.name=bench", "-c", "user.email=bench@swarm.invalid")
    git("add", "-A", cwd=seed)
    git(*identity, "commit", "-q", "-m", "Seed", cwd=seed)
    git("clone", "-q", "--bare", seed, hub, cwd=at)
    git("repack", "-adq", cwd=hub)
    git("clone", "-q", "--bare", "--shared", hub, slot, cwd=at)
    for key, value in {
        "user.name": "bench",
        "user.email": "bench@swarm.invalid",
        "gc.auto": "0",
        "maintenance.auto": "false",
        "core.logAllRefUpdates": "false",
        "core.hooksPath": str(slot / "hooks"),
    }.items():
        git("config", key, value, cwd=slot)
    git("worktree", "add", "-q", "-b", "task", worktree, "main", cwd=slot)
    shutil.rmtree(slot / "hooks", ignore_errors=True)
    (slot / "hooks").mkdir()
    (slot / "hooks/swarm-task").write_text("task=bench\nagent=7f3k2m9q\ntoken=1\n")
    (slot / "hooks/swarm.mode").write_text("warn\n")
    return worktree, slot / "hooks"


def commit(worktree: Path, number: int) -> tuple[float, float]:
    """Milliseconds of `git add` and `git commit` of one edited file, and of the latter alone."""
    path = worktree / f"src/part{number % 40:02}/file{number % FILES:04}.txt"
    path.write_text(f"{number}\n" * 21)
    started = time.perf_counter()
    git("add", "-A", cwd=worktree)
    added = time.perf_counter()
    git("commit", "-m", f"Change {number}", cwd=worktree)
    ended = time.perf_counter()
    return (ended - started) * 1e3, (ended - added) * 1e3


def measure(commits: int) -> dict[str, float | int]:
    """Medians over `commits` commits a side, taken in turns."""
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder:
        worktree, hooks = build_slot(Path(folder))
        spent: dict[str, list[tuple[float, float]]] = {"without": [], "with": [], "guarded": []}
        for turn in range(commits + 2):
            for number, (side, timings) in enumerate(spent.items()):
                (hooks / HOOK.name).unlink(missing_ok=True)
                if side != "without":
                    shutil.copy2(HOOK, hooks / HOOK.name)
                (hooks / "swarm.paths").write_text("src/**\ntests/\n" if side == "guarded" else "")
                milliseconds = commit(worktree, len(spent) * turn + number)
                if turn >= 2:  # the first ones warm the caches
                    timings.append(milliseconds)
    whole = {side: median(both for both, _ in timings) for side, timings in spent.items()}
    alone = {side: median(last for _, last in timings) for side, timings in spent.items()}
    return {
        "commits": commits,
        "files": FILES,
        "with_ms": round(alone["with"], 2),
        "without_ms": round(alone["without"], 2),
        "ratio": round(alone["with"] / alone["without"], 2),
        "guarded_ratio": round(alone["guarded"] / alone["without"], 2),
        "guarded_with_add_ratio": round(whole["guarded"] / whole["without"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--commits", type=int, default=60, help="a side, at least 30")
    options = parser.parse_args()
    result = measure(max(30, options.commits))
    if options.json:
        print(json.dumps(result))
        return
    print(
        f"a commit among {result['files']} files: {result['with_ms']} ms with the slot's hook,"
        f" {result['without_ms']} ms without, ratio {result['ratio']} (to stay under 1.5);"
        f" with the scope guard {result['guarded_ratio']}, and git add counted in"
        f" {result['guarded_with_add_ratio']}"
    )


if __name__ == "__main__":
    main()
