"""Decides what runs: sequences, KV blocks, steps. Never imports torch."""
