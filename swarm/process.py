"""Starts one program under a shim, says how it ended, and ends what a killed runner left behind.

Enters: a complete spec (nothing is inherited). Leaves: how the program ended, after its whole tree.
Guards: no process of a program outlives its end, and none that is not ours is ever signalled.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from io import FileIO
from pathlib import Path

import msgspec
import psutil

from swarm import shim
from swarm.errors import Exit, SwarmError
from swarm.ids import new_nonce

SIGNALS = ("SIGINT", "SIGTERM", "SIGKILL")
# As a module, so that its compiled form is cached (as a file: 5 ms and 1.3 MB more); its folder
# comes last, so that nothing installed beside it can replace a module of the standard library.
_RUN_SHIM = "import sys; sys.path.append(sys.argv[1]); from swarm.shim import main; main()"
_PACKAGE_FOLDER = str(Path(shim.__file__).parent.parent)
# A Python built with a shared library may find it by these alone; the program does not get them.
_LOADER = {k: os.environ[k] for k in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH") if k in os.environ}
_START_SECONDS = 60.0  # a shim needs 0.03; an overloaded machine much more
_MOST_WHY = 300  # characters; a request fits a pipe's atomic write
_POLL_SECONDS = 0.05
_KILL_ROUNDS = 5
_QUICK_OUTPUT = 1 << 20
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class CannotStart(SwarmError):
    """A program was not started: its folder, arguments or the system do not allow it."""

    exit_code = Exit.USAGE


class ProgramMissing(CannotStart):
    """The program, or the interpreter that its first line names, is not there or not executable."""


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """One program to run. The shim learns it through a file that is already unlinked."""

    argv: tuple[str, ...]  # a bare name is looked up on env's PATH, one with a slash from cwd
    cwd: Path
    env: Mapping[str, str]  # complete; SWARM_MARK is added
    stdin: bytes | None = None  # None: /dev/null
    stdout: Path  # replaced; its folder exists
    stderr: Path | None = None  # None: into stdout, in the order written
    output_cap: int  # bytes of each output file; beyond it only the last 64 KiB are kept too
    mark: str  # `<runner>.<agent>.<secret>`, unique: finds the tree when all else is lost
    time_limit: timedelta | None = (
        None  # of the program itself, by a clock that sleeps with the machine
    )
    grace: timedelta  # between two signals
    signals: tuple[str, ...] = SIGNALS  # in this order; SIGKILL comes last in any case
    is_boxed: bool = False  # the program holds the real one in namespaces of its own: bwrap
    record: Path | None = None  # where the shim says how it ended, the runner's death included


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended. Neither exit code nor signal: its shim was killed, so nobody knows."""

    exit_code: int | None
    signal: int | None
    seconds: float  # from its start until the program itself ended
    timed_out: bool  # the time limit ended it, whatever exit code it then chose
    stopped: str | None  # why it was asked to stop, if it was before it ended by itself
    killed: int  # processes that had to be signalled, descendants included
    survivors: tuple[int, ...]  # pids that no signal ended
    output_truncated: bool  # the middle of the output is missing

    @property
    def how(self) -> str:
        """The end itself in a few words, whatever its reason was."""
        if self.timed_out:
            return "timed out"
        if self.signal is not None:
            return f"killed by signal {self.signal}"
        return "its shim was killed" if self.exit_code is None else f"exit code {self.exit_code}"


def _find_program(argv: tuple[str, ...], cwd: Path, env: Mapping[str, str]) -> Path:
    name = argv[0]
    folders = [cwd]
    if "/" not in name:
        folders = [cwd / entry for entry in env.get("PATH", os.defpath).split(os.pathsep)]
    denied = None
    for program in (folder / name for folder in folders):
        # `access` first: asking a folder that may not be searched is an error, not a no.
        if os.access(program, os.F_OK) and program.is_file():
            if os.access(program, os.X_OK):
                return program
            denied = denied or program
    if denied:
        raise ProgramMissing(f"{name} is not executable", hint=f"chmod +x {denied}")
    raise ProgramMissing(
        f"{name} is not there",
        why=f"looked in {', '.join(map(str, folders))}",
        hint=f"install {name}, or give its full path",
    )


def _pipe() -> tuple[FileIO, FileIO]:
    reading, writing = os.pipe()
    return FileIO(reading, "r"), FileIO(writing, "w")


def _unlinked(data: bytes, stack: contextlib.ExitStack) -> int:
    file = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
    file.write(data)
    file.seek(0)
    return file.fileno()


