"""One file an architecture, and the registry that finds it."""
