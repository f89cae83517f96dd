"""A gate without agents, on the terminal.

Enters: a workspace. Leaves: a line for each event, and how the queue stands at the end.
Guards: with --once the exit code says whether anything is left, and why.
"""

from __future__ import annotations

from collections.abc import Callable

import click

from swarm.cli.ready import refuse_unsupported
from swarm.errors import Exit
from swarm.gate import Gate
from swarm.notify import Notifier
from swarm.output import QUIET, event_line
from swarm.plumbing.hub import LEDGER
from swarm.tend import tend
from swarm.trailers import one_line
from swarm.workspace import Workspace, opened

IDLE_SECONDS = 1.0
ONCE_SECONDS = 0.05

Say = Callable[[str], None]


@click.command()
@click.option("--once", is_flag=True, help="End when the queue has nothing left to do.")
def gate(once: bool) -> int:
    """Check and land what waits, without running agents."""
    with opened() as work:
        return int(work_gate(work, once, click.echo))


def work_gate(work: Workspace, once: bool, say: Say) -> Exit:
    """Be the gate until the queue is done, or until interrupted.

    Raises:
        UsageError: a setting whose promise this version cannot keep.
    """
    refuse_unsupported(work.config)
    notifier: Notifier | None = None

    def find_end(the_gate: Gate) -> Exit | None:
        nonlocal notifier
        notifier = notifier or Notifier(work, the_gate.runner, lambda note: _warn(note, say))
        notifier.look()
        if not once or the_gate.job is not None:
            return None
        notifier.last_look()
        return _gate_end(work, the_gate, say)

    return tend(work, find_end, Printer(work, say), idle=ONCE_SECONDS if once else IDLE_SECONDS)


class Printer:
    """Says each event of the ledger once, and what a gate has to say, step by step."""

    def __init__(self, work: Workspace, say: Say) -> None:
        self._ledger = work.ledger
        self._say = say
        self._seen = work.ledger.hub.reader.ref(LEDGER)

    def __call__(self, the_gate: Gate) -> None:
        tip = self._ledger.hub.reader.ref(LEDGER)
        for logged in reversed(list(self._ledger.iter_log(tip, self._seen))):
            if logged.kind not in QUIET:
                self._say(event_line(logged, logged.at.strftime("%H:%M:%S")))
        self._seen = tip
        for note in the_gate.notes:
            _warn(note, self._say)
        the_gate.notes.clear()


def _warn(note: str, say: Say) -> None:
    say(f"warning   {one_line(note)}")


def _gate_end(work: Workspace, the_gate: Gate, say: Say) -> Exit:
    view = work.ledger.view()
    record = view.gate()
    if the_gate.claim is None:
        say(f"held: the gate by {record.runner} on {record.host}, which lands what waits")
        return Exit.HELD
    red = the_gate.red
    if record.paused is not None:
        say(f"paused: {record.paused.why}")
        if record.paused.by == "gate":
            return Exit.TARGET_RED
    if red is not None:
        say(f"red: {view.target_branch} {view.target[:7]}: {red.check} failed")
        say(f"  log {work.layout.root / red.log}" if red.log else "  its log is gone")
        return Exit.TARGET_RED
    if record.paused is not None:
        return Exit.NO
    left = view.entries()
    say(f"done: {view.target_branch} {view.target[:7]}, {len(left)} still queued or held")
    return Exit.NO if left else Exit.YES
