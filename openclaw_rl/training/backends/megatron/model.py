"""megatron-core's GPTModel of a model folder's config.json: its own layers, cut among ranks, on plain PyTorch.

The families are those of models/config.py. Attention is PyTorch's, which never makes the matrix of all scores and
knows grouped queries; it can keep keys and values, so that answers decode token by token.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from openclaw_rl.models.config import ModelConfig
from openclaw_rl.models.llama import rotary_frequencies
from openclaw_rl.training.backends.megatron.layout import Layout


class Attention(MegatronModule):  # type: ignore[misc]
    """Causal attention of the heads that a rank has; a `core_attention` of megatron-core's layers.

    Attributes:
        keeps: keys and values are kept, and those of later calls follow them.
        kept: keys and values, (b, groups, tokens, head_dim) each; None before the first.
    """

    def __init__(self, config: TransformerConfig, **_: Any) -> None:
        super().__init__(config=config)
        self.keeps = False
        self.kept: tuple[Tensor, Tensor] | None = None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **_: Any) -> Tensor:
        """(tokens, b, heads * head_dim) from (tokens, b, heads or groups, head_dim).

        Args:
            attention_mask: bool (b, 1, tokens, kept and new tokens), true where attention goes; None: causal.
        """
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        if self.keeps:
            if self.kept is not None:
                k, v = (torch.cat([old, new], 2) for old, new in zip(self.kept, (k, v), strict=True))
            self.kept = k, v
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask, is_causal=attention_mask is None,
                                             enable_gqa=q.shape[1] != k.shape[1])
        return out.permute(2, 0, 1, 3).reshape(*query.shape[:2], -1)


class Model(GPTModel):  # type: ignore[misc]
    """A pipeline stage of the model. Its output are hidden states, not logits."""

    def __init__(self, model: ModelConfig, config: TransformerConfig, first: bool, last: bool) -> None:
        spec = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=model.qk_norm)
        spec.submodules.self_attention.submodules.core_attention = Attention
        ranks = config.tensor_model_parallel_size
        super().__init__(
            config, spec, vocab_size=-(-model.vocab_size // ranks) * ranks, max_sequence_length=model.context_length,
            pre_process=first, post_process=last, parallel_output=False, position_embedding_type="rope",
            share_embeddings_and_output_weights=model.tied)
        self._vocab_size = model.vocab_size
        # megatron-core's own know neither a fractional base nor all of the scalings.
        self._frequencies = rotary_frequencies(model)

    def forward(self, ids: Tensor, places: Tensor, mask: Tensor | None = None) -> Tensor:
        """(tokens, b, width): hidden states; on the last stage after the final norm.

        Args:
            ids: (b, tokens); all but the first stage take what was given to `set_input_tensor`.
            places: (b, tokens), positions.
            mask: see Attention.
        """
        inner = self.embedding(ids, places) if self.pre_process else None
        self._frequencies = self._frequencies.to(places.device)
        turns = places.T.float().unsqueeze(-1) * self._frequencies
        turns = torch.cat([turns, turns], -1).unsqueeze(2)  # (tokens, b, 1, head_dim)
        hidden: Tensor = self.decoder(hidden_states=inner, attention_mask=mask, rotary_pos_emb=turns)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (rows, V), whole on each rank, of hidden states (rows, width). The last stage's."""
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        logits, _ = self.output_layer(hidden.unsqueeze(1), weight=weight)
        whole: Tensor = logits.squeeze(1)[:, :self._vocab_size]
        return whole

    def keep(self, keeps: bool) -> None:
        """Switch the cache of keys and values on or off, and empty it."""
        for attention in self.attentions():
            attention.keeps, attention.kept = keeps, None

    def attentions(self) -> list[Attention]:
        """Return the attention of each of the stage's layers."""
        return [module for module in self.modules() if isinstance(module, Attention)]


def transformer_config(model: ModelConfig, layout: Layout, dtype: torch.dtype,
                       device: torch.device) -> TransformerConfig:
    """Return megatron-core's description of the model and of how it is computed.

    Args:
        dtype: of the parameters and of what the stages send one another.
    """
    def as_it_is(tensor: Tensor) -> None:
        """Every parameter is read from a file; initializing marks those that are cut, so it can't be left out."""

    return TransformerConfig(
        num_layers=model.layers, hidden_size=model.hidden_size, num_attention_heads=model.heads,
        num_query_groups=model.kv_heads, kv_channels=model.head_dim, ffn_hidden_size=model.intermediate_size,
        layernorm_epsilon=model.norm_eps, normalization="RMSNorm", qk_layernorm=model.qk_norm,
        gated_linear_unit=True, activation_func=F.silu, add_bias_linear=False, add_qkv_bias=model.qkv_bias,
        hidden_dropout=0.0, attention_dropout=0.0, init_method=as_it_is, output_layer_init_method=as_it_is,
        embedding_init_method=as_it_is, use_cpu_initialization=device.type == "cpu",
        # The fused kernels are Transformer Engine's and Apex's.
        bias_activation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False, apply_rope_fusion=False,
        gradient_accumulation_fusion=False, persist_layer_norm=False, params_dtype=dtype, pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16, tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline, variable_seq_lengths=layout.pipeline > 1,
        moe_token_dispatcher_type="alltoall",  # the only one that goes with it, experts or not
        calculate_per_token_loss=True,  # the losses' divisors are in them: gradients add up
        recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)  # in training mode only


def build(model: ModelConfig, layout: Layout, dtype: torch.dtype, device: torch.device) -> Model:
    """Make this rank's stage, with uninitialized values.

    Args:
        layout: that parallel_state was initialized with.
    """
    config = transformer_config(model, layout, dtype, device)
    stage: Model = Model(model, config, parallel_state.is_pipeline_first_stage(),
                         parallel_state.is_pipeline_last_stage()).to(device, dtype)
    return stage
