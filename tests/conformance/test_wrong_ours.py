"""The kit fails our environment server and our trainer on a fault that they are given, with its sentence."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.conformance.harness import failed, of_process, only
from tests.conformance.wrong.ours import EXPECTED

#: So many at a time: half of it is loading, half waiting.
_AT_A_TIME = 3


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_wrong_ones_fail(tmp_path: Path) -> None:
    places = asyncio.Semaphore(_AT_A_TIME)

    async def found(fault: str) -> dict[str, str]:
        service, id, _ = EXPECTED[fault]
        async with places:
            report = await of_process(
                service, f"-m tests.conformance.wrong.ours {fault} --address {{address}} --data {{data}} "
                "--listen {listen}", tmp_path / fault, only(service, id))
        return failed(report) or {"": report.could_not}

    seen = dict(zip(EXPECTED, await asyncio.gather(*map(found, EXPECTED)), strict=True))
    missed = {fault: seen[fault] for fault, (_, id, pattern) in EXPECTED.items()
              if [*seen[fault]] != [id] or not re.search(pattern, seen[fault][id])}
    assert not missed
