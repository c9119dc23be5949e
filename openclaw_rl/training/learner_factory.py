"""Construction of the learner that fits the policy: of weights, or of an API model's playbook."""

from __future__ import annotations

import os
from pathlib import Path

from openclaw_rl.config import Config, TrainerConfig
from openclaw_rl.models.api_endpoints import resolve_address, uses_api
from openclaw_rl.models.prepare import ensure_model
from openclaw_rl.runtime.home import Home
from openclaw_rl.training.backends.interface import StartPoint
from openclaw_rl.training.learner import Learner
from openclaw_rl.training.store import TrainerStore

#: Held-out prompts of the gate of an API model: each is a request to the API.
API_PROMPTS = 8


def make_learner(config: Config, store: TrainerStore, folder: Path, home: Home, keep: int) -> Learner:
    """Make the learner of the configured policy.

    Args:
        config: of the mesh.
        store: samples and versions; of an API model, it takes samples without token ids.
        folder: the trainer's.
        home: where the base model's folder is made.
        keep: versions kept on disk beside the head.
    """
    settings, policy = config.components.trainer, config.components.policy_server
    if not uses_api(policy):
        return Learner(settings, store, folder, lambda: ensure_model(policy.model, home), keep)
    from openclaw_rl.training.backends.playbook.backend import PlaybookBackend  # with the API's client
    from openclaw_rl.training.backends.playbook.data_adapter import PlaybookAdapter
    from openclaw_rl.weights.api_model import ensure_api_model

    adapter = PlaybookAdapter(config)

    def base() -> Path:
        return ensure_api_model(policy.model, resolve_address(policy.model, policy.base_url, os.environ), home)

    def create(_: Path, __: TrainerConfig, start: StartPoint) -> PlaybookBackend:
        return adapter.backend(start, store.versions.lineage, lambda: store.versions.highest + 1)

    return Learner(settings, store, folder, base, keep, create, adapter, API_PROMPTS)
