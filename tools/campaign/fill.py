"""Large stores: sessions are forgotten while components are killed, and the event loops are watched."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import httpx

from openclaw_rl.client.component import ComponentServiceClient
from openclaw_rl.client.forget import forget
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.home import COMPONENTS, Home, read_record
from tools.campaign.checker import Table

#: Seconds that an event loop may be held.
GOAL = 0.05
#: Characters of a message, and turns of a session.
_LARGE, _TURNS = 400_000, 4
#: The component whose store keeps all that was said; the others keep it until their neighbour or a step has it.
_KEEPER = "env_server"
#: Seconds between two looks at the loops, and for which a forgetting is tried again.
_LOOK, _SECONDS = 0.25, 600.0


class Loops:
    """Asks each component again and again for the longest hold of its event loop."""

    def __init__(self, home: Home) -> None:
        self.longest = dict.fromkeys(COMPONENTS, 0.0)
        self._home, self._stop = home, threading.Event()
        self._threads = [threading.Thread(target=self._watch, args=(name,), daemon=True) for name in COMPONENTS]

    def __enter__(self) -> Loops:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _watch(self, name: str) -> None:
        while not self._stop.wait(_LOOK):
            record = read_record(self._home, name)
            if record is None:
                continue
            try:
                with ComponentServiceClient(record.address) as client:
                    held = client.get_status(timeout=30).status.gauges["event_loop_held_seconds"]
            except MeshError:
                continue
            self.longest[name] = max(self.longest[name], held)


def fill(url: str, home: Home, size: int, say: Callable[[str], None]) -> list[str]:
    """Talk until the environment server's store has `size` bytes; returns the sessions."""
    sessions: list[str] = []
    with httpx.Client(base_url=url, trust_env=False, timeout=120) as client:
        told = 0.0
        while (sizes := store_sizes(home))[_KEEPER] < size:
            session = f"large-{len(sessions)}"
            messages = [{"role": "user", "content": os.urandom(_LARGE // 2).hex()}]
            for turn in range(_TURNS):
                response = client.post("/v1/chat/completions", json={"messages": messages},
                                       headers={"X-Session-Id": session})
                response.raise_for_status()
                messages += [response.json()["choices"][0]["message"],
                             {"role": "user", "content": f"no, that is wrong: {turn}"}]
            sessions.append(session)
            if time.monotonic() - told > 10:
                told = time.monotonic()
                say(f"{len(sessions)} sessions; stores: " + listed(sizes))
    return sessions


def store_sizes(home: Home) -> dict[str, int]:
    """Bytes of each component's store, with its write-ahead log."""
    sizes = {}
    for name in COMPONENTS:
        files = [home.component(name) / f"state.db{suffix}" for suffix in ("", "-wal")]
        sizes[name] = sum(file.stat().st_size for file in files if file.exists())
    return sizes


def listed(sizes: dict[str, int]) -> str:
    """Sizes of stores, to be read."""
    return ", ".join(f"{name} {size >> 20} MiB" for name, size in sizes.items())


def forget_all(home: Home, sessions: list[str], kills: int, say: Callable[[str], None]) -> Table:
    """Forget sessions while components are killed; returns the longest holds in milliseconds, as a table."""
    table = Table()
    with Loops(home) as loops:
        for number, session in enumerate(sessions):
            began = time.monotonic()
            killed = COMPONENTS[number % len(COMPONENTS)] if number < kills else ""
            if killed and (record := read_record(home, killed)) is not None:
                timer = threading.Timer(0.3, os.kill, (record.pid, signal.SIGKILL))
                timer.start()
            while True:
                try:
                    forget(home, session)
                    break
                except MeshError as error:
                    if time.monotonic() - began > _SECONDS:
                        table.count("forgettings", "wrong", example=f"{session}: {error}")
                        break
                    time.sleep(1.0)
            table.count("forgettings")
            say(f"forgot {session} in {time.monotonic() - began:.1f} s{', killed ' + killed if killed else ''}; "
                f"stores: {listed(store_sizes(home))}")
        time.sleep(2 * _LOOK)
    for name, held in loops.longest.items():
        table.count(f"longest hold of {name} (ms)", number=round(held * 1000))
        if held > GOAL:
            table.count(f"longest hold of {name} (ms)", "wrong",
                        example=f"{held * 1000:.0f} ms, {GOAL * 1000:.0f} allowed")
    return table

