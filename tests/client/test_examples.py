"""The examples of clients/python are short, and typed through and through."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: What packages that the examples use import in turn, and which takes half of mypy's time.
_NOT_OURS = "numpy.*,rich.*,cryptography.*,websockets.*,httpcore.*,werkzeug.*,IPython.*"
FILES = sorted((ROOT / "clients/python").glob("*.py"))


def test_they_are_short() -> None:
    assert len(FILES) >= 7
    assert not [file.name for file in FILES if len(file.read_text().splitlines()) >= 60]


def test_types_are_shipped() -> None:
    assert (ROOT / "openclaw_rl/py.typed").exists()


def test_importing_the_clients_loads_nothing_heavy() -> None:
    heavy = ("pydantic", "cryptography", "opentelemetry", "openai", "httpx", "starlette", "tenacity", "yaml", "numpy",
             "torch")
    done = subprocess.run([sys.executable, "-c", "import sys, openclaw_rl.client; "
                           f"print([name for name in {heavy} if name in sys.modules])"], capture_output=True, text=True,
                          check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_they_are_strictly_typed(tmp_path: Path) -> None:
    """As whoever installs the package checks their own program: the package itself is not looked at."""
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nstrict = True\nfollow_imports = silent\nfollow_imports_for_stubs = True\n"
                      "ignore_missing_imports = True\n"
                      f"[mypy-{_NOT_OURS}]\nfollow_imports = skip\n")
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from openclaw_rl.client import PolicyServiceClient\n"
                     "with PolicyServiceClient('here:1') as policy:\n"
                     "    reveal_type(policy.ask('Hi'))\n"
                     "    policy.ask('Hi', session='s')\n")
    done = subprocess.run([sys.executable, "-m", "mypy", "--config-file", config, "--cache-dir",
                           ROOT / ".mypy_cache/examples", *FILES, wrong], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    told = [line for line in done.stdout.splitlines() if ".py:" in line]
    assert told and all("wrong.py" in line for line in told), done.stdout + done.stderr
    assert "ChatAnswer" in told[0] and '"session"' in told[1], told
