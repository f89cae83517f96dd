"""File-system notifications that wake sleepers early.

Enters: the hub. Leaves: a call whenever one of its refs moved.
Guards: only a hint: a missed notification costs delay, never correctness.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

# It warns of threads that end while it stops, on standard error; nothing here acts on that.
logging.getLogger("watchdog").addHandler(logging.NullHandler())


class _Wake(FileSystemEventHandler):
    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Locks come and go with every move; the rename that ends one is enough."""
        if event.event_type in ("moved", "closed") and not event.is_directory:
            self._wake()


class Watch:
    """Watches the ledger's and the branches' folders until closed."""

    def __init__(self, hub: Path, wake: Callable[[], None]) -> None:
        self._observer = Observer()
        handler = _Wake(wake)
        for name, deep in (("refs/swarm", False), ("refs/heads", True)):
            folder = hub / name
            if folder.is_dir():
                self._observer.schedule(handler, str(folder), recursive=deep)
        self._observer.daemon = True
        self._observer.start()

    def close(self) -> None:
        """Stop watching; returns when the thread has ended."""
        self._observer.stop()
        self._observer.join(5)
