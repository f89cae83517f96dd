"""What an agent, a check or a setup command finds in its environment.

Enters: the runner's own environment, the configuration's and the adapter's lists, a slot's facts.
Leaves: a complete environment. Guards: nothing is inherited that was not listed; no `GIT_*`, no
interpreter of the user's checkout and no key of another agent reaches a child by accident.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

import msgspec

from swarm.errors import UsageError

BASE = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_*",
    "TZ",
    "XDG_*",
    "SSL_CERT_*",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
# Stronger than every `pass` list. SWARM_* is here so that a run inside an agent of another run
# does not hand on the outer mark, by which the outer runner finds and ends what is its own.
NEVER = ("GIT_*", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "CONDA_*", "SWARM_*")

SET_PLACEHOLDERS = frozenset({"slot", "port", "task", "attempt", "worktree"})
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SLOT = re.compile(r"([shgp])([1-9][0-9]*)")
_FAMILIES = {"s": 0, "h": 100, "g": 200, "p": 300}
_MAX_PORT = 65535


def for_person(source: Mapping[str, str]) -> dict[str, str]:
    """For a person's own command, which speaks to their forge, desktop or chat: all of theirs."""
    return {
        name: value
        for name, value in source.items()
        if not any(fnmatchcase(name, glob) for glob in NEVER)
    }


def for_probe(
    source: Mapping[str, str],
    *,
    passed: Iterable[str],
    settings: Mapping[str, str],
    home: Path | None = None,
) -> dict[str, str]:
    """For a program that is asked who is logged in: where it keeps that, and its own variables.

    Args:
        passed: name globs, as an agent's.
        settings: the adapter's `env.set`; what only an attempt can fill in is left out.
        home: a private HOME, with which no `XDG_*` is inherited. None: the user's.
    """
    base = ("PATH", "HOME") if home is not None else ("PATH", "HOME", "XDG_*")
    globs = (*base, *passed)
    made = {
        name: value
        for name, value in source.items()
        if _matches(name, globs) and not _matches(name, NEVER)
    }
    made |= {name: text for name, text in settings.items() if not placeholders_in(text)}
    return made if home is None else made | {"HOME": str(home)}


class EnvSettings(Protocol):
    """`[env]` of the configuration."""

    @property
    def pass_(self) -> Collection[str]:
        """Name globs passed on beyond the base list."""

    @property
    def set(self) -> Mapping[str, str]:
        """Values with placeholders."""

    @property
    def port_base(self) -> int: ...

    @property
    def ports(self) -> int:
        """Ports per slot."""


class SlotFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Where the command runs, and for which task if for one."""

    name: str  # s1.. of a loop, h1.. of a claim by hand, g1.. of the gate, p1.. of a plan
    worktree: Path
    task: str = ""  # "": none, as in the gate, where a candidate may hold many
    attempt: int = 0

    @property
    def number(self) -> int:
        """`s1` is 1, `h1` 101, `g1` 201, `p1` 301; from 100 of a family on 400 further: unique."""
        match = _SLOT.fullmatch(self.name)
        if match is None:
            raise ValueError(f"{self.name} is no slot name")
        hundreds, rest = divmod(int(match[2]), 100)
        return 100 * len(_FAMILIES) * hundreds + _FAMILIES[match[1]] + rest


class AgentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What only an agent is told."""

    run: str
    target: str  # branch name
    prompt: Path  # a file with the prompt that is also on its standard input
    task_file: Path
    report: Path  # where a program can write what it used, as one JSON object
    mark: str  # secret of this attempt, by which its processes are found


def placeholders_in(text: str) -> list[str]:
    """Names in `{name}`, in order. Braces around anything but a name, as in JSON, are text."""
    return _PLACEHOLDER.findall(text)


def fill(text: str, values: Mapping[str, str], *, where: str) -> str:
    """Each `{name}` replaced once; what a value holds is never expanded again.

    Raises:
        UsageError: a name that `values` lacks; `where` says in which setting.
    """
    for name in placeholders_in(text):
        if name not in values:
            raise UsageError(
                f"{where}: unknown placeholder {{{name}}}",
                hint="known: " + " ".join(f"{{{known}}}" for known in sorted(values)),
            )
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)


def first_port(slot: SlotFacts, settings: EnvSettings) -> int:
    """The slot's first port: `port_base + ports * number`; gate slots have ports of their own.

    Raises:
        UsageError: its ports would end above 65535.
    """
    port = settings.port_base + settings.ports * slot.number
    if port + max(settings.ports, 1) - 1 > _MAX_PORT:
        raise UsageError(
            f"slot {slot.name} has no ports left: they would start at {port}",
            hint="lower [env] port_base or ports in swarm.toml",
        )
    return port


