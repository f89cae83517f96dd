"""What needs a person, why, and what to type.

Enters: a moment and what is known of its tasks and target. Leaves: the head of `swarm status`.
Guards: every line names a command that exists; what heals by itself is not announced.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from swarm.errors import Exit
from swarm.ledger import records
from swarm.ledger.records import Lock
from swarm.ledger.view import State, readable
from swarm.overview.live import Live
from swarm.overview.moment import Moment
from swarm.overview.standing import Standing, hold_text
from swarm.overview.target import Target

MENDED = (records.GATE_PATH, records.LANDING_PATH)  # of what is damaged, by doctor


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that waits for a person, and what to type."""

    kind: str
    task: str | None
    key: str  # which line it is: the same while only its wording changes, new for a new trouble
    why: str
    do: list[str]


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """A need as `[notify] command` reads it."""

    schema: str = "swarm.need/1"
    repository: str
    target: str
    kind: str
    task: str | None
    why: str
    do: list[str]
    at: datetime  # when it was seen


def needs_of(moment: Moment, known: Standing, lives: dict[str, Live], target: Target) -> list[Need]:
    """Damage first, then what stops everybody, then what stops one task."""
    return [
        *_damaged(moment, known, target),
        *_stopped_gate(moment, target),
        *_runs_in_trouble(moment, known, lives),
        *_parked(moment),
        *_held(moment),
        *_rewritten(moment),
        *_for_person(moment, known),
        *_expiring(moment, known),
    ]


def _key(*facts: str) -> str:
    return ":".join(facts)


