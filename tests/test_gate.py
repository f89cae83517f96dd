"""The gate: what lands, what is sent back and why, and whom it never blames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from swarm import gate as gates
from swarm import prompt
from swarm.errors import GitFault, UsageError
from swarm.gate import Gate
from swarm.ledger.records import Last, Verdict
from swarm.ledger.view import State
from swarm.plumbing.hub import work_ref
from swarm.steer import pause, resume
from swarm.task import Changed, approve, cancel, reject
from tests.world import CHECK, Agent, World, git, run_swarm

Make = Callable[..., World]
LINES = "".join(f"line {n}\n" for n in range(1, 21))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Worlds with a configuration of their own; `counted` checks write down each of their runs."""
    made: list[World] = []

    def build(*, check: str | None = CHECK, **how: object) -> World:
        folder = tmp_path / f"w{len(made)}"
        folder.mkdir()
        counted = None if check is None else f"echo run >>{folder}/runs\n{check}"
        made.append(World(folder, check=counted, **how))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for world in made:
        world.close()


def runs(world: World) -> int:
    """How often the check has run."""
    path = world.folder / "runs"
    return len(path.read_text().split()) if path.exists() else 0


def sealed(
    world: World, title: str, path: str, text: str, *, slot: str = "s1", **keys: object
) -> str:
    """A task whose change waits in the queue."""
    task = world.add(title, **keys)
    world.agent(task, slot=slot).write(path, text).commit(title).seal()
    return task


def last(world: World, task: str) -> Last:
    attempts = world.ledger.view().attempts(task)
    assert attempts is not None and attempts.last is not None
    return attempts.last


def strikes(world: World, task: str) -> int:
    attempts = world.ledger.view().attempts(task)
    return len(attempts.strikes) if attempts else 0


def next_prompt(world: World, task: str) -> str:
    """What the next attempt is told."""
    ended = last(world, task)
    return prompt.render(
        prompt.PromptFacts(
            task=prompt.TaskFacts(id=task, title=task, body="Do it."),
            branch=task,
            attempt=ended.token + 1,
            last=prompt.LastFacts(message=ended.message, detail=ended.detail),
            checks=(prompt.CheckFacts(name="tests", run="check"),),
        ),
        None,
    )


def paused(world: World) -> str | None:
    """Why the queue is paused."""
    gate = world.ledger.view().gate()
    assert gate is not None
    return gate.paused.why if gate.paused else None


def start_check(world: World, runner: str = "r1-test") -> Gate:
    """Tick until a candidate's check runs."""
    gate = world.gate(runner)
    for _ in range(200):
        gate.tick()
        job = gate.job
        if job is not None and job.running is not None and job.running.child is not None:
            if job.candidate is not None:
                return gate
            job.running.child.wait(10)
    raise AssertionError("no check of a candidate was started")


# Landing


def test_a_gate_without_a_check_refuses_to_run(make: Make) -> None:
    world = make(check=None)
    with pytest.raises(UsageError, match="no \\[\\[checks\\]\\]"):
        world.gate()


def test_green_work_lands_and_a_red_one_goes_back_with_a_strike(make: Make) -> None:
    world = make()
    good = sealed(world, "Good", "good.txt", "good\n")
    bad = sealed(world, "Bad", "bad.txt", "RED\n", slot="s2")
    world.work_gate()
    assert world.state(good) is State.LANDED
    assert world.state(bad) is State.OPEN
    assert last(world, bad).outcome == "check_failed"
    assert strikes(world, bad) == 1
    assert world.file("bad.txt") is None


def test_M24_the_next_attempt_is_told_command_exit_code_tests_output_and_base(make: Make) -> None:
    check = (
        'if grep -qs RED bad.txt; then echo "FAILED tests/test_a.py::test_b - no"; '
        "echo the last line; exit 1; fi"
    )
    world = make(check=check)
    bad = sealed(world, "Bad", "bad.txt", "RED\n")
    world.work_gate()
    told = next_prompt(world, bad)
    assert "tests failed" in told
    assert check.splitlines()[0] in told, "the command"
    assert "Exit code: 1; on its base: passed." in told
    assert "tests/test_a.py::test_b" in told and "the last line" in told
    log = last(world, bad).log
    assert log is not None and (world.layout.root / log).is_file(), "where the whole log is"
    assert str(world.layout.root / log) in told
    again = world.agent(bad)
    assert again.mine.token == 2 and (again.tree / "bad.txt").read_text() == "RED\n", "its own work"


def test_M7_a_change_without_a_file_is_no_work_and_is_not_merged(make: Make) -> None:
    world = make()
    before = world.main
    task = world.add("Empty")
    agent = world.agent(task)
    agent.git("commit", "-q", "--allow-empty", "-m", "done!")
    agent.seal()
    world.work_gate()
    assert world.main == before
    assert last(world, task).outcome == "no_work" and strikes(world, task) == 1


