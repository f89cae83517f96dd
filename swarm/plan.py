"""Task files: what people write, made into drafts of tasks, or into problems with their lines.

Enters: Markdown files with YAML headers, GitHub issues, JSON lines. Leaves: drafts and problems.
Guards: nothing of a plan with a problem is used; no text in it is run, aliased or guessed at.

A file is one task: an optional header between two `---` lines, then the body, which agents read
unchanged. A file may hold several tasks, each with a header of its own that gives an id or a
title. A `---` line in a body is a new header only if the lines up to the next `---` are all of the
form `key: value` with at least one key of ours; rules, setext headings and code blocks stay text.
Like the fence of a code block the line may be longer than three dashes, and then only lines of
that very length count: `render` uses it for a body that shows a header of its own.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from swarm.config import MAX_BYTES, Problem, glob_fault, read_duration, shown
from swarm.ids import fold
from swarm.ledger.records import PERSON, Task, TaskHeader
from swarm.similar import nearest

if TYPE_CHECKING:  # imported where a header is read: most commands read none
    import yaml

# Tasks that swarm opens itself: no file says them, so that none has vanished.
OURS = re.compile(r"fix-main(?:-[0-9]+)?|(?:sync|revert)-[0-9]+")
PRIORITIES = range(-100, 101)
_MOST_STRIKES = 1000
_TITLE_LENGTH = 100  # of a title taken from the body; one that is given stays whole
_GITHUB_ID_LENGTH = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A task before the ledger has it. Equal when what would be stored is equal."""

    id: str  # folded
    title: str  # one line, never empty
    needs: tuple[str, ...] = ()  # folded ids
    priority: int = 0  # larger first
    role: str = ""  # "": any slot
    paths: tuple[str, ...] = ()  # none: anything
    checks: tuple[str, ...] = ()  # more checks; never fewer
    timeout: str | None = None  # as written: 20m
    strikes: int | None = None
    source: str = ""  # one line of free text
    body: str = ""  # as written
    file: str = field(default="", compare=False)  # where it was read, for messages
    line: int = field(default=1, compare=False)  # where its header begins
    spelled: str = field(default="", compare=False)  # its id before folding
    lines: Mapping[str, int] = field(default_factory=dict, compare=False)  # of each written key


class Plan(msgspec.Struct, frozen=True):
    """What a folder of task files says."""

    drafts: tuple[Draft, ...] = ()  # in the order of file names
    problems: tuple[Problem, ...] = ()  # sorted; with any, no draft may be used


# -- reading -----------------------------------------------------------------------------------


def read_folder(folder: Path, label: str | None = None) -> Plan:
    """All `*.md` of a folder, without its subfolders and hidden files. None: an empty plan.

    Args:
        label: how messages call the folder; its own name when left out.

    Safe: a file that vanishes or grows meanwhile is a problem, never a half-read task.
    """
    label = folder.name if label is None else label
    try:
        names = sorted(f.name for f in folder.iterdir() if f.suffix == ".md")
    except FileNotFoundError:
        return Plan()
    except OSError as error:
        return Plan(problems=(Problem(label, 0, "file", f"cannot be read: {error.strerror}"),))
    drafts: list[Draft] = []
    problems: list[Problem] = []
    root = folder.resolve()
    for name in names:
        if name.startswith("."):
            continue
        file = f"{label}/{shown(name, 200)}"
        data = _read(root / name, root)
        if isinstance(data, str):
            problems.append(Problem(file, 0, "file", data))
            continue
        found, faults = parse_task(file, data)
        drafts += found
        problems += faults
    return Plan(tuple(drafts), tuple(sorted(problems)))


def _read(file: Path, root: Path) -> bytes | str:
    """The bytes of a task file, or why it is none. Never waits for a pipe."""
    try:
        if file.is_symlink() and not file.resolve().is_relative_to(root):
            return "is a link that leaves the folder"
        if not file.is_file():
            return "is no regular file"
        with file.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"