def for_agent(
    source: Mapping[str, str],
    *,
    adapter_pass: Iterable[str],
    adapter_set: Mapping[str, str],
    adapter_set_as_root: Mapping[str, str],
    settings: EnvSettings,
    slot: SlotFacts,
    agent: AgentFacts,
    checkout: Path,
    tmpdir: Path,
    home: Path | None = None,
    commands: Path | None = None,
    is_root: bool | None = None,
) -> dict[str, str]:
    """The whole environment of an agent; later wins: inherited, adapter, `[env.set]`, `SWARM_*`.

    Args:
        source: the runner's own environment.
        commands: a folder with `swarm` and nothing else, first on PATH: what the prompt says to
            type is the swarm that reads it, and no interpreter or tool of its environment comes
            along.
        tmpdir: private to this attempt; the caller makes it and takes it away.
        home: a private HOME; then no `XDG_*` is inherited either. None: the user's.
        is_root: None asks the kernel.

    Raises:
        UsageError: an unknown placeholder or a bad name in a `set`, or no port left.
    """
    values = _values(slot, settings)
    made = _inherited(source, (*adapter_pass, *settings.pass_), slot, checkout, tmpdir, home)
    made |= _filled(adapter_set, values, where="adapter env.set")
    if os.geteuid() == 0 if is_root is None else is_root:
        made |= _filled(adapter_set_as_root, values, where="adapter env.set_as_root")
    made |= _filled(settings.set, values, where="[env.set]")
    if commands is not None:
        made["PATH"] = os.pathsep.join([str(commands), made.get("PATH") or os.defpath])
    return made | {
        "SWARM_TASK": slot.task,
        "SWARM_ATTEMPT": str(slot.attempt),
        "SWARM_SLOT": slot.name,
        "SWARM_PORT": values["port"],
        "SWARM_RUN": agent.run,
        "SWARM_TARGET": agent.target,
        "SWARM_PROMPT": str(agent.prompt),
        "SWARM_TASK_FILE": str(agent.task_file),
        "SWARM_REPORT": str(agent.report),
        "SWARM_MARK": agent.mark,
    }


def for_check(
    source: Mapping[str, str],
    *,
    settings: EnvSettings,
    check_env: Mapping[str, str],
    slot: SlotFacts,
    checkout: Path,
    tmpdir: Path,
    home: Path | None = None,
) -> dict[str, str]:
    """The whole environment of a check, setup or teardown (`check_env` empty for the latter two).

    `check_env` takes the placeholders of `[env.set]` and wins over it. Where there is no task, the
    slot's name stands for `{task}`, so that what is named after it is still nobody else's.

    Raises:
        UsageError: as for_agent.
    """
    values = _values(slot, settings)
    made = _inherited(source, settings.pass_, slot, checkout, tmpdir, home)
    made |= _filled(settings.set, values, where="[env.set]")
    made |= _filled(check_env, values, where="env of the check")
    return made | {"SWARM_SLOT": slot.name, "SWARM_PORT": values["port"]}


def _values(slot: SlotFacts, settings: EnvSettings) -> dict[str, str]:
    return {
        "slot": slot.name,
        "port": str(first_port(slot, settings)),
        "task": slot.task or slot.name,
        "attempt": str(slot.attempt),
        "worktree": str(slot.worktree),
    }


def _inherited(
    source: Mapping[str, str],
    passed: Iterable[str],
    slot: SlotFacts,
    checkout: Path,
    tmpdir: Path,
    home: Path | None,
) -> dict[str, str]:
    base = BASE if home is None else tuple(glob for glob in BASE if glob != "XDG_*")
    globs = (*base, *passed)
    made = {
        name: value
        for name, value in source.items()
        if _matches(name, globs) and not _matches(name, NEVER)
    }
    if "PATH" in made:
        made["PATH"] = moved_path(made["PATH"], checkout=checkout, worktree=slot.worktree)
    made |= {"TERM": "dumb", "TMPDIR": str(tmpdir)}
    if home is not None:
        made["HOME"] = str(home)
    return made


def _matches(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def _filled(
    settings: Mapping[str, str], values: Mapping[str, str], *, where: str
) -> dict[str, str]:
    filled = {}
    for name, text in settings.items():
        if _VARIABLE.fullmatch(name) is None or "\0" in text:
            raise UsageError(f"{where}: {name!r} is no variable that a program can be given")
        filled[name] = fill(text, values, where=f"{where} {name}")
    return filled


def moved_path(path: str, *, checkout: Path, worktree: Path) -> str:
    """PATH with every entry inside the checkout moved to the same place inside the worktree.

    A relative entry stays: it already means the child's own folder.
    """
    return os.pathsep.join(
        _moved(entry, checkout=checkout, worktree=worktree) for entry in path.split(os.pathsep)
    )


def _moved(entry: str, *, checkout: Path, worktree: Path) -> str:
    path = Path(entry)
    if not path.is_absolute() or path.is_relative_to(worktree):
        return entry
    # By the name as written first: `.venv` may be a link to somewhere else and still be the
    # checkout's. Then by where it leads: `~/bin` may be a link into the checkout.
    for spelled in (path, path.resolve()):
        for above in (spelled, *spelled.parents):
            if _same(above, checkout):
                return str(worktree / spelled.relative_to(above))
    return entry


def _same(one: Path, other: Path) -> bool:
    try:
        return one == other or one.samefile(other)
    except OSError:  # an entry of PATH need not exist
        return False
