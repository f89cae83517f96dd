"""What an agent says is read while it says it, whatever the program; and how its end is judged."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm import transcript
from swarm.adapter import Adapter, load
from swarm.ledger.records import Usage
from swarm.transcript import Judgement

NOW = datetime(2026, 1, 1, 3, 4, 5, tzinfo=UTC)

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


def api_error(status: int, **headers: str) -> dict[str, object]:
    data = {"message": "no", "statusCode": status, "responseHeaders": headers}
    return {"type": "error", "sessionID": "ses_1", "error": {"name": "APIError", "data": data}}


def qwens(words: str) -> dict[str, object]:
    return result(subtype="error_during_execution", is_error=True, error={"message": words})


def copilots(kind: str, **more: object) -> dict[str, object]:
    return {"type": "session.error", "data": {"errorType": kind, "message": "no", **more}}


def gemini_failed(words: str) -> bytes:
    return lines({"type": "result", "status": "error", "error": {"message": words}})


CLAUDE_LIMIT = {
    "type": "assistant",
    "error": "rate_limit",
    "api_error_params": {"rate_limit_info": {"status": "rejected", "resetsAt": 4102444800}},
}


@pytest.mark.parametrize(
    ("name", "exit_code", "stdout", "stderr", "judged"),
    [
        ("claude", 1, lines(CLAUDE_LIMIT, result(is_error=True)), "", "limit"),
        ("claude", 1, lines({"type": "assistant", "error": "overloaded"}), "", "limit"),
        ("claude", 1, lines({"type": "assistant", "error": "billing_error"}), "", "login"),
        (
            "claude",
            1,
            lines(
                result(
                    subtype="error_during_execution",
                    is_error=True,
                    errors=["No conversation found with session ID: c137"],
                )
            ),
            "",
            "session",
        ),
        ("codex", 1, codex_failed("hit your usage limit. Try again later."), "", "limit"),
        ("codex", 1, codex_failed("unexpected status 503 Service Unavailable"), "", "limit"),
        ("codex", 1, codex_failed("Quota exceeded. Check your plan"), "", "login"),
        ("codex", 1, b"", "thread/resume failed: no rollout found for thread id 1", "session"),
        ("gemini", 0, lines({"type": "result", "status": "success"}), "", "success"),
        ("gemini", 0, b"", "", "failed"),
        ("gemini", 173, gemini_failed("daily quota"), "", "limit"),
        ("gemini", 247, gemini_failed("The model is overloaded."), "", "limit"),
        ("gemini", 1, gemini_failed("TypeError: fetch failed sending request"), "", "limit"),
        ("gemini", 145, gemini_failed("UNAUTHENTICATED"), "", "login"),
        ("gemini", 144, gemini_failed("API key not valid."), "", "login"),
        ("gemini", 144, gemini_failed("INVALID_ARGUMENT"), "", "failed"),
        ("gemini", 53, gemini_failed("Reached max session turns"), "", "turns"),
        ("gemini", 42, b"", "Error resuming session: none", "session"),
        ("opencode", 0, lines({"type": "step_finish", "part": {"reason": "stop"}}), "", "success"),
        (
            "opencode",
            0,
            lines({"type": "step_finish", "part": {"reason": "tool-calls"}}),
            "",
            "failed",
        ),
        ("opencode", 1, lines(api_error(429)), "", "limit"),
        ("opencode", 1, lines(api_error(500)), "", "limit"),
        ("opencode", 1, lines(api_error(401)), "", "login"),
        ("opencode", 1, b"", "Error: Session not found", "session"),
        ("qwen", 0, lines(result(num_turns=2)), "", "success"),
        ("qwen", 53, lines(INIT), "Reached max session turns", "turns"),
        ("qwen", 1, lines(qwens("[API Error: 401 scripted 401 error]")), "", "login"),
        ("qwen", 1, lines(qwens("[API Error: 429 scripted 429 error]")), "", "limit"),
        ("qwen", 1, lines(qwens("[API Error: 400 no]")), "", "failed"),
        ("qwen", 1, lines(qwens("No auth type is selected.")), "", "login"),
        ("qwen", 1, b"", "No saved session found with ID 1.", "session"),
        ("copilot", 0, lines({"type": "result", "exitCode": 0}), "", "success"),
        ("copilot", 1, lines(copilots("rate_limit", statusCode=429)), "", "limit"),
        ("copilot", 1, lines(copilots("query", statusCode=500)), "", "limit"),
        ("copilot", 1, lines(copilots("query", statusCode=400)), "", "failed"),
        ("copilot", 1, lines(copilots("authentication", statusCode=401)), "", "login"),
        ("copilot", 1, b"", "Error: No session, task, or name matched '1'.", "session"),
        ("aider", 0, b"Applied edit to made.txt\n", "", "success"),
        ("aider", 0, b"litellm.RateLimitError: no\nApplied edit to a\n", "", "success"),
        ("aider", 0, b"litellm.RateLimitError: RateLimitError: no\n", "", "limit"),
        ("aider", 0, b"litellm.AuthenticationError: no\n", "", "login"),
        ("aider", 0, b"litellm.BadRequestError: no\n", "", "failed"),
        ("aider", 0, b"Nothing to do.\n", "", "success"),
    ],
)
def test_the_ends_that_were_seen_of_each_program(
    judge: Judge, name: str, exit_code: int, stdout: bytes, stderr: str, judged: str
) -> None:
    """Shortened lines of the versions that `tests/agents/install.py` names."""
    assert judge(load(name, None), exit_code, None, stdout, stderr.encode()).is_ == judged


@pytest.mark.parametrize(
    ("name", "exit_code", "stdout", "wanted"),
    [
        ("claude", 1, lines(CLAUDE_LIMIT), datetime(2100, 1, 1, tzinfo=UTC)),
        ("codex", 1, codex_failed("rate limit exceeded: Please try again in 6m1.5s. Visit"), 361.5),
        ("codex", 1, codex_failed("rate limit exceeded: Please try again in 620ms."), 0.62),
        ("codex", 1, codex_failed("hit your usage limit. Try again later."), None),
        ("gemini", 173, gemini_failed("no\nSuggested retry after 36.28s.]"), 36.28),
        ("opencode", 1, lines(api_error(429, **{"retry-after": "12"})), 12.0),
    ],
)
def test_when_each_programs_limit_ends(
    tmp_path: Path, name: str, exit_code: int, stdout: bytes, wanted: datetime | float | None
) -> None:
    one = Agent(tmp_path, load(name, None))
    one.print(stdout)
    one.said()
    reset_at = one.transcript.judge(exit_code, None).reset_at
    if isinstance(wanted, datetime):
        assert reset_at == NOW + timedelta(days=8), "the longest that is waited for"
    else:
        assert reset_at == (None if wanted is None else NOW + timedelta(seconds=wanted))


def test_a_subscriptions_limit_ends_by_the_clock(tmp_path: Path) -> None:
    one = Agent(tmp_path, load("codex", None))
    words = "You\u2019ve hit your usage limit. Visit https://x.test or try again at 11:26 PM."
    one.print(codex_failed(words))
    one.said()
    judged = one.transcript.judge(1, None)
    assert judged.reset_at == datetime(2026, 1, 1, 23, 26).astimezone()


# -- what was said --------------------------------------------------------------------------------

STREAM = """
session = { when = { type = "init" }, at = "id" }
message = { when = { type = "say" }, at = "parts[].text" }
tool = { when = { type = "tool" }, at = "name" }
result = { when = { type = "end" }, at = "text" }
turn = { when = { type = "say" } }
tokens_input = { when = { type = "end" }, at = ["use.new", "use.cached"] }
tokens_cached = { when = { type = "end" }, at = "use.cached" }
tokens_output = { when = { type = "end" }, at = "use.out" }
cost_usd = { when = { type = "end" }, at = "usd", cumulative = true }
"""


class Agent:
    """An agent's output files, written bit by bit, and the transcript that reads them."""

    def __init__(self, folder: Path, adapter: Adapter) -> None:
        (folder / "report").mkdir()
        self.folder = folder
        self.transcript = transcript.of_attempt(adapter, folder)

    def print(self, data: bytes, name: str = transcript.TRANSCRIPT) -> None:
        with (self.folder / name).open("ab") as file:
            file.write(data)

    def report(self, text: str) -> None:
        (self.folder / transcript.REPORT).write_text(text)

    def said(self) -> list[tuple[str, str]]:
        return [(one.kind, one.text) for one in self.transcript.read(NOW)]


