"""What is known of an agent program: one TOML file for each; and the words that start it.

Enters: an adapter's file; the facts of an attempt. Leaves: the adapter, typed; argv.
Guards: an adapter that does not parse or says what no adapter can say starts nothing; words are
filled in once and never go through a shell.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import signal as signals
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from swarm.environment import SET_PLACEHOLDERS, fill, placeholders_in
from swarm.errors import NotFound, UsageError

Is = Literal[
    "success",
    "limit",  # the provider says no for now: no strike, the adapter pauses
    "login",  # nobody is logged in: no strike, the adapter stops
    "turns",  # its own limit of turns
    "cost",  # its own limit of cost
    "session",  # the session to go on with is not known: the attempt begins afresh
    "failed",
]
Source = Literal["stdout", "stderr", "report"]
PermissionName = Literal["bypass", "limited"]
Scalar = str | bool | int | float

PLACEHOLDERS = frozenset(
    {
        "prompt_file",
        "report_file",
        "worktree",
        "task",
        "attempt",
        "python",
        "checkout",
        "writable_roots",
    }
)
RESETS = ("seconds", "ms", "minutes", "hours", "epoch", "iso", "clock")  # groups of `reset`
OWN_FOLDER = Path(".swarm/agents")  # below the checkout
MAX_ARGUMENT = (128 << 10) - 1  # Linux: MAX_ARG_STRLEN, with the closing NUL
_SPECIAL = ("/", "!", "#", "@", "\\", "-")  # a prompt that begins so may be a command to a program
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_SIGNAL_NAMES = frozenset(signals.Signals.__members__)


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all tables share: unknown keys are refused."""


class Permission(_Table, frozen=True, kw_only=True):
    """`[permission]`: None means that the program knows no such thing."""

    bypass: tuple[str, ...] | None = None  # it may do anything without asking
    limited: tuple[str, ...] | None = None  # it may edit the worktree and run commands there


class Prompt(_Table, frozen=True, kw_only=True):
    """`[prompt]`."""

    how: Literal["stdin", "argument", "file"]  # file: a word holds {prompt_file}
    at: str | None = None  # what each `@` becomes, for a program that reads `@path` as a file


class Env(_Table, frozen=True, kw_only=True):
    """`[env]`: what the agent sees beyond the base list."""

    pass_: tuple[str, ...] = msgspec.field(name="pass", default=())  # name globs
    set: dict[str, str] = {}
    set_as_root: dict[str, str] = {}  # only when the runner is root


class Locator(_Table, frozen=True, kw_only=True):
    """Where in the output one fact is: in events, or by `pattern` in lines of text."""

    in_: Source = msgspec.field(name="in", default="stdout")
    when: dict[str, Scalar] = {}  # an event that has these values; keys are dotted
    # Dotted, `[]`: each of a list. Several are added up, one that begins with `-` is taken away.
    at: str | tuple[str, ...] | None = None
    pattern: str | None = None  # with a group `value`; a number's may end in k or M
    cumulative: bool = False  # counts from the session's start, not the attempt's
    sum: bool = False  # all of them are added up; else the last one counts


class Waiting(_Table, frozen=True, kw_only=True):
    """One of `waiting`: so the program says that it waits for its provider to let it go on."""

    in_: Source = msgspec.field(name="in", default="stdout")
    when: dict[str, Scalar] = {}
    text: str | None = None
    reset: tuple[str, ...] = ()


class Output(_Table, frozen=True, kw_only=True):
    """`[output]`."""

    format: Literal["jsonl", "text"]
    session: Locator | None = None
    message: Locator | None = None
    tool: Locator | None = None
    result: Locator | None = None
    error: Locator | None = None  # why it failed, in its own words
    turn: Locator | None = None  # each is one turn
    turns: Locator | None = None  # how many the program itself counts
    cost_usd: Locator | None = None
    tokens_input: Locator | None = None  # all of them, those from a cache too
    tokens_cached: Locator | None = None  # the part that came from a cache
    tokens_output: Locator | None = None
    waiting: tuple[Waiting, ...] = ()


