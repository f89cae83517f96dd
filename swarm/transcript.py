"""What an agent says, read while it says it: one shape of event, whatever the program.

Enters: an adapter; the files into which an agent's output goes. Leaves: what was said, what was
used, and how the program's end is to be judged.
Guards: output is somebody else's: a broken, huge or unknown line is never fatal and decides
nothing; what was not said is None, never 0.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec

from swarm.adapter import Adapter, Is, Locator, Scalar, Source, Waiting, places
from swarm.ledger.records import Usage

Kind = Literal["started", "message", "tool", "usage", "limit", "result", "error"]

MAX_LINE = 8 << 20  # bytes; a longer line is no event that decides anything
END = 64 << 10  # bytes at the end of an output in which `text` without `when` is looked for
READ = 1 << 20  # bytes of one look: an agent that floods its output holds nobody up
MAX_TEXT = 2000  # characters that an event carries of what was said
MAX_REPORT = 16 << 20  # bytes
MAX_WAIT = timedelta(days=8)  # a provider's longest limit is a week
TRANSCRIPT = "transcript.jsonl"  # in an attempt's folder: what its agent printed
STDERR = "stderr.log"
REPORT = "report/usage.json"  # alone in a folder: all of it that the agent itself may write
_FIGURES = ("cost_usd", "tokens_input", "tokens_cached", "tokens_output", "turns")
_SPANS = {"seconds": "seconds", "ms": "milliseconds", "minutes": "minutes", "hours": "hours"}
_ORDINAL = re.compile(r"(?<=\d)(?:st|nd|rd|th)\b")
_SUFFIX = {"k": 1_000, "K": 1_000, "m": 1_000_000, "M": 1_000_000}


@dataclass(frozen=True, slots=True)
class Said:
    """One thing that an agent said."""

    kind: Kind
    text: str = ""  # cut to MAX_TEXT characters; as said: not fit for a terminal


@dataclass(frozen=True, slots=True)
class Judgement:
    """What an adapter's rules say of an ended program; `failed` when none matched.

    A success is still to be confirmed by the state of git.
    """

    is_: Is
    hint: str | None = None
    reset_at: datetime | None = None  # of a limit: when it ends, if that was said


@dataclass
class _Input:
    """One output file, read on and on."""

    path: Path
    offset: int = 0
    part: bytes = b""  # of a line that has not ended
    is_skipping: bool = False  # in a line that is too long


@dataclass
class _Matched:
    """Where a rule's condition was met last."""

    text: str
    at: datetime


