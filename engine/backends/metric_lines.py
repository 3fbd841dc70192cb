"""Reads single metrics out of Prometheus' text format, which can be a long text of hundreds of metrics."""

from __future__ import annotations

import math
import re


class MetricLines:
    """Finds the lines of the metrics with these full names."""

    def __init__(self, *names: str) -> None:
        alternatives = "|".join(map(re.escape, names)).encode()
        self._line = re.compile(rb"^(" + alternatives + rb")(?:\{([^\n]*)\})? (\S+)", re.MULTILINE)

    def lines(self, body: bytes) -> list[tuple[bytes, bytes, bytes]]:
        """Name, labels and value of each line."""
        return self._line.findall(body)

    def sums(self, body: bytes) -> dict[str, float]:
        """Values by name, summed: an engine with several ranks has a line for each. What is no number is left out."""
        sums: dict[str, float] = {}
        for name, _, text in self.lines(body):
            if math.isfinite(value := _number(text)):
                sums[name.decode()] = sums.get(name.decode(), 0.0) + value
        return sums


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
