"""vLLM's /tokenize and /detokenize.

Source: vllm/entrypoints/openai/protocol.py, TokenizeRequest and DetokenizeRequest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openclaw_rl.serving.entrypoints.openai.errors import wrong_type, wrong_value
from openclaw_rl.serving.entrypoints.openai.fields import Fields
from openclaw_rl.serving.entrypoints.openai.requests import parse_chat
from openclaw_rl.serving.interfaces import ChatCall
from openclaw_rl.serving.long_input import PromptLimits
from openclaw_rl.serving.token_policy import TokenPolicy


def parse_tokenize(data: dict[str, Any], headers: Mapping[str, str], limits: PromptLimits | None = None) -> ChatCall:
    """Parse the body of /tokenize: a `prompt`, or `messages` with `tools` as in a chat completion.

    Raises:
        ApiError, MeshError: as `parse_chat`.
    """
    fields = Fields(data)
    special = fields.flag("add_special_tokens")
    fields.flag("return_token_strs")
    if "messages" in data:
        if special:
            raise wrong_value("add_special_tokens", True, "left out: the chat template adds them")
        generation = fields.flag("add_generation_prompt")
        call = parse_chat(data, headers, limits).calls[0]
        call.generation_prompt = generation is not False
        return call
    return ChatCall(prompt=fields.required_text("prompt"), special_tokens=special is not False)


def tokenized(data: dict[str, Any], ids: list[int], policy: TokenPolicy) -> dict[str, Any]:
    """The response of /tokenize."""
    shown = [policy.text([token]) for token in ids] if data.get("return_token_strs") else None
    return {"count": len(ids), "max_model_len": policy.engine.info.context_length, "tokens": ids, "token_strs": shown}


def parse_detokenize(data: dict[str, Any], headers: Mapping[str, str],
                     limits: PromptLimits | None = None) -> list[int]:
    """Parse the body of /detokenize: `tokens`.

    Raises:
        ApiError: 400, naming the field.
    """
    tokens = Fields(data).array("tokens", required=True) or []
    for i, token in enumerate(tokens):
        if isinstance(token, bool) or not isinstance(token, int):
            raise wrong_type(f"tokens[{i}]", token, "an integer")
    if limits is not None:
        limits.check_tokens(len(tokens), "tokens")
    return tokens