@dataclass
class Transcript:
    """Reads what one agent writes, from its start on. One thread at a time.

    `report`: the file in which the program itself says what it used; it need not come to be.
    """

    adapter: Adapter
    stdout: Path
    stderr: Path
    report: Path | None = None
    session: str | None = None  # the newest that was said
    doing: str = ""  # what it said or did last, for a table; as said
    error: str = ""  # why it failed, in its own words; as said
    turns: int = 0  # turns that were seen; see `figures`
    heard: int = 0  # events of a model at work: messages, tools, usage
    waits_since: datetime | None = None  # it waits for its provider, and has done nothing since
    waits_until: datetime | None = None  # until then, if it said so
    _figures: dict[str, float] = field(default_factory=dict)
    _matched: dict[int, _Matched] = field(default_factory=dict)  # rule -> its event
    _inputs: dict[Source, _Input] = field(default_factory=dict)
    _reported: tuple[int, int] | None = None  # size and time of the report that was read

    def __post_init__(self) -> None:
        output = self.adapter.output
        self._places = list(places(output))
        self._patterns = {
            name: re.compile(place.pattern)
            for name, place in self._places
            if place.pattern is not None
        }
        self._rules = [(n, rule) for n, rule in enumerate(self.adapter.outcome) if rule.when]
        read: set[Source] = {place.in_ for _, place in self._places}
        read |= {rule.source for _, rule in self._rules} | {w.in_ for w in output.waiting}
        for source, path in (("stdout", self.stdout), ("stderr", self.stderr)):
            if source in read:
                self._inputs[source] = _Input(path)
        self._has_report = "report" in read and self.report is not None
        # A text that nobody asks for an event of is not decoded.
        self._is_json = {
            source: any(p.pattern is None for _, p in self._places if p.in_ == source)
            or any(r.source == source for _, r in self._rules)
            or any(w.when for w in output.waiting if w.in_ == source)
            for source in self._inputs
        }

    def read(self, now: datetime | None = None) -> list[Said]:
        """What was said since the last call, oldest first; a bounded part of it each time."""
        now = now or datetime.now(UTC)
        found: list[Said] = []
        for source, one in self._inputs.items():
            for line in _new_lines(one, READ):
                self._hear(source, line, found, now)
        self._read_report(found, now)
        return found

    def finish(self, now: datetime | None = None) -> list[Said]:
        """All that is left, its last line whether or not it ended. The program has ended."""
        now = now or datetime.now(UTC)
        found: list[Said] = []
        for source, one in self._inputs.items():
            at = -1
            while one.offset != at:  # a part of it may hold no end of a line
                at = one.offset
                for line in _new_lines(one, READ, is_last=True):
                    self._hear(source, line, found, now)
        self._read_report(found, now)
        return found

    def hear(self, line: bytes, source: Source = "stdout") -> list[Said]:
        """What one whole line says: for whoever reads the output by other means."""
        found: list[Said] = []
        if source in self._inputs:
            self._hear(source, line, found, datetime.now(UTC))
        return found

    # What is known

    @property
    def has_succeeded(self) -> bool:
        """Has it said that it is done? Then only its end is missing."""
        return any(
            rule.is_ == "success" and number in self._matched for number, rule in self._rules
        )

    @property
    def figures(self) -> dict[str, float]:
        """What was said of `cost_usd`, `tokens_*` and `turns`; cumulative ones from the session's
        start. Turns that were only seen count where the program says no number.
        """
        known = dict(self._figures)
        if "turns" not in known and self.adapter.output.turn is not None and self.turns:
            known["turns"] = self.turns
        return known

    def usage(self, before: Mapping[str, float] | None = None, *, is_whole: bool = True) -> Usage:
        """What this attempt used.

        Args:
            before: what the session had said at the end of the attempt that it is resumed from;
                cumulative figures are counted from there.
            is_whole: False: a part of the output was left out, so that what is added up is unknown.
        """
        known: dict[str, float | None] = dict.fromkeys(_FIGURES)
        place_of = dict(self._places)
        for name, value in self.figures.items():
            place = place_of.get(name)
            is_added = place.sum if place is not None else True
            if is_added and not is_whole:
                continue
            said_before = (before or {}).get(name, 0.0)
            if place is not None and place.cumulative and value >= said_before:
                value -= said_before
            known[name] = value
        cost, is_priced = known["cost_usd"], False
        if cost is None and self.adapter.price is not None:
            cost, is_priced = self._priced(known), True
        return Usage(
            cost_usd=None if cost is None else round(cost, 6),
            is_priced=is_priced and cost is not None,
            tokens_input=_whole(known["tokens_input"]),
            tokens_cached=_whole(known["tokens_cached"]),
            tokens_output=_whole(known["tokens_output"]),
            turns=_whole(known["turns"]),
        )

    def _priced(self, known: Mapping[str, float | None]) -> float | None:
        price, read, written = self.adapter.price, known["tokens_input"], known["tokens_output"]
        if price is None or read is None or written is None:
            return None
        cached = min(known["tokens_cached"] or 0.0, read)
        rate = price.input if price.cached is None else price.cached
        return ((read - cached) * price.input + cached * rate + written * price.output) / 1e6

    def judge(
        self, exit_code: int | None, signal: int | None, now: datetime | None = None
    ) -> Judgement:
        """What the adapter's rules say of the end, in order, first match wins. After `finish`.

        `exit_code` is None when a signal ended it.
        """
        exited = exit_code if signal is None else None
        ends: dict[Source, str] = {}
        for number, rule in enumerate(self.adapter.outcome):
            if rule.exit is not None and exited not in rule.exit:
                continue
            matched = self._matched.get(number)
            if rule.when and matched is None:
                continue
            if not rule.when and (rule.text is not None or rule.reset):
                end = ends.setdefault(rule.source, self._end_of(rule.source))
                if rule.text is not None and rule.text not in end:
                    continue
                matched = _Matched(end, now or datetime.now(UTC))
            reset = _reset_in(matched.text, rule.reset, matched.at) if matched else None
            return Judgement(rule.is_, rule.hint, reset)
        return Judgement("failed")

    def _end_of(self, source: Source) -> str:
        path = {"stdout": self.stdout, "stderr": self.stderr, "report": self.report}[source]
        with contextlib.suppress(OSError):
            if path is not None:
                with path.open("rb") as stream:
                    stream.seek(max(0, stream.seek(0, os.SEEK_END) - END))
                    return stream.read().decode(errors="replace")
        return ""

    # Hearing

    def _hear(self, source: Source, line: bytes, found: list[Said], now: datetime) -> None:
        text: str | None = None
        event = _decoded(line) if self._is_json[source] else None
        if event is not None:
            self._hear_event(source, event, line, found, now)
        for name, place in self._places:
            pattern = self._patterns.get(name)
            if pattern is None or place.in_ != source:
                continue
            text = line.decode(errors="replace") if text is None else text
            match = pattern.search(text)
            if match is not None:
                value = match["value"] if "value" in pattern.groupindex else match[0]
                self._note(name, place, [value], found)
        for waiting in self.adapter.output.waiting:
            if waiting.in_ == source and not waiting.when and waiting.text is not None:
                text = line.decode(errors="replace") if text is None else text
                if waiting.text in text:
                    self._wait(waiting, text, found, now)

    def _hear_event(
        self,
        source: Source,
        event: dict[str, Any],
        line: bytes,
        found: list[Said],
        now: datetime,
    ) -> None:
        is_refusal = False
        for number, rule in self._rules:
            if rule.source == source and _has(event, rule.when):
                if rule.text is not None and not _says(line, event, rule.text):
                    continue
                # Resets are looked for in what was said, not in its JSON.
                self._matched[number] = _Matched(_all_text(event) if rule.reset else "", now)
                is_refusal = is_refusal or rule.is_ in ("limit", "login")
        worked = self.heard, self.waits_since, self.waits_until
        for name, place in self._places:
            if place.in_ == source and place.pattern is None and _has(event, place.when):
                self._note(name, place, _values(event, place), found)
        if is_refusal:
            # Some say it in the place of a model's answer, or with figures of nothing.
            self.heard, self.waits_since, self.waits_until = worked
        for waiting in self.adapter.output.waiting:
            if waiting.in_ != source or not waiting.when or not _has(event, waiting.when):
                continue
            if waiting.text is None or _says(line, event, waiting.text):
                self._wait(waiting, _all_text(event), found, now)

    def _note(self, name: str, place: Locator, values: list[object], found: list[Said]) -> None:
        if name == "turn":
            self.turns += 1
            self._is_at_work()
            return
        if name in _FIGURES:
            numbers = [n for n in map(_number, values) if n is not None]
            if numbers:
                before = self._figures.get(name, 0.0) if place.sum else 0.0
                self._figures[name] = before + sum(numbers)
                self._is_at_work()
                found.append(Said("usage"))
            return
        texts = [value for value in values if isinstance(value, str) and value]
        if not texts:
            return
        if name == "session":
            session = texts[-1][:200]
            if session != self.session:  # some say it with each event
                found.append(Said("started", session))
            self.session = session
            return
        said = "".join(texts)[:MAX_TEXT]
        if name not in ("error", "result"):
            self._is_at_work()
        if name == "message":
            self.doing = said
            found.append(Said("message", said))
        elif name == "tool":
            self.doing = said
            found.append(Said("tool", said))
        elif name == "result":
            found.append(Said("result", said))
        elif name == "error":
            self.error = said
            found.append(Said("error", said))

    def _is_at_work(self) -> None:
        self.heard += 1
        self.waits_since = self.waits_until = None

    def _wait(self, waiting: Waiting, text: str, found: list[Said], now: datetime) -> None:
        self.waits_since = self.waits_since or now
        self.waits_until = _reset_in(text, waiting.reset, now) or self.waits_until
        found.append(Said("limit", text[:MAX_TEXT]))

    def _read_report(self, found: list[Said], now: datetime) -> None:
        """The report as it stands; each time it has changed it stands for the whole attempt."""
        if not self._has_report or self.report is None:
            return
        try:
            status = self.report.lstat()
            mark = (status.st_size, status.st_mtime_ns)
            if mark == self._reported or not 0 < status.st_size <= MAX_REPORT:
                return
            data = _read_plain(self.report)
        except OSError:
            return
        event = _decoded(data)
        if event is None:  # half written: the next look finds it whole
            return
        self._reported = mark
        for name, place in self._places:
            if place.in_ == "report":
                self._figures.pop(name, None)
        self._hear_event("report", event, data, found, now)


