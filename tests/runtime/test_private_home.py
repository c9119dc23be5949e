"""Nobody but its owner reads a home."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.config import Config
from openclaw_rl.launch import checks
from openclaw_rl.launch.checks import StartError
from openclaw_rl.runtime import private
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.private import NotPrivate, tighten
from tests.support.private import open_to_others

#: The user that services run as which are nobody's.
NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


@pytest.fixture(autouse=True)
def generous() -> Iterator[None]:
    """A user whose files are everybody's."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that everybody can enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def earlier(root: Path) -> Home:
    """A home as earlier releases left it."""
    for name in ("run", "logs", "models", "trainer"):
        (root / name).mkdir(parents=True)
    (root / "trainer/state.db").write_text("what users said")
    (root / "logs/tool.sh").touch(0o777)
    return Home(root)


def read_by_nobody(path: Path) -> str:
    return subprocess.run(["cat", str(path)], user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True,
                          text=True, check=False).stdout


@as_root
def test_another_user_reads_nothing(shared: Path) -> None:
    home = earlier(shared / "home")
    state = home.root / "trainer/state.db"
    assert read_by_nobody(state) == "what users said"
    home.create()
    assert read_by_nobody(state) == ""


def test_a_new_home_is_closed(tmp_path: Path) -> None:
    assert open_to_others(Home(tmp_path / "a/home").create().root) == []


def test_an_existing_home_is_closed(tmp_path: Path) -> None:
    home = earlier(tmp_path / "home")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch(0o644)
    (home.root / "link").symlink_to(elsewhere)
    home.create()
    assert home.root.stat().st_mode & 0o777 == 0o700
    assert tighten(home.root) == 6 and open_to_others(home.root) == []
    assert (home.root / "logs/tool.sh").stat().st_mode & 0o777 == 0o700
    assert elsewhere.stat().st_mode & 0o777 == 0o644 and tighten(home.root) == 0


def test_a_look_at_a_home_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = earlier(tmp_path / "home").create()
    monkeypatch.setattr(private, "_MOST_FILES", 3)
    assert tighten(home.root) <= 5


@as_root
def test_one_of_another_user_is_refused(tmp_path: Path) -> None:
    home = earlier(tmp_path / "home")
    os.chown(home.root, NOBODY, NOBODY)
    with pytest.raises(NotPrivate, match=r"belongs to user nobody and you are user root.*set OPENCLAW_RL_HOME"):
        home.create()
    with pytest.raises(StartError, match=r"home can't be used: it belongs to user nobody"):
        checks.check_home(home, Config())
    os.chown(home.root, 0, 0)
    os.chown(home.root / "trainer/state.db", NOBODY, NOBODY)
    tighten(home.create().root)
    assert open_to_others(home.root) == ["trainer/state.db -rw-rw-rw-"], "it is not ours to change"


@as_root
def test_a_volume_of_root_is_used(shared: Path) -> None:
    """As Kubernetes mounts one for a pod's user."""
    volume = shared / "state"
    volume.mkdir()
    os.chown(volume, 0, NOBODY)
    volume.chmod(0o2775)
    pid = os.fork()
    if pid == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        try:
            Home(volume).create()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert all(not path.stat().st_mode & 0o077 for path in volume.iterdir())


def test_what_is_more_than_a_home_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/holiday.jpg").touch()
    (tmp_path / "photos").chmod(0o755)
    with pytest.raises(NotPrivate, match=r"\(mode 0755\) and it has other files"):
        Home(tmp_path / "photos").create()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    scratch.chmod(0o1777)
    with pytest.raises(NotPrivate, match="other files"):
        Home(scratch).create()
    assert scratch.stat().st_mode & 0o1777 == 0o1777


def test_a_file_system_that_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = earlier(tmp_path / "home")
    monkeypatch.setattr(Path, "chmod", lambda *_: None)
    with pytest.raises(NotPrivate, match="whatever its mode"):
        home.create()

    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "chmod", read_only)
    with pytest.raises(NotPrivate, match="can't be changed: Read-only file system"):
        home.create()
