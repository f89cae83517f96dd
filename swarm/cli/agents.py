"""`swarm agents`: which agent programs there are, what one would be started as, is it ready.

Enters: an adapter's name, words after `--`. Leaves: text, or the same record as JSON.
Guards: no agent is started; no value of a variable is printed; only `forget` changes anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from swarm import adapter as adapters
from swarm import config as configuration
from swarm import launch, overview, probe
from swarm.adapter import Adapter
from swarm.breaker import read_limits
from swarm.cli.ready import (
    SLOT,
    STANDS,
    Order,
    confined,
    limits_unheld,
    refuse_unsupported,
    rehearse,
)
from swarm.config import Config
from swarm.errors import Exit, SwarmError, UsageError
from swarm.layout import Layout, beside
from swarm.ledger import records
from swarm.output import clean, render_agent, render_agents, render_forgot, render_ready
from swarm.overview import Forgot, Ready, Refused, WouldRun, Wrong
from swarm.workspace import Workspace, find_checkout, opened

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_EXITS = {
    "ready": Exit.YES,
    "not_logged_in": Exit.LIMITED,
    "limited": Exit.LIMITED,
    "wrong": Exit.USAGE,
}


@click.group("agents")
def agents() -> None:
    """The agent programs that swarm can start."""


@agents.command("list")
@_as_json
def list_(as_json: bool) -> None:
    """Every agent: is its program there, which version, is somebody logged in, is it limited."""
    place = _Place.find()
    found = overview.agents(
        place.checkout,
        place.layout,
        os.environ,
        datetime.now(UTC),
        home=place.home,
        passed=place.passed,
    )
    _print(found, as_json, render_agents)


@agents.command()
@click.argument("name")
@_as_json
def show(name: str, as_json: bool) -> None:
    """What an agent's file says: how it is started, what it sees, how its end is read."""
    _print(overview.agent(name, _Place.find().checkout), as_json, render_agent)


@agents.command()
@click.argument("name")
@click.option("--model", help="Passed on to the agent.")
@_as_json
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def check(name: str, model: str | None, as_json: bool, command: tuple[str, ...]) -> int:
    """Would it start, and as what? Nothing of it is started but its version and log-in probes."""
    order = Order(agent=name, model=model, command=command, verb=f"swarm agents check {name}")
    found = _examine(_Place.find(), order, name)
    _print(found, as_json, render_ready)
    return int(_EXITS[found.state])


@agents.command()
@click.argument("name")
@_as_json
def forget(name: str, as_json: bool) -> None:
    """Drop the limit of a provider that is remembered: the next attempt asks it again."""
    checkout = find_checkout(Path.cwd())
    layout = _layout(checkout)
    known = read_limits(layout.limits).adapters.get(name)
    if known is None and name not in adapters.names(checkout):
        adapters.load(name, checkout)  # raises, with the nearest name
    if known is not None:
        overview.memory(layout).forget(name)
        if name in read_limits(layout.limits).adapters:
            raise SwarmError(
                f"the limit of {name} could not be forgotten",
                why=f"{layout.limits} cannot be written",
            )
    was = Refused.of(known) if known is not None else None
    is_over = known is not None and known.until <= datetime.now(UTC)
    _print(Forgot(name=name, was=was, is_over=is_over), as_json, render_forgot)


def _print(record: msgspec.Struct, as_json: bool, render: Callable[[Any], list[str]]) -> None:
    if as_json:
        click.echo(json.dumps(records.jsonable(record), indent=2))
    else:
        click.echo("\n".join(map(clean, render(record))))


@dataclass(frozen=True)
class _Place:
    """Where it was typed, as far as that matters to agents; None: outside a checkout."""

    checkout: Path | None
    layout: Layout | None
    config: Config | None  # None also when it is wrong, which other verbs say

    @classmethod
    def find(cls) -> _Place:
        with contextlib.suppress(UsageError):
            checkout = find_checkout(Path.cwd())
            config = None
            with contextlib.suppress(UsageError):
                config = configuration.load(checkout)
            return cls(checkout, _layout(checkout), config)
        return cls(None, None, None)

    @property
    def home(self) -> Path | None:
        """A HOME of the agents' own: of the first slot, where each has one."""
        if self.config is None or self.layout is None:
            return None
        return launch.home_of(self.layout, self.config, SLOT)

    @property
    def passed(self) -> tuple[str, ...]:
        """Name globs of variables that every agent is given."""
        return self.config.env.pass_ if self.config is not None else ()


