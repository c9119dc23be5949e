"""The embedded model, and a small one in its place for meshes whose tests ask nothing of what it says: tokenizer, chat
template and architecture are the same, the weights are few and random.

A training step takes the small one some tens of milliseconds; it takes the embedded one a hundred times as long, and
gigabytes.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
from pathlib import Path

import numpy as np

from openclaw_rl.config import EMBEDDED_MODEL
from openclaw_rl.models.config import ModelConfig
from openclaw_rl.models.prepare import ensure_model
from openclaw_rl.runtime.home import Home
from openclaw_rl.weights.format.safetensors import MODEL_FILE, file_order, header, make_spec

#: What makes it small. The vocabulary stays, and with it the tokenizer and the chat template.
_SIZE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2}


@functools.cache
def embedded_model() -> Path:
    """Folder of the embedded model, kept between runs since making it takes a while."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "openclaw-rl-tools/models-home"
    return ensure_model(EMBEDDED_MODEL, Home(cache).create())


def small_model(root: Path) -> Path:
    """Make a small model in the embedded one's place of the home in `root`; its folder."""
    embedded, folder = embedded_model(), Home(root).create().models / EMBEDDED_MODEL
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(embedded / name, folder / name)
    config = json.loads((embedded / "config.json").read_text()) | _SIZE
    (folder / "config.json").write_text(json.dumps(config))
    shapes = ModelConfig.read(folder).tensors()
    specs = file_order(make_spec(name, "BF16", shape, b"") for name, shape in shapes.items())
    random = np.random.default_rng(7)
    with (folder / MODEL_FILE).open("wb") as file:
        file.write(header(specs))
        for spec in specs:
            norm = len(spec.shape) == 1
            values = np.ones(spec.shape) if norm else random.normal(0, 0.05, tuple(spec.shape))
            file.write((values.astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes())
    return folder
