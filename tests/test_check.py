"""Checks as processes: what each end means, and that the tree is exactly the one that is judged."""

from __future__ import annotations

import sys
import venv
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarm import process
from swarm.check import Running, applies, begin, definition, failing_ids, find_shadowed, judged
from swarm.config import Check, Codes
from swarm.errors import UsageError
from swarm.ledger.records import Verdict
from swarm.ledger.view import State
from tests.world import World, git

Make = Callable[..., World]
PYTEST = f"{sys.executable} -m pytest -q -p no:cacheprovider"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Worlds with a configuration of their own."""
    made: list[World] = []

    def build(**how: Any) -> World:
        folder = tmp_path / f"w{len(made)}"
        folder.mkdir()
        made.append(World(folder, **how))
        return made[-1]

    yield build
    for world in made:
        world.close()


def judge(world: World, run: str, commit: str | None = None, **keys: Any) -> Verdict:
    """The verdict of a command on a commit, by default the target's tip."""
    keys.setdefault("timeout", timedelta(seconds=60))
    check = Check(name="tests", run=run, **keys)
    running = begin(world.gate()._bench(), check, commit or world.main)
    return ended(running)


def ended(running: Running) -> Verdict:
    for _ in range(20):
        if running.child is not None:
            running.child.wait(60)
        verdict = running.poll()
        if verdict is not None:
            return verdict
    raise AssertionError("no verdict")


@pytest.mark.parametrize(
    ("run", "value", "tries"),
    [
        ("exit 0", "passed", 1),
        ("exit 1", "failed", 2),
        ("exit 5", "failed", 2),
        ("exit 126", "could_not_run", 1),
        ("exit 127", "could_not_run", 1),
        ("no-such-tool", "could_not_run", 1),
        ("kill -9 $$", "could_not_run", 1),
        ("exit 2 # pytest", "could_not_run", 1),
        ("exit 3 # pytest", "could_not_run", 1),
        ("exit 4 # pytest", "could_not_run", 1),
        ("exit 5 # pytest", "could_not_run", 1),
        ("exit 75", "flaky", 1),
        ("exit 42", "could_not_run", 1),
    ],
)
def test_M4_what_an_exit_code_says(world: World, run: str, value: str, tries: int) -> None:
    codes = Codes(could_not_run=(42,), flaky=(75,))
    verdict = judge(world, run, codes=codes)
    assert (verdict.verdict, len(verdict.runs)) == (value, tries)
    assert verdict.tree == world.hub.reader.tree_of(world.main)


@pytest.mark.parametrize("files", [{"tests/test_a.py": "def helper(): pass\n"}, {"a.txt": "a\n"}])
def test_P4_no_tests_ran_is_not_passed(make: Make, files: dict[str, str]) -> None:
    world = make(files=files)
    verdict = judge(world, PYTEST)
    assert verdict.verdict == "could_not_run" and verdict.runs[0].exit_code == 5


def test_P4_a_change_that_deletes_the_tests_is_sent_back(make: Make) -> None:
    world = make(files={"tests/test_a.py": "def test_a(): pass\n"}, check=PYTEST)
    task = world.add("Fewer tests")
    agent = world.agent(task)
    agent.git("rm", "-q", "tests/test_a.py")
    agent.write("a.txt", "a\n").commit().seal()
    world.work_gate()
    attempts = world.ledger.view().attempts(task)
    assert attempts is not None and attempts.last is not None
    assert attempts.last.outcome == "check_failed" and len(attempts.strikes) == 1
    assert "exit code 5" in attempts.last.message


def test_M11_a_time_limit_ends_the_whole_tree_and_frees_the_slot(world: World) -> None:
    runner = world.gate()._bench().runner
    run = "sleep 600 & (setsid sleep 600 &) ; trap '' TERM; sleep 600"
    verdict = judge(world, run, timeout=timedelta(seconds=1), retries=0)
    assert verdict.verdict == "timed_out"
    assert not process.find_marked(f"{runner}."), "nothing of it runs on"
    assert judge(world, "exit 0").verdict == "passed"


def test_P3_red_then_green_on_the_same_tree_is_flaky(world: World, tmp_path: Path) -> None:
    verdict = judge(world, f"[ -e {tmp_path}/once ] || {{ touch {tmp_path}/once; exit 1; }}")
    assert verdict.verdict == "flaky" and [r.exit_code for r in verdict.runs] == [1, 0]


