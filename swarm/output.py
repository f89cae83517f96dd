"""Text for people: one function per thing that is shown.

Enters: records and events. Leaves: lines of at most 100 columns.
Guards: text of tasks, agents and repositories never reaches a terminal as control characters.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import zip_longest

from swarm.ledger.store import Logged
from swarm.overview import (
    AttemptLine,
    Change,
    CheckLine,
    Claims,
    Compared,
    Counts,
    Disk,
    GateNow,
    Need,
    NeedLine,
    Queue,
    QueueLine,
    RunNow,
    SlotNow,
    Status,
    Story,
    Target,
    TaskLine,
    Tasks,
    failing_of,
)
from swarm.trailers import one_line

WIDTH = 100
DO_COLUMN = 62  # where what to type stands
LISTED = 4  # waiting and blocked tasks that `status` names

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


# Words and widths


def columns(text: str) -> int:
    """How many columns a terminal gives the text."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def cut(text: str, width: int) -> str:
    """The text in at most `width` columns, with `...` where something is missing."""
    if columns(text) <= width:
        return text
    kept = ""
    for c in text:
        if columns(kept + c) > width - 3:
            break
        kept += c
    return kept.rstrip() + "..."


def pad(text: str, width: int) -> str:
    return text + " " * (width - columns(text))


def beside(left: str, right: str, width: int = WIDTH) -> str:
    """`right` ends at the last column; what has no room beside it is cut from `left`."""
    if not right:
        return cut(left, width)
    left = cut(left, width - columns(right) - 2)
    return pad(left, width - columns(right)) + right


_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, moves
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)"  # OSC, DCS, SOS, PM, APC up to their end
    r"|\x1b[@-Z\\^_]"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)


def clean(line: str) -> str:
    """One line of untrusted output, its spaces and tabs kept: no escape sequence, no control,
    direction or other format character is left."""
    plain = _ESCAPES.sub("", line)
    return "".join(c for c in plain if c == "\t" or unicodedata.category(c)[0] != "C")


def plural(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def since_text(at: datetime, start: datetime) -> str:
    """`00:01.6`: minutes and seconds since the run began."""
    span = max((at - start).total_seconds(), 0.0)
    return f"{int(span // 60):02d}:{span % 60:04.1f}"


def span_text(span: timedelta) -> str:
    """`09:12`, or `1:02:19` from an hour on."""
    seconds = int(span.total_seconds())
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes:02d}:{seconds:02d}"


def _for(seconds: float | None) -> str:
    return "-" if seconds is None else span_text(timedelta(seconds=seconds))


