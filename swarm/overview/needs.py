"""What needs a person, why, and what to type.

Enters: a moment and what is known of its tasks and target. Leaves: the head of `swarm status`.
Guards: every line names a command that exists; what heals by itself is not announced.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from swarm.ledger import records
from swarm.ledger.view import State
from swarm.overview.live import Live
from swarm.overview.moment import Moment
from swarm.overview.standing import Standing, hold_text
from swarm.overview.target import Target

MENDED = (records.GATE_PATH, records.LANDING_PATH)  # of what is damaged, by doctor


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that waits for a person, and what to type."""

    kind: str
    task: str | None
    why: str
    do: list[str]


def needs_of(moment: Moment, known: Standing, lives: dict[str, Live], target: Target) -> list[Need]:
    """Damage first, then what stops everybody, then what stops one task."""
    return [
        *_damaged(moment, known, target),
        *_stopped_gate(moment, target),
        *_runs_in_trouble(moment, lives),
        *_parked(moment),
        *_held(moment),
        *_expiring(moment, known),
    ]


def _damaged(moment: Moment, known: Standing, target: Target) -> Iterator[Need]:
    if target.oid is None:
        why = f"the hub has no branch {target.branch}"
        yield Need(kind="damaged", task=None, why=why, do=["swarm doctor"])
    for path, why in moment.damage:
        do = "swarm doctor --fix" if path in MENDED else "swarm doctor"
        yield Need(kind="damaged", task=None, why=f"{path}: {why}", do=[do])
    for row in known.of("damaged"):
        why = known.lines[row.id][1]
        yield Need(kind="damaged", task=row.id, why=why, do=["swarm doctor"])
    # Each record decodes, and they do not go together: nobody will move these either.
    named = {row.id for row in known.of("damaged")}
    claimed = {lock.task for lock in moment.locks} | {entry.task for entry in moment.entries}
    for task in sorted(claimed - named):
        ill = moment.view.why_damaged(task)
        if ill is not None:
            yield Need(kind="damaged", task=task, why=ill, do=["swarm doctor"])


def _stopped_gate(moment: Moment, target: Target) -> Iterator[Need]:
    paused = moment.gate.paused if moment.gate else None
    verdict = target.verdict
    if paused is not None:
        by_person = paused.by == "person"
        do = ["swarm resume"] if by_person else []
        if not by_person and paused.task is not None:
            do = [f"swarm show {paused.task}"]
        yield Need(kind="paused", task=paused.task, why=paused.why, do=do)
    elif target.oid and verdict is not None and verdict.value not in ("passed", "flaky"):
        words = verdict.value.replace("_", " ")
        why = f"{target.branch} {target.oid[:7]} is red: {verdict.check} {words}"
        yield Need(kind="red", task=None, why=why, do=["swarm run --allow-red"])
    waits = [entry for entry in moment.entries if not entry.is_held]
    if waits and not moment.has_gate and not moment.live_runs:
        what = "1 change waits" if len(waits) == 1 else f"{len(waits)} changes wait"
        yield Need(kind="no gate", task=None, why=f"{what} and no gate runs", do=["swarm run"])


def _runs_in_trouble(moment: Moment, lives: dict[str, Live]) -> Iterator[Need]:
    lease = moment.work.config.claims.lease.total_seconds()
    for run in moment.live_runs:
        sign = moment.signs[run.runner]
        if sign.age_seconds > lease:
            why = f"{run.run}, pid {run.pid} on {run.host}: {sign.says()}"
            yield Need(kind="silent", task=None, why=why, do=["swarm doctor"])
        live = lives.get(run.run)
        if live is not None and live.stopped:
            yield Need(kind="stopped", task=None, why=f"{run.run}: {live.stopped}", do=[])
    if moment.live_runs:
        return  # it takes dead runners' claims over by itself
    queued = {entry.task for entry in moment.entries}
    gone: dict[str, list[str]] = {}
    for lock in moment.locks:
        if lock.task not in queued and moment.sign(lock).is_gone:
            gone.setdefault(lock.run or lock.runner, []).append(lock.task)
    for name, left in gone.items():
        why = f"{name} was killed and holds {', '.join(left[:3])}"
        if len(left) > 3:
            why += f" and {len(left) - 3} more"
        yield Need(kind="gone", task=None, why=why, do=["swarm run"])


def _parked(moment: Moment) -> Iterator[Need]:
    records_of = moment.view.all_parked()
    for parked in sorted(records_of, key=lambda p: (p.reason != "lost", p.at)):
        do = [f"swarm show {parked.task}"]
        if parked.reason == "asked":
            why = f'"{parked.question or parked.message}"'
            do.append(f"swarm task reopen {parked.task}")
            yield Need(kind="asked", task=parked.task, why=why, do=do)
        else:
            kind = "lost" if parked.reason == "lost" else "parked"
            yield Need(kind=kind, task=parked.task, why=parked.message, do=do)


def _held(moment: Moment) -> Iterator[Need]:
    for entry in sorted(moment.entries, key=lambda e: e.sealed_at):
        if entry.is_held:
            do = [f"swarm diff {entry.task}", f"swarm approve {entry.task}"]
            why = hold_text(entry.hold or [])
            yield Need(kind="held", task=entry.task, why=why, do=do)


def _expiring(moment: Moment, known: Standing) -> Iterator[Need]:
    """Tasks whose last claims expired one after the other, before that parks them."""
    for task, row in known.rows.items():
        if row.token < 2 or row.state not in (State.OPEN, State.CLAIMED):
            continue
        attempts = moment.view.attempts(task)
        if attempts is not None and attempts.expiries >= 2:
            why = f"{attempts.expiries} claims in a row gave no sign of life"
            yield Need(kind="expired", task=task, why=why, do=[f"swarm show {task}"])
