"""Looking back over a long ledger: log, status and show against `git log` of the same history.

Enters: how many events. Leaves: ratios against one plain `git log` of the ledger.
Guards: every event is a real one, with the records that its kind writes; all sides print all they
have to say into a pipe.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha1
from pathlib import Path

import common
from common import Result

from swarm.ids import new_event_id
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.records import (
    Attempts,
    CheckRun,
    Done,
    Landing,
    LandingChange,
    LeftByAgent,
    Lock,
    QueueEntry,
    Verdict,
    Work,
)
from swarm.ledger.store import AUTHOR, Ledger, message_of
from swarm.plumbing.hub import LEDGER, work_ref

CONFIG = '[[checks]]\nname = "tests"\nrun = "true"\n'
EVENTS_OF_A_TASK = 5  # claimed, sealed, checked, landing, landed
KEPT_VERDICTS = 64
DEFINITION = "3b1f0c2d4e5f" + "0" * 52


def fake(*words: object) -> str:
    """An object id that nothing looks up."""
    return sha1(repr(words).encode(), usedforsecurity=False).hexdigest()


def iter_story(number: int, tip: str, at: datetime) -> Iterator[Event]:
    """What one task that lands at its first attempt writes."""
    task, agent = f"task-{number:06}", f"a{number:07}"
    head, tree, commit = fake("head", number), fake("tree", number), fake("commit", number)
    previous = fake("commit", number - 1)
    lock = Lock(
        task=task,
        token=1,
        nonce=fake("nonce", number)[:32],
        agent=agent,
        adapter="bench",
        role="",
        slot=f"s{number % 4 + 1}",
        run="r1",
        runner="r1-bench",
        host="bench",
        pid=1,
        boot_id="0",
        claimed_at=at,
        claimed_monotonic_seconds=0.0,
        lease_seconds=900.0,
        base=tip,
        start=tip,
        merge=None,
    )
    attempts = Attempts(task=task, token=1, base=tip, since=at)
    yield Event(
        "claimed",
        f"Attempt 1 of {task}, from the target {tip[:7]}.",
        {
            records.lock_path(task): records.encode(lock),
            records.attempts_path(task): records.encode(attempts),
        },
        task,
        agent,
        1,
        {
            "Swarm-Nonce": lock.nonce,
            "Swarm-Slot": lock.slot,
            "Swarm-Adapter": lock.adapter,
            "Swarm-Start": tip,
            "Swarm-Target": tip,
        },
    )
    entry = QueueEntry(
        task=task,
        token=1,
        nonce=lock.nonce,
        lock=fake("lock", number),
        work=work_ref(task, 1),
        base=tip,
        start=tip,
        head=head,
        commits=2,
        files=3,
        insertions=40,
        deletions=7,
        left_by_agent=LeftByAgent(uncommitted=0, untracked=0, head_was="branch"),
        priority=0,
        since=at,
        sealed_at=at,
        hold=None,
    )
    yield Event(
        "sealed",
        f"head {head[:7]}, 2 commits, 3 files +40 -7",
        {records.queue_path(task): records.encode(entry)},
        task,
        agent,
        1,
        {"Swarm-Head": head, "Swarm-Base": tip, "Swarm-Lock": entry.lock, "Swarm-Slot": lock.slot},
    )
    run = CheckRun(exit_code=0, signal=None, seconds=4.2, host="bench", at=at)
    verdict = Verdict(tree=tree, check="tests", definition=DEFINITION, verdict="passed", runs=[run])
    yield Event(
        "checked",
        f"tests passed on {tree[:7]}",
        {records.verdict_path(verdict.key): records.encode(verdict)},
        trailers={
            "Swarm-Tree": tree,
            "Swarm-Check": "tests",
            "Swarm-Verdict": "passed",
            "Swarm-Definition": DEFINITION[:12],
            "Swarm-Seconds": "4.2",
        },
    )
    change = LandingChange(
        task=task,
        token=1,
        head=head,
        landed=commit,
        previous=previous,
        tree=tree,
        verdicts=[verdict.key],
        entry=fake("entry", number),
        lock=entry.lock,
    )
    landing = Landing(
        gate_token=1, target=common.BRANCH, old=previous, new=commit, changes=[change], at=at
    )
    yield Event(
        "landing",
        f"About to land {commit[:7]} on {common.BRANCH}.",
        {records.LANDING_PATH: records.encode(landing)},
        task,
        token=1,
        trailers={"Swarm-Landed": commit, "Swarm-Target": previous, "Swarm-Head": head},
    )
    done = Done(
        task=task,
        result="landed",
        token=1,
        landed=commit,
        previous=previous,
        head=head,
        tree=tree,
        verdicts=[verdict.key],
        at=at,
    )
    kept = Attempts(
        task=task, token=1, base=tip, since=at, work=Work(ref=work_ref(task, 1), head=head)
    )
    yield Event(
        "landed",
        f"tests passed; 3 files +40 -7; {common.BRANCH} {commit[:7]}",
        {
            records.lock_path(task): None,
            records.queue_path(task): None,
            records.LANDING_PATH: None,
            records.done_path(task): records.encode(done),
            records.attempts_path(task): records.encode(kept),
        },
        task,
        agent,
        1,
        {
            "Swarm-Landed": commit,
            "Swarm-Previous": previous,
            "Swarm-Head": head,
            "Swarm-Tree": tree,
            "Swarm-Checks": "tests",
            "Swarm-Stat": "3 files +40 -7",
            "Swarm-Seconds": "4.2",
            "Swarm-Slot": lock.slot,
        },
    )


def lengthen(ledger: Ledger, events: int) -> int:
    """Write that many events behind the ledger's tip, through one git; returns how many tasks."""
    view = ledger.view()
    tasks = events // EVENTS_OF_A_TASK
    span = timedelta(seconds=3 * events)
    started = datetime.now(UTC) - span
    verdicts: deque[str] = deque()

    def iter_pieces() -> Iterator[bytes]:
        start = f"from {view.tip}\n"
        number = 0
        for task in range(tasks):
            at = started + timedelta(seconds=3 * number)
            for event in iter_story(task, view.target, at):
                edits = dict(event.edits)
                if event.kind == "checked":
                    verdicts.extend(edits)
                    if len(verdicts) > KEPT_VERDICTS:
                        edits[verdicts.popleft()] = None
                seconds = int(started.timestamp()) + 3 * number
                message = message_of(event, new_event_id()).encode()
                yield f"commit {LEDGER}\ncommitter {AUTHOR} {seconds} +0000\n".encode()
                yield b"data %d\n%s\n%s" % (len(message), message, start.encode())
                for path, content in edits.items():
                    if content is None:
                        yield f"D {path}\n".encode()
                    else:
                        yield f"M 100644 inline {path}\ndata {len(content)}\n".encode()
                        yield content + b"\n"
                start = ""
                number += 1

    child = subprocess.Popen(
        ["git", f"--git-dir={ledger.hub.path}", "fast-import", "--quiet"],
        stdin=subprocess.PIPE,
        env=common.git_environment(),
    )
    assert child.stdin is not None
    with child.stdin:
        for piece in iter_pieces():
            child.stdin.write(piece)
    assert child.wait() == 0
    return tasks


