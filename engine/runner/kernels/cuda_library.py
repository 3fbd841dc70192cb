"""Loads the CUDA sources with cupy and launches them on torch's stream and torch's memory.

cupy compiles at first use and keeps the images on disk by architecture, source and options, so that later starts load
them. Nothing is allocated by a launch: a graph can capture it, once the kernel has been loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.runner.kernels.cuda_sources import APPLY_BITMASK, SAMPLE_ROWS, Argument, KernelSource, as_scalar


class CudaLauncher:
    """Implements `Launcher` on one GPU. Raises `ImportError` without cupy."""

    def __init__(self, device: torch.device) -> None:
        import cupy

        self.num_processors = int(torch.cuda.get_device_properties(device).multi_processor_count)
        self._cupy = cupy
        self._device = device
        self._kernels: dict[tuple[KernelSource, str], Any] = {}

    def load(self, source: KernelSource) -> None:
        """Compile `source`, or take its image from the disk, and have its kernels ready."""
        module = self._cupy.RawModule(code=source.text, options=source.options, backend="nvrtc")
        for kernel in source.kernels:
            function = module.get_function(kernel)
            _ = function.attributes  # compiles and loads now
            self._kernels[source, kernel] = function

    def launch(
        self,
        source: KernelSource,
        kernel: str,
        grid: tuple[int, int, int],
        threads: int,
        arguments: Sequence[Argument],
    ) -> None:
        """Start a kernel on torch's current stream."""
        if (source, kernel) not in self._kernels:
            self.load(source)
        values = tuple(as_scalar(argument) for argument in arguments)
        self._kernels[source, kernel](grid, (threads, 1, 1), values, stream=self._stream())

    def _stream(self) -> Any:
        """The stream of now: the one that captures a graph differs from the usual one."""
        return self._cupy.cuda.Stream.from_external(torch.cuda.current_stream(self._device))


def open_launcher(device: torch.device, say: Callable[[str], None]) -> CudaLauncher | None:
    """A launcher with the sampler's kernels loaded; None where torch has to do, which one line says on a GPU."""
    if device.type != "cuda":
        return None
    try:
        launcher = CudaLauncher(device)
        launcher.load(APPLY_BITMASK)
        launcher.load(SAMPLE_ROWS)
    except Exception as problem:  # whatever cupy, the compiler or the driver raise, torch can do the work
        reason = (str(problem).splitlines() or [type(problem).__name__])[0]
        package = f"cupy-cuda{(torch.version.cuda or '12').split('.')[0]}x"
        say(f"GPU kernels: {reason}; torch does their work, which is slower (pip install {package})")
        return None
    return launcher
