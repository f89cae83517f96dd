"""A child sees what was listed and nothing else, and never the user's checkout on its PATH."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from swarm.environment import (
    AgentFacts,
    SlotFacts,
    fill,
    first_port,
    for_agent,
    for_check,
    moved_path,
    placeholders_in,
)
from swarm.errors import UsageError


@dataclass(frozen=True)
class Settings:
    pass_: tuple[str, ...] = ()
    set: Mapping[str, str] = field(default_factory=dict)
    port_base: int = 20000
    ports: int = 10


CHECKOUT = Path("/home/ann/app")
SLOT = SlotFacts(name="s3", worktree=Path("/state/slots/s3"), task="csv-export", attempt=2)
GATE_SLOT = SlotFacts(name="g1", worktree=Path("/state/gate/g1"))
AGENT = AgentFacts(
    run="r7",
    target="main",
    prompt=Path("/state/runs/r7/csv-export/2/prompt.md"),
    task_file=Path("/state/runs/r7/csv-export/2/task.md"),
    report=Path("/state/report/usage.json"),
    mark="secret",
)


def agent(
    source: Mapping[str, str],
    settings: Settings = Settings(),
    *,
    adapter_pass: tuple[str, ...] = (),
    adapter_set: Mapping[str, str] = {},
    as_root: Mapping[str, str] = {},
    is_root: bool = False,
    home: Path | None = None,
    commands: Path | None = None,
) -> dict[str, str]:
    return for_agent(
        source,
        adapter_pass=adapter_pass,
        adapter_set=adapter_set,
        adapter_set_as_root=as_root,
        settings=settings,
        slot=SLOT,
        agent=AGENT,
        checkout=CHECKOUT,
        tmpdir=Path("/tmp/sw-1"),
        home=home,
        commands=commands,
        is_root=is_root,
    )


def check(
    source: Mapping[str, str],
    settings: Settings = Settings(),
    *,
    check_env: Mapping[str, str] = {},
    slot: SlotFacts = GATE_SLOT,
    home: Path | None = None,
) -> dict[str, str]:
    return for_check(
        source,
        settings=settings,
        check_env=check_env,
        slot=slot,
        checkout=CHECKOUT,
        tmpdir=Path("/tmp/sw-2"),
        home=home,
    )


BASE = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/home/ann",
    "LC_ALL": "C.UTF-8",
    "XDG_RUNTIME_DIR": "/run/user/1",
    "SSL_CERT_FILE": "/etc/ssl/cert.pem",
    "HTTPS_PROXY": "http://proxy:1",
    "https_proxy": "http://proxy:2",
}
SECRETS = {
    "ANTHROPIC_API_KEY": "sk-1",
    "OPENAI_API_KEY": "sk-2",
    "AWS_SECRET_ACCESS_KEY": "sk-3",
    "LD_PRELOAD": "/x.so",
    "EDITOR": "vi",
}
NEVER = {
    "GIT_DIR": "/home/ann/app/.git",
    "GIT_INDEX_FILE": "/home/ann/app/.git/index",
    "GIT_CONFIG_COUNT": "1",
    "VIRTUAL_ENV": "/home/ann/app/.venv",
    "PYTHONPATH": "/home/ann/app/src",
    "PYTHONHOME": "/usr",
    "CONDA_PREFIX": "/opt/conda",
    "SWARM_MARK": "of another run",
    "SWARM_FAULTS": "1",
}


def test_an_agent_sees_the_base_list_and_what_it_is_told() -> None:
    assert agent(BASE | SECRETS | NEVER | {"TERM": "xterm", "TMPDIR": "/var/tmp"}) == BASE | {
        "TERM": "dumb",
        "TMPDIR": "/tmp/sw-1",
        "SWARM_TASK": "csv-export",
        "SWARM_ATTEMPT": "2",
        "SWARM_SLOT": "s3",
        "SWARM_PORT": "20030",
        "SWARM_RUN": "r7",
        "SWARM_TARGET": "main",
        "SWARM_PROMPT": "/state/runs/r7/csv-export/2/prompt.md",
        "SWARM_TASK_FILE": "/state/runs/r7/csv-export/2/task.md",
        "SWARM_REPORT": "/state/report/usage.json",
        "SWARM_MARK": "secret",
    }


def test_a_check_sees_the_base_list_its_slot_and_no_key() -> None:
    assert check(BASE | SECRETS | NEVER) == BASE | {
        "TERM": "dumb",
        "TMPDIR": "/tmp/sw-2",
        "SWARM_SLOT": "g1",
        "SWARM_PORT": "22010",
    }


def test_pass_lists_add_by_glob_the_adapters_for_its_agent_alone() -> None:
    settings = Settings(pass_=("EDITOR", "NO_SUCH_*"))
    seen = agent(SECRETS, settings, adapter_pass=("ANTHROPIC_*",))
    assert {name for name in seen if name in SECRETS} == {"ANTHROPIC_API_KEY", "EDITOR"}
    assert {name for name in check(SECRETS, settings) if name in SECRETS} == {"EDITOR"}


def test_what_is_never_inherited_is_not_even_when_passed() -> None:
    everything = Settings(pass_=("*", "GIT_*", "PYTHONPATH"))
    seen = agent(BASE | NEVER, everything, adapter_pass=("*",))
    assert not {name for name in NEVER if name in seen} - {"SWARM_MARK"}
    assert seen["SWARM_MARK"] == "secret", "this attempt's, not the outer run's"
    assert not {name for name in NEVER if name in check(BASE | NEVER, everything)}


def test_what_is_set_is_meant_and_wins() -> None:
    settings = Settings(set={"PYTHONPATH": "{worktree}/src", "TERM": "xterm", "A": "config"})
    seen = agent(NEVER, settings, adapter_set={"A": "adapter", "B": "adapter"})
    assert seen["PYTHONPATH"] == "/state/slots/s3/src"
    assert (seen["TERM"], seen["A"], seen["B"]) == ("xterm", "config", "adapter")
    seen = check(NEVER, settings, check_env={"A": "check {slot}"})
    assert (seen["PYTHONPATH"], seen["A"]) == ("/state/gate/g1/src", "check g1")


def test_nothing_can_replace_what_swarm_tells() -> None:
    settings = Settings(set={"SWARM_MARK": "forged", "SWARM_PORT": "1"})
    assert agent({}, settings)["SWARM_MARK"] == "secret"
    assert check({}, settings)["SWARM_PORT"] == "22010"


def test_placeholders_of_set_are_filled_in_once() -> None:
    settings = Settings(set={"URL": "db_{slot}_{task}_{attempt}:{port}", "JSON": '{"a": {"b": 1}}'})
    seen = agent({}, settings)
    assert seen["URL"] == "db_s3_csv-export_2:20030"
    assert seen["JSON"] == '{"a": {"b": 1}}'
    assert fill("{a}", {"a": "{b}", "b": "no"}, where="x") == "{b}"
    assert placeholders_in("{a}{b} {c d} {}") == ["a", "b"]


def test_without_a_task_the_slot_stands_for_it() -> None:
    settings = Settings(set={"DB": "db_{task}_{attempt}"})
    assert check({}, settings)["DB"] == "db_g1_0"
    assert check({}, settings, slot=SLOT)["DB"] == "db_csv-export_2", "setup in an agent's slot"


@pytest.mark.parametrize(
    ("settings", "saying"),
    [
        ({"A": "{nope}"}, "[env.set] A: unknown placeholder {nope}"),
        ({"A": "{HOME}"}, "[env.set] A: unknown placeholder {HOME}"),
        ({"A=B": "x"}, "'A=B' is no variable"),
        ({"A": "x\0y"}, "'A' is no variable"),
    ],
)
def test_a_set_that_cannot_be_given_is_refused(settings: dict[str, str], saying: str) -> None:
    with pytest.raises(UsageError) as refused:
        agent({}, Settings(set=settings))
    assert saying in refused.value.what


def test_set_as_root_is_for_root_alone() -> None:
    assert "IS_SANDBOX" not in agent({}, as_root={"IS_SANDBOX": "1"}, is_root=False)
    assert agent({}, as_root={"IS_SANDBOX": "1"}, is_root=True)["IS_SANDBOX"] == "1"


def test_a_private_home_comes_without_the_users_own_folders() -> None:
    for seen in (
        agent(BASE, home=Path("/state/home/s3")),
        check(BASE, home=Path("/state/home/s3")),
    ):
        assert seen["HOME"] == "/state/home/s3"
        assert "XDG_RUNTIME_DIR" not in seen


def test_no_two_slots_share_a_number_or_a_port() -> None:
    names = [f"{family}{n}" for family in "shgp" for n in range(1, 1000)]
    numbers = [SlotFacts(name=name, worktree=Path("/w")).number for name in names]
    assert len(set(numbers)) == len(names)
    first = ("s1", "h1", "g1", "p1")
    known = {name: SlotFacts(name=name, worktree=Path("/w")).number for name in first}
    assert known == {"s1": 1, "h1": 101, "g1": 201, "p1": 301}


def test_a_slot_without_ports_is_refused() -> None:
    last = SlotFacts(name="g99", worktree=Path("/w"))
    assert first_port(last, Settings(port_base=62536, ports=10)) == 65526
    with pytest.raises(UsageError, match="slot g99 has no ports left"):
        first_port(last, Settings(port_base=62537, ports=10))


def test_path_entries_inside_the_checkout_move_into_the_worktree(tmp_path: Path) -> None:
    checkout, worktree, elsewhere = (tmp_path / name for name in ("app", "s1", "venvs"))
    for folder in (checkout / ".venv/bin", checkout / "bin", worktree, elsewhere / "bin"):
        folder.mkdir(parents=True)
    (checkout / "linked-venv").symlink_to(elsewhere)
    (tmp_path / "alias").symlink_to(checkout)
    (tmp_path / "shortcut").symlink_to(checkout / "bin")
    moved = {
        f"{checkout}/.venv/bin": f"{worktree}/.venv/bin",
        f"{checkout}": f"{worktree}",
        f"{checkout}/not/there": f"{worktree}/not/there",
        f"{checkout}/linked-venv/bin": f"{worktree}/linked-venv/bin",  # as the user named it
        f"{tmp_path}/alias/.venv/bin": f"{worktree}/.venv/bin",
        f"{tmp_path}/alias/linked-venv/bin": f"{worktree}/linked-venv/bin",
        f"{tmp_path}/shortcut": f"{worktree}/bin",  # leads into the checkout
        f"{checkout}-other/bin": f"{checkout}-other/bin",
        f"{elsewhere}/bin": f"{elsewhere}/bin",
        f"{worktree}/bin": f"{worktree}/bin",
        "/usr/bin": "/usr/bin",
        "node_modules/.bin": "node_modules/.bin",
        "": "",
    }
    path = moved_path(":".join(moved), checkout=checkout, worktree=worktree)
    assert dict(zip(moved, path.split(":"), strict=True)) == moved


@pytest.mark.parametrize("path", ["/usr/bin:/bin", ""])
def test_an_agent_finds_the_swarm_that_runs_it_and_nothing_else_of_its_environment(
    path: str,
) -> None:
    source = {"PATH": path} if path else {}
    env = agent(source, commands=Path("/state/bin"))
    first, _, rest = env["PATH"].partition(":")
    assert first == "/state/bin" and rest == (path or os.defpath)
    assert str(Path(sys.executable).parent) not in env["PATH"]
    set_path = agent(source, Settings(set={"PATH": "/mine"}), commands=Path("/state/bin"))
    assert set_path["PATH"] == "/state/bin:/mine"


def test_an_agents_path_never_points_into_the_checkout() -> None:
    seen = agent({"PATH": f"{CHECKOUT}/.venv/bin:/usr/bin"})
    assert seen["PATH"] == "/state/slots/s3/.venv/bin:/usr/bin"
    assert check({"PATH": f"{CHECKOUT}/bin"})["PATH"] == "/state/gate/g1/bin"