def parse_task(label: str, data: bytes) -> tuple[list[Draft], list[Problem]]:
    """The tasks of one file, in order.

    A value with a problem keeps its default in the draft, so that other tasks' needs still find
    it; a draft is left out only when it has no id or no title.
    """
    draft = _Drafting(label)
    text = draft.text(data)
    if text is None:
        return [], draft.problems
    sections = list(_sections(text))
    default_id = PurePosixPath(label).stem if len(sections) == 1 else None
    drafts = [
        found for section in sections if (found := draft.section(section, default_id)) is not None
    ]
    return drafts, draft.problems


class _Section(msgspec.Struct, frozen=True):
    header: str | None  # YAML, or None when it is never closed
    header_line: int  # of the fence above it; of the body when there is no header
    body: str


_FENCE = re.compile(r"-{3,}[ \t\r]*")
_CODE = re.compile(r" {0,3}(`{3,}|~{3,})")


def _sections(text: str) -> Iterator[_Section]:
    lines = text.split("\n")
    fence = lines[0].rstrip(" \t\r")
    at = _closing(lines, 0, fence) if _FENCE.fullmatch(lines[0]) else None
    if fence == "---" and at is None and _FENCE.fullmatch(lines[0]):
        yield _Section(None, 1, "")
        return
    if at is None or (fence != "---" and not _is_header(lines[1:at], empty=True)):
        fence, at, header, header_line = "---", -1, "", 1
    else:
        header, header_line = "\n".join(lines[1:at]), 1
    begin = at + 1
    for opening, closing in _inner_headers(lines, begin, fence):
        yield _Section(header, header_line, "".join(f"{line}\n" for line in lines[begin:opening]))
        header, header_line = "\n".join(lines[opening + 1 : closing]), opening + 1
        begin = closing + 1
    yield _Section(header, header_line, "\n".join(lines[begin:]))


def _inner_headers(lines: Sequence[str], at: int, fence: str) -> Iterator[tuple[int, int]]:
    """Opening and closing line of each further header, in order."""
    unclosed: set[str] = set()  # fences of code that never end: text, or they would hide tasks
    while at < len(lines):
        mark = _CODE.match(lines[at])
        if mark and mark[1] not in unclosed:
            end = _code_end(lines, at, mark[1])
            if end is None:
                unclosed.add(mark[1])
            else:
                at = end
        elif lines[at].rstrip(" \t\r") == fence:
            closing = _closing(lines, at, fence)
            if closing is not None and _is_header(lines[at + 1 : closing]):
                yield at, closing
                at = closing
        at += 1


def _code_end(lines: Sequence[str], opening: int, mark: str) -> int | None:
    for at in range(opening + 1, len(lines)):
        found = _CODE.match(lines[at])
        if found and found[1].startswith(mark) and not lines[at].strip(" \t\r`~"):
            return at
    return None


def _closing(lines: Sequence[str], opening: int, fence: str) -> int | None:
    for at in range(opening + 1, len(lines)):
        if lines[at].rstrip(" \t\r") == fence:
            return at
    return None


_HEADER_LINE = re.compile(r"([A-Za-z_]+):(?:\s|$)|#|\s|-\s|[\]}]|$")


def _is_header(lines: Sequence[str], empty: bool = False) -> bool:
    """True when the lines read as a header: all of its form, and a key that is, or nearly is, ours.

    A near miss counts, so that `titel: x` is refused and does not vanish into a body.
    """
    matches = [_HEADER_LINE.match(line) for line in lines]
    if not all(matches):
        return False
    if not any(line.strip() for line in lines):
        return empty
    keys = {match[1] for match in matches if match is not None and match[1]}
    if len(keys) > 2 * len(_KEYS):  # a long table of something else: not worth guessing at
        return not keys.isdisjoint(_KEYS)
    return any(key in _KEYS or nearest(key, _KEYS, cutoff=0.8) for key in keys)


# -- values ------------------------------------------------------------------------------------


class _Odd(msgspec.Struct, frozen=True):
    """A value of a type that no key takes."""

    kind: str
    text: str


_YAML = "tag:yaml.org,2002:"
_ODD_KINDS: Final = {
    _YAML + "bool": "a yes or no",
    _YAML + "float": "a number",
    _YAML + "int": "a number",
    _YAML + "timestamp": "a date",
}


