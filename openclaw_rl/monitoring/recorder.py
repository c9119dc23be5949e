"""Keep the mesh's history while the mesh runs, whether or not somebody looks at a dashboard.

One process of a home records: the policy server's where the home has one, else the first component's that gets the lock
of the history. A dashboard that was there before them holds the lock itself, and gives it over when it ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from openclaw_rl.monitoring.collector import Collector
from openclaw_rl.monitoring.history import History
from openclaw_rl.monitoring.history_file import acquire_lock
from openclaw_rl.monitoring.mesh import MeshData
from openclaw_rl.runtime.home import Home, read_record

if TYPE_CHECKING:
    from openclaw_rl.config import Config

logger = logging.getLogger(__name__)

#: It may follow the trainer's events where roles are checked.
_PREFERRED = "policy_server"
#: Seconds for which the other components let it go first.
_DEFERENCE = 10.0
#: Seconds between two attempts to get the lock.
_RETRY = 5.0
#: Seconds between two rows at least: a chart of 15 minutes has one point for five.
INTERVAL = 2.0


@asynccontextmanager
async def recording(component: str, config: Config, home: Home) -> AsyncIterator[None]:
    """Record in the background of a component's process."""
    task = asyncio.create_task(_record(component, config, home), name="history recorder")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _record(component: str, config: Config, home: Home) -> None:
    try:
        lock = await _wait_for_lock(component, home)
        history = await asyncio.to_thread(History, home.root / "dashboard", config.dashboard.keep_days, lock=lock)
        mesh = MeshData(home)
        try:
            await Collector(mesh, history, max(INTERVAL, config.dashboard.interval), environments=False,
                            training=component == _PREFERRED).run()
        finally:
            await mesh.close()
            await asyncio.to_thread(history.close)
    except Exception:
        logger.exception("cannot record history")


async def _wait_for_lock(component: str, home: Home) -> int:
    if component != _PREFERRED:
        await asyncio.sleep(_DEFERENCE)
    while True:
        if component == _PREFERRED or read_record(home, _PREFERRED) is None:
            lock = acquire_lock(home.root / "dashboard")
            if lock is not None:
                return lock
        await asyncio.sleep(_RETRY)
