"""What landed goes out: a branch of the remote moved forward, and one pull request for it.

Enters: a world with a real remote that writes down each of its moves. Leaves: a branch, a command
that was run.
Guards: nothing is forced, nothing red is given, and no text of anybody is read as a command.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from swarm import config as configuration
from swarm import pull_request, upstream
from swarm import push as pushing
from swarm.config import Config
from swarm.errors import Exit, HubUnusable, UsageError
from swarm.ledger import records
from swarm.ledger.events import Event
from swarm.ledger.records import Run
from swarm.ledger.store import Draft
from swarm.ledger.view import View
from swarm.plumbing.remote import RemoteUnreachable
from tests.world import Upstream, World, git, run_swarm, typed, until

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


def text_of(world: World) -> pull_request.PullRequest:
    """What a pull request of now would say."""
    ready = pushing.prepare(world.work, "text")
    assert isinstance(ready, pushing.Ready), ready
    return pull_request.compose(world.work, ready.there)


def delivered(world: World, branch: str) -> pushing.Delivered:
    ready = pushing.prepare(world.work, branch)
    assert isinstance(ready, pushing.Ready), ready
    answer = pushing.deliver(world.work, ready)
    assert isinstance(answer, pushing.Delivered), answer
    return answer


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


def pr_of(out: str) -> dict[str, object]:
    """The pull request of `--json`."""
    pr = json.loads(out)["pr"]
    assert isinstance(pr, dict)
    return pr


def opened(result: str, says: str = "https://forge.invalid/1") -> dict[str, object]:
    return {"result": result, "says": says, "over": None, "why": None}


def on_branch(up: Upstream, branch: str, path: str, message: str) -> str:
    """The teammate's commit on top of a branch that we pushed."""
    up.git("fetch", "-q", "origin")
    up.git("reset", "-q", "--hard", f"origin/{branch}")
    (up.mate / path).write_text("theirs\n", "utf-8")
    up.git("add", "-A")
    up.git("commit", "-q", "-m", message)
    up.git("push", "-q", "origin", f"HEAD:{branch}")
    return at(up, branch)


def hints(said: str) -> list[str]:
    """The hints of an error, each as it is pasted."""
    rows = [row.strip() for row in said.splitlines()]
    return [row.removeprefix("hint: ") for row in rows if row.startswith("hint: ")]


