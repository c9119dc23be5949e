"""What tools/release puts together."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.protos.generators import ROOT, bin_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_release(tmp_path: Path) -> None:
    bin_folder()
    out = tmp_path / "release"
    done = subprocess.run([sys.executable, ROOT / "tools/release", out], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    version = (ROOT / "protos/VERSION").read_text().strip()
    lines = [line.split("  ") for line in (out / "SHA256SUMS").read_text().splitlines()]
    sums = {name: digest for digest, name in lines}
    assert {*sums, "SHA256SUMS"} == {file.name for file in out.iterdir()}
    assert all(hashlib.sha256((out / name).read_bytes()).hexdigest() == digest for name, digest in sums.items())
    descriptors = (ROOT / "openclaw_rl/v1/openclaw_rl.v1.binpb").read_bytes()
    assert (out / f"openclaw_rl.v1-{version}.binpb").read_bytes() == descriptors
    assert (out / "CHANGES.md").read_text().startswith(f"## [{version}] - ")
    with tarfile.open(out / f"openclaw_rl-protos-{version}.tar.gz") as tar:
        names = {name.removeprefix(f"openclaw_rl-protos-{version}/protos/") for name in tar.getnames()}
    assert {"openclaw_rl/v1/policy.proto", "third_party/google/rpc/status.proto", "buf.yaml", "reference/README.md",
            "VERSIONING.md"} <= names
    [wheel] = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        files = set(packed.namelist())
    assert {"openclaw_rl/py.typed", "openclaw_rl/v1/policy_pb2.pyi", "openclaw_rl/v1/openclaw_rl.v1.binpb",
            "openclaw_rl/client/ring.py"} <= files
    assert not {name for name in files if re.match(r"(tests|tools|clients|servers)/", name)}
    assert list(out.glob("openclaw_rl-*.tar.gz"))


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    done = subprocess.run([sys.executable, ROOT / "tools/release", tmp_path], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 1 and "something else than a release (letter.txt)" in done.stderr
    assert (tmp_path / "letter.txt").exists()