def of_attempt(adapter: Adapter, folder: Path) -> Transcript:
    """The transcript that an attempt's folder holds, or will hold."""
    return Transcript(adapter, folder / TRANSCRIPT, folder / STDERR, folder / REPORT)


def judge(
    adapter: Adapter, exit_code: int | None, signal: int | None, stdout: Path, stderr: Path
) -> Judgement:
    """What the adapter's rules say of a program that has ended and written these files."""
    transcript = Transcript(adapter, stdout, stderr)
    transcript.finish()
    return transcript.judge(exit_code, signal)


# -- lines ----------------------------------------------------------------------------------------


def _new_lines(one: _Input, most: int, *, is_last: bool = False) -> Iterator[bytes]:
    """Whole lines that came since the last time, of at most `most` bytes more; at the end of a
    program's output its last line too.
    """
    try:
        with one.path.open("rb") as stream:
            stream.seek(one.offset)
            data = stream.read(most)
    except OSError:
        return
    one.offset += len(data)
    *lines, one.part = (one.part + data).split(b"\n")
    if is_last and not data and one.part:
        lines, one.part = [one.part], b""
    if lines and one.is_skipping:
        one.is_skipping = False
        lines = lines[1:]
    if len(one.part) > MAX_LINE:
        one.part, one.is_skipping = b"", True
    yield from (line for line in lines if len(line) <= MAX_LINE)