@pytest.mark.parametrize(
    "leave",
    [
        "touch junk",
        "mkdir -p a/b; touch a/b/junk a/junk junk; chmod 500 a/b a",
        "git init -q nested; touch nested/x junk",
        "ln -s /nowhere junk-link; touch junk",
        "touch ignored.pyc junk",
    ],
)
def test_what_a_try_leaves_behind_is_gone_at_the_next(make: Make, leave: str) -> None:
    world = make(files={".gitignore": "*.pyc\n", "f.txt": "f\n"})
    verdict = judge(world, f"[ -e junk ] || {{ {leave}; exit 1; }}")
    assert verdict.verdict == "failed" and len(verdict.runs) == 2
    assert (
        judge(world, "ls -A | grep -v '^.git' | tr '\\n' ' '; git status --short").tail == "f.txt"
    )


@pytest.mark.parametrize(
    "spoil",
    [
        "echo more >>README.md",
        "rm README.md",
        "git update-index --assume-unchanged README.md; echo more >>README.md",
        "git update-index --skip-worktree README.md; echo more >>README.md",
        "echo more >>README.md; git add README.md; git -c user.name=a -c user.email=a commit -qm x",
        "chmod +x README.md",
        "git config filter.x.clean 'echo app'; echo 'README.md filter=x' >.git-attributes; "
        "mkdir -p $(git rev-parse --git-common-dir)/info; "
        "echo 'README.md filter=x' >$(git rev-parse --git-common-dir)/info/attributes; "
        "echo more >>README.md",
    ],
)
def test_a_check_that_changes_tracked_files_has_judged_something_else(
    world: World, spoil: str
) -> None:
    verdict = judge(world, spoil)
    assert verdict.verdict == "could_not_run"
    assert "README.md" in verdict.why, "which file"
    assert judge(world, "cat README.md").tail == "app", "the next one sees the tree as it is"


def test_a_check_sees_exactly_the_commit_and_no_repository_of_the_hub(world: World) -> None:
    head = world.main
    verdict = judge(world, 'git rev-parse HEAD; git for-each-ref | wc -l; echo "GIT:$GIT_DIR:"')
    log = (world.layout.root / (verdict.log or "")).read_text()
    assert head in log and "GIT::" in log
    before = world.hub.refs_below("refs")
    judge(world, "git update-ref refs/heads/main HEAD~0; git branch x; git push -q . HEAD:y; true")
    assert world.hub.refs_below("refs") == before


def test_standard_input_is_empty_and_open(world: World) -> None:
    assert judge(world, "cat; exec 3<&0; exit 0").verdict == "passed"


def test_its_folder_and_environment(make: Make) -> None:
    world = make(files={"sub/x.txt": "x\n"})
    verdict = judge(world, "ls; echo $WHO", cwd="sub", env={"WHO": "me"})
    assert verdict.tail == "me"
    assert "x.txt" in (world.layout.root / (verdict.log or "")).read_text()
    gone = judge(world, "true", cwd="nowhere")
    assert gone.verdict == "could_not_run" and "nowhere" in gone.why


def test_M24_failing_tests_are_read_from_the_output_and_from_a_report(world: World) -> None:
    verdict = judge(world, "echo 'FAILED tests/test_x.py::test_y - assert 0'; exit 1")
    assert verdict.failing == ["tests/test_x.py::test_y"]
    report = (
        '<testsuite><testcase classname="pkg.A" name="one"><failure/></testcase>'
        '<testcase file="t.py" name="two"><error/></testcase><testcase name="three"/></testsuite>'
    )
    verdict = judge(world, f"echo '{report}' >out.xml; exit 1", junit="out.xml")
    assert verdict.failing == ["pkg.A::one", "t.py::two"]


@pytest.mark.parametrize(
    "place",
    [
        "mkfifo out.xml",
        "ln -s /dev/zero out.xml",
        "mkdir out.xml",
        "echo '<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>' >out.xml",
        "printf '\\377\\376<' >out.xml",
        "true",
    ],
)
def test_a_report_that_is_none_holds_nobody_up(world: World, place: str) -> None:
    verdict = judge(world, f"{place}; echo 'FAILED t.py::a'; exit 1", junit="out.xml")
    assert verdict.verdict == "failed" and verdict.failing == ["t.py::a"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("FAILED tests/t.py::test_a[x] - AssertionError", "tests/t.py::test_a[x]"),
        ("ERROR tests/t.py", "tests/t.py"),
        ("--- FAIL: TestThing (0.00s)", "TestThing"),
        ("FAIL: test_a (pkg.T)", "test_a (pkg.T)"),
        ("test pkg::it ... FAILED", "pkg::it"),
        ("not ok 3 - third", "third"),
        ("  ● suite › case", "suite › case"),
        ("everything FAILED here", None),
    ],
)
def test_names_of_failing_tests(line: str, found: str | None) -> None:
    assert failing_ids(f"noise\n{line}\n{line}\n") == ([found] if found else [])


