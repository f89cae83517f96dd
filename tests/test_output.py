"""Text for people: lines, widths, whole screens.

Enters: events and records. Leaves: what a terminal shows of them.
Guards: at most 100 columns, nothing invented for what is not known, no control character of others.
"""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest

from swarm import overview
from swarm.cli import verbs
from swarm.ids import span_text
from swarm.ledger.records import Paused
from swarm.ledger.store import Logged
from swarm.output import (
    WIDTH,
    ago,
    clean,
    clock,
    columns,
    cut,
    diff_lines,
    event_line,
    render_claims,
    render_queue,
    render_status,
    render_story,
    render_tasks,
    size_text,
    word_of,
)
from swarm.output.events import _long_lines
from swarm.overview import (
    Counts,
    Disk,
    GateNow,
    Need,
    QueueLine,
    Reading,
    RunNow,
    SlotNow,
    Status,
    Target,
    TargetVerdict,
    UpstreamNow,
    Waiting,
)
from swarm.trailers import Message, listed
from tests.test_overview import a_busy_world, workspace
from tests.world import World

NOW = datetime(2026, 11, 30, 13, 20, 8, tzinfo=UTC)
OID = "b81e0f4500112233445566778899aabbccddeeff"
EVIL = "\x1b]0;owned\x07\x1b[31mred\x1b[0m\u202egnp.exe\u2066\x9b2J\r\n\x00"


def event(kind: str, says: str = "", task: str = "csv-export", **trailers: str) -> Logged:
    facts = {f"Swarm-{key.title()}": value for key, value in trailers.items()}
    given = {"Swarm-Event": kind, "Swarm-Task": task, **facts}
    return Logged(OID, NOW, Message(f"{kind}: {task}", says, given))


def is_harmless(text: str) -> bool:
    return all(unicodedata.category(c)[0] != "C" for line in text.split("\n") for c in line)


# Events


@pytest.mark.parametrize(
    ("logged", "line"),
    [
        (
            event(
                "landed", "tests passed; 4 files +88 -12; main b81e0f4",
                slot="s2", checks="tests", stat="4 files +88 -12", seconds="40",
            ),
            "10:32:07  landed    csv-export        s2   "
            "tests passed 40s   4 files +88 -12   main b81e0f4",
        ),
        (
            event("claimed", "long", token="2", start="5d1c0b7e", merge="6f20a3d1", target="aaa"),
            "10:32:07  claimed   csv-export             attempt 2, continues 5d1c0b7 on 6f20a3d",
        ),
        (
            event("claimed", "long", slot="s1", token="1", start=OID, target=OID),
            "10:32:07  claimed   csv-export        s1   attempt 1, from the target b81e0f4",
        ),
        (
            event("claimed", "long", slot="s1", token="3", start=OID, target="aaa"),
            "10:32:07  claimed   csv-export        s1   attempt 3, continues b81e0f4",
        ),
        (
            event("released", "the provider limits this account", outcome="provider_limit"),
            "10:32:07  limited   csv-export             the provider limits this account",
        ),
        (
            event("expired", "its runner is gone", slot="s4", work=OID),
            "10:32:07  expired   csv-export        s4   its runner is gone; kept b81e0f4",
        ),
        (
            event("brand-new", "A kind that this version does not know."),
            "10:32:07  brand-new csv-export             A kind that this version does not know.",
        ),
    ],
)  # fmt: skip
def test_an_event_is_one_line_that_says_what_happened(logged: Logged, line: str) -> None:
    assert event_line(logged, "10:32:07") == line


def test_a_strike_and_the_commit_stand_at_the_end_of_the_line() -> None:
    ended = event(
        "released", "killed by signal 9; kept", outcome="agent_failed", slot="s4", strike="1 of 3"
    )
    assert word_of(ended) == "crashed"
    line = event_line(ended, "00:04.4", "a3f09c1")
    assert line.startswith("00:04.4  crashed   csv-export        s4   killed by signal 9; kept ")
    assert line.endswith("  strike 1 of 3   a3f09c1")
    assert len(line) == WIDTH


