"""Asking agent programs what they are, without an agent being started.

Enters: adapters, an environment. Leaves: versions, and whether somebody is logged in.
Guards: a program is asked with a time limit and little in its environment; what it does not say is
None.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal as signals
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from swarm.adapter import Adapter, load, names, resolve
from swarm.environment import fill, for_probe
from swarm.errors import UsageError

PROBE_SECONDS = 5.0
MAX_SAID = 1 << 20  # bytes: who prints more is ended, and has said nothing
_VERSION = re.compile(r"\d+(?:\.\d+)+[\w.+-]*", re.ASCII)
_MAX_VERSION = 30  # characters
_NOT_RUN = 126  # from here on a shell says that the program itself never ran


@dataclass(frozen=True, kw_only=True)
class Found:
    """What is known of one adapter's program."""

    program: str | None  # its absolute path; None: it is not there, or is typed after `--`
    version: str | None  # None: it does not say
    is_logged_in: bool | None  # None: nothing tells


def found_on_path(path: str) -> list[tuple[str, str | None]]:
    """(name, version) of each built-in adapter whose program is on this PATH, sorted by name.

    The version is None when the program did not say within five seconds. All are asked at once,
    with nothing in their environment but PATH and HOME. A relative entry of PATH is not looked at.
    """
    known = [adapter for adapter in (load(name, None) for name in names(None)) if adapter.version]
    there = [
        (adapter, program)
        for adapter in known
        if (program := find_program(adapter, path, None)) is not None
    ]
    environ = {"PATH": path, "HOME": os.environ.get("HOME", "/")}
    answers = _ask([_version_question(adapter, program, environ) for adapter, program in there])
    return [
        (adapter.name, _version_said(answer))
        for (adapter, _), answer in zip(there, answers, strict=True)
    ]


def version_of(adapter: Adapter, program: str, environ: Mapping[str, str]) -> str | None:
    """What the program says of itself; None when it does not within five seconds."""
    return _version_said(_ask([_version_question(adapter, program, environ)])[0])


def logged_in(
    adapter: Adapter,
    environ: Mapping[str, str],
    home: Path | None = None,
    passed: Iterable[str] = (),
) -> bool | None:
    """Is somebody logged in, by the adapter's `[login]`? None: nothing tells.

    Args:
        environ: the runner's own.
        home: a private HOME of agents; None: the user's.
        passed: name globs that agents are given beyond the adapter's own.
    """
    env = _login_env(adapter, environ, home, passed)
    program = find_program(adapter, environ.get("PATH", os.defpath), None)
    return _login_said(adapter, env, _ask([_login_question(adapter, program, env)])[0])


def find_out(
    asked: Sequence[tuple[Adapter, str | None]],
    environ: Mapping[str, str],
    home: Path | None = None,
    passed: Iterable[str] = (),
) -> list[Found]:
    """What each program (as `find_program` found it) says, in their order; all are asked at once.

    Returns after five seconds at the latest, whatever the programs do. The other arguments are
    those of `logged_in`.
    """
    globs = tuple(passed)
    envs = [_login_env(adapter, environ, home, globs) for adapter, _ in asked]
    questions: list[_Question | None] = []
    for (adapter, program), env in zip(asked, envs, strict=True):
        questions.append(_version_question(adapter, program, environ))
        questions.append(_login_question(adapter, program, env))
    answers = iter(_ask(questions))
    return [
        Found(
            program=program,
            version=_version_said(next(answers)),
            is_logged_in=_login_said(adapter, env, next(answers)),
        )
        for (adapter, program), env in zip(asked, envs, strict=True)
    ]


def find_program(adapter: Adapter, path: str, checkout: Path | None) -> str | None:
    """The absolute path of an adapter's program; None: not there, or typed after `--`.

    As `adapter.argv` finds it, but that a relative entry of PATH is not looked at: a look into
    some folder must not start what lies there.
    """
    if adapter.program is None:
        return None
    known = {"python": sys.executable} | ({"checkout": str(checkout)} if checkout else {})
    absolute = os.pathsep.join(e for e in path.split(os.pathsep) if Path(e).is_absolute())
    try:
        program = fill(adapter.program, known, where="program")
        return resolve(program, typed_in=Path.cwd(), path=absolute)
    except UsageError:
        return None