def _read_plain(path: Path) -> bytes:
    """A file that an agent may have put there: a link, a pipe or a device is not opened."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        return file.read(MAX_REPORT + 1)


def _decoded(line: bytes) -> dict[str, Any] | None:
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        event = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        # A broken character in a text is no reason to lose what else the line says.
        try:
            event = msgspec.json.decode(line.decode(errors="replace"))
        except (msgspec.DecodeError, RecursionError):
            return None
    return event if isinstance(event, dict) else None


# -- places ---------------------------------------------------------------------------------------


def _values(event: dict[str, Any], place: Locator) -> list[object]:
    if place.at is None:
        return []
    paths = (place.at,) if isinstance(place.at, str) else place.at
    if not any(path.startswith("-") for path in paths):
        return [value for path in paths for value in _at_all(event, path)]
    added = [
        -number if path.startswith("-") else number
        for path in paths
        for value in _at_all(event, path.removeprefix("-"))
        if (number := _number(value)) is not None
    ]
    return [sum(added)] if added else []


def _at_all(value: object, path: str) -> Iterable[object]:
    """What stands at a dotted path; a part that ends in `[]` is each of a list or of a table."""
    found = [value]
    for part in path.split("."):
        name, is_each = part.removesuffix("[]"), part.endswith("[]")
        found = [one[name] for one in found if isinstance(one, dict) and name in one]
        if is_each:
            each: list[object] = []
            for one in found:
                if isinstance(one, dict | list):
                    each += one.values() if isinstance(one, dict) else one
            found = each
    return found


def _has(event: dict[str, Any], when: Mapping[str, Scalar]) -> bool:
    return all(_equal(_at(event, key), value) for key, value in when.items())


def _at(event: dict[str, Any], key: str) -> object:
    value: object = event
    for part in key.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def _equal(found: object, wanted: Scalar) -> bool:
    # 1 == True in Python; in an event they are different things.
    return isinstance(found, bool) == isinstance(wanted, bool) and found == wanted


def _says(line: bytes, event: object, text: str) -> bool:
    """In the line as printed, or in one of its strings as they read without JSON's escapes."""
    return text.encode() in line or any(text in said for said in _strings(event))


