"""How large a model is, known from its configuration alone."""

from __future__ import annotations

from dataclasses import dataclass

from engine.runner.kv_shape import KVShape


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Numbers of weights and of elements a token; `tied_parameters` are used as embedding and as output matrix.

    `context_size` is what a prefill chunk makes of each token before it, beside what the cache holds.
    """

    num_parameters: int
    tied_parameters: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    kv_shape: KVShape
    context_size: int = 0

    def weight_bytes(self, item: int, *, packed: bool) -> int:
        """Bytes of the weights at `item` bytes a number; packing needs a second form of a tied matrix."""
        return (self.num_parameters + (self.tied_parameters if packed else 0)) * item
