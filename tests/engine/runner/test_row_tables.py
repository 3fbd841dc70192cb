"""Block tables that are kept from step to step: what is written, and how much of it a device has to be sent."""

from __future__ import annotations

from engine.core.scheduler_output import ScheduledSequence
from engine.runner.row_tables import RowTables
from tests.engine.runner.driving import make_sequence


def item(*blocks: int) -> ScheduledSequence:
    sequence = make_sequence([0])
    sequence.block_table = list(blocks)
    return ScheduledSequence(sequence, 0, 1, True)


def test_only_as_many_columns_are_sent_as_the_longest_change_has() -> None:
    tables, long, short = RowTables(4, 100, 99), item(*range(50)), item(7)
    assert tables.update([long, short], 2) == 50
    assert tables.update([long, short], 2) == 0
    short.sequence.block_table.append(8)
    assert tables.update([long, short], 2) == 2
    assert tables.array[1, :3].tolist() == [7, 8, 99]
    assert tables.update([long], 2) == 1
    assert tables.array[1, 0] == 99
    assert tables.update([], 1) == 1


def test_a_sequence_that_lost_its_blocks_is_written_anew() -> None:
    tables, only = RowTables(1, 10, 9), item(1, 2, 3)
    tables.update([only], 1)
    only.sequence.block_table, only.sequence.num_preemptions = [4, 5, 6], 1
    assert tables.update([only], 1) == 3
    assert tables.array[0, :3].tolist() == [4, 5, 6]
