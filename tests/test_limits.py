"""Limits that hold: of an attempt, of a task, of a run; what was spent is booked once.

Enters: a world, agents that say what they use. Leaves: charges, ends, exit codes.
Guards: what is over its limit is ended and nothing new starts; what is not known is not counted.
"""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarm import adapter as adapters
from swarm import budget, overview, request, steer
from swarm import loop as loops
from swarm.breaker import Breaker
from swarm.claim import Claimed, Who, acquire
from swarm.errors import Exit
from swarm.gate import Gate
from swarm.ledger.records import Attempts, Charge, Parked, Run, Usage
from swarm.ledger.spending import Caps, Spent, find_exhausted, spent_in, spent_on, why_no_start
from swarm.ledger.view import State
from swarm.loop import Idle, Loop, Seat
from swarm.reconcile import Sweep
from swarm.supervisor import Supervisor
from swarm.task import reopen
from tests.world import World, run_swarm

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
WORK = "echo done > $SWARM_TASK.txt; git add -A; git commit -qm work"


def use(usd: float | str = "null", tokens: int | str = "null", **more: object) -> str:
    """A shell word that says what was used."""
    half = tokens if isinstance(tokens, str) else tokens // 2
    extra = "".join(f', "{key}": {value}' for key, value in more.items())
    said = f'{{"cost_usd": {usd}, "tokens_input": {half}, "tokens_output": {half}{extra}}}'
    return f"echo '{said}' > $SWARM_REPORT"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def build(limits: str = "", **keys: Any) -> World:
        text = f'[limits]\nbackoff = "0s"\ngrace = "1s"\n{limits}\n'
        made.append(World(tmp_path, config=text, **keys))
        return made[-1]

    yield build
    for world in made:
        world.close()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "GAP_SECONDS", 0.0)
    monkeypatch.setattr(loops, "IDLE_SECONDS", 0.05)


def attempts(world: World, task: str) -> Attempts:
    found = world.ledger.view().attempts(task)
    assert found is not None
    return found


def supervise(world: World, *seats: Seat, fallback: Seat | None = None) -> Supervisor:
    setting = world.setting(fallback=fallback)
    breaker = Breaker(world.layout.limits, timedelta(seconds=1), timedelta(seconds=2))
    return Supervisor(
        setting, Gate.of(world.work, setting.runner), seats, idle=Idle(breaker=breaker)
    )


def run(supervisor: Supervisor, limit: float = 60.0) -> tuple[Exit, str]:
    """To its end; what hangs is stopped and fails the test."""
    timer = threading.Timer(limit, supervisor.stop_now)
    timer.start()
    end = supervisor.run(lambda: None)
    timer.cancel()
    assert end.exit_code is not Exit.INTERRUPTED, "it hung"
    return end.exit_code, end.why


# -- what is booked -------------------------------------------------------------------------------


def test_what_an_attempt_used_is_booked_once_in_its_task_and_its_run(
    make: Callable[..., World],
) -> None:
    world = make()
    task = world.add("One")
    script = f"{use(0.61, 2000, turns=14, session=3)}; {use(0.62, 3000, turns=14)}; {WORK}"
    code, _ = run(supervise(world, world.seat(script)))
    assert code is Exit.YES
    (charge,) = attempts(world, task).charges
    assert charge.usage == Usage(cost_usd=0.62, tokens_input=1500, tokens_output=1500, turns=14)
    assert (charge.token, charge.adapter, charge.slot) == (1, "command", "s1")
    record = world.ledger.view().run("r1")
    assert record is not None
    assert (record.spent_usd, record.spent_tokens, record.attempts) == (0.62, 3000, 1)
    assert (record.attempts_unknown, record.reserved) == (0, {})
    logged = next(one for one in world.ledger.iter_log() if one.kind == "charged")
    facts = logged.message.trailers
    assert (facts["Swarm-Cost-Usd"], facts["Swarm-Turns"]) == ("0.62", "14")
    assert not budget.charge(world.ledger, task, "x", charge), "a second time changes nothing"
    assert attempts(world, task).charges == [charge]
    world.step()


def test_S6_what_is_not_said_is_unknown_and_never_0(make: Callable[..., World]) -> None:
    world = make()
    for title, script in (("Says", f"{use(0.5, 10)}; {WORK}"), ("Silent", WORK)):
        world.add(title)
        world.work_loop(world.loop(script, slot=f"s{len(title)}"))
    found = overview.costs(world.work)
    lines = {line.name: line for line in found.tasks}
    assert (lines["says"].cost_usd, lines["says"].tokens_input) == (0.5, 5)
    assert (lines["silent"].cost_usd, lines["silent"].tokens_input) == (None, None)
    assert (found.total.attempts, found.total.attempts_unknown) == (2, 1)
    assert found.total.cost_usd == 0.5
    assert [line.name for line in found.tasks] == ["says", "silent"], "the dearest first"
    assert found.adapters[0].name == "command" and found.runs[0].name == "r1"
    assert overview.costs(world.work, "r2").total.cost_usd is None
    usage = overview.story(world.work, "silent").attempts[0].usage
    assert usage is not None and usage.cost_usd is None and usage.seconds is not None


