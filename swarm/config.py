"""`swarm.toml`: every key, its type and its default, in the file's own order.

Enters: the file's bytes. Leaves: one frozen value, or every fault in it with its line.
Guards: no key is passed over, no number goes without its unit, no path leaves the repository.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import math
import posixpath
import re
import shlex
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
from msgspec.structs import replace

from swarm.errors import UsageError
from swarm.ids import fold, parse_duration, parse_size

FILE = "swarm.toml"
FORMAT = 1
MAX_BYTES = 1 << 20  # of a file that people write
_MAX_NUMBER = 1 << 53  # what JSON readers keep exactly
_YEAR = timedelta(days=366)

# -- problems ----------------------------------------------------------------------------------


class Problem(msgspec.Struct, frozen=True, order=True):
    """One fault of a file that a person wrote. Sorts by file and line."""

    file: str
    line: int  # from 1; 0 when the whole file is meant
    key: str
    text: str

    @property
    def where(self) -> str:
        """`file:line`, or the file alone."""
        return f"{self.file}:{self.line}" if self.line else self.file

    def __str__(self) -> str:
        return f"{self.where}   {self.key}   {self.text}"


def listing(problems: Iterable[Problem]) -> str:
    """The problems by file and line, one a line, in columns."""
    rows = [(p.where, p.key, p.text) for p in sorted(problems)]
    where = max((len(row[0]) for row in rows), default=0)
    key = max((len(row[1]) for row in rows), default=0)
    return "\n".join(f"{w:<{where}}   {k:<{key}}   {t}" for w, k, t in rows)


def shown(text: str, limit: int = 60) -> str:
    """Foreign text for one line of a message: cut, and nothing in it can steer a terminal."""
    cut = text if len(text) <= limit else text[: limit - 3] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


# -- values: each reader takes what TOML gave and raises ValueError with the words to print ----


def _value(value: object) -> str:
    return shown(json.dumps(value, default=str, ensure_ascii=False))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"want text in quotes, got {_value(value)}")
    if "\0" in value:
        raise ValueError("holds a NUL character")
    return value


def _filled(value: object) -> str:
    text = _text(value)
    if not text.strip():
        raise ValueError("is empty")
    return text


def _slug(value: object) -> str:
    text = _text(value)
    try:
        folded = fold(text)
    except ValueError as error:
        raise ValueError(f'"{shown(text)}" is no name: {error}') from error
    if folded != text:
        raise ValueError(f'names are lower-case words with dashes: "{folded}"')
    return text


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"want true or false, got {_value(value)}")
    return value


def _whole(least: int, most: int = _MAX_NUMBER) -> Callable[[object], int]:
    def read(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"want a whole number, got {_value(value)}")
        if not least <= value <= most:
            bound = f"at least {least}" if most == _MAX_NUMBER else f"{least} to {most}"
            raise ValueError(f"want {bound}, got {_value(value)}")
        return value

    return read


def _money(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"want US dollars like 2.50, got {_value(value)}")
    if not 0 < value < _MAX_NUMBER or not math.isfinite(value):
        raise ValueError(f"want more than 0, got {_value(value)}")
    return float(value)


def read_duration(value: object) -> timedelta:
    """A span that a person wrote, longer than nothing and at most a year.

    Raises:
        ValueError: with the words to print.
    """
    span = _pause(value)
    if not span:
        raise ValueError(f"want more than nothing, got {_value(value)}")
    return span


def _pause(value: object) -> timedelta:
    if not isinstance(value, str):
        raise ValueError(f"want a duration like 20m, got {_value(value)}")
    try:
        span = parse_duration(value)
    except OverflowError:
        span = timedelta.max
    except ValueError as error:
        raise ValueError(f"want a duration like 20m, got {shown(value) or 'nothing'}") from error
    if span > _YEAR:
        raise ValueError(f"longer than a year: {shown(value)}")
    return span


def _limit(value: object) -> timedelta | None:
    return None if value == "" else read_duration(value)


def _size(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError(f"want a size like 10MiB, got {_value(value)}")
    try:
        size = parse_size(value)
    except ValueError as error:
        raise ValueError(f"want a size like 10MiB, got {shown(value) or 'nothing'}") from error
    if not 0 < size < _MAX_NUMBER:
        raise ValueError(f"want more than nothing and less than 8 PiB, got {shown(value)}")
    return size


_T = TypeVar("_T")


def _list(item: Callable[[object], _T]) -> Callable[[object], tuple[_T, ...]]:
    def read(value: object) -> tuple[_T, ...]:
        if not isinstance(value, list):
            raise ValueError(f"want a list like [...], got {_value(value)}")
        return tuple(dict.fromkeys(item(one) for one in value))

    return read


def glob_fault(glob: str) -> str | None:
    """Why a gitwildmatch glob can never match as its author hoped, or None when it can.

    Git and pathspec drop most of these without a word. Character classes that pathspec reads in
    another way than git are among them.
    """
    body = glob.rstrip().removeprefix("!")
    parts = body.strip("/").split("/")
    if not body.strip("/ "):
        return "is empty"
    if not all(c.isprintable() for c in glob):
        return "holds a control character"
    if glob.startswith("#"):
        return "starts with #, which makes it a comment; write \\#"
    if ".." in parts or "." in parts:
        return "has a part . or .., which no path in a repository has"
    if "" in parts:
        return "has two slashes in a row"
    return _bracket_fault(body)


_ESCAPE = re.compile(r"\\(.?)")
_CLASS = re.compile(r"\[[!^]?\]?[^\]]*\]")


def _bracket_fault(body: str) -> str | None:
    if any(c not in ("*", "?", "[", "]", "!", "#", "\\", " ") for c in _ESCAPE.findall(body)):
        return "has a backslash that escapes nothing; folders are parted by /"
    rest = _ESCAPE.sub("", body)
    for found in _CLASS.findall(rest):
        inside = found[1:-1].lstrip("!^")
        if "/" in inside or re.search(r"\[|&&|\|\||~~|--", inside):
            return f"has a character class that git reads in another way: {found}"
        if any(low > high for low, high in re.findall(r"(.)-(.)", inside)):
            return f"has a range that runs backwards: {found}"
    if "[" in _CLASS.sub("", rest):
        return "has a [ without its ]"
    if _CLASS.search(rest) and "\\" in body:
        return "mixes a character class and a backslash"
    return None


def _glob(value: object) -> str:
    text = _text(value)
    if fault := glob_fault(text):
        raise ValueError(f'"{shown(text)}" {fault}')
    return text


def _below(value: object) -> str:
    """A path below the repository, normalised, without a slash at its end."""
    text = _text(value)
    path = posixpath.normpath(text)
    if not text:
        raise ValueError("is empty")
    if not text.isprintable():
        raise ValueError("holds a control character")
    if posixpath.isabs(path) or path.split("/")[0] == "..":
        raise ValueError(f'"{shown(text)}" leaves the repository')
    if ".git" in path.casefold().split("/"):
        raise ValueError(f'"{shown(text)}" lies in .git')
    return path


def _entry(value: object) -> str:
    path = _below(value)
    if path == ".":
        raise ValueError('want a path below the repository, got "."')
    if "*" in path or "?" in path:
        raise ValueError(f'want a path, not a glob: "{shown(path)}"')
    return path


def _place(value: object) -> str:
    """A path of the machine: `~/...`, `$NAME/...` or absolute; never a whole home or the root."""
    text = _filled(value)
    first, _, rest = text.partition("/")
    if first not in ("", "~") and not re.fullmatch(r"\$[A-Za-z_][A-Za-z0-9_]*", first):
        raise ValueError(f'want a path like ~/.nvm or /srv/data, got "{shown(text)}"')
    if not text.isprintable():
        raise ValueError("holds a control character")
    if ".." in rest.split("/") or not (rest.strip("/") or first.startswith("$")):
        raise ValueError(f'"{shown(text)}" is too much, or not one place')
    return text.rstrip("/")


def _shared(value: object) -> str:
    path = _entry(value)
    if "node_modules" in path.split("/"):
        raise ValueError("never node_modules: one `npm ci` empties it for all; put it in keep")
    return path


def _report(value: object) -> str:
    return "" if value == "" else _below(value)


_BAD_BRANCH = re.compile(  # git check-ref-format, and nothing that could pass for an option
    r"^[-/]|^@$|^HEAD$|^refs/|\.\.|//|@\{|[\x00-\x20\x7f~^:?*\[\\]|(^|/)\.|[/.]$|\.lock(/|$)"
)


def read_branch(value: object) -> str:
    """
    Raises:
        ValueError: it cannot be the name of a branch; with the words to print.
    """
    text = _filled(value)
    if _BAD_BRANCH.search(text) or not text.isprintable():
        raise ValueError(f'"{shown(text)}" cannot be the name of a branch')
    return text


def _maybe_branch(value: object) -> str:
    return "" if value == "" else read_branch(value)


_IN_BRANCH = frozenset({"run", "target", "user"})
_IN_PR = frozenset({"branch", "target", "title", "body_file"})
_HOLE = re.compile(r"(?<!\$)\{([A-Za-z_]*)\}")  # `${NAME}` is the shell's own
_QUOTED = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\(?:\{[A-Za-z_]*\}|.)", re.DOTALL)


def _known_holes(text: str, known: frozenset[str]) -> None:
    for name in _HOLE.findall(text):
        if name not in known:
            listed = " ".join(f"{{{one}}}" for one in sorted(known))
            raise ValueError(f"unknown placeholder {{{shown(name)}}}; known: {listed}")


def _branch_pattern(value: object) -> str:
    text = _filled(value)
    _known_holes(text, _IN_BRANCH)
    read_branch(_HOLE.sub("x", text))
    return text


def _pr(value: object) -> str:
    text = _text(value)
    _known_holes(text, _IN_PR)
    for quoted in _QUOTED.findall(text):
        if hole := _HOLE.search(quoted):
            raise ValueError(f"{hole[0]} stands in quotes: leave it bare, swarm quotes it")
    return text


def fill_branch(pattern: str, **values: str) -> str:
    """`[upstream] push_branch` with its placeholders filled in."""
    return _HOLE.sub(lambda hole: values[hole[1]], pattern)


def fill_pr(command: str) -> str:
    """`[upstream] pr` as the shell gets it: each placeholder is a quoted variable, so that no text
    of a task or a branch is ever read as a command.
    """
    return _HOLE.sub(lambda hole: f'"$SWARM_{hole[1].upper()}"', command)


def _remote(value: object) -> str:
    text = _filled(value)
    if text.startswith("-") or not text.isprintable() or " " in text:
        raise ValueError(f'"{shown(text)}" cannot be the name of a remote')
    return text


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*::?//|[^/]*:")  # git's own rule: a colon before a slash


def _hub(value: object) -> str:
    text = _filled(value)
    if _URL.match(text):
        raise ValueError(f"want a path on this machine; a URL is refused for now: {shown(text)}")
    if text.startswith("-") or not text.isprintable():
        raise ValueError(f'"{shown(text)}" is no path')
    return text


def read_team(value: object) -> tuple[tuple[str, int], ...]:
    """`build:3,review:1`: names and how many slots each has."""
    team: dict[str, int] = {}
    for part in _text(value).split(","):
        name, colon, count = part.strip().partition(":")
        if not colon or not re.fullmatch(r"[1-9][0-9]{0,3}", count):
            raise ValueError(f"want name:count,name:count, got {_value(value)}")
        if _slug(name) in team:
            raise ValueError(f"names {name} twice")
        team[name] = int(count)
    return tuple(team.items())


_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _variables(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f'want a table of NAME = "text", got {_value(value)}')
    for name, text in value.items():
        if not _ENV_NAME.fullmatch(name):
            raise ValueError(f'"{shown(name)}" cannot be the name of a variable')
        try:
            _text(text)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return value


def _name_glob(value: object) -> str:
    text = _text(value)
    if not re.fullmatch(r"[A-Za-z0-9_*?]+", text):
        raise ValueError(f'"{shown(text)}" is no name of a variable, nor a glob like NPM_*')
    return text


Text = Annotated[str, _text]
Filled = Annotated[str, _filled]
Slug = Annotated[str, _slug]
Flag = Annotated[bool, _flag]
AtLeast0 = Annotated[int, _whole(0)]
AtLeast1 = Annotated[int, _whole(1)]
Money = Annotated[float, _money]
Duration = Annotated[timedelta, read_duration]
Pause = Annotated[timedelta, _pause]  # may be nothing
Limit = Annotated[timedelta | None, _limit]  # "" lifts it
Size = Annotated[int, _size]
Globs = Annotated[tuple[str, ...], _list(_glob)]
Below = Annotated[str, _below]
Entries = Annotated[tuple[str, ...], _list(_entry)]
Places = Annotated[tuple[str, ...], _list(_place)]
ExitCodes = Annotated[tuple[int, ...], _list(_whole(1, 255))]
Team = Annotated[tuple[tuple[str, int], ...], read_team]
Variables = Annotated[Mapping[str, str], _variables]

# -- the file ----------------------------------------------------------------------------------


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """One table of the file. A field's annotation carries the reader of its key."""


