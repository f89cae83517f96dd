"""What the documentation says, held against the code that it speaks of.

Enters: README, CONTRIBUTING and docs/. Leaves: each sentence of theirs that code contradicts.
Guards: no command, option, key, event or outcome is missing or made up; every example decodes with
the code that reads such files.
"""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from swarm.agents import scripted

from swarm import adapter, overview, plan, trailers
from swarm import config as configuration
from swarm.cli import boundary
from swarm.cli.verbs import VERBS
from swarm.cli.verbs import swarm as cli
from swarm.config import Check, Config
from swarm.demo import Expected
from swarm.errors import Exit, NotFound
from swarm.ledger import records
from swarm.ledger.events import KINDS
from swarm.ledger.outcome import RULES, Start
from swarm.ledger.store import Logged
from swarm.prompt import NAMES
from tests.world import World, run_swarm

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    heading: str  # the nearest above it
    language: str
    text: str


def _read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def _blocks(text: str) -> list[Block]:
    found, heading, language = [], "", None
    lines: list[str] = []
    for line in text.split("\n"):
        if line.startswith("```"):
            if language is None:
                language, lines = line[3:], []
            else:
                found.append(Block(heading, language, "".join(f"{one}\n" for one in lines)))
                language = None
        elif language is not None:
            lines.append(line)
        elif line.startswith("#"):
            heading = line.lstrip("# ")
    return found


BLOCKS = _blocks(_read("docs/formats.md"))


def _block(heading: str, language: str, number: int = 0) -> str:
    found = [b.text for b in BLOCKS if b.heading == heading and b.language == language]
    return found[number]


def _rows(text: str, head: str) -> list[list[str]]:
    """The cells of the table that begins with this line."""
    lines = text.split("\n")
    rows = []
    for line in lines[lines.index(head) + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split(" |")])
    return rows


def _quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# Commands


def _commands() -> dict[tuple[str, ...], click.Command]:
    """Every command that does something, by its words."""
    found: dict[tuple[str, ...], click.Command] = {}
    context = click.Context(cli)
    for verb in VERBS:
        command = cli.get_command(context, verb)
        assert command is not None
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                found[verb, name] = inner
        else:
            found[(verb,)] = command
    return found


COMMANDS = _commands()


def _options(command: click.Command) -> set[str]:
    return {
        name
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in parameter.opts
    }


def _words(line: str) -> tuple[tuple[str, ...], str] | None:
    """(verb and subcommand, the rest) of a line that begins with `swarm`."""
    words = line.split()
    for length in (2, 1):
        if tuple(words[1 : 1 + length]) in COMMANDS:
            return tuple(words[1 : 1 + length]), " ".join(words[1 + length :])
    return None


def _sections() -> dict[tuple[str, ...], str]:
    found = {}
    for part in re.split(r"^#+ ", _read("docs/cli.md"), flags=re.MULTILINE):
        heading, _, text = part.partition("\n")
        if heading.startswith("`swarm "):
            parsed = _words(heading.strip("`"))
            assert parsed is not None, f"docs/cli.md: there is no verb: {heading}"
            found[parsed[0]] = text
    return found


def test_every_verb_and_subcommand_has_its_section_and_no_other_has() -> None:
    assert set(_sections()) == set(COMMANDS)


@pytest.mark.parametrize("words", sorted(COMMANDS), ids=" ".join)
def test_every_option_stands_in_its_verbs_table_and_no_other_does(words: tuple[str, ...]) -> None:
    text = _sections()[words]
    head = "| option | means |"
    told = {
        option.split()[0]
        for row in (_rows(text, head) if head in text.split("\n") else [])
        for option in _quoted(row[0])
    }
    assert told == _options(COMMANDS[words])
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) - {"--json", "--follow"}
    others = {"--ff-only", "--rebase", "--number"}  # of git and gh
    assert named - others <= _options(COMMANDS[words]), "an option is named that is not there"


def test_the_options_before_the_verb_stand_there() -> None:
    rows = _rows(_read("docs/cli.md"), "| before the verb | means |")
    assert {_quoted(row[0])[0].split()[0] for row in rows} == _options(cli)


