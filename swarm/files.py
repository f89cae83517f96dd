"""Files that several processes share: written whole, held by one at a time, read from their end.

Enters: paths. Leaves: bytes on disk, or text. Guards: nobody reads half a file; a flock is the
kernel's to release and is inherited by no program that is started meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path


def put_whole(path: Path, data: bytes) -> None:
    """Write a file beside its place, then move it there.

    Raises:
        OSError: it could not be; what stood there stands, and nothing is left beside it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def alone(path: Path, wait_seconds: float | None = None) -> Iterator[bool]:
    """Hold the flock of a folder, or of a file that is made. `wait_seconds`: None is for ever.

    False: another holds it and did not let go in time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        if wait_seconds is None:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield True
        else:
            yield _is_held_by(fd, time.monotonic() + wait_seconds)
    finally:
        os.close(fd)


def _is_held_by(fd: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)


def tail_of(path: Path, size: int) -> str:
    """The last `size` bytes of a file as text; "" when it cannot be read."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - size))
        return file.read(size).decode("utf-8", "replace")
    return ""