class Run(Table, frozen=True, kw_only=True):
    """`[run]`: who works."""

    slots: AtLeast1 = 2  # agents at once; -n
    agent: Slug | None = None  # adapter of every slot; --agent
    agents: Team | None = None  # adapters and their slots, a mixed team; --agents
    fallback: Slug | None = None  # adapter of slots whose own is limited or not logged in
    roles: Team | None = None  # roles and their slots; None: every slot takes every task
    permission: Literal["bypass", "limited"] = "bypass"  # which argv of the adapter is used
    sandbox: Literal["none", "bwrap"] = "none"
    network: Literal["open", "none"] = "open"  # in a sandbox
    visible: Places = ()  # in a sandbox: also readable
    writable: Places = ()  # in a sandbox: also writable
    home: Literal["user", "private"] = "user"  # private: an empty HOME per slot
    keep_going: Flag = False  # wait for new tasks instead of ending
    allow_red: Flag = False  # start although the target's own checks are red


class Limits(Table, frozen=True, kw_only=True):
    """`[limits]`: per attempt unless said otherwise; None is no limit."""

    attempt: Limit = timedelta(minutes=30)  # wall time
    silence: Limit = timedelta(minutes=10)  # no output, no changed file and no child CPU
    start: Limit = timedelta(seconds=60)  # until the first sign of life
    strikes: AtLeast1 = 3  # per task, then parked
    conflicts: AtLeast1 = 5  # conflict ejections per task, then parked
    backoff: Pause = timedelta(seconds=10)  # doubles per strike
    backoff_max: Pause = timedelta(minutes=10)
    grace: Pause = timedelta(seconds=5)  # between SIGINT, SIGTERM, SIGKILL
    output: Size = 64 << 20  # transcript cap
    patience: Limit = timedelta(minutes=2)  # an agent waits for its provider, then it is ended
    provider: Limit = timedelta(hours=6)  # a run waits for a provider's limit to end
    turns: AtLeast1 | None = None
    tokens: AtLeast1 | None = None  # input and output together
    cost_usd: Money | None = None
    task_time: Limit = None  # all attempts of one task together, then it is parked
    task_tokens: AtLeast1 | None = None
    task_cost_usd: Money | None = None
    task_attempts: AtLeast1 | None = None
    run_time: Limit = None  # of a run, from its start; then it ends
    run_tokens: AtLeast1 | None = None
    run_cost_usd: Money | None = None  # --max-cost
    run_attempts: AtLeast1 | None = None


