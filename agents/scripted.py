"""An agent without a model: plays one attempt of a script, step by step, in the current folder.

Enters: a script, an attempt's number, the prompt on standard input. Leaves: files, commits,
processes and an exit code. Guards: no shell, no path outside the folder it was started in.

    python -m swarm.agents.scripted SCRIPT.toml --attempt N

Ends with 0 when every step was played, 1 when a step failed, 2 when the script cannot be played,
and as an `exit` or `crash` step says. Each failure is one line on standard error.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgspec

from swarm.ids import fold, parse_duration
from swarm.ledger.records import attempts_path, done_path, lock_path

LEDGER = "refs/swarm/ledger"
POLL_SECONDS = 0.05
PROMPT = "{prompt}"


class Unplayable(Exception):
    """The script, not what it does, is wrong."""


class StepFailed(Exception):
    """A step did not do what it says."""


class _Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step is a table whose first meaning is the one key that names its kind."""


class Write(_Step, frozen=True):
    """A whole file, its folders made as needed."""

    write: str
    text: str


class Append(_Step, frozen=True):
    """To a file that may be new."""

    append: str
    text: str


class Replace(_Step, frozen=True):
    """`old` must be in the file exactly once."""

    replace: str
    old: str
    new: str


class Delete(_Step, frozen=True):
    """One file, which must exist."""

    delete: str


class Commit(_Step, frozen=True):
    """`git add -A && git commit`, as an agent types it; fails with nothing to commit."""

    commit: str


class Say(_Step, frozen=True):
    """A line on standard output."""

    say: str


class Sleep(_Step, frozen=True):
    """A duration: `60s`."""

    sleep: str


class Run(_Step, frozen=True):
    """A command, to its end; another exit code than those of `ok` fails the step."""

    run: list[str]
    ok: tuple[int, ...] = (0,)


class Spawn(_Step, frozen=True):
    """A command that is left running; detached: in a session of its own, without output."""

    spawn: list[str]
    detached: bool = False


class Wait(_Step, frozen=True):
    """Until another task was ever claimed, or has landed."""

    wait: str
    is_: Literal["claimed", "landed"] = msgspec.field(name="is")
    within: str = "120s"


class Expect(_Step, frozen=True):
    """The text must be in a file or in `{prompt}`."""

    expect: str
    in_: str = msgspec.field(name="in")


class Crash(_Step, frozen=True):
    """Dies by this signal."""

    crash: str


class Use(_Step, frozen=True):
    """Says what it used, into the file that SWARM_REPORT names: `use = { cost_usd = 0.6 }`."""

    use: dict[str, float | int | str]


class Exit(_Step, frozen=True):
    """Ends with this code."""

    exit: int