def start(spec: Spec) -> Child:
    """Start the program; it runs, in a session of its own, when this returns (after some 40 ms).

    Raises:
        ProgramMissing, CannotStart: no process is left; an output file may have been made.
        OSError: an output file cannot be opened, or processes or descriptors have run out.
    Safe: called from several threads. If this process dies at any point, the program ends too.
    """
    cwd = spec.cwd.absolute()
    if not cwd.is_dir():
        raise CannotStart(f"{spec.argv[0]} cannot start in {cwd}", why="no such folder")
    program = _find_program(spec.argv, cwd, spec.env)
    outputs = [spec.stdout] if spec.stderr is None else [spec.stdout, spec.stderr]
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
        files = [theirs.enter_context(path.open("wb")).fileno() for path in outputs]
        # A file, not a pipe: a program that never reads its prompt holds nobody up.
        stdin = None if spec.stdin is None else _unlinked(spec.stdin, theirs)
        control, asking = _pipe()
        theirs.enter_context(control)
        ours.enter_context(asking)
        hearing, result = _pipe()
        theirs.enter_context(result)
        ours.enter_context(hearing)
        order = {
            "program": str(program),
            "argv": spec.argv,
            "cwd": str(cwd),
            "env": {**spec.env, shim.MARK: spec.mark},
            "mark": spec.mark,
            "stdin": stdin,
            "outputs": files,
            "output_cap": spec.output_cap,
            "control": control.fileno(),
            "result": result.fileno(),
            "time_limit": None if spec.time_limit is None else spec.time_limit.total_seconds(),
            "grace": spec.grace.total_seconds(),
            "signals": spec.signals,
            "is_boxed": spec.is_boxed,
            "record": None if spec.record is None else str(spec.record.absolute()),
        }
        fds = (stdin, control.fileno(), result.fileno(), *files)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _RUN_SHIM, _PACKAGE_FOLDER],
            stdin=_unlinked(json.dumps(order).encode(), theirs),
            stdout=subprocess.DEVNULL,
            stderr=files[-1],  # a traceback of the shim
            cwd="/",
            env={shim.MARK: spec.mark, shim.SHIM: "1", **_LOADER},
            pass_fds=[fd for fd in fds if fd is not None],
            start_new_session=True,
        )
        ours.pop_all()
    child = Child(spec, process, asking, hearing)
    try:
        child._hear_start(program)
    except BaseException:  # Ctrl-C included
        child._abandon()
        raise
    return child


