"""Every kind of event: its transition, the files it may touch, its sentence.

Enters: a kind's name. Leaves: its row. Guards: a ledger commit changes exactly the folders that
its row allows; the set is open and versioned: an unknown kind is shown by its own sentence.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Kind(msgspec.Struct, frozen=True):
    """One row of the event table."""

    transition: str
    folders: frozenset[str]  # first path component of every file that it may change


class Event(msgspec.Struct, frozen=True):
    """One transition, decided but not yet written.

    `edits` are the ledger files it writes (bytes) or removes (None); `trailers` repeat the facts
    that it relied on.
    """

    kind: str
    says: str  # a sentence for people
    edits: Mapping[str, bytes | None]
    task: str = ""
    agent: str = ""
    token: int = 0
    trailers: Mapping[str, str] = {}


def _kind(transition: str, folders: str) -> Kind:
    return Kind(transition, frozenset(folders.split()))


_LEFT = "current_tasks queue attempts parked"

KINDS: dict[str, Kind] = {
    "created": _kind("the ledger begins", "format gate.json"),
    "added": _kind("-> open", "tasks"),
    "edited": _kind("open or parked: stays", "tasks"),
    "claimed": _kind("open -> claimed", "current_tasks attempts runs"),
    "extended": _kind("claimed stays", "attempts"),
    "expired": _kind("claimed -> open", "current_tasks attempts"),
    "released": _kind("claimed -> open", "current_tasks attempts"),
    "sealed": _kind("claimed -> queued", "queue attempts"),
    "held": _kind("queued stays", "queue"),
    "approved": _kind("queued stays", "queue"),
    "rejected": _kind("held -> open", _LEFT),
    "checked": _kind("stays", "verdicts"),
    "landing": _kind("queued stays", "landing.json"),
    "landed": _kind("queued -> done", "current_tasks queue done attempts landing.json"),
    "void": _kind("queued stays", "landing.json"),
    "ejected": _kind("queued -> open", "current_tasks queue attempts"),
    "parked": _kind("open -> parked", "parked"),
    "told": _kind("open, claimed, queued or parked: stays", "attempts"),
    "reopened": _kind("parked or cancelled -> open", "parked done attempts"),
    "cancelled": _kind("any but landed -> done", "current_tasks queue parked done"),
    "lost": _kind("landed -> parked", "done parked"),
    "rescued": _kind("stays", ""),
    "synced": _kind("stays", "upstream.json"),
    "pushed": _kind("stays", "upstream.json"),
    "gate-taken": _kind("gate free -> taken", "gate.json"),
    "gate-left": _kind("gate taken -> free", "gate.json"),
    "paused": _kind("gate stays", "gate.json"),
    "resumed": _kind("gate stays", "gate.json"),
    "run-started": _kind("-> running", "runs"),
    "charged": _kind("stays", "runs attempts"),
    "run-ended": _kind("running -> ended", "runs"),
}


def folder_of(path: str) -> str:
    """What a row's `folders` names: the first component of a ledger path."""
    return path.split("/", 1)[0]


def stray_paths(event: Event) -> list[str]:
    """Paths that the event's row does not allow it to touch; empty for a sound event."""
    kind = KINDS[event.kind]
    return [path for path in event.edits if folder_of(path) not in kind.folders]
