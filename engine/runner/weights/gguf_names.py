"""The names of tensors in GGUF files, and what they are called in a Hugging Face checkpoint.

One table serves every architecture: the names are the same in all of them. Three kinds are more than a renaming:
experts, which GGUF stacks; keys and values of compressed attention, which newer files split; and the rows of Q and K
of a Llama, which GGUF stores for a rope of neighbouring pairs.
"""

from __future__ import annotations

import re

_MODEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "rope_freqs.weight": "model.rope_factors",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
_UNSUFFIXED = {("exp_probs_b", "bias"): "mlp.gate.e_score_correction_bias"}
_STACKED = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_PERMUTED = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}
_PERMUTED_ARCHITECTURES = frozenset({"llama"})


def checkpoint_name(stored: str) -> str:
    """A name that is not in the tables stays as it is, and will be reported as left over."""
    match = _LAYER.fullmatch(stored)
    if match is None:
        return _MODEL_NAMES.get(stored, stored)
    layer, name, suffix = match.groups()
    if (name, suffix) in _UNSUFFIXED:
        return f"model.layers.{layer}.{_UNSUFFIXED[name, suffix]}"
    return f"model.layers.{layer}.{_LAYER_NAMES[name]}.{suffix}" if name in _LAYER_NAMES else stored


def expert_names(stored: str, count: int) -> list[str] | None:
    """The names of the `count` experts in a stacked tensor; None for a tensor that is none."""
    match = _LAYER.fullmatch(stored)
    if match is None or match[2] not in _STACKED or match[3] != "weight":
        return None
    return [f"model.layers.{match[1]}.mlp.experts.{index}.{_STACKED[match[2]]}.weight" for index in range(count)]


def split_latent(stored: str) -> tuple[str, str] | None:
    """Of the key part of a split `kv_b_proj`: the name of the value part, and of the whole in a checkpoint."""
    match = _LAYER.fullmatch(stored)
    if match is None or (match[2], match[3]) != ("attn_k_b", "weight"):
        return None
    return f"blk.{match[1]}.attn_v_b.weight", f"model.layers.{match[1]}.self_attn.kv_b_proj.weight"


def interleaved_heads_key(stored: str, architecture: str) -> str | None:
    """The metadata key, without the architecture, of the number of heads whose rows lie in pairs; None if in order."""
    match = _LAYER.fullmatch(stored)
    return _PERMUTED.get(match[2]) if match and architecture in _PERMUTED_ARCHITECTURES else None
