"""A history read in one stream: one git for all of it, parsed as it comes.

Enters: a tip, where to stop. Leaves: id, time and message of commit after commit, newest first.
Guards: whoever stops early ends the child; where git cannot read on is a fault, not the end.
"""

from __future__ import annotations

import subprocess
from collections.abc import Generator, Sequence

from swarm.errors import GitFault
from swarm.plumbing.git import Git, end_group

_PIECE = 1 << 18


def iter_messages(
    git: Git,
    tip: str,
    stop: str | None = None,
    wanted: Sequence[str] = (),
    *,
    is_whole: bool = False,
) -> Generator[tuple[str, int, str], None, None]:
    """(oid, committer's seconds since the epoch, message) along first parents from `tip`, down to
    `stop` (not included); `wanted` are git's own filters, as `--grep=...`. `is_whole`: all of the
    history, not the first parents alone.

    Raises:
        GitFault: a commit is missing or damaged; what was read before it has been given.
    """
    child = subprocess.Popen(
        git.argv(
            "log",
            "-z",
            *([] if is_whole else ["--first-parent"]),
            "--encoding=UTF-8",
            "--format=%H %ct%n%B",
            *wanted,
            tip,
            *([f"^{stop}"] if stop else []),
            "--",
        ),
        cwd=git.git_dir,
        # A filter lets few through: each must come at once. Else a write for each commit is half
        # of what git does.
        env=git.full_env() | {"GIT_FLUSH": "1" if wanted else "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        process_group=0,
        bufsize=_PIECE,
    )
    stdout = child.stdout
    assert stdout is not None
    try:
        rest = b""
        while piece := stdout.read1(_PIECE):  # type: ignore[attr-defined]
            whole, zero, tail = piece.rpartition(b"\0")
            if not zero:
                rest += tail
                continue
            for record in (rest + whole).decode("utf-8", "replace").split("\0"):
                head, _, message = record.partition("\n")
                oid, _, seconds = head.partition(" ")
                yield oid, int(seconds), message
            rest = tail
        if child.wait() != 0 or rest:
            raise GitFault(f"the history of {tip} cannot be read to its end", hint="swarm doctor")
    finally:
        end_group(child)