def paste(folder: Path, command: str) -> None:
    """A shell does what a hint says."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)


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
        "result": "pushed",
        "remote": "origin",
        "upstream": "origin/main",
        "branch": "work",
        "old": first,
        "new": second,
        "pr": None,
    }
    known = world.ledger.view().upstream()
    assert known is not None
    assert [(push.branch, push.oid) for push in known.pushes] == [("work", first), ("work", second)]
    assert lines(world.folder / "moves") == ["refs/heads/work new", "refs/heads/work forward"]


def test_what_somebody_else_put_on_the_branch_stays(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make()
    world.land("One", "one.txt", "1\n")
    assert world.typed("push", "--branch", "work").code == 0
    theirs = on_branch(up, "work", "theirs.txt", "their \x1b[2Jsubject")
    world.land("Two", "two.txt", "1\n")
    said = world.typed("push", "--branch", "work")
    assert said.code == Exit.NO
    assert said.err == (
        "error: origin/work was not moved: it has 1 commit that main lacks\n"
        "  by A Person: their [2Jsubject\n"
        "  nothing is ever forced\n"
        "  the first command below takes another branch; the second brings these commits in,\n"
        "  not checked before they are the target: the next run judges them first\n"
        "  hint: swarm push --branch work-2\n"
        "  hint: swarm pull && git fetch origin work && git merge --ff --no-edit FETCH_HEAD && "
        "git push swarm HEAD:main\n"
    )
    assert at(up, "work") == theirs
    up.commit("b.txt", "1\n")
    said = world.typed("push", "--branch", "main")
    assert said.code == Exit.NO and said.err.endswith("hint: swarm sync\n"), "that one is upstream"
    assert world.typed("sync").code == 0
    assert world.typed("push", "--branch", "main").code == 0, "now it only goes forward"
    assert up.tip == world.main


@pytest.mark.parametrize("branch", ["work", "it's; touch x"])
def test_either_way_past_a_colleagues_commit_can_be_pasted(
    make: Callable[..., tuple[World, Upstream]], branch: str
) -> None:
    branch = branch.replace(" ", "${IFS}")
    world, up = make()
    world.land("One", "one.txt", "1\n")
    assert world.typed("push", "--branch", branch).code == 0
    on_branch(up, branch, "theirs.txt", "theirs")
    world.land("Two", "two.txt", "1\n")
    other, take_in = hints(world.typed("push", "--branch", branch).err)
    paste(world.app, other)
    assert at(up, f"{branch}-2") == world.main
    world.land("Three", "three.txt", "1\n")
    said = world.typed("push", "--branch", branch)
    assert hints(said.err) == [other, take_in], "the one that is only ours to move is free too"
    paste(world.app, take_in)
    world.step()
    assert world.file("theirs.txt", world.main) == "theirs\n"
    assert world.typed("push", "--branch", branch).code == 0
    assert at(up, branch) == world.main
    assert not list(world.folder.rglob("x"))


def test_a_commit_that_comes_between_the_look_and_the_push_is_seen(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make()
    world.land("One", "one.txt", "1\n")
    assert world.typed("push", "--branch", "work").code == 0
    world.land("Two", "two.txt", "1\n")
    ready = pushing.prepare(world.work, "work")
    assert isinstance(ready, pushing.Ready)
    theirs = on_branch(up, "work", "theirs.txt", "theirs")
    answer = pushing.deliver(world.work, ready)
    assert isinstance(answer, pushing.Foreign)
    assert answer.theirs == pushing.Theirs(1, "A Person", "theirs")
    assert at(up, "work") == theirs


def test_the_remotes_own_refusal_is_shown_in_its_words(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make()
    hook = up.origin / "hooks" / "update"
    hook.write_text("#!/bin/sh\nprintf 'no \\033[5mpushes\\033[0m on friday\\n' >&2; exit 1\n")
    hook.chmod(0o755)
    world.land("One", "one.txt", "1\n")
    said = world.typed("push", "--branch", "work")
    assert said.code == Exit.NO
    assert said.err.startswith("error: origin refused work; nothing was pushed\n"), said.err
    assert "on friday" in said.err and "hook declined" in said.err and "\x1b" not in said.err
    assert "forced" not in said.err
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
    world.land("One", "one.txt", "1\n")
    assert world.typed("push", "--branch", "work").code == 0
    tip, held = world.main, at(up, "work")
    git(world.layout.hub, "update-ref", "-d", "refs/heads/main")
    with pytest.raises(HubUnusable, match="no branch main"):
        pushing.prepare(world.work, "work")
    with pytest.raises(HubUnusable, match="no branch main"):
        pushing.prepare(world.work, "new")
    assert at(up, "work") == held
    git(world.layout.hub, "update-ref", "refs/heads/main", tip)


# -- its name


def test_the_branch_is_named_after_the_newest_run(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make(config='push_branch = "team/{target}/{run}"')
    world.land("One", "one.txt", "1\n")
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
    world.land("One", "one.txt", "1\n")
    assert world.typed("push").code == 0 and at(up, "swarm-main") == world.main


@pytest.mark.parametrize("name", ["-x", "--force", "a..b", "a b", "refs/heads/x", "x:y", "+", ""])
def test_what_is_no_name_of_a_branch_is_refused(
    make: Callable[..., tuple[World, Upstream]], name: str
) -> None:
    world, up = make()
    world.land("One", "one.txt", "1\n")
    said = world.typed("push", f"--branch={name}")
    if name == "+":  # odd, and a branch all the same
        assert said.code == 0 and at(up, "+") == world.main
        return
    assert said.code == Exit.USAGE and "--branch" in said.err, said
    assert git(up.origin, "for-each-ref", "--format=%(refname)") == "refs/heads/main"


def test_a_run_that_lands_nothing_renames_no_branch(
    make: Callable[..., tuple[World, Upstream]], tmp_path: Path
) -> None:
    world, up = make(asks(tmp_path, "{branch}"))
    first = world.land("One", "one.txt", "1\n")
    run_record(world, "r3")
    assert world.typed("push").code == 0 and at(up, "swarm/r3") == first
    run_record(world, "r4")
    said = world.typed("push", "--pr")
    assert said.code == 0 and said.out.startswith(f"origin/swarm/r3 {first[:7]}: nothing new to")
    assert lines(tmp_path / "asked") == ["request", "swarm/r3"]
    git(up.origin, "update-ref", "-d", "refs/heads/swarm/r3")
    assert world.typed("push").code == 0 and at(up, "swarm/r4") == first, "it is not there any more"
    second = world.land("Two", "two.txt", "1\n")
    assert world.typed("push").code == 0 and at(up, "swarm/r4") == second


@pytest.mark.parametrize(
    ("name", "person", "folded"),
    [("Ann O'Neil", "x", "ann-o-neil"), ("\u4e2d", "Bob", "bob"), ("\u4e2d", "\u4e2d", "user")],
)
def test_two_people_can_have_branches_of_their_own(
    make: Callable[..., tuple[World, Upstream]],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    person: str,
    folded: str,
) -> None:
    world, up = make(config='push_branch = "swarm/{user}/{run}"')
    git(world.app, "config", "user.name", name)
    monkeypatch.setenv("SWARM_USER", person)
    world.land("One", "one.txt", "1\n")
    run_record(world, "r1")
    assert world.typed("push").code == 0
    assert at(up, f"swarm/{folded}/r1") == world.main


def test_a_default_branch_of_somebody_else_names_a_free_one(
    make: Callable[..., tuple[World, Upstream]], tmp_path: Path
) -> None:
    world, up = make(asks(tmp_path, "{branch}"))
    up.git("commit", "-q", "--allow-empty", "-m", "of another hub")
    for name in ("swarm/r1", "swarm/r1-2", "swarm/r1-3/below"):
        up.git("push", "-q", "origin", f"HEAD:refs/heads/{name}")
    world.land("One", "one.txt", "1\n")
    run_record(world, "r1")
    said = world.typed("push", "--pr")
    assert said.code == Exit.NO and "push_branch with {user} keeps" in said.err, said
    free = hints(said.err)[0]
    assert free == "swarm push --branch swarm/r1-4 --pr"
    paste(world.app, free)
    assert at(up, "swarm/r1-4") == world.main
    assert lines(tmp_path / "asked") == ["request", "swarm/r1-4"]


# -- nothing to give


def test_what_upstream_has_already_makes_no_branch_and_no_pull_request(
    make: Callable[..., tuple[World, Upstream]], tmp_path: Path
) -> None:
    world, up = make(asks(tmp_path, "{branch}"))
    nothing = "origin/main has all of main: nothing to push\n"

    def assert_nothing() -> None:
        before = git(up.origin, "for-each-ref"), world.events()
        for more in ([], ["--pr"], ["--branch", "new", "--pr"], ["--branch", "work"]):
            said = world.typed("push", *more)
            assert (said.code, said.out) == (0, nothing), said
        assert (git(up.origin, "for-each-ref"), world.events()) == before
        assert not lines(tmp_path / "asked")

    assert_nothing()  # the same commit; no run to name a branch after either
    up.commit("theirs.txt", "1\n")
    assert_nothing()  # contained
    world.land("One", "one.txt", "1\n")
    assert world.typed("push", "--branch", "work").code == 0
    up.squash("work")
    assert_nothing()  # under another name
    up.commit("theirs.txt", "2\n")
    assert_nothing()
    assert world.typed("sync").code == 0
    assert_nothing()  # and joined
    up.commit("theirs.txt", "3\n")
    assert_nothing()
    said = json.loads(world.typed("push", "--json").out)
    assert said["result"] == "upstream_has_all" and said["upstream"] == "origin/main"
    assert (said["branch"], said["old"], said["pr"]) == (None, None, None)
    world.land("Two", "two.txt", "1\n")
    assert world.typed("push", "--branch", "work").code == 0
    assert at(up, "work") == world.main, "now there is something"


def test_what_a_person_dropped_of_upstreams_is_something_to_give(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make()
    world.land("One", "one.txt", "1\n")
    assert world.typed("push", "--branch", "work").code == 0
    up.squash("work")
    up.commit("theirs.txt", "1\n")
    git(world.app, "pull", "-q", "--ff-only", "swarm", "main")
    git(world.app, "fetch", "-q", "origin")
    git(world.app, "merge", "-q", "-s", "ours", "-m", "not theirs", "origin/main")
    git(world.app, "push", "-q", "swarm", "HEAD:main")
    assert world.typed("push", "--branch", "work").code == 0
    assert at(up, "work") == world.main


def test_a_run_names_a_branch_only_for_what_upstream_lacks(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make(config='every = "15m"')
    (world.app / "tasks").mkdir()
    (world.app / "tasks" / "one.md").write_text("---\ntitle: One\nstrikes: 1\n---\n", "utf-8")
    up.commit("theirs.txt", "1\n")
    said = run_swarm(world.app, "run", "--", "false")
    assert "swarm pull " in said.stdout, "what the sync brought"
    assert "as a PR" not in said.stdout, said
    assert run_swarm(world.app, "task", "reopen", "one").returncode == 0
    said = run_swarm(world.app, "run", "--", "sh", "-c", "echo 1 >one.txt")
    assert "as a PR     swarm push       branch swarm/r2 on origin\n" in said.stdout, said


def test_a_run_does_not_have_the_teams_commits_written_anew(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, up = make()
    up.commit("theirs.txt", "1\n")
    git(world.app, "pull", "-q", "origin", "main")
    (world.app / "tasks").mkdir()
    (world.app / "tasks" / "one.md").write_text("---\ntitle: One\n---\nOne.\n", "utf-8")
    said = run_swarm(world.app, "run", "--", "sh", "-c", "echo 1 >one.txt")
    assert "take it     swarm sync && swarm pull      your main " in said.stdout, said
    assert said.stdout.endswith(" has your team's commits\n")
    paste(world.app, "swarm sync && swarm pull")
    assert git(world.app, "rev-parse", "HEAD") == world.main


# -- the pull request


def test_each_branch_has_one_pull_request(
    make: Callable[..., tuple[World, Upstream]], tmp_path: Path
) -> None:
    world, up = make(asks(tmp_path, "--head", "{branch}", "--base", "{target}", "-t", "{title}"))
    world.land("Add search", "one.txt", "1\n")
    said = world.typed("push", "--branch", "work", "--pr")
    assert said.code == 0 and said.out.endswith("pr        opened: https://forge.invalid/1\n")
    wanted = ["request", "--head", "work", "--base", "main", "-t", "Add search"]
    assert lines(tmp_path / "asked") == wanted
    world.land("Two", "two.txt", "1\n")
    said = world.typed("push", "--branch", "work", "--pr", "--json")
    assert said.code == 0 and pr_of(said.out) == opened("opened_before")
    assert lines(tmp_path / "asked") == wanted, "it shows what was pushed since"
    said = world.typed("push", "--branch", "work", "--pr")
    assert said.code == 0 and said.out.endswith(
        "pr        opened before: https://forge.invalid/1; it shows what was pushed\n"
    )
    said = world.typed("push", "--branch", "other", "--pr", "--json")
    assert pr_of(said.out) == opened("opened")
    assert lines(tmp_path / "asked").count("request") == 2
    git(up.origin, "update-ref", "-d", "refs/heads/work")
    said = world.typed("push", "--branch", "work", "--pr", "--json")
    assert pr_of(said.out) == opened("opened"), "the branch is new again"
    assert lines(tmp_path / "asked").count("request") == 3
    assert [one for one in world.events() if one == "pushed"], "and the ledger tells it"


@pytest.mark.parametrize("how", ["squashed", "merged", "rebased"])
@pytest.mark.parametrize("is_synced", [True, False])
def test_a_pull_request_that_was_merged_is_over(
    make: Callable[..., tuple[World, Upstream]], tmp_path: Path, how: str, is_synced: bool
) -> None:
    world, up = make(asks(tmp_path, "{branch}", "{title}"))
    world.land("One", "one.txt", "1\n")
    assert world.typed("push", "--branch", "work", "--pr").code == 0
    up.commit("theirs.txt", "1\n")
    if how == "squashed":
        up.squash("work")
    else:
        up.git("fetch", "-q", "origin")
        verb = (
            ["cherry-pick", "-m1"] if how == "rebased" else ["merge", "-q", "--no-ff", "--no-edit"]
        )
        up.git(*verb, "origin/work")
        up.push()
    if is_synced:
        assert world.typed("sync").code == 0
    world.land("Two", "two.txt", "1\n")
    said = world.typed("push", "--branch", "work", "--pr")
    assert said.code == 0, said
    over = "the one before (https://forge.invalid/1) is over: origin/main has what it showed"
    assert said.out.splitlines()[1:] == [
        f"pr        {over}",
        "pr        opened: https://forge.invalid/1",
    ]
    assert lines(tmp_path / "asked") == ["request", "work", "One", "request", "work", "Two"]
    world.land("Three", "three.txt", "1\n")
    said = world.typed("push", "--branch", "work", "--pr", "--json")
    assert pr_of(said.out) == opened("opened_before"), "this one is not"


def test_that_it_is_over_is_seen_by_a_push_without_one(
    make: Callable[..., tuple[World, Upstream]], tmp_path: Path
) -> None:
    world, up = make(asks(tmp_path, "{title}"))
    world.land("One", "one.txt", "1\n")
    assert world.typed("push", "--branch", "work", "--pr").code == 0
    up.squash("work")
    assert world.typed("sync").code == 0
    assert world.typed("revert", "one").code == 0
    assert world.typed("push", "--branch", "work").code == 0
    said = world.typed("push", "--branch", "work", "--pr", "--json")
    assert pr_of(said.out) == opened("opened")
    assert lines(tmp_path / "asked")[-1] == "Undo one"


# -- interrupted


def interrupted(world: World, begun: Path, *args: str) -> tuple[int, str]:
    """Ctrl-C as soon as that file is there: exit code, standard error."""
    world.close_gates()
    child = subprocess.Popen(
        [sys.executable, "-m", "swarm", *args],
        cwd=world.app,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(begun.exists, f"{begun.name} has begun")
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=30)
    world.step()
    return child.returncode, said


def test_ctrl_c_says_what_is_so(
    make: Callable[..., tuple[World, Upstream]], tmp_path: Path
) -> None:
    world, up = make(f"touch {tmp_path}/asking; exec sleep 60")
    world.land("One", "one.txt", "1\n")
    hangs = tmp_path / "hangs"
    hangs.write_text(f"#!/bin/sh\ntouch {tmp_path}/looking\nexec sleep 60\n", "utf-8")
    hangs.chmod(0o755)
    git(world.app, "config", "remote.origin.uploadpack", str(hangs))
    assert interrupted(world, tmp_path / "looking", "push", "--branch", "work", "--pr") == (
        Exit.INTERRUPTED,
        "error: interrupted: nothing was pushed\n  hint: swarm push --branch work --pr\n",
    )
    git(world.app, "config", "--unset", "remote.origin.uploadpack")
    hook = up.origin / "hooks" / "update"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/pushing\nexec sleep 60\n", "utf-8")
    hook.chmod(0o755)
    assert interrupted(world, tmp_path / "pushing", "push", "--branch", "work") == (
        Exit.INTERRUPTED,
        "error: interrupted: origin/work may have been pushed\n  hint: swarm push --branch work\n",
    )
    hook.unlink()
    code, said = interrupted(world, tmp_path / "asking", "push", "--branch", "work", "--pr")
    assert code == Exit.INTERRUPTED
    assert said.startswith("error: interrupted: origin/work is pushed; [upstream] pr was ended")
    assert hints(said) == ["swarm push --branch work --pr"]
    assert at(up, "work") == world.main


def test_a_branch_that_was_deleted_is_asked_for_again_though_the_push_was_cut_short(
    make: Callable[..., tuple[World, Upstream]], tmp_path: Path
) -> None:
    world, up = make(asks(tmp_path, "{branch}"))
    world.land("One", "one.txt", "1\n")
    assert world.typed("push", "--branch", "work", "--pr").code == 0
    git(up.origin, "update-ref", "-d", "refs/heads/work")
    env = {"SWARM_FAULTS": "1", "SWARM_CRASH_AT": "push.after_push"}
    world.close_gates()
    cut = run_swarm(world.app, "push", "--branch", "work", "--pr", env=env)
    assert cut.returncode == -9 and at(up, "work") == world.main
    assert world.typed("push", "--branch", "work", "--pr").code == 0
    assert lines(tmp_path / "asked").count("request") == 2


def test_two_at_once_open_one(make: Callable[..., tuple[World, Upstream]], tmp_path: Path) -> None:
    world, _ = make("sleep 0.3; " + asks(tmp_path, "{branch}"))
    world.land("One", "one.txt", "1\n")
    pushed = delivered(world, "work")
    answers: list[object] = []

    def open_pr() -> None:
        answers.append(pull_request.open_pr(world.work, pushed))

    threads = [threading.Thread(target=open_pr) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(one).__name__ for one in answers) == ["Opened", "OpenedBefore"]
    assert lines(tmp_path / "asked") == ["request", "work"]


def test_a_pull_request_without_a_command_is_refused_before_anything_is_pushed(
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
    world.land("One", "one.txt", "1\n")
    said = world.typed("push", "--branch", "work", "--pr", "--json")
    assert said.code == Exit.NO and pr_of(said.out) == {
        "result": "not_opened",
        "says": "[2J",
        "over": None,
        "why": "exit code 4",
    }
    said = world.typed("push", "--branch", "work", "--pr")
    assert said.code == Exit.NO and at(up, "work") == world.main, "the branch stays pushed"
    assert "pr        not opened: [upstream] pr: exit code 4; the branch is pushed\n" in said.out
    assert "  not logged in\n" in said.out and "\x1b" not in said.out
    assert said.out.endswith("next      swarm push --branch work --pr\n")
    (tmp_path / "ok").touch()
    said = world.typed("push", "--branch", "work", "--pr", "--json")
    assert said.code == 0 and pr_of(said.out) == opened("opened", "")


def test_a_command_that_hangs_is_ended(
    make: Callable[..., tuple[World, Upstream]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, up = make(f"echo asking; sh -c 'echo $$ >{tmp_path}/pid; exec sleep 600'")
    world.land("One", "one.txt", "1\n")
    monkeypatch.setattr(pull_request, "COMMAND_LIMIT", timedelta(seconds=0.5))
    started = time.monotonic()
    said = world.typed("push", "--branch", "work", "--pr", "--json")
    assert time.monotonic() - started < 30
    assert said.code == Exit.NO and pr_of(said.out)["why"] == "timed out"
    pid = int((tmp_path / "pid").read_text("utf-8"))
    assert not Path(f"/proc/{pid}").exists(), "with what it started"
    assert at(up, "work") == world.main


def test_the_command_has_the_users_environment_and_neither_our_git_nor_a_terminal(
    make: Callable[..., tuple[World, Upstream]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, _ = make(f"env >{tmp_path}/env; cat >>{tmp_path}/env; pwd >>{tmp_path}/env")
    world.land("One", "one.txt", "1\n")
    monkeypatch.setenv("GH_TOKEN", "mine")
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("SWARM_USER", "somebody")
    monkeypatch.setenv("PYTHONPATH", "/nonexistent")
    answer = pull_request.open_pr(world.work, delivered(world, "work"))
    assert isinstance(answer, pull_request.Opened)
    env = lines(tmp_path / "env")
    assert "GH_TOKEN=mine" in env and env[-1] == str(world.app)
    names = {row.partition("=")[0] for row in env}
    assert not [name for name in names if name.startswith(("GIT_", "PYTHONPATH"))]
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
    text = text_of(world)
    assert text.title == "app: 3 tasks by swarm"
    head, _, rest = text.body.partition("- check tests on ")
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
    assert text_of(world).title == "Squashed"
    assert world.typed("push", "--branch", "two").code == 0
    up.commit("theirs.txt", "1\n")
    up.squash("two")
    world.land("Fresh", "fresh.txt", "1\n")
    text = text_of(world)
    assert text.title == "Fresh" and "squashed" not in text.body, text.body
    assert world.typed("sync").code == 0
    text = text_of(world)
    assert text.title == "Fresh" and "squashed" not in text.body, "also when it has come in"
    assert "no task landed" not in text.body, "what a sync brought is no news to the team"
    known = world.ledger.view().upstream()
    assert known is not None
    git(world.app, "remote", "set-url", "origin", str(world.folder / "gone.git"))
    with pytest.raises(RemoteUnreachable):
        pushing.prepare(world.work, "text")
    git(world.app, "remote", "set-url", "--push", "origin", str(up.origin))
    assert text_of(world) == text, "as last known, when it answers only to a push"


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
    assert text_of(world).title == "Ours"


def test_what_no_task_landed_makes_an_honest_text(
    make: Callable[..., tuple[World, Upstream]],
) -> None:
    world, _ = make()
    world.push("by-hand.txt", "1\n")
    text = text_of(world)
    assert text.title == f"app: main at {world.main[:7]}"
    assert "- and 1 commit that no task landed\n" in text.body
    assert "- check tests on" in text.body and ": not run" in text.body
    assert text.body.endswith("- cost: unknown, 0 attempts\n")


# -- what is remembered


def test_only_so_much_is_remembered(make: Callable[..., tuple[World, Upstream]]) -> None:
    world, _ = make()
    main = world.main
    for number in range(pushing.KEPT + 2):
        pushing.remember(world.work, f"b{number}", main)
        pushing.remember(world.work, "old", f"{number:040x}", "an address")
    known = world.ledger.view().upstream()
    assert known is not None
    names = [push.branch for push in known.pushes]
    assert len(names) <= 2 * pushing.KEPT
    assert names[-1] == "old" and f"b{pushing.KEPT + 1}" in names and "b0" not in names
    assert names.count("old") > 2, "earlier pushes too: what the team squashed may be one of them"
    assert pushing.newest_push(known, "old") == known.pushes[-1]
    assert known.pushes[-1].pr == "an address"


def test_another_remote_was_asked_for_nothing(
    make: Callable[..., tuple[World, Upstream]], tmp_path: Path
) -> None:
    world, up = make(asks(tmp_path, "{branch}"))
    world.land("One", "one.txt", "1\n")
    assert world.typed("push", "--branch", "work", "--pr").code == 0
    fork = tmp_path / "fork.git"
    git(tmp_path, "clone", "-q", "--bare", str(up.origin), str(fork))
    git(world.app, "remote", "add", "fork", str(fork))
    toml = (world.app / "swarm.toml").read_text("utf-8")
    toml = toml.replace("[upstream]\n", '[upstream]\nremote = "fork"\n')
    (world.app / "swarm.toml").write_text(toml, "utf-8")
    said = world.typed("push", "--branch", "work", "--pr", "--json")
    assert said.code == 0 and pr_of(said.out) == opened("opened")
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
        ("push_branch = 'x/{title}'", "unknown placeholder {title}; known: {run} {target} {user}"),
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
    assert configuration.fill_pr(pr) == command
