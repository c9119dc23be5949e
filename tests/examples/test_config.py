"""The configuration files that users have work as they stand."""

from __future__ import annotations

from pathlib import Path

from openclaw_rl.config import load_config
from openclaw_rl.models.api_endpoints import check_credentials, policy_api

FOLDER = Path(__file__).parent


def test_session_awareness() -> None:
    config = load_config(FOLDER / "config.yaml")
    assert config.session_awareness.trainable_patterns[2] == ".*user_correction.*"
    assert config.session_awareness.session_timeout == 300
    check_credentials(config, {})


def test_everything_on_one_machine_with_an_api_model() -> None:
    config = load_config(FOLDER / "local_config.yaml")
    environ = {"ZHIPUAI_API_KEY": "k", "OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}
    check_credentials(config, environ)
    assert policy_api(config.components.policy_server, environ).base_url == "http://127.0.0.1:1/v1"
    assert config.components.trainer.update_interval == 60
