"""The lines of protos/EXAMPLES.md, run with the real programs against the real mesh."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from openclaw_rl.runtime import mesh_id
from openclaw_rl.runtime.home import Home, read_record
from tests.mesh.mesh import Mesh
from tests.protos.examples import SECTIONS, run
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
PORTS = {"50051": "policy_server", "50052": "env_server", "50053": "prm_judge", "50054": "trainer"}
#: Calls that wait for what may not come in two seconds.
QUIET = {"WatchJudgements", "WatchTraining"}


def here(mesh: Mesh, line: str) -> str:
    return re.sub(r"127\.0\.0\.1:(5005\d)", lambda port: mesh.record(PORTS[port[1]]).address, line)


@pytest.mark.parametrize("service", ["", "PolicyService", "EnvironmentService", "JudgeService", "TrainerService",
                                     "ComponentService"])
def test_lines(mesh: Mesh, grpcurl: str, buf: str, service: str) -> None:
    """In the page's order: a lease is acquired before it is used. Neighbours that look on for two seconds do it at the
    same time."""
    lines = [here(mesh, line) for heading, lines in SECTIONS.items() if heading.partition("/")[0] == service
             for line in lines if "certs/" not in line and not line.endswith("/Drain")]
    assert len(lines) >= 2
    wrong: list[str] = []
    id = mesh_id.read(mesh.home)
    with ThreadPoolExecutor() as pool:
        for together, group in itertools.groupby(lines, looks_on):
            wrong += (pool.map if together else map)(lambda line: problem(line, grpcurl, buf, MESH=id), group)
    assert not any(wrong), "\n".join(wrong)
    until(mesh.all_running, 60, "all well afterwards")


def looks_on(line: str) -> bool:
    """A stream that is ended by its deadline."""
    return "-max-time" in line or "--timeout" in line


def problem(line: str, grpcurl: str, buf: str, **variables: str) -> str:
    """What is wrong with how a line went; empty when nothing is."""
    done = run(line, grpcurl, buf, **variables)
    if looks_on(line):
        well = "deadline" in done.stderr.lower() and (line.rpartition("/")[2] in QUIET or done.stdout.count("{") >= 1)
    else:
        well = done.returncode == 0 and "{" in done.stdout
    if well and "ACK_STATUS_REJECTED" not in done.stdout:
        return ""
    return f"{line}\n{done.stdout[-1000:]}{done.stderr[-1000:]}"


def test_draining(grpcurl: str, buf: str, tmp_path: Path) -> None:
    """Of components of their own: they end by it, with exit code 0."""
    for i, line in enumerate(SECTIONS["ComponentService/Drain"]):
        home = Home(tmp_path / str(i)).create()
        home.config_file.write_text(yaml.safe_dump({"components": {"prm_judge": {"port": 0}}}))
        process = subprocess.Popen([sys.executable, ROOT / "servers/judge/serve.py", home.config_file],
                                   env={**os.environ, "OPENCLAW_RL_HOME": str(home.root)})
        try:
            record = until(lambda home=home: read_record(home, "prm_judge"), 60, "the judge")
            done = run(line.replace("127.0.0.1:50053", record.address), grpcurl, buf)
            assert done.returncode == 0, done.stderr
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
