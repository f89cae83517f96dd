"""`swarm agents`: list, show, check, forget.

Enters: programs that are shell scripts on a PATH of the test's own, adapters of the checkout.
Leaves: what is printed, and the exit code.
Guards: nothing hangs, no agent is started, no value of a variable is printed, and what is shown
as a start is what a run starts.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from swarm import breaker, probe
from swarm.adapter import load, names
from swarm.breaker import Breaker
from swarm.output.agents import shell_word
from swarm.probe import logged_in
from tests.test_output import is_harmless
from tests.world import Said, World, typed, until

ADAPTER = """\
format = 1
name = "{name}"
about = "mine"
program = "{name}"
version = ["--version"]
{top}
[prompt]
how = "stdin"
{tables}
[output]
format = "text"
cost_usd = {{ in = "report", at = "cost_usd" }}

[[outcome]]
is = "success"
exit = [0]

[stop]
signals = ["SIGTERM", "SIGKILL"]
"""
SECRET = "sk-ant-do-not-print-me-0123456789"
SLEEP = f"sleep 305.{os.getpid()}"  # known from those of other processes of the suite
HANG = "SLEEP & SLEEP"


class Bench:
    """A PATH of the test's own, a checkout, and words typed there."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.bin = folder

    def program(self, name: str, body: str = "echo 1.2.3") -> Path:
        file = self.bin / name
        file.write_text(f"#!/bin/sh\n{body.replace('SLEEP', SLEEP)}\n")
        file.chmod(0o755)
        return file

    def adapter(self, name: str, *, top: str = "", tables: str = "", text: str = "") -> Path:
        file = self.world.app / ".swarm/agents" / f"{name}.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text or ADAPTER.format(name=name, top=top, tables=tables))
        return file

    def __call__(self, *words: str, code: int = 0) -> str:
        said = self.said(*words)
        assert said.code == code, said
        return said.out

    def said(self, *words: str) -> Said:
        return typed(self.world.app, "agents", *words)

    def json(self, *words: str, code: int = 0) -> Any:
        verb, *rest = words
        return json.loads(self(verb, "--json", *rest, code=code))

    def line(self, name: str) -> dict[str, Any]:
        (found,) = [line for line in self.json("list")["agents"] if line["name"] == name]
        return dict(found)


@pytest.fixture
def agents(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(probe, "PROBE_SECONDS", 10.0)  # what answers has answered long before
    return Bench(world, folder)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> float:
    """Programs that hang are given up soon."""
    monkeypatch.setattr(probe, "PROBE_SECONDS", 1.0)
    return 1.0


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    # A process that was killed is gone once it is its turn.
    until(lambda: SLEEP not in processes(), "what a probe left behind is gone")


def processes() -> list[str]:
    done = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


# The list


def test_the_list_says_of_each_whether_it_is_there_and_which_version(agents: Bench) -> None:
    claude = agents.program("claude", 'echo "2.1.332 (Claude Code)"')
    found = agents.json("list")
    assert [line["name"] for line in found["agents"]] == names(None)
    line_of = {line["name"]: line for line in found["agents"]}
    there, missing = line_of["claude"], line_of["codex"]
    typed_one, ours = line_of["command"], line_of["scripted"]
    assert (there["path"], there["version"]) == (str(claude), "2.1.332")
    assert (missing["program"], missing["path"], missing["version"]) == ("codex", None, None)
    assert typed_one["program"] is None and typed_one["path"] is None
    assert ours["path"] is not None, "{python} is filled in"
    assert {line["origin"] for line in found["agents"]} == {"built_in"}
    text = agents("list").splitlines()
    words = {line.split()[0]: line.split() for line in text[1:]}
    assert words["claude"][1:5] == ["built", "in", "found", "2.1.332"]
    assert words["codex"][1:4] == ["built", "in", "missing"]
    assert text[-1] == f"{len(names(None))} agents; more of one: swarm agents check NAME"


def test_a_checkouts_own_file_wins_and_is_marked(agents: Bench) -> None:
    agents.adapter("claude")
    agents.adapter("mine")
    agents.program("mine", "echo mine 0.3.0-beta")
    over, own = agents.line("claude"), agents.line("mine")
    assert (over["origin"], over["is_override"], over["about"]) == ("checkout", True, "mine")
    assert (own["origin"], own["is_override"], own["version"]) == ("checkout", False, "0.3.0-beta")
    assert over["file"] == str(agents.world.app / ".swarm/agents/claude.toml")
    lines = agents("list").splitlines()
    at = lines[0].index("file")
    assert [line[at : at + 17] for line in lines if line.startswith("claude ")] == [
        "own, for built-in"
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("pogram = 1\n", "unknown key pogram"),
        ("= not toml", "at line 1"),
        ("a = " + "[" * 5000, "mine.toml"),
        (ADAPTER.format(name="other", top="", tables=""), "name is other, want mine"),
    ],
)
def test_a_broken_file_is_a_line_and_costs_the_others_nothing(
    agents: Bench, text: str, why: str
) -> None:
    agents.program("claude", "echo 2.0.1")
    agents.adapter("mine", text=text)
    line = agents.line("mine")
    assert why in line["error"]["what"]
    assert agents.line("claude")["version"] == "2.0.1"
    out = " ".join(agents("list").split())
    assert "2.0.1" in out and f"{len(names(None)) + 1} agents" in out
    assert why in out
    assert agents.said("check", "mine").code == 2
    assert why in agents.said("show", "mine").err


