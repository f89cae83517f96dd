"""Review: what is held, judged while it waits, read, approved, sent back; and what must be held.

Enters: worlds whose changes wait for a person. Leaves: landings, verdicts, what a person is shown.
Guards: what a person reads is green on the target of now; nothing that can land waits for it; no
word of a person's is lost or carried to another change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swarm import overview
from swarm.cli.boundary import run
from swarm.cli.live import table
from swarm.errors import GitFault
from swarm.gate import Gate
from swarm.ledger.records import Last, QueueEntry
from swarm.ledger.view import State
from swarm.output import render_queue, render_status
from swarm.overview import LiveCheck, live_path, merged, write_live
from swarm.steer import pause, resume
from swarm.supervisor import Supervisor
from swarm.task import Changed, approve, reject
from tests.world import CHECK, Agent, World, git, run_swarm

Make = Callable[..., World]
Typed = Callable[..., tuple[int, str, str]]
ALL = '[gate]\nreview = "all"\n'
LINES = "".join(f"line {n}\n" for n in range(1, 21))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Worlds in which every change is held; their checks write down each of their runs."""
    made: list[World] = []

    def build(config: str = ALL, *, check: str = CHECK, **how: object) -> World:
        folder = tmp_path / f"w{len(made)}"
        folder.mkdir()
        counted = f"echo run >>{folder}/runs\n{check}"
        made.append(World(folder, config=config, check=counted, **how))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for world in made:
        world.close()


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Type a command in the world's checkout: exit code, standard output, standard error."""

    def run_there(world: World, *args: str) -> tuple[int, str, str]:
        monkeypatch.chdir(world.app)
        capsys.readouterr()
        code = run(list(args))
        said = capsys.readouterr()
        world.step()
        return code, said.out, said.err

    return run_there


def runs(world: World) -> int:
    """How often the check has run."""
    path = world.folder / "runs"
    return len(path.read_text().split()) if path.exists() else 0


def sealed(
    world: World, title: str, path: str, text: str, *, slot: str = "s1", **keys: object
) -> str:
    """A task whose change waits for a person or for the gate."""
    task = world.add(title, **keys)
    world.agent(task, slot=slot).write(path, text).commit(title).seal()
    return task


def entry_of(world: World, task: str) -> QueueEntry:
    entry = world.ledger.view().entry(task)
    assert entry is not None
    return entry


def reasons(world: World, task: str) -> dict[str, list[str]]:
    return {hold.reason: hold.paths for hold in entry_of(world, task).hold or ()}


def last(world: World, task: str) -> Last:
    attempts = world.ledger.view().attempts(task)
    assert attempts is not None and attempts.last is not None
    return attempts.last


def said_yes(world: World, task: str) -> None:
    assert isinstance(approve(world.ledger, task, "person"), Changed)
    world.step()


def start_check(world: World, task: str) -> Gate:
    """Tick until the check of this task's change runs."""
    gate = world.gate()
    for _ in range(200):
        gate.tick()
        world.step()
        job = gate.job
        if job is not None and job.running is not None and job.running.child is not None:
            if job.candidate is not None and job.candidate.entry.task == task:
                return gate
            job.running.child.wait(10)
    raise AssertionError(f"no check of {task} was started")


def waits_for(go: Path, path: str) -> str:
    """A check that waits for a file outside, when the change has this path."""
    return f"[ ! -f {path} ] || while [ ! -f {go} ]; do sleep 0.05; done"


# -- Judged while held -----------------------------------------------------------------------------


def test_a_held_change_is_judged_while_it_waits_and_keeps_its_place(make: Make) -> None:
    world = make()
    task = sealed(world, "Reviewed", "a.txt", "a\n")
    before, tip = entry_of(world, task), world.main
    world.work_gate()
    assert entry_of(world, task) == before and world.state(task) is State.HELD
    assert world.main == tip
    assert world.events()[-1] == "checked" and runs(world) == 2, "the target, and the change"


def test_after_an_approval_it_lands_from_the_verdict_that_is_there(make: Make) -> None:
    world = make()
    task = sealed(world, "Reviewed", "a.txt", "a\n")
    world.work_gate()
    before = runs(world)
    said_yes(world, task)
    world.work_gate()
    assert world.state(task) is State.LANDED and runs(world) == before


