"""Addresses and keys of models behind an API, for the policy, the judge and the playbook's writer."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from openclaw_rl.config import EMBEDDED_MODEL, Config, ConfigError, PolicyServerConfig, PrmJudgeConfig
from openclaw_rl.models.hub import is_hub_id

#: GLM's OpenAI-compatible API.
GLM_BASE_URL = "https://open.bigmodel.cn/api/paas/v4/"
#: OpenAI's API.
OPENAI_BASE_URL = "https://api.openai.com/v1"
#: Names of OpenAI's models, also of fine-tuned ones.
_OF_OPENAI = re.compile(r"((ft:)?(gpt|chatgpt)|o[1-9])\b", re.IGNORECASE)


@dataclass(frozen=True)
class ApiModel:
    """A model behind an OpenAI-compatible API. Its `repr`, and so any log, omits the key."""

    model: str
    base_url: str
    api_key: str = field(repr=False)


def resolve_api(model: str, base_url: str | None, api_key_env: str | None, environ: Mapping[str, str], *,
                alternative: str = "") -> ApiModel:
    """Find the API's address and key.

    Address: `base_url`, else the variable OPENAI_BASE_URL, else GLM's for glm models, else OpenAI's. Key: the
    variable that `api_key_env` names and no other; without a name ZHIPUAI_API_KEY for glm models, then
    OPENAI_API_KEY. An empty variable counts as absent.

    Args:
        alternative: a way without a key, as the last clause of the error.

    Raises:
        ConfigError: there is no key; the text names the variable to set.
    """
    glm, address = is_glm(model), resolve_address(model, base_url, environ)
    names = [api_key_env] if api_key_env else [*(["ZHIPUAI_API_KEY"] if glm else []), "OPENAI_API_KEY"]
    for name in names:
        if key := environ.get(name, "").strip():
            return ApiModel(model=model, base_url=address, api_key=key)
    instead = f", or {alternative}" if alternative else ""
    raise ConfigError(f"model {model!r} is an API model ({address}) and there is no key for it: set "
                      f"{' or '.join(names)} in the environment{instead}")


def resolve_address(model: str, base_url: str | None, environ: Mapping[str, str]) -> str:
    """Find the API's address; see `resolve_api`.

    Raises:
        ConfigError: it is not a URL.
    """
    address = base_url or environ.get("OPENAI_BASE_URL", "").strip() or (
        GLM_BASE_URL if is_glm(model) else OPENAI_BASE_URL)
    if not address.startswith(("http://", "https://")):
        raise ConfigError(f"the address of model {model!r} must begin with http:// or https://, not {address!r}")
    return address


def is_glm(model: str) -> bool:
    """Whether a model is one of Zhipu's GLM family, such as glm-4-flash."""
    return model.lower().startswith("glm")


def uses_api(policy: PolicyServerConfig, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the policy is a model behind an API, so that nothing is served or trained locally.

    With `engine: auto` that must be meant: an API's address or key is named, or the model is one of OpenAI's or GLM's.
    A hub's id with a key alone is still one to download.
    """
    if policy.engine != "auto":
        return policy.engine == "openai"
    model = policy.model
    if model == EMBEDDED_MODEL or model.startswith(("/", "./", "../", "~")) or Path(model).is_dir():
        return False
    if policy.base_url or environ.get("OPENAI_BASE_URL", "").strip():
        return True
    return not is_hub_id(model) and bool(policy.api_key_env or is_glm(model) or _OF_OPENAI.match(model))


def policy_api(policy: PolicyServerConfig, environ: Mapping[str, str]) -> ApiModel:
    """The policy's API.

    Raises:
        ConfigError: there is no key; the text names the variable to set and the embedded alternative.
    """
    return resolve_api(policy.model, policy.base_url, policy.api_key_env, environ, alternative=(
        f"use the embedded model, which needs none (components.policy_server.model: {EMBEDDED_MODEL})"))


def judge_api(judge: PrmJudgeConfig, environ: Mapping[str, str]) -> ApiModel:
    """The API of the judge `llm`.

    Raises:
        ConfigError: no model is named, or there is no key; the text says what to set.
    """
    if not judge.model:
        raise ConfigError("components.prm_judge.model: the judge 'llm' needs the name of a model")
    return resolve_api(judge.model, judge.base_url, judge.api_key_env, environ, alternative=(
        "use the judge that needs none (components.prm_judge.judge: rules)"))


def writer_api(config: Config, environ: Mapping[str, str]) -> ApiModel:
    """The API of the playbook's writer: the policy's own, unless another model is named.

    Raises:
        ConfigError: there is no key; the text names the variable to set.
    """
    policy, settings = config.components.policy_server, config.components.trainer.playbook
    if settings.model is None:
        return policy_api(policy, environ)
    return resolve_api(settings.model, settings.base_url, settings.api_key_env, environ, alternative=(
        "leave components.trainer.playbook.model out, so that the policy's own model words its playbook"))


def check_credentials(config: Config, environ: Mapping[str, str] = os.environ) -> None:
    """Check that the API models that this machine uses have their keys.

    Raises:
        ConfigError: one line for each missing key.
    """
    policy, judge = config.components.policy_server, config.components.prm_judge
    trainer = config.components.trainer
    problems: list[str] = []
    judged_by_api = judge.judge == "llm" or (judge.judge == "auto" and bool(judge.model))
    checks: tuple[tuple[bool, Callable[[], ApiModel]], ...] = (
        (policy.enabled and not policy.address and uses_api(policy), lambda: policy_api(policy, environ)),
        (judge.enabled and not judge.address and judged_by_api, lambda: judge_api(judge, environ)),
        (trainer.enabled and not trainer.address and uses_api(policy), lambda: writer_api(config, environ)))
    for wanted, find in checks:
        if wanted:
            try:
                find()
            except ConfigError as error:
                if str(error) not in problems:
                    problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(problems))