def test_outside_a_checkout_what_is_built_in_is_listed(agents: Bench, tmp_path: Path) -> None:
    agents.program("claude", "echo 2.0.1")
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    said = typed(outside, "agents", "list")
    assert said.code == 0, said
    assert "only what is built in" in said.out and "2.0.1" in said.out
    check = typed(outside, "agents", "check", "claude", "--json")
    found = json.loads(check.out)
    assert (check.code, found["state"], found["start"]) == (0, "ready", None)
    assert typed(outside, "agents", "check", "codex").code == 2
    assert typed(outside, "agents", "check", "command").code == 2
    assert typed(outside, "agents", "check", "command", "--", "claude").code == 0
    assert typed(outside, "agents", "forget", "claude").code == 2


def test_a_wrong_configuration_does_not_hide_the_agents(agents: Bench) -> None:
    (agents.world.app / "swarm.toml").write_text("format = 1\nnonsense = 1\n")
    assert f"{len(names(None))} agents" in agents("list")
    agents.program("claude")
    found = agents.json("check", "claude", code=2)
    assert "nonsense" in json.dumps(found["wrong"]) and found["version"] == "1.2.3"


def test_all_are_asked_at_once_and_none_can_hold_it_up(agents: Bench, quick: float) -> None:
    """Eight programs that hang at both questions: one after the other they would take 16 s."""
    for number in range(8):
        agents.program(f"hang{number}", HANG)
        agents.adapter(f"hang{number}", tables='[login]\nargv = ["status"]')
    began = time.monotonic()
    found = agents.json("list")["agents"]
    assert time.monotonic() - began < 5 * quick
    hung = [line for line in found if line["name"].startswith("hang")]
    assert [(line["path"] is not None, line["version"], line["logged_in"]) for line in hung] == [
        (True, None, None)
    ] * 8


def test_the_limit_of_a_probe_is_below_six_seconds() -> None:
    assert probe.PROBE_SECONDS <= 5.0


def test_who_prints_without_end_is_ended_and_has_said_nothing(agents: Bench) -> None:
    agents.program("claude", "exec yes 1.2.3")
    began = time.monotonic()
    assert agents.line("claude")["version"] is None
    assert time.monotonic() - began < probe.PROBE_SECONDS, "it was not waited for"
    until(lambda: "yes 1.2.3" not in processes(), "it is gone")


@pytest.mark.parametrize(
    ("body", "version"),
    [
        ("echo 'codex-cli 0.171.0'", "0.171.0"),
        ("echo 0.171.0; exit 1", None),
        ("echo 0.171.0 >&2", None),
        ("echo nothing", None),
        ("kill -9 $$", None),
        ("printf '1.2.3\\033[31m\\n'", "1.2.3"),
        (f"echo 1.{'2' * 100}", "1." + "2" * 28),
        ("SLEEP & echo 1.2.3", "1.2.3"),
    ],
)
def test_what_counts_as_a_version(agents: Bench, body: str, version: str | None) -> None:
    agents.program("codex", body)
    assert agents.line("codex")["version"] == version


# Who is logged in


def login(agents: Bench, table: str) -> bool | None:
    agents.adapter("mine", tables=f"[login]\n{table}\n[env]\npass = ['MINE_*']\n")
    return logged_in(load("mine", agents.world.app), os.environ)


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ("exit 0", True),
        ("exit 1", False),
        ("yes | head -c 3000000; exit 0", None),
        ("exit 127", None),
        ("kill -9 $$", None),
        (HANG, None),
    ],
)
def test_a_program_is_asked_and_answers_by_its_exit(
    agents: Bench, quick: float, body: str, answer: bool | None
) -> None:
    agents.program("mine", f'test "$1" = status || exit 9\n{body}')
    assert login(agents, 'argv = ["status"]') is answer


