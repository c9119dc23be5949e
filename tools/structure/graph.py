"""Modules of the project and the imports between them, read from the source without running it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "openclaw_rl"
#: Folders with Python code.
FOLDERS = (PACKAGE, "tests", "tools", "servers")
#: What the command `openclaw-rl` runs.
COMMAND = f"{PACKAGE}.cli.app"
#: A string that names a module which is started, loaded on first use or registered as an entry point; or the command.
_NAMED = re.compile(rf"^(?:{PACKAGE}|tests)(?:\.\w+)+|^openclaw-rl$")


@dataclass(frozen=True)
class Graph:
    """Attributes:
    files: of each module.
    imports: modules of the project that each one imports, anywhere in its file.
    types: those of them that it imports for type checkers only.
    names: modules that each one names in a string, so that they run in its process or in another that it starts.
    """

    files: dict[str, Path]
    imports: dict[str, set[str]]
    types: dict[str, set[str]]
    names: dict[str, set[str]]


def read(*folders: str, root: Path = ROOT) -> Graph:
    """Read the graph of these folders, by default of all with Python code."""
    graph = Graph(files(*folders, root=root), {}, {}, {})
    for name, file in graph.files.items():
        uses = _Uses(name, file)
        for found, where in ((uses.imports, graph.imports), (uses.types, graph.types), (uses.names, graph.names)):
            where[name] = {known for full in found if (known := _known(full, graph.files))} - {name}
        graph.types[name] -= {known for full in uses.imports - uses.types if (known := _known(full, graph.files))}
    return graph


def files(*folders: str, root: Path = ROOT) -> dict[str, Path]:
    """Modules in these folders, by default in all with Python code, and the file of each."""
    found: dict[str, Path] = {}
    for folder in folders or FOLDERS:
        for file in sorted((root / folder).rglob("*.py")):
            parts = file.relative_to(root).with_suffix("").parts
            if "node_modules" not in parts:
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


class _Uses(ast.NodeVisitor):
    """What a file imports, and what its strings name."""

    def __init__(self, name: str, file: Path) -> None:
        self.imports: set[str] = set()
        self.types: set[str] = set()
        self.names: set[str] = set()
        self._package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
        self._only_types = False
        self.visit(ast.parse(file.read_text()))

    def visit_If(self, node: ast.If) -> None:
        before, self._only_types = self._only_types, ast.unparse(node.test).endswith("TYPE_CHECKING")
        for child in node.body:
            self.visit(child)
        self._only_types = before
        self.visit(node.test)
        for child in node.orelse:
            self.visit(child)

    def visit_Import(self, node: ast.Import) -> None:
        self._found(alias.name for alias in node.names)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            base = ".".join([*self._package[:len(self._package) - node.level + 1], *([base] if base else [])])
        self._found(f"{base}.{alias.name}" for alias in node.names)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and (named := _NAMED.match(node.value)):
            self.names.add(COMMAND if named[0] == "openclaw-rl" else named[0])

    def _found(self, names: Iterable[str]) -> None:
        names = set(names)
        self.imports |= names
        if self._only_types:
            self.types |= names


def _known(full: str, files: dict[str, Path]) -> str:
    """The module of the project that a dotted name is, or is an attribute of; empty for a stranger's."""
    while full and full not in files:
        full = full.rpartition(".")[0]
    return full
