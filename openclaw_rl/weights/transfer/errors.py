"""Errors of the weight stream."""

from __future__ import annotations

from openclaw_rl.v1 import weights_pb2 as pb


class SyncError(Exception):
    """A version can't be taken; goes to the trainer as WeightRejected."""

    def __init__(self, reason: pb.WeightRejectReason.ValueType, message: str, retryable: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.retryable = retryable
