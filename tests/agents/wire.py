"""The four ways in which agent programs talk to a model, read into one form and written back.

Enters: the body of a request. Leaves: what was asked; the body or the stream of an answer.
Guards: nothing here knows of scripts; every stream ends as its own protocol says.

Source: the public references of Anthropic's Messages, OpenAI's Chat Completions and Responses,
Google's generateContent; and what eight programs of 2026 really send.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

Json = dict[str, Any]
Protocol = Literal["messages", "chat", "responses", "gemini"]
Role = Literal["user", "assistant", "tool"]

_GEMINI = re.compile(r"/models/([^/:]+):(generateContent|streamGenerateContent)$")


@dataclass
class Said:
    """One message of a conversation."""

    role: Role
    text: str
    calls: int = 0  # of tools, by the model


@dataclass
class Asked:
    """A request for the model's next message."""

    protocol: Protocol
    model: str
    is_stream: bool
    tools: dict[str, Json | None] = field(default_factory=dict)  # name -> schema of its arguments
    freeform: set[str] = field(default_factory=set)  # tools that take plain text (Responses)
    namespaces: dict[str, tuple[str, str]] = field(default_factory=dict)  # full name -> its parts
    said: list[Said] = field(default_factory=list)
    system: str = ""
    wants_json: bool = False

    @property
    def user_text(self) -> str:
        return "\n".join(one.text for one in self.said if one.role == "user")


@dataclass(frozen=True)
class Call:
    """One tool call of an answer."""

    name: str
    arguments: Json = field(default_factory=dict)
    text: str | None = None  # of a freeform tool, instead of arguments


@dataclass(frozen=True)
class Usage:
    """Tokens of one answer."""

    input: int = 1200  # all, those from the cache too
    cached: int = 200
    output: int = 50  # all, reasoning too
    reasoning: int = 0


@dataclass(frozen=True)
class Answer:
    """The model's next message."""

    text: str
    calls: tuple[Call, ...] = ()
    usage: Usage = Usage()


@dataclass(frozen=True)
class Event:
    """One event of a stream; `data` None is the end that OpenAI's older protocol writes."""

    name: str | None
    data: Json | None

    def encoded(self) -> bytes:
        head = f"event: {self.name}\n" if self.name else ""
        data = "[DONE]" if self.data is None else json.dumps(self.data)
        return f"{head}data: {data}\n\n".encode()


def new_id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex[:24]


def read(path: str, body: Json) -> Asked | None:
    """What a POST to this path, without its query, asks; None: no request for a message."""
    if path.endswith("/messages"):
        return _read_messages(body)
    if path.endswith("/chat/completions"):
        return _read_chat(body)
    if path.endswith("/responses"):
        return _read_responses(body)
    if (match := _GEMINI.search(path)) is not None:
        return _read_gemini(body, match[1], match[2] == "streamGenerateContent")
    return None


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_text(part) for part in content)
    if isinstance(content, dict):
        return str(content.get("text") or _text(content.get("content")))
    return ""


def _parts(content: object, kind: str) -> int:
    """How many parts of this type a message of the Messages protocol has."""
    parts = content if isinstance(content, list) else []
    return sum(1 for part in parts if isinstance(part, dict) and part.get("type") == kind)


def _read_messages(body: Json) -> Asked:
    asked = Asked("messages", body.get("model", ""), bool(body.get("stream")))
    asked.system = _text(body.get("system"))
    asked.tools = {tool["name"]: tool.get("input_schema") for tool in body.get("tools") or []}
    asked.wants_json = "format" in (body.get("output_config") or {}) or "output_format" in body
    for message in body.get("messages", []):
        content = message.get("content")
        role: Role = "tool" if _parts(content, "tool_result") else "user"
        if message.get("role") == "assistant":
            role = "assistant"
        asked.said.append(Said(role, _text(content), _parts(content, "tool_use")))
    return asked


def _read_chat(body: Json) -> Asked:
    asked = Asked("chat", body.get("model", ""), bool(body.get("stream")))
    for tool in body.get("tools") or []:
        function = tool.get("function") or tool
        asked.tools[function["name"]] = function.get("parameters")
    asked.wants_json = (body.get("response_format") or {}).get("type", "text") != "text"
    for message in body.get("messages", []):
        role, text = message.get("role"), _text(message.get("content"))
        if role in ("system", "developer"):
            asked.system += text + "\n"
        else:
            asked.said.append(Said(role, text, len(message.get("tool_calls") or [])))
    return asked


