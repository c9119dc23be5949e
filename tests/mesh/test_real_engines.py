"""A whole ring: SGLang serves, megatron-core trains, and a complaint becomes a version that answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import yaml

from openclaw_rl.config import EMBEDDED_MODEL
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.process import all_processes
from openclaw_rl.training.backends.megatron.frames import TOKEN_VARIABLE
from tests.mesh.mesh import Mesh
from tests.mesh.test_ring import COMPLAINT, check_books
from tests.support.models import embedded_model
from tests.support.waiting import until

NEEDED = 11 << 30  # bytes: SGLang, and one rank with the policy and the frozen model in fp32


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mesh, str]]:
    """A mesh, and what its start said; nothing is left of it afterwards."""
    if psutil.virtual_memory().available < NEEDED:
        pytest.skip(f"needs {NEEDED >> 30} GB of memory")
    home = Home(tmp_path_factory.mktemp("engines") / "home").create()
    (home.models / EMBEDDED_MODEL).symlink_to(embedded_model())
    prompts = home.root / "prompts.jsonl"
    prompts.write_text('{"prompt": "What is rain?", "answer": "Water that falls from clouds."}\n')
    home.config_file.write_text(yaml.safe_dump({"components": {
        "policy_server": {"port": 0, "grpc_port": 0, "max_tokens": 32, "engine": "sglang"}, "env_server": {"port": 0},
        "prm_judge": {"port": 0}, "trainer": {
            "port": 0, "backend": "megatron", "model_size": "135M", "megatron": {"processes": 1}, "min_samples": 2,
            "max_batch": 4, "update_interval": 5, "gate": {
                "prompts": str(prompts), "max_new_tokens": 4, "max_perplexity_ratio": 2.0, "max_perplexity_growth": 2.0,
                "min_relevant_ratio": 0.0, "max_hint_growth": 2.0}}}}))
    mesh = Mesh(home)
    try:
        started = mesh.command("local-start", timeout=900)
        assert started.returncode == 0, started.stderr + mesh.logs()
        yield mesh, started.stderr + started.stdout
    finally:
        mesh.cli("stop-all")
    # PyTorch's manager of shared memory goes a moment after those that used it.
    until(lambda: not mesh.processes(), 60, "the end of all processes")


@pytest.mark.timeout(1500)  # its ring's start included
def test_a_complaint_becomes_a_version_that_answers(ring: tuple[Mesh, str]) -> None:
    mesh, said = ring
    assert "Megatron tensor 1 x pipeline 1 x data 1: 1 process on the CPU" in " ".join(said.split())
    mesh.session("complain", "How do I boil an egg?", COMPLAINT, "Thanks, that is great!", done=True)
    answered = 0

    def served() -> dict[str, Any] | None:
        nonlocal answered
        mesh.chat([{"role": "user", "content": "What is rain?"}], max_tokens=4)  # no request fails meanwhile
        answered += 1
        return next((v for v in mesh.json("versions") if v["active"] and v["version"] > 0), None)

    version = until(served, 480, "a version that answers")
    assert answered and version["turns"]
    response = mesh.chat([{"role": "user", "content": "What is rain?"}], max_tokens=4)
    assert int(response.headers["x-openclaw-policy-version"]) >= version["version"]
    assert _ranks(mesh), "a rank trained it"
    log = (mesh.home.logs / "trainer.log").read_text()
    assert "Megatron tensor 1 x pipeline 1 x data 1" in log and "the Megatron group of 1 runs" in log
    check_books(mesh)


def _ranks(mesh: Mesh) -> list[int]:
    found = []
    for process in all_processes():
        try:
            variables = process.environ()
        except psutil.Error:
            continue
        if variables.get("OPENCLAW_RL_HOME") == str(mesh.home.root) and TOKEN_VARIABLE in variables:
            found.append(process.pid)
    return found
