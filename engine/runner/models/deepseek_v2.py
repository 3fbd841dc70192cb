"""DeepSeek V2, V2.5 and V2-Lite: compressed attention, and experts chosen by softmax within the best groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.runner.models.architecture import DecoderArchitecture
from engine.runner.models.decoder_config import DecoderConfig, ExpertsConfig, LatentConfig, positive
from engine.runner.rope_frequencies import yarn_magnitude
from engine.runner.weights.errors import ModelLoadError
from engine.runner.weights.hf_directory import rope_scaling

_GROUPED = {"greedy": False, "group_limited_greedy": True}


def read(config: Mapping[str, Any]) -> DecoderConfig:
    """The numbers of a DeepSeek V2; raises `ModelLoadError`."""
    method = config.get("topk_method", "greedy")
    if method not in _GROUPED:
        raise ModelLoadError(f"config: topk_method {method!r} is not supported, only {', '.join(_GROUPED)}")
    groups = group_numbers(config) if _GROUPED[method] else {}
    return read_deepseek(config, paired=True, scoring="softmax", **groups)


def group_numbers(config: Mapping[str, Any]) -> dict[str, int]:
    """Into how many groups the experts fall, and how many of them a token's experts come from."""
    return {"groups": config.get("n_group") or 1, "chosen_groups": config.get("topk_group") or 1}


def read_deepseek(config: Mapping[str, Any], *, paired: bool, **routing: Any) -> DecoderConfig:
    """The numbers that V2 and V3 call by the same names; raises `ModelLoadError`."""
    if config.get("attention_bias") or config.get("mlp_bias"):
        raise ModelLoadError("config: attention_bias and mlp_bias are not supported for DeepSeek models")
    num_layers, dense = positive(config, "num_hidden_layers"), config.get("first_k_dense_replace", 0)
    step = config.get("moe_layer_freq", 1)
    sparse = range(dense, num_layers) if config.get("n_routed_experts") else ()
    return DecoderConfig.from_dict(
        config,
        latent=_latent_config(config, paired),
        experts=_experts_config(config, routing) if sparse else None,
        sparse_layers=frozenset(layer for layer in sparse if layer % step == 0),
        unused_layers=config.get("num_nextn_predict_layers") or 0,
    )


def _latent_config(config: Mapping[str, Any], paired: bool) -> LatentConfig:
    plain_dim, rope_dim = positive(config, "qk_nope_head_dim"), positive(config, "qk_rope_head_dim")
    scaling = rope_scaling(dict(config)) or {}
    sharper = yarn_magnitude(scaling.get("factor", 1.0), scaling.get("mscale_all_dim") or 0.0)
    return LatentConfig(
        rank=positive(config, "kv_lora_rank"),
        query_rank=config.get("q_lora_rank"),
        plain_dim=plain_dim,
        rope_dim=rope_dim,
        value_dim=positive(config, "v_head_dim"),
        paired=paired,
        scale=(plain_dim + rope_dim) ** -0.5 * sharper**2,
    )


def _experts_config(config: Mapping[str, Any], routing: Mapping[str, Any]) -> ExpertsConfig:
    width = positive(config, "moe_intermediate_size")
    experts = ExpertsConfig(
        count=positive(config, "n_routed_experts"),
        chosen=positive(config, "num_experts_per_tok"),
        intermediate_size=width,
        shared_size=width * (config.get("n_shared_experts") or 0),
        normalised=bool(config.get("norm_topk_prob", False)),
        scale=float(config.get("routed_scaling_factor", 1.0)),
        **routing,
    )
    a_group = experts.count // experts.groups
    if (
        experts.count % experts.groups
        or experts.chosen > a_group * experts.chosen_groups
        or a_group < experts.group_best
    ):
        raise ModelLoadError(
            f"config: {experts.chosen} of {experts.count} experts cannot be chosen from {experts.chosen_groups} of "
            f"{experts.groups} groups"
        )
    return experts


DEEPSEEK_V2 = DecoderArchitecture(read)