def ago(seconds: float | None) -> str:
    """`3s ago`, `2m ago`, `14h ago`, `3d ago`; `unknown` for None."""
    if seconds is None:
        return "at an unknown time"
    for unit, size in (("d", 172_800), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // (86_400 if unit == 'd' else size))}{unit} ago"
    return f"{int(seconds)}s ago"


def clock(at: datetime, now: datetime) -> str:
    """Local time of day; with its date when that is not today."""
    local = at.astimezone()
    same_day = local.date() == now.astimezone().date()
    return local.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M")


def size_text(size: int) -> str:
    """`3.1 GB`."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit in ("B", "kB") else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


# Events


def word_of(logged: Logged) -> str:
    """The first word of an event's line; for `released` its outcome."""
    if logged.kind != "released":
        return logged.kind
    facts = logged.message.trailers
    if "killed by signal" in logged.message.body:
        return "crashed"
    return _WORDS.get(facts.get("Swarm-Outcome", ""), "released")


def sentence_of(logged: Logged) -> str:
    """What an event's line says after its task and slot."""
    facts = logged.message.trailers
    body = one_line(logged.message.body, 400)
    match logged.kind:
        case "claimed":
            return _claimed_says(facts) or body
        case "landed" if facts.get("Swarm-Checks"):
            took = f" {facts['Swarm-Seconds']}s" if facts.get("Swarm-Seconds") else ""
            said = [f"{facts['Swarm-Checks']} passed{took}", facts.get("Swarm-Stat", "")]
            return "   ".join(one_line(part) for part in (*said, body.rpartition("; ")[2]) if part)
        case "expired" if facts.get("Swarm-Work"):
            return f"{body}; kept {facts['Swarm-Work'][:7]}"
    return body


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
    return one_line(f"attempt {facts.get('Swarm-Token', '?')}, {where}")


def event_line(logged: Logged, stamp: str, right: str = "") -> str:
    """One event: time, word, task, slot, sentence; strike and `right` at the end of the line.

    What has no room goes on in the next line, and failing tests follow on one of their own.
    """
    facts = logged.message.trailers
    strike = one_line(facts.get("Swarm-Strike", "no"), 20)
    ends = [f"strike {strike}"] if strike != "no" else []
    ends += [right] if right else []
    end = "   ".join(ends)
    start = f"{stamp}  {one_line(word_of(logged), 20):<9} "
    indent = columns(start) + 23
    head = pad(
        f"{start}{one_line(logged.task, 64):<17} {one_line(facts.get('Swarm-Slot', ''), 8)}", indent
    )
    said = _wrapped(sentence_of(logged), WIDTH - indent - (columns(end) + 2 if end else 0))
    if columns(head) > indent:  # a long name stays whole: it is there to be copied
        said = ["", *_wrapped(sentence_of(logged), WIDTH - indent)]
    lines = [beside(head + said[0], end).rstrip()]
    lines += [" " * indent + line for line in said[1:4]]
    if facts.get("Swarm-Failing"):
        failing = failing_of(one_line(facts["Swarm-Failing"], 400))
        more = f" and {len(failing) - 1} more" if len(failing) > 1 else ""
        room = WIDTH - indent - len(more)
        lines.append(f"{' ' * indent}{cut(f'FAILED {failing[0]}', room)}{more}")
    return "\n".join(lines)


def log_foot(count: int, tip: str, *, is_cut: bool) -> str:
    """What stands below a listed log."""
    more = "; there are more: -n" if is_cut else ""
    return f"{plural(count, 'event')}, newest first{more}; ledger {tip[:7]}"


# Status


def render_status(status: Status) -> list[str]:
    """`swarm status`. Nothing running and nothing to say is two lines."""
    is_idle = not (status.run or status.needs_you or status.slots or status.queue)
    lines = [_status_head(status)]
    if is_idle:
        return [*lines, f"nothing needs you; {_idle_counts(status.counts)}"]
    if status.needs_you:
        lines += ["", "needs you", *_need_lines(status.needs_you)]
    lines += ["", *_count_lines(status.counts)]
    lines += _slot_lines(status.slots)
    lines += _queue_lines(status.queue, status.gate)
    lines += _waiting_lines(status)
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


def _idle_counts(counts: Counts) -> str:
    text = f"{counts.landed} landed, {counts.open} open"
    if counts.waiting:
        text += f" ({counts.ready} ready, {counts.waiting} waiting)"
    if counts.cancelled:
        text += f", {counts.cancelled} cancelled"
    return text


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
        told = _wrapped(why, room)
        if len(told) <= 2 and all(columns(do) <= WIDTH - DO_COLUMN for do in need.do):
            for number, (said, do) in enumerate(zip_longest(told, need.do, fillvalue="")):
                start = head if number == 0 else " " * at
                line = start + said
                yield (pad(line, DO_COLUMN) + do if do else line).rstrip()
            continue
        for number, said in enumerate(_wrapped(why, WIDTH - at)[:4]):
            yield (head if number == 0 else " " * at) + said
        for do in need.do:
            yield " " * at + cut(do, WIDTH - at)


def _wrapped(text: str, width: int) -> list[str]:
    if columns(text) <= width:
        return [text]
    if text.isascii():
        return textwrap.wrap(text, width, break_on_hyphens=False)
    # Wide characters: half as many to a line as there are columns is always safe.
    return textwrap.wrap(text, max(width // 2, 1), break_on_hyphens=False)


def _count_lines(counts: Counts) -> list[str]:
    shown = [f"working {counts.claimed}", f"queued {counts.queued}", f"ready {counts.ready}"]
    shown += [f"waiting {counts.waiting}", f"landed {counts.landed}", f"held {counts.held}"]
    shown += [f"parked {counts.parked}", f"blocked {counts.blocked}"]
    shown += [f"cancelled {counts.cancelled}"] if counts.cancelled else []
    shown += [f"damaged {counts.damaged}"] if counts.damaged else []
    wide = "   ".join(shown) + f"    of {counts.total}"
    return [wide] if columns(wide) <= WIDTH else _wrapped(wide.replace("   ", "  "), WIDTH)


def _slot_lines(slots: Sequence[SlotNow]) -> Iterator[str]:
    width = max([columns(slot.task) for slot in slots if slot.task], default=16)
    width = min(max(width, 16), 28)
    idle: dict[str, list[SlotNow]] = {}
    for slot in slots:
        if slot.state == "idle":
            idle.setdefault(slot.why or "", []).append(slot)
            continue
        name = cut(slot.task or "", width)
        head = f"  {one_line(slot.slot, 6):<3} {pad(name, width)} {one_line(slot.adapter, 9):<9}"
        age = slot.active_age_seconds
        active = "activity unknown" if age is None else f"active {ago(age)}"
        if slot.state not in ("working", "setup"):
            active = {"ended": "sealing", "silent": "no heartbeat"}.get(slot.state, slot.state)
        elif slot.state == "setup":
            active = "setup"
        attempt = f"att {slot.attempt}" if slot.attempt is not None else "att -"
        took = _for(slot.for_seconds)
        yield cut(f"{head} {attempt:<6} {took:>7}  {active:<16} {_done(slot)}", WIDTH).rstrip()
    for why, group in idle.items():
        names = one_line(" ".join(slot.slot for slot in group), 60)
        if all(slot.slot == "-" for slot in group):
            names = plural(len(group), "slot")
        head = f"  {names:<3} idle  "
        said = _wrapped(one_line(why) or "why is not known", WIDTH - columns(head))
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
    return ", ".join(said)


def _queue_lines(queue: Sequence[QueueLine], gate: GateNow) -> Iterator[str]:
    waits = [line for line in queue if line.state != "held"]
    width = max([columns(line.task) for line in waits[:LISTED]], default=0)
    for number, line in enumerate(waits[:LISTED]):
        head = "queue" if number == 0 else ""
        left = f"{head:<6} {line.position}  {pad(line.task, width)}  {_queue_says(line)}"
        yield beside(left, _gate_text(gate) if number == 0 else "")
    if len(waits) > LISTED:
        yield f"{'':<10}and {len(waits) - LISTED} more: swarm queue"


def _queue_says(line: QueueLine | Change) -> str:
    if line.state == "checking":
        usual = f" of about {_for(line.usual_seconds)}" if line.usual_seconds is not None else ""
        return f"checking {line.check} {_for(line.for_seconds)}{usual}"
    return f"{line.state}{': ' + one_line(line.why) if line.why else ''}"


def _gate_text(gate: GateNow) -> str:
    text = f"gate {gate.strategy}, {plural(gate.slots, 'slot')}"
    if gate.paused is not None:
        return text + ", paused"
    return text if gate.is_alive else "no gate"


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


def _money_line(status: Status) -> str:
    cost = status.cost
    text = "unknown"
    if cost.known_usd is not None:
        text = f"${cost.known_usd:.2f} known"
        if cost.attempts_unknown:
            text += f", {plural(cost.attempts_unknown, 'attempt')} unknown"
    return cut(f"{'cost':<9} {text}    {_disk_text(status.disk)}", WIDTH)


def _disk_text(disk: Disk) -> str:
    name = one_line(disk.path.rpartition("/")[2])
    if disk.bytes is None:
        return f"disk {name} unknown"
    return f"disk {name} {size_text(disk.bytes)}, measured {ago(disk.age_seconds)}"


# Claims, queue, tasks


def _table(
    head: Sequence[str], rows: Iterable[Sequence[str]], widest: Sequence[int], indent: str = ""
) -> list[str]:
    """Columns two spaces apart, each as wide as what is in it up to its bound; the last one has no
    bound and gets what is left."""
    body = [list(row) for row in rows]
    sizes = [
        min(bound, max(columns(row[number]) for row in [list(head), *body]))
        for number, bound in enumerate(widest)
    ]
    lines = []
    for row in [list(head), *body]:
        cells = [pad(cut(cell, size), size) for cell, size in zip(row[:-1], sizes, strict=True)]
        lines.append(cut(indent + "  ".join([*cells, row[-1]]), WIDTH).rstrip())
    return lines


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
            _for((claims.at - claim.claimed_at).total_seconds()),
            claim.state,
            f"{one_line(claim.sign)} ({one_line(claim.host, 20)} {claim.pid})",
        )
        for claim in claims.claims
    ]
    head = ("task", "slot", "adapter", "att", "since", "for", "state", "sign of life")
    return [*_table(head, rows, (30, 6, 10, 4, 16, 8, 7)), foot]


def render_queue(queue: Queue) -> list[str]:
    """`swarm queue`."""
    foot = f"{plural(len(queue.changes), 'change')}; {_gate_text(queue.gate)}"
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
            _queue_says(change),
        )
        for change in queue.changes
    ]
    head = ("", "task", "att", "sealed", "change", "state")
    lines = _table(head, rows, (3, 32, 4, 16, 22))
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
    return [*_table(("task", "state", "pri", "att", "title"), rows, (34, 9, 4, 3)), foot]


