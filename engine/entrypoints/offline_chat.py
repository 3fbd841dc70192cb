"""Conversations of an offline run to prompts, by the server's own preparation; and their constraints to grammars."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from engine.backend import ConstraintHandle, RequestRefusedError
from engine.grammar.compiler import compile_grammar
from engine.grammar.vocabulary import Vocabulary
from engine.runner.weights.model_files import ModelFiles
from recipe.prepare import PrepareConfig, Preparer, RejectedRequest
from recipe.request import OutputConstraint

OPTIONS = frozenset({
    "chat_template_kwargs", "enable_thinking", "parallel_tool_calls", "reasoning_effort", "response_format",
    "structured_outputs", "thinking", "tool_choice", "tools",
})  # fmt: skip
"""The fields of a Chat Completions request that shape the prompt or bind the answer."""


class OfflineChat:
    """Prepares conversations for one model. `vocab_size` is the number of logits."""

    def __init__(self, files: ModelFiles, config: PrepareConfig, vocab_size: int) -> None:
        self._files = files
        self._preparer = Preparer(config)
        self._vocab_size = vocab_size
        self._grammars: dict[OutputConstraint, ConstraintHandle] = {}

    def prepare(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> tuple[list[int], ConstraintHandle | None]:
        """The token IDs of a conversation, and what its answer is bound to.

        Raises `RequestRefusedError` for a conversation or an option that cannot be.
        """
        if others := sorted(options.keys() - OPTIONS):
            raise RequestRefusedError(
                f"{others[0]} is no option of a chat prompt: these are {', '.join(sorted(OPTIONS))}. How to sample is "
                "said by SamplingParams"
            )
        body = {"model": self._files.name, "messages": messages, **options}
        prepared = self._preparer.prepare("chat_completions", json.dumps(body).encode(), "offline")
        if isinstance(prepared, RejectedRequest):
            raise RequestRefusedError(prepared.message)
        if prepared.image_sources:
            raise RequestRefusedError("this model does not take images")
        constraint = prepared.inference_options.output_constraint
        return array("I", prepared.token_ids).tolist(), None if constraint is None else self._handle(constraint)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary(self._files.tokenizer_json, self._vocab_size, self._files.eos_token_ids)

    def _handle(self, constraint: OutputConstraint) -> ConstraintHandle:
        """The grammar of `constraint`, compiled once; raises `ConstraintRefusedError`."""
        if constraint not in self._grammars:
            self._grammars[constraint] = ConstraintHandle(compile_grammar(constraint, self._vocabulary))
        return self._grammars[constraint]
