"""The layers of the package, and the imports that go against them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from structure.graph import PACKAGE, Graph

#: From the top. A package may import those of its own layer and of the layers below.
LAYERS = (
    ("cli",),
    ("api", "dashboard", "docs", "conformance", "launch"),
    ("serving", "rollouts", "reward", "training"),
    ("client", "weights", "models", "sessions", "privacy", "delivery"),
    ("rpc", "observability", "storage"),
    ("config", "runtime"),
    ("v1",),
)
#: Imports upward that are left, each a pair of packages. To be emptied; nothing may be added.
UPWARD: frozenset[tuple[str, str]] = frozenset({("rpc", "serving"), ("runtime", "rpc"), ("docs", "cli")})
#: Pairs of packages that import each other. To be emptied; nothing may be added.
MUTUAL: frozenset[tuple[str, str]] = frozenset({
    ("cli", "docs"), ("config", "runtime"), ("models", "weights"), ("observability", "rpc"), ("rpc", "runtime"),
    ("rpc", "serving")})


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
    arrows = packages(graph)
    for package in sorted(arrows.keys() - level.keys()):
        yield f"{PACKAGE}/{package} has no layer: add it to LAYERS in tools/structure/layers.py"
    upward = {(package, other) for package, imported in arrows.items() for other in imported
              if level.get(other, len(LAYERS)) < level.get(package, -1)}
    mutual = {(package, other) for package, imported in arrows.items() for other in imported
              if package < other and package in arrows[other]}
    for pair in sorted(upward - UPWARD):
        yield f"{pair[0]} imports upward from {pair[1]}: {', '.join(_examples(graph, *pair))}"
    for pair in sorted(mutual - MUTUAL):
        yield (f"{pair[0]} and {pair[1]} import each other: {', '.join(_examples(graph, *pair))}; "
               f"{', '.join(_examples(graph, pair[1], pair[0]))}")
    for pair in sorted((UPWARD - upward) | (MUTUAL - mutual)):
        yield f"{pair[0]} and {pair[1]} are clean: remove the pair from UPWARD or MUTUAL in tools/structure/layers.py"
    for circle in circles({name: imported - graph.types[name] for name, imported in graph.imports.items()}):
        yield f"import circle: {', '.join(circle)}"


def circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others (Tarjan's algorithm)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = low[module] = len(number)
        stack.append(module)
        for other in imports.get(module, ()):
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
    return found


def _package(module: str) -> str:
    """The package of the first level that a module is in; empty for the package itself and for other code."""
    parts = module.split(".")
    return parts[1] if parts[0] == PACKAGE and len(parts) > 1 else ""


def _examples(graph: Graph, package: str, other: str) -> list[str]:
    return sorted(f"{module} -> {name}" for module, imported in graph.imports.items() if _package(module) == package
                  for name in imported if _package(name) == other)[:3]