def test_M2_a_dirty_checkout_is_nobodys_business(make: Make) -> None:
    world = make()
    (world.app / "src" / "a.txt").write_text("mine\n")
    (world.app / "new.txt").write_text("mine too\n")
    git(world.app, "add", "new.txt")
    status = git(world.app, "status", "--porcelain")
    sealed(world, "Same file", "src/a.txt", "1\n2\n3\n4\n")
    sealed(world, "New file", "new.txt", "theirs\n", slot="s2")
    world.work_gate()
    assert world.events().count("landed") == 2
    assert git(world.app, "status", "--porcelain") == status
    assert (world.app / "new.txt").read_text() == "mine too\n"


def test_M3_the_configured_target_is_the_one_that_moves(make: Make) -> None:
    world = make(target="dev")
    git(world.app, "branch", "main")
    git(world.app, "push", "-q", "swarm", "main")
    before = git(world.layout.hub, "rev-parse", "main")
    task = sealed(world, "To dev", "a.txt", "a\n")
    world.work_gate()
    assert world.state(task) is State.LANDED and world.file("a.txt") == "a\n"
    assert git(world.layout.hub, "rev-parse", "main") == before


# Conflicts


def test_M1_M16_a_conflict_goes_back_with_both_sides_and_the_next_merge_is_clean(
    make: Make,
) -> None:
    world = make(files={"f.txt": LINES})
    one = sealed(world, "One", "f.txt", LINES.replace("line 10\n", "one\n"))
    two = sealed(world, "Two", "f.txt", LINES.replace("line 10\n", "two\n"), slot="s2")
    three = sealed(world, "Three", "g.txt", "g\n", slot="s3")
    world.work_gate()
    assert world.state(one) is State.LANDED and world.state(three) is State.LANDED
    back = last(world, two)
    assert (back.outcome, back.partner, back.paths) == ("conflict", one, ["f.txt"])
    assert strikes(world, two) == 0, "a conflict is no strike"
    assert "one" in (world.file("f.txt") or ""), "the first one's text is intact"
    again = world.agent(two)
    text = (again.tree / "f.txt").read_text()
    assert "<<<<<<<" in text and "\none\n" in text and "\ntwo\n" in text
    again.write("f.txt", LINES.replace("line 10\n", "one\ntwo\n")).commit("both").seal()
    world.work_gate()
    assert world.state(two) is State.LANDED
    assert "one\ntwo\n" in (world.file("f.txt") or "")


def test_conflicts_park_at_their_own_bound(make: Make) -> None:
    world = make(
        files={"f.txt": LINES},
        config='[limits]\nbackoff = "0s"\ngrace = "1s"\nconflicts = 2\n',
    )
    task = world.add("Unlucky")
    for number in range(2):
        agent = world.agent(task)
        agent.write("f.txt", LINES.replace("line 10\n", f"mine {number}\n")).commit("mine")
        world.land(f"Other {number}", "f.txt", LINES.replace("line 10\n", f"{number}\n"), slot="s2")
        agent.seal()
        world.work_gate()
    assert world.state(task) is State.PARKED
    parked = world.ledger.view().parked(task)
    assert parked is not None and parked.reason == "conflicts" and not parked.strikes


CALLER = """
[ ! -f caller ] || grep -q "^def old" lib || { echo 'FAILED test_call.py::test_old'; exit 1; }
"""


def test_M8_M9_green_alone_and_red_as_merged_names_the_partner(make: Make) -> None:
    world = make(files={"lib": "def old\n"}, check=CALLER)
    caller = world.add("Call it")
    agent = world.agent(caller).write("caller", "old\n").commit("call")
    for number in range(2):
        world.land(f"Before {number}", f"b{number}.txt", "b\n", slot="s2")
    partner = world.land("Rename it", "lib", "def new\n", slot="s2")
    for number in range(4):
        world.land(f"After {number}", f"a{number}.txt", "a\n", slot="s2")
    before = runs(world)
    agent.seal()
    world.work_gate()
    back = last(world, caller)
    assert back.outcome == "semantic_conflict" and back.partner == "rename-it"
    assert strikes(world, caller) == 0, "nobody's fault alone"
    attempts = world.ledger.view().attempts(caller)
    assert attempts is not None and attempts.conflicts == 1
    # As merged and alone; then halving 7 landings: 3 more, and every red one is tried twice.
    assert runs(world) - before <= 2 + 1 + 3 * 2
    told = next_prompt(world, caller)
    assert "rename-it" in told and "lib |" in told, "the partner's changes"
    assert git(world.layout.hub, "log", "-1", "--format=%s", partner) == "Rename it"
    again = world.agent(caller)
    assert (again.tree / "lib").read_text() == "def new\n", "the target is merged in"
    again.write("lib", "def new\ndef old\n").commit("keep both").seal()
    world.work_gate()
    assert world.state(caller) is State.LANDED


