"""Collection: what a run leaves out is not imported, and tests that share what is slow to start share a worker."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.support import plans

TESTS = Path(__file__).parent
#: Folders in which every test starts the real processes, and the seconds that one may take.
_MESH_FOLDERS = {TESTS / "mesh": 600, TESTS / "hosts": 1200}
_SLOW_MODULE = re.compile(r"^pytestmark = .*pytest\.mark\.slow\b", re.MULTILINE)
#: Files and folders whose tests share what is slow to start, by the start of their path under tests/: with
#: `--dist loadgroup` one worker runs all of a group. The slow tests of the first are begun first. Other files are a
#: group each.
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


class GroupScheduling(LoadScopeScheduling):
    """Sends the tests of a group to one worker. (xdist's own groups by a mark, but not with pytest 9.2's node ids.)"""

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid.partition("::")[0])[1]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling | None:
    return GroupScheduling(config, log) if config.option.dist == "loadgroup" else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out wholly slow modules when no slow test is asked for: to import them takes longer than many tests."""
    if "not slow" not in config.option.markexpr:
        return None
    if collection_path in _MESH_FOLDERS:
        return True
    if collection_path.suffix == ".py" and _SLOW_MODULE.search(collection_path.read_text()):
        return True
    return None


@pytest.hookimpl(tryfirst=True)  # before pytest reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their folder, and put the files with slow ones first: the others fill the gaps at the end."""
    slow: set[str] = set()
    for item in items:
        for folder, seconds in _MESH_FOLDERS.items():
            if folder in item.path.parents:
                item.add_marker(pytest.mark.slow)
                item.add_marker(pytest.mark.mesh)
                item.add_marker(pytest.mark.timeout(seconds))
        if item.get_closest_marker("slow") is not None:
            slow.add(_group(item.nodeid)[1])

    def rank(item: pytest.Item) -> int:
        number, group = _group(item.nodeid)
        return number if group in slow else len(_GROUPS) + 1

    items.sort(key=rank)


def _group(nodeid: str) -> tuple[int, str]:
    """The place of a test's group among those that share something, and its name."""
    path = nodeid.partition("::")[0]
    inside = path.removeprefix("tests/")
    return next(((number, group) for number, (start, group) in enumerate(_GROUPS) if inside.startswith(start)),
                (len(_GROUPS), path))


def pytest_collection_finish() -> None:
    """Keep what is loaded by now out of garbage collection: it stays, and each full collection would walk all of it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_costly_statement() -> Iterator[None]:
    """Fail when a statement of the package reads more the more is stored, and nobody has said why that is right."""
    plans.install()
    yield
    found = "\n".join(plans.taken())
    assert not found, f"statements that read more the more is stored (see tests/support/plans.py):\n{found}"
