"""One hermetic git call.

Enters: a git dir, arguments, bytes. Leaves: exit code and bytes, or a GitFault.
Guards: no configuration, hook, replace ref, filter or signing key but those we wrote ever runs in
our processes; a call that hangs is ended with its whole process group.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from swarm.errors import GitFault, HubUnusable

TIME_LIMIT = 120.0  # seconds; a clone of a huge repository passes its own
_LOOK_SECONDS = 0.5  # between two looks whether a call is still wanted
_PASSED = ("PATH", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR")
# Its standard input is a pipe of ours, which ends when we do: who is killed ends no children.
# (PR_SET_PDEATHSIG would end git, and leave the ssh that git has started.)
_WITH_US = (
    "exec 3<&0 </dev/null; "
    "(trap '' TERM; read -r _ <&3; kill -TERM 0; sleep 2; kill -KILL 0) >/dev/null 2>&1 & us=$!; "
    '"$@" 3<&-; code=$?; exec 2>/dev/null; kill -KILL $us; exit $code'
)

# Options that no repository's own configuration may override.
PINNED = (
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.attributesFile=/dev/null",
    "-c",
    "core.excludesFile=/dev/null",
    "-c",
    "commit.gpgSign=false",
    "-c",
    "gc.auto=0",
    "-c",
    "maintenance.auto=false",
    "-c",
    "core.quotePath=false",
    "-c",
    "protocol.file.allow=always",
    "-c",
    "merge.renames=true",
    "-c",
    "diff.renames=true",
    "-c",
    "core.commitGraph=true",
)


def environment(**extra: str) -> dict[str, str]:
    """The whole environment of a git call: nothing of the user's but PATH and TLS roots."""
    env = {name: os.environ[name] for name in _PASSED if name in os.environ}
    env |= {
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_EDITOR": "false",
        "GIT_AUTHOR_NAME": "swarm",
        "GIT_AUTHOR_EMAIL": "swarm@swarm.invalid",
        "GIT_COMMITTER_NAME": "swarm",
        "GIT_COMMITTER_EMAIL": "swarm@swarm.invalid",
    }
    return env | extra


def program() -> str:
    """The git that is used.

    Raises:
        HubUnusable: there is none on PATH.
    """
    found = _find_git(os.environ.get("PATH"))
    if found is None:
        raise HubUnusable("git is not on PATH", hint="install git 2.39 or newer")
    return found


@functools.cache
def _find_git(path: str | None) -> str | None:
    return shutil.which("git", path=path)


class Result(msgspec.Struct, frozen=True):
    """How one call ended."""

    code: int  # 128 + signal when a signal ended it
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        """Standard output without the last line end."""
        return self.out.decode("utf-8", "surrogateescape").rstrip("\n")

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines() if self.out else []

    @property
    def fields(self) -> list[str]:
        """Standard output split at NUL: what every `-z` prints."""
        return self.out.decode("utf-8", "surrogateescape").split("\0")[:-1]

    @property
    def complaint(self) -> str:
        return self.err.decode("utf-8", "replace").strip()


