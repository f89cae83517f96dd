"""A gate at work while a command runs, without agents.

Enters: a workspace, and when to stop. Leaves: landings.
Guards: however it ends it lets go of what it holds; another runner's gate is left be.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from swarm.gate import Gate
from swarm.ids import new_nonce
from swarm.ledger.view import State
from swarm.liveness import Alive, beat
from swarm.workspace import Workspace

T = TypeVar("T")
POLL_SECONDS = 0.2


def tend(
    work: Workspace,
    find_end: Callable[[Gate], T | None],
    on_step: Callable[[Gate], None],
    *,
    idle: float = POLL_SECONDS,
    name: str = "gate",
) -> T:
    """Be a gate, or wait for another's, until `find_end` gives something: the answer.

    Args:
        find_end: asked whenever nothing is to be done at once; it may change what is done next.
        on_step: called after each step, to print.
        idle: seconds between two looks while no check runs.

    Raises:
        UsageError: no check is configured.
        SwarmError: a person must act; the gate is left.
    """
    runner = f"{name}-{new_nonce()[:6]}"
    alive = Alive(work.layout.runs, runner)
    gate = Gate.of(work, runner)
    next_beat = 0.0
    try:
        while True:
            if time.monotonic() >= next_beat:
                beat(work.ledger.hub, runner, work.ledger.clock)
                next_beat = time.monotonic() + work.config.claims.lease.total_seconds() / 3
            is_more = gate.tick()
            on_step(gate)
            if is_more:
                continue
            end = find_end(gate)
            if end is not None:
                return end
            running = gate.job.running if gate.job is not None else None
            if running is not None and running.child is not None:
                running.child.wait(min(idle, POLL_SECONDS))
            else:
                time.sleep(idle)
    finally:
        gate.close()
        alive.close()
        alive.path.unlink(missing_ok=True)


def settle_change(work: Workspace, task: str, on_step: Callable[[Gate], None]) -> State:
    """Wait until the gate has decided about a queued change; be the gate when nobody is.

    Returns the task's state then: queued still when the gate is paused, held when a person's word
    is missing.

    Raises:
        KeyboardInterrupt: the change stays in the queue and lands with the next run or gate.
    """

    def find_end(gate: Gate) -> State | None:
        view = work.ledger.view()
        state = view.state(task)
        is_stuck = gate.job is None and not gate.can_take(view, task)
        return state if state is not State.QUEUED or is_stuck else None

    return tend(work, find_end, on_step)
