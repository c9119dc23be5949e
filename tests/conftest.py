"""Collection: what a run leaves out is not imported, and tests that share what is slow to start share a worker."""

from __future__ import annotations

import gc
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
#: Folders in which every test starts the real processes, and the seconds that one may take.
_MESH_FOLDERS = {TESTS / "mesh": 600, TESTS / "hosts": 1200}
_SLOW_MODULE = re.compile(r"^pytestmark = .*pytest\.mark\.slow\b", re.MULTILINE)
#: What slow tests share, by the start of their path: one worker runs all of a group (`--dist loadgroup`), and the
#: groups that take longest are begun first. Other slow tests are a group per file.
_GROUPS = (
    ("mesh/languages", "languages"),
    ("mesh/test_real_engines.py", "real engines"),
    ("mesh/test_policy_servers.py", "policy servers"),
    ("mesh/test_api_model.py", "API model"),
    ("mesh/test_secure.py", "secure mesh"),
    ("mesh/test_forget.py", "forgetting mesh"),
    ("mesh/test_traces.py", "traced mesh"),
    ("mesh", "mesh"),
    ("hosts", "hosts"),
    ("training/backends/megatron", "megatron"),
    ("conformance", "conformance"),
    ("dashboard", "chromium"),
    ("launch", "supervisor"),
    ("rollouts/sandboxes", "docker"),
    ("servers/test_container.py", "docker"),
)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out wholly slow modules when no slow test is asked for: to import them takes longer than many tests."""
    if "not slow" not in config.option.markexpr:
        return None
    if collection_path in _MESH_FOLDERS:
        return True
    if collection_path.suffix == ".py" and _SLOW_MODULE.search(collection_path.read_text()):
        return True
    return None


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups and pytest the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their folder, give slow ones their group, and put them first: the others fill the gaps."""
    order: dict[pytest.Item, int] = {}
    for item in items:
        for folder, seconds in _MESH_FOLDERS.items():
            if folder in item.path.parents:
                item.add_marker(pytest.mark.slow)
                item.add_marker(pytest.mark.mesh)
                item.add_marker(pytest.mark.timeout(seconds))
        if item.get_closest_marker("slow") is None:
            order[item] = len(_GROUPS) + 1
            continue
        path = item.path.relative_to(TESTS).as_posix()
        order[item], group = next(((number, group) for number, (start, group) in enumerate(_GROUPS)
                                   if path.startswith(start)), (len(_GROUPS), path))
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: order[item])


def pytest_collection_finish() -> None:
    """Keep what is loaded by now out of garbage collection: it stays, and each full collection would walk all of it."""
    gc.collect()
    gc.freeze()
