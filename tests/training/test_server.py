"""The trainer's process as it is deployed: the real backend on a tiny model, killed and started again."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import yaml

from openclaw_rl.config import Config
from openclaw_rl.rpc.channel import connect
from openclaw_rl.rpc.membership import Membership
from openclaw_rl.runtime.home import Home, read_record
from openclaw_rl.training import server
from openclaw_rl.v1 import component_pb2, component_pb2_grpc, turn_pb2
from openclaw_rl.v1 import trainer_pb2 as pb
from openclaw_rl.v1.trainer_pb2_grpc import TrainerServiceStub
from tests.support.gate import LENIENT_GATE
from tests.training.fakes import make_sample

#: Of the trainer and of the turns that it is sent.
MESH = "mesh-of-tests"


def settings(model: Path) -> dict[str, object]:
    return {"mesh_id": MESH, "components": {
        "policy_server": {"model": str(model)},
        "trainer": {"port": 0, "min_samples": 2, "max_batch": 2, "update_interval": 1, "gate": LENIENT_GATE}}}


@asynccontextmanager
async def connected(home: Home, alive: object, seconds: float = 60) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to the trainer, once it has recorded its address; `alive` is called while it hasn't."""
    deadline = time.monotonic() + seconds
    while (record := read_record(home, "trainer")) is None:
        assert time.monotonic() < deadline
        alive()  # type: ignore[operator]
        await asyncio.sleep(0.02)
    async with connect(record.address, ours=Membership(MESH, "prm_judge")) as channel:
        yield channel


async def submit(channel: grpc.aio.Channel, samples: list[turn_pb2.Sample]) -> set[str]:
    """Ids that were acknowledged."""
    acks = set()

    async def requests() -> AsyncIterator[pb.SubmitSamplesRequest]:
        for sample in samples:
            sample.transition.turn.mesh_id = MESH
            yield pb.SubmitSamplesRequest(samples=[sample])

    async for response in TrainerServiceStub(channel).SubmitSamples(requests()):
        acks |= {ack.id for ack in response.acks}
    return acks


async def settled(channel: grpc.aio.Channel, turn_ids: list[str], seconds: float = 90) -> list[pb.SampleStatus]:
    deadline = time.monotonic() + seconds
    while True:
        statuses = (await TrainerServiceStub(channel).ListSamples(pb.ListSamplesRequest(turn_ids=turn_ids))).samples
        if len(statuses) == len(turn_ids) and all(s.fate != pb.SAMPLE_FATE_PENDING for s in statuses):
            return list(statuses)
        assert time.monotonic() < deadline, statuses
        await asyncio.sleep(0.05)


async def test_the_assembled_trainer_learns_and_drains(tmp_path: Path, model: Path) -> None:
    home = Home(tmp_path).create()
    task = asyncio.create_task(server.run(Config.model_validate(settings(model)), home))
    async with connected(home, lambda: task.done() and task.result()) as channel:
        assert await submit(channel, [make_sample("a", hint="be brief"), make_sample("b", 1)]) == {"a", "b"}
        statuses = await settled(channel, ["a", "b"])
        assert [(s.fate, s.version) for s in statuses] == [(pb.SAMPLE_FATE_TRAINED, 1)] * 2
        version = (await TrainerServiceStub(channel).GetVersion(pb.GetVersionRequest(version=1))).version
        assert version.manifest.metrics["grad_norm"] > 0
        assert version.manifest.metrics["distillation"] > 0
        assert (version.kept, version.active, version.detail) == (True, False, "not sent yet")
        await component_pb2_grpc.ComponentServiceStub(channel).Drain(component_pb2.DrainRequest())
    await asyncio.wait_for(task, 20)
    assert read_record(home, "trainer") is None


def test_pytorch_is_not_imported_before_there_is_something_to_train() -> None:
    import subprocess

    code = "import sys, openclaw_rl.training.server; print({'torch', 'transformers', 'peft'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_killed_again_and_again_every_sample_has_one_fate(tmp_path: Path, model: Path) -> None:
    home = Home(tmp_path).create()
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(settings(model)))
    samples = [make_sample(f"t{i}", -1, "be brief") for i in range(8)]
    ids = [f"t{i}" for i in range(8)]
    rng = random.Random(1)

    async def start() -> asyncio.subprocess.Process:
        (home.run / "trainer.json").unlink(missing_ok=True)
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "openclaw_rl.launch.component", "trainer", "--config", str(config),
            env=os.environ | {"OPENCLAW_RL_HOME": str(tmp_path)})

    async def submit_all(channel: grpc.aio.Channel) -> None:
        # A sender sends again what was not acknowledged; here, always everything.
        await submit(channel, samples)

    for round_ in range(3):
        process = await start()

        def alive(process: asyncio.subprocess.Process = process) -> None:
            assert process.returncode is None

        try:
            async with connected(home, alive) as channel:
                await submit_all(channel)
                if round_ < 2:
                    # Somewhere within loading, training and saving.
                    calls = TrainerServiceStub(channel).WatchTraining(pb.WatchTrainingRequest())
                    async for event in calls:
                        if event.kind == pb.TRAINING_EVENT_KIND_STEP_STARTED:
                            break
                    await asyncio.sleep(rng.random() * 0.5)
                else:
                    statuses = await settled(channel, ids)
                    versions = (await TrainerServiceStub(channel).ListVersions(pb.ListVersionsRequest())).versions
        finally:
            process.send_signal(signal.SIGKILL)
            await process.wait()
    assert {s.fate for s in statuses} == {pb.SAMPLE_FATE_TRAINED}
    trained = [turn_id for v in versions for turn_id in v.manifest.turn_ids]
    assert sorted(trained) == ids
    assert {(s.turn_id, s.version) for s in statuses} == {
        (turn_id, v.manifest.version) for v in versions for turn_id in v.manifest.turn_ids}
    assert [v.manifest.parent for v in versions[1:]] == [v.manifest.version for v in versions[:-1]]
