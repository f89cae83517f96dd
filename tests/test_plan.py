from __future__ import annotations

import dataclasses
import json
import os
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm import plan
from swarm.ledger.records import decode_task, encode_task
from swarm.plan import (
    Draft,
    Plan,
    check,
    default_title,
    from_github,
    from_jsonl,
    one_line,
    parse_task,
    read_folder,
    render,
    to_task,
)

REPORT = """\
---
# every key is optional
id: report-export               # default: the file name, folded
title: Export the monthly report as CSV
needs: [Money_Type]
priority: 5
role: build
paths: ["src/app/report/**", "tests/report/**"]
checks: [browser]
timeout: 20m
strikes: 3
source: "github#812"
---
`swarm`-independent prose: this body, unchanged, is what the agent reads.

Done when:
- it works
"""


def one(text: str, label: str = "tasks/a.md") -> Draft:
    drafts, problems = parse_task(label, text.encode())
    assert problems == []
    assert len(drafts) == 1
    return drafts[0]


def faults(data: str | bytes, label: str = "tasks/a.md") -> list[str]:
    """Every problem of a file, as `line key text`."""
    raw = data.encode() if isinstance(data, str) else data
    _, problems = parse_task(label, raw)
    assert all(p.file == label for p in problems)
    return [f"{p.line} {p.key} {p.text}" for p in problems]


