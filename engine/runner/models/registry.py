"""Which class computes which architecture. A new architecture is one file and one line here."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from engine.runner.forward_batch import ForwardBatch
from engine.runner.kv_cache import KVCache, KVShape
from engine.runner.models.llama import Llama
from engine.runner.models.sizes import ModelSizes
from engine.runner.weights.errors import ModelLoadError
from engine.runner.weights.tensors import Tensors


class Model(Protocol):
    """A language model over a paged KV cache."""

    vocab_size: int
    kv_shape: KVShape
    group: int  # query heads that share a KV head

    def forward(self, batch: ForwardBatch, cache: KVCache) -> torch.Tensor:
        """Compute the batch's tokens, write their KV to `cache`; float32 logits `[sampling rows, vocab_size]`."""
        ...


class ModelClass(Protocol):
    """What the registry holds: a class that can be loaded."""

    def load(
        self, config: dict[str, Any], tensors: Tensors, *, device: torch.device, dtype: torch.dtype, max_positions: int
    ) -> Model:
        """The model with its weights; raises `ModelLoadError`."""
        ...

    def sizes(self, config: dict[str, Any], dtype: torch.dtype) -> ModelSizes:
        """The model's sizes, without reading its weights."""
        ...


MODELS: dict[str, ModelClass] = {"LlamaForCausalLM": Llama}
"""By the name in `architectures` of config.json; GGUF architectures are mapped to these names first."""


def model_class(config: dict[str, Any]) -> ModelClass:
    """The class for `config`; raises `ModelLoadError` listing what is supported."""
    names = config.get("architectures") or []
    for name in names:
        if name in MODELS:
            return MODELS[name]
    named, known = ", ".join(names) or "of this model", ", ".join(sorted(MODELS))
    raise ModelLoadError(f"the architecture {named} is not supported; supported: {known}")
