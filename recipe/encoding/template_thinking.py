"""Whether the model behind a chat template thinks, told by what the template knows of it."""

from __future__ import annotations

from jinja2 import TemplateSyntaxError, meta

from recipe.encoding.template_environment import template_environment
from recipe.markup.output_markup import ReasoningMarkers
from recipe.request import ThinkingSupport

_SWITCHES = frozenset(("enable_thinking", "thinking"))

_THINK = ReasoningMarkers("<think>", "</think>")


def template_thinking(template: str, markers: ReasoningMarkers | None = _THINK) -> ThinkingSupport:
    """A template that asks for a switch has one; one that writes or cuts the markers of reasoning belongs to a model
    that always thinks; any other, and one of a model without markers, to one that never does. A template that is no
    valid Jinja is left to its encoding.
    """
    if markers is None:
        return ThinkingSupport.Never
    environment = template_environment()
    try:
        asked_for = meta.find_undeclared_variables(environment.parse(template))
    except TemplateSyntaxError:
        return ThinkingSupport.Never
    if asked_for & _SWITCHES:
        return ThinkingSupport.Switchable
    return ThinkingSupport.Always if any(marker in template for marker in markers) else ThinkingSupport.Never
