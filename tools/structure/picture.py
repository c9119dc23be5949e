"""The packages and their imports as a Mermaid diagram in the package's README."""

from __future__ import annotations

import re
from pathlib import Path

from tools.structure.graph import PACKAGE, ROOT, Graph
from tools.structure.layers import LAYERS, packages

README = ROOT / PACKAGE / "README.md"
_START, _END = "<!-- drawn by tools/architecture -->\n", "<!-- end of the drawing -->\n"


def draw(graph: Graph) -> str:
    """The diagram. An arrow that follows from others is left out; one upward, or one of a mutual pair, is dotted."""
    level = {package: number for number, layer in enumerate(LAYERS) for package in layer}
    arrows = packages(graph)
    down = {package: {other for other in imported
                      if level.get(other, 0) >= level.get(package, 0) and package not in arrows[other]}
            for package, imported in arrows.items()}
    lines = ["```mermaid", "flowchart TD"]
    for number, layer in enumerate(LAYERS):
        lines += [f"  subgraph layer{number} [ ]", *(f"    {package}" for package in layer), "  end"]
    for package in sorted(arrows):
        beyond = {last for other in down[package] for last in _reached(down, other)}
        lines += [f"  {package} --> {other}" for other in sorted(down[package] - beyond)]
        lines += [f"  {package} -.-> {other}" for other in sorted(arrows[package] - down[package])]
    return "\n".join([*lines, "```"]) + "\n"


def stale(graph: Graph, readme: Path = README) -> bool:
    return _drawn(graph, readme) != readme.read_text()


def write(graph: Graph, readme: Path = README) -> None:
    readme.write_text(_drawn(graph, readme))


def _drawn(graph: Graph, readme: Path) -> str:
    return re.sub(f"(?s)(?<={re.escape(_START)}).*?(?={re.escape(_END)})", draw(graph), readme.read_text())


def _reached(arrows: dict[str, set[str]], start: str) -> set[str]:
    """What is reached from a package by one or more arrows."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = arrows[waiting.pop()] - found
        found |= new
        waiting += new
    return found
