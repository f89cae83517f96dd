"""The main job: `swarm run`.

Enters: slots, an agent, a plan. Leaves: a run, followed live, and what to type next.
Guards: nothing starts before settings, agent, plan and target are known to be good; whatever ends
a run, no process of it is left and its work is kept.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace

from swarm.adopt import bring_in
from swarm.cli.live import Follower, Screen, Signals, Stopped, screen, stopped_lines
from swarm.cli.pipe import outlive_readers
from swarm.cli.ready import Order, Ready, agent_lines, limits_line, notes, plan_lines, prepare
from swarm.errors import Exit, GitFault, TargetRed, UsageError
from swarm.gate import Gate
from swarm.ids import new_nonce, span_text
from swarm.judge import CannotJudge, Green
from swarm.ledger.store import Ledger, Logged
from swarm.ledger.view import State
from swarm.loop import Idle, Setting
from swarm.output import ago, cost_text, plural, standing_lines, tokens_text
from swarm.overview import Standing, stand
from swarm.plumbing import checkout as user
from swarm.pull import is_published
from swarm.push import likely_branch
from swarm.reconcile import Report
from swarm.supervisor import End, Supervisor
from swarm.task import LateEdits, take_plan
from swarm.trailers import one_line
from swarm.upstream import SyncQueued, has_all_as_known
from swarm.workspace import Workspace, opened

MAX_USD = 1e9
DRAW_EVERY = timedelta(seconds=0.5)
SLOW_CHECK = timedelta(seconds=2)  # from here on a pipe is told that a check runs


class _Usd(click.ParamType[float]):
    """An amount: a finite number above 0."""

    name = "usd"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            amount = float(str(value))
        except ValueError:
            amount = math.nan
        if not 0 < amount < MAX_USD:  # false of nan too
            self.fail(f"{value!r} is no amount of USD above 0", param, ctx)
        return amount


@click.command(context_settings={"ignore_unknown_options": False})
@click.option("-n", "slots", type=click.IntRange(1, 64), help="Agents at once.")
@click.option("--agent", help="The adapter: claude, codex, ...; swarm agents list has all.")
@click.option("--agents", help="A mixed team: claude:3,codex:2.")
@click.option("--fallback", help="For slots whose own agent is limited or not logged in.")
@click.option("--max-cost", type=_Usd(), help="USD for the whole run.")
@click.option("--model", help="Passed on to the agent.")
@click.option("--roles", help="What slots may take: build:3,review:1. Others take everything.")
@click.option("--allow-red", is_flag=True, help="Start although the target's own checks fail.")
@click.option("--keep-going", is_flag=True, help="Wait for new tasks instead of ending.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(
    slots: int | None,
    agent: str | None,
    agents: str | None,
    fallback: str | None,
    max_cost: float | None,
    model: str | None,
    roles: str | None,
    allow_red: bool,
    keep_going: bool,
    command: tuple[str, ...],
) -> int:
    """Run agents until nothing left can move: swarm run -n 4 --agent claude, or -- ./my-agent.sh"""
    order = Order(
        slots=slots,
        agent=agent,
        agents=agents,
        fallback=fallback,
        model=model,
        roles=roles,
        allow_red=allow_red,
        keep_going=keep_going,
        command=command,
    )
    with opened() as work, Signals() as signals:
        if max_cost is not None:
            limits = replace(work.config.limits, run_cost_usd=max_cost)
            work = replace(work, config=replace(work.config, limits=limits))
        return int(execute(work, order, screen(), signals))


def execute(work: Workspace, order: Order, where: Screen, signals: Signals) -> Exit:
    """One run from its first line to its last.

    Raises:
        SwarmError: it was refused; no agent was started.
    """
    ready = prepare(work, order)
    taken = take_plan(work.ledger, ready.drafts)
    for line in (*plan_lines(work, ready, taken), *agent_lines(ready), limits_line(work.config)):
        where.say(line)
    for line in notes(work, ready, taken):
        where.say(f"note      {line}")
    ended = launch(work, ready, where, signals, lambda logged: logged.at.strftime("%H:%M:%S"))
    outlive_readers()  # it is over: how it ended is its exit code, whoever still reads
    for line in end_lines(work, ended):
        where.say(line)
    return ended.exit_code


# -- the run --------------------------------------------------------------------------------------


class Ended(msgspec.Struct, frozen=True):
    """One run, over."""

    name: str
    end: End
    exit_code: Exit
    span: timedelta
    landed: tuple[str, ...]  # in this run, in order
    cancelled: tuple[str, ...]  # in this run
    stopped: tuple[Stopped, ...]
    old: str  # the target's tip before
    new: str  # and after
    trouble: tuple[str, ...]
    standing: Standing


def launch(
    work: Workspace,
    ready: Ready,
    where: Screen,
    signals: Signals,
    stamp: Callable[[Logged], str],
) -> Ended:
    """Heal, take the target's verdict, run to the end.

    Raises:
        TargetRed: the target's own checks fail or cannot run; no agent was started.
        KeyboardInterrupt: asked to end before the first agent started.
        SwarmError: the hub is unusable; what ran has ended.
    """
    ledger, config = work.ledger, work.config
    began = datetime.now(UTC)
    name = _name_run(work)
    runner = f"{name}-{new_nonce()[:6]}"
    setting = Setting(
        ledger=ledger,
        layout=work.layout,
        config=config,
        checkout=work.checkout,
        run=name,
        runner=runner,
        typed_in=Path.cwd(),
        rules=work.rules,
        bounds=work.bounds,
        terms=work.terms,
        copies=tuple(user.ignored_matching(work.checkout, config.worktree.copy)),
        user_excludes=user.user_excludes(work.checkout),
        template=ready.template,
        late_edits=LateEdits(ledger, ready.drafts),
        fallback=ready.fallback,
    )
    gate = Gate.of(work, runner)
    supervisor = Supervisor(
        setting,
        gate,
        ready.seats,
        keep_going=ready.order.keep_going or config.run.keep_going,
        idle=Idle(breaker=work.breaker),
    )
    old = ledger.hub.tip(config.target)
    ended_before = {row.id for row in ledger.index.rows(ledger.view(), State.CANCELLED)}
    usual: dict[str, float] = {}
    signals.is_hard = True
    try:
        for line in _healed(supervisor.heal()):
            where.say(line)
        if config.upstream.every is not None:
            _sync(work, supervisor, where, signals)
        _judge_target(work, ready, supervisor, where, signals, usual)
    except BaseException as error:
        where.close()
        for line in supervisor.faults:
            where.say(f"warning   {one_line(line)}")
        gate.close()
        if isinstance(error, KeyboardInterrupt):
            where.say("stopped   no agent was started")
        raise
    signals.is_hard = False
    where.say(f"{'run ' + name:<9} pid {os.getpid()}   Ctrl-C: finish and stop; again: stop now")
    where.say("")
    follower = Follower(supervisor, where, signals, stamp, usual)
    supervisor.near = follower.near
    try:
        end = supervisor.run(follower.tick)
    finally:
        where.close()
    standing = stand(ledger.view(), ledger.index)
    return Ended(
        name=name,
        end=end,
        exit_code=end.exit_code,
        span=datetime.now(UTC) - began,
        landed=tuple(follower.landed),
        cancelled=tuple(row.id for row in standing.of("cancelled") if row.id not in ended_before),
        stopped=tuple(follower.stopped),
        old=old,
        new=ledger.hub.tip(config.target),
        trouble=_trouble(supervisor),
        standing=standing,
    )


def _trouble(supervisor: Supervisor) -> tuple[str, ...]:
    """Why slots could not go on: what stopped all of them, else the last fault of each."""
    if supervisor.idle.stuck:
        return (supervisor.idle.stuck,)
    return tuple(dict.fromkeys(loop.trouble for loop in supervisor.loops if loop.trouble))


def _name_run(work: Workspace) -> str:
    """The next free `r<number>`; its folder, made here, keeps others on this host off it."""
    taken = [r.run[1:] for r in work.ledger.view().runs()]
    number = max((int(n) for n in taken if n.isdecimal()), default=0) + 1
    work.layout.runs.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            (work.layout.runs / f"r{number}").mkdir()
            return f"r{number}"
        except FileExistsError:
            number += 1


def _healed(report: Report) -> list[str]:
    lines = []
    if report.expired:
        names = " ".join(expired.task for expired in report.expired)
        ended = f", {plural(report.ended, 'process', 'processes')} ended" if report.ended else ""
        lines.append(f"healed    a run was killed: {names} open again, work kept{ended}")
    for heeded in report.heeded:
        last, how = heeded.attempts.last, "parked" if heeded.parked else "open again"
        message = heeded.parked.message if heeded.parked else last.message if last else ""
        why = one_line(message, 60)
        lines.append(f"healed    a run was killed: {heeded.task} {how}, work kept: {why}")
    lines += [f"warning   {kept}" for kept in report.kept]
    return lines


def _sync(work: Workspace, supervisor: Supervisor, where: Screen, signals: Signals) -> None:
    """Bring upstream in, and say what became of it."""

    def on_wait() -> None:
        if signals.wants_drain:
            raise KeyboardInterrupt

    where.show([f"sync      talking to {one_line(work.config.upstream.remote, 40)} ..."])
    answer = supervisor.sync_first(on_wait, lambda: signals.wants_drain)
    where.close()
    if signals.wants_drain:
        raise KeyboardInterrupt
    if answer is None:
        return
    where.say(f"sync      {answer.says(work.config.target)}")
    if isinstance(answer, SyncQueued):
        state = work.ledger.view().state(answer.entry.task)
        where.say(f"{state.value:<9} {answer.entry.task}")


def _judge_target(
    work: Workspace,
    ready: Ready,
    supervisor: Supervisor,
    where: Screen,
    signals: Signals,
    usual: dict[str, float],
) -> None:
    """Take the target's verdict and say it; `usual` learns how long each check takes."""
    branch, tip = work.config.target, work.ledger.hub.tip(work.config.target)
    began = datetime.now(UTC)
    is_told = False
    shown_at = timedelta()

    def on_wait() -> None:
        nonlocal is_told, shown_at
        if signals.wants_drain:
            raise KeyboardInterrupt
        doing = supervisor.gate.activity
        if doing is None:
            return
        span = datetime.now(UTC) - doing.since
        if span - shown_at >= DRAW_EVERY:
            shown_at = span
            where.show([f"checks    {doing.check} on {branch} {tip[:7]}, {span_text(span)} so far"])
        if not where.is_live and not is_told and span > SLOW_CHECK:
            is_told = True
            where.say(f"checks    {doing.check} on {branch} {tip[:7]} ...")

    try:
        green = supervisor.judge_target(on_wait)
    except TargetRed as red:
        known = supervisor.gate.target_verdict
        is_mute = known is not None and isinstance(known[1], CannotJudge)
        if is_mute or not (ready.order.allow_red or work.config.run.allow_red):
            raise
        where.close()
        where.say(f"checks    {red.what}; started all the same (--allow-red)")
        return
    where.close()
    for line in _verdict_lines(work.ledger, green, began, usual):
        where.say(line)


