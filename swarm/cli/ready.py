"""Before a run: what was typed and configured, judged; and what will run, said.

Enters: an order, a workspace. Leaves: everything a run needs, or one refusal with a hint.
Guards: nothing is started or written here; no setting is silently ignored.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from swarm import adapter as adapters
from swarm import environment, launch, plan, prompt, request, sandbox
from swarm.adopt import bring_in
from swarm.config import Config, read_team, shown
from swarm.errors import UsageError
from swarm.ids import short
from swarm.ledger.records import PERSON
from swarm.ledger.spending import least
from swarm.ledger.view import State
from swarm.loop import Seat
from swarm.output import plural
from swarm.overview import Holds, stand
from swarm.plumbing import checkout as user
from swarm.probe import found_on_path, version_of
from swarm.slot import Slot
from swarm.task import Taken, load_plan
from swarm.workspace import Workspace

MAX_SLOTS = 64
SLOT = "s1"
# In a rehearsal, for what only an attempt knows.
STANDS = {
    "PROMPT": "what the agent is told",
    "RUN": "the run",
    "SESSION": "a new id",
    "TASK": "the task",
}


class Order(msgspec.Struct, frozen=True):
    """What was typed; None: as the configuration says."""

    slots: int | None = None
    agent: str | None = None
    agents: str | None = None  # a mixed team
    fallback: str | None = None
    model: str | None = None
    roles: str | None = None
    allow_red: bool = False
    keep_going: bool = False
    command: tuple[str, ...] = ()  # the words after `--`
    verb: str = "swarm run"  # what a hint begins with


class Agent(msgspec.Struct, frozen=True):
    """An agent program that was found, with the words that would start it."""

    adapter: adapters.Adapter
    argv: tuple[str, ...]  # as an attempt's would be, for what is printed
    version: str | None  # None: it does not say
    confined: tuple[str, ...] = ()  # what a sandbox means for it, in lines; none without one


class Ready(msgspec.Struct, frozen=True):
    """Everything that a run needs, found to be good."""

    order: Order
    agents: tuple[Agent, ...]  # each once, in the order of their slots, the fallback last
    seats: tuple[Seat, ...]  # one for each slot
    fallback: Seat | None
    drafts: tuple[plan.Draft, ...]
    template: str | None
    unenforced: tuple[str, ...]  # settings that this version accepts and does not act on


def prepare(work: Workspace, order: Order) -> Ready:
    """Judge everything that can be judged without starting or writing anything.

    Raises:
        SwarmError: the first thing that is wrong; of the plan, all that is wrong.
    """
    config = work.config
    refuse_unsupported(config)
    require_checks(config)
    crew, is_team = _crew(work, order)
    fallback = _fallback(work, order)
    known = {one.name: one for one in crew}
    agents = [_found(work, order, adapter) for adapter in known.values()]
    # What was typed for the agent that was asked for is not for the one that stands in.
    plain = replace(order, model=None, command=())
    if fallback is not None and fallback.name not in known:
        agents.append(_found(work, plain, fallback))
    for one in agents:
        refuse_limits_unheld(config, one.adapter)
    seats = _seats(order, config, crew, is_team=is_team)
    _try_environment(work, len(seats))
    template = _read_template(work)
    drafts = _read_plan(work, order)
    return Ready(
        order=order,
        agents=tuple(agents),
        seats=seats,
        fallback=_seat(plain, fallback) if fallback else None,
        drafts=drafts,
        template=template,
        unenforced=tuple(_unenforced(config)),
    )


def prepare_one(work: Workspace, order: Order) -> Ready:
    """The same for one attempt that is no run: nothing of it lands, so that no check need be there.

    Raises:
        SwarmError: the first thing that is wrong.
    """
    config = work.config
    refuse_unsupported(config)
    adapter = _find_adapter(work, order)
    agent = _found(work, order, adapter)
    refuse_limits_unheld(config, adapter)
    _try_environment(work, 1)
    return Ready(
        order=order,
        agents=(agent,),
        seats=(_seat(order, adapter),),
        fallback=None,
        drafts=(),
        template=None,
        unenforced=(),
    )


def refuse_unsupported(config: Config) -> None:
    """
    Raises:
        UsageError: a setting whose promise this version cannot keep.
        SandboxUnusable: nor this machine.
    """
    sandbox.require(config, os.environ)
    for is_set, key, cure in (
        (config.gate.style == "rebase", '[gate] style = "rebase"', 'style = "merge", or "squash"'),
    ):  # fmt: skip
        if is_set:
            raise UsageError(
                f"swarm.toml: {key} is not done by this version; nothing was started", hint=cure
            )


def require_checks(config: Config) -> None:
    """
    Raises:
        UsageError: there is none, so that whatever is offered would wait for ever.
    """
    if not config.checks:
        raise UsageError(
            "no [[checks]] in swarm.toml: nothing could be judged, so nothing would land",
            hint='[[checks]]\nname = "tests"\nrun = "python -m pytest -q"',
        )


def refuse_limits_unheld(config: Config, adapter: adapters.Adapter) -> None:
    """
    Raises:
        UsageError: a limit is set of what the agent never says, so that it could not hold.
    """
    for unheld in limits_unheld(config, adapter):
        raise unheld


def limits_unheld(config: Config, adapter: adapters.Adapter) -> Iterator[UsageError]:
    """Each limit that is set and could not hold, as the refusal that a run would end with."""
    limits, held = config.limits, Holds.of(adapter)
    file = f".swarm/agents/{adapter.name}.toml"
    for keys, is_held, what, cure in (
        (
            ("cost_usd", "task_cost_usd", "run_cost_usd"),
            held.cost_usd is not None,
            "what it costs",
            f"give it a [price] in {file}, or limit tokens, time or attempts instead"
            if held.tokens is not None
            else "limit time or attempts instead",
        ),
        (
            ("tokens", "task_tokens", "run_tokens"),
            held.tokens is not None,
            "its tokens",
            "limit time instead",
        ),
        (("turns",), held.turns is not None, "its turns", "limit time instead"),
    ):
        for key in keys:
            if getattr(limits, key) is not None and not is_held:
                yield UsageError(
                    f"[limits] {key} cannot hold: {adapter.name} does not say {what}", hint=cure
                )


def _unenforced(config: Config) -> Iterator[str]:
    gate = config.gate
    if gate.slots > 1 or gate.strategy in ("batch", "speculate"):
        yield "[gate] slots, strategy: changes are judged one at a time"


def _crew(work: Workspace, order: Order) -> tuple[list[adapters.Adapter], bool]:
    """The adapter of each slot of a team, and True; or the one of all slots."""
    team = work.config.run.agents if order.agent is None and not order.command else None
    if order.agents is not None:
        if order.agent is not None or order.command:
            raise UsageError(
                "--agents names a mixed team; --agent or a command names one agent for all slots"
            )
        team = _read_team(order.agents, "--agents", "claude:3,codex:2")
    if team is None:
        return [_find_adapter(work, order)], False
    if order.model is not None:
        raise UsageError(
            "--model is for one agent; in a mixed team each has its own",
            hint='a copy of its file in .swarm/agents/ with argv = [..., "--model", "..."]',
        )
    crew = [adapters.load(name, work.checkout) for name, count in team for _ in range(count)]
    return crew, True


def _fallback(work: Workspace, order: Order) -> adapters.Adapter | None:
    name = order.fallback or work.config.run.fallback
    return adapters.load(name, work.checkout) if name else None


def _found(work: Workspace, order: Order, adapter: adapters.Adapter) -> Agent:
    argv = launch.words_of(rehearse(work, order, adapter))
    version = version_of(adapter, argv[0], os.environ)
    return Agent(adapter, tuple(argv), version, confined(work, adapter, argv[0], version))


def _seat(order: Order, adapter: adapters.Adapter, role: str = "") -> Seat:
    model = order.model if "model" in adapter.options else None
    return Seat(adapter, _typed(order, adapter), model, role)


def _typed(order: Order, adapter: adapters.Adapter) -> tuple[str, ...]:
    """The words after `--`, which belong to the agent that was asked for."""
    is_asked = order.agent == adapter.name or (order.agent is None and adapter.program is None)
    return order.command if is_asked else ()


def _find_adapter(work: Workspace, order: Order) -> adapters.Adapter:
    name = order.agent or ("command" if order.command else None) or work.config.run.agent
    if name is not None:
        return adapters.load(name, work.checkout)
    typed = order.verb + (f" -n {order.slots}" if order.slots else "")
    raise UsageError(
        "no agent named",
        why=f"found on PATH: {_found_on_path()}",
        hint=f"{typed} --agent claude\n{typed} -- ./my-agent.sh",
    )


def _found_on_path() -> str:
    found = found_on_path(os.environ.get("PATH", os.defpath))
    return ", ".join(f"{n} {v or ''}".strip() for n, v in found) or "no agent that swarm knows"


def rehearse(work: Workspace, order: Order, adapter: adapters.Adapter) -> launch.Launch:
    """A first attempt in slot s1, to be looked at and never started: what only an attempt knows is
    a word of `STANDS`.

    Raises:
        UsageError: no such attempt can be started.
    """
    if order.model is not None and "model" not in adapter.options:
        raise UsageError(
            f"agent {adapter.name} has no option model",
            hint="it has: " + (" ".join(sorted(adapter.options)) or "none"),
        )
    made = _rehearsal(work, order, adapter)
    try:
        launch.words_of(made)
    except UsageError as error:
        if error.hint is not None:
            raise
        raise UsageError(
            f"agent {adapter.name}: {error.what}",
            why=f"{error.why or ''}\nfound on PATH: {_found_on_path()}".strip(),
            hint=f"install {adapter.program}, or name another agent"
            if adapter.program
            else f"give its path: {order.verb} -- ./my-agent.sh",
        ) from error
    return made


def _rehearsal(work: Workspace, order: Order, adapter: adapters.Adapter) -> launch.Launch:
    config, layout = work.config, work.layout
    limits = config.limits
    return launch.Launch(
        adapter=adapter,
        permission=config.run.permission,
        model=order.model if "model" in adapter.options else None,
        argv_extra=_typed(order, adapter),
        typed_in=Path.cwd(),
        environ=os.environ,
        config=config,
        checkout=work.checkout,
        slot=Slot(layout.slots, SLOT, work.ledger.hub, -1),  # not taken: its paths alone are read
        text="PROMPT",
        task_text=b"",
        folder=layout.attempt("RUN", "TASK", 1),
        mark="MARK",
        tmpdir=Path("TMPDIR"),
        home=launch.home_of(layout, config, SLOT),
        task="TASK",
        attempt=1,
        run="RUN",
        target=work.ledger.branch,
        time_limit=limits.attempt,
        turns=limits.turns,
        cost_usd=least((limits.cost_usd, limits.task_cost_usd, limits.run_cost_usd)),
        new_session="SESSION",
        question_folder=request.question_folder(layout, "RUN", "TASK"),
    )


def confined(
    work: Workspace, adapter: adapters.Adapter, program: str, version: str | None
) -> tuple[str, ...]:
    """What the sandbox means, in lines; none without one.

    Raises:
        SandboxUnusable: the program does not start in it, though it does outside.
        UsageError: what is to be seen in it is too much.
    """
    run = work.config.run
    if run.sandbox == "none":
        return ()
    expanded = partial(sandbox.expanded, environ=os.environ, has_home=run.home == "user")
    read, write = adapter.sandbox.read, adapter.sandbox.write
    home = (Path.home(),) if run.home == "user" else ()
    sandbox.refuse_holding(
        expanded((*read, *write, *run.visible, *run.writable)),
        (work.checkout, work.layout.root, *home),
    )
    if version is not None:
        complaint = sandbox.try_program(
            (program, *(adapter.version or ())),
            work.config,
            work.layout.hub,
            work.checkout,
            environ=os.environ,
            read=expanded(read),
            write=expanded(write),
        )
        if complaint:
            raise sandbox.SandboxUnusable(
                f"{adapter.name} does not start in the sandbox; nothing was started",
                why=complaint,
                hint='visible = ["~/tools"] below [run] in swarm.toml, or whatever it lacks',
            )
    lines = [
        f"sandbox {run.sandbox}, network {run.network}: it writes its worktree, and reads the hub",
        "and the system; your home, your checkout and other slots are not there",
    ]
    for verb, entries in (
        ("reads", (*read, *run.visible)),
        ("writes", (*write, *run.writable)),
    ):
        there = [e for e in entries if any(p.exists() for p in expanded([e]))]
        if there:
            lines.append(f"of yours it {verb} {shown(', '.join(there), 80)}")
    return tuple(lines)


def _read_team(text: str, option: str, example: str) -> tuple[tuple[str, int], ...]:
    try:
        return read_team(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}", hint=f"swarm run {option} {example}") from error


def _seats(
    order: Order, config: Config, crew: Sequence[adapters.Adapter], *, is_team: bool
) -> tuple[Seat, ...]:
    """Who works in each slot, in order; roles go to the first slots."""
    team = config.run.roles or ()
    if order.roles is not None:
        team = _read_team(order.roles, "--roles", "build:3,review:1")
    roles = [name for name, count in team for _ in range(count)]
    if PERSON in roles:
        raise UsageError(
            f"no slot can have the role {PERSON}: its tasks are claimed by hand",
            hint="swarm task list",
        )
    if is_team:
        slots = len(crew)
        if order.slots not in (None, slots):
            raise UsageError(
                f"the team has {plural(slots, 'slot')}, -n says {order.slots}",
                hint="leave -n away, or change the counts in --agents",
            )
    else:
        slots = order.slots or max(len(roles), 0 if roles else config.run.slots)
        crew = list(crew) * slots
    if slots > MAX_SLOTS:
        raise UsageError(f"{slots} slots are too many", hint=f"at most {MAX_SLOTS}")
    if len(roles) > slots:
        raise UsageError(
            f"{plural(len(roles), 'slot')} have a role, but there are only {slots}",
            hint=f"-n {len(roles)}, or fewer in --roles",
        )
    roles += [""] * (slots - len(roles))
    return tuple(_seat(order, one, role) for one, role in zip(crew, roles, strict=True))


def _read_template(work: Workspace) -> str | None:
    name = work.config.prompt.template
    if not name:
        return None
    try:
        template = (work.checkout / name).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"[prompt] template: {name} cannot be read", why=str(error)) from error
    prompt.check(template, name=name)
    return template


def _try_environment(work: Workspace, slots: int) -> None:
    """Fill in `[env.set]` and every check's `env` once: a wrong name is found before any agent.

    Raises:
        UsageError: an unknown placeholder, or no port left for the last slot.
    """
    for number, check_env in ((slots, {}), *((1, check.env) for check in work.config.checks)):
        environment.for_check(
            {},
            settings=work.config.env,
            check_env=check_env,
            slot=environment.SlotFacts(name=f"s{number}", worktree=work.checkout),
            checkout=work.checkout,
            tmpdir=work.checkout,
        )


def _read_plan(work: Workspace, order: Order) -> tuple[plan.Draft, ...]:
    label = work.config.tasks
    drafts = load_plan(work.ledger, work.checkout / label, work.config)
    is_waiting = order.keep_going or work.config.run.keep_going
    if not drafts and not work.ledger.index.ids(work.ledger.view()) and not is_waiting:
        raise UsageError(
            f"there is no task: {label}/ is empty",
            hint='swarm task add "What should be done"',
        )
    return drafts


def plan_lines(work: Workspace, ready: Ready, taken: Taken) -> list[str]:
    """How many tasks there are, and what the files changed."""
    at = stand(work.ledger.view(), work.ledger.index)
    parts = [f"{len(taken.new)} new, {len(taken.changed)} changed"]
    now = [
        f"{count} {word}"
        for count, word in (
            (len(at.of("ready")), "ready"),
            (len(at.of("waiting")), "wait for a need or a back-off"),
            (len(at.of("blocked")), "blocked"),
            (len(at.of("parked")), "parked"),
            (len(at.of("held")), "held"),
            (at.landed, "landed"),
        )
        if count
    ]
    drafts = plural(len(ready.drafts), "task")
    return [f"plan      {drafts} in {work.config.tasks}/: {'; '.join([*parts, ', '.join(now)])}"]


def agent_lines(ready: Ready) -> list[str]:
    """Which programs, with whose rights, and what they may do without asking."""
    counts = Counter(seat.adapter.name for seat in ready.seats)
    lines = []
    for agent in ready.agents:
        name = agent.adapter.name
        count = counts[name]
        is_mixed = len(ready.agents) > 1
        slots = plural(count, "slot") if count else "when another is limited or not logged in"
        lines += _agent_lines(agent, ready.order, slots if is_mixed else "")
    return [f"agent     {line}" if line[0] != " " else line for line in lines]


def _agent_lines(agent: Agent, order: Order, slots: str) -> list[str]:
    adapter = agent.adapter
    who = adapter.name
    if adapter.program is None:
        who += f" {shown(shlex.join([Path(agent.argv[0]).name, *order.command[1:]]))}"
    if agent.version:
        who += f" {agent.version}"
    who += f" ({slots})" if slots else ""
    line = f"{who}; each runs as you, in its own worktree"
    words = [w for w in adapter.permission.bypass or () if w in agent.argv]
    limited = [w for w in adapter.permission.limited or () if w in agent.argv]
    named = f"({shlex.join(words)})" if words else ""
    named = f"(limited: {shlex.join(limited)})" if limited and not words else named
    line += ", without asking" if words else ""
    if agent.confined:
        more = [*([named] if named else []), *agent.confined]
    elif words:
        more = [f"{named}; sandbox none: it can read what you can read"]
    elif limited:
        more = [f"{named}; no other sandbox"]
    else:
        more = ["sandbox none: it can read and write what you can"]
    return [line, *(f"          {one}" for one in more)]


def limits_line(config: Config) -> str:
    """What ends an attempt, and what is not limited."""
    limits = config.limits
    attempt = short(limits.attempt) if limits.attempt else "no time limit"
    silence = f" and {short(limits.silence)} of silence" if limits.silence else ""
    more = [
        f"{value}{word}"
        for value, word in ((limits.turns, " turns"), (limits.tokens, " tokens"))
        if value is not None
    ]
    each = ", ".join([attempt + silence, *more])
    strikes = plural(limits.strikes, "strike")
    costs = [
        f"${value:g} {scope}"
        for value, scope in (
            (limits.cost_usd, "an attempt"),
            (limits.task_cost_usd, "a task"),
            (limits.run_cost_usd, "the run"),
        )
        if value is not None
    ]
    cost = ", ".join(costs) or "no limit (--max-cost 20)"
    return f"limits    {each} per attempt, {strikes} per task; cost: {cost}"


def _not_held_for_sure(config: Config, ready: Ready) -> Iterator[str]:
    """Limits of cost that hold only as far as a program of the user's own says what it costs."""
    limits = config.limits
    is_limited = limits.run_cost_usd is not None or limits.task_cost_usd is not None
    if not is_limited or limits.cost_usd is not None:
        return
    for agent in ready.agents:
        place = agent.adapter.output.cost_usd
        if place is not None and place.in_ == "report" and agent.adapter.program is None:
            yield (
                f"{agent.adapter.name}: its cost is what it writes into $SWARM_REPORT; an attempt "
                "that writes none costs nothing here, unless [limits] cost_usd reserves it"
            )


