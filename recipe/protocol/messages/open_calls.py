"""The tool calls of the last assistant message, which have to be answered at once, each by one result."""

from __future__ import annotations

from recipe.errors import ConversionError


class OpenCalls:
    """Call ids and whether they have their result. Errors are ConversionErrors that name the place (`where`)."""

    __slots__ = ("_answered",)

    def __init__(self) -> None:
        self._answered: dict[str, bool] = {}

    def open(self, call_id: str, where: str) -> None:
        """Record a call; ids may not repeat within a message."""
        if call_id in self._answered:
            raise ConversionError(f"{where}: `tool_use` ids must be unique")
        self._answered[call_id] = False

    def answer(self, call_id: str, where: str) -> None:
        """Record a result; it must be the only one, and of a call of the last assistant message."""
        answered = self._answered.get(call_id)
        if answered is None:
            raise ConversionError(
                f"unexpected `{where}: tool_use_id` found in `tool_result` blocks: {call_id}. "
                "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
        if answered:
            raise ConversionError(
                f"{where}: each tool_use must have a single result. "
                f"Found multiple `tool_result` blocks with id: {call_id}"
            )
        self._answered[call_id] = True

    def require_answered(self, where: str) -> None:
        """Every call must have its result by now. `where` includes its colon."""
        unanswered = sorted(call_id for call_id, answered in self._answered.items() if not answered)
        if unanswered:
            raise ConversionError(
                f"{where}`tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(unanswered)}. "
                "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
            )

    def clear(self) -> None:
        """Forget the calls: results come in the next message or never."""
        self._answered.clear()
