"""Steps on a host, here and by an ssh that is none."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import pytest

from openclaw_rl.config import DistributedConfig
from openclaw_rl.launch.distributed import host as hosts
from openclaw_rl.launch.distributed.host import Here, HostError, Ssh, on_all
from openclaw_rl.launch.distributed.join import by_ray


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`ssh` writes its arguments into a file and runs the last one here, unless a file says how it fails."""
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin/ssh"
    script.write_text(f"""#!/bin/sh
printf '%s\\n' "$@" > {tmp_path}/arguments
if [ -e {tmp_path}/fails ]; then cat {tmp_path}/fails >&2; exit 255; fi
for last; do :; done
exec sh -c "$last"
""")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return tmp_path


def put(host: hosts.Host, home: Path, name: str = "run/x") -> None:
    host.call("put", home=str(home), files={name: base64.b64encode(b"secret").decode()})


def test_a_step_by_ssh(ssh: Path) -> None:
    host = Ssh("10.0.0.9", sys.executable, DistributedConfig(ssh_user="me", ssh_port=2222, ssh_key=Path("~/k")))
    put(host, ssh / "home")
    assert (ssh / "home/run/x").read_bytes() == b"secret"
    assert (ssh / "home/run/x").stat().st_mode & 0o777 == 0o600
    arguments = (ssh / "arguments").read_text().splitlines()
    assert "me@10.0.0.9" in arguments and "BatchMode=yes" in arguments and "2222" in arguments
    assert str(Path("~/k").expanduser()) in arguments
    assert not any("secret" in line or "c2VjcmV0" in line for line in arguments), "nothing goes by command line"
    with pytest.raises(HostError, match="outside of the home"):
        put(host, ssh / "home", "../../etc/x")
    (ssh / "home/run/ray.json").unlink(missing_ok=True)
    with pytest.raises(HostError, match=r"ray\.json is missing or damaged"):
        host.call("ray-start", home=str(ssh / "home"))


@pytest.mark.parametrize(("said", "text"), [
    ("Host key verification failed.", "does not know its host key.*by hand: ssh"),
    ("root@10.0.0.9: Permission denied (publickey).", r"authorized_keys.*distributed\.ssh_key"),
    ("ssh: connect to host 10.0.0.9 port 22: No route to host", "can't be reached by ssh: .*No route to host")])
def test_why_ssh_fails(ssh: Path, said: str, text: str) -> None:
    (ssh / "fails").write_text(said)
    with pytest.raises(HostError, match=text):
        Ssh("10.0.0.9", sys.executable, DistributedConfig()).run(["true"])


def test_a_python_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="No such file"):
        Here("10.0.0.9", str(tmp_path / "python")).run([str(tmp_path / "python")])


def test_a_step_that_hangs_is_given_up() -> None:
    with pytest.raises(HostError, match="no answer in 0 s"):
        Here("10.0.0.9", sys.executable).run(["sleep", "60"], timeout=0.2)


def test_all_hosts_at_once(tmp_path: Path) -> None:
    def one(host: hosts.Host) -> str:
        if host.name == "b":
            raise HostError("no")
        return host.name.upper()

    results, errors = on_all({name: Here(name, "python") for name in "abc"}, one)
    assert results == {"a": "A", "c": "C"} and errors == {"b": "no"}


def test_this_machine_is_known_by_its_addresses() -> None:
    assert hosts.is_here("127.0.0.1") and not hosts.is_here("192.0.2.1")
    reached = hosts.reach(["127.0.0.1", "192.0.2.1"], DistributedConfig())
    assert isinstance(reached["127.0.0.1"], Here) and isinstance(reached["192.0.2.1"], Ssh)


def test_a_step_through_a_cluster_that_was_joined() -> None:
    asked: list[dict[str, object]] = []

    def ask(step: str, /, timeout: float = 60, say: object = None, **payload: object) -> str:
        asked.append(payload)
        return step

    cluster = {"address": "10.0.0.1:6379", "mesh": "m", "variables": {}}
    [host] = by_ray(["10.0.0.2"], ask, cluster).values()
    assert host.call("put", home=None, files={}) == "on-ray"
    assert asked == [{**cluster, "what": "call", "host": "10.0.0.2", "step": "put", "seconds": 60,
                      "step_payload": {"home": None, "files": {}}}]
    with pytest.raises(HostError):
        host.run(["true"])
