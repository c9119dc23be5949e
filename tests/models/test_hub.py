"""Models by their id, from a hub on this machine that speaks Hugging Face's API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from openclaw_rl.config import EMBEDDED_MODEL, PolicyServerConfig
from openclaw_rl.models.api_endpoints import uses_api
from openclaw_rl.models.config import ModelError
from openclaw_rl.models.hub import is_hub_id
from openclaw_rl.models.prepare import ensure_model
from openclaw_rl.runtime.home import Home
from openclaw_rl.serving.engines.factory import served_name
from tests.models.hub_server import Hub
from tests.support.models import small_model

pytest.importorskip("huggingface_hub")
ID = "tiny/Llama-Small"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder, with what is not wanted of it."""
    folder = small_model(tmp_path_factory.mktemp("small"))
    (folder / "README.md").write_text("# A model")
    (folder / "model.gguf").write_bytes(b"GGUF" * 1000)
    return folder


@pytest.fixture
def hub(repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with Hub({ID: repository}) as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)  # HF_ENDPOINT is read with the module
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
                            hub.url + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


def test_a_model_is_downloaded_once_with_progress(hub: Hub, home: Home, repository: Path) -> None:
    told: list[tuple[str, float]] = []
    folder = ensure_model(ID, home, lambda text, share: told.append((text, share)))
    assert folder == home.models / "tiny--Llama-Small"
    files = {file.name for file in folder.iterdir() if file.is_file()}
    assert files == {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                     "model.safetensors"}
    assert (folder / "model.safetensors").read_bytes() == (repository / "model.safetensors").read_bytes()
    shares = [share for text, share in told if text == f"Downloading {ID}"]
    assert shares == sorted(shares) and (shares[0], shares[-1]) == (0, 1) and told[-1] == ("The model is ready", 1)
    hub.repositories.clear()  # it is not asked again
    assert ensure_model(ID, home) == folder


def test_a_download_that_broke_off_is_resumed(hub: Hub, home: Home, repository: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1 << 16)
    size = (repository / "model.safetensors").stat().st_size
    hub.break_after["model.safetensors"] = size // 2
    folder = ensure_model(ID, home)
    first, second = hub.sent["model.safetensors"]
    assert first == size // 2 and size - first <= second < size - first + (1 << 16)
    assert (folder / "model.safetensors").read_bytes() == (repository / "model.safetensors").read_bytes()


@pytest.mark.filterwarnings("ignore:Not enough free disk space")
def test_what_can_not_be_downloaded_says_what_to_do(hub: Hub, home: Home, repository: Path, tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    def problem(model: str) -> str:
        with pytest.raises(ModelError) as caught:
            ensure_model(model, home)
        return str(caught.value)

    assert problem("no/such") == ("model: the hub has no no/such; if it is private, set HF_TOKEN to a token that may "
                                  "read it")
    hub.tokens[ID] = "hf_secret"
    assert problem(ID).startswith(f"model: {ID} wants its terms accepted on its page, and then set HF_TOKEN")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    ensure_model(ID, home)
    other = tmp_path / "other"
    other.mkdir()
    hub.repositories["other/Mamba"] = other
    (other / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    (other / "model.safetensors").write_bytes(b"x" * 100)
    assert "model_type 'mamba' is not supported" in problem("other/Mamba")
    assert "model.safetensors" not in hub.sent or len(hub.sent["model.safetensors"]) == 1, "its weights did not come"
    (other / "config.json").write_bytes((repository / "config.json").read_bytes())
    (other / "model.safetensors").rename(other / "model.gguf")
    hub.repositories["other/GGUF"] = other
    assert "other/GGUF has no safetensors" in problem("other/GGUF")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10))
    hub.repositories["other/Large"] = repository
    assert "other/Large takes 0.0 GB" in problem("other/Large")


def test_a_hub_that_is_not_there(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=f"{ID} is not here and the hub can't be reached .*HF_ENDPOINT"):
        ensure_model(ID, home)


def test_what_an_id_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my/model").mkdir(parents=True)
    names = ("Qwen/Qwen2.5-0.5B-Instruct", "my/model", "gpt-4o", "/a/b", "./a/b", "a/b/c", "a/../b", "~/models/x", "a/")
    assert [is_hub_id(name) for name in names] == [True] + [False] * 8

    def api(environ: dict[str, str] | None = None, **settings: str) -> bool:
        return uses_api(PolicyServerConfig(**{"model": ID, **settings}), environ or {})

    assert [api(), api(engine="openai"), api(base_url="http://x/v1"), api({"OPENAI_BASE_URL": "http://x/v1"}),
            api(model="gpt-4o")] == [False, True, True, True, True]
    assert served_name(PolicyServerConfig(model=ID)) == ID
    meant = ("gpt-4o-mini", "ft:gpt-4o:me", "o3-mini", "chatgpt-4o-latest", "glm-4-flash", "GLM4", "openai:anything")
    assert [api(model=name) for name in meant] == [True] * len(meant)
    others = ("smollm2", "qwen2.5:0.5b", "model.gguf", "gpt4all", "omodel", EMBEDDED_MODEL)
    assert [api(model=name) for name in others] == [False] * len(others)
    assert api(model="qwen2.5:0.5b", base_url="http://x/v1") and api(model="mine", api_key_env="MY_KEY")


def test_a_model_behind_an_api_by_name() -> None:
    named = PolicyServerConfig(model="openai:org/name")
    assert (named.model, named.engine) == ("org/name", "openai")
    assert PolicyServerConfig.model_validate(named.model_dump()) == named
    with pytest.raises(ValueError, match="is behind an API, and engine: embedded serves models of this machine"):
        PolicyServerConfig(model="openai:x", engine="embedded")
    with pytest.raises(ValueError, match="at least 1 character"):
        PolicyServerConfig(model="openai:")


@pytest.mark.parametrize("name, told", [
    ("smollm2", "did you mean smollm2-135m-instruct"), ("qwen2.5:0.5b", "ollama show qwen2.5:0.5b"),
    ("/models/x.gguf", "GGUF files are not read"), ("mixtral", "behind an API: openai:mixtral")])
def test_a_name_that_is_no_model_says_what_to_do(name: str, told: str, home: Home) -> None:
    with pytest.raises(ModelError, match=f"is neither .*{told}"):
        ensure_model(name, home)
