"""Fields of requests that other servers have and this one does not. To ignore one would change what it means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openclaw_rl.rpc import errors

#: Each field with the values that ask for nothing, besides null.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    # OpenAI
    "audio": (), "function_call": ("none", "auto"), "functions": ([],), "modalities": (["text"], []),
    "web_search_options": (),
    # vLLM and SGLang
    "add_generation_prompt": (True,), "allowed_token_ids": ([],), "bad_words": ([],), "beam_width": (1,),
    "chat_template": (), "custom_logit_processor": (), "documents": ([],), "length_penalty": (1,),
    "logits_processors": ([],), "lora_path": (), "no_stop_trim": (False,), "prompt_logprobs": (0,),
    "return_hidden_states": (False,), "return_tokens_as_token_ids": (False,), "skip_special_tokens": (True,),
    "stop_regex": ([], ""), "truncate_prompt_tokens": (), "use_beam_search": (False,),
    # llama.cpp
    "dry_multiplier": (0,), "dynatemp_range": (0,), "mirostat": (0,), "repeat_penalty": (1,), "typical_p": (1,),
    "xtc_probability": (0,),
}


def refuse(extra: Mapping[str, Any]) -> None:
    """Refuse the fields of `UNSUPPORTED` in a request to a model with weights.

    Raises:
        MeshError: INVALID_ARGUMENT, naming each of them.
    """
    found = [(name, f"{_shown(value)} is not supported by this model; leave it out")
             for name, value in extra.items()
             if name in UNSUPPORTED and value is not None and value not in UNSUPPORTED[name]]
    if found:
        raise errors.invalid_many(found)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
