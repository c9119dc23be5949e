"""Versions on disk: one Hugging Face folder each, complete or not there at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from typing_extensions import Buffer

from openclaw_rl.runtime.json import parse_json
from openclaw_rl.v1.weights_pb2 import TensorSpec, VersionManifest
from openclaw_rl.weights.base_model import base_manifest
from openclaw_rl.weights.files import fsync, write_durably
from openclaw_rl.weights.format.digest import ITEM_SIZE, dense_bytes, manifest_digest, tensor_digest
from openclaw_rl.weights.format.safetensors import (
    INDEX_FILE,
    MODEL_FILE,
    CorruptFile,
    Tensors,
    header,
    make_spec,
    read_folder,
    read_header,
    specs_from_json,
    specs_to_json,
)

if TYPE_CHECKING:
    from openclaw_rl.weights.format.delta_file import AdaptersWriter

logger = logging.getLogger(__name__)

#: A tensor to write: name, type as safetensors names it, shape, dense little-endian row-major bytes. One that an
#: adapter made is an encoding.Adapted.
Tensor = tuple[str, str, Sequence[int], Buffer]

MANIFEST_FILE = "manifest.json"
_TMP = ".tmp-"
_ASIDE = "corrupt-"
_HEADER_ROOM = 256 << 10  # bytes; about 2000 tensors, more are moved once to make room
_COMPANIONS = (".json", ".jinja", ".txt", ".model")  # configuration and tokenizer of the base model


class VersionStore:
    """Versions below a folder: `<root>/<version>/` with model.safetensors, manifest.json and, when `base` is given,
    the base model's configuration and tokenizer, so that each can be loaded as a Hugging Face folder.

    A version appears by one rename, after all its bytes are on the disk. What a killed process left half-written is
    deleted, what is damaged is set aside as `<root>/corrupt-<version>-<time>` (the newest one is kept) and told in
    `problems`. One process writes to a root; any thread may read.

    Args:
        root: made when it is missing.
        base: folder of the base model; it is version 0, which can be read like the others and is never deleted.
        model_id: of the base model; see models.identity, which is asked when it is None.
    """

    def __init__(self, root: Path, base: Path | None = None, model_id: str | None = None) -> None:
        self.root = root
        self.base = base
        self.problems: list[str] = []
        self._model_id = model_id
        self._base: tuple[VersionManifest, list[TensorSpec]] | None = None  # read when it is first asked for
        self._versions: dict[int, tuple[VersionManifest, list[TensorSpec]]] = {}
        try:
            root.mkdir(parents=True, exist_ok=True)
            for half_written in root.glob(_TMP + "*"):
                shutil.rmtree(half_written, ignore_errors=True)
            folders = [path for path in root.iterdir() if path.name.isdecimal() and int(path.name) > 0]
        except OSError as error:
            self._problem(f"{root}: versions can't be kept there: {error}")
            folders = []
        for folder in folders:
            try:
                manifest, specs = read_version(folder)
                if model_id and manifest.model_id and manifest.model_id != model_id:
                    self._problem(f"{folder} belongs to another base model; it is left as it is and not used")
                    continue
                self._versions[int(folder.name)] = manifest, specs
            except (CorruptFile, OSError) as error:
                self._set_aside(int(folder.name), str(error))

    def versions(self) -> list[int]:
        """Versions that are there, ascending; 0 among them when there is a base folder."""
        return sorted([*self._versions, *([0] if self.base else [])])

    def manifest(self, version: int) -> VersionManifest:
        """Manifest of a version.

        Raises:
            KeyError: it is not there.
        """
        return self._entry(version)[0]

    def specs(self, version: int) -> list[TensorSpec]:
        """All tensors of a version, dense.

        Raises:
            KeyError: it is not there.
        """
        return self._entry(version)[1]

    def folder(self, version: int) -> Path:
        """Folder of a version.

        Raises:
            KeyError: it is not there.
        """
        self._entry(version)
        return self.base if version == 0 and self.base else self.root / str(version)

    def open(self, version: int) -> Tensors:
        """Tensors of a version, mapped into memory. They stay readable when the version is deleted meanwhile.

        Raises:
            KeyError: it is not there.
            CorruptFile, OSError: its files were damaged or deleted.
        """
        return Tensors(read_folder(self.folder(version)))

    def write(self, manifest: VersionManifest, tensors: Iterable[Tensor], base: int | None = None) -> VersionManifest:
        """Add a version, or replace the one of that number. Tensors are taken one by one and not held.

        Args:
            manifest: its digest and total_bytes are filled in here.
            tensors: wide element types first, should the types differ.
            base: version of this store from which the tensors that are not given are copied.

        Returns:
            The manifest as it was written.

        Raises:
            ValueError: a tensor is given twice or its bytes do not fit its shape and type.
            KeyError: `base` is not there.
            OSError: the disk is full or can't be written; nothing is left behind.
        """
        folder = Path(tempfile.mkdtemp(prefix=_TMP, dir=self.root))
        try:
            specs = self._write_tensors(folder / MODEL_FILE, tensors, base)
            return self.adopt(folder, manifest, specs)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def adopt(self, folder: Path, manifest: VersionManifest, specs: Sequence[TensorSpec]) -> VersionManifest:
        """Make a folder below the root, with a finished and checked model.safetensors in it, a version.

        Raises:
            ValueError: the version is not positive.
            OSError: the disk is full or can't be written; the folder stays as it was.
        """
        if manifest.version <= 0:
            raise ValueError(f"version {manifest.version} can't be written: versions begin at 1, 0 is the base model")
        done = VersionManifest()
        done.CopyFrom(manifest)
        done.digest = manifest_digest(specs)
        done.total_bytes = sum(dense_bytes(spec.dtype, spec.shape) for spec in specs)
        fsync(folder / MODEL_FILE)
        self._add_companions(folder)
        data = {"manifest": MessageToDict(done, preserving_proto_field_name=True), "tensors": specs_to_json(specs)}
        data["sha256"] = _checksum(data)
        write_durably(folder / MANIFEST_FILE, json.dumps(data).encode())
        self.remove(done.version)
        os.rename(folder, self.root / str(done.version))
        fsync(self.root)
        self._versions[done.version] = (done, list(specs))
        return done

    def remove(self, version: int) -> None:
        """Delete a version if it is there; never the base model."""
        self._versions.pop(version, None)
        folder = self.root / str(version)
        if version > 0 and folder.exists():
            trash = Path(tempfile.mkdtemp(prefix=_TMP, dir=self.root))
            os.rename(folder, trash / "deleted")  # gone at once, whatever happens to the deletion
            shutil.rmtree(trash, ignore_errors=True)

    def erase(self, version: int) -> None:
        """Delete a version, and what was set aside of it as damaged.

        Raises:
            OSError: a file can't be deleted.
        """
        self.remove(version)
        for aside in self.root.glob(f"{_ASIDE}{version}-*"):
            shutil.rmtree(aside)

    def prune(self, keep: set[int]) -> None:
        """Delete all versions but these and the base model. What can't be deleted is told in `problems`."""
        for version in self._versions.keys() - keep:
            try:
                self.remove(version)
            except OSError as error:
                self._problem(f"{self.root / str(version)}: can't be deleted: {error}")

    def verify(self, version: int) -> bool:
        """Read a version and compare all digests; set it aside when one differs. Takes about a second per GB.

        Returns:
            False when it is not there or not what it was.
        """
        try:
            tensors = self.open(version)
            for spec in self.specs(version):
                if tensor_digest(tensors[spec.name]) != spec.sha256:
                    raise CorruptFile(f"{self.folder(version)}: tensor {spec.name} is not what was written")
        except KeyError:
            return False
        except (CorruptFile, OSError) as error:
            self._set_aside(version, str(error))
            return False
        return True

    def _entry(self, version: int) -> tuple[VersionManifest, list[TensorSpec]]:
        if version == 0 and self.base:
            if self._base is None:
                self._base = base_manifest(self.base, self.root / "base.json", self._model_id)
            return self._base
        return self._versions[version]

    def _write_tensors(self, path: Path, tensors: Iterable[Tensor], base: int | None) -> list[TensorSpec]:
        specs: dict[str, TensorSpec] = {}
        with path.open("wb") as file, contextlib.ExitStack() as stack:
            adapters: AdaptersWriter | None = None
            file.seek(_HEADER_ROOM)
            for tensor in chain(tensors, self._rest(base, specs)):
                name, dtype, shape, buffer = tensor
                size = dense_bytes(dtype, shape)
                data = memoryview(buffer).cast("B") if size else memoryview(b"")
                if name in specs:
                    raise ValueError(f"tensor {name} is given twice")
                if len(data) != size:
                    raise ValueError(f"tensor {name}: {len(data)} bytes do not make {dtype}{list(shape)}")
                if file.tell() % ITEM_SIZE[dtype]:
                    raise ValueError(f"tensor {name} ({dtype}) must come before those of narrower types")
                file.write(data)
                specs[name] = make_spec(name, dtype, shape, tensor_digest(data))
                adapter = getattr(tensor, "adapter", None)
                if adapter is not None and self.base:
                    if adapters is None:
                        from openclaw_rl.weights.format.delta_file import AdaptersWriter  # needs numpy

                        adapters = stack.enter_context(AdaptersWriter(path.parent, self.specs(0)))
                    adapters.add(specs[name], adapter)
            head = header(specs.values(), _HEADER_ROOM)
            file.seek(0)
            if len(head) == _HEADER_ROOM:
                file.write(head)
        if len(head) > _HEADER_ROOM:
            _prepend(path, head)
        return list(specs.values())

    def _rest(self, base: int | None, written: dict[str, TensorSpec]) -> Iterator[Tensor]:
        """Tensors of the base version that were not written."""
        if base is None:
            return
        tensors = self.open(base)
        for spec in self.specs(base):
            if spec.name not in written:
                yield spec.name, spec.dtype, spec.shape, tensors[spec.name]

    def _add_companions(self, folder: Path) -> None:
        for path in self.base.iterdir() if self.base else ():
            if path.suffix not in _COMPANIONS or path.name in (INDEX_FILE, MANIFEST_FILE) or not path.is_file():
                continue
            (folder / path.name).unlink(missing_ok=True)
            try:
                os.link(path.resolve(), folder / path.name)
            except OSError:  # another file system, or one without links
                shutil.copyfile(path, folder / path.name)

    def _set_aside(self, version: int, why: str) -> None:
        self._versions.pop(version, None)
        if version == 0:
            self._problem(why)
            return
        aside = self.root / f"{_ASIDE}{version}-{time.strftime('%Y%m%d-%H%M%S')}"
        try:
            for older in self.root.glob(_ASIDE + "*"):
                logger.warning("%s is deleted: a newer one is set aside", older)
                shutil.rmtree(older, ignore_errors=True)
            os.rename(self.root / str(version), aside)
            self._problem(f"version {version} is damaged and was set aside as {aside}: {why}")
        except OSError as error:
            self._problem(f"version {version} is damaged and is left out: {why} (can't be set aside: {error})")

    def _problem(self, text: str) -> None:
        logger.error("%s", text)
        self.problems.append(text)


