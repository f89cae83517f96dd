"""`swarm status` as text.

Enters: its record. Leaves: one screen. Guards: what needs a person stands first, with what to
type; what is not known reads so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import zip_longest

from msgspec.structs import replace

from swarm.output.costs import cost_text, tokens_text
from swarm.output.lists import gate_text, held_text, queue_says
from swarm.output.words import (
    WIDTH,
    ago,
    beside,
    clock,
    columns,
    cut,
    for_text,
    pad,
    plural,
    size_text,
    wrapped,
)
from swarm.overview import (
    Counts,
    Disk,
    GateNow,
    Need,
    QueueLine,
    RunNow,
    SlotNow,
    Status,
    Target,
    UpstreamNow,
)
from swarm.trailers import one_line

DO_COLUMN = 62  # where what to type stands
LISTED = 4  # waiting and blocked tasks, and changes of the queue, that are named


def render_status(status: Status) -> list[str]:
    """`swarm status`. Nothing running and nothing to say is two lines."""
    is_idle = not (status.run or status.needs_you or status.slots or status.queue)
    lines = [_status_head(status)]
    if is_idle:
        nothing = f"{_nothing(status.target)}; {_idle_counts(status.counts)}"
        more = [*_upstream_lines(status.upstream), *_limited_lines(status)]
        return [*lines, nothing, *more]
    if status.needs_you:
        lines += ["", "needs you", *_need_lines(_with_held(status))]
    lines += ["", *_count_lines(status.counts)]
    lines += _slot_lines(status.slots)
    lines += _queue_lines(status.queue, status.gate)
    lines += _waiting_lines(status)
    lines += _upstream_lines(status.upstream)
    lines += _limited_lines(status)
    return [*lines, _money_line(status)]


def _status_head(status: Status) -> str:
    right = f"ledger {status.ledger.oid[:7]}, read {status.ledger.age_seconds:.1f}s ago"
    left = f"{one_line(status.repository, 30)} -> {_target_text(status.target)}"
    run = _run_text(status.run, status.at)
    whole = f"{left}   {run}"
    if columns(whole) + columns(right) + 3 <= WIDTH:
        return beside(pad(left, 48) + run if columns(left) < 48 else whole, right)
    return beside(whole, right[: right.index(",")])


def _target_text(target: Target) -> str:
    if target.oid is None:
        return f"{target.branch} is missing"
    text = f"{target.branch} {target.oid[:7]}"
    verdict = target.verdict
    if verdict is None:
        return f"{text}, not judged yet"
    word = verdict.value.replace("_", " ")
    if verdict.value not in ("passed", "flaky"):
        word = word.upper()
    return f"{text}, {verdict.check} {word} {ago(verdict.age_seconds)}"


def _run_text(run: RunNow | None, now: datetime) -> str:
    if run is None:
        return "no run"
    text = f"run {run.id} pid {run.pid}, since {clock(run.since, now)[:-3]}"
    if run.state != "running":
        text += f", {run.state}"
    return one_line(text + "".join(f" and {other}" for other in run.others))


def _nothing(target: Target) -> str:
    if target.verdict is not None:
        return "nothing needs you"
    return f"{target.branch} not judged yet: the next run or swarm gate --once judges it"


def _idle_counts(counts: Counts) -> str:
    text = f"{counts.landed} landed, {counts.ready} ready"
    if counts.waiting:
        text += f", {counts.waiting} waiting"
    if counts.blocked:
        text += f", {counts.blocked} blocked"
    if counts.cancelled:
        text += f", {counts.cancelled} cancelled"
    return text


def _with_held(status: Status) -> list[Need]:
    """What needs a person, with what the queue knows of held changes."""
    held = {line.task: line for line in status.queue if line.state == "held"}
    return [
        replace(need, why=f"{need.why}; {held_text(held[need.task], status.at)}")
        if need.kind == "held" and need.task in held
        else need
        for need in status.needs_you
    ]


def _need_lines(needs: Sequence[Need]) -> Iterator[str]:
    names = [columns(need.task or "") for need in needs]
    width = max([size for size in names if size <= 24], default=0)
    for need in needs:
        name = need.task or ""
        head = f"  {need.kind:<8} {pad(name, width) + '   ' if width else ''}"
        if columns(name) > width:
            yield f"  {need.kind:<8} {name}"
            head = " " * (11 + (width + 3 if width else 0))
        at = columns(head)
        why = one_line(need.why)
        room = DO_COLUMN - at - 2
        told = wrapped(why, room)
        if len(told) <= 3 and all(columns(do) <= WIDTH - DO_COLUMN for do in need.do):
            for number, (said, do) in enumerate(zip_longest(told, need.do, fillvalue="")):
                start = head if number == 0 else " " * at
                line = start + said
                yield (pad(line, DO_COLUMN) + do if do else line).rstrip()
            continue
        for number, said in enumerate(wrapped(why, WIDTH - at)[:4]):
            yield (head if number == 0 else " " * at) + said
        for do in need.do:
            yield " " * at + cut(do, WIDTH - at)


def _count_lines(counts: Counts) -> list[str]:
    shown = [f"working {counts.claimed}", f"queued {counts.queued}", f"ready {counts.ready}"]
    shown += [f"waiting {counts.waiting}", f"landed {counts.landed}", f"held {counts.held}"]
    shown += [f"parked {counts.parked}", f"blocked {counts.blocked}"]
    shown += [f"cancelled {counts.cancelled}"] if counts.cancelled else []
    shown += [f"damaged {counts.damaged}"] if counts.damaged else []
    wide = "   ".join(shown) + f"    of {counts.total}"
    return [wide] if columns(wide) <= WIDTH else wrapped(wide.replace("   ", "  "), WIDTH)


def _slot_lines(slots: Sequence[SlotNow]) -> Iterator[str]:
    width = max([columns(slot.task) for slot in slots if slot.task], default=16)
    width = min(max(width, 16), 28)
    idle: dict[str, list[SlotNow]] = {}
    for slot in slots:
        if slot.state == "idle":
            idle.setdefault(slot.why or "", []).append(slot)
            continue
        name = pad(slot.task or "", width)
        head = f"  {one_line(slot.slot, 6):<3} {name} {one_line(slot.adapter, 9):<9}"
        age = slot.active_age_seconds
        active = "activity unknown" if age is None else f"active {ago(age)}"
        if slot.state not in ("working", "setup"):
            active = {"ended": "sealing", "silent": "no heartbeat"}.get(slot.state, slot.state)
        elif slot.state == "setup":
            active = "setup"
        attempt = f"att {slot.attempt}" if slot.attempt is not None else "att -"
        took = for_text(slot.for_seconds)
        yield cut(f"{head} {attempt:<6} {took:>7}  {active:<16} {_done(slot)}", WIDTH).rstrip()
    for why, group in idle.items():
        names = one_line(" ".join(slot.slot for slot in group), 60)
        if all(slot.slot == "-" for slot in group):
            names = plural(len(group), "slot")
        head = f"  {names:<3} idle  "
        said = wrapped(one_line(why) or "why is not known", WIDTH - columns(head))
        yield head + said[0]
        for line in said[1:3]:
            yield " " * columns(head) + line
    for slot in slots:
        if slot.trouble:
            yield "  " + cut(one_line(f"{slot.slot} trouble: {slot.trouble}"), WIDTH - 2)


def _done(slot: SlotNow) -> str:
    if slot.state not in ("working", "setup"):
        return ""
    said = []
    changed = slot.files_changed
    if slot.commits:
        said.append(plural(slot.commits, "commit"))
    if changed is None and slot.active_age_seconds is not None:
        said.append("changes unknown")
    elif changed and slot.newest is not None:
        more = f" +{plural(changed - 1, 'file')}" if changed > 1 else ""
        said.append(one_line(slot.newest) + more)
    elif changed == 0 and not slot.commits:
        said.append("no change yet")
    used = slot.usage
    if used is not None and used.tokens is not None:
        said.append(f"{tokens_text(used.tokens)} tokens")
    if used is not None and used.cost_usd is not None:
        said.append(cost_text(used.cost_usd))
    return ", ".join(said)


def _queue_lines(queue: Sequence[QueueLine], gate: GateNow) -> Iterator[str]:
    waits = [line for line in queue if line.state != "held"]
    width = max([columns(line.task) for line in waits[:LISTED]], default=0)
    for number, line in enumerate(waits[:LISTED]):
        head = "queue" if number == 0 else ""
        left = f"{head:<6} {line.position}  {pad(line.task, width)}  {queue_says(line)}"
        yield beside(left, gate_text(gate) if number == 0 else "")
    if len(waits) > LISTED:
        yield f"{'':<10}and {len(waits) - LISTED} more: swarm queue"


def _waiting_lines(status: Status) -> Iterator[str]:
    for state, total in (("waiting", status.counts.waiting), ("blocked", status.counts.blocked)):
        listed = [w for w in status.waiting if w.state == state]
        line, shown = f"{state:<9} ", 0
        for wait in listed[:LISTED]:
            item = f"{wait.task} ({one_line(wait.why)})"
            room = WIDTH if total == shown + 1 else WIDTH - len("   and 999 more")
            if shown and columns(line) + 3 + columns(item) > room:
                break
            line += ("   " if shown else "") + item
            shown += 1
        if shown:
            more = f"   and {total - shown} more" if total > shown else ""
            yield cut(line, WIDTH - len(more)) + more


def _upstream_lines(now: UpstreamNow | None) -> Iterator[str]:
    if now is None:
        return
    said = []
    if now.tip is not None:
        how = f"comes in as {now.task}" if now.task else f"taken {ago(now.age_seconds)}"
        said.append(f"{now.remote}/{now.branch} {now.tip[:7]}, {how}")
    if now.pushed is not None:
        said.append(f"pushed {now.pushed[:7]} to {now.pushed_branch}")
    yield cut(f"{'upstream':<9} {one_line('; '.join(said))}", WIDTH)


def _limited_lines(status: Status) -> Iterator[str]:
    for one in status.limited:
        how = "its provider says" if one.is_said else "its provider said no time"
        until = clock(one.until, status.at)
        yield cut(f"{'limited':<9} {one_line(one.adapter)} until {until} ({how})", WIDTH)


def _money_line(status: Status) -> str:
    cost = status.cost
    text = "unknown"
    if cost.known_usd is not None:
        text = f"{cost_text(cost.known_usd)} known"
        if cost.attempts_unknown:
            text += f", {plural(cost.attempts_unknown, 'attempt')} unknown"
    return cut(f"{'cost':<9} {text}    {_disk_text(status.disk)}", WIDTH)


def _disk_text(disk: Disk) -> str:
    name = one_line(disk.path.rpartition("/")[2])
    if disk.bytes is None:
        return f"disk {name} unknown"
    return f"disk {name} {size_text(disk.bytes)}, measured {ago(disk.age_seconds)}"
