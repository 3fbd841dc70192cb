"""Ways in to an engine: local (this process), remote (a fleet), mock (no model)."""
