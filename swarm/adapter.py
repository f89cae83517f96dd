"""How an agent program is started and how its end is read: one TOML file per program.

Enters: an adapter's file; the facts of an attempt; an exit and what was printed. Leaves: argv; a
judgement. Guards: words are filled in once and never go through a shell; an exit code alone never
makes a success where the adapter asks for more.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import io
import json
import os
import re
import shutil
import signal as signals
import subprocess
import tempfile
import time
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

Is = Literal["success", "limit", "login", "turns", "cost", "failed"]
PermissionName = Literal["bypass", "limited"]
Scalar = str | bool | int | float

PLACEHOLDERS = frozenset(
    {"prompt_file", "worktree", "task", "attempt", "python", "checkout", "writable_roots"}
)
OWN_FOLDER = Path(".swarm/agents")  # below the checkout
PROBE_SECONDS = 5.0
MAX_LINE = 8 << 20  # bytes; a longer line is no event that decides anything
STDERR_END = 64 << 10  # bytes
MAX_ARGUMENT = (128 << 10) - 1  # Linux: MAX_ARG_STRLEN, with the closing NUL
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_VERSION = re.compile(r"\d+(?:\.\d+)+[\w.+-]*")
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


class Env(_Table, frozen=True, kw_only=True):
    """`[env]`: what the agent sees beyond the base list."""

    pass_: tuple[str, ...] = msgspec.field(name="pass", default=())  # name globs
    set: dict[str, str] = {}
    set_as_root: dict[str, str] = {}  # only when the runner is root


class Locator(_Table, frozen=True, kw_only=True):
    """Where in the output one fact is: the place `at` in events that match `when`."""

    when: dict[str, Scalar] = {}
    at: str | tuple[str, ...]  # dotted, `[]` for each of a list; several are added up
    cumulative: bool = False  # counts from the session's start, not the attempt's


class Output(_Table, frozen=True, kw_only=True):
    """`[output]`."""

    format: Literal["jsonl", "text"]
    session: Locator | None = None
    message: Locator | None = None
    tool: Locator | None = None
    result: Locator | None = None
    turns: Locator | None = None
    cost_usd: Locator | None = None
    tokens_input: Locator | None = None
    tokens_output: Locator | None = None


class Rule(_Table, frozen=True, kw_only=True):
    """One `[[outcome]]`: all of its conditions must hold."""

    is_: Is = msgspec.field(name="is")
    exit: tuple[int, ...] | None = None  # never true of a program that a signal ended
    when: dict[str, Scalar] = {}  # some event of the output has these values; keys are dotted
    text: str | None = None  # in that event; without `when`, in the end of standard error
    hint: str | None = None  # what a person can do


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
    output: Output
    outcome: tuple[Rule, ...]  # in order, first match wins
    stop: Stop
    sandbox: Confined = Confined()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeholders:
    """The facts of one attempt that words of an adapter can hold."""

    prompt_file: Path
    worktree: Path
    task: str
    attempt: int
    python: str  # the interpreter that runs swarm
    checkout: Path  # the user's
    writable_roots: tuple[Path, ...]  # outside the worktree: what a commit or a question writes


@dataclass(frozen=True, slots=True)
class Judgement:
    """What an adapter's rules say of an ended program; `failed` when none matched.

    A success is still to be confirmed by the state of git.
    """

    is_: Is
    hint: str | None = None


def names(checkout: Path | None) -> list[str]:
    """Every adapter that can be loaded, sorted: the checkout's own and the built-in ones."""
    return sorted(_files(checkout))


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
    if not any(rule.is_ == "success" for rule in adapter.outcome):
        yield 'no [[outcome]] with is = "success": nothing it does could succeed'
    for number, rule in enumerate(adapter.outcome, start=1):
        if rule.is_ == "success" and rule.exit is None:
            yield f"outcome {number}: a success needs `exit`"
        if rule.is_ != "failed" and rule.exit is None and rule.text is None and not rule.when:
            yield f"outcome {number}: needs `exit`, `when` or `text`"
        if rule.when and adapter.output.format != "jsonl":
            yield f'outcome {number}: `when` needs output.format = "jsonl"'
    if not adapter.stop.signals:
        yield "stop.signals: is empty"
    for unknown in adapter.stop.signals:
        if unknown not in _SIGNAL_NAMES:
            yield f"stop.signals: there is no signal {unknown}"


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


def found_on_path(path: str) -> list[tuple[str, str | None]]:
    """(name, version) of each built-in adapter whose program is on this PATH, sorted by name.

    The version is None when the program did not say within five seconds. All are asked at once,
    with nothing in their environment but PATH and HOME. A relative entry of PATH is not looked at.
    """
    absolute = os.pathsep.join(e for e in path.split(os.pathsep) if Path(e).is_absolute())
    home = os.environ.get("HOME", "/")
    with contextlib.ExitStack() as stack:
        probes = []
        for name in names(None):
            adapter = load(name, None)
            if adapter.program is None or adapter.version is None:
                continue
            program = shutil.which(adapter.program, path=absolute)
            if program is not None:
                env = {"PATH": path, "HOME": home}
                probe = stack.enter_context(_probe([program, *adapter.version], env))
                probes.append((name, probe))
        deadline = time.monotonic() + PROBE_SECONDS
        return [(name, _version_said(*probe, deadline)) for name, probe in probes]


