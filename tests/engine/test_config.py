from __future__ import annotations

from typing import Any

import pytest

from engine.config import ConfigError, EngineConfig


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("max_num_seqs", {"max_num_seqs": 0}),
        ("max_num_batched_tokens", {"max_num_batched_tokens": 8, "max_num_seqs": 9}),
        ("max_prefill_chunk_tokens", {"max_prefill_chunk_tokens": 0}),
        ("block_size", {"block_size": -1}),
        ("kv_cache_mib", {"kv_cache_mib": 0}),
        ("max_model_len", {"max_model_len": 1.5}),
        ("num_threads", {"num_threads": True}),
        ("device", {"device": "tpu"}),
        ("dtype", {"dtype": "int8"}),
        ("gpu_memory_utilization", {"gpu_memory_utilization": 1.1}),
        ("seed", {"seed": -1}),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=name):
        EngineConfig(**settings)
