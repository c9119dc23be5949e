"""The persistent state of a policy server's versions: policy.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from openclaw_rl.storage.quarantine_files import move_aside
from openclaw_rl.weights.files import write_durably

#: Characters of a pin's reason that are stored.
_REASON = 500


@dataclass(frozen=True, slots=True)
class VersionState:
    """The active, kept and withdrawn versions, and whether one is pinned."""

    active: int = 0
    highest: int = 0  #: that was ever active, or was withdrawn before it could be
    kept: tuple[int, ...] = ()  #: were active once and are on disk, ascending, without the base model
    withdrawn: tuple[int, ...] = ()  #: ascending
    activated_at: float = 0.0  #: seconds since the epoch
    pinned_at: float | None = None  #: when an operator pinned the active version; None when it is not pinned
    pin_reason: str = ""

    @classmethod
    def read(cls, data: bytes) -> VersionState:
        """Parse what `write` returned; the file of an earlier release has no pin.

        Raises:
            ValueError, TypeError, KeyError, OverflowError: the bytes are damaged, or the numbers impossible.
        """
        fields = {"pinned_at": None, "pin_reason": "", **json.loads(data)}
        pinned_at = fields["pinned_at"]
        state = cls(int(fields["active"]), int(fields["highest"]), tuple(map(int, fields["kept"])),
                     tuple(map(int, fields["withdrawn"])), float(fields["activated_at"]),
                     None if pinned_at is None else float(pinned_at), str(fields["pin_reason"])[:_REASON])
        if not state._possible():
            raise ValueError("its numbers are not possible")
        return state

    @property
    def pin(self) -> str:
        """Since when and why the active version is pinned, for people; empty when it is not."""
        if self.pinned_at is None:
            return ""
        since = datetime.fromtimestamp(self.pinned_at).astimezone()
        return f"version {self.active} is pinned since {since:%F %T} ({self.pin_reason or 'no reason given'})"

    def write(self) -> bytes:
        """Serialize to JSON."""
        return json.dumps(asdict(self)).encode()

    def _possible(self) -> bool:
        """Whether the numbers can be a policy server's rather than a damaged file's."""
        return (0 <= self.active <= self.highest < 2**31 and 0 <= self.activated_at < 2**33
                and 0 <= (self.pinned_at or 0) < 2**33
                and all(0 < version <= self.highest for version in (*self.kept, *self.withdrawn)))


class VersionStateFile:
    """policy.json in a policy server's folder, and policy.copy.json beside it.

    Without it, a version that was active can't be told from one that was only staged or was withdrawn; so the copy
    counts when the file is damaged. The copy is written first: it is never older than the file.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "policy.json"
        self._copy = folder / "policy.copy.json"

    def read(self) -> tuple[VersionState | None, str]:
        """Return the state, None without one; and a problem, or "". A damaged file is quarantined."""
        state, problem = self._read(self.path)
        if state is not None:
            return state, ""
        state, _ = self._read(self._copy)
        if state is not None:
            return state, f"{problem or f'{self.path} is missing'}; {self._copy.name} is used in its place"
        return None, problem

    def whole(self) -> bool:
        """Whether both files exist and are alike."""
        try:
            return self.path.read_bytes() == self._copy.read_bytes()
        except OSError:
            return False

    def write(self, state: VersionState) -> None:
        """Write both files durably.

        Raises:
            OSError: one can't be written; the file may be unchanged.
        """
        for path in (self._copy, self.path):
            write_durably(path, state.write())

    @staticmethod
    def _read(path: Path) -> tuple[VersionState | None, str]:
        try:
            return VersionState.read(path.read_bytes()), ""
        except FileNotFoundError:
            return None, ""
        except (OSError, ValueError, TypeError, KeyError, OverflowError) as error:
            try:
                return None, f"{path} can't be read ({error}) and was moved to {move_aside(path, label='corrupt').name}"
            except OSError as fault:
                return None, f"{path} can't be read ({error}), nor moved away ({fault})"
