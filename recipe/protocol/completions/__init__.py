"""Completions: text continued as it is, without a conversation around it."""
