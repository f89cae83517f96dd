"""Taking task files out of a worktree, and putting them beside those that a person has.

Enters: a slot whose processes have ended, a folder of task files. Leaves: new files in it.
Guards: no link is followed, nothing outside the folder is read, no file that is there is changed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from swarm.config import MAX_BYTES
from swarm.errors import UsageError
from swarm.slot import Slot

MOST_FILES = 200
# What a person can type and no terminal obeys. Its length leaves room for `-2`.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.md")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Found(msgspec.Struct, frozen=True):
    """A task file that an agent wrote."""

    name: str
    data: bytes


class Refused(msgspec.Struct, frozen=True):
    """A file in the folder that is not taken."""

    name: str
    why: str


class Placed(msgspec.Struct, frozen=True):
    """Where a file went."""

    wanted: str  # its name in the worktree
    name: str  # its name now; another one when the wanted one is taken
    is_new: bool  # False: the same text was there already


def read_files(slot: Slot, folder: str, known: Collection[str]) -> list[Found | Refused]:
    """Every `*.md` of a folder of the worktree, subfolders and hidden files left out, by name.

    Args:
        known: names of those that are as they were when the agent started.
    """
    found: list[Found | Refused] = []
    with contextlib.ExitStack() as stack:
        try:
            fd = _opened(slot, folder, stack)
        except OSError:
            return []
        count = 0
        for name in sorted(entry.name for entry in os.scandir(fd)):
            if not name.endswith(".md") or name.startswith(".") or name in known:
                continue
            one = _read(fd, name)
            if isinstance(one, Found):
                count += 1
                one = one if count <= MOST_FILES else Refused(name, f"over {MOST_FILES} files")
            found.append(one)
    return found


def _opened(slot: Slot, folder: str, stack: contextlib.ExitStack) -> int:
    """The folder's descriptor; each step to it is a folder and no link.

    Raises:
        OSError: it is not there, or a step is something else.
    """
    if not slot.is_real_tree:
        raise NotADirectoryError(errno.ENOTDIR, "is no folder", str(slot.tree))
    fd = -1
    for step in (str(slot.tree), *PurePosixPath(folder).parts):
        fd = os.open(step, _READ | os.O_DIRECTORY, dir_fd=None if fd < 0 else fd)
        stack.callback(os.close, fd)
    return fd


def _read(folder: int, name: str) -> Found | Refused:
    if _NAME.fullmatch(name) is None:
        return Refused(name, "no name for a task file")
    try:
        fd = os.open(name, _READ, dir_fd=folder)
    except OSError as error:
        is_link = error.errno == errno.ELOOP
        return Refused(name, "a link" if is_link else error.strerror or "cannot be read")
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return Refused(name, "no regular file")
    with os.fdopen(fd, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    return Found(name, data) if len(data) <= MAX_BYTES else Refused(name, "larger than 1 MiB")


def put_files(files: Sequence[Found], folder: Path) -> list[Placed]:
    """Write them into a folder, in order; a name that has other text there gets `-2`, `-3`, ...

    Raises:
        UsageError: one could not be written; those before it are.
    """
    placed = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            placed.append(_put(file, folder))
    except OSError as error:
        raise UsageError(
            f"{error.filename or folder} cannot be written",
            why=f"{error.strerror}; written before it: {len(placed)} of {len(files)}",
        ) from error
    return placed


def _put(file: Found, folder: Path) -> Placed:
    for name in _names(file.name):
        place = folder / name
        try:
            with place.open("xb") as stream:
                stream.write(file.data)
        except FileExistsError:
            if _holds(place, file.data):
                return Placed(file.name, name, is_new=False)
            continue
        return Placed(file.name, name, is_new=True)
    raise AssertionError("names never end")


def _names(name: str) -> Iterator[str]:
    yield name
    number = 1
    while True:
        number += 1
        yield f"{name.removesuffix('.md')}-{number}.md"


def _holds(place: Path, data: bytes) -> bool:
    with contextlib.suppress(OSError):
        return place.is_file() and place.stat().st_size == len(data) and place.read_bytes() == data
    return False