def _strings(event: object) -> Iterator[str]:
    rest = [event]
    while rest:
        value = rest.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            rest += value.values()
        elif isinstance(value, list):
            rest += value


def _all_text(event: dict[str, Any]) -> str:
    """The event's strings, and `key=value` for its numbers, so that a pattern finds either."""
    rest: list[tuple[str, object]] = [("", event)]
    parts = []
    while rest:
        key, value = rest.pop()
        if isinstance(value, dict):
            rest += value.items()
        elif isinstance(value, list):
            rest += [(key, one) for one in value]
        elif isinstance(value, str):
            parts.append(f"{key}={value}" if len(value) < 64 else value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            with contextlib.suppress(ValueError):  # a number too long to be written out
                parts.append(f"{key}={value}")
    return "\n".join(parts)


def _number(value: object) -> float | None:
    """A count or an amount; what is negative, no number or beyond belief was not said."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        text = value.strip().replace(",", "").removeprefix("$")
        factor = _SUFFIX.get(text[-1:], 1)
        try:
            number = float(text[:-1] if factor != 1 else text) * factor
        except ValueError:
            return None
    elif isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:
            return None
    else:
        return None
    return number if 0 <= number < 1e15 else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


# -- times ----------------------------------------------------------------------------------------


def _reset_in(text: str, patterns: Sequence[str], now: datetime) -> datetime | None:
    """When a limit ends, by the first pattern that finds a time in the text; None: none does.

    A time that has passed is now; one beyond the longest limit that providers have is that.
    """
    for pattern in patterns:
        match = re.search(pattern, text)
        said = {name: word for name, word in match.groupdict().items() if word} if match else {}
        at = _moment(said, now)
        if at is not None:
            return min(max(at, now), now + MAX_WAIT)
    return None


def _moment(said: Mapping[str, str], now: datetime) -> datetime | None:
    """A time by the groups of one match: `6m0s` is minutes and seconds."""
    try:
        spans = {_SPANS[name]: float(word) for name, word in said.items() if name in _SPANS}
        if spans:
            return now + timedelta(**spans)
        if "iso" in said:
            at = datetime.fromisoformat(said["iso"])
            return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        if "epoch" in said:
            seconds = float(said["epoch"])
            # Some write milliseconds.
            return datetime.fromtimestamp(seconds / 1000 if seconds > 1e11 else seconds, UTC)
        if "clock" in said:
            return _clock(said["clock"], now)
    except (ValueError, OverflowError, OSError):
        return None
    return None


def _clock(said: str, now: datetime) -> datetime:
    """`1:26 AM`, or `Dec 4th, 2026 1:16 AM` where it is another day: as this machine's clock shows
    it, which is the agent's too. It may have struck since it was said: then it is that of today.
    """
    words = _ORDINAL.sub("", said)
    here = now.astimezone()
    if "," in words:
        return datetime.strptime(words, "%b %d, %Y %I:%M %p").astimezone()
    time = datetime.strptime(words, "%I:%M %p").time()
    return datetime.combine(here.date(), time).astimezone()
