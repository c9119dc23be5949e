"""A link that delays and loses packets, for kernels without netem: `switch.py MILLISECONDS LOSS INTERFACE INTERFACE`.

Takes whole Ethernet frames from each of the two interfaces and gives them to the other, each `MILLISECONDS` later. Both
need their offloads off (see links.py).
"""

from __future__ import annotations

import heapq
import random
import select
import socket
import sys
import time

_ALL_PROTOCOLS = 3
_OUTGOING = 4  # frames that we sent ourselves
_BUFFER = 8 << 20  # bytes
_AT_ONCE = 64  # frames taken from one side before the other is looked at


def bind(interface: str) -> socket.socket:
    """A raw socket on an interface."""
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        raw.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
    raw.bind((interface, 0))
    raw.setblocking(False)
    return raw


def main(delay: float, loss: float, first: str, second: str) -> None:
    """Serve until killed; `delay` in seconds, `loss` the part of packets that is dropped."""
    a, b = bind(first), bind(second)
    other = {a.fileno(): b, b.fileno(): a}
    sockets = {a.fileno(): a, b.fileno(): b}
    waiting: list[tuple[float, int, socket.socket, bytes]] = []
    poll, count = select.epoll(), 0
    for number in sockets:
        poll.register(number, select.EPOLLIN)
    while True:
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, target, frame = heapq.heappop(waiting)
            try:
                target.send(frame)
            except OSError:
                pass  # a full queue, or a link that is down: frames get lost there
        for number, _ in poll.poll(max(0.0, waiting[0][0] - time.monotonic()) if waiting else None):
            for _ in range(_AT_ONCE):
                try:
                    frame, address = sockets[number].recvfrom(65600)
                except BlockingIOError:
                    break
                if address[2] == _OUTGOING or (loss and random.random() < loss):
                    continue
                count += 1
                heapq.heappush(waiting, (time.monotonic() + delay, count, other[number], frame))


if __name__ == "__main__":
    main(float(sys.argv[1]) / 1000, float(sys.argv[2]), sys.argv[3], sys.argv[4])
