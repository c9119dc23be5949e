"""Request bodies, checked and turned into calls.

Unknown fields are ignored, as OpenAI-compatible servers do, but for those of `serving.unsupported`.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from openclaw_rl.serving.entrypoints.openai.errors import ApiError, missing, wrong_type, wrong_value
from openclaw_rl.serving.entrypoints.openai.fields import Fields
from openclaw_rl.serving.entrypoints.openai.formats import parse_format
from openclaw_rl.serving.entrypoints.openai.messages import parse_messages, parse_tools
from openclaw_rl.serving.entrypoints.openai.sampling import SHAPING, parse_sampling, parse_shaping
from openclaw_rl.serving.interfaces import ChatCall, version_limits
from openclaw_rl.serving.long_input import PromptLimits
from openclaw_rl.serving.validation import check_tool_choice
from openclaw_rl.sessions.fingerprint import Digests, both_digests
from openclaw_rl.v1 import turn_pb2

MOST_CHOICES = 8
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off", ""}
_INT64 = 2**63
_PREFIX = re.compile("^(?:chatcmpl-|cmpl-|msg_|resp_)(?=turn_)")  # of a response's id, before the turn's


@dataclass(slots=True)
class ApiRequest:
    """A parsed request."""

    calls: list[ChatCall]  #: one for each choice, in order
    options: turn_pb2.TurnOptions
    model: str | None
    n: int = 1  #: choices of each prompt
    best_of: int = 1  #: responses of each prompt, of which the likeliest `n` are the choices
    stream: bool = False
    include_usage: bool = False
    user: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    logprobs: bool = False
    token_ids: bool = False  #: report the ids of prompt and response
    digests: Digests | None = None  #: of the first call's messages


def parse_chat(data: dict[str, Any], headers: Mapping[str, str], limits: PromptLimits | None = None,
               earlier: Sequence[turn_pb2.ChatMessage] = (), at: int = 0) -> ApiRequest:
    """Parse the body of /v1/chat/completions.

    Args:
        limits: of the model, so that what can't fit is not read.
        earlier, at: see `parse_messages`.

    Raises:
        ApiError, MeshError: 400 naming the field, its value and what is allowed.
    """
    fields = Fields(data)
    request = _common(fields, headers)
    items = fields.array("messages", required=True) or []
    if limits is not None:
        limits.check_messages(len(items) + len(earlier))
    messages = parse_messages(items, earlier, at)
    request.digests = both_digests(messages)
    tools = parse_tools(fields.array("tools") or [])
    sampling = parse_sampling(fields)
    request.logprobs = fields.flag("logprobs") or False
    top = fields.integer("top_logprobs", 0, 20)
    if top is not None:
        if not request.logprobs:
            raise wrong_value("top_logprobs", top, "left out unless logprobs is true")
        sampling.top_logprobs = top
    grammar, format_fields = parse_format(fields)
    parallel = fields.flag("parallel_tool_calls")
    call = ChatCall(messages=messages, tools=tools, tool_choice=check_tool_choice(_tool_choice(fields), tools),
                    parallel_tool_calls=parallel is not False, sampling=sampling, logprobs=request.logprobs,
                    grammar=grammar, continue_final=_continues(fields, messages),
                    template_values=fields.object("chat_template_kwargs") or {}, **version_limits(request.options))
    request.n = request.best_of = fields.integer("n", 1, MOST_CHOICES) or 1
    _shared(fields, request, call)
    call.extra |= format_fields
    request.calls = _choices(call, request.n)
    return request


def parse_completion(data: dict[str, Any], headers: Mapping[str, str],
                     limits: PromptLimits | None = None) -> ApiRequest:
    """Parse the body of /v1/completions: a prompt of text or token ids, or several of them.

    Raises:
        ApiError, MeshError: as `parse_chat`.
    """
    fields = Fields(data)
    request = _common(fields, headers)
    asked_tokens = data.get("max_tokens")
    nothing = asked_tokens == 0 and isinstance(asked_tokens, int) and fields.flag("echo") is True  # only the prompt's
    sampling = parse_sampling(Fields({**data, "max_tokens": None}) if nothing else fields)
    top = fields.integer("logprobs", 0, 5)
    if top is not None:
        request.logprobs, sampling.top_logprobs = True, top
    if fields.text("suffix"):
        raise wrong_value("suffix", data["suffix"], "left out: this model only continues")
    request.n = fields.integer("n", 1, MOST_CHOICES) or 1
    request.best_of = fields.integer("best_of", 1, MOST_CHOICES) or request.n
    if request.best_of < request.n:
        raise wrong_value("best_of", request.best_of, f"at least n ({request.n})")
    if request.best_of > request.n and request.stream:
        raise wrong_value("best_of", request.best_of, "n when the response is streamed")
    if nothing:
        request.options.no_record = True  # there is no response
    grammar, _ = parse_format(fields)
    for i, prompt in enumerate(_prompts(fields)):
        call = ChatCall(sampling=sampling, logprobs=request.logprobs, grammar=grammar,
                        echo=fields.flag("echo") or False, echo_only=nothing, **version_limits(request.options))
        _shared(fields, request, call)
        if isinstance(prompt, str):
            call.prompt = prompt
            call.messages = [turn_pb2.ChatMessage(role="user", content=prompt)]
        else:
            call.prompt_ids = prompt
            call.prompt_ids_field = "prompt" if prompt is data["prompt"] else f"prompt[{i}]"
        request.calls += _choices(call, request.best_of)
    if len(request.calls) > MOST_CHOICES:
        raise wrong_value("prompt", f"{len(request.calls)} responses", f"at most {MOST_CHOICES} prompts times n")
    request.digests = both_digests(request.calls[0].messages)
    return request


def parse_feedback(data: dict[str, Any]) -> turn_pb2.Feedback:
    """Parse the body of /v1/feedback: {turn_id or session_id, rating and/or score and/or comment}.

    Raises:
        ApiError: 400 naming the field; 422 when rating and score contradict each other.
    """
    fields = Fields(data)
    feedback = turn_pb2.Feedback(
        turn_id=_PREFIX.sub("", (fields.text("turn_id") or "").strip()),
        session_id=(fields.text("session_id") or "").strip(), comment=(fields.text("comment") or "").strip())
    if not feedback.turn_id and not feedback.session_id:
        raise missing("turn_id", "Name the turn (header X-OpenClaw-Turn-Id) or the session_id.")
    score = fields.number("score", -1, 1)
    rating = fields.get("rating")
    if rating is not None:
        thumbs = _thumbs(rating)
        if score is not None and score * thumbs < 0:
            raise ApiError(422, f"rating {rating!r} and score {score:g} contradict each other", param="score",
                           code="contradiction")
        score = float(thumbs) if score is None else score
    if score is not None:
        feedback.score = score
    elif not feedback.comment:
        raise missing("rating", "Give a rating (up or down), a score (-1 to 1) or a comment.")
    return feedback


def _common(fields: Fields, headers: Mapping[str, str]) -> ApiRequest:
    """Parse the fields that both completion endpoints share."""
    session = _label(headers.get("x-session-id")) or (fields.text("session_id") or "").strip()
    turn_type = _label(headers.get("x-turn-type")) or (fields.text("turn_type") or "").strip()
    done = _label(headers.get("x-session-done")).lower() in _TRUE
    body_done = fields.get("session_done")
    if isinstance(body_done, bool | int) and body_done in (0, 1):
        done = done or bool(body_done)
    elif isinstance(body_done, str) and body_done.strip().lower() in _TRUE | _FALSE:
        done = done or body_done.strip().lower() in _TRUE
    elif isinstance(body_done, str | int):
        raise wrong_value("session_done", body_done, "a boolean, or one of 1, true, yes, on")
    elif body_done is not None:
        raise wrong_type("session_done", body_done, "a boolean")
    streaming = Fields(fields.object("stream_options") or {}, "stream_options")
    return ApiRequest(
        calls=[], options=turn_pb2.TurnOptions(
            session_id=session, turn_type=turn_type, session_done=done,
            background=_label(headers.get("x-openclaw-background")).lower() in _TRUE,
            min_version=_version(headers, "X-OpenClaw-Min-Version"),
            exact_version=_version(headers, "X-OpenClaw-Exact-Version")),
        model=fields.text("model"), stream=fields.flag("stream") or False,
        include_usage=streaming.flag("include_usage") or False, user=fields.text("user") or "",
        metadata={str(key): value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                  for key, value in (fields.object("metadata") or {}).items()})


def _label(value: str | None) -> str:
    """Decode a header: HTTP passes bytes as Latin-1 where clients mean UTF-8. Other bytes stay as they are, so that two
    ids never become one."""
    value = value or ""
    try:
        return value.encode("latin-1").decode().strip()
    except UnicodeError:
        return value.strip()


def _version(headers: Mapping[str, str], name: str) -> int | None:
    """Parse a header with a policy version; None when it is absent or empty."""
    text = (headers.get(name.lower()) or "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 19 or int(text) >= _INT64:
        raise wrong_value(name, text, f"an integer from 0 to {_INT64 - 1}")
    return int(text)


def _shared(fields: Fields, request: ApiRequest, call: ChatCall) -> None:
    """Parse what both endpoints have besides sampling, and note the fields that are left."""
    call.shaping, call.include_stop = parse_shaping(fields), fields.flag("include_stop_str_in_output") or False
    most = call.sampling.max_tokens
    if call.shaping is not None and 0 < most < call.shaping.min_tokens:
        raise wrong_value("min_tokens", call.shaping.min_tokens, f"at most max_tokens ({most})")
    request.token_ids = fields.flag("return_token_ids") or False
    if request.token_ids and request.stream:
        raise wrong_value("return_token_ids", True, "left out when the response is streamed")
    passed_on = {name: fields.data[name] for name in (*SHAPING, "return_token_ids", "chat_template_kwargs",
                                                      "continue_final_message") if name in fields.data}
    if fields.get("max_completion_tokens") is not None:
        passed_on["max_completion_tokens"] = most  # newer models refuse the other name
    call.extra = fields.rest() | passed_on


def _continues(fields: Fields, messages: list[turn_pb2.ChatMessage]) -> bool:
    """Whether the response continues the last message."""
    wanted = fields.flag("continue_final_message") or False
    last = messages[-1]
    if wanted and (last.role != "assistant" or last.tool_calls or not (last.content or last.parts)):
        raise wrong_value("continue_final_message", True, "left out unless the last message is an assistant's text")
    if wanted:
        fields.known.add("add_generation_prompt")  # false goes with it in vLLM
    return wanted


def _tool_choice(fields: Fields) -> str:
    choice = fields.get("tool_choice")
    if choice is None:
        return ""
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise wrong_value("tool_choice", choice, "auto, none, required or an object that names a function")
        return choice
    if not isinstance(choice, dict):
        raise wrong_type("tool_choice", choice, "a string or an object")
    named = Fields(choice, "tool_choice")
    kind = named.text("type") or "function"
    if kind != "function":
        raise wrong_value("tool_choice.type", kind, "function")
    return Fields(named.object("function", required=True) or {}, "tool_choice.function").required_text("name")


def _choices(call: ChatCall, count: int) -> list[ChatCall]:
    """Return a call for each choice; with a seed, each draws its own reproducible tokens."""
    calls = []
    for i in range(count):
        sampling = copy.copy(call.sampling)
        if sampling.HasField("seed"):
            sampling.seed = (sampling.seed + i + _INT64) % (2 * _INT64) - _INT64
        calls.append(replace(call, sampling=sampling))
    return calls


def _prompts(fields: Fields) -> list[str | list[int]]:
    prompt = fields.get("prompt")
    if prompt is None:
        raise missing("prompt")
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise wrong_type("prompt", prompt, "a string, an array of token ids, or an array of these")
    if not prompt:
        raise wrong_value("prompt", prompt, "at least one prompt")
    if all(isinstance(item, int) and not isinstance(item, bool) for item in prompt):
        return [prompt]
    for i, item in enumerate(prompt):
        if not isinstance(item, str) and not (isinstance(item, list) and all(
                isinstance(token, int) and not isinstance(token, bool) for token in item)):
            raise wrong_type(f"prompt[{i}]", item, "a string or an array of token ids")
    return prompt


def _thumbs(rating: Any) -> int:
    up = {"up", "thumbs_up", "thumbs-up", "thumbsup", "like", "good", "positive", "+1", "1", "\U0001F44D"}
    down = {"down", "thumbs_down", "thumbs-down", "thumbsdown", "dislike", "bad", "negative", "-1", "\U0001F44E"}
    if isinstance(rating, bool) or not isinstance(rating, str | int):
        raise wrong_type("rating", rating, "up or down")
    word = str(rating).strip().lower()
    if word not in up | down:
        raise wrong_value("rating", rating, "up or down (also thumbs_up, thumbs_down, 1, -1)")
    return 1 if word in up else -1
