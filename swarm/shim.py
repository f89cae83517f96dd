"""Stands between a runner and one program: starts it, copies its output, ends its whole tree.

Enters: a JSON spec on fd 0, requests on a pipe. Leaves: output files and one JSON line that says
how it ended. Guards: when this process ends, the tree has ended too, also if the runner was killed.

It runs under `python -I -S`, one process beside every agent, so it imports little: no pathlib,
typing, dataclasses, subprocess or selectors. It starts in 20 ms and takes 4.4 MB of its own.
"""
# ruff: noqa: PTH105, PTH116, PTH123, PTH208

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MARK = "SWARM_MARK"  # in the environment of every process of the tree
SHIM = "SWARM_SHIM"  # in the environment of shims alone
HAS_PROC = os.access("/proc/self/stat", os.R_OK)
RUNNER_GONE = "the runner ended"

_TAIL = 64 << 10  # bytes of capped output kept from its end
_READ = 64 << 10  # bytes of one read
_MOST_LEFT_IN_PIPE = 1 << 20  # a pipe's largest capacity without privileges
_KILL_ROUNDS = 5
_KILL_WAIT = 1.0  # seconds that one round of SIGKILL may take
_TICK = 0.1  # seconds between two looks while a tree is being ended
_LONGEST_LOOK_AWAY = 3600.0  # seconds; poll takes 24 days at most
_TOUCH = 1.0  # seconds between two signs of life of output that is no longer kept
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


# -- processes as /proc shows them ----------------------------------------------------------------


class Proc:
    """A living process; `start` tells it from a later one with the same pid."""

    __slots__ = ("group", "parent", "pid", "start", "stopped", "ticks")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        self.pid = pid
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.stopped = fields[0] in b"Tt"
        self.ticks = sum(map(int, fields[11:15]))  # its CPU and that of children it waited for
        self.start = int(fields[19])