def swarm(checkout: Path, *words: str) -> bytes:
    """What a `swarm` command prints into a pipe, in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    done = subprocess.run(
        [sys.executable, "-m", "swarm", *words],
        cwd=checkout,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
    )
    return done.stdout


def measure(place: Path, events: int, rounds: int) -> Result:
    checkout, state = place / "app", place / "app.swarm"
    checkout.mkdir(parents=True)
    (checkout / "swarm.toml").write_text(CONFIG)
    ledger = common.make_ledger(state, 100, events // EVENTS_OF_A_TASK)
    tasks = lengthen(ledger, events)
    written = int(common.git("rev-list", "--count", LEDGER, cwd=ledger.hub.path))
    ledger.close()
    shown = swarm(checkout, "log", "--all").decode().splitlines()
    assert len(shown) > written, "every event has a line, and the last line counts them"
    assert shown[-1].startswith(f"{written} events"), shown[-1]
    some = f"task-{tasks // 2:06}"
    swarm(checkout, "status")  # builds the cache, which is measured by bench/pick.py
    took = common.in_turns(
        {
            "git_log": lambda: common.git("log", LEDGER, cwd=ledger.hub.path),
            "log": lambda: swarm(checkout, "log"),
            "log_all": lambda: swarm(checkout, "log", "--all"),
            "log_json": lambda: swarm(checkout, "log", "--all", "--json"),
            "log_task": lambda: swarm(checkout, "log", "--task", some),
            "status": lambda: swarm(checkout, "status"),
            "show": lambda: swarm(checkout, "show", some),
        },
        rounds,
    )
    result: Result = {"events": written, "tasks": tasks}
    for name, milliseconds in took.items():
        result[f"{name}_ms"] = round(milliseconds, 1)
        if name != "git_log":
            result[f"{name}_ratio"] = round(milliseconds / took["git_log"], 2)
    return result


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with common.workplace(options.folder) as place:
        result = measure(place, options.events, options.rounds)
    common.report(
        f"looking back over {options.events:,} events",
        result,
        [
            ("git_log_ms", "milliseconds of `git log` of the ledger"),
            ("log_ratio", "times that for `swarm log` (to stay under 3)"),
            ("log_all_ratio", "times with --all, bookkeeping events too"),
            ("log_json_ratio", "times with --all --json"),
            ("log_task_ratio", "times for the events of one task"),
            ("status_ratio", "times for `swarm status` (3)"),
            ("show_ratio", "times for `swarm show` of one task (3)"),
        ],
        options.json,
    )


if __name__ == "__main__":
    main()
