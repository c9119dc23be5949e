"""Test versions: valid ones with minimal changes, and each kind of invalid one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from google.protobuf.json_format import MessageToDict

from openclaw_rl.conformance.frame import Skipped
from openclaw_rl.rpc.messages import now
from openclaw_rl.v1 import weights_pb2 as pb
from openclaw_rl.v1.playbook_pb2 import Playbook
from openclaw_rl.v1.policy_pb2 import PolicyState
from openclaw_rl.weights import playbook
from openclaw_rl.weights.format.digest import can_adapt, dense_bytes, manifest_digest, tensor_digest
from openclaw_rl.weights.format.safetensors import make_spec

#: `algorithm` of the kit's versions.
ALGORITHM = "conformance"
#: Bytes of a playbook that is cut and resumed: enough for several pieces.
PLAYBOOK_BYTES = 300_000


@dataclass
class Made:
    """A version as the kit's trainer has it.

    Attributes:
        manifest: of the version.
        specs: all its tensors, in the encoding in which they travel.
        frames: encoded bytes of those that the base does not have alike, by name.
    """

    manifest: pb.VersionManifest
    specs: list[pb.TensorSpec]
    frames: dict[str, bytes] = field(default_factory=dict)

    @property
    def version(self) -> int:
        return self.manifest.version

    def offer(self, base: int | None = None) -> pb.WeightOffer:
        """All tensors; with a base version only those that are new."""
        if base is None:
            return pb.WeightOffer(manifest=self.manifest, tensors=self.specs)
        return pb.WeightOffer(manifest=self.manifest, base_version=base,
                              tensors=[spec for spec in self.specs if spec.name in self.frames])

    def transfer(self, names: Iterable[str]) -> bytes:
        """The bytes of these tensors end to end.

        Raises:
            KeyError: one of them is not new.
        """
        return b"".join(self.frames[name] for name in names)

    def seal(self) -> Made:
        """The same with the manifest's digest worked out anew."""
        self.manifest.digest = manifest_digest(self.specs)
        self.manifest.total_bytes = sum(dense_bytes(spec.dtype, spec.shape) for spec in self.specs)
        return self

    def spec(self, name: str) -> pb.TensorSpec:
        return next(spec for spec in self.specs if spec.name == name)


class Maker(Protocol):
    """Makes versions of one model."""

    #: Names of the tensors that it changes.
    changes: list[str]
    #: What a version that can't be used is refused for, and what is wrong with it.
    bad_reason: pb.WeightRejectReason.ValueType
    bad_what: str

    def make(self, number: int, state: PolicyState) -> Made:
        """A new version, unlike all before, with the active one as its parent."""
        ...

    def bad(self, number: int, state: PolicyState) -> Made:
        """One whose digests are right and whose content can't be used."""
        ...