def test_what_a_killed_runs_agent_used_is_booked_by_whoever_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.add("One")
    script = f"{use(0.4, 100)}; sleep 600"
    faults = {"SWARM_FAULTS": "1", "SWARM_CRASH_AT": "agent.after_start"}
    said = run_swarm(world.app, "run", "--", "/bin/sh", "-c", script, env=faults)
    assert said.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 20
    report = world.layout.attempt("r1", "one", 1) / "report/usage.json"
    while not report.exists() and time.monotonic() < deadline:
        time.sleep(0.05)  # the shim ends the agent when its runner is gone
    had_said = report.exists() and report.stat().st_size > 0
    again = run_swarm(world.app, "run", "--max-cost", "5", "--", "/bin/sh", "-c", WORK)
    assert again.returncode == 0, again.stdout + again.stderr
    first, second = attempts(world, "one").charges
    assert (first.token, first.run, second.token, second.run) == (1, "r1", 2, "r2")
    assert first.usage.cost_usd == (0.4 if had_said else None)
    world.step()
    world.close()


def test_output_that_was_cut_makes_sums_unknown(make: Callable[..., World]) -> None:
    world = make('output = "10KiB"')
    text = (
        'format = 1\nname = "adds"\nargv = []\n[prompt]\nhow = "stdin"\n[output]\n'
        'format = "jsonl"\ncost_usd = { when = { t = 1 }, at = "usd", sum = true }\n'
        'tokens_input = { when = { t = 2 }, at = "in" }\n'
        '[[outcome]]\nis = "success"\nexit = [0]\n[stop]\nsignals = ["SIGKILL"]\n'
    )
    own = world.app / ".swarm/agents"
    own.mkdir(parents=True)
    (own / "adds.toml").write_text(text)
    task = world.add("One")
    flood = 'i=0; while [ $i -lt 9000 ]; do echo \'{"t": 1, "usd": 0.1}\'; i=$((i+1)); done'
    script = f'{flood}; echo \'{{"t": 2, "in": 7}}\'; {WORK}'
    world.work_loop(world.loop(script, adapter=adapters.load("adds", world.app)))
    (charge,) = attempts(world, task).charges
    assert charge.usage == Usage(tokens_input=7), "what it said at its end is known"


# -- of an attempt --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "script", "said"),
    [
        ("turns = 3", use(turns=4), "limit 3 turns"),
        ("tokens = 100", use(tokens=102), "limit 100 tokens, used 102"),
        ("cost_usd = 0.5", use(0.51), "limit $0.5, cost $0.51"),
    ],
)
def test_A16_an_attempt_over_its_limit_is_ended_with_its_whole_tree(
    make: Callable[..., World], limit: str, script: str, said: str
) -> None:
    world = make(limit)
    task = world.add("One")
    world.work_loop(world.loop(f"{WORK}; (setsid sleep 300 &) ; {script}; sleep 300"))
    found = attempts(world, task)
    assert found.last is not None
    assert (found.last.outcome, found.last.strike) == ("over_limit", True)
    assert found.last.message.startswith(said) and "0 left" in found.last.message
    assert found.work is not None, "its work is kept"
    assert len(found.charges) == 1


def test_what_is_within_its_limits_is_left_alone(make: Callable[..., World]) -> None:
    world = make("turns = 3\ntokens = 100\ncost_usd = 0.5")
    task = world.add("One")
    world.work_loop(world.loop(f"{use(0.5, 100, turns=3)}; sleep 0.6; {WORK}"))
    assert world.state(task) is State.QUEUED


# -- of a task ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "said", "why"),
    [
        ("task_cost_usd = 1.0", use(0.6), "cost $1.20 of $1"),
        ("task_tokens = 100", use(tokens=60), "tokens 120 of 100"),
        ("task_attempts = 2", "true", "attempts 2 of 2"),
    ],
)
def test_a_task_whose_budget_is_used_up_is_parked_and_others_go_on(
    make: Callable[..., World], limit: str, said: str, why: str
) -> None:
    world = make(f"{limit}\nstrikes = 9")
    world.add("Dear")
    world.add("After", needs=["dear"])
    world.add("Other")
    script = f"case $SWARM_TASK in dear) {said}; exit 1;; *) {WORK};; esac"
    code, _ = run(supervise(world, world.seat(script)))
    assert code is Exit.NO
    parked = world.ledger.view().parked("dear")
    assert isinstance(parked, Parked) and parked.reason == "budget"
    assert parked.message == f"its budget is used up: {why}"
    assert len(attempts(world, "dear").charges) == 2
    assert world.state("other") is State.LANDED
    at = overview.stand(world.ledger.view(), world.ledger.index)
    assert [task for task, _ in at.told("blocked")] == ["after"]
    world.step()