class Claims(Table, frozen=True, kw_only=True):
    """`[claims]`: how long a claim holds, and what keeps a task back."""

    lease: Duration = timedelta(minutes=15)  # of loops; a beat every third of it
    hand_lease: Duration = timedelta(hours=4)  # of `swarm claim` by hand
    overlap: Literal["skip", "allow"] = "skip"  # tasks whose paths overlap a live claim's
    duplicates: Literal["warn", "refuse", "off"] = "warn"  # near-duplicate of a live claim


class Worktree(Table, frozen=True, kw_only=True):
    """`[worktree]`: how a slot's worktree is made ready and what survives in it."""

    setup: Text = ""  # sh command, run in a new or moved worktree
    setup_inputs: Globs = ()  # none: every time; else only when one of them changed
    setup_timeout: Duration = timedelta(minutes=10)
    teardown: Text = ""  # sh command, when the slot lets the worktree go
    copy: Globs = ()  # ignored files to copy, added to .worktreeinclude
    keep: Entries = ()  # ignored paths that survive between claims
    share: Annotated[tuple[str, ...], _list(_shared)] = ()  # data folders, symlinked, read-only
    exclude: Globs = ("__pycache__/", "*.pyc", ".pytest_cache/")  # never sealed
    max_file: Size = 10 << 20  # a larger new file holds the change
    sparse: Entries = ()  # cone folders; none: everything
    max_total: Size = 20 << 30  # the state folder; idle worktrees go first, work never