def _prepend(path: Path, head: bytes) -> None:
    """Give a file whose first _HEADER_ROOM bytes are empty a longer header."""
    data = path.with_suffix(".data")
    os.rename(path, data)
    with data.open("rb") as source, path.open("wb") as file:
        source.seek(_HEADER_ROOM)
        file.write(head)
        shutil.copyfileobj(source, file, 1 << 20)
    data.unlink()


def read_version(folder: Path) -> tuple[VersionManifest, list[TensorSpec]]:
    """Read a version's manifest and compare it with its file's header, not with all its bytes.

    Raises:
        CorruptFile: they are damaged, or don't belong together.
        OSError: one is missing or can't be read.
    """
    try:
        data = parse_json((folder / MANIFEST_FILE).read_bytes())
        if data.get("sha256", _checksum(data)) != _checksum(data):
            raise CorruptFile(f"{folder / MANIFEST_FILE} was edited: its checksum differs")
        manifest = ParseDict(data["manifest"], VersionManifest())
        specs = specs_from_json(data["tensors"])
    except (ValueError, TypeError, KeyError, AttributeError, ParseError) as error:
        raise CorruptFile(f"{folder / MANIFEST_FILE}: can't be read: {error}") from None
    places = read_header(folder / MODEL_FILE)
    there = {name: (place.dtype, place.shape) for name, place in places.items()}
    if (manifest.version != int(folder.name) or manifest.digest != manifest_digest(specs)
            or there != {spec.name: (spec.dtype, tuple(spec.shape)) for spec in specs}):
        raise CorruptFile(f"{folder}: {MODEL_FILE} and {MANIFEST_FILE} do not belong together")
    return manifest, specs


def _checksum(data: dict[str, Any]) -> str:
    """SHA-256 of what manifest.json says: it is more than the weights' digest covers."""
    said = json.dumps([data["manifest"], data["tensors"]], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(said.encode()).hexdigest()
