"""Our own receiver passes the checks of the weight stream for a model with weights, and one that is broken does not."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openclaw_rl.conformance import weights_stream
from openclaw_rl.conformance.context import Context
from openclaw_rl.conformance.frame import checks_of
from openclaw_rl.conformance.runner import Report, chosen, run
from openclaw_rl.conformance.services import SERVICES
from openclaw_rl.weights.format import encoding
from openclaw_rl.weights.format.digest import TensorCheck
from openclaw_rl.weights.transfer import offer_validation, receiver, staging
from openclaw_rl.weights.transfer.receiver import WeightReceiver
from tests.conformance.policy_rig import exactly, failures, skipped
from tests.conformance.wrong_weights.ours import OurReceiver
from tests.conformance.wrong_weights.right import Serving
from tests.serving.peers import make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def report(tmp_path: Path, model: Path) -> AsyncIterator[Callable[..., Any]]:
    """Gives the kit's report on checks of these patterns."""
    policy = OurReceiver(tmp_path, model)
    await policy.begin()
    serving = Serving(policy)
    await serving.start()
    kit = Context(SERVICES["policy"], serving.address, deadline=5.0)
    kit.weights = True

    async def checked(*patterns: str) -> Report:
        return await run(kit, chosen(checks_of("policy"), patterns))

    yield checked
    await kit.close()
    await serving.stop()
    await policy.end()


async def test_it_passes_all(report: Callable[..., Any]) -> None:
    result = await report("weights.*", "policy.fetch", "policy.state", "policy.activate")
    assert failures(result) == {}
    assert set(skipped(result)) == {"weights.killed", "weights.killed.staged", "weights.killed.active",
                                    "weights.refuses.unsupported_engine"}


def _no_nan_check(self: TensorCheck) -> tuple[bytes, bool]:
    return self._sha.digest(), True


def _wrongly(spec: Any, frame: Any, base: memoryview) -> Iterator[memoryview]:
    for i, piece in enumerate(_DECODE(spec, frame, base)):
        changed = bytearray(piece)
        changed[0] ^= i == 0
        yield memoryview(changed)


def _forgetful(self: WeightReceiver) -> None:
    _CONNECTED(self)
    self._close_staging()
    shutil.rmtree(self._target.store.root / staging.INCOMING, ignore_errors=True)


_DECODE, _CONNECTED = encoding.decode, WeightReceiver.connected


@pytest.mark.slow
@pytest.mark.parametrize(("check", "place", "name", "wrong", "seen"), [
    ("weights.refuses.content", TensorCheck, "result", _no_nan_check,
     "a tensor with NaN was answered `staged` where `rejected` (NOT_FINITE) was due"),
    ("weights.refuses.manifest_digest", offer_validation, "manifest_digest", lambda specs: _Any(),
     "was answered `staged` where `rejected` (DIGEST_MISMATCH) was due"),
    ("weights.refuses.encoding", offer_validation, "check_encoding", lambda spec: None, "not as UNSUPPORTED"),
    ("weights.refuses.crc", receiver, "google_crc32c", SimpleNamespace(value=lambda data: _Any()),
     "a chunk with a wrong CRC-32C was answered `progress`"),
    ("weights.sparse", encoding, "decode", _wrongly, "was answered `rejected` DIGEST_MISMATCH"),
    ("weights.low_rank", encoding, "decode", _wrongly, "was answered `rejected` DIGEST_MISMATCH"),
    ("weights.resume", WeightReceiver, "connected", _forgetful, "and it is wanted from byte 0 again"),
])
async def test_a_broken_one_fails(report: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, check: str, place: Any,
                                  name: str, wrong: Any, seen: str) -> None:
    monkeypatch.setattr(weights_stream, "ANSWER", 5.0)
    found = await report("weights.cycle")
    assert failures(found) == {}, "it is right before it is broken"
    monkeypatch.setattr(place, name, wrong)
    found = await report(exactly(check))
    assert seen in failures(found)[check], failures(found)


class _Any:
    """Equal to all."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]
