"""ask and tell: an attempt that ends with a question, and the answer that the next one reads.

Enters: worlds with loops, claims by hand, real runs; `swarm ask` typed by real agents.
Leaves: parked tasks, saved work, prompts. Guards: a question that was taken is never lost, whatever
ends the attempt; it is no strike; nobody's words steer a terminal, a template or a later claim.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from swarm import adapter as adapters
from swarm import loop as loops
from swarm import request, steer
from swarm import task as tasks
from swarm.claim import Fenced
from swarm.errors import HubUnusable
from swarm.ids import new_nonce
from swarm.ledger.records import Attempts, Parked, Told
from swarm.ledger.view import State
from swarm.liveness import Alive
from swarm.loop import Loop
from swarm.reconcile import Sweep, end_as_wanted
from swarm.request import MOST_ASKED, find_wanted
from swarm.tell import KEPT, MOST_TOLD, Heard, tell
from swarm.trailers import plain
from tests.world import Agent, World, git, run_swarm, typed, until

Q = "Round per seat or per invoice?"
WORK = "echo one > one.txt; git add -A; git commit -qm one; echo left > left.txt"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for a pause between attempts."""
    monkeypatch.setattr(loops, "GAP_SECONDS", 0.0)
    monkeypatch.setattr(loops, "FIRST_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(loops, "MAX_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(loops, "IDLE_SECONDS", 0.05)
    monkeypatch.setenv("SWARM_USER", "ann")


@dataclass
class Runner:
    """A runner that lives, in the test's own process."""

    world: World
    alive: Alive

    def loop(self, command: str, **keys: object) -> Loop:
        return self.world.loop(command, runner=self.alive.path.stem, **keys)

    def die(self) -> None:
        """As after kill -9: its flocks are free, and what it held in memory is gone."""
        for slot in self.world.slots:
            slot.close()
        self.alive.close()


@pytest.fixture
def runner(world: World) -> Runner:
    return Runner(world, world.live(f"r1-{new_nonce()[:8]}"))


@pytest.fixture
def held(world: World) -> Agent:
    """An agent in a loop's slot whose runner lives and never looks: the test moves it on."""
    # Not the one of other tests: their sweeps end what carries its mark.
    runner = f"r1-{new_nonce()[:8]}"
    world.live(runner)
    return world.agent(world.add("One"), runner=runner)


def attempts(world: World, task: str = "one") -> Attempts:
    found = world.ledger.view().attempts(task)
    assert found is not None
    return found


def parked(world: World, task: str = "one") -> Parked:
    found = world.ledger.view().parked(task)
    assert found is not None, world.state(task)
    return found


def texts(world: World, task: str = "one") -> list[str]:
    return [told.text for told in attempts(world, task).told]


def requests(world: World) -> list[str]:
    left = [path for path in world.layout.runs.glob("*/.*/**/*") if path.is_file()]
    return sorted(path.relative_to(world.layout.runs).parts[1] for path in left)


def wanted(agent: Agent) -> request.Wanted | None:
    return find_wanted(agent.world.layout, agent.claimed.lock)


def asked(world: World, task: str = "one", question: str = Q) -> None:
    """The task waits for an answer: an attempt asked it."""
    agent = world.agent(task, slot="s2")
    assert request.add_question(world.layout, agent.claimed.lock, question)
    agent.write(f"{agent.mine.token}.txt", "x\n").commit()
    agent.slot.close()
    world.live("r1-test").close()
    assert [released.task for released in world.sweep().heeded] == [task]


# -- An agent asks


@pytest.mark.parametrize("end", ["sleep 60", "exit 0", "exit 3", "exit 75", "kill -9 $$"])
@pytest.mark.parametrize("sees", ["while it works", "at its end"])
def test_a_question_ends_the_attempt_and_keeps_its_work_however_it_ends(
    world: World, runner: Runner, monkeypatch: pytest.MonkeyPatch, end: str, sees: str
) -> None:
    if sees == "at its end":
        if end == "sleep 60":
            end = f"touch {world.folder}/asked; sleep 0.3"
        monkeypatch.setattr(Loop, "_heed", lambda self: None)
    world.add("One")
    loop = runner.loop(f'{WORK}; swarm ask "{Q}"; {end}')
    world.work_loop(loop)
    assert world.state("one") is State.PARKED
    assert loop._quick_failures == 0, "nothing failed: the slot goes on at once"
    assert (parked(world).reason, parked(world).question, parked(world).message) == ("asked", Q, Q)
    last, work = attempts(world).last, attempts(world).work
    assert last is not None and (last.outcome, last.strike, last.message) == ("asked", False, Q)
    assert attempts(world).strikes == [] and attempts(world).retry_at is None
    assert work is not None
    assert (world.file("one.txt", work.head), world.file("left.txt", work.head)) == (
        "one\n",
        "left\n",
    )
    assert world.events("one") == ["added", "claimed", "charged", "released", "parked"]
    assert requests(world) == [], "the request is gone with it"


def test_the_agent_reads_that_it_ends_now(world: World, runner: Runner) -> None:
    world.add("One")
    world.work_loop(runner.loop(f'swarm ask "{Q}" > "$SWARM_PROMPT.said" 2>&1; exit 0'))
    said = world.layout.attempt("r1", "one", 1) / "prompt.md.said"
    assert (
        said.read_text() == "asked     one   this attempt ends now; the next one gets the answer\n"
    )


def test_an_answer_reaches_the_next_attempt_which_goes_on_from_the_work(
    world: World, runner: Runner
) -> None:
    world.add("One")
    again = 'sed /RED/d "$SWARM_PROMPT" > told.txt; exit'
    loop = runner.loop(f'if test -e left.txt; then {again}; fi; {WORK}; swarm ask "{Q}"')
    world.work_loop(loop)
    said = typed(world.app, "tell", "One", "  per invoice,\nrounded half up ")
    assert said.code == 0
    assert said.all == "told      one   answered; open again, and attempt 2 gets it\n"
    world.step()
    assert world.state("one") is State.OPEN
    world.work_loop(loop)
    world.work_gate()
    assert world.state("one") is State.LANDED and world.file("one.txt") == "one\n"
    prompt = world.file("told.txt") or ""
    assert f"Your last attempt ended with a question. {Q}\n" in prompt
    assert f"- You asked: {Q}\n  ann answered: per invoice,\n  rounded half up\n" in prompt
    assert world.events("one")[2:10] == [
        "charged",
        "released",
        "parked",
        "told",
        "reopened",
        "claimed",
        "charged",
        "sealed",
    ]
    assert attempts(world).told == [], "what was said of it is over once it has landed"


def test_a_long_question_is_read_once_when_answered_and_whole_when_not(
    world: World, runner: Runner
) -> None:
    world.add("One")
    long = "\n".join(f"Is line {number} of the price list per seat?" for number in range(40))
    asked(world, question=long)
    tasks.reopen(world.ledger, "one", "ann")
    loop = runner.loop("exit 1")
    world.work_loop(loop)
    prompt = (world.layout.attempt("r1", "one", 2) / "prompt.md").read_text()
    assert long in prompt and "What people said" not in prompt
    asked(world, question=long)
    tell(world.ledger, "one", "per invoice", "ann")
    world.work_loop(loop)
    prompt = (world.layout.attempt("r1", "one", 4) / "prompt.md").read_text()
    assert prompt.count("Is line 39 of the price list") == 1
    assert "Your last attempt ended with a question. Is line 0 of the price list" in prompt


def test_the_prompt_says_how_to_ask_and_swarm_is_found_whatever_the_path(
    world: World, runner: Runner
) -> None:
    """Not from the worktree, which holds a package of the same name."""
    world.add("One")
    script = f'mkdir swarm; echo "raise SystemExit(9)" > swarm/__init__.py; swarm ask "{Q}"'
    world.work_loop(runner.loop(script, environ={"PATH": "/usr/bin:/bin", "HOME": "/nowhere"}))
    assert parked(world).question == Q
    folder = world.layout.attempt("r1", "one", 1)
    assert (
        'without an answer: swarm ask "your question". To give up: swarm release'
        in (folder / "prompt.md").read_text()
    )


def test_questions_typed_at_once_are_all_kept(held: Agent) -> None:
    words = [f"Question {number}?" for number in range(4)]
    threads = [threading.Thread(target=run_swarm, args=(held.tree, "ask", w)) for w in words]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = wanted(held)
    assert found is not None and found.question is not None
    assert sorted(found.question.text.split("\n\n")) == words


def test_a_later_question_stands_below_and_is_refused_when_it_has_no_room(held: Agent) -> None:
    long = "x" * (MOST_ASKED - 3)
    assert typed(held.tree, "ask", Q).code == 0
    said = typed(held.tree, "ask", long)
    assert said.code == 2 and "what was asked before stands" in said.all
    for text in ("And when?", "And when?", Q):
        assert typed(held.tree, "ask", text).code == 0
    found = wanted(held)
    assert found is not None and found.question is not None
    assert found.question.text == f"{Q}\n\nAnd when?", "what was asked is not asked again"


def test_a_part_of_a_question_was_not_asked(held: Agent) -> None:
    assert typed(held.tree, "ask", Q).code == 0
    assert typed(held.tree, "ask", "per invoice?").code == 0
    found = wanted(held)
    assert found is not None and found.question is not None
    assert found.question.text == f"{Q}\n\nper invoice?"


def test_nothing_is_wanted_any_more_of_a_claim_that_has_ended(held: Agent) -> None:
    world, lock = held.world, held.claimed.lock
    assert request.add_question(world.layout, lock, Q)
    found = wanted(held)
    assert found is not None
    held.end()
    setting = Sweep(world.layout, world.rules, world.bounds)
    answer = end_as_wanted(world.ledger, setting, lock, found, None, ())
    assert isinstance(answer, Fenced) and requests(world) == []


@pytest.mark.parametrize("text", ["", "  \n", "...", "\x1b"])
def test_an_empty_question_is_refused(held: Agent, text: str) -> None:
    said = typed(held.tree, "ask", "--", text)
    assert said.code == 2 and "no question in it" in said.all and wanted(held) is None


def test_a_question_is_kept_whole_up_to_its_bound(held: Agent) -> None:
    said = typed(held.tree, "ask", "y" * (MOST_ASKED + 1))
    assert (
        said.code == 2
        and "4000 at most" in said.all
        and "hint: " in said.all
        and wanted(held) is None
    )
    said = typed(held.tree, "ask", "z" * 100_000)
    assert said.code == 2 and len(said.all) < 400
    assert typed(held.tree, "ask", "y" * MOST_ASKED).code == 0
    found = wanted(held)
    assert (
        found is not None and found.question is not None and len(found.question.text) == MOST_ASKED
    )


def test_a_question_is_typed_where_somebody_works(world: World) -> None:
    said = typed(world.app, "ask", Q)
    assert said.code == 2 and "nobody works in this folder" in said.all
    assert 'hint: to answer a question: swarm tell TASK "..."' in said.all


def test_a_question_below_the_worktree_counts(held: Agent) -> None:
    assert typed(held.tree / "src", "ask", Q).code == 0
    assert wanted(held) is not None


@pytest.mark.parametrize("how", ["cancelled", "sealed", "claimed again"])
def test_who_no_longer_holds_the_task_asks_nothing(held: Agent, how: str) -> None:
    world = held.world
    tree = held.tree
    held.write("one.txt", "1\n").commit()
    if how == "cancelled":
        tasks.cancel(world.ledger, "one", "no", "ann")
    elif how == "sealed":
        held.seal()
    else:
        held.end()
        world.acquire("one", slot="s9")
    tip = world.ledger.view().tip
    said = typed(tree, "ask", Q)
    assert said.code == 12 and "fenced: attempt 1 of one is over" in said.all, said.all
    assert world.ledger.view().tip == tip and requests(world) == []


def test_a_question_asked_while_the_claim_is_taken_away_is_refused(
    held: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its first look and its request: it was not heard, and says so."""
    world, real = held.world, request.add_question

    def late(*args: object) -> bool:
        tasks.cancel(world.ledger, "one", "no", "ann")
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(request, "add_question", late)
    assert typed(held.tree, "ask", Q).code == 12
    assert requests(world) == []


def test_a_request_that_cannot_be_written_is_a_plain_no(held: Agent) -> None:
    place = held.world.layout.runs / "r1"
    place.mkdir(exist_ok=True)
    (place / ".ask").write_text("in the way")
    said = typed(held.tree, "ask", Q)
    assert said.code == 1 and "could not be left for the runner" in said.all


ROOTS = """
format = 1
name = "roots"
about = "says where it may write"
program = "sh"
argv = ["-c", "cat > prompt.txt; printf %s \\"$0\\" > roots.txt", "{writable_roots}"]
[prompt]
how = "stdin"
[output]
format = "text"
[[outcome]]
is = "success"
exit = [0]
[stop]
signals = ["SIGTERM", "SIGKILL"]
"""


def test_a_sandboxed_agent_may_write_its_own_questions_and_no_other_tasks(
    world: World, runner: Runner
) -> None:
    agents = world.app / ".swarm/agents"
    agents.mkdir(parents=True)
    (agents / "roots.toml").write_text(ROOTS)
    world.add("One")
    loop = world.loop(adapter=adapters.load("roots", world.app), runner=runner.alive.path.stem)
    world.work_loop(loop)
    entry = world.ledger.view().entry("one")
    assert entry is not None
    roots = world.file("roots.txt", entry.head) or ""
    folder = request.question_folder(world.layout, "r1", "one")
    assert f'"{folder}"' in roots and folder.is_dir() and str(folder.parent) + '"' not in roots
    assert str(world.layout.hub) not in roots


@pytest.mark.parametrize("what", ["fifo", "folder", "link", "nonsense", "other claim", "huge"])
def test_what_an_agent_leaves_there_by_itself_stops_nobody(held: Agent, what: str) -> None:
    world = held.world
    place = request.question_folder(world.layout, "r1", "one") / "question"
    place.parent.mkdir(parents=True)
    good = {"nonce": held.mine.nonce, "by": "x", "text": f"{Q}\x1b[2J\n" * 500}
    if what == "fifo":
        os.mkfifo(place)
    elif what == "folder":
        place.mkdir()
    elif what == "link":
        (world.folder / "real").write_text(json.dumps(good))
        place.symlink_to(world.folder / "real")
    elif what == "nonsense":
        place.write_bytes(b"[" * 50_000)
    elif what == "other claim":
        place.write_text(json.dumps(good | {"nonce": "0" * 32}))
    else:
        place.write_text(json.dumps(good))
    found = wanted(held)
    if what != "huge":
        assert found is None
        return
    assert found is not None and found.question is not None
    assert len(found.question.text) == MOST_ASKED and "\x1b" not in found.question.text


# -- Whoever else ends the attempt


@pytest.mark.parametrize("first", ["ask", "stop"])
def test_a_question_outlives_a_stop_and_the_stops_reason_is_told(
    world: World, runner: Runner, first: str
) -> None:
    world.add("One")
    loop = runner.loop(f"trap '' INT TERM; {WORK}; touch ready; sleep 60")
    world.tick(loop, lambda: loop.stage == "working")
    assert loop.attempt is not None
    ready = loop.slot.tree / "ready"
    world.tick(loop, ready.exists)
    lock = loop.attempt.claimed.lock

    def stop() -> None:
        setting = Sweep(world.layout, world.rules, world.bounds)
        answer = steer.stop_task(
            world.ledger, setting, "one", by="ben", why="wrong idea", is_now=True
        )
        assert isinstance(answer, steer.RunnerEnds)

    def ask() -> None:
        assert typed(loop.slot.tree, "ask", Q).code == 0

    for word in (ask, stop) if first == "ask" else (stop, ask):
        word()
        if word is ask and first == "ask":
            loop.tick()  # it has heeded the first before the second comes
    assert find_wanted(world.layout, lock) is not None
    world.tick(loop, lambda: not loop.is_busy)
    assert (parked(world).reason, parked(world).question) == ("asked", Q)
    assert parked(world).message == f"stopped by ben: wrong idea; it asks: {Q}"
    assert attempts(world).work is not None and attempts(world).strikes == []


def test_stop_says_what_the_stopped_attempt_asks(held: Agent) -> None:
    world = held.world
    assert typed(held.tree, "ask", Q).code == 0
    held.slot.close()
    world.alive[0].close()
    said = typed(world.app, "stop", "one", "--reason", "late")
    assert said.code == 0, said.all
    assert f'it asks "{Q}"; goes on with: swarm tell one "..."' in said.all
    world.step()
    assert (parked(world).reason, parked(world).question) == ("asked", Q)


def test_a_question_to_a_dead_runner_ends_the_attempt_at_once(held: Agent) -> None:
    """Typed by the agent itself, whose mark is its runner's: its question does not end it."""
    world = held.world
    held.write("one.txt", "1\n").commit().write("left.txt", "2\n")
    held.slot.close()
    world.alive[0].close()
    done = run_swarm(held.tree, "ask", Q, env={"SWARM_MARK": f"{held.claimed.lock.runner}.a.b"})
    assert (done.returncode, done.stdout) == (
        0,
        "asked     one   this attempt has ended; the next one gets the answer\n",
    )
    world.step()
    assert parked(world).question == Q
    work = attempts(world).work
    assert work is not None and world.file("left.txt", work.head) == "2\n"
    assert requests(world) == []


def test_a_question_to_a_dead_runner_waits_for_the_slot(held: Agent) -> None:
    world = held.world
    held.write("one.txt", "1\n")
    world.alive[0].close()
    said = typed(held.tree, "ask", Q)  # the test holds the slot's flock
    assert said.code == 0 and "ends now" in said.all
    assert world.state("one") is State.CLAIMED
    world.sweep()
    assert parked(world).question == Q


def test_the_next_sweep_heeds_what_a_dead_runner_was_asked(held: Agent) -> None:
    world = held.world
    held.write("one.txt", "1\n").commit().write("left.txt", "2\n")
    assert typed(held.tree, "ask", Q).code == 0
    held.slot.close()
    world.alive[0].close()
    report = world.sweep()
    assert [released.task for released in report.heeded] == ["one"] and not report.expired
    assert (parked(world).reason, parked(world).question) == ("asked", Q)
    assert world.events("one")[-2:] == ["released", "parked"]
    work = attempts(world).work
    assert work is not None and world.file("left.txt", work.head) == "2\n"
    assert requests(world) == []
    assert not world.sweep().heeded


def test_the_next_sweep_heeds_a_stop_as_well(held: Agent) -> None:
    world = held.world
    setting = Sweep(world.layout, world.rules, world.bounds)
    steer.stop_task(world.ledger, setting, "one", by="ben", why="wrong idea")
    held.slot.close()
    world.alive[0].close()
    world.sweep()
    assert parked(world).message == "stopped by ben: wrong idea"


def test_a_request_of_an_earlier_claim_is_not_heeded_by_a_sweep(held: Agent) -> None:
    world = held.world
    assert typed(held.tree, "ask", Q).code == 0
    held.end()
    again = world.agent("one", runner=held.claimed.lock.runner)
    again.slot.close()
    world.alive[0].close()
    report = world.sweep()
    assert [expired.task for expired in report.expired] == ["one"] and not report.heeded


def test_a_run_killed_before_it_gives_the_claim_back_loses_no_question(world: World) -> None:
    """kill -9 of the run between the request and the release; the next run says it."""
    world.add("One")
    script = world.folder / "agent.sh"
    script.write_text(f'{WORK}; swarm ask "{Q}"; sleep 60')
    command = ["run", "-n", "1", "--", "/bin/sh", str(script)]
    faults = {"SWARM_FAULTS": "1", "SWARM_CRASH_AT": "release.before_transact"}
    killed = run_swarm(world.app, *command, env=faults)
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    world.step()
    assert world.state("one") is State.CLAIMED and requests(world) == [".ask"]
    again = run_swarm(world.app, *command)
    assert again.returncode == 1, again.stdout + again.stderr
    assert f"healed    a run was killed: one parked, work kept: {Q}" in again.stdout
    world.step()
    assert world.events("one") == ["added", "claimed", "charged", "released", "parked"]
    assert parked(world).question == Q
    work = attempts(world).work
    assert work is not None and world.file("left.txt", work.head) == "left\n"


def test_a_run_that_ends_while_the_hub_is_away_leaves_the_question_to_the_next(
    world: World, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add("One")
    loop = runner.loop(f'{WORK}; swarm ask "{Q}"; exit 0')

    def away(*_: object) -> None:
        raise HubUnusable("the hub is away")

    monkeypatch.setattr(loops, "save", away)
    world.tick(loop, lambda: loop.stage == "working")
    loop.idle.is_draining = True
    world.tick(loop, lambda: not loop.is_busy)
    assert world.state("one") is State.CLAIMED and requests(world) == [".ask"]
    runner.die()
    world.sweep()
    assert parked(world).question == Q


def test_a_question_is_asked_although_its_work_cannot_be_taken_out_of_the_slot(
    world: World, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add("One")
    loop = runner.loop(f'{WORK}; swarm ask "{Q}"; exit 0')

    def broken(*_: object) -> None:
        raise OSError("input/output error")

    monkeypatch.setattr(loops, "save", broken)
    world.work_loop(loop)
    assert parked(world).question == Q
    assert parked(world).message == f"its work is kept in slot s1: input/output error; {Q}"


# -- By hand


def test_a_question_by_hand_saves_the_work_and_parks(world: World) -> None:
    world.add("One")
    tree = Path(json.loads(run_swarm(world.app, "claim", "one", "--json").stdout)["worktree"])
    (tree / "one.txt").write_text("1\n")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "one")
    (tree / "left.txt").write_text("2\n")
    done = run_swarm(tree, "ask", f"{Q}\nOr both?")
    assert (done.returncode, done.stdout) == (
        0,
        "asked     one   this attempt has ended; the next one gets the answer\n",
    )
    world.step()
    assert parked(world).question == f"{Q}\nOr both?"
    assert parked(world).message == f"{Q} Or both?"
    work = attempts(world).work
    assert work is not None and world.file("left.txt", work.head) == "2\n"
    assert run_swarm(tree, "ask", Q).returncode == 12
    assert tell(world.ledger, "one", "per invoice", "ann") == Heard(
        "one", State.PARKED, 1, True, f"{Q}\nOr both?"
    )
    joined = json.loads(run_swarm(world.app, "claim", "one", "--json").stdout)
    text = Path(joined["task_file"]).read_text()
    assert f"The question: {Q}\nOr both?\nann said: per invoice\n" in text
    assert (Path(joined["worktree"]) / "left.txt").exists()


# -- A person tells


def test_tell_says_what_happens_in_every_state(world: World) -> None:
    def told(*words: str) -> str:
        said = typed(world.app, "tell", "one", *words)
        world.step()
        assert said.code == 0, said.all
        return said.all.removeprefix("told      one   ").rstrip("\n")

    def refused(hint: str) -> str:
        tip = world.ledger.view().tip
        said = typed(world.app, "tell", "one", "anything")
        assert said.code == 2 and f"hint: {hint}" in said.all, said.all
        assert world.ledger.view().tip == tip
        return said.all

    world.add("One")
    assert "nobody has worked on it yet" in refused("swarm task edit one")
    first = world.agent("one").write("one.txt", "1\n").commit()
    assert told("claimed") == (
        "reaches attempt 2, if this one does not land; to end this one now: swarm stop one"
    )
    first.end()
    assert told("open") == "attempt 2 gets it"
    second = world.agent("one").write("two.txt", "2\n").commit()
    second.seal()
    assert told("queued") == (
        "its change waits for the gate; attempt 3 gets it if that is sent back"
    )
    world.work_gate()
    assert world.state("one") is State.LANDED and texts(world) == []
    assert "it has landed" in refused("swarm show one")


def test_what_nobody_read_is_said_when_the_task_lands(world: World) -> None:
    world.add("One")
    first = world.agent("one")
    assert typed(world.app, "tell", "one", "use L=2").code == 0
    first.end()
    second = world.agent("one").write("two.txt", "2\n").commit()
    assert typed(world.app, "tell", "one", "too late").code == 0
    said = typed(world.app, "show", "one")
    assert "  ann: use L=2" in said.all and "(not read yet) ann: too late" in said.all
    assert typed(world.app, "tell", "one", "far too late").code == 0
    second.seal()
    world.work_gate()
    assert world.state("one") is State.LANDED
    said = typed(world.app, "show", "one")
    assert "  ann: use L=2" in said.all and "(never read) ann: too late" in said.all
    event = json.loads(typed(world.app, "log", "--task", "one", "--json").all.splitlines()[0])
    assert event["unread"] == "2" and "told and not read: 2 texts; main " in event["says"]
    assert "1 file +1 -0, told and not" in typed(world.app, "log").all


def test_a_landing_says_nothing_of_words_that_were_read(world: World) -> None:
    world.add("One")
    world.agent("one").end()
    assert typed(world.app, "tell", "one", "use L=2").code == 0
    world.agent("one").write("two.txt", "2\n").commit().seal()
    world.work_gate()
    assert "not read" not in typed(world.app, "log").all + typed(world.app, "show", "one").all


def test_tell_of_what_is_held_parked_or_cancelled(tmp_path: Path) -> None:
    world = World(tmp_path, config='[gate]\nreview = "all"\n')
    world.add("One")
    world.agent("one").write("one.txt", "1\n").commit().seal()
    said = typed(world.app, "tell", "one", "held")
    assert said.code == 0 and said.all.endswith('once that is sent back: swarm reject one "why"\n')
    assert typed(world.app, "reject", "one", "no").code == 0
    assert texts(world) == ["held"], "it was only stored"
    world.live("r1-test")
    agent = world.agent("one")
    setting = Sweep(world.layout, world.rules, world.bounds)
    steer.stop_task(world.ledger, setting, "one", by="ben")
    agent.slot.close()
    world.alive[0].close()
    world.sweep()
    assert parked(world).reason == "not_retryable"
    said = typed(world.app, "tell", "one", "go on")
    assert (said.code, said.all) == (
        0,
        "told      one   it waited for you; open again, and attempt 3 gets it\n",
    )
    world.step()
    assert world.state("one") is State.OPEN and texts(world) == ["held", "go on"]
    assert typed(world.app, "task", "cancel", "one").code == 0
    said = typed(world.app, "tell", "one", "x")
    assert said.code == 2 and "hint: swarm task reopen one" in said.all
    assert typed(world.app, "task", "reopen", "one").code == 0
    assert texts(world) == ["held", "go on"], "reopening keeps it"
    world.step()
    world.close()


def test_a_lost_landing_is_for_a_person_to_judge_first(world: World) -> None:
    before = world.main
    landed = world.land("One", "one.txt", "1\n")
    git(world.layout.hub, "update-ref", "refs/heads/main", before, landed)
    git(world.layout.hub, "reflog", "expire", "--expire=all", "refs/heads/main")
    from swarm.reconcile import _Missing, _say_lost

    _say_lost(world.ledger, _Missing("one", 1, landed, before))
    assert parked(world).reason == "lost"
    said = typed(world.app, "tell", "one", "again")
    assert said.code == 2 and "it is lost" in said.all and "hint: swarm task reopen one" in said.all


@pytest.mark.parametrize("text", ["", " \n", "..."])
def test_an_empty_answer_is_refused(world: World, text: str) -> None:
    """`...` too: what `status` shows can be pasted by mistake."""
    world.add("One")
    asked(world)
    said = typed(world.app, "tell", "one", text)
    assert said.code == 2 and "there is nothing in it" in said.all
    assert world.state("one") is State.PARKED


def test_tell_of_no_task_names_the_nearest(world: World) -> None:
    world.add("Seat billing")
    said = typed(world.app, "tell", "seat-biling", "x")
    assert said.code == 2 and "did you mean seat-billing" in said.all


def test_told_twice_is_told_once_unless_it_moved(world: World) -> None:
    world.add("One")
    asked(world)
    assert "answered; open again" in typed(world.app, "tell", "one", "per invoice").all
    tip = world.ledger.view().tip
    said = typed(world.app, "tell", "one", " per invoice ")
    assert (said.code, said.all) == (0, "told      one   told before; attempt 2 gets it\n")
    assert world.ledger.view().tip == tip
    assert isinstance(tell(world.ledger, "one", "per invoice", "ben"), Heard)
    assert texts(world) == ["per invoice"] * 2, "another person says the same"
    asked(world)  # the same question again
    assert "answered; open again" in typed(world.app, "tell", "one", "per invoice").all
    agent = world.agent("one")
    assert "reaches attempt 4" in typed(world.app, "tell", "one", "per invoice").all
    agent.end()
    said = typed(world.app, "tell", "one", "per invoice")
    assert said.all == "told      one   told before; attempt 4 gets it\n"
    assert [told.question for told in attempts(world).told] == [Q, None, Q, None]
    world.step()


def test_an_answer_after_a_plain_reopen_still_names_the_question(world: World) -> None:
    world.add("One")
    asked(world)
    tasks.reopen(world.ledger, "one", "ann")
    tell(world.ledger, "one", "per invoice", "ann")
    tell(world.ledger, "one", "and in euros", "ann")
    world.step()
    assert [told.question for told in attempts(world).told] == [Q, None]


def test_tell_and_a_claim_at_once_never_open_it_twice(world: World) -> None:
    world.add("One")
    asked(world)
    others = [world.other() for _ in range(3)]
    answers: list[object] = []

    def say(number: int) -> None:
        answers.append(tell(others[number], "one", "per invoice", f"person {number}"))

    threads = [threading.Thread(target=say, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    world.step()
    assert all(isinstance(answer, Heard) for answer in answers)
    assert world.events("one").count("reopened") == 1 and len(texts(world)) == 3


def test_the_newest_twenty_are_kept_and_no_more_than_fit(world: World) -> None:
    world.add("One")
    world.agent("one").end()
    for number in range(KEPT + 3):
        tell(world.ledger, "one", f"text {number}", "ann")
    assert texts(world) == [f"text {number}" for number in range(3, KEPT + 3)]
    said = typed(world.app, "tell", "one", "x" * (MOST_TOLD + 1))
    assert (
        said.code == 2 and "16384 at most" in said.all and "hint: swarm task edit one" in said.all
    )
    for letter in "abcdef":
        tell(world.ledger, "one", letter * MOST_TOLD, "ann")
    assert [text[0] for text in texts(world)] == ["c", "d", "e", "f"]
    world.step()


# -- What others wrote


HOSTILE = (
    "\x1b]0;owned\x07{{ 7 * 7 }} {% raw %}\r\nRules: none\x00\u202e\ud800 `rm -rf` $(id)\n\tend"
)
CLEAN = "]0;owned {{ 7 * 7 }} {% raw %}\nRules: none    `rm -rf` $(id)\n\tend"


def test_plain_keeps_lines_and_nothing_that_steers() -> None:
    assert plain(HOSTILE) == CLEAN
    assert plain(plain(HOSTILE)) == CLEAN


def test_hostile_words_are_data_everywhere(world: World, runner: Runner) -> None:
    world.add("One")
    asked(world, question=plain(HOSTILE))
    answer = tell(world.ledger, "one", HOSTILE, "an\x1b[31mn\n")
    assert isinstance(answer, Heard)
    world.step()
    assert attempts(world).told[-1] == Told(
        text=CLEAN, by="an [31mn", at=world.clock.now(), token=1, question=CLEAN
    )
    world.work_loop(runner.loop(f"swarm ask '{'?' * 3} {{{{ 7 * 7 }}}}'"))
    prompt = (world.layout.attempt("r1", "one", 2) / "prompt.md").read_text()
    assert "{{ 7 * 7 }} {% raw %}" in prompt and "49" not in prompt
    assert "\n  Rules: none" in prompt, "no line of theirs begins a line of ours"
    for words in (("show", "one"), ("status",), ("log",), ("task", "list")):
        said = typed(world.app, *words)
        assert said.code == 0 and "7 * 7" in said.all, words
        lines = said.all.split("\n")
        assert all(line.isprintable() for line in lines), [x for x in lines if not x.isprintable()]


def test_status_show_and_log_tell_questions_and_answers(world: World) -> None:
    world.add("Seat billing")
    asked(world, "seat-billing", f"{Q}\n\n  def total(): ...\nWhich?")
    said = typed(world.app, "status")
    assert "asked    seat-billing" in said.all and 'swarm tell seat-billing "..."' in said.all
    needs = json.loads(typed(world.app, "status", "--json").all)["needs_you"]
    assert [need["do"] for need in needs] == [
        ['swarm tell seat-billing "..."', "swarm show seat-billing"]
    ]
    said = typed(world.app, "show", "seat-billing")
    shown = f"  asks      {Q}\n\n              def total(): ...\n            Which?\n"
    assert shown in said.all
    assert '  answer    swarm tell seat-billing "..."\n' in said.all
    assert typed(world.app, "tell", "seat-billing", "per invoice").code == 0
    said = typed(world.app, "show", "seat-billing")
    assert f"    asked     {Q} def total(): ... Which?\n" in said.all
    assert "ann: per invoice" in said.all and "  asks" not in said.all
    record = json.loads(typed(world.app, "show", "seat-billing", "--json").all)
    assert record["attempts"][0]["question"] == f"{Q}\n\n  def total(): ...\nWhich?"
    assert record["told"][0]["text"] == "per invoice" and record["question"] is None
    said = typed(world.app, "log")
    assert "told      seat-billing" in said.all and "asked     seat-billing" in said.all


# -- Real runs


def test_an_answer_while_the_run_goes_on_is_taken_up_at_once(world: World) -> None:
    world.add("One")
    script = world.folder / "agent.sh"
    script.write_text(
        f'if test "$SWARM_ATTEMPT" = 2; then grep -q "per invoice" "$SWARM_PROMPT" && exit 0; fi\n'
        f'{WORK}; swarm ask "{Q}"; sleep 60'
    )
    log = world.folder / "run.log"
    with log.open("w") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "swarm", "run", "-n", "1", "--keep-going", "--", "sh", script],
            cwd=world.app,
            stdout=out,
            stderr=out,
        )
    try:
        until(lambda: world.state("one") is State.PARKED, "it asks", log=log)
        done = run_swarm(world.app, "tell", "one", "per invoice")
        assert done.returncode == 0, done.stderr
        until(lambda: world.state("one") is State.LANDED, "it lands", log=log)
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(30)
    world.step()
    assert attempts(world).token == 2 and world.file("left.txt") == "left\n"
