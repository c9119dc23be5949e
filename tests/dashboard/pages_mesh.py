"""Stand-ins with turns, versions, environments, episodes and logs, some of whose texts are hostile."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from openclaw_rl.observability.span_store import SpanStore
from openclaw_rl.rpc.errors import MeshError, failed_precondition, not_found
from openclaw_rl.runtime.home import Home, RunRecord, write_record
from openclaw_rl.v1 import (
    component_pb2,
    component_pb2_grpc,
    environment_pb2,
    environment_pb2_grpc,
    judge_pb2,
    judge_pb2_grpc,
    policy_pb2,
    policy_pb2_grpc,
    trainer_pb2,
    trainer_pb2_grpc,
    turn_pb2,
    weights_pb2,
)
from tests.dashboard.fakes import FakeMesh, _Component, _Judge, _Trainer

#: What users, tools, models, tasks and errors say to harm a reader.
HOSTILE = ('<script>window.hacked=1</script><img src=x onerror="window.hacked=1"> [x](javascript:window.hacked=1) '
           '{{constructor.constructor("window.hacked=1")()}} \x1b]0;title\x07\x1b[31mred\x1b[0m '
           'a\u202egnp.exe\u2066 \x00 </textarea></pre><svg onload=window.hacked=1> `${window.hacked=1}` &lt;b&gt; ')
#: A response of which the environment server tells the beginning.
LONG = "It is 0. " + "And so on. " * 20 + "And a lot more, which only the journal has."
BASE = 1_790_000_000
MAIN, SIDE = turn_pb2.TURN_CLASS_MAIN, turn_pb2.TURN_CLASS_SIDE


def at(seconds: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromNanoseconds(int((BASE + seconds) * 1e9))
    return stamp


def png(width: int, height: int, colour: tuple[int, int, int]) -> bytes:
    """A picture of one colour."""
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = (b"\0" + bytes(colour) * width) * height
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def trace(home: Home, turn_id: str, count: int) -> None:
    """Spans of a turn, as the environment server keeps them; the third one failed."""
    store = SpanStore(home.root / "telemetry" / "env_server.db", 100_000)
    begin = BASE * 10**9
    store.add({"trace": "a" * 32, "span": f"{number:016x}", "parent": f"{(number - 1) // 2:016x}" if number else "",
               "service": ("policy_server", "env_server", "prm_judge", "trainer")[number % 4],
               "name": f"vote {number}" if number else "chat", "kind": 1, "start": begin + number * 10**6,
               "end": begin + (count + number) * 10**6, "status": "error" if number == 2 else "ok",
               "message": HOSTILE if number == 2 else "", "events": [], "links": [], "attributes": {
                   "openclaw.turn.id": turn_id, "openclaw.session.id": "ses0", "openclaw.text": HOSTILE}}
              for number in range(count))
    store.close()


def turn(number: int, **fields: Any) -> environment_pb2.TurnSummary:
    """t0, t1, ...: every fourth one is a side turn; two in a session, versions 0 to 2."""
    side = number % 4 == 3
    return environment_pb2.TurnSummary(**{
        "turn_id": f"t{number}", "session_id": f"ses{number // 2}", "turn_class": SIDE if side else MAIN,
        "class_reason": "title request" if side else "a user's message", "policy_version": number % 3,
        "state": environment_pb2.TURN_STATE_NOT_TRAINABLE if side else environment_pb2.TURN_STATE_SENT,
        "request_text": f"What is {number} plus {number}?", "response_text": f"It is {2 * number}.",
        "finished_at": at(number), "parent_turn_id": f"t{number - 1}" if number % 2 else "", **fields})


class Data:
    """What the stand-ins tell; tests change it."""

    def __init__(self, turns: int = 30) -> None:
        self.turns = {f"t{number}": turn(number) for number in range(turns)}
        self.turns["t0"].response_text = LONG[:200]
        self.turns["bad"] = turn(turns, turn_id="bad", session_id="ses<i>", request_text=HOSTILE[:200],
                                 response_text=HOSTILE[-200:], class_reason=HOSTILE, flaw=HOSTILE)
        self.feedback: list[turn_pb2.Feedback] = [turn_pb2.Feedback(
            feedback_id="f", turn_id="bad", score=-1, comment=HOSTILE, given_at=at(99))]
        self.judgements = {name: turn_pb2.Judgement(
            turn_id=name, score=(1, 0, -1)[number % 3], panel="rules", hint=HOSTILE if name == "bad" else "be exact",
            judged_at=at(number), votes=[
                turn_pb2.Vote(judge="rules", score=(1, 0, -1)[number % 3], rationale=HOSTILE, certain=True),
                turn_pb2.Vote(judge="llm:x", error=HOSTILE, duration_ms=20)])
            for number, name in enumerate(self.turns) if self.turns[name].turn_class == MAIN and name != "t28"}
        self.samples = {name: trainer_pb2.SampleStatus(
            turn_id=name, fate=trainer_pb2.SAMPLE_FATE_TRAINED if number < 12 else trainer_pb2.SAMPLE_FATE_DROPPED,
            version=1 + number % 2 if number < 12 else None, reason="" if number < 12 else HOSTILE,
            score=judgement.score, advantage=0.5)
            for number, (name, judgement) in enumerate(self.judgements.items())}
        self.versions = [version(0), version(1, 0, ("t0", "t1")), version(2, 1, ("t2", "bad")), version(3, 1)]
        self.active, self.pinned, self.kept = 2, False, [0, 1, 2]
        self.paused: str | None = None
        self.done: list[tuple[Any, ...]] = []  #: what was asked of the stand-ins
        self.asked: Counter[str] = Counter()  #: how often for what takes long
        self.fails: MeshError | None = None  #: of the next thing that changes something
        self.kinds = [
            environment_pb2.EnvironmentInfo(type="terminal", kind="terminal", backend="bubblewrap", capacity=64,
                                            leased=2, warm=3, starting=1, waiting=4, tasks=40),
            environment_pb2.EnvironmentInfo(type="gui", kind="gui", backend="bubblewrap", image="desk", capacity=8,
                                            leased=1, problem=f"no image desk: make it {HOSTILE}")]
        self.leases = {name: environment_pb2.Lease(
            lease_id=name, type=kind, holder="run-1", task_id=task, steps=3, acquired_at=at(0), expires_at=at(600))
            for name, kind, task in (("lease/1", "terminal", "count-lines"), ("lease2", "gui", HOSTILE),
                                     ("lease3", "terminal", "x"))}
        self.views = {"lease/1": ("ls -l\r\n\x1b[31mREADME\x1b[0m\r\n$ " + HOSTILE, b""),
                      "lease2": ("windows", png(640, 400, (30, 120, 200))), "lease3": ("\ud800 half", b"no picture")}
        self.watched: dict[str, int] = {}
        self.episodes = [environment_pb2.Episode(
            episode_id=f"e{number}", run_id="run-1", group_id=f"g{number // 4}", type="terminal",
            task_id=HOSTILE if number == 5 else f"task{number // 4}", session_id=f"ses{number}", steps=number,
            done=number > 0, outcome=None if number in (0, 3) else float(number % 2),
            error=HOSTILE if number == 3 else "", detail="ok", started_at=at(number), policy_version=2)
            for number in range(8)]
        self.log = ["2026-11-30 10:00:01,000 INFO    openclaw: started", "2026-11-30 10:00:02,000 WARNING a: slow",
                    "2026-11-30 10:00:03,000 ERROR   b: " + HOSTILE.replace("\0", ""), "Traceback: of the error",
                    "x" * 20_000]
        told = (f'[MAIN] Action: "{LONG}"', 'NextState: "thanks\\nall"', '[MAIN] Action: "It is 2."',
                "[PRM] Score: -1 (dissatisfied)")
        self.journal = [f"[2026-11-30 10:00:0{number}] [SESSION: ses0] [VERSION: 0] {text}"
                        for number, text in enumerate(told)]


def version(number: int, parent: int | None = None, turns: tuple[str, ...] = ()) -> trainer_pb2.PolicyVersion:
    gate = weights_pb2.GateReport(
        verdict=weights_pb2.GATE_VERDICT_FAILED if number == 3 else weights_pb2.GATE_VERDICT_PASSED,
        failures=["perplexity 9 is above 5"] if number == 3 else [], metrics={"perplexity": 2.0 + number},
        before={"perplexity": 2.0},
        answers=[weights_pb2.HeldOutAnswer(prompt="Say hi " + HOSTILE, answer=f"hi {number} {HOSTILE}", tokens=4)])
    return trainer_pb2.PolicyVersion(
        manifest=weights_pb2.VersionManifest(
            version=number, parent=parent, digest=str(number) * 64, algorithm="base" if parent is None else "combine",
            settings={"lr": f"{number}e-5"}, turn_ids=turns, metrics={"loss": 0.5 / (number + 1), "pause_ms": 12.4},
            created_at=at(100 * number), gate=gate if number else None),
        activated_at=at(100 * number + 9), kept=True, live=trainer_pb2.LiveScore(turns=9, mean=0.1 * number),
        deliveries=[trainer_pb2.VersionDelivery(address="10.0.0.1:50051", active=number == 2, detail=HOSTILE)])


class _Environment(environment_pb2_grpc.EnvironmentServiceServicer):
    def __init__(self, data: Data) -> None:
        self._data = data

    async def ListTurns(self, request: environment_pb2.ListTurnsRequest,
                        context: Any) -> environment_pb2.ListTurnsResponse:
        found = [one for one in reversed(self._data.turns.values()) if not (
            (request.session_id and one.session_id != request.session_id)
            or (request.turn_ids and one.turn_id not in request.turn_ids)
            or (request.turn_classes and one.turn_class not in request.turn_classes)
            or (request.HasField("policy_version") and one.policy_version != request.policy_version)
            or request.text.lower() not in (one.request_text + "\n" + one.response_text).lower())]
        start, size = int(request.page_token or 0), request.page_size or 200
        return environment_pb2.ListTurnsResponse(turns=found[start:start + size],
                                                 next_page_token=str(start + size) if len(found) > start + size else "")

    async def GetSession(self, request: environment_pb2.GetSessionRequest,
                         context: Any) -> environment_pb2.GetSessionResponse:
        turns = [one for one in self._data.turns.values() if one.session_id == request.session_id]
        if not turns:
            raise await _abort(context, not_found("session", request.session_id, "ListTurns tells the others"))
        return environment_pb2.GetSessionResponse(
            session=environment_pb2.Session(session_id=request.session_id, turns=len(turns), branches=1,
                                            started_at=at(0), last_active_at=at(9)), turns=turns,
            feedback=[one for one in self._data.feedback if one.turn_id in {turn.turn_id for turn in turns}])

    async def ListEnvironments(self, request: Any, context: Any) -> environment_pb2.ListEnvironmentsResponse:
        return environment_pb2.ListEnvironmentsResponse(environments=self._data.kinds)

    async def ListLeases(self, request: Any, context: Any) -> environment_pb2.ListLeasesResponse:
        return environment_pb2.ListLeasesResponse(leases=self._data.leases.values())

    async def ListEpisodes(self, request: environment_pb2.ListEpisodesRequest,
                           context: Any) -> environment_pb2.ListEpisodesResponse:
        return environment_pb2.ListEpisodesResponse(episodes=[
            one for one in reversed(self._data.episodes) if request.run_id in ("", one.run_id)
            and request.type in ("", one.type)])

    async def WatchLease(self, request: environment_pb2.WatchLeaseRequest,
                         context: Any) -> AsyncIterator[environment_pb2.WatchLeaseResponse]:
        data, name = self._data, request.lease_id
        if name not in data.leases:
            raise await _abort(context, not_found("lease", name, "ListLeases tells those that there are"))
        data.watched[name] = data.watched.get(name, 0) + 1
        try:
            while True:
                text, image = data.views.get(name, ("", b""))
                seen = environment_pb2.WatchLeaseResponse(
                    lease=data.leases[name], action_json=json.dumps({"name": "run", "arguments": {"command": HOSTILE}}),
                    view=environment_pb2.Observation(json=json.dumps({"text": text}), image_png=image))
                seen.at.FromNanoseconds(time.time_ns())
                yield seen
                await asyncio.sleep(0.2)
        finally:
            data.watched[name] -= 1


class _Judgements(_Judge):
    def __init__(self, data: Data) -> None:
        self._data = data

    async def ListJudgements(self, request: judge_pb2.ListJudgementsRequest,
                             context: Any) -> judge_pb2.ListJudgementsResponse:
        known = self._data.judgements
        return judge_pb2.ListJudgementsResponse(judgements=[known[one] for one in request.turn_ids if one in known])


class _Training(_Trainer):
    def __init__(self, mesh: PagesMesh) -> None:
        super().__init__(mesh)
        self._data = mesh.data

    async def ListSamples(self, request: trainer_pb2.ListSamplesRequest,
                          context: Any) -> trainer_pb2.ListSamplesResponse:
        known = self._data.samples
        return trainer_pb2.ListSamplesResponse(samples=[known[one] for one in request.turn_ids if one in known])

    async def ListVersions(self, request: Any, context: Any) -> trainer_pb2.ListVersionsResponse:
        self._data.asked["versions"] += 1
        return trainer_pb2.ListVersionsResponse(versions=self._data.versions)

    async def Pause(self, request: trainer_pb2.PauseRequest, context: Any) -> trainer_pb2.PauseResponse:
        await self._do(context, "pause", request.reason)
        self._data.paused = request.reason
        return trainer_pb2.PauseResponse()

    async def Resume(self, request: Any, context: Any) -> trainer_pb2.ResumeResponse:
        await self._do(context, "resume")
        self._data.paused = None
        return trainer_pb2.ResumeResponse()

    async def TrainNow(self, request: Any, context: Any) -> trainer_pb2.TrainNowResponse:
        await self._do(context, "train")
        return trainer_pb2.TrainNowResponse(samples=3, message=f"a step on 3 samples begins {HOSTILE}")

    async def _do(self, context: Any, *what: Any) -> None:
        self._data.done.append(what)
        if self._data.fails is not None:
            raise await _abort(context, self._data.fails)


class _Policy(policy_pb2_grpc.PolicyServiceServicer):
    def __init__(self, data: Data) -> None:
        self._data = data

    def _state(self) -> policy_pb2.PolicyState:
        return policy_pb2.PolicyState(active_version=self._data.active, kept_versions=self._data.kept,
                                      pinned=self._data.pinned)

    async def GetPolicy(self, request: Any, context: Any) -> policy_pb2.GetPolicyResponse:
        return policy_pb2.GetPolicyResponse(state=self._state())

    async def ActivateVersion(self, request: policy_pb2.ActivateVersionRequest,
                              context: Any) -> policy_pb2.ActivateVersionResponse:
        data = self._data
        data.done.append(("activate", request.version if request.HasField("version") else None, request.reason,
                          request.pin if request.HasField("pin") else None))
        if data.fails is not None:
            raise await _abort(context, data.fails)
        if request.HasField("version"):
            if request.version not in data.kept:
                raise await _abort(context, failed_precondition("VERSION_UNKNOWN", "it isn't kept"))
            data.active = request.version
        if request.HasField("pin"):
            data.pinned = request.pin
        return policy_pb2.ActivateVersionResponse(state=self._state(), pause_ms=7)


class _Parts(_Component):
    def __init__(self, mesh: PagesMesh, name: str) -> None:
        super().__init__(mesh, name)
        self._pages = mesh

    async def GetStatus(self, request: Any, context: Any) -> component_pb2.GetStatusResponse:
        status = component_pb2.ComponentStatus()
        status.CopyFrom(self._pages.status[self._name])
        if self._name == "trainer":  # as the real one's, it is another one each time
            paused = self._pages.data.paused
            status.detail = "preparing the model" if paused is not None else \
                f"needs 2 more samples or {time.monotonic() % 60:.2f} s"
            status.gauges["paused"] = float(paused is not None)
        return component_pb2.GetStatusResponse(status=status)

    async def WatchStats(self, request: component_pb2.WatchStatsRequest, context: Any) -> AsyncIterator[Any]:
        while True:
            told = await self.GetStatus(None, context)
            yield component_pb2.WatchStatsResponse(status=told.status)
            await asyncio.sleep(request.interval.ToMilliseconds() / 1000 or 1.0)

    async def ReadLogs(self, request: component_pb2.ReadLogsRequest,
                       context: Any) -> AsyncIterator[component_pb2.ReadLogsResponse]:
        data = self._pages.data
        data.asked["journal"] += request.source == component_pb2.LOG_SOURCE_JOURNAL
        lines = data.journal if request.source == component_pb2.LOG_SOURCE_JOURNAL else data.log
        told = len(lines)
        yield component_pb2.ReadLogsResponse(lines=[line.encode("utf-8", "replace").decode() for line in lines])
        while request.follow:
            await asyncio.sleep(0.05)
            if len(lines) > told:
                fresh, told = lines[told:], len(lines)
                yield component_pb2.ReadLogsResponse(lines=fresh)


class PagesMesh(FakeMesh):
    """The four with data."""

    def __init__(self, home: Home, turns: int = 30) -> None:
        self.data = Data(turns)
        super().__init__(home)

    async def _start(self, name: str) -> None:
        server = grpc.aio.server()
        component_pb2_grpc.add_ComponentServiceServicer_to_server(_Parts(self, name), server)
        if name == "env_server":
            environment_pb2_grpc.add_EnvironmentServiceServicer_to_server(_Environment(self.data), server)
        elif name == "prm_judge":
            judge_pb2_grpc.add_JudgeServiceServicer_to_server(_Judgements(self.data), server)
        elif name == "trainer":
            trainer_pb2_grpc.add_TrainerServiceServicer_to_server(_Training(self), server)
        else:
            policy_pb2_grpc.add_PolicyServiceServicer_to_server(_Policy(self.data), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self.status[name].started_at.GetCurrentTime()
        self.status[name].address = f"127.0.0.1:{port}"
        write_record(self.home, RunRecord(name, os.getpid(), f"127.0.0.1:{port}"))
        self._servers[name] = server


async def _abort(context: Any, error: MeshError) -> Exception:
    """Fail a call as a component's server does."""
    await context.abort(error.code, error.message, error.trailing_metadata())
    raise AssertionError
