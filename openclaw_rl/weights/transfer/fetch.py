"""FetchWeights: a version for whoever asks, at the asker's pace. The same request gives the same bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence

from openclaw_rl.rpc.errors import failed_precondition, invalid, not_found, unavailable
from openclaw_rl.v1.policy_pb2 import PolicyServiceFetchWeightsRequest
from openclaw_rl.v1.trainer_pb2 import FetchWeightsRequest
from openclaw_rl.v1.weights_pb2 import TensorSpec, WeightChunk, WeightNeed, WeightOffer
from openclaw_rl.weights.format.safetensors import CorruptFile, file_order
from openclaw_rl.weights.store import VersionStore
from openclaw_rl.weights.transfer.sender import CHUNK, Transfer


async def fetch(store: VersionStore, request: FetchWeightsRequest | PolicyServiceFetchWeightsRequest,
                default: int, versions: Sequence[int] | None = None) -> AsyncIterator[WeightOffer | WeightChunk]:
    """The offer, then the transfer in chunks: of the tensors asked for, in that order, else of all that are not in the
    base alike, in the offer's order.

    The next chunk is read when the last one was taken, so a slow asker holds 2 MiB and nobody up. A version that is
    deleted meanwhile stays readable to the end; closing the iterator lets go of it.

    Args:
        store: where the versions are.
        request: which, against which base, which tensors, from which byte of the transfer.
        default: the version of a request that names none.
        versions: those that may be fetched; default all of the store.

    Raises:
        MeshError: NOT_FOUND, the version is not here; VERSION_UNKNOWN, the base is not; INVALID_ARGUMENT, a tensor
            that is not offered or that is named twice, or a byte beyond the transfer; UNAVAILABLE, the version can't
            be read from the disk.
    """
    version = request.version if request.HasField("version") else default
    base = request.base_version if request.HasField("base_version") else None
    here = sorted(store.versions() if versions is None else versions)
    if version not in here:
        raise not_found("version", str(version), f"here are {', '.join(map(str, here))}")
    if base is not None and base not in here:
        raise failed_precondition(
            "VERSION_UNKNOWN", f"base_version {base} is not here to tell the differences from; here are "
            f"{', '.join(map(str, here))}; without a base_version all tensors are sent whole")
    try:
        transfer = await asyncio.to_thread(Transfer, store, version, base)
        offer = transfer.offer()
        tensors = file_order(offer.tensors)  # as the receiver's file has them: it can take them as they come
        names = list(request.tensors) or changed(store, base, tensors)
    except KeyError:  # deleted in this moment
        raise not_found("version", str(version), "it was deleted just now") from None
    except (CorruptFile, OSError) as error:
        raise unavailable(f"version {version} can't be read: {error}") from error
    del offer.tensors[:]
    offer.tensors.extend(tensors)
    sizes = {spec.name: spec.encoded_bytes for spec in tensors}
    for i, name in enumerate(names):
        if name not in sizes:
            raise invalid(f"tensors[{i}]", name, "the name of a tensor of the version")
    if len({*names}) < len(names):
        raise invalid("tensors", next(name for name in names if names.count(name) > 1), "there once only")
    total = sum(sizes[name] for name in names)
    if not 0 <= request.from_byte <= total:
        raise invalid("from_byte", request.from_byte, f"between 0 and {total}, the bytes of this transfer")
    transfer.need(WeightNeed(version=version, tensors=names, from_byte=request.from_byte, credit_bytes=total))
    yield offer
    while size := transfer.due(CHUNK):
        yield await asyncio.to_thread(transfer.read, transfer.advance(size), size)


def changed(store: VersionStore, base: int | None, tensors: Iterable[TensorSpec]) -> list[str]:
    """Names of the tensors that a version of the store does not have alike; of all when it is None.

    Raises:
        KeyError: the version is not there.
    """
    there = {} if base is None else {spec.name: spec.sha256 for spec in store.specs(base)}
    return [spec.name for spec in tensors if there.get(spec.name) != spec.sha256]
