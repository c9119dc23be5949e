"""The supervisor's configuration and what it does with real processes."""

from __future__ import annotations

import configparser
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from openclaw_rl.config import Config
from openclaw_rl.launch import start
from openclaw_rl.launch.checks import StartError
from openclaw_rl.launch.mesh_report import MeshReport
from openclaw_rl.launch.status import report
from openclaw_rl.launch.supervisor import Supervisor, configuration, socket_path
from openclaw_rl.runtime.home import COMPONENTS, Home, RunRecord, read_record, write_record
from openclaw_rl.runtime.supervision import START_VARIABLE
from tests.support.waiting import until


def test_configuration_keeps_keys_and_paths_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    config = Config.model_validate({"components": {"policy_server": {"threads": 2}}})
    text = configuration(config, Path("/tmp/50%/s.sock"))
    assert "sk-secret" not in text
    parser = configparser.RawConfigParser()
    parser.read_string(text)
    assert parser["unix_http_server"]["file"] == "/tmp/50%%/s.sock"
    variables = parser["program:policy_server"]["environment"]
    assert 'OMP_NUM_THREADS="2"' in variables and 'OMP_WAIT_POLICY="passive"' in variables
    assert 'OMP_NUM_THREADS="1"' in parser["program:env_server"]["environment"]


def test_seconds_of_a_start_are_injectable(monkeypatch: pytest.MonkeyPatch) -> None:
    def start_seconds() -> str:
        parser = configparser.RawConfigParser()
        parser.read_string(configuration(Config(), Path("/tmp/s.sock")))
        return parser["program:trainer"]["startsecs"]

    assert start_seconds() == "5"
    for value, expected in (("0.3", "1"), ("7", "7"), ("-1", "5"), ("soon", "5")):
        monkeypatch.setenv(START_VARIABLE, value)
        assert start_seconds() == expected, value


def test_one_that_crashes_is_tried_again_for_ever() -> None:
    parser = configparser.RawConfigParser()
    parser.read_string(configuration(Config(), Path("/tmp/s.sock")))
    retries = int(parser["program:trainer"]["startretries"])
    # The pause before attempt n is n seconds, so that n attempts take n^2 / 2 seconds: this is years.
    assert retries**2 / 2 > 10 * 365 * 86400


def test_failed_starts_are_counted_since_the_last_success(home: Home) -> None:
    supervisor = Supervisor(home)
    assert supervisor.failed_starts("trainer") == 0
    home.create()
    log = home.logs / "supervisord.log"
    spawned, success = "INFO spawned: 'trainer' with pid 1\n", "INFO success: trainer entered RUNNING state\n"
    log.write_text(3 * spawned)
    assert supervisor.failed_starts("trainer") == 3 and supervisor.failed_starts("env_server") == 0
    log.write_text(3 * spawned + success + 2 * spawned)
    assert supervisor.failed_starts("trainer") == 2
    log.write_text(3 * spawned + "INFO supervisord started with pid 7\n" + spawned)
    assert supervisor.failed_starts("trainer") == 1


def test_a_deep_home_gets_a_short_socket(tmp_path: Path) -> None:
    assert socket_path(Home(Path("/home/me/.openclaw-rl"))) == Path("/home/me/.openclaw-rl/run/supervisor.sock")
    deep = Home(tmp_path / ("d" * 120))
    assert len(str(socket_path(deep))) < 92
    assert socket_path(deep) != socket_path(Home(tmp_path / ("e" * 120)))


