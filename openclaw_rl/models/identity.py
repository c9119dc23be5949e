"""The identity of base models, so that weights of one never get into another."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from openclaw_rl.models.config import ModelConfig, ModelError
from openclaw_rl.runtime.json import parse_json

#: `model_type` in the config.json of an API model.
API_MODEL = "openclaw_rl_api"


def api_config(model: str, base_url: str) -> bytes:
    """Content of an API model's config.json: its name and the API's address, never a key."""
    return json.dumps({"model_type": API_MODEL, "model": model, "base_url": base_url.rstrip("/")},
                      sort_keys=True).encode()


def model_id(folder: Path) -> str:
    """Lower-case hexadecimal SHA-256 over the architecture that config.json describes and the bytes of tokenizer.json.

    For an API model, which has neither: over its name and the API's address.

    Names, versions, element types and file layout don't change the id, nor do the weights: every version of a model has
    the id of its base.

    Raises:
        ModelError: a file can't be read, or the architecture isn't supported.
    """
    if (config := _api_config(folder)) is not None:
        return hashlib.sha256(config).hexdigest()
    digest = hashlib.sha256(json.dumps(asdict(ModelConfig.read(folder)), sort_keys=True).encode())
    try:
        digest.update(hashlib.sha256((folder / "tokenizer.json").read_bytes()).digest())
    except OSError as error:
        raise ModelError(f"{folder / 'tokenizer.json'}: {error.strerror}") from None
    return digest.hexdigest()


def _api_config(folder: Path) -> bytes | None:
    """The configuration of an API model; None for any other."""
    try:
        config = parse_json((folder / "config.json").read_bytes())
        return api_config(config["model"], config["base_url"]) if config.get("model_type") == API_MODEL else None
    except (OSError, ValueError, KeyError, AttributeError):
        return None  # ModelConfig reports the error