@contextlib.contextmanager
def _probe(
    command: list[str], env: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes] | None, io.BufferedRandom]]:
    # A file and not a pipe: a loader's child that outlives it would hold a pipe open.
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                cwd="/",
                start_new_session=True,
            )
        except OSError:  # not a program after all
            yield None, output
            return
        try:
            yield process, output
        finally:
            # Not yet waited for, so its number and its group's are still its own. (macOS answers
            # EPERM for a group of zombies.)
            with contextlib.suppress(PermissionError):
                os.killpg(process.pid, signals.SIGKILL)
            process.wait()


def _version_said(
    process: subprocess.Popen[bytes] | None, output: io.BufferedRandom, deadline: float
) -> str | None:
    if process is None:
        return None
    look = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while (ended := os.waitid(os.P_PID, process.pid, look)) is None:
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.01)
    if (ended.si_code, ended.si_status) != (os.CLD_EXITED, 0):
        return None
    output.seek(0)
    said = _VERSION.search(output.read(4096).decode(errors="replace"))
    return said[0] if said else None


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
    # A title that begins with a dash is still a title.
    word = "\n" + prompt if prompt.startswith("-") else prompt
    if len(word.encode()) > MAX_ARGUMENT:
        raise UsageError(
            f"the prompt is too long for one argument of {adapter.name}",
            hint=f'{adapter.name}.toml: prompt.how = "stdin" or "file"',
        )
    return word


def judge(
    adapter: Adapter,
    exit_code: int | None,
    signal: int | None,
    stdout: bytes | Path,
    stderr: bytes | Path,
) -> Judgement:
    """What the adapter's rules say, in order, first match wins.

    Args:
        exit_code: None when a signal ended it.
        stdout: what it printed, whole or its end; read line by line.
        stderr: only its end is looked at.

    Safe: for output of any kind; a broken, huge or foreign line is no event.
    """
    exited = exit_code if signal is None else None
    ended = _end_of(stderr)
    wanted = [number for number, rule in enumerate(adapter.outcome) if rule.when]
    seen = _seen(adapter.outcome, wanted, stdout) if wanted else set()
    for number, rule in enumerate(adapter.outcome):
        if rule.exit is not None and exited not in rule.exit:
            continue
        if rule.when and number not in seen:
            continue
        if rule.text is not None and not rule.when and rule.text not in ended:
            continue
        return Judgement(rule.is_, rule.hint)
    return Judgement("failed")


def _seen(rules: Sequence[Rule], wanted: Sequence[int], stdout: bytes | Path) -> set[int]:
    """Those rules whose `when`, and `text` in it, some event has."""
    seen: set[int] = set()
    for line, event in _events(stdout):
        for number in wanted:
            rule = rules[number]
            if number in seen or not _has(event, rule.when):
                continue
            if rule.text is None or _says(line, event, rule.text):
                seen.add(number)
        if len(seen) == len(wanted):
            break
    return seen


def _events(stdout: bytes | Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    stream = io.BytesIO(stdout) if isinstance(stdout, bytes) else stdout.open("rb")
    with stream:
        for line in iter(functools.partial(stream.readline, MAX_LINE), b""):
            if len(line) == MAX_LINE and not line.endswith(b"\n"):
                while (rest := stream.readline(MAX_LINE)) and not rest.endswith(b"\n"):
                    pass
                continue
            try:
                event = msgspec.json.decode(line)
            except (msgspec.DecodeError, RecursionError):
                continue
            if isinstance(event, dict):
                yield line, event


def _has(event: dict[str, Any], when: Mapping[str, Scalar]) -> bool:
    return all(_equal(_at(event, key), value) for key, value in when.items())


def _at(event: dict[str, Any], key: str) -> object:
    value: object = event
    for part in key.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def _equal(found: object, wanted: Scalar) -> bool:
    # 1 == True in Python; in an event they are different things.
    return isinstance(found, bool) == isinstance(wanted, bool) and found == wanted


def _says(line: bytes, event: object, text: str) -> bool:
    """In the line as printed, or in one of its strings as they read without JSON's escapes."""
    if text.encode() in line:
        return True
    rest = [event]
    while rest:
        value = rest.pop()
        if isinstance(value, str) and text in value:
            return True
        if isinstance(value, dict):
            rest += value.values()
        elif isinstance(value, list):
            rest += value
    return False


def _end_of(stderr: bytes | Path) -> str:
    if isinstance(stderr, bytes):
        return stderr[-STDERR_END:].decode(errors="replace")
    with stderr.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - STDERR_END))
        return stream.read().decode(errors="replace")
