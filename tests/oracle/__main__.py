"""python -m tests.oracle [--module recipe] [--kinds a,b] [--filter TEXT] [--fuzz N --seed S]

Without --fuzz the golden cases, with it N random cases beside deepseek_recipe. --filter keeps the cases whose id
contains TEXT. `--module deepseek_recipe` checks the corpus itself: it must differ nowhere.
"""

import argparse
import importlib
import sys

from tests.oracle import fuzz, report
from tests.oracle.corpus import by_family, exceptions, golden_cases


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", default="recipe")
    parser.add_argument("--kinds", default="")
    parser.add_argument("--filter", default="")
    parser.add_argument("--fuzz", type=int, default=0)
    parser.add_argument("--seed", default="0")
    args = parser.parse_args()
    module = importlib.import_module(args.module)
    kinds = set(filter(None, args.kinds.split(",")))
    cases = fuzz.generate(args.seed, args.fuzz) if args.fuzz else golden_cases()
    cases = [case for case in cases if case["id"] not in exceptions() and args.filter in case["id"]]
    cases = [case for case in cases if not kinds or case["kind"] in kinds]
    failed = False
    for family, group in by_family(cases).items():
        if args.fuzz:
            tally = report.against_reference(module, importlib.import_module("deepseek_recipe"), group)
        else:
            tally = report.against_golden(module, group)
        failed |= tally.failed
        print(f"{family}: {tally}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
