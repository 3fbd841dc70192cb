"""An assistant message under construction, from blocks of thinking, text and tool use in any order."""

from __future__ import annotations

from itertools import dropwhile
from operator import not_

from recipe.conversation import AssistantMessage, ToolCall
from recipe.protocol.content import SEPARATOR


class AssistantTurn:
    """Collects the blocks by kind; the order of kinds does not matter to the conversation."""

    __slots__ = ("calls", "texts", "thoughts")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[ToolCall] = []

    def message(self) -> AssistantMessage:
        """The message. Empty texts before the first other text leave nothing, not even a blank line."""
        content = SEPARATOR.join(dropwhile(not_, self.texts))
        reasoning = SEPARATOR.join(self.thoughts) if self.thoughts else None
        return AssistantMessage.trusted(content, reasoning, self.calls or None)
