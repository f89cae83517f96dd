"""The sandbox: what its words are, what cannot be done in it, and what still can.

Enters: facts; real runs of agents that try to get out. Leaves: mounts, refusals, worlds.
Guards: each way out is tried without a sandbox too, where it works, so that no test passes because
the attempt was a bad one; what an agent is there for works inside.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from swarm import process, sandbox
from swarm.ids import new_nonce
from swarm.ledger.view import State
from swarm.sandbox import Bwrap, Facts, SandboxUnusable, expanded, words
from tests.world import World, git, run_swarm, typed, until

BWRAP = '[run]\nsandbox = "bwrap"\n'
SECRET = "s3cret-f2a1"


def _why_not() -> str:
    try:
        sandbox.find(os.environ.get("PATH", ""), "none")
    except SandboxUnusable as error:
        return f"{error.what}: {error.why or ''}"
    return ""


WHY_NOT = _why_not()
needs_bwrap = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


# -- the words ------------------------------------------------------------------------------------


@dataclass
class Tree:
    """Folders of a machine, and the words for a program in them."""

    root: Path
    facts: dict[str, object] = field(default_factory=dict)

    def folder(self, name: str) -> Path:
        made = self.root / name
        made.mkdir(parents=True, exist_ok=True)
        return made

    def file(self, name: str) -> Path:
        made = self.folder(str(Path(name).parent)) / Path(name).name
        made.write_text(SECRET)
        return made

    def words(self, **changes: object) -> list[str]:
        known: dict[str, object] = {
            "cwd": self.folder("state/slots/s1"),
            "hidden": (self.folder("state"),),
            "read": (),
            "write": (self.folder("state/slots/s1"),),
            "tmpdir": self.folder("own-tmp"),
        }
        return list(words(Bwrap("bwrap", ("--apart",)), Facts(**(known | changes))))  # type: ignore[arg-type]

    def mounts(self, **changes: object) -> list[tuple[str, str]]:
        """(option, place) of each mount below the root, in order."""
        said = self.words(**changes)
        found = []
        for at, word in enumerate(said):
            if word in ("--ro-bind-try", "--bind-try", "--symlink"):
                found.append((word, said[at + 2]))
            elif word in ("--tmpfs", "--remount-ro"):
                found.append((word, said[at + 1]))
        return [
            (o, str(Path(p).relative_to(self.root)))
            for o, p in found
            if p.startswith(str(self.root))
        ]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_what_is_deeper_stands_over_what_it_lies_in_and_the_rest_is_not_there(tree: Tree) -> None:
    tree.folder("state/hub.git")
    mounts = tree.mounts(
        read=(tree.root / "state/hub.git", tree.root / "state/missing"),
        write=(tree.root / "state/slots/s1",),
    )
    assert [mount for mount in mounts if mount[1] != "own-tmp"] == [
        ("--tmpfs", "state"),
        ("--ro-bind-try", "state/hub.git"),
        ("--bind-try", "state/slots/s1"),
        ("--remount-ro", "state"),
    ]


def test_the_root_is_read_only_and_the_program_comes_last(tree: Tree) -> None:
    said = tree.words()
    assert said[:2] == ["bwrap", "--apart"]
    assert said[-5:] == ["--remount-ro", "/", "--chdir", str(tree.root / "state/slots/s1"), "--"]


def test_an_empty_folder_is_shown_where_another_is(tree: Tree) -> None:
    home = tree.folder("home")
    tree.file("home/bin/tool")
    said = tree.words(empty=((home, tree.folder("new")),), read=(home / "bin",))
    at = said.index(str(tree.root / "new"))
    assert said[at - 1 : at + 2] == ["--bind-try", f"{tree.root}/new", str(home)]
    assert at < said.index(str(home / "bin")), "and what is named of it stands over it"


def test_a_network_is_shut_off_when_asked(tree: Tree) -> None:
    assert "--unshare-net" in tree.words(network="none")
    assert "--unshare-net" not in tree.words(network="open")


def test_links_on_the_way_to_a_place_are_there_too(tree: Tree) -> None:
    tree.file("far/place/file")
    (tree.root / "near").symlink_to("far")
    (tree.root / "far/round").symlink_to(tree.root / "near/place")
    mounts = tree.mounts(read=(tree.root / "near/round/file",))
    assert ("--symlink", "near") in mounts and ("--symlink", "far/round") in mounts
    assert ("--ro-bind-try", "far/place/file") in mounts


def test_a_link_that_comes_along_with_its_folder_is_not_made_again(tree: Tree) -> None:
    tree.file("tools/lib/real")
    tree.folder("tools/bin")
    (tree.root / "tools/bin/it").symlink_to("../lib/real")
    mounts = tree.mounts(read=(tree.root / "tools", tree.root / "tools/bin/it"))
    assert [m for m in mounts if m[1].startswith("tools")] == [("--ro-bind-try", "tools")]


def test_a_circle_of_links_is_no_place(tree: Tree) -> None:
    (tree.root / "a").symlink_to("b")
    (tree.root / "b").symlink_to("a")
    assert not [m for m in tree.mounts(read=(tree.root / "a/x",)) if m[1][0] in "ab"]


def test_a_link_of_the_agents_chooses_nothing(tree: Tree) -> None:
    """A PATH entry of the checkout means the worktree's, where the agent can put a link."""
    tree.file("home/.ssh/bin/key")
    worktree = tree.folder("state/slots/s1")
    (worktree / ".venv").symlink_to(tree.root / "home/.ssh")
    assert (worktree / ".venv/bin/key").exists()
    mounts = tree.mounts(read=(worktree / ".venv/bin",))
    assert not [m for m in mounts if m[1].startswith("home")]
    other = tree.folder("cache")
    (other / "deep").symlink_to(tree.root / "home/.ssh")
    mounts = tree.mounts(write=(worktree, other, other / "deep"))
    assert ("--bind-try", "cache") in mounts
    assert not [m for m in mounts if m[1].startswith("home")]


