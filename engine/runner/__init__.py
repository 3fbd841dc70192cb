"""Computes what the core decided: models, KV cache, attention, sampling, weights."""
