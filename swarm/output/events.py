"""One event in one line, or the few that it needs.

Enters: a ledger commit, read back. Leaves: lines. Guards: every word of a line is printable; a
name that people will copy is never cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swarm.ledger.records import MANY_STRIKES
from swarm.ledger.store import Logged
from swarm.output.words import WIDTH, beside, columns, cut, pad, plural, wrapped
from swarm.trailers import one_line, unlisted

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
OUTCOMES = {
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


def word_of(logged: Logged) -> str:
    """The first word of an event's line; for `released` its outcome."""
    if logged.kind != "released":
        return logged.kind
    facts = logged.message.trailers
    if "killed by signal" in logged.message.body:
        return "crashed"
    return OUTCOMES.get(facts.get("Swarm-Outcome", ""), "released")


def _parts_of(logged: Logged) -> tuple[str, ...]:
    """What an event's line says after its task and slot; not cleaned yet."""
    facts, body = logged.message.trailers, logged.message.body
    kind = logged.kind
    if kind == "claimed":
        return (_claimed_says(facts) or body,)
    if kind == "landed" and facts.get("Swarm-Checks"):
        took = f" {facts['Swarm-Seconds']}s" if facts.get("Swarm-Seconds") else ""
        said = (f"{facts['Swarm-Checks']} passed{took}", facts.get("Swarm-Stat", ""))
        unread = facts.get("Swarm-Unread", "")
        late = f"told and not read: {unread}" if unread else ""
        return tuple(part for part in (*said, late, body.rpartition("; ")[2]) if part)
    if kind == "expired" and facts.get("Swarm-Work"):
        return (f"{body}; kept {facts['Swarm-Work'][:7]}",)
    return (body,)


def _claimed_says(facts: Mapping[str, str]) -> str:
    start = facts.get("Swarm-Start", "")
    if not start:
        return ""
    if start == facts.get("Swarm-Target"):
        where = f"from the target {start[:7]}"
    else:
        where = f"continues {start[:7]}"
        if facts.get("Swarm-Merge"):
            where += f" on {facts['Swarm-Merge'][:7]}"
    return f"attempt {facts.get('Swarm-Token', '?')}, {where}"


def is_counted(strikes: str) -> bool:
    """Does `1 of 3` lead to anything? A sync's do not: each is of another commit of upstream's."""
    return not strikes.endswith(f" of {MANY_STRIKES}")


def event_line(logged: Logged, stamp: str, right: str = "") -> str:
    """One event: time, word, task, slot, sentence; strike and `right` at the end of the line.

    What has no room goes on in the next line, and failing tests follow on one of their own.
    """
    facts = logged.message.trailers
    strike = facts.get("Swarm-Strike", "no")
    end = right
    if strike != "no" and is_counted(strike):
        end = f"strike {one_line(strike, 20)}" + (f"   {right}" if right else "")
    word, task, slot = word_of(logged), logged.task, facts.get("Swarm-Slot", "")
    parts = _parts_of(logged)
    indent = len(stamp) + 35
    room = WIDTH - indent - (columns(end) + 2 if end else 0)
    head = f"{stamp}  {word:<9} {task:<17} {slot}"
    says = "   ".join(parts)
    # Nearly all are like this, and a long log is made of them.
    is_short = len(head) <= indent and len(says) <= room and "Swarm-Failing" not in facts
    line = f"{head:<{indent}}{says}"
    if is_short and line.isascii() and line.isprintable():
        return f"{line:<{WIDTH - len(end)}}{end}" if end else line.rstrip()
    return "\n".join(_long_lines(logged, stamp, parts, end))


def _long_lines(logged: Logged, stamp: str, parts: Sequence[str], end: str) -> list[str]:
    """An event in as many lines as it needs, cleaned."""
    facts = logged.message.trailers
    start = f"{stamp}  {one_line(word_of(logged), 20):<9} "
    indent = columns(start) + 23
    head = pad(
        f"{start}{one_line(logged.task, 64):<17} {one_line(facts.get('Swarm-Slot', ''), 8)}", indent
    )
    is_long = columns(head) > indent  # a long name stays whole: it is there to be copied
    room = WIDTH - indent - (columns(end) + 2 if end and not is_long else 0)
    cleaned = [one_line(part, 400) for part in parts]
    says = "   ".join(cleaned)
    said = wrapped(says if columns(says) <= room else ", ".join(cleaned), room)
    if is_long:
        said = ["", *said]
    lines = [beside(head + said[0], end).rstrip()]
    lines += [" " * indent + line for line in said[1:4]]
    if facts.get("Swarm-Failing"):
        failing = [one_line(name) for name in unlisted(facts["Swarm-Failing"])] or [""]
        more = f" and {len(failing) - 1} more" if len(failing) > 1 else ""
        room = WIDTH - indent - len(more)
        lines.append(f"{' ' * indent}{cut(f'FAILED {failing[0]}', room)}{more}")
    return lines


def log_foot(count: int, tip: str, *, is_cut: bool) -> str:
    """What stands below a listed log."""
    more = "; there are more: -n" if is_cut else ""
    return f"{plural(count, 'event')}, newest first{more}; ledger {tip[:7]}"
