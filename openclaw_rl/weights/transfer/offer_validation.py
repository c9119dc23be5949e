"""Validation of offers against the model, and lookup of tensors that are here already."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

from openclaw_rl.v1 import weights_pb2 as pb
from openclaw_rl.v1.policy_pb2 import PolicyState
from openclaw_rl.v1.weights_pb2 import TensorSpec
from openclaw_rl.weights import playbook
from openclaw_rl.weights.format.digest import ITEM_SIZE, can_adapt, dense_bytes, manifest_digest
from openclaw_rl.weights.format.safetensors import CorruptFile, Tensors
from openclaw_rl.weights.store import VersionStore
from openclaw_rl.weights.transfer.errors import SyncError

logger = logging.getLogger(__name__)


def resolve(offer: pb.WeightOffer, store: VersionStore, state: PolicyState) -> list[TensorSpec]:
    """All tensors of an offered version, checked against the model's.

    Args:
        offer: from the sender.
        store: the receiver's versions.
        state: which of them it serves.

    Raises:
        SyncError: the offer can't be taken.
    """
    model = {spec.name: spec for spec in store.specs(0)}
    specs: dict[str, TensorSpec] = {}
    for spec in offer.tensors:
        if spec.name not in model:
            raise SyncError(pb.WEIGHT_REJECT_REASON_UNKNOWN_TENSOR, f"the model has no tensor {spec.name!r}")
        there = model[spec.name]
        if _wrong_shape(spec, there):
            raise SyncError(pb.WEIGHT_REJECT_REASON_WRONG_SHAPE, f"tensor {spec.name} is {spec.dtype}"
                            f"{list(spec.shape)}; the model's is {there.dtype}{list(there.shape)}")
        if spec.name in specs or len(spec.sha256) != 32:
            raise SyncError(pb.WEIGHT_REJECT_REASON_PROTOCOL,
                            f"tensor {spec.name} is listed twice, or its digest has the wrong length")
        check_encoding(spec)
        specs[spec.name] = spec
    if offer.HasField("base_version"):
        if offer.base_version not in state.kept_versions or offer.base_version in state.withdrawn_versions:
            raise SyncError(pb.WEIGHT_REJECT_REASON_WRONG_BASE, f"it builds on version {offer.base_version}, which "
                            f"is not here; here are {', '.join(map(str, state.kept_versions))}")
        specs = {spec.name: spec for spec in store.specs(offer.base_version)} | specs
    missing = sorted(model.keys() - specs.keys())
    if missing:
        raise SyncError(pb.WEIGHT_REJECT_REASON_PROTOCOL, f"{len(missing)} tensors of the model are not listed and "
                        f"no base version is named, {missing[0]} among them")
    if manifest_digest(specs.values()) != offer.manifest.digest:
        raise SyncError(pb.WEIGHT_REJECT_REASON_DIGEST_MISMATCH,
                        "the digests of the tensors do not make the digest of the manifest")
    return list(specs.values())


def _wrong_shape(spec: TensorSpec, there: TensorSpec) -> bool:
    """Whether a tensor can't be the model's. A playbook's length is that of its text."""
    if playbook.is_playbook(spec) and playbook.is_playbook(there):
        return len(spec.shape) != 1 or not 0 < spec.shape[0] <= playbook.MAX_BYTES
    return (spec.dtype, list(spec.shape)) != (there.dtype, list(there.shape))


def local_tensors(specs: list[TensorSpec], store: VersionStore, active: int,
                  distrusted: set[bytes]) -> dict[str, memoryview]:
    """Those of the tensors that the active version or the base model has alike, by name."""
    local: dict[str, memoryview] = {}
    for version in {0, active}:
        tensors = _open(store, version)
        if tensors is None:
            continue
        same = {spec.name: spec.sha256 for spec in store.specs(version)}
        local |= {spec.name: tensors[spec.name] for spec in specs
                  if same.get(spec.name) == spec.sha256 and spec.sha256 not in distrusted}
    return local


def base_tensors(specs: list[TensorSpec], store: VersionStore, kept: Iterable[int],
                 distrusted: set[bytes]) -> dict[bytes, memoryview]:
    """Dense bytes of what encoded tensors start from, by digest: of the base model or any kept version.

    Raises:
        SyncError: one is not here.
    """
    there = {0, *kept}
    wanted = {spec.base_sha256: spec for spec in specs if spec.encoding != pb.TENSOR_ENCODING_DENSE}
    bases: dict[bytes, memoryview] = {}
    for version in sorted(there & set(store.versions())):
        names = {spec.sha256: spec.name for spec in store.specs(version)
                 if spec.sha256 in wanted and spec.sha256 not in distrusted and spec.sha256 not in bases
                 and (spec.dtype, spec.shape) == (wanted[spec.sha256].dtype, wanted[spec.sha256].shape)}
        tensors = _open(store, version) if names else None
        if tensors is not None:
            bases |= {digest: tensors[name] for digest, name in names.items()}
    for digest, spec in wanted.items():
        if digest not in bases:
            raise SyncError(pb.WEIGHT_REJECT_REASON_WRONG_BASE, f"tensor {spec.name} starts from one that is not "
                            f"here, or damaged (SHA-256 {digest.hex()}); here are versions "
                            f"{', '.join(map(str, sorted(there)))}. Send it dense", retryable=True)
    return bases


def _open(store: VersionStore, version: int) -> Tensors | None:
    """None when its file was damaged or deleted while this process ran: what it has comes over the line then."""
    try:
        return store.open(version)
    except (CorruptFile, OSError) as error:
        logger.warning("version %d is of no use to a new one: %s", version, error)
        return None


def check_encoding(spec: TensorSpec) -> None:
    """Whether a tensor's encoding fits its type, shape and size.

    Raises:
        SyncError: it doesn't.
    """
    size = dense_bytes(spec.dtype, spec.shape)
    item = ITEM_SIZE[spec.dtype]
    match spec.encoding:
        case pb.TENSOR_ENCODING_DENSE:
            fits = spec.encoded_bytes == size
        case pb.TENSOR_ENCODING_SPARSE_ZSTD:
            fits = item in (2, 4) and 0 < spec.encoded_bytes < size
        case pb.TENSOR_ENCODING_LOW_RANK_ZSTD:
            fits = (can_adapt(spec.dtype, spec.shape, spec.rank) and math.isfinite(spec.scale)
                    and 0 < spec.encoded_bytes < size)
        case _:
            raise SyncError(pb.WEIGHT_REJECT_REASON_UNSUPPORTED, f"tensor {spec.name}: encoding {spec.encoding} is not "
                            "known here: DENSE, SPARSE_ZSTD and LOW_RANK_ZSTD are", retryable=True)
    if not fits or (spec.encoding != pb.TENSOR_ENCODING_DENSE) != (len(spec.base_sha256) == 32):
        raise SyncError(pb.WEIGHT_REJECT_REASON_PROTOCOL, f"tensor {spec.name}, {spec.dtype}{list(spec.shape)}, can't "
                        f"be of encoding {spec.encoding} with {spec.encoded_bytes} bytes, rank {spec.rank} and a base "
                        f"digest of {len(spec.base_sha256)} bytes")