class Env(Table, frozen=True, kw_only=True):
    """`[env]`: what agents, checks and setup see beyond the base list."""

    pass_: Annotated[tuple[str, ...], _list(_name_glob)] = msgspec.field(default=(), name="pass")
    port_base: Annotated[int, _whole(1, 65535)] = 20000
    ports: Annotated[int, _whole(0, 1000)] = 10  # per slot: {port} = port_base + ports * slot
    set: Variables = msgspec.field(default_factory=dict)  # {slot} {port} {task} ... filled in


class Prompt(Table, frozen=True, kw_only=True):
    """`[prompt]`: what agents are told beyond their task."""

    template: Filled | None = None  # None: the built-in one
    rules: Text = ""  # added to the house rules


class GateRules(Table, frozen=True, kw_only=True):
    """`[gate]`: what lands, in which form, and what waits for a person."""

    slots: AtLeast1 = 1  # checks at once
    strategy: Literal["auto", "serial", "batch", "speculate"] = "auto"
    style: Literal["merge", "squash", "rebase"] = "merge"
    every_commit_green: Flag = False
    review: Literal["none", "all"] = "none"  # all: hold every change for `swarm approve`
    protect: Globs = ("swarm.toml", ".swarm/**", ".worktreeinclude")  # touching these holds
    scope: Literal["warn", "hold", "eject"] = "warn"  # files outside the task's paths
    reverted: Literal["hold", "warn"] = "hold"  # a path goes back to a blob moved on from
    flaky: Literal["land", "eject"] = "land"
    max_wait: Duration = timedelta(hours=1)  # older changes go first whatever their priority


