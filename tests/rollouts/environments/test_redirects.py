"""Servers of environments that lead elsewhere: an address of the configuration is not theirs to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_rl.config.environment import EnvironmentConfig, McpConfig
from openclaw_rl.rollouts.environments.interface import Context
from openclaw_rl.rollouts.environments.openenv.plugin import make as make_openenv
from openclaw_rl.rollouts.environments.openenv.session import Session
from openclaw_rl.rollouts.environments.tool_call.plugin import make as make_tools
from openclaw_rl.rollouts.sandboxes.factory import backend
from openclaw_rl.rollouts.sandboxes.interface import SandboxError
from tests.support.canary import canary, redirecting

STATUSES = (301, 302, 303, 307, 308)


@pytest.mark.parametrize("status", STATUSES)
async def test_an_openenv_server(tmp_path: Path, status: int) -> None:
    async with canary() as inside, redirecting(status, f"ws://{inside.address}/ws") as address:
        with pytest.raises(SandboxError, match="can't be reached"):
            await Session.open(f"http://{address}")
        async with redirecting(status, f"http://{inside.address}/health") as other:
            config = EnvironmentConfig(count=1, kind="openenv", url=f"http://{other}")
            rejection = await make_openenv(config, Context("game", tmp_path, backend(config, tmp_path))).validate()
        assert rejection is not None and f"answers {status}" in rejection.message
        assert inside.visits == []


@pytest.mark.parametrize("status", STATUSES)
async def test_an_mcp_server(tmp_path: Path, status: int) -> None:
    async with canary() as inside, redirecting(status, f"http://{inside.address}/mcp") as address:
        config = EnvironmentConfig(count=1, mcp=McpConfig(url=f"http://{address}/mcp"), backend="bubblewrap")
        kind = make_tools(config, Context("tools", tmp_path / "tools", backend(config, tmp_path)))
        with pytest.raises(SandboxError, match="can't be used"):
            await kind.make()
        assert inside.visits == []
