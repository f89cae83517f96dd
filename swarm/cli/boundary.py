"""Where every error of a command ends up.

Enters: arguments. Leaves: an exit code, and for an error one message with why and a hint.
Guards: the only broad `except` of the package; a bug leaves a report that can be pasted.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

import click

from swarm import __version__
from swarm.cli.verbs import swarm
from swarm.errors import Exit, SwarmError


def run(argv: Sequence[str]) -> int:
    """Run one command; never raises."""
    wants_json = "--json" in argv
    try:
        result = swarm.main(args=list(argv), prog_name="swarm", standalone_mode=False)
        return int(result) if isinstance(result, int) else 0
    except SwarmError as error:
        show(error, wants_json)
        return int(error.exit_code)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.Abort:
        return int(Exit.INTERRUPTED)
    except click.ClickException as error:
        error.show()
        return int(Exit.USAGE)
    except KeyboardInterrupt:
        return int(Exit.INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # `| head` is no error
        return 0
    except Exception as bug:  # noqa: BLE001
        click.echo(f"bug: {type(bug).__name__}: {bug}", err=True)
        click.echo(f"  a report was written to {_report(argv)}", err=True)
        return int(Exit.BUG)


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
    click.echo(f"error: {error.what}", err=True)
    for line in (error.why or "").splitlines():
        click.echo(f"  {line}", err=True)
    for line in (error.hint or "").splitlines():
        click.echo(f"  hint: {line}", err=True)


def _report(argv: Sequence[str]) -> Path:
    handle, name = tempfile.mkstemp(prefix="swarm-bug-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(f"swarm {__version__}, python {sys.version.split()[0]}, {platform.platform()}\n")
        file.write(f"swarm {' '.join(argv)}\n\n{traceback.format_exc()}")
    return Path(name)
