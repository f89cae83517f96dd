"""Talking to the user's own remote: in the user's way, unforced, unprompted, and endable.

Enters: a hub, a checkout with a remote in a folder or behind a small server. Leaves: commits in the
hub or there, or one clear error. Guards: no secret is shown, nothing of the user's that is no way
to the remote runs, and the checkout is only read.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from swarm import invariants
from swarm.errors import Exit, UsageError
from swarm.plumbing import remote as remotes
from swarm.plumbing.remote import Declined, NotForward, Pushed, RemoteUnreachable
from tests.world import Upstream, World, git, run_swarm

SECRET = "s3cr3t-t0ken"


@pytest.fixture
def up(world: World) -> Upstream:
    return world.upstream()


def script(place: Path, text: str) -> Path:
    """An executable shell script."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("#!/bin/sh\n" + textwrap.dedent(text), "utf-8")
    place.chmod(0o755)
    return place


def find(world: World, name: str = "origin") -> remotes.Remote:
    return remotes.find_remote(world.app, name)


def fetch(world: World, branch: str = "main") -> str | None:
    """Fetch, and what was fetched is whole."""
    tip = remotes.fetch(world.hub, find(world), branch)
    assert tip is None or world.hub.is_whole(tip)
    return tip


def push(world: World, oid: str, branch: str) -> Pushed | NotForward | Declined:
    remote = find(world)
    old = remotes.tip_of(world.hub, remote, branch, is_push=True)
    return remotes.push(world.hub, remote, oid, branch, old)


# -- the way there: the user's own settings


def test_an_address_is_read_as_the_users_git_reads_it(world: World, up: Upstream) -> None:
    tip = up.commit("n.txt", "1\n")
    git(world.app, "config", "url.../.insteadOf", "team:")
    git(world.app, "remote", "set-url", "origin", "team:origin.git")
    assert fetch(world) == tip, "insteadOf, and a relative address begins at the checkout"
    other = world.folder / "other.git"
    git(world.folder, "clone", "-q", "--bare", str(up.origin), str(other))
    git(world.app, "config", "url.../other.git.pushInsteadOf", "../origin.git")
    git(world.app, "remote", "set-url", "origin", "../origin.git")
    assert push(world, tip, "work") == Pushed(None)
    assert git(other, "rev-parse", "work") == tip, "pushed to where pushInsteadOf says"
    assert not git(up.origin, "branch", "--list", "work"), "and to no other place"


class _Doorman(SimpleHTTPRequestHandler):
    """A dumb git remote that wants a name, a password and a header."""

    def __init__(self, seen: list[dict[str, str]], *args: object, **keys: object) -> None:
        self.seen = seen
        super().__init__(*args, **keys)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self.seen.append(dict(self.headers))
        wanted = "Basic " + base64.b64encode(f"me:{SECRET}".encode()).decode()
        if self.headers.get("Authorization") != wanted:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="team"')
            self.end_headers()
            return
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Serve a folder; its address, and the headers of every request."""
    seen: list[dict[str, str]] = []
    handler = partial(_Doorman, seen, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def argv_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What every git of this process was started with, one line each."""
    log = tmp_path / "argv.log"
    real = shutil.which("git")
    script(tmp_path / "bin" / "git", f'echo "$@" >>{log}\nexec {real} "$@"\n')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return log


def test_a_credential_helper_and_a_header_get_there_and_nowhere_else(
    world: World, up: Upstream, argv_log: Path
) -> None:
    tip = up.commit("n.txt", "1\n")
    git(up.origin, "update-server-info")
    helper = f"!f() {{ test $1 = get && echo username=me && echo password={SECRET}; }}; f"
    git(world.app, "config", "credential.helper", helper)
    git(world.app, "config", "http.extraHeader", f"X-Team: {SECRET}")
    before = argv_log.read_text("utf-8")
    with serving(world.folder) as (host, seen):
        git(world.app, "remote", "set-url", "origin", f"http://{host}/origin.git")
        assert fetch(world) == tip
        world.land("Ours", "ours.txt", "1\n")
        assert all(headers["X-Team"] == SECRET for headers in seen) and len(seen) > 2
        refused = world.typed("push", "--branch", "work")  # a dumb remote takes no push
    assert refused.code == Exit.BUSY and SECRET not in refused.all
    ours = argv_log.read_text("utf-8").removeprefix(before)
    assert "ls-remote" in ours and "push --porcelain" in ours
    assert SECRET not in "".join(line for line in ours.splitlines() if "config" not in line)


