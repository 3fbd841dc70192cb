"""No model: a fixed number of tokens at a set pace, or recorded outputs played back.

For measuring the entry layer (what is left is its own cost) and for testing clients against known outputs. A script
is a file of JSON lines, each `{"text": "..."}` or `{"token_ids": [...]}`, with an optional `"finish_reason"` of
`"stop"` (the default) or `"length"`. Requests get them in turn, over and over; text is played word by word, a token
each. Constraints are accepted and not enforced: what is played was decided before.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from engine.backend import ConstraintHandle, DeadlineExceededError, EngineDeadError, EngineRequest, EngineStats, Health
from engine.config import ConfigError
from recipe.request import OutputConstraint
from recipe.stream.inference import InferenceChunk, InferenceFinishReason, PromptUsage

_WORD = re.compile(r"\s*\S+\s*|\s+")
_MAX_TOKEN_ID = 2**32 - 1
_FINISH_REASONS = {"stop": InferenceFinishReason.Stop, "length": InferenceFinishReason.Length}
_CUT = InferenceChunk.finish(InferenceFinishReason.Length)
_FIELDS = {"text", "token_ids", "finish_reason"}


@dataclass(frozen=True, slots=True)
class Recording:
    """One output: a chunk a token, and the one that ends it."""

    chunks: tuple[InferenceChunk, ...]
    end: InferenceChunk


class MockBackend:
    """A `Backend` that plays the recordings of the file `script` in turn, or `tokens` times the same word.

    `rate` is tokens a second in each stream; 0 means as fast as the reader takes them. A request's `max_tokens` cuts
    the output short, with a length finish.
    """

    def __init__(
        self,
        tokens: int = 16,
        rate: float = 0.0,
        script: str | Path | None = None,
        system_fingerprint: str | None = None,
    ) -> None:
        if tokens < 1:
            raise ConfigError(f"mock_tokens must be >= 1. Given: {tokens}")
        if not 0 <= rate < float("inf"):
            raise ConfigError(f"mock_rate must be >= 0 tokens a second. Given: {rate}")
        self._rate = rate
        same_word = Recording(
            (InferenceChunk.text("word ", 1),) * tokens, InferenceChunk.finish(_FINISH_REASONS["stop"])
        )
        self._recordings = cycle([same_word] if script is None else load_script(Path(script)))
        self._system_fingerprint = system_fingerprint
        self._is_closed = False
        self._num_running = self._num_prompt_tokens = self._num_completion_tokens = 0

    async def infer(self, request: EngineRequest) -> AsyncGenerator[InferenceChunk, None]:
        """Yield the chunks of `request`; see `Backend.infer`. There is nothing to free when it is closed."""
        if self._is_closed:
            raise EngineDeadError("the mock backend was closed")
        recording, limit = next(self._recordings), request.sampling_params.max_tokens
        num_prompt_tokens = len(request.prompt_token_ids)
        self._num_prompt_tokens += num_prompt_tokens
        self._num_running += 1
        try:
            usage = PromptUsage(prompt_tokens=num_prompt_tokens)
            yield InferenceChunk.ready(prompt_usage=usage, system_fingerprint=self._system_fingerprint)
            started_at, interval_s = time.monotonic(), 1 / self._rate if self._rate else 0.0
            for index, chunk in enumerate(recording.chunks[:limit], 1):
                if self._rate or request.stream:
                    await self._wait_for_turn(started_at + index * interval_s)
                self._check(request)
                self._num_completion_tokens += 1
                yield chunk
        finally:
            self._num_running -= 1
        yield _CUT if limit < len(recording.chunks) else recording.end

    async def compile(self, constraint: OutputConstraint) -> ConstraintHandle:
        """Accept any constraint; none is enforced."""
        return ConstraintHandle(constraint)

    def health(self) -> Health:
        return Health(ok=not self._is_closed, reason="the mock backend was closed" if self._is_closed else "")

    def stats(self) -> EngineStats:
        return EngineStats(
            running=self._num_running,
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=self._num_completion_tokens,
        )

    async def aclose(self) -> None:
        """Refuse later requests, and end open ones at their next token. Idempotent."""
        self._is_closed = True

    async def _wait_for_turn(self, due_at: float) -> None:
        """Wait until a token is due; without a rate, let every other stream have its turn."""
        await asyncio.sleep(max(0.0, due_at - time.monotonic()) if self._rate else 0)

    def _check(self, request: EngineRequest) -> None:
        """EngineDeadError or DeadlineExceededError if no more may come."""
        if self._is_closed:
            raise EngineDeadError("the mock backend was closed")
        if request.deadline is not None and request.deadline <= time.monotonic():
            raise DeadlineExceededError("the deadline passed while the request was running")


def load_script(path: Path) -> list[Recording]:
    """Read recordings; raises `ConfigError` naming the line that cannot be played."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"mock_script cannot be read: {error}") from error
    recordings = [
        _recording(line, f"mock_script line {number}") for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not recordings:
        raise ConfigError("mock_script must hold at least one recording")
    return recordings


def _recording(line: str, where: str) -> Recording:
    try:
        entry: Any = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON: {error}") from error
    if not isinstance(entry, dict) or ("text" in entry) == ("token_ids" in entry) or entry.keys() - _FIELDS:
        raise ConfigError(f"{where} must be an object with either text or token_ids, and finish_reason at most")
    reason = entry.get("finish_reason", "stop")
    if reason not in ("stop", "length"):
        raise ConfigError(f"{where}: finish_reason must be stop or length")
    chunks = _text_chunks(entry["text"], where) if "text" in entry else _token_chunks(entry["token_ids"], where)
    return Recording(chunks, InferenceChunk.finish(_FINISH_REASONS[reason]))


def _text_chunks(text: Any, where: str) -> tuple[InferenceChunk, ...]:
    if not isinstance(text, str):
        raise ConfigError(f"{where}: text must be a string")
    try:
        return tuple(InferenceChunk.text(word, 1) for word in _WORD.findall(text))
    except UnicodeEncodeError as error:
        raise ConfigError(f"{where}: text holds a lone surrogate") from error


def _token_chunks(token_ids: Any, where: str) -> tuple[InferenceChunk, ...]:
    if not isinstance(token_ids, list) or not all(type(i) is int and 0 <= i <= _MAX_TOKEN_ID for i in token_ids):
        raise ConfigError(f"{where}: token_ids must be a list of token IDs")
    return tuple(InferenceChunk.tokens([token_id]) for token_id in token_ids)
