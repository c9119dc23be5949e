"""Our own environment server, judge and trainer conform."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("service", ["environment", "judge", "trainer"])
def test_ours_conforms(service: str, tmp_path: Path) -> None:
    command = (f"{sys.executable} {_ROOT}/tools/conformance/own.py {service} --address {{address}} --data {{data}} "
               "--listen {listen}")
    done = subprocess.run([str(Path(sys.executable).parent / "openclaw-rl"), "conformance", service, "--start", command,
                           "--json", "--junit", str(tmp_path / "report.xml")], capture_output=True, text=True,
                          check=False, cwd=tmp_path, env={**os.environ, "OPENCLAW_RL_HOME": str(tmp_path / "none")})
    report = json.loads(done.stdout)
    failed = {one["id"]: one["seen"] for one in report["checks"] if one["outcome"] not in ("passed", "skipped")}
    assert not failed, failed
    assert done.returncode == 0 and report["conforms"]
    skipped = [one["id"] for one in report["checks"] if one["outcome"] == "skipped"]
    assert set(skipped) <= {"trainer.trains"}
    suite = ET.parse(tmp_path / "report.xml").getroot()
    assert suite.attrib["failures"] == "0" and len(suite) == len(report["checks"]) > 60
