"""A tiny Llama model in a folder, and samples for it."""

from __future__ import annotations

from pathlib import Path

import pytest

# Here and not in the fixture: on a loaded machine this takes longer than a test may, and while tests are collected no
# time limit runs.
from transformers import LlamaForCausalLM  # noqa: F401

from tests.training.fakes import make_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a Llama model of 2 layers and 96 tokens, with random weights."""
    return make_model(tmp_path_factory.mktemp("model"))
