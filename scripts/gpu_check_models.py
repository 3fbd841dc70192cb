"""The models that gpu_check.py measures: real shapes, random weights, and how much work a step of them is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engine.runner.models.registry import architecture_of
from engine.runner.models.shapes import tensor_shapes

_BYTES = 2  # of a number, as bfloat16

_LLAMA = {"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": 8192, "hidden_act": "silu"}
_DEEPSEEK = {
    **_LLAMA,
    "architectures": ["DeepseekV2ForCausalLM"],
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": False,
    "q_lora_rank": None,
}
SHAPES: dict[str, dict[str, Any]] = {
    "Llama-3-8B": {
        **_LLAMA,
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "Qwen3-8B": {
        **_LLAMA,
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
    },
    "DeepSeek-V2-Lite": {
        **_DEEPSEEK,
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 102400,
    },
    "Tiny-DeepSeek": {
        **_DEEPSEEK,
        "hidden_size": 256,
        "intermediate_size": 512,
        "moe_intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "vocab_size": 2048,
    },
    "Tiny": {
        **_LLAMA,
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 2048,
    },
}


@dataclass
class RandomTensors:
    """Weights of a model's shapes, made where they are asked for."""

    shapes: dict[str, tuple[int, ...]]
    device: torch.device

    @property
    def names(self) -> set[str]:
        return set(self.shapes)

    def load(self, name: str) -> torch.Tensor:
        if "norm" in name:
            return torch.ones(self.shapes[name], dtype=torch.bfloat16, device=self.device)
        return torch.empty(self.shapes[name], dtype=torch.bfloat16, device=self.device).normal_(0, 0.02)

    def stored_blocks(self, name: str) -> None:
        return None


@dataclass
class RandomFiles:
    """A model of one of the shapes, in place of files."""

    config: dict[str, Any]
    device: torch.device
    max_model_len: int = 4096

    def open_tensors(self) -> RandomTensors:
        return RandomTensors(tensor_shapes(architecture_of(self.config).read(self.config)), self.device)


@dataclass(frozen=True)
class Work:
    """What a step must at least do for the model of `config`, beside attention's own products."""

    config: dict[str, Any]

    def bytes_moved(self, batch: int, context: int) -> float:
        """Bytes read by a decode of `batch` sequences: each weight that takes part once, and their KV."""
        config = architecture_of(self.config).read(self.config)
        chosen = 1.0
        if config.experts is not None:
            chosen = 1 - (1 - config.experts.chosen / config.experts.count) ** batch
        sizes = architecture_of(self.config).sizes(self.config, torch.bfloat16)
        return _BYTES * self._weights(chosen, with_head=True) + batch * context * sizes.kv_shape.bytes_a_block(1)

    def operations(self, tokens: int) -> float:
        """Additions and multiplications of a prefill of `tokens`, which needs the head for one of them."""
        experts = architecture_of(self.config).read(self.config).experts
        chosen = 1.0 if experts is None else experts.chosen / experts.count
        return 2 * tokens * self._weights(chosen, with_head=False)

    def _weights(self, chosen: float, *, with_head: bool) -> float:
        """Weights in products, of experts the share `chosen`."""
        total = 0.0
        for name, shape in tensor_shapes(architecture_of(self.config).read(self.config)).items():
            if len(shape) < 2 or name == "model.embed_tokens.weight" or (name == "lm_head.weight" and not with_head):
                continue
            total += shape[0] * shape[1] * (chosen if ".experts." in name else 1.0)
        return total