class Rule(_Table, frozen=True, kw_only=True):
    """One `[[outcome]]`: all of its conditions must hold."""

    is_: Is = msgspec.field(name="is")
    exit: tuple[int, ...] | None = None  # never true of a program that a signal ended
    in_: Source | None = msgspec.field(name="in", default=None)  # None: stdout, for text stderr
    when: dict[str, Scalar] = {}  # some event of the output has these values; keys are dotted
    text: str | None = None  # in that event; without `when`, in the end of what was written there
    reset: tuple[str, ...] = ()  # of a limit: patterns that find when it ends, in the same text
    hint: str | None = None  # what a person can do

    @property
    def source(self) -> Source:
        """Where `when` and `text` look."""
        return self.in_ or ("stdout" if self.when else "stderr")


class Login(_Table, frozen=True, kw_only=True):
    """`[login]`: how to find out whether somebody is logged in, without asking the provider."""

    argv: tuple[str, ...] | None = None  # arguments that make it end with 0 when somebody is
    env: tuple[str, ...] = ()  # variables: one that is set is a key
    files: tuple[str, ...] = ()  # one that exists is a log-in; `~` is HOME
    hint: str = ""  # what a person can do


class Price(_Table, frozen=True, kw_only=True):
    """`[price]`: USD for a million tokens, for a program that does not say what it costs."""

    input: float
    output: float
    cached: float | None = None  # of input from a cache; None: as `input`


class Resume(_Table, frozen=True, kw_only=True):
    """`[resume]`: a whole other argv; {value} is the session."""

    argv: tuple[str, ...]
    argv_last: tuple[str, ...] = ()


class Stop(_Table, frozen=True, kw_only=True):
    """`[stop]`."""

    signals: tuple[str, ...]  # one after the other, each to the whole tree


class Confined(_Table, frozen=True, kw_only=True):
    """`[sandbox]`: what a sandbox shows of the user's files: `~/...`, `$NAME/...` or absolute."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()  # what it must be able to renew, as a log-in


class Adapter(_Table, frozen=True, kw_only=True):
    """One adapter's file."""

    format: Literal[1]
    name: str  # the file's name without `.toml`
    about: str = ""
    program: str | None = None  # None: the first of the words that the user typed after `--`
    version: tuple[str, ...] | None = None  # arguments that make it print its version
    argv: tuple[str, ...] = ()
    argv_last: tuple[str, ...] = ()
    options: dict[str, tuple[str, ...]] = {}  # words for a value that is set
    permission: Permission = Permission()
    resume: Resume | None = None
    prompt: Prompt
    env: Env = Env()
    login: Login = Login()
    price: Price | None = None
    output: Output
    outcome: tuple[Rule, ...]  # in order, first match wins
    stop: Stop
    sandbox: Confined = Confined()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeholders:
    """The facts of one attempt that words of an adapter can hold."""

    prompt_file: Path
    report_file: Path  # where a program can write what it used
    worktree: Path
    task: str
    attempt: int
    python: str  # the interpreter that runs swarm
    checkout: Path  # the user's
    writable_roots: tuple[Path, ...]  # outside the worktree: what a commit or a question writes


def names(checkout: Path | None) -> list[str]:
    """Every adapter that can be loaded, sorted: the checkout's own and the built-in ones."""
    return sorted(_files(checkout))


def find_file(name: str, checkout: Path | None) -> Traversable | None:
    """Where the adapter of that name is read from."""
    return _files(checkout).get(name)


def load(name: str, checkout: Path | None) -> Adapter:
    """The checkout's own `.swarm/agents/<name>.toml`, else the built-in one.

    Raises:
        NotFound: there is no such adapter.
        UsageError: its file does not parse, or says what no adapter can say.
    """
    files = _files(checkout)
    if name not in files:
        raise NotFound(
            f"there is no agent {name}",
            hint=_nearest(name, files) or "known: " + " ".join(sorted(files)),
        )
    return _parse(files[name], name)


def _files(checkout: Path | None) -> dict[str, Traversable]:
    found: dict[str, Traversable] = {}
    folders: list[Traversable] = [resources.files("swarm.agents")]
    if checkout is not None and (checkout / OWN_FOLDER).is_dir():
        folders.append(checkout / OWN_FOLDER)
    for folder in folders:
        for file in folder.iterdir():
            name = file.name.removesuffix(".toml")
            if name != file.name and _NAME.fullmatch(name):
                found[name] = file
    return found