def test_a_password_in_an_address_is_given_and_never_shown(
    world: World, up: Upstream, argv_log: Path
) -> None:
    tip = up.commit("n.txt", "1\n")
    git(up.origin, "update-server-info")
    with serving(world.folder) as (host, _):
        git(world.app, "remote", "set-url", "origin", f"http://me:{SECRET}@{host}/origin.git")
        before = argv_log.read_text("utf-8")
        assert fetch(world) == tip
        assert world.typed("sync").code == Exit.YES
        said = [world.typed("push", "--branch", "work"), world.typed("push", "--json")]
        git(world.app, "remote", "set-url", "origin", f"http://me:{SECRET}@{host}/nothing.git")
        said += [world.typed("sync"), world.typed("sync", "--json"), world.typed("push")]
        swarm_git = [
            line
            for line in argv_log.read_text("utf-8").removeprefix(before).splitlines()
            if "remote set-url" not in line
        ]
    free = f"http://me:{SECRET}@127.0.0.1:{_free_port()}/x"
    git(world.app, "remote", "set-url", "origin", free)
    said += [world.typed("sync"), world.typed("sync", "--json"), world.typed("log")]
    assert [one.code for one in said[2:4]] == [Exit.BUSY, Exit.BUSY]
    for one in said:
        assert SECRET not in one.all, one
    assert "127.0.0.1" in said[-3].err, "where it is said that the address cannot be reached"
    assert swarm_git and not [line for line in swarm_git if SECRET in line]
    history = git(world.layout.hub, "log", "-p", "refs/swarm/ledger")
    assert SECRET not in history, "a password in the ledger is read by everybody"
    assert SECRET not in repr(find(world))


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("to 'https://me:pw@host/x.git'", "to 'https://host/x.git'"),
        ("https://me:p@w@host/x and a@b", "https://host/x and a@b"),
        ("ssh://git@host/~me/x", "ssh://host/~me/x"),
        ("https://host/x@v1", "https://host/x@v1"),
        ("remote: \x1b[2Jgone\r\nmore\n", "remote: \\x1b[2Jgone\nmore"),
    ],
)
def test_words_of_git_are_shown_without_secrets_and_steer_no_terminal(
    text: str, shown: str
) -> None:
    assert remotes.words(text) == shown


def test_a_switch_without_a_value_is_on(world: World, up: Upstream) -> None:
    with (world.app / ".git" / "config").open("a", encoding="utf-8") as config:
        config.write("[http]\n\tsslVerify\n")
    assert ("http.sslverify", "true") in find(world).settings


def test_what_a_remote_names_for_itself_is_used(world: World, up: Upstream) -> None:
    tip = up.commit("n.txt", "1\n")
    for name, verb in (("uploadpack", "git-upload-pack"), ("receivepack", "git-receive-pack")):
        place = script(world.folder / name, f'touch {world.folder}/ran-{name}\nexec {verb} "$@"\n')
        git(world.app, "config", f"remote.origin.{name}", str(place))
    assert fetch(world) == tip
    assert push(world, tip, "work") == Pushed(None)
    assert (world.folder / "ran-uploadpack").exists() and (
        world.folder / "ran-receivepack"
    ).exists()


def test_a_remote_of_the_hubs_own_is_not_mistaken_for_it(world: World, up: Upstream) -> None:
    tip = up.commit("n.txt", "1\n")
    git(world.layout.hub, "remote", "add", "origin", str(world.folder / "backup.git"))
    git(world.layout.hub, "config", "remote.origin.mirror", "true")
    assert fetch(world) == tip
    assert push(world, tip, "work") == Pushed(None)
    refs = git(world.layout.hub, "for-each-ref", "--format=%(refname)")
    assert all(ref.startswith(("refs/heads/main", "refs/swarm/")) for ref in refs.splitlines())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_opened_when_the_user_trusts_it(
    world: World, up: Upstream
) -> None:
    tip = up.commit("n.txt", "1\n")
    for place in (up.origin, *up.origin.rglob("*")):
        os.chown(place, 12345, 12345)
    with pytest.raises(RemoteUnreachable, match="cannot be reached") as refused:
        fetch(world)
    assert "safe.directory" in (refused.value.why or "")
    git(world.app, "config", "--global", "--add", "safe.directory", '/other "place"')
    git(world.app, "config", "--global", "--add", "safe.directory", str(up.origin))
    assert fetch(world) == tip


