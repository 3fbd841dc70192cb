"""Seeded random cases of the kinds convert, render, direct and stream."""

from tests.oracle.fuzz.generate import generate

__all__ = ["generate"]
