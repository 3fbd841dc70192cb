"""Model output to protocol events: decode, parse, generate.

`StreamProcessor` is the entry: it takes the engine's `InferenceChunk`s and returns the chunks of one protocol.
"""