def test_write_is_stronger_than_read(tree: Tree) -> None:
    place = tree.file("login/auth")
    assert ("--bind-try", "login/auth") in tree.mounts(read=(place,), write=(place,))
    above = tree.mounts(read=(tree.root / "login",), write=(place,))
    assert above.index(("--ro-bind-try", "login")) < above.index(("--bind-try", "login/auth"))


@pytest.mark.skipif(os.geteuid() != 0, reason="closed files are closed to others by themselves")
def test_what_only_root_can_read_below_etc_is_covered(tree: Tree) -> None:
    said = tree.words()
    closed = said.index("/etc/shadow")
    assert said[closed - 2 : closed] == ["--ro-bind", "/dev/null"]
    assert "/etc/passwd" not in said


def test_places_as_people_write_them() -> None:
    environ = {"HOME": "/home/ada", "CODEX_HOME": "/srv/codex", "EMPTY": ""}
    entries = ["~/.nvm", "$CODEX_HOME/auth.json", "/srv/data", "$NONE/x", "$EMPTY/x", "bare", "~/"]
    assert [str(path) for path in expanded(entries, environ)] == [
        "/home/ada/.nvm", "/srv/codex/auth.json", "/srv/data", "/home/ada",
    ]  # fmt: skip
    assert [str(path) for path in expanded(entries, environ, has_home=False)] == [
        "/srv/codex/auth.json", "/srv/data",
    ], "and `~/x` without a home is not `/x`"  # fmt: skip


@pytest.mark.parametrize("entry", ["", "/", "~", "~/", "relative", "~/../x", "/a/../b", "~ada/x"])
def test_a_whole_home_or_no_place_is_refused(world: World, entry: str) -> None:
    toml = world.app / "swarm.toml"
    toml.write_text(f"[run]\nvisible = [{json.dumps(entry)}]\n" + toml.read_text())
    said = typed(world.app, "status")
    assert said.code == 2 and "visible" in said.all


def test_folders_of_path_are_tools_unless_they_hold_what_is_hidden(tree: Tree) -> None:
    home = tree.folder("code/home")
    tree.folder("code/bin")
    (tree.root / "alias").symlink_to("code")
    path = ["code/bin", "code", "alias", "code/home", "code/home/bin"]
    env = {"PATH": ":".join([*(f"{tree.root}/{name}" for name in path), "relative", ""])}
    found = [str(p.relative_to(tree.root)) for p in sandbox.tools(env, (home,))]
    assert found == ["code/bin", "code/home/bin"]


def test_a_hub_that_borrows_objects_shows_them(tree: Tree) -> None:
    hub = tree.folder("hub.git")
    assert sandbox.borrowed(hub) == ()
    tree.folder("hub.git/objects/info")
    (hub / "objects/info/alternates").write_text("/srv/other/objects\n# none\n../../near/objects\n")
    found = [os.path.normpath(path) for path in sandbox.borrowed(hub)]
    assert found == ["/srv/other/objects", str(tree.root / "near/objects")]


def test_named_files_are_whole_paths_of_files(tree: Tree) -> None:
    file = tree.file("a/file")
    words = [str(file), str(file.parent), "file", f"--x={file}", "/" + "x" * 9000, "/nul\0", "-c"]
    assert sandbox.named_files(words) == (file,)


def test_of_the_interpreter_there_is_what_it_needs_and_not_what_else_lies_beside_it() -> None:
    """An environment may have been made in the checkout itself."""
    code = sandbox.own_code()
    assert Path(sys.prefix) not in code and Path(sys.base_prefix) not in code
    assert Path(sys.prefix, "lib") in code
    assert Path(sandbox.__file__).parent in code


# -- refusals -------------------------------------------------------------------------------------


@needs_bwrap
@pytest.mark.parametrize("key", ["visible", "writable"])
@pytest.mark.parametrize("what", ["home", "checkout", "both", "state"])
def test_what_holds_all_that_is_hidden_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, what: str
) -> None:
    world = World(tmp_path, config=BWRAP)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    places = {"home": "$HOME", "checkout": world.app, "both": tmp_path, "state": world.layout.root}
    toml = world.app / "swarm.toml"
    toml.write_text(toml.read_text().replace("[run]\n", f'[run]\n{key} = ["{places[what]}"]\n'))
    world.add("One")
    said = typed(world.app, "run", "--", "/bin/true")
    assert said.code == 2 and "is too much for a sandbox: it holds" in said.err, said.all
    assert world.events("one") == ["added"]
    world.close()


@pytest.fixture
def boxed(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, config=BWRAP)
    yield made
    made.close()


