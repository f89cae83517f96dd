"""Claims, the queue and the tasks as tables.

Enters: their records. Leaves: lines, the last one with the count and the ledger's tip.
Guards: a task's id is never cut; what stands behind it gives way.
"""

from __future__ import annotations

from swarm.output.words import WIDTH, clock, cut, for_text, plural, table
from swarm.overview import Change, Claims, GateNow, Queue, QueueLine, TaskLine, Tasks
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
    lines = table(head, rows, (3, 32, 4, 16, 22), whole=1)
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
        said = f"checking {line.check} {for_text(line.for_seconds)}"
        usual = line.usual_seconds
        return said if usual is None else f"{said} of about {for_text(usual)}"
    return f"{line.state}{': ' + one_line(line.why) if line.why else ''}"


def gate_text(gate: GateNow) -> str:
    """How the gate works, or that nobody is it."""
    text = f"gate {gate.strategy}, {plural(gate.slots, 'slot')}"
    if gate.paused is not None:
        return text + ", paused"
    return text if gate.is_alive else "no gate"