def test_it_is_judged_once_for_each_target_whoever_is_the_gate(make: Make) -> None:
    world = make()
    task = sealed(world, "Reviewed", "a.txt", "a\n")
    world.work_gate()
    before = runs(world)
    world.work_gate()
    world.gate().close()
    world.work_gate("r2-test")
    assert runs(world) == before
    pushed = world.push("theirs.txt", "theirs\n")
    world.work_gate("r2-test")
    assert runs(world) == before + 2, "the new target, and the change as merged with it"
    said_yes(world, task)
    world.work_gate("r2-test")
    assert runs(world) == before + 2
    done = world.ledger.view().done(task)
    assert done is not None and done.previous == pushed


def test_a_red_one_goes_back_and_a_person_need_not_read_it(make: Make) -> None:
    world = make()
    task = sealed(world, "Red", "a.txt", "RED\n")
    world.work_gate()
    assert world.state(task) is State.OPEN and last(world, task).outcome == "check_failed"


def test_one_that_conflicts_goes_back_as_soon_as_the_target_has_moved(make: Make) -> None:
    world = make()
    task = sealed(world, "Mine", "src/a.txt", "mine\n")
    world.work_gate()
    assert world.state(task) is State.HELD
    world.push("src/a.txt", "theirs\n")
    world.work_gate()
    back = last(world, task)
    assert world.state(task) is State.OPEN
    assert (back.outcome, back.paths, back.strike) == ("conflict", ["src/a.txt"], False)


def test_what_can_land_never_waits_for_the_check_of_a_held_one(make: Make, tmp_path: Path) -> None:
    go = tmp_path / "go"
    world = make(config="", check=waits_for(go, ".swarm/x"))
    held = sealed(world, "Held", ".swarm/x", "x\n")
    gate = start_check(world, held)
    assert gate.activity is not None and gate.activity.is_held
    child = gate.job.running.child  # type: ignore[union-attr]
    free = sealed(world, "Free", "free.txt", "free\n", slot="s2", priority=-5)
    while world.state(free) is not State.LANDED:
        gate.tick()
        world.step()
        running = gate.job.running if gate.job is not None else None
        assert gate.activity is None or gate.activity.task != held, "not before what can land"
        if running is not None and running.child is not None:
            running.child.wait(10)
    assert child is not None and child.poll() is not None, "nothing of it runs on"
    assert world.state(held) is State.HELD
    go.touch()
    world.work_gate()
    said_yes(world, held)
    before = runs(world)
    world.work_gate()
    assert world.state(held) is State.LANDED and runs(world) == before