def test_failing_tests_of_an_ejection_are_on_a_line_of_their_own() -> None:
    ejected = event(
        "ejected", "tests failed, alone too", slot="s3",
        failing=listed(["tests/test_tax.py::test_x[1 km]", "tests/test_tax.py::test_y"]),
    )  # fmt: skip
    assert event_line(ejected, "00:06.1").split("\n") == [
        "00:06.1  ejected   csv-export        s3   tests failed, alone too",
        " " * 42 + "FAILED tests/test_tax.py::test_x[1 km] and 1 more",
    ]


def test_a_long_sentence_goes_on_below_and_names_stay_whole() -> None:
    says = "conflict with another-task in " + ", ".join(f"src/file{n}.py" for n in range(6))
    lines = event_line(event("ejected", says), "10:31:02", "c9e1b40").split("\n")
    assert all(columns(line) <= WIDTH for line in lines)
    assert " ".join(" ".join(lines).split()).count("src/file5.py") == 1
    name = "a-very-long-name-of-a-task-that-people-have-to-copy-as-it-stands"
    lines = event_line(event("parked", "3 strikes", task=name), "10:31:02", "c9e1b40").split("\n")
    assert name in lines[0] and lines[1].strip() == "3 strikes"


@pytest.mark.parametrize("kind", ["landed", "claimed", "ejected", "released", "parked", "held"])
def test_text_of_others_never_reaches_the_terminal_as_control_characters(kind: str) -> None:
    names = ("slot", "strike", "failing", "start", "merge", "target", "checks", "stat", "outcome",
             "work", "seconds", "token")  # fmt: skip
    line = event_line(event(kind, EVIL, EVIL, **dict.fromkeys(names, EVIL)), "10:31:02")
    assert is_harmless(line)


@pytest.mark.parametrize("says", ["short", "words " * 12, "日本 " * 4])
@pytest.mark.parametrize("right", ["", "c9e1b40"])
def test_the_quick_way_to_a_line_is_the_long_way(says: str, right: str) -> None:
    logged = event("ejected", says.strip(), slot="s3", strike="1 of 3")
    end = f"strike 1 of 3   {right}".strip()
    long = _long_lines(logged, "10:31:02", (says.strip(),), end)
    assert event_line(logged, "10:31:02", right) == "\n".join(long)


def test_a_landing_that_has_no_room_for_wide_gaps_is_said_with_commas() -> None:
    landed = event(
        "landed", "tests passed; 3 files +40 -7; main b81e0f4",
        slot="s4", checks="tests", stat="3 files +40 -7", seconds="4.2",
    )  # fmt: skip
    assert event_line(landed, "10:31:02", "c9e1b40") == (
        "10:31:02  landed    csv-export        s4   "
        "tests passed 4.2s, 3 files +40 -7, main b81e0f4   c9e1b40"
    )


# What to type

_TOLD = re.compile(r"(?:^|\n\s*|[:;(]\s|\s{2,})swarm ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?")


