"""Each benchmark starts: a name that moved once stopped one, which nobody saw before it was to be used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = sorted(path for path in (ROOT / "tools/bench").glob("*.py")
                    if "argparse.ArgumentParser(" in path.read_text())


def test_the_benchmarks_are_found() -> None:
    assert {"ring.py", "gateway.py", "weights.py"} <= {path.name for path in BENCHMARKS}


@pytest.mark.slow
@pytest.mark.parametrize("path", BENCHMARKS, ids=[path.stem for path in BENCHMARKS])
def test_a_benchmark_imports_what_it_needs_and_says_how_it_is_used(path: Path) -> None:
    done = subprocess.run([sys.executable, path, "--help"], capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "usage: " in done.stdout


@pytest.mark.slow
def test_the_journals_benchmark_runs() -> None:
    """The one that needs nothing but a folder."""
    done = subprocess.run([sys.executable, ROOT / "tools/bench/journal.py", "--lines", "2000", "--baseline-lines",
                           "500", "--runs", "1"], capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert '"bench": "journal"' in done.stdout
