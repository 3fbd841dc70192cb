"""The system fingerprint: a short hash of everything that a reproducible answer depends on besides the request."""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import PackageNotFoundError, version

from engine.config import EngineConfig
from engine.core.engine_core import EngineCore


def system_fingerprint(weights: str, config: EngineConfig, core: EngineCore) -> str:
    """`fp_` and ten hexadecimal digits of weights (quantisation included), device, dtype, kernels, threads, version.

    `weights` is the model files' own hash.
    """
    parts = {
        "weights": weights,
        "runner": getattr(core.runner, "description", ""),
        "eager": config.enforce_eager,
        "threads": config.num_threads,
        "server": _version_of("recipe-server"),
    }
    return "fp_" + hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]


def _version_of(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