def test_an_approval_in_the_middle_of_its_check_costs_no_second_run(
    make: Make, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    world = make(check=waits_for(go, "a.txt"))
    task = sealed(world, "Reviewed", "a.txt", "a\n")
    gate = start_check(world, task)
    said_yes(world, task)
    gate.tick()
    assert gate.activity is not None and not gate.activity.is_held
    go.touch()
    world.work_gate()
    assert world.state(task) is State.LANDED and runs(world) == 2


def test_a_rejection_in_the_middle_of_its_check_ends_that(make: Make) -> None:
    world = make(check="[ ! -f a.txt ] || sleep 600")
    task = sealed(world, "Reviewed", "a.txt", "a\n")
    gate = start_check(world, task)
    child = gate.job.running.child  # type: ignore[union-attr]
    assert isinstance(reject(world.ledger, task, "no", "person", world.bounds), Changed)
    gate.tick()
    world.step()
    assert child is not None and child.poll() is not None and gate.job is None
    assert world.state(task) is State.OPEN and last(world, task).outcome == "rejected"


MARKED = "<<<<<<< ours\na\n=======\nb\n>>>>>>> theirs\n"


def test_a_person_is_told_all_reasons_at_once(make: Make) -> None:
    """What the gate's own guards find is found before anybody reads, not after the approval."""
    world = make()
    task = sealed(world, "Marked", "m.txt", MARKED)
    world.work_gate()
    assert reasons(world, task) == {"review": [], "markers": ["m.txt"]}
    said_yes(world, task)
    world.work_gate()
    assert world.state(task) is State.LANDED, "one word is enough"


def test_an_approval_that_was_given_survives_being_judged_again(make: Make) -> None:
    world = make(config="")
    task = sealed(world, "Marked", ".swarm/m.txt", MARKED)
    said_yes(world, task)
    world.work_gate()
    held = entry_of(world, task).hold
    assert held is not None
    approved, waits = held
    assert (approved.reason, waits.reason) == ("protected", "markers")
    assert approved.approved_at is not None and waits.approved_at is None
    before = entry_of(world, task)
    world.push("theirs.txt", "theirs\n")
    world.work_gate()
    assert entry_of(world, task) == before, "byte for byte"
    said_yes(world, task)
    world.work_gate()
    assert world.state(task) is State.LANDED


def test_an_approval_is_not_carried_to_the_next_attempts_change(make: Make) -> None:
    world = make()
    task = sealed(world, "Mine", "src/a.txt", "mine\n")
    world.work_gate()
    world.push("src/a.txt", "theirs\n")
    said_yes(world, task)
    world.work_gate()
    assert world.state(task) is State.OPEN and last(world, task).outcome == "conflict"
    again = world.agent(task)
    again.write("src/a.txt", "both\n").commit("both").seal()
    assert world.state(task) is State.HELD, "the earlier word was for another change"
    assert [hold.approved_at for hold in entry_of(world, task).hold or ()] == [None]


def test_a_secret_is_not_shown_to_a_check_before_a_person_has_seen_it(make: Make) -> None:
    """What a check prints is kept in the ledger and told to agents."""
    world = make(config="", check="cat *.pem 2>/dev/null; true")
    task = world.add("Key")
    world.agent(task).write("deploy.pem", "hush\n").commit("with the key").seal()
    world.work_gate()
    assert reasons(world, task) == {"secret": ["deploy.pem"]} and runs(world) == 1
    found = overview.queue(world.work).changes[0].merged
    assert found is not None and found.is_kept_back and found.verdict is None
    said_yes(world, task)
    world.work_gate()
    assert world.state(task) is State.LANDED and runs(world) == 2


def test_a_secret_that_was_left_out_is_no_reason_to_wait(make: Make) -> None:
    world = make(config="")
    task = world.add("Key")
    agent = world.agent(task).write("a.txt", "a\n").commit()
    agent.write("deploy.pem", "hush\n").seal()
    world.work_gate()
    assert world.state(task) is State.HELD and runs(world) == 2


def test_while_paused_nothing_is_judged(make: Make) -> None:
    world = make()
    task = sealed(world, "Reviewed", "a.txt", "a\n")
    assert pause(world.ledger, "release day", "person") is None
    world.work_gate()
    assert runs(world) == 1, "the target alone"
    assert resume(world.ledger, "person") is None
    world.work_gate()
    assert runs(world) == 2 and world.state(task) is State.HELD


def test_a_red_target_blames_no_held_change_and_a_green_one_judges_it(make: Make) -> None:
    world = make()
    task = sealed(world, "Bystander", "a.txt", "a\n")
    world.push("bad.txt", "RED\n")
    world.work_gate()
    assert world.state(task) is State.HELD and world.state("fix-main") is State.OPEN
    git(world.app, "rm", "-q", "bad.txt")
    git(world.app, "commit", "-q", "-m", "repaired")
    git(world.app, "push", "-q", "swarm", "HEAD:main")
    world.work_gate()
    assert verdict_now(world, task) == "passed" and world.state(task) is State.HELD


def test_a_held_repair_is_judged_while_the_target_is_red(make: Make) -> None:
    world = make(files={"src/a.txt": "RED\n"})
    sealed(world, "Bystander", "b.txt", "b\n")
    world.work_gate()
    world.agent("fix-main", slot="s3").write("src/a.txt", "RED still\n").commit().seal()
    assert world.state("fix-main") is State.HELD
    world.work_gate()
    assert world.state("fix-main") is State.OPEN, "it repairs nothing: nobody need read it"
    world.agent("fix-main", slot="s3").write("src/a.txt", "good\n").commit().seal()
    world.work_gate()
    assert world.state("fix-main") is State.HELD and verdict_now(world, "fix-main") == "passed"
    said_yes(world, "fix-main")
    world.work_gate()
    assert world.state("fix-main") is State.LANDED


def test_M4_a_tool_that_is_gone_leaves_a_held_change_and_the_queue_alone(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make('[env]\npass = ["TOOL"]\n' + ALL, check='exec "$TOOL"')
    tool = world.folder / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("TOOL", str(tool))
    world.work_gate()
    tasks = [sealed(world, f"Held {n}", f"{n}.txt", "x\n", slot=f"s{n}") for n in (1, 2, 3)]
    tool.rename(tool.with_name("away"))
    world.work_gate()
    tried = runs(world)
    world.work_gate()
    assert runs(world) == tried, "once for each target"
    assert all(world.state(task) is State.HELD for task in tasks)
    gate = world.ledger.view().gate()
    assert gate.paused is None, "it stops nobody who waits for no word"


def test_a_fault_of_gits_is_no_verdict_and_is_looked_at_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make()
    world.work_gate()
    task = sealed(world, "Reviewed", "a.txt", "a\n")

    def broken(*_: object, **__: object) -> None:
        raise GitFault("git merge-tree failed", why="unable to read")

    with monkeypatch.context() as patch:
        patch.setattr("swarm.gate.build", broken)
        with pytest.raises(GitFault):
            world.work_gate()
        world.step()
        world.work_gate()
        assert not world.gate().has_unread(world.ledger.view()), "a run need not wait for it"
    world.clock.pass_(minutes=1)
    assert world.gate().has_unread(world.ledger.view())
    world.work_gate()
    assert verdict_now(world, task) == "passed"


def test_a_change_that_was_sealed_before_review_was_asked_for_is_held(make: Make) -> None:
    world = make(config="")
    task = sealed(world, "Early", "a.txt", "a\n")
    assert world.state(task) is State.QUEUED
    again(world, ALL)
    world.work_gate()
    assert world.state(task) is State.HELD and reasons(world, task) == {"review": []}
    said_yes(world, task)
    world.work_gate()
    assert world.state(task) is State.LANDED


def again(world: World, config: str) -> None:
    """A person edits swarm.toml and starts again."""
    from swarm import config as configuration

    path = world.app / "swarm.toml"
    path.write_text(path.read_text().replace("\n[[checks]]", f"\n{config}\n[[checks]]"))
    world.config = configuration.load(world.app)
    for gate in world.gates:
        gate.close()
    world.gates.clear()


def verdict_now(world: World, task: str) -> str | None:
    """What is shown of the change as merged with the target of now."""
    found = {change.task: change.merged for change in overview.queue(world.work).changes}[task]
    assert found is not None and found.target == world.main
    return found.verdict.value if found.verdict is not None else None


# -- Whole runs ------------------------------------------------------------------------------------


def run_with(world: World, script: str, *tasks: str) -> tuple[int, str]:
    """`swarm run` with one slot and a shell script as agent; its exit code and what it said."""
    folder = world.app / "tasks"
    folder.mkdir(exist_ok=True)
    for task in tasks or ("one",):
        (folder / f"{task}.md").write_text(f"---\ntitle: {task}\n---\nDo it.\n")
    agent = world.folder / "agent.sh"
    agent.write_text(f"#!/bin/sh\n{script}\n")
    agent.chmod(0o755)
    done = run_swarm(world.app, "run", "-n", "1", "--", str(agent))
    world.step()
    return done.returncode, done.stdout + done.stderr


def test_a_run_ends_when_what_is_held_is_judged_and_not_before(make: Make) -> None:
    world = make(check="[ ! -f x.txt ] || sleep 1")
    code, said = run_with(world, "echo x >x.txt")
    assert code == 1 and world.state("one") is State.HELD, said
    assert verdict_now(world, "one") == "passed"
    before = runs(world)
    code, said = run_with(world, "echo x >x.txt")
    assert code == 1 and runs(world) == before, said


def test_a_run_waits_for_the_one_verdict_that_its_own_gate_will_take(make: Make) -> None:
    world = make()
    world.work_gate()
    other = Supervisor(world.setting(), world.gate("r2-test"), ())
    own = Supervisor(world.setting(), world.gate(), ())
    assert not own._can_move(world.ledger.view())
    task = sealed(world, "Reviewed", "a.txt", "a\n")
    assert own._can_move(world.ledger.view()), "not judged yet"
    other.gate.tick()
    assert not other._can_move(world.ledger.view()), "another runner is the gate"
    world.work_gate()
    assert not own._can_move(world.ledger.view()), "judged; the rest is a person's"
    world.push("theirs.txt", "theirs\n")
    assert own._can_move(world.ledger.view()), "the target has moved"
    world.work_gate()
    said_yes(world, task)
    assert own._can_move(world.ledger.view()), "it can land"


def test_a_run_tries_again_what_was_red_before_anybody_read_it(make: Make) -> None:
    world = make()
    code, said = run_with(world, '[ "$SWARM_ATTEMPT" = 1 ] && echo RED >x.txt || echo g >x.txt')
    assert code == 1 and world.state("one") is State.HELD, said
    entry = entry_of(world, "one")
    assert entry.token == 2 and verdict_now(world, "one") == "passed"


def test_a_run_does_not_wait_for_what_is_not_judged_before_a_word(make: Make) -> None:
    world = make(config="")
    code, said = run_with(world, "echo hush >deploy.pem; git add -A; git commit -qm key")
    assert code == 1 and reasons(world, "one") == {"secret": ["deploy.pem"]}, said


def test_gate_once_judges_what_is_held(make: Make) -> None:
    world = make()
    task = sealed(world, "Reviewed", "a.txt", "a\n")
    done = run_swarm(world.app, "gate", "--once")
    world.step()
    assert done.returncode == 1 and "1 still queued or held" in done.stdout
    assert verdict_now(world, task) == "passed"


KEEP = 'mkdir -p {folder}/prompts; cp "$SWARM_PROMPT" {folder}/prompts/$SWARM_ATTEMPT\n'


def test_the_words_of_a_rejection_are_in_the_next_prompt_and_in_show(
    make: Make, typed: Typed
) -> None:
    world = make()
    script = KEEP.format(folder=world.folder) + "echo $SWARM_ATTEMPT >x.txt"
    assert run_with(world, script)[0] == 1
    code, out, _ = typed(world, "reject", "one", "use the cart's own total, not a copy")
    assert code == 0 and "rejected  one" in out
    assert run_with(world, script)[0] == 1
    prompt = (world.folder / "prompts/2").read_text()
    assert "use the cart's own total, not a copy" in prompt
    assert "own total" not in (world.folder / "prompts/1").read_text()
    _, out, _ = typed(world, "show", "one")
    assert "use the cart's own total, not a copy" in out
    assert world.state("one") is State.HELD and last(world, "one").strike is False


# -- What a person types ---------------------------------------------------------------------------


def test_approving_all_twice_gives_the_same_end(make: Make, typed: Typed) -> None:
    world = make()
    tasks = [sealed(world, f"Held {n}", f"{n}.txt", "x\n", slot=f"s{n}") for n in (1, 2)]
    code, out, _ = typed(world, "approve", "--all")
    assert code == 0 and out.count("approved  held-") == 2
    tip = world.ledger.view().tip
    code, _, err = typed(world, "approve", "--all")
    assert code == 1 and "nothing is held" in err and world.ledger.view().tip == tip
    assert all(world.state(task) is State.QUEUED for task in tasks)


def test_rejecting_twice_is_refused_the_second_time(make: Make, typed: Typed) -> None:
    world = make()
    task = sealed(world, "Reviewed", "a.txt", "a\n")
    assert typed(world, "reject", task, "no")[0] == 0
    tip = world.ledger.view().tip
    code, _, err = typed(world, "reject", task, "no")
    assert code == 2 and "reviewed is ready, not held" in err
    assert world.ledger.view().tip == tip


def test_status_queue_approve_and_diff_say_why_since_when_and_how_it_was_judged(
    make: Make, typed: Typed
) -> None:
    world = make(config="")
    task = sealed(world, "CI", ".swarm/ci.yml", "x\n")
    tip = f"main {world.main[:7]}"

    def told() -> list[str]:
        return [
            " ".join(part.split("  swarm ")[0] for part in typed(world, "status")[1].split("\n")),
            typed(world, "queue")[1],
            typed(world, "diff", task)[2],
            typed(world, "diff", task, "--merged")[2],
        ]

    for said in told():
        plain = " ".join(said.split())
        assert "touches .swarm/ci.yml (protected)" in plain, said
        assert "since 2026-01-02 03:04" in plain and f"not judged on {tip} yet" in plain, said
    world.work_gate()
    for said in told():
        assert f"tests passed on {tip}" in " ".join(said.split()), said
    for verb, where in (("queue", "changes"), ("status", "queue")):
        found = json.loads(typed(world, verb, "--json")[1])[where][0]
        assert found["state"] == "held" and found["held_since"] == "2026-01-02T03:04:05Z"
        assert found["merged"]["target"] == world.main
        assert found["merged"]["verdict"]["value"] == "passed"
    found = json.loads(typed(world, "diff", task, "--json")[1])
    assert found["why"] == "touches .swarm/ci.yml (protected)"
    assert found["merged"]["verdict"]["check"] == "tests"
    code, out, _ = typed(world, "approve", task)
    assert code == 0 and "was held: protected .swarm/ci.yml; since 2026-01-02 03:04" in out
    assert f"tests passed on {tip}" in out


def test_an_old_verdict_is_not_taken_for_one_of_the_target_of_now(make: Make) -> None:
    world = make()
    task = sealed(world, "Reviewed", "a.txt", "a\n")
    world.work_gate()
    assert verdict_now(world, task) == "passed"
    world.push("theirs.txt", "theirs\n")
    assert verdict_now(world, task) is None
    world.work_gate()
    assert verdict_now(world, task) == "passed"


def test_what_cannot_be_found_out_is_unknown(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make()
    sealed(world, "Reviewed", "a.txt", "a\n")
    world.push("theirs.txt", "theirs\n")

    def broken(*_: object) -> None:
        raise GitFault("git merge-tree failed", why="unable to read")

    monkeypatch.setattr(merged, "merge_trees", broken)
    found = overview.queue(world.work)
    assert found.changes[0].merged is None
    assert "unknown how it merges" in "\n".join(render_queue(found))


def test_every_check_that_applies_must_have_judged_it(make: Make) -> None:
    docs = '[[checks]]\nname = "docs"\nrun = "! grep -qs DOCSBAD docs/*"\npaths = ["docs/**"]\n'
    asked = '[[checks]]\nname = "slow"\nrun = "exit 1"\nwhen = "asked"\n'
    log = '[[checks]]\nname = "log"\nrun = "git log -1"\nreads = "history"\n'
    world = make(ALL + docs + asked + log)
    plain = sealed(world, "Plain", "a.txt", "a\n")
    other = sealed(world, "Docs", "docs/x.md", "x\n", slot="s2")
    shown = {change.task: change.merged for change in overview.queue(world.work).changes}
    assert [merged and merged.checks for merged in (shown[plain], shown[other])] == [
        ["log", "tests"],
        ["docs", "log", "tests"],
    ]
    world.work_gate()
    assert verdict_now(world, plain) == "passed" == verdict_now(world, other)
    world.push("theirs.txt", "theirs\n")
    assert verdict_now(world, other) is None, "docs is as it was, and the history is another"


def test_a_held_change_that_is_checked_now_says_so(make: Make, tmp_path: Path) -> None:
    world = make(check=waits_for(tmp_path / "go", "a.txt"))
    task = sealed(world, "Reviewed", "a.txt", "a\n")
    gate = start_check(world, task)
    doing = gate.activity
    assert doing is not None and (doing.task, doing.is_held) == (task, True)
    alive = world.live()
    check = LiveCheck(tasks=[task], check="tests", role=doing.role, since=doing.since)
    live = overview.Live(run="r1-test", runner="r1-test", at=world.clock.now(), checks=[check])
    write_live(live_path(world.layout, "r1-test"), live, None)
    world.clock.pass_(seconds=23)
    found = overview.queue(world.work)
    assert [(c.state, c.check, c.for_seconds) for c in found.changes] == [("held", "tests", 23.0)]
    assert "held since 03:04:05, checking tests 00:23" in "\n".join(render_queue(found))
    screen = " ".join("\n".join(render_status(overview.status(world.work))).split())
    assert "checking tests" in screen
    supervisor = Supervisor(world.setting(), gate, ())
    at = overview.stand(world.ledger.view(), world.ledger.index)
    assert "held, checking tests on the merged tree" in table(supervisor, at, doing.since, {})[-1]
    alive.close()


# -- As merged with the target of now --------------------------------------------------------------


def test_diff_merged_is_what_would_land_now_and_nothing_of_others(make: Make, typed: Typed) -> None:
    world = make(files={"f.txt": LINES, "g.txt": "g\n"})
    task = sealed(world, "Mine", "f.txt", LINES.replace("line 3\n", "mine\n"))
    world.push("f.txt", LINES.replace("line 18\n", "theirs\n"))
    world.push("g.txt", "theirs\n")
    code, patch, head = typed(world, "diff", task, "--merged")
    assert code == 0 and "+mine" in patch and "theirs" not in patch
    assert f"as merged: not judged on main {world.main[:7]} yet" in head
    git(world.app, "pull", "-q", "--ff-only", "swarm", "main")
    (world.folder / "patch").write_text(patch)
    git(world.app, "apply", "--index", str(world.folder / "patch"))
    world.work_gate()
    said_yes(world, task)
    world.work_gate()
    landed = git(world.layout.hub, "rev-parse", "main^{tree}")
    assert git(world.app, "write-tree") == landed, "byte for byte what landed"
    code, patch, head = typed(world, "diff", task, "--merged", "--stat")
    assert code == 0 and "f.txt" in patch and "landed" in head and "g.txt" not in patch


def test_diff_merged_takes_the_attributes_of_the_target(make: Make, typed: Typed) -> None:
    world = make(files={"log.txt": "1\n", ".gitattributes": "log.txt merge=union\n"})
    task = sealed(world, "Mine", "log.txt", "1\nmine\n")
    world.push("log.txt", "1\ntheirs\n")
    code, patch, _ = typed(world, "diff", task, "--merged")
    assert code == 0 and "+mine" in patch and "<<<<" not in patch


def test_diff_merged_of_a_conflict_names_the_paths_and_ends_with_1(
    make: Make, typed: Typed
) -> None:
    world = make(files={"f.txt": LINES, "src/\u0435.txt": "1\n"})
    task = world.add("Mine")
    agent = world.agent(task).write("f.txt", LINES.replace("line 3\n", "mine\n"))
    agent.write("src/\u0435.txt", "mine\n").commit().seal()
    world.push("f.txt", LINES.replace("line 3\n", "theirs\n"))
    tip = world.push("src/\u0435.txt", "theirs\n")
    before = world.hub.refs_below("refs")
    code, patch, said = typed(world, "diff", task, "--merged")
    assert code == 1 and not patch
    assert said.splitlines() == [
        f"mine   held   conflicts with main {tip[:7]} in 2 files",
        "  f.txt",
        "  src/\u0435.txt",
    ]
    code, out, _ = typed(world, "diff", task, "--merged", "--json")
    found = json.loads(out)
    assert code == 1 and found["new"] is None and found["old"] == tip
    assert found["merged"]["conflicts"] == ["f.txt", "src/\u0435.txt"]
    assert world.hub.refs_below("refs") == before, "looking moves nothing"
    assert typed(world, "diff", task)[0] == 0, "alone it can be read"
    _, out, _ = typed(world, "approve", task)
    assert f"conflicts with main {tip[:7]} in f.txt, src/\u0435.txt" in out


def test_diff_merged_of_a_history_of_its_own_and_of_nothing(make: Make, typed: Typed) -> None:
    world = make()
    task = world.add("Orphan")
    assert typed(world, "diff", task, "--merged")[0] == 1
    agent = world.agent(task)
    agent.git("checkout", "-q", "--orphan", "fresh")
    agent.write("mine.txt", "mine\n").commit("all anew").seal()
    code, patch, said = typed(world, "diff", task, "--merged")
    assert code == 1 and not patch and "shares no commit with main" in said


def test_diff_merged_says_that_it_is_red(make: Make, typed: Typed) -> None:
    """The same tree came before, so its verdict is known although the gate has not looked yet."""
    world = make()
    task = sealed(world, "Red", "a.txt", "RED\n")
    world.work_gate()
    agent = world.agent(task)
    agent.git("commit", "-q", "--allow-empty", "-m", "the same again")
    agent.seal()
    assert world.state(task) is State.HELD
    head = typed(world, "diff", task, "--merged")[2]
    assert f"as merged: tests FAILED on main {world.main[:7]}" in head


# -- Protected -------------------------------------------------------------------------------------

GUARDED = '[gate]\nprotect = ["swarm.toml", ".swarm/**", ".github/workflows/ci.yml", "ci/"]\n'
FILES = {
    "README.md": "app\n",
    "plain.txt": LINES,
    ".swarm/prompt.md": LINES + "prompt\n",
    "ci/run.sh": LINES + "run\n",
}


def rename_in(agent: Agent) -> None:
    agent.git("mv", "plain.txt", ".swarm/plain.txt")


def rename_out(agent: Agent) -> None:
    agent.git("mv", ".swarm/prompt.md", "prompt.md")


def delete(agent: Agent) -> None:
    agent.git("rm", "-q", "ci/run.sh")


def make_executable(agent: Agent) -> None:
    (agent.tree / "ci/run.sh").chmod(0o755)


def link_instead(agent: Agent) -> None:
    (agent.tree / "ci/run.sh").unlink()
    (agent.tree / "ci/run.sh").symlink_to("../plain.txt")


def link_the_folder(agent: Agent) -> None:
    agent.git("mv", "ci", "elsewhere")
    (agent.tree / "ci").symlink_to("elsewhere")


def link_where_a_folder_would_be(agent: Agent) -> None:
    (agent.tree / ".github").symlink_to("docs")


def file_where_a_folder_would_be(agent: Agent) -> None:
    agent.git("rm", "-rq", ".swarm")
    agent.write(".swarm", "a file\n")


def other_case(agent: Agent) -> None:
    agent.write("Swarm.TOML", "format = 1\n").write(".SWARM/prompt.md", "x\n")


def long_s(agent: Agent) -> None:
    """It is the same name where case does not count."""
    agent.write("\u017fwarm.toml", "format = 1\n")


@pytest.mark.parametrize(
    ("touch", "paths"),
    [
        (rename_in, [".swarm/plain.txt"]),
        (rename_out, [".swarm/prompt.md"]),
        (delete, ["ci/run.sh"]),
        (make_executable, ["ci/run.sh"]),
        (link_instead, ["ci/run.sh"]),
        (link_the_folder, ["ci", "ci/run.sh"]),
        (link_where_a_folder_would_be, [".github"]),
        (file_where_a_folder_would_be, [".swarm", ".swarm/prompt.md"]),
        (other_case, [".SWARM/prompt.md", "Swarm.TOML"]),
        (long_s, ["\u017fwarm.toml"]),
    ],
)
def test_T17_a_protected_path_is_held_however_it_is_touched(
    make: Make, touch: Callable[[Agent], None], paths: list[str]
) -> None:
    world = make(GUARDED, files=FILES)
    task = world.add("Odd")
    agent = world.agent(task)
    touch(agent)
    agent.commit().seal()
    world.work_gate()
    assert world.state(task) is State.HELD
    assert reasons(world, task)["protected"] == paths


def test_T17_what_only_looks_like_a_protected_path_is_not_held(make: Make) -> None:
    world = make(GUARDED, files=FILES)
    task = world.add("Plain")
    agent = world.agent(task)
    for path in ("swarm.toml.md", "swarm/prompt.md", ".github/workflows/cd.yml", "cid", "x.ci/run"):
        agent.write(path, f"{path}\n")
    agent.commit().seal()
    world.work_gate()
    assert world.state(task) is State.LANDED, reasons(world, task)


def test_T17_a_path_that_the_target_moved_under_protection_is_held(make: Make) -> None:
    """The change edits an old name; merged, it edits the protected file."""
    world = make(GUARDED, files=FILES)
    task = sealed(world, "Edit", "plain.txt", LINES.replace("line 3\n", "mine\n"))
    git(world.app, "mv", "plain.txt", ".swarm/plain.txt")
    git(world.app, "commit", "-q", "-m", "moved")
    git(world.app, "push", "-q", "swarm", "HEAD:main")
    world.work_gate()
    assert world.state(task) is State.HELD
    assert reasons(world, task) == {"protected": [".swarm/plain.txt"]}


def test_T17_a_new_swarm_toml_counts_after_pull_and_a_new_start(make: Make) -> None:
    world = make(config="")
    toml = (world.app / "swarm.toml").read_text()
    git(world.app, "add", "swarm.toml")
    git(world.app, "commit", "-q", "-m", "adopt swarm")
    git(world.app, "push", "-q", "swarm", "HEAD:main")
    lax = toml[: toml.index("[[checks]]")] + '[[checks]]\nname = "tests"\nrun = "true"\n'
    task = sealed(world, "Lax", "swarm.toml", lax)
    red = sealed(world, "Red", "red.txt", "RED\n", slot="s2")
    world.work_gate()
    said_yes(world, task)
    world.work_gate()
    world.gate().close()
    assert world.state(task) is State.LANDED
    assert last(world, red).outcome == "check_failed", "judged by the old one"
    world.agent(red, slot="s2").write("red.txt", "RED again\n").commit().seal()
    assert run_swarm(world.app, "gate", "--once").returncode == 0, "nothing is left in the queue"
    world.step()
    assert last(world, red).outcome == "check_failed", "landed is not pulled"
    assert run_swarm(world.app, "pull").returncode == 0
    assert (world.app / "swarm.toml").read_text() == lax
    late = sealed(world, "Late", "late.txt", "RED\n", slot="s3")
    assert run_swarm(world.app, "gate", "--once").returncode == 0
    assert world.state(late) is State.LANDED, "now a person has taken it"