def test_a_live_attempt_is_ended_when_its_task_has_used_all(make: Callable[..., World]) -> None:
    world = make("task_cost_usd = 1.0\nstrikes = 9")
    world.add("Dear")
    loop = world.loop(f"{use(0.6)}; test $SWARM_ATTEMPT = 1 && exit 1; sleep 300")
    world.work_loop(loop)
    assert world.state("dear") is State.OPEN
    world.work_loop(loop)
    parked = world.ledger.view().parked("dear")
    assert parked is not None and parked.reason == "budget"
    last = attempts(world, "dear").last
    assert last is not None
    assert last.message.startswith("budget of the task: cost $1.20 of $1")


def test_a_task_that_a_person_opens_again_has_its_budget_anew(make: Callable[..., World]) -> None:
    world = make("task_attempts = 1\nstrikes = 9")
    world.add("Dear")
    loop = world.loop("exit 1")
    world.work_loop(loop)
    assert world.state("dear") is State.PARKED
    reopen(world.ledger, "dear", "ann")
    assert spent_on(attempts(world, "dear")).attempts == 0
    world.work_loop(loop)
    assert world.state("dear") is State.PARKED, "and no more than that"
    assert len(attempts(world, "dear").charges) == 2


# -- of a run -------------------------------------------------------------------------------------


def test_A16_a_run_whose_budget_is_used_up_ends_what_works_and_starts_nothing_new(
    make: Callable[..., World],
) -> None:
    world = make("run_cost_usd = 1.0")
    tasks = [world.add(f"Task {n}") for n in range(4)]
    script = f"{use(0.6)}; case $SWARM_TASK in task-0) {WORK};; *) {WORK}; sleep 300;; esac"
    code, why = run(supervise(world, world.seat(script)))
    assert (code, why) == (Exit.BUDGET, "budget used up: cost $1.20 of $1")
    assert world.state(tasks[0]) is State.LANDED
    second = attempts(world, tasks[1])
    assert second.last is not None
    assert (second.last.outcome, second.last.strike) == ("over_budget", False)
    assert second.work is not None, "it goes on from there in a run with money"
    assert world.events().count("claimed") == 2, "nothing new starts"
    record = world.ledger.view().run("r1")
    assert record is not None
    assert (record.spent_usd, record.limits) == (1.2, {"cost_usd": 1.0})
    assert (record.why, record.exit_code) == (why, 14)
    needs = overview.status(world.work).needs_you
    assert [(need.kind, need.why) for need in needs] == [("budget", f"r1 ended: {why}")]
    assert needs[0].do == ["swarm run --max-cost 1 -- ./my-agent.sh"]
    world.step()


def test_a_run_ends_when_its_time_is_over(make: Callable[..., World]) -> None:
    world = make('run_time = "2s"')
    world.add("One")
    began = time.monotonic()
    code, why = run(supervise(world, world.seat("sleep 300")))
    assert code is Exit.BUDGET and why.startswith("budget used up: time ")
    assert time.monotonic() - began < 30


def test_a_run_starts_no_more_attempts_than_it_may(make: Callable[..., World]) -> None:
    world = make("run_attempts = 3")
    for number in range(5):
        world.add(f"Task {number}")
    code, why = run(supervise(world, world.seat(WORK), world.seat(WORK)))
    assert (code, why) == (Exit.BUDGET, "budget used up: attempts 3 of 3")
    assert world.events().count("claimed") == 3


def test_a_reservation_decides_whether_another_may_start(make: Callable[..., World]) -> None:
    world = make("run_cost_usd = 1.0\ncost_usd = 0.6")
    tasks = [world.add(f"Task {n}") for n in range(3)]
    ready = world.app / "go"
    script = f"{use(0.1)}; while ! test -e {ready}; do sleep 0.05; done; {WORK}"
    seats = (world.seat(script), world.seat(script))
    supervisor = supervise(world, *seats)
    seen: list[Run] = []

    def look() -> None:
        record = world.ledger.view().run("r1")
        if record is not None and record.reserved and supervisor.idle.live and not seen:
            time.sleep(0.5)  # the other slot would have started by now
            seen.append(world.ledger.view().run("r1") or record)
            ready.touch()

    end = supervisor.run(look)
    assert list(seen[0].reserved.values()) == [0.6], "one alone: two might cost 1.2"
    assert end.exit_code is Exit.YES, "what was not used is free again"
    assert all(world.state(task) is State.LANDED for task in tasks)