def _layout(checkout: Path) -> Layout:
    """For what lies in the state folder, which is beside the checkout wherever the hub is."""
    return beside(checkout, "")


def _examine(place: _Place, order: Order, name: str) -> Ready:
    """
    Raises:
        NotFound, UsageError: there is no such adapter, or its file is wrong.
    """
    adapter = adapters.load(name, place.checkout)
    now = datetime.now(UTC)
    path = probe.find_program(adapter, os.environ.get("PATH", os.defpath), place.checkout)
    wrong: list[Wrong] = []
    start: WouldRun | None = None
    try:
        if place.checkout is None:
            path = path or _resolved(adapter, order)
        else:
            with opened(place.checkout) as work:
                wrong += map(Wrong.of, _refusals(work, adapter))
                launched = rehearse(work, order, adapter)
                path = launch.words_of(launched)[0]
                # A sandbox that is not there was refused already.
                sandbox = () if wrong else _sandboxed(work, adapter, path)
                start = _would_run(launched, sandbox)
    except SwarmError as error:
        wrong.append(Wrong.of(error))
    known = probe.find_out([(adapter, path)], os.environ, place.home, place.passed)[0]
    limit = overview.memory(place.layout).find(name, now) if place.layout is not None else None
    origin, is_override, file = overview.origin_of(name, place.checkout)
    return Ready(
        at=now,
        name=name,
        origin=origin,
        is_override=is_override,
        file=file,
        state="wrong"
        if wrong
        else "not_logged_in"
        if known.is_logged_in is False
        else "limited"
        if limit is not None
        else "ready",
        path=path,
        version=known.version,
        logged_in=known.is_logged_in,
        login=overview.asks(adapter),
        limit=Refused.of(limit) if limit is not None else None,
        wrong=wrong,
        start=start,
    )


def _resolved(adapter: Adapter, order: Order) -> str:
    """The program, where no configuration says what an attempt would be.

    Raises:
        UsageError: it is not there, or none was named.
    """
    program = adapter.program or next(iter(order.command), None)
    if program is None:
        raise UsageError(
            f"agent {adapter.name} needs a program to start", hint=f"{order.verb} -- ./my-agent.sh"
        )
    return adapters.resolve(program, typed_in=Path.cwd(), path=os.environ.get("PATH", os.defpath))


def _refusals(work: Workspace, adapter: Adapter) -> Iterator[SwarmError]:
    """For which settings a run would refuse to start this agent."""
    try:
        refuse_unsupported(work.config)
    except SwarmError as error:
        yield error
    yield from limits_unheld(work.config, adapter)


def _sandboxed(work: Workspace, adapter: Adapter, program: str) -> tuple[str, ...]:
    """What the sandbox means, in lines; the program is tried in it.

    Raises:
        SandboxUnusable: the program does not start in it, though it does outside.
    """
    if work.config.run.sandbox == "none":
        return ()
    return confined(work, adapter, program, probe.version_of(adapter, program, os.environ))


def _would_run(launched: launch.Launch, sandbox: tuple[str, ...]) -> WouldRun:
    spec = launch.spec_of(launched)
    typed = " ".join(spec.argv)
    limit = spec.time_limit
    return WouldRun(
        argv=list(spec.argv),
        folder=str(spec.cwd),
        environment=sorted(spec.env),
        prompt=launched.adapter.prompt.how,
        permission=launched.permission,
        sandbox=list(sandbox),
        home=str(launched.home) if launched.home is not None else None,
        time_limit_seconds=limit.total_seconds() if limit is not None else None,
        stands={word: what for word, what in STANDS.items() if re.search(rf"\b{word}\b", typed)},
    )