def on_path(world: World, script: str | None) -> dict[str, str]:
    """A PATH with git and a `bwrap` that is this script; None: with none."""
    folder = world.folder / "bin"
    folder.mkdir()
    for name in ("git", "sh"):
        (folder / name).symlink_to(Path("/usr/bin") / name)
    if script is not None:
        (folder / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "bwrap").chmod(0o755)
    return {"PATH": str(folder)}


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "bwrap is not on PATH"),
        ("echo 'bwrap: No permissions to create new namespace' >&2; exit 1", "cannot work here"),
        ("exit 3", "exit code 3"),
    ],
)
@pytest.mark.parametrize("verb", [("run", "--", "/bin/true"), ("gate", "--once")])
def test_where_it_cannot_work_nothing_is_started(
    boxed: World, monkeypatch: pytest.MonkeyPatch, script: str | None, said: str,
    verb: tuple[str, ...],
) -> None:  # fmt: skip
    boxed.add("One")
    monkeypatch.setenv("PATH", on_path(boxed, script)["PATH"])
    answer = typed(boxed.app, *verb)
    assert answer.code == 2 and said in answer.err and "nothing was started" in answer.err
    assert 'hint: sandbox = "none" in swarm.toml' in answer.err
    if script is not None and "echo" in script:
        assert "No permissions to create new namespace" in answer.err
    assert boxed.events("one") == ["added"]


def test_a_network_is_not_shut_off_without_a_sandbox(tmp_path: Path) -> None:
    world = World(tmp_path, config='[run]\nnetwork = "none"\n')
    world.add("One")
    answer = typed(world.app, "run", "--", "/bin/true")
    assert answer.code == 2 and 'network = "none" needs a sandbox' in answer.err
    world.close()


TOOL = """
format = 1
name = "tool"
program = "{program}"
version = ["--version"]
argv = []
[prompt]
how = "stdin"
[output]
format = "text"
[[outcome]]
is = "success"
exit = [0]
[stop]
signals = ["SIGTERM", "SIGKILL"]
[sandbox]
{sandbox}
"""


def add_tool(world: World, program: Path, sandboxed: str = "") -> None:
    folder = world.app / ".swarm/agents"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tool.toml").write_text(TOOL.format(program=program, sandbox=sandboxed))


def put_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@needs_bwrap
def test_a_program_that_lacks_something_in_the_sandbox_is_refused_before_it_starts(
    boxed: World,
) -> None:
    """Its interpreter lies in the home, which is not there."""
    home = Path(os.environ["HOME"])
    put_program(home / "lib/interpreter", '#!/bin/sh\necho "1.2.3"\n')
    tool = put_program(home / "bin/tool", f"#!/bin/sh\nexec {home}/lib/interpreter\n")
    add_tool(boxed, tool)
    boxed.add("One")
    answer = typed(boxed.app, "run", "--agent", "tool")
    assert answer.code == 2, answer.all
    assert "tool does not start in the sandbox; nothing was started" in answer.err
    assert "lib/interpreter" in answer.err and 'hint: visible = ["~/tools"]' in answer.err
    assert boxed.events("one") == ["added"]
    toml = boxed.app / "swarm.toml"
    toml.write_text(toml.read_text().replace("[run]", '[run]\nvisible = ["~/lib"]'))
    answer = typed(boxed.app, "run", "--agent", "tool")
    assert "does not start" not in answer.err
    assert "of yours it reads ~/lib" in answer.out


# -- ways out -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Try:
    """One attempt to get out, in sh; its exit code says whether the agent saw it work."""

    name: str
    script: str
    happened: Callable[[Scene], bool] | None = None  # outside; None: only what it saw counts
    seems: bool = False  # inside it looks as if it had worked, in a place of its own
    as_root: bool = False  # without a sandbox it needs root


@dataclass
class Scene:
    """A world with secrets and bystanders in it, and what agents got out of it."""

    world: World
    home: Path
    decoys: list[subprocess.Popen[bytes]]
    said: dict[str, bool] = field(default_factory=dict)  # what each try saw
    output: str = ""

    @property
    def outside(self) -> Path:
        """A folder that is nobody's business in a slot."""
        return self.world.folder / "outside"

    def has(self, name: str) -> bool:
        return (self.outside / name).exists()

    def ref(self, name: str) -> bool:
        hub = self.world.layout.hub
        return bool(git(hub, "for-each-ref", f"refs/heads/{name}"))


RUNNER = (
    "RUNNER=$(git --git-dir=$HUB cat-file -p refs/swarm/ledger:current_tasks/one.lock"
    ' | sed -n \'s/.*"pid": \\([0-9]*\\).*/\\1/p\'); test -n "$RUNNER"; '
)
PTRACE = (
    "import ctypes, sys; libc = ctypes.CDLL(None, use_errno=True);"
    " sys.exit(libc.ptrace(16, int(sys.argv[1]), 0, 0) != 0)"
)
CONNECT = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5)"

