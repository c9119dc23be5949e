"""Reference of the configuration, generated from its models."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import annotated_types
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from openclaw_rl.config import Config
from openclaw_rl.config.base import Component, parse_size
from openclaw_rl.docs import Language
from openclaw_rl.docs.translations import Translations

#: Words of a language: types, bounds, and what frames the tables.
_WORDS: dict[str, dict[str, str]] = {
    "en": {"int": "integer", "float": "number", "str": "text", "bool": "`true` or `false`", "path": "path",
           "size": "size, such as `512KB`, `100MB`", "port": "port, 0 to 65535", "list": "list of {0}",
           "dict": "mapping of names to {0}", "section": "section, see [{0}](#{1})", "or": " or ", "none": "none",
           "bounds": ", {0}", "and": " and ", "key": "key", "type": "type and allowed values", "default": "default",
           "meaning": "meaning", "top": "Top level"},
    "zh": {"int": "整数", "float": "数", "str": "文本", "bool": "`true` 或 `false`", "path": "路径",
           "size": "大小，如 `512KB`、`100MB`", "port": "端口，0 到 65535", "list": "{0}的列表",
           "dict": "名称到{0}的映射", "section": "小节，见 [{0}](#{1})", "or": "或", "none": "无",
           "bounds": "，{0}", "and": " 且 ", "key": "键", "type": "类型与允许的值", "default": "默认值",
           "meaning": "含义", "top": "顶层"},
}


def tables(language: Language) -> tuple[str, list[str]]:
    """All sections as Markdown, and what is wrong with their translation."""
    translations, words = Translations("configuration", language), _WORDS[language]
    parts: list[str] = []
    for name, model, doc in _sections():
        parts += [f"## {name or words['top']}", ""]
        if name:
            parts += [translations.text(f"[{name}]", doc), ""]
        parts += [f"| {words['key']} | {words['type']} | {words['default']} | {words['meaning']} |",
                  "|---|---|---|---|", *_rows(name, model, language, translations), ""]
    problems = [*translations.problems, *(f"configuration.yaml: {key} is not a key any more"
                                          for key in translations.unused())]
    return "\n".join(parts), problems


def _sections(model: type[BaseModel] = Config, name: str = "", doc: str = "") -> Iterator[tuple[str, Any, str]]:
    """Each section with its name and meaning, depth first; those in a mapping have NAME in theirs."""
    if any(_section(field) is None for field in model.model_fields.values()):
        yield name, model, doc or model.__doc__ or ""
    for key, field in model.model_fields.items():
        if (inner := _section(field)) is not None:
            yield from _sections(inner, f"{name}.{key}".lstrip("."), inner.__doc__ or "")
        elif (inner := _inside(field)) is not None:
            suffix = ".NAME" if typing.get_origin(field.annotation) is dict else ""
            yield from _sections(inner, f"{name}.{key}{suffix}".lstrip("."), inner.__doc__ or "")


def _section(field: FieldInfo) -> Any:
    """The model of a field that is a section of its own."""
    return field.annotation if _is_model(field.annotation) else None


def _inside(field: FieldInfo) -> Any:
    """The model in a mapping, or in an optional field."""
    return next((arg for arg in typing.get_args(field.annotation) if _is_model(arg)), None)


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _rows(section: str, model: type[BaseModel], language: Language, translations: Translations) -> Iterator[str]:
    for key, field in model.model_fields.items():
        if _section(field) is not None:
            continue
        name = f"{section}.{key}".lstrip(".")
        meaning = translations.text(_key(name, model, key), field.description or "")
        cells = (f"`{key}`", _type(field, name, language), _default(field, language), meaning)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _key(name: str, model: type[BaseModel], key: str) -> str:
    """Return the key of a translation; keys common to all components share one."""
    return f"components.*.{key}" if issubclass(model, Component) and key in Component.model_fields else name


def _type(field: FieldInfo, name: str, language: Language) -> str:
    words = _WORDS[language]
    if _inside(field) is None:
        return _of(field.annotation, list(field.metadata), words)
    mapping = typing.get_origin(field.annotation) is dict
    where = f"{name}.NAME" if mapping else name
    text = words["section"].format(where, where.lower().replace(".", ""))
    return words["dict"].format(text) if mapping else text


def _of(annotation: Any, metadata: list[Any], words: dict[str, str]) -> str:
    """A type in words, with what is allowed."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _of(args[0], [*args[1:], *metadata], words)
    if origin in (typing.Union, types.UnionType):
        return words["or"].join(_of(arg, metadata, words) for arg in args if arg is not type(None))
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in args)
    if origin is list:
        return words["list"].format(_of(args[0], [], words))
    if origin is dict:
        return words["dict"].format(_of(args[1], [], words))
    if any(getattr(item, "func", None) is parse_size for item in metadata):
        return words["size"]
    bounds = _bounds(metadata)
    if bounds == ["≥ 0", "≤ 65535"]:
        return words["port"]
    names = {int: "int", float: "float", str: "str", bool: "bool", Path: "path"}
    return words[names[annotation]] + (words["bounds"].format(words["and"].join(bounds)) if bounds else "")


def _bounds(metadata: list[Any]) -> list[str]:
    found: dict[str, str] = {}
    for item in _flat(metadata):
        for kind, attribute, sign in ((annotated_types.Ge, "ge", "≥"), (annotated_types.Gt, "gt", ">"),
                                      (annotated_types.Le, "le", "≤"), (annotated_types.Lt, "lt", "<")):
            if isinstance(item, kind):
                found[sign] = f"{sign} {getattr(item, attribute):g}"
    return [found[sign] for sign in ("≥", ">", "≤", "<") if sign in found]


def _flat(metadata: list[Any]) -> Iterator[Any]:
    for item in metadata:
        if isinstance(item, FieldInfo):
            yield from _flat(item.metadata)
        else:
            yield item


def _default(field: FieldInfo, language: Language) -> str:
    if field.is_required():
        return "—"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return _WORDS[language]["none"]
    return "`" + yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip() + "`"
