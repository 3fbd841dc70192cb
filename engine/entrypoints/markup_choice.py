"""How a model with a chat template marks its output: as asked, or by its template and vocabulary."""

from __future__ import annotations

import json

from engine.entrypoints.options import OptionError, ServerOptions
from engine.runner.weights.model_files import ModelFiles
from recipe.markup.detection import detect_reasoning, detect_tools
from recipe.markup.output_markup import OutputMarkup, ReasoningMarkers, ToolMarkup
from recipe.prepare import EncodingName


def choose_markup(options: ServerOptions, files: ModelFiles, encoding: EncodingName) -> OutputMarkup | None:
    """The markup; None for the DeepSeek encodings, whose markup is part of them. Raises `OptionError`."""
    if encoding != "chat-template":
        for name in ("tool_markup", "reasoning_markers"):
            if getattr(options, name) != "auto":
                raise OptionError(
                    f"--{name.replace('_', '-')} goes with a chat template, not with --encoding {encoding}"
                )
        return None
    template = files.chat_template or ""
    vocabulary = {token["content"] for token in json.loads(files.tokenizer_json).get("added_tokens", ())}
    tools: ToolMarkup
    tools = detect_tools(template, vocabulary) if options.tool_markup == "auto" else options.tool_markup  # type: ignore[assignment]  # one of the choices
    if options.reasoning_markers == "auto":
        return OutputMarkup.of(tools, detect_reasoning(template, vocabulary), vocabulary)
    return OutputMarkup.of(tools, _given_markers(options.reasoning_markers), vocabulary)


def _given_markers(text: str) -> ReasoningMarkers | None:
    """The markers in an option; None for `none`."""
    if text == "none":
        return None
    match text.split():
        case [start, end]:
            return ReasoningMarkers(start, end)
    raise OptionError(f"--reasoning-markers must be auto, none, or two markers with a space between. Given: {text!r}")
