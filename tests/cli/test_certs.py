"""Certificates from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from openclaw_rl.cli.commands import app
from openclaw_rl.config import ConfigError
from openclaw_rl.rpc.auth import ca
from openclaw_rl.rpc.auth.certificates import ROLES
from openclaw_rl.rpc.auth.tls import Credentials
from tests.rpc.auth.certs import reissue, serial


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENCLAW_RL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, args)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_init_makes_certificates_once(home: Path) -> None:
    assert "created certificates" in run("init")[1]
    assert (home / "config.yaml").stat().st_mode & 0o777 == 0o600
    folder = home / "certs"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()} == {
        **{f"{name}.crt": 0o644 for name in ("ca", *ROLES)}, **{f"{name}.key": 0o600 for name in ("ca", *ROLES)}}
    before = {file: file.read_bytes() for file in folder.iterdir()}
    (folder / "trainer.crt").unlink()
    assert run("init", "--force")[0] == 0  # makes what is missing, and leaves the CA and the rest
    again = {file: file.read_bytes() for file in folder.iterdir()}
    assert {file.name for file in before if before[file] != again[file]} == {"trainer.crt", "trainer.key"}


def test_show_tells_who_and_until_when(home: Path) -> None:
    assert run("certs", "show")[0] == 1
    run("init")
    code, text = run("certs", "show", "--json")
    shown = json.loads(text)
    assert code == 0 and shown["signs"] and [row["file"] for row in shown["certificates"]] == [
        f"{name}.crt" for name in ("ca", *ROLES)]
    judge = next(row for row in shown["certificates"] if row["file"] == "prm_judge.crt")
    assert judge["uri"].endswith("/prm_judge") and 363 <= judge["days"] <= 365 and judge["problem"] == ""
    reissue(home / "certs", "prm_judge", -2, 10)  # ends within security.warn_days
    code, text = run("certs", "show")
    assert code == 1 and "(9 days)" in text


def test_show_names_a_key_that_others_can_read(home: Path) -> None:
    run("init")
    (home / "certs" / "trainer.key").chmod(0o644)
    code, text = run("certs", "show")
    assert code == 1 and f"chmod 600 {home / 'certs' / 'trainer.key'}" in text


def test_renew_replaces_certificate_and_key_and_keeps_the_hosts(home: Path) -> None:
    run("init")
    folder = home / "certs"
    assert run("certs", "renew", "--role", "trainer", "--host", "10.0.0.4")[0] == 0
    before, key = serial(folder, "trainer"), (folder / "trainer.key").read_bytes()
    assert run("certs", "renew")[0] == 0
    assert serial(folder, "trainer") != before and (folder / "trainer.key").read_bytes() != key
    assert (folder / "trainer.key").stat().st_mode & 0o777 == 0o600
    _, text = run("certs", "show", "--json")
    assert "10.0.0.4" in next(row for row in json.loads(text)["certificates"] if row["file"] == "trainer.crt")["hosts"]
    assert not list(folder.glob("*.new"))


def test_add_makes_one_for_another_machine(home: Path, tmp_path: Path) -> None:
    run("init")
    target = tmp_path / "judge"
    assert run("certs", "add", "--role", "prm_judge", "--host", "judge.example", "--out", str(target))[0] == 0
    assert Credentials(target, "prm_judge").identity == Credentials(home / "certs", "trainer").identity.__class__(
        Credentials(home / "certs", "trainer").identity.mesh, "prm_judge")
    code, text = run("certs", "add", "--role", "prm_judge")
    assert code == 1 and "certs renew --role prm_judge" in text
    request = ca.new_request(tmp_path / "elsewhere", "trainer")
    (tmp_path / "trainer.csr").write_bytes(request)
    own = (home / "certs" / "trainer.crt").read_bytes()
    code, text = run("certs", "add", "--role", "trainer", "--request", str(tmp_path / "trainer.csr"))
    assert code == 2 and "--request needs --out" in text and (home / "certs" / "trainer.crt").read_bytes() == own
    assert run("certs", "add", "--role", "trainer", "--request", str(tmp_path / "trainer.csr"), "--out",
               str(tmp_path / "signed"))[0] == 0
    ca.install(tmp_path / "elsewhere", "trainer", (tmp_path / "signed" / "trainer.crt").read_bytes(),
               (tmp_path / "signed" / "ca.crt").read_bytes())
    assert Credentials(tmp_path / "elsewhere", "trainer").identity.role == "trainer"


def test_without_the_ca_there_is_nothing_to_sign_with(home: Path) -> None:
    run("init")
    (home / "certs" / "ca.key").unlink()
    with pytest.raises(ConfigError, match="the CA's key is not in"):
        run("certs", "renew")
    with pytest.raises(ConfigError, match="'admin' is no role: policy_server"):
        run("certs", "add", "--role", "admin")
