"""Names, nonces, durations and sizes: the small words that every record uses.

Enters: text that people wrote. Leaves: folded ids, timedeltas (and text again), bytes; random ids.
Guards: one spelling per task (ids fold), no bare number where a unit is needed.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import unicodedata
from datetime import timedelta

MAX_ID = 64
_NOT_ID = re.compile(r"[^a-z0-9]+")
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)
_SIZE = re.compile(r"(\d+)(B|KiB|MiB|GiB)", re.ASCII)
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_AGENT_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's: no i, l, o, u
_OID = re.compile(r"(?:[0-9a-f]{40}|[0-9a-f]{64})")


def fold(text: str) -> str:
    """The one spelling of an id: NFKC, casefolded, other characters become one `-`, trimmed.

    Raises:
        ValueError: nothing is left, or more than 64 characters are.
    """
    folded = _NOT_ID.sub("-", unicodedata.normalize("NFKC", text).casefold()).strip("-")
    if not folded:
        raise ValueError("no letter or digit of a-z, 0-9 is left of it")
    if len(folded) > MAX_ID:
        raise ValueError(f"longer than {MAX_ID} characters")
    return folded


def shard(key: str) -> str:
    """The folder of a record: first two hex digits of sha256(key)."""
    return hashlib.sha256(key.encode()).hexdigest()[:2]


def new_nonce() -> str:
    """128 random bits in hex: makes two otherwise identical claims differ."""
    return secrets.token_hex(16)


def new_event_id() -> str:
    """64 random bits in hex, chosen once per event and kept through every retry."""
    return secrets.token_hex(8)


def new_agent_id() -> str:
    """Eight characters that name one occupant of a slot for one attempt."""
    return "".join(secrets.choice(_AGENT_ALPHABET) for _ in range(8))


def is_oid(text: str) -> bool:
    """True for a full object id of SHA-1 or SHA-256."""
    return _OID.fullmatch(text) is not None


def parse_duration(text: str) -> timedelta:
    """`90s`, `20m`, `2h`, `1h30m`.

    Raises:
        ValueError: anything else, a bare number included.
    """
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise ValueError(f"want a duration like 20m, got {text}")
    hours, minutes, seconds = (int(g or 0) for g in match.groups())
    return timedelta(hours=hours, minutes=minutes, seconds=seconds)


def short(span: timedelta) -> str:
    """A limit as people write it: `45s`, `21m`, `1h30m`, `3d`."""
    seconds = max(int(span.total_seconds()), 0)
    if seconds < 60 or (seconds < 120 and seconds % 60):
        return f"{seconds}s"
    hours, minutes = divmod(seconds // 60, 60)
    if not hours:
        return f"{minutes}m"
    if hours < 48:
        return f"{hours}h{minutes}m" if minutes else f"{hours}h"
    return f"{hours // 24}d"


def span_text(span: timedelta) -> str:
    """`09:12`, or `1:02:19` from an hour on."""
    seconds = int(span.total_seconds())
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes:02d}:{seconds:02d}"


def parse_size(text: str) -> int:
    """`10MiB` in bytes.

    Raises:
        ValueError: no number, or no unit of B, KiB, MiB, GiB.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"want a size like 10MiB, got {text}")
    return int(match[1]) * _UNITS[match[2]]
