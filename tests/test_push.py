"""What landed goes out: a branch of the remote moved forward, and its merge asked for once.

Enters: a world with a real remote that writes down each of its moves. Leaves: a branch, a request.
Guards: nothing is forced, nothing red is given, and no text of anybody is read as a command.
"""

from __future__ import annotations

import json
import shlex
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from swarm import config as configuration
from swarm import push as pushing
from swarm import upstream
from swarm.config import Config
from swarm.errors import Exit, HubUnusable, UsageError
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.records import Push, Run
from swarm.ledger.store import Draft
from swarm.ledger.view import View
from tests.world import Upstream, World, git, run_swarm, typed

HOSTILE = "\"; touch x; $(touch y) `touch z` 'q"

# Runs on the remote before a branch moves; what it writes is how every move was.
_HOOK = """\
#!/bin/sh
while read -r old new ref; do
  how=forced
  case $old:$new in
  *[!0]*:*[!0]*) git merge-base --is-ancestor "$old" "$new" && how=forward ;;
  *:*[!0]*) how=new ;;
  *) how=deleted ;;
  esac
  echo "$ref $how" >>{log}
done
"""


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., tuple[World, Upstream]]]:
    """A world with its upstream; `pr` is a command that writes down what it was asked."""
    made: list[World] = []

    def build(pr: str = "", config: str = "", **keys: object) -> tuple[World, Upstream]:
        toml = f"[upstream]\n{config}\n" + (f"pr = '''{pr}'''\n" if pr else "")
        world = World(tmp_path, config=toml, **keys)  # type: ignore[arg-type]
        made.append(world)
        up = world.upstream()
        hook = up.origin / "hooks" / "pre-receive"
        hook.write_text(_HOOK.replace("{log}", shlex.quote(str(tmp_path / "moves"))), "utf-8")
        hook.chmod(0o755)
        return world, up

    yield build
    for world in made:
        moves = [row.split(" ")[1] for row in lines(tmp_path / "moves")]
        assert set(moves) <= {"new", "forward"}, "nothing is ever forced or deleted"
        world.step()
        world.close()


def lines(place: Path) -> list[str]:
    return place.read_text("utf-8").splitlines() if place.exists() else []


def asks(folder: Path, *holes: str) -> str:
    """`[upstream] pr` that writes each of its arguments on a line of its own."""
    place = folder / "ask"
    place.write_text(
        f"#!/bin/sh\necho request >>{folder}/asked\n"
        f'for one in "$@"; do printf "%s\\n" "$one" >>{folder}/asked; done\n'
        "echo https://forge.invalid/1\n",
        "utf-8",
    )
    place.chmod(0o755)
    return shlex.join([str(place)]) + "".join(f" {hole}" for hole in holes)


def at(up: Upstream, branch: str) -> str:
    return git(up.origin, "rev-parse", f"refs/heads/{branch}")


def run_record(world: World, name: str) -> None:
    """The ledger knows a run."""
    now = world.clock.now()
    run = Run(
        run=name,
        runner=f"{name}-test",
        host="here",
        pid=1,
        boot_id="boot-1",
        slots=1,
        adapter="command",
        started_at=now,
        started_monotonic_seconds=0.0,
        config_digest="0" * 64,
        state="ended",
        ended_at=now,
    )

    def decide(_: View) -> Draft[None]:
        data = records.encode(run)
        facts = {"Swarm-Run": name}
        return Draft(
            (Event("run-started", ".", {records.run_path(name): data}, "", trailers=facts),), None
        )

    world.ledger.append(decide)
    world.clock.pass_(seconds=10)


# -- the branch


