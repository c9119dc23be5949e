"""From a configuration and a machine to a plan, or to the sentence that helps."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import Config, TrainerConfig
from openclaw_rl.launch import checks
from openclaw_rl.launch.checks import StartError
from openclaw_rl.models import memory
from openclaw_rl.models.config import ModelConfig
from openclaw_rl.runtime.home import Home
from openclaw_rl.training.backends.megatron import hardware
from openclaw_rl.training.backends.megatron import plan as plans
from openclaw_rl.training.backends.megatron.hardware import Hardware
from openclaw_rl.training.backends.megatron.layout import Layout, LayoutError
from openclaw_rl.training.backends.megatron.plan import EMBEDDED, check_trainer, describe_trainer, plan
from openclaw_rl.training.backends.selection import kind, method
from tests.support.models import embedded_model
from tests.training.backends.megatron.test_layout import GB, LLAMA_8B

NO_GPU = Hardware([], 20 * GB, "nvidia-smi is not there")


def planned(found: Hardware = NO_GPU, model: ModelConfig = EMBEDDED, **trainer: Any) -> plans.Plan:
    return plan(TrainerConfig(backend="megatron", **trainer), model, found)


def problem(found: Hardware = NO_GPU, model: ModelConfig = EMBEDDED, **trainer: Any) -> str:
    with pytest.raises(LayoutError) as error:
        planned(found, model, **trainer)
    return str(error.value)


def test_which_back_end() -> None:
    assert [kind(TrainerConfig(**keys)) for keys in ({}, {"gpus": 8}, {"model_size": "8B"}, {"backend": "megatron"},
                                                     {"backend": "torch", "gpus": 8})] == [
        "torch", "megatron", "megatron", "megatron", "torch"]
    assert (method(TrainerConfig()), method(TrainerConfig(gpus=1))) == ("lora", "full")


def test_without_a_gpu_it_is_one_process_on_the_cpu() -> None:
    made = planned()
    assert (made.layout, made.gpu) == (Layout(1, 1, 1), False)
    assert str(made).startswith("Megatron tensor 1 x pipeline 1 x data 1: 1 process on the CPU for 135M parameters; "
                                "each needs about ")
    assert "weights, gradients, optimizer and base model at 20 bytes a parameter" in str(made)
    assert str(made).endswith("and has 20.0 GB")
    assert planned(megatron={"processes": 3}).layout == Layout(1, 1, 3)
    assert planned(megatron={"processes": 3, "tensor_parallel": 3}).layout == Layout(3, 1, 1)
    assert planned(megatron={"tensor_parallel": 3, "pipeline_parallel": 2}).layout == Layout(3, 2, 1)
    assert planned(device="cpu", found=Hardware([80 * GB], 20 * GB)).gpu is False


def test_gpus_are_taken_as_asked_for_or_as_few_as_will_do() -> None:
    eight = Hardware([80 * GB] * 8, 100 * GB)
    made = planned(eight, LLAMA_8B, gpus=8, model_size="8B")
    assert (made.layout, made.gpu) == (Layout(4, 1, 2), True)
    assert "8 GPUs for 8.0B parameters" in str(made)
    assert planned(eight, LLAMA_8B, gpus=4).layout == Layout(4, 1, 1)
    assert planned(eight, LLAMA_8B).layout.world == 4, "two have too little memory, three allow no layout"
    assert planned(eight).layout == Layout(1, 1, 1)
    assert planned(eight, LLAMA_8B, megatron={"tensor_parallel": 4, "data_parallel": 2}).layout == Layout(4, 1, 2)


def test_gpus_that_are_not_there() -> None:
    text = problem(gpus=8)
    assert text.startswith("components.trainer.gpus: 8, found 0 GPUs (nvidia-smi is not there); what would fit: "
                           "backend: megatron without gpus and model_size, on the CPU: the model of 135M needs ")
    assert text.endswith("20.0 GB are free; a machine with 8 GPUs of 5.4 GB or more each (tensor 1 x pipeline 1 x "
                         "data 8)")
    text = problem(Hardware([80 * GB] * 4, 20 * GB), LLAMA_8B, gpus=8)
    assert "found 4 GPUs (80.0 GB, 80.0 GB, 80.0 GB, 80.0 GB); what would fit: gpus: 4 (tensor 4 x pipeline 1" in text
    assert "20.0 GB are free, too little" in text
    assert problem(device="cuda").startswith("components.trainer.device: cuda, found 0 GPUs")
    assert problem(device="cpu", gpus=2) == "components.trainer.device: cpu contradicts gpus: 2; leave one of them out"


def test_a_size_that_is_not_the_models() -> None:
    text = problem(model_size="8B")
    assert text == ("components.trainer.model_size: 8B contradicts the model that the policy server serves, which has "
                    "135M parameters; set components.policy_server.model to the folder of a model of 8B, or model_size "
                    "to 135M, or leave it out")
    assert planned(model_size="135M").layout.world == 1
    assert "model_size: 'big' is no size" in problem(model_size="big")
    assert len(problem(model_size="8B", gpus=8).splitlines()) == 2, "all of it is told"


def test_what_the_back_end_can_not_do() -> None:
    assert "method: lora is not there with backend megatron; allowed: auto, full" in problem(method="lora")
    assert "config.json says mlp_bias: true is not supported" in problem(model=replace(EMBEDDED, mlp_bias=True))
    text = problem(Hardware([], 4 * GB), megatron={"processes": 2})
    assert text.startswith("components.trainer.megatron.processes: 2, each with 2.0 GB of memory, are too little for a "
                           "model of 135M: ")
    assert "2 does not divide the model's 9 heads" in problem(megatron={"tensor_parallel": 2})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "find", lambda: NO_GPU)


def config(trainer: dict[str, Any], **policy: Any) -> Config:
    return Config.model_validate({"components": {"trainer": trainer, "policy_server": policy}})


def test_the_check_before_a_start(machine: None, tmp_path: Path) -> None:
    home, model = Home(tmp_path), tmp_path / "tiny"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 96,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-6}))
    assert check_trainer(config({}), home) == []
    assert describe_trainer(config({}), home) == ""
    assert check_trainer(config({"backend": "megatron"}), home) == []
    assert describe_trainer(config({"backend": "megatron"}), home).startswith("Megatron tensor 1 ")
    # The example configuration's trainer, on this machine.
    found = check_trainer(config({"gpus": 8, "model_size": "8B"}), home)
    assert [line.split(",")[0] for line in found] == [
        "components.trainer.model_size: 8B contradicts the model that the policy server serves",
        "components.trainer.gpus: 8"]
    assert describe_trainer(config({"gpus": 8}), home) == ""
    assert check_trainer(config({"backend": "megatron", "megatron": {"tensor_parallel": 2}}, model=str(model)),
                         home) == []
    assert "tensor_parallel: 4 does not" in check_trainer(
        config({"backend": "megatron", "megatron": {"tensor_parallel": 4}}, model=str(model)), home)[0]
    assert check_trainer(config({"gpus": 8}, engine="openai", model="glm-4-flash"), home) == [], "auto: the playbook"
    assert "has none; allowed: auto, playbook" in check_trainer(
        config({"backend": "megatron"}, engine="openai", model="glm-4-flash"), home)[0]


def test_a_start_is_refused_with_all_of_it_before_anything_runs(machine: None, tmp_path: Path) -> None:
    with pytest.raises(StartError) as error:
        checks.check_trainer(config({"gpus": 8, "model_size": "8B"}), Home(tmp_path))
    assert "contradicts the model" in str(error.value) and "gpus: 8, found 0 GPUs" in str(error.value)
    assert checks.check_trainer(config({"backend": "megatron"}), Home(tmp_path)).startswith("Megatron tensor 1 ")
    assert checks.check_trainer(config({}), Home(tmp_path)) == ""


def test_a_missing_package_is_named(machine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "find_spec", lambda name: None)
    assert "pip install 'openclaw-rl[megatron]'" in check_trainer(config({"backend": "megatron"}), Home(tmp_path))[0]


@pytest.mark.slow
def test_the_embedded_models_sizes_are_those_of_its_folder() -> None:
    assert ModelConfig.read(embedded_model()) == EMBEDDED


# The machine

def smi(folder: Path, script: str) -> None:
    file = folder / "nvidia-smi"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def test_gpus_are_found_without_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert hardware.find().gpus == [] and hardware.find().why_no_gpu == "nvidia-smi is not there"
    smi(tmp_path, "printf '0, GPU-aa1, 81559\\n1, GPU-bb2, 40960\\n'")

    assert hardware.find().gpus == [81559 << 20, 40960 << 20]
    for visible, gpus in (("1", [40960 << 20]), ("GPU-bb", [40960 << 20]), ("", []), ("-1", []), ("1,0", [
            40960 << 20, 81559 << 20])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert hardware.find().gpus == gpus, visible
    assert hardware.find().why_no_gpu == ""
    smi(tmp_path, "echo 'NVIDIA-SMI has failed because it could not communicate with the driver.'; exit 9")
    assert hardware.find().gpus == [] and "could not communicate with the driver" in hardware.find().why_no_gpu


def test_a_containers_limit_is_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    free = hardware.find().free_memory
    assert free > 1000
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    assert hardware.find().free_memory == 1000


def test_checking_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    code = ("import json, sys; from openclaw_rl.training.backends.megatron import backend, plan;"
            "print(json.dumps([m for m in ('torch', 'megatron.core', 'transformers') if m in sys.modules]))")
    assert json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout) == []
