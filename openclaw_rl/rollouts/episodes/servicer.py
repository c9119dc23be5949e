"""gRPC servicer of live sessions and episodes, a part of EnvironmentService."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc

from openclaw_rl.rollouts.episodes.runner import Episodes
from openclaw_rl.rpc.auth.authorize import caller
from openclaw_rl.rpc.auth.callers import client_of
from openclaw_rl.v1 import environment_pb2 as pb
from openclaw_rl.v1.turn_pb2 import OnBehalfOf


class EpisodeRpcs:
    """Live sessions and episodes; see EnvironmentServicer."""

    def __init__(self, episodes: Episodes) -> None:
        self._episodes = episodes

    async def Interact(self, request_iterator: AsyncIterator[pb.InteractRequest],
                       context: grpc.aio.ServicerContext) -> AsyncIterator[pb.InteractResponse]:
        session = self._episodes.live_session(OnBehalfOf(client=client_of(context), key_id=caller.get()[1]))
        async with aclosing(session.run(request_iterator)) as responses:  # type: ignore[type-var]
            async for response in responses:
                yield response

    async def RunEpisodes(self, request: pb.RunEpisodesRequest,
                          context: grpc.aio.ServicerContext) -> AsyncIterator[pb.RunEpisodesResponse]:
        async with aclosing(self._episodes.run(request)) as events:  # type: ignore[type-var]
            async for event in events:
                yield event

    async def ListEpisodes(self, request: pb.ListEpisodesRequest,
                           context: grpc.aio.ServicerContext) -> pb.ListEpisodesResponse:
        return await asyncio.to_thread(self._episodes.page, request)
