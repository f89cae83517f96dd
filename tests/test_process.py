"""Programs under their shim: how they end, and that nothing of them is left."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from swarm import shim
from swarm.errors import Exit
from swarm.process import (
    CannotStart,
    Child,
    Ended,
    Marked,
    ProgramMissing,
    Spec,
    end_marked,
    find_marked,
    find_record,
    run_quick,
    start,
)

pytestmark = pytest.mark.skipif(not shim.HAS_PROC, reason="looks at processes through /proc")

HELPERS = Path(__file__).with_name("process_helpers")
PYTHON = (sys.executable, "-I", "-S")
ENV = {"PATH": os.environ["PATH"]}
PATIENCE = 20.0  # seconds; only a failure waits so long

Launch = Callable[..., Child]


def eventually(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)
    return value


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def is_alive(pid: int) -> bool:
    return shim.find_proc(pid) is not None


def end_of(child: Child) -> Ended:
    ended = child.wait(PATIENCE)
    assert ended is not None, "it did not end"
    return ended


def pid_in(path: Path) -> int:
    eventually(path.exists, f"{path.name} is written")
    return int(path.read_text())


@pytest.fixture
def runner() -> str:
    return f"test{os.getpid()}-{time.monotonic_ns()}"


@pytest.fixture
def launch(tmp_path: Path, runner: str) -> Iterator[Launch]:
    """Starts programs in tmp_path; afterwards none of their processes may be left."""
    children: list[Child] = []
    numbers = itertools.count()

    def launch(*argv: str, **changes: Any) -> Child:
        n = next(numbers)
        fields: dict[str, Any] = {
            "argv": argv,
            "cwd": tmp_path,
            "env": ENV,
            "stdout": tmp_path / "out" if n == 0 else tmp_path / f"out{n}",
            "output_cap": 1 << 20,
            "mark": f"{runner}.agent{n}.secret",
            "grace": timedelta(seconds=0.3),
        }
        child = start(Spec(**(fields | changes)))
        children.append(child)
        return child

    yield launch
    for child in children:
        child.kill_now()
        end_of(child)
    assert find_marked(f"{runner}.") == [], "a process is left behind"


@contextlib.contextmanager
def stranger(*argv: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the user that is none of ours."""
    process = subprocess.Popen(argv, env=ENV | env, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


# -- how it ended ---------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 77, 127, 255])
def test_exit_code_is_the_programs(launch: Launch, code: int) -> None:
    ended = end_of(launch("sh", "-c", f"exit {code}"))
    assert (ended.exit_code, ended.signal) == (code, None)
    assert (ended.timed_out, ended.stopped, ended.killed, ended.survivors) == (False, None, 0, ())


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "PIPE", "USR1", "KILL"])
def test_program_has_default_signal_handling_though_its_shim_is_deaf(
    launch: Launch, name: str
) -> None:
    ended = end_of(launch("sh", "-c", f"kill -{name} $$; exit 0"))
    assert (ended.exit_code, ended.signal) == (None, signal.Signals[f"SIG{name}"])


def test_blocked_signals_of_the_runner_are_not_inherited(launch: Launch) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM})
    try:
        child = launch("sh", "-c", "kill -TERM $$; exit 0")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert end_of(child).signal == signal.SIGTERM


def test_A7_a_killed_agent_is_seen_as_ended_at_the_next_look(launch: Launch) -> None:
    child = launch("sleep", "60")
    assert child.poll() is None
    os.kill(child.pid, signal.SIGKILL)
    assert end_of(child).signal == signal.SIGKILL
    assert child.poll() == child.wait(0) == end_of(child), "the answer stays"


def test_descriptor_becomes_readable_at_the_end(launch: Launch) -> None:
    long, short = launch("sleep", "60"), launch("true")
    readable, _, _ = select.select([long, short], [], [], PATIENCE)
    assert readable == [short]
    assert end_of(short).exit_code == 0
    assert long.poll() is None


def test_wait_gives_up_at_its_timeout(launch: Launch) -> None:
    assert launch("sleep", "60").wait(0.05) is None


def test_record_says_the_same(launch: Launch, tmp_path: Path) -> None:
    ended = end_of(launch("sh", "-c", "exit 7", record=tmp_path / "record"))
    assert find_record(tmp_path / "record") == ended


