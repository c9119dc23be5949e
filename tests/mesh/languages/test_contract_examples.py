"""The lines of protos/EXAMPLES.md for a mesh with TLS."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.protos.examples import SECTIONS, run

LINES = [line for line in SECTIONS[""] if "certs/" in line]


@pytest.mark.parametrize("line", [
    pytest.param(line, id=f"{line.split()[0]}-{'key' if 'Bearer' in line else 'certificate'}") for line in LINES])
def test_line(peers: dict[str, str], grpcurl: str, buf: str, line: str) -> None:
    here = re.sub(r"127\.0\.0\.1:50(\d)53", lambda port: peers["OPENCLAW_RL_TEST_" + (
        "SECURE_KEYS" if port[1] == "1" else "SECURE_JUDGE")], line)
    done = run(here, grpcurl, buf, Path(peers["OPENCLAW_RL_TEST_CERTS"]).parent, KEY=peers["OPENCLAW_RL_TEST_KEY_READ"])
    assert done.returncode == 0 and '"prm_judge"' in done.stdout, done.stdout + done.stderr
