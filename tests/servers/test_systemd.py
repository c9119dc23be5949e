"""The units of servers/systemd, run by a real systemd."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from openclaw_rl.client import ComponentServiceClient
from openclaw_rl.runtime.home import Home, read_record
from tests.servers import booted
from tests.support.required import left_out
from tests.support.waiting import until

UNITS = Path(__file__).parents[2] / "servers/systemd"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


@pytest.fixture
def machine(tmp_path: Path, home: Home) -> Iterator[booted.Booted]:
    if reason := booted.why_not():
        left_out(reason)
    units = tmp_path / "units"
    shutil.copytree(UNITS, units)
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"components": {"prm_judge": {"port": 0}, "env_server": {"port": 0}}}))
    # As they stand, but for what is another machine's: interpreter, configuration, user and folder.
    drop_in = units / "openclaw-rl@.service.d/test.conf"
    drop_in.parent.mkdir()
    drop_in.write_text(f"""[Service]
ExecStart=
ExecStart={sys.executable} -P -m openclaw_rl.launch.component %i --config {config}
User=root
StateDirectory=
Environment=OPENCLAW_RL_HOME={home.root}
ReadWritePaths={home.root}
ProtectHome=no
PrivateTmp=no
""")
    with booted.systemd(tmp_path, units) as machine:
        yield machine


@pytest.mark.slow
def test_components_are_kept_by_systemd(machine: booted.Booted, home: Home) -> None:
    judge, env = "openclaw-rl@prm_judge.service", "openclaw-rl@env_server.service"
    machine.systemctl("start", judge, env)  # returns when both serve
    assert machine.show(judge, "ActiveState") == machine.show(env, "ActiveState") == "active"
    for name in ("prm_judge", "env_server"):
        with ComponentServiceClient(component=name, home=home) as component:
            assert component.get_status().status.name == name

    before = read_record(home, "prm_judge")
    assert before is not None
    machine.systemctl("kill", "--signal=KILL", judge)
    until(lambda: int(machine.show(judge, "NRestarts")) == 1 and machine.show(judge, "ActiveState") == "active", 60,
          "a new start")
    with ComponentServiceClient(component="prm_judge", home=home) as component:
        assert component.get_status().status.name == "prm_judge"

    machine.systemctl("stop", judge, env)
    for unit, name in ((judge, "prm_judge"), (env, "env_server")):
        assert machine.show(unit, "Result") == "success" and machine.show(unit, "ActiveState") == "inactive"
        assert read_record(home, name) is None
