"""The golden cases: inputs with the outcomes of deepseek_recipe 0.2.0, and which of them are not copied."""

import functools
import gzip
import json
from pathlib import Path

from tests.oracle.outcome import Json

HERE = Path(__file__).parent


@functools.cache
def golden_cases() -> list[Json]:
    """All cases. A render case that names another one (`same_as`) has the input of that one."""
    with gzip.open(HERE / "golden_public.jsonl.gz", "rt", encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines]
    by_id = {case["id"]: case for case in cases}
    for case in cases:
        if same_as := case["input"].get("same_as"):
            case["input"] = by_id[same_as]["input"]
    return cases


@functools.cache
def exceptions() -> dict[str, str]:
    """The reason of each golden case whose outcome the project does not copy, by case id."""
    lines = (HERE / "exceptions.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("\t", 1) for line in lines if line and not line.startswith("#"))
    return dict(pairs)


def by_family(cases: list[Json]) -> dict[str, list[Json]]:
    """Cases grouped under `kind:family`, in the order of their first case."""
    groups: dict[str, list[Json]] = {}
    for case in cases:
        groups.setdefault(f"{case['kind']}:{case.get('family', case['kind'])}", []).append(case)
    return groups
