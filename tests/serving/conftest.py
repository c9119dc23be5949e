from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_rl.serving.text.template import ChatTemplate
from tests.serving.peers import make_model
from tests.serving.stub import write_tokenizer


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> ChatTemplate:
    return ChatTemplate(write_tokenizer(Path(tmp_path_factory.mktemp("tokenizer"))))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a base model of four tensors that differ from version to version, and one that does not."""
    return make_model(tmp_path_factory.mktemp("model"))
