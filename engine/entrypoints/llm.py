"""The offline door: `LLM(model).generate(prompts)`, on the assembly line of the server.

Files, engine core and chat preparation are made by the same code as for the server. What differs is who drives: here
the calling thread steps the core itself, with all prompts queued at once.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from engine.backend import EngineDeadError, RequestRefusedError
from engine.config import ConfigError, EngineConfig
from engine.core import sampling_params as core
from engine.core.engine_core import EngineCore
from engine.entrypoints.assembly import make_core, open_files
from engine.entrypoints.completion_text import Detokenizer
from engine.entrypoints.offline_batch import OfflineBatch, OfflineRequest
from engine.entrypoints.offline_chat import OfflineChat
from engine.entrypoints.offline_prompts import Prompt, PromptTexts, read_prompts
from engine.entrypoints.options import OptionError, ServerOptions
from engine.entrypoints.progress import Progress
from engine.entrypoints.request_output import RequestOutput
from engine.entrypoints.sampling_params import SamplingParams
from engine.entrypoints.served_model import prepare_config
from engine.entrypoints.statistics import Statistics
from engine.runner.weights.errors import ModelLoadError
from recipe.bad_words import bad_word_token_ids
from recipe.encoding.tokenizer import Tokenizer

Messages: TypeAlias = Sequence[Mapping[str, Any]]
Params: TypeAlias = core.SamplingParams | Sequence[core.SamplingParams]

_FLAG = re.compile(r"--([a-z]+(?:-[a-z]+)*)")
_DOOR_ARGUMENTS = ("chat_template", "encoding", "disable_log_stats")
_OFFLINE: dict[str, Any] = {"max_num_seqs": 256, "max_prefill_chunk_tokens": None, "stop_preempted_request": False}
"""What a run that waits for the last token needs: large batches, whole prompts, and no sequence given up."""


class LLM:
    """A model in this process, for batches of prompts. One call runs at a time; a context manager.

    model: a GGUF file, a Hugging Face directory or a hub name; None is the embedded default. `tokenizer` is another
    place to take the tokenizer from. `seed` makes the draws of requests without a seed of their own repeatable.
    `gpu_memory_utilization` is the share of a GPU's memory to use. `decode_sequence=False` leaves the outputs' texts
    empty: token IDs only.

    engine_args: the fields of `EngineConfig` by their names (max_model_len, max_num_seqs, dtype, ...), and
    `chat_template` (a file), `encoding` (the prompt format of `chat`), `disable_log_stats=False` (a line of statistics
    on stderr every 10 s of a run).

    Raises `ConfigError` for a setting that cannot work, `ModelLoadError` for a model that cannot be loaded or does not
    fit.
    """

    def __init__(
        self,
        model: str | Path | None,
        tokenizer: str | None = None,
        trust_remote_code: bool = False,
        expert_parallel_size: int = 1,
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        seed: int | None = 0,
        gpu_memory_utilization: float = 0.9,
        decode_sequence: bool = True,
        **engine_args: Any,
    ) -> None:
        _refuse_what_is_not_offered(trust_remote_code, expert_parallel_size, engine_args)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # prompts come in large batches, and nothing forks
        door = {name: engine_args.pop(name) for name in _DOOR_ARGUMENTS if name in engine_args}
        self._logs_statistics = not door.pop("disable_log_stats", True)
        config = EngineConfig(
            model="" if model is None else str(model),
            tokenizer=tokenizer,
            revision=revision,
            tokenizer_revision=tokenizer_revision,
            seed=seed,
            gpu_memory_utilization=gpu_memory_utilization,
            **{**_OFFLINE, **engine_args},
        )
        self._options = ServerOptions(
            model=config.model or None,
            tokenizer=tokenizer,
            revision=revision,
            tokenizer_revision=tokenizer_revision,
            **door,
        )
        self._decode_sequence = decode_sequence
        self._lock = threading.Lock()
        self._arrivals = count()
        with _speaking_of_arguments():
            self._files = open_files(self._options)
            self._core: EngineCore | None = make_core(self._files, config, _say)

    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: Params | None = None, use_tqdm: bool = True
    ) -> list[RequestOutput]:
        """Complete each prompt; the outputs are in the order of the prompts.

        `prompts` are texts or lists of token IDs (also as `{"prompt": ...}` or `{"prompt_token_ids": ...}`), or one of
        these. A text is the caller's own: the spelling of a special token in it is that token (use `chat` for what
        users typed), and the BOS token is put in front where the model was trained with one. `sampling_params` is one
        for all or a list with one for each; without any, the model's own defaults apply. Raises `RequestRefusedError`,
        naming the prompt, before anything has run.
        """
        given = read_prompts(prompts)
        params = self._params(sampling_params, len(given))
        requests = [
            OfflineRequest(self._next_id(), prompt if isinstance(prompt, str) else None, token_ids, setting)
            for prompt, token_ids, setting in zip(given, self._encode(given), params, strict=True)
        ]
        return self._run(requests, use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: Params | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_options: Mapping[str, Any] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer each conversation, given as Chat Completions messages; or one. The outputs' texts are as generated.

        What the messages say is ordinary text, also where it spells a special token. `chat_options` are other fields of
        a Chat Completions request that shape the prompt or bind the answer (`OPTIONS` of `offline_chat`):
        `reasoning_effort`, `response_format` and so on. Raises `RequestRefusedError`, naming the conversation.
        """
        conversations: list[Any] = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        shaping = {**(chat_options or {}), **({} if tools is None else {"tools": list(tools)})}
        params = self._params(sampling_params, len(conversations))
        requests = [
            self._chat_request(place, conversation, shaping, setting)
            for place, (conversation, setting) in enumerate(zip(conversations, params, strict=True))
        ]
        return self._run(requests, use_tqdm)

    def get_default_sampling_params(self) -> SamplingParams:
        """The settings that the model's files recommend; where they say nothing, those of `SamplingParams`."""
        recommended: dict[str, Any] = {**self._files.generation}
        return SamplingParams(**recommended)

    def get_tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def reset_prefix_cache(self) -> None:
        """Forget the KV of earlier prompts."""
        with self._lock:
            self._live_core().reset_prefix_cache()

    def close(self) -> None:
        """Give weights and KV cache back. Idempotent."""
        with self._lock:
            engine, self._core = self._core, None
            if engine is not None:
                engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer.from_str(self._files.tokenizer_json)

    @cached_property
    def _prompt_texts(self) -> PromptTexts:
        return PromptTexts(self._tokenizer, self._files)

    @cached_property
    def _detokenizer(self) -> Detokenizer:
        return Detokenizer(self._tokenizer)

    @cached_property
    def _chat(self) -> OfflineChat:
        engine = self._live_core()
        with _speaking_of_arguments():
            config = prepare_config(self._options, self._files, engine.max_model_len)
        return OfflineChat(self._files, config, engine.runner.vocab_size)

    def _next_id(self) -> str:
        return str(next(self._arrivals))

    def _live_core(self) -> EngineCore:
        if self._core is None:
            raise EngineDeadError("this LLM was closed")
        return self._core

    def _encode(self, prompts: Sequence[str | list[int]]) -> list[list[int]]:
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        encoded = iter(self._prompt_texts.encode(texts) if texts else ())
        return [next(encoded) if isinstance(prompt, str) else prompt for prompt in prompts]

    def _chat_request(
        self, place: int, messages: Messages, options: Mapping[str, Any], params: SamplingParams
    ) -> OfflineRequest:
        try:
            token_ids, constraint = self._chat.prepare(messages, options)
        except RequestRefusedError as error:
            raise RequestRefusedError(f"conversation {place}: {error}") from None
        return OfflineRequest(self._next_id(), None, token_ids, params, constraint)

    def _params(self, given: Params | None, number: int) -> list[SamplingParams]:
        """One setting a prompt; raises `RequestRefusedError` when they are not as many, or ask for what is off."""
        if given is None or isinstance(given, core.SamplingParams):
            params = [self._resolved(given or self.get_default_sampling_params())] * number
        else:
            params = [self._resolved(setting) for setting in given]
        if len(params) != number:
            raise RequestRefusedError(f"there are {len(params)} sampling_params for {number} prompts")
        if not self._decode_sequence and any(setting.stop_strings for setting in params):
            raise RequestRefusedError("stop strings need decode_sequence=True; stop_token_ids do not")
        return params

    def _resolved(self, params: core.SamplingParams) -> SamplingParams:
        """The settings with their fields for texts, and with the tokens of their bad words."""
        if not isinstance(params, SamplingParams):
            return SamplingParams(**msgspec.structs.asdict(params))
        if not params.bad_words:
            return params
        words = bad_word_token_ids(params.bad_words, self._tokenizer)
        return msgspec.structs.replace(params, bad_words_token_ids=[*params.bad_words_token_ids, *words])

    def _run(self, requests: list[OfflineRequest], use_tqdm: bool) -> list[RequestOutput]:
        with self._lock, Progress(len(requests), shown=use_tqdm) as progress:
            engine = self._live_core()
            batch = OfflineBatch(engine, self._detokenizer if self._decode_sequence else None, progress)
            try:
                return batch.run(requests, self._on_step(engine))
            except RequestRefusedError:
                raise
            except Exception as error:  # the engine is in an unknown state
                self._core = None
                engine.close()
                raise EngineDeadError(f"the engine died: {type(error).__name__}: {error}") from error

    def _on_step(self, engine: EngineCore) -> Callable[[], None]:
        """What follows each step: a line of statistics when one is due, if they are wanted."""
        if not self._logs_statistics:
            return lambda: None
        statistics = Statistics(engine.stats)

        def write_line() -> None:
            if (line := statistics.due(time.monotonic())) is not None:
                _say(line)

        return write_line


def _refuse_what_is_not_offered(
    trust_remote_code: bool, expert_parallel_size: int, engine_args: Mapping[str, Any]
) -> None:
    if trust_remote_code:
        raise ConfigError(
            "trust_remote_code=True is refused: code that comes with a model is never run. The architectures are built "
            "in; for a prompt format of your own give chat_template=FILE"
        )
    if expert_parallel_size != 1:
        raise ConfigError(
            f"expert_parallel_size must be 1, as this engine computes on one device. Given: {expert_parallel_size}. To "
            "spread experts over several, use vLLM or SGLang with expert parallelism; here gpu_memory_utilization and "
            "a smaller dtype decide what fits"
        )
    known = {*EngineConfig.field_names(), *_DOOR_ARGUMENTS}
    for name in engine_args:
        if name not in known:
            raise ConfigError(f"there is no engine argument {name!r}; there are {', '.join(sorted(known))}")


@contextmanager
def _speaking_of_arguments() -> Iterator[None]:
    """What the server calls `--kv-cache-mib` is `kv_cache_mib` here, also in messages."""
    try:
        yield
    except (ModelLoadError, OptionError) as error:
        raise type(error)(_FLAG.sub(lambda flag: flag[1].replace("-", "_"), str(error))) from error


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