TRIES = [
    Try("write a ref of the hub by hand", "git rev-parse HEAD > $HUB/refs/heads/byhand",
        lambda scene: scene.ref("byhand")),
    Try("update-ref in the hub",
        "git --git-dir=$HUB update-ref refs/heads/updated $(git rev-parse HEAD)",
        lambda scene: scene.ref("updated")),
    Try("push into the hub", "env -u SWARM_MARK git push -q $HUB HEAD:refs/heads/pushed",
        lambda scene: scene.ref("pushed")),
    Try("configure the hub", "git config -f $HUB/config evil.is true",
        lambda scene: "evil" in (scene.world.layout.hub / "config").read_text()),
    Try("put a hook into the hub", "echo true > $HUB/hooks/evil",
        lambda scene: (scene.world.layout.hub / "hooks/evil").exists()),
    Try("add to the hub's objects", "echo x > $HUB/objects/evil",
        lambda scene: (scene.world.layout.hub / "objects/evil").exists()),
    Try("replace the hub", "cp -r $HUB $STATE/copy && mv $STATE/copy $STATE/hub2.git",
        lambda scene: (scene.world.layout.root / "hub2.git").exists()),
    Try("read another slot", f"grep -q {SECRET} $STATE/slots/s9/secret"),
    Try("write another slot", "echo x > $STATE/slots/s9/evil",
        lambda scene: (scene.world.layout.slots / "s9/evil").exists()),
    Try("write our git dir of its own slot", "echo x > $STATE/slots/s1.own/evil",
        lambda scene: (scene.world.layout.slots / "s1.own/evil").exists()),
    Try("write whose its slot is", "cp $STATE/slots/s1.json x && cat x > $STATE/slots/s1.json"),
    Try("write the gate's slot", "echo x > $STATE/gate/g1/evil && echo x > $STATE/gate/g1.own/evil",
        lambda scene: (scene.world.layout.gate / "g1.own/evil").exists()),
    Try("read another run", f"grep -q {SECRET} $STATE/runs/r0/one/1/transcript.jsonl"),
    Try("leave another task's word",
        "mkdir -p $STATE/runs/r1/.ask/two && echo x > $STATE/runs/r1/.ask/two/question",
        lambda scene: (scene.world.layout.runs / "r1/.ask/two/question").exists()),
    Try("change what it was told", "echo x >> $SWARM_PROMPT"),
    Try("change what it said", "echo x >> $(dirname $SWARM_PROMPT)/transcript.jsonl"),
    Try("change the configuration", "echo '# x' >> $APP/swarm.toml",
        lambda scene: "# x" in (scene.world.app / "swarm.toml").read_text()),
    Try("write the checkout", "echo x > $APP/evil",
        lambda scene: (scene.world.app / "evil").exists()),
    Try("read the checkout", f"grep -q {SECRET} $APP/.env"),
    Try("read a key in the home", f"grep -q {SECRET} $HOMEDIR/.ssh/id"),
    Try("write the home", "echo evil > $HOMEDIR/.profile",
        lambda scene: (scene.home / ".profile").exists(), seems=True),
    Try("read anywhere else", f"grep -q {SECRET} $OUTSIDE/secret"),
    Try("write anywhere else", "echo x > $OUTSIDE/evil", lambda scene: scene.has("evil")),
    Try("read by a link", f"ln -s $OUTSIDE/secret read-link && grep -q {SECRET} read-link"),
    Try("write by a link", "ln -s $OUTSIDE write-link && echo x > write-link/by-link",
        lambda scene: scene.has("by-link")),
    Try("read the runner's environment",
        RUNNER + f"tr '\\0' '\\n' < /proc/$RUNNER/environ | grep -q {SECRET}"),
    Try("read by the runner's root",
        RUNNER + f"grep -q {SECRET} /proc/$RUNNER/root$OUTSIDE/secret"),
    Try("see the runner", RUNNER + "kill -0 $RUNNER"),
    Try("kill a process", "kill -9 $DECOY0", lambda scene: scene.decoys[0].poll() is not None),
    Try("trace a process", f'python3 -c "{PTRACE}" $DECOY1'),
    Try("mount", "mkdir m && mount -t tmpfs none m && umount m", as_root=True),
    Try("remount what is read-only", "mount -o remount,rw /proc", as_root=True),
    Try("make namespaces of its own", "unshare -U true", as_root=True),
    Try("gain rights", "grep -q 'NoNewPrivs:.0' /proc/self/status"),
    Try("make git run something",
        "git config core.fsmonitor 'touch $OUTSIDE/fsmonitor; false' && git status;"
        " test -e $OUTSIDE/fsmonitor", lambda scene: scene.has("fsmonitor")),
    Try("hook its own git",
        "hook=$(git rev-parse --git-common-dir)/hooks/post-commit;"
        " printf '#!/bin/sh\\ntouch $OUTSIDE/hooked\\n' > $hook; chmod +x $hook;"
        " git commit -q --allow-empty -m x", lambda scene: scene.has("hooked"), seems=True),
]  # fmt: skip

# What the agent leaves for others to run: the gate's check, and setup in both slots.
LEFT = """
printf 'touch "$OUTSIDE/check"\\n' > left-check.sh
printf 'touch "$OUTSIDE/setup-$SWARM_SLOT"\\n' > left-setup.sh
sed -i "s|.OUTSIDE|$OUTSIDE|" left-check.sh left-setup.sh
git add left-check.sh left-setup.sh; git -c core.hooksPath=/dev/null commit -qm left
"""
RUNS_WHAT_IS_LEFT = "if test -e left-{0}.sh; then sh left-{0}.sh 2>/dev/null || :; fi"


