"""The one assembly line of a local engine, shared by the server and offline batches. Runs in the engine thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from engine.config import EngineConfig
from engine.core.engine_core import EngineCore
from engine.entrypoints.options import REMOTE_KINDS, OptionError, ServerOptions
from engine.entrypoints.tokenizer_source import with_tokenizer
from engine.grammar.bitmask import BitmaskFiller
from engine.grammar.compiler import GrammarCompiler
from engine.runner.weights.model_files import ModelFiles, open_model


def open_files(options: ServerOptions) -> ModelFiles:
    """Everything but the weights: the model's files, with another tokenizer and chat template where they are named."""
    if options.backend in REMOTE_KINDS and options.model is None:
        if options.tokenizer is None:
            raise OptionError(
                f"--backend {options.backend} needs the model's files but for its weights: --tokenizer DIR"
            )
        return open_model(
            options.tokenizer, revision=options.tokenizer_revision, chat_template_file=options.chat_template
        )
    files = open_model(options.model, revision=options.revision, chat_template_file=options.chat_template)
    if options.tokenizer is None:
        return files
    changed = with_tokenizer(files, options.tokenizer, options.tokenizer_revision)
    return changed if options.chat_template is None else replace(changed, chat_template=files.chat_template)


def engine_config(options: ServerOptions, max_model_len: int) -> EngineConfig:
    """The engine's share of the program's options; raises `ConfigError`."""
    return EngineConfig(
        model=options.model or "",
        tokenizer=options.tokenizer,
        revision=options.revision,
        tokenizer_revision=options.tokenizer_revision,
        device=options.device,
        dtype=options.dtype,
        max_model_len=max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_prefill_chunk_tokens=options.max_prefill_chunk_tokens,
        kv_cache_mib=options.kv_cache_mib,
        gpu_memory_utilization=options.gpu_memory_utilization,
        enable_prefix_caching=options.prefix_cache,
        stop_preempted_request=options.stop_preempted_request,
        attention=options.attention,
        enforce_eager=options.enforce_eager,
        num_threads=options.threads,
        pin_threads=options.pin_threads,
        cpu_kernels=options.cpu_kernels,
        warmup=options.warmup,
        seed=options.seed,
    )


def make_core(files: ModelFiles, config: EngineConfig, say: Callable[[str], None]) -> EngineCore:
    """Load the weights, and build the core on them. `say` gets one line a phase."""
    started = time.perf_counter()
    from engine.runner.load import load_runner

    say(f"imports: {time.perf_counter() - started:.2f} s")
    runner = load_runner(files, config, say)
    return EngineCore(runner, config, files.eos_token_ids, BitmaskFiller(runner.vocab_size))


def make_compiler(files: ModelFiles, core: EngineCore) -> GrammarCompiler:
    """The compiler of constraints for the engine of `make_core`; its tokenizer is being read already."""
    compiler = GrammarCompiler(files.tokenizer_json, core.runner.vocab_size, files.eos_token_ids)
    compiler.warm_up()
    return compiler
