"""Which back end, which writer, which keys."""

from __future__ import annotations

import pytest

from openclaw_rl.config import Config, ConfigError, TrainerConfig
from openclaw_rl.models.api_endpoints import ApiModel, check_credentials, writer_api
from openclaw_rl.training.server import check_backend


def config(**playbook: str) -> Config:
    return Config.model_validate({"components": {"policy_server": {"model": "glm-4-flash", "base_url": "http://p/v1"},
                                                 "trainer": {"playbook": playbook}}})


def test_the_backend_fits_the_policy() -> None:
    check_backend(TrainerConfig(), True)
    check_backend(TrainerConfig(backend="playbook"), True)
    check_backend(TrainerConfig(backend="torch"), False)
    with pytest.raises(ConfigError, match=r"components\.trainer\.backend: torch trains weights"):
        check_backend(TrainerConfig(backend="torch"), True)
    with pytest.raises(ConfigError, match="playbook is for API models"):
        check_backend(TrainerConfig(backend="playbook"), False)


def test_the_writer_is_the_policys_model_or_another_one() -> None:
    environ = {"OPENAI_API_KEY": "a", "MY_KEY": "m"}
    assert writer_api(config(), environ) == ApiModel("glm-4-flash", "http://p/v1", "a")
    found = writer_api(config(model="gpt-5", base_url="http://w/v1", api_key_env="MY_KEY"), environ)
    assert found == ApiModel("gpt-5", "http://w/v1", "m")


def test_a_missing_key_is_told_before_anything_starts() -> None:
    check_credentials(config(), {"OPENAI_API_KEY": "a"})
    with pytest.raises(ConfigError) as caught:
        check_credentials(config(model="gpt-5", api_key_env="MY_KEY"), {"OPENAI_API_KEY": "a"})
    assert "MY_KEY" in str(caught.value) and "components.trainer.playbook.model" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        check_credentials(config(), {})
    assert len(str(caught.value).splitlines()) == 1, "policy and writer lack the same"
