"""Where every error of a command ends up.

Enters: arguments. Leaves: an exit code, and for an error one message with why and a hint.
Guards: no other broad `except`, but for the one that hands a thread's crash on to here; a bug
leaves a report that can be pasted.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import select
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

import click

from swarm import __version__
from swarm.cli.verbs import swarm
from swarm.errors import Exit, HubUnusable, SwarmError
from swarm.trailers import plain

# What no program can do anything about: rights, room, a disk that fails.
_ENVIRONMENT = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE}
)


def run(argv: Sequence[str]) -> int:
    """Run one command; never raises."""
    _open_streams()
    try:
        return _run(argv)
    except OSError:  # standard error cannot be written either: say it by the code alone
        _mute(1, 2)
        return int(Exit.NO)


def _run(argv: Sequence[str]) -> int:
    wants_json = "--json" in argv
    try:
        result = swarm.main(args=list(argv), prog_name="swarm", standalone_mode=False)
        code = int(result) if isinstance(result, int) else 0
        sys.stdout.flush()
        return code
    except SwarmError as error:
        show(error, wants_json)
        return int(error.exit_code)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except SystemExit:  # click's own answer to a pipe that broke
        if not _has_no_reader():
            raise
        _mute(1)
        return 0  # `| head` is no error
    except click.Abort:
        return int(Exit.INTERRUPTED)
    except click.ClickException as error:
        error.show()
        return int(Exit.USAGE)
    except KeyboardInterrupt:
        return int(Exit.INTERRUPTED)
    except Exception as bug:  # noqa: BLE001
        if isinstance(bug, OSError) and bug.filename is not None and bug.errno in _ENVIRONMENT:
            what = f"{bug.strerror}: {os.fsdecode(bug.filename)}"
            show(HubUnusable(what, hint="swarm doctor"), wants_json)
            return int(Exit.BUSY)
        lost = _lost_output() if isinstance(bug, OSError) and bug.filename is None else None
        if lost is not None:
            _mute(1)
            if isinstance(lost, BrokenPipeError):
                return 0
            click.echo(f"error: standard output cannot be written: {lost.strerror}", err=True)
            return int(Exit.NO)
        click.echo(f"bug: {type(bug).__name__}: {bug}", err=True)
        click.echo(f"  a report was written to {_report(argv)}", err=True)
        return int(Exit.BUG)


def _open_streams() -> None:
    """A closed standard stream is /dev/null: else the next file that is opened takes its number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            null = Path(os.devnull).open("r" if name == "stdin" else "w")  # noqa: SIM115
            setattr(sys, name, null)


def _lost_output() -> OSError | None:
    """Why standard output cannot be written: the error alone does not say which file it was of."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError as error:
        return error
    return None


def _has_no_reader() -> bool:
    poll = select.poll()
    poll.register(1, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _mute(*numbers: int) -> None:
    """Let Python's own last flush succeed."""
    for number in numbers:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)


def show(error: SwarmError, wants_json: bool = False) -> None:
    """One error: what, why, a hint."""
    if wants_json:
        click.echo(
            json.dumps(
                {
                    "schema": "swarm.error/1",
                    "error": type(error).__name__,
                    "exit_code": int(error.exit_code),
                    "what": error.what,
                    "why": error.why,
                    "hint": error.hint,
                }
            )
        )
        return
    # What is wrong is often a name that somebody else chose.
    click.echo(f"error: {plain(error.what)}", err=True)
    for line in plain(error.why or "").splitlines():
        click.echo(f"  {line}", err=True)
    hints = plain(error.hint or "").splitlines()
    if hints and hints[0].startswith("["):  # lines of TOML are one hint, to be pasted whole
        click.echo("  hint: in swarm.toml:\n", err=True)
        hints = [f"    {line}" for line in hints]
    else:
        hints = [f"  hint: {line}" for line in hints]
    for line in hints:
        click.echo(line, err=True)


def _report(argv: Sequence[str]) -> Path:
    handle, name = tempfile.mkstemp(prefix="swarm-bug-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(f"swarm {__version__}, python {sys.version.split()[0]}, {platform.platform()}\n")
        file.write(f"swarm {' '.join(argv)}\n\n{traceback.format_exc()}")
    return Path(name)
