"""Reference of the command line, generated from its help."""

from __future__ import annotations

import importlib
import re
import typing
from collections.abc import Iterator
from typing import Any

from openclaw_rl.docs import Language
from openclaw_rl.docs.translations import Translations

_WORDS: dict[str, dict[str, str]] = {
    "en": {"command": "command", "option": "option", "meaning": "meaning", "default": "default: {0}",
           "needed": "needed", "example": "Example:", "one of": "one of {0}"},
    "zh": {"command": "命令", "option": "选项", "meaning": "含义", "default": "默认：{0}", "needed": "必需",
           "example": "示例：", "one of": "取值 {0}"},
}


def tables(language: Language) -> tuple[str, list[str]]:
    """Return all commands as Markdown, and problems of their translation."""
    translations = Translations("commands", language)
    words = _WORDS[language]
    parts = [f"| {words['command']} | |", "|---|---|",
             *(f"| [`{name}`](#openclaw-rl-{name.replace(' ', '-')}) | {_does(name, command, translations)} |"
               for name, command in commands()), ""]
    for name, command in commands():
        parts += _command(name, command, words, translations)
    problems = [*translations.problems, *(f"commands.yaml: {key} is not a command or option any more"
                                          for key in translations.unused())]
    return "\n".join(parts), problems


def commands() -> Iterator[tuple[str, Any]]:
    """Yield each command, including subcommands such as `keys add`, with click's object."""
    import typer

    # By name: the command line imports the pages, and their reference is generated above both.
    yield from _below(typer.main.get_command(importlib.import_module("openclaw_rl.cli.commands").app), "")


def _below(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        yield f"{prefix}{name}", command
        if hasattr(command, "list_commands"):
            yield from _below(command, f"{prefix}{name} ")


def _paragraphs(command: Any) -> list[str]:
    return re.split(r"\n\s*\n", (command.help or "").strip())


def _does(name: str, command: Any, translations: Translations) -> str:
    """Return the first sentence of a command's help."""
    return re.split(r"(?<=\.)\s|(?<=。)", translations.text(name, _paragraphs(command)[0]))[0].replace("|", "\\|")


def _command(name: str, command: Any, words: dict[str, str], translations: Translations) -> list[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    usage = " ".join([f"openclaw-rl {name}", *(["[OPTIONS]"] if options else []), *map(_placeholder, arguments)])
    parts = [f"## openclaw-rl {name}", "", f"`{usage}`", ""]
    for i, paragraph in enumerate(_paragraphs(command)):
        parts += [translations.text(f"{name} {i}" if i else name, paragraph), ""]
    if arguments or options:
        parts += [f"| {words['option']} | {words['meaning']} |", "|---|---|",
                  *(_row(name, p, words, translations) for p in [*arguments, *options]), ""]
    for example in examples(command):
        parts += [f"{words['example']} `{example}`", ""]
    return parts


def examples(command: Any) -> list[str]:
    """Return the examples in a command's help: one line of several, or one paragraph each."""
    paragraphs = [" ".join(text.split()) for text in re.split(r"\n\s*\n", command.epilog or "")]
    if not paragraphs[0].startswith("Example: "):
        return []
    return [paragraphs[0].removeprefix("Example: "), *paragraphs[1:]]


def _placeholder(argument: Any) -> str:
    text = argument.name.upper() + ("..." if argument.nargs == -1 else "")
    return text if argument.required else f"[{text}]"


def _row(name: str, parameter: Any, words: dict[str, str], translations: Translations) -> str:
    if parameter.param_type_name == "argument":
        shown = _placeholder(parameter)
        key = f"{name} {parameter.name.upper()}"
    else:
        shown = ", ".join([*parameter.opts, *parameter.secondary_opts])
        longest = max(parameter.opts, key=len)
        key = f"* {longest}" if longest == "--json" else f"{name} {longest}"
    notes = [translations.text(key, _rest(parameter.help or ""))]
    if choices := _choices(parameter):
        notes.append(words["one of"].format(", ".join(f"`{choice}`" for choice in choices)))
    if parameter.required:
        notes.append(words["needed"])
    default = parameter.default
    if default not in (None, False, (), [], "") and getattr(parameter, "show_default", True):
        notes.append(words["default"].format(f"`{default}`"))
    text = " — ".join([notes[0], "; ".join(notes[1:])]) if notes[1:] else notes[0]
    return f"| `{shown}` | " + text.replace("|", "\\|") + " |"


def _choices(parameter: Any) -> list[str]:
    """Return a parameter's choices, if any. Older versions of typer keep click's type, newer ones the annotation."""
    if (there := getattr(getattr(parameter, "type", None), "choices", None)) is not None:
        return list(there)
    annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    return [choice for choice in typing.get_args(annotation) if isinstance(choice, str)]


def _rest(text: str) -> str:
    """Return a parameter's help without typer's additions."""
    return re.sub(r"\s*\[(required|default: [^\]]*)\]$", "", text)
