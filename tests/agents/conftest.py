"""What the tests of real agent programs share: a table of them, a model, a repository to work in.

Enters: programs that `install.py` put into its cache. Leaves: runs of `swarm run` with them.
Guards: a program talks to the scripted model on 127.0.0.1, with a key that is none, from a HOME of
its own; one that is not installed is a skip that says why.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from swarm import process
from swarm.ledger.view import State
from tests.agents.install import PROGRAMS, path_of, why_missing
from tests.agents.model_server import ModelServer
from tests.agents.wire import Json
from tests.world import World, git, run_swarm

PATIENCE = 90.0  # seconds for one run; a quiet machine needs 5
KEY = "test-key"

Files = dict[str, str]  # path below HOME -> text


@dataclass(frozen=True)
class Kind:
    """One agent program, and how it is brought to the scripted model by what it documents."""

    adapter: str
    program: str  # in install.PROGRAMS
    env: Callable[[str], dict[str, str]]  # of the model's URL: [env.set]
    files: Callable[[str], Files] = lambda url: {}
    model: str | None = None  # --model
    cost: bool = False  # tells it
    turns: int | None = None  # of two calls; None: it tells none
    tokens: tuple[int, int | None, int] | None = (2400, 400, 100)  # of two calls
    sessions: bool = True  # tells one, and can go on with it
    limited: bool = True  # has something between asking and everything
    expands: bool = False  # reads `@path` of a prompt as a file
    tools: bool = True  # the model works by tools, not by text
    quick: bool = True  # gives up on an error of the provider within seconds
    edits: Json = field(default_factory=dict)  # a script that lands a change, if not `work`

    @property
    def folder(self) -> Path:
        return PROGRAMS[self.program].bin


def _json(**keys: object) -> str:
    return json.dumps(keys)


def _codex_files(url: str) -> Files:
    return {
        ".codex/config.toml": f"""
model = "gpt-5"
model_provider = "scripted"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.scripted]
name = "scripted"
base_url = "{url}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""
    }


def _gemini_files(url: str) -> Files:
    text = _json(
        security={"auth": {"selectedType": "gemini-api-key"}},
        privacy={"usageStatisticsEnabled": False},
        general={"enableAutoUpdate": False, "maxAttempts": 1},
    )
    return {".gemini/settings.json": text}


def _opencode_files(url: str) -> Files:
    model = {
        "name": "fake",
        "limit": {"context": 200_000, "output": 8000},
        "cost": {"input": 3, "output": 15, "cache_read": 0.3},
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "scripted",
        "options": {"baseURL": f"{url}/v1", "apiKey": KEY},
        "models": {"fake-model": model},
    }
    text = _json(
        autoupdate=False,
        share="disabled",
        provider={"scripted": provider},
        model="scripted/fake-model",
        small_model="scripted/fake-model",
    )
    return {".config/opencode/opencode.json": text}


def _openai(url: str) -> dict[str, str]:
    return {"OPENAI_API_KEY": KEY, "OPENAI_API_BASE": f"{url}/v1"}


