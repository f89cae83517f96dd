"""A small project with a hub, and a real agent program beside a model that only plays scripts.

Enters: a program's name, a script. Leaves: `swarm` typed there, with what the program needs in its
environment and its own configuration. Guards: the program's HOME is private, its key is a dummy,
and it is told no address but 127.0.0.1.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.agents.install import PROGRAMS
from tests.agents.model_server import ModelServer
from tests.world import run_swarm

KEY = "test-key"
CHECK = "test ! -e RED"
# Names that a run hands on beyond those of the adapter: endpoints and switches of the tests.
PASSED = ["FAKE_KEY", "LITELLM_*", "MSWEA_*", "COPILOT_*", "CLAUDE_CODE_*"]

Variables = Callable[[str], Mapping[str, str]]
Files = Callable[[str], Mapping[str, str]]


def _nothing(base: str) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class Driven:
    """How a program is led to the scripted model; `base` is its address."""

    adapter: str
    program: str  # of install.py
    variables: Variables
    files: Files = _nothing  # below HOME
    words: tuple[str, ...] = ()  # of `swarm run`
    tells_cost: bool = False
    tells_turns: bool = True
    resumes: bool = True
    edits_by_text: bool = False  # no shell of its own: the script's `write` step alone


def _openai(base: str) -> dict[str, str]:
    return {
        "OPENAI_API_KEY": KEY,
        "OPENAI_BASE_URL": f"{base}/v1",
        "OPENAI_API_BASE": f"{base}/v1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }


def _codex(base: str) -> dict[str, str]:
    text = f"""
model = "gpt-5"
model_provider = "fake"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.fake]
name = "fake"
base_url = "{base}/v1"
env_key = "FAKE_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""
    return {".codex/config.toml": text}


def _gemini(base: str) -> dict[str, str]:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"disableAutoUpdate": True, "enableAutoUpdate": False, "maxAttempts": 1},
        "model": {"maxSessionTurns": 4},
    }
    return {".gemini/settings.json": json.dumps(settings)}


def _opencode(base: str) -> dict[str, str]:
    model = {
        "name": "fake",
        "limit": {"context": 200_000, "output": 8000},
        "cost": {"input": 3, "output": 15, "cache_read": 0.3},
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "fake",
        "options": {"baseURL": f"{base}/v1", "apiKey": KEY},
        "models": {"fake-model": model},
    }
    config = {
        "autoupdate": False,
        "share": "disabled",
        "provider": {"fake": provider},
        "model": "fake/fake-model",
        "small_model": "fake/fake-model",
    }
    return {
        "OPENCODE_CONFIG_CONTENT": json.dumps(config),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    }


DRIVEN = {
    one.adapter: one
    for one in (
        Driven(
            "claude",
            "claude",
            lambda base: {
                "ANTHROPIC_BASE_URL": base,
                "ANTHROPIC_API_KEY": KEY,
                "CLAUDE_CODE_MAX_RETRIES": "0",
            },
            tells_cost=True,
        ),
        Driven("codex", "codex", lambda base: {"FAKE_KEY": KEY}, _codex),
        Driven(
            "gemini",
            "gemini",
            lambda base: {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": base},
            _gemini,
            ("--model", "gemini-2.5-pro"),
        ),
        Driven("opencode", "opencode", _opencode, tells_cost=True),
        Driven("qwen", "qwen", lambda base: _openai(base) | {"OPENAI_MODEL": "fake-model"}),
        Driven(
            "copilot",
            "copilot",
            lambda base: {
                "COPILOT_PROVIDER_BASE_URL": f"{base}/v1",
                "COPILOT_PROVIDER_API_KEY": KEY,
                "COPILOT_MODEL": "fake-model",
                "COPILOT_OFFLINE": "true",
            },
        ),
        Driven(
            "aider",
            "aider",
            _openai,
            words=("--model", "openai/fake-model"),
            resumes=False,
            edits_by_text=True,
        ),
        Driven(
            "mini-swe-agent",
            "mini",
            lambda base: _openai(base) | {"MSWEA_COST_TRACKING": "ignore_errors"},
            words=("--model", "openai/fake-model"),
            resumes=False,
        ),
    )
}


def need(*names: str) -> None:
    """Skip the test where a program could not be installed, with the reason."""
    for name in names:
        program = PROGRAMS[DRIVEN[name].program]
        if not program.is_installed:
            why = program.reason.read_text().strip() if program.reason.exists() else "not installed"
            pytest.skip(f"{program.name} {program.version}: {why}")


@dataclass
class Project:
    """A repository beside its hub, in which real programs are run."""

    root: Path
    server: ModelServer
    names: tuple[str, ...]
    settings: str = ""
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        bins = [str(PROGRAMS[DRIVEN[name].program].bin) for name in self.names]
        home = self.root / "home"
        home.mkdir()
        (home / ".gitconfig").write_text("[user]\nname = A\nemail = a@example.invalid\n")
        self.env = {
            "HOME": str(home),
            "PATH": os.pathsep.join([*bins, str(PROGRAMS["node"].bin), os.environ["PATH"]]),
        }
        for name in self.names:
            one, base = DRIVEN[name], self.server.base("default")
            self.env |= one.variables(base)
            for path, text in one.files(base).items():
                (home / path).parent.mkdir(parents=True, exist_ok=True)
                (home / path).write_text(text)
        self.app.mkdir()
        self.git("init", "-q", "-b", "main")
        (self.app / "README.md").write_text("app\n")
        passed = json.dumps(PASSED)
        (self.app / "swarm.toml").write_text(
            f"format = 1\n{self.settings}\n[env]\npass = {passed}\n"
            f'[[checks]]\nname = "tests"\nrun = "{CHECK}"\n'
        )
        self.git("add", "-A")
        self.git("commit", "-qm", "Seed")
        assert self.swarm("init").returncode == 0

    @property
    def app(self) -> Path:
        return self.root / "app"

    def git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", *words],
            cwd=self.app,
            env={**os.environ, "HOME": self.env["HOME"]},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def swarm(self, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return run_swarm(self.app, *words, env=self.env, timeout=timeout)

    def task(self, title: str, body: str = "") -> None:
        assert self.swarm("task", "add", title, "-m", body or title).returncode == 0

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """One run of the first program, of one slot unless said otherwise."""
        one = DRIVEN[self.names[0]]
        team = () if "--agents" in words else ("-n", "1", "--agent", one.adapter, *one.words)
        return self.swarm("run", *team, *words)

    def landed(self, path: str) -> str:
        """A file of the target."""
        hub = self.root / "app.swarm/hub.git"
        return self.git(f"--git-dir={hub}", "show", f"main:{path}")

    def attempts(self, task: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.swarm("show", task, "--json").stdout)[
            "attempts"
        ]
        return found


def edit(path: str, text: str, name: str = "") -> dict[str, Any]:
    """A script that writes a file, commits it where the program has a shell, and ends."""
    command = f"printf '{text}' > {path} && git add {path} && git commit -qm {name or path}"
    return {
        "steps": [{"shell": command}, {"text": "FINAL: done"}],
        "usage": {"input": 1200, "cached": 200, "output": 50},
    }


def edit_by_text(path: str, text: str) -> dict[str, Any]:
    """The same for a program that edits by blocks of text and commits by itself."""
    return {
        "steps": [{"write": {"path": path, "content": text + "\n"}}, {"text": "FINAL: done"}],
        "usage": {"input": 1200, "cached": 200, "output": 50},
    }