def test_what_did_not_say_counts_as_what_was_reserved_for_it(make: Callable[..., World]) -> None:
    world = make("run_cost_usd = 1.0\ncost_usd = 0.6")
    for number in range(3):
        world.add(f"Task {number}")
    code, why = run(supervise(world, world.seat(WORK)))
    assert code is Exit.BUDGET
    assert why == "budget used up: cost $0.40 left of $1, an attempt may cost $0.6"
    record = world.ledger.view().run("r1")
    assert record is not None
    assert (record.spent_usd, record.assumed_usd, record.attempts_unknown) == (None, 0.6, 1)


def test_a_claim_for_which_no_agent_started_reserves_nothing(make: Callable[..., World]) -> None:
    world = make("run_cost_usd = 1.0\ncost_usd = 0.6")
    world.add("One")
    supervisor = supervise(world, world.seat("no-such-agent", "--now"))
    run(supervisor)
    record = world.ledger.view().run("r1")
    assert record is not None and (record.reserved, record.attempts) == ({}, 0)


@pytest.mark.parametrize("used", [0.0, 0.3, 0.99, 1.0, 1.5])
def test_the_arithmetic_of_a_run(used: float) -> None:
    world_run: Any = Run(
        run="r1", runner="r1-x", host="h", pid=1, boot_id="b", slots=1, adapter="a",
        started_at=NOW, started_monotonic_seconds=0.0, config_digest="d", state="running",
        spent_usd=used, attempts=2, attempts_unknown=1,
    )  # fmt: skip
    caps = Caps(cost_usd=1.0)
    later = NOW + timedelta(seconds=5)
    assert spent_in(world_run, later) == Spent(used, 0, 5.0, 2, 1)
    assert (find_exhausted(spent_in(world_run, later), caps) is None) == (used < 1.0)
    assert (why_no_start(world_run, caps, None, later) is None) == (used < 1.0)
    assert (why_no_start(world_run, caps, 0.5, later) is None) == (used <= 0.5)
    held = budget.reserve(world_run, "t", 1, 0.5)
    assert (why_no_start(held, caps, None, later) is None) == (used < 0.5)
    assert find_exhausted(replace(Spent(), tokens=10**9), caps) is None


# -- providers and log-ins ------------------------------------------------------------------------


def refusing(world: World, name: str, *, codes: tuple[int, int] = (75, 77)) -> adapters.Adapter:
    """An adapter of another name, so of another account."""
    own = world.app / ".swarm/agents"
    own.mkdir(parents=True, exist_ok=True)
    text = Path(adapters.__file__).parent.parent / "agents/command.toml"
    (own / f"{name}.toml").write_text(text.read_text().replace('"command"', f'"{name}"', 1))
    return adapters.load(name, world.app)


def test_a_login_stops_its_agent_alone_and_the_fallback_takes_over(
    make: Callable[..., World],
) -> None:
    world = make()
    tasks = [world.add(f"Task {n}") for n in range(3)]
    other = refusing(world, "other")
    supervisor = supervise(world, world.seat("exit 77"), fallback=world.seat(WORK, adapter=other))
    code, _ = run(supervisor)
    assert code is Exit.YES
    assert all(world.state(task) is State.LANDED for task in tasks)
    used = [charge.adapter for task in tasks for charge in attempts(world, task).charges]
    assert sorted(used) == ["command", "other", "other", "other"]
    assert list(supervisor.idle.logins) == ["command"]
    first = attempts(world, tasks[0])
    assert first.strikes == []


def test_without_a_fallback_a_run_whose_agents_are_logged_out_ends_with_15(
    make: Callable[..., World],
) -> None:
    world = make()
    world.add("One")
    code, why = run(supervise(world, world.seat("exit 77"), world.seat("exit 77")))
    assert code is Exit.LIMITED and why.startswith("not logged in: log in to command")


def test_A12_a_limit_pauses_one_account_and_the_other_goes_on(make: Callable[..., World]) -> None:
    world = make()
    tasks = [world.add(f"Task {n}") for n in range(3)]
    other = refusing(world, "other")
    limited = "test -e $SWARM_TASK_FILE.again && exit 75; exit 75"
    supervisor = supervise(world, world.seat(limited), world.seat(WORK, adapter=other))
    code, _ = run(supervisor)
    assert code is Exit.YES
    assert all(world.state(task) is State.LANDED for task in tasks)
    assert all(attempts(world, task).strikes == [] for task in tasks)


