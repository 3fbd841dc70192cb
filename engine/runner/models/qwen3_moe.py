"""Qwen3-MoE: Qwen3 with experts in place of the MLP, in all layers or in every n-th."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.runner.models.architecture import DecoderArchitecture
from engine.runner.models.decoder_config import DecoderConfig, ExpertsConfig, positive
from engine.runner.weights.errors import ModelLoadError


def read(config: Mapping[str, Any]) -> DecoderConfig:
    """The numbers of a Qwen3-MoE; raises `ModelLoadError`."""
    num_layers, bias = positive(config, "num_hidden_layers"), bool(config.get("attention_bias", False))
    limited = bool(config.get("use_sliding_window", False)) and config.get("sliding_window") is not None
    experts = ExpertsConfig(
        count=positive(config, "num_local_experts" if "num_local_experts" in config else "num_experts"),
        chosen=positive(config, "num_experts_per_tok"),
        intermediate_size=positive(config, "moe_intermediate_size"),
        normalised=bool(config.get("norm_topk_prob", False)),
    )
    if experts.chosen > experts.count:
        raise ModelLoadError(f"config: {experts.chosen} experts cannot be chosen from {experts.count}")
    return DecoderConfig.from_dict(
        config,
        [positive(config, "sliding_window") if limited else None] * num_layers,
        head_norms=True,
        qkv_bias=bias,
        output_bias=bias,
        experts=experts,
        sparse_layers=_sparse_layers(config, num_layers),
    )


def _sparse_layers(config: Mapping[str, Any], num_layers: int) -> frozenset[int]:
    step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or []
    return frozenset(layer for layer in range(num_layers) if layer not in dense and (layer + 1) % step == 0)


QWEN3_MOE = DecoderArchitecture(read)