class Codes(Table, frozen=True, kw_only=True):
    """`[checks.codes]`: exit codes beyond 0 = passed."""

    could_not_run: ExitCodes = ()
    flaky: ExitCodes = ()


class Check(Table, frozen=True, kw_only=True):
    """`[[checks]]`: one command that judges a tree. Its name is part of file names."""

    name: Slug
    run: Filled  # /bin/sh -c
    cwd: Below = "."  # below the worktree
    timeout: Duration = timedelta(minutes=15)
    when: Literal["always", "asked"] = "always"  # asked: only for tasks that name it
    paths: Globs = ()  # only when one of these is touched by what would land
    retries: Annotated[int, _whole(0, 100)] = 1  # on the same tree; a green retry is flaky
    slots: AtLeast0 = 0  # of this check at once; 0: the gate's slots
    keep: Entries = ()  # ignored paths that survive between check runs
    env: Variables = msgspec.field(default_factory=dict)
    junit: Annotated[str, _report] = ""  # report file to read failing test ids from
    reads: Literal["tree", "history"] = "tree"  # history: judged by commit, not by tree
    env_id: Text = ""  # command whose output names the environment
    codes: Codes = Codes()


class Upstream(Table, frozen=True, kw_only=True):
    """`[upstream]`: the user's own remote branch."""

    remote: Annotated[str, _remote] = "origin"
    branch: Annotated[str, _maybe_branch] = ""  # "": the target
    push_branch: Annotated[str, _branch_pattern] = "swarm/{run}"  # {run} {target} {user}
    every: Limit = None  # how often a run brings it in by itself; None: never
    pr: Annotated[str, _pr] = ""  # sh; {branch} {target} {title} {body_file}, unquoted


class Notify(Table, frozen=True, kw_only=True):
    """`[notify]`: who is told."""

    command: Text = ""  # sh; once per new "needs you" line, JSON on standard input