def _parse(file: Traversable, name: str) -> Adapter:
    try:
        text = file.read_bytes().decode()
        raw = tomllib.loads(text)
        _refuse_unknown_keys(raw, text, file)
        adapter = msgspec.convert(raw, Adapter)
    except OSError as error:
        raise UsageError(f"{file}: cannot be read", why=error.strerror) from error
    except RecursionError as error:  # tomllib's, of brackets in brackets
        raise UsageError(f"{file}: is nested too deeply") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: {error}") from error
    except msgspec.ValidationError as error:
        why, _, at = str(error).partition(" - at `$")
        place = at.strip("`").lstrip(".")
        raise UsageError(f"{file}: {place}: {why}" if place else f"{file}: {why}") from error
    if adapter.name != name:
        raise UsageError(f"{file}: name is {adapter.name}, want {name} as in the file's name")
    if (fault := next(_faults(adapter), None)) is not None:
        raise UsageError(f"{file}: {fault}")
    return adapter


def _faults(adapter: Adapter) -> Iterator[str]:
    """What types cannot say."""
    for where, words, known in _worded(adapter):
        for word in words:
            if "\0" in word:
                yield f"{where}: holds a NUL character"
            for unknown in placeholders_in(word):
                if unknown not in known:
                    listed = " ".join(f"{{{name}}}" for name in sorted(known))
                    yield f"{where}: unknown placeholder {{{unknown}}}; known here: {listed}"
    if adapter.prompt.how == "file":
        last = (adapter.argv, adapter.argv_last)
        resumed = (adapter.resume.argv, adapter.resume.argv_last) if adapter.resume else last
        if not all("{prompt_file}" in "\n".join((*one, *two)) for one, two in (last, resumed)):
            yield 'prompt.how = "file", but no word of argv or argv_last holds {prompt_file}'
    yield from _faults_of_outcomes(adapter)
    yield from _faults_of_places(adapter)
    if adapter.prompt.at is not None and "@" in adapter.prompt.at.replace("@", "", 1):
        yield "prompt.at: holds more than one @"
    if not adapter.stop.signals:
        yield "stop.signals: is empty"
    for unknown in adapter.stop.signals:
        if unknown not in _SIGNAL_NAMES:
            yield f"stop.signals: there is no signal {unknown}"


def _faults_of_outcomes(adapter: Adapter) -> Iterator[str]:
    if not any(rule.is_ == "success" for rule in adapter.outcome):
        yield 'no [[outcome]] with is = "success": nothing it does could succeed'
    for number, rule in enumerate(adapter.outcome, start=1):
        where = f"outcome {number}"
        if rule.is_ == "success" and rule.exit is None:
            yield f"{where}: a success needs `exit`"
        if rule.is_ != "failed" and rule.exit is None and rule.text is None and not rule.when:
            yield f"{where}: needs `exit`, `when` or `text`"
        if rule.when and rule.source != "report" and adapter.output.format != "jsonl":
            yield f'{where}: `when` needs output.format = "jsonl"'
        if rule.reset and rule.is_ != "limit":
            yield f'{where}: `reset` is for is = "limit"'
        yield from _faults_of_resets(rule.reset, where)


def _faults_of_places(adapter: Adapter) -> Iterator[str]:
    for name, place in places(adapter.output):
        where = f"output.{name}"
        if (place.at is None) == (place.pattern is None) and name != "turn":
            yield f"{where}: needs `at` or `pattern`, one of them"
        if place.pattern is not None and place.when:
            yield f"{where}: `pattern` is for lines of text, `when` for events"
        if place.pattern is not None and place.in_ == "report":
            yield f"{where}: a report has no lines; use `at`"
        if place.pattern is not None and name != "turn":
            yield from _faults_of_pattern(place.pattern, ("value",), where)
        is_text = adapter.output.format == "text" and place.in_ != "report"
        if is_text and place.pattern is None:
            yield f'{where}: needs `pattern`, or output.format = "jsonl"'
    for number, waiting in enumerate(adapter.output.waiting, start=1):
        where = f"output.waiting {number}"
        if not waiting.when and waiting.text is None:
            yield f"{where}: needs `when` or `text`"
        yield from _faults_of_resets(waiting.reset, where)


def _faults_of_resets(patterns: Iterable[str], where: str) -> Iterator[str]:
    for pattern in patterns:
        yield from _faults_of_pattern(pattern, RESETS, f"{where}: reset")


def _faults_of_pattern(pattern: str, groups: Sequence[str], where: str) -> Iterator[str]:
    try:
        found = re.compile(pattern).groupindex
    except re.error as error:
        yield f"{where}: {pattern!r} is no pattern: {error}"
        return
    if not found.keys() & set(groups):
        yield f"{where}: {pattern!r} has no group (?P<name>...) of: {' '.join(groups)}"


