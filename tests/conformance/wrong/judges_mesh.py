"""Judges that are wrong about the mesh that they belong to."""

from __future__ import annotations

from typing import Any

import grpc

from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.rpc.membership import Membership
from tests.conformance.wrong.fault import wrong
from tests.conformance.wrong.judge import Judge


@wrong("component.mesh", "GetStatus has neither, JudgeTransitions has neither")
class TellsNoMesh(Judge):
    """Answers without saying who it is."""

    def make_membership(self) -> Membership:
        ours = super().make_membership()
        ours.metadata = ()
        return ours


class _Admits(Membership):
    """Lets in some whom it should refuse."""

    foreign = unnamed = False

    def admit(self, metadata: Any, method: str, *, certified: bool) -> None:
        super().admit([(key, self.mesh if self.foreign and key == "openclaw-mesh" else value)
                       for key, value in metadata or ()], method, certified=certified or self.unnamed)


@wrong("component.mesh.foreign", "GetStatus of another mesh succeeded")
class LetsOthersIn(Judge):
    """Serves every mesh."""

    def make_membership(self) -> Membership:
        ours = _Admits("mesh-small", self.name)
        ours.foreign = True
        return ours


class _Blames(Membership):
    """Takes a caller's fault for its own."""

    def admit(self, metadata: Any, method: str, *, certified: bool) -> None:
        try:
            super().admit(metadata, method, certified=certified)
        except MeshError as error:
            self.note(error)
            raise


@wrong("component.mesh.foreign", "being called by another mesh is the alarm wrong_mesh")
class TakesTheBlame(Judge):
    """Is DEGRADED since somebody else has a wrong address."""

    def make_membership(self) -> Membership:
        return _Blames("mesh-small", self.name)


@wrong("component.mesh.unnamed", "JudgeTransitions was let in")
class LetsAnybodyStream(Judge):
    """Takes transitions of whoever sends them."""

    def make_membership(self) -> Membership:
        ours = _Admits("mesh-small", self.name)
        ours.unnamed = True
        return ours


@wrong("onward.mesh", "SubmitSamples with neither")
class SendsUnnamed(Judge):
    """Does not say whose samples it sends."""

    def connect(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self.next, options=[("grpc.use_local_subchannel_pool", 1)])


@wrong("onward.mesh.foreign", "2 messages were sent to a component of the mesh mesh-kit-another")
class SendsToOthers(Judge):
    """Sends its samples to whoever takes them."""

    async def confirm(self, call: Any) -> None:
        await call.initial_metadata()
