"""Healing by hand: doctor, rescue.

Enters: a hub that something happened to. Leaves: what is wrong, what was mended, what is kept.
Guards: without --fix nothing is written; a checkout is never written.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import click

from swarm import kept
from swarm.doctor import Case, Finding, Outcome, examine, mend
from swarm.errors import Exit
from swarm.kept import Kept
from swarm.output import plural
from swarm.trailers import one_line
from swarm.workspace import opened

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command()
@click.option("--fix", "is_fix", is_flag=True, help="Mend what can be mended with proof.")
@_as_json
def doctor(is_fix: bool, as_json: bool) -> int:
    """Look for what is wrong with the hub, claims, slots and runs."""
    with opened() as work:
        case = Case(work)
        found = examine(case)
        outcomes = mend(case, found) if is_fix else [Outcome(f, None) for f in found]
    left = [outcome for outcome in outcomes if outcome.done is None]
    if as_json:
        findings = [_record(outcome, is_fix) for outcome in outcomes]
        click.echo(json.dumps({"schema": "swarm.doctor/1", "findings": findings}))
    else:
        for outcome in outcomes:
            click.echo("\n".join(_lines(outcome, is_fix)))
        click.echo(_summary(outcomes, left, is_fix))
    return int(Exit.NO if left else Exit.YES)


def _record(outcome: Outcome, is_fix: bool) -> dict[str, object]:
    finding = outcome.finding
    state = "fixed" if outcome.done is not None else "left" if is_fix else "found"
    return {
        "id": finding.id,
        "what": finding.what,
        "evidence": [text for text in finding.evidence if text],
        "fix": finding.fix,
        "hint": finding.hint,
        "state": state,
        "done": outcome.done,
        "why": outcome.why or None,
    }


def _lines(outcome: Outcome, is_fix: bool) -> list[str]:
    finding: Finding = outcome.finding
    word = "fixed" if outcome.done is not None else "left" if is_fix else "found"
    lines = [f"{word:<6} {finding.id:<13} {one_line(finding.what)}"]
    told = [text for text in finding.evidence if text and text not in finding.what]
    lines += [f"       {one_line(text, 300)}" for text in told]
    if outcome.done is not None:
        lines.append(f"       done: {one_line(outcome.done)}")
    elif is_fix:
        lines.append(f"       why: {one_line(outcome.why)}")
    elif finding.fix is not None:
        lines.append(f"       --fix would: {finding.fix}")
    if outcome.done is None and finding.hint is not None:
        lines += [f"       hint: {hint}" for hint in finding.hint.splitlines()]
    return lines


def _summary(outcomes: list[Outcome], left: list[Outcome], is_fix: bool) -> str:
    if not outcomes:
        return "nothing is wrong; the invariants hold"
    mendable = sum(outcome.finding.fix is not None for outcome in left)
    if is_fix:
        return f"{len(outcomes) - len(left)} fixed, {len(left)} left"
    return f"{len(left)} found" + (
        f", {mendable} of them by: swarm doctor --fix" if mendable else ""
    )


@click.group()
def rescue() -> None:
    """Work that is kept and has not landed."""


@rescue.command("list")
@_as_json
def list_(as_json: bool) -> None:
    """What is kept: by which ref, why, how much, how old."""
    with opened() as work:
        found = kept.list_kept(work.ledger)
    if as_json:
        rows = [_kept_record(item) for item in found]
        click.echo(json.dumps({"schema": "swarm.rescue/1", "kept": rows}))
        return
    for item in found:
        stat = plural(item.files, "file")
        stat += f" +{item.insertions} -{item.deletions}"
        click.echo(f"{item.kind:<6}  {item.name:<28} {stat:<18} {_age(item):>4}  {item.why}")
    if found:
        click.echo("look   swarm rescue show NAME      take   swarm rescue restore NAME")
    else:
        click.echo("nothing is kept beside what has landed")


def _kept_record(item: Kept) -> dict[str, object]:
    return {
        "kind": item.kind,
        "name": item.name,
        "ref": item.ref,
        "oid": item.oid,
        "task": item.task,
        "token": item.token,
        "why": item.why,
        "files": item.files,
        "insertions": item.insertions,
        "deletions": item.deletions,
        "at": item.at.isoformat(),
    }


def _age(item: Kept) -> str:
    seconds = max(0, int((datetime.now(UTC) - item.at).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


@rescue.command()
@click.argument("name")
def show(name: str) -> None:
    """The commit and its files."""
    with opened() as work:
        item = kept.find_kept(work.ledger, name)
        lines = kept.stat_lines(work.ledger, item)
    click.echo(f"{item.ref}   {item.why}")
    click.echo("\n".join(line.rstrip() for line in lines))


@rescue.command()
@click.argument("name")
@click.option("--to", "folder", type=click.Path(path_type=Path), help="Write its files there.")
@_as_json
def restore(name: str, folder: Path | None, as_json: bool) -> None:
    """How to get it as a branch; or its files, in a new folder outside the checkout."""
    with opened() as work:
        item = kept.find_kept(work.ledger, name)
        count = None
        if folder is not None:
            count = kept.export(work.ledger, item, folder, work.checkout)
        command = f"git fetch {work.layout.hub} {item.ref}:refs/heads/{item.branch}"
    if as_json:
        record = {"schema": "swarm.restore/1", **_kept_record(item), "command": command}
        record |= {"files_written": count, "folder": str(folder) if folder else None}
        click.echo(json.dumps(record))
    elif folder is not None:
        click.echo(f"written   {plural(count or 0, 'file')} of {item.name} to {folder}")
    else:
        click.echo(f"as a branch   {command}")
        click.echo(f"as files      swarm rescue restore {item.name} --to FOLDER")
