"""The part of EnvironmentService in which the policy acts: translate, call, translate back."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc

from openclaw_rl.mesh.errors import unimplemented
from openclaw_rl.v1 import environment_pb2 as pb


class EpisodeRpcs:
    """Live sessions and episodes."""

    async def Interact(self, request_iterator: AsyncIterator[pb.InteractRequest],
                       context: grpc.aio.ServicerContext) -> AsyncIterator[pb.InteractResponse]:
        raise unimplemented("Interact")
        yield  # makes this a stream handler

    async def RunEpisodes(self, request: pb.RunEpisodesRequest,
                          context: grpc.aio.ServicerContext) -> AsyncIterator[pb.RunEpisodesResponse]:
        raise unimplemented("RunEpisodes")
        yield  # makes this a stream handler

    async def ListEpisodes(self, request: pb.ListEpisodesRequest,
                           context: grpc.aio.ServicerContext) -> pb.ListEpisodesResponse:
        raise unimplemented("ListEpisodes")
