"""The hooks that ship inside the package.

Enters: a hook's name. Leaves: its bytes. Guards: a missing hook is no fault: hooks are a second
line of defence that nothing relies on.
"""

from __future__ import annotations

import functools
from importlib.resources import files


@functools.cache
def hook_bytes(name: str) -> bytes | None:
    """The hook's text, or None when it is not shipped."""
    found = files("swarm.hooks").joinpath(name)
    return found.read_bytes() if found.is_file() else None
