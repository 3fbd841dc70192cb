"""Small models with random weights, saved by transformers as a Hugging Face directory, and the same as GGUF."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

BASE: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
KINDS: dict[str, tuple[type, type]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "phi3": (Phi3Config, Phi3ForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
    "deepseek_v2": (DeepseekV2Config, DeepseekV2ForCausalLM),
    "deepseek_v3": (DeepseekV3Config, DeepseekV3ForCausalLM),
}
GGUF_ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "deepseek_v2": gguf.MODEL_ARCH.DEEPSEEK2,
    "deepseek_v3": gguf.MODEL_ARCH.DEEPSEEK2,
}
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def make_reference(seed: int = 0, kind: str = "llama", **changes: Any) -> PreTrainedModel:
    """A float32 model of transformers; weights large enough that a wrong one shows."""
    torch.manual_seed(seed)
    config, model_class = KINDS[kind]
    model = model_class(config(**{**BASE, **changes})).eval()
    with torch.no_grad():
        corrections = ((name, buffer) for name, buffer in model.named_buffers() if "correction" in name)
        for name, weight in [*model.named_parameters(), *corrections]:
            if "norm" in name:
                weight.copy_(1 + 0.2 * torch.randn_like(weight))
            else:
                weight.copy_(torch.randn_like(weight) * (0.3 if weight.dim() == 1 else 2.0 / weight.shape[-1] ** 0.5))
    return model


def save_directory(model: PreTrainedModel, folder: Path, **save: Any) -> Path:
    """What `--model` is given: config, weights, tokenizer with template."""
    model.save_pretrained(folder, **save)
    tokens, merges = vocabulary(model.config.vocab_size)
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": SPECIALS[1], "eos_token": {"content": SPECIALS[2]}, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def vocabulary(size: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Special tokens, then letters, then merges of two letters, `size` tokens in all."""
    letters = [chr(code) for code in range(33, 127)]
    pairs = [(a, b) for a in "etaoinshr" for b in "etaoinshr"]
    merges = pairs[: size - len(SPECIALS) - len(letters)]
    return SPECIALS + letters + [a + b for a, b in merges], merges


def save_gguf(
    model: PreTrainedModel, path: Path, storage: str = "F32", *, split_latent: bool = True, **metadata: Any
) -> Path:
    """The model as converters write it, matrices stored as `storage`; Q and K rows of a Llama interleaved.

    `split_latent` as newer converters do it: keys and values of compressed attention apart, keys turned.
    """
    config = model.config
    architecture = GGUF_ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    _add_sizes(writer, config)
    if hasattr(config, "moe_intermediate_size"):
        _add_expert_sizes(writer, config)
    if hasattr(config, "kv_lora_rank"):
        _add_latent_sizes(writer, config, split_latent)
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    _add_vocabulary(writer, config.vocab_size, metadata)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, array in _gguf_arrays(model, split_latent):
        kind = gguf.GGMLQuantizationType[storage if array.ndim >= 2 else "F32"]
        stored = names.get_name(name, (".weight", ".bias"))
        assert stored is not None, name
        writer.add_tensor(stored, gguf.quants.quantize(np.ascontiguousarray(array), kind), raw_dtype=kind)
    if config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _rope_factors(model))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_sizes(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "mscale_all_dim" in rope:
            writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def _add_expert_sizes(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_expert_count(config.num_local_experts if config.model_type == "qwen3_moe" else config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if config.model_type != "qwen3_moe":
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        sigmoid = config.model_type == "deepseek_v3"
        functions = gguf.ExpertGatingFuncType
        writer.add_expert_gating_func(functions.SIGMOID if sigmoid else functions.SOFTMAX)
        if (config.n_group or 1) > 1:
            writer.add_expert_group_count(config.n_group)
            writer.add_expert_group_used_count(config.topk_group)


def _add_latent_sizes(writer: gguf.GGUFWriter, config: Any, split: bool) -> None:
    key = config.qk_nope_head_dim + config.qk_rope_head_dim
    writer.add_kv_lora_rank(config.kv_lora_rank)
    if config.q_lora_rank is not None:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    writer.add_head_count_kv(1 if split else config.num_key_value_heads)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim if split else key)
    writer.add_value_length(config.kv_lora_rank if split else config.v_head_dim)
    if split:
        writer.add_key_length_mla(key)
        writer.add_value_length_mla(config.v_head_dim)


def _gguf_arrays(model: PreTrainedModel, split_latent: bool) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Tensors by the names that converters look up, as GGUF holds them."""
    config = model.config
    permuted = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if name.endswith("experts.gate_up_proj"):
            for part, half in zip(("gate", "up"), weight.chunk(2, dim=1), strict=True):
                yield name.replace("gate_up", part) + ".weight", half.numpy()
        elif name.endswith("experts.down_proj"):
            yield f"{name}.weight", weight.numpy()
        elif name.endswith("e_score_correction_bias"):
            yield name.replace("_bias", ".bias"), weight.numpy()
        elif name.endswith("kv_b_proj.weight") and split_latent:
            by_head = weight.view(config.num_attention_heads, -1, config.kv_lora_rank).numpy()
            yield name.replace("kv_b", "k_b"), by_head[:, : config.qk_nope_head_dim].swapaxes(1, 2)
            yield name.replace("kv_b", "v_b"), by_head[:, config.qk_nope_head_dim :]
        else:
            heads = next((permuted[key] for key in permuted if key in name), 0) if config.model_type == "llama" else 0
            yield name, _interleaved(weight.numpy(), heads)


def _add_vocabulary(writer: gguf.GGUFWriter, size: int, metadata: dict[str, Any]) -> None:
    tokens, merges = vocabulary(size)
    writer.add_tokenizer_model(metadata.get("tokenizer_model", "gpt2"))
    writer.add_tokenizer_pre(metadata.get("pre", "gpt-2"))
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * len(SPECIALS) + [gguf.TokenType.NORMAL] * (size - len(SPECIALS)))
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)


def _interleaved(array: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Row 2i of a head is row i, row 2i + 1 is row i + head_dim / 2."""
    if not heads:
        return array
    out, dim = np.empty_like(array), array.shape[0] // heads
    for head in range(heads):
        for i in range(dim // 2):
            out[head * dim + 2 * i] = array[head * dim + i]
            out[head * dim + 2 * i + 1] = array[head * dim + i + dim // 2]
    return out


def _rope_factors(model: PreTrainedModel) -> np.ndarray[Any, Any]:
    """By how much scaling slows each frequency: how GGUF files hold it."""
    config = model.config
    pairs = np.arange(0, config.head_dim, 2, dtype=np.float32) / config.head_dim
    return (config.rope_parameters["rope_theta"] ** -pairs / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
