"""A model on 127.0.0.1 that plays scripts, for driving real agent programs without a real one.

Enters: scripts; requests of four protocols (wire.py). Leaves: scripted answers; what was asked.
Guards: it keeps nothing of a conversation but counters of errors and stalls: the step is read off
each request, so that any number of agents share one server.

Which script is played: the last `[[PLAY name]]` or `[[PLAY {"steps": [...]}]]` that a prompt
holds, else the name in the base URL (`server.base(name)`), else `default`.

    {"steps": [{"shell": "CMD"},                       call the program's own shell tool
               {"write": {"path": P, "content": C}},   its tool for writing a file, else its shell
               {"tool": NAME, "args": {...}},          any tool
               {"text": "done"}],                      end the turn; the last step for ever
     "errors": [{"status": 429, "at": 0, "times": 2, "retry_after": 2, "message": "...",
                 "headers": {}, "body": {}}],          at: this step, else every request;
                                                       times: else for ever; `events` in the
                                                       place of status: a stream that says no
     "stalls": [{"at": 0, "times": 1}],                no answer until the server is closed
     "usage": {"input": 1200, "cached": 200, "output": 50}}

In text of a step `${N}` is the step's number; in an error `${NOW+5}` is the time in five seconds,
counted from 1970.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import re
import shlex
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.agents import wire
from tests.agents.wire import Answer, Asked, Call, Json, Usage

DEFAULT: Json = {"steps": [{"text": "Nothing to do."}]}
MODELS = ("fake-model", "gpt-5", "claude-sonnet-4-5", "gemini-2.5-pro")

# By the names that the programs give them.
_SHELL_TOOLS = ("Bash", "bash", "exec_command", "shell_command", "shell", "run_shell_command")
_WRITE_TOOLS = ("Write", "write", "write_file", "create")
_COMMAND_KEYS = ("command", "cmd")
_PATH_KEYS = ("file_path", "filePath", "path")
_CONTENT_KEYS = ("content", "file_text")

_MARK = re.compile(r"\[\[PLAY\s+(?=\{|[\w.-]+\s*\]\])")
_NAME = re.compile(r"[\w.-]+")
_NOW = re.compile(r"\$\{NOW\+(\d+)\}")
_PREFIX = re.compile(r"/r/([\w.-]+)/")
# What programs put around or beside the words of a user.
_WRAPPED = re.compile(r"<(system-reminder|environment_context|session_context)>.*?</\1>", re.S)


@dataclass(frozen=True)
class Request:
    """One request for a model's message, and how it was answered."""

    path: str
    headers: Mapping[str, str] = field(repr=False)  # names in lower case
    body: Json = field(repr=False)  # tens of kilobytes
    asked: Asked = field(repr=False)
    script: str  # name
    step: int
    is_side: bool  # a program's own question (a title, a summary), not the agent's
    status: int  # 0: never answered
    calls: tuple[str, ...]  # tools
    at: float  # seconds since 1970

    @property
    def prompt(self) -> str:
        """The last of what the user said."""
        said = [one.text for one in self.asked.said if one.role == "user"]
        return said[-1] if said else ""


@dataclass(frozen=True)
class _Turn:
    """What is to be answered."""

    script: str
    play: Json
    step: int
    is_side: bool
    answer: Answer


