"""The kit is no part of the runtime."""

from __future__ import annotations

import ast
from pathlib import Path

import openclaw_rl

PACKAGE = Path(openclaw_rl.__file__).parent
KIT = "openclaw_rl.conformance"


def _imports(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {name.name for name in node.names}
    if isinstance(node, ast.ImportFrom):
        return {node.module or "", *(f"{node.module}.{name.name}" for name in node.names)}
    return set()


def test_only_its_command_imports_it_and_only_when_it_runs() -> None:
    importers: set[str] = set()
    for file in PACKAGE.rglob("*.py"):
        if KIT.rpartition(".")[2] in file.relative_to(PACKAGE).parts[:1]:
            continue
        tree = ast.parse(file.read_text())
        if any(found.startswith(KIT) for node in ast.walk(tree) for found in _imports(node)):
            importers.add(str(file.relative_to(PACKAGE)))
            assert not any(found.startswith(KIT) for node in tree.body for found in _imports(node)), file
    assert importers == {"cli/conformance.py"}
