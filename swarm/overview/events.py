"""An event as JSON.

Enters: a ledger commit, read back. Leaves: `swarm.event/1`. Guards: what all events have is always
there, null when it is not known.
"""

from __future__ import annotations

import contextlib
import functools
import math
from datetime import UTC, datetime
from typing import Any

from swarm.ledger.store import Logged
from swarm.trailers import unlisted

_FACTS = {
    "Swarm-Event": "event",
    "Swarm-Event-Id": "id",
    "Swarm-Task": "task",
    "Swarm-Agent": "agent",
    "Swarm-Slot": "slot",
    "Swarm-Adapter": "adapter",
    "Swarm-Token": "token",
}
_LISTS = ("paths", "outside", "unreadable", "hold", "failing")


def event_json(logged: Logged) -> dict[str, Any]:
    """`swarm.event/1`: what every event has, then its own trailers, each by its name in snake case.

    Numbers, lists and yes or no are such; a key that an event lacks is absent, but for those that
    all have, which are null.
    """
    trailers = logged.message.trailers
    found: dict[str, Any] = {
        "schema": "swarm.event/1",
        "oid": logged.oid,
        "at": _utc(logged.at),
        **dict.fromkeys(_FACTS.values()),
        "says": logged.message.body,
    }
    for key, value in trailers.items():
        found[_name_of(key)] = value or None
    if found["token"] is not None:
        found["token"] = number_of(found["token"])
    if "seconds" in found:
        found["seconds"] = number_of(found["seconds"])
    if "strike" in found:
        said = str(found["strike"] or "no")
        found["strike"] = said != "no"
        if said != "no":
            found["strikes"] = said
    for name in _LISTS:
        if found.get(name):
            found[name] = unlisted(found[name])
    return found


@functools.lru_cache(256)
def _name_of(trailer: str) -> str:
    return _FACTS.get(trailer) or trailer.removeprefix("Swarm-").replace("-", "_").lower()


def _utc(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def number_of(text: str | None) -> int | float | None:
    """What a trailer says as a number; None when it says none."""
    text = text or ""
    if text.isdecimal() and len(text) < 16:
        return int(text)
    with contextlib.suppress(ValueError):
        number = float(text)
        return number if math.isfinite(number) else None
    return None
