"""A progress bar over the prompts of an offline run, with the rates of tokens in and out."""

from __future__ import annotations

import time


class Progress:
    """Counts finished prompts on a tqdm bar; shows nothing when not `shown`. A context manager."""

    def __init__(self, num_prompts: int, *, shown: bool) -> None:
        from tqdm import tqdm

        self._bar = tqdm(total=num_prompts, desc="prompts", unit="", dynamic_ncols=True, disable=not shown)
        self._started = time.perf_counter()
        self._prompt_tokens = self._completion_tokens = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def finished(self, prompt_tokens: int, completion_tokens: int) -> None:
        """One prompt is done."""
        self._prompt_tokens += prompt_tokens
        self._completion_tokens += completion_tokens
        if not self._bar.disable:
            elapsed_s = max(time.perf_counter() - self._started, 1e-9)
            read, written = self._prompt_tokens / elapsed_s, self._completion_tokens / elapsed_s
            self._bar.set_postfix_str(f"in {read:,.0f} tok/s, out {written:,.0f} tok/s", refresh=False)
        self._bar.update()
