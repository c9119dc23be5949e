"""Whose turn it is."""

from __future__ import annotations

import random

import pytest

from openclaw_rl.rollouts.leases.queue import FairQueue, Ticket


async def test_places_are_those_in_which_tickets_are_taken() -> None:
    dice = random.Random(1)
    for _ in range(50):
        queue: FairQueue[int] = FairQueue()
        tickets = [Ticket[int](dice.choice("abcd"), True) for _ in range(dice.randrange(1, 12))]
        for ticket in tickets:
            queue.put(ticket)
        for _ in range(dice.randrange(3)):
            gone = dice.choice(tickets)
            assert queue.remove(gone) == (gone in tickets)
            tickets.remove(gone)
            assert not queue.remove(gone)
            if not tickets:
                break
        if tickets and dice.random() < 0.5:
            tickets.remove(queue.pop())
        places = {ticket: queue.place(ticket) for ticket in queue}
        assert len(places) == len(queue) == len(tickets)
        assert [places[queue.pop()] for _ in range(len(queue))] == list(range(len(tickets)))
    with pytest.raises(IndexError):
        queue.pop()
