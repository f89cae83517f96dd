"""What a command works on: checkout, configuration, layout, ledger.

Enters: the folder where a command was typed. Leaves: everything opened, or one clear error.
Guards: configuration is read once, from the checkout where the command was typed.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import msgspec

from swarm import config as configuration
from swarm.breaker import Breaker
from swarm.change import Rules
from swarm.claim import Terms
from swarm.config import Config
from swarm.errors import UsageError
from swarm.layout import Layout, beside
from swarm.ledger.outcome import Bounds
from swarm.ledger.spending import Caps
from swarm.ledger.store import Ledger
from swarm.plumbing.hub import Hub, branch_ref


class Workspace(msgspec.Struct, frozen=True):
    """One repository that swarm works on."""

    checkout: Path
    config: Config
    layout: Layout
    ledger: Ledger

    @property
    def rules(self) -> Rules:
        """What sealing may take and what holds a change."""
        gate = self.config.gate
        return Rules(self.config.worktree.max_file, gate.review, gate.protect, gate.scope)

    @property
    def bounds(self) -> Bounds:
        """When a task is parked."""
        limits = self.config.limits
        return Bounds(
            strikes=limits.strikes,
            conflicts=limits.conflicts,
            backoff=limits.backoff,
            backoff_max=limits.backoff_max,
            task=Caps(
                limits.task_cost_usd,
                limits.task_tokens,
                _seconds(limits.task_time),
                limits.task_attempts,
            ),
        )

    @property
    def breaker(self) -> Breaker:
        """Which agent accounts their providers limit."""
        limits = self.config.limits
        return Breaker(self.layout.limits, limits.backoff, limits.backoff_max)

    @property
    def terms(self) -> Terms:
        """The rules of claims by loops."""
        claims, limits = self.config.claims, self.config.limits
        caps = Caps(
            limits.run_cost_usd,
            limits.run_tokens,
            _seconds(limits.run_time),
            limits.run_attempts,
        )
        return Terms(claims.lease, claims.overlap, claims.duplicates, caps, limits.cost_usd)

    @property
    def hand_terms(self) -> Terms:
        """The rules of claims by hand."""
        claims = self.config.claims
        return Terms(claims.hand_lease, claims.overlap, claims.duplicates)


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()


def find_checkout(start: Path) -> Path:
    """The folder with `swarm.toml` at or above `start`, or the checkout that a slot belongs to.

    Raises:
        UsageError: there is none.
    """
    folder = start.resolve()
    for candidate in (folder, *folder.parents):
        if (candidate / configuration.FILE).is_file() and not _is_in_slot(candidate):
            return candidate
        checkout = _checkout_of(candidate)
        if checkout is not None:
            return checkout
    raise UsageError(f"no {configuration.FILE} in {start} or above", hint="swarm init")


def _is_in_slot(folder: Path) -> bool:
    """A worktree of a slot or of the gate carries the repository's own swarm.toml."""
    return any(
        parent.name in ("slots", "gate") and _checkout_of(parent.parent) is not None
        for parent in folder.parents
    )


def _checkout_of(state: Path) -> Path | None:
    """The checkout beside a state folder; the hub may lie elsewhere and proves nothing."""
    name = state.name.removesuffix(".swarm")
    if name in ("", state.name):
        return None
    checkout = state.with_name(name)
    return checkout if (checkout / configuration.FILE).is_file() else None


@contextmanager
def opened(start: Path | None = None) -> Iterator[Workspace]:
    """Open the workspace of a folder, and close what was opened.

    Raises:
        UsageError: no or a wrong `swarm.toml`.
        UsageError: it names a target which the hub has not, and the hub has another.
        HubUnusable: the hub is missing or unusable.
    """
    checkout = find_checkout(start or Path.cwd())
    config = configuration.load(checkout)
    layout = beside(checkout, config.hub)
    ledger = Ledger(Hub.open(layout.hub), config.target, layout.cache)
    try:
        _refuse_other_target(ledger.hub, config.target)
        yield Workspace(checkout, config, layout, ledger)
    finally:
        ledger.close()


def _refuse_other_target(hub: Hub, target: str) -> None:
    if hub.reader.ref(branch_ref(target)) is not None:
        return
    own = hub.git.run("config", "--get", "swarm.target", ok=(0, 1)).text
    if own != target and hub.reader.ref(branch_ref(own)) is not None:
        raise UsageError(
            f"swarm.toml: target: the hub has no branch {target}",
            why=f"it lands on {own}",
            hint=f'target = "{own}"',
        )


def person() -> str:
    """Who types, for trailers."""
    for name in ("SWARM_USER", "USER", "LOGNAME"):
        if os.environ.get(name):
            return os.environ[name]
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's number without a name
        return f"user {os.getuid()}"