@pytest.fixture
def agent(tmp_path: Path, checkout: Path) -> Callable[..., Agent]:
    def build(places: str = STREAM, **keys: str) -> Agent:
        (tmp_path / "attempt").mkdir()
        return Agent(tmp_path / "attempt", mine(checkout, places=places, **keys))

    return build


END = {"type": "end", "text": "done", "usd": 0.02, "use": {"new": 100, "cached": 20, "out": 7}}


def test_events_are_read_as_they_come_and_each_once(agent: Callable[..., Agent]) -> None:
    one = agent()
    assert one.said() == [], "nothing is there yet"
    one.print(lines({"type": "init", "id": "abc"}) + b'{"type": "say", "parts": [{"text"')
    assert one.said() == [("started", "abc")], "half a line is no line"
    one.print(b': "Hel"}, {"text": "lo"}]}\n' + lines({"type": "tool", "name": "Bash"}))
    assert one.said() == [("message", "Hello"), ("tool", "Bash")]
    assert (one.transcript.doing, one.transcript.turns, one.transcript.session) == (
        "Bash",
        1,
        "abc",
    )
    one.print(b"what is this?\n" + lines({"type": "new kind"}, END))
    assert one.said() == [("result", "done"), *[("usage", "")] * 4]
    assert one.said() == []