def texts_of(tree: ast.AST) -> Iterator[str]:
    """Every text of a module but its docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            yield str(node.value)


def told_verbs() -> Iterator[tuple[str, str, str]]:
    """(where, verb, next word) of every command that a screen or a hint tells a person to type."""
    root = Path(overview.__file__).parent.parent
    for path in sorted(root.rglob("*.py")):
        tree = ast.parse(path.read_bytes())
        hints = [node for node in ast.walk(tree) if isinstance(node, ast.keyword)]
        parts: list[ast.AST] = [node.value for node in hints if node.arg in ("hint", "do")]
        if path.parent.name in ("output", "overview"):
            parts = [tree]
        for part in parts:
            for text in texts_of(part):
                for found in _TOLD.finditer(text):
                    yield path.name, found[1], found[2] or ""


def test_every_command_that_is_told_to_type_exists() -> None:
    told = list(told_verbs())
    assert len(told) > 20
    context = click.Context(verbs.swarm)
    for where, verb, word in told:
        command = verbs.swarm.get_command(context, verb)
        assert command is not None, f"{where} tells of swarm {verb}"
        if isinstance(command, click.Group) and word:
            assert command.get_command(context, word) is not None, f"{where}: {verb} {word}"


# Lines of output and of patches


def test_clean_takes_escape_sequences_away_and_keeps_the_spaces() -> None:
    assert clean(
        "  \x1b[1;31mError\x1b[0m:\t\x1b]8;;http://x\x07link\x1b]8;;\x07 a\u202eb\x9b1mc\r"
    ) == ("  Error:\tlink abc")
    assert clean("\x1bPq#0\x1b\\x\x1b(By") == "x(By"
    assert is_harmless(clean(EVIL))


def test_a_patch_on_a_terminal_is_coloured_by_us_and_holds_no_escape_of_others() -> None:
    patch = b"diff --git a/x b/x\n@@ -1 +1 @@\n-\x1b[2J old\n+new \xe2\x80\xae\xff\n same\n"
    assert list(diff_lines(patch)) == [
        ("diff --git a/x b/x", "bold"),
        ("@@ -1 +1 @@", "cyan"),
        ("- old", "red"),
        ("+new \ufffd", "green"),
        (" same", ""),
    ]


# Words


def test_ages_spans_and_sizes() -> None:
    assert [ago(s) for s in (0.4, 61, 3599, 7200, 200_000, None)] == [
        "0s ago", "1m ago", "59m ago", "2h ago", "2d ago", "at an unknown time",
    ]  # fmt: skip
    assert [span_text(timedelta(seconds=s)) for s in (9, 552, 3739)] == [
        "00:09", "09:12", "1:02:19",
    ]  # fmt: skip
    assert [size_text(s) for s in (12, 4100, 3_328_599_654)] == ["12 B", "4 kB", "3.3 GB"]
    yesterday = NOW - timedelta(days=1)
    assert clock(NOW, NOW) == NOW.astimezone().strftime("%H:%M:%S")
    assert clock(yesterday, NOW) == yesterday.astimezone().strftime("%Y-%m-%d %H:%M")


def test_wide_characters_count_as_what_they_take() -> None:
    assert columns("日本") == 4
    assert cut("日本語のタスク", 9) == "日本語..."
    assert cut("short", 9) == "short"


# Status


def a_status(**facts: Any) -> Status:
    counts: dict[str, int] = dict.fromkeys(Counts.__struct_fields__, 0)
    counts.update(facts.pop("counts", {}))
    given: dict[str, Any] = {
        "at": NOW,
        "repository": "app",
        "ledger": Reading(oid="8f0c3e11", age_seconds=0.31),
        "target": Target(
            branch="main",
            oid=OID,
            verdict=TargetVerdict(value="passed", check="tests", age_seconds=121, source="v"),
        ),
        "run": None,
        "needs_you": [],
        "counts": Counts(**counts),
        "slots": [],
        "queue": [],
        "gate": GateNow(strategy="serial", slots=1, holder=None, is_alive=True, paused=None),
        "waiting": [],
        "upstream": None,
        "limited": [],
        "cost": overview.Cost(known_usd=None, attempts_known=None, attempts_unknown=None),
        "disk": Disk(path="/x/app.swarm", bytes=None, age_seconds=None),
    }
    return Status(**{**given, **facts})


def test_nothing_running_and_nothing_to_say_is_two_lines() -> None:
    status = a_status(counts={"landed": 12, "total": 12})
    assert [re.sub(" {3,}", "   ", line) for line in render_status(status)] == [
        "app -> main b81e0f4, tests passed 2m ago   no run   ledger 8f0c3e1, read 0.3s ago",
        "nothing needs you; 12 landed, 0 ready",
    ]


def test_S1_what_is_not_known_reads_unknown_and_never_0() -> None:
    slot = SlotNow(slot="s1", run="r1", adapter="claude", task="t", state="working")
    status = a_status(
        target=Target(branch="main", oid=OID, verdict=None),
        run=RunNow(id="r1", pid=1, host="zeno", state="running", since=NOW, slots=1, others=[]),
        slots=[slot, SlotNow(slot="s2", run="r1", adapter="claude", state="idle")],
    )
    text = "\n".join(render_status(status))
    assert "main b81e0f4, not judged yet" in text
    assert "activity unknown" in text
    assert "s2  idle  why is not known" in text
    assert "cost      unknown    disk app.swarm unknown" in text


def test_what_needs_a_person_stands_before_everything_else() -> None:
    status = a_status(
        needs_you=[
            Need(kind="parked", task="rate-limit", key="1", why="3 strikes: tests failed 3 times",
                 do=["swarm show rate-limit"]),
            Need(kind="held", task="ci", key="2",
                 why="touches .github/workflows/ci.yml (protected)",
                 do=["swarm diff ci", "swarm approve ci"]),
            Need(kind="paused", task=None, key="3", why="main b81e0f4 is red: tests failed",
                 do=[]),
        ],
        queue=[
            QueueLine(task="login", token=1, position=1, since=NOW, state="checking", why="",
                      check="tests", for_seconds=23, usual_seconds=41),
        ],
        waiting=[Waiting(task="docs", state="waiting", why="needs api"),
                 Waiting(task="sla", state="blocked", why="needs impossible, parked")],
        counts={"waiting": 3, "blocked": 1, "queued": 1, "open": 3, "total": 5},
    )  # fmt: skip
    assert render_status(status)[1:] == [
        "",
        "needs you",
        "  parked   rate-limit   3 strikes: tests failed 3 times       swarm show rate-limit",
        "  held     ci           touches .github/workflows/ci.yml      swarm diff ci",
        "                        (protected)                           swarm approve ci",
        "  paused                main b81e0f4 is red: tests failed",
        "",
        "working 0   queued 1   ready 0   waiting 3   landed 0   held 0   parked 0   blocked 1"
        "    of 5",
        "queue  1  login  checking tests 00:23 of about 00:41" + " " * 29 + "gate serial, 1 slot",
        "waiting   docs (needs api)   and 2 more",
        "blocked   sla (needs impossible, parked)",
        "cost      unknown    disk app.swarm unknown",
    ]


def test_no_screen_is_wider_than_100_columns_nor_lets_a_control_character_through() -> None:
    long = EVIL + "word " * 60 + "日本語" * 30
    name = "n" * 64
    status = a_status(
        repository=long,
        run=RunNow(id="r8", pid=5, host=long, state="draining", since=NOW, slots=9, others=["r9"]),
        needs_you=[
            Need(kind="held", task=name, key="1", why=long, do=[f"swarm diff {name}"]),
            Need(kind="asked", task="t", key="2", why=long, do=[f"swarm tell t {'x' * 200}"]),
        ],
        slots=[
            SlotNow(slot="s1", run="r8", adapter=long, task=name, attempt=1, state="working",
                    for_seconds=99999, newest=long, files_changed=3, commits=12, trouble=long),
            SlotNow(slot="s2", run="r8", adapter="x", state="idle", why=long),
        ],
        queue=[QueueLine(task=name, token=1, position=n, since=NOW, state="waiting", why=long,
                         check=None, for_seconds=None, usual_seconds=None) for n in range(1, 9)],
        gate=GateNow(strategy="serial", slots=1, holder=None, is_alive=True,
                     paused=Paused(why=long, by="gate", at=NOW)),
        waiting=[Waiting(task=name, state="waiting", why=long)] * 3,
        upstream=UpstreamNow(
            remote=long,
            branch=long,
            tip="9" * 40,
            age_seconds=3.0,
            task=name,
            pushed_branch=long,
            pushed="8" * 40,
        ),
        counts=dict.fromkeys(Counts.__struct_fields__, 12345),
        disk=Disk(path=f"/x/{long}", bytes=10**13, age_seconds=3.0),
    )  # fmt: skip
    lines = render_status(status)
    assert [line for line in lines if columns(line) > WIDTH] == []
    assert is_harmless("\n".join(lines))


# Whole screens of a real hub


def normal(lines: list[str]) -> list[str]:
    """Hashes, times, ages and sizes by their kind, as wide as they were: columns stay columns."""
    text = "\n".join(lines)
    text = re.sub(r"\b[0-9a-f]{40}\b", "<oid>", text)
    text = re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]{7}\b", "1234567", text)
    text = re.sub(r"\b\d\d\d\d-\d\d-\d\d \d\d:\d\d\b", "2026-01-02 03:04", text)
    text = re.sub(r"\b\d\d:\d\d:\d\d\b", "03:04:05", text)
    text = re.sub(r"\b\d+s ago", lambda age: "0s ago".ljust(len(age[0])), text)
    text = re.sub(r"\d+(\.\d)? [kMG]?B\b", "1.0 MB", text)
    return re.sub(r"in \d+\.\ds", "in 0.0s", text).split("\n")


def test_S2_the_status_of_a_busy_hub(world: World) -> None:
    lines = render_status(overview.status(workspace(a_busy_world(world))))
    assert "\n".join(normal(lines)) == BUSY_STATUS.strip("\n")


BUSY_STATUS = """
app -> main 1234567, tests passed 0s ago   run r1 pid 52077, since 03:04              ledger 1234567

