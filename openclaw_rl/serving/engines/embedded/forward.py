"""The forward pass of a Llama-family model over a batch of sequences at different positions.

The rows of a pass are the next token of every decoding sequence and pieces of prompts. All linear maps run once over
all rows, so a piece of a prompt shares the reading of the weights with the decoding that goes on beside it.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from openclaw_rl.models.config import ModelConfig
from openclaw_rl.models.llama import Weights, compute_dtype


@dataclass(slots=True)
class Piece:
    """Consecutive tokens of a prompt."""

    slot: int
    tokens: Sequence[int]
    start: int  #: position of the first one
    outputs: int  #: number of its last rows that need logits


class Cache:
    """Keys and values of the sequences, one slot each; slots 0 to n - 1 are in use.

    On a CPU the whole room is mapped at once and the system gives memory to what is written, so that short
    conversations cost little and a growing one is never copied. On a GPU all of it is taken.
    """

    def __init__(self, config: ModelConfig, slots: int, length: int, device: torch.device) -> None:
        self._map: mmap.mmap | None = None
        shape = (config.layers, slots, 2, config.kv_heads, length, config.head_dim)
        #: [layers, slots, 2 (key, value), kv heads, length, head dim]. Zeros: attention reads what its mask leaves
        #: out, and 0 x NaN is NaN.
        self._all = self._mapped(shape) if device.type == "cpu" else \
            torch.zeros(shape, dtype=compute_dtype(device), device=device)
        self.layers = self._all.unbind()  #: one a layer

    @property
    def token_bytes(self) -> int:
        """Bytes of the keys and values of one token."""
        return self._all[:, 0, :, :, 0].numel() * self._all.itemsize

    def slot(self, slot: int) -> Tensor:
        """A slot's room: a view, [layers, 2, kv heads, length, head dim]."""
        return self._all[:, slot]

    def release(self) -> None:
        """Release unused memory; call it while no slot is in use."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)

    def move(self, source: int, target: int, length: int) -> None:
        """Copy `length` tokens of a slot into another."""
        self._all[:, target, :, :, :length] = self._all[:, source, :, :, :length]

    def _mapped(self, shape: tuple[int, ...]) -> Tensor:
        dtype = compute_dtype(torch.device("cpu"))
        area = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):  # a huge page for each head of each slot would use most of the memory
            area.madvise(mmap.MADV_NOHUGEPAGE)
        self._map = area
        return torch.frombuffer(area, dtype=dtype).view(shape)


class Forward:
    """The computation for one model, device and maximum context."""

    def __init__(self, config: ModelConfig, rotary: Tensor) -> None:
        """Take the model's sizes and its table of rotary turns."""
        self._config = config
        self._rotary = rotary
        self.device = rotary.device

    def __call__(self, weights: Weights, cache: Cache, tokens: Sequence[int], positions: Sequence[int],
                 pieces: Sequence[Piece]) -> Tensor:
        """Compute one pass and write the keys and values of its rows.

        Args:
            weights: the version.
            cache: of the sequences.
            tokens: the next token of the sequences in slots 0, 1, ...
            positions: their positions.
            pieces: of prompts, in other slots.

        Returns:
            Logits, float32 [rows, vocabulary]: of `tokens` in order, then of the wanted rows of each piece.
        """
        config = self._config
        batch = len(tokens)
        ids, places, wanted = list(tokens), list(positions), list(range(batch))
        for piece in pieces:
            ids += piece.tokens
            places += range(piece.start, piece.start + len(piece.tokens))
            wanted += range(len(ids) - piece.outputs, len(ids))
        at = torch.tensor(places, device=self.device)
        attention = _Attention(config, positions, at[:batch], pieces)
        turn = self._rotary[at].unsqueeze(1)
        x = weights.embedding[torch.tensor(ids, device=self.device)].to(compute_dtype(self.device))
        heads, rotated, eps = config.heads, config.heads + config.kv_heads, config.norm_eps
        for layer, kept in zip(weights.layers, cache.layers, strict=True):
            h = F.rms_norm(x, x.shape[1:], layer.input_norm, eps)
            qkv = layer.qkv(h).unflatten(1, (-1, config.head_dim))
            if layer.q_norm is not None and layer.k_norm is not None:
                qkv[:, :heads] = F.rms_norm(qkv[:, :heads], layer.q_norm.shape, layer.q_norm, eps)
                qkv[:, heads:rotated] = F.rms_norm(qkv[:, heads:rotated], layer.k_norm.shape, layer.k_norm, eps)
            _rotate(qkv[:, :rotated], turn)
            x = x + layer.out(attention(qkv[:, :heads], qkv[:, heads:].unflatten(1, (2, -1)), kept))
            gate, up = layer.gate_up(F.rms_norm(x, x.shape[1:], layer.post_norm, eps)).chunk(2, -1)
            x = x + layer.down(F.silu(gate).mul_(up))
        if len(wanted) < len(ids):
            x = x[torch.tensor(wanted, device=self.device, dtype=torch.long)]
        return weights.head(F.rms_norm(x, x.shape[1:], weights.norm, eps)).float()


