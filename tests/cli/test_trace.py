"""trace: the tree of a turn from the files in the mesh's folder, without any process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from openclaw_rl.cli.commands import app
from openclaw_rl.config import TelemetryConfig
from openclaw_rl.observability import request_spans, telemetry, turn_spans, version_spans
from openclaw_rl.runtime.home import Home
from openclaw_rl.v1 import turn_pb2, weights_pb2


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("OPENCLAW_RL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("OTEL_SDK_DISABLED", raising=False)
    return Home(tmp_path / "home").create()


@pytest.fixture
def traced(home: Home) -> Iterator[None]:
    """Two turns of session s, of which version 4 was trained; a third one was dropped."""
    telemetry.setup("policy_server", TelemetryConfig(), home)
    made = [_turn(name) for name in ("first", "second", "third")]
    telemetry.shutdown()
    telemetry.setup("trainer", TelemetryConfig(), home)
    turn_spans.accepted([turn_pb2.Sample(transition=turn_pb2.Transition(turn=turn)) for turn in made], lambda ids: [])
    turn_spans.dropped(["third"], "no signal: neutral")
    with version_spans.step() as step:
        step.on(["first", "second"], 3)
        manifest = weights_pb2.VersionManifest(version=4, turn_ids=["first", "second"], trace=step.trace)
        step.made(manifest)
    sync = version_spans.sync(manifest, "127.0.0.1:1", None)
    version_spans.synced(sync, 1000, weights_pb2.WeightActivated(version=4))
    telemetry.shutdown()
    yield


def _turn(name: str) -> turn_pb2.Turn:
    request = request_spans.http("POST", "/v1/chat/completions", {})
    trace = request_spans.generated(
        request, turn_id=name, session_id="s", api="chat.completions", model="m", messages=[],
        sampling=turn_pb2.SamplingParams(), response=None, finish_reason=turn_pb2.FINISH_REASON_STOP, prompt_tokens=11,
        completion_tokens=5, spans=[], version=3, began=1_700_000_000.0, first_token_at=None)
    request_spans.answered(request, 200)
    turn = turn_pb2.Turn(turn_id=name, session_id="s", turn_class=turn_pb2.TURN_CLASS_MAIN, policy_version=3,
                         class_reason="asked by a user", trace=trace)
    turn_spans.recorded(turn)
    vote = turn_pb2.Vote(judge="rules", score=-1, duration_ms=2)
    turn_spans.judged([(turn_pb2.Transition(turn=turn), turn_pb2.Judgement(turn_id=name, votes=[vote], score=-1))])
    return turn


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["trace", *args])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.mark.usefixtures("traced")
def test_the_tree_of_a_turn() -> None:
    code, output = run("first")
    assert code == 0
    lines = [line.strip("│├└─ ") for line in output.splitlines()]
    assert lines[0].startswith("turn first  trace ")
    for line, *facts in (("POST /v1/chat/completions", "200"), ("chat m", "11 + 5 tokens", "stop", "version 3"),
                         ("turn record", "main: asked by a user"), ("evaluate", "score -1"),
                         ("vote rules", "2.0 ms", "score -1"), ("sample", "version 3"), ("train", "trained version 4")):
        (found,) = [each for each in lines if each.startswith(f"{line}  ")]
        assert all(fact in found for fact in facts), (line, found)
    assert "second" not in output


@pytest.mark.usefixtures("traced")
def test_a_session_and_a_version() -> None:
    code, output = run("--session", "s")
    assert code == 0 and [line.split()[1] for line in output.splitlines() if line.startswith("turn ")] == [
        "first", "second", "third"]
    assert "no signal: neutral" in output
    code, output = run("--version", "4")
    assert code == 0
    assert [line.split()[1] for line in output.splitlines() if line.startswith(("turn", "version"))] == [
        "4", "first", "second"]
    assert "train step" in output and "weight sync" in output and "0.0 MB to 127.0.0.1:1" in output


@pytest.mark.usefixtures("traced")
def test_json_is_otlp() -> None:
    code, output = run("first", "--json")
    groups = json.loads(output)["resourceSpans"]
    assert code == 0
    assert [g["resource"]["attributes"][0]["value"]["stringValue"] for g in groups] == [
        "openclaw-rl.policy_server", "openclaw-rl.trainer"]
    spans = {span["name"]: span for group in groups for scope in group["scopeSpans"] for span in scope["spans"]}
    trained = {a["key"]: a["value"] for a in spans["train"]["attributes"]}["openclaw.policy.version.trained"]
    assert trained == {"intValue": "4"}
    assert spans["chat m"]["parentSpanId"] == spans["POST /v1/chat/completions"]["spanId"]
    assert spans["POST /v1/chat/completions"]["kind"] == 2 and len(spans["train"]["links"]) == 1


def test_what_to_do_when_there_is_nothing(home: Home) -> None:
    code, output = run("nope")
    assert code == 1 and "local-start" in output
    home.config_file.write_text("telemetry: {enabled: false}")
    code, output = run("nope")
    assert code == 1 and "telemetry is disabled" in output and "telemetry.enabled: true" in output


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("args", [("nope",), ("--session", "nope"), ("--version", "99")])
def test_an_unknown_id(args: tuple[str, ...]) -> None:
    code, output = run(*args)
    assert code == 1 and "openclaw-rl turns" in output and args[-1] in output


@pytest.mark.parametrize("args", [(), ("a", "--session", "s"), ("--session", "s", "--version", "1")])
def test_one_thing_at_a_time(args: tuple[str, ...]) -> None:
    code, output = run(*args)
    assert code == 2 and "give exactly one of" in output


@pytest.mark.usefixtures("traced")
def test_a_version_that_can_never_be() -> None:
    code, output = run("--version", str(2**63))
    assert code == 2 and "Invalid value" in output


@pytest.mark.usefixtures("traced")
def test_a_damaged_file_does_not_hide_the_others(home: Home) -> None:
    (home.root / "telemetry/trainer.db").write_bytes(b"rubbish" * 1000)
    code, output = run("first")
    assert code == 0 and "trainer.db can't be read" in output and "chat m" in output
