"""Every tensor of a decoder's checkpoint, by name, with its shape: follows from the configuration alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from engine.runner.models.decoder_config import DecoderConfig, ExpertsConfig, LatentConfig

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]

EMBEDDING, HEAD, ROPE_FACTORS = "model.embed_tokens.weight", "lm_head.weight", "model.rope_factors"
ROUTER, CORRECTION = "gate.weight", "gate.e_score_correction_bias"


def tensor_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint, by name."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tied:
        shapes[HEAD] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}{norm}.weight"] = (hidden,)
        shapes |= _attention_shapes(f"{prefix}self_attn.", config)
        if config.experts is not None and layer in config.sparse_layers:
            shapes |= _experts_shapes(f"{prefix}mlp.", config.experts, hidden)
        else:
            shapes |= _mlp_shapes(f"{prefix}mlp.", hidden, config.intermediate_size, config.mlp_bias)
    return shapes


def _attention_shapes(prefix: str, config: DecoderConfig) -> Shapes:
    if config.latent is not None:
        return _latent_shapes(prefix, config, config.latent)
    return _grouped_shapes(prefix, config)


def _grouped_shapes(prefix: str, config: DecoderConfig) -> Shapes:
    """The tensors of the attention of one layer, by name."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linears = {
        "q_proj": (queries, config.hidden_size, config.qkv_bias),
        "k_proj": (keys, config.hidden_size, config.qkv_bias),
        "v_proj": (keys, config.hidden_size, config.qkv_bias),
        "o_proj": (config.hidden_size, queries, config.output_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (rows, columns, has_bias) in linears.items():
        shapes[f"{prefix}{name}.weight"] = (rows, columns)
        if has_bias:
            shapes[f"{prefix}{name}.bias"] = (rows,)
    if config.head_norms:
        shapes |= {f"{prefix}{name}.weight": (config.head_dim,) for name in ("q_norm", "k_norm")}
    return shapes


def _latent_shapes(prefix: str, config: DecoderConfig, latent: LatentConfig) -> Shapes:
    """The tensors of the attention of one layer, by name."""
    hidden, heads = config.hidden_size, config.num_heads
    queries = heads * (latent.plain_dim + latent.rope_dim)
    shapes: dict[str, tuple[int, ...]] = {
        "kv_a_proj_with_mqa": (latent.rank + latent.rope_dim, hidden),
        "kv_a_layernorm": (latent.rank,),
        "kv_b_proj": (heads * (latent.plain_dim + latent.value_dim), latent.rank),
        "o_proj": (hidden, heads * latent.value_dim),
    }
    if latent.query_rank is None:
        shapes["q_proj"] = (queries, hidden)
    else:
        shapes["q_a_proj"] = (latent.query_rank, hidden)
        shapes["q_a_layernorm"] = (latent.query_rank,)
        shapes["q_b_proj"] = (queries, latent.query_rank)
    return {f"{prefix}{name}.weight": shape for name, shape in shapes.items()}


def _experts_shapes(prefix: str, config: ExpertsConfig, hidden_size: int) -> Shapes:
    """The tensors of a layer of experts, by name."""
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}{ROUTER}": (config.count, hidden_size)}
    if config.corrected:
        shapes[f"{prefix}{CORRECTION}"] = (config.count,)
    for index in range(config.count):
        shapes |= _mlp_shapes(f"{prefix}experts.{index}.", hidden_size, config.intermediate_size, bias=False)
    if config.shared_size:
        shapes |= _mlp_shapes(f"{prefix}shared_experts.", hidden_size, config.shared_size, bias=False)
    return shapes


def _mlp_shapes(prefix: str, hidden_size: int, intermediate_size: int, bias: bool) -> Shapes:
    """The tensors of an MLP, by name."""
    sizes = {
        "gate_proj": (intermediate_size, hidden_size),
        "up_proj": (intermediate_size, hidden_size),
        "down_proj": (hidden_size, intermediate_size),
    }
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}{name}.weight": size for name, size in sizes.items()}
    if bias:
        shapes |= {f"{prefix}{name}.bias": size[:1] for name, size in sizes.items()}
    return shapes