KINDS: dict[str, type[_Step]] = {
    kind.__name__.lower(): kind
    for kind in (
        Write,
        Append,
        Replace,
        Delete,
        Commit,
        Say,
        Sleep,
        Run,
        Spawn,
        Wait,
        Expect,
        Crash,
        Use,
        Exit,
    )
}


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a script is played."""

    folder: Path  # resolved
    prompt: str

    def inside(self, name: str) -> Path:
        """
        Raises:
            StepFailed: the path leads out of the folder, by a link too.
        """
        path = (self.folder / name).resolve()
        if path == self.folder or not path.is_relative_to(self.folder):
            raise StepFailed(f"{name} is not inside the worktree")
        return path

    def entry(self, name: str) -> Path:
        """As inside, but of a link the link itself and not what it leads to."""
        path = self.folder / name
        if path.name == "..":
            raise StepFailed(f"{name} is not inside the worktree")
        return self.inside(str(path.parent / "entry")).with_name(path.name)

    def read(self, name: str) -> str:
        try:
            return self.inside(name).read_bytes().decode()
        except UnicodeDecodeError as error:
            raise StepFailed(f"{name} is not UTF-8 text") from error


# -- reading a script -----------------------------------------------------------------------------


def load_steps(script: Path, attempt: int) -> list[_Step]:
    """The steps of one attempt; with more attempts than written, the last one repeats.

    Raises:
        Unplayable: no such file, or any attempt of it is not written as documented.
    """
    try:
        raw = tomllib.loads(script.read_bytes().decode())
    except OSError as error:
        raise Unplayable(str(error.strerror)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Unplayable(str(error)) from error
    attempts = raw.pop("attempt", None)
    if raw.pop("format", 1) != 1:
        raise Unplayable("unknown format, want 1")
    for key in raw:
        raise Unplayable(f"unknown key {key}, want [[attempt]]")
    if not isinstance(attempts, list) or not attempts:
        raise Unplayable("no [[attempt]]")
    played = [_attempt(number, table) for number, table in enumerate(attempts, start=1)]
    return played[min(attempt, len(played)) - 1]


def _attempt(number: int, table: Any) -> list[_Step]:
    if not isinstance(table, dict) or not isinstance(table.get("step"), list) or len(table) != 1:
        raise Unplayable(f"attempt {number}: want one key, step, a list")
    made = []
    for index, step in enumerate(table["step"], start=1):
        try:
            made.append(_step(step))
        except ValueError as error:  # msgspec's ValidationError is one
            raise Unplayable(f"attempt {number}, step {index}: {error}") from error
    return made


def _step(table: Any) -> _Step:
    if not isinstance(table, dict):
        raise ValueError("want a table")
    kinds = [key for key in table if key in KINDS]
    if len(kinds) != 1:
        found = " and ".join(kinds) or "none of them in " + " ".join(table)
        raise ValueError(f"want exactly one of {' '.join(KINDS)}; found {found}")
    kind = KINDS[kinds[0]]
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    for key in table:
        if key not in known:
            raise ValueError(f"unknown key {key} of {kinds[0]}, known: {' '.join(known)}")
    step = msgspec.convert(table, kind)
    # Paths and words cannot hold one; a file's `text` can.
    if any("\0" in word for word in (*_words_of(table[kinds[0]]), *_words_of(table.get("in")))):
        raise ValueError(f"{kinds[0]} holds a NUL character")
    match step:
        case Sleep(text) | Wait(within=text):
            parse_duration(text)
        case Crash(name) if name not in signal.Signals.__members__:
            raise ValueError(f"there is no signal {name}")
        case Exit(code) if not 0 <= code <= 255:
            raise ValueError(f"exit wants 0 to 255, got {code}")
        case Run([]) | Spawn([]):
            raise ValueError(f"{kinds[0]} wants a program")
    if isinstance(step, Wait):
        fold(step.wait)
    return step


def _words_of(value: Any) -> list[str]:
    return [
        word for word in (value if isinstance(value, list) else [value]) if isinstance(word, str)
    ]


# -- playing it -----------------------------------------------------------------------------------


def play(steps: list[_Step], stage: Stage) -> None:
    """Plays the steps in order.

    Raises:
        StepFailed: one did not do what it says; those before it stay done.
        SystemExit: of an `exit` step.
    """
    for number, step in enumerate(steps, start=1):
        try:
            _play(step, stage)
        except StepFailed as error:
            kind = type(step).__name__.lower()
            raise StepFailed(f"step {number}, {kind}: {error}") from error
        except OSError as error:
            kind = type(step).__name__.lower()
            named = f"{error.filename}: " if error.filename else ""
            raise StepFailed(f"step {number}, {kind}: {named}{error.strerror}") from error


def _play(step: _Step, stage: Stage) -> None:
    match step:
        case Write(name, text):
            _put(stage.inside(name), text)
        case Append(name, text):
            path = stage.inside(name)
            _put(path, (stage.read(name) if path.exists() else "") + text)
        case Replace(name, old, new):
            _replace(stage, name, old, new)
        case Delete(name):
            stage.entry(name).unlink()
        case Commit(message):
            _run(["git", "add", "-A"])
            _run(["git", "commit", "-q", f"--message={message}"])
        case Say(text):
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
        case Use(figures):
            Path(os.environ["SWARM_REPORT"]).write_text(json.dumps(figures))
        case Sleep(text):
            time.sleep(parse_duration(text).total_seconds())
        case Run(words, ok):
            _run(words, ok)
        case Spawn(words, detached):
            _spawn(words, detached)
        case Wait(task, is_, within):
            _wait(fold(task), is_, parse_duration(within), stage.folder)
        case Expect(text, name):
            if text not in (stage.prompt if name == PROMPT else stage.read(name)):
                raise StepFailed(f"{text!r} is not in {name}")
        case Crash(name):
            _crash(signal.Signals[name])
        case Exit(code):
            sys.exit(code)


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


def _replace(stage: Stage, name: str, old: str, new: str) -> None:
    text = stage.read(name)
    if (count := text.count(old) if old else 0) != 1:
        raise StepFailed(f"{old!r} is in {name} {count} times, want once")
    _put(stage.inside(name), text.replace(old, new))


def _words(words: list[str]) -> list[str]:
    return [sys.executable, *words[1:]] if words[0] == "python" else words


def _run(words: list[str], ok: tuple[int, ...] = (0,)) -> None:
    sys.stdout.flush()
    code = subprocess.run(_words(words), stdin=subprocess.DEVNULL, check=False).returncode
    if code not in ok:
        ended = f"exit {code}" if code >= 0 else signal.Signals(-code).name
        raise StepFailed(f"{' '.join(words)}: {ended}")


_spawned: list[subprocess.Popen[bytes]] = []  # kept, or Python warns of each at its collection


def _spawn(words: list[str], detached: bool) -> None:
    sys.stdout.flush()
    output = subprocess.DEVNULL if detached else None
    _spawned.append(
        subprocess.Popen(
            _words(words),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=detached,
        )
    )


def _crash(number: signal.Signals) -> NoReturn:
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    raise StepFailed(f"{number.name} does not end a process")


# -- what other agents did ------------------------------------------------------------------------


def _wait(task: str, is_: str, within: timedelta, folder: Path) -> None:
    hub = _hub(folder)
    holds = _has_landed if is_ == "landed" else _was_claimed
    deadline = time.monotonic() + within.total_seconds()
    while not holds(hub, task):
        if time.monotonic() >= deadline:
            raise StepFailed(f"{task} is not {is_} within {int(within.total_seconds())}s")
        time.sleep(POLL_SECONDS)


def _hub(folder: Path) -> Path:
    """The hub that this slot's repository borrows objects from."""
    common = _git("-C", str(folder), "rev-parse", "--git-common-dir")
    if common is None:
        raise StepFailed("not in a git worktree")
    objects = folder / common.decode().rstrip("\n") / "objects"
    alternates = objects / "info" / "alternates"
    lines = alternates.read_text().splitlines() if alternates.exists() else []
    for line in lines:
        hub = (objects / line).parent
        if line and not line.startswith("#") and (hub / "HEAD").exists():
            return hub
    raise StepFailed("not in a slot: its repository borrows from no hub")


