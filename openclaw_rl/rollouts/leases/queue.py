"""Fair queue for environments: holders take turns, each holder's requests are served in order."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Ticket(Generic[T]):
    """A waiting request. Belongs to the event loop in which it is made."""

    __slots__ = ("answer", "holder", "patient")

    def __init__(self, holder: str, patient: bool) -> None:
        self.holder = holder
        self.patient = patient  #: False: it fails as soon as something goes wrong
        self.answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()


class FairQueue(Generic[T]):
    """Queue of tickets. A thousand requests of one holder delay another's first request by one place only."""

    def __init__(self) -> None:
        self._holders: OrderedDict[str, deque[Ticket[T]]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Ticket[T]]:
        """All tickets, holder by holder."""
        return iter([ticket for tickets in self._holders.values() for ticket in tickets])

    def put(self, ticket: Ticket[T]) -> None:
        """Append a ticket to its holder's; a new holder comes last."""
        self._holders.setdefault(ticket.holder, deque()).append(ticket)
        self._length += 1

    def pop(self) -> Ticket[T]:
        """Remove the next ticket.

        Raises:
            IndexError: there is none.
        """
        if not self._holders:
            raise IndexError("no ticket waits")
        holder, tickets = next(iter(self._holders.items()))
        ticket = tickets.popleft()
        self._length -= 1
        if tickets:
            self._holders.move_to_end(holder)
        else:
            del self._holders[holder]
        return ticket

    def place(self, ticket: Ticket[T]) -> int:
        """Number of tickets before this one at present, at most the queue's length."""
        mine = list(self._holders.get(ticket.holder, ()))
        if ticket not in mine:
            return self._length
        rounds = mine.index(ticket)
        before = True
        place = rounds
        for holder, tickets in self._holders.items():
            if holder == ticket.holder:
                before = False
            else:
                place += min(len(tickets), rounds + before)
        return place

    def remove(self, ticket: Ticket[T]) -> bool:
        """Remove a ticket, wherever it is; False if it is not queued."""
        tickets = self._holders.get(ticket.holder)
        if tickets is None or ticket not in tickets:
            return False
        tickets.remove(ticket)
        self._length -= 1
        if not tickets:
            del self._holders[ticket.holder]
        return True
