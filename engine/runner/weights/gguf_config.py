"""GGUF metadata in the vocabulary of a Hugging Face config.json.

One table of keys serves every architecture; what a file leaves out takes the default that GGUF documents.
"""

from __future__ import annotations

from math import log
from typing import Any

from engine.runner.weights.errors import ModelLoadError
from engine.runner.weights.gguf_file import GgufFile

ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "qwen3moe": ("Qwen3MoeForCausalLM", "qwen3_moe"),
    "deepseek2": ("DeepseekV2ForCausalLM", "deepseek_v2"),
}
"""`general.architecture` -> (name in `architectures`, `model_type`)."""

_REQUIRED = {
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
_OPTIONAL = {
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "norm_topk_prob": "expert_weights_norm",
    "sliding_window": "attention.sliding_window",
}
_DEEPSEEK = {
    "kv_lora_rank": "attention.kv_lora_rank",
    "q_lora_rank": "attention.q_lora_rank",
    "n_routed_experts": "expert_count",
    "n_shared_experts": "expert_shared_count",
    "routed_scaling_factor": "expert_weights_scale",
    "first_k_dense_replace": "leading_dense_block_count",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
}
_SIGMOID = 2  # in `expert_gating_func`
_SCALING = {
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
}


def config_from_gguf(file: GgufFile) -> dict[str, Any]:
    """The model's configuration; raises `ModelLoadError` for an unknown architecture or a missing value."""
    name = file.metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        raise ModelLoadError(
            f"{file.path} holds a model of architecture {name!r}; supported in GGUF: {', '.join(sorted(ARCHITECTURES))}"
        )
    if file.metadata.get("split.count", 1) > 1:
        raise ModelLoadError(f"{file.path} is one part of a split model; merge the parts into one GGUF file first")
    architecture, model_type = ARCHITECTURES[name]
    fields = {key.removeprefix(f"{name}."): value for key, value in file.metadata.items()}
    config = {ours: _required(fields, theirs, file) for ours, theirs in _REQUIRED.items()}
    config |= _named(fields, _OPTIONAL)
    heads = config["num_attention_heads"]
    head_dim = fields.get("attention.key_length", config["hidden_size"] // heads)
    config |= {
        "architectures": [architecture],
        "model_type": model_type,
        "num_key_value_heads": fields.get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "partial_rotary_factor": fields.get("rope.dimension_count", head_dim) / head_dim,
        "vocab_size": len(_required(fields, "tokenizer.ggml.tokens", file)),
        "rope_theta": fields.get("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(fields),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_output.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
    }
    return config | _SPECIFIC.get(name, _nothing)(fields, file)


def _nothing(fields: dict[str, Any], file: GgufFile) -> dict[str, Any]:
    return {}


def _qwen3moe(fields: dict[str, Any], file: GgufFile) -> dict[str, Any]:
    """Files do not say that weights are normalised: this architecture's always are."""
    return {"norm_topk_prob": fields.get("expert_weights_norm", True)}


def _deepseek2(fields: dict[str, Any], file: GgufFile) -> dict[str, Any]:
    """V2 and V3 share a name and differ in how experts are scored. Newer files describe heads in keys of their own."""
    rope_dim = _required(fields, "rope.dimension_count", file)
    key_dim = fields.get("attention.key_length_mla") or _required(fields, "attention.key_length", file)
    found = _named(fields, _DEEPSEEK) | {
        "head_dim": rope_dim,
        "partial_rotary_factor": 1.0,
        "qk_rope_head_dim": rope_dim,
        "qk_nope_head_dim": key_dim - rope_dim,
        "v_head_dim": fields.get("attention.value_length_mla") or _required(fields, "attention.value_length", file),
    }
    if fields.get("expert_gating_func") == _SIGMOID:
        return found | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
    return found | {"topk_method": "group_limited_greedy" if found.get("n_group", 1) > 1 else "greedy"}


_SPECIFIC = {"qwen3moe": _qwen3moe, "deepseek2": _deepseek2}


def _named(fields: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {ours: fields[theirs] for ours, theirs in names.items() if theirs in fields}


def _rope_scaling(fields: dict[str, Any]) -> dict[str, Any] | None:
    """Llama 3 scaling is no metadata: such files store the factors of the frequencies as a tensor."""
    kind = fields.get("rope.scaling.type", "none")
    if kind == "none":
        factor = fields.get("rope.scale_linear")
        return None if factor is None else {"rope_type": "linear", "factor": factor}
    scaling = {"rope_type": kind, "factor": fields.get("rope.scaling.factor", 1.0)}
    scaling |= _named(fields, _SCALING)
    if "rope.scaling.yarn_log_multiplier" in fields:  # the published rule's 0.1 is in it
        scaling["mscale"] = scaling["mscale_all_dim"] = fields["rope.scaling.yarn_log_multiplier"] * 10
    if "rope.scaling.attn_factor" in fields:  # comes on top of the published rule
        scaling["attention_factor"] = fields["rope.scaling.attn_factor"] * (1 + 0.1 * log(scaling["factor"]))
    return scaling


def _required(fields: dict[str, Any], key: str, file: GgufFile) -> Any:
    value = fields.get(key)
    if value is None:
        raise ModelLoadError(f"{file.path} lacks the metadata value {key}; convert the model again")
    if isinstance(value, list) and key != "tokenizer.ggml.tokens":
        raise ModelLoadError(f"{file.path}: {key} differs between layers, which is not supported")
    return value
