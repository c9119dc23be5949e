"""The layers, the picture and the reach of changes, on small projects and on our own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.structure import graph, layers, picture, reach

Project = Callable[[dict[str, str]], graph.Graph]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Writes a project of these files and reads its graph."""
    def write(files: dict[str, str]) -> graph.Graph:
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return graph.read(root=tmp_path)

    return write


def test_imports_of_all_kinds_are_found(project: Project) -> None:
    found = project({
        "openclaw_rl/__init__.py": "", "openclaw_rl/rpc/__init__.py": "", "openclaw_rl/rpc/server.py": "",
        "openclaw_rl/rpc/errors.py": "class E: pass", "openclaw_rl/config/__init__.py": "",
        "openclaw_rl/client/a.py": "import openclaw_rl.rpc.server\nfrom .b import x\n"
                                   "def f():\n    from openclaw_rl.rpc.errors import E\n"
                                   "if TYPE_CHECKING:\n    from openclaw_rl import config\n"
                                   "NAME = 'openclaw_rl.client.c:make'\nRUN = ['openclaw-rl', 'status']\n",
        "openclaw_rl/client/b.py": "x = 1", "openclaw_rl/client/c.py": "", "openclaw_rl/cli/app.py": ""})
    module = "openclaw_rl.client.a"
    assert found.imports[module] == {"openclaw_rl.rpc.server", "openclaw_rl.client.b", "openclaw_rl.rpc.errors",
                                     "openclaw_rl.config"}
    assert found.types[module] == {"openclaw_rl.config"}
    assert found.names[module] == {"openclaw_rl.client.c", "openclaw_rl.cli.app"}


def test_what_goes_against_the_layers_is_named(project: Project) -> None:
    found = project({
        "openclaw_rl/cli/app.py": "from openclaw_rl.storage import a",
        "openclaw_rl/storage/a.py": "from openclaw_rl.serving import x",
        "openclaw_rl/serving/x.py": "from openclaw_rl.rollouts import y",
        "openclaw_rl/rollouts/y.py": "def f():\n    from openclaw_rl.serving import x",
        "openclaw_rl/attic/z.py": ""})
    assert list(layers.problems(found)) == [
        "openclaw_rl/attic has no layer in tools/structure/layers.py",
        "mutual: openclaw_rl.rollouts.y imports openclaw_rl.serving.x, openclaw_rl.serving.x imports "
        "openclaw_rl.rollouts.y",
        "upward: openclaw_rl.storage.a imports openclaw_rl.serving.x",
        "circle: openclaw_rl.rollouts.y, openclaw_rl.serving.x"]


def test_our_package_keeps_its_layers() -> None:
    assert not list(layers.problems(graph.read(graph.PACKAGE)))


def test_the_picture_is_drawn_again_when_it_is_stale(project: Project, tmp_path: Path) -> None:
    found = project({
        "openclaw_rl/cli/app.py": "import openclaw_rl.storage.a, openclaw_rl.runtime.b",
        "openclaw_rl/storage/a.py": "import openclaw_rl.runtime.b", "openclaw_rl/runtime/b.py": "",
        "openclaw_rl/README.md": "before\n<!-- drawn by tools/architecture -->\n<!-- end of the drawing -->\nafter\n"})
    readme = tmp_path / "openclaw_rl/README.md"
    assert picture.stale(found, readme)
    picture.write(found, readme)
    text = readme.read_text()
    assert not picture.stale(found, readme) and text.startswith("before\n") and text.endswith("after\n")
    assert "cli --> storage" in text and "storage --> runtime" in text and "cli --> runtime" not in text


@pytest.mark.parametrize(("changed", "tests"), [
    ("openclaw_rl/rpc/errors.py", ["tests/client/test_b.py", "tests/rpc/test_a.py"]),  # b through a helper
    ("openclaw_rl/client/b.py", ["tests/client/test_b.py"]),
    ("openclaw_rl/client/words.yaml", ["tests/client/test_b.py"]),  # which a module beside it may read
    ("openclaw_rl/cli/app.py", ["tests/test_c.py"]),  # which runs the command
    ("tests/rpc/conftest.py", ["tests/rpc/test_a.py"]),
    ("tests/rpc/test_a.py", ["tests/rpc/test_a.py"]),
    ("openclaw_rl/client/deleted.py", ["tests/client/test_b.py"]),
    ("pyproject.toml", ["tests"]),
])
def test_a_change_reaches(project: Project, tmp_path: Path, changed: str, tests: list[str]) -> None:
    found = project({
        "openclaw_rl/rpc/errors.py": "", "openclaw_rl/client/b.py": "", "openclaw_rl/cli/app.py": "",
        "tests/client/helper.py": "import openclaw_rl.rpc.errors",
        "tests/rpc/conftest.py": "", "tests/rpc/test_a.py": "from openclaw_rl.rpc import errors",
        "tests/client/test_b.py": "from openclaw_rl.client import b\nfrom tests.client.helper import errors",
        "tests/test_c.py": "import subprocess\nsubprocess.run(['openclaw-rl', 'status'])"})
    assert reach.reached(found, [changed], tmp_path) == tests


def test_what_has_changed_since_a_branch(tmp_path: Path) -> None:
    def git(*args: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *args], cwd=tmp_path, check=True,
                       capture_output=True)

    git("init", "-q", "-b", "main")
    (tmp_path / "old.py").write_text("1")
    git("add", ".")
    git("commit", "-qm", "one")
    git("checkout", "-qb", "work")
    (tmp_path / "committed.py").write_text("1")
    git("add", ".")
    git("commit", "-qm", "two")
    (tmp_path / "old.py").write_text("2")
    (tmp_path / "new.py").write_text("1")
    assert reach.changed_files("main", tmp_path) == ["committed.py", "new.py", "old.py"]
