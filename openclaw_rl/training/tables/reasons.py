"""Typed reasons, and the one form in which they are stored and told: "CODE" or "CODE: DETAIL"."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from openclaw_rl.runtime.rejection import Rejection


class Fate(StrEnum):
    """What became of a sample."""

    PENDING = "pending"
    TRAINED = "trained"
    DROPPED = "dropped"


class DropReason(StrEnum):
    """Why a sample is not trained on."""

    JUDGE_FAILED = "judge failed"
    NOT_MAIN = "not a main turn"
    BAD_SCORE = "bad score"
    NO_TOKENS = "no token ids"
    BAD_TOKENS = "bad token record"
    TOO_LONG = "too long"
    TRUNCATED = "truncated"
    DEGENERATE = "degenerate"
    STALE = "stale"
    NO_SIGNAL = "no signal"
    ABNORMAL_STEP = "abnormal step"
    DAMAGED = "damaged on disk"
    FORGOTTEN = "forgotten"
    BAD_EPISODE = "bad episode"
    EPISODE_BROKEN_OFF = "episode broken off"
    INCOMPLETE_GROUP = "incomplete group"
    NOT_OF_EPISODE = "not of an episode"
    OF_EPISODE = "of an episode"
    FOREIGN_MESH = "foreign mesh"
    OTHER = ""  #: told by another release

    @property
    def quarantined(self) -> bool:
        """Whether such a sample is quarantined: it is inconsistent, or belongs to another model or mesh."""
        return self in (DropReason.BAD_TOKENS, DropReason.BAD_SCORE, DropReason.BAD_EPISODE, DropReason.FOREIGN_MESH)

    @classmethod
    def parse(cls, text: str) -> DropReason:
        """Read the stored form."""
        code, _ = _parse(text)
        return cls(code) if code in _DROP_REASONS else cls.OTHER


#: Why a sample is dropped.
Drop = Rejection[DropReason]


def drop(reason: DropReason, detail: str = "") -> Drop:
    """Return a reason with its detail for a person."""
    return Rejection(reason, _format(reason, detail))


class VersionState(StrEnum):
    """Why a version does not answer."""

    NONE = ""  #: nothing speaks against it
    NOT_SENT = "not sent yet"
    REFUSED = "refused by the gate, it never served"
    REJECTED = "rejected"  #: by the policy server
    ROLLED_BACK = "rolled back"
    TAKEN_BACK = "taken back by the watch"
    VOID = "void"  #: trained on turns that were forgotten
    CHECKPOINT_DAMAGED = "its checkpoint is damaged"
    RECORD_DAMAGED = "its record is damaged"
    NOT_RESTORED = "its record is damaged and was not restored yet"  #: until it is known whether it can be


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """A state, and its detail for a person."""

    state: VersionState = VersionState.NONE
    detail: str = ""

    def __str__(self) -> str:
        return _format(self.state, self.detail)

    @classmethod
    def parse(cls, text: str) -> VersionStatus:
        """Read the stored form."""
        code, detail = _parse(text)
        return cls(VersionState(code), detail) if code in _VERSION_STATES else cls(VersionState.NONE, text)


def _format(code: str, detail: str) -> str:
    return f"{code}: {detail}" if code and detail else code or detail


def _parse(text: str) -> tuple[str, str]:
    code, _, detail = text.partition(": ")
    return code, detail


_DROP_REASONS = frozenset(DropReason)
_VERSION_STATES = frozenset(VersionState)
