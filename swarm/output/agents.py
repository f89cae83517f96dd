"""Agents as text: the list, what one file says, what would be started.

Enters: their records. Leaves: lines. Guards: a command line can be pasted as it is printed, and
holds no control character.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence

from swarm.output.words import WIDTH, clock, columns, cut, plural, table, wrapped
from swarm.overview import Agent, AgentLine, Agents, Asks, EndLine, Forgot, Ready, Refused, Wrong
from swarm.trailers import one_line, plain

_INDENT = 13  # of what stands behind a word at the left
_YES = {True: "yes", False: "no", None: "unknown"}
_PROMPT = {
    "stdin": "on standard input",
    "argument": "as the last word",
    "file": "in a file that a word names",
}
_HELD = {
    "said": "it says",
    "priced": "reckoned from its tokens, by [price]",
    "counted": "counted in its output",
    "told": "it is told, and ends by itself",
    None: "it does not say: no limit of it can hold",
}


def render_agents(found: Agents) -> list[str]:
    """`swarm agents list`."""
    rows = [
        (
            line.name,
            _origin(line),
            _program(line),
            line.version or "-",
            _YES[line.logged_in],
            clock(line.limit.until, found.at) if line.limit is not None else "-",
            one_line(line.about),
        )
        for line in found.agents
        if line.error is None
    ]
    head = ("agent", "file", "program", "version", "logged in", "limited until", "about")
    lines = table(head, rows, (16, 17, 8, 14, 9, 16), whole=0)
    for line in found.agents:
        if line.error is not None:
            lines += _wrong_lines(line.name, line.error)
    foot = plural(len(found.agents), "agent")
    if found.checkout is None:
        foot += "; no swarm.toml here: only what is built in"
    return [*lines, f"{foot}; more of one: swarm agents check NAME"]


def _origin(line: AgentLine | Agent | Ready) -> str:
    if line.origin == "built_in":
        return "built in"
    return "own, for built-in" if line.is_override else "own"


def _program(line: AgentLine) -> str:
    if line.program is None:
        return "any"
    return "found" if line.path is not None else "missing"


def render_agent(found: Agent) -> list[str]:
    """`swarm agents show NAME`."""
    program = found.program if found.program is not None else "THE-PROGRAM"
    starts = [program, *found.argv, *found.argv_last]
    holds = found.holds
    lines = [cut(f"{found.name}   {one_line(found.about)}".rstrip(), WIDTH)]
    lines += _field("file", f"{found.file} ({_origin(found)})")
    lines += _command("starts", starts)
    if found.program is None:
        lines += _field("", "THE-PROGRAM and its words are what you type after --")
    lines += _field("prompt", _PROMPT[found.prompt])
    for name, words in (("bypass", found.bypass), ("limited", found.limited)):
        lines += _command(name, words) if words is not None else _field(name, "has no such words")
    lines += _field("options", ", ".join(map(one_line, found.options)) or "none")
    lines += _field("session", "goes on with its own" if found.resumes else "begins anew each time")
    for name, by in (("cost", holds.cost_usd), ("tokens", holds.tokens), ("turns", holds.turns)):
        option = "cost_usd" if name == "cost" else name
        told = "; it is told the limit too" if option in holds.told and by != "told" else ""
        lines += _field(name, _HELD[by] + told)
    lines += _field("sees", _names(found.passed) or "no variable beyond the base list")
    if found.sets:
        lines += _field("is given", _names(found.sets))
    lines += _login_lines(found.login)
    for number, end in enumerate(found.outcomes, start=1):
        hint = f"; {one_line(end.hint)}" if end.hint else ""
        says = f"{number}. {end.is_}: {_condition(end)}{hint}"
        lines += _field("ends" if number == 1 else "", says)
    lines += _field("", "else failed; a success without any work is none")
    lines += _field("stopped by", _names(found.signals))
    return [*lines, *_field("try it", f"swarm agents check {found.name}")]


def _login_lines(login: Asks) -> Iterator[str]:
    ways = [f"`{one_line(shlex.join(login.argv))}` ends with 0"] if login.argv is not None else []
    ways += [f"{_names(login.env)} set"] if login.env else []
    ways += [f"there is {_names(login.files)}"] if login.files else []
    yield from _field("logged in", f"when {', or '.join(ways)}" if ways else "nothing tells")
    if login.cure:
        yield from _field("", f"else: {one_line(login.cure)}")


def _condition(end: EndLine) -> str:
    parts = [f"exit {' or '.join(map(str, end.exit))}"] if end.exit is not None else []
    where = {"stdout": "standard output", "stderr": "standard error", "report": "its report"}
    if end.when:
        facts = ", ".join(f"{one_line(key)} = {_value(value)}" for key, value in end.when.items())
        text = f" and the text {_value(end.text)}" if end.text is not None else ""
        parts.append(f"an event in {where[end.source]} with {facts}{text}")
    elif end.text is not None:
        parts.append(f"the text {_value(end.text)} in {where[end.source]}")
    reset = "; it tells until when" if end.tells_reset else ""
    return (", and ".join(parts) or "always") + reset


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{one_line(value, 80)}"' if isinstance(value, str) else str(value)


def render_ready(found: Ready) -> list[str]:
    """`swarm agents check NAME`."""
    lines = [f"{found.name}   {one_line(found.version or 'version unknown')}"]
    lines += _field("file", f"{found.file} ({_origin(found)})")
    lines += _field("program", found.path or "not there")
    lines += _field("logged in", _login_says(found))
    lines += _field("limited", _limit_says(found.limit, found))
    start = found.start
    if start is not None:
        home = f"; HOME {start.home}" if start.home else ""
        lines += _field("would run", f"in {start.folder}; permission {start.permission}{home}")
        lines += _field("", f"the prompt {_PROMPT[start.prompt]}")
        for line in start.sandbox:
            lines += _field("", line)
        lines += _command("", start.argv)
        lines += _field("with", _names(start.environment))
        if start.stands:
            told = ", ".join(f"{word}: {what}" for word, what in start.stands.items())
            lines += _field("where", told)
    elif not found.wrong:
        lines += _field("would run", "unknown: no swarm.toml here")
    for wrong in found.wrong:
        lines += _wrong_lines("wrong", wrong)
    return [*lines, *_field("so", _verdict(found))]


def _login_says(found: Ready) -> str:
    if found.logged_in is None:
        return "unknown: nothing tells without asking its provider"
    return _YES[found.logged_in]


def _limit_says(limit: Refused | None, found: Ready) -> str:
    if limit is None:
        return "no"
    by = "its provider says so" if limit.is_said else "a guess: its provider does not say"
    return f"until {clock(limit.until, found.at)}; {by}; {plural(limit.count, 'refusal')} in a row"


def _verdict(found: Ready) -> str:
    match found.state:
        case "ready":
            return "ready" if found.logged_in else "ready, as far as can be seen"
        case "not_logged_in":
            return f"not logged in: {one_line(found.login.cure or 'its file names no cure')}"
        case "limited":
            return f"limited; to try all the same: swarm agents forget {found.name}"
        case "wrong":
            return f"not ready: {plural(len(found.wrong), 'thing')} to mend"


def render_forgot(found: Forgot) -> list[str]:
    """`swarm agents forget NAME`."""
    if found.was is None:
        return [f"no limit of {found.name} was remembered"]
    until = found.was.until.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    over = "; it had ended" if found.is_over else ""
    return [f"forgotten: {found.name} was limited until {until}{over}"]


def _names(names: Iterable[str]) -> str:
    return " ".join(one_line(name) for name in names)


def _wrong_lines(name: str, wrong: Wrong) -> Iterator[str]:
    yield from _field(name, plain(wrong.what))
    yield from _field("", plain(wrong.why or ""))
    for hint in plain(wrong.hint or "").splitlines():
        yield from _field("", f"hint: {hint}")


def _field(name: str, text: str) -> Iterator[str]:
    """`text` behind `name`, over as many lines as it needs; a path stays whole."""
    lines = [
        part
        for line in text.splitlines()
        for part in wrapped(one_line(line, 4000), _ROOM, is_cut=False)
    ]
    for number, line in enumerate(lines):
        yield f"  {name if number == 0 else '':<{_INDENT - 3}} {line}".rstrip()


_ROOM = WIDTH - _INDENT


def _command(name: str, words: Sequence[str]) -> Iterator[str]:
    """A command line as a shell takes it, over several lines where one has no room for it."""
    lines: list[str] = []
    for word in map(shell_word, words):
        if lines and columns(lines[-1]) + 1 + columns(word) <= _ROOM - 2:  # room for ` \`
            lines[-1] += f" {word}"
        else:
            lines.append(f"  {word}" if lines else word)
    for number, line in enumerate(lines):
        more = " \\" if number + 1 < len(lines) else ""
        yield f"  {name if number == 0 else '':<{_INDENT - 3}} {line}{more}"


def shell_word(word: str) -> str:
    """One word as a shell takes it; what cannot be printed is spelled as bash reads it."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(map(_spelled, word)) + "'"


def _spelled(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable():
        return char
    number = ord(char)
    if 0xDC80 <= number <= 0xDCFF:  # a byte of a name that is not UTF-8
        return f"\\x{number - 0xDC00:02x}"
    return f"\\x{number:02x}" if number < 0x80 else f"\\U{number:08x}"