def test_a_limit_that_ends_too_late_ends_the_run_with_15(make: Callable[..., World]) -> None:
    world = make('provider = "1h"')
    world.add("One")
    supervisor = supervise(world, world.seat("exit 75"))
    assert supervisor.idle.breaker is not None
    now = world.clock.now()
    supervisor.idle.breaker.refused("command", now + timedelta(hours=3), now)
    code, why = run(supervisor)
    assert code is Exit.LIMITED and why.startswith("provider limit: command until ")
    assert "claimed" not in world.events()
    limited = overview.status(world.work).limited
    assert [(one.adapter, one.is_said) for one in limited] == [("command", True)]


STREAMING = """
format = 1
name = "streaming"
argv = []
[options]
resume = ["--resume", "{value}"]
[prompt]
how = "stdin"
[output]
format = "jsonl"
session = { when = { t = "init" }, at = "id" }
message = { when = { t = "say" }, at = "text" }
cost_usd = { when = { t = "end" }, at = "usd", cumulative = true }
waiting = [{ when = { t = "retry" }, reset = ["seconds=(?P<seconds>[0-9]+)"] }]
[[outcome]]
is = "session"
text = "no such session"
[[outcome]]
is = "success"
exit = [0]
when = { t = "end" }
[stop]
signals = ["SIGTERM", "SIGKILL"]
"""


def streaming(world: World) -> adapters.Adapter:
    own = world.app / ".swarm/agents"
    own.mkdir(parents=True, exist_ok=True)
    (own / "streaming.toml").write_text(STREAMING)
    return adapters.load("streaming", world.app)


def test_our_own_clock_beats_an_agent_that_waits_for_its_provider(
    make: Callable[..., World],
) -> None:
    world = make('patience = "30s"')
    task = world.add("One")
    idle = Idle(breaker=Breaker(world.layout.limits, timedelta(1), timedelta(1)))
    script = """echo '{"t": "retry", "seconds": 7200}'; sleep 300"""
    world.work_loop(world.loop(script, adapter=streaming(world), idle=idle))
    last = attempts(world, task).last
    assert last is not None
    assert (last.outcome, last.strike) == ("provider_limit", False)
    assert idle.breaker is not None
    limit = idle.breaker.find("streaming", world.clock.now())
    assert limit is not None and limit.is_said
    left = limit.until - world.clock.now()
    assert left == pytest.approx(timedelta(hours=2), abs=timedelta(minutes=1))


def test_an_agent_that_is_let_go_on_soon_is_not_ended(make: Callable[..., World]) -> None:
    world = make('patience = "30s"')
    task = world.add("One")
    script = f"""echo '{{"t": "retry", "seconds": 1}}'; sleep 0.7; {WORK}; echo '{{"t": "end"}}'"""
    world.work_loop(world.loop(script, adapter=streaming(world)))
    assert world.state(task) is State.QUEUED


# -- resuming -------------------------------------------------------------------------------------

AGENT = """#!/bin/sh
# keeps its session in a folder, as real agents do by working folder
store="$STORE/$(pwd | tr / _)"; mkdir -p "$store"
id=s-$$; before=0
if [ "$1" = --resume ]; then
  id=$2
  [ -e "$store/$id" ] || { echo "no such session" >&2; exit 1; }
  before=$(cat "$store/$id"); echo resumed "$(pwd)" >> "$STORE/log"
else
  echo fresh "$(pwd)" >> "$STORE/log"
fi
cat > "$STORE/prompt.$SWARM_TASK.$SWARM_ATTEMPT"
echo "{\\"t\\": \\"init\\", \\"id\\": \\"$id\\"}"
total=$((before + 10)); echo $total > "$store/$id"
echo half >> "$SWARM_TASK.txt"
if [ $before = 0 ] && [ ! -e "$STORE/go" ]; then sleep 300; fi
git add -A; git commit -qm work
echo "{\\"t\\": \\"end\\", \\"usd\\": $total}"
"""


def resuming(world: World, store: Path) -> Seat:
    store.mkdir(exist_ok=True)
    program = store / "agent.sh"
    program.write_text(AGENT.replace("$STORE", str(store)))
    program.chmod(0o755)
    return Seat(streaming(world), (str(program),))


def stopped_once(world: World, loop: Loop, store: Path) -> None:
    """One attempt that a person stops while it works."""
    world.tick(
        loop,
        lambda: (
            (store / "log").exists()
            and loop.attempt is not None
            and loop.attempt.transcript is not None
            and loop.attempt.transcript.session is not None
        ),
    )
    loop.stop("stopped")
    world.tick(loop, lambda: not loop.is_busy)