KINDS = (
    Kind(
        adapter="claude",
        program="claude",
        env=lambda url: {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": KEY,
            "CLAUDE_CODE_MAX_RETRIES": "1",
        },
        cost=True,
        turns=2,
        expands=True,
    ),
    Kind(
        adapter="codex",
        program="codex",
        env=lambda url: {"OPENAI_API_KEY": KEY},
        files=_codex_files,
    ),
    Kind(
        adapter="gemini",
        program="gemini",
        env=lambda url: {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": url},
        files=_gemini_files,
        model="gemini-2.5-pro",  # of itself it would ask a smaller one which to take
        expands=True,
    ),
    Kind(
        adapter="opencode",
        program="opencode",
        env=lambda url: {"OPENCODE_DISABLE_MODELS_FETCH": "1"},
        files=_opencode_files,
        cost=True,
        turns=2,
        quick=False,
    ),
    Kind(
        adapter="qwen",
        program="qwen",
        env=lambda url: {
            "OPENAI_API_KEY": KEY,
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_MODEL": "fake-model",
        },
        turns=2,
        expands=True,
        quick=False,
    ),
    Kind(
        adapter="copilot",
        program="copilot",
        env=lambda url: {
            "COPILOT_PROVIDER_BASE_URL": f"{url}/v1",
            "COPILOT_PROVIDER_API_KEY": KEY,
            "COPILOT_MODEL": "fake-model",
            "COPILOT_OFFLINE": "true",
        },
        turns=2,
        quick=False,
    ),
    Kind(
        adapter="aider",
        program="aider",
        env=lambda url: {
            **_openai(url),
            "AIDER_EDIT_FORMAT": "diff",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        model="openai/fake-model",
        turns=1,
        tokens=(1200, None, 50),
        sessions=False,
        tools=False,
        quick=False,
    ),
    Kind(
        adapter="mini-swe-agent",
        program="mini",
        env=lambda url: {
            **_openai(url),
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        model="openai/fake-model",
        cost=True,
        turns=2,
        sessions=False,
        limited=False,
    ),
)


def kinds(wanted: Callable[[Kind], object] = lambda kind: True) -> pytest.MarkDecorator:
    """A test for each program of which this is so; those that are not here are skipped."""
    cases = []
    for kind in filter(wanted, KINDS):
        why = why_missing(kind.program)
        marks = [pytest.mark.skip(why)] if why else []
        cases.append(pytest.param(kind, id=kind.adapter, marks=marks))
    return pytest.mark.parametrize("kind", cases)


def need(*adapters: str) -> pytest.MarkDecorator:
    """For a test of several programs together."""
    whys = [why for kind in KINDS if kind.adapter in adapters if (why := why_missing(kind.program))]
    return pytest.mark.skipif(bool(whys), reason="; ".join(whys))


def kind_of(adapter: str) -> Kind:
    return next(kind for kind in KINDS if kind.adapter == adapter)


@dataclass
class Bench:
    """A repository in which real programs work, and the model that they talk to."""

    world: World
    server: ModelServer
    kinds: tuple[Kind, ...]
    marks: Path  # a folder in which what the model has them run can leave files

    @property
    def environ(self) -> dict[str, str]:
        folders = [str(folder) for folder in path_of(*(kind.program for kind in self.kinds))]
        return {"PATH": os.pathsep.join([*folders, os.environ["PATH"]])}

    def task(self, name: str, body: str = "", header: str = "") -> None:
        """A task file; the scripted model plays the script of its name unless the text says so."""
        folder = self.world.app / "tasks"
        folder.mkdir(exist_ok=True)
        text = f"---\ntitle: Do {name}\n{header}---\n[[PLAY {name}]]\n{body}\n"
        (folder / f"{name}.md").write_text(text, "utf-8")

    def words(self, *more: str) -> list[str]:
        (kind,) = self.kinds
        model = ["--model", kind.model] if kind.model else []
        return ["run", "-n", "1", "--agent", kind.adapter, *model, *more]

    def run(self, *more: str, ok: int = 0) -> str:
        """`swarm run` to its end; what it said."""
        done = self.swarm(*self.words(*more))
        assert done.returncode == ok, (done.returncode, done.stdout, done.stderr, self.said())
        assert self.left_over() == []
        self.world.step()
        return done.stdout + done.stderr

    def swarm(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_swarm(self.world.app, *words, env=self.environ, timeout=PATIENCE)

    def start(self, *more: str) -> subprocess.Popen[str]:
        """`swarm run`, not waited for."""
        return subprocess.Popen(
            [sys.executable, "-m", "swarm", *self.words(*more)],
            cwd=self.world.app,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **self.environ},
        )

    def json(self, *words: str) -> Any:
        done = run_swarm(self.world.app, *words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def attempts(self, task: str) -> list[Json]:
        """As `swarm show --json` has them."""
        return list(self.json("show", task)["attempts"])

    def outcomes(self, task: str) -> list[str | None]:
        return [attempt["outcome"] for attempt in self.attempts(task)]

    def state(self, task: str) -> State:
        return self.world.ledger.view().state(task)

    def left_over(self) -> list[process.Marked]:
        """Living processes of any run of this hub."""
        runs = [run.runner for run in self.world.ledger.view().runs()]
        return [found for runner in runs for found in process.find_marked(f"{runner}.")]

    def said(self) -> str:
        """The end of what every agent printed: for a failure."""
        texts = []
        for file in sorted(self.world.layout.runs.glob("r*/**/*.*")):
            if file.name in ("transcript.jsonl", "stderr.log"):
                texts.append(f"{file}: {file.read_text('utf-8', 'replace')[-1500:]}")
        return "\n".join(texts)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Makes a bench for programs, with lines of swarm.toml."""
    with ModelServer() as server:
        made: list[World] = []

        def build(
            *kinds: Kind, limits: str = "", run: str = "", env: Mapping[str, str] | None = None
        ) -> Bench:
            values: dict[str, str] = {}
            for kind in kinds:
                values |= kind.env(server.url)
            lines = [
                f"{name} = {json.dumps(value)}" for name, value in (values | (env or {})).items()
            ]
            config = (
                f'[run]\nhome = "private"\n{run}\n'
                f'[limits]\nbackoff = "0s"\ngrace = "1s"\n{limits}\n'
                f"[env.set]\n{chr(10).join(lines)}\n"
            )
            world = World(tmp_path, files={"README.md": "SECRET-OF-README\n"}, config=config)
            made.append(world)
            git(world.app, "add", "swarm.toml")
            git(world.app, "commit", "-q", "-m", "adopted")
            git(world.app, "push", "-q", "swarm", "main")
            for kind in kinds:
                for slot in range(1, 5):
                    for path, text in kind.files(server.url).items():
                        place = world.layout.homes / f"s{slot}" / path
                        place.parent.mkdir(parents=True, exist_ok=True)
                        place.write_text(text, "utf-8")
            marks = tmp_path / "marks"
            marks.mkdir()
            return Bench(world, server, kinds, marks)

        yield build
        for world in made:
            world.close()
