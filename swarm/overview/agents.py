"""Which agent programs can be started here, what their files say, and what a start would be.

Enters: a checkout or none, an environment. Leaves: `swarm.agents/1`, `swarm.agent/1`,
`swarm.ready/1`, `swarm.forget/1`.
Guards: a file that is wrong is a line and costs the others nothing; no value of a variable is in
any record; programs are asked, and no agent is started.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

import msgspec

from swarm import adapter as adapters
from swarm import breaker, probe
from swarm.adapter import Adapter, Is, Scalar, Source
from swarm.errors import SwarmError
from swarm.layout import Layout

Origin = Literal["built_in", "checkout"]


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider refused."""

    until: datetime
    is_said: bool  # by the provider; else it is a pause that doubles
    count: int  # refusals in a row
    at: datetime  # of the last one

    @classmethod
    def of(cls, known: breaker.Open) -> Refused:
        return cls(until=known.until, is_said=known.is_said, count=known.count, at=known.at)


class Wrong(msgspec.Struct, frozen=True, kw_only=True):
    """Why something cannot start."""

    what: str
    why: str | None
    hint: str | None

    @classmethod
    def of(cls, error: SwarmError) -> Wrong:
        return cls(what=error.what, why=error.why, hint=error.hint)


class AgentLine(msgspec.Struct, frozen=True, kw_only=True):
    """One adapter in the list; of a file that is wrong there is no more than its name and why."""

    name: str
    origin: Origin
    is_override: bool  # the checkout's own, in the place of a built-in one
    file: str
    about: str = ""
    program: str | None = None  # as the file names it; None: it is typed after `--`
    path: str | None = None  # where that is; None: not there
    version: str | None = None
    logged_in: bool | None = None  # None: nothing tells
    limit: Refused | None = None  # that holds now
    error: Wrong | None = None


class Agents(msgspec.Struct, frozen=True, kw_only=True):
    """`swarm agents list --json`."""

    schema: str = "swarm.agents/1"
    at: datetime
    checkout: str | None  # None: typed outside one, so that only the built-in ones are known
    agents: list[AgentLine]  # by name


class Holds(msgspec.Struct, frozen=True, kw_only=True):
    """Which limits can hold for an agent, and by what; None: by nothing."""

    cost_usd: Literal["said", "priced"] | None  # priced: reckoned from its tokens by `[price]`
    tokens: Literal["said"] | None
    turns: Literal["counted", "said", "told"] | None  # told: it ends by itself, and does not say
    told: list[str]  # those that it is told itself, by its options

    @classmethod
    def of(cls, adapter: Adapter) -> Holds:
        said = adapter.output
        has_tokens = said.tokens_input is not None and said.tokens_output is not None
        is_priced = has_tokens and adapter.price is not None
        told: list[str] = [name for name in ("turns", "cost_usd") if name in adapter.options]
        return cls(
            cost_usd="said" if said.cost_usd is not None else "priced" if is_priced else None,
            tokens="said" if has_tokens else None,
            turns="counted"
            if said.turn is not None
            else "said"
            if said.turns is not None
            else "told"
            if "turns" in told
            else None,
            told=told,
        )


class EndLine(msgspec.Struct, frozen=True, kw_only=True):
    """One `[[outcome]]`: all of its conditions."""

    is_: Is = msgspec.field(name="is")
    exit: list[int] | None
    source: Source  # where `when` and `text` look
    when: dict[str, Scalar]
    text: str | None
    tells_reset: bool  # of a limit: it is read when that ends
    hint: str | None


class Asks(msgspec.Struct, frozen=True, kw_only=True):
    """`[login]`: how it is found out whether somebody is logged in, and what can be done."""

    argv: list[str] | None
    env: list[str]
    files: list[str]
    cure: str | None


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """`swarm agents show NAME --json`: what the adapter's file says."""

    schema: str = "swarm.agent/1"
    name: str
    origin: Origin
    is_override: bool
    file: str
    about: str
    program: str | None  # None: the first word after `--`
    argv: list[str]
    argv_last: list[str]
    options: dict[str, list[str]]
    bypass: list[str] | None  # words of `permission = "bypass"`; None: it knows no such thing
    limited: list[str] | None
    prompt: Literal["stdin", "argument", "file"]
    resumes: bool  # it can go on with a session of its own
    passed: list[str]  # name globs of variables
    sets: list[str]  # names of variables; those for root alone too
    holds: Holds
    login: Asks
    outcomes: list[EndLine]  # in order, the first that is true counts; none: failed
    signals: list[str]  # that end it, in order