def files(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (folder / f"{name}.md").write_text(text)
    return folder


# -- one file ----------------------------------------------------------------------------------


def test_every_key_of_a_header_is_read() -> None:
    draft = one(REPORT)
    assert draft == Draft(
        id="report-export",
        title="Export the monthly report as CSV",
        needs=("money-type",),
        priority=5,
        role="build",
        paths=("src/app/report/**", "tests/report/**"),
        checks=("browser",),
        timeout="20m",
        strikes=3,
        source="github#812",
        body=REPORT.split("---\n")[2],
    )
    assert draft.lines["needs"] == 5


def test_a_file_without_a_header_is_a_task() -> None:
    draft = one("# Refuse an empty cart\n\nAt checkout.\n", "tasks/Empty Cart.md")
    assert draft.id == "empty-cart"
    assert draft.title == "Refuse an empty cart"
    assert draft.body == "# Refuse an empty cart\n\nAt checkout.\n"


def test_a_title_alone_is_a_task() -> None:
    assert one("---\ntitle: Do it\n---\n").body == ""


def test_an_empty_header_and_empty_keys_mean_the_defaults() -> None:
    assert one("---\n---\nDo it\n") == one("Do it\n")
    assert one("---\nneeds:\nrole: ~\n---\nDo it\n") == one("Do it\n")


@pytest.mark.parametrize(
    ("body", "title"),
    [
        ("first line\n\n# The heading #\n", "The heading"),
        ("```\n# a comment\n```\n\n# Real\n", "Real"),
        ("\n\n  first line  \nsecond\n", "first line"),
        ("Do it.\n\n## Done when\n- x\n", "Do it."),  # a later section is no title
        ("## Second level\ntext\n", "Second level"),
        ("#no-heading\n", "no-heading"),
        ("# C#\n", "C#"),
        ("#\n\ntext\n", "text"),
        ("# a\x1b[31m b\r\n", "a [31m b"),
        ("word " * 40, "word " * 18 + "word..."),
        ("", ""),
        ("\x1b\n \n", ""),
    ],
)
def test_the_default_title_is_the_first_heading_or_line(body: str, title: str) -> None:
    assert default_title(body) == title


def test_a_title_is_one_harmless_line() -> None:
    draft = one('---\ntitle: "two\\nlines \\e[2J \\u202eright to left"\n---\nx\n')
    assert draft.title == "two lines [2J right to left"
    assert one_line("a\u200db  c\u200e") == "a\u200db c"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("tilte: x", "2 tilte no such key; did you mean title?"),
        ("zzz: x", "2 zzz no such key"),
        ("priority: high", '2 priority want an integer -100..100, got "high"'),
        ("priority: 101", "2 priority want an integer -100..100, got 101"),
        ("priority: 010", "2 priority want an integer -100..100, got a number: 010"),
        ("priority: 1.5", "2 priority want an integer -100..100, got a number: 1.5"),
        ("priority: yes", "2 priority want an integer -100..100, got a yes or no: yes"),
        ("priority: " + "9" * 5000, "2 priority want an integer -100..100, got a number: 999"),
        ("strikes: 0", "2 strikes want an integer 1..1000, got 0"),
        ("timeout: 1200", "2 timeout want a duration like 20m, got 1200"),
        ("timeout: 1:30", "2 timeout want a duration like 20m, got 1:30"),
        ("timeout: 0s", "2 timeout want more than nothing"),
        ("timeout: 99999999999999h", "2 timeout longer than a year"),
        ("timeout: soon", "2 timeout want a duration like 20m, got soon"),
        ("title: 2026-11-30", '2 title want text, got a date; write "2026-11-30" in quotes'),
        ("title: yes", '2 title want text, got a yes or no; write "yes" in quotes'),
        ("title: 404", '2 title want text, got a number; write "404" in quotes'),
        ("title: [a]", "2 title want text, got a list"),
        ("title: {a: b}", "2 title want text, got a table"),
        ("title: !!python/object/apply:os.system x", "2 title want text, got a tag:yaml.org"),
        ("title: !!binary aGk=", "2 title want text, got a tag:yaml.org,2002:binary"),
        ("needs: money-type", "2 needs want a list, as in [money-type]"),
        ("needs: 3", "2 needs want a list, got 3"),
        ("needs: [3]", '2 needs want text, got a number; write "3" in quotes'),
        ("needs: [[a]]", "2 needs want text, got a list or table"),
        ("needs: [~]", "2 needs want text, got nothing"),
        ("needs: ['!']", '2 needs "!" is no id: no letter or digit'),
        ("id: '---'", '2 id "---" is no id: no letter or digit of a-z, 0-9 is left of it'),
        ("id: " + "x" * 65, '2 id "xxxx'),
        ("role: Build", '2 role names are lower-case words with dashes: "build"'),
        ("checks: [a b]", '2 checks names are lower-case words with dashes: "a-b"'),
        ("paths: [../x]", '2 paths "../x" leaves the repository'),
        ("paths: [a/../../x]", '2 paths "a/../../x" leaves the repository'),
        ("paths: [/etc/passwd]", '2 paths "/etc/passwd" is absolute; paths start at'),
        ("paths: ['C:\\x']", '2 paths "C:\\\\x" is absolute'),
        ("paths: ['~/x']", '2 paths "~/x" is absolute'),
        ("paths: [a/.GIT/hooks]", '2 paths "a/.GIT/hooks" lies in .git'),
        ("paths: ['a/[b']", '2 paths "a/[b" has a [ without its ]'),
        ("paths: ['']", '2 paths "" is empty'),
        ("needs: [a]\nneeds: [b]", "3 needs stands twice; first on line 2"),
        ("- a", "2 header want lines like `key: value`"),
        ("just text", "2 header want lines like `key: value`"),
        ("? [a]\n: b", "2 header no such key"),
        ("a: b: c", "2 header not YAML: mapping values are not allowed"),
        ("title: x\n...\ntitle: y", "4 header not YAML"),
        ("title: \x01", "2 header not YAML: unacceptable character"),
        ("title: " + "[" * 50_000, "2 header not YAML: exceeded maximum nesting depth"),
    ],
)
def test_a_wrong_header_is_refused_with_its_line(header: str, expected: str) -> None:
    found = faults(f"---\n{header}\n---\nbody\n")
    assert len(found) == 1
    assert found[0].startswith(expected.replace("\\\\", "\\"))