def test_absent_and_damaged_records_say_nothing(tmp_path: Path) -> None:
    assert find_record(tmp_path / "none") is None
    (tmp_path / "damaged").write_bytes(b'{"exit_code": 0')
    assert find_record(tmp_path / "damaged") is None


# -- what it is given -----------------------------------------------------------------------------


def test_environment_is_complete_and_marked(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runner: str
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_RUNNER", "x")
    end_of(launch("/usr/bin/env", env={"ONLY": "this\nand \udcff"}, mark=f"{runner}.a.b"))
    assert (tmp_path / "out").read_bytes().split(b"\n") == [
        b"ONLY=this",
        b"and \xff",
        f"SWARM_MARK={runner}.a.b".encode(),
        b"",
    ]


def test_secrets_are_in_no_argument_and_not_in_the_shims_environment(launch: Launch) -> None:
    child = launch("sleep", "60", env=ENV | {"KEY": "sk-secret"})
    for pid, name in (
        (child.pid, "cmdline"),
        (child.shim_pid, "cmdline"),
        (child.shim_pid, "environ"),
    ):
        assert b"sk-secret" not in Path(f"/proc/{pid}/{name}").read_bytes()


def test_no_descriptor_of_the_runner_is_inherited(launch: Launch, tmp_path: Path) -> None:
    with (tmp_path / "flock").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        child = launch("sleep", "60")
    for pid in (child.pid, child.shim_pid):
        open_files = [str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()]
        assert not any("flock" in name for name in open_files)
    mine = Path(f"/proc/{child.pid}/fd")  # for a moment also the libraries that it loads
    eventually(
        lambda: {fd.name for fd in mine.iterdir()} == {"0", "1", "2"}, "nothing else is open"
    )


def test_program_leads_a_session_of_its_own_away_from_its_shim(launch: Launch) -> None:
    child = launch("sleep", "60")
    assert os.getsid(child.pid) == os.getpgid(child.pid) == child.pid
    assert os.getsid(child.shim_pid) == child.shim_pid


def test_umask_is_kept(launch: Launch, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        end_of(launch("sh", "-c", "umask"))
    finally:
        os.umask(before)
    assert (tmp_path / "out").read_text() == "0027\n"


def test_A19_the_prompt_arrives_whole_and_ends(launch: Launch, tmp_path: Path) -> None:
    prompt = os.urandom(300_000)
    ended = end_of(launch("cat", stdin=prompt))
    assert ended.exit_code == 0
    assert (tmp_path / "out").read_bytes() == prompt


def test_A19_an_argument_arrives_as_it_is(launch: Launch, tmp_path: Path) -> None:
    prompt = "--yes $(touch oops) `touch oops`; touch oops\n'\"\n\\"
    end_of(launch("printf", "%s", prompt))
    assert (tmp_path / "out").read_text() == prompt
    assert not (tmp_path / "oops").exists()


def test_A19_a_program_that_reads_no_prompt_holds_nobody_up(launch: Launch) -> None:
    assert end_of(launch("true", stdin=b"x" * 300_000)).exit_code == 0


@pytest.mark.parametrize("stdin", [None, b""])
def test_without_a_prompt_reading_ends_at_once(launch: Launch, stdin: bytes | None) -> None:
    assert end_of(launch("sh", "-c", "! read line", stdin=stdin)).exit_code == 0


# -- programs that cannot start -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["swarm-no-such-program", "./nothing", "/nothing/here", "folder"])
def test_missing_program_is_refused(launch: Launch, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ProgramMissing) as error:
        launch(name)
    assert error.value.exit_code == Exit.USAGE
    assert error.value.hint
    assert name in error.value.what


def test_program_without_permission_is_refused_with_the_cure(
    launch: Launch, tmp_path: Path
) -> None:
    (tmp_path / "agent").write_text("#!/bin/sh\n")
    with pytest.raises(ProgramMissing) as error:
        launch("./agent")
    assert error.value.hint == f"chmod +x {tmp_path}/agent"


def test_missing_interpreter_is_refused(launch: Launch, tmp_path: Path) -> None:
    script(tmp_path / "agent", "#!/nothing/python\n")
    with pytest.raises(ProgramMissing, match=r"\./agent") as error:
        launch("./agent")
    assert error.value.hint == f"head -n 1 {tmp_path}/agent  # names what is to run it"


def test_too_long_arguments_and_null_bytes_are_refused(launch: Launch) -> None:
    with pytest.raises(CannotStart) as error:
        launch("echo", "x" * 3_000_000)
    assert error.value.why == "Argument list too long"
    with pytest.raises(CannotStart) as error:
        launch("echo", "a\0b")
    assert "null" in str(error.value.why)


def test_missing_folder_is_refused(launch: Launch, tmp_path: Path) -> None:
    with pytest.raises(CannotStart):
        launch("true", cwd=tmp_path / "gone")


def test_missing_program_inside_a_shell_command_is_the_shells_127(launch: Launch) -> None:
    assert end_of(launch("sh", "-c", "swarm-no-such-program")).exit_code == 127


def test_path_of_the_given_environment_is_searched(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    script(tmp_path / "bin/agent", "#!/bin/sh\nexit 9\n")
    assert end_of(launch("agent", env={"PATH": "/nothing:bin"})).exit_code == 9


def test_starts_and_refusals_leak_no_descriptor(launch: Launch, tmp_path: Path) -> None:
    end_of(launch("true"))
    before = open_descriptors()
    for _ in range(3):
        end_of(launch("true", stdin=b"x", stderr=tmp_path / "err"))
        with pytest.raises(ProgramMissing):
            launch("./nothing")
        with pytest.raises(CannotStart):
            launch("echo", "a\0b")
        with pytest.raises(FileNotFoundError):
            launch("true", stdout=tmp_path / "no/such/folder")
    assert open_descriptors() == before


# -- output ---------------------------------------------------------------------------------------


def test_both_outputs_go_into_one_file_in_order(launch: Launch, tmp_path: Path) -> None:
    end_of(launch("sh", "-c", "echo 1; echo 2 >&2; echo 3"))
    assert (tmp_path / "out").read_text() == "1\n2\n3\n"


def test_outputs_can_be_apart(launch: Launch, tmp_path: Path) -> None:
    end_of(launch("sh", "-c", "echo 1; echo 2 >&2", stderr=tmp_path / "err"))
    assert (tmp_path / "out").read_text() == "1\n"
    assert (tmp_path / "err").read_text() == "2\n"


def test_capped_output_keeps_its_start_and_whole_lines_of_its_end(
    launch: Launch, tmp_path: Path
) -> None:
    ended = end_of(launch("seq", "200000", output_cap=1000))
    assert ended.exit_code == 0, "the cap stops the transcript, not the program"
    assert ended.output_truncated
    written = (tmp_path / "out").read_text()
    everything = "".join(f"{n}\n" for n in range(1, 200001))
    assert written[:1000] == everything[:1000]
    note, *tail = written[1000:].lstrip("\n").splitlines(keepends=True)
    left_out = len(everything) - 1000 - len("".join(tail))
    assert note == f"... output capped at 1000 bytes, {left_out} left out\n"
    assert everything.endswith("\n" + "".join(tail))
    assert len("".join(tail)) > 60_000


def test_capped_output_of_a_single_line_keeps_its_end(launch: Launch, tmp_path: Path) -> None:
    program = "import sys; sys.stdout.write('a' * 300000 + 'end' + chr(10))"
    end_of(launch(*PYTHON, "-c", program, output_cap=10))
    assert (tmp_path / "out").read_text().endswith("aaaend\n")


def test_output_just_over_the_cap_is_whole(launch: Launch, tmp_path: Path) -> None:
    ended = end_of(launch("seq", "1000", output_cap=100))
    assert not ended.output_truncated
    assert (tmp_path / "out").read_text() == "".join(f"{n}\n" for n in range(1, 1001))


def test_broken_utf8_is_kept_byte_for_byte(launch: Launch, tmp_path: Path) -> None:
    end_of(launch("printf", r"\377\376\000\303"))
    assert (tmp_path / "out").read_bytes() == b"\xff\xfe\0\xc3"


def test_full_disk_does_not_disturb_the_program(launch: Launch) -> None:
    ended = end_of(launch("seq", "50000", stdout=Path("/dev/full")))
    assert ended.exit_code == 0
    assert ended.output_truncated


def test_output_shows_life_beyond_its_cap(launch: Launch, tmp_path: Path) -> None:
    child = launch("sh", "-c", "while :; do echo x; sleep 0.05; done", output_cap=4)
    eventually(lambda: (tmp_path / "out").stat().st_size >= 4, "the cap is reached")
    first = child.output_at
    eventually(lambda: child.output_at > first, "the file's time moves on")


def test_pipe_held_open_by_another_process_does_not_delay_the_end(
    launch: Launch, tmp_path: Path
) -> None:
    child = launch("sh", "-c", "echo up; exec sleep 60")
    eventually(lambda: (tmp_path / "out").read_text() == "up\n", "it is up")
    held = os.open(f"/proc/{child.pid}/fd/1", os.O_WRONLY)
    try:
        child.kill_now()
        assert end_of(child).signal == signal.SIGKILL
    finally:
        os.close(held)


def test_last_words_are_read_while_it_is_being_stopped(launch: Launch, tmp_path: Path) -> None:
    farewell = "trap 'seq 100000; exit 5' INT; echo up; while :; do sleep 0.02; done"
    child = launch("sh", "-c", farewell, grace=timedelta(seconds=PATIENCE))
    eventually(lambda: (tmp_path / "out").read_text() == "up\n", "it is up")
    child.stop("enough")
    ended = end_of(child)
    assert (ended.exit_code, ended.stopped) == (5, "enough")
    assert (tmp_path / "out").read_text().endswith("\n100000\n")


# -- the whole tree -------------------------------------------------------------------------------


def test_A1_work_in_the_background_does_not_outlive_the_time_limit(
    launch: Launch, tmp_path: Path
) -> None:
    ended = end_of(
        launch("sh", "-c", "(sleep 1; touch late) & wait", time_limit=timedelta(seconds=0.2))
    )
    assert ended.timed_out
    assert ended.killed >= 3, "the shell, its copy and the sleep"
    time.sleep(max(0.0, 1.2 - ended.seconds))
    assert not (tmp_path / "late").exists()


def test_A1_time_limit_reaches_a_grandchild_in_another_session(
    launch: Launch, tmp_path: Path
) -> None:
    program = "setsid sh -c 'echo $$ > pid.new; mv pid.new pid; exec sleep 60' & wait"
    child = launch("sh", "-c", program, time_limit=timedelta(seconds=0.5))
    grandchild = pid_in(tmp_path / "pid")
    assert os.getsid(grandchild) != os.getsid(child.pid)
    assert end_of(child).timed_out
    assert not is_alive(grandchild)


def test_time_limit_of_a_quick_program_changes_nothing(launch: Launch) -> None:
    ended = end_of(launch("true", time_limit=timedelta(hours=1)))
    assert (ended.exit_code, ended.timed_out) == (0, False)


def test_time_limit_of_a_year_is_possible(launch: Launch) -> None:
    assert end_of(launch("sleep", "0.05", time_limit=timedelta(days=365))).exit_code == 0


def test_timed_out_stands_also_when_the_program_then_claims_success(launch: Launch) -> None:
    program = "trap 'exit 0' INT; while :; do sleep 0.02; done"
    ended = end_of(launch("sh", "-c", program, time_limit=timedelta(seconds=0.3)))
    assert (ended.exit_code, ended.timed_out) == (0, True)


def test_daemon_without_environment_is_ended(launch: Launch, tmp_path: Path) -> None:
    child = launch(*PYTHON, str(HELPERS / "daemon.py"), "daemon")
    ended = end_of(child)
    assert (ended.exit_code, ended.killed, ended.survivors) == (0, 1, ())
    assert not is_alive(pid_in(tmp_path / "daemon"))


def test_what_a_program_leaves_running_ends_with_it(launch: Launch, tmp_path: Path) -> None:
    program = "setsid sleep 60 & sleep 60 & echo $! > left; exit 3"
    ended = end_of(launch("sh", "-c", program))
    assert (ended.exit_code, ended.stopped, ended.killed) == (3, None, 2)
    assert not is_alive(pid_in(tmp_path / "left"))


def test_program_deaf_to_gentle_signals_is_killed_after_grace(
    launch: Launch, tmp_path: Path
) -> None:
    child = launch(*PYTHON, str(HELPERS / "stubborn.py"))
    eventually(lambda: (tmp_path / "out").read_text() == "deaf\n", "it is deaf")
    child.stop("enough")
    assert end_of(child).signal == signal.SIGKILL


def test_process_that_handles_no_signal_in_time_is_killed(launch: Launch, tmp_path: Path) -> None:
    program = (
        "import signal, time\n"
        "for n in (2, 15): signal.signal(n, lambda *_: None)\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(60)"
    )
    child = launch(*PYTHON, "-c", program, grace=timedelta(seconds=0.1))
    eventually(lambda: (tmp_path / "out").read_text() == "up\n", "it is up")
    child.stop("enough")
    assert end_of(child).signal == signal.SIGKILL


def test_each_process_gets_each_signal_once(launch: Launch, tmp_path: Path) -> None:
    program = (
        "import signal, sys, time\n"
        "signal.signal(2, lambda *_: print('INT', flush=True))\n"
        "signal.signal(15, lambda *_: sys.exit(4))\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(60)"
    )
    child = launch(*PYTHON, "-c", program)
    eventually(lambda: (tmp_path / "out").read_text() == "up\n", "it is up")
    child.stop("enough")
    assert end_of(child).exit_code == 4
    assert (tmp_path / "out").read_text() == "up\nINT\n"


def test_signals_are_the_specs(launch: Launch, tmp_path: Path) -> None:
    program = "trap 'exit 1' INT; trap 'exit 2' TERM; echo up; while :; do sleep 0.02; done"
    child = launch("sh", "-c", program, signals=("SIGTERM", "SIGKILL"))
    eventually(lambda: (tmp_path / "out").read_text() == "up\n", "it is up")
    child.stop("enough")
    assert end_of(child).exit_code == 2


def test_stopped_process_is_woken_to_hear_its_signal(launch: Launch, tmp_path: Path) -> None:
    child = launch("sh", "-c", "trap 'exit 6' INT; kill -STOP $$; while :; do sleep 0.02; done")

    def is_stopped() -> bool:
        proc = shim.find_proc(child.pid)
        return proc is not None and proc.stopped

    eventually(is_stopped, "it has stopped itself")
    child.stop("enough")
    assert end_of(child).exit_code == 6


def test_agent_that_stopped_its_shim_can_be_stopped(launch: Launch, tmp_path: Path) -> None:
    child = launch("sh", "-c", "kill -STOP $PPID; touch done; exec sleep 60")
    eventually((tmp_path / "done").exists, "the shim is stopped")
    child.stop("enough")
    assert end_of(child).stopped == "enough"


def test_stop_twice_keeps_the_first_reason(launch: Launch) -> None:
    child = launch("sleep", "60")
    child.stop("first\nreason")
    child.stop("second")
    assert end_of(child).stopped == "first\nreason"
    child.stop("third")
    child.kill_now()
    assert end_of(child).stopped == "first\nreason"


def test_kill_now_does_not_wait_for_the_grace_of_a_stop(launch: Launch, tmp_path: Path) -> None:
    program = "trap : INT TERM; echo up; while :; do sleep 0.02; done"
    child = launch("sh", "-c", program, grace=timedelta(hours=1))
    eventually(lambda: (tmp_path / "out").read_text() == "up\n", "it is up")
    child.stop("gently")
    assert child.wait(0.3) is None
    child.kill_now()
    ended = end_of(child)
    assert (ended.signal, ended.stopped) == (signal.SIGKILL, "gently")


def test_signals_to_the_shim_change_nothing(launch: Launch) -> None:
    child = launch("sleep", "60")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        os.kill(child.shim_pid, number)
    assert child.wait(0.2) is None
    assert is_alive(child.pid)


def test_fork_bomb_in_its_group_is_ended(launch: Launch, tmp_path: Path) -> None:
    program = (
        "import os, time\n"
        "end = time.monotonic() + 30\n"
        "while time.monotonic() < end:\n"
        "    time.sleep(0.005)\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(30)\n"
        "        os._exit(0)\n"
    )
    child = launch(*PYTHON, "-c", program, grace=timedelta(0))
    time.sleep(0.3)
    child.kill_now()
    assert end_of(child).survivors == ()


@pytest.mark.parametrize("kind", ["shebang", "bare", "python", "exec", "pipeline", "subshell"])
def test_A5_every_kind_of_wrapper_is_ended_whole(launch: Launch, tmp_path: Path, kind: str) -> None:
    agent = "echo $$ > pid.new; mv pid.new pid; exec sleep 60"
    text = {
        "shebang": f'#!/bin/sh\nsh -c "{agent.replace("$", chr(92) + "$")}"\n:\n',
        "bare": f"sh -c '{agent}'\n:\n",
        "python": f"#!{sys.executable}\nimport os\nos.spawnlp(0, 'sh', 'sh', '-c', '{agent}')\n",
        "exec": f"#!/bin/sh\nexec sh -c '{agent}'\n",
        "pipeline": f"#!/bin/sh\nsh -c '{agent}' | cat\n",
        "subshell": f"#!/bin/sh\n(setsid sh -c '{agent}' &)\nsleep 60\n:\n",
    }[kind]
    script(tmp_path / "agent", text)
    child = launch("./agent")
    inner = pid_in(tmp_path / "pid")
    child.stop("enough")
    ended = end_of(child)
    assert ended.stopped == "enough"
    assert ended.survivors == ()
    assert not is_alive(inner)


def test_A4_a_stranger_of_the_same_name_is_never_touched(launch: Launch, tmp_path: Path) -> None:
    with stranger("sleep", "60") as same, stranger("sleep", "60", SWARM_MARK="other.a.b") as marked:
        child = launch("sh", "-c", "sleep 60 & echo up; exec sleep 60")
        eventually(lambda: (tmp_path / "out").read_text() == "up\n", "it is up")
        child.stop("enough")
        assert end_of(child).killed == 2
        assert same.poll() is None
        assert marked.poll() is None


def test_A4_a_process_that_only_has_the_pid_is_never_touched() -> None:
    with stranger("sleep", "60") as other:
        stale = Marked(pid=other.pid, started=1.0, mark="gone.a.b", is_shim=False, cmdline=())
        report = end_marked([stale], timedelta(0))
        assert (report.ended, report.survivors) == (0, ())
        assert other.poll() is None


def test_A4_the_reaper_neither_finds_nor_ends_itself(tmp_path: Path, runner: str) -> None:
    mark = f"{runner}.agent.secret"
    with stranger("sleep", "60", SWARM_MARK=mark) as left:
        said = subprocess.run(
            [sys.executable, HELPERS / "reaper.py", f"{runner}."],
            env=ENV | {"SWARM_MARK": mark},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        assert said == [str(left.pid), said[1], "1"]
        assert left.wait(PATIENCE) == -signal.SIGTERM


def test_shim_stays_small() -> None:
    program = "import sys; sys.path.append(sys.argv[1]); import swarm.shim; print(*sys.modules)"
    folder = Path(shim.__file__).parent.parent
    loaded = subprocess.run(
        [*PYTHON, "-c", program, folder], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = {"pathlib", "typing", "dataclasses", "subprocess", "selectors", "threading", "ctypes"}
    assert heavy.isdisjoint(loaded), "one copy of it lives beside every agent"


def test_many_starts_at_once_do_not_hold_each_others_pipes(launch: Launch) -> None:
    with ThreadPoolExecutor(8) as pool:
        children = list(pool.map(lambda n: launch("sh", "-c", f"exit {n}"), range(8)))
    codes = [end_of(child).exit_code for child in children]
    assert codes == list(range(8))


def test_cpu_of_the_whole_tree_is_counted(launch: Launch) -> None:
    child = launch("sh", "-c", "setsid sh -c 'while :; do :; done' & wait")
    before = child.cpu_seconds()
    eventually(lambda: child.cpu_seconds() > before + 0.2, "a grandchild's CPU is seen")


# -- runners and shims that are killed ------------------------------------------------------------


@contextlib.contextmanager
def another_runner(folder: Path, runner: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A runner with three agents, each with a daemon, and the pids of its shims."""
    with subprocess.Popen(
        [sys.executable, HELPERS / "runner.py", folder, runner], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            yield process, [int(pid) for pid in process.stdout.readline().split()]
        finally:
            process.kill()


def test_A3_killing_the_runner_ends_every_tree(tmp_path: Path, runner: str) -> None:
    with another_runner(tmp_path, runner) as (process, shims):
        daemons = [pid_in(tmp_path / f"daemon{n}") for n in range(3)]
        assert len(shims) == 3
        assert all(map(is_alive, daemons))
        process.kill()
        eventually(lambda: not any(map(is_alive, (*shims, *daemons))), "all trees have ended")
    assert find_marked(f"{runner}.") == []
    for n in range(3):
        record = find_record(tmp_path / f"record{n}")
        assert record is not None
        assert record.stopped == shim.RUNNER_GONE
        assert record.survivors == ()


def test_A3_next_start_ends_what_outlived_runner_and_shims(tmp_path: Path, runner: str) -> None:
    with another_runner(tmp_path, runner) as (process, shims):
        process.send_signal(signal.SIGSTOP)  # it must not act on the end of its shims
        for pid in shims:
            os.kill(pid, signal.SIGKILL)
        process.kill()
    left = find_marked(f"{runner}.")
    assert len(left) >= 3
    assert {m.mark for m in left} == {f"{runner}.agent{n}.secret" for n in range(3)}
    assert not any(m.is_shim for m in left)
    assert [m.pid for m in left] == sorted(m.pid for m in left)
    report = end_marked(left, timedelta(seconds=0.3))
    assert report.survivors == ()
    assert report.ended >= 3
    assert find_marked(f"{runner}.") == []
    for n in range(3):  # a daemon that gave up its mark needs its shim; nobody else can know it
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid_in(tmp_path / f"daemon{n}"), signal.SIGKILL)


def test_A3_next_start_ends_a_tree_whose_shim_hangs(tmp_path: Path, runner: str) -> None:
    with another_runner(tmp_path, runner) as (process, shims):
        for pid in shims:
            os.kill(pid, signal.SIGSTOP)
        process.kill()
    daemons = [pid_in(tmp_path / f"daemon{n}") for n in range(3)]
    left = find_marked(f"{runner}.")
    assert {m.pid for m in left if m.is_shim} == set(shims)
    report = end_marked(left, timedelta(seconds=0.3))
    assert report.survivors == ()
    assert not any(map(is_alive, (*shims, *daemons))), "also those without a mark"


def test_A3_a_runner_killed_at_any_moment_of_starting_leaves_nothing(
    tmp_path: Path, runner: str
) -> None:
    for n, delay in enumerate((0.05, 0.12, 0.18, 0.22, 0.26, 0.3)):
        name = f"{runner}-{n}"
        (tmp_path / name).mkdir()
        process = subprocess.Popen([sys.executable, HELPERS / "runner.py", tmp_path / name, name])
        time.sleep(delay)
        process.kill()
        process.wait()
        eventually(lambda name=name: not find_marked(f"{name}."), "nothing is left")
    assert not any(is_alive(pid_in(path)) for path in tmp_path.glob("*/daemon?"))


def test_killed_shim_ends_the_program_with_an_unknown_result(launch: Launch) -> None:
    child = launch("sh", "-c", "setsid sleep 60 & exec sleep 60")
    os.kill(child.shim_pid, signal.SIGKILL)
    ended = end_of(child)
    assert (ended.exit_code, ended.signal) == (None, None)
    assert ended.killed >= 1
    assert not is_alive(child.pid)


def test_stop_after_the_shim_was_killed_is_harmless(launch: Launch) -> None:
    child = launch("sleep", "60")
    os.kill(child.shim_pid, signal.SIGKILL)
    eventually(lambda: not is_alive(child.shim_pid), "the shim is gone")
    child.stop("enough")
    assert end_of(child).stopped == "enough"


# -- small probes ---------------------------------------------------------------------------------


def test_quick_probe_says_all(tmp_path: Path) -> None:
    quick = run_quick(
        ("sh", "-c", "pwd; echo no >&2; exit 2"), tmp_path, ENV, timedelta(seconds=PATIENCE)
    )
    assert quick.exit_code == 2
    assert quick.stdout == f"{tmp_path}\n".encode()
    assert quick.stderr == b"no\n"
    assert not quick.timed_out


def test_quick_probe_ends_at_its_timeout_with_all_it_started(tmp_path: Path) -> None:
    program = "trap '' INT TERM; setsid sleep 60 & echo $! > pid; echo up; sleep 60"
    quick = run_quick(("sh", "-c", program), tmp_path, ENV, timedelta(seconds=0.3))
    assert quick.timed_out
    assert quick.exit_code is None
    assert quick.stdout == b"up\n"
    assert not is_alive(pid_in(tmp_path / "pid"))


def test_quick_probe_is_capped(tmp_path: Path) -> None:
    quick = run_quick(("seq", "1000000"), tmp_path, ENV, timedelta(seconds=PATIENCE))
    assert quick.exit_code == 0
    assert len(quick.stdout) < 2_000_000
    assert quick.stdout.endswith(b"\n1000000\n")


def test_quick_probe_of_a_missing_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProgramMissing):
        run_quick(("swarm-no-such-program",), tmp_path, ENV, timedelta(seconds=1))


def script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