def test_exit_codes_are_those_of_the_code() -> None:
    rows = _rows(_read("docs/cli.md"), "| code | name | means |")
    assert {_quoted(row[1])[0]: int(row[0]) for row in rows} == {e.name: e.value for e in Exit}


def _typed(text: str) -> Iterator[str]:
    """What the text shows as typed at a prompt: `swarm ...` in code, and lines of code."""
    for code in re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)):
        if code.startswith("swarm "):
            yield " ".join(code.split())
    for line in re.findall(r"^[ \t]*(?:\$ |git )?(swarm .*)", text, flags=re.M):
        yield from (part.strip() for part in line.split(";") if "swarm" in part)


@pytest.mark.parametrize("file", DOCS, ids=lambda file: file.name)
def test_every_command_that_is_shown_exists_with_its_options(file: Path) -> None:
    for line in _typed(file.read_text("utf-8")):
        command = line.partition("#")[0].strip()
        if command.split()[1].startswith(("-", "VERB")) or command == "swarm run":
            continue
        parsed = _words(command)
        if parsed is None:  # a group alone
            groups = {words[0] for words in COMMANDS if len(words) == 2}
            assert command.split()[1].split("|")[0] in groups, f"{file.name}: {line}"
            continue
        words, rest = parsed
        shown = re.findall(r"(?<!\S)(--?[a-z][a-z-]*)", re.split(r" -- |  +", rest)[0])
        known = _options(COMMANDS[words])
        assert set(shown) <= known, f"{file.name}: {line}"


