"""Llama: RMS norms, grouped-query attention with rotary positions, a gated MLP.

The model is plain objects that hold tensors; a step is one Python call a layer, with Q, K and V as one product and the
residuals added in the tail of another. Biases exist where the configuration says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.nn.functional import rms_norm

from engine.runner.forward_batch import ForwardBatch
from engine.runner.kv_cache import KVCache, KVShape, LayerCache
from engine.runner.linear import make_gate_up, make_linear
from engine.runner.models.sizes import ModelSizes
from engine.runner.rope import Rope, rope_frequencies
from engine.runner.weights.checkpoint import Checkpoint
from engine.runner.weights.errors import ModelLoadError
from engine.runner.weights.tensors import Tensors

_EMBEDDING, _HEAD, _ROPE_FACTORS = "model.embed_tokens.weight", "lm_head.weight", "model.rope_factors"
RopeTables = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The numbers of a Llama, from the vocabulary of config.json."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """Raises `ModelLoadError` for a missing value, or for one that this model does not compute."""
        activation = config.get("hidden_act", "silu")
        if activation != "silu":
            raise ModelLoadError(f"config: hidden_act {activation!r} is not supported, only 'silu'")
        if config.get("partial_rotary_factor", 1.0) != 1.0:
            raise ModelLoadError("config: a partial_rotary_factor other than 1 is not supported")
        heads, hidden = _positive(config, "num_attention_heads"), _positive(config, "hidden_size")
        kv_heads = config.get("num_key_value_heads") or heads
        if heads % kv_heads:
            raise ModelLoadError(f"config: {heads} attention heads cannot share {kv_heads} key-value heads evenly")
        bias = bool(config.get("attention_bias", False))
        return cls(
            num_layers=_positive(config, "num_hidden_layers"),
            hidden_size=hidden,
            intermediate_size=_positive(config, "intermediate_size"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=config.get("head_dim") or hidden // heads,
            vocab_size=_positive(config, "vocab_size"),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            tied=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=bool(config.get("mlp_bias", False)),
        )

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.num_heads // self.num_kv_heads

    def kv_shape(self, dtype: torch.dtype) -> KVShape:
        """What the KV cache holds of a token."""
        return KVShape(self.num_layers, self.num_kv_heads, self.head_dim, dtype)


def tensor_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint, by name."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linears = {
        "self_attn.q_proj": (queries, hidden, config.qkv_bias),
        "self_attn.k_proj": (keys, hidden, config.qkv_bias),
        "self_attn.v_proj": (keys, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, queries, config.output_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {
        _EMBEDDING: (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tied:
        shapes[_HEAD] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}{norm}.weight"] = (hidden,)
        for name, (rows, columns, has_bias) in linears.items():
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if has_bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
    return shapes


def open_checkpoint(
    numbers: LlamaConfig, tensors: Tensors, *, device: torch.device | str, dtype: torch.dtype
) -> Checkpoint:
    """The model's tensors, all there and none too many; raises `ModelLoadError`."""
    shapes = tensor_shapes(numbers)
    if _ROPE_FACTORS in tensors.names:
        shapes[_ROPE_FACTORS] = (numbers.head_dim // 2,)
    ignored = frozenset({_HEAD}) if numbers.tied else frozenset()
    return Checkpoint(tensors, shapes, ignored=ignored, device=device, dtype=dtype)


def model_frequencies(config: dict[str, Any], numbers: LlamaConfig, checkpoint: Checkpoint) -> torch.Tensor:
    """Radians a position, float32 `[head_dim / 2]`, by the configuration and the factors a GGUF file may store."""
    frequencies = rope_frequencies(config, numbers.head_dim)
    return frequencies / checkpoint.take_float(_ROPE_FACTORS) if _ROPE_FACTORS in checkpoint else frequencies


class Llama:
    """A Llama with its weights; see `Model` in the registry for the interface."""

    def __init__(self, config: LlamaConfig, checkpoint: Checkpoint, rope: Rope) -> None:
        self.config = config
        self.vocab_size = config.vocab_size
        self.kv_shape = config.kv_shape(checkpoint.dtype)
        self.group = config.group
        self._rope = rope
        self._embedding = checkpoint.take(_EMBEDDING)  # [V, H]
        self._layers = [
            LlamaLayer(config, checkpoint, f"model.layers.{layer}.", rope) for layer in range(config.num_layers)
        ]
        self._norm = checkpoint.take("model.norm.weight")
        self._head = make_linear(self._embedding if config.tied else checkpoint.take(_HEAD))

    @classmethod
    def load(
        cls, config: dict[str, Any], tensors: Tensors, *, device: torch.device, dtype: torch.dtype, max_positions: int
    ) -> Llama:
        """The model with its weights; raises `ModelLoadError`."""
        numbers = LlamaConfig.from_dict(config)
        checkpoint = open_checkpoint(numbers, tensors, device=device, dtype=dtype)
        frequencies = model_frequencies(config, numbers, checkpoint)
        return cls(numbers, checkpoint, Rope(frequencies, max_positions, dtype, device))

    @staticmethod
    def sizes(config: dict[str, Any], dtype: torch.dtype) -> ModelSizes:
        """The model's sizes, without reading its weights."""
        numbers = LlamaConfig.from_dict(config)
        return ModelSizes(
            num_parameters=sum(prod(shape) for shape in tensor_shapes(numbers).values()),
            tied_parameters=numbers.vocab_size * numbers.hidden_size if numbers.tied else 0,
            hidden_size=numbers.hidden_size,
            intermediate_size=numbers.intermediate_size,
            vocab_size=numbers.vocab_size,
            kv_shape=numbers.kv_shape(dtype),
        )

    def forward(self, batch: ForwardBatch, cache: KVCache) -> torch.Tensor:
        """Compute the batch's tokens, write their KV to `cache`; float32 logits `[sampling rows, V]`."""
        x = self._embedding.index_select(0, batch.token_ids)  # [T, H]
        tables = self._rope.tables(batch.positions)
        for layer, layer_cache in zip(self._layers, cache.layers, strict=True):
            x = layer.forward(x, tables, batch, layer_cache)
        if batch.sampling_rows is not None:
            x = x.index_select(0, batch.sampling_rows)
        if not x.shape[0]:
            return x.new_empty((0, self.vocab_size), dtype=torch.float32)
        x = rms_norm(x, self._norm.shape, self._norm, self.config.rms_norm_eps)
        return self._head(x).float()


class LlamaLayer:
    """Attention and MLP, each behind a norm and beside a residual."""

    def __init__(self, config: LlamaConfig, checkpoint: Checkpoint, prefix: str, rope: Rope) -> None:
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        qkv = [f"{attention}{part}_proj" for part in "qkv"]
        gate_up = [f"{mlp}{part}_proj" for part in ("gate", "up")]
        self._config, self._rope = config, rope
        self._scale = config.head_dim**-0.5
        self._norm_shape = (config.hidden_size,)
        self._turned = config.num_heads + config.num_kv_heads  # heads that rope turns: queries, then keys
        self._input_norm = checkpoint.take(f"{prefix}input_layernorm.weight")
        self._qkv = make_linear(_weight(checkpoint, *qkv), _bias(checkpoint, *qkv))
        self._output = make_linear(_weight(checkpoint, f"{attention}o_proj"), _bias(checkpoint, f"{attention}o_proj"))
        self._mlp_norm = checkpoint.take(f"{prefix}post_attention_layernorm.weight")
        self._gate_up = make_gate_up(_weight(checkpoint, *gate_up), _bias(checkpoint, *gate_up))
        self._down = make_linear(_weight(checkpoint, f"{mlp}down_proj"), _bias(checkpoint, f"{mlp}down_proj"))

    def forward(self, x: torch.Tensor, tables: RopeTables, batch: ForwardBatch, cache: LayerCache) -> torch.Tensor:
        """x `[T, H]` -> `[T, H]`."""
        eps, heads = self._config.rms_norm_eps, self._config.num_heads
        normed = rms_norm(x, self._norm_shape, self._input_norm, eps)
        qkv = self._qkv(normed).view(x.shape[0], -1, self._config.head_dim)  # [T, heads + 2 * kv_heads, D]
        turned = self._rope.apply(qkv[:, : self._turned], tables)
        query, key, value = turned[:, :heads], turned[:, heads:], qkv[:, self._turned :]
        cache.write(batch.slots, key, value)
        x = self._output.add(batch.attend(query, key, value, cache, self._scale), x)
        normed = rms_norm(x, self._norm_shape, self._mlp_norm, eps)
        return self._down.add(self._gate_up(normed), x)


def _weight(checkpoint: Checkpoint, *modules: str) -> torch.Tensor:
    return checkpoint.take_rows(*(f"{module}.weight" for module in modules))


def _bias(checkpoint: Checkpoint, *modules: str) -> torch.Tensor | None:
    names = [f"{module}.bias" for module in modules]
    return checkpoint.take_rows(*names) if names[0] in checkpoint else None


def _positive(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise ModelLoadError(f"config: {name} must be a positive integer, not {value!r}")
    return value
