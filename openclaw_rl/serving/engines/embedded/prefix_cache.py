"""Keys and values of texts that were read or written, for requests that begin with the same tokens.

A radix tree over token ids (as SGLang's, arXiv:2312.07104, section 3): a node has the tokens that lead to it from its
parent, and their keys and values for all layers. All entries are of one policy version and of one process; the decode
loop's thread alone uses them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True, eq=False)
class _Node:
    tokens: Sequence[int]
    kept: Tensor  #: [layers, 2, kv heads, tokens, head dim]
    children: dict[int, _Node] = field(default_factory=dict)  #: by their first token


class PrefixCache:
    """The tree, with a bound on its memory; what was used least recently goes first.

    Attributes:
        epoch: grows whenever all entries are dropped; texts that were begun in an earlier one must not be kept.
        tokens: that are kept.
        token_bytes: of the keys and values of one token.
    """

    def __init__(self, limit: int, token_bytes: int) -> None:
        """
        Args:
            limit: most bytes of keys and values; 0 keeps nothing.
            token_bytes: of keys and values of all layers for one token.
        """
        self.epoch, self.tokens, self.token_bytes = 0, 0, token_bytes
        self._most = limit // token_bytes
        self._root = _Node((), torch.empty(0))
        #: All nodes but the root, with their parents, least recently used first. A parent is used after its children,
        #: so the first one has none.
        self._order: OrderedDict[_Node, _Node] = OrderedDict()

    def clear(self) -> object:
        """Drop all entries: they are of other weights, or of a session that is to be forgotten.

        Returns:
            The entries, whose memory is free once the caller lets them go, which takes a while.
        """
        dropped = self._order
        self._root, self._order = _Node((), torch.empty(0)), OrderedDict()
        self.epoch, self.tokens = self.epoch + 1, 0
        return dropped

    def load(self, tokens: Sequence[int], begin: int, target: Tensor) -> int:
        """Copy keys and values of tokens from `begin` on, as far as they are kept.

        Args:
            tokens: a text from its first token on.
            begin: its tokens before this position are in `target` already.
            target: [layers, 2, kv heads, length, head dim], the room of the text.

        Returns:
            The position up to which `target` is filled; `begin` when nothing was copied.
        """
        at = 0
        path: list[_Node] = []
        for node, same in self._walk(tokens):
            path.append(node)
            if (skip := max(begin - at, 0)) < same:
                target[:, :, :, at + skip:at + same] = node.kept[:, :, :, skip:same]
            at += same
        if at > begin:
            self._touch(path)
        return max(at, begin)

    def keep(self, tokens: Sequence[int], source: Tensor) -> None:
        """Keep the keys and values of a text; copies those that are not kept yet.

        Args:
            tokens: the text.
            source: its keys and values, [layers, 2, kv heads, length, head dim].
        """
        at = 0
        path: list[_Node] = []
        for node, same in self._walk(tokens):
            path.append(node if same == len(node.tokens) else self._split(node, same, path[-1] if path else self._root))
            at += same
        self._touch(path)
        end = min(len(tokens), self._most)
        if end <= at:
            return
        while self.tokens + end - at > self._most:
            self._drop_oldest()  # never of `path`: that is the newest, and there is room for it
        new = _Node(tokens[at:end], source[:, :, :, at:end].clone())
        (path[-1] if path else self._root).children[tokens[at]] = new
        self.tokens += end - at
        self._touch([*path, new])

    def _walk(self, tokens: Sequence[int]) -> Iterator[tuple[_Node, int]]:
        """The nodes along a text, each with how many of its tokens are the text's; the last may differ in some."""
        node, at = self._root, 0
        while at < len(tokens) and (child := node.children.get(tokens[at])) is not None:
            same = _common(child.tokens, tokens, at)
            yield child, same
            if same < len(child.tokens):
                return
            node, at = child, at + same

    def _split(self, node: _Node, count: int, parent: _Node) -> _Node:
        """Give the first `count` tokens of a node one of their own, its parent; returns that."""
        # Copies: a view would hold the memory of both until both are dropped.
        upper = _Node(node.tokens[:count], node.kept[:, :, :, :count].clone())
        lower = node.kept[:, :, :, count:].clone()
        parent.children[node.tokens[0]] = upper
        node.tokens, node.kept = node.tokens[count:], lower
        upper.children[node.tokens[0]] = node
        self._order[node] = upper
        return upper

    def _touch(self, path: Sequence[_Node]) -> None:
        for node, parent in reversed(list(zip(path, [self._root, *path], strict=False))):
            self._order[node] = parent
            self._order.move_to_end(node)

    def _drop_oldest(self) -> None:
        node, parent = self._order.popitem(last=False)
        del parent.children[node.tokens[0]]
        self.tokens -= len(node.tokens)


def _common(some: Sequence[int], tokens: Sequence[int], at: int) -> int:
    """How many of the first of `some` are those of `tokens` from `at` on."""
    part = tokens[at:at + len(some)]
    if part == some:
        return len(some)
    return next((i for i, (one, other) in enumerate(zip(some, part, strict=False)) if one != other), len(part))