class Child:
    """A started program. Use it until `poll` or `wait` returns how it ended.

    Safe: every method from any thread.
    """

    def __init__(
        self, spec: Spec, process: subprocess.Popen[bytes], asking: FileIO, hearing: FileIO
    ) -> None:
        self.spec = spec
        self.pid = 0  # of the program, which leads a session and a process group
        self.shim_pid = process.pid
        self.started_at = datetime.now(UTC)
        self._process = process
        self._asking = asking
        self._hearing = hearing
        self._heard = b""
        self._why: str | None = None
        self._started = time.monotonic()
        self._ended: Ended | None = None
        self._lock = threading.RLock()
        os.set_blocking(asking.fileno(), False)
        os.set_blocking(hearing.fileno(), False)

    def _hear_start(self, program: Path) -> None:
        deadline = time.monotonic() + _START_SECONDS
        is_last = False
        while b"\n" not in self._heard and not is_last:
            if _is_readable(self._hearing.fileno(), 1.0):
                is_last = self._hear()
            elif time.monotonic() < deadline:
                self._process.send_signal(signal.SIGCONT)  # the program may have stopped its shim
            else:
                self._process.kill()
                _end({self.spec.mark}, set(), [])
                raise CannotStart(f"{self.spec.argv[0]} did not start in {_START_SECONDS:.0f} s")
        line, _, self._heard = self._heard.partition(b"\n")
        if not line:
            _end({self.spec.mark}, set(), [])
            raise CannotStart(
                f"{self.spec.argv[0]} did not start",
                why="its shim ended first",
                hint=f"see {self.spec.stderr or self.spec.stdout}",
            )
        first = json.loads(line)
        if "refused" in first:
            what, why = f"{self.spec.argv[0]} cannot be started", first["refused"]
            if first["errno"] in (errno.ENOENT, errno.EACCES):
                hint = f"head -n 1 {program}  # names what is to run it"
                raise ProgramMissing(what, why=why, hint=hint)
            if first["errno"] == errno.E2BIG:
                raise CannotStart(what, why=why, hint="hand the prompt over on stdin")
            raise CannotStart(what, why=why)
        self.pid = first["pid"]

    def _hear(self) -> bool:
        """True at the end: the shim has nothing more to say."""
        while True:
            data = self._hearing.read(1 << 16)
            if data is None:
                return False
            if not data:
                return True
            self._heard += data

    def _abandon(self) -> None:
        self._asking.close()  # the shim takes it for this process's end
        self._hearing.close()
        self._process.wait()

    def poll(self) -> Ended | None:
        """How it ended, its tree included; None while any of that lives. Does not wait.

        When the shim itself was killed, the tree is ended here, without grace: the one case that
        takes time (seconds at most).
        """
        with self._lock:
            if self._ended is None and self._hear():
                self._abandon()
                if self._heard.endswith(b"\n"):
                    self._ended = msgspec.json.decode(self._heard, type=Ended)
                else:
                    self._ended = self._end_without_shim()
            return self._ended

    def _end_without_shim(self) -> Ended:
        report = _end({self.spec.mark}, set(), [])
        return Ended(
            exit_code=None,
            signal=None,
            seconds=time.monotonic() - self._started,
            timed_out=False,
            stopped=self._why,
            killed=report.ended,
            survivors=report.survivors,
            output_truncated=False,
        )

    def wait(self, timeout: float | None = None) -> Ended | None:
        """As `poll`, but waits for at most `timeout` seconds; None: without end."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (ended := self.poll()) is None:
            left = 1.0 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return None
            with contextlib.suppress(ValueError):  # another thread has just seen the end
                _is_readable(self.fileno(), min(left, 1.0))
        return ended

    def stop(self, why: str) -> None:
        """Ask for the end of the tree: each signal, grace, the next one; does not wait.

        Only the first `why` counts; asking for what has ended or is being ended changes nothing.
        """
        self._ask(why, now=False)

    def kill_now(self, why: str = "killed") -> None:
        """As `stop`, but SIGKILL at once, also when a stop is under way."""
        self._ask(why, now=True)

    def _ask(self, why: str, *, now: bool) -> None:
        with self._lock:
            if self._ended is not None:
                return
            self._why = self._why or why
            request = json.dumps({"why": why[:_MOST_WHY], "now": now}).encode() + b"\n"
            # A full pipe: it was asked often enough. A broken one: the next poll sees the end.
            with contextlib.suppress(BrokenPipeError):
                self._asking.write(request)
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGCONT)  # the program may have stopped it

    def fileno(self) -> int:
        """For a selector: becomes readable when it has ended, and is closed by the poll after.

        Raises:
            ValueError: `poll` or `wait` has already said how it ended.
        """
        return self._hearing.fileno()

    def cpu_seconds(self) -> float:
        """What the whole tree has used, its shim included; compare it with an earlier value."""
        if not Path(f"/proc/{self.shim_pid}/task").exists():
            return _cpu_seconds_by_psutil(self.shim_pid)
        ticks = 0
        waiting = [self.shim_pid]
        while waiting:
            pid = waiting.pop()
            proc = shim.find_proc(pid)
            if proc is not None:
                ticks += proc.ticks
                with contextlib.suppress(OSError):  # it ends while we look
                    for thread in Path(f"/proc/{pid}/task").iterdir():
                        waiting += map(int, (thread / "children").read_bytes().split())
        return ticks / _TICKS_PER_SECOND

    @property
    def output_at(self) -> datetime:
        """When it last wrote anything (also what the cap left out, within a second).

        The file system's clock: compare it with an earlier value, not with now.
        """
        outputs = [p for p in (self.spec.stdout, self.spec.stderr) if p is not None]
        times = [self.started_at.timestamp()]
        for path in outputs:
            with contextlib.suppress(FileNotFoundError):
                times.append(path.stat().st_mtime)
        return datetime.fromtimestamp(max(times), UTC)


def _is_readable(fd: int, seconds: float) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(max(0.0, seconds) * 1000))


def _cpu_seconds_by_psutil(pid: int) -> float:
    total = 0.0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += sum(process.cpu_times()[:4])
    return total


def find_record(path: Path) -> Ended | None:
    """What a shim wrote to its spec's `record`. None: not there, or damaged by a power failure."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Ended)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


class Marked(msgspec.Struct, frozen=True, kw_only=True):
    """A living process that carries a mark."""

    pid: int
    started: float  # tells it from a later process with the same pid; seconds since the epoch
    mark: str
    is_shim: bool  # ends by itself after its tree
    cmdline: tuple[str, ...]


class EndReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `end_marked` did."""

    ended: int  # processes that were signalled and are gone, shims not counted
    survivors: tuple[int, ...]  # pids that no signal ended


def find_marked(mark_prefix: str) -> list[Marked]:
    """This user's processes whose mark begins so; never this one, nor one that it descends from.

    Shape: by pid; empty when nothing was left behind.
    """
    found = []
    for process in _others():
        with contextlib.suppress(psutil.Error, OSError):
            if (mark := _mark(process)) is not None and mark.startswith(mark_prefix):
                found.append(
                    Marked(
                        pid=process.pid,
                        started=process.create_time(),
                        mark=mark,
                        is_shim=shim.SHIM in process.environ(),
                        cmdline=tuple(process.cmdline()),
                    )
                )
    return found


def find_standing(folder: Path) -> list[int]:
    """This user's processes that work below a folder without a terminal: daemons, not people.

    They may have dropped their mark, so nobody knows whose they are and nobody ends them; a slot
    in which one stands is not used. Shape: by pid.
    """
    found: list[int] = []
    for process in _others():
        with contextlib.suppress(psutil.Error, OSError):
            is_ours = process.uids().real == os.getuid() and process.terminal() is None
            if is_ours and Path(process.cwd()).is_relative_to(folder):
                found.append(process.pid)
    return found


def end_marked(marks: Iterable[Marked], grace: timedelta) -> EndReport:
    """End them, all that carries the same marks by now, and their descendants.

    SIGTERM, grace, then SIGKILL until none is left; shims last, since they hold what has lost its
    mark. For marks of runners that are dead: a living runner ends its own.
    """
    given = list(marks)
    return _end({m.mark for m in given}, {(m.pid, m.started) for m in given}, [grace])


def _others() -> Iterator[psutil.Process]:
    """Living processes but this one and its ancestors, by pid. Fresh: psutil keeps stale ones."""
    me = psutil.Process()
    never = {me.pid, *(parent.pid for parent in me.parents())}
    for pid in sorted(set(psutil.pids()) - never):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                yield process


def _mark(process: psutil.Process) -> str | None:
    """None: another user's, or without one."""
    try:
        if process.uids().real != os.getuid():
            return None
        return process.environ().get(shim.MARK)
    except (psutil.Error, OSError):
        return None


def _look(marks: set[str], known: set[tuple[int, float]]) -> dict[psutil.Process, bool]:
    """The processes with one of `marks`, those `known`, and their descendants; True for a shim."""
    tree: dict[psutil.Process, bool] = {}
    children: dict[int, list[psutil.Process]] = {}
    for process in _others():
        with contextlib.suppress(psutil.Error, OSError):
            children.setdefault(process.ppid(), []).append(process)
            if _mark(process) in marks or (process.pid, process.create_time()) in known:
                tree[process] = shim.SHIM in process.environ()
    waiting = list(tree)
    while waiting:
        for child in children.get(waiting.pop().pid, ()):
            if child not in tree:
                tree[child] = False
                waiting.append(child)
    return tree


def _end(marks: set[str], known: set[tuple[int, float]], graces: list[timedelta]) -> EndReport:
    rungs = [(signal.SIGTERM, grace.total_seconds()) for grace in graces]
    rungs += [(signal.SIGKILL, 1.0)] * _KILL_ROUNDS
    signalled: set[psutil.Process] = set()
    for number, seconds in rungs:
        tree = _look(marks, known)
        programs = [process for process, is_shim in tree.items() if not is_shim]
        signalled.update(programs)
        aim = programs or list(tree)
        if not aim:
            break
        for process in aim:
            with contextlib.suppress(psutil.Error):  # gone, or not ours to signal
                process.send_signal(number)  # compares start times first
                if number != signal.SIGKILL and process.status() == psutil.STATUS_STOPPED:
                    process.resume()
        _wait_gone(aim, seconds)
    survivors = _look(marks, known)
    return EndReport(
        ended=len(signalled - survivors.keys()),
        survivors=tuple(sorted(process.pid for process in survivors)),
    )


def _wait_gone(processes: list[psutil.Process], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(map(_is_alive, processes)):
        time.sleep(_POLL_SECONDS)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


class Quick(msgspec.Struct, frozen=True, kw_only=True):
    """What a small probe said."""

    exit_code: int | None  # None: a signal ended it
    stdout: bytes  # capped at 1 MiB
    stderr: bytes  # the same
    timed_out: bool


def run_quick(
    argv: tuple[str, ...], cwd: Path, env: Mapping[str, str], timeout: timedelta
) -> Quick:
    """Run something like `claude --version` to its end, without input; at `timeout` it is killed.

    Raises:
        ProgramMissing, CannotStart: as `start`.
    """
    with tempfile.TemporaryDirectory(prefix="swarm-") as folder:
        stdout, stderr = Path(folder, "stdout"), Path(folder, "stderr")
        child = start(
            Spec(
                argv=argv,
                cwd=cwd,
                env=env,
                stdout=stdout,
                stderr=stderr,
                output_cap=_QUICK_OUTPUT,
                mark=f"quick.{os.getpid()}.{new_nonce()}",
                time_limit=timeout,
                grace=timedelta(0),
                signals=(),
            )
        )
        try:
            ended = child.wait()
        except BaseException:  # Ctrl-C
            child._abandon()
            raise
        assert ended is not None
        return Quick(
            exit_code=ended.exit_code,
            stdout=stdout.read_bytes(),
            stderr=stderr.read_bytes(),
            timed_out=ended.timed_out,
        )
