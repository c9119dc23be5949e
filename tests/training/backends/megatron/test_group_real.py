"""Real ranks of megatron-core under torchrun, on a tiny model: a rank that is killed, and another layout."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.backends.megatron import hardware
from openclaw_rl.training.backends.megatron.backend import MegatronBackend
from openclaw_rl.training.learner import CannotTrain, Learner
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.v1 import weights_pb2
from tests.training.backends.megatron.conftest import ranks
from tests.training.fakes import make_sample

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SAMPLES = 48  # their step takes seconds


def config(**megatron: Any) -> TrainerConfig:
    return TrainerConfig(backend="megatron", min_samples=1, max_batch=SAMPLES, max_per_session=SAMPLES,
                         max_per_branch=SAMPLES, gate={"enabled": False}, megatron=megatron)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TrainerStore]:
    store = TrainerStore(tmp_path / "state.db", "group", config())
    yield store
    store.close()


def test_a_rank_is_killed_in_a_step_and_training_goes_on_also_at_another_layout(
        store: TrainerStore, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = opened(store, tmp_path, model, tensor_parallel=2)
    try:
        first = trained(learner, store, "a", "b")
        assert (first.version, first.parent, list(first.turn_ids)) == (1, 0, ["a", "b"])
        pids = backend(learner).pids
        assert len(pids) == 2
        for pid in pids.values():
            for connection in psutil.Process(pid).net_connections("inet"):
                assert connection.laddr.ip in ("127.0.0.1", "::1"), "nobody else can talk to a rank"

        many = [f"turn-{i}" for i in range(SAMPLES)]
        with monkeypatch.context() as patch:
            patch.setattr(learner, "_give_up", kills(pids[1]))
            store.intake.accept([make_sample(turn) for turn in many])
            with pytest.raises(CannotTrain, match=rf"rank 1 \(pid {pids[1]}\) .* was ended by SIGKILL"):
                learner.train()
        assert not ranks(), "the whole group has ended"
        assert [status.turn_id for status in store.samples.statuses([])] == many
        assert (store.versions.head, learner.versions.versions()) == (1, [0, 1])

        second = trained(learner, store)
        assert (second.version, second.parent, sorted(second.turn_ids)) == (2, 1, sorted(many))
        assert not store.samples.statuses([]), "each has its fate, once"
        learner.release()
        assert not ranks()

        # Stages instead of cut layers, from the same checkpoint.
        learner = opened(store, tmp_path, model, pipeline_parallel=2)
        learner.prepare()
        served = learner.versions.open(2)
        for name, dtype, shape, content in backend(learner).tensors():
            assert (dtype, tuple(shape)) == (served.places[name].dtype, tuple(served.places[name].shape))
            assert bytes(content) == bytes(served[name].tobytes()), name
        third = trained(learner, store, "c")
        assert (third.version, third.parent, list(third.turn_ids)) == (3, 2, ["c"])
    finally:
        learner.release()
    assert not ranks()


@pytest.mark.gpu
def test_a_group_on_a_gpu(store: TrainerStore, tmp_path: Path, model: Path) -> None:
    if not hardware.find().gpus:
        pytest.skip("needs a GPU")
    for version in (1, 2):  # the second one from the checkpoint of the first
        learner = Learner(config().model_copy(update={"gpus": 1}), store, tmp_path, lambda: model, 2)
        learner.open()
        try:
            assert trained(learner, store, f"turn-{version}").version == version
        finally:
            learner.release()
    assert not ranks()


def opened(store: TrainerStore, root: Path, model: Path, **megatron: Any) -> Learner:
    learner = Learner(config(**megatron), store, root, lambda: model, 2)
    learner.open()
    return learner


def backend(learner: Learner) -> MegatronBackend:
    assert isinstance(learner._backend, MegatronBackend)
    return learner._backend


def trained(learner: Learner, store: TrainerStore, *turn_ids: str) -> weights_pb2.VersionManifest:
    store.intake.accept([make_sample(turn_id) for turn_id in turn_ids])
    manifest = learner.train()
    assert isinstance(manifest, weights_pb2.VersionManifest), manifest
    return manifest


def kills(pid: int) -> Callable[[], bool]:
    """Asked for the second time, which is while the step runs, it kills a process."""
    asked = []

    def stop() -> bool:
        asked.append(pid)
        if len(asked) == 2:
            os.kill(pid, signal.SIGKILL)
        return False

    return stop
