"""How the options look in `--help`: short signatures, choices in the text, defaults with their units."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, Field
from typing import Any

WIDTH = 120
_UNITS = {"_s": " s", "_seconds": " s", "_mib": " MiB", "_kib": " KiB"}
_VALUES: dict[type, str] = {int: "N", float: "X", str: "TEXT"}


class OptionHelp(argparse.HelpFormatter):
    """argparse's formatter with a usage of one line, and one signature for a switch and its opposite."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=38, width=WIDTH)

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage("%(prog)s [--model PATH|NAME] [options]", actions, groups, prefix)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):
            return "--[no-]" + action.option_strings[0].removeprefix("--")
        return super()._format_action_invocation(action)


def metavar_of(item: Field[Any], kind: type) -> str:
    """What stands for the value of an option in its signature."""
    return item.metadata["metavar"] or ("NAME" if item.metadata["choices"] else _VALUES[kind])


def text_of(item: Field[Any]) -> str:
    """The help of an option: what it is, what it may be, and what it is by default."""
    choices = item.metadata["choices"]
    among = f": {', '.join(choices)}" if choices else ""
    return f"{item.metadata['text']}{among} ({item.metadata['shown'] or _default_of(item)})".replace("%", "%%")


def _default_of(item: Field[Any]) -> str:
    default = item.default if item.default is not MISSING else None
    if default is None:
        return "none"
    if isinstance(default, bool):
        return "on" if default else "off"
    if not default and item.metadata["group"] == "limits":
        return "no limit"
    unit = next((unit for ending, unit in _UNITS.items() if item.name.endswith(ending)), "")
    return f"{default:g}{unit}" if isinstance(default, float) else f"{default}{unit}"
