"""An adapter's file says how a program is started and how its end is read."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from swarm.adapter import (
    Adapter,
    Placeholders,
    argv,
    load,
    names,
    resolve,
)
from swarm.errors import NotFound, UsageError

PROGRAMS = ["aider", "claude", "codex", "copilot", "gemini", "mini-swe-agent", "opencode", "qwen"]
VALUES = Placeholders(
    prompt_file=Path("/state/runs/r7/t/2/prompt.md"),
    report_file=Path("/state/runs/r7/t/2/report/usage.json"),
    worktree=Path("/state/slots/s1"),
    task="csv-export",
    attempt=2,
    python=sys.executable,
    checkout=Path("/home/ann/app"),
    writable_roots=(Path("/state/slots/s1.git/objects"), Path('/state/a "b"\\c\x7f')),
)

MINIMAL = """\
format = 1
name = "mine"
argv = []

[prompt]
how = "stdin"

[output]
format = "{output}"

[[outcome]]
is = "success"
exit = [0]

[stop]
signals = ["SIGTERM", "SIGKILL"]
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    (folder / ".swarm/agents").mkdir(parents=True)
    return folder


def write(checkout: Path, text: str, name: str = "mine") -> Path:
    file = checkout / ".swarm/agents" / f"{name}.toml"
    file.write_text(text)
    return file


def mine(checkout: Path, *, top: str = "", tail: str = "", output: str = "jsonl") -> Adapter:
    text = MINIMAL.replace("{output}", output).replace("argv = []\n", top or "argv = []\n")
    write(checkout, text + tail)
    return load("mine", checkout)


def program(folder: Path, name: str, body: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return file


def words(adapter: Adapter, tmp_path: Path, **changed: Any) -> list[str]:
    """The command line without its program."""
    folder = tmp_path / "bin"
    for name in ("claude", "codex", "mine"):
        program(folder, name, "exit 0")
    arguments: dict[str, Any] = {
        "values": VALUES,
        "options": {},
        "permission": "bypass",
        "typed_in": tmp_path,
        "path": str(folder),
    }
    return argv(adapter, **(arguments | changed))[1:]


# -- files ----------------------------------------------------------------------------------------


def test_the_built_in_adapters_are_sound() -> None:
    assert names(None) == sorted([*PROGRAMS, "command", "scripted"])
    for name in names(None):
        assert load(name, None).name == name


def test_a_checkouts_own_adapter_is_listed_and_overrides(checkout: Path) -> None:
    write(checkout, MINIMAL.replace("{output}", "text"))
    write(checkout, MINIMAL.replace('"mine"', '"claude"').replace("{output}", "text"), "claude")
    (checkout / ".swarm/agents/notes.md").write_text("not an adapter")
    write(checkout, "", "Not A Name")
    assert names(checkout) == sorted([*names(None), "mine"])
    assert load("claude", checkout).program is None
    assert load("claude", None).program == "claude"


def test_an_unknown_agent_is_refused_with_the_nearest_name(checkout: Path) -> None:
    with pytest.raises(NotFound) as refused:
        load("claud", checkout)
    assert (refused.value.what, refused.value.hint) == (
        "there is no agent claud",
        "did you mean claude?",
    )
    write(checkout, MINIMAL)
    for path in ("../agents/mine", "mine.toml", "", "/etc/passwd"):
        with pytest.raises(NotFound):
            load(path, checkout)


@pytest.mark.parametrize(
    ("old", "new", "place", "hint"),
    [
        ("argv = []", 'pogram = "x"', ":3: unknown key pogram", "did you mean program?"),
        ("how =", "hwo =", ":6: unknown key prompt.hwo", "did you mean how?"),
        ("exit =", "exits =", ":13: unknown key outcome.0.exits", "did you mean exit?"),
        ("[stop]", "[stops]", ":15: unknown key stops", "did you mean stop?"),
        (
            '"{output}"',
            '"jsonl"\nresult = { when = {}, att = "x" }',
            ":10: unknown key output.result.att",
            "did you mean at?",
        ),
        ("argv = []", "zzz = 1", ":3: unknown key zzz", "known here: about argv argv_last env"),
    ],
)
def test_an_unknown_key_is_refused_with_file_line_and_nearest_name(
    checkout: Path, old: str, new: str, place: str, hint: str
) -> None:
    file = write(checkout, MINIMAL.replace(old, new))
    with pytest.raises(UsageError) as refused:
        load("mine", checkout)
    assert refused.value.what == f"{file}{place}"
    assert refused.value.hint is not None
    assert refused.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("old", "new", "saying"),
    [
        ("format = 1", "format = 2", "format: Invalid enum value 2"),
        ("format = 1\n", "", "missing required field `format`"),
        ("argv = []", 'argv = "x"', "argv: Expected `array`, got `str`"),
        ('how = "stdin"', 'how = "telepathy"', "prompt.how: Invalid enum value 'telepathy'"),
        ('name = "mine"', 'name = "yours"', "name is yours, want mine"),
        ("argv = []", 'argv = ["{nope}"]', "argv: unknown placeholder {nope}; known here: "),
        ("argv = []", 'argv = ["{value}"]', "argv: unknown placeholder {value}"),
        ("argv = []", 'argv = ["a\\u0000"]', "argv: holds a NUL"),
        ("argv = []", 'options = { m = ["{vaule}"] }', "options.m: unknown placeholder {vaule}"),
        ("argv = []", 'env = { set = { A = "{nope}" } }', "env.set: unknown placeholder {nope}"),
        ('how = "stdin"', 'how = "file"', "no word of argv or argv_last holds {prompt_file}"),
        ('is = "success"', 'is = "limit"', 'no [[outcome]] with is = "success"'),
        ("exit = [0]", 'text = "done"', "outcome 1: a success needs `exit`"),
        ("exit = [0]", 'exit = [0]\n[[outcome]]\nis = "limit"', "outcome 2: needs `exit`, `when`"),
        ("exit = [0]", "exit = [0]\nwhen = { a = 1 }", "outcome 1: `when` needs output.format"),
        ('"SIGTERM"', '"SIGNOPE"', "stop.signals: there is no signal SIGNOPE"),
        ("[stop]\n", "[stop\n", "(at line "),
    ],
)
def test_what_no_adapter_can_say_is_refused_with_its_place(
    checkout: Path, old: str, new: str, saying: str
) -> None:
    assert old in MINIMAL
    file = write(checkout, MINIMAL.replace(old, new).replace("{output}", "text"))
    with pytest.raises(UsageError) as refused:
        load("mine", checkout)
    assert refused.value.what.startswith(f"{file}: ")
    assert saying in refused.value.what


