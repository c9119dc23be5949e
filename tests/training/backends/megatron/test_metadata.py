"""A sharded checkpoint's metadata is read, and nothing else that a pickle can hold."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core")
pytestmark = pytest.mark.slow  # imports PyTorch and megatron-core

from torch.distributed import checkpoint as dcp  # noqa: E402

from openclaw_rl.training.backends.megatron.metadata import guarded  # noqa: E402


def test_what_was_saved_is_read(tmp_path: Path) -> None:
    saved = {"weight": torch.arange(6.0).reshape(2, 3), "half": torch.ones(2, dtype=torch.bfloat16), "steps": 3}
    dcp.save(saved, checkpoint_id=str(tmp_path), no_dist=True)
    found = {"weight": torch.zeros(2, 3), "half": torch.zeros(2, dtype=torch.bfloat16), "steps": 0}
    with guarded():
        dcp.load(found, checkpoint_id=str(tmp_path), no_dist=True)
    assert torch.equal(found["weight"], saved["weight"]) and torch.equal(found["half"], saved["half"])
    assert found["steps"] == 3


class _Evil:
    def __init__(self, *call: object) -> None:
        self.call = call

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        function, *arguments = self.call
        return function, tuple(arguments)


@pytest.mark.parametrize("protocol", [2, 4])
def test_what_would_run_something_is_refused(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "ran"
    for evil in (_Evil(os.mkdir, str(mark)), _Evil(eval, f"open({str(mark)!r}, 'w')"),
                 _Evil(getattr, dict, "fromkeys")):
        (tmp_path / ".metadata").write_bytes(pickle.dumps(evil, protocol))
        with guarded(), pytest.raises(BaseException, match="metadata can't name"):
            dcp.load({"weight": torch.zeros(2)}, checkpoint_id=str(tmp_path), no_dist=True)
    assert not mark.exists()


def test_a_way_through_an_allowed_module_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(
        b"\x80\x04\x8c'torch.distributed.checkpoint.filesystem\x8c\tos.getcwd\x93)R.")
    with guarded(), pytest.raises(BaseException, match=r"can't name torch\.distributed\..*\.os\.getcwd"):
        dcp.load({"weight": torch.zeros(2)}, checkpoint_id=str(tmp_path), no_dist=True)
