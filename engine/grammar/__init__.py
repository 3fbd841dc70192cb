"""Constrained decoding: constraint -> compiled grammar -> matcher -> bitmask."""
