"""local_config.yaml: an API model as the policy and as the judge, with a key and a base URL in the environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from openclaw_rl.home import Home

from .fake_api import FakeApi
from .mesh import Mesh, until

CONFIG = Path(__file__).parents[1] / "examples/local_config.yaml"


@pytest.fixture
def api() -> Iterator[FakeApi]:
    api = FakeApi()
    yield api
    api.close()


def test_a_mesh_around_an_api_model(api: FakeApi, tmp_path: Path) -> None:
    # As it stands but for the ports, so that it disturbs no mesh on the default ones.
    data = yaml.safe_load(CONFIG.read_text())
    for section in data["components"].values():
        section["port"] = 0
    data["components"]["policy_server"]["grpc_port"] = 0
    home = Home(tmp_path / "home").create()
    file = tmp_path / "local_config.yaml"
    file.write_text(yaml.safe_dump(data))
    mesh = Mesh(home, {"ZHIPUAI_API_KEY": "sk-of-the-test", "OPENAI_BASE_URL": api.url})
    try:
        mesh.cli("local-start", "--config", str(file))
        assert mesh.all_running()
        assert "A heron is a bird." in mesh.cli("chat", "-s", "api", "What is a heron?")
        turns = mesh.session("talk", "What is a heron?", "No, that is wrong.", done=True)
        fates = until(lambda: (found := mesh.turns("talk")) and all(t["fate"] == "dropped" for t in found.values())
                      and found, 60, "a fate for every turn")
        assert list(fates) == turns
        assert {t["reason"] for t in fates.values()} == {"no token ids"}
        assert fates[turns[0]]["score"] == -1
        assert api.keys == {"Bearer sk-of-the-test"}
        assert [v["version"] for v in mesh.json("versions")] in ([], [0])
        written = [f for f in home.root.rglob("*") if f.is_file() and b"sk-of-the-test" in f.read_bytes()]
        assert not written, "a key gets into no file"
    finally:
        mesh.cli("stop-all")
    assert not mesh.processes()


def test_without_a_key_nothing_starts(tmp_path: Path) -> None:
    mesh = Mesh(Home(tmp_path / "home"), {"ZHIPUAI_API_KEY": "", "OPENAI_API_KEY": ""})
    done = mesh.command("local-start", "--config", str(CONFIG))
    assert done.returncode == 1 and "ZHIPUAI_API_KEY" in done.stderr and "smollm2-135m-instruct" in done.stderr
    assert not mesh.processes()
