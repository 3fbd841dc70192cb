"""The checks of gpu_check.py that compare: kernels with what torch makes of the same, logits with transformers'."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.runner.flashinfer_attention import FlashInferAttention
from engine.runner.forward_batch import BatchBuilder
from engine.runner.kernels.cuda_attention import KernelAttention
from engine.runner.kernels.cuda_masks import CudaLane
from engine.runner.kernels.cuda_sampler import CudaSampler
from engine.runner.kv_cache import KVCache
from engine.runner.kv_shape import KVShape
from engine.runner.model_runner import ModelRunner
from engine.runner.paged_attention import PagedAttention
from engine.runner.sampler import Sampler
from scripts.gpu_check_models import SHAPES, RandomFiles, RandomTensors
from scripts.gpu_check_place import GREEDY, Failed, Place, Skipped, make_sequence, prefill

DECODES, CHUNKS = (1, 17, 500, 4097, 9000), ((0, 300), (2000, 300), (33, 2))  # lengths; first tokens and numbers
SHAPES_TRIED = ((128, 4, torch.bfloat16), (64, 8, torch.float16), (128, 7, torch.float16))  # heads of, group, dtype
_BLOCK_SIZE, _NUM_BLOCKS = 16, 2048


def check_sampler(place: Place) -> str:
    """The sampling kernel draws what the tensors draw, but for rounding."""
    vocab, rows, rounds = 128256, 250, 40
    kernel, tensors = CudaSampler(vocab, place.launcher, CudaLane(place.device)), Sampler(vocab)
    settings = [
        SamplingParams(),
        SamplingParams(temperature=0.7, top_p=0.95),
        SamplingParams(top_k=50),
        SamplingParams(min_p=0.02, repetition_penalty=1.2, logit_bias={5: 2.0}),
        GREEDY,
    ]
    differing = 0
    for turn in range(rounds):
        logits = torch.randn(rows, vocab, device=place.device) * 3
        mask = np.random.default_rng(turn).integers(-(2**31), 2**31, (rows, vocab // 32), np.int32)
        sequences = [make_sequence(turn * rows + row, 4, settings[row % len(settings)]) for row in range(rows)]
        items = [ScheduledSequence(sequence, 3, 1, True) for sequence in sequences]
        ours = kernel.sample(logits.clone(), items, mask).token_ids
        differing += int((ours != tensors.sample(logits, items, mask).token_ids).sum())
    found = f"{differing} of {rows * rounds:,} draws differ"
    if differing > rows * rounds / 10_000:
        raise Failed(found)
    return found


def check_attention(place: Place) -> str:
    """The attention kernel for decodes, and SDPA for chunks beside them, against gathers in float32."""
    launcher = place.launcher
    return _within(place, lambda shape, group: KernelAttention(launcher, shape, group, place.device))


def check_flashinfer(place: Place) -> str:
    """The same of flashinfer, decodes and chunks."""
    library = importlib.import_module("flashinfer")
    return _within(place, lambda shape, group: FlashInferAttention(library, shape, group, _BLOCK_SIZE, place.device))


def _within(place: Place, make: Callable[[KVShape, int], PagedAttention]) -> str:
    shapes = [(KVShape(1, 8, head_dim, dtype), group) for head_dim, group, dtype in SHAPES_TRIED]
    worst = max(attention_error(place, make(shape, group), shape, group) for shape, group in shapes)
    found = f"largest difference {worst:.4f}"
    if not worst < 0.02:
        raise Failed(found)
    return found


@torch.inference_mode()
def attention_error(place: Place, paged: PagedAttention, shape: KVShape, group: int) -> float:
    """The largest difference from what gathers and masks give in float32, relative to 1 and more."""
    exact = replace(shape, dtype=torch.float32)
    caches = [KVCache(each, _NUM_BLOCKS, _BLOCK_SIZE, place.device).layers[0] for each in (shape, exact)]
    caches[0].keys.normal_()
    caches[0].values.normal_()
    blocks = iter(torch.randperm(_NUM_BLOCKS).tolist())
    items = []
    for number, (start, new) in enumerate([*((length - 1, 1) for length in DECODES), *CHUNKS]):
        sequence = make_sequence(number, start + new)
        sequence.block_table = [next(blocks) for _ in range(-(-sequence.num_tokens // _BLOCK_SIZE))]
        items.append(ScheduledSequence(sequence, start, new, True))
    batch = SchedulerOutput(items)
    kv_heads, head_dim, dtype = shape.num_kv_heads, shape.head_dim, shape.dtype
    heads = (kv_heads * group, kv_heads, kv_heads)
    query, key, value = (
        torch.randn(batch.num_batched_tokens, number, head_dim, dtype=dtype, device=place.device) for number in heads
    )
    ours = BatchBuilder(_BLOCK_SIZE, group, dtype, place.device, (None,), paged).build(batch)
    plain = BatchBuilder(_BLOCK_SIZE, group, torch.float32, place.device).build(batch)
    caches[0].write(ours.slots, key, value)
    caches[1].keys.copy_(caches[0].keys)
    caches[1].values.copy_(caches[0].values)
    out = ours.attend(query, key, value, caches[0], head_dim**-0.5)
    expected = plain.attend(query.float(), key.float(), value.float(), caches[1], head_dim**-0.5)
    return float(((out.float() - expected).abs() / (1 + expected.abs())).max())


def check_logits(place: Place) -> str:
    """The logits of a small model against those of transformers."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as problem:
        raise Skipped("transformers is not installed") from problem
    numbers = {key: value for key, value in SHAPES["Tiny"].items() if key != "architectures"}
    torch.manual_seed(1)
    reference = LlamaForCausalLM(LlamaConfig(**numbers)).to(place.device, torch.float32).eval()
    weights = {name: tensor.detach() for name, tensor in reference.state_dict().items()}
    files: Any = RandomFiles(SHAPES["Tiny"], place.device)
    tensors = RandomTensors({}, place.device)
    tensors.shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    setattr(tensors, "load", weights.__getitem__)
    setattr(files, "open_tensors", lambda: tensors)
    settings = EngineConfig(device=place.device.type, dtype="float32", cpu_kernels="off", kv_cache_mib=64)
    runner = ModelRunner.load(files, settings)
    sequence = make_sequence(0, 50)
    sequence.token_ids = torch.randint(0, 2048, (50,)).tolist()
    ours = runner.launch(prefill(runner, sequence)).logits[0]
    with torch.inference_mode():
        expected = reference(torch.tensor([sequence.token_ids], device=place.device)).logits[0, -1]
    runner.close()
    worst = float((ours - expected).abs().max())
    found = f"largest difference {worst:.6f} in float32"
    if not worst < 2e-3:
        raise Failed(found)
    return found