def test_M8_the_partner_may_be_a_persons_push(make: Make) -> None:
    world = make(files={"lib": "def old\n"}, check=CALLER)
    caller = world.add("Call it")
    agent = world.agent(caller).write("caller", "old\n").commit("call")
    pushed = world.push("lib", "def new\n")
    agent.seal()
    world.work_gate()
    assert last(world, caller).partner == pushed[:10]


# The base


def test_C15_a_red_target_opens_one_task_that_repairs_it_and_blames_nobody(make: Make) -> None:
    world = make(files={"src/a.txt": "RED\n", "README.md": "app\n"})
    bystander = sealed(world, "Bystander", "b.txt", "b\n")
    world.work_gate()
    assert world.state("fix-main") is State.OPEN
    assert world.state(bystander) is State.QUEUED and strikes(world, bystander) == 0
    why = paused(world)
    assert why is not None and "main" in why and "red" in why
    sealed(world, "Other", "c.txt", "c\n", slot="s2")
    world.work_gate()
    assert world.events().count("landed") == 0, "the queue is paused for all but one"
    assert world.events().count("added") == 3, "one task to repair it, however often it is seen"
    answer = world.acquire(slot="s3")
    assert getattr(answer, "lock", None) and answer.lock.task == "fix-main", "before all others"  # type: ignore[union-attr]
    world.close()


def repair(world: World, task: str, text: str) -> Agent:
    """An attempt at a red target."""
    return world.agent(task, slot="s3").write("src/a.txt", text).commit("repair")


def test_C15_the_first_green_tip_resumes_and_the_next_red_one_has_a_task_of_its_own(
    make: Make,
) -> None:
    world = make(files={"src/a.txt": "RED\n", "README.md": "app\n"})
    bystander = sealed(world, "Bystander", "b.txt", "b\n")
    world.work_gate()
    repair(world, "fix-main", "good\n").seal()
    world.work_gate()
    assert world.state("fix-main") is State.LANDED
    assert paused(world) is None and world.state(bystander) is State.LANDED
    world.push("src/a.txt", "RED again\n")
    second = sealed(world, "Second", "c.txt", "c\n")
    world.work_gate()
    assert world.state("fix-main-2") is State.OPEN and world.state(second) is State.QUEUED
    world.push("src/a.txt", "good again\n")
    world.work_gate()
    assert paused(world) is None, "a person's push that is green resumes too"
    assert world.state(second) is State.LANDED
    assert world.state("fix-main-2") is State.CANCELLED, "nobody had begun, and nobody need"


def test_C15_a_repair_that_somebody_has_begun_is_left_to_them(make: Make) -> None:
    world = make(files={"src/a.txt": "RED\n", "README.md": "app\n"})
    sealed(world, "Bystander", "b.txt", "b\n")
    world.work_gate()
    agent = repair(world, "fix-main", "good\n")
    world.push("src/a.txt", "better\n")
    world.work_gate()
    assert paused(world) is None and world.state("fix-main") is State.CLAIMED
    agent.seal()


def test_C15_a_repair_that_does_not_repair_goes_back(make: Make) -> None:
    """It must not keep its place: nobody but itself could ever make its base green."""
    world = make(files={"src/a.txt": "RED\n", "README.md": "app\n"})
    bystander = sealed(world, "Bystander", "b.txt", "b\n")
    world.work_gate()
    for number in range(3):
        repair(world, "fix-main", f"RED {number}\n").seal()
        world.work_gate()
        assert last(world, "fix-main").outcome == "check_failed"
        assert last(world, "fix-main").base_verdict == "failed"
    assert world.state("fix-main") is State.PARKED, "a person must look"
    assert paused(world) is not None and world.state(bystander) is State.QUEUED
    world.push("src/a.txt", "good\n")
    world.work_gate()
    assert world.state(bystander) is State.LANDED
    world.push("src/a.txt", "RED\n")
    sealed(world, "Late", "c.txt", "c\n")
    world.work_gate()
    assert world.state("fix-main-2") is State.OPEN, "the parked one is not waited for again"


def test_M4_a_check_that_cannot_run_blames_nobody_and_nothing_lands(make: Make) -> None:
    world = make(check="no-such-tool --check")
    task = sealed(world, "Innocent", "a.txt", "a\n")
    before = world.main
    world.work_gate()
    assert world.main == before and world.state(task) is State.QUEUED
    assert strikes(world, task) == 0
    why = paused(world)
    assert why is not None and "could not judge" in why


def with_tool(make: Make) -> tuple[World, Path]:
    """A world whose check is a program outside of it, which can go away."""
    world = make(check='exec "$TOOL"', config='[env]\npass = ["TOOL"]\n')
    tool = world.folder / "tool"
    tool.write_text("#!/bin/sh\n! grep -rqs RED --exclude-dir=.git .\n")
    tool.chmod(0o755)
    return world, tool