def test_after_a_stop_the_agents_own_session_goes_on(
    make: Callable[..., World], tmp_path: Path
) -> None:
    world = make()
    store = tmp_path / "store"
    task = world.add("One", body="The whole body.")
    loop = Loop(world.setting(), world.slot("s1"), Idle(), resuming(world, store))
    world.loops.append(loop)
    stopped_once(world, loop, store)
    world.work_loop(loop)
    assert world.state(task) is State.QUEUED
    assert [line.split()[0] for line in (store / "log").read_text().splitlines()] == [
        "fresh",
        "resumed",
    ]
    first, second = attempts(world, task).charges
    assert first.session == second.session and first.usage.cost_usd is None
    assert second.usage.cost_usd == 20, "what the killed attempt did not say comes with the next"
    assert "The whole body." in (store / "prompt.one.1").read_text()
    again = (store / "prompt.one.2").read_text()
    assert again.startswith("Go on with your task: One\n") and "The whole body." not in again
    world.work_gate()
    assert world.file("one.txt") == "half\nhalf\n"


def test_a_session_is_gone_on_with_in_the_slot_where_it_is(
    make: Callable[..., World], tmp_path: Path
) -> None:
    """Two idle loops of a run, and the other one claims: they change slots."""
    world = make()
    store = tmp_path / "store"
    world.add("One")
    idle = Idle()
    seat = resuming(world, store)
    first = Loop(world.setting(), world.slot("s1"), idle, seat)
    second = Loop(world.setting(), world.slot("s2"), idle, seat)
    world.loops += [first, second]
    stopped_once(world, first, store)
    world.work_loop(second)
    log = (store / "log").read_text().splitlines()
    assert [line.split()[0] for line in log] == ["fresh", "resumed"]
    assert log[0].split()[1] == log[1].split()[1], "the same folder"
    assert (first.slot.name, second.slot.name) == ("s2", "s1")
    assert world.state("one") is State.QUEUED
    assert [one.slot for one in attempts(world, "one").charges] == ["s1", "s1"]


def test_a_session_that_is_not_known_any_more_begins_afresh_without_a_strike(
    make: Callable[..., World], tmp_path: Path
) -> None:
    world = make()
    store = tmp_path / "store"
    task = world.add("One")
    loop = Loop(world.setting(), world.slot("s1"), Idle(), resuming(world, store))
    world.loops.append(loop)
    stopped_once(world, loop, store)
    for kept in store.iterdir():
        if kept.is_dir():
            shutil.rmtree(kept)
    (store / "go").touch()
    world.work_loop(loop)
    assert world.state(task) is State.QUEUED
    found = attempts(world, task)
    assert found.token == 2 and found.strikes == [], "the same attempt"
    assert [line.split()[0] for line in (store / "log").read_text().splitlines()] == [
        "fresh",
        "fresh",
    ]
    again = (store / "prompt.one.2").read_text()
    assert again.startswith("One\n"), "told all of it again"


def test_an_attempt_that_failed_is_not_gone_on_with(
    make: Callable[..., World], tmp_path: Path
) -> None:
    charge = Charge(
        token=1, run="r1", adapter="a", slot="s1", seconds=1.0, usage=Usage(), session="x", at=NOW
    )
    world = make()
    task = world.add("One")
    world.work_loop(world.loop("exit 1"))
    found = attempts(world, task)
    assert found.last is not None
    with_session = msgspec.structs.replace(found, charges=[charge])
    assert budget.find_session(with_session) is None, "what it was doing was wrong"
    stopped = msgspec.structs.replace(found.last, outcome="stopped")
    assert budget.find_session(msgspec.structs.replace(with_session, last=stopped)) == charge
    assert budget.find_session(None) is None


# -- liveness -------------------------------------------------------------------------------------


def test_A10_death_beats_whatever_an_agent_was_said_to_wait_for(
    make: Callable[..., World],
) -> None:
    world = make('patience = "1h"')
    task = world.add("One")
    script = """echo '{"t": "retry", "seconds": 600}'; sleep 0.5; kill -9 $$"""
    loop = world.loop(script, adapter=streaming(world))
    world.tick(
        loop,
        lambda: (
            loop.attempt is not None
            and loop.attempt.transcript is not None
            and loop.attempt.transcript.waits_since is not None
        ),
    )
    world.tick(loop, lambda: not loop.is_busy, limit=20)
    last = attempts(world, task).last
    assert last is not None and last.outcome == "agent_failed"
    assert last.message.startswith("killed by signal 9")