def _read_responses(body: Json) -> Asked:
    asked = Asked("responses", body.get("model", ""), bool(body.get("stream")))
    asked.system = body.get("instructions") or ""
    _take_tools(asked, body.get("tools") or [], None)
    form = (body.get("text") or {}).get("format") or {}
    asked.wants_json = form.get("type", "text") != "text"
    given = body.get("input") or []
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        kind = item.get("type", "message")
        if kind == "message" and item.get("role") in ("system", "developer"):
            asked.system += _text(item.get("content")) + "\n"
        elif kind == "message":
            role: Role = "assistant" if item.get("role") == "assistant" else "user"
            asked.said.append(Said(role, _text(item.get("content"))))
        elif kind.endswith("_call"):
            # Each call is an item of its own; those of one turn stand together.
            if not asked.said or asked.said[-1].role != "assistant":
                asked.said.append(Said("assistant", ""))
            asked.said[-1].calls += 1
        elif kind.endswith("_output"):
            asked.said.append(Said("tool", _text(item.get("output"))))
    return asked


def _take_tools(asked: Asked, tools: Iterable[Json], namespace: str | None) -> None:
    for tool in tools:
        kind, name = tool["type"], tool.get("name", "")
        full = f"{namespace}__{name}" if namespace else name
        if kind == "namespace":
            _take_tools(asked, tool.get("tools") or [], name)
        elif kind == "custom":
            asked.freeform.add(full)
        elif kind == "function":
            asked.tools[full] = tool.get("parameters")
        if namespace:
            asked.namespaces[full] = (namespace, name)


def _read_gemini(body: Json, model: str, is_stream: bool) -> Asked:
    asked = Asked("gemini", model, is_stream)
    asked.system = _text((body.get("systemInstruction") or {}).get("parts"))
    for tool in body.get("tools") or []:
        for function in tool.get("functionDeclarations") or []:
            schema = function.get("parametersJsonSchema") or function.get("parameters")
            asked.tools[function["name"]] = schema
    wanted = (body.get("generationConfig") or {}).get("responseMimeType", "")
    asked.wants_json = "json" in wanted
    for content in body.get("contents", []):
        parts = content.get("parts") or []
        role: Role = "tool" if any("functionResponse" in part for part in parts) else "user"
        if content.get("role") == "model":
            role = "assistant"
        calls = sum(1 for part in parts if "functionCall" in part)
        asked.said.append(Said(role, _text(parts), calls))
    return asked


def answer(asked: Asked, said: Answer) -> tuple[Json, list[Event]]:
    """The same answer as one body, and as a stream."""
    return _WRITERS[asked.protocol](asked, said)


