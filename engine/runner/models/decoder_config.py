"""The numbers of a decoder, read from the vocabulary of config.json.

What most architectures call by the same names is read here; what only one of them has is handed in by its own file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.runner.kv_shape import KVShape
from engine.runner.weights.errors import ModelLoadError

Window = int | None
"""How many tokens a token looks at, itself included; None means all of them."""


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Compressed attention: one vector of `rank` a token for all heads, and one turned key of `rope_dim` beside it.

    A head's query and key are `plain_dim` numbers without position and `rope_dim` turned ones; queries are compressed
    to `query_rank` first, unless that is None. `paired` where rope turns neighbours, not halves.
    """

    rank: int
    query_rank: int | None
    plain_dim: int
    rope_dim: int
    value_dim: int
    paired: bool
    scale: float


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """A layer of `count` experts, `chosen` of them for each token.

    `scoring` is "softmax" or "sigmoid". Where `groups` > 1, experts come from the `chosen_groups` best groups, a group
    being as good as its `group_best` best experts together; `corrected` where a stored bias takes part in the choice.
    `shared_size` is the width of the MLP that all tokens go through, 0 where there is none.
    """

    count: int
    chosen: int
    intermediate_size: int
    scoring: str = "softmax"
    normalised: bool = False
    scale: float = 1.0
    groups: int = 1
    chosen_groups: int = 1
    group_best: int = 1
    corrected: bool = False
    shared_size: int = 0


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The numbers of a decoder; `windows` are those of its layers, `sparse_layers` the layers that have experts.

    `unused_layers` may be stored behind the last one, and are not computed.
    """

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    tied: bool
    windows: tuple[Window, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_norms: bool = False
    latent: LatentConfig | None = None
    experts: ExpertsConfig | None = None
    sparse_layers: frozenset[int] = frozenset()
    unused_layers: int = 0

    @classmethod
    def from_dict(
        cls, config: Mapping[str, Any], windows: Sequence[Window] | None = None, **differences: Any
    ) -> DecoderConfig:
        """The common numbers, with an architecture's `differences`.

        Raises `ModelLoadError` for a missing value, or for one that is not computed.
        """
        _refuse_what_is_not_computed(config)
        heads, hidden = positive(config, "num_attention_heads"), positive(config, "hidden_size")
        kv_heads = config.get("num_key_value_heads") or heads
        if heads % kv_heads:
            raise ModelLoadError(f"config: {heads} attention heads cannot share {kv_heads} key-value heads evenly")
        num_layers = positive(config, "num_hidden_layers")
        return cls(
            num_layers=num_layers,
            hidden_size=hidden,
            intermediate_size=positive(config, "intermediate_size"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=config.get("head_dim") or hidden // heads,
            vocab_size=positive(config, "vocab_size"),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            tied=bool(config.get("tie_word_embeddings", False)),
            windows=tuple(windows or [None] * num_layers),
            **differences,
        )

    @property
    def group(self) -> int:
        """Query heads that share a KV head in a prefill."""
        return 1 if self.latent else self.num_heads // self.num_kv_heads

    @property
    def rotary_dim(self) -> int:
        """Elements of a head that rope turns."""
        return self.latent.rope_dim if self.latent else self.head_dim

    @property
    def is_plain(self) -> bool:
        """Grouped-query attention over the whole context and dense MLPs, in every layer."""
        return self.latent is None and not self.sparse_layers and set(self.windows) == {None}

    @property
    def widest(self) -> int:
        """Elements a token in the widest layer, where the width of an MLP counts thrice (gate, up, their product)."""
        widths = [self.intermediate_size]
        if self.experts is not None:
            widths.append(self.experts.chosen * (self.experts.intermediate_size + self.hidden_size))
        if self.latent is not None:
            widths.append(self.num_heads * (self.latent.plain_dim + self.latent.rope_dim + self.latent.value_dim))
        return max(widths)

    @property
    def context_size(self) -> int:
        """Elements that a prefill chunk makes of each token of its context: all heads' keys and values, keys twice."""
        latent = self.latent
        if latent is None:
            return 0
        return self.num_heads * (2 * latent.plain_dim + latent.rope_dim + latent.value_dim)

    def kv_shape(self, dtype: Any) -> KVShape:
        """What the KV cache holds of a token; `dtype` as in `KVShape`."""
        if self.latent is not None:
            stored = self.latent.rank + self.latent.rope_dim
            return KVShape(self.num_layers, 1, stored, dtype, values_in_keys=self.latent.rank)
        return KVShape(self.num_layers, self.num_kv_heads, self.head_dim, dtype)


def positive(config: Mapping[str, Any], name: str) -> int:
    """The positive integer `name`; raises `ModelLoadError`."""
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise ModelLoadError(f"config: {name} must be a positive integer, not {value!r}")
    return value


def layer_windows(config: Mapping[str, Any], default: Sequence[bool]) -> list[Window]:
    """The window of each layer, by `layer_types` or else by `default`, which says whether a layer has one."""
    names = config.get("layer_types")
    if names is None:
        limited = list(default)
    else:
        unknown = sorted(set(names) - {"full_attention", "sliding_attention"})
        if unknown or len(names) != len(default):
            raise ModelLoadError(f"config: layer_types must name {len(default)} layers of full or sliding attention")
        limited = [name == "sliding_attention" for name in names]
    return [positive(config, "sliding_window") if limit else None for limit in limited]


def _refuse_what_is_not_computed(config: Mapping[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelLoadError(f"config: hidden_act {activation!r} is not supported, only 'silu'")
    rope = config.get("rope_parameters") or {}
    if config.get("partial_rotary_factor", rope.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ModelLoadError("config: a partial_rotary_factor other than 1 is not supported")
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unknown")
        raise ModelLoadError(
            f"the weights are quantised with {method!r}, which is not supported: use the model in bfloat16, or as GGUF"
        )