class ModelServer:
    """Serves from entering to leaving the `with`.

    Safe: for requests from any number of processes; the methods from any thread.
    """

    def __init__(
        self, default: Json | None = None, /, *, port: int = 0, is_loud: bool = False, **named: Json
    ) -> None:
        self._scripts: dict[str, Json] = {"default": default or DEFAULT, **named}
        self._requests: list[Request] = []
        self._counts: Counter[tuple[str, str, int]] = Counter()
        self._lock = threading.Lock()
        self._is_loud = is_loud
        self.closing = threading.Event()
        self._http = _Server(("127.0.0.1", port), _Handler)
        self._http.model = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """Without a slash at the end."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def base(self, name: str) -> str:
        """A URL below which this script is played."""
        return f"{self.url}/r/{name}"

    def script(self, name: str, script: Json) -> None:
        """Set a script, from the next request on; its errors and stalls are counted anew."""
        with self._lock:
            self._scripts[name] = script
            for key in [key for key in self._counts if key[0] == name]:
                del self._counts[key]

    def requests(self, script: str | None = None) -> list[Request]:
        """What was asked so far, oldest first; of one script, or of all."""
        with self._lock:
            return [one for one in self._requests if script in (None, one.script)]

    def find_script(self, name: str) -> Json | None:
        with self._lock:
            return self._scripts.get(name)

    def note(self, request: Request) -> None:
        with self._lock:
            self._requests.append(request)
        if self._is_loud:
            print(f"{request.status} {request.script}:{request.step} {request.path}", flush=True)

    def take(self, turn: _Turn, kind: str) -> Json | None:
        """The first error or stall that is due now, counted."""
        for index, one in enumerate(turn.play.get(kind, ())):
            if "at" in one and (turn.is_side or one["at"] != turn.step):
                continue
            with self._lock:
                self._counts[turn.script, kind, index] += 1
                count = self._counts[turn.script, kind, index]
            if count <= one.get("times", count):
                return dict(one)
        return None


def decide(server: ModelServer, asked: Asked, named: str | None) -> _Turn:
    """The step that a request has come to, and its answer."""
    name, play, since = _find_play(server, asked, named)
    step = sum(1 for one in asked.said[since:] if one.role == "assistant" and one.calls)
    usage = Usage(**play.get("usage", {}))

    def turn(text: str, *calls: Call, is_side: bool = False) -> _Turn:
        return _Turn(name, play, step, is_side, Answer(text, calls, usage))

    if "memory extraction subagent" in asked.system:  # qwen, after a session that was resumed
        return turn("Nothing to remember.", is_side=True)
    if not asked.tools and not asked.freeform:
        if "SEARCH/REPLACE" in asked.system + asked.user_text:
            return turn(_edit_by_text(play))
        return turn(_side_text(asked), is_side=True)
    steps = play["steps"]
    now = _numbered(steps[min(step, len(steps) - 1)], step)
    call = _call(asked, now)
    if call is not None:
        return turn(now.get("say", ""), call)
    if "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" in asked.system + asked.user_text:
        # mini-swe-agent ends on the output of a command only.
        words = f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo {shlex.quote(now['text'])}"
        submit = _shell_call(asked, words)
        return turn("", submit)
    return turn(now["text"])


def _find_play(server: ModelServer, asked: Asked, named: str | None) -> tuple[str, Json, int]:
    """(name, script, index of the message from which its steps count)."""
    for index in range(len(asked.said) - 1, -1, -1):
        said = asked.said[index]
        if said.role != "user":
            continue
        for match in reversed(list(_MARK.finditer(said.text))):
            rest = said.text[match.end() :]
            if rest[0] == "{":
                play = json.JSONDecoder().raw_decode(rest)[0]
                return f"inline {json.dumps(play)}", play, index
            if (word := _NAME.match(rest)) and (found := server.find_script(word[0])) is not None:
                return word[0], found, index
    name = named if named and server.find_script(named) is not None else "default"
    play = server.find_script(name)
    assert play is not None
    return name, play, _last_prompt(asked)


def _last_prompt(asked: Asked) -> int:
    """Where the user spoke last; a reminder that a program puts behind a tool's result is none."""
    at = 0
    for index, said in enumerate(asked.said):
        is_after_tool = index > 0 and asked.said[index - 1].role == "tool"
        if said.role == "user" and not is_after_tool and _WRAPPED.sub("", said.text).strip():
            at = index
    return at


def _numbered(step: Json, number: int) -> Json:
    text = json.dumps(step).replace("${N}", str(number))
    return dict(json.loads(text))


def _dated(refusal: Json) -> Json:
    now = int(time.time())
    text = _NOW.sub(lambda match: str(now + int(match[1])), json.dumps(refusal))
    return dict(json.loads(text))


def _call(asked: Asked, step: Json) -> Call | None:
    if "shell" in step:
        return _shell_call(asked, step["shell"])
    if "write" in step:
        return _write_call(asked, step["write"]["path"], step["write"]["content"])
    if "tool" in step:
        return Call(step["tool"], step.get("args", {}), step.get("input"))
    return None


def _shell_call(asked: Asked, command: str) -> Call:
    for name in _SHELL_TOOLS:
        if name in asked.tools:
            return Call(name, _filled(asked.tools[name], dict.fromkeys(_COMMAND_KEYS, command)))
    raise ValueError(f"no shell among its tools: {sorted(asked.tools)}")


def _write_call(asked: Asked, path: str, content: str) -> Call:
    for name in _WRITE_TOOLS:
        if name in asked.tools:
            known = dict.fromkeys(_PATH_KEYS, path) | dict.fromkeys(_CONTENT_KEYS, content)
            return Call(name, _filled(asked.tools[name], known))
    if "apply_patch" in asked.freeform:
        lines = "".join(f"+{line}\n" for line in content.splitlines())
        patch = f"*** Begin Patch\n*** Add File: {path}\n{lines}*** End Patch"
        return Call("apply_patch", text=patch)
    folder = shlex.quote(str(Path(path).parent))
    command = f"mkdir -p {folder} && printf %s {shlex.quote(content)} > {shlex.quote(path)}"
    return _shell_call(asked, command)


def _filled(schema: Json | None, known: Json) -> Json:
    """Of the known arguments those that the tool has, and something for all that it requires."""
    properties: Json = (schema or {}).get("properties", {})
    made = {key: value for key, value in known.items() if key in properties}
    kinds: Json = {"boolean": False, "integer": 1, "number": 1, "array": [], "object": {}}
    for key in (schema or {}).get("required", []):
        about = properties.get(key, {})
        kind = str(about.get("type", "string")).lower()
        made.setdefault(key, (about.get("enum") or [kinds.get(kind, "scripted")])[0])
    return made