def _task_says(task: TaskLine) -> str:
    title = one_line(task.title)
    why = one_line(task.why)
    return f"{why}   {title}" if why else title


# One task's story


def render_story(story: Story) -> list[str]:
    """`swarm show`: what it is, its attempts in a table, each attempt in full, what to type."""
    lines = [beside(f"{story.task}   {one_line(story.title)}", _story_state(story))]
    lines += _story_head(story)
    if story.attempts:
        lines += ["", *_attempt_table(story), ""]
        for number, attempt in enumerate(story.attempts):
            later = story.attempts[number + 1] if number + 1 < len(story.attempts) else None
            lines += _attempt_lines(story, attempt, later)
    else:
        lines += ["", "  no attempt yet"]
    return [*lines, *_turns(story), "", *_story_foot(story)]


_TURNS = ("edited", "parked", "reopened", "cancelled", "lost")


def _turns(story: Story) -> Iterator[str]:
    """What happened to the task between its attempts."""
    for event in story.events:
        if event["event"] in _TURNS:
            at = clock(datetime.fromisoformat(event["at"]), story.at)
            yield cut(f"  {event['event']:<9} {at}  {one_line(event['says'])}", WIDTH)


def _story_state(story: Story) -> str:
    if story.landed is not None and story.landed_at is not None:
        return f"landed {clock(story.landed_at, story.at)} as {story.landed[:7]}"
    return story.state


