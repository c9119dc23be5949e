"""The lines of protos/EXAMPLES.md."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PAGE = (ROOT / "protos/EXAMPLES.md").read_text()

#: By the heading that they stand under, SERVICE/RPC; those before the first one under "".
SECTIONS: dict[str, list[str]] = {
    heading: re.findall(r"^(?:grpcurl|buf curl) .*$", text, re.M) for heading, text in zip(
        ["", *re.findall(r"^### (.*)$", _PAGE, re.M)], re.split(r"^### .*$", _PAGE, flags=re.M), strict=True)}


def run(line: str, grpcurl: str, buf: str, folder: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a line with these programs, in the folder that the page says."""
    line = re.sub(r"^grpcurl ", f"{grpcurl} ", re.sub(r"^buf ", f"{buf} ", line))
    return subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, **env})