def play(folder: Path, config: str) -> Scene:
    """A real run of one agent that tries everything, and is given a second attempt."""
    setup = f"[worktree]\nsetup = '{RUNS_WHAT_IS_LEFT.format('setup')}'\n"
    world = World(folder, config=config + setup, check=RUNS_WHAT_IS_LEFT.format("check"))
    world.add("One")
    decoys = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    home = Path(os.environ["HOME"])
    scene = Scene(world, home, decoys)
    scene.outside.mkdir()
    for place in (
        *(scene.outside / "secret", world.app / ".env", home / ".ssh/id"),
        *(world.layout.slots / "s9/secret", world.layout.runs / "r0/one/1/transcript.jsonl"),
    ):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(SECRET)
    facts = {
        "HUB": world.layout.hub, "STATE": world.layout.root, "APP": world.app,
        "HOMEDIR": home, "OUTSIDE": scene.outside,
        "DECOY0": decoys[0].pid, "DECOY1": decoys[1].pid,
    }  # fmt: skip
    lines = [f"{name}={value}; export {name}" for name, value in facts.items()]
    lines += ["if test $SWARM_ATTEMPT = 1; then"]
    for number, one in enumerate(TRIES):
        script = put_program(folder / f"try-{number}.sh", f"set -e\n{one.script}\n")
        lines.append(f"sh -e {script} >/dev/null 2>&1 && echo yes {number} || echo no {number}")
    lines += [LEFT, "exit 1", "fi", "echo landed > landed.txt"]
    agent = put_program(folder / "agent.sh", "\n".join(lines))
    scripts = [str(folder / f"try-{number}.sh") for number in range(len(TRIES))]
    done = run_swarm(
        world.app, "run", "-n", "1", "--", "sh", str(agent), *scripts,
        env={"SWARM_TEST": SECRET},
    )  # fmt: skip
    log = transcript(world)
    scene.output = f"{done.stdout}\n{done.stderr}\n{log}"
    for line in log.splitlines():
        word, _, number = line.partition(" ")
        if word in ("yes", "no"):
            scene.said[TRIES[int(number)].name] = word == "yes"
    return scene


@contextlib.contextmanager
def _scene(folder: Path, config: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    home = folder / "home"
    home.mkdir(parents=True)
    (home / ".gitconfig").write_text("[user]\n\tname = A\n\temail = a@example.invalid\n")
    monkeypatch.setenv("HOME", str(home))
    scene = play(folder, config)
    try:
        yield scene
    finally:
        for decoy in scene.decoys:
            decoy.kill()
            decoy.wait()
        scene.world.close()


LEFT_TO_RUN = ("check", "setup-g1", "setup-s1")  # by the gate's check, and by setup in both slots


def faults(free: Scene, shut: Scene) -> Iterator[str]:
    """Each try that got out, and each that would prove nothing."""
    for one in TRIES:
        if not one.as_root or os.geteuid() == 0:
            if free.said.get(one.name) is not True:
                yield f"{one.name}: a bad try, it does not even work without a sandbox"
            if one.happened is not None and not one.happened(free):
                yield f"{one.name}: a bad try, nothing happens without a sandbox either"
        if shut.said.get(one.name) is not one.seems:
            yield f"{one.name}: it worked"
        if one.happened is not None and one.happened(shut):
            yield f"{one.name}: it happened"
    for name in LEFT_TO_RUN:
        if not free.has(name):
            yield f"{name}: a bad try, it is not run without a sandbox either"
        if shut.has(name):
            yield f"{name}: what an agent left runs with more rights than the agent"


@needs_bwrap
def test_no_way_out_and_after_all_that_its_work_lands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        _scene(tmp_path / "free", "", monkeypatch) as free,
        _scene(tmp_path / "shut", BWRAP, monkeypatch) as shut,
    ):
        assert list(faults(free, shut)) == [], shut.output
        world = shut.world
        world.step()
        assert world.state("one") is State.LANDED, shut.output
        assert world.file("landed.txt") == "landed\n"
        assert [path.name for path in shut.outside.iterdir()] == ["secret"]
        assert git(world.app, "status", "--porcelain", "--ignored") == "?? .env\n?? swarm.toml"


# -- what still works -----------------------------------------------------------------------------


def run(world: World, script: str, *, code: int = 0, keys: tuple[str, ...] = ()) -> str:
    """One run of an agent that is this script; what the run said."""
    agent = put_program(world.folder / "agent.sh", script)
    done = run_swarm(world.app, "run", "-n", "1", *keys, "--", "sh", str(agent))
    assert done.returncode == code, done.stdout + done.stderr + transcript(world)
    world.step()
    return done.stdout


def transcript(world: World, attempt: int = 1) -> str:
    path = world.layout.attempt("r1", "one", attempt) / "transcript.jsonl"
    return path.read_text() if path.exists() else ""


