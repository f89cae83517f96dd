"""The six lines of README.md, typed as they stand there, by somebody who has nothing of swarm."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.world import git

ROOT = Path(__file__).resolve().parent.parent
# What is left out of a copy of this repository: all that is made here and not written here.
MADE = (
    ".git",
    ".venv",
    ".demo",
    ".*_cache",
    ".hypothesis",
    "__pycache__",
    "build",
    "dist",
    "*.egg*",
)
APP = {
    "src/shop/__init__.py": "",
    "src/shop/checkout.py": "def total(cart):\n    return sum(cart.values())\n",
    "tests/test_checkout.py": "import unittest\n\nfrom shop.checkout import total\n\n\n"
    "class Checkout(unittest.TestCase):\n    def test_total(self):\n"
    "        self.assertEqual(total({'tea': 3, 'milk': 1}), 4)\n",
}
# Speaks as agents/claude.toml reads it: does what it is told in its folder, and says so.
CLAUDE = """#!{python}
import json, pathlib, subprocess, sys

if sys.argv[1:] == ["--version"]:
    print("2.0.0 (Claude Code)")
    sys.exit()
assert "stream-json" in sys.argv and "-p" in sys.argv, sys.argv
prompt = sys.stdin.read()
assert "Refuse an empty cart at checkout" in prompt, prompt


def say(**line):
    print(json.dumps(line), flush=True)


say(type="system", subtype="init", session_id="4f9c0001-0000-4000-8000-000000000001")
text = {"type": "text", "text": "An empty cart is refused now."}
say(type="assistant", message={"content": [text]})
path = pathlib.Path("src/shop/checkout.py")
path.write_text(
    "def total(cart):\\n    if not cart:\\n        raise ValueError('the cart is empty')\\n"
    "    return sum(cart.values())\\n"
)
subprocess.run(["git", "commit", "-q", "-a", "-m", "Refuse an empty cart"], check=True)
usage = {"input_tokens": 1200, "output_tokens": 80}
say(
    type="result",
    subtype="success",
    is_error=False,
    result="Done.",
    num_turns=2,
    total_cost_usd=0.01,
    usage=usage,
    session_id="4f9c0001-0000-4000-8000-000000000001",
)
"""


def use_it() -> list[str]:
    """The block below "Use it", line by line."""
    text = (ROOT / "README.md").read_text("utf-8")
    section = text.partition("\n## Use it\n")[2].partition("\n## ")[0]
    return [line.strip() for line in section.splitlines() if line.startswith("    ")]


def test_using_it_takes_six_lines() -> None:
    assert [line.partition("#")[0].split()[:2] for line in use_it()] == [
        ["pipx", "install"],
        ["cd", "~/code/app"],
        ["swarm", "init"],
        ["swarm", "task"],
        ["swarm", "run"],
        ["swarm", "pull"],
    ]


@dataclass(frozen=True)
class Newcomer:
    """Somebody with a repository, git, pipx and an agent."""

    app: Path
    source: Path  # a copy of this repository
    programs: Path  # where pipx puts what it installs
    env: dict[str, str]


@pytest.fixture
def newcomer(tmp_path: Path) -> Newcomer:
    """
    Skips: pipx is not there, or nothing that it would install can be had.
    """
    pipx = Path(sys.executable).parent / "pipx"
    found = str(pipx) if pipx.exists() else shutil.which("pipx")
    if found is None:
        pytest.skip("pipx is not installed: pip install pipx")
    env = environment(tmp_path)
    words = ("pip", "download", "-q", "--no-deps", "-d", str(tmp_path / "asked"), "setuptools>=77")
    asked = subprocess.run(
        [sys.executable, "-m", *words],
        env=env,
        capture_output=True,
        text=True,
    )
    if asked.returncode != 0:
        pytest.skip(f"the package index cannot be reached: {asked.stderr.strip()[-200:]}")
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "pipx").symlink_to(found)
    (bin_ / "claude").write_text(CLAUDE.replace("{python}", sys.executable), "utf-8")
    (bin_ / "claude").chmod(0o755)
    source = tmp_path / "git-swarm"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*MADE))
    app = Path(env["HOME"]) / "code" / "app"
    for path, text in APP.items():
        (app / path).parent.mkdir(parents=True, exist_ok=True)
        (app / path).write_text(text, "utf-8")
    git(app, "init", "-q", "-b", "main")
    git(app, "add", "-A")
    git(app, "commit", "-q", "-m", "first")
    return Newcomer(app, source, tmp_path / "programs", env)


def environment(folder: Path) -> dict[str, str]:
    """No swarm on PATH but what pipx installs; pip's own settings and cache are the machine's."""
    own = str(Path(sys.executable).parent)
    path = [place for place in os.environ["PATH"].split(os.pathsep) if place != own]
    env = dict(os.environ)
    env["PATH"] = os.pathsep.join([str(folder / "bin"), str(folder / "programs"), *path])
    env["PIPX_HOME"] = str(folder / "pipx")
    env["PIPX_BIN_DIR"] = str(folder / "programs")
    env["PIPX_MAN_DIR"] = str(folder / "man")
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    for settings in (home / ".config/pip/pip.conf", home / ".pip/pip.conf"):
        if settings.exists():
            env.setdefault("PIP_CONFIG_FILE", str(settings))
    if (home / ".cache/pip").is_dir():
        env.setdefault("PIP_CACHE_DIR", str(home / ".cache/pip"))
    return env


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_six_lines_take_a_task_from_nothing_to_the_checkout(newcomer: Newcomer) -> None:
    codes = newcomer.source.parent / "codes"
    typed = "\n".join(f"{line}\necho $? >>'{codes}'" for line in use_it())
    shell = subprocess.run(
        ["/bin/sh", "-c", typed],
        cwd=newcomer.source,
        env=newcomer.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    said = shell.stdout + shell.stderr
    assert codes.read_text("utf-8").split() == ["0"] * 6, said
    assert (newcomer.programs / "swarm").exists(), said
    assert ": all landed" in said, said
    assert "raise ValueError" in (newcomer.app / "src/shop/checkout.py").read_text("utf-8"), said
    steps = git(newcomer.app, "log", "--first-parent", "--format=%s").splitlines()
    assert len(steps) == 2, "one landing on top of what was there"
    assert git(newcomer.app, "status", "--porcelain", "--untracked-files=no") == ""
