"""Read a configuration file."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel, ValidationError

from openclaw_rl.config.base import ConfigError
from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.config.mesh import Config

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


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


def changed(config: Config, changes: dict[str, Any]) -> Config:
    """Return a configuration with some keys changed, each named with its sections, as components.trainer.port.

    Raises:
        ConfigError: a value is not allowed; one line for each problem.
    """
    data = config.model_dump(exclude_unset=True)
    for key, value in changes.items():
        *sections, last = key.split(".")
        place = data
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(_problem(item) for item in error.errors())) from None


def load_config(path: str | Path | None) -> Config:
    """Read a configuration file; None gives the defaults.

    Raises:
        ConfigError: it can't be read or used; one line for each problem, as FILE:LINE: KEY: TEXT.
    """
    if path is None:
        return Config()
    path = Path(path)
    try:
        text = path.read_bytes()
        data = yaml.load(text, _Loader)
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
        root = yaml.compose(text, yaml.SafeLoader)
        raise ConfigError("\n".join(f"{path}:{_line(root, item['loc'])}: {_problem(item)}"
                                    for item in error.errors())) from None


def _problem(item: ErrorDetails) -> str:
    key = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        allowed = _allowed(item["loc"][:-1])
        guess = difflib.get_close_matches(str(item["loc"][-1]), allowed, 1)
        return "".join([f"{key}: unknown key; allowed here: {', '.join(allowed)}",
                        *(f". Did you mean {name}?" for name in guess)])
    if item["type"] == "value_error" and isinstance(item["input"], dict):  # of several keys; some may be secret
        return f"{key}: {item['msg'].removeprefix('Value error, ')}"
    value = repr(item["input"])
    if "api_keys" in item["loc"]:
        value = "what is there"  # a key, perhaps
    elif len(value) > 80:
        value = value[:77] + "..."
    needed = "a mapping of keys is needed" if item["type"] == "model_type" else item["msg"]
    return f"{key}: {value} is not allowed: {needed.removeprefix('Value error, ')}"


def _line(node: yaml.Node, loc: tuple[int | str, ...]) -> int:
    """Return the line of the innermost key, or item of a list, that the problem is in."""
    line = node.start_mark.line
    for part in loc:
        if isinstance(node, yaml.MappingNode):
            found = next(((key.start_mark.line, value) for key, value in node.value
                          if isinstance(key, yaml.ScalarNode) and key.value == str(part)), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            found = (node.value[part].start_mark.line, node.value[part])
        else:
            found = None
        if found is None:
            break
        line, node = found
    return int(line) + 1


def _allowed(loc: tuple[Any, ...]) -> list[str]:
    model: Any = Config
    for part in loc:
        annotation = model.model_fields[part].annotation if isinstance(model, type) and issubclass(
            model, BaseModel) and part in model.model_fields else EnvironmentConfig
        model = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else EnvironmentConfig
    return list(model.model_fields)