def places(output: Output) -> Iterator[tuple[str, Locator]]:
    """The facts that an adapter knows a place of, by name."""
    for name in output.__struct_fields__:
        place = getattr(output, name)
        if isinstance(place, Locator):
            yield name, place


def _worded(adapter: Adapter) -> Iterator[tuple[str, Iterable[str], frozenset[str]]]:
    valued = PLACEHOLDERS | {"value"}
    if adapter.program is not None:
        yield "program", (adapter.program,), PLACEHOLDERS
    yield "argv", adapter.argv, PLACEHOLDERS
    yield "argv_last", adapter.argv_last, PLACEHOLDERS
    for option, words in adapter.options.items():
        yield f"options.{option}", words, valued
    yield "permission.bypass", adapter.permission.bypass or (), PLACEHOLDERS
    yield "permission.limited", adapter.permission.limited or (), PLACEHOLDERS
    if adapter.resume is not None:
        yield "resume.argv", adapter.resume.argv, valued
        yield "resume.argv_last", adapter.resume.argv_last, valued
    yield "env.set", adapter.env.set.values(), SET_PLACEHOLDERS
    yield "env.set_as_root", adapter.env.set_as_root.values(), SET_PLACEHOLDERS


def _refuse_unknown_keys(raw: dict[str, Any], text: str, file: Traversable) -> None:
    unknown = next(_unknown_keys(raw, Adapter, ()), None)
    if unknown is None:
        return
    above, key, known = unknown
    line = _line_of(text, above, key)
    raise UsageError(
        f"{file}{f':{line}' if line else ''}: unknown key {'.'.join((*above, key))}",
        hint=_nearest(key, known) or "known here: " + " ".join(sorted(known)),
    )


