"""The processes of the scale benchmark: policy servers with a stub for an engine, users, a trainer's streams."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from openclaw_rl.config import load_config
from openclaw_rl.launch.component import configure_logging
from openclaw_rl.models.identity import model_id
from openclaw_rl.rpc.auth import tls
from openclaw_rl.rpc.channel import connect
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.runtime import Ambient, activated
from openclaw_rl.serving import server as policy_server
from openclaw_rl.serving.engines.interface import EngineInfo
from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.serving.token_policy import TokenPolicy
from openclaw_rl.v1 import policy_pb2, turn_pb2
from openclaw_rl.v1 import weights_pb2 as pb
from openclaw_rl.v1.policy_pb2_grpc import PolicyServiceStub
from openclaw_rl.weights.store import VersionStore
from openclaw_rl.weights.transfer.replicas import Replicas
from tests.serving.stub import StubEngine, write_tokenizer
from tests.weights.support import make_base

#: Of a model that is never computed.
_CONFIG = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
           "num_attention_heads": 4, "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
           "max_position_embeddings": 4096, "vocab_size": 267, "tie_word_embeddings": True, "eos_token_id": 2}
#: Tokens of a response.
TOKENS = 32
#: Turns of a session; the last one ends it.
TURNS = 4
QUESTIONS = ("How far is the moon?", "That's wrong, make it shorter.", "Thanks, that helps. And the sun?", "Bye.")
#: Requests of the users at the same time.
_AT_ONCE = 32


def make_model(folder: Path, size: int) -> Path:
    """A base model of `size` bytes in 16 matrices, with a tokenizer; it could not generate."""
    base = make_base(folder, _tensors(0, size))
    (base / "config.json").write_text(json.dumps(_CONFIG))
    write_tokenizer(base)
    return base


def make_version(store: VersionStore, number: int, base: Path, size: int) -> None:
    """A version all of whose values differ from the base model's."""
    store.write(pb.VersionManifest(version=number, parent=0, model_id=model_id(base), algorithm="combine",
                                   turn_ids=["turn"]), _tensors(number, size))


def _tensors(seed: int, size: int) -> Any:
    rng = np.random.default_rng(seed)
    values = size // 16 // 2
    for i in range(16):
        drawn = rng.standard_normal(values, dtype=np.float32)
        yield f"layer{i:02d}", "BF16", (values,), (drawn.view(np.uint32) >> 16).astype(np.uint16)


async def _stub_policy(settings: Any, *_: Any) -> tuple[Any, Any, Path]:
    """In place of the policy server's own: an engine that computes nothing."""
    base = Path(settings.model)
    engine = StubEngine(lambda prompt: [100 + (len(prompt) + i) % 60 for i in range(TOKENS)])
    engine.info = EngineInfo("stub", "stub", model_id(base), 4096, 267, (2, 0), True)
    engine.active_version = 0
    return TokenPolicy(engine, ChatTemplate(base), 1.0, TOKENS), engine, base


def serve(config: Path) -> None:
    """A policy server as it is, but for the engine."""
    policy_server._policy = _stub_policy  # type: ignore[assignment]
    settings = load_config(config)
    configure_logging(settings.log_level)
    asyncio.run(policy_server.run(settings, Home.default().create()))


async def talk(addresses: list[str], sessions: int, tag: str) -> None:
    """All sessions at once, turn by turn, each with one policy server."""
    stubs = [PolicyServiceStub(connect(address)) for address in addresses]
    for turn in range(TURNS):
        numbers = iter(range(sessions))

        async def user(turn: int = turn, numbers: Any = numbers) -> None:
            for number in numbers:
                request = policy_pb2.ChatRequest(
                    messages=[turn_pb2.ChatMessage(role="user" if i % 2 == 0 else "assistant", content=text)
                              for i, text in enumerate(_history(turn))],
                    turn=turn_pb2.TurnOptions(session_id=f"{tag}-{number}", session_done=turn == TURNS - 1))
                async for _ in stubs[number % len(stubs)].Chat(request):
                    pass

        await asyncio.gather(*(user() for _ in range(_AT_ONCE)))


def _history(turn: int) -> list[str]:
    """Texts so far, each answer being the stub's."""
    texts = []
    for i in range(turn):
        texts += [QUESTIONS[i], f"answer {i}"]
    return [*texts, QUESTIONS[turn]]


class _Forgetful:
    """No history of what further policy servers did."""

    def activated(self, version: int, at: float) -> None: ...

    def refused(self, version: int, reason: str) -> None:
        print(f"version {version} was refused: {reason}", file=sys.stderr, flush=True)

    def activated_at(self, version: int) -> float | None:
        return None

    def reason(self, version: int) -> str:
        return ""


async def publish(folder: Path, base: Path, targets: list[str], version: int) -> None:
    """Bring a version to these policy servers, as the trainer does; until killed."""
    store = VersionStore(folder, base)
    heard = asyncio.Event()
    replicas = Replicas(lambda: targets[0], targets[1:], store, on_state=lambda state: heard.set(),
                  on_activated=lambda *_: None, on_rejected=lambda *told: print(*told, file=sys.stderr, flush=True),
                  active=0, manifest=lambda number: store.manifest(number) if number else None,
                  on_number=lambda number: None, on_further=lambda *told: None, history=lambda address: _Forgetful())
    await replicas.start()
    await heard.wait()
    print("connected", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    replicas.offer(version)
    await asyncio.Event().wait()


def main() -> None:
    what, *args = sys.argv[1:]
    if what == "serve":
        serve(Path(args[0]))
    elif what == "talk":
        asyncio.run(talk(args[2:], int(args[0]), args[1]))
    else:
        config = Path(args[0])
        credentials = tls.credentials(load_config(config), Home.default(), "trainer")
        with activated(Ambient(credentials=credentials, identified=True), process=True):
            asyncio.run(publish(Path(args[1]), Path(args[2]), args[4:], int(args[3])))


if __name__ == "__main__":
    main()