def _digest(text: str) -> str:
    """Stands for a text in a key: short, whatever the text holds."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _damaged(moment: Moment, known: Standing, target: Target) -> Iterator[Need]:
    if target.oid is None:
        yield _damage(None, f"the hub has no branch {target.branch}")
    for path, why in moment.damage:
        do = "swarm doctor --fix" if path in MENDED else "swarm doctor"
        yield _damage(None, f"{path}: {why}", do)
    for row in known.of("damaged"):
        yield _damage(row.id, known.lines[row.id][1])
    # Each record decodes, and they do not go together: nobody will move these either.
    named = {row.id for row in known.of("damaged")}
    claimed = {lock.task for lock in moment.locks} | {entry.task for entry in moment.entries}
    for task in sorted(claimed - named):
        ill = moment.view.why_damaged(task)
        if ill is not None:
            yield _damage(task, ill)


def _damage(task: str | None, why: str, do: str = "swarm doctor") -> Need:
    key = _key("damaged", task or "", _digest(why))
    return Need(kind="damaged", task=task, key=key, why=why, do=[do])


def _stopped_gate(moment: Moment, target: Target) -> Iterator[Need]:
    paused = moment.gate.paused if moment.gate else None
    verdict = target.verdict
    if paused is not None:
        by_person = paused.by == "person"
        do = ["swarm resume"] if by_person else []
        if not by_person and paused.task is not None:
            do = [f"swarm show {paused.task}"]
        key = _key("paused", _digest(paused.why))
        yield Need(kind="paused", task=paused.task, key=key, why=paused.why, do=do)
    elif target.oid and verdict is not None and verdict.value not in ("passed", "flaky"):
        words = verdict.value.replace("_", " ")
        why = f"{target.branch} {target.oid[:7]} is red: {verdict.check} {words}"
        key = _key("red", target.oid)
        yield Need(kind="red", task=None, key=key, why=why, do=["swarm run --allow-red"])
    waits = [entry for entry in moment.entries if not entry.is_held]
    if waits and not moment.has_gate and not moment.live_runs:
        what = "1 change waits" if len(waits) == 1 else f"{len(waits)} changes wait"
        why = f"{what} and no gate runs"
        yield Need(kind="no gate", task=None, key="no gate", why=why, do=["swarm gate --once"])


def _runs_in_trouble(moment: Moment, known: Standing, lives: dict[str, Live]) -> Iterator[Need]:
    lease = moment.work.config.claims.lease.total_seconds()
    for run in moment.live_runs:
        sign = moment.signs[run.runner]
        if sign.age_seconds > lease:
            why = f"{run.run}, pid {run.pid} on {run.host}: {sign.says()}"
            key = _key("silent", run.run)
            yield Need(kind="silent", task=None, key=key, why=why, do=["swarm doctor"])
        live = lives.get(run.run)
        for name, hint in sorted(live.logins.items()) if live is not None else ():
            key = _key("login", run.run, name)
            why = f"{run.run}: {name} is not logged in"
            yield Need(kind="login", task=None, key=key, why=why, do=[hint])
        is_told = live is not None and live.logins and live.stopped.startswith("not logged in")
        if live is not None and live.stopped and not is_told:
            key = _key("stopped", run.run, _digest(live.stopped))
            why = f"{run.run}: {live.stopped}"
            yield Need(kind="stopped", task=None, key=key, why=why, do=["swarm log --since 10m"])
    if moment.live_runs:
        return  # it takes dead runners' claims over by itself
    if (early := _ended_early(moment, known)) is not None:
        yield early
    queued = {entry.task for entry in moment.entries}
    gone: dict[str, list[Lock]] = {}
    for lock in moment.locks:
        if lock.task not in queued and moment.sign(lock).is_gone:
            gone.setdefault(lock.run or lock.runner, []).append(lock)
    for name, left in gone.items():
        why = f"{name} was killed and holds {', '.join(lock.task for lock in left[:3])}"
        if len(left) > 3:
            why += f" and {len(left) - 3} more"
        do = [_run_again(moment, left[0].adapter)]
        yield Need(kind="gone", task=None, key=_key("gone", name), why=why, do=do)


_EARLY = {int(Exit.BUDGET): "budget", int(Exit.LIMITED): "limited"}


def _ended_early(moment: Moment, known: Standing) -> Need | None:
    """The last run could not go on although there is work: it needs money, or a log-in."""
    last = max(moment.all_runs, key=lambda run: run.started_at, default=None)
    if last is None or last.exit_code not in _EARLY:
        return None
    if not known.of("ready") and not known.of("waiting"):
        return None
    kind = _EARLY[last.exit_code]
    do = _run_again(moment, last.adapter)
    if (cap := last.limits.get("cost_usd")) is not None:  # each run has a budget of its own
        do = do.replace("swarm run", f"swarm run --max-cost {cap:g}", 1)
    why = f"{last.run} ended: {last.why}"
    return Need(kind=kind, task=None, key=_key(kind, last.run), why=why, do=[do])


def _run_again(moment: Moment, adapter: str) -> str:
    """A run of the same agent; the command of the adapter `command` is not known any more."""
    if moment.work.config.run.agent is not None or adapter == "hand":
        return "swarm run"
    if adapter == "command":
        return "swarm run -- ./my-agent.sh"
    return f"swarm run {'--agents' if ':' in adapter else '--agent'} {adapter}"


def _parked(moment: Moment) -> Iterator[Need]:
    records_of = moment.view.all_parked()
    for parked in sorted(records_of, key=lambda p: (p.reason != "lost", p.at)):
        do = [f"swarm show {parked.task}"]
        if parked.reason == "asked":
            why = f'"{parked.question or parked.message}"'
            do.insert(0, f'swarm tell {parked.task} "..."')
            key = _parked_key("asked", parked)
            yield Need(kind="asked", task=parked.task, key=key, why=why, do=do)
        else:
            kind = "lost" if parked.reason == "lost" else "parked"
            if kind == "parked":
                do.append(f"swarm task reopen {parked.task}")
            key = _parked_key(kind, parked)
            yield Need(kind=kind, task=parked.task, key=key, why=parked.message, do=do)


def _parked_key(kind: str, parked: records.Parked) -> str:
    return _key(kind, parked.task, parked.at.astimezone(UTC).isoformat())


def _held(moment: Moment) -> Iterator[Need]:
    for entry in sorted(moment.entries, key=lambda e: e.sealed_at):
        if entry.is_held:
            do = [f"swarm diff {entry.task}", f"swarm approve {entry.task}"]
            why = hold_text(entry.hold or [])
            reasons = [hold.reason for hold in entry.hold or () if hold.approved_at is None]
            key = _key("held", entry.task, entry.head, *sorted(set(reasons)))
            yield Need(kind="held", task=entry.task, key=key, why=why, do=do)


def _rewritten(moment: Moment) -> Iterator[Need]:
    """What upstream has now is not taken before a person says so."""
    known, settings = moment.view.upstream(), moment.work.config.upstream
    if known is None or known.tip is None or known.rewritten is None:
        return
    branch = moment.work.config.upstream_branch
    if (known.remote, known.branch) == (settings.remote, branch):
        from swarm.upstream import rewritten_says  # it knows remotes, which cost 80 ms to import

        why = rewritten_says(f"{known.remote}/{known.branch}", known.tip)
        key, do = _key("rewritten", known.rewritten), ["swarm sync --rewritten"]
        yield Need(kind="rewritten", task=None, key=key, why=why, do=do)


def _for_person(moment: Moment, known: Standing) -> Iterator[Need]:
    """Tasks that no agent may take: free ones, and what a person resolves for the target."""
    locks = {lock.task: lock for lock in moment.locks}
    for row in known.rows.values():
        if row.role != records.PERSON or row.state not in (State.OPEN, State.CLAIMED) or row.unmet:
            continue
        attempts, task = readable(moment.view.attempts, row.id), readable(moment.view.task, row.id)
        last = attempts.last if attempts is not None else None
        why = f"{row.title}: {last.message}" if last is not None else row.title
        do = [f"swarm claim {row.id}"]
        if row.state is State.CLAIMED:
            if task is None or not task.header.joins_history:
                continue  # whoever claimed it knows
            place = moment.work.layout.slots / locks[row.id].slot if row.id in locks else None
            do = ["swarm sync"]
            if place is not None and place.is_dir():
                do = [f"cd {shlex.quote(str(place))}"]
                why += f"; resolve there, then swarm submit {row.id}"
        kind = "conflict" if last is not None and last.outcome == "conflict" else "yours"
        key = _key(kind, row.id, str(last.token if last is not None else 0))
        yield Need(kind=kind, task=row.id, key=key, why=why, do=do)


def _expiring(moment: Moment, known: Standing) -> Iterator[Need]:
    """Tasks whose last claims expired one after the other, before that parks them."""
    for task, row in known.rows.items():
        if row.token < 2 or row.state not in (State.OPEN, State.CLAIMED):
            continue
        attempts = moment.view.attempts(task)
        if attempts is not None and attempts.expiries >= 2:
            why = f"{attempts.expiries} claims in a row gave no sign of life"
            key, do = _key("expired", task), [f"swarm show {task}"]
            yield Need(kind="expired", task=task, key=key, why=why, do=do)