def _unknown_keys(
    value: object, kind: type[msgspec.Struct], above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str, set[str]]]:
    """(keys above it, the unknown key, what is known there); a list's index is a key."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown_keys(item, kind, (*above, str(index)))
    if not isinstance(value, dict):
        return
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    for key, inner in value.items():
        if key not in fields:
            yield above, key, set(fields)
        elif (table := _table_in(fields[key])) is not None:
            yield from _unknown_keys(inner, table, (*above, key))


def _table_in(annotation: Any) -> type[msgspec.Struct] | None:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    found = (_table_in(inner) for inner in get_args(annotation))
    return next((table for table in found if table is not None), None)


def _line_of(text: str, above: tuple[str, ...], key: str) -> int | None:
    """Line of a key: the first place it is set, at or after the header of its table."""
    lines = text.splitlines()
    start = 0
    if above:
        header = re.compile(rf"\s*\[\[?\s*{re.escape(above[0])}\s*\]\]?")
        headers = [number for number, line in enumerate(lines) if header.match(line)]
        index = int(above[1]) if len(above) > 1 and above[1].isdigit() else 0
        start = headers[index] if index < len(headers) else 0
    # As a key, or as a table's own header.
    setting = re.compile(rf'(?:^|[\s{{,."\[]){re.escape(key)}"?\s*(?:=|\]|\.)')
    for number, line in enumerate(lines[start:], start=start + 1):
        if setting.search(line):
            return number
    return None


def _nearest(word: str, known: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]}?" if close else None


def can_resume(adapter: Adapter) -> bool:
    """Can it go on with a session of its own?"""
    return adapter.resume is not None or "resume" in adapter.options


def argv(
    adapter: Adapter,
    *,
    values: Placeholders,
    options: Mapping[str, object],
    permission: PermissionName,
    extra: Sequence[str] = (),
    typed_in: Path,
    path: str,
    prompt: str = "",
) -> list[str]:
    """The words to start: program, argv, extra, options, permission, argv_last.

    Args:
        options: by the adapter's option names; None means not set. `resume` (a session) replaces
            argv and argv_last where the adapter has a `[resume]`.
        extra: what the user typed after `--`, taken word by word and never filled in; where the
            adapter names no program, the first word is it.
        typed_in: the folder the command was typed in: a program with a slash is resolved there.
        path: the user's own PATH, on which a program without a slash is found, before its entries
            inside the checkout are moved into the worktree.
        prompt: for `prompt.how = "argument"`, the last word.

    Returns: the program's absolute path first.

    Raises:
        UsageError: no program, or one that cannot be started; an option or a permission that the
            adapter does not have; a value that would be read as an option.
    """
    table = _table(values)
    words, last = adapter.argv, adapter.argv_last
    chosen = {name: _as_text(value) for name, value in options.items() if value is not None}
    if adapter.resume is not None and "resume" in chosen:
        table["value"] = chosen.pop("resume")
        words, last = adapter.resume.argv, adapter.resume.argv_last
    made = _filled(words, table, f"agent {adapter.name}: argv")
    typed = list(extra)
    if adapter.program is not None:
        program = fill(adapter.program, table, where=f"agent {adapter.name}: program")
    elif typed:
        program = typed.pop(0)
    else:
        raise UsageError(
            f"agent {adapter.name} needs a program to start",
            hint=f"swarm run --agent {adapter.name} -- ./my-agent.sh",
        )
    made += typed
    for name, value in chosen.items():
        if name not in adapter.options:
            raise UsageError(
                f"agent {adapter.name} has no option {name}",
                hint="it has: " + (" ".join(sorted(adapter.options)) or "none"),
            )
        where = f"agent {adapter.name}: {name}"
        made += _filled(adapter.options[name], {**table, "value": value}, where)
    made += _filled(_permitted(adapter, permission), table, f"agent {adapter.name}: permission")
    made += _filled(last, table, f"agent {adapter.name}: argv_last")
    if adapter.prompt.how == "argument":
        made.append(_prompt_word(adapter, prompt))
    for word in made:
        if "\0" in word:
            raise UsageError(f"agent {adapter.name}: a word of its command line holds NUL")
    return [resolve(program, typed_in=typed_in, path=path), *made]


def resolve(program: str, *, typed_in: Path, path: str) -> str:
    """Absolute path of a program: with a slash from `typed_in`, else from the PATH given.

    Raises:
        UsageError: there is none, or it cannot be executed.
    """
    if "\0" in program or not program:
        raise UsageError(f"{program!r} is no program")
    if "/" in program:
        found = shutil.which(typed_in / program, path="")
    else:
        entries = (str(typed_in / entry) for entry in path.split(os.pathsep) if entry)
        found = shutil.which(program, path=os.pathsep.join(entries))
    if found is None:
        where = f"in {typed_in}" if "/" in program else "on PATH"
        raise UsageError(f"cannot start {program}", why=f"no executable file of that name {where}")
    return str(found)


def _table(values: Placeholders) -> dict[str, str]:
    return {
        "prompt_file": str(values.prompt_file),
        "report_file": str(values.report_file),
        "worktree": str(values.worktree),
        "task": values.task,
        "attempt": str(values.attempt),
        "python": values.python,
        "checkout": str(values.checkout),
        "writable_roots": _toml_array(values.writable_roots),
    }


def _toml_array(paths: Iterable[Path]) -> str:
    # JSON's strings are TOML's but for DEL, and for pairs of surrogates, which are not written.
    return json.dumps([str(path) for path in paths], ensure_ascii=False).replace("\x7f", "\\u007f")


def _as_text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"an option's value is text or a number, not {value!r}")
    return str(value)


def _filled(words: Iterable[str], table: Mapping[str, str], where: str) -> list[str]:
    made = []
    for word in words:
        filled = fill(word, table, where=where)
        # A session's name comes from an agent's output: it must not become another flag.
        if filled.startswith("-") and not word.startswith("-"):
            raise UsageError(f"{where}: {filled!r} would be read as an option")
        made.append(filled)
    return made


def given(adapter: Adapter, prompt: str) -> str:
    """The prompt as the program gets it: data, whatever its first characters or its `@` would mean
    to the program.
    """
    if adapter.prompt.at is not None:
        prompt = prompt.replace("@", adapter.prompt.at)
    return f"Task: {prompt}" if prompt.lstrip().startswith(_SPECIAL) else prompt


def _permitted(adapter: Adapter, permission: PermissionName) -> tuple[str, ...]:
    if permission == "bypass":
        return adapter.permission.bypass or ()
    if adapter.permission.limited is None:
        raise UsageError(
            f"agent {adapter.name} has no limited permission",
            hint=f'permission = "bypass", or give {adapter.name}.toml a [permission] limited',
        )
    return adapter.permission.limited


def _prompt_word(adapter: Adapter, prompt: str) -> str:
    word = given(adapter, prompt)
    if len(word.encode()) > MAX_ARGUMENT:
        raise UsageError(
            f"the prompt is too long for one argument of {adapter.name}",
            hint=f'{adapter.name}.toml: prompt.how = "stdin" or "file"',
        )
    return word
