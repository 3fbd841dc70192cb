"""Attention by the flashinfer library, an optional extra: decodes and prefill chunks, over the KV cache where it lies.

A wrapper of the library plans a step, on the host and once for all layers, and then runs each layer. Of those decodes
that graphs record only `run` is recorded; every bucket has a wrapper of its own, which plans before each replay into
buffers that stay where they are. A plan is copied to the GPU from pinned memory of the wrapper, so the next plan waits
for that copy: it stands before all that the step computes, and is long done.

    blocks    indptr [B + 1] over indices [blocks in use], tokens in the last block of each sequence [B]
    chunks    these, and indptr [B + 1] over the rows
All are int32; the indices are given on the GPU, the rest on the host, where the planner reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from engine.core.scheduler_output import ScheduledSequence
from engine.runner.attention import AttentionPart
from engine.runner.device import to_device
from engine.runner.kv_cache import LayerCache
from engine.runner.kv_shape import KVShape
from engine.runner.models.decoder_config import Window
from engine.runner.row_tables import RowTables

HEAD_DIMS, DTYPES = (64, 128, 256), (torch.bfloat16, torch.float16)
_WORKSPACE_BYTES = 256 * 2**20  # partial results of contexts that are split; one for all wrappers, as they take turns
_LEAST_GROUP = 4  # query heads a KV head from which tensor cores are faster for decodes
_LAYOUT, _BACKEND = "NHD", "fa2"  # a block is [block_size, kv_heads, head_dim]; the backend that graphs may record


def why_not(shape: KVShape) -> str | None:
    """What keeps a model from the library, in a few words; None where nothing does."""
    if shape.values_in_keys is not None:
        return "compressed attention"
    if shape.head_dim not in HEAD_DIMS:
        return f"heads of {shape.head_dim}"
    return None if shape.dtype in DTYPES else str(shape.dtype).removeprefix("torch.")


class FlashInferAttention:
    """Implements `PagedAttention` by `library`, the module; for models whose shapes it knows, see `why_not`."""

    def __init__(self, library: Any, shape: KVShape, group: int, block_size: int, device: torch.device) -> None:
        self.description = f"flashinfer {library.__version__}"
        self.block_size, self.scale, self.device = block_size, shape.head_dim**-0.5, device
        self._library, self._shape, self._group = library, shape, group
        self._workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._decodes: dict[Window, Planned] = {}
        self._chunks: dict[Window, Planned] = {}

    def decodes(self, items: Items[ScheduledSequence], window: Window) -> FlashInferPart:
        if window not in self._decodes:
            self._decodes[window] = self.planned_decodes()
        blocks = _blocks_of(items, self.block_size)
        self.plan_decodes(self._decodes[window], blocks, window)
        return FlashInferPart(slice(0, len(items)), True, self._decodes[window].wrapper, self.scale)

    def chunks(self, items: Items[ScheduledSequence], first_row: int, window: Window) -> FlashInferPart:
        if window not in self._chunks:
            wrapper = self._library.BatchPrefillWithPagedKVCacheWrapper(self._workspace, _LAYOUT)
            self._chunks[window] = Planned(wrapper, self.device)
        rows = _indptr(np.asarray([item.num_tokens for item in items]))
        blocks = _blocks_of(items, self.block_size)
        host = (_on_host(array, self.device) for array in (rows, blocks.indptr))
        self._chunks[window].plan(
            *host,
            to_device(blocks.indices, self.device),
            _on_host(blocks.last_tokens, self.device),
            *self._sizes,
            causal=True,
            **self._settings(window),
        )
        return FlashInferPart(
            slice(first_row, first_row + int(rows[-1])), False, self._chunks[window].wrapper, self.scale
        )

    def recorded(self, tables: RowTables, windows: Items[Window]) -> FlashInferDecodes:
        return FlashInferDecodes(self, tables, windows)

    def planned_decodes(self, **buffers: Any) -> Planned:
        """A wrapper for decodes; with `buffers`, one whose runs graphs can record."""
        by_tensor_cores = self._group >= _LEAST_GROUP
        wrapper = self._library.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace, _LAYOUT, use_tensor_cores=by_tensor_cores, backend=_BACKEND, **buffers
        )
        return Planned(wrapper, self.device)

    def plan_decodes(self, planned: Planned, blocks: Blocks, window: Window) -> None:
        """Have the next runs of a wrapper for decodes read `blocks`."""
        planned.plan(
            _on_host(blocks.indptr, self.device),
            to_device(blocks.indices, self.device),
            _on_host(blocks.last_tokens, self.device),
            *self._sizes,
            **self._settings(window),
        )

    @property
    def _sizes(self) -> tuple[int, int, int, int]:
        kv_heads = self._shape.num_kv_heads
        return kv_heads * self._group, kv_heads, self._shape.head_dim, self.block_size

    def _settings(self, window: Window) -> dict[str, Any]:
        return {
            "window_left": -1 if window is None else window - 1,  # what a token sees before itself
            "q_data_type": self._shape.dtype,
            "kv_data_type": self._shape.dtype,
            "sm_scale": self.scale,
        }


@dataclass(slots=True)
class FlashInferPart:
    """Rows whose attention a wrapper has planned; an `AttentionPart` whose context is the layer's whole cache."""

    rows: slice | torch.Tensor
    one_token_each: bool
    wrapper: Any
    scale: float

    def context(self, key: torch.Tensor, value: torch.Tensor, cache: LayerCache) -> tuple[torch.Tensor, torch.Tensor]:
        return cache.keys, cache.values

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
        """Raises `ValueError` for another scale than the planned one."""
        if scale != self.scale:
            raise ValueError(f"attention was planned for a scale of {self.scale}, not {scale}")
        out: torch.Tensor = self.wrapper.run(query, (keys, values))
        return out


