from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from engine.core.block_manager import BlockIntegrityError, BlockManager
from engine.core.sampling_params import SamplingParams
from engine.core.sequence import Sequence

SIZE = 4


def sequence(tokens: list[int], salt: bytes = b"") -> Sequence:
    return Sequence("r", list(tokens), len(tokens), SamplingParams(), 0, frozenset(), 1000, 0, cache_salt=salt)


def computed(blocks: BlockManager, tokens: list[int], salt: bytes = b"") -> Sequence:
    """A sequence that was admitted and whose tokens are all computed."""
    made = sequence(tokens, salt)
    assert blocks.admit(made)
    made.num_computed_tokens = made.num_tokens
    blocks.publish(made)
    return made


def test_a_prompt_seen_before_is_found_in_whole_blocks() -> None:
    blocks = BlockManager(16, SIZE)
    first = computed(blocks, [*range(10)])
    second = sequence([*range(10)])
    assert blocks.admit(second)
    assert second.num_computed_tokens == 8
    assert second.block_table[:2] == first.block_table[:2]
    assert second.block_table[2] != first.block_table[2]
    blocks.check_integrity([first, second])


def test_the_last_token_is_always_computed() -> None:
    blocks = BlockManager(16, SIZE)
    computed(blocks, [*range(8)])
    again = sequence([*range(8)])
    assert blocks.admit(again)
    assert again.num_computed_tokens == 4


def test_a_hit_survives_release_until_the_blocks_are_needed() -> None:
    blocks = BlockManager(4, SIZE)
    blocks.release(computed(blocks, [*range(9)]))
    assert blocks.num_used == 0
    again = sequence([*range(9)])
    assert blocks.admit(again)
    assert again.num_computed_tokens == 8
    blocks.release(again)
    blocks.release(computed(blocks, [*range(100, 116)]))
    forgotten = sequence([*range(9)])
    assert blocks.admit(forgotten)
    assert forgotten.num_computed_tokens == 0


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    blocks = BlockManager(4, SIZE)
    old, new = [*range(4)], [*range(10, 14)]
    for tokens in (old, new, old):  # touched again: `new` is now the older one
        blocks.release(computed(blocks, [*tokens, 99]))
    blocks.release(computed(blocks, [*range(50, 61)]))
    kept, evicted = sequence([*old, 99]), sequence([*new, 99])
    assert blocks.admit(kept) and blocks.admit(evicted)
    assert (kept.num_computed_tokens, evicted.num_computed_tokens) == (4, 0)


def test_the_end_of_a_prompt_is_evicted_before_its_beginning() -> None:
    blocks = BlockManager(4, SIZE)
    blocks.release(computed(blocks, [*range(16)]))
    blocks.release(computed(blocks, [77]))
    again = sequence([*range(16)])
    assert blocks.admit(again)
    assert again.num_computed_tokens == 12


@pytest.mark.parametrize(("one", "other"), [(b"alice", b"bob"), (b"", b"bob")])
def test_another_salt_never_hits(one: bytes, other: bytes) -> None:
    blocks = BlockManager(16, SIZE)
    computed(blocks, [*range(10)], one)
    foreign, own = sequence([*range(10)], other), sequence([*range(10)], one)
    assert blocks.admit(foreign) and blocks.admit(own)
    assert (foreign.num_computed_tokens, own.num_computed_tokens) == (0, 8)


def test_equal_blocks_after_different_beginnings_do_not_match() -> None:
    blocks = BlockManager(16, SIZE)
    computed(blocks, [1, 1, 1, 1, 5, 5, 5, 5, 0])
    other = sequence([2, 2, 2, 2, 5, 5, 5, 5, 0])
    assert blocks.admit(other)
    assert other.num_computed_tokens == 0


def test_blocks_are_found_only_once_they_are_computed() -> None:
    blocks = BlockManager(16, SIZE)
    first, second = sequence([*range(10)]), sequence([*range(10)])
    assert blocks.admit(first)
    first.num_computed_tokens = 5
    blocks.publish(first)
    assert blocks.admit(second)
    assert second.num_computed_tokens == 4


def test_without_caching_nothing_is_hashed_or_found() -> None:
    blocks = BlockManager(16, SIZE, enable_prefix_caching=False)
    first = computed(blocks, [*range(10)])
    again = sequence([*range(10)])
    assert blocks.admit(again)
    assert (again.num_computed_tokens, first.block_hashes, again.block_hashes) == (0, [], [])


