"""Completions chunks of what the parser finds: one generator for each choice of a response."""

from __future__ import annotations

import time

from recipe.protocol.completions.logprobs import LogprobsWriter
from recipe.protocol.completions.response import CompletionChunk, CompletionFrame
from recipe.stream.chunk_queue import ChunkQueue
from recipe.stream.finish import FinishReason, Usage


class CompletionTally:
    """The usage of a response: each prompt once, and the completions of all choices."""

    __slots__ = ("_num_open", "_total")

    def __init__(self, num_choices: int) -> None:
        self._num_open = num_choices
        self._total = Usage(0, 0)

    def add(self, usage: Usage, *, counts_prompt: bool) -> Usage | None:
        """Add what a choice has cost at its end; the total when it was the last one."""
        prompt = (usage.prompt_tokens, usage.prompt_cache_hit_tokens) if counts_prompt else (0, 0)
        self._total = Usage(
            self._total.prompt_tokens + prompt[0],
            self._total.prompt_cache_hit_tokens + prompt[1],
            self._total.completion_tokens + usage.completion_tokens,
        )
        self._num_open -= 1
        return None if self._num_open else self._total


class CompletionChunkGenerator(ChunkQueue[CompletionChunk]):
    """Makes the chunks of one choice; a stream processor consumes it.

    `echo` is the text of the prompt where it is to be repeated. `counts_prompt` is true for one of the choices of each
    prompt. The usage follows the last choice if `reports_usage`.
    """

    __slots__ = ("_counts_prompt", "_echo", "_frame", "_index", "_logprobs", "_reports_usage", "_tally")

    def __init__(
        self,
        response_id: str,
        model: str,
        index: int,
        tally: CompletionTally,
        *,
        echo: str = "",
        counts_prompt: bool = True,
        reports_usage: bool = True,
    ) -> None:
        super().__init__()
        self._frame = CompletionFrame(response_id, "text_completion", int(time.time()), model)
        self._index = index
        self._tally = tally
        self._echo = echo
        self._counts_prompt = counts_prompt
        self._reports_usage = reports_usage
        self._logprobs = LogprobsWriter()

    def open(self, prompt: Usage, system_fingerprint: str | None) -> None:
        """The response begins; nothing is said, unless the prompt is repeated."""
        frame = self._frame
        self._frame = CompletionFrame(frame.id, frame.object, frame.created, frame.model, system_fingerprint)
        if self._echo:
            self._chunks.append(CompletionChunk(self._frame, self._index, self._echo))

    def reasoning(self, text: str, logprobs: str | None) -> None:
        """Plain text has no reasoning that is told apart."""
        self.content(text, logprobs)

    def content(self, text: str, logprobs: str | None) -> None:
        """A piece of the text."""
        written = None if logprobs is None else self._logprobs.write(logprobs)
        self._chunks.append(CompletionChunk(self._frame, self._index, text, written))

    def tool_call(self, name: str) -> None:
        """Never called: calls are not looked for."""

    def arguments(self, text: str) -> None:
        """Never called: calls are not looked for."""

    def finish(self, reason: FinishReason, usage: Usage) -> None:
        """The end of the choice, and the usage when no other choice is open."""
        self._chunks.append(CompletionChunk(self._frame, self._index, finish_reason=reason.kind))
        total = self._tally.add(usage, counts_prompt=self._counts_prompt)
        if total is not None and self._reports_usage:
            self._chunks.append(CompletionChunk(self._frame, self._index, usage=total))