def _write_messages(asked: Asked, said: Answer) -> tuple[Json, list[Event]]:
    usage = {
        "input_tokens": said.usage.input - said.usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": said.usage.cached,
        "output_tokens": said.usage.output,
    }
    blocks: list[Json] = [{"type": "text", "text": said.text}] if said.text else []
    blocks += [
        {"type": "tool_use", "id": new_id("toolu_"), "name": call.name, "input": call.arguments}
        for call in said.calls
    ]
    stop = "tool_use" if said.calls else "end_turn"
    whole = {
        "id": new_id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": blocks,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": usage,
    }
    events: list[Event] = []

    def add(kind: str, **rest: object) -> None:
        events.append(Event(kind, {"type": kind, **rest}))

    begun = {**whole, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    add("message_start", message=begun)
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            empty: Json = {**block, "text": ""}
            delta = {"type": "text_delta", "text": block["text"]}
        else:
            empty = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        add("content_block_start", index=index, content_block=empty)
        add("content_block_delta", index=index, delta=delta)
        add("content_block_stop", index=index)
    add("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage=usage)
    add("message_stop")
    return whole, events


def _write_chat(asked: Asked, said: Answer) -> tuple[Json, list[Event]]:
    usage: Json = {
        "prompt_tokens": said.usage.input,
        "completion_tokens": said.usage.output,
        "total_tokens": said.usage.input + said.usage.output,
        "prompt_tokens_details": {"cached_tokens": said.usage.cached},
        "completion_tokens_details": {"reasoning_tokens": said.usage.reasoning},
    }
    base = {"id": new_id("chatcmpl-"), "created": int(time.time()), "model": asked.model}
    calls = [
        {
            "id": new_id("call_"),
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for call in said.calls
    ]
    finish = "tool_calls" if calls else "stop"
    message: Json = {"role": "assistant", "content": said.text or None}
    if calls:
        message["tool_calls"] = calls
    choice: Json = {"index": 0, "message": message, "finish_reason": finish}
    whole = {**base, "object": "chat.completion", "choices": [choice], "usage": usage}
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": said.text}] if said.text else []
    deltas += [{"tool_calls": [{**call, "index": at}]} for at, call in enumerate(calls)]
    chunk = {**base, "object": "chat.completion.chunk"}
    choices: list[Json] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    events = [Event(None, {**chunk, "choices": [choice]}) for choice in choices]
    events.append(Event(None, {**chunk, "choices": [], "usage": usage}))
    return whole, [*events, Event(None, None)]


def _write_responses(asked: Asked, said: Answer) -> tuple[Json, list[Event]]:
    usage: Json = {
        "input_tokens": said.usage.input,
        "input_tokens_details": {"cached_tokens": said.usage.cached},
        "output_tokens": said.usage.output,
        "output_tokens_details": {"reasoning_tokens": said.usage.reasoning},
        "total_tokens": said.usage.input + said.usage.output,
    }
    items: list[Json] = []
    if said.text:
        content = [{"type": "output_text", "text": said.text, "annotations": []}]
        message = {"type": "message", "role": "assistant", "content": content}
        items.append({**message, "id": new_id("msg_"), "status": "completed"})
    for call in said.calls:
        space, name = asked.namespaces.get(call.name, (None, call.name))
        item: Json = {"call_id": new_id("call_"), "status": "completed", "name": name}
        if call.text is None:
            item |= {"type": "function_call", "arguments": json.dumps(call.arguments)}
        else:
            item |= {"type": "custom_tool_call", "input": call.text}
        items.append(item | {"id": new_id("fc_")} | ({"namespace": space} if space else {}))
    whole = {
        "id": new_id("resp_"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "completed",
        "model": asked.model,
        "output": items,
        "usage": usage,
        "error": None,
        "incomplete_details": None,
        "parallel_tool_calls": True,
        "tools": [],
    }
    events: list[Event] = []

    def add(kind: str, **rest: object) -> None:
        numbered = {"type": kind, "sequence_number": len(events)}
        events.append(Event(kind, {**numbered, **rest}))

    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    add("response.created", response=begun)
    for index, item in enumerate(items):
        at = {"item_id": item["id"], "output_index": index}
        if item["type"] == "message":
            empty = {"type": "output_text", "text": "", "annotations": []}
            part, text = {"content_index": 0}, said.text
            opened = {**item, "status": "in_progress", "content": []}
            add("response.output_item.added", output_index=index, item=opened)
            add("response.content_part.added", **at, **part, part=empty)
            add("response.output_text.delta", **at, **part, delta=text, logprobs=[])
            add("response.output_text.done", **at, **part, text=text, logprobs=[])
            add("response.content_part.done", **at, **part, part=item["content"][0])
        elif item["type"] == "function_call":
            opened = {**item, "status": "in_progress", "arguments": ""}
            add("response.output_item.added", output_index=index, item=opened)
            add("response.function_call_arguments.delta", **at, delta=item["arguments"])
            add("response.function_call_arguments.done", **at, arguments=item["arguments"])
        else:
            add("response.output_item.added", output_index=index, item=item)
        add("response.output_item.done", output_index=index, item=item)
    add("response.completed", response=whole)
    return whole, events


def _write_gemini(asked: Asked, said: Answer) -> tuple[Json, list[Event]]:
    parts: list[Json] = [{"text": said.text}] if said.text else []
    parts += [
        {"functionCall": {"id": new_id("fc"), "name": call.name, "args": call.arguments}}
        for call in said.calls
    ]
    content = {"role": "model", "parts": parts}
    whole = {
        "candidates": [{"index": 0, "finishReason": "STOP", "content": content}],
        "usageMetadata": {
            "promptTokenCount": said.usage.input,
            "cachedContentTokenCount": said.usage.cached,
            # Google counts thoughts apart from candidates; the others as a part of the output.
            "candidatesTokenCount": said.usage.output - said.usage.reasoning,
            "thoughtsTokenCount": said.usage.reasoning,
            "totalTokenCount": said.usage.input + said.usage.output,
        },
        "modelVersion": asked.model,
        "responseId": new_id(""),
    }
    return whole, [Event(None, whole)]


_WRITERS: dict[Protocol, Callable[[Asked, Answer], tuple[Json, list[Event]]]] = {
    "messages": _write_messages,
    "chat": _write_chat,
    "responses": _write_responses,
    "gemini": _write_gemini,
}

# status -> Anthropic's type, Google's status
_KINDS = {
    400: ("invalid_request_error", "INVALID_ARGUMENT"),
    401: ("authentication_error", "UNAUTHENTICATED"),
    403: ("permission_error", "PERMISSION_DENIED"),
    404: ("not_found_error", "NOT_FOUND"),
    429: ("rate_limit_error", "RESOURCE_EXHAUSTED"),
    503: ("overloaded_error", "UNAVAILABLE"),
    529: ("overloaded_error", "UNAVAILABLE"),
}
_OPENAI_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}


def error(protocol: Protocol, status: int, message: str, retry_after: float | None) -> Json:
    """The body of a refusal."""
    kind, google = _KINDS.get(status, ("api_error", "INTERNAL"))
    if protocol == "messages":
        inner = {"type": kind, "message": message}
        return {"type": "error", "error": inner, "request_id": new_id("req_")}
    if protocol == "gemini":
        retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo"}
        details = [retry | {"retryDelay": f"{retry_after}s"}] if retry_after is not None else []
        whole = {"code": status, "message": message, "status": google, "details": details}
        return {"error": whole}
    code = _OPENAI_CODES.get(status, kind)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
