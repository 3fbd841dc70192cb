"""The function names that the model sees for tools in namespaces.

Models know flat names only: `crm::get` on V4.1, `crm__get` on V4. A plain function keeps its name; a name that is
taken gets the first free suffix `_1`, `_2`, ...
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, count

from recipe.request import ModelVersion


class NamespaceNames:
    """Gives out the function names of one request, tools first, then the calls of the history.

    `tool_map` maps each function name of a declared tool to its (namespace, local name).
    """

    __slots__ = ("_join", "_known", "_taken", "tool_map")

    def __init__(self, version: ModelVersion, plain_names: Iterable[str] = ()) -> None:
        self._join = _join_v41 if version is ModelVersion.DeepseekV41Flash else _join_v4
        self._taken = set(plain_names)
        self._known: dict[tuple[str, str], str] = {}
        self.tool_map: dict[str, tuple[str, str]] = {}

    def declare(self, namespace: str, name: str) -> str:
        """A new function name for a declared tool, even when the same pair was declared before."""
        function_name = self._first_free(self._join(namespace, name))
        self._taken.add(function_name)
        self._known.setdefault((namespace, name), function_name)
        self.tool_map[function_name] = (namespace, name)
        return function_name

    def of_call(self, namespace: str, name: str) -> str:
        """The function name of a call in the history: that of the first tool declared so, else a new one."""
        function_name = self._known.get((namespace, name))
        if function_name is None:
            function_name = self._first_free(self._join(namespace, name))
            self._taken.add(function_name)
            self._known[namespace, name] = function_name
        return function_name

    def _first_free(self, name: str) -> str:
        candidates = chain((name,), (f"{name}_{suffix}" for suffix in count(1)))
        return next(candidate for candidate in candidates if candidate not in self._taken)


def _join_v41(namespace: str, name: str) -> str:
    return f"{namespace}::{name}"


def _join_v4(namespace: str, name: str) -> str:
    joint = "" if namespace.endswith("_") or name.startswith("_") else "__"
    return f"{namespace}{joint}{name}"
