"""An API model's folder: it has no weights, so what is version 0 is an empty playbook."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from openclaw_rl.runtime.home import Home, write_atomically
from openclaw_rl.v1.playbook_pb2 import Playbook
from openclaw_rl.weights.format.safetensors import MODEL_FILE, header, make_spec
from openclaw_rl.weights.playbook import tensor

#: `model_type` in its config.json.
API_MODEL = "openclaw_rl_api"


def api_config(model: str, base_url: str) -> bytes:
    """Content of config.json: the model's name and the API's address, never a key."""
    return json.dumps({"model_type": API_MODEL, "model": model, "base_url": base_url.rstrip("/")},
                      sort_keys=True).encode()


def ensure_api_model(model: str, base_url: str, home: Home) -> Path:
    """The folder of an API model, made when it is missing: models/api-NAME-DIGEST.

    Raises:
        OSError: it can't be written.
    """
    config = api_config(model, base_url)
    slug = "".join(c if c.isalnum() or c in "-._" else "-" for c in model)[:60]
    folder = home.models / f"api-{slug}-{hashlib.sha256(config).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    name, dtype, shape, data = tensor(Playbook())
    content = header([make_spec(name, dtype, shape, b"")]) + bytes(data)
    for file, wanted in ((folder / MODEL_FILE, content), (folder / "config.json", config)):
        if not file.is_file() or file.read_bytes() != wanted:
            write_atomically(file, wanted)
    return folder
