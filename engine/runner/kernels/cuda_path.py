"""What of a step runs on the CUDA kernels, and lines that say so, or why not."""

from __future__ import annotations

from collections.abc import Callable

from engine.runner.kernels.cuda_attention import PagedAttention, why_not
from engine.runner.kernels.cuda_sources import Launcher
from engine.runner.kv_cache import KVShape


def open_paged_attention(
    launcher: Launcher | None, shape: KVShape, group: int, say: Callable[[str], None]
) -> PagedAttention | None:
    """Attention of decodes by the kernel; None, for gathers, without a launcher or for shapes that it does not know."""
    if launcher is None:
        return None
    reason = why_not(shape, group)
    if reason is not None:
        say(f"GPU kernels: sampling; attention by gathers, as the kernel does not know {reason}")
        return None
    say("GPU kernels: sampling, attention of decodes")
    return PagedAttention(launcher, shape, group)
