"""What the checks say of the target's tip.

Enters: a moment. Leaves: the worst verdict, with its source and age.
Guards: a tip that some check never judged is not called green.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from swarm.check import judged
from swarm.config import Check
from swarm.ledger import records
from swarm.ledger.records import Undecodable, Verdict
from swarm.ledger.view import View
from swarm.overview.moment import Moment, seconds_since


class TargetVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the checks say of the target's tip; of several checks the worst."""

    value: str
    check: str
    age_seconds: float | None
    source: str  # the ledger file


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The branch that is landed on; `verdict` None: some check never judged this tip."""

    branch: str
    oid: str | None  # None: the hub has no such branch
    verdict: TargetVerdict | None


_WORST = ("failed", "timed_out", "could_not_run", "flaky", "passed")


def target_of(moment: Moment) -> Target:
    """The target's tip and what is known of it."""
    view = moment.view
    if not view.target:
        return Target(branch=view.target_branch, oid=None, verdict=None)
    keys = [
        (check, judged(view.hub, check, view.target))
        for check in moment.work.config.checks
        if check.when == "always"
    ]
    return Target(branch=view.target_branch, oid=view.target, verdict=worst_verdict(view, keys))


def worst_verdict(view: View, keys: Iterable[tuple[Check, str | None]]) -> TargetVerdict | None:
    """Of what each check says of what it judges (None: not known what) the worst.

    None: one of them never judged it, and no other is red; or there is no check.
    """
    found: list[tuple[int, TargetVerdict]] = []
    is_whole = True
    for check, key in keys:
        path, verdict = newest_verdict(view, view.tree, key, check.name) if key else ("", None)
        if verdict is None:
            is_whole = False
            continue
        at = verdict.runs[-1].at if verdict.runs else None
        said = TargetVerdict(
            value=verdict.verdict,
            check=check.name,
            age_seconds=seconds_since(view.now, at) if at else None,
            source=path,
        )
        found.append((_WORST.index(verdict.verdict), said))
    worst = min(found, key=lambda pair: pair[0], default=None)
    if worst is not None and not is_whole and worst[1].value in ("passed", "flaky"):
        return None  # one check passed and another never ran: nothing is known of the whole
    return worst[1] if worst else None


def newest_verdict(view: View, tree: str, key: str, check: str) -> tuple[str, Verdict | None]:
    """(ledger file, verdict) of what was judged, in a ledger tree; of several definitions the
    one that ran last."""
    newest: tuple[str, Verdict | None] = ("", None)
    folder = records.verdict_path(f"{key}-{check}-").rpartition("/")[0]
    entry = view.hub.reader.find(tree, folder)
    if entry is None:
        return newest
    for name, blob in view.hub.reader.tree(entry.oid).items():
        if not re.fullmatch(rf"{re.escape(f'{key}-{check}')}-[0-9a-f]{{12}}\.json", name):
            continue
        with contextlib.suppress(Undecodable):
            verdict = records.decode(Verdict, view.hub.reader.read(blob.oid, "blob"))
            known = newest[1]
            if known is None or _ran_at(verdict) > _ran_at(known):
                newest = (f"{folder}/{name}", verdict)
    return newest


def _ran_at(verdict: Verdict) -> datetime:
    return verdict.runs[-1].at if verdict.runs else datetime.min.replace(tzinfo=UTC)
