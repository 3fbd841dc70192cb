"""flashinfer without a GPU: its two wrappers over paged caches, computing by plain products what they are asked for.

They check what the library checks, and read blocks from the same places: a wrapper for graphs from the buffers it was
made with, at the time of the run, as a replayed graph does. What the library forbids while a graph is recorded raises
here, too: set `is_capturing` around the recording.
"""

from __future__ import annotations

import math
from typing import Any

import torch

__version__ = "0.7.4"

is_capturing = False
NO_WINDOW = -1


class _Wrapper:
    """What both have in common: a workspace, a layout, plans of blocks."""

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str) -> None:
        if kv_layout not in ("NHD", "HND"):
            raise KeyError(f"Invalid kv_layout {kv_layout}")
        if float_workspace_buffer.data_ptr() % 16 or not float_workspace_buffer.is_contiguous():
            raise ValueError("float_workspace_buffer must be 16-byte aligned")
        if float_workspace_buffer.count_nonzero():
            raise ValueError("float_workspace_buffer must be zero at its first use")
        self.layout, self.num_plans = kv_layout, 0
        self.indptr = self.indices = self.last_page_len = torch.empty(0, dtype=torch.int32)
        self.settings: dict[str, Any] | None = None

    def _plan(self, sizes: tuple[int, ...], **settings: Any) -> None:
        if is_capturing:
            raise RuntimeError("plan() cannot be used while a CUDA graph is captured")
        num_qo_heads, num_kv_heads, head_dim, page_size = sizes
        if num_qo_heads % num_kv_heads:
            raise ValueError("num_qo_heads must be a multiple of num_kv_heads")
        if head_dim not in (64, 128, 256):
            raise ValueError(f"Unsupported head_dim: {head_dim}")
        self.num_plans += 1
        self.settings = settings | {"heads": num_qo_heads, "kv_heads": num_kv_heads, "page_size": page_size}

    def _check_blocks(self, indptr: torch.Tensor, indices: torch.Tensor, last_page_len: torch.Tensor) -> None:
        for tensor in (indptr, indices, last_page_len):
            if tensor.dtype != torch.int32 or tensor.dim() != 1:
                raise ValueError("indptr, indices and last_page_len must be int32 vectors")
        if len(indptr) != len(last_page_len) + 1 or indptr[0] != 0 or indptr[-1] != len(indices):
            raise ValueError("indptr does not fit indices and last_page_len")
        if not (indptr.diff() > 0).all():
            raise ValueError("every sequence must have a page")

    def _attend(
        self, q: torch.Tensor, caches: tuple[torch.Tensor, torch.Tensor], rows: torch.Tensor, causal: bool
    ) -> torch.Tensor:
        """Attention of `rows` `[B + 1]` of `q` over the planned pages, in float32."""
        if self.settings is None:
            raise RuntimeError("plan() must be called before run()")
        keys, values = caches
        self._check_run(q, keys, values)
        out = torch.empty_like(q)
        for number in range(len(self.last_page_len)):
            begin, end = int(rows[number]), int(rows[number + 1])
            seen = [self._tokens(cache, number) for cache in (keys, values)]
            out[begin:end] = self._one(q[begin:end].float(), *seen, causal=causal).to(q.dtype)
        return out

    def _check_run(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        settings = self.settings or {}
        if q.dtype != settings["q_data_type"] or keys.dtype != settings["kv_data_type"]:
            raise ValueError("the dtype of q or k does not match the one specified in plan function")
        if keys.dim() != 4 or keys.stride() != values.stride() or q.stride(-1) != 1:
            raise ValueError("K/V strides differ, or the last dimension of q is not contiguous")
        if keys.shape[1:3] != (settings["page_size"], settings["kv_heads"]) or q.shape[1] != settings["heads"]:
            raise ValueError("the caches are not [pages, page_size, kv_heads, head_dim], or q has other heads")

    def _tokens(self, cache: torch.Tensor, number: int) -> torch.Tensor:
        """`[L, kv_heads, D]` of one sequence, by the buffers as they are now."""
        first, end = int(self.indptr[number]), int(self.indptr[number + 1])
        last, page_size = int(self.last_page_len[number]), cache.shape[1]
        if not 1 <= last <= page_size:
            raise ValueError(f"last_page_len must be in [1, {page_size}]. Given: {last}")
        pages = cache[self.indices[first:end].long()].flatten(0, 1)
        return pages[: (end - first - 1) * page_size + last].float()

    def _one(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, causal: bool) -> torch.Tensor:
        settings = self.settings or {}
        group = q.shape[1] // keys.shape[1]
        scale = settings["sm_scale"] or 1 / math.sqrt(q.shape[2])
        scores = torch.einsum("thd,lhd->htl", q, keys.repeat_interleave(group, 1)) * scale
        places, own = torch.arange(len(keys)), torch.arange(len(keys) - len(q), len(keys)).unsqueeze(1)
        if causal:
            scores.masked_fill_(places > own, -torch.inf)
        if settings["window_left"] != NO_WINDOW:
            scores.masked_fill_(places < own - settings["window_left"], -torch.inf)
        return torch.einsum("htl,lhd->thd", scores.softmax(-1), values.repeat_interleave(group, 1))


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    """One new token a sequence."""

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: torch.Tensor | None = None,
        paged_kv_indices_buffer: torch.Tensor | None = None,
        paged_kv_last_page_len_buffer: torch.Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout)
        if backend not in ("auto", "fa2"):
            raise ValueError(f"this fake knows no backend {backend}")
        buffers = (paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer)
        self.use_cuda_graph, self.use_tensor_cores = use_cuda_graph, use_tensor_cores
        if use_cuda_graph:
            if any(buffer is None for buffer in buffers):
                raise ValueError("all buffers should be torch.Tensors in cudagraph mode")
            self.indptr, self.indices, self.last_page_len = buffers  # type: ignore[assignment]
            if len(self.indptr) != len(self.last_page_len) + 1:
                raise ValueError("The size of paged_kv_indptr_buffer should be batch_size + 1")

    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        window_left: int = NO_WINDOW,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
        sm_scale: float | None = None,
    ) -> None:
        self._check_blocks(indptr, indices, last_page_len)
        if not self.use_tensor_cores and num_qo_heads // num_kv_heads not in (1, 2, 3, 4, 6, 8, 16):
            raise ValueError(f"Unsupported group_size: {num_qo_heads // num_kv_heads}")
        self._plan(
            (num_qo_heads, num_kv_heads, head_dim, page_size),
            window_left=window_left,
            q_data_type=q_data_type,
            kv_data_type=kv_data_type or q_data_type,
            sm_scale=sm_scale,
        )
        if not self.use_cuda_graph:
            self.indptr, self.indices, self.last_page_len = indptr, indices, last_page_len
            return
        if len(last_page_len) != len(self.last_page_len):
            raise ValueError("The batch size should be fixed in cudagraph mode")
        if len(indices) > len(self.indices):
            raise ValueError("The size of indices should be less than or equal to the allocated buffer")
        self.indptr.copy_(indptr)
        self.last_page_len.copy_(last_page_len)
        self.indices[: len(indices)].copy_(indices)

    def run(self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        if q.shape[0] != len(self.last_page_len):
            raise ValueError("q must have a row for each sequence of the plan")
        return self._attend(q, paged_kv_cache, torch.arange(q.shape[0] + 1), causal=False)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    """Some new tokens a sequence, the last ones of its pages."""

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD", backend: str = "auto") -> None:
        super().__init__(float_workspace_buffer, kv_layout)

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool = False,
        sm_scale: float | None = None,
        window_left: int = NO_WINDOW,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
    ) -> None:
        self._check_blocks(paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        if qo_indptr.dtype != torch.int32 or len(qo_indptr) != len(paged_kv_indptr):
            raise ValueError("qo_indptr must be int32 [batch_size + 1]")
        self._plan(
            (num_qo_heads, num_kv_heads, head_dim_qk, page_size),
            causal=causal,
            window_left=window_left,
            q_data_type=q_data_type,
            kv_data_type=kv_data_type or q_data_type,
            sm_scale=sm_scale,
        )
        self.rows = qo_indptr
        self.indptr, self.indices, self.last_page_len = paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len

    def run(self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        if self.settings is None or q.shape[0] != int(self.rows[-1]):
            raise ValueError("q.shape[0] does not match qo_indptr[-1]")
        return self._attend(q, paged_kv_cache, self.rows, causal=self.settings["causal"])
