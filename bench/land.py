"""Merging and landing without checks, in a repository of many files.

Enters: how many files and landings. Leaves: ratios against the git calls that they consist of.
Guards: rivals take turns with ours on the same commits of the same repository.

A landing is the candidate (merge and commit), all guards, the intention and the two-ref move. Its
git parts: a connectivity check of the change, `merge-tree`, `commit-tree`, two `diff-tree`, and two
events (seven objects made durable and one ref moved, each).
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import common
from common import Result

from swarm.change import Captured, Rules, Sealed, seal
from swarm.claim import Claimed, Mine, Terms, Who, acquire
from swarm.land import GateClaim, Landed, Recorded, guard, land, record, take_gate
from swarm.ledger import records
from swarm.ledger.store import Ledger
from swarm.ledger.view import View
from swarm.merge import Attributes, Candidate, build
from swarm.slot import Slot

EDITED = 5  # files of each change
BATCH = 8
Change = tuple[records.QueueEntry, str, records.Task]  # with the blob id of the entry


def make_changes(hub: Path, count: int) -> list[str]:
    """Commits on the target, each editing files of its own. Returns their ids."""
    tip = common.git("rev-parse", common.BRANCH, cwd=hub)
    lines: list[str] = []
    for number in range(count):
        text = f"edited by change {number}\n"
        lines += [f"commit refs/bench/change{number}"]
        lines += ["committer bench <b@swarm.invalid> 1700000001 +0000", "data 6", "Change"]
        lines += [f"from {tip}"]
        for edit in range(EDITED):
            name = common.file_name(number * EDITED + edit)
            lines += [f"M 100644 inline {name}", f"data {len(text)}", text]
    common.git("fast-import", "--quiet", cwd=hub, feed="\n".join([*lines, ""]).encode())
    names = [f"refs/bench/change{number}" for number in range(count)]
    return common.git("rev-parse", *names, cwd=hub).split()


def seal_all(ledger: Ledger, folder: Path, heads: list[str]) -> list[str]:
    """Claim a task for each commit and seal it. Returns the tasks."""
    slot = Slot.take(folder, "s1", ledger.hub)
    assert slot is not None
    tasks: list[str] = []
    for head in heads:
        answer = acquire(ledger, Who(runner="bench"), Terms())
        assert isinstance(answer, Claimed)
        captured = Captured(head, head, "branch", 0, 0, None)
        sealed = seal(ledger, slot, Mine.of(answer.lock), captured, Rules())
        assert isinstance(sealed, Sealed)
        tasks.append(answer.lock.task)
    slot.close()
    return tasks


def merge_one(ledger: Ledger, attributes: Attributes, previous: str, change: Change) -> Candidate:
    """The candidate of one sealed change on `previous`."""
    entry, entry_id, task = change
    built = build(
        ledger.hub,
        previous,
        entry,
        entry_id,
        task,
        attributes=attributes,
        style="merge",
        checks=(),
        adapter="scripted",
        agent="bench",
    )
    assert isinstance(built, Candidate)
    return built


def find_change(view: View, name: str) -> Change:
    """What the gate reads of a sealed change before it merges it."""
    entry, task = view.entry(name), view.task(name)
    entry_id = view.blob_id(records.queue_path(name))
    assert entry is not None and task is not None and entry_id is not None
    return entry, entry_id, task


def land_one(ledger: Ledger, attributes: Attributes, gate: GateClaim, name: str) -> None:
    """The whole recipe but for the checks."""
    view = ledger.view()
    candidate = merge_one(ledger, attributes, view.target, find_change(view, name))
    assert guard(ledger.hub, candidate, Rules(), "hold", ()) == []
    recorded = record(ledger, gate, candidate, (), ())
    assert isinstance(recorded, Recorded)
    assert isinstance(land(ledger, gate, recorded), Landed)


def land_parts(ledger: Ledger, plain: Path, head: str) -> None:
    """Git's share of a landing, in a clone with the same objects; it lands there too."""
    tip = common.git("rev-parse", common.BRANCH, cwd=plain)
    common.git("rev-list", "--objects", "--quiet", head, f"^{tip}", cwd=plain)
    tree = common.git("merge-tree", "--write-tree", "--name-only", "-z", tip, head, cwd=plain)
    commit = ("commit-tree", tree.rstrip("\0"), "-p", tip, "-p", head, "-m", "Land")
    new = common.git(*commit, cwd=plain)
    common.git("diff-tree", "-r", "--name-only", "-z", tip, new, cwd=plain)
    common.git("diff-tree", "-r", "--numstat", "-z", tip, new, cwd=plain)
    for _ in range(2):
        common.write_event(ledger)
    common.git("update-ref", f"refs/heads/{common.BRANCH}", new, tip, cwd=plain)


