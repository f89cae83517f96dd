"""Text for people: one function per thing that is shown.

Enters: records and events. Leaves: lines of at most 100 columns.
Guards: text of tasks and agents never reaches the terminal as control characters.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from swarm.ledger.store import Logged
from swarm.trailers import one_line

QUIET = frozenset(
    {
        "created",
        "checked",
        "landing",
        "rescued",
        "gate-taken",
        "gate-left",
        "run-started",
        "run-ended",
        "charged",
    }
)
_WORDS = {
    "no_work": "no work",
    "agent_failed": "failed",
    "timed_out": "timed out",
    "silent": "silent",
    "unresolved": "unresolved",
    "setup_failed": "setup",
    "provider_limit": "limited",
    "not_logged_in": "login",
    "stopped": "stopped",
    "asked": "asked",
    "given_up": "given up",
}


def since_text(at: datetime, start: datetime) -> str:
    """`00:01.6`: minutes and seconds since the run began."""
    span = max((at - start).total_seconds(), 0.0)
    return f"{int(span // 60):02d}:{span % 60:04.1f}"


def word_of(logged: Logged) -> str:
    """The first word of an event's line; for `released` its outcome."""
    if logged.kind != "released":
        return logged.kind
    facts = logged.message.trailers
    if "killed by signal" in logged.message.body:
        return "crashed"
    return _WORDS.get(facts.get("Swarm-Outcome", ""), "released")


def event_line(logged: Logged, stamp: str) -> str:
    """One line: time, word, task, slot, sentence, strike."""
    facts = logged.message.trailers
    strike = facts.get("Swarm-Strike", "no")
    text = one_line(logged.message.body, 400)
    if strike != "no":
        text += f"   strike {strike}"
    slot = facts.get("Swarm-Slot", "")
    return f"{stamp}  {word_of(logged):<9}  {logged.task:<18} {slot:<4} {text}".rstrip()


def span_text(span: timedelta) -> str:
    """`09:12`, or `1:02:19` from an hour on."""
    seconds = int(span.total_seconds())
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes:02d}:{seconds:02d}"