needs you
  parked   parked-one   exit code 3                           swarm show parked-one
                                                              swarm task reopen parked-one
  held     held-one     touches swarm.toml (protected);       swarm diff held-one
                        since 03:04:05, not judged on main    swarm approve held-one
                        1234567 yet

working 1  queued 1  ready 1  waiting 1  landed 1  held 1  parked 1  blocked 2  cancelled 1   of 10
  s1  working-one      scripted  att 1    00:00  active 0s ago    1 commit, src/app/b.py +1 file
  1 slot idle  1 ready task is kept back: paths overlap working-one (src/app/**)
queue  1  queued-one  waiting                                                      gate auto, 1 slot
waiting   waiting-one (needs working-one)
blocked   blocked-one (needs parked-one, parked)   blocked-too (needs blocked-one, blocked)
cost      unknown    disk app.swarm 1.0 MB, measured 0s ago
"""


def test_the_claims_of_a_busy_hub(world: World) -> None:
    work = workspace(a_busy_world(world))
    lock = world.ledger.view().locks()[0]
    screen = "\n".join(normal(render_claims(overview.claims(work))))
    assert screen.replace(f"({lock.host} {lock.pid})", "(zeno 1)") == BUSY_CLAIMS.strip("\n")


BUSY_CLAIMS = """
task         slot  adapter   att  since     for    state    sign of life
held-one     s1    scripted  1    03:04:05  00:00  held     sealed: no lease runs (zeno 1)
queued-one   s1    scripted  1    03:04:05  00:00  queued   sealed: no lease runs (zeno 1)
working-one  s1    scripted  1    03:04:05  00:00  working  last heartbeat 0 s ago (zeno 1)
3 claims; ledger 1234567
"""


def test_the_queue_of_a_busy_hub(world: World) -> None:
    work = workspace(a_busy_world(world))
    gate = world.ledger.view().gate()
    assert gate is not None
    screen = "\n".join(normal(render_queue(overview.queue(work))))
    assert screen.replace(f"({gate.host} {gate.pid})", "(zeno 1)") == BUSY_QUEUE.strip("\n")


BUSY_QUEUE = """
   task        att  sealed    change        state
1  queued-one  1    03:04:05  1 file +1 -0  waiting
-  held-one    1    03:04:05  1 file +1 -0  held: touches swarm.toml (protected)
   held since 03:04:05, not judged on main 1234567 yet
2 changes; gate auto, 1 slot by r1-test (zeno 1); ledger 1234567
"""


def test_the_tasks_of_a_busy_hub(world: World) -> None:
    screen = "\n".join(normal(render_tasks(overview.tasks(workspace(a_busy_world(world))))))
    assert screen == BUSY_TASKS.strip("\n")


BUSY_TASKS = """
task           state      pri  att  title
queued-one     queued     1    1    Queued one
blocked-one    blocked    0    -    needs parked-one, parked   Blocked one
blocked-too    blocked    0    -    needs blocked-one, blocked   Blocked too
cancelled-one  cancelled  0    -    Cancelled one
held-one       held       0    1    touches swarm.toml (protected)   Held one
kept-back      ready      0    -    Kept back
landed-one     landed     0    1    Landed one
parked-one     parked     0    1    exit code 3   Parked one
waiting-one    waiting    0    -    needs working-one   Waiting one
working-one    claimed    0    1    Working one
10 tasks; ledger 1234567
"""


def test_the_story_of_a_task_that_needed_two_attempts(world: World) -> None:
    world.add("Two tries", strikes=3)
    world.agent("two-tries").write("a.txt", "RED\n").commit().seal()
    world.work_gate()
    world.agent("two-tries").write("a.txt", "green\n").commit().seal()
    world.work_gate()
    lines = normal(render_story(overview.story(workspace(world), "two-tries")))
    assert "\n".join(lines) == TWO_TRIES.strip("\n")


TWO_TRIES = """
two-tries   Two tries                                                     landed 03:04:05 as 1234567
  file      tasks/two-tries.md   priority 0
  paths     anything   checks tests

  att  agent        from      for    cost     strike  outcome
  1    s1 scripted  03:04:05  00:00  unknown  1 of 3  ejected: tests failed, alone too
  2    s1 scripted  03:04:05  00:00  unknown  -       landed

  attempt 1   base 1234567
    sealed    head 1234567, 1 commit, 1 file +1 -0
    tests     failed in 0.0s, exit 1 on tree 1234567
    log       checks/<oid>-tests.2.log
    ended     tests failed, alone too
    next      attempt 2 started from 1234567 with 1234567 merged in, and was told the above
  attempt 2   base 1234567   start 1234567 + main 1234567
    sealed    head 1234567, 2 commits, 1 file +1 -0
    tests     passed in 0.0s on tree 1234567
    landed    1234567 = main 1234567 + 1234567; 1 file +1 -0 on tree 1234567

  read      swarm diff two-tries
  undo      swarm revert two-tries
  source    8 events; ledger 1234567
"""


def test_the_story_of_a_parked_task_says_why_and_when(world: World) -> None:
    world.add("No good", strikes=1, paths=("src/**",))
    world.agent("no-good").write("a.txt", "a\n").commit().end("agent_failed", "exit code 3")
    screen = "\n".join(normal(render_story(overview.story(workspace(world), "no-good"))))
    assert screen == NO_GOOD.strip("\n")


NO_GOOD = """
no-good   No good                                                                             parked
  file      tasks/no-good.md   priority 0
  paths     src/**   checks tests
  why       exit code 3

  att  agent        from      for    cost     strike  outcome
  1    s1 scripted  03:04:05  00:00  unknown  1 of 1  failed: exit code 3

  attempt 1   base 1234567   saved 1234567
    ended     exit code 3
  parked    03:04:05  exit code 3

  read      swarm diff no-good
  source    4 events; ledger 1234567
"""


def test_an_empty_hub_says_so_in_every_list(world: World) -> None:
    work = workspace(world)
    assert normal(render_claims(overview.claims(work))) == ["0 claims; ledger 1234567"]
    assert normal(render_tasks(overview.tasks(work))) == ["0 tasks; ledger 1234567"]
    queue = normal(render_queue(overview.queue(work)))
    assert queue == ["0 changes; no gate; ledger 1234567"]