def test_aliases_are_refused_before_they_grow() -> None:
    bomb = "title: &a [x, x]\n" + "".join(
        f"needs{i}: &b{i} [*{'a' if i == 0 else f'b{i - 1}'}, *{'a' if i == 0 else f'b{i - 1}'}]\n"
        for i in range(40)
    )
    found = faults(f"---\n{bomb}---\nbody\n")
    assert any("YAML aliases are refused" in line for line in found)
    assert faults("---\nneeds: &a [x]\npaths: *a\n---\nb\n") == [
        "3 paths YAML aliases are refused; write it out"
    ]
    assert faults("---\nneeds: &a [*a]\n---\nb\n") == [
        "2 needs YAML aliases are refused; write it out"
    ]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"ok\n\xff\n", "2 file not UTF-8"),
        (b"ok\n\nnul \0\n", "3 file holds a NUL byte"),
        (b"x" * (1 << 20) + b"y", "0 file larger than 1 MiB"),
        (b"", "1 body no title and no text: say what should be done"),
        (b" \n\n", "1 body no title and no text: say what should be done"),
        (b"---\nneeds: []\n---\n", "1 body no title and no text: say what should be done"),
        (b"---\ntitle: x\n", "1 header opens with --- and is never closed by another ---"),
    ],
)
def test_a_file_that_is_no_task_is_refused(data: bytes, expected: str) -> None:
    assert faults(data) == [expected]


def test_a_file_name_without_a_letter_needs_an_id() -> None:
    assert faults("x", "tasks/日本.md") == [
        '0 id "日本" is no id: no letter or digit of a-z, 0-9 is left of it; give it an id'
    ]


def test_a_draft_with_a_problem_can_still_be_needed() -> None:
    drafts, problems = parse_task("a.md", b"---\nid: x\npriority: high\n---\nbody\n")
    assert [d.id for d in drafts] == ["x"]
    assert len(problems) == 1


def test_windows_line_ends_and_a_byte_order_mark_are_read() -> None:
    data = b"\xef\xbb\xbf" + b"---\r\ntitle: Do it\r\n---\r\nbody\r\n"
    drafts, problems = parse_task("a.md", data)
    assert problems == []
    assert (drafts[0].title, drafts[0].body) == ("Do it", "body\r\n")


# -- several tasks in one file -----------------------------------------------------------------


def test_a_file_of_documents_holds_several_tasks() -> None:
    drafts, problems = parse_task(
        "tasks/plan.md",
        b"---\ntitle: Cart model\n---\nOne.\n\n---\nid: totals\nneeds: [cart-model]\n---\nTwo.\n"
        b"---\ntitle: Third\n---\n---\ntitle: Last\n---\nFour.\n",
    )
    assert problems == []
    assert [(d.id, d.title, d.body, d.line) for d in drafts] == [
        ("cart-model", "Cart model", "One.\n\n", 1),
        ("totals", "Two.", "Two.\n", 6),
        ("third", "Third", "", 11),
        ("last", "Last", "Four.\n", 14),
    ]


@pytest.mark.parametrize(
    "body",
    [
        "Heading\n---\ntext\n",
        "text\n\n---\n\nmore text\n\n---\n\nend\n",
        "text\n---\nNote: a rule before and after\n---\nend\n",
        "```markdown\n---\nid: x\n---\n```\n",
        "~~~~\n```\n---\nid: x\n---\n~~~~\n",
        "text\n\n---\nid: x, and no second rule\n",
        "----\nid: x\n----\n",
        "---- \ntext\n----\n",
    ],
)
def test_rules_headings_and_code_blocks_stay_text(body: str) -> None:
    assert one("---\ntitle: t\n---\n" + body).body == body


def test_a_code_block_that_never_ends_hides_no_task() -> None:
    drafts, problems = parse_task("a.md", b"---\nid: a\n---\n```py\nx\n---\nid: b\n---\nTwo.\n")
    assert problems == []
    assert [d.id for d in drafts] == ["a", "b"]


def test_each_of_several_tasks_needs_an_id_or_a_title() -> None:
    text = "---\npriority: 1\n---\nOne.\n---\npriority: 2\nid: b\n---\nTwo.\n"
    assert faults(text) == ["1 id several tasks in one file: each needs an id or a title"]
    assert faults("---\nid: a\n---\nOne.\n---\nneeds: [a]\n---\nTwo.\n") == [
        "5 id several tasks in one file: each needs an id or a title"
    ]