def test_what_was_said_is_the_usage_and_the_rest_is_unknown(agent: Callable[..., Agent]) -> None:
    one = agent()
    one.print(lines({"type": "say", "parts": [{"text": "a"}]}))
    one.said()
    assert one.transcript.usage() == Usage(turns=1), "unknown is None, never 0"
    one.print(lines(END))
    one.said()
    whole = Usage(cost_usd=0.02, tokens_input=120, tokens_cached=20, tokens_output=7, turns=1)
    assert one.transcript.usage() == whole
    assert whole.tokens == 127


def test_cumulative_figures_of_a_resumed_session_are_turned_into_differences(
    agent: Callable[..., Agent],
) -> None:
    one = agent()
    one.print(lines(END))
    one.said()
    before = {"cost_usd": 0.015, "tokens_input": 100.0}
    usage = one.transcript.usage(before)
    assert usage.cost_usd == 0.005, "counts from the session's start"
    assert usage.tokens_input == 120, "counts from the attempt's"
    assert one.transcript.figures["cost_usd"] == 0.02, "what the next one counts from"
    assert one.transcript.usage({"cost_usd": 0.5}).cost_usd == 0.02, "it began to count anew"


def test_what_each_event_adds_is_unknown_when_a_part_was_left_out(
    agent: Callable[..., Agent],
) -> None:
    places = """
tokens_input = { when = { type = "step" }, at = "in", sum = true }
cost_usd = { when = { type = "step" }, at = "usd" }
turn = { when = { type = "step" } }
"""
    one = agent(places)
    one.print(lines({"type": "step", "in": 10, "usd": 0.1}, {"type": "step", "in": 5, "usd": 0.3}))
    one.said()
    assert one.transcript.usage() == Usage(cost_usd=0.3, tokens_input=15, turns=2)
    assert one.transcript.usage(is_whole=False) == Usage(cost_usd=0.3)


def test_figures_in_lines_of_text(agent: Callable[..., Agent]) -> None:
    places = r"""
tokens_input = { pattern = 'Tokens: (?P<value>[\d.,]+[kM]?) sent', sum = true }
tokens_output = { pattern = 'sent, (?P<value>[\d.,]+[kM]?) received', sum = true }
cost_usd = { pattern = 'Cost: .*, \$(?P<value>[\d.]+) session' }
message = { in = "stderr", pattern = '^note: (?P<value>.*)' }
"""
    one = agent(places, output="text")
    one.print(b"Tokens: 2.0k sent, 24 received. Cost: $0.01 message, $0.01 session.\n")
    one.print(b"Tokens: 1,500 sent, 1M received. Cost: $0.02 message, $0.03 session.\n")
    one.print(b"note: \xff thinking\n", transcript.STDERR)
    assert ("message", "\ufffd thinking") in one.said()
    assert one.transcript.usage() == Usage(
        cost_usd=0.03, tokens_input=3500, tokens_output=1_000_024
    )


