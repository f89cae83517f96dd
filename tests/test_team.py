"""Mixed teams: who works in which slot, what is printed of each, and what is refused."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from swarm.cli import boundary
from swarm.cli.ready import Order, prepare
from swarm.workspace import opened
from tests.world import World, run_swarm

WORK = "#!/bin/sh\necho $0 > $SWARM_TASK.txt\n"


def member(world: World, name: str, script: str = WORK) -> None:
    """An adapter of the checkout's own whose program is a script on nobody's PATH."""
    own = world.app / ".swarm/agents"
    own.mkdir(parents=True, exist_ok=True)
    program = world.app.parent / f"{name}.sh"
    program.write_text(script)
    program.chmod(0o755)
    text = resources.files("swarm.agents").joinpath("command.toml").read_text("utf-8")
    text = text.replace('name = "command"', f'name = "{name}"\nprogram = "{program}"')
    (own / f"{name}.toml").write_text(text)


@pytest.fixture
def team(world: World) -> World:
    for name in ("ann", "bob"):
        member(world, name)
    (world.app / "tasks").mkdir(exist_ok=True)
    for title in ("one", "two", "three", "four"):
        (world.app / f"tasks/{title}.md").write_text(f"# {title}\n")
    return world


def test_a_mixed_team_works_to_the_end_each_in_its_slots(team: World) -> None:
    done = run_swarm(team.app, "run", "--agents", "ann:1,bob:2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "agent     ann (1 slot); each runs as you" in done.stdout
    assert "agent     bob (2 slots); each runs as you" in done.stdout
    view = team.ledger.view()
    record = view.run("r1")
    assert record is not None and (record.adapter, record.slots) == ("ann:1,bob:2", 3)
    used = {charge.adapter for one in view.all_attempts() for charge in one.charges}
    assert used <= {"ann", "bob"}
    for one in view.all_attempts():
        (charge,) = one.charges
        assert charge.slot == "s1" if charge.adapter == "ann" else charge.slot in ("s2", "s3")
        assert Path((team.file(f"{one.task}.txt") or "").strip()).name == f"{charge.adapter}.sh"
    team.step()


def test_a_team_of_the_configuration_and_its_roles_go_slot_by_slot(team: World) -> None:
    config = (team.app / "swarm.toml").read_text()
    extra = '[run]\nagents = "bob:1,ann:2"\nroles = "review:1,build:1"\nfallback = "ann"\n'
    (team.app / "swarm.toml").write_text(config + f"\n{extra}")
    with opened(team.app) as work:
        ready = prepare(work, Order())
        assert [(seat.adapter.name, seat.role) for seat in ready.seats] == [
            ("bob", "review"),
            ("ann", "build"),
            ("ann", ""),
        ]
        assert ready.fallback is not None and ready.fallback.adapter.name == "ann"
        one = prepare(work, Order(agent="ann", slots=2, roles="build:1"))
        assert [(seat.adapter.name, seat.role) for seat in one.seats] == [
            ("ann", "build"),
            ("ann", ""),
        ], "what is typed wins"
        single = prepare(work, Order(agents="bob:1", roles="build:1"))
        assert len(single.seats) == 1, "a team of one is one slot"


@pytest.mark.parametrize(
    ("words", "says", "hint"),
    [
        (("--agents", "ann"), "--agents: want name:count", "swarm run --agents claude:3,codex:2"),
        (("--agents", "ann:0"), "--agents: want name:count", "swarm run --agents"),
        (("--agents", "ann:1,an:1"), "there is no agent an", "did you mean ann?"),
        (("--agents", "ann:2,bob:1", "-n", "4"), "the team has 3 slots, -n says 4", "leave -n"),
        (("--agents", "ann:60,bob:60"), "120 slots are too many", "at most 64"),
        (("--agents", "ann:1", "--agent", "bob"), "--agents names a mixed team", ""),
        (("--agents", "ann:1", "--", "./x.sh"), "--agents names a mixed team", ""),
        (("--agents", "ann:1,bob:1", "--model", "m"), "--model is for one agent", ".swarm/agents"),
        (("--agent", "ann", "--model", "m"), "agent ann has no option model", "it has: none"),
        (("--agent", "ann", "--fallback", "nobody"), "there is no agent nobody", "known: "),
        (("--agents", "ann:1", "--roles", "build:2"), "2 slots have a role", "-n 2"),
        (("--agent", "ann", "--max-cost", "0"), "--max-cost", ""),
    ],
)
def test_what_makes_no_team_is_refused(
    team: World,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    says: str,
    hint: str,
) -> None:
    monkeypatch.chdir(team.app)
    assert boundary.run(["run", *words]) == 2
    said = "".join(capsys.readouterr())
    assert says in said and hint in said, said
    assert team.ledger.view().runs() == []


def test_each_member_of_a_team_is_found_before_anything_starts(team: World) -> None:
    (team.app.parent / "bob.sh").unlink()
    done = run_swarm(team.app, "run", "--agents", "ann:1,bob:1")
    assert done.returncode == 2 and "agent bob: cannot start" in done.stderr
    assert team.ledger.view().runs() == []


def test_a_member_that_is_logged_out_leaves_its_work_to_the_others(team: World) -> None:
    member(team, "bob", "#!/bin/sh\nexit 77\n")
    done = run_swarm(team.app, "run", "--agents", "bob:1,ann:1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(one.strikes == [] for one in team.ledger.view().all_attempts())


def test_a_limit_that_one_member_cannot_hold_is_refused(team: World) -> None:
    file = team.app / ".swarm/agents/bob.toml"
    file.write_text("\n".join(x for x in file.read_text().splitlines() if "cost_usd" not in x))
    done = run_swarm(team.app, "run", "--agents", "ann:1,bob:1", "--max-cost", "5")
    assert done.returncode == 2
    assert "[limits] run_cost_usd cannot hold: bob does not say what it costs" in done.stderr
    assert "give it a [price] in .swarm/agents/bob.toml" in done.stderr


def test_what_was_typed_for_the_agent_is_not_given_to_the_one_that_stands_in(team: World) -> None:
    for name in ("ann", "bob"):
        file = team.app / f".swarm/agents/{name}.toml"
        file.write_text(file.read_text() + '\n[options]\nmodel = ["--model", "{value}"]\n')
    with opened(team.app) as work:
        ready = prepare(work, Order(agent="ann", model="opus", fallback="bob"))
    assert ready.seats[0].model == "opus"
    assert ready.fallback is not None and ready.fallback.model is None