@needs_bwrap
def test_the_agents_own_commands(boxed: World) -> None:
    """What only reads, reads; what is a person's or a runner's is refused, in a few lines each."""
    boxed.add("One")
    reads = ("status", "show one --json", "log", "queue", "diff one")
    theirs = ("pause", "stop one")
    not_here = ("claim", "submit", "renew")
    said = run(
        boxed,
        'exec 2>&1\ntry() { echo "@@@ $*"; swarm $*; echo "=== $?"; }\n'
        + "".join(f"try {verb}\n" for verb in (*reads, *theirs, *not_here))
        + "echo done > done.txt\n",
    )  # fmt: skip
    assert "sandbox bwrap, network open: it writes its worktree, and reads the hub" in said
    parts = {}
    for part in transcript(boxed).split("@@@ ")[1:]:
        verb, _, text = part.partition("\n")
        body, _, code = text.rpartition("=== ")
        parts[verb] = (int(code), body)
    assert {verb: parts[verb][0] for verb in reads} == {
        verb: 1 if verb == "diff one" else 0 for verb in reads
    }, transcript(boxed)
    assert "s1  one" in parts["status"][1] and '"title": "One"' in parts["show one --json"][1]
    for verb in theirs:
        code, body = parts[verb]
        # `pause` is told to be a person's; `stop` cannot write.
        wanted = 2 if verb == "pause" else 16
        assert code == wanted and "error: " in body and len(body.splitlines()) <= 4, (verb, body)
    assert 'hint: swarm ask "your question"' in parts["pause"][1]
    for verb in not_here:
        code, body = parts[verb]
        assert code == 2 and len(body.splitlines()) == 2, (verb, body)
    assert boxed.state("one") is State.LANDED


@needs_bwrap
def test_it_asks(boxed: World) -> None:
    boxed.add("One")
    run(boxed, 'echo half > half.txt; swarm ask "Which?"; sleep 60', code=1)
    parked = boxed.ledger.view().parked("one")
    assert parked is not None and parked.question == "Which?" and parked.work is not None
    assert boxed.file("half.txt", parked.work.head) == "half\n"
    assert transcript(boxed) == (
        "asked     one   this attempt ends now; the next one gets the answer\n"
    )


@needs_bwrap
def test_it_gives_up(boxed: World) -> None:
    boxed.add("One", strikes=1)
    run(boxed, 'echo half > half.txt; swarm release --reason "no such API"; sleep 60', code=1)
    attempts = boxed.ledger.view().attempts("one")
    assert attempts is not None and attempts.last is not None and attempts.work is not None
    assert attempts.last.outcome == "given_up" and attempts.last.strike
    assert attempts.last.message.startswith("given up: no such API")
    assert boxed.file("half.txt", attempts.work.head) == "half\n"
    assert boxed.state("one") is State.PARKED
    assert transcript(boxed) == (
        "given up  one   this attempt ends now; the next one starts fresh\n"
    )


@needs_bwrap
def test_an_adapters_files_of_the_home_and_no_others(boxed: World) -> None:
    home = Path(os.environ["HOME"])
    for name in ("auth", "conf", "history", "more/data", "cache/old"):
        put_program(home / ".tool" / name, "old\n")
    tool = put_program(
        home / "bin/tool",
        '#!/bin/sh\ntest "$1" = --version && echo 1.0 && exit\nset -e\n'
        "cat ~/.tool/conf; ! test -e ~/.tool/history; ! echo x >> ~/.tool/conf\n"
        "echo new >> ~/.tool/auth; cat ~/.tool/more/data; echo new > ~/.tool/cache/new\n"
        "echo own > ~/.tool/own; echo x > done.txt\n",
    )
    add_tool(boxed, tool, 'read = ["~/.tool/conf", "~/.tool/none"]\nwrite = ["~/.tool/auth"]')
    toml = boxed.app / "swarm.toml"
    keys = 'visible = ["~/.tool/more"]\nwritable = ["~/.tool/cache"]\n'
    toml.write_text(toml.read_text().replace("[run]\n", f"[run]\n{keys}"))
    boxed.add("One")
    done = run_swarm(boxed.app, "run", "-n", "1", "--agent", "tool")
    assert done.returncode == 0, done.stdout + done.stderr + transcript(boxed)
    assert "of yours it reads ~/.tool/conf, ~/.tool/more" in done.stdout
    assert "of yours it writes ~/.tool/auth, ~/.tool/cache" in done.stdout
    assert (home / ".tool/auth").read_text() == "old\nnew\n"
    assert (home / ".tool/cache/new").read_text() == "new\n"
    assert (home / ".tool/conf").read_text() == "old\n"
    assert not (home / ".tool/own").exists(), "the rest of its home was its own"
    assert boxed.state("one") is State.LANDED


@needs_bwrap
def test_a_private_home_is_kept_and_is_all_of_a_home(tmp_path: Path) -> None:
    world = World(tmp_path, config='[run]\nsandbox = "bwrap"\nhome = "private"\n')
    home = Path(os.environ["HOME"])
    put_program(home / ".ssh/id", SECRET)
    world.add("One")
    run(world, f"set -e; ! test -e {home}/.ssh; echo kept > ~/kept; test ~ != {home}; echo x > x")
    assert (world.layout.homes / "s1/kept").read_text() == "kept\n"
    assert world.state("one") is State.LANDED
    world.close()


