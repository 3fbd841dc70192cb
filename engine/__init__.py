"""The engine: token IDs in, token IDs out. `from engine import LLM, SamplingParams` for offline use."""

from __future__ import annotations

from typing import Any

__all__ = ["LLM", "SamplingParams"]

_HOMES = {"LLM": "engine.entrypoints.llm", "SamplingParams": "engine.entrypoints.sampling_params"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: nothing heavy loads with the package itself."""
    if name not in _HOMES:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
