"""The system fingerprint: a short hash of everything that a reproducible answer depends on besides the request."""

from __future__ import annotations

import hashlib
import json
import platform
from importlib.metadata import PackageNotFoundError, version

from engine.config import EngineConfig


def system_fingerprint(weights: str, config: EngineConfig) -> str:
    """`fp_` and ten hexadecimal digits of weights (quantisation included), number format, device, kernels, versions."""
    parts = {
        "weights": weights,
        "dtype": config.dtype,
        "device": config.device,
        "eager": config.enforce_eager,
        "threads": config.num_threads,
        "cpu_kernels": config.cpu_kernels,
        "kernels": [_version_of("torch"), _version_of("cupy-cuda12x"), _version_of("cupy-cuda13x"), platform.machine()],
        "server": _version_of("recipe-server"),
    }
    return "fp_" + hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]


def _version_of(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
