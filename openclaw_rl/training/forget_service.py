"""Implementation of ComponentService.Forget for the trainer."""

from __future__ import annotations

import asyncio

from openclaw_rl.privacy import Target
from openclaw_rl.privacy.erase import clean
from openclaw_rl.runtime.home import Home
from openclaw_rl.training.forget import Forgotten
from openclaw_rl.training.service import TrainerService
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.v1 import component_pb2


class TrainerForgetter:
    """Deletes a session from the service and from the disk, and says what became of the versions."""

    def __init__(self, name: str, home: Home, store: TrainerStore, service: TrainerService) -> None:
        self._name, self._home, self._store, self._service = name, home, store, service

    async def forget(self, request: component_pb2.ForgetRequest) -> component_pb2.ForgetResponse:
        """Forget a session; raises as TrainerService.forget."""
        done = await self._service.forget(Target.of(request))
        removed = done.removed | {"versions": len(done.void)}
        removed |= await asyncio.to_thread(clean, self._store.database, self._home, self._name, done.target)
        base, rebuilding = await self._store.database.read(self._progress, done)
        return component_pb2.ForgetResponse(
            turn_ids=sorted(done.target.turn_ids), removed=removed, versions=done.void, base_version=base,
            rebuilding=rebuilding, message=message(done, self._service.paused))

    def _progress(self, done: Forgotten) -> tuple[int | None, int]:
        """Return the version that training continues from, and the number of samples that wait again. Blocks."""
        # Of versions that are void since an earlier call, the base is where training is now.
        base = self._store.versions.head if done.base is None and done.void else done.base
        return base, self._store.samples.rebuilding()


def message(done: Forgotten, paused: bool) -> str:
    """Return what became of the versions, for a person."""
    if done.base is None:
        return "no version that training goes on from was trained on its turns"
    parts = [f"training goes on from version {done.base}, with a fresh optimizer"]
    if done.again and paused:
        parts.append(f"{done.again} samples of the versions after it are trained on again, without the forgotten turns,"
                     " when training is resumed (`openclaw-rl resume`)")
    elif done.again:
        parts.append(f"{done.again} samples of the versions after it are trained on again, without the forgotten turns")
    elif not done.lost:
        parts.append("there is nothing else that the versions after it were trained on: they are rolled back")
    if done.lost:
        kept = "" if done.again else ", so these versions are rolled back"
        parts.append(f"{done.lost} samples can't be trained on again, since what they hold is kept only as long as "
                     f"their versions{kept}")
    return "; ".join(parts)
