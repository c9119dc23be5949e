"""What the Docker API's back end does with an engine that is slow or refuses, without one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from openclaw_rl.rollouts.sandboxes.docker import sandbox as module
from openclaw_rl.rollouts.sandboxes.docker.sandbox import DockerProcess, DockerSandbox


class _Engine:
    """Of which a container is removed at the last of several tries."""

    api_version = "1.41"

    def __init__(self, tries: int, status: int = 500) -> None:
        self.left, self.status = tries, status

    def remove_container(self, container: str, **_: object) -> None:
        self.left -= 1
        if self.left:
            error: Any = RuntimeError("driver failed")
            error.status_code = self.status
            raise error


class _Running:
    """A sandbox whose process is said to run, a number of times."""

    problem = ""

    def __init__(self, looks: int) -> None:
        self.left = looks

    async def state(self, identity: str) -> tuple[bool, int | None]:
        self.left -= 1
        return (self.left > 0), 0 if self.left <= 0 else None


class _Silent:
    async def read(self, most: int) -> bytes:
        return b""


async def test_a_process_that_closes_its_output_and_runs_on_is_not_asked_for_without_a_pause() -> None:
    sandbox: Any = _Running(1000)
    output: Any = _Silent()
    writer: Any = None
    process = DockerProcess(sandbox, "x", output, writer)
    assert await process.read() == b""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(process.wait(), 0.3)
    assert sandbox.left > 990
    sandbox.left = 2
    assert await asyncio.wait_for(process.wait(), 10) == 0


@pytest.mark.parametrize(("tries", "status", "left", "told"), [(3, 500, 0, False), (9, 500, 6, True),
                                                                (9, 404, 8, False)])
async def test_a_container_that_can_not_be_removed_is_tried_again_and_told(
        tries: int, status: int, left: int, told: bool, monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(module, "_RETRY_PAUSES", (0.0, 0.0))
    engine = _Engine(tries, status)
    await DockerSandbox(engine, "unix:///dev/null", "c0ffee").close()
    assert engine.left == left and ("c0ffee can't be removed" in caplog.text) == told