# -- what is installed ----------------------------------------------------------------------------


def test_claudes_command_line(tmp_path: Path) -> None:
    options = {"model": "opus", "turns": 80, "cost_usd": 2.5, "resume": None, "session": None}
    assert words(load("claude", None), tmp_path, options=options) == [
        *("-p", "--output-format", "stream-json", "--verbose"),
        *("--model", "opus", "--max-turns", "80", "--max-budget-usd", "2.5"),
        "--dangerously-skip-permissions",
    ]
    resumed = words(
        load("claude", None), tmp_path, options={"resume": "934c"}, permission="limited"
    )
    assert resumed[4:6] == ["--resume", "934c"]
    assert resumed[6:8] == ["--permission-mode", "acceptEdits"]
    assert resumed[-1] == "--"


def test_codexs_command_line_fresh_and_resumed(tmp_path: Path) -> None:
    codex = load("codex", None)
    assert words(codex, tmp_path, options={"model": "gpt-5"}, extra=["--ephemeral"]) == [
        *("exec", "--json", "--disable", "plugins", "-C", "/state/slots/s1"),
        *("--ephemeral", "-m", "gpt-5", "--dangerously-bypass-approvals-and-sandbox", "-"),
    ]
    assert words(codex, tmp_path, options={"resume": "0199-aa"}) == [
        *("exec", "resume", "0199-aa", "--json", "--disable", "plugins"),
        *("--dangerously-bypass-approvals-and-sandbox", "-"),
    ]


def test_writable_roots_are_a_toml_array(tmp_path: Path) -> None:
    limited = words(load("codex", None), tmp_path, permission="limited")
    setting = next(word for word in limited if "writable_roots" in word)
    read = tomllib.loads(setting.replace("sandbox_workspace_write.writable_roots", "roots"))
    assert read["roots"] == [str(path) for path in VALUES.writable_roots]