def _was_claimed(hub: Path, task: str) -> bool:
    # The attempts record stays when the lock goes: a claim that was short is not missed.
    return any(_file(hub, path) is not None for path in (lock_path(task), attempts_path(task)))


def _has_landed(hub: Path, task: str) -> bool:
    record = _file(hub, done_path(task))
    if record is None:
        return False
    try:
        return bool(json.loads(record)["result"] == "landed")
    except (ValueError, TypeError, KeyError):
        return False


def _file(hub: Path, path: str) -> bytes | None:
    return _git(f"--git-dir={hub}", "cat-file", "blob", f"{LEDGER}:{path}")


def _git(*words: str) -> bytes | None:
    """What git prints, or None when it says no."""
    done = subprocess.run(
        ["git", *words], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return done.stdout if done.returncode == 0 else None


# -- the program ----------------------------------------------------------------------------------


def _arguments(words: list[str]) -> tuple[Path, int]:
    match words:
        case [script, "--attempt", number] if number.isascii() and number.isdigit():
            if int(number) >= 1:
                return Path(script), int(number)
    raise Unplayable("usage: python -m swarm.agents.scripted SCRIPT.toml --attempt N")


def _prompt() -> str:
    # Read to its end at once, as real agents do: the runner sees that the prompt was taken.
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    return sys.stdin.buffer.read().decode(errors="replace")


def main(words: list[str]) -> int:
    """Plays; returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # stopped, not a traceback
    script: Path | None = None
    try:
        script, attempt = _arguments(words)
        steps = load_steps(script, attempt)
        play(steps, Stage(folder=Path.cwd().resolve(), prompt=_prompt()))
    except Unplayable as error:
        return _fail(script, error, 2)
    except StepFailed as error:
        return _fail(script, error, 1)
    return 0


def _fail(script: Path | None, error: Exception, code: int) -> int:
    place = f"{script}: " if script is not None else ""
    sys.stderr.write(" ".join(f"{place}{error}".split()) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
