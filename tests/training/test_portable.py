"""A version is exported as a folder that transformers and peft load, and imported by another mesh of its base model."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from openclaw_rl.api.in_process import InProcessMesh
from openclaw_rl.client import AsyncTrainerServiceClient
from openclaw_rl.config import Config
from openclaw_rl.runtime.home import Home
from openclaw_rl.training.portable.exporting import export_version
from openclaw_rl.training.portable.folder import Description, PortableError
from openclaw_rl.training.portable.importing import import_version
from openclaw_rl.v1.weights_pb2 import GATE_VERDICT_FAILED
from tests.mesh.in_process import in_process_mesh, quick_config, tiny_model

pytestmark = pytest.mark.slow
SETTINGS: dict[str, dict[str, Any]] = {"policy_server": {"max_tokens": 4}, "trainer": {"gate": {"enabled": False}}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def config(model: Path) -> Config:
    return quick_config(model, SETTINGS)


async def answers_with(mesh: InProcessMesh, version: int) -> None:
    async with asyncio.timeout(120):
        while mesh.component("policy_server").status().policy_version < version:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def complain(mesh: InProcessMesh, session: str) -> None:
    """A conversation that trains a version."""
    messages = []
    async with httpx.AsyncClient(base_url=mesh.http_address, trust_env=False, timeout=60) as http:
        for text in ("hi", "no, that is wrong", "no, that is wrong"):
            messages.append({"role": "user", "content": text})
            answer = await http.post("/v1/chat/completions", json={"messages": messages},
                                     headers={"X-Session-Id": session})
            messages.append(answer.json()["choices"][0]["message"])


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, model: Path, config: Config) -> Path:
    """Version 2 of a mesh, exported while that runs."""
    root = tmp_path_factory.mktemp("exported")

    async def learn() -> None:
        async with in_process_mesh(root / "home", model, SETTINGS) as mesh:
            for version in (1, 2):
                await complain(mesh, f"s{version}")
                await answers_with(mesh, version)
            await asyncio.to_thread(export_version, mesh.home, config, 2, root / "v2")

    asyncio.run(learn())
    return root / "v2"


def test_transformers_and_peft_load_it(exported: Path, model: Path) -> None:
    load: Any = AutoModelForCausalLM
    whole, base = load.from_pretrained(exported, dtype=torch.float32), load.from_pretrained(model, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(base, exported / "adapter")
    ids = torch.tensor([AutoTokenizer.from_pretrained(exported)("What is a heron?")["input_ids"]])
    with torch.no_grad():
        merged, beside = whole(ids).logits, adapted(ids).logits
        with adapted.disable_adapter():
            untrained = adapted(ids).logits
    assert (merged - beside).abs().max() < (merged - untrained).abs().max() / 4  # the merged one is rounded to bfloat16


def test_the_card_says_what_it_learned_from_and_quotes_nobody(exported: Path) -> None:
    described, card = Description.read(exported), (exported / "README.md").read_text()
    assert described.lineage == [2, 1] and described.manifest.parent == 0 and described.mesh.startswith("mesh-")
    count = len(described.manifest.turn_ids)
    assert count == len({*described.manifest.turn_ids}) >= 2
    assert f"after 2 training steps on {count} judged turns" in card and described.mesh in card
    assert "| 1 |" in card and "| 2 |" in card and "Votes on these turns: " in card
    assert "wrong" not in card and not [turn for turn in described.manifest.turn_ids if turn in card]


async def test_another_mesh_serves_it_and_trains_on(exported: Path, tmp_path: Path, model: Path,
                                                    config: Config) -> None:
    manifest = import_version(Home(tmp_path / "home"), config, exported)
    assert manifest.version == 1 and manifest.settings["imported_from"].endswith(", version 2")
    async with in_process_mesh(tmp_path / "home", model, SETTINGS) as mesh:
        await answers_with(mesh, 1)
        with pytest.raises(PortableError, match="runs; `openclaw-rl stop-all` first"):
            await asyncio.to_thread(import_version, mesh.home, config, exported)
        await complain(mesh, "s")
        await answers_with(mesh, 2)
        async with AsyncTrainerServiceClient(home=mesh.home) as trainer:
            versions = {v.manifest.version: v.manifest for v in (await trainer.list_versions()).versions}
    assert versions[1].digest == Description.read(exported).manifest.digest
    assert versions[2].parent == 1 and {*versions[1].turn_ids} == {*Description.read(exported).manifest.turn_ids}
    with pytest.raises(PortableError, match="is here already, as version 1"):
        import_version(Home(tmp_path / "home"), config, exported)


def _other_model(folder: Path) -> None:
    described = Description.read(folder)
    described.manifest.model_id = "0" * 64
    described.write(folder)


def _refused(folder: Path) -> None:
    described = Description.read(folder)
    described.manifest.gate.verdict = GATE_VERDICT_FAILED
    described.manifest.gate.failures.append("it loops")
    described.write(folder)


def _other_rank(folder: Path) -> None:
    described = Description.read(folder)
    described.manifest.settings["lora_rank"] = "3"
    described.write(folder)


def _newer(folder: Path) -> None:
    data = json.loads((folder / "openclaw_rl.json").read_text())
    (folder / "openclaw_rl.json").write_text(json.dumps(data | {"format": 9}))


def _changed(folder: Path) -> None:
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)


WRONG: dict[str, Callable[[Path], Any]] = {
    "is a version of another base model": _other_model, "did not pass the gate where it was made: it loops": _refused,
    r"was made with components\.trainer\.lora_rank: 3": _other_rank, "was written by a newer release": _newer,
    "is not what was exported": _changed, "is damaged": lambda folder: (folder / "openclaw_rl.json").write_text("{"),
    "has no openclaw_rl.json": lambda folder: (folder / "openclaw_rl.json").unlink(),
    "has no adapter": lambda folder: shutil.rmtree(folder / "adapter"),
    "can't be imported": lambda folder: (folder / "adapter" / "adapter_model.safetensors").write_text("x"),
    "can't be read": lambda folder: (folder / "model.safetensors").unlink()}


@pytest.mark.parametrize("told", WRONG)
def test_what_is_not_imported(told: str, exported: Path, tmp_path: Path, config: Config) -> None:
    folder, home = tmp_path / "folder", Home(tmp_path / "home")
    shutil.copytree(exported, folder)
    WRONG[told](folder)
    with pytest.raises(PortableError, match=told):
        import_version(home, config, folder)
    for kind in ("versions", "checkpoints"):
        assert not list((home.component("trainer") / kind).glob("[1-9]*"))
    assert import_version(home, config, exported).version == 1  # nothing stands in its way


def test_what_is_not_exported(exported: Path, tmp_path: Path, config: Config) -> None:
    home = Home(exported.parent / "home")
    for number, folder, told in ((0, tmp_path / "a", "version 0 is the base model"),
                                 (7, tmp_path / "a", "the weights of version 7 are not in .*; there are 1, 2"),
                                 (1, exported, "is not empty")):
        with pytest.raises(PortableError, match=told):
            export_version(home, config, number, folder)
    api = Config.model_validate({"components": {"policy_server": {"model": "gpt-4o-mini", "engine": "openai"}}})
    for action in (lambda: export_version(home, api, 1, tmp_path / "a"), lambda: import_version(home, api, exported)):
        with pytest.raises(PortableError, match="gpt-4o-mini"):
            action()
    damaged = shutil.copytree(home.root, tmp_path / "home")
    for component in ("trainer", "policy_server"):
        (damaged / component / "versions" / "2" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(PortableError, match="can't be exported"):
        export_version(Home(damaged), config, 2, tmp_path / "a")
    assert not (tmp_path / "a").exists() and not list(tmp_path.glob(".a.*"))
