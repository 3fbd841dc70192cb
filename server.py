#!/usr/bin/env python3
"""The program: `python server.py --model PATH_OR_NAME`. `--help` lists the options.

Worker processes import this module again, so it imports nothing itself.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Parse the command line and serve until told to stop; returns the exit code."""
    from engine.entrypoints.command_line import parse_options
    from engine.entrypoints.lifecycle import run

    return run(parse_options())


if __name__ == "__main__":
    sys.exit(main())
