"""What the slot's hook costs a commit, in a repository of 1,000 files.

Enters: nothing. Leaves: medians over alternating commits of one run, as text or `--json`.
Guards: both sides do the same work in the same slot; only the hook's presence differs.

Only `git commit -m` is timed, not the `git add` before it. The hook does all it can do without
refusing: adds the trailers and compares the staged paths with the task's two globs.
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
        "core.hooksPath": str(slot / "hooks"),
    }.items():
        git("config", key, value, cwd=slot)
    git("worktree", "add", "-q", "-b", "task", worktree, "main", cwd=slot)
    shutil.rmtree(slot / "hooks", ignore_errors=True)
    (slot / "hooks").mkdir()
    (slot / "hooks/swarm-task").write_text("task=bench\nagent=7f3k2m9q\ntoken=1\nscope=warn\n")
    (slot / "hooks/swarm.paths").write_text("src/**\ntests/\n")
    return worktree, slot / "hooks"


def commit(worktree: Path, number: int) -> float:
    """Milliseconds of one `git commit` of one edited file."""
    path = worktree / f"src/part{number % 40:02}/file{number % FILES:04}.txt"
    path.write_text(f"{number}\n" * 21)
    git("add", "-A", cwd=worktree)
    started = time.perf_counter()
    git("commit", "-m", f"Change {number}", cwd=worktree)
    return (time.perf_counter() - started) * 1e3


def measure(commits: int) -> dict[str, float | int]:
    """Medians over `commits` commits a side, alternating."""
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder:
        worktree, hooks = build_slot(Path(folder))
        spent: dict[bool, list[float]] = {False: [], True: []}
        for number in range(2 * commits + 4):
            hooked = number % 2 == 1
            if hooked:
                shutil.copy2(HOOK, hooks / HOOK.name)
            else:
                (hooks / HOOK.name).unlink(missing_ok=True)
            milliseconds = commit(worktree, number)
            if number >= 4:  # the first ones warm the caches
                spent[hooked].append(milliseconds)
    with_hook, without = median(spent[True]), median(spent[False])
    return {
        "commits": commits,
        "files": FILES,
        "with_ms": round(with_hook, 2),
        "without_ms": round(without, 2),
        "ratio": round(with_hook / without, 2),
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
        f" {result['without_ms']} ms without, ratio {result['ratio']} (to stay under 1.5)"
    )


if __name__ == "__main__":
    main()
