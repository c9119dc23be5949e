from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_rl.policy.template import ChatTemplate

from .stub import write_tokenizer


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> ChatTemplate:
    return ChatTemplate(write_tokenizer(Path(tmp_path_factory.mktemp("tokenizer"))))