class Playbooks:
    """Of an API model: the active playbook and one instruction more."""

    bad_reason = pb.WEIGHT_REJECT_REASON_WRONG_SHAPE
    bad_what = "a playbook that is no JSON"

    def __init__(self, active: Playbook) -> None:
        self.changes = [playbook.TENSOR]
        self._active = active
        self._made = 0

    def make(self, number: int, state: PolicyState) -> Made:
        self._made += 1
        content = Playbook()
        content.CopyFrom(self._active)
        entry = content.entries.add(id=f"conformance-{number}-{self._made}", text="Answer as you would have.",
                                    added_in=number)
        while content.ByteSize() < PLAYBOOK_BYTES:  # ids count for no limit but that of the whole
            entry.turn_ids.extend(f"conformance-{len(entry.turn_ids) + i:08d}" for i in range(1000))
        data = json.dumps(MessageToDict(content), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        return self._version(number, state, data)

    def bad(self, number: int, state: PolicyState) -> Made:
        return self._version(number, state, b"{this is no playbook")

    def _version(self, number: int, state: PolicyState, data: bytes) -> Made:
        spec = make_spec(playbook.TENSOR, playbook.DTYPE, [len(data)], tensor_digest(data))
        return Made(manifest(number, state), [spec], {playbook.TENSOR: data}).seal()


class Weights:
    """Of a model with weights: one bit of one value of two tensors is another one, so little travels.

    Args:
        specs: the active version's tensors.
        tensors: dense bytes of some of them, by name: the smallest, and the smallest matrix.
    """

    bad_reason = pb.WEIGHT_REJECT_REASON_NOT_FINITE
    bad_what = "a tensor with NaN"

    def __init__(self, specs: list[pb.TensorSpec], tensors: dict[str, bytes]) -> None:
        self.changes = list(tensors)
        self._specs, self._tensors = specs, tensors
        self._made = 0

    @staticmethod
    def choose(specs: Iterable[pb.TensorSpec]) -> list[str]:
        """Names of the tensors to change: the smallest of all, and the smallest matrix that an adapter can make and
        that has 4096 values or more."""
        known = [spec for spec in specs if spec.dtype in _NAN]
        known.sort(key=lambda spec: dense_bytes(spec.dtype, spec.shape))
        matrices = [spec for spec in known if can_adapt(spec.dtype, spec.shape, 1)
                    and dense_bytes(spec.dtype, spec.shape) >= 8192]
        return list(dict.fromkeys(spec.name for spec in (*known[:1], *matrices[:1])))

    @property
    def matrix(self) -> str:
        """Name of the larger one."""
        return max(self.changes, key=lambda name: len(self._tensors[name]))

    def make(self, number: int, state: PolicyState) -> Made:
        return self._version(number, state, {name: self._edited(name) for name in self.changes})

    def bad(self, number: int, state: PolicyState) -> Made:
        name = self.changes[0]
        data = bytearray(self._edited(name))
        exponent = _NAN[self._spec(name).dtype]
        data[: len(exponent)] = exponent
        return self._version(number, state, {name: bytes(data)})

    def sparse(self, number: int, state: PolicyState) -> Made:
        """The matrix as what changed since the active version."""
        from openclaw_rl.weights.format.encoding import compress, sparse_content  # needs numpy

        name = self.matrix
        spec, base, new = self._spec(name), self._tensors[name], self._edited(name)
        content = sparse_content(memoryview(base), memoryview(new), spec.dtype)
        assert content is not None  # one value of thousands
        made = self._version(number, state, {name: new})
        return self._encoded(made, name, b"".join(compress(content)), pb.TENSOR_ENCODING_SPARSE_ZSTD)

    def low_rank(self, number: int, state: PolicyState) -> Made:
        """The matrix as an adapter of rank 1 on the active version's, which doubles one of its values: any arithmetic
        comes to the same bits.

        Raises:
            Skipped: the matrix has no value that can be doubled.
        """
        import numpy as np

        from openclaw_rl.weights.format.encoding import Adapter, compress, low_rank_content, merge

        name = self.matrix
        spec, base = self._spec(name), self._tensors[name]
        values = _values(base, spec.dtype)
        fit = np.flatnonzero((np.abs(values) > 1e-6) & (np.abs(values) < 1e4))
        if not len(fit):
            raise Skipped(f"tensor {name} has no value that an adapter could change exactly")
        self._made += 1
        rows, columns = spec.shape
        row, column = divmod(int(fit[self._made % len(fit)]), columns)
        a, b = np.zeros((1, columns), np.float32), np.zeros((rows, 1), np.float32)
        a[0, column], b[row, 0] = 1, 1
        adapter = Adapter(a, b, float(values[row * columns + column]))
        new = b"".join(merge(memoryview(base), spec.dtype, adapter))
        made = self._version(number, state, {name: new})
        encoded = self._encoded(made, name, b"".join(compress(low_rank_content(adapter))),
                                pb.TENSOR_ENCODING_LOW_RANK_ZSTD)
        encoded.spec(name).rank, encoded.spec(name).scale = adapter.rank, adapter.scale
        return encoded

    def _encoded(self, made: Made, name: str, frame: bytes, encoding: pb.TensorEncoding.ValueType) -> Made:
        spec = made.spec(name)
        spec.encoding, spec.encoded_bytes, spec.base_sha256 = encoding, len(frame), self._spec(name).sha256
        made.frames[name] = frame
        return made

    def _spec(self, name: str) -> pb.TensorSpec:
        return next(spec for spec in self._specs if spec.name == name)

    def _edited(self, name: str) -> bytes:
        """The tensor with the lowest bits of one value counted on: another tensor each time."""
        self._made += 1
        size = dense_bytes(self._spec(name).dtype, [1])
        data = bytearray(self._tensors[name])
        at = self._made * size % len(data)  # little-endian: the lowest byte of a value
        data[at] ^= 1 + self._made % 7
        return bytes(data)

    def _version(self, number: int, state: PolicyState, new: dict[str, bytes]) -> Made:
        specs = []
        for spec in self._specs:
            digest = tensor_digest(new[spec.name]) if spec.name in new else spec.sha256
            specs.append(make_spec(spec.name, spec.dtype, spec.shape, digest))
        return Made(manifest(number, state), specs, dict(new)).seal()


def _values(data: bytes, dtype: str) -> Any:
    """Values of a tensor as float32."""
    import numpy as np

    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.frombuffer(data, {"F16": "<f2", "F32": "<f4"}[dtype]).astype(np.float32)


#: A NaN, little-endian, by type.
_NAN = {"BF16": b"\xc0\x7f", "F16": b"\x00\x7e", "F32": b"\x00\x00\xc0\x7f"}


def manifest(number: int, state: PolicyState) -> pb.VersionManifest:
    """Manifest of a version that the kit makes, but for its digest."""
    return pb.VersionManifest(
        version=number, parent=state.active_version, model_id=state.model_id, algorithm=ALGORITHM,
        settings={"purpose": "a check of the weight stream"}, turn_ids=[f"conformance-{number}"],
        metrics={"loss": 0.0}, created_at=now())


def next_number(state: PolicyState) -> int:
    """A number that no version has had."""
    return max(state.highest_version, state.active_version, *state.withdrawn_versions, *state.kept_versions) + 1
