"""The tensors of a model, checked against the shapes that its architecture expects, cast on the way in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from engine.runner.weights.errors import ModelLoadError
from engine.runner.weights.progress import loading_bar
from engine.runner.weights.tensors import Tensors

Shapes = Mapping[str, tuple[int, ...]]


class Checkpoint:
    """Hands out `tensors` by name on `device` in `dtype`.

    `shapes` names every tensor the model uses. Raises `ModelLoadError` at `take` for one that is misshapen.
    """

    def __init__(
        self,
        tensors: Tensors,
        shapes: Shapes,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.device, self.dtype = device, dtype
        self.tensors, self._shapes = tensors, shapes
        self._advance: Callable[[int], object] = lambda number: None

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Show on a terminal how many of the tensors have been taken; elsewhere nothing is shown."""
        with loading_bar(len(self._shapes)) as self._advance:
            yield

    def take(self, name: str) -> torch.Tensor:
        """Tensor `name` in the model's precision and place."""
        return self._checked(name).to(self.device, self.dtype)

    def take_float(self, name: str) -> torch.Tensor:
        """Tensor `name` in float32 on the CPU, for what is computed from it once."""
        return self._checked(name).float()

    def take_rows(self, *names: str) -> torch.Tensor:
        """Several matrices or vectors as one, below each other: never two copies of it, and never part of the file."""
        whole: torch.Tensor = self.take_stack([list(names)])[0]
        return whole

    def take_stack(self, groups: Sequence[Sequence[str]]) -> torch.Tensor:
        """As `take_rows` for each of `groups`, all of one shape, stacked: `[groups, rows, ...]`."""
        shapes = [self._shapes[name] for name in groups[0]]
        size = (len(groups), sum(shape[0] for shape in shapes), *shapes[0][1:])
        stack = torch.empty(size, dtype=self.dtype, device=self.device)
        for whole, names in zip(stack, groups, strict=True):
            begin = 0
            for name in names:
                rows = self._shapes[name][0]
                whole[begin : begin + rows] = self._checked(name)  # freed before the next one is read
                begin += rows
        return stack

    def take_weights(self, *modules: str) -> torch.Tensor:
        """The weights of linear maps, as one matrix where there are several."""
        names = [f"{module}.weight" for module in modules]
        return self.take(names[0]) if len(names) == 1 else self.take_rows(*names)

    def take_biases(self, *modules: str) -> torch.Tensor | None:
        """The biases of linear maps as one vector; None for those that have none."""
        names = [f"{module}.bias" for module in modules]
        return self.take_rows(*names) if names[0] in self else None

    def _checked(self, name: str) -> torch.Tensor:
        tensor, expected = self.tensors.load(name), self._shapes[name]
        if tuple(tensor.shape) != expected:
            raise ModelLoadError(f"tensor {name} has shape {list(tensor.shape)}, but the model needs {list(expected)}")
        self._advance(1)
        return tensor
