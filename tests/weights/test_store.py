"""Versions on disk: complete or not there."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from openclaw_rl.v1.weights_pb2 import VersionManifest
from openclaw_rl.weights import store as store_module
from openclaw_rl.weights.format.digest import check_tensor, manifest_digest, tensor_digest
from openclaw_rl.weights.format.safetensors import CorruptFile, make_spec, read_header
from openclaw_rl.weights.store import VersionStore

A = np.arange(6, dtype=np.uint16).reshape(2, 3)
B = np.arange(5, dtype=np.uint16)


def tensors(add: int = 0) -> Iterator[Any]:
    yield "a", "BF16", (2, 3), A + np.uint16(add)
    yield "b", "BF16", (5,), B


def manifest(version: int, **fields: Any) -> VersionManifest:
    return VersionManifest(version=version, model_id="m", algorithm="combine", turn_ids=["t1"], **fields)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base model in two files, with a configuration, a tokenizer and things that are no business of a version."""
    folder = tmp_path / "model"
    source = VersionStore(tmp_path / "source")
    source.write(manifest(1), [next(tensors())])
    source.write(manifest(2), list(tensors())[1:])
    folder.mkdir()
    for i in (1, 2):
        os.rename(source.folder(i) / "model.safetensors", folder / f"model-{i:05}-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.gguf").write_bytes(b"x")
    return folder


def test_digest_is_as_the_contract_says() -> None:
    specs = [make_spec("b", "F32", (1,), b"2" * 32), make_spec("a", "BF16", (2, 3), b"1" * 32)]
    text = b"a\0BF16\x002,3\0" + b"1" * 32 + b"b\0F32\x001\0" + b"2" * 32
    assert manifest_digest(specs) == hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize(("dtype", "numbers", "kind"), [
    ("F32", [1.0, -3.4e38], "<f4"), ("F16", [65504.0, -1.0], "<f2"), ("F64", [1e308], "<f8")])
@pytest.mark.parametrize("bad", [None, np.nan, np.inf, -np.inf])
def test_finds_values_that_are_no_numbers(dtype: str, numbers: Any, kind: str, bad: Any) -> None:
    data = np.array(numbers * 300_000 + ([] if bad is None else [bad]), dtype=kind).tobytes()
    assert check_tensor(memoryview(data), dtype) == (tensor_digest(data), bad is None)


@pytest.mark.parametrize(("bits", "finite"), [(0x7F7F, True), (0x7F80, False), (0xFF80, False), (0x7FC0, False)])
def test_finds_bfloat16_values_that_are_no_numbers(bits: int, finite: bool) -> None:
    assert check_tensor(memoryview(np.array([0, bits], "<u2")).cast("B"), "BF16")[1] is finite


