"""Which code computes which architecture. A new architecture is one file and one line here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from engine.runner.kv_shape import KVShape
from engine.runner.models.architecture import DecoderArchitecture
from engine.runner.models.decoder_config import Window
from engine.runner.models.deepseek_v2 import DEEPSEEK_V2
from engine.runner.models.deepseek_v3 import DEEPSEEK_V3
from engine.runner.models.llama import LLAMA
from engine.runner.models.mistral import MISTRAL
from engine.runner.models.phi3 import PHI3
from engine.runner.models.qwen2 import QWEN2
from engine.runner.models.qwen3 import QWEN3
from engine.runner.models.qwen3_moe import QWEN3_MOE
from engine.runner.weights.errors import ModelLoadError

if TYPE_CHECKING:
    import torch

    from engine.runner.forward_batch import ForwardBatch
    from engine.runner.kv_cache import KVCache
    from engine.runner.models.experts import Experts


class Model(Protocol):
    """A language model over a paged KV cache."""

    vocab_size: int
    kv_shape: KVShape
    group: int  # query heads that share a KV head
    windows: Sequence[Window]  # those of its layers, each once
    experts: list[Experts]  # its layers of experts, which wait for the device where nobody else computes few rows

    def forward(self, batch: ForwardBatch, cache: KVCache) -> torch.Tensor:
        """Compute the batch's tokens, write their KV to `cache`; float32 logits `[sampling rows, vocab_size]`."""
        ...


ARCHITECTURES: dict[str, DecoderArchitecture] = {
    "DeepseekV2ForCausalLM": DEEPSEEK_V2,
    "DeepseekV3ForCausalLM": DEEPSEEK_V3,
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": MISTRAL,
    "Phi3ForCausalLM": PHI3,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen3ForCausalLM": QWEN3,
    "Qwen3MoeForCausalLM": QWEN3_MOE,
}
"""By the name in `architectures` of config.json; GGUF architectures are mapped to these names first."""


def architecture_of(config: dict[str, Any]) -> DecoderArchitecture:
    """The architecture for `config`; raises `ModelLoadError` listing what is supported."""
    names = config.get("architectures") or []
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    named, known = ", ".join(names) or "of this model", ", ".join(sorted(ARCHITECTURES))
    raise ModelLoadError(f"the architecture {named} is not supported; supported: {known}")
