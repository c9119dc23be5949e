"""A playbook as a tensor, as versions of an API model, and as a part of the prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.models.api_endpoints import ApiModel
from openclaw_rl.models.identity import model_id
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.home import Home
from openclaw_rl.serving.engines.openai.engine import UpstreamPolicy
from openclaw_rl.serving.interfaces import ChatCall, End, Start
from openclaw_rl.serving.token_policy import Transcript
from openclaw_rl.serving.versions.registry import PolicyVersions
from openclaw_rl.v1 import policy_pb2, turn_pb2
from openclaw_rl.v1 import weights_pb2 as pb
from openclaw_rl.v1.playbook_pb2 import Playbook, PlaybookEntry
from openclaw_rl.weights import playbook
from openclaw_rl.weights.api_model import ensure_api_model
from openclaw_rl.weights.format.digest import manifest_digest
from openclaw_rl.weights.store import VersionStore
from openclaw_rl.weights.transfer.receiver import WeightReceiver
from openclaw_rl.weights.transfer.sender import Transfer, base_for
from tests.serving.engines.test_openai import Api, chunk
from tests.serving.engines.test_openai import api as api
from tests.weights.support import chunks

SHORT = "Answer in one short sentence."


def book(*texts: str) -> Playbook:
    return Playbook(entries=[PlaybookEntry(id=f"i{i}", text=text, added_in=1) for i, text in enumerate(texts)])


def message(role: str, content: str) -> turn_pb2.ChatMessage:
    return turn_pb2.ChatMessage(role=role, content=content)


def test_there_and_back() -> None:
    made = Playbook(entries=[PlaybookEntry(id="a", text="用中文 \"回答\"", added_in=3, turn_ids=["t"], uses=4,
                                           score_sum=-1.5)])
    assert playbook.parse(playbook.dump(made)) == made
    assert playbook.parse(b"{}") == Playbook() and playbook.dump(Playbook()) == b"{}"


@pytest.mark.parametrize(("data", "why"), [
    (b"\x00\xff", "not JSON"), (b"[]", "not JSON of the message"), (b'{"x": 1}', "no field named"),
    (b'{"entries": [{"text": "a"}]}', "id of its own"),
    (b'{"entries": [{"id": "a", "text": "a"}, {"id": "a", "text": "b"}]}', "id of its own"),
    (b'{"entries": [{"id": "a", "text": " "}]}', "no text"),
    (b'{"entries": [{"id": "a", "text": "a", "scoreSum": "NaN"}]}', "do not add up"),
    (b'{"entries": [{"id": "a", "text": "a", "uses": 1, "scoreSum": 2}]}', "do not add up"),
    (json.dumps({"entries": [{"id": "a", "text": "x" * 70_000}]}).encode(), "64000 are allowed"),
    (b" " * (playbook.MAX_BYTES + 1), "at most 1048576"), (b"[" * 100_000, "not JSON")])
def test_what_is_no_playbook(data: bytes, why: str) -> None:
    with pytest.raises(playbook.PlaybookError, match=why):
        playbook.parse(data)


def test_in_the_prompt() -> None:
    text = playbook.render(book(SHORT, "Use metric\nunits."))
    assert text.splitlines()[1:] == [f"- {SHORT}", "- Use metric units."], "one line each"
    user, system = message("user", "Hi"), message("system", "You are a cook.")
    first, second = playbook.with_playbook([user], text)
    assert (first.role, first.content, second) == ("system", text, user)
    first, second = playbook.with_playbook([system, user], text)
    assert first.content == f"You are a cook.\n\n{text}" and system.content == "You are a cook."
    parts = turn_pb2.ChatMessage(role="developer", parts=[turn_pb2.ContentPart(text="x")])
    assert [part.text for part in playbook.with_playbook([parts], text)[0].parts] == ["x", text]
    assert playbook.with_playbook([user], playbook.render(Playbook())) == [user]


def test_whose_playbook(tmp_path: Path) -> None:
    home = Home(tmp_path).create()
    folder = ensure_api_model("glm-4-flash", "http://x/v1", home)
    assert folder == ensure_api_model("glm-4-flash", "http://x/v1/", home)
    assert folder == ensure_api_model("glm-4-flash", "http://y/v1", home), "a model that has moved is the same one"
    assert model_id(folder) != model_id(ensure_api_model("glm-4", "http://x/v1", home))
    assert VersionStore(tmp_path / "v", folder).manifest(0).model_id == model_id(folder)
    (folder / "config.json").write_text("{")  # damaged: not taken for any
    assert folder != ensure_api_model("glm-4-flash", "http://y/v1", home)


class Bench:
    """A trainer's store and the policy server of an API model."""

    def __init__(self, tmp_path: Path, url: str) -> None:
        self.base = ensure_api_model("glm-4-flash", url, Home(tmp_path).create())
        self.trainer = VersionStore(tmp_path / "trainer", self.base)
        self.folder = tmp_path / "policy"
        self.folder.mkdir()
        self.policy = UpstreamPolicy(ApiModel("glm-4-flash", url, "sekrit"), model_id(self.base))
        self.versions = PolicyVersions(self.folder, self.base, self.policy)  # type: ignore[arg-type]
        self.receiver = WeightReceiver(self.versions)

    def make(self, version: int, *texts: str) -> pb.WeightOffer:
        self.trainer.write(pb.VersionManifest(version=version, parent=version - 1, algorithm="playbook",
                                              model_id=model_id(self.base)), [playbook.tensor(book(*texts))], base=0)
        return Transfer(self.trainer, version, base_for(self.trainer, version, self.versions.state(), 10)).offer()

    async def say(self, **fields: Any) -> list[tuple[str, Any]]:
        answers = [answer async for answer in self.receiver.handle(policy_pb2.SyncWeightsRequest(**fields))]
        return [(kind := answer.WhichOneof("message") or "", getattr(answer, kind)) for answer in answers]

    async def send(self, offer: pb.WeightOffer) -> list[tuple[str, Any]]:
        answers = await self.say(offer=offer)
        if answers[-1][0] == "need":
            for piece in chunks(answers[0][1], self.trainer, 1 << 20):
                answers = await self.say(chunk=piece)
        if answers[-1][0] == "staged":
            answers = await self.say(commit=pb.WeightCommit(version=offer.manifest.version))
        return answers

    async def chat(self, *messages: turn_pb2.ChatMessage) -> tuple[int, Transcript]:
        transcript = Transcript()
        call = ChatCall(messages=list(messages))
        events = [event async for event in self.policy.chat(call, transcript)]
        assert isinstance(events[0], Start) and isinstance(events[-1], End) and call.messages == list(messages)
        return events[0].version, transcript


