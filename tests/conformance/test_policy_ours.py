"""Our policy server conforms: with an API model and with the embedded one."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.fake_api import FakeApi

from openclaw_rl.config import EMBEDDED_MODEL
from openclaw_rl.home import Home
from openclaw_rl.models.prepare import ensure_model

from .policy_rig import PYTHON, VALUES, check_process, exactly, failures, skipped

_PROGRAM = f"{PYTHON} {shlex.quote(str(Path(__file__).parent / 'our_policy.py'))} {VALUES}"
#: What a model with weights is asked beside the policy checks; the rest is the same code as an API model's.
_WEIGHTS = ("weights.cycle", "weights.serving", "weights.refuses.tensor_digest", "weights.refuses.content",
            "weights.resume", "weights.sparse", "weights.low_rank")

pytestmark = pytest.mark.slow


@pytest.fixture
def api() -> Iterator[FakeApi]:
    api = FakeApi()
    yield api
    api.close()


@pytest.mark.timeout(600)
async def test_with_an_api_model(api, tmp_path):
    report = await check_process(f"{_PROGRAM} --upstream {api.url}", tmp_path)
    assert not report.could_not and failures(report) == {}
    assert report.conforms
    needless = {id: why for id, why in skipped(report).items() if not any(word in why for word in (
        "API model", "the engine takes weights", "--certs"))}
    assert not needless


@pytest.mark.timeout(1200)
async def test_with_the_embedded_model(tmp_path):
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "openclaw-rl-tools/models-home"
    model = ensure_model(EMBEDDED_MODEL, Home(cache).create())
    report = await check_process(f"{_PROGRAM} --models {shlex.quote(str(model))}", tmp_path,
                                 *map(exactly, (*_WEIGHTS, "policy.turns")), "policy.chat*", "policy.generate*",
                                 "policy.score*", "policy.fetch", "policy.http*")
    assert not report.could_not and failures(report) == {} == skipped(report)