def merge_batch(ledger: Ledger, attributes: Attributes, changes: list[Change]) -> None:
    """Candidates stacked on each other, as a batch is built."""
    tip = ledger.hub.tip(common.BRANCH)
    for change in changes:
        tip = merge_one(ledger, attributes, tip, change).commit


def merge_parts(plain: Path, heads: list[str]) -> None:
    for head in heads:
        common.git(
            "merge-tree", "--write-tree", "--name-only", "-z", common.BRANCH, head, cwd=plain
        )


def measure(place: Path, files: int, landings: int, rounds: int) -> Result:
    ledger = common.make_ledger(place, files, landings + BATCH)
    heads = make_changes(place / "hub.git", landings + BATCH)
    plain = place / "plain.git"
    common.git("clone", "-q", "--mirror", place / "hub.git", plain, cwd=place)
    common.git("config", "core.fsync", "committed", cwd=plain)
    names = seal_all(ledger, place / "slots", heads)
    attributes = Attributes(ledger.hub, place / "cache")
    view = ledger.view()
    last = [find_change(view, name) for name in names[-BATCH:]]
    batch = common.in_turns(
        {
            "batch": lambda: merge_batch(ledger, attributes, last),
            "parts": lambda: merge_parts(plain, heads[-BATCH:]),
        },
        rounds,
    )
    gate = take_gate(ledger, "bench", timedelta(minutes=1), None)
    assert isinstance(gate, GateClaim)
    ours, theirs = iter(names[:landings]), iter(heads[:landings])
    landing = common.in_turns(
        {
            "land": lambda: land_one(ledger, attributes, gate, next(ours)),
            "parts": lambda: land_parts(ledger, plain, next(theirs)),
        },
        landings - 1,
    )
    landed = sum(ledger.view().is_landed(name) for name in names)
    ledger.close()
    return {
        "files": files,
        "landed": landed,
        "land_ms": round(landing["land"], 1),
        "land_parts_ms": round(landing["parts"], 1),
        "land_ratio": round(landing["land"] / landing["parts"], 2),
        "batch": BATCH,
        "batch_ms": round(batch["batch"], 1),
        "batch_parts_ms": round(batch["parts"], 1),
        "batch_ratio": round(batch["batch"] / batch["parts"], 2),
    }


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--landings", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=15, help="batches merged")
    options = parser.parse_args()
    with common.workplace(options.folder) as place:
        result = measure(place, options.files, options.landings, options.rounds)
    common.report(
        f"landing among {options.files:,} files",
        result,
        [
            ("land_ms", "milliseconds of a landing without checks"),
            ("land_parts_ms", "milliseconds of its git parts"),
            ("land_ratio", "times those (to stay under 2)"),
            ("batch_ms", f"milliseconds to merge a batch of {BATCH}"),
            ("batch_parts_ms", f"milliseconds of {BATCH} x `git merge-tree`"),
            ("batch_ratio", "times those (to stay under 1.5)"),
        ],
        options.json,
    )


if __name__ == "__main__":
    main()
