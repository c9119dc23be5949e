"""Sampling fields of a request, as OpenAI, vLLM and SGLang name them."""

from __future__ import annotations

from typing import Any

from openclaw_rl.serving.engines.interface import Shaping
from openclaw_rl.serving.entrypoints.openai.errors import wrong_type, wrong_value
from openclaw_rl.serving.entrypoints.openai.fields import Fields
from openclaw_rl.v1 import turn_pb2

_INT64 = 2**63
#: Fields of `Shaping` and their kin: an API model gets them as they came.
SHAPING = ("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "top_k", "min_p", "min_tokens",
           "ignore_eos", "stop_token_ids", "include_stop_str_in_output")


def parse_sampling(fields: Fields) -> turn_pb2.SamplingParams:
    """Parse what the contract's `SamplingParams` has.

    Raises:
        ApiError: 400 naming the field, its value and what is allowed.
    """
    sampling = turn_pb2.SamplingParams()
    temperature, top_p = fields.number("temperature", 0, 2), fields.number("top_p", 0, 1)
    if temperature is not None:
        sampling.temperature = temperature
    if top_p == 0:  # nothing but the likeliest token
        sampling.temperature = 0
    elif top_p is not None:
        sampling.top_p = top_p
    old, new = fields.integer("max_tokens", 1, _INT64 - 1), fields.integer("max_completion_tokens", 1, _INT64 - 1)
    most = old if new is None else new
    if most is not None:
        sampling.max_tokens = min(most, 2**31 - 1)
    seed = fields.integer("seed", -_INT64, _INT64 - 1)
    if seed is not None:
        sampling.seed = seed
    stop = fields.get("stop")
    if isinstance(stop, str):
        stop = [stop]
    elif stop is not None and not isinstance(stop, list):
        raise wrong_type("stop", stop, "a string or an array of strings")
    for i, text in enumerate(stop or []):
        if not isinstance(text, str):
            raise wrong_type(f"stop[{i}]", text, "a string")
        if text:  # some clients send an empty one for none
            sampling.stop.append(text)
    for i, token in enumerate(fields.array("stop_token_ids") or []):
        if isinstance(token, bool) or not isinstance(token, int):
            raise wrong_type(f"stop_token_ids[{i}]", token, "an integer")
        if not 0 <= token < 2**31:
            raise wrong_value(f"stop_token_ids[{i}]", token, "a token id")
        sampling.stop_token_ids.append(token)
    return sampling


def parse_shaping(fields: Fields) -> Shaping | None:
    """Parse penalties, bias and cut-offs; None where a request has none of them, or only such as change nothing.

    Raises:
        ApiError: as `parse_sampling`.
    """
    repetition = fields.number("repetition_penalty", 0, 2)
    if repetition == 0:
        raise wrong_value("repetition_penalty", repetition, "above 0, at most 2")
    shaping = Shaping(
        frequency_penalty=fields.number("frequency_penalty", -2, 2) or 0.0,
        presence_penalty=fields.number("presence_penalty", -2, 2) or 0.0,
        repetition_penalty=1.0 if repetition is None else repetition,
        logit_bias=_logit_bias(fields.object("logit_bias") or {}),
        top_k=max(fields.integer("top_k", -1, 2**31 - 1) or 0, 0),  # -1 also means all
        min_p=fields.number("min_p", 0, 1) or 0.0, min_tokens=fields.integer("min_tokens", 0, 2**31 - 1) or 0,
        ignore_eos=fields.flag("ignore_eos") or False)
    return None if shaping == Shaping() else shaping


def _logit_bias(data: dict[str, Any]) -> dict[int, float]:
    bias = Fields(data, "logit_bias")
    result = {}
    for key in data:
        if not (key.isascii() and key.isdecimal()) or len(key) > 9:
            raise wrong_value("logit_bias", key, "an object whose names are token ids")
        value = bias.number(key, -100, 100)
        if value is not None:
            result[int(key)] = value
    return result