class Config(Table, frozen=True, kw_only=True):
    """The whole of `swarm.toml`."""

    format: Literal[1] = 1
    target: Annotated[str, read_branch] = "main"  # the branch being landed on
    hub: Annotated[str, _hub] = ""  # path from the checkout; `load` fills in the one beside it
    tasks: Annotated[str, _entry] = "tasks"  # folder of task files
    run: Run = Run()
    limits: Limits = Limits()
    claims: Claims = Claims()
    worktree: Worktree = Worktree()
    env: Env = Env()
    prompt: Prompt = Prompt()
    gate: GateRules = GateRules()
    checks: tuple[Check, ...] = ()  # none: the gate refuses to run
    upstream: Upstream = Upstream()
    notify: Notify = Notify()

    @property
    def upstream_branch(self) -> str:
        """The branch of the upstream remote that is synced with: the target's name, unless said."""
        return self.upstream.branch or self.target

    @property
    def digest(self) -> str:
        """sha256 of the canonical JSON of what is in effect, defaults included, in hex."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()


# -- reading -----------------------------------------------------------------------------------


def load(checkout: Path) -> Config:
    """The configuration of a checkout, its hub beside it unless the file names another.

    Raises:
        UsageError: no `swarm.toml`, or one with faults: all of them.
    """
    file = checkout / FILE
    try:
        data = file.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"no {FILE} in {checkout}", hint="swarm init") from error
    except OSError as error:
        raise UsageError(f"cannot read {file}", why=error.strerror) from error
    config = parse(data, place=file)
    if config.hub:
        return config
    return replace(config, hub=f"../{checkout.resolve().name}.swarm/hub.git")


def parse(data: bytes, label: str = FILE, place: Path | None = None) -> Config:
    """
    Args:
        place: where the file lies; the hint of a refusal opens it.

    Raises:
        UsageError: `why` lists every fault, one a line: file, line, key, what is wanted.
    """
    reading = _Reading(label)
    config = reading.config(data)
    if config is None or reading.problems:
        count = len(reading.problems)
        line = min((problem.line for problem in reading.problems), default=0) or 1
        raise UsageError(
            f"{count} problem{'s' if count != 1 else ''} in {label}",
            why=listing(reading.problems),
            hint=f"${{EDITOR:-vi}} +{line} {shlex.quote(str(place))}" if place else None,
        )
    return config


_Path = tuple[str | int, ...]
_Table = TypeVar("_Table", bound=Table)


class _Reading:
    """One pass over one file; collects problems instead of stopping at the first."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.problems: list[Problem] = []
        self.lines: dict[_Path, int] = {}

    def config(self, data: bytes) -> Config | None:
        raw = self.toml(data)
        if raw is None:
            return None
        found = raw.get("format", FORMAT)
        if type(found) is not int or found != FORMAT:
            # Another format may have other keys: saying that they are unknown would mislead.
            self.fault(("format",), f"this swarm reads format {FORMAT}, got {_value(found)}")
            return None
        return self.table(Config, raw, ())

    def toml(self, data: bytes) -> dict[str, Any] | None:
        if len(data) > MAX_BYTES:
            self.problems.append(Problem(self.label, 0, "file", "larger than 1 MiB"))
            return None
        try:
            text = data.removeprefix(codecs.BOM_UTF8).decode().replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            self.problems.append(Problem(self.label, line, "file", "not UTF-8"))
            return None
        try:
            raw = tomllib.loads(text)
        except RecursionError:
            self.problems.append(Problem(self.label, 1, "file", "nested too deeply"))
            return None
        except ValueError as error:  # TOMLDecodeError, and an integer of thousands of digits
            found = re.search(r" \(at line (\d+), column \d+\)$", str(error))
            line = int(found[1]) if found else max(1, text.rstrip().count("\n") + 1)
            words = str(error)[: found.start()] if found else str(error)
            self.problems.append(
                Problem(self.label, line, "file", f"not TOML: {shown(words, 120)}")
            )
            return None
        self.lines = key_lines(text)
        return raw

    def fault(self, path: _Path, text: str) -> None:
        at = path
        while at and at not in self.lines:
            at = at[:-1]
        key = "".join(f"[{p + 1}]" if isinstance(p, int) else f".{p}" for p in path)[1:]
        self.problems.append(Problem(self.label, self.lines.get(at, 1), shown(key), text))

    def table(self, kind: type[_Table], raw: object, path: _Path) -> _Table | None:
        """The table, or None when it is no table or lacks a key it must have.

        A key with a fault keeps its default, so that the rest is still looked at.
        """
        if not isinstance(raw, dict):
            self.fault(path, f"want a table [{_dotted(path)}], got {_value(raw)}")
            return None
        fields = {f.encode_name: f for f in msgspec.structs.fields(kind)}
        values: dict[str, Any] = {}
        for key, value in raw.items():
            if key not in fields:
                self.fault((*path, key), _unknown(key, fields))
                continue
            field = fields[key]
            read = self.value(field.type, value, (*path, key))
            if read is not _NOTHING:
                values[field.name] = read
        missing = [f for f in fields.values() if f.required and f.encode_name not in raw]
        for field in missing:
            self.fault((*path, field.encode_name), "is missing")
        if any(f.required and f.name not in values for f in fields.values()):
            return None
        return kind(**values)

    def value(self, kind: Any, value: object, path: _Path) -> Any:
        if _is_table(kind):
            table = self.table(kind, value, path)
            return _NOTHING if table is None else table
        if kind == tuple[Check, ...]:
            return self.checks(value, path)
        try:
            return _reader(kind)(value)
        except ValueError as error:
            self.fault(path, str(error))
            return _NOTHING

    def checks(self, value: object, path: _Path) -> tuple[Check, ...]:
        if not isinstance(value, list):
            self.fault(path, "write [[checks]], with two brackets: there may be several")
            return ()
        read = [self.table(Check, one, (*path, i)) for i, one in enumerate(value)]
        first: dict[str, int] = {}
        for i, check in enumerate(read):
            if check is None:
                continue
            if check.name in first:
                at = self.lines.get((*path, first[check.name], "name"), 1)
                self.fault((*path, i, "name"), f'"{check.name}" is also the check of line {at}')
            first.setdefault(check.name, i)
            for code in check.codes.could_not_run:
                if code in check.codes.flaky:
                    self.fault((*path, i, "codes"), f"exit {code} cannot mean both")
        return tuple(check for check in read if check is not None)


