"""The layers of the package, and the imports that go against them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tools.structure.graph import PACKAGE, Graph

#: From the top. A package may import those of its own layer and of the layers below, but no two import each other.
LAYERS = (
    ("cli",),
    ("api", "dashboard", "docs", "conformance", "launch"),
    ("monitoring",),
    ("serving", "rollouts", "reward", "training"),
    ("client", "weights", "models", "sessions", "privacy", "delivery"),
    ("rpc", "observability", "storage"),
    ("config", "runtime"),
    ("v1",),
)


def packages(graph: Graph) -> dict[str, set[str]]:
    """Packages of the first level, and those that each imports."""
    found: dict[str, set[str]] = {}
    for module, imported in graph.imports.items():
        if package := _package(module):
            found.setdefault(package, set()).update(
                other for name in imported if (other := _package(name)) and other != package)
    return found


def problems(graph: Graph) -> Iterator[str]:
    """What is against the layers, a line each."""
    level = {package: number for number, layer in enumerate(LAYERS) for package in layer}
    between = _between(graph)
    arrows = packages(graph)
    for package in sorted(arrows.keys() - level.keys()):
        yield f"{PACKAGE}/{package} has no layer in tools/structure/layers.py"
    for package in sorted(arrows):
        for other in sorted(arrows[package]):
            if level.get(other, len(LAYERS)) < level.get(package, -1):
                pairs, kind = {(package, other)}, "upward"
            elif package < other and package in arrows[other] and level.get(package) == level.get(other):
                pairs, kind = {(package, other), (other, package)}, "mutual"
            else:
                continue
            yield f"{kind}: " + ", ".join(f"{a} imports {b}" for a, b in between if (_package(a), _package(b)) in pairs)
    for circle in circles({name: imported - graph.types[name] for name, imported in graph.imports.items()}):
        yield f"circle: {', '.join(circle)}"


def circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others (Tarjan's algorithm)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = low[module] = len(number)
        stack.append(module)
        for other in sorted(imports.get(module, ())):
            if other not in number:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], number[other])
        if low[module] == number[module]:
            start = stack.index(module)
            if len(circle := stack[start:]) > 1:
                found.append(sorted(circle))
            del stack[start:]

    for module in imports:
        if module not in number:
            visit(module)
    return sorted(found)


def _package(module: str) -> str:
    """The package of the first level that a module is in; empty for the package itself and for other code."""
    parts = module.split(".")
    return parts[1] if parts[0] == PACKAGE and len(parts) > 1 else ""


def _between(graph: Graph) -> list[tuple[str, str]]:
    """Imports from a module of one package to a module of another."""
    return sorted((module, other) for module, imported in graph.imports.items() for other in imported
                  if _package(module) and _package(other) and _package(module) != _package(other))
