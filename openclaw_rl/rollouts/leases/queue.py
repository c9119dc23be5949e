"""Who gets the next free environment: holders in turn, each holder's requests in the order that they came."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Ticket(Generic[T]):
    """A request that waits. Belongs to the event loop that it is made in."""

    __slots__ = ("answer", "holder", "patient")

    def __init__(self, holder: str, patient: bool) -> None:
        self.holder = holder
        self.patient = patient  #: False: it is answered with an error as soon as something goes wrong
        self.answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()


class FairQueue(Generic[T]):
    """Tickets. A holder that asks a thousand times holds up another one's first request by one place only."""

    def __init__(self) -> None:
        self._holders: OrderedDict[str, deque[Ticket[T]]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Ticket[T]]:
        """All of them, a holder at a time."""
        return iter([ticket for tickets in self._holders.values() for ticket in tickets])

    def put(self, ticket: Ticket[T]) -> None:
        """Put it behind its holder's others; a new holder comes last."""
        self._holders.setdefault(ticket.holder, deque()).append(ticket)
        self._length += 1

    def pop(self) -> Ticket[T]:
        """Take the one whose turn it is.

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
        """How many come before it, as things are; an upper bound is the queue's length."""
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
        """Take one out, wherever it is. False: it isn't there."""
        tickets = self._holders.get(ticket.holder)
        if tickets is None or ticket not in tickets:
            return False
        tickets.remove(ticket)
        self._length -= 1
        if not tickets:
            del self._holders[ticket.holder]
        return True
