"""A Jaeger beside the mesh: found, configured, and refused with what to do. (tests/mesh runs a real one.)"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from openclaw_rl.config import Config
from openclaw_rl.launch import jaeger
from openclaw_rl.launch.supervisor_process import SupervisorProcess
from openclaw_rl.runtime.home import Home, write_atomically

SOME = jaeger.Jaeger("/some/jaeger", 1001, 1002, 1003, 1004, 1005)


def test_where_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.prefix", str(tmp_path / "prefix"))
    with pytest.raises(jaeger.NoJaeger, match="tools/outside-tools"):
        jaeger.prepare(Config())
    for place in (f"cache/openclaw-rl-tools/jaeger-{jaeger.VERSION}/jaeger", "prefix/tools/jaeger", "bin/jaeger"):
        file = tmp_path / place
        file.parent.mkdir(parents=True)
        file.touch(0o755)
        assert jaeger.find() == str(file)
    found = jaeger.prepare(Config())
    assert len({found.query, found.query_grpc, found.health, found.otlp_grpc, found.otlp_http}) == 5
    assert not found.ready()


def test_a_mesh_that_does_not_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(jaeger.NoJaeger, match=r"telemetry\.enabled"):
        jaeger.prepare(Config.model_validate({"telemetry": {"enabled": False}}))
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with pytest.raises(jaeger.NoJaeger, match="OTEL_SDK_DISABLED"):
        jaeger.prepare(Config())


def test_every_port_of_its_configuration_is_one_of_ours() -> None:
    text = jaeger.CONFIG_FILE.read_text()
    config = yaml.safe_load(text)
    assert config["service"]["telemetry"]["metrics"]["level"] == "none"
    variables = SOME.variables()
    assert {name for name in variables if name in text} == {name for name in variables if name.startswith("JAEGER_")}
    assert text.count("env:JAEGER_") == 5 == text.count("127.0.0.1:$")


def test_the_components_send_spans_there() -> None:
    config = jaeger.traced_to(Config(), SOME)
    assert (config.telemetry.endpoint, config.telemetry.protocol) == ("http://127.0.0.1:1004", "grpc")
    assert jaeger.traced_to(Config(), None) == Config()


def test_what_the_supervisor_runs_beside_it(tmp_path: Path) -> None:
    home = Home(tmp_path).create()
    kept = SupervisorProcess(home, [])
    write_atomically(home.run / "config.yaml", b"components: {policy_server: {threads: 2}}")
    assert "OTEL_METRICS_EXPORTER" not in kept.program("trainer").environment()
    jaeger.write(home, SOME)
    program = kept.program(jaeger.NAME)
    assert program.command() == ["/some/jaeger", f"--config=file:{jaeger.CONFIG_FILE}"] and not program.notifies
    assert program.environment()["JAEGER_QUERY_PORT"] == "1001"
    variables = kept.program("policy_server").environment()
    assert variables["OTEL_METRICS_EXPORTER"] == "none", "Jaeger takes no metrics"
    assert (variables["OMP_NUM_THREADS"], variables["OMP_WAIT_POLICY"]) == ("2", "passive")
    assert kept.program("env_server").environment()["OMP_NUM_THREADS"] == "1"


def test_the_record(tmp_path: Path) -> None:
    home = Home(tmp_path).create()
    assert jaeger.read(home) is None
    jaeger.write(home, SOME)
    assert jaeger.read(home) == SOME
    (home.run / "jaeger.json").write_text('{"binary": 1}')
    assert jaeger.read(home) is None
    jaeger.remove(home)
    assert not list(home.run.iterdir())