def test_a_slip_in_a_later_header_is_refused_and_not_read_as_text() -> None:
    assert faults("---\nid: a\n---\nOne.\n---\ntitel: b\n---\nTwo.\n") == [
        "6 titel no such key; did you mean title?",
        "5 id several tasks in one file: each needs an id or a title",
    ]


# -- a folder ----------------------------------------------------------------------------------


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    folder = files(tmp_path, b="B", a="A", C="C")
    (folder / "notes.txt").write_text("no task")
    (folder / ".hidden.md").write_text("no task")
    (folder / "deeper.md").with_suffix("").mkdir()
    plan = read_folder(folder, "tasks")
    assert plan.problems == ()
    assert [(d.file, d.id) for d in plan.drafts] == [
        ("tasks/C.md", "c"),
        ("tasks/a.md", "a"),
        ("tasks/b.md", "b"),
    ]


def test_no_folder_is_an_empty_plan(tmp_path: Path) -> None:
    assert read_folder(tmp_path / "tasks") == Plan()


def test_a_file_in_place_of_the_folder_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "tasks").write_text("x")
    (problem,) = read_folder(tmp_path / "tasks").problems
    assert str(problem) == "tasks   file   cannot be read: Not a directory"


def test_what_is_no_file_of_the_folder_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    folder.mkdir()
    (tmp_path / "secret").write_text("outside")
    (folder / "fine.md").symlink_to("real.md")
    (folder / "real.md").write_text("Real")
    (folder / "leaves.md").symlink_to(tmp_path / "secret")
    (folder / "loop.md").symlink_to("loop.md")
    (folder / "broken.md").symlink_to("nothing.md")
    (folder / "folder.md").mkdir()
    os.mkfifo(folder / "pipe.md")
    (folder / "big.md").write_bytes(b"x" * (2 << 20))
    plan = read_folder(folder)
    assert [d.id for d in plan.drafts] == ["fine", "real"]
    texts = {p.file: p.text for p in plan.problems}
    assert texts.pop("tasks/loop.md")
    assert texts == {
        "tasks/big.md": "larger than 1 MiB",
        "tasks/broken.md": "is no regular file",
        "tasks/folder.md": "is no regular file",
        "tasks/leaves.md": "is a link that leaves the folder",
        "tasks/pipe.md": "is no regular file",
    }