def test_M4_a_tool_that_goes_away_pauses_and_comes_back(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, tool = with_tool(make)
    monkeypatch.setenv("TOOL", str(tool))
    world.land("First", "first.txt", "1\n")
    one = sealed(world, "One", "one.txt", "1\n")
    tool.rename(tool.with_name("away"))
    world.work_gate()
    assert world.state(one) is State.QUEUED and strikes(world, one) == 0
    why = paused(world)
    assert why is not None and "could not run" in why
    assert runs(world) <= 2 + 4, "candidate and base, twice"
    tool.with_name("away").rename(tool)
    world.work_gate()
    assert paused(world) is not None, "not at every tick"
    world.clock.pass_(minutes=2)
    world.work_gate()
    assert paused(world) is None and world.state(one) is State.LANDED


def test_M4_a_new_run_looks_again(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world, tool = with_tool(make)
    monkeypatch.setenv("TOOL", str(tool))
    tool.rename(tool.with_name("away"))
    one = sealed(world, "One", "one.txt", "1\n")
    world.work_gate()
    assert paused(world) is not None
    tool.with_name("away").rename(tool)
    world.gate().close()
    world.work_gate("r2-test")
    assert paused(world) is None and world.state(one) is State.LANDED


def test_M4_a_change_that_takes_the_tool_away_is_to_blame(make: Make) -> None:
    world = make(files={"tool": "#!/bin/sh\nexit 0\n"}, check="sh tool || exit 127")
    task = sealed(world, "Break it", "tool", "exit 1\n")
    world.work_gate()
    assert last(world, task).outcome == "check_failed" and strikes(world, task) == 1
    assert last(world, task).base_verdict == "passed"


def test_M11_a_check_that_hangs_where_the_base_does_not_is_a_strike(make: Make) -> None:
    world = make(
        check="[ ! -f slow.txt ] || sleep 600",
        config='[limits]\nbackoff = "0s"\ngrace = "1s"\n',
    )
    task = sealed(world, "Slow", "slow.txt", "slow\n")
    shorten(world, 1)
    world.work_gate()
    assert last(world, task).outcome == "check_timed_out" and strikes(world, task) == 1
    assert "timed out" in last(world, task).message


def shorten(world: World, seconds: int, **keys: object) -> None:
    """Give the only check another time limit, or other settings."""
    import msgspec

    first = world.config.checks[0]
    check = msgspec.structs.replace(first, timeout=timedelta(seconds=seconds), **keys)
    world.config = msgspec.structs.replace(world.config, checks=(check,))


def test_M11_a_check_that_hangs_on_the_base_too_is_nobodys_fault(make: Make) -> None:
    """Its base was green a while ago; now the machine hangs, and that is tried before blaming."""
    world = make(check='[ ! -f "$HANG" ] || sleep 600', config='[env]\npass = ["HANG"]\n')
    shorten(world, 1, retries=0)
    hang = world.folder / "hang"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HANG", str(hang))
        world.land("First", "first.txt", "1\n")
        task = sealed(world, "Innocent", "a.txt", "a\n")
        hang.touch()
        world.work_gate()
    assert world.state(task) is State.QUEUED and strikes(world, task) == 0
    assert paused(world) is not None


# Whole runs


def run_with(world: World, script: str, *options: str) -> tuple[int, str]:
    """`swarm run` with one slot and a shell script as agent; its exit code and what it said."""
    folder = world.app / "tasks"
    folder.mkdir(exist_ok=True)
    (folder / "one.md").write_text("---\ntitle: One\n---\nDo it.\n")
    agent = world.folder / "agent.sh"
    agent.write_text(f"#!/bin/sh\n{script}\n")
    agent.chmod(0o755)
    done = run_swarm(world.app, "run", "-n", "1", *options, "--", str(agent))
    world.step()
    return done.returncode, done.stdout + done.stderr


def test_M24_the_feedback_is_in_the_prompt_of_the_next_attempt(make: Make) -> None:
    world = make(check='! grep -qs RED x.txt || { echo "FAILED t.py::test_x - no"; exit 1; }')
    keep = 'cp "$SWARM_PROMPT" ../../prompt-$SWARM_ATTEMPT\n'
    code, said = run_with(
        world, keep + '[ "$SWARM_ATTEMPT" = 1 ] && echo RED >x.txt || echo g >x.txt'
    )
    assert code == 0, said
    first = (world.layout.root / "prompt-1").read_text()
    second = (world.layout.root / "prompt-2").read_text()
    assert "sent back" not in first
    for told in (
        "sent back",
        "tests failed",
        "Exit code: 1",
        "t.py::test_x",
        "on its base: passed",
    ):
        assert told in second, second


def test_M4_a_run_refuses_to_start_where_nothing_could_be_judged(make: Make) -> None:
    world = make(check="no-such-tool")
    code, said = run_with(world, "echo x >x.txt")
    assert code == 13 and "cannot judge" in said and "no-such-tool" in said
    assert "claimed" not in world.events()


def test_C15_a_red_target_refuses_a_run_and_allow_red_repairs_it_first(make: Make) -> None:
    world = make(files={"src/a.txt": "RED\n"})
    script = '[ "$SWARM_TASK" = fix-main ] && echo good >src/a.txt || echo x >x.txt'
    code, said = run_with(world, script)
    assert code == 13 and "is red" in said
    assert "claimed" not in world.events() and world.state("fix-main") is State.ABSENT
    code, said = run_with(world, script, "--allow-red")
    assert code == 0, said
    assert landed_in_order(world) == ["fix-main", "one"]


# Flaky, reuse


FLAKY = """
n=$(cat "$COUNT" 2>/dev/null || echo 0)
echo $((n+1)) >"$COUNT"
[ ! -f a.txt ] || [ $((n%2)) = 0 ]
"""


@pytest.mark.parametrize("policy", ["land", "eject"])
def test_P3_green_at_the_second_try_is_flaky_and_the_policy_decides(
    make: Make, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make(check=FLAKY, config=f'[gate]\nflaky = "{policy}"\n[env]\npass = ["COUNT"]\n')
    monkeypatch.setenv("COUNT", str(world.folder / "count"))
    task = sealed(world, "Flaky", "a.txt", "a\n")
    world.work_gate()
    verdicts = stored(world)
    assert "flaky" in {v.verdict for v in verdicts}
    if policy == "land":
        assert world.state(task) is State.LANDED
    else:
        assert world.state(task) is State.OPEN
        assert last(world, task).outcome == "check_failed"
        assert "flaky" in last(world, task).message


def stored(world: World) -> list[Verdict]:
    """Verdicts in the present."""
    from swarm.ledger import records

    view = world.ledger.view()
    found = []
    for path, _ in view.iter_paths("verdicts"):
        found.append(records.decode(Verdict, view.raw(path) or b""))
    return found


def test_a_tree_that_was_judged_before_is_not_judged_again(make: Make) -> None:
    world = make()
    world.land("First", "first.txt", "1\n")
    before = runs(world)
    git(world.app, "pull", "-q", "--ff-only", "swarm", "main")
    git(world.app, "revert", "--no-edit", "-m", "1", "HEAD")
    git(world.app, "push", "-q", "swarm", "HEAD:main")
    world.work_gate()
    assert runs(world) == before, "the target shows its first tree again"
    task = world.add("Red")
    world.agent(task).write("x.txt", "RED\n").commit().seal()
    world.work_gate()
    failed = runs(world)
    assert failed == before + 2, "a red one is tried twice"
    again = world.agent(task)
    again.git("commit", "-q", "--allow-empty", "-m", "the same again")
    again.seal()
    world.work_gate()
    assert runs(world) == failed and strikes(world, task) == 2


def test_another_definition_judges_again(make: Make) -> None:
    world = make()
    world.land("First", "first.txt", "1\n")
    before = runs(world)
    world.gate().close()
    shorten(world, 99)
    world.work_gate("r2-test")
    assert runs(world) == before + 1


# Several checks


ASKED = """
[[checks]]
name = "slow"
run = "! grep -qs SLOWBAD *.txt"
when = "asked"
[[checks]]
name = "docs"
run = "echo run >>{folder}/docs; ! grep -qs DOCSBAD docs/*"
paths = ["docs/**"]
"""


def test_T17_a_task_adds_checks_and_the_paths_of_what_would_land_choose(
    make: Make, tmp_path: Path
) -> None:
    world = make(config=ASKED.replace("{folder}", str(tmp_path)))
    world.work_gate()
    docs = tmp_path / "docs"
    looked = len(docs.read_text().split())
    plain = sealed(world, "Plain", "a.txt", "SLOWBAD\n")
    world.work_gate()
    assert world.state(plain) is State.LANDED, "not asked for"
    assert len(docs.read_text().split()) == looked, "docs are not touched"
    cleaned = sealed(world, "Clean up", "a.txt", "fine\n")
    world.work_gate()
    assert world.state(cleaned) is State.LANDED
    asked = sealed(world, "Asked", "b.txt", "SLOWBAD\n", checks=["slow"])
    world.work_gate()
    assert last(world, asked).check == "slow"
    bad = sealed(world, "Docs", "docs/x.md", "DOCSBAD\n")
    world.work_gate()
    assert last(world, bad).check == "docs"
    done = world.ledger.view().done(plain)
    assert done is not None and [v.split("-")[1] for v in done.verdicts] == ["tests"]


def test_a_check_that_only_one_task_asks_for_may_be_red_before_it(make: Make) -> None:
    """An acceptance check of work that is not done yet is no red target."""
    config = '[[checks]]\nname = "accept"\nrun = "grep -qs yes done.txt"\nwhen = "asked"\n'
    world = make(config=config)
    task = sealed(world, "Accepted", "done.txt", "not yet\n", checks=["accept"])
    other = sealed(world, "Other", "o.txt", "o\n", slot="s2")
    world.work_gate()
    assert last(world, task).outcome == "check_failed" and strikes(world, task) == 1
    assert world.state(other) is State.LANDED and paused(world) is None
    world.agent(task).write("done.txt", "yes\n").commit().seal()
    world.work_gate()
    assert world.state(task) is State.LANDED


def test_a_check_that_reads_history_is_judged_by_commit(make: Make) -> None:
    config = (
        '[[checks]]\nname = "log"\nrun = "! git log --format=%s | grep -q WIP"\nreads = "history"\n'
    )
    world = make(config=config)
    task = world.add("Work in progress")
    agent = world.agent(task).write("a.txt", "a\n").commit("WIP")
    agent.seal()
    world.work_gate()
    assert last(world, task).check == "log"
    agent = world.agent(task)
    agent.git("commit", "-q", "--amend", "-m", "Finished")
    agent.seal()
    world.work_gate()
    assert world.state(task) is State.LANDED, "the same tree under another history"


# Held


def test_review_all_holds_every_change_until_a_person_says_yes(make: Make) -> None:
    world = make(config='[gate]\nreview = "all"\n')
    task = sealed(world, "Reviewed", "a.txt", "a\n")
    world.work_gate()
    assert world.state(task) is State.HELD and world.events().count("landed") == 0
    assert isinstance(approve(world.ledger, task, "person"), Changed)
    world.work_gate()
    assert world.state(task) is State.LANDED


def test_a_rejection_is_no_strike_and_its_words_reach_the_next_attempt(make: Make) -> None:
    world = make(config='[gate]\nreview = "all"\n')
    task = sealed(world, "Reviewed", "a.txt", "a\n")
    assert isinstance(reject(world.ledger, task, "use b.txt", "person", world.bounds), Changed)
    assert world.state(task) is State.OPEN and strikes(world, task) == 0
    assert "use b.txt" in next_prompt(world, task)
    again = world.agent(task)
    assert (again.tree / "a.txt").exists(), "it goes on from its own work"
    again.write("b.txt", "b\n").commit().seal()
    assert world.state(task) is State.HELD, "the earlier word is not a yes"


@pytest.mark.parametrize(
    ("path", "reason"),
    [("swarm.toml", "protected"), (".swarm/prompt.md", "protected"), ("deploy.pem", "secret")],
)
def test_T17_what_a_person_must_see_is_held_whatever_the_checks_say(
    make: Make, path: str, reason: str
) -> None:
    world = make()
    task = world.add("Odd")
    agent = world.agent(task).write("a.txt", "a\n").commit()
    agent.write(path, "x = 1\n")
    agent.seal()
    world.work_gate()
    assert world.state(task) is State.HELD
    entry = world.ledger.view().entry(task)
    assert entry is not None and [h.reason for h in entry.hold or ()] == [reason]
    approve(world.ledger, task, "person")
    world.work_gate()
    assert world.state(task) is State.LANDED
    landed = world.file(path)
    assert landed is None if reason == "secret" else landed == "x = 1\n"


def test_T17_what_steers_the_checks_can_be_protected(make: Make) -> None:
    """A conftest.py of the candidate's own can make every test pass: only a person sees that."""
    world = make(config='[gate]\nprotect = ["swarm.toml", "Makefile", "conftest.py"]\n')
    for number, path in enumerate(("Makefile", "tests/conftest.py", "swarm.toml")):
        task = sealed(world, f"Odd {number}", path, "x = 1\n", slot=f"s{number}")
        world.work_gate()
        assert reasons(world, task) == {"protected": [path]}


def test_T17_nothing_of_the_candidate_configures_how_it_is_judged(make: Make) -> None:
    """Its own swarm.toml, Makefile, attributes and task header say that all is well."""
    world = make(files={"src/a.txt": "a\n", "Makefile": "check:\n\tfalse\n"})
    task = world.add("Sly")
    agent = world.agent(task)
    toml = 'format = 1\n[[checks]]\nname = "tests"\nrun = "true"\n'
    agent.write("swarm.toml", toml).write("Makefile", "check:\n\ttrue\n")
    agent.write("tasks/sly.md", "---\ntitle: Sly\nchecks: []\n---\n").write("bad.txt", "RED\n")
    agent.commit().seal()
    approve(world.ledger, task, "person")
    world.work_gate()
    assert world.state(task) is not State.HELD, reasons(world, task)
    assert last(world, task).outcome == "check_failed"


# Guards


def test_T15_taking_ones_whole_side_in_a_merge_is_held(make: Make) -> None:
    world = make(files={"f.txt": LINES, "g.txt": LINES})
    task = world.add("Mine alone")
    agent = world.agent(task).write("f.txt", LINES.replace("line 10\n", "mine\n")).commit()
    world.land("Theirs", "g.txt", LINES.replace("line 3\n", "theirs\n"), slot="s2")
    agent.git("merge", "-q", "-s", "ours", "-m", "merged", world.main)
    agent.seal()
    world.work_gate()
    assert world.state(task) is State.HELD
    assert "side_taking" in reasons(world, task)


def test_T15_answering_a_conflict_with_ones_whole_side_is_held(make: Make) -> None:
    world = make(files={"f.txt": LINES})
    mine = LINES.replace("line 10\n", "mine\n")
    task = sealed(world, "Mine", "f.txt", mine, slot="s2", priority=-1)
    theirs = sealed(world, "Theirs", "f.txt", LINES.replace("line 10\n", "theirs\n"))
    world.work_gate()
    assert world.state(theirs) is State.LANDED and last(world, task).outcome == "conflict"
    again = world.agent(task, slot="s2")
    again.git("checkout", "--ours", ".")
    again.commit("resolved")
    again.seal()
    world.work_gate()
    assert world.state(task) is State.HELD
    assert "side_taking" in reasons(world, task)
    assert "theirs" in (world.file("f.txt") or "")


def test_T16_a_stale_tree_on_top_of_the_target_is_held(make: Make) -> None:
    """It puts old contents back and drops what is new, with a history in which nothing is odd."""
    world = make(files={"f.txt": LINES, "g.txt": "g\n"})
    task = world.add("Stale")
    agent = world.agent(task).write("mine.txt", "mine\n").commit()
    world.land("Better", "f.txt", LINES.replace("line 3\n", "better\n"), slot="s2")
    world.land("New", "new.txt", "new\n", slot="s2")
    tree = agent.git("rev-parse", "HEAD^{tree}")
    commit = agent.git("commit-tree", tree, "-p", world.main, "-m", "mine")
    agent.git("reset", "-q", "--soft", commit)
    agent.seal()
    world.work_gate()
    assert world.state(task) is State.HELD
    found = reasons(world, task)
    assert "f.txt" in found["reverted"], "a blob that the target had moved on from"
    assert found["containment"] == ["f.txt", "new.txt"], "more than the change ever meant"


def reasons(world: World, task: str) -> dict[str, list[str]]:
    entry = world.ledger.view().entry(task)
    assert entry is not None
    return {hold.reason: hold.paths for hold in entry.hold or ()}


def test_guards_are_quiet_about_honest_work(make: Make) -> None:
    """Renames on either side, a merge resolved with both, a file moved by the target."""
    world = make(files={"a.txt": LINES, "b.txt": LINES + "b\n", "c.txt": LINES + "c\n"})
    edit = world.add("Edit a")
    agent = world.agent(edit).write("a.txt", LINES.replace("line 3\n", "three\n")).commit()
    moving = world.add("Move")
    mover = world.agent(moving, slot="s2")
    mover.git("mv", "a.txt", "moved.txt")
    mover.commit("move").seal()
    world.work_gate()
    agent.seal()
    renamed = world.add("Rename b")
    other = world.agent(renamed, slot="s3")
    other.git("mv", "b.txt", "bb.txt")
    other.commit("rename").seal()
    world.work_gate()
    for task in (edit, moving, renamed):
        assert world.state(task) is State.LANDED, (task, reasons(world, task))
    assert "three" in (world.file("moved.txt") or "")


def test_markers_that_would_land_are_held(make: Make) -> None:
    world = make()
    text = "<<<<<<< ours\na\n=======\nb\n>>>>>>> theirs\n"
    task = sealed(world, "Marked", "m.txt", text)
    world.work_gate()
    assert "markers" in reasons(world, task)


@pytest.mark.parametrize(
    ("scope", "state"), [("warn", State.LANDED), ("hold", State.HELD), ("eject", State.OPEN)]
)
def test_D14_files_outside_the_paths_of_a_task_are_said_held_or_sent_back(
    make: Make, scope: str, state: State
) -> None:
    world = make(config=f'[gate]\nscope = "{scope}"\n')
    task = sealed(world, "Narrow", "elsewhere.txt", "x\n", paths=["src/**"])
    world.work_gate()
    assert world.state(task) is state
    if state is State.OPEN:
        assert "elsewhere.txt" in last(world, task).message


# In the middle


def test_a_cancelled_change_ends_its_check_and_the_next_one_goes_on(make: Make) -> None:
    world = make(check="[ ! -f slow.txt ] || sleep 600")
    slow = sealed(world, "Slow", "slow.txt", "slow\n", priority=1)
    other = sealed(world, "Other", "o.txt", "o\n", slot="s2")
    gate = start_check(world)
    assert gate.activity is not None and gate.activity.task == slow
    child = gate.job.running.child  # type: ignore[union-attr]
    assert isinstance(cancel(world.ledger, slow, "no longer needed", "person"), Changed)
    world.work_gate()
    assert child is not None and child.poll() is not None, "nothing of it runs on"
    assert world.state(slow) is State.CANCELLED and world.state(other) is State.LANDED
    assert world.file("slow.txt") is None


def test_a_push_in_the_middle_of_a_check_is_built_upon(make: Make, tmp_path: Path) -> None:
    go = tmp_path / "go"
    world = make(check=f"[ ! -f mine.txt ] || while [ ! -f {go} ]; do sleep 0.05; done")
    task = sealed(world, "Mine", "mine.txt", "mine\n")
    start_check(world)
    pushed = world.push("theirs.txt", "theirs\n")
    go.touch()
    world.work_gate()
    assert world.state(task) is State.LANDED
    done = world.ledger.view().done(task)
    assert done is not None and done.previous == pushed, "never on a base that was not the target"
    assert world.file("theirs.txt") == "theirs\n" and world.file("mine.txt") == "mine\n"


def test_a_pause_in_the_middle_of_a_check_lands_nothing_and_costs_no_second_run(
    make: Make, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    world = make(check=f"[ ! -f mine.txt ] || while [ ! -f {go} ]; do sleep 0.05; done")
    task = sealed(world, "Mine", "mine.txt", "mine\n")
    start_check(world)
    assert pause(world.ledger, "release day", "person") is None
    go.touch()
    world.work_gate()
    assert world.state(task) is State.QUEUED and paused(world) == "release day"
    before = runs(world)
    assert resume(world.ledger, "person") is None
    world.work_gate()
    assert world.state(task) is State.LANDED and runs(world) == before


def test_priority_comes_first_then_age(make: Make) -> None:
    world = make()
    low = sealed(world, "Low", "l.txt", "l\n", slot="s1")
    world.clock.pass_(seconds=10)
    high = sealed(world, "High", "h.txt", "h\n", slot="s2", priority=10)
    world.clock.pass_(seconds=10)
    late = sealed(world, "Late", "t.txt", "t\n", slot="s3")
    world.work_gate()
    assert landed_in_order(world) == [high, low, late]


def test_M12_what_waited_too_long_goes_before_every_priority(make: Make) -> None:
    world = make(config='[gate]\nmax_wait = "1h"\n')
    old = sealed(world, "Old", "l.txt", "l\n", slot="s1")
    world.clock.pass_(hours=2)
    urgent = sealed(world, "Urgent", "h.txt", "h\n", slot="s2", priority=100)
    world.work_gate()
    assert landed_in_order(world) == [old, urgent]


def landed_in_order(world: World) -> list[str]:
    return [e.task for e in world.ledger.iter_log() if e.kind == "landed"][::-1]


def test_M12_what_a_fault_of_gits_keeps_from_being_judged_stops_nobody_else(make: Make) -> None:
    world = make()
    task = sealed(world, "Broken", "a.txt", "a\n", priority=1)
    other = sealed(world, "Other", "o.txt", "o\n", slot="s2")
    real = gates.build

    def broken(*given: Any, **keys: Any) -> Any:
        if given[2].task == task:
            raise GitFault("git merge-tree failed", why="unable to read")
        return real(*given, **keys)

    gate = world.gate()
    faults = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gates, "build", broken)
        while world.state(other) is not State.LANDED and faults < 5:
            try:
                world.work_gate()
            except GitFault:
                faults += 1
                gate.abandon()
    assert faults == 1, "looked at once, then left alone for a while"
    assert world.state(task) is State.QUEUED and strikes(world, task) == 0
    world.clock.pass_(minutes=1)
    world.work_gate()
    assert world.state(task) is State.LANDED


def test_a_history_without_a_common_commit_goes_back(make: Make) -> None:
    world = make()
    task = world.add("Orphan")
    agent = world.agent(task)
    agent.git("checkout", "-q", "--orphan", "fresh")
    agent.write("mine.txt", "mine\n").commit("all anew")
    head = agent.git("rev-parse", "HEAD")
    agent.seal()
    world.work_gate()
    assert world.state(task) is State.OPEN and strikes(world, task) == 1
    assert "no commit" in last(world, task).message
    assert world.hub.reader.ref(work_ref(task, 1)) == head, "its work is kept"
    again = world.agent(task)
    again.write("mine.txt", "mine\n").commit().seal()
    world.work_gate()
    assert world.state(task) is State.LANDED


def test_T12_a_change_waits_for_days_and_lands_when_a_gate_runs(make: Make) -> None:
    world = make()
    task = sealed(world, "Patient", "a.txt", "a\n")
    world.live().close()
    world.clock.pass_(days=3)
    assert not world.sweep().expired
    assert world.state(task) is State.QUEUED
    world.work_gate("r2-test")
    assert world.state(task) is State.LANDED


def test_M19_a_plain_bare_hub_and_no_remote_is_enough(make: Make) -> None:
    world = make()
    git(world.app, "remote", "remove", "swarm")
    task = sealed(world, "Local", "a.txt", "a\n")
    world.work_gate()
    assert world.state(task) is State.LANDED


def test_M21_nothing_of_ours_is_in_the_targets_tree(make: Make) -> None:
    world = make()
    world.land("First", "a.txt", "a\n")
    names = git(world.layout.hub, "ls-tree", "-r", "--name-only", "main").split()
    assert names == ["README.md", "a.txt", "src/a.txt"]
