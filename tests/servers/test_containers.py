"""The compose file, valid by the Compose specification, and the container files (test_container.py builds one)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from openclaw_rl.runtime.home import COMPONENTS
from tests.servers.deployed import SERVERS

COMPOSE = SERVERS / "compose.yaml"


def validate(file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec",
                           str(file)], capture_output=True, text=True, check=False)


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


def test_the_compose_file_is_valid() -> None:
    done = validate(COMPOSE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_validator_finds_what_is_wrong(tmp_path: Path) -> None:
    wrong = yaml.safe_load(COMPOSE.read_text())
    wrong["services"]["trainer"]["heathcheck"] = wrong["services"]["trainer"].pop("healthcheck")
    (tmp_path / "compose.yaml").write_text(yaml.safe_dump(wrong))
    done = validate(tmp_path / "compose.yaml")
    assert done.returncode and "heathcheck" in done.stdout


def test_the_four_are_built_from_files_that_are_there_and_asked_how_they_are() -> None:
    names = {name.replace("_", "-"): name for name in COMPONENTS}
    assert services().keys() == names.keys()
    for app, service in services().items():
        build = service["build"]
        assert (SERVERS / build["context"] / build["dockerfile"]).is_file()
        assert service["healthcheck"]["test"] == ["CMD", "python", "health.py", names[app], "/config.yaml"]
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert f"./certs/{app}:/certs:ro" in service["volumes"] and f"{app}:/state" in service["volumes"]
    document = yaml.safe_load(COMPOSE.read_text())
    assert document["volumes"].keys() == names.keys()
    assert (SERVERS / document["configs"]["config"]["file"]).is_file()
    # The HTTPS door only, and to this machine only.
    assert {app: service["ports"] for app, service in services().items() if "ports" in service} == {
        "policy-server": ["127.0.0.1:30000:30000"]}


@pytest.mark.parametrize("file", sorted(SERVERS.glob("*/Containerfile")), ids=lambda file: file.parent.name)
def test_a_container_file_copies_what_is_there_and_drops_root(file: Path) -> None:
    text = file.read_text()
    for sources in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        for source in sources.split():
            assert (SERVERS.parent / source).exists(), source
    assert re.findall(r"^USER (.+)$", text, re.MULTILINE) == ["10001"]
    assert text.index("USER 10001") < text.index("CMD ")
    assert re.search(r'^CMD \["python", "serve.py", "/config.yaml"\]$', text, re.MULTILINE)
    for extra in re.findall(r"^ARG EXTRAS=(\S+)|EXTRAS=(\S+)$", text, re.MULTILINE):
        project = (SERVERS.parent / "pyproject.toml").read_text()
        assert f"\n{''.join(extra)} = [" in project
