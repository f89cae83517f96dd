"""`swarm show` as text.

Enters: a task's story. Leaves: what it is, its attempts in a table, each in full, what to type.
Guards: an attempt is told in the order in which it happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from swarm.ledger.view import State
from swarm.output.costs import cost_text, tokens_text
from swarm.output.events import OUTCOMES, is_counted
from swarm.output.words import (
    WIDTH,
    beside,
    clean,
    clock,
    cut,
    for_text,
    plural,
    table,
    wrapped,
)
from swarm.overview import AttemptLine, CheckLine, NeedLine, Story, UsageLine
from swarm.trailers import one_line

MOST_ASKED = 100  # lines of a question


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


_TURNS = ("edited", "parked", "told", "reopened", "cancelled", "lost")


def _turns(story: Story) -> Iterator[str]:
    """What happened to the task between its attempts."""
    for event in story.events:
        if event["event"] in _TURNS:
            at = clock(datetime.fromisoformat(event["at"]), story.at)
            says = one_line(event["says"])
            if event["event"] == "told" and not _is_read(story, event["token"]):
                ended = story.state in (State.LANDED.value, State.CANCELLED.value)
                says = f"({'never read' if ended else 'not read yet'}) {says}"
            yield cut(f"  {event['event']:<9} {at}  {says}", WIDTH)


def _is_read(story: Story, token: int | None) -> bool:
    """Was there an attempt after the one in whose time it was said?"""
    return any(attempt.token > (token or 0) for attempt in story.attempts)


def _story_state(story: Story) -> str:
    if story.landed is not None and story.landed_at is not None:
        return f"landed {clock(story.landed_at, story.at)} as {story.landed[:7]}"
    return story.state


def _field(name: str, text: str) -> Iterator[str]:
    for number, line in enumerate(wrapped(text, WIDTH - 12)[:6]):
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
    if story.why and not story.question:
        yield from _field("why", one_line(story.why))
    if story.question:
        yield from _question_lines(story.task, story.question)


def _question_lines(task: str, question: str) -> Iterator[str]:
    """The whole question: whoever answers it reads it here."""
    asked = [part for line in question.split("\n") for part in wrapped(clean(line), WIDTH - 12)]
    for number, line in enumerate(asked[:MOST_ASKED]):
        yield f"  {'asks' if number == 0 else '':<9} {line}".rstrip()
    if len(asked) > MOST_ASKED:
        yield f"  {'':<9} and {len(asked) - MOST_ASKED} lines more: --json"
    yield f'  {"answer":<9} swarm tell {task} "..."'


def _need_text(need: NeedLine, now: datetime) -> str:
    when = f" {clock(need.at, now)}" if need.at is not None else ""
    return f"{need.task} ({need.state}{when})"


def _attempt_table(story: Story) -> list[str]:
    rows = []
    for attempt in story.attempts:
        strike = "-" if attempt.strike is None else attempt.strikes or "no"
        strike = strike if is_counted(strike) else "no"
        cost = cost_text(attempt.usage.cost_usd if attempt.usage is not None else None)
        rows.append(
            (
                str(attempt.token),
                one_line(f"{attempt.slot or attempt.agent} {attempt.adapter or ''}", 20),
                clock(attempt.claimed_at, story.at),
                for_text(attempt.for_seconds),
                cost,
                strike,
                _outcome_text(attempt),
            )
        )
    head = ("att", "agent", "from", "for", "cost", "strike", "outcome")
    return table(head, rows, (3, 16, 16, 8, 8, 7), indent="  ")


def _outcome_text(attempt: AttemptLine) -> str:
    if attempt.event is None:
        return {"claimed": "working"}.get(attempt.state, attempt.state)
    if attempt.event == "landed":
        return "landed"
    word = attempt.event
    if word == "released":
        word = OUTCOMES.get(attempt.outcome or "", word)
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
        yield _fact("asked" if attempt.question is not None else "ended", attempt.message)
    if attempt.usage is not None:
        yield _fact("used", _usage_text(attempt.usage))
    for ref in attempt.rescued:
        yield _fact("kept", ref)
    if later is not None and attempt.outcome is not None:
        yield _fact("next", f"attempt {later.token} {_next_text(later)}")


def _usage_text(usage: UsageLine) -> str:
    cost = "cost unknown" if usage.cost_usd is None else cost_text(usage.cost_usd)
    parts = [cost + (" (tokens times the adapter's price)" if usage.is_priced else "")]
    if usage.tokens_input is not None:
        cached = f" ({tokens_text(usage.tokens_cached)} cached)" if usage.tokens_cached else ""
        parts.append(f"{tokens_text(usage.tokens_input)} tokens in{cached}")
    if usage.tokens_output is not None:
        parts.append(f"{tokens_text(usage.tokens_output)} out")
    if usage.turns is not None:
        parts.append(plural(usage.turns, "turn"))
    if usage.session is not None:
        parts.append(f"session {usage.session}")
    return ", ".join(parts)


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
        if story.attempts[-1].folder is not None:
            read.append(f"swarm tail {story.task} --attempt {story.attempts[-1].token}")
        yield from _field("read", "   ".join(read))
        last = story.attempts[-1]
        if last.folder is not None:
            yield f"  {'files':<9} {one_line(last.folder)}"
            yield from _field("", one_line(" ".join(last.holds)))
    if story.undone_by:
        yield from _field("undone", f"by {', '.join(story.undone_by)}")
    elif story.landed is not None:
        yield from _field("undo", f"swarm revert {story.task}")
    if story.undoes:
        yield from _field("undoes", one_line(" ".join(story.undoes)))
    yield f"  {'source':<9} {plural(len(story.events), 'event')}; ledger {story.ledger.oid[:7]}"