class Planned:
    """A wrapper of the library, which plans no step before the last plan has left for the GPU."""

    def __init__(self, wrapper: Any, device: torch.device) -> None:
        self.wrapper, self._is_gpu = wrapper, device.type == "cuda"
        self._copied: torch.cuda.Event | None = None

    def plan(self, *arguments: Any, **settings: Any) -> None:
        if self._copied is not None:
            self._copied.synchronize()
        self.wrapper.plan(*arguments, **settings)
        self._copied = self._mark() if self._is_gpu else None

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event


class FlashInferDecodes:
    """Decodes as graphs read them: a wrapper for each bucket and window, with buffers of its own."""

    def __init__(self, attention: FlashInferAttention, tables: RowTables, windows: Items[Window]) -> None:
        self._attention, self._tables, self._windows = attention, tables, windows
        self._planned: dict[tuple[int, Window], Planned] = {}

    def parts(self, bucket: int) -> Mapping[Window, list[AttentionPart]]:
        rows, scale = slice(0, bucket), self._attention.scale
        return {
            window: [FlashInferPart(rows, True, self._planned[bucket, window].wrapper, scale)]
            for window in self._windows
        }

    def fill(self, items: Items[ScheduledSequence], bucket: int) -> None:
        ends = np.ones(bucket, np.int32)
        ends[: len(items)] = [item.start + 1 for item in items]
        self._tables.update(items, bucket)
        blocks = _blocks_in(self._tables.array[:bucket], ends, self._attention.block_size)
        for window in self._windows:
            if (bucket, window) not in self._planned:
                self._planned[bucket, window] = self._recordable(bucket)
            self._attention.plan_decodes(self._planned[bucket, window], blocks, window)

    def _recordable(self, bucket: int) -> Planned:
        width = self._tables.array.shape[1]
        sizes = {"indptr": bucket + 1, "indices": bucket * width, "last_page_len": bucket}
        buffers = {
            f"paged_kv_{name}_buffer": torch.zeros(size, dtype=torch.int32, device=self._attention.device)
            for name, size in sizes.items()
        }
        return self._attention.planned_decodes(use_cuda_graph=True, **buffers)


@dataclass(slots=True)
class Blocks:
    """The blocks of some sequences, one after the other; all int32."""

    indptr: Any  # [B + 1]
    indices: Any  # [blocks in use]
    last_tokens: Any  # [B]: 1 … block_size


def _blocks_of(items: Items[ScheduledSequence], size: int) -> Blocks:
    ends = np.asarray([item.start + item.num_tokens for item in items], np.int32)
    counts = -(-ends // size)
    used = [item.sequence.block_table[:count] for item, count in zip(items, counts, strict=True)]
    return Blocks(_indptr(counts), np.concatenate([np.asarray(blocks, np.int32) for blocks in used]), _last(ends, size))


def _blocks_in(tables: Any, ends: Any, size: int) -> Blocks:
    """The blocks in the rows of `tables` `[B, W]` up to the tokens `ends` `[B]`."""
    counts = -(-ends // size)
    used = tables[:, : counts.max()]
    return Blocks(_indptr(counts), used[np.arange(used.shape[1]) < counts[:, None]], _last(ends, size))


def _indptr(counts: Any) -> Any:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)


def _last(ends: Any, size: int) -> Any:
    return ((ends - 1) % size + 1).astype(np.int32)


def _on_host(array: Any, device: torch.device) -> torch.Tensor:
    """As a tensor on the host, from which a GPU can be copied to without waiting."""
    host = torch.from_numpy(array)
    return host if device.type == "cpu" else host.pin_memory()