@pytest.fixture
async def bench(api: Api, tmp_path: Path) -> Any:
    api.chunks = [chunk({"content": "Yes."}, "stop")]
    bench = Bench(tmp_path, api.url)
    await bench.versions.start()
    yield bench
    await bench.receiver.close()
    await bench.policy.stop()


async def test_a_version_changes_the_prompt_and_goes_back(bench: Bench, api: Api) -> None:
    user = message("user", "Hi")
    assert bench.versions.state().accepts_weights
    assert await bench.chat(user) == (0, Transcript(text=["Yes."], first_token_at=pytest.approx(2e9, rel=1)))
    assert api.requests[-1]["messages"] == [{"role": "user", "content": "Hi"}]
    assert (await bench.send(bench.make(1, SHORT)))[-1][0] == "activated"
    version, transcript = await bench.chat(message("system", "Be kind."), user)
    system, asked = api.requests[-1]["messages"]
    assert (version, transcript.version, asked["content"]) == (1, 1, "Hi")
    assert system["content"].startswith("Be kind.\n\n") and system["content"].endswith(f"- {SHORT}")
    assert (await bench.send(bench.make(2, SHORT, "Use metric units.")))[-1][0] == "activated"
    await bench.versions.activate(0, "test")
    assert (await bench.chat(user))[0] == 0 and len(api.requests[-1]["messages"]) == 1
    again = UpstreamPolicy(ApiModel("glm-4-flash", api.url, "sekrit"), model_id(bench.base))
    await bench.versions.activate(2, "test")
    restarted = PolicyVersions(bench.folder, bench.base, again)  # type: ignore[arg-type]
    await restarted.start()
    assert again.active_version == 2 and "metric" in again._text and again.status().gauges["playbook_entries"] == 2
    await again.stop()


async def test_a_running_answer_keeps_its_version(bench: Bench, api: Api) -> None:
    api.chunks = [chunk({"content": "a"}), chunk({"content": "b"}, "stop")]
    transcript = Transcript()
    events = bench.policy.chat(ChatCall(messages=[message("user", "Hi")]), transcript)
    assert (await anext(events)).version == 0
    assert (await bench.send(bench.make(1, SHORT)))[-1][0] == "activated"
    assert isinstance([event async for event in events][-1], End)
    assert transcript.version == 0 and bench.policy.version == 1


async def test_what_is_refused(bench: Bench) -> None:
    def offered(data: bytes, shape: list[int] | None = None, version: int = 1) -> pb.WeightOffer:
        bench.trainer.write(pb.VersionManifest(version=version, parent=0, model_id=model_id(bench.base)),
                            [("playbook", "U8", [len(data)], data)])
        offer = pb.WeightOffer(manifest=bench.trainer.manifest(version), tensors=bench.trainer.specs(version))
        if shape is not None:
            offer.tensors[0].shape[:] = shape
            offer.manifest.digest = manifest_digest(offer.tensors)
        return offer

    kind, rejected = (await bench.send(offered(b"not a playbook")))[-1]
    assert kind == "rejected" and not rejected.retryable and "no playbook: it is not JSON" in rejected.message
    assert rejected.reason == pb.WEIGHT_REJECT_REASON_WRONG_SHAPE
    for offer in (offered(b"{}", [1, 2], 2), offered(b" " * (playbook.MAX_BYTES + 1), version=3)):
        kind, rejected = (await bench.send(offer))[-1]
        assert (kind, rejected.reason) == ("rejected", pb.WEIGHT_REJECT_REASON_WRONG_SHAPE)
    assert bench.versions.state().active_version == 0
    with pytest.raises(MeshError):
        await bench.versions.activate(1)
