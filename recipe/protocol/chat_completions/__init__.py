"""Chat Completions: request schema, conversion, chunks and responses."""
