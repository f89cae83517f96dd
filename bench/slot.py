"""A slot for a claim and the seal at its end, in a repository of many files.

Enters: how many files. Leaves: ratios against `git worktree add` and against the git calls that a
seal cannot do without. Guards: all sides of one run take turns on the same machine.

A seal with nothing left over is `capture` and `seal`: the agent has committed five files. Its git
parts are a status, a fetch into the hub, a merge base, a count of commits, a diff, and one event
(seven objects made durable and one ref moved).
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import common
from common import Result, timed

from swarm.change import Rules, Sealed, capture, seal
from swarm.claim import Claimed, Mine, Terms, Who, acquire
from swarm.ledger.store import Ledger
from swarm.slot import Furnishing, Occupant, Slot

EDITED = 5  # files of each change


def take(ledger: Ledger, folder: Path, name: str) -> tuple[Slot, Occupant, Mine]:
    """A claim and its slot, not yet opened."""
    answer = acquire(ledger, Who(runner="bench", slot=name), Terms())
    assert isinstance(answer, Claimed)
    lock = answer.lock
    slot = Slot.take(folder, name, ledger.hub)
    assert slot is not None
    occupant = Occupant(
        task=lock.task,
        token=lock.token,
        nonce=lock.nonce,
        agent=lock.agent,
        run="",
        base=lock.base,
        start=lock.start,
        merge=None,
        head=lock.start,
    )
    return slot, occupant, Mine.of(lock)


def work(tree: Path, number: int) -> str:
    """What an agent does: five files edited and committed. Returns the commit."""
    for edit in range(EDITED):
        (tree / common.file_name(number * EDITED + edit)).write_text(f"edited {number}\n")
    common.git("add", "-A", cwd=tree)
    common.git("commit", "-q", "-m", f"Change {number}", cwd=tree)
    return common.git("rev-parse", "HEAD", cwd=tree)


def seal_one(ledger: Ledger, slot: Slot, occupant: Occupant, mine: Mine) -> None:
    captured = capture(slot, occupant, Rules())
    assert isinstance(seal(ledger, slot, mine, captured, Rules()), Sealed)


def git_parts(slot: Slot, plain: Path, head: str) -> None:
    """What git alone costs of a seal; `plain` is a clone that lacks the commit."""
    index = {"GIT_INDEX_FILE": str(slot.admin / "index")}
    where = (f"--git-dir={slot.admin}", f"--work-tree={slot.tree}")
    status = ("status", "--porcelain", "-z", "--untracked-files=all")
    common.git(*where, *status, cwd=slot.tree, extra=index)
    common.git("fetch", "-q", "--no-tags", "--no-write-fetch-head", slot.admin, head, cwd=plain)
    common.git("merge-base", common.BRANCH, head, cwd=plain)
    common.git("rev-list", "--count", f"{common.BRANCH}..{head}", cwd=plain)
    common.git("diff-tree", "-r", "--numstat", "-z", common.BRANCH, head, cwd=plain)


def measure(place: Path, files: int, rounds: int) -> Result:
    ledger = common.make_ledger(place, files, 2 * rounds + 2)
    plain = place / "plain.git"
    common.git("clone", "-q", "--bare", place / "hub.git", plain, cwd=place)
    spent: dict[str, list[float]] = {}

    def note(name: str, took: float) -> None:
        spent.setdefault(name, []).append(took)

    for number in range(rounds + 1):
        tree = place / f"rival{number}"
        add = ("worktree", "add", "-q", "--detach", tree, common.BRANCH)
        rival = timed(lambda add=add: common.git(*add, cwd=plain))
        slot, occupant, _ = take(ledger, place / "slots", f"n{number}")
        new = timed(lambda s=slot, o=occupant: s.open(o, Furnishing()))
        slot.close()
        slot, occupant, mine = take(ledger, place / "slots", "s1")
        reused = timed(lambda s=slot, o=occupant: s.open(o, Furnishing()))
        head = work(slot.tree, number)
        parts = timed(lambda s=slot, h=head: git_parts(s, plain, h))
        parts += timed(lambda: common.write_event(ledger))
        found = slot.occupant()
        assert found is not None
        sealed = timed(lambda s=slot, o=found, m=mine: seal_one(ledger, s, o, m))
        slot.is_saved = True
        slot.close()
        if number > 0:  # the first one warms the caches and finds no slot to reuse
            note("worktree_add", rival)
            note("new", new)
            note("reused", reused)
            note("parts", parts)
            note("seal", sealed)
    ledger.close()
    ms = {name: median(values) for name, values in spent.items()}
    return {
        "files": files,
        "rounds": rounds,
        "worktree_add_ms": round(ms["worktree_add"], 1),
        "new_ms": round(ms["new"], 1),
        "new_ratio": round(ms["new"] / ms["worktree_add"], 2),
        "reused_ms": round(ms["reused"], 1),
        "reused_times_faster": round(ms["worktree_add"] / ms["reused"], 1),
        "seal_ms": round(ms["seal"], 1),
        "seal_parts_ms": round(ms["parts"], 1),
        "seal_ratio": round(ms["seal"] / ms["parts"], 2),
    }


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    with common.workplace(options.folder) as place:
        result = measure(place, options.files, options.rounds)
    common.report(
        f"a slot among {options.files:,} files",
        result,
        [
            ("worktree_add_ms", "milliseconds of `git worktree add`"),
            ("new_ratio", "times that for a new slot"),
            ("reused_ms", "milliseconds to open a slot again"),
            ("reused_times_faster", "times faster than `git worktree add` (to reach 5)"),
            ("seal_ms", "milliseconds to seal, nothing left over (50)"),
            ("seal_parts_ms", "milliseconds of its git parts"),
            ("seal_ratio", "times those"),
        ],
        options.json,
    )


if __name__ == "__main__":
    main()
