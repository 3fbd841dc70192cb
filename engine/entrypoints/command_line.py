"""The command line and the `--config` file: argparse built from the fields of `ServerOptions`, one line for a mistake.

A field `max_body_mib` is the flag `--max-body-mib` and the key `max_body_mib` of a TOML file; the command line wins
over the file, the file over the defaults.
"""

from __future__ import annotations

import argparse
import tomllib
import typing
from collections.abc import Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, NoReturn

from engine.entrypoints.option_help import OptionHelp, metavar_of, text_of
from engine.entrypoints.options import GROUPS, OptionError, ServerOptions

PROGRAM = "server.py"
HELP_GROUP = "server"


def parse_options(arguments: Sequence[str] | None = None) -> ServerOptions:
    """Read the command line (default: `sys.argv`), and the file `--config` names; exits with 2 for a wrong option."""
    parser = _build_parser()
    given = vars(parser.parse_args(arguments))
    try:
        values = _read_config(given["config"]) if given.get("config") else {}
        return ServerOptions(**(values | given))
    except OptionError as error:
        parser.exit(2, f"{PROGRAM}: {error}\n")


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message.removeprefix('argument ')}; --help lists the options\n")


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROGRAM,
        description="Serve a language model over OpenAI Chat Completions, OpenAI Responses and Anthropic Messages. In "
        "parentheses: what holds where an option is not given; 0 is no limit, where nothing else is said.",
        formatter_class=OptionHelp,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        add_help=False,
    )
    types = typing.get_type_hints(ServerOptions)
    for name in GROUPS:
        group = parser.add_argument_group(name)
        for item in fields(ServerOptions):
            if item.metadata["group"] == name:
                _add_argument(group, item, types[item.name])
        if name == HELP_GROUP:
            group.add_argument("-h", "--help", action="help", help="show this and end")
    return parser


def _add_argument(group: Any, item: Field[Any], annotation: Any) -> None:
    flag, kind = "--" + item.name.replace("_", "-"), _value_type(annotation)
    if annotation is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, help=text_of(item))
        return
    keywords: dict[str, Any] = {"help": text_of(item), "type": kind, "metavar": metavar_of(item, kind)}
    if item.metadata["choices"]:
        keywords["choices"] = item.metadata["choices"]
    if annotation == list[str]:
        keywords["action"] = "append"
    group.add_argument(flag, **keywords)


def _value_type(annotation: Any) -> type:
    """`int` for `int`, `str` for `str | None` and `list[str]`, and so on."""
    return next((kind for kind in (int, float) if annotation in (kind, kind | None)), str)


def _read_config(path: str) -> dict[str, Any]:
    """The options in a TOML file, checked for names, types and choices."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(f"--config {path}: {error}") from None
    types, known = typing.get_type_hints(ServerOptions), {item.name: item for item in fields(ServerOptions)}
    for name, value in values.items():
        if name not in known or name == "config":
            raise OptionError(f"--config {path}: there is no option {name!r}")
        _check_value(path, known[name], value, types[name])
    return values


def _check_value(path: str, item: Field[Any], value: Any, annotation: Any) -> None:
    wanted: Any = list if annotation == list[str] else bool if annotation is bool else _value_type(annotation)
    fits = isinstance(value, (int, float) if wanted is float else wanted)
    if not fits or (isinstance(value, bool) and wanted is not bool) or not all(map(_is_text, _members(value))):
        raise OptionError(f"--config {path}: {item.name} has the wrong type: {value!r:.80}")
    choices = item.metadata["choices"]
    if choices and value not in choices:
        raise OptionError(f"--config {path}: {item.name} must be one of {', '.join(choices)}. Given: {value!r:.80}")


def _members(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