def test_the_scripted_agent_plays_its_script(tmp_path: Path) -> None:
    scripted = load("scripted", None)
    made = argv(
        scripted,
        values=VALUES,
        options={},
        permission="bypass",
        typed_in=tmp_path,
        path="",
    )
    assert made[0] == sys.executable
    assert made[-3:] == ["/home/ann/app/.swarm/scripts/csv-export.toml", "--attempt", "2"]
    usage = subprocess.run(made[:4], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert usage.stderr.startswith("usage: python -m swarm.agents.scripted")


def test_what_was_typed_is_taken_word_by_word_and_never_filled_in(tmp_path: Path) -> None:
    command = load("command", None)
    script = program(tmp_path, "my agent.sh", "exit 0")
    typed = ["./my agent.sh", "{task}", "{nope}", "$(touch x)", "a b", ""]
    made = argv(
        command,
        values=VALUES,
        options={},
        permission="bypass",
        extra=typed,
        typed_in=tmp_path,
        path="/usr/bin:/bin",
    )
    assert made == [str(script), *typed[1:]]
    with pytest.raises(UsageError, match="agent command needs a program") as refused:
        words(command, tmp_path)
    assert refused.value.hint == "swarm run --agent command -- ./my-agent.sh"


def test_a_value_is_filled_in_once(checkout: Path, tmp_path: Path) -> None:
    top = (
        'program = "mine"\nargv = ["{task}{task}", \'{"a": {"b": 1}}\']\n'
        'options = { m = ["x={value}"] }\n'
    )
    made = words(mine(checkout, top=top), tmp_path, options={"m": "{task} {nope}"})
    assert made == ["csv-exportcsv-export", '{"a": {"b": 1}}', "x={task} {nope}"]


def test_a_value_cannot_become_another_option(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="would be read as an option"):
        words(load("claude", None), tmp_path, options={"resume": "--dangerous"})
    with pytest.raises(UsageError, match="would be read as an option"):
        words(load("codex", None), tmp_path, options={"resume": "--last"})
    with pytest.raises(UsageError, match="holds NUL"):
        words(load("claude", None), tmp_path, options={"model": "a\0b"})


def test_what_an_adapter_does_not_have_is_refused_and_not_dropped(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="agent codex has no option turns") as refused:
        words(load("codex", None), tmp_path, options={"turns": 80})
    assert refused.value.hint == "it has: model"
    with pytest.raises(UsageError, match="agent command has no limited permission"):
        words(load("command", None), tmp_path, extra=["/bin/true"], permission="limited")


def test_a_prompt_as_argument_is_the_last_word(checkout: Path, tmp_path: Path) -> None:
    write(
        checkout,
        MINIMAL.replace("argv = []", 'program = "mine"\nargv_last = ["-t"]')
        .replace('"stdin"', '"argument"')
        .replace("{output}", "text"),
    )
    adapter = load("mine", checkout)
    assert words(adapter, tmp_path, prompt="Do {task}") == ["-t", "Do {task}"]
    assert words(adapter, tmp_path, prompt="-rf is a title") == ["-t", "Task: -rf is a title"]
    with pytest.raises(UsageError, match="too long for one argument"):
        words(adapter, tmp_path, prompt="ä" * (64 << 10))


def test_programs_are_found_where_the_command_was_typed(tmp_path: Path) -> None:
    here = program(tmp_path / "tools", "agent.sh", "exit 0")
    (tmp_path / "tools/plain").write_text("not executable")
    path = "tools:/usr/bin:/bin"
    assert resolve("./tools/agent.sh", typed_in=tmp_path, path="") == str(here)
    assert resolve(str(here), typed_in=Path("/"), path="") == str(here)
    assert resolve("agent.sh", typed_in=tmp_path, path=path) == str(here)
    assert resolve("sh", typed_in=tmp_path, path=path) in ("/usr/bin/sh", "/bin/sh")
    for missing in ("./agent.sh", "no-such-program", "tools/plain", "tools", "plain", "", "a\0b"):
        with pytest.raises(UsageError):
            resolve(missing, typed_in=tmp_path, path=path)
