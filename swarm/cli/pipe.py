"""Standard output that nobody reads any more.

Enters: the process's own streams. Leaves: the same, with an end of file that is no error.
Guards: `| head` behind a verb that does something never ends it halfway.
"""

from __future__ import annotations

import io
import os
import sys


class _Patient(io.FileIO):
    """A descriptor whose writes succeed also when nobody reads them."""

    def write(self, data: object, /) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except BrokenPipeError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            return memoryview(data).nbytes  # type: ignore[arg-type]


def outlive_readers() -> None:
    """From now on a closed pipe on standard output or error is read to its end by nobody.

    Streams that a test or a caller put there are left as they are.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream is not getattr(sys, f"__{name}__") or stream.isatty():
            continue
        try:
            raw = _Patient(stream.fileno(), "w", closefd=False)
        except (OSError, ValueError):
            continue
        patient = io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=name == "stderr",
        )
        setattr(sys, name, patient)
