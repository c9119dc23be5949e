from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.sandboxes import factory as make
from openclaw_rl.rollouts.sandboxes import images
from openclaw_rl.rollouts.sandboxes.bubblewrap.backend import Bubblewrap
from openclaw_rl.rollouts.sandboxes.interface import Spec
from tests.rollouts.sandboxes.escapes import SPEC

ROOT = Path(__file__).parents[3]


def build_image(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(ROOT / "servers/environment/build-image"), *arguments],
                          capture_output=True, text=True, check=False)


async def test_an_image_is_built_and_used(bubblewrap: Bubblewrap, tmp_path: Path, open_folder: Path) -> None:
    assert "build-image terminal" in str(images.validate_image(tmp_path, "openclaw/terminal-env", "bubblewrap"))
    extra = open_folder / "extra"
    extra.mkdir()
    extra.chmod(0o755)
    (extra / "note").write_text("hello")
    done = build_image("terminal", "--home", str(tmp_path), "--folder", str(extra))
    assert done.returncode == 0 and "built openclaw/terminal-env:latest" in done.stdout, done.stderr
    assert images.validate_image(tmp_path, "openclaw/terminal-env", "bubblewrap") is None
    backend = Bubblewrap(images.Images(tmp_path), "images")
    sandbox = await backend.make(Spec(SPEC.limits, "openclaw/terminal-env:latest"))
    assert (await sandbox.run(["cat", str(extra / "note")])).output == b"hello"
    await sandbox.close()
    if os.geteuid() == 0:
        extra.chmod(0o700)
        assert "chmod o+x" in str(await backend.validate(Spec(SPEC.limits, "openclaw/terminal-env:latest")))
    (extra / "note").unlink()
    extra.rmdir()
    assert "not there any more" in str(await backend.validate(Spec(SPEC.limits, "openclaw/terminal-env:latest")))


def test_what_is_missing_is_told_with_the_line_that_installs_it(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/bash").symlink_to("/nowhere")
    done = build_image("gui", "--home", str(tmp_path), "--tree", str(tmp_path))
    assert done.returncode == 1
    assert "bash, setsid, Xvfb" in done.stderr and "install bash util-linux xvfb" in done.stderr
    done = build_image("terminal", "--home", str(tmp_path), "--tree", str(tmp_path / "none"))
    assert done.returncode == 1 and "is no folder" in done.stderr
    done = build_image("terminal", "--home", str(tmp_path), "--tag", "Not A Name")
    assert done.returncode == 1 and "is not the name of an image" in done.stderr
    assert not (tmp_path / "images").exists()


def test_links_in_a_tree_are_followed_in_that_tree(tmp_path: Path) -> None:
    folder = tmp_path / "usr/bin"
    folder.mkdir(parents=True)
    for program in ("bash", "setsid", "git", "real-python"):
        (folder / program).write_text("")
        (folder / program).chmod(0o755)
    (folder / "python3").symlink_to("real-python")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/diff").symlink_to("/usr/bin/git")
    (folder / "diff").symlink_to("/etc/diff")
    assert images.build("swe", root=tmp_path).programs["diff"] == "/usr/bin/diff"
    (folder / "git").unlink()
    with pytest.raises(ValueError, match="git, diff not found"):
        images.build("swe", root=tmp_path)


@pytest.mark.parametrize("kind", sorted(images.RECIPES))
def test_the_container_files_have_the_same_packages(kind: str) -> None:
    text = (ROOT / f"servers/environment/images/{kind}/Containerfile").read_text()
    assert " ".join(images.RECIPES[kind].packages["apt-get"]) in text


@pytest.mark.parametrize("name", ["../x", "/x", "A/b", "a//b", "a:", "a b", "a/../b", ""])
def test_names_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not the name of an image"):
        images.check_name(name)


async def test_the_back_end_that_a_configuration_means(bubblewrap: Bubblewrap, tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    auto = make.backend(EnvironmentConfig(count=1), tmp_path)
    assert auto.name == "auto" and not await auto.validate(SPEC) and auto.name == "bubblewrap"
    sandbox = await auto.make(SPEC)
    await sandbox.close()
    backend = make.backend(EnvironmentConfig(count=1), tmp_path)
    problem = str(await backend.validate(Spec(SPEC.limits, "openclaw/gui-env:latest")))
    assert "build-image gui --for bubblewrap" in problem and "--for docker" in problem
    docker = make.backend(EnvironmentConfig(count=1, backend="docker"), tmp_path)
    assert "`image` is missing" in str(await docker.validate(SPEC))
    assert "DOCKER_HOST" in str(await docker.validate(Spec(SPEC.limits, "openclaw/gui-env:latest")))
    assert make.label(tmp_path) != make.label(tmp_path / "other")