def _plain(value: object) -> str:
    """A value as it was written, for a message."""
    match value:
        case _Odd():
            return f"{value.kind}: {shown(value.text)}" if value.text else value.kind
        case list():
            return "a list"
        case None:
            return "nothing"
        case _:
            return shown(str(value))


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        raise ValueError("want text, got a list")
    if isinstance(value, int):
        raise ValueError(f'want text, got a number; write "{value}" in quotes')
    if isinstance(value, _Odd) and value.text:
        raise ValueError(f'want text, got {value.kind}; write "{shown(value.text)}" in quotes')
    raise ValueError(f"want text, got {_plain(value)}")


def _line(value: object) -> str:
    return one_line(_text(value))


_JOINERS = "\u200c\u200d"


def one_line(text: str) -> str:
    """Text on one line: blanks joined, and nothing left that steers a terminal or the reading
    direction. Joiners that scripts and emoji need stay.
    """
    spaced = "".join(" " if unicodedata.category(c) == "Cc" else c for c in text)
    kept = (c for c in spaced if c in _JOINERS or unicodedata.category(c) not in ("Cf", "Cs"))
    return " ".join("".join(kept).split())


def _whole(name: str, allowed: range) -> Callable[[object], int]:
    def read(value: object) -> int:
        if type(value) is int and value in allowed:
            return value
        want = f"want {name} {allowed[0]}..{allowed[-1]}"
        quoted = f'"{shown(value)}"' if isinstance(value, str) else _plain(value)
        raise ValueError(f"{want}, got {quoted}")

    return read


def _timeout(value: object) -> str:
    if not isinstance(value, str):
        text = value.text if isinstance(value, _Odd) and value.text else _plain(value)
        raise ValueError(f"want a duration like 20m, got {shown(text)}")
    read_duration(value)
    return value


_T = TypeVar("_T")


def _list(item: Callable[[object], _T]) -> Callable[[object], tuple[_T, ...]]:
    def read(value: object) -> tuple[_T, ...]:
        if not isinstance(value, list):
            text = f", as in [{shown(value)}]" if isinstance(value, str) else ""
            raise ValueError(f"want a list{text or f', got {_plain(value)}'}")
        return tuple(dict.fromkeys(item(one) for one in value))

    return read


def _id(value: object) -> str:
    text = _text(value)
    try:
        return fold(text)
    except ValueError as error:
        raise ValueError(f'"{shown(text)}" is no id: {error}') from error


def _slug(value: object) -> str:
    text = _text(value)
    if _id(text) != text:
        raise ValueError(f'names are lower-case words with dashes: "{_id(text)}"')
    return text


def _role(value: object) -> str:
    return "" if value == "" else _slug(value)


def _path(value: object) -> str:
    text = _text(value)
    parts = text.removeprefix("!").split("/")
    if text.startswith(("/", "!/", "~")) or re.match(r"[A-Za-z]:[\\/]", text):
        raise ValueError(f'"{shown(text)}" is absolute; paths start at the repository root')
    if ".." in parts:
        raise ValueError(f'"{shown(text)}" leaves the repository')
    if ".git" in [part.casefold() for part in parts]:
        raise ValueError(f'"{shown(text)}" lies in .git')
    if fault := glob_fault(text):
        raise ValueError(f'"{shown(text)}" {fault}')
    return text


_KEYS: Final[Mapping[str, Callable[[object], Any]]] = {
    "id": _text,
    "title": _line,
    "needs": _list(_id),
    "priority": _whole("an integer", PRIORITIES),
    "role": _role,
    "paths": _list(_path),
    "checks": _list(_slug),
    "timeout": _timeout,
    "strikes": _whole("an integer", range(1, _MOST_STRIKES + 1)),
    "source": _line,
}