@needs_bwrap
def test_places_that_are_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkout, the home and a folder of PATH are spelled by links."""
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to("real")
    world = World(tmp_path / "link", config=BWRAP)
    home = tmp_path / "real-home"
    put_program(home / "bin/mine", "#!/bin/sh\necho mine\n")
    (tmp_path / "home").symlink_to(home)
    (home / ".gitconfig").write_text("[user]\n\tname = A\n\temail = a@example.invalid\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path}/home/bin:{os.environ['PATH']}")
    world.add("One")
    run(
        world, "set -e; mine > mine.txt; echo x > ~/x; git add -A; git commit -qm x; swarm show one"
    )
    assert world.file("mine.txt") == "mine\n" and not (home / "x").exists()
    world.close()


@needs_bwrap
def test_what_is_shared_is_there_to_read(tmp_path: Path) -> None:
    files = {"README.md": "app\n", ".gitignore": "data\n"}
    world = World(tmp_path, files=files, config=BWRAP + '[worktree]\nshare = ["data"]\n')
    put_program(world.app / "data/big", "big\n")
    world.add("One")
    run(world, "set -e; cat data/big > copy.txt; ! echo x > data/evil 2>/dev/null")
    assert world.file("copy.txt") == "big\n" and not (world.app / "data/evil").exists()
    world.close()


@needs_bwrap
def test_the_scripted_agent_plays_in_it(boxed: World) -> None:
    script = '[[attempt]]\nstep = [{ write = "a.txt", text = "a" }, { commit = "a" }]\n'
    put_program(boxed.app / ".swarm/scripts/one.toml", script)
    boxed.add("One")
    done = run_swarm(boxed.app, "run", "-n", "1", "--agent", "scripted")
    assert done.returncode == 0, done.stdout + done.stderr
    assert boxed.file("a.txt") == "a"


@needs_bwrap
def test_a_plan_is_made_in_it(boxed: World) -> None:
    agent = put_program(
        boxed.folder / "agent.sh",
        "mkdir -p tasks; printf '# Do it\\n\\nAll of it.\\n' > tasks/do-it.md; ! test -e $APP/.git",
    )
    done = run_swarm(
        boxed.app, "plan", "new", "A goal", "--", "sh", str(agent), env={"APP": str(boxed.app)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sandbox bwrap" in done.stdout and (boxed.app / "tasks/do-it.md").exists()


CONNECT = """
import socket, sys
kind, name = (socket.AF_UNIX, "\\0" + sys.argv[2]) if sys.argv[1] == "unix" else (
    socket.AF_INET, ("127.0.0.1", int(sys.argv[2])))
with socket.socket(kind) as it:
    it.settimeout(5)
    it.connect(name)