def _rotate(heads: Tensor, turn: Tensor) -> None:
    """Rotate pairs of values by the angles of their positions, in place."""
    if heads.dtype == torch.float32:
        torch.view_as_complex(heads.unflatten(-1, (-1, 2))).mul_(turn)
    else:
        heads.copy_(torch.view_as_real(torch.view_as_complex(heads.float().unflatten(-1, (-1, 2))) * turn).flatten(-2))


class _Attention:
    """The attention of one pass; computes once what all layers share."""

    def __init__(self, config: ModelConfig, positions: Sequence[int], at: Tensor, pieces: Sequence[Piece]) -> None:
        self._config = config
        self._pieces = pieces
        self._at = at
        self._lengths = [position + 1 for position in positions]
        self._batch = len(positions)
        self._longest = max(self._lengths, default=0)
        # One call for all sequences reads up to the longest; one call for each costs overhead.
        self._together = self._batch * self._longest <= 1.3 * sum(self._lengths) + 32 * self._batch
        self._mask = None
        if self._together and min(self._lengths, default=0) < self._longest:
            past = torch.arange(self._longest, device=at.device) > at.unsqueeze(1)
            self._mask = torch.zeros(past.shape, dtype=compute_dtype(at.device), device=at.device)
            self._mask = self._mask.masked_fill_(past, float("-inf"))[:, None, None]
        self._rows = torch.arange(self._batch, device=at.device)
        self._causal = [self._future_mask(piece) for piece in pieces]

    def _future_mask(self, piece: Piece) -> Tensor | None:
        if piece.start == 0:
            return None  # plain causal attention, which needs no mask
        count, device = len(piece.tokens), self._at.device
        ends = torch.arange(piece.start, piece.start + count, device=device)
        return torch.arange(piece.start + count, device=device) <= ends.unsqueeze(1)

    def __call__(self, q: Tensor, kv: Tensor, kept: Tensor) -> Tensor:
        """q [rows, heads, d], kv [rows, 2, kv heads, d] -> [rows, heads x d]; writes kv into `kept`."""
        parts = []
        if self._batch:
            parts.append(self._decode(q[:self._batch], kv[:self._batch], kept))
        row = self._batch
        for piece, mask in zip(self._pieces, self._causal, strict=True):
            end = row + len(piece.tokens)
            parts.append(self._prefill(piece, mask, q[row:end], kv[row:end], kept))
            row = end
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode(self, q: Tensor, kv: Tensor, kept: Tensor) -> Tensor:
        kept[self._rows, :, :, self._at] = kv
        # The queries that share a key head are rows of one product.
        grouped = q.unflatten(1, (self._config.kv_heads, -1))
        if self._together:
            keys, values = kept[:self._batch, :, :, :self._longest].unbind(1)
            return F.scaled_dot_product_attention(grouped, keys, values, attn_mask=self._mask).flatten(1)
        return torch.cat([
            F.scaled_dot_product_attention(grouped[i:i + 1], kept[i:i + 1, 0, :, :n], kept[i:i + 1, 1, :, :n])
            for i, n in enumerate(self._lengths)]).flatten(1)

    def _prefill(self, piece: Piece, mask: Tensor | None, q: Tensor, kv: Tensor, kept: Tensor) -> Tensor:
        end = piece.start + len(piece.tokens)
        slot = kept[piece.slot]
        slot[:, :, piece.start:end] = kv.permute(1, 2, 0, 3)
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1).unsqueeze(0), slot[:1, :, :end], slot[1:, :, :end], attn_mask=mask,
            is_causal=mask is None, enable_gqa=True)
        return out[0].transpose(0, 1).flatten(1)