def test_written_versions_are_read_again(tmp_path: Path) -> None:
    store = VersionStore(tmp_path)
    done = store.write(manifest(3, parent=2), tensors())
    assert done.total_bytes == 22 and done.digest == manifest_digest(store.specs(3))
    again = VersionStore(tmp_path)
    assert again.versions() == [3] and again.manifest(3) == done and again.specs(3) == store.specs(3)
    assert bytes(again.open(3)["a"]) == A.tobytes() and again.verify(3) and not again.problems
    with safe_open(again.folder(3) / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"} and sorted(file.keys()) == ["a", "b"]


def test_more_tensors_than_there_is_room_for_in_the_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_HEADER_ROOM", 64)
    store = VersionStore(tmp_path)
    store.write(manifest(1), tensors())
    assert VersionStore(tmp_path).verify(1)
    assert sorted(os.listdir(tmp_path / "1")) == ["manifest.json", "model.safetensors"]


def test_what_is_not_given_comes_from_the_base_version(tmp_path: Path, base: Path) -> None:
    store = VersionStore(tmp_path / "versions", base, "m")
    assert store.versions() == [0] and store.folder(0) == base and store.manifest(0).algorithm == "base"
    assert not store.manifest(0).HasField("parent")
    full = VersionStore(tmp_path / "other").write(manifest(1, parent=0), tensors(add=1))
    done = store.write(manifest(1, parent=0), [next(tensors(add=1))], base=0)
    assert done.digest == full.digest and store.verify(1) and store.verify(0)
    assert set(os.listdir(store.folder(1))) == {"config.json", "manifest.json", "model.safetensors", "tokenizer.json"}


def test_base_digests_are_kept_until_a_file_changes(tmp_path: Path, base: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    before = VersionStore(tmp_path / "versions", base, "m").manifest(0)
    monkeypatch.setattr("openclaw_rl.weights.base_model.tensor_digest", lambda data: pytest.fail("read again"))
    assert VersionStore(tmp_path / "versions", base, "m").manifest(0) == before
    monkeypatch.undo()
    shard = base / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x01")
    os.utime(shard, ns=(1, 1))
    assert VersionStore(tmp_path / "versions", base, "m").manifest(0).digest != before.digest
    (tmp_path / "versions" / "base.json").write_text("{")
    assert VersionStore(tmp_path / "versions", base, "m").manifest(0).digest != before.digest


def test_a_half_written_version_is_not_there(tmp_path: Path) -> None:
    def dies() -> Iterator[Any]:
        yield next(tensors())
        raise OSError(errno.ENOSPC, "No space left on device")

    store = VersionStore(tmp_path)
    with pytest.raises(OSError, match="No space"):
        store.write(manifest(1), dies())
    assert os.listdir(tmp_path) == [] and store.versions() == []
    (tmp_path / ".tmp-killed").mkdir()
    (tmp_path / ".tmp-killed" / "model.safetensors").write_bytes(b"half")
    assert VersionStore(tmp_path).versions() == [] and os.listdir(tmp_path) == []


def test_tensors_are_not_held(tmp_path: Path) -> None:
    alive = 0

    class Counted(np.ndarray):
        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def many() -> Iterator[Any]:
        nonlocal alive
        for i in range(20):
            alive += 1
            assert alive <= 3
            yield f"t{i:02}", "BF16", (1000,), np.zeros(1000, np.uint16).view(Counted)

    VersionStore(tmp_path).write(manifest(1), many())


@pytest.mark.parametrize("damage", ["manifest", "no manifest", "edited", "a list", "cut", "header", "other version",
                                    "no model"])
def test_a_damaged_version_is_set_aside(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    store = VersionStore(tmp_path)
    store.write(manifest(1), tensors())
    store.write(manifest(2, parent=1), tensors(add=1))
    folder = store.folder(2)
    model = (folder / "model.safetensors").read_bytes()
    match damage:
        case "manifest":
            (folder / "manifest.json").write_text('{"manifest": ')
        case "no manifest":
            (folder / "manifest.json").unlink()
        case "edited":  # the digest covers the weights only
            text = (folder / "manifest.json").read_text()
            (folder / "manifest.json").write_text(text.replace('"parent": "1"', '"parent": "0"'))
            assert (folder / "manifest.json").read_text() != text
        case "a list":
            (folder / "manifest.json").write_text("[1, 2]")
        case "cut":
            (folder / "model.safetensors").write_bytes(model[:-1])
        case "header":
            (folder / "model.safetensors").write_bytes(b"\xff" * len(model))
        case "other version":
            os.rename(folder, tmp_path / "7")
        case "no model":
            (folder / "model.safetensors").unlink()
    with caplog.at_level(logging.ERROR):
        again = VersionStore(tmp_path)
    assert again.versions() == [1] and "damaged" in again.problems[0] and "damaged" in caplog.text
    assert len(list(tmp_path.glob("corrupt-*"))) == 1
    assert VersionStore(tmp_path).problems == []


def test_a_version_of_another_model_is_left_as_it_is(tmp_path: Path) -> None:
    store = VersionStore(tmp_path)
    store.write(VersionManifest(version=1, model_id="ours"), tensors())
    store.write(VersionManifest(version=2, model_id="theirs"), tensors(add=1))
    again = VersionStore(tmp_path, model_id="ours")
    assert again.versions() == [1] and "2 belongs to another base model" in again.problems[0]
    again.prune({1})
    assert VersionStore(tmp_path, model_id="theirs").versions() == [2]


@pytest.mark.parametrize("name", ["letter.txt", "7.txt", "٣", "-1", "0"])
def test_foreign_files_are_no_obstacle(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    store = VersionStore(tmp_path)
    store.write(manifest(1), tensors())
    assert VersionStore(tmp_path).versions() == [1]
    assert "mine" in {path.read_text() for path in tmp_path.iterdir() if path.is_file()}


def test_verify_finds_a_changed_byte(tmp_path: Path) -> None:
    store = VersionStore(tmp_path)
    store.write(manifest(1), tensors())
    path = store.folder(1) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    assert not store.verify(1) and store.versions() == [] and "tensor b" in store.problems[0]
    assert not store.verify(1)


def test_prune_keeps_what_it_is_told_and_the_base(tmp_path: Path, base: Path) -> None:
    store = VersionStore(tmp_path / "versions", base, "m")
    for i in range(1, 5):
        store.write(manifest(i), tensors(i))
    reader = store.open(2)
    store.prune({3, 4})
    assert store.versions() == [0, 3, 4] and VersionStore(tmp_path / "versions", base, "m").versions() == [0, 3, 4]
    assert bytes(reader["b"]) == B.tobytes()
    with pytest.raises(KeyError):
        store.manifest(2)
    store.remove(0)
    assert store.manifest(0).digest


def test_a_version_can_be_replaced(tmp_path: Path) -> None:
    store = VersionStore(tmp_path)
    first = store.write(manifest(1), tensors())
    second = store.write(manifest(1), tensors(add=1))
    assert first.digest != second.digest and VersionStore(tmp_path).manifest(1) == second


@pytest.mark.parametrize(("given", "message"), [
    ([("a", "BF16", (4,), B)], "10 bytes do not make"), ([("a", "X", (5,), B)], "not one of"),
    ([("a", "BF16", (5,), B)] * 2, "twice"), ([("a", "BF16", (5,), B), ("b", "F32", (1,), b"1234")], "narrower")])
def test_wrong_tensors_are_refused(tmp_path: Path, given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VersionStore(tmp_path).write(manifest(1), given)
    with pytest.raises(ValueError, match="begin at 1"):
        VersionStore(tmp_path).write(manifest(0), tensors())
    assert os.listdir(tmp_path) == []


def test_a_root_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = VersionStore(tmp_path / "file" / "versions")
    assert store.versions() == [] and "can't be kept" in store.problems[0]


def test_an_empty_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(CorruptFile, match="not a safetensors"):
        read_header(tmp_path / "x")