class Git(msgspec.Struct, frozen=True):
    """Git bound to one git dir, and maybe a work tree and an index of its own.

    `inherit` are descriptors that the child keeps: a slot's flock, so that a free flock means that
    git is gone too, not only its parent.
    """

    git_dir: Path
    work_tree: Path | None = None
    index: Path | None = None
    config: tuple[str, ...] = ()
    inherit: tuple[int, ...] = ()
    env: Mapping[str, str] = {}

    def argv(self, *args: str) -> list[str]:
        """The full command line of a call."""
        argv = [program(), f"--git-dir={self.git_dir}"]
        if self.work_tree is not None:
            argv.append(f"--work-tree={self.work_tree}")
        argv += PINNED
        for setting in self.config:
            argv += ["-c", setting]
        return argv + list(args)

    def full_env(self) -> dict[str, str]:
        """The environment of a call."""
        env = environment(**self.env)
        if self.index is not None:
            env["GIT_INDEX_FILE"] = str(self.index)
        return env

    def run(
        self,
        *args: str,
        input: bytes | None = None,
        ok: Sequence[int] = (0,),
        timeout: float = TIME_LIMIT,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        is_unwanted: Callable[[], bool] | None = None,
        ends_with_us: bool = False,
    ) -> Result:
        """
        Args:
            is_unwanted: asked now and then; its yes ends the call.
            ends_with_us: also when this process is killed; for a call that may hang, without input.

        Raises:
            GitFault: an exit code outside `ok`, or no end within `timeout` seconds or before it
                was unwanted (its process group is ended first).
        """
        argv = self.argv(*args)
        if ends_with_us:
            argv = ["/bin/sh", "-c", _WITH_US, "git", *argv]
        has_stdin = ends_with_us or input is not None
        try:
            child = _Child(
                argv,
                cwd=cwd or self.work_tree or self.git_dir,
                env=self.full_env() | dict(env or {}),
                stdin=subprocess.PIPE if has_stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=self.inherit,
                start_new_session=True,  # a group of its own, and no terminal to ask on
            )
        except OSError as error:
            raise GitFault(f"git {args[0]} did not start", why=str(error)) from error
        lifeline = None
        if ends_with_us:
            lifeline, child.stdin = child.stdin, None  # or it would be closed at once
        try:
            out, err = _communicate(child, input, timeout, is_unwanted)
        except subprocess.TimeoutExpired:
            end_group(child)
            raise GitFault(
                f"git {args[0]} did not end within {timeout:.0f} s", why=" ".join(args)
            ) from None
        except BaseException:
            end_group(child)
            raise
        finally:
            if lifeline is not None:
                lifeline.close()
        code = child.returncode if child.returncode >= 0 else 128 - child.returncode
        result = Result(code, out, err)
        if code not in ok:
            how = f"failed with exit code {code}"
            if child.returncode < 0:
                how = f"was ended by signal {-child.returncode}"
            raise GitFault(
                f"git {args[0]} {how}",
                why=result.complaint or result.text[-500:] or None,
            )
        return result


def _communicate(
    child: subprocess.Popen[bytes],
    input: bytes | None,
    timeout: float,
    is_unwanted: Callable[[], bool] | None,
) -> tuple[bytes, bytes]:
    """
    Raises:
        TimeoutExpired: the time is over; the child still runs.
        GitFault: it was unwanted before that; the child has ended.
    """
    if is_unwanted is None:
        return child.communicate(input, timeout=timeout)
    deadline = time.monotonic() + timeout
    while True:
        try:
            return child.communicate(input, timeout=_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                raise
            if is_unwanted():
                end_group(child)
                raise GitFault("git was ended: nobody waits for it any more") from None


class _Child(subprocess.Popen[bytes]):
    """A child whose end is waited for and not looked for: Python's own wait with a time limit
    sleeps between looks, which made every git call of 1.7 ms one of 2.8."""

    def wait(self, timeout: float | None = None) -> int:
        if timeout is not None and self.returncode is None:
            with contextlib.suppress(OSError, AttributeError):  # AttributeError: not Linux
                fd = os.pidfd_open(self.pid)
                try:
                    ended = select.poll()
                    ended.register(fd, select.POLLIN)
                    ended.poll(max(timeout, 0.0) * 1000)
                finally:
                    os.close(fd)
        return super().wait(timeout)


def end_group(child: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the child's group, SIGKILL to what is left of it when the child has ended or two
    seconds later; returns when the child is reaped.
    """
    if child.poll() is None:  # else its number may belong to another by now
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        is_kept = _wait_unreaped(child, 2.0)
        if is_kept or child.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(10.0)
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _wait_unreaped(child: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for its end; True while it is not reaped, so that its number is surely its own."""
    try:
        fd = os.pidfd_open(child.pid)
    except (OSError, AttributeError):  # AttributeError: not Linux
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(seconds)
        return False
    try:
        ended = select.poll()
        ended.register(fd, select.POLLIN)
        ended.poll(seconds * 1000)
    finally:
        os.close(fd)
    return True
