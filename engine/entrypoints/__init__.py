"""The doors: HTTP, and offline batches."""