def _verdict_lines(
    ledger: Ledger, green: Green | None, began: datetime, usual: dict[str, float]
) -> list[str]:
    if green is None:
        gate = ledger.view().gate()
        who = f"{gate.runner} on {gate.host}, pid {gate.pid}" if gate else "another runner"
        return [f"checks    {who} is the gate and judges for this run too"]
    tip = f"{ledger.branch} {ledger.hub.tip(ledger.branch)[:7]}"
    lines = []
    for verdict in green.verdicts:
        last = verdict.runs[-1] if verdict.runs else None
        word = verdict.verdict.replace("_", " ")
        if last is None:
            lines.append(f"checks    {verdict.check} {word} on {tip}")
            continue
        usual[verdict.check] = last.seconds
        ended = last.at + timedelta(seconds=last.seconds)
        if last.at < began:
            age = max((began - ended).total_seconds(), 0.0)
            lines.append(f"checks    {verdict.check}; {tip} {word} {ago(age)}")
        else:
            lines.append(f"checks    {verdict.check} {word} on {tip} in {last.seconds:.1f}s")
    return lines


# -- the lines after it ---------------------------------------------------------------------------


def end_lines(work: Workspace, ended: Ended) -> list[str]:
    """How it ended, where every task is, and what to type next."""
    lines = ["", *stopped_lines(work.ledger, ended.stopped)]
    lines.append(f"run {ended.name} ended after {span_text(ended.span)}: {ended.end.why}")
    lines += standing_lines(ended.standing, ended.landed, moved(work, ended), ended.cancelled)
    lines += [f"  trouble        {one_line(text, 80)}" for text in ended.trouble]
    lines.append(f"  cost           {_cost(work.ledger, ended.name)}")
    return lines + take_lines(work, ended)


