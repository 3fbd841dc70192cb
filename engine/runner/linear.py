"""Matrix products, in the layout that is fastest where they run.

A model asks for its linear maps by `make_linear` and `make_gate_up` and never looks inside. Dense weights go through
`F.linear` anywhere. On a CPU with native bfloat16, weights are reordered once into oneDNN's blocked form, and the
activation, the gate and the residual are computed in the tail of the product, while the result is still in cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch.nn import functional

Product = Callable[..., torch.Tensor]
_PACKED_BATCH = 8  # rows a product is tuned for when the weights are reordered


class Linear(Protocol):
    """x `[T, in]` -> x Wᵀ + b `[T, out]`."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """residual + x Wᵀ + b, where `residual` is `[T, out]`."""
        ...


class GateUp(Protocol):
    """x `[T, in]` -> silu(x Gᵀ) * (x Uᵀ) `[T, out]`."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


def packs(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether weights of `dtype` on `device` are reordered for oneDNN."""
    return (
        device.type == "cpu"
        and dtype is torch.bfloat16
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """A linear map from `weight` `[out, in]` and `bias` `[out]`."""
    if packs(weight.device, weight.dtype):
        return PackedLinear(weight, bias)
    return DenseLinear(weight, bias)


def make_gate_up(gate_up: torch.Tensor, bias: torch.Tensor | None = None) -> GateUp:
    """A gated pair of maps from the gate's rows over the rows of the other, `[2 * out, in]`."""
    if packs(gate_up.device, gate_up.dtype):
        return PackedGateUp(gate_up, bias)
    return DenseGateUp(gate_up, bias)


class DenseLinear:
    """A linear map whose weight stays as it is."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self._weight, self._bias)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual + functional.linear(x, self._weight, self._bias)


class DenseGateUp:
    """Gate and up as one product."""

    def __init__(self, gate_up: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight, self._bias = gate_up, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = functional.linear(x, self._weight, self._bias).chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)


class PackedLinear:
    """A linear map in oneDNN's blocked layout."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight, self._bias = _reordered(weight), bias
        self._product: Product = torch.ops.mkldnn._linear_pointwise.default
        self._product_with: Product = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(x, self._weight, self._bias, "none", [], "")

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._product_with(x, residual, self._weight, self._bias, "add")


class PackedGateUp:
    """Two products: the gate with silu in its tail, the other with the multiplication."""

    def __init__(self, gate_up: torch.Tensor, bias: torch.Tensor | None) -> None:
        gate, up = gate_up.chunk(2)
        self._gate, self._up = _reordered(gate), _reordered(up)
        self._gate_bias: torch.Tensor | None = None
        self._up_bias: torch.Tensor | None = None
        if bias is not None:
            self._gate_bias, self._up_bias = bias.chunk(2)
        self._product: Product = torch.ops.mkldnn._linear_pointwise.default
        self._product_with: Product = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate = self._product(x, self._gate, self._gate_bias, "swish", [], "")
        return self._product_with(x, gate, self._up, self._up_bias, "mul")


def _reordered(weight: torch.Tensor) -> torch.Tensor:
    reorder: Product = torch.ops.mkldnn._reorder_linear_weight
    return reorder(weight.contiguous(), _PACKED_BATCH)
