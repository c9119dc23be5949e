"""The judge's container: built from its container file, and run with a real engine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from openclaw_rl.client import ComponentServiceClient, JudgeServiceClient
from tests.rollouts.sandboxes import engine
from tests.servers import slim_image
from tests.support.required import left_out
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables with which `docker` talks to a real engine that has the base image."""
    if reason := engine.why_not():
        left_out(reason)
    with engine.dockerd(tmp_path_factory.mktemp("dockerd")) as url:
        slim_image.make(url)
        yield {**os.environ, "DOCKER_HOST": url, "DOCKER_BUILDKIT": "0"}


def run(docker: dict[str, str], *args: str, check: bool = True) -> str:
    done = subprocess.run(["docker", *args], env=docker, cwd=ROOT, capture_output=True, text=True, check=False,
                          timeout=400)
    assert not check or done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_judge_in_a_container(docker: dict[str, str], tmp_path: Path) -> None:
    run(docker, "build", "--network", "host", "-f", "servers/judge/Containerfile", "-t", "openclaw-rl-judge", ".")
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"components": {"prm_judge": {"port": 0}}}))
    config.chmod(0o644)
    # The engine of the test has no network of its own.
    run(docker, "run", "-d", "--name", "judge", "--network", "host", "--read-only", "--tmpfs", "/tmp", "--cap-drop",
        "ALL", "-v", f"{config}:/config.yaml:ro", "openclaw-rl-judge")
    well = ("exec", "judge", "python", "health.py", "prm_judge", "/config.yaml")
    until(lambda: subprocess.run(["docker", *well], env=docker, capture_output=True, check=False).returncode == 0, 90,
          f"the judge serves: {run(docker, 'logs', 'judge')}")
    address = yaml.safe_load(run(docker, "exec", "judge", "cat", "/state/run/prm_judge.json"))["address"]
    with JudgeServiceClient(address) as judge:
        assert judge.judge(transition={
            "turn": {"turn_id": "t", "messages": [{"role": "user", "content": "What is a heron?"}],
                     "response": {"role": "assistant", "content": "A fish."}},
            "next_state": {"messages": [{"role": "user", "content": "That is wrong."}]}}).judgement.score == -1
    assert run(docker, "exec", "judge", "id", "-u") == "10001"
    with ComponentServiceClient(address, component="prm_judge") as component:
        component.drain()
    assert run(docker, "wait", "judge") == "0"