def test_a_hostile_file_name_cannot_steer_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[2J\n.md").write_text("---\n")
    (problem,) = read_folder(tmp_path, "tasks").problems
    assert problem.file == "tasks/a\\x1b[2J\\n.md"


# -- between tasks -----------------------------------------------------------------------------


def checked(folder: Path, **known: list[str]) -> list[str]:
    plan = read_folder(folder, "tasks")
    assert plan.problems == ()
    ledger = {name.replace("_", "-"): needs for name, needs in known.items()}
    found = check(plan.drafts, known=ledger, checks=["tests", "browser"])
    assert found == sorted(found)
    return [str(problem) for problem in found]


def test_an_unknown_need_names_the_nearest_task(tmp_path: Path) -> None:
    files(tmp_path, checkout="---\ntitle: x\npriority: 1\nneeds: [cart-modle]\n---\n")
    assert checked(tmp_path, cart_model=[]) == [
        'tasks/checkout.md:4   needs   no task "cart-modle"; did you mean cart-model?'
    ]


def test_an_unknown_check_and_an_unknown_role_are_named(tmp_path: Path) -> None:
    files(tmp_path, a="---\nchecks: [browsers]\nrole: build\n---\nx\n")
    assert checked(tmp_path) == [
        'tasks/a.md:2   checks   no check "browsers"; did you mean browser?'
    ]
    drafts = read_folder(tmp_path, "tasks").drafts
    found = check(drafts, known={}, checks=["browsers"], roles=["review"])
    assert [str(p) for p in found] == ['tasks/a.md:3   role   no slot with the role "build"']


def test_C24_ids_that_fold_to_one_are_refused(tmp_path: Path) -> None:
    files(tmp_path, Fix_T3="x", **{"fix-t3": "y"})
    assert checked(tmp_path) == [
        "tasks/Fix_T3.md   id   folds to fix-t3, and so does tasks/fix-t3.md"
    ]


def test_the_same_id_twice_is_refused(tmp_path: Path) -> None:
    files(tmp_path, a="---\nid: x\n---\nA\n", b="---\ntitle: B\nid: x\n---\n")
    assert checked(tmp_path) == ["tasks/b.md:3   id   is also the id of tasks/a.md:2"]


def test_an_id_of_the_ledger_is_an_edit_and_no_double(tmp_path: Path) -> None:
    files(tmp_path, a="x")
    assert checked(tmp_path, a=[]) == []


def test_a_cycle_is_printed_from_its_first_file(tmp_path: Path) -> None:
    need = "---\ntitle: t\nneeds: [{}]\n---\n"
    files(tmp_path, a=need.format("b"), b=need.format("c"), c=need.format("a"), d=need.format("a"))
    assert checked(tmp_path) == ["tasks/a.md:3   needs   cycle: a -> b -> c -> a"]


def test_a_cycle_through_the_ledger_is_found(tmp_path: Path) -> None:
    files(tmp_path, a="---\nneeds: [b]\n---\nx\n")
    assert checked(tmp_path, b=["c"], c=["a"]) == ["tasks/a.md:2   needs   cycle: a -> b -> c -> a"]


def test_an_edit_can_break_a_cycle_of_the_ledger(tmp_path: Path) -> None:
    files(tmp_path, a="x")
    assert checked(tmp_path, a=["b"], b=["a"]) == []


def test_a_task_that_needs_itself_is_a_cycle(tmp_path: Path) -> None:
    files(tmp_path, a="---\nneeds: [A]\n---\nx\n")
    assert checked(tmp_path) == ["tasks/a.md:2   needs   cycle: a -> a"]


def test_two_knots_are_two_problems() -> None:
    drafts = [
        Draft(id=name, title=name, needs=(need,), file=f"{name}.md")
        for name, need in [("a", "b"), ("b", "a"), ("c", "d"), ("d", "c"), ("e", "a")]
    ]
    found = check(drafts, known={}, checks=[])
    assert [p.text for p in found] == ["cycle: a -> b -> a", "cycle: c -> d -> c"]


def test_a_chain_of_needs_may_be_longer_than_the_stack() -> None:
    drafts = [
        Draft(id=f"t{i}", title="t", needs=(f"t{(i + 1) % 5000}",), file=f"{i}.md")
        for i in range(5000)
    ]
    (problem,) = check(drafts, known={}, checks=[])
    assert problem.text.startswith("cycle: t0 -> t1 -> t2 -> ")
    last = dataclasses.replace(drafts[-1], needs=())
    assert check([*drafts[:-1], last], known={}, checks=[]) == []


small_ids = st.sampled_from("abcdef")


@given(st.dictionaries(small_ids, st.lists(small_ids, max_size=3, unique=True), min_size=1))
def test_a_cycle_is_told_exactly_when_tasks_cannot_all_be_done(needs: dict[str, list[str]]) -> None:
    known: dict[str, list[str]] = {name: [] for name in "abcdef"}
    drafts = [Draft(id=i, title=i, needs=tuple(n), file=f"{i}.md") for i, n in needs.items()]
    found = check(drafts, known=known, checks=[])
    every = known | needs
    done: set[str] = set()
    while ready := [t for t in every if t not in done and done.issuperset(every[t])]:
        done.update(ready)
    assert bool(found) == (len(done) < len(every))
    for problem in found:
        cycle = problem.text.removeprefix("cycle: ").split(" -> ")
        assert cycle[0] == cycle[-1]
        assert all(b in every[a] for a, b in pairwise(cycle))


# -- GitHub and JSON lines ---------------------------------------------------------------------


def test_github_issues_become_drafts() -> None:
    issues = [
        {"number": 812, "title": "Export: the report", "body": "a\r\nb", "labels": [{"name": "x"}]},
        {"number": 9, "title": "日本", "body": None, "labels": []},
        {"number": 10, "title": "A very long title " * 5, "body": "", "labels": []},
    ]
    drafts, problems = from_github(json.dumps(issues).encode())
    assert problems == []
    assert [(d.id, d.title, d.body, d.source) for d in drafts] == [
        ("gh-812-export-the-report", "Export: the report", "a\nb", "github#812"),
        ("gh-9", "日本", "", "github#9"),
        (
            "gh-10-a-very-long-title-a-very-long-title-a-very",
            ("A very long title " * 5).strip(),
            "",
            "github#10",
        ),
    ]


def test_a_renamed_issue_keeps_its_id() -> None:
    data = json.dumps([{"number": 8, "title": "New name", "body": "x"}]).encode()
    drafts, _ = from_github(data, known={"github#8": "gh-8-old-name"})
    assert [d.id for d in drafts] == ["gh-8-old-name"]


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", b'[{"number": "x"}]', b"\xff", b"[" * 100_000]
)
def test_what_is_no_list_of_issues_is_refused(data: bytes) -> None:
    drafts, problems = from_github(data)
    assert drafts == []
    assert [p.key for p in problems] == ["file"]


def test_an_issue_with_a_nul_byte_is_refused_by_number() -> None:
    data = json.dumps([{"number": 8, "title": "t", "body": "a\0"}]).encode()
    drafts, problems = from_github(data)
    assert drafts == []
    assert [str(p) for p in problems] == ["github#8   body   holds a NUL byte"]


def test_json_lines_become_drafts() -> None:
    lines = b'{"title": "Do it", "needs": ["x"], "priority": 3}\n\n{"id": "B", "body": "Text"}\n'
    drafts, problems = from_jsonl(lines)
    assert problems == []
    assert drafts == [
        Draft(id="do-it", title="Do it", needs=("x",), priority=3),
        Draft(id="b", title="Text", body="Text"),
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"{", "stdin:2   file   not JSON"),
        (b"\xff", "stdin:2   file   not JSON"),
        (b'{"title": "\\ud800"}', "stdin:2   file   not JSON"),
        (b"[" * 100_000, "stdin:2   file   not JSON"),
        (b"[]", 'stdin:2   file   want an object like {"title": "..."}'),
        (b'{"title": "x", "body": 3}', "stdin:2   body   want text"),
        (b'{"title": "x", "body": "\\u0000"}', "stdin:2   body   holds a NUL byte"),
        (b'{"title": true}', 'stdin:2   title   want text, got a yes or no; write "true" in'),
        (b'{"title": "x", "priority": 1.0}', "stdin:2   priority   want an integer -100..100"),
        (b'{"title": "x", "priority": true}', "stdin:2   priority   want an integer -100..100"),
        (b'{"title": "x", "needs": [["a"]]}', "stdin:2   needs   want text, got a list"),
        (b'{"title": "x", "paths": ["/x"]}', 'stdin:2   paths   "/x" is absolute'),
        (b'{"titel": "x", "body": "y"}', "stdin:2   titel   no such key; did you mean title?"),
        (b"{}", "stdin:2   body   no title and no text"),
        (b'{"title": "\xe6\x97\xa5"}', 'stdin:2   id   "\u65e5" is no id'),
    ],
)
def test_a_wrong_json_line_is_refused_with_its_number(line: bytes, expected: str) -> None:
    _, problems = from_jsonl(b"\n" + line + b"\n")
    assert len(problems) == 1
    assert str(problems[0]).startswith(expected)