def test_A11_what_is_left_of_another_boot_is_closed_once(make: Callable[..., World]) -> None:
    world = make()
    task = world.add("One")
    supervisor = supervise(world, world.seat("sleep 300"))
    alive = supervisor._live()
    supervisor._start_run()
    who = Who(runner=supervisor.setting.runner, adapter="command", slot="s1", run="r1")
    assert isinstance(acquire(world.ledger, who, world.terms), Claimed)
    alive.close()  # as its death does
    world.clock.reboot()
    first = supervise(world, world.seat(WORK)).heal()
    assert [one.task for one in first.expired] == [task]
    record = world.ledger.view().run("r1")
    assert record is not None and record.state == "ended"
    tip = world.ledger.view().tip
    again = supervise(world, world.seat(WORK)).heal()
    assert (again.expired, again.extended, again.ended) == ([], [], 0)
    assert world.ledger.view().tip == tip, "nothing is told a second time"


# -- what was found by reading --------------------------------------------------------------------


def test_a_hostile_figure_ends_no_run_and_no_start_after_it(make: Callable[..., World]) -> None:
    world = make("run_cost_usd = 5.0")
    task = world.add("One")
    huge = "1" + "0" * 400
    code, _ = run(supervise(world, world.seat(f"{use(huge, huge)}; sleep 0.5; {WORK}")))
    assert code is Exit.YES
    (charge,) = attempts(world, task).charges
    assert charge.usage == Usage()


def test_who_tries_a_limited_agent_is_known_whichever_slot_it_has(
    make: Callable[..., World],
) -> None:
    world = make()
    breaker = Breaker(world.layout.limits, timedelta(seconds=1), timedelta(seconds=1))
    idle = Idle(breaker=breaker)
    world.add("One")
    loop = world.loop(WORK, idle=idle)
    breaker.refused("command", None, world.clock.now())
    world.clock.pass_(seconds=5)
    assert loop._choose() is not None, "it is the one that tries"
    kept, loop.slot = loop.slot, world.slot("s9")
    loop._give_way(loop.seat)
    assert breaker.may_start("command", "another", world.clock.now())
    kept.close()


def test_many_loops_that_look_lose_no_refusal(tmp_path: Path) -> None:
    breaker = Breaker(tmp_path / "limits.json", timedelta(hours=1), timedelta(hours=1))
    breaker.refused("other", None, NOW)
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            breaker.find("claude", NOW)

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    for number in range(30):
        breaker.refused(f"agent-{number}", None, NOW)
    is_over.set()
    for looker in lookers:
        looker.join()
    known = Breaker(tmp_path / "limits.json", timedelta(1), timedelta(1)).all(NOW)
    assert sorted(known) == sorted(["other", *(f"agent-{number}" for number in range(30))])


def test_an_agent_that_said_it_is_done_is_not_ended_for_what_it_cost(
    make: Callable[..., World],
) -> None:
    world = make("cost_usd = 1.0")
    task = world.add("One")
    script = f"""{WORK}; echo '{{"t": "end", "usd": 7}}'; sleep 1"""
    world.work_loop(world.loop(script, adapter=streaming(world)))
    assert world.state(task) is State.QUEUED, "its work is paid for"
    (charge,) = attempts(world, task).charges
    assert charge.usage.cost_usd == 7, "the overspend is shown where it happened"


def test_a_run_that_landed_everything_is_a_yes_whatever_it_cost(make: Callable[..., World]) -> None:
    world = make("run_cost_usd = 1.0")
    world.add("One")
    code, why = run(supervise(world, world.seat(f"{use(0.5)}; {WORK}; {use(1.5)}; sleep 0.5")))
    assert code in (Exit.YES, Exit.BUDGET), why
    if world.state("one") is State.LANDED:
        assert (code, why) == (Exit.YES, "all landed")


def test_what_was_only_assumed_is_taken_back_when_the_session_says_it(
    make: Callable[..., World], tmp_path: Path
) -> None:
    world = make("run_cost_usd = 100.0\ncost_usd = 30.0")
    store = tmp_path / "store"
    task = world.add("One")
    supervisor = supervise(world, resuming(world, store))
    supervisor._start_run()
    loop = Loop(world.setting(), world.slot("s1"), Idle(), resuming(world, store))
    world.loops.append(loop)
    stopped_once(world, loop, store)
    record = world.ledger.view().run("r1")
    assert record is not None and (record.spent_usd, record.assumed_usd) == (None, 30.0)
    world.work_loop(loop)
    first, second = attempts(world, task).charges
    assert (first.assumed_usd, second.covers, second.usage.cost_usd) == (30.0, 1, 20)
    record = world.ledger.view().run("r1")
    assert record is not None
    assert (record.spent_usd, record.assumed_usd, record.reserved) == (20.0, 0.0, {})