def moved(work: Workspace, ended: Ended) -> str:
    """`+812 -140 in 31 files   main 3f9c2d1 -> e41b7d0`, or that the target did not move."""
    target = work.config.target
    if ended.old == ended.new:
        return f"{target} {ended.new[:7]} has not moved"
    move = f"{target} {ended.old[:7]} -> {ended.new[:7]}"
    try:
        files, plus, minus = work.ledger.hub.diff_stat(ended.old, ended.new)
    except GitFault:
        return move
    return f"+{plus} -{minus} in {plural(files, 'file')}   {move}"


def _cost(ledger: Ledger, name: str) -> str:
    record = ledger.view().run(name)
    if record is None or not record.attempts:
        return "unknown"
    known = record.attempts - record.attempts_unknown
    said = f"{cost_text(record.spent_usd)} in {known} of {plural(record.attempts, 'attempt')}"
    if record.attempts_unknown:
        said += f"; {record.attempts_unknown} did not say"
    if record.assumed_usd:
        said += f", counted as ${record.assumed_usd:.2f}"
    if record.spent_tokens is not None:
        said += f"; {tokens_text(record.spent_tokens)} tokens"
    return f"{said}    swarm costs"


def take_lines(work: Workspace, ended: Ended) -> list[str]:
    """How to bring what landed into the user's own branch."""
    target, hub = work.config.target, work.ledger.hub
    look = user.look(work.checkout, with_status=False)
    if look.head == ended.new or (ended.old == ended.new and not ended.landed):
        return []
    if look.branch != target:
        where = f"branch {look.branch}" if look.branch else "a detached HEAD"
        switch = f"git switch {shlex.quote(target)}"
        return [f"take it     {switch} && swarm pull      you are on {where}"]
    head = look.head or ""
    if not (hub.reader.has(head) and hub.contains(ended.new, head)):
        if is_published(work, look):
            command = "swarm sync && swarm pull"
            return [f"take it     {command}      your {target} {head[:7]} has your team's commits"]
        command = bring_in(target)[0]
        return [f"take it     {command}      your {target} {head[:7]} has commits of its own"]
    lines = [
        f"take it     swarm pull       your {target} {head[:7]} -> {ended.new[:7]} (fast-forward)"
    ]
    return lines + _give_lines(work)


def _give_lines(work: Workspace) -> list[str]:
    """How to give what landed to the team, where there is one and it is known to lack some."""
    upstream = work.config.upstream
    if upstream.remote not in user.remotes(work.checkout):
        return []
    view = work.ledger.view()
    try:
        if has_all_as_known(work, view):
            return []
        branch = likely_branch(work, view)
    except (GitFault, UsageError):  # a line for comfort: `swarm push` says what is wrong
        return []
    command = "swarm push --pr" if upstream.pr else "swarm push"
    return [f"as a PR     {command:<16} branch {branch} on {upstream.remote}"]
