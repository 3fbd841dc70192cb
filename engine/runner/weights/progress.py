"""A bar that shows, on a terminal, how far loading has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm


@contextmanager
def loading_bar(num_tensors: int) -> Iterator[Callable[[int], object]]:
    """Yields a function to be told how many more of `num_tensors` are done.

    The bar is drawn on stderr, only if that is a terminal, and is gone when loading is.
    """
    with tqdm(total=num_tensors, desc="weights", unit=" tensors", leave=False, disable=None) as bar:
        yield bar.update
