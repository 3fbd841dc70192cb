"""The kernel of experts, run on the CPU, against the products that torch makes one expert after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.runner.kernels.cuda_experts import KernelExperts, open_experts
from engine.runner.models.experts import by_torch
from tests.engine.runner.kernels.shim import Shim, require_cpp_compiler

TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 3e-3}


@pytest.fixture
def shim(libraries: Path) -> Shim:
    require_cpp_compiler()
    return Shim(libraries)


class Layer:
    """What `open_experts` looks at of a layer of experts."""

    def __init__(self, number: int, hidden: int, inner: int, dtype: torch.dtype = torch.bfloat16) -> None:
        random = torch.Generator().manual_seed(number)
        self.gate_up = (torch.randn(number, 2 * inner, hidden, generator=random) * hidden**-0.5).to(dtype)
        self.down = (torch.randn(number, hidden, inner, generator=random) * inner**-0.5).to(dtype)
        self.few_rows: KernelExperts | None = None


def rows(tokens: int, layer: Layer, chosen: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, layer.down.shape[1], generator=random).to(layer.down.dtype)
    return x, torch.rand(tokens, len(layer.down), generator=random).topk(chosen).indices


def check(shim: Shim, layer: Layer, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """The kernel gives what float32 gives, within the rounding of the layer's numbers."""
    dtype = layer.down.dtype
    ours = KernelExperts(shim, dtype, 256).compute(x, chosen, layer.gate_up, layer.down)
    expected = by_torch(x.float(), chosen, layer.gate_up.float(), layer.down.float())
    torch.testing.assert_close(ours.float(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    return ours


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("number", "chosen", "hidden", "inner"), [(5, 2, 64, 40), (8, 8, 24, 8), (3, 1, 1032, 528)])
@pytest.mark.parametrize("tokens", [1, 2, 19])
def test_products_of_all_shapes(
    shim: Shim, number: int, chosen: int, hidden: int, inner: int, tokens: int, dtype: torch.dtype
) -> None:
    layer = Layer(number, hidden, inner, dtype)
    check(shim, layer, *rows(tokens, layer, chosen))


def test_all_tokens_may_want_the_same_expert_and_others_have_nothing_to_do(shim: Shim) -> None:
    layer = Layer(6, 40, 24)
    x, _ = rows(21, layer, 1)
    for expert in (0, 3, 5):
        check(shim, layer, x, torch.full((21, 1), expert))


def test_a_token_gets_the_same_whatever_else_is_in_the_batch_and_in_any_order_of_threads(shim: Shim) -> None:
    layer = Layer(6, 40, 24)
    x, chosen = rows(21, layer, 3)
    together = check(shim, layer, x, chosen)
    assert torch.equal(check(shim, layer, x[7:8], chosen[7:8]), together[21:24])
    assert torch.equal(check(shim, layer, x.flip(0), chosen.flip(0)).view(21, 3, -1).flip(0), together.view(21, 3, -1))
    shim.backwards = True
    assert torch.equal(check(shim, layer, x, chosen), together)


def test_the_kernel_is_used_once_it_has_proved_itself(shim: Shim) -> None:
    layers: list[Any] = [Layer(4, 16, 8), Layer(4, 16, 8)]
    lines: list[str] = []
    open_experts(layers, shim, 32, lines.append)
    assert lines == ["experts: by the kernel for up to 32 tokens a step, else by torch"]
    assert all(isinstance(layer.few_rows, KernelExperts) for layer in layers)


class Idle:
    """Launches nothing."""

    num_processors = 1

    def launch(self, *arguments: Any) -> None: ...


@pytest.mark.parametrize(
    ("layer", "launcher", "reason"),
    [
        (Layer(4, 16, 8), None, "the GPU kernels cannot be used here"),
        (Layer(4, 16, 8, torch.float32), Idle(), "the kernel does not know float32"),
        (Layer(4, 16, 12), Idle(), "the kernel does not know experts of 12 over 16"),
        (Layer(4, 16, 8), Idle(), "the kernel is not used, as the results differ from torch's"),
    ],
)
def test_where_it_cannot_be_used_torch_computes_and_a_line_says_why(layer: Any, launcher: Any, reason: str) -> None:
    lines: list[str] = []
    open_experts([layer], launcher, 32, lines.append)
    assert lines == [f"experts: by torch; {reason}"]
    assert layer.few_rows is None


def test_a_model_without_experts_is_told_nothing() -> None:
    open_experts([], None, 32, pytest.fail)