def test_a_stop_by_hand_books_what_a_dead_runs_agent_used(make: Callable[..., World]) -> None:
    world = make()
    task = world.add("One")
    loop = world.loop(f"{use(0.3)}; sleep 300")
    world.tick(loop, lambda: bool(loop.idle.live) and loop.idle.live[loop.key].cost_usd == 0.3)
    attempt = loop.attempt
    assert attempt is not None and attempt.child is not None
    attempt.child.kill_now()
    attempt.child.wait()
    loop.attempt, loop.stage = None, "idle"
    loop.slot.close()
    sweep = Sweep(world.layout, world.rules, world.bounds, timedelta(seconds=1), world.app)
    lock = world.ledger.view().lock(task)
    assert lock is not None
    wanted = request.Wanted(stop=request.Stop(nonce=lock.nonce, by="ann"))
    assert not isinstance(steer._end_here(world.ledger, sweep, lock, wanted), steer.Refusal)
    (charge,) = attempts(world, task).charges
    assert charge.usage.cost_usd == 0.3


def test_a_limited_member_of_a_team_does_not_hold_a_run_that_only_it_could_go_on_with(
    make: Callable[..., World],
) -> None:
    world = make('provider = "1h"')
    world.add("Judge", role="review")
    other = refusing(world, "other")
    build = world.seat(WORK, role="build")
    supervisor = supervise(world, build, world.seat(WORK, adapter=other, role="review"))
    assert supervisor.idle.breaker is not None
    now = world.clock.now()
    supervisor.idle.breaker.refused("other", now + timedelta(days=5), now)
    code, why = run(supervisor)
    assert code is Exit.LIMITED and why.startswith("provider limit: other until ")


# -- what was found by trying ---------------------------------------------------------------------


@pytest.mark.parametrize("amount", ["nan", "inf", "-1", "0", "much", "1e300"])
def test_an_amount_that_is_none_is_refused_and_damages_nothing(
    make: Callable[..., World], amount: str
) -> None:
    world = make()
    world.add("One")
    done = run_swarm(world.app, "run", f"--max-cost={amount}", "--", "/bin/true")
    assert done.returncode == 2 and "is no amount of USD above 0" in done.stderr
    assert world.ledger.view().runs() == []


def test_A12_a_providers_no_is_no_attempt_that_a_task_counts(make: Callable[..., World]) -> None:
    world = make("task_attempts = 2")
    task = world.add("One")
    idle = Idle()
    for _ in range(3):
        world.work_loop(world.loop("exit 75", slot="s1", idle=idle))
        world.loops.pop().slot.close()
    assert world.state(task) is State.OPEN
    assert spent_on(attempts(world, task)).attempts == 0
    assert len(attempts(world, task).charges) == 3


def test_a_budget_that_is_used_up_before_starts_no_agent(make: Callable[..., World]) -> None:
    world = make("strikes = 9")
    task = world.add("One")
    world.work_loop(world.loop(f"{use(0.6)}; exit 1"))
    bounds = msgspec.structs.replace(world.bounds, task=Caps(cost_usd=0.5))
    loop = world.loop(f"{use(0.6)}; exit 1", slot="s2", bounds=bounds)
    world.work_loop(loop)
    parked = world.ledger.view().parked(task)
    assert parked is not None and parked.reason == "budget"
    found = attempts(world, task)
    assert len(found.charges) == 1 and len(found.strikes) == 1, "nothing was spent"


def test_a_logged_out_agent_is_what_needs_a_person_after_the_run(
    make: Callable[..., World],
) -> None:
    world = make()
    world.add("One")
    assert run(supervise(world, world.seat("exit 77")))[0] is Exit.LIMITED
    (need,) = overview.status(world.work).needs_you
    assert need.kind == "limited" and "not logged in: log in to command" in need.why


@pytest.mark.parametrize("verb", [("approve", "one"), ("pause",), ("run", "--", "true"), ("pull",)])
def test_a_persons_word_is_not_an_agents(make: Callable[..., World], verb: tuple[str, ...]) -> None:
    world = make()
    done = run_swarm(world.app, *verb, env={"SWARM_MARK": "r1-x.agent.secret"})
    assert done.returncode == 2 and "is a person's word" in done.stderr
    assert 'swarm ask "your question"' in done.stderr


def test_who_gives_up_says_why(make: Callable[..., World]) -> None:
    world = make()
    world.add("One")
    said = world.app / "said"
    world.work_loop(world.loop(f'swarm release --reason " " > {said} 2>&1; echo $? >> {said}'))
    assert "--reason says nothing" in said.read_text() and said.read_text().endswith("2\n")


def test_a_run_of_a_program_that_may_not_say_its_cost_says_so(make: Callable[..., World]) -> None:
    world = make()
    (world.app / "tasks").mkdir()
    (world.app / "tasks/one.md").write_text("# One\n")
    done = run_swarm(world.app, "run", "--max-cost", "5", "--", "/bin/sh", "-c", WORK)
    assert "its cost is what it writes into $SWARM_REPORT" in done.stdout
