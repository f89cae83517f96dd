"""The template of examples/repo-template, played with plain git.

Enters: its task files, scripts and expected ends. Leaves: what git and pytest say of their merges.
Guards: each task's situation is in the files themselves, whatever coordinates them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from swarm.ids import fold, parse_duration

TEMPLATE = Path(__file__).parents[1] / "examples" / "repo-template"
HEADER_KEYS = {
    "title": str,
    "needs": list,
    "priority": int,
    "paths": list,
    "timeout": str,
    "strikes": int,
}
STEP_KEYS = {"write", "append", "commit", "say", "sleep", "spawn", "wait", "expect", "crash"}
CONFLICTING = ("discount-flat", "discount-percent")
RENAMED = ("rename-price", "report-totals")


def read_task(task: str) -> tuple[dict[str, Any], str]:
    text = (TEMPLATE / "tasks" / f"{task}.md").read_text()
    _, header, body = text.split("---\n", 2)
    return yaml.safe_load(header), body


def read_script(task: str) -> list[list[dict[str, Any]]]:
    script = tomllib.loads((TEMPLATE / ".swarm" / "scripts" / f"{task}.toml").read_text())
    return [attempt["step"] for attempt in script["attempt"]]


def waits_of(task: str) -> set[tuple[str, str]]:
    return {(s["wait"], s["is"]) for a in read_script(task) for s in a if "wait" in s}


TASKS = sorted(path.stem for path in (TEMPLATE / "tasks").glob("*.md"))
EXPECTED = tomllib.loads((TEMPLATE / "expected.toml").read_text())
CHECK = tomllib.loads((TEMPLATE / "swarm.toml").read_text())["checks"][0]


class Shop:
    """A copy of the template under git, and what the scripted agents do to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        ignored = shutil.ignore_patterns("__pycache__", ".pytest_cache")
        shutil.copytree(TEMPLATE, root, ignore=ignored)
        self.git("init", "-q", "-b", "main")
        self.git("config", "user.name", "A Person")
        self.git("config", "user.email", "person@shop.invalid")
        self.git("config", "merge.conflictStyle", "diff3")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "A small shop")
        self.git("tag", "start")

    def git(self, *args: str, ok: tuple[int, ...] = (0,)) -> str:
        command = ["git", "-c", "commit.gpgsign=false", *args]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True)
        assert done.returncode in ok, f"{args}: {done.stdout}{done.stderr}"
        return done.stdout

    def play(self, task: str, attempt: int = 1) -> None:
        """The steps that touch files; what is left at the end is committed, as sealing does."""
        for step in read_script(task)[attempt - 1]:
            match step:
                case {"write": path, "text": text}:
                    self._file(path).write_text(text)
                case {"append": path, "text": text}:
                    with self._file(path).open("a") as file:
                        file.write(text)
                case {"expect": text, "in": where} if where != "{prompt}":
                    assert text in (self.root / where).read_text(), f"{task} expects {text}"
                case {"commit": message}:
                    self.git("add", "-A")
                    self.git("commit", "-q", "-m", message)
        if self.git("status", "--porcelain"):
            self.git("add", "-A")
            self.git("commit", "-q", "-m", "left by the agent")

    def _file(self, path: str) -> Path:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        return self.root / path

    def begin(self, task: str, attempt: int = 1, at: str = "start") -> None:
        self.git("checkout", "-q", "-B", task, at)
        self.play(task, attempt)

    def again(self, task: str, attempt: int) -> None:
        """A later attempt: its own head with the target merged in, markers left, if any."""
        self.git("checkout", "-q", task)
        self.git("merge", "-q", "-m", "the target", "main", ok=(0, 1))
        self.play(task, attempt)

    def land(self, task: str) -> None:
        self.git("checkout", "-q", "main")
        self.git("merge", "-q", "--no-ff", "-m", f"land {task}", task)

    def merged(self, *branches: str) -> None:
        """Leave the merge of branches checked out, on nobody's branch."""
        self.git("checkout", "-q", "--detach", branches[0])
        for branch in branches[1:]:
            self.git("merge", "-q", "-m", "candidate", branch)

    def check(self) -> tuple[int, list[str]]:
        """The template's own check in what is checked out: exit code and failing tests."""
        self.git("clean", "-qffdx")
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PYTHON"))}
        env |= CHECK["env"]
        env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
        done = subprocess.run(
            ["/bin/sh", "-c", CHECK["run"]],
            cwd=self.root,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert self.git("status", "--porcelain") == "", "a check leaves the tree as it was"
        return done.returncode, re.findall(r"^FAILED (\S+)", done.stdout, re.MULTILINE)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop")


def test_its_own_suite_is_green(shop: Shop) -> None:
    assert shop.check() == (0, [])


def test_every_task_has_a_file_a_script_and_an_expected_end() -> None:
    scripts = sorted(path.stem for path in (TEMPLATE / ".swarm" / "scripts").glob("*.toml"))
    assert len(TASKS) == 15
    assert scripts == TASKS == sorted(EXPECTED)


@pytest.mark.parametrize("task", TASKS)
def test_task_file_is_well_formed(task: str) -> None:
    header, body = read_task(task)
    assert fold(task) == task, "the file's name is the id"
    assert body.strip() and not body.startswith("#"), "the title stands in the header"
    assert header["title"]
    for key, value in header.items():
        assert isinstance(value, HEADER_KEYS[key]), key
    assert set(header.get("needs", [])) <= set(TASKS)
    assert parse_duration(header.get("timeout", "1s"))


@pytest.mark.parametrize("task", TASKS)
def test_script_is_well_formed(task: str) -> None:
    for steps in read_script(task):
        assert steps
        for step in steps:
            assert len(step.keys() & STEP_KEYS) == 1, step
            assert set(step) - STEP_KEYS <= {"text", "is", "within", "in", "detached"}, step
            assert step.get("wait", task) in TASKS


def test_expected_ends_add_up() -> None:
    ends = Counter(entry["end"] for entry in EXPECTED.values())
    assert ends == {"landed": 12, "parked": 2, "blocked": 1}
    for task, entry in EXPECTED.items():
        events = entry["events"]
        assert entry["attempts"] == events.count("claimed"), task
        assert len(entry.get("ejected", [])) == events.count("ejected"), task
        assert events[-1:] == ([] if entry["end"] == "blocked" else [entry["end"]]), task
        assert entry["strikes"] == 0 or entry["end"] == "parked", "landing clears strikes"
        if entry["end"] == "parked":
            assert entry["strikes"] == read_task(task)[0]["strikes"], task


def test_two_slots_are_enough_for_every_wait() -> None:
    """A slot that waits for a claim is followed, in the order of picking, by what it waits for."""
    ready = [task for task in TASKS if not read_task(task)[0].get("needs")]
    order = sorted(ready, key=lambda task: (-read_task(task)[0].get("priority", 0), task))
    waiting = {task: waits_of(task) for task in TASKS if waits_of(task)}
    assert set(waiting) == {*CONFLICTING, *RENAMED}
    for first, second in (CONFLICTING, RENAMED):
        assert waiting[first] == {(second, "claimed")}
        assert waiting[second] == {(first, "landed")}
        assert order.index(second) == order.index(first) + 1
        assert "paths" not in read_task(first)[0] and "paths" not in read_task(second)[0], (
            "declared paths that overlap would keep the second back"
        )


def test_tasks_touch_files_of_their_own_and_what_they_declare() -> None:
    """Only the pairs and the chain share files, so any order of landing merges cleanly."""
    owners: dict[str, set[str]] = {}
    for task in TASKS:
        for step in [s for attempt in read_script(task) for s in attempt]:
            path = step.get("write") or step.get("append")
            if path is not None:
                owners.setdefault(path, set()).add(task)
                declared = read_task(task)[0].get("paths", [path])
                assert any(path == p or Path(path).match(p) for p in declared), (task, path)
    shared = {path: tasks for path, tasks in owners.items() if len(tasks) > 1}
    assert shared == {
        "src/shop/discount.py": set(CONFLICTING),
        "src/shop/cart.py": {"cart-model", "cart-totals"},
    }


def test_discounts_conflict_in_one_file(shop: Shop) -> None:
    for task in CONFLICTING:
        shop.begin(task)
    shop.land("discount-flat")
    shop.git("checkout", "-q", "discount-percent")
    shop.git("merge", "main", ok=(1,))
    assert shop.git("diff", "--name-only", "--diff-filter=U").split() == ["src/shop/discount.py"]
    text = (shop.root / "src/shop/discount.py").read_text()
    assert [line[:7] for line in text.splitlines() if line[:7] in {c * 7 for c in "<|=>"}] == [
        c * 7 for c in "<|=>"
    ]


def test_rename_and_new_caller_are_green_alone_and_red_together(shop: Shop) -> None:
    for task in RENAMED:
        shop.begin(task)
        assert shop.check() == (0, []), f"{task} is green alone"
    shop.merged(*RENAMED)
    code, failing = shop.check()
    assert code == 1, "tests failed; 2 would be a file that does not import"
    assert failing == ["tests/test_report.py::test_total"]


def test_tax_rounding_is_red_alone_and_names_the_test(shop: Shop) -> None:
    shop.begin("tax-rounding")
    assert shop.check() == (1, ["tests/test_tax.py::test_half_cent"])
    expected = {"expect": "test_half_cent", "in": "{prompt}"}
    assert read_script("tax-rounding")[1][0] == expected, "the second attempt reads the feedback"


def test_impossible_sla_is_red_each_time_with_another_tree(shop: Shop) -> None:
    shop.begin("impossible-sla")
    first = shop.git("rev-parse", "HEAD^{tree}")
    assert shop.check() == (1, ["tests/test_sla.py::test_the_van_can_do_it[300]"])
    shop.again("impossible-sla", 2)
    assert shop.git("rev-parse", "HEAD^{tree}") != first
    assert shop.check() == (1, ["tests/test_sla.py::test_within_the_hour[300]"])


def test_twelve_tasks_land_on_top_of_each_other_and_are_green(shop: Shop) -> None:
    alone = [
        task
        for task, entry in EXPECTED.items()
        if entry["end"] == "landed" and not read_task(task)[0].get("needs")
    ]
    landed = []
    for task in alone:
        shop.begin(task)
    for task in reversed([t for t in alone if t not in ("discount-percent", "report-totals")]):
        if EXPECTED[task]["attempts"] == 2:
            shop.again(task, 2)
        shop.land(task)
        landed.append(task)
    for task in ("discount-percent", "report-totals"):
        shop.again(task, 2)
        shop.land(task)
        landed.append(task)
    for task in ("cart-totals", "checkout"):
        shop.begin(task, at="main")
        shop.land(task)
        landed.append(task)
    assert sorted(landed) == sorted(t for t, e in EXPECTED.items() if e["end"] == "landed")
    assert shop.check() == (0, [])
    assert "seperate" not in (shop.root / "docs/README.md").read_text()


@pytest.mark.parametrize("task", [t for t in TASKS if t != "audit-names"])
def test_last_attempt_can_be_played_again(shop: Shop, task: str) -> None:
    """A third attempt repeats the last: it still finds what it expects and something to commit."""
    if task in {"cart-totals", "checkout"}:
        shop.begin("cart-model")
        shop.play("cart-totals")
        shop.git("tag", "-f", "start")
    last = len(read_script(task))
    shop.begin(task, last)
    shop.play(task, last)


def test_what_ends_an_attempt_is_where_the_story_wants_it() -> None:
    assert read_script("currency-format")[0][-1] == {"crash": "SIGKILL"}
    assert "commit" in read_script("currency-format")[0][-2]
    assert parse_duration(read_task("slow-search")[0]["timeout"]) < parse_duration(
        read_script("slow-search")[0][-1]["sleep"]
    )
    assert read_script("stock-import")[0][-1] == {"spawn": ["sleep", "60"], "detached": True}
    assert all("say" in step for step in read_script("audit-names")[0])


def test_stock_import_leaves_one_edited_and_one_new_file() -> None:
    steps = read_script("stock-import")[0]
    after = steps[[i for i, step in enumerate(steps) if "commit" in step][-1] + 1 :]
    left = [step["write"] for step in after if "write" in step]
    assert left == ["src/shop/stock.py", "tests/test_delivery.py"]
    assert [(TEMPLATE / path).exists() for path in left] == [True, False]
