"""Secrets don't leave a process in words."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import grpc
import psutil
import pytest

from openclaw_rl.client import ComponentServiceClient
from openclaw_rl.config import Config, ConfigError, load_config
from openclaw_rl.launch.supervisor import COMPONENT_MODULE
from openclaw_rl.rpc.auth.keys import new_key
from openclaw_rl.rpc.errors import MeshError, invalid
from openclaw_rl.runtime import redact
from openclaw_rl.runtime.home import Home, read_record
from openclaw_rl.runtime.redact import BLOT, Formatter, Redactor, config_secrets, environment_secrets
from openclaw_rl.runtime.runtime import Ambient, activated
from openclaw_rl.v1 import component_pb2 as pb

JWT = ".".join(("eyJhbGciOiJIUzI1NiJ9", "eyJzdWIiOiIxMjM0NTY3ODkw", "dozjgNryP4J3jVmNHl0w5N"))
PEM = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEI\n-----END EC PRIVATE KEY-----"


@pytest.mark.parametrize(("text", "left"), [
    ("Authorization: Bearer abcdefgh", f"Authorization: Bearer {BLOT}"),
    ("authorization: dG9rZW4gdG9rZW4", f"authorization: {BLOT}"),
    ("[(b'Authorization', b'Bearer abcdefgh')]", f"[(b'Authorization', b'Bearer {BLOT}')]"),
    ("sent Bearer abcd1234efgh to it", f"sent Bearer {BLOT} to it"),
    ('{"api_key": "abcdefgh", "n": 1}', f'{{"api_key": "{BLOT}", "n": 1}}'),
    (r'{\"api_key\": \"abcdefgh\"}', rf'{{\"api_key\": \"{BLOT}\"}}'),
    ("x-api-key: abcdefgh", f"x-api-key: {BLOT}"),
    ("Incorrect API key: abcdefgh.", f"Incorrect API key: {BLOT}"),
    ("https://user:pa55word@host:1/x", f"https://{BLOT}@host:1/x"),
    (f"it is {PEM}\nand more", f"it is {BLOT}\nand more"),
    (PEM[:40], BLOT),
    ("run --api-key abcdefgh --n 1", f"run --api-key {BLOT} --n 1"),
    ("run --hf-token abcdefgh", f"run --hf-token {BLOT}"),
    ("GET /x?token=abcdefgh&n=1", f"GET /x?token={BLOT}&n=1"),
    ("access_token=abcdefgh", f"access_token={BLOT}"),
    ("Authorization: Bearer abc", f"Authorization: Bearer {BLOT}"),
    ('{"password": "ab,cdefgh", "n": 1}', f'{{"password": "{BLOT}", "n": 1}}'),
    ("password='abcdefg,hi jk' n", f"password='{BLOT}' n"),
    (f"it is {JWT}.", f"it is {BLOT}."),
    ("the key sk-proj-abcdefghijklmnop is wrong", f"the key {BLOT} is wrong"),
])
def test_what_has_the_form_of_a_secret(text: str, left: str) -> None:
    assert Redactor().text(text) == left


@pytest.mark.parametrize("part", ["eyJ-", "eyJ", "eyJaaaaaaaaaaa.", "--a-", "token=", "password ", "bearer "])
def test_a_long_text_takes_no_long_time(part: str) -> None:
    began = time.process_time()
    Redactor().text("secret " + part * (2**16 // len(part)))
    assert time.process_time() - began < 0.5


def test_a_key_of_the_mesh_goes() -> None:
    assert Redactor().text(f"{new_key('x', ['chat'])[0]} is wrong") == f"{BLOT} is wrong"


@pytest.mark.parametrize("text", [
    "a basic training of bearers", "basic training", "Bearer of news", "max_tokens=128", "api_key_env: OPENAI_API_KEY",
    "send the metadata `authorization: Bearer KEY`", "set OPENAI_API_KEY=... first", "no password, nothing else",
    "http://127.0.0.1:30000/v1", "turn_0190b5c1a4f07c3e8d2f openclaw.turn", "a secret: no", "", "ask-me-anything"])
def test_what_is_none_stays(text: str) -> None:
    assert Redactor().text(text) == text


def test_known_secrets_go_wherever_they_stand() -> None:
    redactor = Redactor(environment_secrets({
        "ZHIPUAI_API_KEY": "glm.0123", "OPENCLAW_RL_API_KEYS": "first-key, second-key", "DB_PASSWORD": "a+b(c)d*e",
        "TOKENIZERS_PARALLELISM": "somewhere", "SSH_KEY": "/root/.ssh/id", "API_KEY_FILE": "harmless",
        "HOME": "harmless"}))
    assert redactor.text("glm.0123xfirst-key/second-keyz a+b(c)d*e") == f"{BLOT}x{BLOT}/{BLOT}z {BLOT}"
    assert redactor.text("glmx0123 somewhere harmless /root/.ssh/id") == "glmx0123 somewhere harmless /root/.ssh/id"
    config = Config.model_validate({"components": {"policy_server": {"api_keys": ["door-key-1"], "api_key_env": "MINE",
                                                                     "sglang": {"api_key_env": "SERVER"}},
                                                   "trainer": {"playbook": {"api_key_env": "WRITER"}},
                                                   "prm_judge": {"api_key_env": "THEIRS"}}})
    assert config_secrets(config, {"MINE": "mine-mine", "THEIRS": "theirs-theirs", "SERVER": "servers-own",
                                   "WRITER": "writers-own"}) == [
        "door-key-1", "mine-mine", "servers-own", "theirs-theirs", "writers-own"]


def test_logs_with_arguments_and_tracebacks() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Formatter("%(name)s: %(message)s"))
    logger = logging.Logger("it")
    logger.addHandler(handler)
    try:
        raise ValueError("refused: Bearer abcd1234efgh")
    except ValueError:
        logger.exception("headers %s", {"Authorization": "Bearer abcdefgh"})
    assert "abcd" not in stream.getvalue() and stream.getvalue().count(BLOT) >= 2


def test_errors_that_leave_the_process() -> None:
    error = MeshError(grpc.StatusCode.INTERNAL, "INTERNAL", "the API said: key sk-abcdefghijklmnopqrst is wrong")
    assert error.message == str(error) == f"the API said: key {BLOT} is wrong"
    assert b"sk-abc" not in error.trailing_metadata()[0][1]
    assert b"sk-abc" not in invalid("model", "sk-abcdefghijklmnopqrst", "a model").to_status().SerializeToString()


def test_a_status_with_all_that_it_has() -> None:
    status = pb.ComponentStatus(detail="Bearer abcd1234efgh", counters={"ocl": 1}, dropped={"x": 2})
    status.alarms.add(name="api", message="password=hunter22")
    status.outboxes.add(name="turns", last_error="Authorization: abcdefgh", pending=3)
    before = pb.ComponentStatus()
    before.CopyFrom(status)
    Redactor().message(status)
    assert (status.detail, status.alarms[0].message, status.outboxes[0].last_error) == (
        f"Bearer {BLOT}", f"password={BLOT}", f"Authorization: {BLOT}")
    before.detail, before.alarms[0].message, before.outboxes[0].last_error = (
        status.detail, status.alarms[0].message, status.outboxes[0].last_error)
    assert status == before


def test_spans(tmp_path: Path) -> None:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from openclaw_rl.config import TelemetryConfig
    from openclaw_rl.observability import telemetry
    from openclaw_rl.observability.context import emit

    exporter = InMemorySpanExporter()
    telemetry.setup("prm_judge", TelemetryConfig(), Home(tmp_path), exporter)
    try:
        emit("vote", None, {"reason": "it said sk-abcdefghijklmnopqrst", "many": ["Bearer abcd1234efgh", "x"], "n": 3},
             error="refused: password=hunter22")
        assert telemetry.flush()
        span = exporter.get_finished_spans()[0]
        kept = (tmp_path / "telemetry" / "prm_judge.db").read_bytes() + b"".join(
            file.read_bytes() for file in (tmp_path / "telemetry").glob("*-wal"))
    finally:
        telemetry.shutdown()
    assert span.status.description == f"refused: password={BLOT}"
    assert dict(span.attributes or {}) == {"reason": f"it said {BLOT}", "many": (f"Bearer {BLOT}", "x"), "n": 3}
    assert b"hunter22" not in kept and b"sk-abc" not in kept and b"abcd1234" not in kept


def test_a_wrong_key_in_a_configuration_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("components: {policy_server: {api_keys: {only: my-secret-key}}}")
    with pytest.raises(ConfigError, match=r"components\.policy_server\.api_keys") as caught:
        load_config(tmp_path / "c.yaml")
    assert "my-secret" not in str(caught.value)


def test_a_component_knows_its_own() -> None:
    with activated(Ambient(redactor=Redactor(["known-secret"]))):
        assert redact.text("a known-secret") == f"a {BLOT}"
    assert redact.text("a known-secret") == "a known-secret"


def test_a_real_component_tells_no_secret(tmp_path: Path) -> None:
    """At DEBUG, with keys in its environment and configuration, and a neighbour's address that can't be reached."""
    home = Home(tmp_path).create()
    markers = {"OPENAI_API_KEY": "marker-openai-7f3a", "OPENCLAW_RL_API_KEYS": "marker-door-51bc,marker-door-9d0e"}
    (tmp_path / "config.yaml").write_text(json.dumps({
        "log_level": "DEBUG", "components": {
            "policy_server": {"api_keys": ["marker-config-22aa"]},
            "trainer": {"address": "127.0.0.1:1"},
            "prm_judge": {"port": 0, "judge": "llm", "model": "m",
                          "base_url": "http://x:marker-url-31ee@127.0.0.1:9/v1"}}}))
    with (home.logs / "prm_judge.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", COMPONENT_MODULE, "prm_judge", "--config",
                                    str(tmp_path / "config.yaml")], stdout=log, stderr=log,
                                   env={**os.environ, **markers, "OPENCLAW_RL_HOME": str(tmp_path)})
    try:
        deadline = time.monotonic() + 60
        while read_record(home, "prm_judge") is None:
            assert process.poll() is None and time.monotonic() < deadline, (home.logs / "prm_judge.log").read_text()
            time.sleep(0.05)
        with ComponentServiceClient(component="prm_judge", home=home) as client:
            while not (told := client.get_status().status).outboxes:
                time.sleep(0.05)
            logs = "".join(line for part in client.read_logs(lines=10_000) for line in map(str, part.lines))
        argv = " ".join(psutil.Process(process.pid).cmdline())
        seen = f"{told}{logs}{argv}{(home.logs / 'prm_judge.log').read_text()}"
    finally:
        process.terminate()
        process.wait(20)
    assert "prm_judge serves gRPC" in seen
    assert "marker-" not in seen + (home.logs / "prm_judge.log").read_text()