# -- nothing else of the user's runs, nothing asks


def test_no_hook_filter_or_signature_of_the_user_runs(world: World, up: Upstream) -> None:
    canary = world.folder / "ran"
    trap = script(world.folder / "trap", f"touch {canary}\ncat\nexit 1\n")
    hooks = world.app / ".git" / "hooks"
    names = ("pre-push", "reference-transaction", "post-merge", "post-checkout", "pre-auto-gc")
    for name in names:
        shutil.copy(trap, hooks / name)
    for key, value in (
        ("core.hooksPath", str(hooks)),
        ("core.fsmonitor", str(trap)),
        ("core.pager", str(trap)),
        ("filter.x.clean", str(trap)),
        ("filter.x.smudge", str(trap)),
        ("filter.x.required", "true"),
        ("gpg.program", str(trap)),
        ("push.gpgSign", "true"),
        ("commit.gpgSign", "true"),
        ("push.recurseSubmodules", "on-demand"),
        ("fetch.recurseSubmodules", "true"),
        ("uploadpack.packObjectsHook", str(trap)),
        ("core.alternateRefsCommand", str(trap)),
        ("remote.origin.mirror", "true"),
        ("remote.origin.fetch", "+refs/*:refs/*"),
        ("remote.origin.tagOpt", "--tags"),
    ):
        git(world.app, "config", "--global", key, value)
    (world.app / ".git" / "info" / "attributes").write_text("* filter=x\n", "utf-8")
    env = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_AUTHOR_NAME": "M", "GIT_COMMITTER_NAME": "M"}
    env |= {"EMAIL": "m@example.invalid"}
    facts = invariants.checkout_facts(world.app)
    (up.mate / "n.txt").write_text("1\n", "utf-8")
    git(up.mate, "add", "n.txt", env=env)
    git(up.mate, "commit", "-q", "-m", "by mate", env=env)
    git(up.mate, "tag", "v1", env=env)
    git(up.mate, "push", "-q", "origin", "HEAD:main", "v1", env=env)
    tip = git(up.mate, "rev-parse", "HEAD", env=env)
    assert fetch(world) == tip
    assert push(world, tip, "work") == Pushed(None)
    assert not canary.exists()
    assert not invariants.checkout_faults(facts), "the checkout is only read"
    refs = git(world.layout.hub, "for-each-ref", "--format=%(refname)", env=env).splitlines()
    assert not [ref for ref in refs if ref.startswith(("refs/tags/", "refs/remotes/"))]


