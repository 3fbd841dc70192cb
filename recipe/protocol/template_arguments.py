"""`chat_template_kwargs`: variables for the model's chat template, two of which switch thinking on and off."""

from __future__ import annotations

from recipe.errors import ConversionError
from recipe.json_value import JsonValue
from recipe.protocol.extension_fields import NO_FIELDS, ExtensionFields
from recipe.request import ConversionOptions, ModelVersion

_SWITCHES = ("enable_thinking", "thinking")
_RESERVED = frozenset(
    (
        "add_generation_prompt",
        "bos_token",
        "chat_template",
        "continue_final_message",
        "documents",
        "eos_token",
        "messages",
        "pad_token",
        "tokenize",
        "tools",
        "unk_token",
    )
)


def thinking_switch(fields: ExtensionFields, options: ConversionOptions) -> bool | None:
    """What the extension fields say of thinking, `enable_thinking` before the variables; None is nothing."""
    if fields is NO_FIELDS or not options.extensions.template_arguments:
        return None
    if fields.enable_thinking is not None:
        return fields.enable_thinking
    given = fields.chat_template_kwargs or {}
    for name in _SWITCHES:
        value = given.get(name)
        if value is not None and not isinstance(value, bool):
            raise ConversionError(f"chat_template_kwargs.{name} must be true or false")
    return next((given[name] for name in _SWITCHES if given.get(name) is not None), None)


def template_arguments(
    fields: ExtensionFields, options: ConversionOptions, version: ModelVersion
) -> dict[str, JsonValue]:
    """The other variables. ConversionError for one that the server sets, or one that no template would take."""
    if not fields.chat_template_kwargs or not options.extensions.template_arguments:
        return {}
    arguments = {name: value for name, value in fields.chat_template_kwargs.items() if name not in _SWITCHES}
    for name in arguments:
        if name in _RESERVED:
            raise ConversionError(f"chat_template_kwargs.{name} is set by the server")
        if version is not ModelVersion.ChatTemplate:
            raise ConversionError(f"chat_template_kwargs.{name} is not supported. The model has no chat template.")
    return arguments
