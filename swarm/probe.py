"""Asking agent programs what they are, without an agent being started.

Enters: adapters, a PATH. Leaves: versions, and whether somebody is logged in.
Guards: a program is asked with a time limit and little in its environment; what it does not say is
None.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal as signals
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from swarm.adapter import load, names

PROBE_SECONDS = 5.0
_VERSION = re.compile(r"\d+(?:\.\d+)+[\w.+-]*")


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