def _read(path: str) -> bytes:
    """Empty when it cannot be read: the process is gone, or is not ours to look at."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def find_proc(pid: int) -> Proc | None:
    """None when there is no such process or all of its threads have ended."""
    stat = _read(f"/proc/{pid}/stat")
    fields = stat[stat.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    if fields[0] in b"ZX" and int(fields[17]) < 2:  # a dead main thread may leave others
        return None
    return Proc(pid, fields)


def _procs() -> dict[int, Proc]:
    found = (find_proc(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {proc.pid: proc for proc in found if proc}


def _has_mark(pid: int, mark: bytes) -> bool:
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return False
    except OSError:
        return False
    return mark in _read(f"/proc/{pid}/environ").split(b"\0")


def find_tree(root: int, mark: str) -> dict[int, tuple[Proc, bool]]:
    """All living descendants of `root`, this user's processes with `mark`, and theirs.

    The second value is True for a descendant: no stranger can be in its process group, because
    `root` leads a session of its own. `root` and its ancestors are never in it.
    """
    procs = _procs()
    never = {root}
    up = procs.get(root)
    while up and up.parent not in never:
        never.add(up.parent)
        up = procs.get(up.parent)
    children: dict[int, list[Proc]] = {}
    for proc in procs.values():
        children.setdefault(proc.parent, []).append(proc)

    def below(pid: int) -> Iterator[Proc]:
        waiting = list(children.get(pid, ()))
        while waiting:
            proc = waiting.pop()
            yield proc
            waiting += children.get(proc.pid, ())

    tree = {proc.pid: (proc, True) for proc in below(root)}
    wanted = f"{MARK}={mark}".encode()
    for proc in procs.values():
        if proc.pid not in tree and proc.pid not in never and _has_mark(proc.pid, wanted):
            for each in (proc, *below(proc.pid)):
                tree.setdefault(each.pid, (each, False))
    return tree


def _ignores(proc: Proc, number: int) -> bool:
    for line in _read(f"/proc/{proc.pid}/status").splitlines():
        if line.startswith(b"SigIgn:"):
            return bool(int(line[7:], 16) >> (number - 1) & 1)
    return False


def _is_same(proc: Proc) -> bool:
    now = find_proc(proc.pid)
    return now is not None and now.start == proc.start


def _send(proc: Proc, number: int) -> None:
    """Signal this very process, or nobody: a pidfd cannot come to mean another one."""
    handle = None
    # No pidfd on macOS and before Linux 5.3: then a start time read just before has to do.
    with contextlib.suppress(OSError, AttributeError):
        handle = os.pidfd_open(proc.pid)
    try:
        if not _is_same(proc):
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if handle is None:
                os.kill(proc.pid, number)
            else:
                signal.pidfd_send_signal(handle, number)
    finally:
        if handle is not None:
            os.close(handle)


# -- output ---------------------------------------------------------------------------------------


class Sink:
    """Copies a pipe into a file: the first `cap` bytes, and at the end the last 64 KiB."""

    def __init__(self, pipe: int, file: int, cap: int) -> None:
        self.pipe = pipe
        self.file = file
        self.cap = cap
        self.room = cap
        self.over = 0  # bytes beyond the cap
        self.tail = bytearray()
        self.truncated = False
        self.touched = 0.0
        os.set_blocking(pipe, False)

    def read(self) -> int | None:
        """Bytes copied; 0 at the end of the pipe, None when it has nothing now."""
        try:
            data = os.read(self.pipe, _READ)
        except BlockingIOError:
            return None
        self._keep(data)
        return len(data)

    def _keep(self, data: bytes) -> None:
        self._write(data[: self.room])
        rest = data[self.room :]
        self.room -= len(data) - len(rest)
        if not rest:
            return
        self.over += len(rest)
        self.tail += rest
        if len(self.tail) > 2 * _TAIL:
            del self.tail[:-_TAIL]
        now = time.monotonic()
        if now - self.touched > _TOUCH:  # the file's time is how the runner sees that it works
            self.touched = now
            with contextlib.suppress(OSError):
                os.utime(self.file)

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self.file, data) :]
            except OSError:  # disk full: the program is not to blame and goes on
                self.truncated = True
                return

    def close(self) -> None:
        """Take what is still in the pipe, whoever may hold it open, and write the tail."""
        left = _MOST_LEFT_IN_PIPE
        while left > 0 and (got := self.read()):
            left -= got
        if len(self.tail) < self.over:
            del self.tail[:-_TAIL]
            cut = self.tail.find(b"\n") + 1
            if cut < len(self.tail):  # whole lines, if it has any
                del self.tail[:cut]
            lost = self.over - len(self.tail)
            self.truncated = True
            self._write(f"\n... output capped at {self.cap} bytes, {lost} left out\n".encode())
        self._write(bytes(self.tail))
        os.close(self.file)


# -- the program ----------------------------------------------------------------------------------


def _become(spec: dict[str, Any], fds: tuple[int, int, int]) -> None:
    """Turn this forked process into the program. Returns never, or by an exception."""
    os.setsid()
    for target, source in enumerate(fds):
        os.dup2(source, target)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.chdir(spec["cwd"])
    program, argv, env = spec["program"], spec["argv"], spec["env"]
    try:
        os.execve(program, argv, env)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        # A script without a first line that names its interpreter: do as every shell does.
        os.execve("/bin/sh", ["sh", program, *argv[1:]], env)


def _launch(spec: dict[str, Any], fds: tuple[int, int, int]) -> dict[str, Any]:
    """`pid` of the program, or why the system `refused` to start it, with its `errno`."""
    reading, writing = os.pipe()  # closed by a successful exec
    pid = os.fork()
    if pid == 0:
        try:
            _become(spec, fds)
        except (OSError, ValueError) as error:
            number = error.errno if isinstance(error, OSError) else None
            words = getattr(error, "strerror", None) or str(error)
            os.write(writing, json.dumps({"refused": words, "errno": number}).encode())
        finally:
            os._exit(127)
    os.close(writing)
    with open(reading, "rb") as pipe:
        refusal = pipe.read()
    if not refusal:
        return {"pid": pid}
    os.waitpid(pid, 0)
    why: dict[str, Any] = json.loads(refusal)
    return why


def _adopt_orphans() -> bool:
    """Become the parent of every descendant whose own parent ends. False: cannot here."""
    if sys.platform != "linux":
        return False
    try:
        import ctypes

        libc = ctypes.CDLL(None)
    except (ImportError, OSError):
        return False
    libc.prctl(_PR_SET_NAME, b"swarm-shim", 0, 0, 0)
    return bool(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


class Shim:
    """One program from its start to the end of its tree."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.poller = select.poll()
        self.started = time.monotonic()
        self.seconds: float | None = None  # until the program itself ended
        self.limit: float | None = spec["time_limit"]
        self.pid = 0
        self.status: int | None = None  # its wait status
        self.has_children = True
        self.requests = b""
        self.stopped: str | None = None
        self.timed_out = False
        self.ladder: list[tuple[int, float]] | None = None  # what is left of it; None: not begun
        self.sent = 0  # the signal sent last
        self.next_at = 0.0  # when the next rung is due
        self.look_at = 0.0  # when to look at the tree again, unless a child ends
        self.signalled: set[tuple[int, int]] = set()
        self.survivors: list[int] = []
        self.sinks: dict[int, Sink] = {}

    def run(self) -> None:
        wake = self._ready()
        control: int = self.spec["control"]
        result: int = self.spec["result"]
        started = self._start()
        _say(result, started)
        if "refused" in started:
            return
        self.pid = started["pid"]
        self.poller.register(control, select.POLLIN)
        self.poller.register(wake, select.POLLIN)
        while not self._is_over():
            for fd, _ in self.poller.poll(self._patience()):
                if fd == wake:
                    self.look_at = 0.0
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake, _READ)
                elif fd in self.sinks:
                    if self.sinks[fd].read() == 0:
                        self.poller.unregister(fd)
                elif fd == control:
                    self._obey(control)
        for sink in self.sinks.values():
            sink.close()
        ended = self._ended()
        if self.spec["record"]:
            _record(self.spec["record"], ended)
        _say(result, ended)

    def _ready(self) -> int:
        """Deaf to the terminal, parent of orphans; a fd that is readable when a child ended."""
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
            signal.signal(signal.Signals[name], signal.SIG_IGN)
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _adopt_orphans()
        return reading

    def _start(self) -> dict[str, Any]:
        inner: list[int] = []
        for file in self.spec["outputs"]:
            reading, writing = os.pipe()
            inner.append(writing)
            self.sinks[reading] = Sink(reading, file, self.spec["output_cap"])
            self.poller.register(reading, select.POLLIN)
        stdin = self.spec["stdin"]
        if stdin is None:
            stdin = os.open(os.devnull, os.O_RDONLY)
        self.started = time.monotonic()
        started = _launch(self.spec, (stdin, inner[0], inner[-1]))
        for fd in (stdin, *inner):
            os.close(fd)
        return started

    def _obey(self, control: int) -> None:
        data = os.read(control, _READ)
        if not data:
            self.poller.unregister(control)
            self._stop(RUNNER_GONE)
        *lines, self.requests = (self.requests + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            self._stop(request["why"])
            if request["now"] and self.ladder is not None:
                self.ladder = [rung for rung in self.ladder if rung[0] == signal.SIGKILL]
                if self.sent != signal.SIGKILL:
                    self.next_at = self.look_at = 0.0

    def _stop(self, why: str) -> None:
        if self.ladder is None:
            self.stopped = why
            self._begin()

    def _begin(self) -> None:
        numbers = [signal.Signals[name] for name in self.spec["signals"]]
        gentle = [(int(n), self.spec["grace"]) for n in numbers if n != signal.SIGKILL]
        self.ladder = gentle + [(int(signal.SIGKILL), _KILL_WAIT)] * _KILL_ROUNDS

    def _patience(self) -> float | None:
        """Milliseconds that may pass before something has to be looked at; None: any number."""
        if self.ladder is not None:
            return _TICK * 1000
        if self.limit is None:
            return None
        left = self.started + self.limit - time.monotonic()
        return min(max(left, 0.0), _LONGEST_LOOK_AWAY) * 1000 + 1

    def _is_over(self) -> bool:
        """The tree has ended, or cannot be ended. Sends the next signal when it is due."""
        self._reap()
        now = time.monotonic()
        if self.ladder is None:
            if self.status is not None:
                self._begin()  # against what the program left behind
            elif self.limit is not None and now >= self.started + self.limit:
                self.timed_out = True
                self._begin()
            else:
                return False
        if now < self.look_at:
            return False
        self.look_at = now + _TICK
        if not HAS_PROC:
            return self._is_group_over(now)
        tree = find_tree(os.getpid(), self.spec["mark"])
        # A look at /proc can miss a process that forks and exits meanwhile; a parent of orphans
        # without any child cannot have a living descendant.
        if not tree and not self.has_children:
            return True
        deaf = self.sent and all(
            self._is_box(proc) or _ignores(proc, self.sent) for proc, _ in tree.values()
        )
        if now < self.next_at and not (deaf and tree):
            return False
        if not self.ladder:
            self.survivors = sorted(tree)
            return True
        self._signal(tree)
        return False

    def _signal(self, tree: dict[int, tuple[Proc, bool]]) -> None:
        """Each process once: an agent may take a second SIGINT for "at once, do not clean up"."""
        number = self._rung()
        own = os.getpgrp()
        groups: set[int] = set()
        for proc, is_descendant in tree.values():
            if not self._is_box(proc):
                self.signalled.add((proc.pid, proc.start))
            elif number != signal.SIGKILL:
                continue
            if not is_descendant or proc.group == own:
                _send(proc, number)
            elif proc.group not in groups and _is_same(proc):
                groups.add(proc.group)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(proc.group, number)  # reaches what is being forked right now
        for proc, _ in tree.values():
            if proc.stopped and number != signal.SIGKILL:
                _send(proc, signal.SIGCONT)

    def _is_box(self, proc: Proc) -> bool:
        """One of a sandbox's own two. The outer one would end all that it holds at the first
        signal; it ends by itself, with the program's exit code. The inner one hears none.
        """
        return bool(self.spec["is_boxed"]) and self.pid in (proc.pid, proc.parent)

    def _rung(self) -> int:
        assert self.ladder
        self.sent, wait = self.ladder.pop(0)
        self.next_at = time.monotonic() + wait
        return self.sent

    def _is_group_over(self, now: float) -> bool:
        """The same without /proc: what left the program's process group is not seen."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return self.status is not None
        except PermissionError:  # macOS says so of a group that has only zombies
            if self.status is not None:
                return True
        if now < self.next_at:
            return False
        if not self.ladder:
            self.survivors = [self.pid]
            return True
        self.signalled.add((self.pid, 0))
        number = self._rung()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
            os.killpg(self.pid, signal.SIGCONT)
        return False

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.has_children = False
                return
            if pid == 0:
                return
            if pid == self.pid and self.status is None:
                self.status = status
                self.seconds = time.monotonic() - self.started

    def _ended(self) -> dict[str, Any]:
        code = None if self.status is None else os.waitstatus_to_exitcode(self.status)
        seconds = time.monotonic() - self.started if self.seconds is None else self.seconds
        return {
            "exit_code": code if code is not None and code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "seconds": round(seconds, 3),
            "timed_out": self.timed_out,
            "stopped": self.stopped,
            "killed": len(self.signalled),
            "survivors": self.survivors,
            "output_truncated": any(sink.truncated for sink in self.sinks.values()),
        }


def _say(fd: int, value: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # nobody listens when the runner was killed
        os.write(fd, json.dumps(value).encode() + b"\n")


def _record(path: str, value: dict[str, Any]) -> None:
    """A reader sees all of it or nothing. A folder that is gone is the runner's decision."""
    partial = f"{path}.{os.getpid()}"
    with contextlib.suppress(OSError):
        with open(partial, "w", encoding="ascii") as file:
            json.dump(value, file)
            file.write("\n")
        os.replace(partial, path)


def main() -> None:
    with open(0, "rb", closefd=False) as file:
        spec: dict[str, Any] = json.load(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # the spec has the program's secrets
    os.close(nothing)
    for fd in (spec["control"], spec["result"], spec["stdin"], *spec["outputs"]):
        if fd is not None:
            os.set_inheritable(fd, False)
    Shim(spec).run()
