"""Claims, the queue and the tasks as tables.

Enters: their records. Leaves: lines, the last one with the count and the ledger's tip.
Guards: a task's id is never cut; what stands behind it gives way.
"""

from __future__ import annotations

from datetime import datetime

from swarm.output.words import WIDTH, ago, clock, cut, for_text, plural, table
from swarm.overview import Change, Claims, GateNow, Merged, Queue, QueueLine, TaskLine, Tasks
from swarm.trailers import one_line


def render_claims(claims: Claims) -> list[str]:
    """`swarm claims`."""
    foot = f"{plural(len(claims.claims), 'claim')}; ledger {claims.ledger.oid[:7]}"
    if not claims.claims:
        return [foot]
    rows = [
        (
            claim.task,
            one_line(claim.slot, 6) or "-",
            one_line(claim.adapter, 12),
            str(claim.token),
            clock(claim.claimed_at, claims.at),
            for_text((claims.at - claim.claimed_at).total_seconds()),
            claim.state,
            f"{one_line(claim.sign)} ({one_line(claim.host, 20)} {claim.pid})",
        )
        for claim in claims.claims
    ]
    head = ("task", "slot", "adapter", "att", "since", "for", "state", "sign of life")
    return [*table(head, rows, (30, 6, 10, 4, 16, 8, 7), whole=0), foot]


def render_queue(queue: Queue) -> list[str]:
    """`swarm queue`."""
    foot = f"{plural(len(queue.changes), 'change')}; {gate_text(queue.gate)}"
    if queue.gate.holder is not None:
        foot += f" by {queue.gate.holder.runner} ({queue.gate.holder.host} {queue.gate.holder.pid})"
    foot += f"; ledger {queue.ledger.oid[:7]}"
    if not queue.changes:
        return [one_line(foot)]
    rows = [
        (
            str(change.position) if change.position is not None else "-",
            change.task,
            str(change.token),
            clock(change.sealed_at, queue.at),
            f"{plural(change.files, 'file')} +{change.insertions} -{change.deletions}",
            queue_says(change),
        )
        for change in queue.changes
    ]
    head = ("", "task", "att", "sealed", "change", "state")
    top, *told = table(head, rows, (3, 32, 4, 16, 22), whole=1)
    lines = [top]
    for change, line in zip(queue.changes, told, strict=True):
        lines.append(line)
        if change.state == "held":
            lines.append(cut(f"   held {held_text(change, queue.at)}", WIDTH))
    if queue.gate.paused is not None:
        lines.append(cut(f"paused: {one_line(queue.gate.paused.why)}", WIDTH))
    return [*lines, cut(one_line(foot), WIDTH)]


def render_tasks(tasks: Tasks) -> list[str]:
    """`swarm task list`."""
    foot = f"{plural(len(tasks.tasks), 'task')}; ledger {tasks.ledger.oid[:7]}"
    if not tasks.tasks:
        return [foot]
    rows = [
        (task.id, task.state, str(task.priority), str(task.token or "-"), _task_says(task))
        for task in tasks.tasks
    ]
    head = ("task", "state", "pri", "att", "title")
    return [*table(head, rows, (34, 9, 4, 3), whole=0), foot]


def _task_says(task: TaskLine) -> str:
    title = one_line(task.title)
    why = one_line(task.why)
    return f"{why}   {title}" if why else title


def queue_says(line: QueueLine | Change) -> str:
    """What happens to a change in the queue."""
    if line.state == "checking":
        return _checking(line)
    return f"{line.state}{': ' + one_line(line.why) if line.why else ''}"


def _checking(line: QueueLine | Change) -> str:
    said = f"checking {line.check} {for_text(line.for_seconds)}"
    usual = line.usual_seconds
    return said if usual is None else f"{said} of about {for_text(usual)}"


def held_text(line: QueueLine | Change, now: datetime) -> str:
    """Since when a change is held, and whether what would land is green."""
    since = f"since {clock(line.held_since, now)}" if line.held_since is not None else ""
    said = _checking(line) if line.check is not None else merged_text(line.merged)
    return ", ".join(filter(None, (since, said)))


def merged_text(merged: Merged | None) -> str:
    """What the checks say of a change as merged with the target of now."""
    if merged is None:
        return "unknown how it merges"
    where = f"{merged.branch} {merged.target[:7]}"
    if merged.tree is None:
        if not merged.conflicts:
            return f"shares no commit with {where}"
        named = ", ".join(one_line(path, 60) for path in merged.conflicts[:3])
        more = f" and {len(merged.conflicts) - 3} more" if len(merged.conflicts) > 3 else ""
        return f"conflicts with {where} in {named}{more}"
    verdict = merged.verdict
    if verdict is not None:
        word = verdict.value.replace("_", " ")
        word = word if verdict.value in ("passed", "flaky") else word.upper()
        return f"{verdict.check} {word} on {where} {ago(verdict.age_seconds)}"
    if not merged.checks:
        return f"no check applies to it on {where}"
    if merged.is_kept_back:
        return "not judged before your word: it may bring a secret"
    return f"not judged on {where} yet"


def gate_text(gate: GateNow) -> str:
    """How the gate works, or that nobody is it."""
    text = f"gate {gate.strategy}, {plural(gate.slots, 'slot')}"
    if gate.paused is not None:
        return text + ", paused"
    return text if gate.is_alive else "no gate"
