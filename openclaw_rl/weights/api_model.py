"""Folders of API models, which have no weights: an empty playbook is their version 0."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from openclaw_rl.models.identity import api_config
from openclaw_rl.runtime.home import Home, write_atomically
from openclaw_rl.runtime.json import parse_json
from openclaw_rl.v1.playbook_pb2 import Playbook
from openclaw_rl.weights.format.safetensors import MODEL_FILE, header, make_spec
from openclaw_rl.weights.playbook import tensor


def ensure_api_model(model: str, base_url: str, home: Home) -> Path:
    """Return the folder of an API model, models/api-NAME-DIGEST, and make it when it is missing.

    A model that has moved to another address is the same one: what it has learned stays its own.

    Raises:
        OSError: it can't be written.
    """
    config = api_config(model, base_url)
    slug = "".join(c if c.isalnum() or c in "-._" else "-" for c in model)[:60]
    folder = home.models / f"api-{slug}-{hashlib.sha256(config).hexdigest()[:12]}"
    if not folder.exists():
        for other in sorted(home.models.glob(f"api-{slug}-*/config.json")):
            with suppress(OSError, ValueError, KeyError, TypeError):
                known = parse_json(other.read_text())
                if known["model"] == model and api_config(model, known["base_url"]) == other.read_bytes():
                    folder, config = other.parent, other.read_bytes()
                    break
    folder.mkdir(parents=True, exist_ok=True)
    name, dtype, shape, data = tensor(Playbook())
    content = header([make_spec(name, dtype, shape, b"")]) + bytes(data)
    for file, wanted in ((folder / MODEL_FILE, content), (folder / "config.json", config)):
        if not file.is_file() or file.read_bytes() != wanted:
            write_atomically(file, wanted)
    return folder
