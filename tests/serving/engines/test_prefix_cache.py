"""The tree of kept keys and values: what it finds, what it holds, and what goes first."""

from __future__ import annotations

import random

import torch

from openclaw_rl.serving.engines.embedded.prefix_cache import PrefixCache

SHAPE = (2, 2, 1, 64, 4)  # layers, key and value, heads, length, head dim
TOKEN_BYTES = 2 * 2 * 1 * 4 * 4


def keys(tokens: list[int]) -> torch.Tensor:
    """What stands for the keys of a text: each token's depend on all before it."""
    room = torch.zeros(SHAPE)
    for i in range(len(tokens)):
        room[:, :, :, i] = hash(tuple(tokens[:i + 1])) % 10_000
    return room


def make(tokens: int = 1000) -> PrefixCache:
    return PrefixCache(tokens * TOKEN_BYTES, TOKEN_BYTES)


def held(cache: PrefixCache) -> int:
    """Tokens whose memory the tree really holds."""
    return sum(node.kept.untyped_storage().nbytes() for node in cache._order) // TOKEN_BYTES


def found(cache: PrefixCache, text: list[int], begin: int = 0) -> int:
    """How far a text is found; its keys must be the right ones, and no others be touched."""
    room = torch.full(SHAPE, -1.0)
    end = cache.load(text, begin, room)
    assert torch.equal(room[:, :, :, begin:end], keys(text)[:, :, :, begin:end])
    assert (room[:, :, :, :begin] == -1).all() and (room[:, :, :, end:] == -1).all()
    return end


def test_a_text_is_found_as_far_as_another_one_began_alike() -> None:
    cache = make()
    assert found(cache, [1, 2, 3]) == 0
    cache.keep([1, 2, 3, 4, 5], keys([1, 2, 3, 4, 5]))
    for text, end in (([1, 2, 3, 4, 5, 6], 5), ([1, 2, 3], 3), ([1, 2, 9, 4, 5], 2), ([2, 3], 0), ([], 0)):
        assert found(cache, text) == end
    assert found(cache, [1, 2, 3, 4, 9], begin=2) == 4
    assert found(cache, [1, 2, 9], begin=2) == 2  # nothing that is not there already


def test_what_texts_share_is_kept_once() -> None:
    cache = make()
    for text in ([1, 2, 3, 4], [1, 2, 3, 4, 5, 6], [1, 2, 7, 8], [1, 2, 3, 9], [1, 2]):
        cache.keep(text, keys(text))
    assert cache.tokens == held(cache) == 4 + 2 + 2 + 1
    for text in ([1, 2, 3, 4, 5, 6], [1, 2, 7, 8], [1, 2, 3, 9]):
        assert found(cache, text) == len(text)


def test_the_least_recently_used_goes_first() -> None:
    cache = make(tokens=12)
    for first in (1, 2, 3):
        text = [first, 0, 0, 0]
        cache.keep(text, keys(text))
    assert found(cache, [1, 0, 0, 0]) == 4
    cache.keep([4, 0, 0, 0], keys([4, 0, 0, 0]))
    assert [found(cache, [first, 0, 0, 0]) for first in (1, 2, 3, 4)] == [4, 0, 4, 4]
    long = list(range(20, 60))
    cache.keep(long, keys(long))
    assert found(cache, long) == 12 == held(cache)  # as much of its beginning as there is room for
    assert found(cache, [1, 0, 0, 0]) == 0


def test_nothing_is_kept_without_room() -> None:
    for limit in (0, TOKEN_BYTES - 1):
        cache = PrefixCache(limit, TOKEN_BYTES)
        cache.keep([1, 2], keys([1, 2]))
        assert (cache.tokens, held(cache), found(cache, [1, 2])) == (0, 0, 0)


def test_clearing_drops_all_and_begins_an_epoch() -> None:
    cache = make()
    cache.keep([1, 2, 3], keys([1, 2, 3]))
    cache.keep([1, 2, 4], keys([1, 2, 4]))
    epoch = cache.epoch
    cache.clear()
    assert (cache.epoch, cache.tokens, held(cache), found(cache, [1, 2, 3])) == (epoch + 1, 0, 0, 0)
    cache.keep([1, 2], keys([1, 2]))
    assert found(cache, [1, 2, 3]) == 2


def test_any_sequence_of_texts_keeps_to_its_bound_and_gives_the_right_keys() -> None:
    dice = random.Random(7)
    cache = make(tokens=60)
    for _ in range(2000):
        text = [dice.randrange(3) for _ in range(dice.randrange(40))]
        cache.keep(text, keys(text)) if dice.random() < 0.5 else found(cache, text, dice.randrange(len(text) + 1))
        assert cache.tokens == held(cache) <= 60
        assert cache.tokens == sum(len(node.tokens) for node in cache._order)