@pytest.mark.slow
def test_local_start_runs_four_and_stop_all_leaves_none(home: Home, config: Config, console: Console,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-inherited")
    mesh = start.local_start(home, config, console)
    assert mesh.all_running
    pids = {c.pid for c in mesh.components}
    supervisor = Supervisor(home)
    supervisor_pid = supervisor.pid()
    assert len(pids) == 4 and supervisor_pid is not None
    assert "key is sk-inherited threads 1" in (home.logs / "trainer.log").read_text()
    assert not any("sk-inherited" in file.read_text() for file in home.run.iterdir() if file.is_file())

    again = start.local_start(home, config, console)
    assert {c.pid for c in again.components} == pids, "a second local-start leaves alone what runs"

    supervisor.stop("env_server")
    assert report(home)["env_server"].state == "STOPPED"
    assert not report(home).all_running
    start.local_start(home, config, console)
    assert report(home).all_running, "local-start starts what is missing"

    assert sorted(start.stop_all(home)) == sorted(COMPONENTS)
    assert not any(psutil.pid_exists(pid) for pid in (*pids, supervisor_pid) if pid)
    assert {c.state for c in report(home).components} == {"STOPPED"}
    assert not list(home.run.glob("*")), "nothing is left in the run folder"
    assert start.stop_all(home) == []


@pytest.mark.slow
def test_json_of_status(home: Home, config: Config, console: Console) -> None:
    facts = start.local_start(home, config, console).json()
    assert [c["name"] for c in facts["components"]] == list(COMPONENTS)
    assert all(set(c) == {"name", "state", "host", "pid", "address", "detail", "alarms"} for c in facts["components"])
    assert facts["policy_version"] == 1
    assert facts["turns"] == {"main": 3, "side": 0, "unknown": 0}
    assert facts["samples"] == {"accepted": 2, "trained": 0, "pending": 0, "dropped": {"judge failed": 1}}


@pytest.mark.slow
def test_a_killed_component_comes_back(home: Home, config: Config, console: Console) -> None:
    mesh = start.local_start(home, config, console)
    pid = mesh["prm_judge"].pid
    assert pid
    until(lambda: Supervisor(home).processes()["prm_judge"].state == "RUNNING")
    os.kill(pid, signal.SIGKILL)

    def back() -> bool:
        now: MeshReport = report(home)
        return now.all_running and now["prm_judge"].pid != pid

    until(back)


@pytest.mark.slow
def test_one_that_is_asked_to_end_stays_down(home: Home, config: Config, console: Console) -> None:
    mesh = start.local_start(home, config, console)
    until(lambda: Supervisor(home).processes()["trainer"].state == "RUNNING")
    os.kill(mesh["trainer"].pid or 0, signal.SIGTERM)
    until(lambda: report(home)["trainer"].state == "STOPPED" and "asked to end" in report(home)["trainer"].detail)


@pytest.mark.slow
def test_a_component_that_crashes_at_its_start_is_named_with_its_log(home: Home, config: Config,
                                                                     console: Console) -> None:
    home.create()
    (home.root / "trainer.crash").touch()
    with pytest.raises(StartError, match=r"trainer ends as soon(.|\n)*told to crash(.|\n)*trainer\.log"):
        start.local_start(home, config, console)
    until(lambda: report(home)["trainer"].state == "DEGRADED")
    detail = report(home)["trainer"].detail
    assert "times as soon as it was started; it is tried again after growing pauses" in detail
    assert "told to crash" in detail
    until(lambda: Supervisor(home).processes()["trainer"].state == "BACKOFF")
    (home.root / "trainer.crash").unlink()
    assert start.local_start(home, config, console).all_running, "it does not wait for the end of the pause"
    until(lambda: report(home)["trainer"].state == "RUNNING")


@pytest.mark.slow
def test_a_mute_component_is_starting(home: Home, config: Config, console: Console) -> None:
    home.create()
    (home.root / "env_server.mute").touch()
    with pytest.raises(StartError, match="env_server is not RUNNING after 2 s"):
        start.local_start(home, config, console, timeout=2)
    assert report(home)["env_server"].state == "STARTING"
    (home.root / "env_server.mute").unlink()
    until(lambda: report(home).all_running)


@pytest.mark.slow
def test_components_of_a_killed_supervisor_are_ended(home: Home, config: Config, console: Console) -> None:
    mesh = start.local_start(home, config, console)
    old = {c.pid for c in mesh.components}
    supervisor = psutil.Process(Supervisor(home).pid())
    supervisor.kill()
    supervisor.wait(10)
    assert report(home).all_running, "they still answer"
    again = start.local_start(home, config, console)
    assert again.all_running and not old & {c.pid for c in again.components}
    supervisor = psutil.Process(Supervisor(home).pid())
    supervisor.kill()
    supervisor.wait(10)
    assert sorted(start.stop_all(home)) == sorted(COMPONENTS)
    assert not any(psutil.pid_exists(c.pid) for c in again.components if c.pid)


@pytest.mark.slow
def test_the_end_of_a_supervisor_while_its_components_start(home: Home, config: Config, console: Console) -> None:
    home.create()
    (home.root / "trainer.mute").touch()  # it has no record

    def kill() -> None:
        until(lambda: report(home, config)["trainer"].pid is not None)
        pids.append(report(home, config)["trainer"].pid)
        psutil.Process(Supervisor(home).pid()).kill()

    pids: list[int | None] = []
    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(StartError, match="the supervisor has ended"):
        start.local_start(home, config, console, timeout=30)
    killer.join()
    assert "trainer" in start.stop_all(home)
    assert pids[0] and not psutil.pid_exists(pids[0])


@pytest.mark.slow
def test_what_somebody_runs_by_hand_is_not_ended(home: Home, config: Config, console: Console) -> None:
    start.local_start(home, config, console)
    start.stop_all(home)
    (home.root / "trainer.mute").touch()
    with subprocess.Popen([sys.executable, "-m", "fake_component", "trainer", "--config", "-"]) as process:
        try:
            assert start.stop_all(home) == []
            assert process.poll() is None
        finally:
            process.kill()


@pytest.mark.slow
def test_one_that_serves_in_a_bad_way_is_no_obstacle(home: Home, config: Config, console: Console) -> None:
    home.create()
    (home.root / "trainer.degraded").touch()
    mesh = start.local_start(home, config, console, timeout=30)
    assert mesh["trainer"].state == "DEGRADED" and mesh["env_server"].state == "RUNNING"


@pytest.mark.slow
def test_a_stale_record_is_forgotten(home: Home, config: Config, console: Console) -> None:
    home.create()
    # The pid of another program: it must survive.
    write_record(home, RunRecord("trainer", os.getpid(), "127.0.0.1:1"))
    (home.run / "env_server.json").write_text("{broken")
    (home.run / "supervisord.pid").write_text("999999999")
    assert start.local_start(home, config, console).all_running
    record = read_record(home, "trainer")
    assert record and record.pid != os.getpid()


@pytest.mark.slow
def test_what_is_disabled_or_elsewhere_is_not_started(home: Home, console: Console) -> None:
    from tests.launch.conftest import ANY_PORT

    data = {name: dict(section) for name, section in ANY_PORT["components"].items()}
    data["trainer"]["enabled"] = False
    data["prm_judge"]["address"] = "127.0.0.1:1"  # type: ignore[assignment]
    mesh = start.local_start(home, Config.model_validate({"components": data}), console)
    assert mesh["policy_server"].state == mesh["env_server"].state == "RUNNING"
    assert (mesh["trainer"].state, mesh["trainer"].pid) == ("STOPPED", None)
    assert "not enabled" in mesh["trainer"].detail
    assert mesh["prm_judge"].state == "STOPPED" and "127.0.0.1:1" in mesh["prm_judge"].detail


@pytest.mark.slow
def test_start_one_attaches_or_starts(home: Home, config: Config, console: Console) -> None:
    start.start_one(home, config, "trainer", console)
    assert {c.name: c.state for c in report(home).components}["policy_server"] == "STOPPED"
    pid = report(home)["trainer"].pid
    start.start_one(home, config, "trainer", console)
    assert report(home)["trainer"].pid == pid