def test_a_branch_is_made_then_moved_forward_and_never_twice(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make()
    first = world.land("One", "one.txt", "1\n")
    said = world.typed("push", "--branch", "work")
    assert said.code == 0 and said.out == f"pushed    origin/work {first[:7]}, a new branch\n"
    assert at(up, "work") == first
    events = world.events()
    said = world.typed("push", "--branch", "work")
    assert said.code == 0 and said.out == f"origin/work {first[:7]}: nothing new to push\n"
    assert world.events() == events, "and twice writes nothing"
    second = world.land("Two", "two.txt", "2\n")
    said = world.typed("push", "--branch", "work", "--json")
    assert json.loads(said.out) == {
        "schema": "swarm.push/1",
        "remote": "origin",
        "branch": "work",
        "old": first,
        "new": second,
        "request": None,
    }
    known = world.ledger.view().upstream()
    assert known is not None
    assert [(push.branch, push.oid) for push in known.pushes] == [("work", first), ("work", second)]
    assert lines(world.folder / "moves") == ["refs/heads/work new", "refs/heads/work forward"]


def test_what_somebody_else_put_on_the_branch_stays(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make()
    assert world.typed("push", "--branch", "work").code == 0
    git(up.mate, "commit", "-q", "--allow-empty", "-m", "theirs")
    git(up.mate, "push", "-q", "origin", "HEAD:work")
    theirs = at(up, "work")
    world.land("One", "one.txt", "1\n")
    said = world.typed("push", "--branch", "work")
    assert said.code == Exit.NO
    assert said.err == (
        "error: origin/work was not moved: nothing is ever forced\n"
        "  it has commits that are not in what would be pushed\n"
        "  hint: swarm push --branch ANOTHER\n"
    )
    assert at(up, "work") == theirs
    up.commit("b.txt", "1\n")
    said = world.typed("push", "--branch", "main")
    assert said.code == Exit.NO and said.err.endswith("hint: swarm sync\n"), "that one is upstream"
    assert world.typed("sync").code == 0
    assert world.typed("push", "--branch", "main").code == 0, "now it only goes forward"
    assert up.tip == world.main


def test_the_remotes_own_refusal_is_shown_in_its_words(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make()
    hook = up.origin / "hooks" / "update"
    hook.write_text("#!/bin/sh\nprintf 'no \\033[5mpushes\\033[0m on friday\\n' >&2; exit 1\n")
    hook.chmod(0o755)
    said = world.typed("push", "--branch", "work")
    assert said.code == Exit.NO
    assert "on friday" in said.err and "hook declined" in said.err and "\x1b" not in said.err
    assert world.ledger.view().upstream() is None, "what was not pushed is not remembered"


def test_what_is_known_to_be_red_is_not_given(make: Callable[..., tuple[World, Upstream]]) -> None:
    world, up = make()
    world.push("red.txt", "RED\n")
    assert world.typed("gate", "--once").code == Exit.TARGET_RED
    said = world.typed("push", "--branch", "work")
    assert said.code == Exit.TARGET_RED and "tests failed; nothing was pushed" in said.err
    assert not git(up.origin, "branch", "--list", "work")


def test_a_target_that_is_gone_deletes_nothing(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make()
    assert world.typed("push", "--branch", "work").code == 0
    tip, held = world.main, at(up, "work")
    git(world.layout.hub, "update-ref", "-d", "refs/heads/main")
    with pytest.raises(HubUnusable, match="no branch main"):
        pushing.deliver(world.work, "work")
    with pytest.raises(HubUnusable, match="no branch main"):
        pushing.deliver(world.work, "new")
    assert at(up, "work") == held
    git(world.layout.hub, "update-ref", "refs/heads/main", tip)


# -- its name


def test_the_branch_is_named_after_the_newest_run(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make(config='push_branch = "team/{target}/{run}"')
    said = world.typed("push")
    assert said.code == Exit.USAGE
    assert said.err == (
        "error: there has been no run to name the branch after\n"
        "  hint: swarm push --branch swarm/main\n"
    )
    for name in ("r2", "r9", "r10"):
        run_record(world, name)
    said = world.typed("push")
    assert said.code == 0 and at(up, "team/main/r10") == world.main, "10 is newer than 9"


def test_a_pattern_without_a_run_needs_none(make: Callable[..., tuple[World, Upstream]]) -> None:
    world, up = make(config='push_branch = "swarm-{target}"')
    assert world.typed("push").code == 0 and at(up, "swarm-main") == world.main


@pytest.mark.parametrize("name", ["-x", "--force", "a..b", "a b", "refs/heads/x", "x:y", "+", ""])
def test_what_is_no_name_of_a_branch_is_refused(
    make: Callable[..., tuple[World, Upstream]], name: str
) -> None:
    world, up = make()
    said = world.typed("push", f"--branch={name}")
    if name == "+":  # odd, and a branch all the same
        assert said.code == 0 and at(up, "+") == world.main
        return
    assert said.code == Exit.USAGE and "--branch" in said.err, said
    assert git(up.origin, "for-each-ref", "--format=%(refname)") == "refs/heads/main"


# -- the request


def test_a_merge_is_asked_for_once_for_each_branch(
    make: Callable[..., tuple[World, Upstream]], tmp_path: Path
) -> None:
    world, up = make(asks(tmp_path, "--head", "{branch}", "--base", "{target}", "-t", "{title}"))
    world.land("Add search", "one.txt", "1\n")
    said = world.typed("push", "--branch", "work", "--pr")
    assert said.code == 0 and "request   made: https://forge.invalid/1\n" in said.out
    wanted = ["request", "--head", "work", "--base", "main", "-t", "Add search"]
    assert lines(tmp_path / "asked") == wanted
    world.land("Two", "two.txt", "1\n")
    said = world.typed("push", "--branch", "work", "--pr", "--json")
    assert said.code == 0 and json.loads(said.out)["request"] == "before"
    assert lines(tmp_path / "asked") == wanted, "it shows what was pushed since"
    assert world.typed("push", "--branch", "work", "--pr").code == 0
    said = world.typed("push", "--branch", "other", "--pr", "--json")
    assert json.loads(said.out)["request"] == "made"
    assert lines(tmp_path / "asked").count("request") == 2
    git(up.origin, "update-ref", "-d", "refs/heads/work")
    said = world.typed("push", "--branch", "work", "--pr", "--json")
    assert json.loads(said.out)["request"] == "made", "the branch is new again"
    assert lines(tmp_path / "asked").count("request") == 3
    assert [one for one in world.events() if one == "pushed"], "and the ledger tells it"


def test_a_branch_that_was_deleted_is_asked_for_again_though_the_push_was_cut_short(
    make: Callable[..., tuple[World, Upstream]], tmp_path: Path
) -> None:
    world, up = make(asks(tmp_path, "{branch}"))
    assert world.typed("push", "--branch", "work", "--pr").code == 0
    git(up.origin, "update-ref", "-d", "refs/heads/work")
    env = {"SWARM_FAULTS": "1", "SWARM_CRASH_AT": "push.after_push"}
    world.close_gates()
    cut = run_swarm(world.app, "push", "--branch", "work", "--pr", env=env)
    assert cut.returncode == -9 and at(up, "work") == world.main
    assert world.typed("push", "--branch", "work", "--pr").code == 0
    assert lines(tmp_path / "asked").count("request") == 2


def test_two_who_ask_at_once_ask_once(
    make: Callable[..., tuple[World, Upstream]], tmp_path: Path
) -> None:
    world, _ = make("sleep 0.3; " + asks(tmp_path, "{branch}"))
    delivered = pushing.deliver(world.work, "work")
    assert isinstance(delivered, pushing.Delivered)
    answers: list[object] = []

    def ask() -> None:
        answers.append(pushing.ask(world.work, delivered))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(one).__name__ for one in answers) == ["Asked", "AskedBefore"]
    assert lines(tmp_path / "asked") == ["request", "work"]


def test_a_request_without_a_command_is_refused_before_anything_is_pushed(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make()
    said = world.typed("push", "--branch", "work", "--pr")
    assert said.code == Exit.USAGE and "[upstream] pr is empty" in said.err
    assert "--title {title}" in said.err
    assert not git(up.origin, "branch", "--list", "work")


@pytest.mark.parametrize(
    "title",
    [HOSTILE, "-t --draft", "two\nlines\r\x1b[2J", "${SWARM_BRANCH} $HOME {branch}", "ü ☃ snow"],
)
def test_no_title_is_ever_a_command_or_an_option(
    make: Callable[..., tuple[World, Upstream]], tmp_path: Path, title: str
) -> None:
    world, up = make(asks(tmp_path, "--title={title}", "{title}", "{body_file}", "${HOME}"))
    task = world.add(title)
    world.agent(task).write("one.txt", "1\n").commit().seal()
    world.work_gate()
    branch = "x;touch${IFS}b"
    said = world.typed("push", "--branch", branch, "--pr")
    assert said.code == 0, said
    flat = " ".join("".join(c if c.isprintable() else " " for c in title).split())
    asked = lines(tmp_path / "asked")
    assert asked[1:3] == [f"--title={flat}", flat], "each is one argument, as it was written"
    body = Path(asked[3]).read_text("utf-8")
    assert f"- {task}: {flat} (" in body
    for name in "xyzb":
        assert not list(tmp_path.rglob(name)), "nothing of it was run"
    assert at(up, branch) == world.main


def test_a_command_that_fails_is_run_again_the_next_time(
    make: Callable[..., tuple[World, Upstream]], tmp_path: Path
) -> None:
    world, up = make(
        f"test -e {tmp_path}/ok || {{ echo not logged in; printf '\\033[2J' >&2; exit 4; }}"
    )
    said = world.typed("push", "--branch", "work", "--pr")
    assert said.code == Exit.NO and at(up, "work") == world.main, "the branch stays pushed"
    assert "request   not made: [upstream] pr: exit code 4; the branch is pushed\n" in said.out
    assert "  not logged in\n" in said.out and "\x1b" not in said.out
    assert said.out.endswith("next      swarm push --branch work --pr\n")
    (tmp_path / "ok").touch()
    said = world.typed("push", "--branch", "work", "--pr", "--json")
    assert said.code == 0 and json.loads(said.out)["request"] == "made"


def test_a_command_that_hangs_is_ended(
    make: Callable[..., tuple[World, Upstream]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, up = make(f"echo asking; sh -c 'echo $$ >{tmp_path}/pid; exec sleep 600'")
    monkeypatch.setattr(pushing, "COMMAND_LIMIT", timedelta(seconds=0.5))
    started = time.monotonic()
    said = world.typed("push", "--branch", "work", "--pr", "--json")
    assert time.monotonic() - started < 30
    assert said.code == Exit.NO and json.loads(said.out)["request"] == "failed"
    pid = int((tmp_path / "pid").read_text("utf-8"))
    assert not Path(f"/proc/{pid}").exists(), "with what it started"
    assert at(up, "work") == world.main


def test_the_command_has_the_users_environment_and_neither_our_git_nor_a_terminal(
    make: Callable[..., tuple[World, Upstream]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, _ = make(f"env >{tmp_path}/env; cat >>{tmp_path}/env; pwd >>{tmp_path}/env")
    monkeypatch.setenv("GH_TOKEN", "mine")
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("SWARM_USER", "somebody")
    delivered = pushing.deliver(world.work, "work")
    assert isinstance(delivered, pushing.Delivered)
    assert isinstance(pushing.ask(world.work, delivered), pushing.Asked)
    env = lines(tmp_path / "env")
    assert "GH_TOKEN=mine" in env and env[-1] == str(world.app)
    names = {row.partition("=")[0] for row in env}
    assert not [name for name in names if name.startswith("GIT_")]
    assert {name for name in names if name.startswith("SWARM_")} <= {
        *("SWARM_BRANCH", "SWARM_TARGET", "SWARM_TITLE", "SWARM_BODY_FILE", "SWARM_MARK")
    }


# -- its text


def test_the_text_lists_tasks_checks_and_costs(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make()
    one = world.land("Add search", "one.txt", "1\n2\n")
    task = world.add("Add an index")
    world.agent(task).write("two.txt", "RED\n").commit().seal()
    world.work_gate()
    two = world.land("Two more", "three.txt", "3\n")
    world.clock.pass_(minutes=30)
    world.agent(task).write("two.txt", "2\n").commit().seal()
    world.work_gate()
    three = world.main
    world.push("by-hand.txt", "1\n")
    world.work_gate()
    request = pushing.compose(world.work)
    assert request.title == "app: 3 tasks by swarm"
    head, _, rest = request.body.partition("- check tests on ")
    assert head == textwrap.dedent(f"""\
        Each of these landed by itself, after its checks had passed on the merged tree.

        - add-search: Add search ({one[:7]}, 1 file +2 -0)
        - two-more: Two more ({two[:7]}, 1 file +1 -0)
        - add-an-index: Add an index ({three[:7]}, 1 file +1 -0, attempt 2)
        - and 1 commit that no task landed

        """)
    tip, _, rest = rest.partition(": ")
    assert tip == world.main[:7]
    took, _, rest = rest.partition("\n")
    assert took.startswith("passed in ") and took.endswith("s")
    assert rest == "- cost: unknown, 4 attempts\n"
    assert up.tip != world.main


def test_the_text_has_only_what_the_team_lacks(make: Callable[..., tuple[World, Upstream]]) -> None:
    """Under whatever name they have the rest: merged, squashed, brought in with a sync or not."""
    world, up = make()
    world.land("Merged", "merged.txt", "1\n")
    assert world.typed("push", "--branch", "one").code == 0
    up.git("fetch", "-q", "origin")
    up.git("merge", "-q", "--no-ff", "-m", "merge", "origin/one")
    up.push()
    world.land("Squashed", "squashed.txt", "1\n")
    assert pushing.compose(world.work).title == "Squashed"
    assert world.typed("push", "--branch", "two").code == 0
    up.commit("theirs.txt", "1\n")
    up.squash("two")
    world.land("Fresh", "fresh.txt", "1\n")
    text = pushing.compose(world.work)
    assert text.title == "Fresh" and "squashed" not in text.body, text.body
    assert world.typed("sync").code == 0
    text = pushing.compose(world.work)
    assert text.title == "Fresh" and "squashed" not in text.body, "also when it has come in"
    assert "no task landed" not in text.body, "what a sync brought is no news to the team"
    known = world.ledger.view().upstream()
    assert known is not None
    git(world.app, "remote", "set-url", "origin", str(world.folder / "gone.git"))
    assert pushing.compose(world.work) == text, "as last known, when the remote does not answer"


def test_the_text_after_a_conflict_was_resolved_by_hand(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    """What the person merged in has all of ours in its history, and the team still lacks it."""
    world, up = make(files={"a.txt": "1\n"})
    world.land("Ours", "a.txt", "ours\n")
    up.commit("a.txt", "theirs\n")
    said = json.loads(world.typed("sync", "--json").out)
    place = Path(said["worktree"])
    (place / "a.txt").write_text("both\n", "utf-8")
    assert typed(place, "submit").code == 0
    world.work_gate()
    assert isinstance(upstream.bring(world.work, upstream.fetch(world.work)), upstream.UpToDate)
    assert pushing.compose(world.work).title == "Ours"


def test_nothing_that_upstream_lacks_makes_an_honest_text(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, _ = make()
    text = pushing.compose(world.work)
    assert text.title == "app: 0 tasks by swarm"
    assert "- check tests on" in text.body and ": not run" in text.body
    assert text.body.endswith("- cost: unknown, 0 attempts\n")


# -- what is remembered


def test_only_so_much_is_remembered(make: Callable[..., tuple[World, Upstream]]) -> None:
    world, _ = make()
    main = world.main
    for number in range(pushing.KEPT + 2):
        at = world.clock.now()
        pushing._remember(world.work, Push(branch=f"b{number}", oid=main, at=at))
        old = Push(branch="old", oid=f"{number:040x}", at=at, has_request=True)
        pushing._remember(world.work, old)
    known = world.ledger.view().upstream()
    assert known is not None
    names = [push.branch for push in known.pushes]
    assert len(names) <= 2 * pushing.KEPT
    assert names[-1] == "old" and f"b{pushing.KEPT + 1}" in names and "b0" not in names
    assert names.count("old") > 2, "earlier pushes too: what the team squashed may be one of them"
    assert pushing._newest(known, "old") == known.pushes[-1]
    assert known.pushes[-1].has_request


def test_another_remote_was_asked_for_nothing(
    make: Callable[..., tuple[World, Upstream]], tmp_path: Path
) -> None:
    world, up = make(asks(tmp_path, "{branch}"))
    assert world.typed("push", "--branch", "work", "--pr").code == 0
    fork = tmp_path / "fork.git"
    git(tmp_path, "clone", "-q", "--bare", str(up.origin), str(fork))
    git(world.app, "remote", "add", "fork", str(fork))
    toml = (world.app / "swarm.toml").read_text("utf-8")
    toml = toml.replace("[upstream]\n", '[upstream]\nremote = "fork"\n')
    (world.app / "swarm.toml").write_text(toml, "utf-8")
    said = world.typed("push", "--branch", "work", "--pr", "--json")
    assert said.code == 0 and json.loads(said.out)["request"] == "made"
    assert lines(tmp_path / "asked").count("request") == 2


# -- its settings


def loaded(folder: Path, text: str) -> Config:
    (folder / "swarm.toml").write_text(f"format = 1\n[upstream]\n{text}\n", "utf-8")
    return configuration.load(folder)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pr = '''ask --title \"{title}\"'''", "{title} stands in quotes: leave it bare"),
        ("pr = \"ask '{branch}'\"", "{branch} stands in quotes"),
        ("pr = '''ask \"a \\\" {title}\"'''", "{title} stands in quotes"),
        ("pr = 'ask \\{title}'", "stands in quotes"),
        ("pr = 'ask {titel}'", "unknown placeholder {titel}; known: {body_file} {branch}"),
        ("pr = 'ask {run}'", "unknown placeholder {run}"),
        ("push_branch = 'x/{title}'", "unknown placeholder {title}; known: {run} {target}"),
        ("push_branch = '-{run}'", "cannot be the name of a branch"),
        ("push_branch = 'a b'", "cannot be the name of a branch"),
        ("remote = '-x'", "cannot be the name of a remote"),
        ("branch = '--force'", "cannot be the name of a branch"),
    ],
)
def test_a_setting_that_could_not_be_kept_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        loaded(tmp_path, text)
    assert says in f"{refused.value.what} {refused.value.why}"


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("ask ${HOME} {title}", 'ask ${HOME} "$SWARM_TITLE"'),
        ("ask -t{title} 'a b' \"c d\"", 'ask -t"$SWARM_TITLE" \'a b\' "c d"'),
        ("ask {branch}:{target}", 'ask "$SWARM_BRANCH":"$SWARM_TARGET"'),
        ("ask <{body_file}", 'ask <"$SWARM_BODY_FILE"'),
        ("", ""),
    ],
)
def test_a_placeholder_is_one_quoted_variable(tmp_path: Path, text: str, command: str) -> None:
    pr = loaded(tmp_path, f"pr = '''{text}'''").upstream.pr
    assert configuration.fill_request(pr) == command
