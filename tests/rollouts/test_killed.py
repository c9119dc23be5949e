"""The environment server is killed again and again while turns come; none is lost, none reaches the judge twice."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml

from openclaw_rl.delivery.sender import Sender
from openclaw_rl.rollouts import server
from openclaw_rl.rpc.membership import Membership
from openclaw_rl.runtime import mesh_id
from openclaw_rl.runtime.home import Home, read_record
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import environment_pb2, environment_pb2_grpc
from openclaw_rl.v1.common_pb2 import Ack
from openclaw_rl.v1.turn_pb2 import ChatMessage, Transition
from tests.rollouts.harness import answer, as_event, turn, user
from tests.rollouts.test_server import FakeJudge, judging
from tests.support.waiting import eventually

KILLS, SESSIONS, TURNS = 5, 40, 10


class WatchfulJudge(FakeJudge):
    """Remembers each next state that it is given for a turn: a transition may come again, but never another one."""

    def __init__(self) -> None:
        super().__init__()
        self.next_states: set[tuple[str, bytes]] = set()

    async def take(self, transitions: list[Transition]) -> list[Ack]:
        self.next_states.update((transition.turn.turn_id, transition.next_state.SerializeToString(deterministic=True))
                                for transition in transitions)
        return await super().take(transitions)


def _more(judge: WatchfulJudge, seen: int, talking: asyncio.Task[None]) -> bool:
    return len(judge.got) > seen or talking.done()


@pytest.mark.slow
async def test_kill_9_loses_and_doubles_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    judge = WatchfulJudge()
    rng = random.Random(7)
    policy = Database(tmp_path / "policy.db")
    outbox = Outbox(policy, "turns")
    sender = Sender(outbox, lambda: record.address if (record := read_record(home, server.NAME)) else None,
                    lambda channel: environment_pb2_grpc.EnvironmentServiceStub(channel).RecordTurns,
                    lambda payloads: environment_pb2.RecordTurnsRequest(
                        events=map(environment_pb2.PolicyEvent.FromString, payloads)),
                    ours=Membership(mesh_id.make(home), "policy_server"))
    async with judging(judge) as address:
        config = tmp_path / "config.yaml"
        components = {"env_server": {"port": 0}, "prm_judge": {"address": address}}
        config.write_text(yaml.safe_dump({"components": components}))
        process = None
        sender.start()
        talking = asyncio.create_task(talk(outbox, rng))
        try:
            for _ in range(KILLS):
                process = await start(home, config)
                seen = len(judge.got)
                await eventually(partial(_more, judge, seen, talking))
                await asyncio.sleep(rng.random() * 0.2)  # any moment
                process.send_signal(signal.SIGKILL)
                await process.wait()
            await talking
            process = await start(home, config)
            await eventually(lambda: len(judge.got) == SESSIONS * TURNS, 60)
        finally:
            if process is not None and process.returncode is None:
                process.kill()
                await process.wait()
            talking.cancel()
            await sender.stop()
            policy.close()
    assert set(judge.got) == {f"s{s}-t{t}" for s in range(SESSIONS) for t in range(TURNS)}
    links = {turn_id: transition.next_state.next_turn_id for turn_id, transition in judge.got.items()}
    assert links == {f"s{s}-t{t}": f"s{s}-t{t + 1}" if t + 1 < TURNS else "" for s in range(SESSIONS)
                     for t in range(TURNS)}
    assert len(judge.next_states) == SESSIONS * TURNS, "a turn got two next states"


async def start(home: Home, config: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "openclaw_rl.launch.component", server.NAME, "--config", str(config),
        env={**os.environ, "OPENCLAW_RL_HOME": str(home.root)}, stderr=asyncio.subprocess.DEVNULL)


async def talk(outbox: Outbox, rng: random.Random) -> None:
    """Sessions side by side, each turn a pause after the one before it."""
    history: dict[int, list[ChatMessage]] = {s: [] for s in range(SESSIONS)}
    left = [s for s in range(SESSIONS) for _ in range(TURNS)]
    rng.shuffle(left)
    for s in left:
        t = len(history[s]) // 2
        messages = [*history[s], user(f"question {t}")]
        event = as_event(turn(f"s{s}-t{t}", messages, f"answer {t}", session_id=f"s{s}", session_done=t + 1 == TURNS))
        outbox.put(f"s{s}-t{t}", event.SerializeToString())
        history[s] = [*messages, answer(f"answer {t}")]
        await asyncio.sleep(0.01)