def test_output_is_capped_and_its_end_is_kept(world: World) -> None:
    verdict = judge(world, "yes | head -c 30000000; echo the end; exit 1", retries=0)
    log = world.layout.root / (verdict.log or "")
    assert log.stat().st_size < 18 << 20
    assert verdict.tail.rstrip().endswith("the end") and len(verdict.tail) <= 1500


# What is judged


def commit_files(world: World, message: str, **files: str) -> str:
    """A commit in the hub on the target's tip that no ref names."""
    for name, text in files.items():
        place = world.app / name.replace("__", "/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    git(world.app, "add", "-A", ":!swarm.toml")
    git(world.app, "commit", "-q", "-m", message)
    oid = git(world.app, "rev-parse", "HEAD")
    world.hub.fetch(world.app, oid)
    return oid


def test_a_verdict_is_of_the_tree_or_of_its_declared_part_or_of_the_commit(world: World) -> None:
    first = world.main
    second = commit_files(world, "docs", docs__a="a\n")
    third = commit_files(world, "source", src__b="b\n")
    whole, docs = Check(name="a", run="x"), Check(name="a", run="x", paths=("docs/**",))
    history = Check(name="a", run="x", reads="history")
    assert len({judged(world.hub, whole, c) for c in (first, second, third)}) == 3
    assert judged(world.hub, docs, first) != judged(world.hub, docs, second)
    assert judged(world.hub, docs, second) == judged(world.hub, docs, third)
    assert judged(world.hub, history, second) == second


def test_everything_that_could_change_a_verdict_is_in_its_definition(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = world.gate()._bench()
    base = Check(name="tests", run="x")
    seen = {definition(bench, base, world.main)}
    for changed in (
        {"run": "y"},
        {"cwd": "src"},
        {"timeout": timedelta(seconds=1)},
        {"env": {"A": "1"}},
        {"keep": (".venv",)},
        {"codes": Codes(flaky=(9,))},
        {"env_id": "echo one"},
        {"env_id": "echo two"},
    ):
        seen.add(definition(bench, msgspec.structs.replace(base, **changed), world.main))
    assert len(seen) == 9
    assert definition(bench, base, world.main) in seen, "the same twice"


def test_when_and_paths_say_whether_a_check_applies() -> None:
    always, asked = Check(name="a", run="x"), Check(name="b", run="x", when="asked")
    docs = Check(name="c", run="x", paths=("docs/**",))
    assert applies(always, [], ["x"]) and applies(always, ["b"], [])
    assert not applies(asked, [], ["x"]) and applies(asked, ["b"], ["x"])
    assert applies(docs, [], ["docs/a"]) and not applies(docs, [], ["src/a"])
    assert applies(docs, [], None), "the target is judged by all of them"


# Setup, kept paths


SETUP = '[worktree]\nsetup = "{}"\nsetup_inputs = ["deps.txt"]\nkeep = [".cache"]\n'


def test_setup_runs_when_its_inputs_changed_and_kept_paths_survive(
    make: Make, tmp_path: Path
) -> None:
    command = f"echo x >>{tmp_path}/setups; mkdir -p .cache; cp deps.txt .cache/built"
    world = make(files={"deps.txt": "1\n", "f": "f\n"}, config=SETUP.format(command))
    first = world.main
    assert judge(world, "cat .cache/built").tail == "1"
    judge(world, "true", commit_files(world, "other", f="g\n"))
    assert len((tmp_path / "setups").read_text().split()) == 1, "its inputs did not change"
    newer = commit_files(world, "deps", **{"deps.txt": "2\n"})
    assert judge(world, "cat .cache/built", newer).tail == "2"
    assert judge(world, "cat .cache/built", first).tail == "1", "and back"


def test_W14_a_setup_that_fails_is_named_and_judges_nothing(make: Make) -> None:
    config = SETUP.format("echo no network; exit 9")
    world = make(files={"deps.txt": "1\n"}, config=config)
    verdict = judge(world, "exit 0")
    assert verdict.verdict == "could_not_run" and "setup failed with exit code 9" in verdict.why
    assert judge(world, "exit 0").verdict == "could_not_run", "a failure is not remembered as done"


# The right tree


@pytest.fixture(scope="module")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """A python in an environment that has pytest and, as `pip install -e` does it, one checkout."""

    def build(source: Path) -> Path:
        home = tmp_path_factory.mktemp("venv")
        venv.create(home, symlinks=True)
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        site = home / "lib" / version / "site-packages"
        # The tools of this environment, after its own: and the checkout, as an editable install.
        here = next(Path(p) for p in sys.path if p.endswith("site-packages"))
        (site / "tools.pth").write_text(f"{here}\n")
        (site / "__editable__.pth").write_text(f"{source}\n")
        return home / "bin" / "python"

    return build


LIBRARY = {
    "src/lib/__init__.py": "def answer():\n    return 42\n",
    "tests/test_lib.py": "import lib\n\n\ndef test_answer():\n    assert lib.answer() == 42\n",
}


def test_P1_an_editable_install_of_the_checkout_is_found_out(
    make: Make, editable: Callable[[Path], Path]
) -> None:
    """Its tests are green whatever an agent breaks, since they import the user's own copy."""
    world = make(files=LIBRARY, check=None)
    python = editable(world.app / "src")
    world.config = with_check(world, f"{python} -m pytest -q -p no:cacheprovider")
    task = world.add("Break it")
    world.agent(task).write("src/lib/__init__.py", "def answer():\n    return 41\n").commit().seal()
    with pytest.raises(UsageError, match="lib") as refused:
        world.work_gate()
    assert refused.value.hint is not None and "PYTHONPATH" in refused.value.hint
    assert world.events().count("landed") == 0


def with_check(world: World, run: str, **keys: Any) -> Any:
    check = Check(name="tests", run=run, timeout=timedelta(seconds=60), **keys)
    return msgspec.structs.replace(world.config, checks=(check,))


def test_P1_with_the_cure_the_worktree_is_what_is_imported(
    make: Make, editable: Callable[[Path], Path]
) -> None:
    world = make(files=LIBRARY, check=None)
    python = editable(world.app / "src")
    run = f"{python} -m pytest -q -p no:cacheprovider"
    world.config = with_check(world, run, env={"PYTHONPATH": "src"})
    task = world.add("Break it")
    world.agent(task).write("src/lib/__init__.py", "def answer():\n    return 41\n").commit().seal()
    world.work_gate()
    attempts = world.ledger.view().attempts(task)
    assert attempts is not None and attempts.last is not None
    assert attempts.last.outcome == "check_failed", "broken code is red"
    assert attempts.last.failing == ["tests/test_lib.py::test_answer"]
    world.agent(task).write(
        "src/lib/__init__.py", "def answer():\n    return 42  # \n"
    ).commit().seal()
    world.work_gate()
    assert world.state(task) is State.LANDED


def test_P1_the_probe_leaves_no_trace(make: Make) -> None:
    world = make(files=LIBRARY, check=None)
    world.config = with_check(world, PYTEST, env={"PYTHONPATH": "src"})
    gate = world.gate()
    check = world.config.checks[0]
    ended(begin(gate._bench(), check, world.main))
    assert find_shadowed(gate._bench(), check, world.main) is None
    tree = gate._bench().slot.tree
    assert (tree / "src/lib/__init__.py").read_text() == LIBRARY["src/lib/__init__.py"]
    assert gate._bench().slot.changed_tracked() == []


def test_a_project_without_python_is_not_probed(world: World) -> None:
    gate = world.gate()
    judge(world, "exit 0")
    check = Check(name="tests", run="exit 0")
    assert find_shadowed(gate._bench(), check, world.main) is None


def test_stopping_a_check_ends_it_and_says_nothing(world: World) -> None:
    check = Check(name="tests", run="sleep 600", timeout=timedelta(seconds=60))
    running = begin(world.gate()._bench(), check, world.main)
    child, private = running.child, running.tmpdir
    assert child is not None and private is not None and private.is_dir()
    running.stop("cancelled")
    assert child.poll() is not None and not private.exists()
    assert not process.find_marked(f"{running.bench.runner}.")