def test_nothing_asks_on_the_terminal(world: World, up: Upstream) -> None:
    """`ssh` and helpers ask on /dev/tty, whatever standard input is: there must be none."""
    said = world.folder / "said"
    ask = script(
        world.folder / "ssh",
        f"if (exec </dev/tty) 2>/dev/null; then echo tty >>{said}; else echo none >>{said}; fi\n"
        f"echo prompt=$GIT_TERMINAL_PROMPT >>{said}\nexit 1\n",
    )
    on_terminal = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:], lambda fd: b'') and 1)"
    run = partial(subprocess.run, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    run([sys.executable, "-c", on_terminal, str(ask)])
    assert said.read_text("utf-8").startswith("tty\n"), "the test has a terminal to offer"
    said.unlink()
    git(world.app, "remote", "set-url", "origin", "ssh://nobody@example.invalid/x.git")
    code = (
        "import os, pty, sys\n"
        "pid, fd = pty.fork()\n"
        "if pid == 0:\n"
        "    os.execv(sys.argv[1], sys.argv[1:])\n"
        "while True:\n"
        "    try:\n"
        "        piece = os.read(fd, 4096)\n"
        "    except OSError:\n"
        "        break\n"
        "    if not piece:\n"
        "        break\n"
        "    sys.stdout.buffer.write(piece)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    done = run(
        [sys.executable, "-c", code, sys.executable, "-m", "swarm", "sync"],
        cwd=world.app,
        env={**os.environ, "GIT_SSH_COMMAND": str(ask)},
    )
    assert said.read_text("utf-8") == "none\nprompt=0\n", done.stdout
    assert done.returncode == Exit.BUSY and b"origin cannot be reached" in done.stdout


# -- who does not answer


def test_a_remote_that_is_not_there_is_one_clear_error(world: World, up: Upstream) -> None:
    up.commit("n.txt", "1\n")
    before = world.main
    for address in (str(world.folder / "gone.git"), f"http://127.0.0.1:{_free_port()}/x.git"):
        git(world.app, "remote", "set-url", "origin", address)
        for args in (("sync",), ("push", "--branch", "work")):
            said = world.typed(*args)
            assert said.code == Exit.BUSY, said
            assert said.err.startswith("error: origin cannot be reached: git ls-remote failed")
            assert "Traceback" not in said.err
            hint = said.err.rpartition("hint: ")[2].strip()
            assert hint == f"git -C {world.app} ls-remote origin"
    assert world.main == before and world.ledger.view().upstream() is None
    found = json.loads(world.typed("sync", "--json").out)
    assert found["schema"] == "swarm.error/1" and found["exit_code"] == Exit.BUSY


def test_an_address_that_would_run_a_program_is_refused(world: World, up: Upstream) -> None:
    canary = world.folder / "ran"
    git(world.app, "config", "protocol.ext.allow", "always")
    git(world.app, "remote", "set-url", "origin", f"ext::sh -c touch% {canary}")
    said = world.typed("sync")
    assert said.code == Exit.BUSY and "transport 'ext' not allowed" in said.err
    assert not canary.exists()


@pytest.mark.parametrize("what", ["ssh", "credential helper"])
def test_a_remote_that_hangs_is_ended_with_all_its_children(
    world: World, up: Upstream, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    pids = world.folder / "pids"
    hang = script(
        world.folder / "hang",
        f"""\
        trap '' TERM HUP INT
        echo $$ >>{pids}
        sh -c 'trap "" TERM; echo $$ >>{pids}; while :; do sleep 60; done' &
        while :; do sleep 60; done
        """,
    )
    monkeypatch.setenv("GIT_SSH_COMMAND", str(hang))
    git(world.app, "config", "credential.helper", f"!{hang}")

    def is_unwanted() -> bool:
        return pids.exists() and len(pids.read_text("utf-8").split()) == 2

    with serving(world.folder) as (host, _):
        address = "ssh://x.invalid/x" if what == "ssh" else f"http://{host}/origin.git"
        git(world.app, "remote", "set-url", "origin", address)
        remote = remotes.find_remote(world.app, "origin", is_unwanted)
        started = time.monotonic()
        with pytest.raises(RemoteUnreachable, match="nobody waits for it any more"):
            remotes.fetch(world.hub, remote, "main")
    assert time.monotonic() - started < 20, "not the time limit ended it"
    left = [int(pid) for pid in pids.read_text("utf-8").split()]
    assert len(left) == 2
    deadline = time.monotonic() + 1.0
    while [pid for pid in left if is_running(pid)]:
        assert time.monotonic() < deadline, "what ignores the first signal heeds the last"


def is_running(pid: int) -> bool:
    """A killed process whose end nobody has asked for yet has ended."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_conversation_has_a_time_limit(
    world: World, up: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_SSH_COMMAND", str(script(world.folder / "ssh", "exec sleep 600\n")))
    monkeypatch.setattr(remotes, "LOOK_LIMIT", 0.3)
    git(world.app, "remote", "set-url", "origin", "ssh://example.invalid/x.git")
    with pytest.raises(RemoteUnreachable, match="did not end within") as ended:
        fetch(world)
    assert ended.value.exit_code == Exit.BUSY


# -- names


def test_a_remote_or_a_branch_that_is_not_there_is_said(world: World, up: Upstream) -> None:
    with pytest.raises(UsageError, match="has no remote team") as missing:
        remotes.find_remote(world.app, "team")
    assert missing.value.why == "it has origin"
    assert missing.value.hint == 'in swarm.toml, below [upstream]: remote = "origin"'
    git(world.app, "remote", "remove", "origin")
    with pytest.raises(UsageError, match="has no remote origin") as missing:
        remotes.find_remote(world.app, "origin")
    assert missing.value.hint == "git remote add origin URL"
    git(world.app, "remote", "add", "origin", str(up.origin))
    assert fetch(world, "other") is None
    git(up.origin, "update-ref", "-d", "refs/heads/main")
    said = world.typed("sync")
    assert said.code == Exit.NO and "origin has no branch main" in said.err
    assert "git push origin main" in said.err


def test_a_remote_of_an_odd_name_is_no_option_and_hides_no_other(
    world: World, up: Upstream
) -> None:
    tip = up.commit("n.txt", "1\n")
    git(world.app, "remote", "add", "--", "-x", str(up.origin))
    for name in ("team.one", "ü'$(touch${IFS}y)"):
        git(world.app, "config", f"remote.{name}.url", str(up.origin))
    assert fetch(world) == tip, "one that nobody asked for is in nobody's way"
    for name in ("-x", "team.one", "ü'$(touch${IFS}y)"):
        assert remotes.fetch(world.hub, find(world, name), "main") == tip
    git(world.app, "config", "remote.ü'$(touch${IFS}y).url", str(world.folder / "gone.git"))
    with pytest.raises(RemoteUnreachable) as gone:
        remotes.fetch(world.hub, find(world, "ü'$(touch${IFS}y)"), "main")
    assert gone.value.hint is not None
    pasted = subprocess.run(["/bin/sh", "-c", gone.value.hint], cwd=world.app, capture_output=True)
    assert b"gone.git" in pasted.stderr, "the hint can be pasted"
    assert not (world.app / "y").exists()


@pytest.mark.parametrize("branch", ["ü/x", "x;touch${IFS}y", "$(touch${IFS}y)", "a'b\"c`d`", "+x"])
def test_a_branch_of_any_name_goes_both_ways(world: World, up: Upstream, branch: str) -> None:
    git(up.mate, "commit", "-q", "--allow-empty", "-m", "there")
    tip = git(up.mate, "rev-parse", "HEAD")
    git(up.mate, "push", "-q", "origin", f"HEAD:refs/heads/{branch}")
    assert fetch(world, branch) == tip
    assert push(world, tip, branch + "2") == Pushed(None)
    assert push(world, world.main, branch) == NotForward()
    assert not list(world.folder.rglob("y")), "no part of it was run"


# -- what arrives


def test_a_branch_that_moves_in_the_middle_is_fetched_as_it_is_then(
    world: World, up: Upstream
) -> None:
    """Between being asked for its tip and being asked for that commit."""
    first = up.commit("n.txt", "1\n")
    git(up.mate, "commit", "-q", "--amend", "-m", "anew")
    last = git(up.mate, "rev-parse", "HEAD")
    git(up.mate, "push", "-q", "origin", "HEAD:refs/heads/next")
    git(world.app, "config", "protocol.version", "0")  # gives only what its branches hold
    server = script(
        world.folder / "serve",
        f"""\
        n=$(cat {world.folder}/calls 2>/dev/null || echo 0)
        echo $((n + 1)) >{world.folder}/calls
        test $n = 1 && git --git-dir={up.origin} update-ref refs/heads/main {last}
        exec git-upload-pack "$@"
        """,
    )
    git(world.app, "config", "remote.origin.uploadpack", str(server))
    assert fetch(world) == last
    assert (world.folder / "calls").read_text("utf-8") == "4\n", "asked again, both times"
    assert not world.hub.reader.has(first)


def test_a_part_that_a_killed_fetch_left_is_not_taken_for_the_whole(
    world: World, up: Upstream
) -> None:
    up.commit("n/1.txt", "1\n")
    tip = up.commit("n/2.txt", "2\n")
    raw = subprocess.run(
        ["git", "cat-file", "commit", tip], cwd=up.origin, capture_output=True, check=True
    ).stdout
    subprocess.run(
        ["git", "hash-object", "-w", "-t", "commit", "--literally", "--stdin"],
        cwd=world.layout.hub,
        input=raw,
        capture_output=True,
        check=True,
    )
    assert world.hub.reader.has(tip) and not world.hub.is_whole(tip)
    assert isinstance(push(world, world.main, "main"), NotForward), "and what it is on is not known"
    assert fetch(world) == tip
    git(world.layout.hub, "rev-list", "--objects", "--quiet", tip)


def test_a_checkout_that_became_shallow_is_no_hindrance(world: World, up: Upstream) -> None:
    up.commit("n.txt", "1\n")
    tip = up.commit("n.txt", "2\n")
    git(world.app, "fetch", "-q", "--depth=1", f"file://{up.origin}", "main")
    assert (world.app / ".git" / "shallow").exists()
    assert fetch(world) == tip


def test_a_remote_without_its_history_gives_nothing(world: World, up: Upstream) -> None:
    up.commit("n.txt", "1\n")
    up.commit("n.txt", "2\n")
    shallow = world.folder / "shallow.git"
    git(world.folder, "clone", "-q", "--bare", "--depth=1", f"file://{up.origin}", str(shallow))
    git(world.app, "remote", "set-url", "origin", str(shallow))
    with pytest.raises(RemoteUnreachable, match="origin would not give main") as refused:
        fetch(world)
    assert "shallow" in (refused.value.why or "")
    assert not (world.layout.hub / "shallow").exists(), "the hub stays whole"


def test_a_remote_of_another_hash_is_said(world: World, up: Upstream) -> None:
    other = world.folder / "other"
    git(world.folder, "init", "-q", "-b", "main", "--object-format=sha256", str(other))
    git(other, "commit", "-q", "--allow-empty", "-m", "x")
    git(world.app, "remote", "set-url", "origin", str(other))
    for args in (("sync",), ("push", "--branch", "main")):
        said = world.typed(*args)
        assert said.code == Exit.NO
        assert "origin names its objects by another hash" in said.err


def _malformed(up: Upstream) -> str:
    """A commit with an address that fsck refuses, on the branch."""
    tree, parent = git(up.origin, "rev-parse", "main^{tree}"), up.tip
    text = f"tree {tree}\nparent {parent}\nauthor A <a@b 1700000000 +0000\n"
    text += "committer A <a@b> 1700000000 +0000\n\nbad\n"
    made = subprocess.run(
        ["git", "hash-object", "-w", "-t", "commit", "--literally", "--stdin"],
        cwd=up.origin,
        input=text.encode(),
        capture_output=True,
        check=True,
    )
    git(up.origin, "update-ref", "refs/heads/main", made.stdout.decode().strip())
    return made.stdout.decode().strip()


def test_a_commit_that_fsck_refuses_is_not_taken_until_a_person_lets_it_pass(
    world: World, up: Upstream
) -> None:
    bad = _malformed(up)
    before = world.main
    said = world.typed("sync")
    assert said.code == Exit.NO and f"origin/main {bad[:7]} holds an object" in said.err
    assert "badEmail" in said.err and "nothing was taken" in said.err
    assert world.main == before and not world.hub.reader.has(bad)
    hint = said.err.rpartition("hint: ")[2].strip()
    assert hint == f"git -C {world.app} config fetch.fsck.badEmail warn"
    subprocess.run(["/bin/sh", "-c", hint], check=True)
    assert world.typed("sync").code == Exit.YES
    assert world.main == bad
    said = world.typed("doctor")
    assert said.code == Exit.YES, said


# -- what leaves


def test_what_the_remote_says_no_with_is_what_is_read(world: World, up: Upstream) -> None:
    script(
        up.origin / "hooks" / "pre-receive",
        "printf 'the branch is \\033[31mfrozen\\033[0m until monday\\n' >&2\nexit 1\n",
    )
    answer = push(world, world.main, "work")
    assert isinstance(answer, Declined)
    assert "frozen" in answer.says and "until monday" in answer.says
    assert "pre-receive hook declined" in answer.says
    assert "\x1b" not in answer.says


def test_a_branch_that_got_ahead_since_it_was_asked_is_not_forced(
    world: World, up: Upstream
) -> None:
    remote = find(world)
    assert push(world, world.main, "work") == Pushed(None)
    mine = world.land("One", "one.txt", "1\n")
    old = remotes.tip_of(world.hub, remote, "work", is_push=True)
    git(up.mate, "commit", "-q", "--allow-empty", "-m", "theirs")
    git(up.mate, "push", "-q", "origin", "HEAD:work")
    theirs = git(up.mate, "rev-parse", "HEAD")
    answer = remotes.push(world.hub, remote, mine, "work", old)
    assert isinstance(answer, NotForward)
    assert git(up.origin, "rev-parse", "work") == theirs


def test_a_push_that_is_done_is_done(world: World, up: Upstream) -> None:
    assert push(world, world.main, "work") == Pushed(None)
    assert push(world, world.main, "work") == Pushed(world.main)


def test_the_command_itself_reaches_the_remote_in_the_users_way(world: World, up: Upstream) -> None:
    """As a process of its own, in an environment that would steer another git."""
    tip = up.commit("n.txt", "1\n")
    env = {"GIT_DIR": str(up.mate / ".git"), "GIT_CONFIG_PARAMETERS": "'core.bare'='true'"}
    env |= {"GIT_INDEX_FILE": "/nonexistent", "GIT_WORK_TREE": "/nonexistent"}
    done = run_swarm(world.app, "sync", env=env)
    assert done.returncode == 0, done.stderr
    assert world.main == tip
