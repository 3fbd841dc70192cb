"""The one thread that owns the engine core: commands in through a queue, a step's outputs out in one call.

    any thread ── submit(command) ──► queue ──► [engine thread: commands, then a step, while there is work]
                                                         └──► on_outputs(outputs)   once a step, if there are any

Commands run between steps, in the order in which they came. Without work the thread sleeps in the queue. Whatever
escapes a command or a step is the engine's death: the core is closed, and `on_end` hears the reason.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

from engine.core.engine_core import EngineCore
from engine.core.sequence_output import SequenceOutput

logger = logging.getLogger(__name__)

Command = Callable[[EngineCore], None]


class EngineThread:
    """Makes the core in its thread, runs it, and closes it there. Callbacks are called from that thread."""

    def __init__(
        self,
        make_core: Callable[[], EngineCore],
        on_outputs: Callable[[list[SequenceOutput]], None],
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        self.core: Future[EngineCore] = Future()
        self._make_core = make_core
        self._on_outputs = on_outputs
        self._on_end = on_end
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, command: Command) -> None:
        """Have `command` run between two steps. Nothing happens when the thread has ended."""
        self._commands.put(command)

    def stop(self) -> None:
        """End the thread after the step it is in."""
        self._stopping = True
        self._commands.put(lambda core: None)

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        death: BaseException | None = None
        try:
            core = self._make_core()
        except BaseException as error:
            self.core.set_exception(error)
            self._on_end(error)
            return
        self.core.set_result(core)
        try:
            self._work(core)
        except BaseException as error:
            logger.critical("the engine died", exc_info=error)
            death = error
        self._close(core)
        self._on_end(death)

    def _work(self, core: EngineCore) -> None:
        while True:
            self._run_commands(core)
            if self._stopping:
                return
            if core.has_work and (outputs := core.step()):
                self._on_outputs(outputs)

    def _run_commands(self, core: EngineCore) -> None:
        """Run every command there is; without work, wait for one."""
        try:
            command = self._commands.get(block=not core.has_work)
            while True:
                command(core)
                command = self._commands.get_nowait()
        except queue.Empty:
            pass

    def _close(self, core: EngineCore) -> None:
        try:
            core.close()
        except Exception:
            logger.exception("closing the engine failed")