"""


@needs_bwrap
@pytest.mark.parametrize("network", ["open", "none"])
def test_the_network_is_there_or_not(tmp_path: Path, network: str) -> None:
    world = World(tmp_path, config=f'[run]\nsandbox = "bwrap"\nnetwork = "{network}"\n')
    world.add("One")
    name = f"swarm-test-{new_nonce()[:8]}"
    with socket.create_server(("127.0.0.1", 0)) as inet, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(f"\0{name}")
        unix.listen()
        port = inet.getsockname()[1]
        connect = put_program(world.folder / "connect.py", CONNECT)
        script = "".join(
            f"python3 {connect} {kind} {where} 2>/dev/null && echo yes >> said.txt\n"
            for kind, where in (("inet", port), ("unix", name))
        )
        agent = put_program(world.folder / "agent.sh", f"{script}echo end >> said.txt\n")
        done = run_swarm(world.app, "run", "-n", "1", "--", "sh", str(agent), str(connect))
    assert f"sandbox bwrap, network {network}: " in done.stdout
    assert world.file("said.txt") == ("yes\nyes\nend\n" if network == "open" else "end\n")
    world.close()


# -- it ends --------------------------------------------------------------------------------------


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., process.Child]]:
    """Starts a shell script in a sandbox; whatever of it is left in the end is a failure."""
    mark = f"box-{new_nonce()[:8]}"
    folder, tmpdir = tmp_path / "work", tmp_path / "tmp"
    folder.mkdir()
    tmpdir.mkdir()

    def start(script: str, **changes: object) -> process.Child:
        facts = Facts(cwd=folder, hidden=(), read=(), write=(folder,), tmpdir=tmpdir)
        keys: dict[str, object] = {
            "argv": (*words(sandbox.find(os.environ["PATH"]), facts), "/bin/sh", "-c", script),
            "cwd": folder,
            "env": {"PATH": os.environ["PATH"]},
            "stdout": tmp_path / "out",
            "output_cap": 1 << 20,
            "mark": f"{mark}.a.1",
            "grace": timedelta(seconds=20),
            "is_boxed": True,
        }
        return process.start(process.Spec(**(keys | changes)))  # type: ignore[arg-type]

    yield start
    left = process.find_marked(f"{mark}.")
    process.end_marked(left, timedelta(0))
    assert left == []


def said(tmp_path: Path, what: str) -> Callable[[], bool]:
    return lambda: what in (tmp_path / "out").read_text()


@needs_bwrap
def test_a_signal_reaches_the_program_and_not_the_sandbox(
    tmp_path: Path, start: Callable[..., process.Child]
) -> None:
    child = start('trap "echo bye; exit 5" TERM; echo up; sleep 600 & wait', signals=("SIGTERM",))
    until(said(tmp_path, "up"), "it is up")
    child.stop("enough")
    ended = child.wait(30)
    assert ended is not None and (ended.exit_code, ended.stopped) == (5, "enough")
    assert said(tmp_path, "bye")() and ended.survivors == ()


@needs_bwrap
def test_who_is_deaf_is_killed_with_all_that_it_started(
    tmp_path: Path, start: Callable[..., process.Child]
) -> None:
    script = (
        'trap "" TERM INT; setsid sleep 600 &'
        ' (setsid sh -c "env -i sleep 601 & exec env -i sleep 602" &);'
        " echo up; sleep 603; sleep 604"
    )
    child = start(script, grace=timedelta(seconds=0.5))
    until(said(tmp_path, "up"), "it is up")
    below = psutil.Process(child.shim_pid).children(recursive=True)
    until(lambda: len(psutil.Process(child.shim_pid).children(recursive=True)) >= 7, "all started")
    below = psutil.Process(child.shim_pid).children(recursive=True)
    child.stop("enough")
    ended = child.wait(30)
    assert ended is not None and ended.stopped == "enough" and ended.survivors == ()
    assert ended.exit_code is None and ended.signal == signal.SIGKILL
    assert [process for process in below if process.is_running()] == []


@needs_bwrap
def test_a_time_limit_and_an_exit_code(tmp_path: Path, start: Callable[..., process.Child]) -> None:
    ended = start("sleep 600", time_limit=timedelta(seconds=0.3)).wait(30)
    assert ended is not None and ended.timed_out and ended.how == "timed out"
    ended = start("exit 7").wait(30)
    assert ended is not None and ended.how == "exit code 7"
    ended = start("kill -9 $$").wait(30)
    assert ended is not None and ended.exit_code == 137, "as a shell says it"


@needs_bwrap
def test_what_it_leaves_behind_ends_with_it(
    tmp_path: Path, start: Callable[..., process.Child]
) -> None:
    child = start("setsid env -i sh -c 'echo there; sleep 600' & sleep 0.5; exit 0")
    until(said(tmp_path, "there"), "the daemon is there")
    below = psutil.Process(child.shim_pid).children(recursive=True)
    assert len(below) >= 4
    ended = child.wait(30)
    assert ended is not None and ended.exit_code == 0 and ended.survivors == ()
    assert [process for process in below if process.is_running()] == []


@needs_bwrap
@pytest.mark.parametrize("how", ["stop", "kill_now"])
def test_its_cpu_and_its_mark_are_seen_from_outside(
    tmp_path: Path, start: Callable[..., process.Child], how: str
) -> None:
    child = start("echo up; while :; do :; done")
    until(said(tmp_path, "up"), "it is up")
    until(lambda: child.cpu_seconds() > 0.2, "it is seen to work")
    marked = process.find_marked(child.spec.mark)
    assert any(one.cmdline[0] == "/bin/sh" for one in marked)
    getattr(child, how)("enough")
    ended = child.wait(30)
    assert ended is not None and ended.stopped == "enough"


@needs_bwrap
def test_a_killed_shim_takes_the_sandbox_with_it(
    tmp_path: Path, start: Callable[..., process.Child]
) -> None:
    child = start("setsid env -i sleep 600 & echo up; sleep 601")
    until(said(tmp_path, "up"), "it is up")
    below = psutil.Process(child.shim_pid).children(recursive=True)
    os.kill(child.shim_pid, signal.SIGKILL)
    ended = child.wait(30)
    assert ended is not None and ended.how == "its shim was killed"
    until(lambda: not [one for one in below if one.is_running()], "all have ended")


@needs_bwrap
def test_a_killed_run_takes_its_agents_with_it_and_the_next_one_goes_on(boxed: World) -> None:
    boxed.add("One")
    nonce = new_nonce()
    agent = put_program(
        boxed.folder / "agent.sh",
        f"test $SWARM_ATTEMPT != 1 && exec cp half.txt whole.txt\n"
        f"echo half > half.txt; (setsid env -i sh -c 'sleep 600; : {nonce}' &)\n"
        f"echo up; sleep 600; : {nonce}",
    )

    def left() -> list[psutil.Process]:
        found = []
        for one in psutil.process_iter():
            try:
                if any(nonce in word for word in one.cmdline()):
                    found.append(one)
            except psutil.Error:
                pass
        return found

    log = boxed.folder / "run.log"
    with log.open("w") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "swarm", "run", "-n", "1", "--", "sh", agent],
            cwd=boxed.app,
            stdout=out,
            stderr=out,
        )
    try:
        until(lambda: "up" in transcript(boxed), "the agent is up", log=log)
        assert left()
    finally:
        child.kill()
        child.wait()
    until(lambda: not left(), "its agents have ended")
    done = run_swarm(boxed.app, "run", "-n", "1", "--", "sh", str(agent))
    assert done.returncode == 0, done.stdout + done.stderr
    boxed.step()
    assert boxed.file("whole.txt") == "half\n", "its work was not lost"


@needs_bwrap
def test_a_time_limit_ends_an_attempt(tmp_path: Path) -> None:
    config = BWRAP + '[limits]\nattempt = "2s"\nbackoff = "0s"\ngrace = "1s"\n'
    world = World(tmp_path, config=config)
    world.add("One", strikes=1)
    run(world, "trap '' TERM INT; echo half > half.txt; setsid sleep 600 & sleep 600", code=1)
    attempts = world.ledger.view().attempts("one")
    assert attempts is not None and attempts.last is not None and attempts.work is not None
    assert attempts.last.outcome == "timed_out"
    assert world.file("half.txt", attempts.work.head) == "half\n"
    world.close()
