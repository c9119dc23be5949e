"""Identity of a client, by its bearer key or its address."""

from __future__ import annotations

import hashlib

import grpc

from openclaw_rl.rpc.auth.authorize import caller


def client_digest(key: str, address: str, user: str) -> str:
    """An opaque name of who asks; see Turn.client. The part before a colon stands for the key alone, empty without one:
    address and user field may differ between a person's requests, the key does not."""
    owner = hashlib.blake2b(key.encode(), digest_size=8).hexdigest() if key else ""
    return f"{owner}:" + hashlib.blake2b("\0".join((key, address, user)).encode(), digest_size=16).hexdigest()


def key_of(client: str) -> str:
    """What stands for the API key that a client (`Turn.client`) has shown; empty when it has shown none."""
    return client.partition(":")[0] if ":" in client else ""


def address_of(context: grpc.aio.ServicerContext) -> str:
    """The caller's address without its port, which is another for each connection."""
    return context.peer().rpartition(":")[0]


def client_of(context: grpc.aio.ServicerContext) -> str:
    """The digest of who calls: by the bearer key, one owner at both doors, or without one by the address."""
    return client_digest(caller.get()[0], address_of(context), "")
