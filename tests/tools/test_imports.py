"""Names that tools, tests and examples import from the project exist, also where an import waits in a function."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from tools.structure import graph


@functools.cache
def defined(file: Path) -> set[str] | None:
    """Names at a module's top level; None when it makes names as they are asked for."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return None if "__getattr__" in names else names


def missing(name: str, files: dict[str, Path]) -> Iterator[str]:
    file = files[name]
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
            continue
        root = node.module.partition(".")[0]
        if root not in ("openclaw_rl", "tests") or node.module.startswith("openclaw_rl.v1"):
            continue
        if node.module not in files:
            if not (graph.ROOT / node.module.replace(".", "/")).is_dir():
                yield f"{name}:{node.lineno}: there is no module {node.module}"
            continue
        names = defined(files[node.module])
        for alias in node.names:
            if names is not None and alias.name not in names and f"{node.module}.{alias.name}" not in files and (
                    alias.name != "v1"):
                yield f"{name}:{node.lineno}: {node.module} has no {alias.name}"


def test_imported_names_exist() -> None:
    files = graph.files()
    assert {"tools.bench.gateway", "tools.chaos.run", "openclaw_rl.cli.app"} <= files.keys()
    wrong = [line for name in files if ".v1." not in name for line in missing(name, files)]
    assert not wrong, "\n".join(wrong)


def test_loggers_are_called_logger() -> None:
    for name, file in graph.files("openclaw_rl", "servers", "tools").items():
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign) and "getLogger(__name__)" in ast.unparse(node.value):
                assert [ast.unparse(target) for target in node.targets] == ["logger"], name