def _field(name: str, text: str) -> Iterator[str]:
    for number, line in enumerate(_wrapped(text, WIDTH - 12)[:6]):
        yield f"  {name if number == 0 else '':<9} {line}"


def _story_head(story: Story) -> Iterator[str]:
    facts = f"{one_line(story.file)}   priority {story.priority}"
    if story.role:
        facts += f"   role {one_line(story.role, 20)}"
    if story.source:
        facts += f"   from {one_line(story.source, 40)}"
    yield from _field("file", facts)
    if story.needs:
        yield from _field("needs", "   ".join(_need_text(need, story.at) for need in story.needs))
    paths = one_line(" ".join(story.paths)) or "anything"
    yield from _field("paths", f"{paths}   checks {one_line(' '.join(story.checks)) or 'none'}")
    if story.why:
        yield from _field("why", one_line(story.why))
    if story.question:
        yield from _field("asks", f'"{one_line(story.question)}"')


def _need_text(need: NeedLine, now: datetime) -> str:
    when = f" {clock(need.at, now)}" if need.at is not None else ""
    return f"{need.task} ({need.state}{when})"


def _attempt_table(story: Story) -> list[str]:
    rows = []
    for attempt in story.attempts:
        strike = "-" if attempt.strike is None else attempt.strikes or "no"
        cost = f"${attempt.cost_usd:.2f}" if attempt.cost_usd is not None else "unknown"
        rows.append(
            (
                str(attempt.token),
                one_line(f"{attempt.slot or attempt.agent} {attempt.adapter or ''}", 20),
                clock(attempt.claimed_at, story.at),
                _for(attempt.for_seconds),
                cost,
                strike,
                _outcome_text(attempt),
            )
        )
    head = ("att", "agent", "from", "for", "cost", "strike", "outcome")
    return _table(head, rows, (3, 16, 16, 8, 8, 7), indent="  ")


def _outcome_text(attempt: AttemptLine) -> str:
    if attempt.event is None:
        return {"claimed": "working"}.get(attempt.state, attempt.state)
    if attempt.event == "landed":
        return "landed"
    word = attempt.event
    if word == "released":
        word = _WORDS.get(attempt.outcome or "", word)
    says = one_line(attempt.message)
    return says if says.startswith(word) else f"{word}: {says}"


