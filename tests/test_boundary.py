"""What surrounds a command may be broken: one clear line, never a report of a bug of ours."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from swarm.cli import boundary
from swarm.errors import GitFault
from swarm.ledger.index import Index
from swarm.plumbing import checkout
from swarm.plumbing.git import Git
from tests.world import World, run_swarm

SWARM = f"{sys.executable} -m swarm"


def typed(world: World, line: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A whole line as a shell runs it."""
    return subprocess.run(
        ["/bin/sh", "-c", line],
        cwd=world.app,
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, **env},
    )


def a_git(folder: Path, script: str) -> str:
    """A PATH on which git is a shell script; the real one is `$REAL`."""
    folder.mkdir()
    real = shutil.which("git")
    (folder / "git").write_text(f"#!/bin/sh\nREAL={real}\n{script}\n", "utf-8")
    (folder / "git").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.parametrize("words", ["run -- x", "status", "init", "pull", "doctor", "task list"])
def test_without_git_every_command_says_that_git_is_missing(world: World, words: str) -> None:
    done = typed(world, f"{SWARM} {words}", PATH="")
    assert done.returncode == 16 and done.stderr.startswith("error: git is not on PATH"), done


@pytest.mark.parametrize("words", ["run -- true", "init", "pull"])
def test_a_damaged_index_of_the_checkout_is_told_in_gits_words(world: World, words: str) -> None:
    world.add("One")
    index = world.app / ".git/index"
    index.write_bytes(index.read_bytes()[:30])
    done = typed(world, f"{SWARM} {words}")
    assert done.returncode == 16, done
    assert "git cannot read the checkout" in done.stderr and "index file" in done.stderr


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("config", b"[broken\n"),
        ("config", b"\xff\xfe"),
        ("HEAD", b"garbage\n"),
        ("HEAD", b""),
        ("refs/heads/main", b"garbage\n"),
        ("refs/heads/main", b"1" * 40 + b"\n"),
        ("index", b""),
        ("index", b"DIRC"),
    ],
)
def test_whatever_is_damaged_in_the_checkout_no_command_calls_it_a_bug(
    world: World, path: str, data: bytes
) -> None:
    world.add("One")
    (world.app / ".git" / path).write_bytes(data)
    for words in ("run -- true", "status", "pull", "doctor", "init"):
        done = typed(world, f"{SWARM} {words}")
        assert done.returncode in (0, 1, 2, 16), (words, done)
        assert "bug" not in done.stderr, (words, done)


def test_a_git_that_a_signal_ended_is_a_fault_of_git_that_names_it(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add("One")
    monkeypatch.setenv("PATH", a_git(tmp_path / "bin", "kill -9 $$"))
    with pytest.raises(GitFault) as raised:
        checkout.tracked_files(world.app)
    assert "signal 9" in (raised.value.why or "")
    with pytest.raises(GitFault, match="ended by signal 9"):
        Git(world.hub.path).run("version")
    for words in ("run -- true", "status", "doctor"):
        done = run_swarm(world.app, *words.split())
        assert done.returncode in (1, 16) and "bug" not in done.stderr, done


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["status", "log --all", "status --json", "run -- true", "--help"])
def test_a_full_disk_behind_standard_output_is_one_line_and_exit_1(
    world: World, words: str, unbuffered: str
) -> None:
    world.add("One")
    done = typed(world, f"{SWARM} {words} >/dev/full", PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 1
    said = "error: standard output cannot be written: No space left on device"
    assert done.stderr.splitlines() == [said]


@pytest.mark.parametrize("closing", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_closed_stream_is_no_error(world: World, closing: str) -> None:
    world.add("One")
    for words in ("status", "run -- sh -c 'echo x >> x'", "task list"):
        done = typed(world, f"{SWARM} {words} {closing}")
        assert done.returncode == 0, done
        assert not done.stderr
    assert world.file("x") == "x\n"


def test_an_error_that_cannot_be_written_is_told_by_the_code_alone(world: World) -> None:
    assert typed(world, f"{SWARM} show nothing 2>/dev/full").returncode in (1, 2)
    assert typed(world, f"{SWARM} status >/dev/full 2>/dev/full").returncode == 1


def test_a_reader_that_has_seen_enough_is_no_error(world: World) -> None:
    done = typed(world, f"({SWARM} log --all; echo $? >&2) | true")
    assert done.stderr == "0\n"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EIO])
def test_a_state_folder_that_cannot_be_written_is_no_bug_of_ours(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number), str(world.layout.cache))

    monkeypatch.chdir(world.app)
    monkeypatch.setattr(Index, "at", refuse)
    assert boundary.run(["status"]) == 16
    said = f"error: {os.strerror(number)}: {world.layout.cache}\n  hint: swarm doctor\n"
    assert capfd.readouterr() == ("", said)


def test_a_target_that_the_hub_has_not_is_an_error_that_names_the_right_one(world: World) -> None:
    path = world.app / "swarm.toml"
    path.write_text(path.read_text().replace('target = "main"', 'target = "nope"'))
    for words in ("status", "run -- true", "gate --once", "doctor"):
        done = typed(world, f"{SWARM} {words}")
        assert done.returncode == 2, done
        assert "the hub has no branch nope" in done.stderr
        assert 'hint: target = "main"' in done.stderr
