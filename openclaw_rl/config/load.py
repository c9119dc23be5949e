"""Read a configuration file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from openclaw_rl.config.base import ConfigError
from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.config.mesh import Config


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML comes without types
    """YAML whose mappings have each key once; of two, PyYAML silently takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value} is there twice",
                                                        key.start_mark)
            seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def load_config(path: str | Path | None) -> Config:
    """Read a configuration file; None gives the defaults.

    Raises:
        ConfigError: it can't be read or used; one line for each problem.
    """
    if path is None:
        return Config()
    path = Path(path)
    try:
        data = yaml.load(path.read_bytes(), _Loader)
    except OSError as error:
        raise ConfigError(f"{path}: {os.strerror(error.errno or 0)}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not a configuration: it is nested too deeply") from None
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: must be a mapping of keys, not a {type(data).__name__}")
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{path}: {line}" for line in _problems(error))) from None


def _problems(error: ValidationError) -> list[str]:
    lines = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            lines.append(f"{key}: unknown key; allowed here: {', '.join(_allowed(item['loc'][:-1]))}")
            continue
        if item["type"] == "value_error" and isinstance(item["input"], dict):  # of several keys; some may be secret
            lines.append(f"{key}: {item['msg'].removeprefix('Value error, ')}")
            continue
        value = repr(item["input"])
        if "api_keys" in item["loc"]:
            value = "what is there"  # a key, perhaps
        elif len(value) > 80:
            value = value[:77] + "..."
        allowed = "a mapping of keys is needed" if item["type"] == "model_type" else item["msg"]
        lines.append(f"{key}: {value} is not allowed: {allowed.removeprefix('Value error, ')}")
    return lines


def _allowed(loc: tuple[Any, ...]) -> list[str]:
    model: Any = Config
    for part in loc:
        annotation = model.model_fields[part].annotation if isinstance(model, type) and issubclass(
            model, BaseModel) and part in model.model_fields else EnvironmentConfig
        model = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else EnvironmentConfig
    return list(model.model_fields)
