"""The tests that a change can reach."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from tools.structure.graph import PACKAGE, ROOT, Graph

#: A change of one of these can reach every test.
_EVERYTHING = ("pyproject.toml", "tests/conftest.py", "tools/test", "tools/environment", "tools/outside-tools", ".ci/")
#: Tests of what is not Python, by the folder of what they read.
_READERS = {
    "clients/": ("tests/mesh/languages", "tests/docs", "tests/protos", "tests/client"),
    "servers/": ("tests/mesh/languages", "tests/servers", "tests/docs"),
    "protos/": ("tests/protos", "tests/mesh", "tests/client", "tests/rpc", "tests/docs"),
    f"{PACKAGE}/v1/": ("tests/protos",),
    f"{PACKAGE}/docs/": ("tests/docs", "tests/mesh/test_docs.py"),
    "tools/": ("tests/tools", "tests/docs"),
    ".md": ("tests/docs", "tests/protos/test_pages.py", "tests/servers/test_readmes.py"),
}


def changed_files(base: str, root: Path = ROOT) -> list[str]:
    """Files that differ from where this branch left `base`, those not yet committed included."""
    fork = _git(root, "merge-base", base, "HEAD")[0]
    return sorted({*_git(root, "diff", "--name-only", fork),
                   *_git(root, "ls-files", "--others", "--exclude-standard")})


def reached(graph: Graph, changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """Paths of the test files that the changed files can reach, for pytest; `tests` alone for all."""
    users = _users(graph)
    modules = {file.relative_to(root).as_posix(): name for name, file in graph.files.items()}
    waiting: list[str] = []
    found: set[str] = set()
    for path in changed:
        if path.startswith(_EVERYTHING):
            return ["tests"]
        for part, readers in _READERS.items():
            if path.startswith(part) or path.endswith(part):
                found.update(reader for reader in readers if (root / reader).exists())
        if path in modules:
            waiting.append(modules[path])
        elif path.startswith((f"{PACKAGE}/", "tests/", "tools/", "servers/")):
            waiting += _beside(graph, root / path)
    seen = set(waiting)
    while waiting:
        for user in users.get(waiting.pop(), set()) - seen:
            seen.add(user)
            waiting.append(user)
    found.update(graph.files[name].relative_to(root).as_posix() for name in seen
                 if name.startswith("tests.") and graph.files[name].name.startswith("test_"))
    return sorted(path for path in found if not any(path.startswith(f"{other}/") for other in found))


def _users(graph: Graph) -> dict[str, set[str]]:
    """What runs each module: those that import or name it or something in it, and tests beneath a conftest."""
    users: dict[str, set[str]] = {name: set() for name in graph.files}
    for name, file in graph.files.items():
        for other in (graph.imports[name] - graph.types[name]) | graph.names[name]:
            while other and other != PACKAGE and not name.startswith(f"{other}."):
                if other in users:
                    users[other].add(name)
                other = other.rpartition(".")[0]
        if file.name == "conftest.py":
            users[name].update(test for test, path in graph.files.items()
                               if path.name.startswith("test_") and file.parent in path.parents)
    return users


def _beside(graph: Graph, file: Path) -> list[str]:
    """Modules that may read a file, or imported one that is gone: those of the nearest folder above that has some."""
    for folder in file.parents:
        if modules := [name for name, path in graph.files.items() if path.parent == folder]:
            return modules
    return []


def _git(root: Path, *args: str) -> list[str]:
    return subprocess.run(["git", *args], cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()
