"""Whether the model behind a chat template thinks, told by what the template knows of it."""

from __future__ import annotations

from jinja2 import TemplateSyntaxError, meta

from recipe.encoding.template_environment import template_environment
from recipe.request import ThinkingSupport

_SWITCHES = frozenset(("enable_thinking", "thinking"))
_MARKERS = ("<think>", "</think>")


def template_thinking(template: str) -> ThinkingSupport:
    """A template that asks for a switch has one; one that writes or cuts the markers of reasoning belongs to a model
    that always thinks; any other to one that never does. A template that is no valid Jinja is left to its encoding.
    """
    environment = template_environment()
    try:
        asked_for = meta.find_undeclared_variables(environment.parse(template))
    except TemplateSyntaxError:
        return ThinkingSupport.Never
    if asked_for & _SWITCHES:
        return ThinkingSupport.Switchable
    return ThinkingSupport.Always if any(marker in template for marker in _MARKERS) else ThinkingSupport.Never