def test_a_reset_forgets_everything_and_leaves_the_running_alone() -> None:
    blocks = BlockManager(16, SIZE)
    running = computed(blocks, [*range(10)])
    blocks.release(computed(blocks, [*range(20, 30)]))
    blocks.reset_prefix_cache()
    blocks.check_integrity([running])
    for tokens in ([*range(10)], [*range(20, 30)]):
        fresh = sequence(tokens)
        assert blocks.admit(fresh)
        assert fresh.num_computed_tokens == 0
        blocks.release(fresh)
    blocks.release(running)
    blocks.check_integrity()


def test_admission_is_all_or_nothing_and_respects_the_spare_blocks() -> None:
    blocks = BlockManager(4, SIZE)
    assert not blocks.admit(sequence([0] * 17))
    assert not blocks.admit(sequence([0] * 9), num_spare=2)
    assert blocks.num_free == 4
    assert blocks.admit(sequence([0] * 9), num_spare=1)
    assert blocks.num_free == 1


def test_cached_blocks_that_are_hit_do_not_count_as_free_for_the_rest() -> None:
    blocks = BlockManager(4, SIZE)
    blocks.release(computed(blocks, [*range(9)]))
    too_long = sequence([*range(9), *range(100, 108)])
    assert not blocks.admit(too_long)
    blocks.check_integrity()


def test_the_check_notices_a_lost_block_and_a_wrong_count() -> None:
    blocks = BlockManager(4, SIZE)
    held = computed(blocks, [*range(9)])
    with pytest.raises(BlockIntegrityError):
        blocks.check_integrity()
    held.block_table.pop()
    with pytest.raises(BlockIntegrityError):
        blocks.check_integrity([held])


class Books(RuleBasedStateMachine):
    """Random lives of sequences over few blocks; the books balance after every step."""

    sequences = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockManager(10, SIZE)
        self.alive: list[Sequence] = []
        self.content: dict[int, tuple[bytes | int, ...]] = {}  # what was computed into a block, from the first token on

    @rule(
        target=sequences, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=24), salt=st.sampled_from([b"", b"x"])
    )
    def admit(self, tokens: list[int], salt: bytes) -> Sequence:
        made = sequence(tokens, salt)
        if self.blocks.admit(made):
            self.alive.append(made)
            assert made.num_computed_tokens < made.num_tokens
            for index in range(made.num_computed_tokens // SIZE):
                prefix = (salt, *tokens[: (index + 1) * SIZE])
                assert self.content[made.block_table[index]] == prefix, "a hit holds another prompt's KV"
        return made

    @rule(made=sequences, amount=st.integers(1, 9))
    def compute(self, made: Sequence, amount: int) -> None:
        if made not in self.alive:
            return
        end = min(made.num_tokens, made.num_computed_tokens + amount)
        for position in range(made.num_computed_tokens, end):
            index = position // SIZE
            self.content[made.block_table[index]] = (made.cache_salt, *made.token_ids[: min(end, (index + 1) * SIZE)])
        made.num_computed_tokens = end
        self.blocks.publish(made)

    @rule(made=sequences, token=st.integers(0, 1))
    def append(self, made: Sequence, token: int) -> None:
        if made in self.alive and self.blocks.grow(made, made.num_tokens + 1):
            made.token_ids.append(token)

    @rule(made=consumes(sequences))
    def release(self, made: Sequence) -> None:
        if made in self.alive:
            self.blocks.release(made)
            self.alive.remove(made)

    @rule()
    def reset(self) -> None:
        self.blocks.reset_prefix_cache()

    @invariant()
    def the_books_balance(self) -> None:
        self.blocks.check_integrity(self.alive)
        assert self.blocks.num_free + self.blocks.num_used == 10

    def teardown(self) -> None:
        for made in self.alive:
            self.blocks.release(made)
        self.blocks.check_integrity()
        assert self.blocks.num_free == 10


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.lists(st.integers(0, 2), min_size=1, max_size=40))
@settings(max_examples=200, deadline=None)
def test_hits_are_exactly_the_common_whole_blocks(one: list[int], other: list[int]) -> None:
    blocks = BlockManager(32, SIZE)
    computed(blocks, one)
    second = sequence(other)
    assert blocks.admit(second)
    common = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    assert second.num_computed_tokens == min(common // SIZE, (len(other) - 1) // SIZE) * SIZE
