"""The runner: a model, its KV cache and a sampler behind `launch`, `sample` and `read`.

load     device and dtype, memory plan, weights, KV cache, warm-up
launch   scheduled sequences -> tensors -> forward pass -> logits
sample   logits, settings, bitmask -> token IDs, on the device
read     token IDs on the host
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, TypeVar

import torch

from engine.config import EngineConfig
from engine.core.runner import OutOfMemoryError, SampledToken
from engine.core.scheduler_output import ScheduledSequence, SchedulerOutput
from engine.runner.attention_choice import Wanted, check_choice, open_attention
from engine.runner.device import resolve_device, resolve_dtype, use_threads
from engine.runner.forward_batch import BatchBuilder
from engine.runner.graph_runner import CudaGraphs, GraphDevice, GraphRunner
from engine.runner.graph_sampler import GraphSampler
from engine.runner.host_memory import keep_freed_memory
from engine.runner.kernels.cuda_experts import open_experts
from engine.runner.kernels.cuda_masks import CudaLane, Lane
from engine.runner.kernels.cuda_path import open_kernels
from engine.runner.kernels.cuda_sampler import CudaSampler
from engine.runner.kernels.cuda_sources import Launcher
from engine.runner.kv_cache import KVCache
from engine.runner.memory_plan import MemoryPlan
from engine.runner.memory_profile import CudaMemory, first_plan, measured_plan
from engine.runner.models.registry import Model, architecture_of
from engine.runner.paged_attention import PagedAttention
from engine.runner.sampler import PendingTokens, Sampler, to_host, tokens_of
from engine.runner.token_feed import TokenFeed
from engine.runner.warm_up import warm_up
from engine.runner.weights.errors import ModelLoadError
from engine.runner.weights.model_files import ModelFiles

Progress = Callable[[str], None]
T = TypeVar("T")


@dataclass(slots=True)
class Forward:
    """A forward pass under way: `logits` float32 `[R, V]`, one row for each of `items`; None once they are used up.

    `is_replay` where they lie where a graph has left them.
    """

    logits: torch.Tensor | None
    items: list[ScheduledSequence]
    is_replay: bool


class ModelRunner:
    """Computes batches on one device; implements `engine.core.runner.Runner`."""

    def __init__(
        self,
        model: Model,
        plan: MemoryPlan,
        device: torch.device,
        launcher: Launcher | None = None,
        paged: PagedAttention | None = None,
        lane: Lane | None = None,
    ) -> None:
        """With a `launcher`, its kernel samples, and masks come by a `lane`, which graphs of draws need.

        With `paged`, that computes attention where the blocks lie.
        """
        self.block_size, self.num_blocks = plan.block_size, plan.num_blocks
        self.vocab_size, self.max_model_len = model.vocab_size, plan.max_model_len
        number_format = str(model.kv_shape.dtype).removeprefix("torch.")
        attention = "" if paged is None else f", {paged.description}"
        self.description = f"{device.type}, {number_format}, torch {torch.__version__}{attention}"
        self.runs_ahead = device.type == "cuda"
        self.most_prompt_tokens: int | None = None
        self._model: Model | None = model
        self._cache: KVCache | None = KVCache(
            model.kv_shape, plan.num_blocks + (paged is not None), plan.block_size, device
        )  # the spare block is that of graphs
        self._builder = BatchBuilder(plan.block_size, model.group, model.kv_shape.dtype, device, model.windows, paged)
        self._launcher, self._lane = launcher, lane
        self._sampler: Sampler | CudaSampler = Sampler(model.vocab_size)
        if launcher is not None:
            self._sampler = CudaSampler(model.vocab_size, launcher, lane)
        self._graphs: GraphRunner | None = None
        self._graph_sampler: GraphSampler | None = None
        self._feed = TokenFeed()

    @classmethod
    def load(cls, files: ModelFiles, config: EngineConfig, progress: Progress | None = None) -> ModelRunner:
        """Load the model of `files` as `config` says; `progress` is told of each phase in one line.

        Raises `ModelLoadError` when the model is not supported, its weights are wrong, or memory does not suffice.
        """
        try:
            return cls._load(files, config, progress or (lambda line: None))
        except (torch.OutOfMemoryError, OutOfMemoryError) as problem:
            raise ModelLoadError(
                f"{_first_line(problem)}: use a smaller model or dtype, or lower --gpu-memory-utilization, "
                f"--max-num-batched-tokens or --max-num-seqs"
            ) from problem

    @classmethod
    def _load(cls, files: ModelFiles, config: EngineConfig, say: Progress) -> ModelRunner:
        device = resolve_device(config.device)
        check_choice(config.attention, device)
        threads = use_threads(config.num_threads)
        tensors = files.open_tensors()
        dtype = resolve_dtype(config.dtype, device)
        plan = first_plan(files, config, device, dtype)
        if device.type == "cpu":
            say(str(plan))
        started = perf_counter()
        kind = architecture_of(files.config)
        model = kind.load(files.config, tensors, device=device, dtype=dtype, max_positions=plan.max_model_len)
        number_format = str(dtype).removeprefix("torch.")
        place = f"the CPU, threads: {threads}" if device.type == "cpu" else torch.cuda.get_device_name(device)
        millions = kind.sizes(files.config, dtype).num_parameters / 1e6
        say(f"weights: {millions:,.0f} M in {number_format} on {place}, {_seconds(started)}")
        started = perf_counter()
        keep_freed_memory()
        launcher = open_kernels(device, say)
        wanted = Wanted(model.kv_shape, model.group, config.block_size, device)
        paged = open_attention(config.attention, launcher, wanted, say)
        if device.type == "cuda":
            open_experts(model.experts, launcher, config.max_num_seqs, say)
        records = paged is not None and not config.enforce_eager
        lane = CudaLane(device) if device.type == "cuda" else None
        if lane is not None:
            probe = cls(model, replace(plan, num_blocks=1), device, launcher, paged, lane)
            plan = measured_plan(probe, config, plan, CudaMemory(device), model.kv_shape, records=records)
            say(str(plan))
        runner = cls(model, plan, device, launcher, paged, lane)
        if records:
            runner.capture(CudaGraphs(), config.max_num_seqs, say)
        number = warm_up(runner, config)
        say(f"warm-up: {number} steps, {_seconds(started)}")
        return runner

    @property
    def replays_graphs(self) -> bool:
        """Whether decodes were recorded as graphs."""
        return self._graphs is not None

    @property
    def replays_draws(self) -> bool:
        """Whether the draws behind them were recorded, too."""
        return self._graph_sampler is not None

    def capture(self, graphs: GraphDevice, max_num_seqs: int, say: Progress) -> None:
        """Record decodes of up to `max_num_seqs` sequences as graphs: two a bucket, forward and draw.

        Where the model cannot be recorded, nothing is; draws are not without a kernel that draws.
        """
        model, cache, paged = self._model, self._cache, self._builder.paged
        if model is None or cache is None or paged is None:
            return
        if any(layer.few_rows is None for layer in model.experts):
            say("CUDA graphs: none, as the host decides which experts compute")
            return
        started = perf_counter()
        recorder = GraphRunner(
            model,
            cache,
            paged,
            graphs,
            cache.layers[0].keys.device,
            max_num_seqs=max_num_seqs,
            max_model_len=self.max_model_len,
            block_size=self.block_size,
        )
        try:
            recorder.capture()
            drawing = self._record_draws(graphs, recorder)
        except RuntimeError as problem:
            say(f"CUDA graphs: none, as recording fails: {_first_line(problem)}")
            return
        self._graphs, self._graph_sampler = recorder, drawing
        each = "forward" if drawing is None else "forward and sampling"
        say(f"CUDA graphs: {each} of {', '.join(map(str, recorder.buckets))} sequences, {_seconds(started)}")

    def _record_draws(self, graphs: GraphDevice, recorder: GraphRunner) -> GraphSampler | None:
        """A sampler with a graph behind each of `recorder`; None where the kernel does not draw."""
        sampler, launcher, lane = self._sampler, self._launcher, self._lane
        if not isinstance(sampler, CudaSampler) or launcher is None or lane is None or not sampler.is_by_kernel:
            return None
        logits = recorder.logits
        device = logits[recorder.buckets[0]].device
        drawing = GraphSampler(sampler, launcher, lane, device, recorder.buckets[-1])
        drawing.capture(graphs, logits)
        return drawing

    @torch.inference_mode()
    def launch(self, batch: SchedulerOutput) -> Forward:
        """Start the forward pass of `batch`. Raises `OutOfMemoryError`."""
        is_replay = self._graphs is not None and self._graphs.accepts(batch)
        return Forward(_within_memory(lambda: self._forward(batch, is_replay)), batch.sampling, is_replay)

    @torch.inference_mode()
    def sample(self, forward: Forward, bitmask: Any | None) -> PendingTokens:
        """Draw a token for each sampling row; `bitmask` as in the protocol. Raises `OutOfMemoryError`."""
        logits, forward.logits = forward.logits, None
        if logits is None:
            raise ValueError("the logits of this forward pass are used up")
        graphs = self._graph_sampler if forward.is_replay else None
        sampler = self._sampler if graphs is None else graphs
        pending = _within_memory(lambda: sampler.sample(logits, forward.items, bitmask))
        if self.runs_ahead:
            self._feed.keep(pending.token_ids, forward.items)
        return to_host(pending)

    def read(self, pending: PendingTokens) -> list[SampledToken]:
        """The drawn tokens, in batch order."""
        return tokens_of(pending)

    def close(self) -> None:
        """Release model and KV cache. Idempotent."""
        self._model = self._cache = self._graphs = self._graph_sampler = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def step(self, batch: SchedulerOutput, bitmask: Any | None = None) -> None:
        """Compute `batch` to its end; nobody wants its tokens."""
        self.read(self.sample(self.launch(batch), bitmask))

    def _forward(self, batch: SchedulerOutput, is_replay: bool) -> torch.Tensor:
        """The one place where the way to compute a batch is chosen; float32 logits `[R, V]`."""
        if self._model is None or self._cache is None:
            raise RuntimeError("the runner is closed")
        if self._graphs is not None and is_replay:
            return self._graphs.forward(batch, self._feed)
        built = self._builder.build(batch)
        self._feed.fill(built.token_ids, batch.scheduled)
        return self._model.forward(built, self._cache)


def _within_memory(work: Callable[[], T]) -> T:
    """What `work` gives; raises `OutOfMemoryError`, with what it had allocated given back, where memory runs out."""
    try:
        return work()
    except torch.OutOfMemoryError as problem:
        reason = _first_line(problem)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # here, where no traceback holds the tensors any more
    raise OutOfMemoryError(reason)


def _first_line(problem: Exception) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0]


def _seconds(started: float) -> str:
    return f"{perf_counter() - started:.2f} s"
