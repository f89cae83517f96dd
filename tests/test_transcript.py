"""What an agent says is read while it says it, whatever the program; and how its end is judged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from swarm import transcript
from swarm.adapter import Adapter, load
from swarm.transcript import Judgement

MINIMAL = """\
format = 1
name = "mine"
argv = []

[prompt]
how = "stdin"

[output]
format = "{output}"

[[outcome]]
is = "success"
exit = [0]

[stop]
signals = ["SIGTERM", "SIGKILL"]
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    (folder / ".swarm/agents").mkdir(parents=True)
    return folder


def mine(checkout: Path, *, tail: str = "", output: str = "jsonl", places: str = "") -> Adapter:
    text = MINIMAL.replace('format = "{output}"', f'format = "{output}"\n{places}')
    (checkout / ".swarm/agents/mine.toml").write_text(text + tail)
    return load("mine", checkout)


Judge = Callable[[Adapter, int | None, int | None, bytes, bytes], Judgement]


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    def judge(
        adapter: Adapter, exit_code: int | None, signal: int | None, stdout: bytes, stderr: bytes
    ) -> Judgement:
        out, err = tmp_path / "transcript.jsonl", tmp_path / "stderr.log"
        out.write_bytes(stdout)
        err.write_bytes(stderr)
        return transcript.judge(adapter, exit_code, signal, out, err)

    return judge


def lines(*events: object) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


INIT = {"type": "system", "subtype": "init", "session_id": "934c"}


def result(**changed: object) -> dict[str, object]:
    return {"type": "result", "subtype": "success", "is_error": False} | changed


@pytest.mark.parametrize(
    ("exit_code", "stdout", "stderr", "judged"),
    [
        (0, lines(INIT, result()), b"", "success"),
        (1, lines(INIT, result()), b"", "failed"),
        (0, lines(INIT), b"", "failed"),
        (0, b"", b"", "failed"),
        (0, lines(result(is_error=True)), b"", "failed"),
        (0, lines(result(is_error=0)), b"", "failed"),
        (1, lines(result(is_error=True, api_error_status=429)), b"", "limit"),
        (0, lines(result(is_error=True, api_error_status=429)), b"", "limit"),
        (1, b"", b"Not logged in", "login"),
        (
            1,
            lines(result(is_error=True, result="Not logged in \u00b7 Please run /login")),
            b"",
            "login",
        ),
        (1, lines(result(subtype="error_max_turns", is_error=True)), b"", "turns"),
        (1, lines(result(subtype="error_max_budget_usd", is_error=True)), b"", "cost"),
        (143, lines(INIT), b"", "failed"),
    ],
)
def test_claudes_ends(
    judge: Judge, exit_code: int, stdout: bytes, stderr: bytes, judged: str
) -> None:
    assert judge(load("claude", None), exit_code, None, stdout, stderr).is_ == judged


def codex_failed(words: str) -> bytes:
    return lines({"type": "turn.failed", "error": {"message": words}})


@pytest.mark.parametrize(
    ("exit_code", "stdout", "judgement"),
    [
        (0, lines({"type": "turn.completed", "usage": {}}), Judgement("success")),
        (0, lines({"type": "turn.started"}), Judgement("failed")),
        (1, codex_failed("last status: 429 Too Many Requests"), Judgement("limit")),
        (1, codex_failed("401 Unauthorized"), Judgement("login", "run: codex login")),
        (1, codex_failed("500"), Judgement("failed")),
        (1, lines({"type": "error", "message": "Reconnecting... 429"}), Judgement("failed")),
    ],
)
def test_codexs_ends(judge: Judge, exit_code: int, stdout: bytes, judgement: Judgement) -> None:
    stderr = b"429 and 401 on standard error are not the failed turn's"
    assert judge(load("codex", None), exit_code, None, stdout, stderr) == judgement