_NOTHING: Any = object()  # a value that could not be read


def _dotted(path: _Path) -> str:
    return shown(".".join(str(p) for p in path if not isinstance(p, int)))


def _reader(kind: Any) -> Callable[[object], Any]:
    """The reader that a field's annotation carries; `| None` is only a default's."""
    if typing.get_origin(kind) is Annotated:
        reader: Callable[[object], Any] = kind.__metadata__[0]
        return reader
    if typing.get_origin(kind) is Literal:
        return _choice(get_args(kind))
    return _reader(get_args(kind)[0])


def _choice(choices: tuple[Any, ...]) -> Callable[[object], Any]:
    def read(value: object) -> Any:
        if value in choices and not isinstance(value, bool):
            return value
        want = ", ".join(json.dumps(choice) for choice in choices)
        raise ValueError(f"want one of {want}, got {_value(value)}")

    return read


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Table)


def _unknown(key: str, fields: Iterable[str]) -> str:
    if near := _closest(key, fields):
        return f"no such key; did you mean {near}?"
    tables = {f"[{f.name}]": f.type for f in msgspec.structs.fields(Config) if _is_table(f.type)}
    for place, table in (tables | {"a [[checks]]": Check}).items():
        if key in (field.encode_name for field in msgspec.structs.fields(table)):
            return f"no such key here; {place} has one"
    return "no such key"


def _closest(name: str, names: Iterable[str]) -> str | None:
    from difflib import get_close_matches  # only a refusal needs it

    return next(iter(get_close_matches(name, list(names), n=1)), None)


# -- where each key stands: tomllib does not say -----------------------------------------------

_KEY = re.compile(r"""[ \t]*("(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[A-Za-z0-9_-]+)[ \t]*""")
_SKIP = re.compile(
    r'''"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\#[^\n]*|.''',
    re.DOTALL,
)


def key_lines(text: str) -> dict[tuple[str | int, ...], int]:
    """The line of each table and key of a text that is TOML, by path; lists count from 0.

    Keys inside an inline table are not told apart: they stand on their table's line.
    """
    lines: dict[_Path, int] = {}
    counts: dict[_Path, int] = {}
    table: _Path = ()
    line, at = 1, 0
    while at < len(text):
        start = line
        if text.startswith("[", at := _past_blanks(text, at)):
            double = text.startswith("[[", at)
            names, at = _names(text, at + 1 + double)
            table = _resolve(names, counts, double)
            for depth in range(len(table)):
                lines.setdefault(table[: depth + 1], start)
        elif _KEY.match(text, at):
            names, at = _names(text, at)
            for depth in range(len(names)):
                lines.setdefault((*table, *names[: depth + 1]), start)
        at, line = _next_statement(text, at, line)
    return lines


