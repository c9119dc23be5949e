#!/usr/bin/env python3
"""The ring's hops: from a reply to a sample that the trainer has accepted, with the rules judge.

    .venv/bin/python tools/bench/ring.py [--turns 20000] [--paced 500] [--rate 50] [--stored 1000,100000]

Runs the real environment server and judge, each in its process, and a process that accepts samples with the trainer's
own code (without PyTorch, which this is not about). This process is the policy server's side: it puts turns into an
outbox on disk and sends them. Latency is from the put of a reply, which completes the turn before it, until that turn's
sample is on the trainer's disk, at `--rate` turns a second. Then `--turns` come as fast as they go, once for each
number of turns that `--stored` names, to which all stores are filled up before. Resident memory of the three is taken
after a tenth of the first ones and at their end; CPU time a turn, which other load on the machine changes less than the
rate, is over all of them. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Sequence
from functools import partial
from pathlib import Path

import psutil
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from openclaw_rl.config import load_config
from openclaw_rl.delivery.receiver import receive
from openclaw_rl.delivery.requests import make_request
from openclaw_rl.delivery.sender import Sender
from openclaw_rl.rpc.membership import Membership
from openclaw_rl.rpc.messages import now
from openclaw_rl.rpc.server import ComponentServer
from openclaw_rl.runtime import mesh_id
from openclaw_rl.runtime.home import Home, read_record
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import component_pb2, environment_pb2, environment_pb2_grpc, trainer_pb2_grpc
from openclaw_rl.v1.common_pb2 import ACK_STATUS_ACCEPTED, Ack, TraceContext, VersionSpan
from openclaw_rl.v1.trainer_pb2 import SubmitSamplesRequest, SubmitSamplesResponse
from openclaw_rl.v1.turn_pb2 import FINISH_REASON_STOP, ChatMessage, Sample, TokenRecord, Turn
from tools.bench.filling import fill

GOAL_P50_MS, GOAL_RATE = 20.0, 1000.0
#: The rate with the most turns stored, as a share of that with the fewest.
GOAL_FILLED = 0.9
SESSION_TURNS = 8
#: Sessions that talk at the same time.
SIDE_BY_SIDE = 32
#: Turns that may wait in our outbox; the rest of the load is held back.
MOST_PENDING = 512
REPLIES = ["Thanks, that helps. And what else?", "That's wrong, make it shorter.", "What does it cost?",
           "不对，请用一句话回答。", "Please show an example."]
WORDS = "A river is water that runs downhill to the sea, fed by rain and by melting snow on its way. " * 4
TOKENS = 128


class Talk:
    """Turns of many sessions, in turn; each has its conversation so far, token ids, log-probabilities and the
    trace that the policy server began."""

    def __init__(self) -> None:
        self._count = 0
        self._histories: list[list[ChatMessage]] = [[] for _ in range(SIDE_BY_SIDE)]
        self._sessions = [""] * SIDE_BY_SIDE

    def next(self) -> tuple[str, bytes, list[str]]:
        """Id and event of the next turn, and the ids of the turns that it completes: the one before it, and itself when
        it ends its session."""
        n, lane = self._count, self._count % SIDE_BY_SIDE
        self._count += 1
        history = self._histories[lane]
        if not history:
            self._sessions[lane] = f"session-{n}"
        messages = [*history, ChatMessage(role="user", content=f"{REPLIES[n % len(REPLIES)]} ({n})")]
        response = ChatMessage(role="assistant", content=f"{n}: {WORDS}")
        done = len(history) == 2 * SESSION_TURNS - 2
        turn = Turn(turn_id=f"turn-{n}", session_id=self._sessions[lane], messages=messages, response=response,
                    finish_reason=FINISH_REASON_STOP, api="chat.completions", session_done=done,
                    tokens=TokenRecord(prompt_ids=range(100 * len(messages)), response_ids=range(TOKENS),
                                       logprobs=[-0.5] * TOKENS, model_logprobs=[-0.5] * TOKENS,
                                       spans=[VersionSpan(version=0, begin=0, end=TOKENS)]),
                    requested_at=now(), finished_at=now(), trace=TraceContext(
                        traceparent=f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"))
        self._histories[lane] = [] if done else [*messages, response]
        completes = [f"turn-{n - SIDE_BY_SIDE}"] * bool(history) + [turn.turn_id] * done
        return turn.turn_id, environment_pb2.PolicyEvent(turn=turn).SerializeToString(), completes


class Ring:
    """The processes, and the sender that feeds them. On a folder that was used before it goes on there."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(folder / "home").create()
        self.accepted_file = folder / "accepted"
        self._config = folder / "config.yaml"
        self._config.write_text(yaml.safe_dump({"components": {
            "env_server": {"port": 0}, "prm_judge": {"port": 0, "judge": "rules"}, "trainer": {"port": 0}}}))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.store = Database(folder / "policy.db")
        self.outbox = Outbox(self.store, "turns")
        self._sender = Sender(self.outbox, lambda: self._address("env_server"),
                              lambda channel: environment_pb2_grpc.EnvironmentServiceStub(channel).RecordTurns,
                              partial(make_request, environment_pb2.RecordTurnsRequest, "events"),
                              ours=Membership(mesh_id.make(self.home), "policy_server"))

    def _start(self) -> None:
        component = ["-m", "openclaw_rl.launch.component"]
        commands = {"trainer": [__file__, "--accept", str(self.accepted_file), str(self._config)],
                    "prm_judge": [*component, "prm_judge", "--config", str(self._config)],
                    "env_server": [*component, "env_server", "--config", str(self._config)]}
        environment = {**os.environ, "OPENCLAW_RL_HOME": str(self.home.root)}
        for name, command in commands.items():
            with (self.home.logs / f"{name}.log").open("wb") as log:
                self.processes[name] = subprocess.Popen([sys.executable, *command], env=environment, stderr=log)

    async def __aenter__(self) -> Ring:
        self._start()
        async with asyncio.timeout(60):
            while not all(map(self._address, self.processes)):
                self.check()
                await asyncio.sleep(0.05)
        self._sender.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._sender.stop()
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(30)
        self.store.close()

    @property
    def stores(self) -> list[Path]:
        """The files of all four."""
        return [self.store.path, *(self.home.component(name) / "state.db" for name in self.processes)]

    def _address(self, name: str) -> str | None:
        record = read_record(self.home, name)
        return record.address if record else None

    def check(self) -> None:
        """Raises RuntimeError when a process has ended."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise RuntimeError(f"{name} has ended:\n{(self.home.logs / f'{name}.log').read_text()[-2000:]}")

    def memory(self) -> dict[str, float]:
        """Resident MiB by process."""
        return {name: psutil.Process(process.pid).memory_info().rss / 2**20 for name, process in self.processes.items()}

    def cpu(self) -> dict[str, float]:
        """CPU seconds so far by process; this one stands for the policy server."""
        times = {name: psutil.Process(process.pid).cpu_times() for name, process in self.processes.items()}
        times["policy_server"] = psutil.Process().cpu_times()
        return {name: spent.user + spent.system for name, spent in times.items()}

    def accepted(self) -> dict[str, int]:
        """Nanoseconds of the monotonic clock at which each sample was accepted."""
        if not self.accepted_file.exists():
            return {}
        lines = self.accepted_file.read_text().splitlines()
        return {turn_id: int(moment) for turn_id, moment in map(str.split, lines)}

    async def until_accepted(self, turn_ids: Collection[str]) -> dict[str, int]:
        """Wait for these samples; tells when each of all was accepted."""
        async with asyncio.timeout(600):
            while not (found := self.accepted()).keys() >= set(turn_ids):
                self.check()
                await asyncio.sleep(0.2)
        return found


async def paced(ring: Ring, talk: Talk, turns: int, rate: float) -> list[float]:
    """Milliseconds from each reply to the accepted sample of the turn that it completes."""
    puts: dict[str, int] = {}
    begin = time.monotonic()
    for i in range(turns):
        await asyncio.sleep(max(0.0, begin + i / rate - time.monotonic()))
        turn_id, payload, completes = talk.next()
        puts.update(dict.fromkeys(completes, time.monotonic_ns()))
        ring.outbox.put(turn_id, payload)
    accepted = await ring.until_accepted(puts)
    return [(accepted[turn_id] - moment) / 1e6 for turn_id, moment in puts.items()]


async def sustained(ring: Ring, talk: Talk, turns: int) -> tuple[float, dict[str, float], dict[str, float]]:
    """Samples accepted a second while `turns` come as fast as they go, memory after a tenth of them, and CPU
    milliseconds a turn by process."""
    early: dict[str, float] = {}
    completed: set[str] = set()
    begin, cpu = time.monotonic_ns(), ring.cpu()
    for i in range(turns):
        if i == turns // 10:
            early = ring.memory()
        while ring.outbox.stats().pending > MOST_PENDING:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        turn_id, payload, completes = talk.next()
        completed.update(completes)
        ring.outbox.put(turn_id, payload)
        if i % 16 == 0:
            await asyncio.sleep(0)
    accepted = await ring.until_accepted(completed)
    spent = {name: 1e3 * (after - cpu[name]) / turns for name, after in ring.cpu().items()}
    return len(completed) / ((max(accepted.values()) - begin) / 1e9), early, spent


async def bench(turns: int, paced_turns: int, rate: float, stored: Sequence[int]) -> dict[str, object]:
    talk, rates, spent = Talk(), dict[int, float](), dict[int, dict[str, float]]()
    early: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as tmp:
        for count in sorted(stored):
            async with Ring(Path(tmp)) as ring:
                await paced(ring, talk, 2 * SIDE_BY_SIDE, 50)  # warm-up
                if not rates:
                    milliseconds = sorted(await paced(ring, talk, paced_turns, rate))
            for path in ring.stores:
                fill(path, count)
            async with Ring(Path(tmp)) as ring:
                await paced(ring, talk, 2 * SIDE_BY_SIDE, 50)
                rates[count], memory, spent[count] = await sustained(ring, talk, turns)
                if not early:
                    early, late = memory, ring.memory()
    p50, p99 = statistics.median(milliseconds), milliseconds[int(len(milliseconds) * 0.99)]
    growth = {name: round(late[name] / early[name], 3) for name in early}
    filled, slowest = rates[max(rates)] / rates[min(rates)], min(rates.values())
    return {"bench": "ring", "p50_ms": round(p50, 2), "p99_ms": round(p99, 2), "paced_rate": rate,
            "turns": turns, "turns_per_s": round(slowest, 1), "ratio": round(slowest / GOAL_RATE, 2),
            "turns_per_s_by_stored": {str(count): round(value, 1) for count, value in rates.items()},
            "filled": round(filled, 3),
            "cpu_ms_per_turn_by_stored": {str(count): {name: round(value, 3) for name, value in each.items()}
                                          for count, each in spent.items()},
            "memory_mib": {name: round(value) for name, value in late.items()}, "memory_growth": growth,
            "goals": {"p50_ms": GOAL_P50_MS, "turns_per_s": GOAL_RATE, "filled": GOAL_FILLED},
            "met": p50 <= GOAL_P50_MS and slowest >= GOAL_RATE and filled >= GOAL_FILLED}


async def accept(file: Path, config_file: Path) -> None:
    """The trainer's process: accepts samples and writes down when each was on disk."""
    from openclaw_rl.training.store import TrainerStore

    config, home = load_config(config_file), Home.default()
    store = TrainerStore(home.component("trainer") / "state.db", config.durability, config.components.trainer)
    with file.open("w", buffering=1) as accepted:

        async def handle(samples: list[Sample]) -> list[Ack]:
            acks = await store.database.call(store.intake.accept, samples)
            moment = time.monotonic_ns()
            accepted.write("".join(f"{ack.id} {moment}\n" for ack in acks if ack.status == ACK_STATUS_ACCEPTED))
            return acks

        class Servicer(trainer_pb2_grpc.TrainerServiceServicer):
            async def SubmitSamples(self, request_iterator: AsyncIterator[SubmitSamplesRequest],
                                    context: object) -> AsyncIterator[SubmitSamplesResponse]:
                async for response in receive(request_iterator, lambda request: list(request.samples), handle,
                                              lambda acks: SubmitSamplesResponse(acks=acks)):
                    yield response

        server = ComponentServer("trainer", "127.0.0.1", 0, home, component_pb2.ComponentStatus)
        server.add(trainer_pb2_grpc.add_TrainerServiceServicer_to_server, Servicer(),  # type: ignore[abstract]
                   "openclaw_rl.v1.TrainerService")
        await server.start()
        await server.run_until_stopped()
    store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20_000)
    parser.add_argument("--paced", type=int, default=500)
    parser.add_argument("--rate", type=float, default=50, help="turns a second of the latency measurement")
    parser.add_argument("--stored", default="1000,100000", help="turns in the stores before, separated by commas")
    parser.add_argument("--accept", nargs=2, metavar=("FILE", "CONFIG"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.accept:
        asyncio.run(accept(Path(args.accept[0]), Path(args.accept[1])))
    else:
        print(json.dumps(asyncio.run(bench(args.turns, args.paced, args.rate,
                                            [int(count) for count in args.stored.split(",")]))))


if __name__ == "__main__":
    main()