def _attempt_lines(story: Story, attempt: AttemptLine, later: AttemptLine | None) -> Iterator[str]:
    yield cut(f"  attempt {attempt.token}   {_where_text(story, attempt)}", WIDTH)
    if attempt.commits is not None:
        text = f"head {(attempt.head or 'unknown')[:7]}, {_size_of(attempt)}"
        left = attempt.left_by_agent
        if left is not None and (left.uncommitted or left.untracked):
            text += f"; {left.uncommitted} uncommitted, {left.untracked} untracked sealed by swarm"
        yield _fact("sealed", text)
    for hold in attempt.hold:
        how = "approved" if hold.approved_at is not None else "waits for a person"
        paths = f": {', '.join(hold.paths[:3])}" if hold.paths else ""
        yield _fact("held", f"{hold.reason}{paths}; {how}")
    for check in attempt.checks:
        yield from _check_lines(check)
    if attempt.outcome == "conflict" or (attempt.paths and not attempt.checks):
        yield _fact("paths", ", ".join(attempt.paths[:6]))
    partner = attempt.partner
    if partner is not None:
        text = partner.task
        if partner.landed is not None and partner.at is not None:
            text += f", landed {clock(partner.at, story.at)} as {partner.landed[:7]}"
            text += f", changed {', '.join(partner.paths[:3])}"
        yield _fact("partner", text)
    if attempt.landed is not None:
        text = f"{attempt.landed[:7]} = {story.target} {(attempt.previous or '')[:7]}"
        yield _fact("landed", f"{text} + {(attempt.head or '')[:7]}; {attempt.message}")
    elif attempt.outcome is not None:
        yield _fact("ended", attempt.message)
    for ref in attempt.rescued:
        yield _fact("kept", ref)
    if later is not None and attempt.outcome is not None:
        yield _fact("next", f"attempt {later.token} {_next_text(later)}")


def _where_text(story: Story, attempt: AttemptLine) -> str:
    base = f"base {attempt.base[:7]}" if attempt.base else "base unknown"
    start = attempt.start or ""
    if start and start != attempt.base:
        base += f"   start {start[:7]}"
    if attempt.merge:
        base += f" + {story.target} {attempt.merge[:7]}"
    if attempt.commits is None and attempt.head is not None:
        base += f"   saved {attempt.head[:7]}"
    return base


def _size_of(attempt: AttemptLine) -> str:
    files = f"{plural(attempt.files or 0, 'file')} +{attempt.insertions} -{attempt.deletions}"
    return f"{plural(attempt.commits or 0, 'commit')}, {files}"


def _next_text(later: AttemptLine) -> str:
    start = f"started from {(later.start or 'unknown')[:7]}"
    if later.merge:
        start += f" with {later.merge[:7]} merged in"
    return f"{start}, and was told the above"


def _fact(name: str, text: str) -> str:
    return cut(f"    {name:<9} {one_line(text, 400)}", WIDTH)


def _check_lines(check: CheckLine) -> Iterator[str]:
    word = check.verdict.replace("_", " ")
    took = f" in {check.seconds:.1f}s" if check.seconds is not None else ""
    code = f", exit {check.exit_code}" if check.exit_code else ""
    why = f": {check.why}" if check.why else ""
    name = check.check if check.about == "merged" else "alone"
    said = f"{word}{took}{code} on tree {check.tree[:7]}{why}"
    if check.about == "alone":
        said = f"{check.check} {said}"
    yield _fact(name, said)
    if check.about == "merged":
        for test in check.failing[:5]:
            yield cut(f"{'':<16}FAILED {one_line(test)}", WIDTH)
        if len(check.failing) > 5:
            yield f"{'':<16}and {len(check.failing) - 5} more"
        if check.log and check.verdict != "passed":
            yield _fact("log", check.log)


def _story_foot(story: Story) -> Iterator[str]:
    has_work = story.work or any(attempt.head for attempt in story.attempts)
    read = [f"swarm diff {story.task}"] if has_work else []
    if story.attempts:
        read.append(f"swarm tail {story.task} --attempt {story.attempts[-1].token}")
        yield from _field("read", "   ".join(read))
        last = story.attempts[-1]
        if last.folder is not None:
            yield f"  {'files':<9} {one_line(last.folder)}"
            yield from _field("", one_line(" ".join(last.holds)))
    yield f"  {'source':<9} {plural(len(story.events), 'event')}; ledger {story.ledger.oid[:7]}"


# Differences


def compared_line(compared: Compared) -> str:
    """What a shown difference is between."""
    files, plus, minus = compared.stat
    what = f"{compared.task}   {compared.what}   {compared.old[:7]}..{compared.new[:7]}"
    return cut(f"{what}   {plural(files, 'file')} +{plus} -{minus}", WIDTH)


def diff_lines(patch: bytes) -> Iterator[tuple[str, str]]:
    """(line, colour or "") of git's own patch, fit for a terminal."""
    for raw in patch.decode("utf-8", "replace").split("\n")[:-1]:
        line = clean(raw)
        colour = ""
        if line.startswith(("diff ", "index ", "--- ", "+++ ", "new file", "deleted file")):
            colour = "bold"
        elif line.startswith("@@"):
            colour = "cyan"
        elif line.startswith("+"):
            colour = "green"
        elif line.startswith("-"):
            colour = "red"
        yield line, colour