def notes(work: Workspace, ready: Ready, taken: Taken) -> list[str]:
    """What a person would want to have been told before: one line each."""
    found = [f"not enforced by this version: {key}" for key in ready.unenforced]
    found += _not_held_for_sure(work.config, ready)
    found += uncommitted(work)
    for names, what in (
        (taken.waiting, "changed while being worked on; used from the next attempt on"),
        (taken.elsewhere, "landed through another hub: not done again, but under another id"),
        (taken.ended, "changed, but ended already; nothing is done (swarm task reopen)"),
        (_without_file(work, ready), "in the ledger, with no file now; swarm task cancel ends one"),
    ):  # fmt: skip
        if names:
            found.append(f"{', '.join(names[:8])}{' ...' if len(names) > 8 else ''}: {what}")
    return found


def uncommitted(work: Workspace) -> list[str]:
    """What agents will not see of the checkout: a line each."""
    look = user.look(work.checkout)
    config = work.config
    own = ("swarm.toml", ".worktreeinclude", f"{config.tasks}/", ".swarm/")
    dirty = [path for _, path in look.dirty if not path.startswith(own)]
    hub = work.ledger.hub
    tip = hub.tip(config.target)
    found = []
    if dirty:
        named = ", ".join(shown(path, 30) for path in dirty[:3]) + (
            " ..." if len(dirty) > 3 else ""
        )
        verb = "is" if len(dirty) == 1 else "are"
        found.append(
            f"{plural(len(dirty), 'change')} here {verb} not committed; agents start from "
            f"{tip[:7]} and will not see {'it' if len(dirty) == 1 else 'them'}: {named}"
        )
    if look.branch == config.target and look.head is not None and look.head != tip:
        is_in = hub.reader.has(look.head) and hub.contains(tip, look.head)
        if not is_in:
            found.append(
                f"your {config.target} {look.head[:7]} is not in the hub's {tip[:7]}; "
                f"to give it to agents: {bring_in(config.target)[1]}"
            )
    return found


def _without_file(work: Workspace, ready: Ready) -> list[str]:
    files = {draft.id for draft in ready.drafts}
    rows = work.ledger.index.rows(work.ledger.view(), State.OPEN)
    return [r.id for r in rows if r.id not in files and not plan.OURS.fullmatch(r.id)]
