"""A gate without agents: what waits is checked and landed while a command runs.

Enters: a workspace, who wants to know. Leaves: landings, a line for each event.
Guards: a gate that ends lets go of what it holds, however it ends; another runner's is left be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing

import click

from swarm.cli.ready import refuse_unsupported
from swarm.errors import Exit
from swarm.gate import Gate
from swarm.ids import new_nonce
from swarm.ledger.view import State
from swarm.liveness import Alive, beat
from swarm.notify import Notifier
from swarm.output import QUIET, event_line
from swarm.plumbing.hub import LEDGER
from swarm.trailers import one_line
from swarm.workspace import Workspace, opened

IDLE_SECONDS = 1.0
POLL_SECONDS = 0.2

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
    notifier: Notifier | None = None
    with closing(tend(work, say, idle=0.05 if once else IDLE_SECONDS)) as steps:
        for the_gate in steps:
            if notifier is None:
                notifier = Notifier(work, the_gate.runner, lambda note: _warn(note, say))
            notifier.look()
            if once and the_gate.job is None:
                notifier.last_look()
                return _gate_end(work, the_gate, say)
    raise AssertionError("a gate that is tended never ends by itself")


def tend(work: Workspace, say: Say, *, idle: float) -> Generator[Gate, None, None]:
    """A gate at work: beats, ticks, says each event; yields whenever it has nothing to do at once.

    It then sleeps until its check ends, or for `idle` seconds. Never ends by itself: close it.

    Raises:
        UsageError: a setting whose promise this version cannot keep.
    """
    ledger, config = work.ledger, work.config
    refuse_unsupported(config)
    runner = f"gate-{new_nonce()[:6]}"
    alive = Alive(work.layout.runs, runner)
    the_gate = Gate.of(work, runner)
    seen = ledger.hub.reader.ref(LEDGER)
    beat_at = 0.0
    try:
        while True:
            if time.monotonic() >= beat_at:
                beat(ledger.hub, runner, ledger.clock)
                beat_at = time.monotonic() + config.claims.lease.total_seconds() / 3
            is_more = the_gate.tick()
            tip = ledger.hub.reader.ref(LEDGER)
            for logged in reversed(list(ledger.iter_log(tip, seen))):
                if logged.kind not in QUIET:
                    say(event_line(logged, logged.at.strftime("%H:%M:%S")))
            seen = tip
            for note in the_gate.notes:
                _warn(note, say)
            the_gate.notes.clear()
            if is_more:
                continue
            yield the_gate
            running = the_gate.job.running if the_gate.job is not None else None
            if running is not None and running.child is not None:
                running.child.wait(POLL_SECONDS)
            else:
                time.sleep(idle)
    finally:
        the_gate.close()
        alive.close()


def _warn(note: str, say: Say) -> None:
    say(f"warning   {one_line(note)}")


def settle_change(work: Workspace, task: str, say: Say) -> State:
    """Wait until the gate has decided about a queued change; be the gate when nobody is.

    Returns the task's state then: queued or held still when the gate is paused or a person's word
    is missing.

    Raises:
        KeyboardInterrupt: the change stays in the queue and lands with the next run or gate.
    """
    with closing(tend(work, say, idle=POLL_SECONDS)) as steps:
        for the_gate in steps:
            view = work.ledger.view()
            state = view.state(task)
            if state is not State.QUEUED:
                return state
            if the_gate.job is None and not the_gate.can_take(view, task):
                return state
    raise AssertionError("a gate that is tended never ends by itself")


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