@pytest.mark.parametrize(
    ("exit_code", "judged"),
    [(0, "success"), (75, "limit"), (77, "login"), (1, "failed"), (127, "failed")],
)
def test_the_ends_of_any_command(judge: Judge, exit_code: int, judged: str) -> None:
    assert judge(load("command", None), exit_code, None, b"", b"").is_ == judged


def test_what_a_signal_ended_is_no_success(judge: Judge) -> None:
    assert judge(load("command", None), None, 15, b"", b"").is_ == "failed"
    assert judge(load("command", None), 0, 15, b"", b"").is_ == "failed"
    assert judge(load("claude", None), None, 9, lines(result()), b"").is_ == "failed"


def test_A14_a_limit_said_with_exit_0_is_a_limit(judge: Judge, checkout: Path) -> None:
    text = MINIMAL.replace("{output}", "text").replace(
        "[[outcome]]", '[[outcome]]\nis = "limit"\ntext = "quota exceeded"\n[[outcome]]', 1
    )
    (checkout / ".swarm/agents/mine.toml").write_text(text)
    adapter = load("mine", checkout)
    assert judge(adapter, 0, None, b"", b"note\nquota exceeded\n").is_ == "limit"
    assert judge(adapter, 0, None, b"quota exceeded", b"note\n").is_ == "success"
    early = b"quota exceeded\n" + b"x" * (64 << 10)
    assert judge(adapter, 0, None, b"", early).is_ == "success", "only the end of it is looked at"


def test_the_first_rule_that_holds_decides(judge: Judge, checkout: Path) -> None:
    tail = (
        '[[outcome]]\nis = "limit"\nexit = [1, 2]\nhint = "wait"\n'
        '[[outcome]]\nis = "login"\nexit = [2]\n'
    )
    assert judge(mine(checkout, tail=tail), 2, None, b"", b"") == Judgement("limit", "wait")


def test_dotted_keys_reach_into_an_event_and_kinds_are_not_mixed(
    judge: Judge, checkout: Path
) -> None:
    tail = (
        '[[outcome]]\nis = "turns"\nwhen = { "a.b.c" = 1 }\n'
        '[[outcome]]\nis = "cost"\nwhen = { "a.b" = true }\n'
    )
    adapter = mine(checkout, tail=tail)
    for event, judged in (
        ({"a": {"b": {"c": 1}}}, "turns"),
        ({"a": {"b": {"c": 1.0}}}, "turns"),
        ({"a": {"b": {"c": True}}}, "failed"),
        ({"a": {"b": {"c": "1"}}}, "failed"),
        ({"a": {"b": [{"c": 1}]}}, "failed"),
        ({"a.b.c": 1}, "failed"),
        ({"a": {"b": True}}, "cost"),
        ({"a": {"b": 1}}, "failed"),
        ({"a": None}, "failed"),
    ):
        assert judge(adapter, 1, None, lines(event), b"").is_ == judged, event


def test_no_line_of_any_kind_is_fatal_or_hides_the_next(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.transcript.MAX_LINE", 1 << 16)
    odd = [
        b"",
        b"plain words",
        b'{"type": "result", "is_err',
        b'{"a": "\xff\xfe"}',
        b'{"a": "\\ud800"}',
        b"[" * 50_000,
        b'{"a":' * 20_000,
        b"9" * 6_000,
        b'{"a": 1e999}',
        b'"text"',
        b"null",
        b"\0\0{}",
        b'{"type": "result", "is_error": false, "pad": "' + b"x" * (1 << 18) + b'"}',
    ]
    claude = load("claude", None)
    before, stderr = b"\n".join(odd) + b"\n", b"\xff\xfe"
    assert judge(claude, 0, None, before, stderr).is_ == "failed"
    assert judge(claude, 0, None, before + lines(result()), stderr).is_ == "success"
    cut = before + lines(result()).rstrip(b"\n")
    assert judge(claude, 0, None, cut, stderr).is_ == "success", "no newline at its end"