def test_a_report_stands_for_the_whole_attempt_each_time_it_is_written(
    agent: Callable[..., Agent],
) -> None:
    places = """
cost_usd = { in = "report", at = "usd" }
tokens_input = { in = "report", at = "each[].in" }
tokens_output = { in = "report", at = "total.out", sum = true }
"""
    one = agent(places, output="text")
    for text, usage in (
        ('{"usd": 0.5, "each": [{"in": 3}, {"in": 4}], "total": {"out": 2}}',
         Usage(cost_usd=0.5, tokens_input=7, tokens_output=2)),
        ('{"usd": 0.6', Usage(cost_usd=0.5, tokens_input=7, tokens_output=2)),
        ('{"usd": 0.6, "total": {"out": 9}}', Usage(cost_usd=0.6, tokens_output=9)),
    ):  # fmt: skip
        one.report(text)
        one.said()
        assert one.transcript.usage() == usage, text


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "huge", "list", "nothing"])
def test_a_report_that_is_none_is_not_read(
    agent: Callable[..., Agent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(transcript, "MAX_REPORT", 1000)
    one = agent('cost_usd = { in = "report", at = "usd" }', output="text")
    place = one.folder / transcript.REPORT
    (tmp_path / "secret").write_text('{"usd": 1}')
    match kind:
        case "link":
            place.symlink_to(tmp_path / "secret")
        case "pipe":
            os.mkfifo(place)
        case "folder":
            place.mkdir()
        case "huge":
            one.report('{"usd": 1, "pad": "' + "x" * 1000 + '"}')
        case "list":
            one.report('[{"usd": 1}]')
    assert one.said() == []
    assert one.transcript.usage() == Usage()


@pytest.mark.parametrize(
    "value", [-1, True, None, "many", 1e300, float("nan"), [], {"a": 1}, "", "k", 10**400]
)
def test_what_is_no_amount_was_not_said(agent: Callable[..., Agent], value: object) -> None:
    one = agent()
    one.print(json.dumps({"type": "end", "usd": value}).encode() + b"\n")
    one.said()
    assert one.transcript.usage().cost_usd is None


def test_a_flood_is_read_in_bounded_parts_and_its_end_is_not_lost(
    agent: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcript, "READ", 1000)
    one = agent()
    one.print(lines({"type": "say", "parts": [{"text": "x"}]}) * 100)
    assert 0 < len(one.said()) < 100
    one.print(lines(END).rstrip(b"\n"))
    found = one.transcript.finish(NOW)
    assert [said.text for said in found if said.kind == "result"] == ["done"]
    assert one.transcript.turns == 100


def test_a_price_makes_a_cost_of_tokens_and_says_so(
    checkout: Path, agent: Callable[..., Agent]
) -> None:
    places = """
tokens_input = { when = { type = "end" }, at = "in" }
tokens_cached = { when = { type = "end" }, at = "cached" }
tokens_output = { when = { type = "end" }, at = "out" }
"""
    one = agent(places, tail="[price]\ninput = 2.0\ncached = 0.5\noutput = 10.0\n")
    assert one.transcript.usage() == Usage()
    one.print(lines({"type": "end", "in": 1_000_000, "cached": 400_000, "out": 100_000}))
    one.said()
    usage = one.transcript.usage()
    assert (usage.cost_usd, usage.is_priced) == (pytest.approx(1.2 + 0.2 + 1.0), True)


# -- waiting and limits ---------------------------------------------------------------------------

WAITING = STREAM + (
    'waiting = [{ when = { type = "retry", status = 429 }, reset = ["delay=(?P<ms>[0-9]+)"] },'
    ' { in = "stderr", text = "429" }]\n'
)


def test_an_agent_that_waits_for_its_provider_says_until_when(
    agent: Callable[..., Agent],
) -> None:
    one = agent(WAITING)
    one.print(lines({"type": "retry", "status": 429, "delay": 90_000}))
    assert [kind for kind, _ in one.said()] == ["limit"]
    assert one.transcript.waits_since == NOW
    assert one.transcript.waits_until == NOW + timedelta(seconds=90)
    one.print(lines({"type": "say", "parts": [{"text": "on"}]}))
    one.said()
    assert (one.transcript.waits_since, one.transcript.waits_until) == (None, None), "it goes on"
    one.print(b"Attempt 1 failed: 429\n", transcript.STDERR)
    one.said()
    assert (one.transcript.waits_since, one.transcript.waits_until) == (NOW, None)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("try again in 20 s", NOW + timedelta(seconds=20)),
        ("reset_at=1767323045", NOW + timedelta(days=1)),
        ("reset_at=1767323045000", NOW + timedelta(days=1)),
        ("until 2026-01-01T04:04:05Z", NOW + timedelta(hours=1)),
        ("until 2026-01-01T05:04:05+01:00", NOW + timedelta(hours=1)),
        ("until 2020-01-01T00:00:00Z", NOW),  # passed: now
        ("try again in 99999999 s", NOW + timedelta(days=8)),  # nobody waits longer
        ("try again in 1h6m", NOW + timedelta(hours=1, minutes=6)),
        ("try again in 6m", NOW + timedelta(minutes=6)),
        ("try again at 11:30 PM.", datetime(2026, 1, 1, 23, 30).astimezone()),
        ("try again at Jan 3rd, 2026 1:16 AM.", datetime(2026, 1, 3, 1, 16).astimezone()),
        ("try again at Foo 3rd, 2026 1:16 AM.", None),
        ("try again in 1e999 s", None),
        ("until 2026-99-99T00:00:00Z", None),
        ("soon", None),
    ],
)
def test_when_a_limit_ends_is_found_in_what_was_said(
    checkout: Path, tmp_path: Path, said: str, wanted: datetime | None
) -> None:
    tail = r"""
[[outcome]]
is = "limit"
when = { type = "error" }
reset = ['in (?P<seconds>[\de.]+) s', 'reset_at=(?P<epoch>\d+)', 'until (?P<iso>[\dTZ:+-]+)',
         'in (?:(?P<hours>\d+)h)?(?P<minutes>\d+)m', 'at (?P<clock>.+[AP]M)']
"""
    (tmp_path / "attempt").mkdir()
    one = Agent(tmp_path / "attempt", mine(checkout, tail=tail))
    one.print(lines({"type": "error", "error": {"message": said}}))
    one.said()
    assert one.transcript.judge(1, None) == Judgement("limit", None, wanted)


