"""Checks of an external SGLang server before it gets weights and requests."""

from __future__ import annotations

import asyncio
import json
import socket
import uuid
from contextlib import aclosing
from pathlib import Path
from typing import Any

from openclaw_rl.models.config import ModelConfig, ModelError
from openclaw_rl.models.identity import model_id
from openclaw_rl.serving.engines.interface import EngineError
from openclaw_rl.serving.engines.sglang import request_tag
from openclaw_rl.serving.engines.sglang.arguments import SPARE
from openclaw_rl.serving.engines.sglang.client import CommandRefused, ConnectionLost, EngineClient

_HOOK_SECONDS = 60.0  #: for one token
_HOW = "start it by: python -m openclaw_rl.serving.engines.sglang.serve 0 --model-path ... (openclaw-rl[sglang] there)"


async def check_server(client: EngineClient, info: dict[str, Any], base: Path, context: int, ranks: int) -> None:
    """Check that a server has the base model, a sufficient context, and the hook.

    Args:
        info: its /model_info.
        base: folder of the base model.
        context: most tokens of prompt and response together.
        ranks: `sglang.tensor_parallel`.

    Raises:
        EngineError: naming the address, what is wrong and what to do.
        ConnectionLost, CommandRefused: it does not answer.
    """
    where = client.address or "SGLang"
    await _check_model(client, info, base, where)
    server = await client.command("/server_info")
    there = server.get("context_length")
    if isinstance(there, int) and there < context + SPARE:
        raise EngineError(f"{where} has a context of {there}; {context} tokens plus {SPARE} spare ones are needed: "
                          f"start it with --context-length {context + SPARE}, or lower policy_server.max_context")
    if server.get("tp_size", ranks) != ranks:
        raise EngineError(f"{where} runs on {server['tp_size']} GPUs and sglang.tensor_parallel is {ranks}: set it to "
                          f"{server['tp_size']}")
    if server.get("dp_size", 1) != 1:
        raise EngineError(f"{where} has --dp-size {server['dp_size']}; only 1 is supported: give each server's address")
    await _check_hook(client, where)


async def _check_model(client: EngineClient, info: dict[str, Any], base: Path, where: str) -> None:
    path = Path(str(info.get("model_path", "")))
    config = ModelConfig.read(base)
    if path.is_dir():  # noqa: ASYNC240
        try:
            same = model_id(path) == model_id(base)
        except ModelError:
            same = False
        if not same:
            raise EngineError(f"{where} serves {path}, which is another model than {base}")
        return
    wanted = json.loads((base / "config.json").read_bytes()).get("architectures")
    if wanted and info.get("architectures") != wanted:
        raise EngineError(f"{where} serves a {info.get('architectures')}; components.policy_server.model is a {wanted}")
    # Its folder is not visible here; a model of another size would crash on the weights.
    last = f"model.layers.{config.layers - 1}.input_layernorm.weight"
    beyond = f"model.layers.{config.layers}.input_layernorm.weight"
    if await _length(client, last) != config.hidden_size or await _length(client, beyond) is not None:
        raise EngineError(f"{where} serves a model of other sizes than components.policy_server.model ({base}): "
                          f"{config.layers} layers of {config.hidden_size} are wanted")


async def _length(client: EngineClient, name: str) -> int | None:
    """The length of a vector of the server's model; None when there is none of that name."""
    try:
        answer = await client.command("/get_weights_by_name", {"name": name, "truncate_size": 1_000_000})
    except CommandRefused:
        return None
    values = answer.get("value")
    return len(values) if isinstance(values, list) else None


async def _check_hook(client: EngineClient, where: str) -> None:
    """Generate a token to detect the hook: without it, all three entries of the tag are equal."""
    body = {"rid": uuid.uuid4().hex, "input_ids": [0], "stream": True, "return_logprob": True, "top_logprobs_num": 1,
            "token_ids_logprob": request_tag.ask(None),
            "sampling_params": {"temperature": 2.0, "top_p": 1e-6, "max_new_tokens": 1}}
    try:
        async with asyncio.timeout(_HOOK_SECONDS), aclosing(client.generate(body)) as pieces:  # type: ignore[type-var]
            meta = [piece["meta_info"] async for piece in pieces][-1]
        model, drawn, version = (entry[0] for entry in meta["output_token_ids_logprobs"][0][:3])
        top = meta["output_top_logprobs"][0][0][0]
    except TimeoutError:
        raise ConnectionLost(f"{where} generated no token within {_HOOK_SECONDS:g} s") from None
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise EngineError(f"{where} is not an SGLang 0.5.23 server, or its response is unreadable: {error}") from error
    if model == drawn == version:
        raise EngineError(f"{where} was started without openclaw-rl's hook, which reports exact log-probabilities and "
                          f"versions: {_HOW}")
    if abs(top - model) > 0.01:
        raise EngineError(f"{where} reports log-probabilities after temperature: set SGLANG_RETURN_ORIGINAL_LOGPROB=1 "
                          f"in its environment, or {_HOW}")


def address_towards(host: str) -> str:
    """Return this machine's address as `host` sees it."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # nothing is sent
            return str(probe.getsockname()[0])
    except OSError as error:
        raise EngineError(f"there is no route to {host}: {error.strerror or error}") from None