def test_a_key_or_a_file_is_a_log_in_and_its_lack_tells_nothing(
    agents: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents.program("mine", "exit 1")
    assert login(agents, "") is None
    assert login(agents, 'env = ["MINE_KEY"]\nfiles = ["~/.mine/auth.json"]') is None
    monkeypatch.setenv("MINE_KEY", "")
    assert login(agents, 'env = ["MINE_KEY"]') is None
    monkeypatch.setenv("MINE_KEY", "x")
    assert login(agents, 'env = ["MINE_KEY"]') is True
    monkeypatch.setenv("OTHER_KEY", "x")
    assert login(agents, 'env = ["OTHER_KEY"]') is None, "an agent would not be given it"
    auth = Path(os.environ["HOME"], ".mine/auth.json")
    auth.parent.mkdir()
    auth.write_text("{}")
    assert login(agents, 'argv = ["status"]\nfiles = ["~/.mine/auth.json"]') is True
    assert login(agents, 'files = ["a\\u0000b"]') is None


def test_a_log_in_probe_sees_its_own_variables_and_no_others(
    agents: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MINE_KEY", "OTHER_KEY", "XDG_CONFIG_HOME", "GIT_DIR"):
        monkeypatch.setenv(name, "x")
    agents.program("mine", f"env > {tmp_path}/seen")
    agents.adapter(
        "mine",
        tables='[login]\nargv = ["status"]\n[env]\npass = ["MINE_*", "GIT_*"]\n'
        'set = { MINE_HOME = "/m", MINE_PORT = "{port}" }\n',
    )
    mine = load("mine", agents.world.app)

    def seen() -> dict[str, str]:
        lines = (tmp_path / "seen").read_text().splitlines()
        found = dict(line.split("=", 1) for line in lines)
        return {name: found[name] for name in found.keys() - {"PWD", "SHLVL", "_", "OLDPWD"}}

    assert logged_in(mine, os.environ) is True
    assert seen().keys() == {"PATH", "HOME", "XDG_CONFIG_HOME", "MINE_KEY", "MINE_HOME"}
    assert logged_in(mine, os.environ, Path("/own"), ["OTHER_*"]) is True
    assert seen().keys() == {"PATH", "HOME", "OTHER_KEY", "MINE_KEY", "MINE_HOME"}
    assert seen()["HOME"] == "/own"


def test_a_version_probe_sees_no_key(
    agents: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    agents.program("claude", f"env > {tmp_path}/seen-$1; echo 1.2.3")
    assert agents.line("claude")["version"] == "1.2.3"
    assert "PATH=" in (tmp_path / "seen---version").read_text()
    assert SECRET not in (tmp_path / "seen---version").read_text()


# Check


def flat(out: str) -> str:
    """As it reads where no line is broken: a long command is, as a shell breaks it."""
    return " ".join(out.replace("\\\n", " ").split())


def test_what_is_ready_ends_with_0_and_shows_the_start(agents: Bench) -> None:
    agents.program("mine")
    agents.adapter("mine", top='argv = ["--go"]', tables='[login]\nargv = ["status"]')
    found = agents.json("check", "mine")
    assert (found["state"], found["logged_in"], found["wrong"]) == ("ready", True, [])
    assert found["start"]["argv"] == [str(agents.bin / "mine"), "--go"]
    assert found["start"]["folder"] == str(agents.world.layout.slots / "s1")
    out = agents("check", "mine")
    assert out.endswith("ready\n")
    assert f"{agents.bin}/mine --go" in flat(out)


def test_who_is_not_logged_in_is_told_the_cure_and_ends_with_15(agents: Bench) -> None:
    agents.program("mine", 'test "$1" != status; exit $?')
    agents.adapter("mine", tables='[login]\nargv = ["status"]\nhint = "run: mine login"')
    assert agents.json("check", "mine", code=15)["state"] == "not_logged_in"
    out = agents("check", "mine", code=15)
    assert out.endswith("not logged in: run: mine login\n")


def test_a_log_in_that_nothing_tells_is_said_as_unknown(agents: Bench) -> None:
    agents.program("mine")
    agents.adapter("mine")
    assert agents.json("check", "mine")["logged_in"] is None
    out = agents("check", "mine")
    assert "unknown: nothing tells" in out and "as far as can be seen" in out


def test_a_missing_program_ends_with_2(agents: Bench) -> None:
    found = agents.json("check", "codex", code=2)
    assert (found["state"], found["path"], found["start"]) == ("wrong", None, None)
    (wrong,) = found["wrong"]
    assert wrong["hint"] == "install codex, or name another agent"
    assert "cannot start codex" in agents("check", "codex", code=2)
    said = agents.said("check", "claud")
    assert (said.code, "did you mean claude?" in said.err) == (2, True)


def test_a_program_of_ones_own_is_what_stands_behind_the_dashes(agents: Bench) -> None:
    script = agents.world.app / "agent.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    found = agents.json("check", "command", "--", "./agent.sh", "a b", "{task}")
    assert found["start"]["argv"] == [str(script), "a b", "{task}"]
    wrong = agents.json("check", "command", code=2)["wrong"]
    assert wrong[0]["what"] == "agent command needs a program to start"


def test_limits_that_cannot_hold_are_all_named(world: World, agents: Bench) -> None:
    agents.program("mine")
    agents.adapter("mine")  # says what it costs, and nothing of tokens and turns
    toml = (world.app / "swarm.toml").read_text()
    limits = "[limits]\ncost_usd = 2.0\ntask_tokens = 100\nturns = 5\n"
    (world.app / "swarm.toml").write_text(toml.replace("[limits]\n", limits))
    found = agents.json("check", "mine", code=2)
    assert [wrong["what"] for wrong in found["wrong"]] == [
        "[limits] task_tokens cannot hold: mine does not say its tokens",
        "[limits] turns cannot hold: mine does not say its turns",
    ]
    assert found["start"] is not None, "what it would be started as is shown all the same"
    out = agents("check", "mine", code=2)
    assert "task_tokens cannot hold" in out and out.endswith("2 things to mend\n")


def test_a_provider_limit_ends_with_15_until_it_is_forgotten(world: World, agents: Bench) -> None:
    agents.program("claude")
    now = datetime.now(UTC)
    world.layout.runs.mkdir(exist_ok=True)
    until = Breaker(world.layout.limits, timedelta(hours=1), timedelta(hours=2)).refused(
        "claude", None, now
    )
    assert agents.line("claude")["limit"]["until"] == until.isoformat().replace("+00:00", "Z")
    found = agents.json("check", "claude", code=15)
    assert (found["state"], found["limit"]["is_said"]) == ("limited", False)
    assert "swarm agents forget claude" in agents("check", "claude", code=15)
    assert agents.json("forget", "claude")["was"]["count"] == 1
    assert agents.line("claude")["limit"] is None
    assert agents("check", "claude").endswith("\n")
    assert agents("forget", "claude") == "no limit of claude was remembered\n"
    assert agents.json("forget", "claude")["was"] is None


def test_forgetting_knows_names_that_have_a_limit_and_no_others(
    world: World, agents: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = agents.said("forget", "claud")
    assert (said.code, "did you mean claude?" in said.err) == (2, True)
    assert not world.layout.limits.exists()
    world.layout.runs.mkdir(exist_ok=True)
    past = datetime.now(UTC) - timedelta(hours=1)
    memory = Breaker(world.layout.limits, timedelta(0), timedelta(0))
    memory.refused("gone", past, past)
    out = agents("forget", "gone")
    assert out.startswith("forgotten: gone was limited until ") and out.endswith("; it had ended\n")
    memory.refused("gone", None, past)
    monkeypatch.setattr(breaker, "put_whole", lambda *_: (_ for _ in ()).throw(OSError("full")))
    said = agents.said("forget", "gone")
    assert (said.code, "could not be forgotten" in said.err) == (1, True)


# What is shown is what runs


def test_the_start_that_is_shown_is_the_one_a_run_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE_KEY", SECRET)
    world = World(
        tmp_path,
        config='[run]\npermission = "limited"\nhome = "private"\n'
        "[limits]\nturns = 7\ncost_usd = 2.0\ntask_cost_usd = 1.23456\n"
        '[env]\npass = ["RECORDS"]\n[env.set]\nDB = "x_{slot}"\n',
    )
    folder = tmp_path / "bin"
    folder.mkdir()
    records = tmp_path / "records"
    records.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("RECORDS", str(records))
    agents = Bench(world, folder)
    agents.program(
        "mine",
        'test "$1" = --version && { echo 1.0; exit 0; }\n'
        "tr '\\0' '\\n' < /proc/$$/environ | cut -d= -f1 > \"$RECORDS/env\"\n"
        'printf "%s\\n" "$0" "$@" > "$RECORDS/argv"; pwd > "$RECORDS/pwd"\n'
        "echo done > done.txt",
    )
    agents.adapter(
        "mine",
        top='argv = ["-C", "{worktree}", "{checkout}/{task}", "n{attempt}", "{prompt_file}", '
        '"roots={writable_roots}", "{python}", "{report_file}"]\nargv_last = ["-"]\n',
        tables='[options]\nmodel = ["-m", "{value}"]\nturns = ["--turns", "{value}"]\n'
        'cost_usd = ["--usd", "{value}"]\nsession = ["--session", "{value}"]\n'
        '[permission]\nbypass = ["--yes"]\nlimited = ["--ask", "a b"]\n'
        '[env]\npass = ["MINE_*"]\nset = { MINE_QUIET = "1" }\n',
    )
    words = ("--model", "big one")
    start = agents.json("check", "mine", *words, "--", "more $HOME")["start"]
    world.add("One")
    said = world.typed("run", "-n", "1", "--agent", "mine", *words, "--", "more $HOME")
    assert said.code == 0, said
    world.close()

    ran = (records / "argv").read_text().splitlines()
    session = ran[ran.index("--session") + 1]
    stands = {"TASK": "one", "RUN": "r1", "SESSION": session}
    assert start["stands"].keys() == stands.keys()
    shown = start["argv"]
    for word, real in stands.items():
        shown = [one.replace(word, real) for one in shown]
    assert shown == ran
    assert "1.2346" in ran and "--ask" in ran, "the narrowest limit, the configured permission"
    assert start["environment"] == sorted((records / "env").read_text().splitlines())
    assert start["folder"] == (records / "pwd").read_text().rstrip("\n")
    assert start["home"] == str(world.layout.homes / "s1")


def test_looking_starts_no_agent_and_makes_nothing(world: World, agents: Bench) -> None:
    agents.program("mine", f'echo "$@" >> {agents.bin}/started; echo 1.0')
    agents.adapter("mine", top='argv = ["--go"]', tables='[login]\nargv = ["status"]')
    before = sorted(world.folder.rglob("*"))
    agents("list")
    agents("check", "mine")
    agents("show", "mine")
    started = (agents.bin / "started").read_text().splitlines()
    assert sorted(set(started)) == ["--version", "status"]
    new = set(world.folder.rglob("*")) - set(before) - {agents.bin / "started"}
    assert {path for path in new if world.layout.cache not in path.parents} <= {world.layout.cache}


def test_a_command_line_that_is_shown_can_be_pasted(agents: Bench) -> None:
    agents.program("mine", 'printf "%s\\0" "$@"')
    awkward = ["a b", "it's", "$HOME", "x" * 150, "-", "", "é", "two\nlines", "\x1b[31m", "\\n'"]
    out = agents("check", "command", "--", "mine", *awkward)
    assert is_harmless(out)
    lines = out.splitlines()
    first = next(number for number, line in enumerate(lines) if f"{agents.bin}/mine" in line[10:])
    first = next(n for n in range(first, len(lines)) if lines[n].rstrip().endswith("\\"))
    shown = [lines[first]]
    while shown[-1].endswith(" \\"):
        shown.append(lines[first + len(shown)])
    assert len(shown) > 1 and max(len(line) for line in shown if "xxx" not in line) <= 100
    done = subprocess.run(["bash", "-c", "\n".join(shown)], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == awkward


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("plain", "plain"),
        ("", "''"),
        ("it's", "'it'\"'\"'s'"),
        ("\x1b[0m", "$'\\x1b[0m'"),
        ("\udcff", "$'\\xff'"),
        ("\u202e", "$'\\U0000202e'"),
    ],
)
def test_a_word_is_spelled_as_a_shell_reads_it(word: str, shown: str) -> None:
    assert shell_word(word) == shown
    done = subprocess.run(
        ["bash", "-c", f"printf %s {shown}"], capture_output=True, check=True,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    assert done.stdout.decode("utf-8", "surrogateescape") == word


# Show


def test_show_says_what_the_file_says(agents: Bench) -> None:
    agents.adapter(
        "mine",
        top='argv = ["--go", "{task}"]',
        tables='[options]\nturns = ["--turns", "{value}"]\nresume = ["-r", "{value}"]\n'
        '[permission]\nlimited = ["--careful"]\n'
        '[env]\npass = ["MINE_*"]\nset = { QUIET = "loudly-not" }\n'
        '[login]\nargv = ["auth", "status"]\nfiles = ["~/.mine"]\nhint = "mine login"\n',
    )
    found = agents.json("show", "mine")
    assert found["holds"] == {
        "cost_usd": "said", "tokens": None, "turns": "told", "told": ["turns"],
    }  # fmt: skip
    assert (found["resumes"], found["bypass"], found["limited"]) == (True, None, ["--careful"])
    assert (found["passed"], found["sets"]) == (["MINE_*"], ["QUIET"])
    assert [end["is"] for end in found["outcomes"]] == ["success"]
    out = agents("show", "mine")
    for said in (
        str(agents.world.app / ".swarm/agents/mine.toml"),
        "mine --go '{task}'",
        "on standard input",
        "bypass     has no such words",
        "limited    --careful",
        "goes on with its own",
        "tokens     it does not say: no limit of it can hold",
        "MINE_*",
        "`auth status` ends with 0, or there is ~/.mine",
        "else: mine login",
        "1. success: exit 0",
        "SIGTERM SIGKILL",
    ):
        assert said in out, said
    assert "loudly-not" not in out, "names, and no values"


@pytest.mark.parametrize("name", names(None))
def test_what_is_built_in_is_shown_within_a_screens_width(agents: Bench, name: str) -> None:
    out = agents("show", name)
    folder = str(Path(__file__).resolve().parent.parent)
    lines = [line for line in out.splitlines() if folder not in line]
    assert max(map(len, lines)) <= 100
    assert f"swarm agents check {name}" in out
    assert [end["is"] for end in agents.json("show", name)["outcomes"]].count("success") >= 1


# What is secret, and what is foreign


def test_no_value_of_a_variable_is_printed(agents: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    agents.program("claude", 'echo "1.2.3 $ANTHROPIC_API_KEY"; echo "$ANTHROPIC_API_KEY" >&2')
    agents.adapter(
        "mine",
        tables='[login]\nargv = ["status"]\nenv = ["ANTHROPIC_API_KEY"]\n'
        '[env]\npass = ["ANTHROPIC_*"]\n',
    )
    agents.program("mine", 'echo "9.9 $ANTHROPIC_API_KEY"')
    seen = ""
    for words in (["list"], ["check", "claude"], ["check", "mine"], ["show", "mine"]):
        for extra in ([], ["--json"]):
            said = agents.said(*words, *extra)
            assert said.code == 0, said
            seen += said.all
    assert "ANTHROPIC_API_KEY" in seen, "names are"
    assert SECRET not in seen


EVIL = "\\u001b]0;owned\\u0007\\u001b[31mred\\u202egnp\\nsecond"


def test_a_terminal_gets_no_control_character_of_a_file(agents: Bench) -> None:
    agents.program("mine", "exit 1")
    text = ADAPTER.format(
        name="mine",
        top=f'argv = ["{EVIL}"]',
        tables=f'[login]\nargv = ["{EVIL}"]\nfiles = ["{EVIL}"]\nhint = "{EVIL}"\n'
        f'[options]\n"{EVIL}" = []\n[env]\npass = ["{EVIL}"]\n',
    )
    text = text.replace('about = "mine"', f'about = "{EVIL}"')
    agents.adapter("mine", text=text)
    for words, code in ((["list"], 0), (["show", "mine"], 0), (["check", "mine"], 15)):
        said = agents.said(*words)
        assert said.code == code, said
        assert is_harmless(said.all), words
        assert "red" in said.all
    found = agents.json("show", "mine")
    assert found["about"] == json.loads(f'"{EVIL}"'), "JSON has it as it is"


@pytest.mark.parametrize("words", [["show", "mine"], ["check", "mine"], ["list"]])
def test_nor_of_a_file_that_is_wrong(agents: Bench, words: list[str]) -> None:
    agents.adapter("mine", text=f'format = 1\n"{EVIL}" = 1\n')
    said = agents.said(*words)
    assert "unknown key" in said.all
    assert is_harmless(said.all)


def test_text_and_json_are_one_record(world: World, agents: Bench) -> None:
    agents.program("mine")
    agents.adapter("mine", top='argv = ["--go"]')
    found, out = agents.json("check", "mine"), agents("check", "mine")
    assert shlex.join(found["start"]["argv"]) in flat(out)
    for value in (found["version"], found["path"], found["file"], found["start"]["folder"]):
        assert value in out
    assert " ".join(found["start"]["environment"]) in flat(out)