class _Drafting:
    """Reads the tasks of one source; collects problems instead of stopping at the first."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.problems: list[Problem] = []

    def fault(self, line: int, key: str, text: str) -> None:
        self.problems.append(Problem(self.label, line, shown(key), text))

    def text(self, data: bytes) -> str | None:
        if len(data) > MAX_BYTES:
            self.fault(0, "file", "larger than 1 MiB")
            return None
        if b"\0" in data:
            self.fault(data.count(b"\n", 0, data.index(b"\0")) + 1, "file", "holds a NUL byte")
            return None
        data = data.removeprefix(codecs.BOM_UTF8)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            self.fault(data.count(b"\n", 0, error.start) + 1, "file", "not UTF-8")
            return None

    def section(self, section: _Section, default_id: str | None) -> Draft | None:
        line = section.header_line
        if section.header is None:
            self.fault(line, "header", "opens with --- and is never closed by another ---")
            return None
        values, lines = self.header(section.header, line)
        draft = self.draft(values, lines, section.body, line, default_id)
        if default_id is None and not {"id", "title"} & values.keys():
            self.fault(line, "id", "several tasks in one file: each needs an id or a title")
            return None
        return draft

    def untrusted(self, values: Mapping[str, object], body: str, line: int) -> Draft | None:
        """A task that came without a file: its id is given, or its title folded."""
        if "\0" in body:
            self.fault(line, "body", "holds a NUL byte")
            return None
        if len(body.encode()) > MAX_BYTES:
            self.fault(line, "body", "larger than 1 MiB")
            return None
        return self.draft(values, dict.fromkeys(values, line), body, line, None)

    def header(self, text: str, fence_line: int) -> tuple[dict[str, object], dict[str, int]]:
        """Values and lines of the keys of a YAML header; no value is a YAML object any more."""
        import yaml

        values: dict[str, object] = {}
        lines: dict[str, int] = {}
        try:
            loader = yaml.CSafeLoader(text)
            try:
                root = loader.get_single_node()
            finally:
                loader.dispose()
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            words = getattr(error, "problem", None) or str(error).splitlines()[0]
            self.fault(fence_line + 1 + (mark.line if mark else 0), "header", f"not YAML: {words}")
            return values, lines
        if root is None:
            return values, lines
        if not isinstance(root, yaml.MappingNode):
            self.fault(fence_line + 1, "header", "want lines like `key: value`")
            return values, lines
        seen: set[int] = set()
        for key, node in root.value:
            line = fence_line + 1 + key.start_mark.line
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            if not all(_is_first(n, seen) for n in (key, node, *_items(node))):
                self.fault(line, name or "header", "YAML aliases are refused; write it out")
            elif name in lines:
                self.fault(line, name, f"stands twice; first on line {lines[name]}")
            else:
                values[name] = _from_yaml(node)
            lines.setdefault(name, line)
        return values, lines

    def draft(
        self,
        values: Mapping[str, object],
        lines: Mapping[str, int],
        body: str,
        line: int,
        default_id: str | None,
    ) -> Draft | None:
        """One task, or None when it has no title or no id; an absent key and null are the same.

        Without `default_id` its id is its title, folded.
        """
        read: dict[str, Any] = {}
        for key, value in values.items():
            if key not in _KEYS:
                near = nearest(key, _KEYS)
                hint = f"; did you mean {near}?" if near else ""
                self.fault(lines.get(key, line), key or "header", f"no such key{hint}")
            elif value is not None:
                try:
                    read[key] = _KEYS[key](value)
                except ValueError as error:
                    self.fault(lines.get(key, line), key, str(error))
        title = read.pop("title", "") or default_title(body)
        if not title:
            if not values.get("title"):  # else that was the problem
                self.fault(line, "body", "no title and no text: say what should be done")
            return None
        spelled = read.pop("id", None)
        id_line = lines.get("id", 0)
        if spelled is None:
            spelled = title if default_id is None else default_id
            id_line = lines.get("title", line) if default_id is None else 0
        try:
            folded = fold(spelled)
        except ValueError as error:
            hint = "" if "id" in lines else "; give it an id"
            self.fault(id_line, "id", f'"{shown(spelled)}" is no id: {error}{hint}')
            return None
        return Draft(
            id=folded,
            title=title,
            body=body,
            file=self.label,
            line=line,
            spelled=spelled,
            lines={**lines, "id": id_line},
            **read,
        )


def _items(node: yaml.Node) -> list[yaml.Node]:
    import yaml

    return node.value if isinstance(node, yaml.SequenceNode) else []


def _is_first(node: yaml.Node, seen: set[int]) -> bool:
    """False when an alias shows a node again: the composer gives the very same object."""
    if id(node) in seen:
        return False
    seen.add(id(node))
    return True


_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")


def _from_yaml(node: yaml.Node) -> object:
    import yaml

    if isinstance(node, yaml.SequenceNode):
        return [
            _from_yaml(one) if isinstance(one, yaml.ScalarNode) else _Odd("a list or table", "")
            for one in node.value
        ]
    if not isinstance(node, yaml.ScalarNode):
        return _Odd("a table", "")
    text: str = node.value
    if node.tag == _YAML + "str":
        return text
    if node.tag == _YAML + "null":
        return None
    if node.tag == _YAML + "int" and _INTEGER.fullmatch(text):
        return int(text)
    return _Odd(_ODD_KINDS.get(node.tag, f"a {shown(node.tag)}"), text)


_HEADING = re.compile(r" {0,3}#(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*")


def default_title(body: str) -> str:
    """The first heading of the first level, else the first line with text; "" when there is none.

    Only the first level: `## Done when` below a line of prose is no title.
    """
    code: str | None = None
    first = ""
    for line in body.split("\n"):
        if mark := _CODE.match(line):
            code = mark[1] if code is None else None if mark[1].startswith(code) else code
            continue
        if code is None and (heading := _HEADING.fullmatch(line.rstrip("\r"))):
            if title := _cut(one_line(heading[1] or "")):
                return title
        elif not first:
            first = _cut(one_line(line.lstrip(" \t#")))
    return first


def _cut(title: str) -> str:
    if len(title) <= _TITLE_LENGTH:
        return title
    return title[: _TITLE_LENGTH - 3].rsplit(" ", 1)[0] + "..."


# -- checking ----------------------------------------------------------------------------------


def check(
    drafts: Sequence[Draft],
    *,
    known: Mapping[str, Collection[str]],
    checks: Collection[str],
    roles: Collection[str] | None = None,
) -> list[Problem]:
    """What is wrong between drafts, and with what they name. Sorted by file and line.

    Args:
        known: id and needs of every task of the ledger; a draft with such an id is an edit of it.
        checks: names of the configured checks.
        roles: names of the roles that slots have; None when that is not known yet.
    """
    problems = _same_ids(drafts)
    ids = {draft.id for draft in drafts} | known.keys()
    for draft in drafts:
        if OURS.fullmatch(draft.id):  # it would take the place of one, agents and all
            problems.append(_problem(draft, "id", f"{draft.id} is a name of swarm's own tasks"))
        for need in draft.needs:
            if need not in ids:
                problems.append(_problem(draft, "needs", _no("task", need, ids)))
        for name in draft.checks:
            if name not in checks:
                problems.append(_problem(draft, "checks", _no("check", name, checks)))
        if roles is not None and draft.role and draft.role not in (PERSON, *roles):
            problems.append(_problem(draft, "role", _no("slot with the role", draft.role, roles)))
    return sorted(problems + _cycles(drafts, known))


def _problem(draft: Draft, key: str, text: str) -> Problem:
    return Problem(draft.file, draft.lines.get(key, draft.line), key, text)


def _no(what: str, name: str, names: Iterable[str]) -> str:
    near = nearest(name, names)
    return f'no {what} "{name}"' + (f"; did you mean {near}?" if near else "")


def _same_ids(drafts: Sequence[Draft]) -> list[Problem]:
    """The draft whose id is written as it folds keeps it; without one, the first."""
    groups: dict[str, list[Draft]] = {}
    for draft in drafts:
        groups.setdefault(draft.id, []).append(draft)
    problems = []
    for task, group in groups.items():
        keeper = next((d for d in group if d.spelled == task), group[0])
        place = Problem(keeper.file, keeper.lines.get("id", keeper.line), "", "").where
        for draft in group:
            if draft is not keeper:
                folds = f"folds to {task}, and so does" if draft.spelled != task else "is also"
                also = place if draft.spelled != task else f"the id of {place}"
                problems.append(_problem(draft, "id", f"{folds} {also}"))
    return problems


def _cycles(drafts: Sequence[Draft], known: Mapping[str, Collection[str]]) -> list[Problem]:
    """One problem for each knot of needs that a draft is part of: its shortest cycle."""
    needs: dict[str, Collection[str]] = {**known}
    by_id: dict[str, Draft] = {}
    for draft in drafts:
        needs[draft.id] = draft.needs
        by_id.setdefault(draft.id, draft)
    knot = _knots(needs, by_id)
    problems = []
    told: set[int] = set()
    for draft in by_id.values():
        if draft.id in knot and knot[draft.id] not in told:
            told.add(knot[draft.id])
            cycle = _shortest_cycle(draft.id, needs, knot)
            problems.append(_problem(draft, "needs", f"cycle: {' -> '.join(cycle)}"))
    return problems


def _knots(needs: Mapping[str, Collection[str]], roots: Iterable[str]) -> dict[str, int]:
    """Number of the strongly connected component of each task that is in a cycle.

    Source: Tarjan 1972, with a stack of its own, since a chain of needs may be longer than
    Python's.
    """
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    open_: dict[str, None] = {}  # the stack of tasks whose component is not closed; ordered
    knot: dict[str, int] = {}
    for root in roots:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        open_[root] = None
        stack = [(root, iter(needs[root]))]
        while stack:
            task, rest = stack[-1]
            for need in rest:
                if need not in needs:
                    continue
                if need not in index:
                    index[need] = low[need] = len(index)
                    open_[need] = None
                    stack.append((need, iter(needs[need])))
                    break
                if need in open_:
                    low[task] = min(low[task], index[need])
            else:
                stack.pop()
                if stack:
                    parent = stack[-1][0]
                    low[parent] = min(low[parent], low[task])
                if low[task] == index[task]:
                    members = _popped_to(open_, task)
                    if len(members) > 1 or task in needs[task]:
                        knot.update(dict.fromkeys(members, index[task]))
    return knot


def _popped_to(stack: dict[str, None], last: str) -> list[str]:
    members = []
    while True:
        members.append(stack.popitem()[0])
        if members[-1] == last:
            return members


def _shortest_cycle(
    start: str, needs: Mapping[str, Collection[str]], knot: Mapping[str, int]
) -> list[str]:
    paths: dict[str, str | None] = {start: None}  # task -> the one that needs it
    queue = [start]
    for task in queue:
        for need in needs[task]:
            if need == start:
                cycle = [start]
                at: str | None = task
                while at is not None:
                    cycle.append(at)
                    at = paths[at]
                return cycle[::-1]
            if knot.get(need) == knot[start] and need not in paths:
                paths[need] = task
                queue.append(need)
    raise AssertionError(f"{start} is in a knot and in no cycle")


# -- other sources -----------------------------------------------------------------------------


class _Issue(msgspec.Struct, frozen=True):
    """What `gh issue list --json number,title,body,labels` says; labels mean nothing to us."""

    number: int
    title: str
    body: str | None = None


def from_github(
    data: bytes, *, known: Mapping[str, str] | None = None
) -> tuple[list[Draft], list[Problem]]:
    """Drafts of GitHub issues, in the order given; `source` is `github#<number>`.

    Args:
        known: id by source of the tasks that exist, so that an issue with a new title keeps its
            id; a new one gets `gh-<number>-<words of its title>`.
    """
    reading = _Drafting("github")
    try:
        issues = msgspec.json.decode(data, type=list[_Issue])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reading.fault(0, "file", f"want the JSON of `gh issue list`: {shown(str(error), 120)}")
        return [], reading.problems
    drafts = []
    for issue in issues:
        source = f"github#{issue.number}"
        reading.label = source
        body = (issue.body or "").replace("\r\n", "\n")  # its editor sends CRLF
        values = {
            "id": (known or {}).get(source) or _github_id(issue.number, issue.title),
            "title": issue.title,
            "source": source,
        }
        draft = reading.untrusted(values, body, 0)
        if draft is not None:
            drafts.append(draft)
    return drafts, reading.problems


def _github_id(number: int, title: str) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", unicodedata.normalize("NFKC", title).casefold())
    whole = f"gh-{number}-{words}".strip("-")
    if len(whole) <= _GITHUB_ID_LENGTH:
        return whole
    return whole[: _GITHUB_ID_LENGTH + 1].rpartition("-")[0].rstrip("-")


def from_jsonl(data: bytes, label: str = "stdin") -> tuple[list[Draft], list[Problem]]:
    """Drafts of JSON objects, one a line, with the keys of a header and `body`; blank lines pass.

    Without an `id` it is the title, folded.
    """
    reading = _Drafting(label)
    drafts = []
    for number, line in enumerate(data.removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            values = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            reading.fault(number, "file", f"not JSON: {shown(str(error), 120)}")
            continue
        if not isinstance(values, dict):
            reading.fault(number, "file", 'want an object like {"title": "..."}')
            continue
        body = values.pop("body", None) or ""
        if not isinstance(body, str):
            reading.fault(number, "body", "want text")
            continue
        draft = reading.untrusted({k: _from_json(v) for k, v in values.items()}, body, number)
        if draft is not None:
            drafts.append(draft)
    return drafts, reading.problems


def _from_json(value: object) -> object:
    match value:
        case bool():
            return _Odd("a yes or no", str(value).lower())
        case float():
            return _Odd("a number", str(value))
        case dict():
            return _Odd("a table", "")
        case list():
            return [_Odd("a list", "") if isinstance(v, list) else _from_json(v) for v in value]
        case _:
            return value


# -- writing -----------------------------------------------------------------------------------


def render(draft: Draft, name: str = "") -> str:
    """The task file as a person would write it: a header only for what is not the default.

    Parses back to an equal draft under that name.

    Args:
        name: the file name it gets; the one it was read from when left out.
    """
    header = _header(draft, PurePosixPath(name or draft.file).stem)
    if not header and _is_single(draft.body, draft.body):
        return draft.body
    keys = "".join(_yaml_line(key, value) for key, value in header.items())
    text = f"---\n{keys}---\n{draft.body}"
    if _is_single(text, draft.body):
        return text
    rules = (line.rstrip(" \t\r") for line in draft.body.split("\n") if _FENCE.fullmatch(line))
    fence = max(rules, key=len, default="---") + "-"  # the body shows a header of its own
    return f"{fence}\n{keys}{fence}\n{draft.body}"


def _yaml_line(key: str, value: object) -> str:
    import yaml

    def dump(one: object, flow: bool) -> str:
        text: str = yaml.dump(
            one,
            Dumper=yaml.CSafeDumper,
            allow_unicode=True,
            default_flow_style=flow,
            width=1 << 30,  # a value never goes on in a second line
        )
        return text

    if isinstance(value, list):
        return f"{key}: {dump(value, flow=True)}"
    return dump({key: value}, flow=False)


def _header(draft: Draft, stem: str) -> dict[str, object]:
    try:
        by_name = fold(stem) == draft.id
    except ValueError:
        by_name = False
    every: dict[str, object] = {
        "id": None if by_name else draft.id,
        "title": draft.title if draft.title != default_title(draft.body) else None,
        "needs": list(draft.needs),
        "priority": draft.priority,
        "role": draft.role,
        "paths": list(draft.paths),
        "checks": list(draft.checks),
        "timeout": draft.timeout,
        "strikes": draft.strikes,
        "source": draft.source,
    }
    return {key: value for key, value in every.items() if value}


def _is_single(text: str, body: str) -> bool:
    sections = list(_sections(text))
    return len(sections) == 1 and sections[0].body == body and not text.startswith("\ufeff")


def to_task(draft: Draft, added_at: datetime) -> Task:
    """The task as the ledger holds it; equal drafts with one `added_at` give equal bytes."""
    return Task(
        header=TaskHeader(
            id=draft.id,
            title=draft.title,
            added_at=added_at,
            needs=list(draft.needs),
            priority=draft.priority,
            role=draft.role,
            paths=list(draft.paths),
            checks=list(draft.checks),
            timeout=draft.timeout,
            strikes=draft.strikes,
            source=draft.source,
        ),
        body=draft.body,
    )
