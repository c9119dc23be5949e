"""Runs `python tools/conformance` and reads its reports."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Read:
    """What a JUnit file says.

    Attributes:
        checks: all ids.
        skipped: id -> why.
        warned: ids of those that a server should keep and does not, with what was seen.
    """

    checks: list[str]
    skipped: dict[str, str]
    warned: dict[str, str]


def conforming(folder: Path, *servers: str, jobs: int, options: tuple[str, ...] = ()) -> dict[str, Read]:
    """Run the kit on servers of this repository, all of which have to conform; the reports by server."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/conformance"), *servers, "--jobs", str(jobs), "--junit", str(folder),
         *options], capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return {server: _read(folder / f"{server}.xml") for server in servers}


def _read(file: Path) -> Read:
    suite = ET.parse(file).getroot()
    assert suite.attrib["failures"] == suite.attrib["errors"] == "0"
    skipped, warned = {}, {}
    for case in suite:
        for element in case.findall("skipped"):
            skipped[case.attrib["name"]] = element.attrib["message"]
        for element in case.findall("system-out"):
            warned[case.attrib["name"]] = element.text or ""
    return Read([case.attrib["name"] for case in suite], skipped, warned)
