"""What the tests of real agent programs share: a table of them, a model, a repository to work in.

Enters: programs that `install.py` put into its cache. Leaves: runs of `swarm run` with them.
Guards: a program talks to the scripted model on 127.0.0.1, with a key that is none, from a HOME of
its own; one that is not installed is a skip that says why.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
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
    start: int = 3  # seconds until it asks the model, on a machine that has other work
    is_heavy: bool = False  # takes seconds of CPU time to start: not for what swarm does by itself
    limited: bool = True  # has something between asking and everything
    expands: bool = False  # reads `@path` of a prompt as a file
    tools: bool = True  # the model works by tools, not by text
    tries: int | None = 1  # requests until it gives up on a provider's error; None: for minutes
    reset: Json | None = None  # an error by which it learns when its limit ends: in 3 seconds
    reset_env: dict[str, str] = field(default_factory=dict)  # it learns that only with this

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
            "CLAUDE_CODE_MAX_RETRIES": "0",
        },
        cost=True,
        turns=2,
        expands=True,
        reset={
            "status": 429,
            "headers": {
                "anthropic-ratelimit-unified-status": "rejected",
                "anthropic-ratelimit-unified-reset": "${NOW+3}",
                "anthropic-ratelimit-unified-representative-claim": "five_hour",
            },
        },
        # of a subscription, not of a key
        reset_env={"ANTHROPIC_API_KEY": "", "CLAUDE_CODE_OAUTH_TOKEN": KEY},
    ),
    Kind(
        adapter="codex",
        program="codex",
        env=lambda url: {"OPENAI_API_KEY": KEY},
        files=_codex_files,
        reset={
            "events": [
                {
                    "type": "response.failed",
                    "response": {
                        "id": "resp_1",
                        "error": {
                            "code": "rate_limit_exceeded",
                            "message": "Rate limit reached for gpt-5 on tokens per min (TPM): "
                            "Limit 30000, Used 22999. Please try again in 3.02s.",
                        },
                    },
                }
            ]
        },
    ),
    Kind(
        adapter="gemini",
        program="gemini",
        env=lambda url: {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": url},
        files=_gemini_files,
        model="gemini-2.5-pro",  # of itself it would ask a smaller one which to take
        expands=True,
        reset={"status": 429, "retry_after": 3},
        is_heavy=True,
    ),
    Kind(
        adapter="opencode",
        program="opencode",
        env=lambda url: {"OPENCODE_DISABLE_MODELS_FETCH": "1"},
        files=_opencode_files,
        cost=True,
        turns=2,
        start=40,
        is_heavy=True,
        tries=None,
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
        start=20,
        tries=None,
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
        tries=None,
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
        tries=None,
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
        start=20,
        limited=False,
        tries=3,
    ),
)


def kinds(
    wanted: Callable[[Kind], object] = lambda kind: True, *, is_short: bool = False
) -> pytest.MarkDecorator:
    """A test for each program of which this is so; those that are not here are skipped.

    Only short ones belong to `make test` for programs that take seconds to start: all others are
    `make test-agents`.
    """
    cases = []
    for kind in filter(wanted, KINDS):
        why = why_missing(kind.program)
        marks = [pytest.mark.skip(why)] if why else []
        if not is_short and kind.adapter not in ("claude", "codex"):
            marks.append(pytest.mark.full)
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

    def last_outcome(self, task: str) -> str | None:
        """Also while the run has not yet taken the task in."""
        found = self.world.ledger.view().attempts(task)
        return found.last.outcome if found is not None and found.last is not None else None

    def state(self, task: str) -> State:
        return self.world.ledger.view().state(task)

    def left_over(self) -> list[process.Marked]:
        """Living processes of any run of this hub."""
        runs = [run.runner for run in self.world.ledger.view().runs()]
        return [found for runner in runs for found in process.find_marked(f"{runner}.")]

    def forget_sessions(self) -> None:
        """Each HOME as it was before the first run: with the program's configuration, no more."""
        for home in self.world.layout.homes.iterdir():
            shutil.rmtree(home)
        self.settle()

    def settle(self) -> None:
        """What the programs read from their HOME, in that of each slot."""
        for kind in self.kinds:
            for path, text in kind.files(self.server.url).items():
                for slot in range(1, 5):
                    place = self.world.layout.homes / f"s{slot}" / path
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_text(text, "utf-8")

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
            *kinds: Kind,
            limits: str = "",
            run: str = "",
            backoff: str = "0s",
            env: dict[str, str] | None = None,
        ) -> Bench:
            values: dict[str, str] = {}
            for kind in kinds:
                values |= kind.env(server.url)
            lines = [
                f"{name} = {json.dumps(value)}" for name, value in (values | (env or {})).items()
            ]
            config = (
                f'[run]\nhome = "private"\n{run}\n'
                f'[limits]\nbackoff = "{backoff}"\nbackoff_max = "3h"\ngrace = "1s"\n{limits}\n'
                f"[env.set]\n{chr(10).join(lines)}\n"
            )
            world = World(tmp_path, files={"README.md": "SECRET-OF-README\n"}, config=config)
            made.append(world)
            git(world.app, "add", "swarm.toml")
            git(world.app, "commit", "-q", "-m", "adopted")
            git(world.app, "push", "-q", "swarm", "main")
            marks = tmp_path / "marks"
            marks.mkdir()
            at = Bench(world, server, kinds, marks)
            at.settle()
            return at

        yield build
        for world in made:
            world.close()