def _has_key(adapter: Adapter, env: Mapping[str, str]) -> bool:
    """Is there a key or a log-in, as far as can be seen without starting anything?"""
    login = adapter.login
    home = Path(env.get("HOME", "/"))
    with contextlib.suppress(ValueError):  # a NUL in a name of `files`
        if any(os.access(home / file.removeprefix("~/"), os.F_OK) for file in login.files):
            return True
    return any(env.get(name) for name in login.env)


def _login_env(
    adapter: Adapter, environ: Mapping[str, str], home: Path | None, passed: Iterable[str]
) -> dict[str, str]:
    globs = (*adapter.env.pass_, *passed)
    return for_probe(environ, passed=globs, settings=adapter.env.set, home=home)


def _login_question(
    adapter: Adapter, program: str | None, env: Mapping[str, str]
) -> _Question | None:
    words = adapter.login.argv
    if program is None or words is None or _has_key(adapter, env):
        return None
    return _Question((program, *words), env)


def _login_said(adapter: Adapter, env: Mapping[str, str], answer: _Answer | None) -> bool | None:
    if _has_key(adapter, env):
        return True
    if answer is None or answer.code >= _NOT_RUN:
        return None
    return answer.code == 0


def _version_question(
    adapter: Adapter, program: str | None, environ: Mapping[str, str]
) -> _Question | None:
    if program is None or adapter.version is None:
        return None
    env = {name: environ[name] for name in ("PATH", "HOME") if name in environ}
    return _Question((program, *adapter.version), env)


def _version_said(answer: _Answer | None) -> str | None:
    if answer is None or answer.code != 0:
        return None
    said = _VERSION.search(answer.said)
    return said[0][:_MAX_VERSION] if said else None


# Asking


@dataclass(frozen=True)
class _Question:
    """What is started to be asked, with all that it finds in its environment."""

    command: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True)
class _Answer:
    """How it ended, by itself and in time."""

    code: int
    said: str  # the beginning of its standard output


def _ask(questions: Sequence[_Question | None]) -> list[_Answer | None]:
    """Ask all at once. None: nothing was asked, or nothing was answered in time."""
    deadline = time.monotonic() + PROBE_SECONDS
    with contextlib.ExitStack() as stack:
        asked = [None if q is None else stack.enter_context(_Asked(q)) for q in questions]
        waiting = [one for one in asked if one is not None]
        while waiting and time.monotonic() < deadline:
            waiting = [one for one in waiting if not one.is_over()]
            time.sleep(0.01 if waiting else 0)
        return [None if one is None else one.answer for one in asked]


class _Asked:
    """One program at work, in a group of its own, which ends with this."""

    def __init__(self, question: _Question) -> None:
        self._question = question
        self._process: subprocess.Popen[bytes] | None = None
        # A file and not a pipe: a loader's child that outlives it would hold a pipe open.
        self._output: io.BufferedRandom = tempfile.TemporaryFile()  # noqa: SIM115
        self.answer: _Answer | None = None

    def __enter__(self) -> Self:
        # OSError: not a program after all. ValueError: a NUL in an adapter's words.
        with contextlib.suppress(OSError, ValueError):
            self._process = subprocess.Popen(
                self._question.command,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.DEVNULL,
                env=self._question.env,
                cwd="/",
                start_new_session=True,
            )
        return self

    def is_over(self) -> bool:
        """Has it answered, or will it never?"""
        if self._process is None:
            return True
        if os.fstat(self._output.fileno()).st_size > MAX_SAID:
            self._end()
            return True
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return False
        if ended.si_code == os.CLD_EXITED:
            self._output.seek(0)
            said = self._output.read(4096).decode(errors="replace")
            self.answer = _Answer(ended.si_status, said)
        return True

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            # Not yet waited for, so its number and its group's are still its own. (macOS answers
            # EPERM for a group of zombies.)
            with contextlib.suppress(PermissionError):
                os.killpg(process.pid, signals.SIGKILL)
            process.wait()

    def __exit__(self, *_: object) -> None:
        self._end()
        self._output.close()
