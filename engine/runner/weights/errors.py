"""What goes wrong with model files, in one line that says what to do."""

from __future__ import annotations


class ModelLoadError(ValueError):
    """A model that cannot be loaded; the message names the file or tensor and what to change."""
