"""The policy that spreads requests, and the guess about prefix caches: pure code, no sockets."""

from __future__ import annotations

from array import array

import pytest

from engine.backends.balancer import Favourite, Load, choose
from engine.backends.prefix_affinity import BLOCK_TOKENS, PrefixAffinity, prefix_hashes
from engine.backends.remote_circuit import FIRST_COOLDOWN_S, MAX_FAILURES, Circuit

LONG_KV = Load(requests=4, kv_tokens=100_000)
MANY_REQUESTS = Load(requests=40, kv_tokens=10_000)


def test_a_short_request_goes_where_few_sequences_are_and_a_long_one_where_the_kv_is_short() -> None:
    loads = [LONG_KV, MANY_REQUESTS]
    assert choose(loads, 100, 100) == 0
    assert choose(loads, 50_000, 100) == 1


def test_an_idle_engine_gets_any_request() -> None:
    for prompt_tokens in (1, 1000, 100_000):
        assert choose([LONG_KV, Load(), MANY_REQUESTS], prompt_tokens, 200) == 1


def test_equal_requests_spread_evenly() -> None:
    loads = [Load()] * 5
    for _ in range(50):
        place = choose(loads, 500, 100)
        loads[place] += Load(1, 500)
    assert [load.requests for load in loads] == [10] * 5


def test_the_favourite_wins_while_the_balance_allows_it() -> None:
    even = [Load(10, 10_000)] * 4
    assert choose(even, 1000, 100, Favourite(3, 960)) == 3
    above = [*even[:3], Load(14, 10_000)]
    assert choose(above, 1000, 100, Favourite(3, 960)) == 3, "a whole prompt in the cache is worth some imbalance"
    assert choose(above, 1000, 100, Favourite(3, 64)) != 3, "a small part of it is not"
    overloaded = [*even[:3], Load(30, 10_000)]
    assert choose(overloaded, 1000, 100, Favourite(3, 960)) != 3
    full = [*even[:3], Load(10, 40_000)]
    assert choose(full, 1000, 100, Favourite(3, 960)) != 3


def test_there_must_be_an_engine() -> None:
    with pytest.raises(ValueError, match="at least one"):
        choose([], 1, 1)


def test_loads_add_up_and_what_is_our_own_is_not_counted_twice() -> None:
    assert Load(1, 2) + Load(3, 4) == Load(4, 6)
    assert Load(5, 100).beyond(Load(2, 300)) == Load(3, 0)


def test_hashes_stand_for_everything_up_to_their_block() -> None:
    prompt = list(range(4 * BLOCK_TOKENS + 5))
    hashes = prefix_hashes(prompt)
    assert len(hashes) == 4
    assert prefix_hashes(array("I", prompt)) == hashes
    assert prefix_hashes([*prompt[: 2 * BLOCK_TOKENS], *([7] * 2 * BLOCK_TOKENS)])[:2] == hashes[:2]
    changed = prefix_hashes([9, *prompt[1:]])
    assert not set(changed) & set(hashes), "a difference in the first block is one in all"
    assert not set(prefix_hashes(prompt, b"salt")) & set(hashes)
    assert prefix_hashes([1] * (BLOCK_TOKENS - 1)) == []


def test_the_longest_beginning_that_is_known_tells_the_owner() -> None:
    affinity: PrefixAffinity[str] = PrefixAffinity()
    affinity.record([1, 2, 3], "a")
    affinity.record([1, 2, 4, 5], "b")
    assert affinity.find([1, 2, 3, 9]) == ("a", 3)
    assert affinity.find([1, 2, 9]) == ("b", 2)
    assert affinity.find([9, 2]) is None
    affinity.forget("b")
    assert affinity.find([1, 2, 3]) is None, "a beginning without its first block is none"


def test_the_memory_of_prefixes_is_bounded_and_keeps_what_was_used_last() -> None:
    affinity: PrefixAffinity[str] = PrefixAffinity(max_blocks=4)
    affinity.record([1, 2], "a")
    affinity.record([3, 4], "b")
    affinity.record([1, 2], "a")
    affinity.record([5], "c")
    assert len(affinity) == 4
    assert affinity.find([1, 2]) == ("a", 2) and affinity.find([3]) is None


def opened() -> Circuit:
    circuit = Circuit()
    for _ in range(MAX_FAILURES):
        assert circuit.allows(0.0)
        circuit.begin()
        circuit.fail(0.0)
    return circuit


def test_a_circuit_opens_after_failures_in_a_row_only() -> None:
    circuit = Circuit()
    for _ in range(2 * MAX_FAILURES):
        circuit.fail(0.0)
        circuit.succeed()
    assert circuit.allows(0.0)
    assert not opened().allows(0.5 * FIRST_COOLDOWN_S)


def test_a_half_open_circuit_lets_one_request_through_at_a_time() -> None:
    circuit = opened()
    assert circuit.allows(FIRST_COOLDOWN_S)
    circuit.begin()
    assert not circuit.allows(FIRST_COOLDOWN_S)
    circuit.abandon()
    assert circuit.allows(FIRST_COOLDOWN_S), "a client that left says nothing about the engine"
    circuit.begin()
    circuit.fail(FIRST_COOLDOWN_S)
    assert not circuit.allows(2.5 * FIRST_COOLDOWN_S), "each failed trial doubles the wait"
    assert circuit.allows(3 * FIRST_COOLDOWN_S)
    circuit.begin()
    circuit.succeed()
    assert circuit.allows(3 * FIRST_COOLDOWN_S)