# -- writing -----------------------------------------------------------------------------------


def test_a_plain_task_is_written_without_a_header() -> None:
    assert render(Draft(id="a", title="Do it", body="Do it\n", file="tasks/a.md")) == "Do it\n"


def test_a_task_is_written_as_a_person_would() -> None:
    draft = one(REPORT)
    assert render(draft, "report-export.md").startswith(
        "---\n"
        "title: Export the monthly report as CSV\n"
        "needs: [money-type]\n"
        "priority: 5\n"
        "role: build\n"
        "paths: [src/app/report/**, tests/report/**]\n"
        "checks: [browser]\n"
        "timeout: 20m\n"
        "strikes: 3\n"
        "source: github#812\n"
        "---\n"
        "`swarm`-independent prose"
    )
    assert "id: report-export\n" in render(draft, "other.md")


def test_a_body_that_shows_a_header_gets_a_longer_fence() -> None:
    body = "Write this:\n---\nid: x\n---\n"
    text = render(Draft(id="a", title="T", body=body, file="a.md"))
    assert text.startswith("----\ntitle: T\n----\nWrite this:")
    assert one(text).body == body


lines = st.one_of(
    st.sampled_from(
        ["---", "----", "--- ", "id: x", "title: y", "", "```", "~~~", "# H", "-", "\r"]
    ),
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=8),
)
texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=30)
slugs = st.from_regex(r"[a-z0-9]{1,4}(-[a-z0-9]{1,4}){0,2}", fullmatch=True)


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    body = "\n".join(draw(st.lists(lines, max_size=8)))
    title = default_title(body)
    if not title or draw(st.booleans()):
        title = one_line(draw(texts)) or "Do it"
    return Draft(
        id=draw(slugs),
        title=title,
        needs=tuple(draw(st.lists(slugs, max_size=3, unique=True))),
        priority=draw(st.integers(-100, 100)),
        role=draw(st.one_of(st.just(""), slugs)),
        paths=tuple(
            draw(
                st.lists(
                    st.sampled_from(
                        ["src/**", "*.py", "!a/b", "**/x [a]", "a: b", "@x", "- y", "ü/"]
                    ),
                    max_size=3,
                    unique=True,
                )
            )
        ),
        checks=tuple(draw(st.lists(slugs, max_size=2, unique=True))),
        timeout=draw(st.sampled_from([None, "20m", "1h30m"])),
        strikes=draw(st.one_of(st.none(), st.integers(1, 1000))),
        source=one_line(draw(st.one_of(st.just(""), texts))),
        body=body,
        file=draw(st.sampled_from(["tasks/a.md", "tasks/no.md", "stdin", ""])),
    )