def test_a_refusal_is_no_work_of_the_model(agent: Callable[..., Agent]) -> None:
    """Some programs print it in the place of the model's answer, with figures of nothing."""
    one = agent(
        WAITING,
        tail='[[outcome]]\nis = "limit"\nwhen = { type = "say", error = "rate_limit" }\n',
    )
    one.print(lines({"type": "retry", "status": 429, "delay": 90_000}))
    one.print(lines({"type": "say", "error": "rate_limit", "parts": [{"text": "no"}]}))
    one.said()
    assert (one.transcript.heard, one.transcript.doing) == (0, "no")
    assert one.transcript.waits_since == NOW, "it still waits"
    one.print(lines({"type": "say", "parts": [{"text": "yes"}]}))
    one.said()
    assert one.transcript.heard > 0 and one.transcript.waits_since is None


@pytest.mark.parametrize(("all_of_them", "wanted"), [(2500, 100), (2400, 0), (2300, None)])
def test_a_part_can_be_taken_away(
    agent: Callable[..., Agent], all_of_them: int, wanted: int | None
) -> None:
    one = agent('tokens_output = { when = { type = "end" }, at = ["all", "-in"] }\n')
    one.print(lines({"type": "end", "all": all_of_them, "in": 2400}))
    one.said()
    assert one.transcript.usage().tokens_output == wanted


@given(st.lists(st.binary(max_size=200), max_size=20), st.integers(1, 64))
@settings(max_examples=50, deadline=None)
def test_any_bytes_in_any_parts_are_read_without_a_fault(parts: list[bytes], size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        one = Agent(Path(folder), load("claude", None))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transcript, "READ", size)
            patch.setattr(transcript, "MAX_LINE", 100)
            for part in parts:
                one.print(part)
                one.print(part, transcript.STDERR)
                one.transcript.read()
            one.print(b"\n" + lines(INIT, result(num_turns=3)))
            one.transcript.finish()
        assert one.transcript.session == "934c"
        assert one.transcript.usage().turns == 3
        assert one.transcript.judge(0, None).is_ in ("success", "limit", "login")
