"""Channels to other components, encrypted where the current component has a certificate (see `auth.tls`). Their calls
tell which mesh and component makes them (see `membership`)."""

from __future__ import annotations

from typing import Any, Protocol

import grpc

from openclaw_rl.rpc import membership
from openclaw_rl.rpc.auth import current
from openclaw_rl.rpc.identified import IdentifiedChannel, SyncIdentifiedChannel
from openclaw_rl.rpc.membership import Membership

#: Longest message that a server or channel takes, in bytes.
MAX_MESSAGE = 16 * 2**20

#: What both ends agree on. A proxy in the environment is not for us; compression would only cost time on one machine.
COMMON_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    # A peer whose machine is gone is noticed after 20 + 10 s, also between two messages.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]

_CLIENT_OPTIONS = [
    *COMMON_OPTIONS,
    ("grpc.enable_http_proxy", 0),
    # A new channel tries at once: it does not inherit the back-off of an older channel to the same address.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 5_000),
]


class Credentials(Protocol):
    """What encrypts a channel; see `tls.Credentials`."""

    def channel(self, role: str = "") -> tuple[grpc.ChannelCredentials, list[tuple[str, Any]]]:
        """Credentials and options of a channel to the component `role`, "" for any."""
        ...


def connect(address: str, role: str = "", credentials: Credentials | None = None,
            ours: Membership | None = None) -> grpc.aio.Channel:
    """A channel to HOST:PORT for asyncio. It connects with the first call, and again after a break.

    Args:
        role: the component that must be there, by its certificate; "" takes any of the mesh.
        credentials: to use in place of the current component's.
        ours: likewise; what the calls tell of who makes them.
    """
    credentials, ours = credentials or current.credentials(), ours or membership.current()
    if credentials is None:
        channel = grpc.aio.insecure_channel(address, options=_CLIENT_OPTIONS)
    else:
        secrets, options = credentials.channel(role)
        channel = grpc.aio.secure_channel(address, secrets, options=[*_CLIENT_OPTIONS, *options])
    return channel if ours is None else IdentifiedChannel(channel, ours.metadata)


def sync_connect(address: str, role: str = "", credentials: Credentials | None = None,
                 ours: Membership | None = None) -> grpc.Channel:
    """The same without asyncio."""
    credentials, ours = credentials or current.credentials(), ours or membership.current()
    if credentials is None:
        channel = grpc.insecure_channel(address, options=_CLIENT_OPTIONS)
    else:
        secrets, options = credentials.channel(role)
        channel = grpc.secure_channel(address, secrets, options=[*_CLIENT_OPTIONS, *options])
    return channel if ours is None else SyncIdentifiedChannel(channel, ours.metadata)


class _TrueStatus:
    """A call's core object whose failed writes don't take the place of the status that the server sent."""

    def __init__(self, core: Any) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def set_internal_error(self, text: str) -> None:
        """Nothing: a write fails only when the call has ended, and how it ended arrives a moment later."""


def with_true_status(call: Any) -> Any:
    """The same call of grpc.aio, whose status is the server's also when a write finds the call ended.

    grpc.aio (1.85 and before) makes INTERNAL "Internal error from Core" of such a write, and then ignores the status
    that the server gave. There is no public way round that; a grpc.aio that is built otherwise is left as it is.
    """
    core = getattr(call, "_cython_call", None)
    if hasattr(core, "set_internal_error"):
        call._cython_call = _TrueStatus(core)
    return call