@given(drafts())
def test_a_written_task_reads_back_as_it_was(draft: Draft) -> None:
    label = draft.file or "a.md"
    found, problems = parse_task(label, render(draft, label).encode())
    assert problems == []
    assert found == [draft]


@given(drafts())
def test_the_ledgers_copy_of_a_draft_decodes_to_itself(draft: Draft) -> None:
    task = to_task(draft, datetime(2026, 11, 30, tzinfo=UTC))
    assert decode_task(encode_task(task)) == task
    assert task.id == draft.id


@given(st.lists(lines, max_size=10).map("\n".join))
def test_any_text_is_a_task_or_a_problem(text: str) -> None:
    found, problems = parse_task("tasks/a.md", text.encode())
    assert found or problems


@given(st.binary(max_size=60))
def test_any_bytes_are_a_task_or_a_problem(data: bytes) -> None:
    found, problems = parse_task("tasks/a.md", b"---\n" + data + b"\n---\nbody\n")
    assert found or problems


@pytest.mark.parametrize("name", ["sync-1", "revert-12", "fix-main", "fix-main-2", "Sync 3"])
def test_no_file_may_take_the_place_of_a_task_of_swarms_own(name: str) -> None:
    drafts, problems = plan.parse_task("t.md", f"---\nid: {name}\n---\n# harmless\n\nx\n".encode())
    assert not problems
    found = plan.check(drafts, known={}, checks=[])
    assert [p.key for p in found] == ["id"] and "swarm's own" in found[0].text


@pytest.mark.parametrize("name", ["revert-button", "sync", "synced-1", "fix-main-menu"])
def test_a_name_that_only_looks_like_one_is_anybodys(name: str) -> None:
    drafts, _ = plan.parse_task("t.md", f"---\nid: {name}\n---\n# harmless\n\nx\n".encode())
    assert not plan.check(drafts, known={}, checks=[])