class WouldRun(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt would start. Words in capitals stand for what only an attempt knows."""

    argv: list[str]  # without what a sandbox puts before it
    folder: str
    environment: list[str]  # names
    prompt: Literal["stdin", "argument", "file"]
    permission: str
    sandbox: list[str]  # what it means, in lines; empty: none
    home: str | None  # a HOME of the slot's own; None: the user's
    time_limit_seconds: float | None
    stands: dict[str, str]  # what the words in capitals stand for, those that are there


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """`swarm agents check NAME --json`."""

    schema: str = "swarm.ready/1"
    at: datetime
    name: str
    origin: Origin
    is_override: bool
    file: str
    state: Literal["ready", "not_logged_in", "limited", "wrong"]
    path: str | None  # of the program; None: not there
    version: str | None
    logged_in: bool | None
    login: Asks
    limit: Refused | None
    wrong: list[Wrong]  # why a run would refuse it
    start: WouldRun | None  # None: outside a checkout, or something is wrong


class Forgot(msgspec.Struct, frozen=True, kw_only=True):
    """`swarm agents forget NAME --json`."""

    schema: str = "swarm.forget/1"
    name: str
    was: Refused | None  # None: no limit was remembered
    is_over: bool  # it had ended already, and one agent was to try first


def agents(
    checkout: Path | None,
    layout: Layout | None,
    environ: Mapping[str, str],
    now: datetime,
    *,
    home: Path | None = None,
    passed: Iterable[str] = (),
) -> Agents:
    """Every adapter. Their programs are asked all at once: five seconds at most.

    `home` and `passed` are those of `probe.logged_in`.
    """
    limits = memory(layout).all(now) if layout is not None else {}
    lines: dict[str, AgentLine] = {}
    sound: list[tuple[Adapter, str | None]] = []
    for name in adapters.names(checkout):
        try:
            adapter = adapters.load(name, checkout)
        except SwarmError as error:
            lines[name] = _line(name, checkout, error=Wrong.of(error))
        else:
            path = environ.get("PATH", "")
            sound.append((adapter, probe.find_program(adapter, path, checkout)))
    found = probe.find_out(sound, environ, home, passed)
    for (adapter, _), known in zip(sound, found, strict=True):
        limit = limits.get(adapter.name)
        lines[adapter.name] = msgspec.structs.replace(
            _line(adapter.name, checkout),
            about=adapter.about,
            program=adapter.program,
            path=known.program,
            version=known.version,
            logged_in=known.is_logged_in,
            limit=Refused.of(limit) if limit is not None else None,
        )
    listed = [lines[name] for name in sorted(lines)]
    return Agents(at=now, checkout=str(checkout) if checkout else None, agents=listed)


def _line(name: str, checkout: Path | None, *, error: Wrong | None = None) -> AgentLine:
    origin, is_override, file = origin_of(name, checkout)
    return AgentLine(name=name, origin=origin, is_override=is_override, file=file, error=error)


def origin_of(name: str, checkout: Path | None) -> tuple[Origin, bool, str]:
    """Whose file it is, whether that takes the place of a built-in one, and where it lies."""
    file, built_in = adapters.find_file(name, checkout), adapters.find_file(name, None)
    is_own = file != built_in
    return "checkout" if is_own else "built_in", is_own and built_in is not None, str(file)


def agent(name: str, checkout: Path | None) -> Agent:
    """What one adapter's file says.

    Raises:
        NotFound, UsageError: as `adapter.load`.
    """
    adapter = adapters.load(name, checkout)
    origin, is_override, file = origin_of(name, checkout)
    return Agent(
        name=name,
        origin=origin,
        is_override=is_override,
        file=file,
        about=adapter.about,
        program=adapter.program,
        argv=list(adapter.argv),
        argv_last=list(adapter.argv_last),
        options={option: list(words) for option, words in sorted(adapter.options.items())},
        bypass=_listed(adapter.permission.bypass),
        limited=_listed(adapter.permission.limited),
        prompt=adapter.prompt.how,
        resumes=adapters.can_resume(adapter),
        passed=list(adapter.env.pass_),
        sets=sorted({*adapter.env.set, *adapter.env.set_as_root}),
        holds=Holds.of(adapter),
        login=asks(adapter),
        outcomes=[
            EndLine(
                is_=rule.is_,
                exit=list(rule.exit) if rule.exit is not None else None,
                source=rule.source,
                when=rule.when,
                text=rule.text,
                tells_reset=bool(rule.reset),
                hint=rule.hint,
            )
            for rule in adapter.outcome
        ],
        signals=list(adapter.stop.signals),
    )


def asks(adapter: Adapter) -> Asks:
    """How its log-in is looked at; the cure of the outcome `login` where `[login]` names none."""
    login = adapter.login
    told = [rule.hint for rule in adapter.outcome if rule.is_ == "login" and rule.hint]
    return Asks(
        argv=_listed(login.argv),
        env=list(login.env),
        files=list(login.files),
        cure=login.hint or next(iter(told), None),
    )


def _listed(words: tuple[str, ...] | None) -> list[str] | None:
    return list(words) if words is not None else None


def memory(layout: Layout) -> breaker.Breaker:
    """What this host remembers of limits, to be looked at and forgotten: it refuses nothing."""
    return breaker.Breaker(layout.limits, timedelta(0), timedelta(0))