def test_every_hint_of_the_code_names_a_verb_that_exists() -> None:
    wrong = []
    for file in sorted((ROOT / "swarm").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(node, ast.keyword) or node.arg not in ("hint", "do"):
                continue
            for part in ast.walk(node.value):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    for verb in re.findall(r"(?:^|\n| {2,})swarm ([a-z]+)", part.value):
                        if verb not in VERBS:
                            wrong.append(f"{file.name}:{part.lineno} swarm {verb}")
    assert not wrong


PLACEHOLDER = r"\b(?:TASK|NAME|PATH|WHY|FOLDER|BRANCH|ANOTHER-[A-Z]+)\b"


def test_every_hint_that_is_a_command_can_be_pasted() -> None:
    """One command a line, and no word that a person has to replace."""
    wrong = []
    for file in sorted((ROOT / "swarm").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(node, ast.keyword) or node.arg != "hint":
                continue
            for text in _literals(node.value):
                for line in text.splitlines():
                    if not re.match(r"(?:swarm|git|mv|cd|rm) ", line):
                        continue
                    if re.search(rf" {{2,}}|, then|; | or (?:swarm|git) |{PLACEHOLDER}", line):
                        wrong.append(f"{file.name}:{node.value.lineno} {line}")
    assert not wrong


def _literals(value: ast.expr) -> Iterator[str]:
    """Texts that an expression can be; what is filled in reads x."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif isinstance(value, ast.JoinedStr):
        parts = (p.value if isinstance(p, ast.Constant) else "x" for p in value.values)
        yield "".join(map(str, parts))
    elif isinstance(value, ast.IfExp):
        yield from _literals(value.body)
        yield from _literals(value.orelse)


def test_every_target_of_make_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", _read("Makefile"), flags=re.M))
    for file in DOCS:
        text = file.read_text("utf-8")
        named = re.findall(r"^ {4}make ([a-z]+)|`make ([a-z]+)`", text, flags=re.M)
        assert {one or other for one, other in named} <= targets, file.name


# swarm.toml

CONFIGURATION = next(
    block.text for block in _blocks(_read("docs/configuration.md")) if block.language == "toml"
)
EXAMPLES = {"hub", "checks.name", "checks.run", "checks.keep", "checks.env"}


def _uncommented() -> str:
    """The block with each `# key = value` taken in."""
    return re.sub(r"^# ([A-Za-z_]+ = )", r"\1", CONFIGURATION, flags=re.M)


def _keys(kind: type[msgspec.Struct], above: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, default) of every key below a table."""
    for field in msgspec.structs.fields(kind):
        name = f"{above}{field.encode_name}"
        if name == "checks":
            yield from _keys(Check, "checks.")
        elif isinstance(field.type, type) and issubclass(field.type, configuration.Table):
            yield from _keys(field.type, f"{name}.")
        else:
            is_made = field.default_factory is not msgspec.NODEFAULT
            yield name, field.default_factory() if is_made else field.default


def _at(value: Any, key: str) -> Any:
    for part in key.split("."):
        value = value[0] if isinstance(value, (list, tuple)) else value
        found = {f.encode_name: f.name for f in msgspec.structs.fields(value)}
        value = getattr(value, found[part])
    return value


def _raw(raw: Any, key: str) -> Any:
    for part in key.split("."):
        raw = raw[0] if isinstance(raw, list) else raw
        raw = raw.get(part) if isinstance(raw, dict) else None
    return raw


def test_the_block_of_every_key_parses_also_with_its_comments_taken_in() -> None:
    configuration.parse(CONFIGURATION.encode())
    configuration.parse(_uncommented().encode())


@pytest.mark.parametrize(("key", "default"), list(_keys(Config)), ids=lambda v: str(v)[:30])
def test_every_key_stands_in_the_block_with_its_default(key: str, default: object) -> None:
    raw, shown = tomllib.loads(CONFIGURATION), configuration.parse(CONFIGURATION.encode())
    if default is None and _raw(raw, key) is None:
        assert _raw(tomllib.loads(_uncommented()), key) is not None, f"{key} is missing"
        return
    assert _raw(raw, key) is not None, f"{key} is missing"
    if key not in EXAMPLES:
        assert _at(shown, key) == default


# States


def test_every_event_stands_in_the_table_with_its_folders_and_no_other_does() -> None:
    rows = _rows(_read("docs/states.md"), "| event | transition | folders |")
    told = {kind: set(_quoted(row[2])) for row in rows for kind in _quoted(row[0])}
    assert told == {name: set(kind.folders) for name, kind in KINDS.items()}


STARTS = {
    "-": Start.FRESH,
    "the target": Start.FRESH,
    "its saved work": Start.CONTINUE,
    "its head": Start.REMERGE,
    "the same merge": Start.REMERGE,
}


def test_every_outcome_stands_in_the_table_with_its_strike_and_start() -> None:
    head = "| outcome | strike | the next attempt starts from |"
    told = {}
    for names, strike, start in _rows(_read("docs/states.md"), head):
        begins = next(value for words, value in STARTS.items() if start.startswith(words))
        for name in _quoted(names):
            told[name] = (strike == "yes", "conflict" in strike, begins)
    assert told == {
        name: (rule.strike, rule.is_conflict, rule.start) for name, rule in RULES.items()
    }


# The files


def test_the_design_is_short() -> None:
    assert len(_read("docs/design.md").splitlines()) <= 250


@pytest.mark.parametrize("file", [*DOCS, ROOT / "CHANGELOG.md"], ids=lambda file: file.name)
def test_every_relative_link_leads_somewhere(file: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", file.read_text("utf-8")):
        if "://" not in link:
            assert (file.parent / link).exists(), f"{file.name}: {link}"


# Examples of formats.md

RECORDS: dict[str, type[records.Record]] = {
    "`current_tasks/<task>.lock`": records.Lock,
    "`queue/<ab>/<task>.json`": records.QueueEntry,
    "`attempts/<ab>/<task>.json`": records.Attempts,
    "`done/<ab>/<task>.json`": records.Done,
    "`parked/<ab>/<task>.json`": records.Parked,
    "`verdicts/<ab>/<judged>-<check>-<definition12>.json`": records.Verdict,
    "`gate.json`": records.Gate,
    "`landing.json`": records.Landing,
    "`runs/<run>.json`": records.Run,
}


@pytest.mark.parametrize("heading", RECORDS)
def test_an_example_of_a_record_is_what_the_ledger_would_hold(heading: str) -> None:
    example = _block(heading, "json").encode()
    assert records.encode(records.decode(RECORDS[heading], example)) == example


def test_the_reasons_of_a_hold_are_those_of_the_code() -> None:
    text = _block("`queue/<ab>/<task>.json`", "json", 1)
    assert msgspec.json.decode(text, type=list[records.HoldReason])
    rows = _rows(_read("docs/formats.md"), "| reason | held because |")
    assert {_quoted(row[0])[0] for row in rows} == set(records.Hold.__args__)  # type: ignore[attr-defined]


def test_the_example_of_a_task_file_shows_every_key_and_is_sound() -> None:
    drafts, problems = plan.parse_task("tasks/x.md", _block("Task file", "markdown").encode())
    assert not problems and len(drafts) == 1
    assert set(drafts[0].lines) == set(plan._KEYS)


def test_the_ledgers_copy_of_a_task_is_what_the_ledger_would_hold() -> None:
    example = _block("Task file", "markdown", 1).encode()
    assert records.encode_task(records.decode_task(example)) == example


def test_the_line_to_import_is_a_task() -> None:
    drafts, problems = plan.from_jsonl(_block("Task file", "json").encode())
    assert not problems and [draft.id for draft in drafts] == ["export-as-csv"]


def test_the_commits_are_of_the_one_grammar() -> None:
    event = trailers.parse(_block("A commit of the ledger", "text"))
    assert event.trailers["Swarm-Event"] in KINDS
    landed = trailers.of_commit(_block("A landing commit", "text").encode())
    assert {"Swarm-Task", "Swarm-Agent", "Swarm-Token", "Swarm-Tree", "Swarm-Check"} == set(
        landed.trailers
    )


def test_the_adapter_shown_is_the_one_that_is_built_in() -> None:
    text = _block("Adapters", "toml")
    assert text == _read("agents/codex.toml")
    assert adapter.load("codex", None) == msgspec.convert(tomllib.loads(text), adapter.Adapter)


def test_every_key_of_an_adapter_and_every_placeholder_is_told() -> None:
    text = _read("docs/formats.md").partition("## Adapters")[2].partition("\n## ")[0]
    for field in msgspec.structs.fields(adapter.Adapter):
        assert re.search(rf"`[\[]*{field.encode_name}\b", text), field.encode_name
    for name in (*adapter.PLACEHOLDERS, "value"):
        assert f"{{{name}}}" in text, name


def test_the_prompt_shown_is_the_built_in_one_and_every_name_is_told() -> None:
    text = _read("docs/formats.md").partition("## The prompt")[2].partition("\n## ")[0]
    assert _block("The prompt", "jinja").strip() == _read("swarm/prompt.md.j2").strip()
    for name in NAMES:
        assert re.search(rf"`[^`]*\b{name}\b", text), name


def test_the_script_is_playable_and_every_step_is_told(tmp_path: Path) -> None:
    script = tmp_path / "x.toml"
    script.write_text(_block("A script of the scripted agent", "toml"), "utf-8")
    assert scripted.load_steps(script, 1) and scripted.load_steps(script, 2)
    told = {}
    for row in _rows(_read("docs/formats.md"), "| step | does |"):
        first, *others = _quoted(row[0])
        told[first] = {first, *others}
    assert told == {
        name: {field.encode_name for field in msgspec.structs.fields(kind)}
        for name, kind in scripted.KINDS.items()
    }


def test_the_expected_end_of_a_task_is_that_of_the_template() -> None:
    shown = tomllib.loads(_block("`expected.toml`", "toml"))
    real = tomllib.loads(_read("examples/repo-template/expected.toml"))
    assert msgspec.convert(shown, dict[str, Expected])
    assert shown["report-totals"] == real["report-totals"]


def test_the_worktreeinclude_is_that_of_the_template() -> None:
    shown = _block("`.worktreeinclude`", "gitignore")
    assert shown == _read("examples/repo-template/.worktreeinclude")


# Examples of --json


def _schemas() -> dict[str, type[msgspec.Struct]]:
    """Structs by the schema that they are printed as, wherever below overview they are."""
    modules = [overview]
    for found in pkgutil.iter_modules(getattr(overview, "__path__", [])):
        modules.append(importlib.import_module(f"swarm.overview.{found.name}"))
    kinds = {}
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, msgspec.Struct):
                for field in msgspec.structs.fields(value):
                    if field.encode_name == "schema":
                        kinds[str(field.default)] = value
    return kinds


SCHEMAS = _schemas()


def test_every_schema_of_a_record_is_shown() -> None:
    shown = {b.heading.strip("`") for b in BLOCKS if b.heading.startswith("`swarm.")}
    assert shown == {*SCHEMAS, "swarm.event/1", "swarm.error/1"}


@pytest.mark.parametrize("schema", sorted(SCHEMAS))
def test_an_example_of_json_is_what_the_verb_prints(schema: str) -> None:
    example = _block(f"`{schema}`", "json")
    decoded = msgspec.json.decode(example, type=SCHEMAS[schema])
    assert json.loads(example) == records.jsonable(decoded), "a key is missing or unknown"


def test_the_example_of_an_event_has_the_keys_that_all_events_have() -> None:
    message = trailers.parse(_block("A commit of the ledger", "text"))
    printed = overview.event_json(Logged("0" * 40, datetime(2026, 1, 2, tzinfo=UTC), message))
    common = {"schema", "oid", "at", "event", "id", "task", "agent", "slot", "adapter", "token"}
    assert common | {"says"} <= set(printed)
    assert common | {"says"} <= set(json.loads(_block("`swarm.event/1`", "json")))


def test_the_example_of_an_error_is_what_an_error_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    boundary.show(NotFound("there is no task x", hint="swarm task list"), wants_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert list(json.loads(_block("`swarm.error/1`", "json"))) == list(printed)


OTHERS = {
    _quoted(row[0])[0]: row for row in _rows(_read("docs/formats.md"), "| schema | verb | keys |")
}


def test_every_schema_of_the_code_is_told_and_no_other_is() -> None:
    source = "".join(file.read_text("utf-8") for file in (ROOT / "swarm").rglob("*.py"))
    real = set(re.findall(r'"(swarm\.[a-z]+/\d+)"', source))
    assert real == {*OTHERS, *SCHEMAS, "swarm.event/1", "swarm.error/1"}
    assert real == set(re.findall(r"swarm\.[a-z]+/\d", _read("docs/cli.md")))


def _told(schema: str) -> set[str]:
    return {word for code in _quoted(OTHERS[schema][2]) for word in code.split()}


def test_the_other_schemas_have_the_keys_that_are_told(world: World) -> None:
    """Played once: each verb prints exactly the keys of its row."""
    world.add("One")

    def printed(*words: str, folder: Path = world.app, ok: Sequence[int] = (0,)) -> Any:
        done = run_swarm(folder, *words, "--json")
        assert done.returncode in ok, (words, done.stdout, done.stderr)
        return json.loads(done.stdout)

    def agrees(found: dict[str, Any], *, all_told: bool = True) -> None:
        keys = set(found) - {"schema"}
        told = _told(found["schema"])
        assert keys <= told, found["schema"]
        assert not all_told or told <= keys, found["schema"]

    joined = printed("claim", "one")
    agrees(joined)
    tree = Path(joined["worktree"])
    agrees(printed("renew", folder=tree))
    agrees(printed("release", "--reason", "not now", folder=tree))
    printed("claim", "one")
    (tree / "new.txt").write_text("new\n")
    agrees(printed("submit", folder=tree), all_told=False)
    agrees(printed("diff", "one"))
    agrees(printed("plan", "check"), all_told=False)
    assert "findings" in printed("doctor", ok=(0, 1))
    (kept,) = printed("rescue", "list")["kept"]
    assert set(kept) <= _told("swarm.rescue/1")
    restored = printed("rescue", "restore", kept["name"])
    assert set(restored) - {"schema"} - set(kept) == _told("swarm.restore/1")
