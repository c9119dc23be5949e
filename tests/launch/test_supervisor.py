"""The supervisor, with real processes."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from openclaw_rl.config import Config
from openclaw_rl.launch import checks, start, waiting
from openclaw_rl.launch.checks import StartError
from openclaw_rl.launch.mesh_report import MeshReport
from openclaw_rl.launch.status import report
from openclaw_rl.launch.supervisor import Supervisor, socket_path, state_file
from openclaw_rl.runtime.home import COMPONENTS, Home, RunRecord, read_record, write_record
from openclaw_rl.runtime.process import marked
from openclaw_rl.runtime.supervision import START_VARIABLE, RestartPolicy
from tests.support.ports import free_port
from tests.support.private import open_to_others
from tests.support.waiting import until


def test_seconds_of_a_start_are_injectable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert RestartPolicy.of_environment().start_seconds == 5
    assert [RestartPolicy().pause(failures) for failures in (1, 2, 59, 61, 10**9)] == [1, 2, 59, 60, 60]
    for value, expected in (("0.3", 0.3), ("7", 7), ("-1", 5), ("soon", 5)):
        monkeypatch.setenv(START_VARIABLE, value)
        assert RestartPolicy.of_environment().start_seconds == expected, value
    monkeypatch.setenv(START_VARIABLE, "0.5")
    assert RestartPolicy.of_environment().pause(3) == pytest.approx(0.3)


def test_a_deep_home_gets_a_short_socket(tmp_path: Path) -> None:
    assert socket_path(Home(Path("/home/me/.openclaw-rl"))) == Path("/home/me/.openclaw-rl/run/supervisor.sock")
    deep = Home(tmp_path / ("d" * 120))
    assert len(str(socket_path(deep))) < 87
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

    assert open_to_others(home.root) == []
    facts = mesh.json()
    assert [c["name"] for c in facts["components"]] == list(COMPONENTS)
    assert all(set(c) == {"name", "state", "host", "pid", "address", "detail", "alarms"} for c in facts["components"])
    assert facts["policy_version"] == 1
    assert facts["turns"] == {"main": 3, "side": 0, "unknown": 0}
    assert set(facts["samples"].pop("per_hour")) == {"accepted", "trained", "dropped"}
    assert facts["samples"] == {"accepted": 2, "trained": 0, "pending": 4, "dropped": {"judge failed": 1}}

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
    assert not marked("OPENCLAW_RL_HOME", str(home.root)), "and no process, the standby included"


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

    supervisor, standby = Supervisor(home).pid(), until(Supervisor(home).standby)
    assert supervisor
    until(lambda: "trainer" in json.loads(state_file(home).read_text())["exited"])
    psutil.Process(supervisor).kill()
    until(lambda: Supervisor(home).pid() == standby)
    until(lambda: {report(home)[name].state for name in COMPONENTS if name != "trainer"} == {"RUNNING"})
    down = report(home)["trainer"]
    assert down.state == "STOPPED" and "asked to end" in down.detail, "with the one that took the supervisor's place"
    start.start_one(home, config, "trainer", console)
    assert report(home)["trainer"].state == "RUNNING"
    assert json.loads(state_file(home).read_text())["exited"] == []


@pytest.mark.slow
def test_one_that_says_why_it_can_not_run_ends_the_start_at_once(home: Home, config: Config) -> None:
    """Before it has ended, and all that was started ends, too."""
    home.create()
    (home.root / "trainer.refuse").touch()
    output = io.StringIO()
    console = Console(file=output, width=200)
    with pytest.raises(StartError, match=r"^trainer can't run: the model can't be loaded$") as raised:
        start.local_start(home, config, console)
    assert raised.value.shown and output.getvalue().count("the model can't be loaded") == 1
    assert not marked("OPENCLAW_RL_HOME", str(home.root)) and not list(home.run.glob("*"))


@pytest.mark.slow
def test_a_component_that_crashes_at_its_start(home: Home, config: Config, console: Console) -> None:
    start.start_one(home, config, "prm_judge", console)
    pid = report(home)["prm_judge"].pid
    (home.root / "trainer.crash").touch()
    with pytest.raises(StartError, match=r"trainer has ended 3 times as soon(.|\n)*told to crash(.|\n)*trainer\.log"):
        start.local_start(home, config, console)
    states = {c.name: c.state for c in report(home).components}
    assert states == dict.fromkeys(COMPONENTS, "STOPPED") | {"prm_judge": "RUNNING"}, "what ran before goes on"
    supervisor = Supervisor(home)
    supervisor.start("trainer")
    until(lambda: report(home)["trainer"].state == "DEGRADED")
    detail = report(home)["trainer"].detail
    assert "times as soon as it was started; it is tried again after growing pauses" in detail
    assert "told to crash" in detail
    until(lambda: supervisor.processes()["trainer"].state == "BACKOFF")
    (home.root / "trainer.crash").unlink()
    mesh = start.local_start(home, config, console)
    assert mesh.all_running and mesh["prm_judge"].pid == pid, "it does not wait for the end of the pause"


@pytest.mark.slow
def test_one_without_progress_is_given_up(home: Home, config: Config, console: Console) -> None:
    home.create()
    (home.root / "env_server.mute").touch()
    with pytest.raises(StartError, match=r"env_server is not RUNNING and has made no progress for \d+ s \(STARTING"):
        start.local_start(home, config, console, timeout=2)
    assert not marked("OPENCLAW_RL_HOME", str(home.root))


@pytest.mark.slow
def test_ctrl_c_ends_what_was_started(home: Home, config: Config) -> None:
    home.create()
    (home.root / "env_server.mute").touch()

    def interrupt() -> None:
        until(lambda: report(home, config)["trainer"].state == "RUNNING")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    killer = threading.Thread(target=interrupt)
    killer.start()
    output = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        start.local_start(home, config, Console(file=output))
    killer.join()
    assert "interrupted; ending what was started" in output.getvalue()
    assert not marked("OPENCLAW_RL_HOME", str(home.root)) and not list(home.run.glob("*"))


@pytest.mark.slow
def test_of_two_meshes_that_start_at_once_on_the_same_ports_one_does(home: Home, tmp_path: Path, console: Console,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    ports = [free_port() for _ in range(5)]
    config = Config.model_validate({"components": {
        "policy_server": {"port": ports[0], "grpc_port": ports[1]}, "env_server": {"port": ports[2]},
        "prm_judge": {"port": ports[3]}, "trainer": {"port": ports[4]}}})
    other = Home(tmp_path / "other")
    monkeypatch.setattr(checks, "bind_error", lambda host, port: None)  # as if both had looked before
    home.create()
    (home.root / "env_server.mute").touch()  # the first one takes its time
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(start.local_start, home, config, console)
        until(lambda: report(home, config)["trainer"].state == "RUNNING" or first.done())
        with pytest.raises(StartError, match=rf"policy_server\.port: .*:{ports[0]} is taken by another mesh"):
            start.local_start(other, config, console)
        (home.root / "env_server.mute").unlink()
        assert first.result().all_running
    with pytest.raises(StartError, match=r"can't run: .* can't listen on .*: the port is in use") as raised:
        start.local_start(other, config, console)  # nobody holds it back, so its components find out
    assert "Traceback" not in str(raised.value)
    assert report(home).all_running and not marked("OPENCLAW_RL_HOME", str(other.root))


@pytest.mark.slow
def test_a_killed_supervisor_comes_back_with_its_components(home: Home, config: Config, console: Console) -> None:
    start.start_one(home, config, "trainer", console)
    start.start_one(home, config, "prm_judge", console)
    old = {name: report(home)[name].pid for name in ("trainer", "prm_judge")}
    supervisor = psutil.Process(Supervisor(home).pid())
    standby = until(Supervisor(home).standby)
    supervisor.kill()
    supervisor.wait(10)
    [problem] = report(home).problems
    assert f"(pid {supervisor.pid}) was killed; its standby (pid {standby}) takes its place" in problem
    until(lambda: Supervisor(home).pid() == standby)
    until(lambda: {report(home)[name].state for name in old} == {"RUNNING"})
    assert not set(old.values()) & {report(home)[name].pid for name in old} and not report(home).problems
    assert report(home)["env_server"].state == "STOPPED"

    again = until(lambda: (pid := Supervisor(home).standby()) != standby and pid)
    psutil.Process(again).kill()
    until(lambda: Supervisor(home).standby() not in (None, again), 30, "another standby")


@pytest.mark.slow
def test_components_of_a_supervisor_that_is_gone_for_good(home: Home, config: Config, console: Console) -> None:
    mesh = start.local_start(home, config, console)
    old = {c.pid for c in mesh.components}
    kill_both(home)
    now = report(home)
    assert now.all_running, "they still answer"
    assert now.problems == [now.own_problems[0]] and "its standby were killed" in now.problems[0]
    again = start.local_start(home, config, console)
    assert again.all_running and not old & {c.pid for c in again.components}
    (home.root / "trainer.mute").touch()  # it has no record
    os.kill(again["trainer"].pid or 0, signal.SIGKILL)
    until(lambda: (pid := Supervisor(home).processes()["trainer"].pid) and pid != again["trainer"].pid)
    pid = Supervisor(home).processes()["trainer"].pid
    kill_both(home)
    assert sorted(start.stop_all(home)) == sorted(COMPONENTS)
    assert not any(psutil.pid_exists(pid) for pid in [pid, *(c.pid for c in again.components)] if pid)


def kill_both(home: Home) -> None:
    """Kill the supervisor and its standby."""
    processes = [psutil.Process(Supervisor(home).pid()), psutil.Process(until(Supervisor(home).standby))]
    for process in reversed(processes):
        process.kill()
    psutil.wait_procs(processes, 10)


@pytest.mark.slow
def test_a_full_disk_ends_no_supervisor(home: Home, config: Config, console: Console) -> None:
    start.start_one(home, config, "trainer", console)
    supervisor = Supervisor(home)
    pid, trainer = supervisor.pid(), report(home)["trainer"].pid
    process = psutil.Process(pid)
    before = process.rlimit(psutil.RLIMIT_FSIZE)
    # To a process, a file that may not grow is a full disk; what it starts meanwhile has the same limit.
    process.rlimit(psutil.RLIMIT_FSIZE, (0, before[1]))
    log = (home.logs / "supervisor.log").stat().st_size
    psutil.Process(trainer).kill()
    until(lambda: supervisor.processes()["trainer"].failures >= 2, 60, "it fails again and again")
    supervisor.start("prm_judge")
    assert "File too large" in supervisor.processes()["trainer"].reason
    assert supervisor.pid() == pid and (home.logs / "supervisor.log").stat().st_size == log
    process.rlimit(psutil.RLIMIT_FSIZE, before)
    until(lambda: {report(home)[name].state for name in ("trainer", "prm_judge")} == {"RUNNING"}, 60)
    assert supervisor.pid() == pid and (home.logs / "supervisor.log").stat().st_size > log


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
def test_one_that_serves_in_a_bad_way_is_no_obstacle(home: Home, config: Config, console: Console,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_DEGRADED_SECONDS", 0.5)
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