def _past_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t":
        at += 1
    return at


def _names(text: str, at: int) -> tuple[tuple[str, ...], int]:
    names = []
    while match := _KEY.match(text, at):
        names.append(match[1].strip("\"'"))
        at = match.end()
        if not text.startswith(".", at):
            break
        at += 1
    return tuple(names), at


def _resolve(names: tuple[str, ...], counts: dict[_Path, int], double: bool) -> _Path:
    """The path of a table's header: a name that has been a list means its last entry."""
    path: _Path = ()
    for i, name in enumerate(names):
        path = (*path, name)
        if double and i == len(names) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path


def _next_statement(text: str, at: int, line: int) -> tuple[int, int]:
    """Past the end of the line on which the statement that goes on at `at` ends."""
    depth = 0
    while match := _SKIP.match(text, at):
        piece, at = match[0], match.end()
        line += piece.count("\n")
        if piece == "\n" and depth <= 0:
            break
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(piece, 0)
    return at, line


# -- writing -----------------------------------------------------------------------------------


def starter(
    *,
    target: str,
    hub: str,
    checks: Sequence[Check],
    setup: str = "",
    setup_inputs: Sequence[str] = (),
    keep: Sequence[str] = (),
    tasks: str = "tasks",
) -> str:
    """The `swarm.toml` of a new user: only what was found out, and what is worth knowing.

    Parses back to exactly these values, all others being the defaults.
    """
    lines = [
        "# What is not said here has its default; docs/configuration.md lists every key.",
        f"format = {FORMAT}",
        f"target = {_toml(target)}",
        f"hub = {_toml(hub)}",
        *([f"tasks = {_toml(tasks)}"] if tasks != "tasks" else []),
        "",
        "[run]",
        "slots = 2                     # agents at once; -n",
        '# agent = "claude"            # --agent; no default: `swarm run` lists what is on PATH',
        "",
        "[limits]",
        "# run_cost_usd = 20.00         # of a run, as --max-cost; more limits: docs/agents.md",
    ]
    if setup or setup_inputs or keep:
        lines += ["", "[worktree]"]
        if setup:
            lines.append(f"setup = {_toml(setup)}")
        if setup_inputs:
            lines.append(f"setup_inputs = {_toml(setup_inputs)}   # again when one of them changes")
        if keep:
            lines.append(f"keep = {_toml(keep)}   # ignored paths that survive between claims")
    lines += ["", "# Only what passes every check, as merged, lands. None: nothing lands."]
    for check in checks:
        lines += ["[[checks]]", *_settings(check), ""]
    if not checks:
        lines += ["# [[checks]]", '# name = "tests"', '# run = "make test"', ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _settings(check: Check) -> list[str]:
    lines = []
    for field in msgspec.structs.fields(check):
        value = getattr(check, field.name)
        default = field.default_factory() if field.default_factory is dict else field.default
        if value == default or isinstance(value, Table):
            continue
        lines.append(f"{field.encode_name} = {_toml(value)}")
    if check.codes != Codes():
        lines.append("[checks.codes]")
        lines += [
            f"{name} = {_toml(codes)}"
            for name in ("could_not_run", "flaky")
            if (codes := getattr(check.codes, name))
        ]
    return lines


def _toml(value: object) -> str:
    match value:
        case str() if '"' in value and "'" not in value and value.isprintable():
            return f"'{value}'"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case timedelta():
            return f'"{_span(value)}"'
        case Mapping():
            pairs = ", ".join(f"{name} = {_toml(text)}" for name, text in value.items())
            return f"{{ {pairs} }}"
        case Sequence():
            return "[" + ", ".join(_toml(one) for one in value) + "]"
        case _:
            return json.dumps(value)


def _span(span: timedelta) -> str:
    minutes, seconds = divmod(int(span.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (seconds, "s"))
    return "".join(f"{count}{unit}" for count, unit in parts if count) or "0s"