def _edit_by_text(play: Json) -> str:
    """For aider, which has no tools but reads edits from the text."""
    texts = [step["text"] for step in play["steps"] if "text" in step]
    made = [
        f"{step['write']['path']}\n```\n<<<<<<< SEARCH\n=======\n"
        f"{step['write']['content']}>>>>>>> REPLACE\n```\n"
        for step in play["steps"]
        if "write" in step
    ]
    return "\n\n".join([*texts[:1], *made])


def _side_text(asked: Asked) -> str:
    if asked.wants_json:
        # gemini asks which model to take, the others for a title; each reads its own keys.
        return json.dumps(
            {
                "title": "Scripted",
                "reasoning": "scripted",
                "model_choice": "flash",
                "complexity_reasoning": "scripted",
                "complexity_score": 1,
                "next_speaker": "user",
            }
        )
    if "commit message" in (asked.system + asked.user_text).lower():
        return "feat: scripted commit"
    return "Scripted"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    model: ModelServer

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """With it the connections that clients keep: no thread of ours is left reading."""
        super().server_close()
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A program that was killed hangs up; its test looks at other things."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Tests read `requests()`."""

    def do_HEAD(self) -> None:
        self._send({})

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].rstrip("/")
        listed = [_about(name) for name in MODELS]
        if path.endswith("/models"):
            google = [{"name": f"models/{name}", "displayName": name} for name in MODELS]
            ends = {"first_id": MODELS[0], "last_id": MODELS[-1], "has_more": False}
            self._send({"object": "list", "data": listed, "models": google, **ends})
        elif "/models/" in path:
            self._send(_about(path.rpartition("/")[2]))
        else:
            self._send({"error": {"message": f"not scripted: {path}"}}, 404)

    def do_POST(self) -> None:
        path = self.path.partition("?")[0]
        body = self._body()
        if path.endswith("/count_tokens"):
            return self._send({"input_tokens": Usage().input})
        if path.endswith(":countTokens"):
            return self._send({"totalTokens": Usage().input})
        asked = wire.read(path, body)
        if asked is None:
            return self._send({"error": {"message": f"not scripted: {path}"}}, 404)
        named = _PREFIX.match(path)
        try:
            turn = decide(self.server.model, asked, named[1] if named else None)
        except (ValueError, KeyError) as error:  # the script is wrong: the client's log tells
            return self._send({"error": {"message": f"bad script: {error!r}"}}, 400)
        if (refusal := self.server.model.take(turn, "errors")) is not None:
            return self._refuse(asked, turn, body, refusal)
        if self.server.model.take(turn, "stalls") is not None:
            self._note(asked, turn, body, status=0)
            self.server.model.closing.wait()
            self.close_connection = True
            return None
        self._note(asked, turn, body, status=200)
        whole, events = wire.answer(asked, turn.answer)
        if not asked.is_stream:
            return self._send(whole)
        return self._stream(events)

    def _note(self, asked: Asked, turn: _Turn, body: Json, *, status: int) -> None:
        self.server.model.note(
            Request(
                path=self.path,
                headers={name.lower(): value for name, value in self.headers.items()},
                body=body,
                asked=asked,
                script=turn.script,
                step=turn.step,
                is_side=turn.is_side,
                status=status,
                calls=tuple(call.name for call in turn.answer.calls) if status == 200 else (),
                at=time.time(),
            )
        )

    def _refuse(self, asked: Asked, turn: _Turn, body: Json, refusal: Json) -> None:
        if "events" in refusal:
            self._note(asked, turn, body, status=200)
            return self._stream([wire.Event(one.get("type"), one) for one in refusal["events"]])
        status, retry_after = refusal["status"], refusal.get("retry_after")
        message = refusal.get("message", f"scripted {status} error")
        refusal = _dated(refusal)
        made = refusal.get("body") or wire.error(asked.protocol, status, message, retry_after)
        headers = dict(refusal.get("headers", {}))
        if retry_after is not None:
            headers["retry-after"] = str(retry_after)
        self._note(asked, turn, body, status=status)
        return self._send(made, status, headers)

    def _body(self) -> Json:
        if "chunked" in self.headers.get("transfer-encoding", ""):
            raw = b""
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                raw += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.headers.get("content-encoding") == "gzip":
            raw = gzip.decompress(raw)
        return dict(json.loads(raw or b"{}"))

    def _send(
        self, body: Json, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        made = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(made)))
        self.send_header("request-id", wire.new_id("req_"))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(made)

    def _stream(self, events: list[wire.Event]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("cache-control", "no-cache")
        self.send_header("connection", "close")
        self.send_header("request-id", wire.new_id("req_"))
        self.end_headers()
        for event in events:
            self.wfile.write(event.encoded())
        self.close_connection = True


def _about(name: str) -> Json:
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "created": 1,
        "created_at": "2026-01-01T00:00:00Z",
        "owned_by": "fake",
        "display_name": name,
    }


def main() -> None:
    """For a look by hand: serves until a key is pressed, or until it is interrupted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--scripts", type=Path, help="JSON: name -> script")
    args = parser.parse_args()
    scripts = json.loads(args.scripts.read_text("utf-8")) if args.scripts else {}
    default = scripts.pop("default", None)
    with ModelServer(default, port=args.port, is_loud=True, **scripts) as server:
        print(server.url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
