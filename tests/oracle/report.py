"""Runs cases and says what differs, in a form that reads well as the message of a failed test."""

import json
from collections.abc import Iterable

from tests.oracle.compare import differences, verdict
from tests.oracle.execute import run_case
from tests.oracle.outcome import Json, Module

SHOWN_CASES = 5
SHOWN_DIFFERENCES = 6


class Tally:
    """Counts verdicts and keeps a description of the first problems."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(("identical", "different", "crashed", "skipped"), 0)
        self.problems: list[str] = []

    def add(self, case: Json, want: Json, got: Json) -> None:
        result = verdict(want, got)
        self.counts[result] += 1
        if result in ("different", "crashed") and len(self.problems) < SHOWN_CASES:
            self.problems.append(describe(result, case, want, got))

    @property
    def failed(self) -> bool:
        return bool(self.problems)

    def __str__(self) -> str:
        return "\n".join([", ".join(f"{n} {word}" for word, n in self.counts.items()), *self.problems])


def describe(result: str, case: Json, want: Json, got: Json) -> str:
    given = json.dumps(case["input"], ensure_ascii=False)
    head = f"\n{result}: {case['id']}\n  input: {given[:500]}{'...' if len(given) > 500 else ''}"
    return "\n".join([head, *(f"  {line}" for line in differences(want, got)[:SHOWN_DIFFERENCES])])


def against_golden(mod: Module, cases: Iterable[Json]) -> Tally:
    """Runs golden cases; `case["expected"]` is what they have to lead to."""
    tally = Tally()
    for case in cases:
        tally.add(case, case["expected"], run_case(mod, case))
    return tally


def against_reference(mod: Module, reference: Module, cases: Iterable[Json]) -> Tally:
    """Runs cases with both implementations."""
    tally = Tally()
    for case in cases:
        tally.add(case, run_case(reference, case), run_case(mod, case))
    return tally
