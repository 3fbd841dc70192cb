"""Who is let in, who is told to come back and when, and that a permit lives as long as its request."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from engine.entrypoints import admission as admission_module
from engine.entrypoints.admission import MAX_RETRY_S, Admission, AdmissionLimits, Place, ServiceRate
from engine.entrypoints.auth import ApiKey
from engine.entrypoints.errors import ApiError, anthropic_envelope, openai_envelope, status_of


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time by which admission goes, in seconds; it passes as a test says."""
    seconds = [1000.0]
    monkeypatch.setattr(admission_module, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    return seconds


def key(**limits: int) -> ApiKey:
    return ApiKey("alice", b"x" * 32, **limits)


def test_a_permit_is_counted_where_it_is_and_nowhere_when_it_was_given_back() -> None:
    admission = Admission(AdmissionLimits())
    with admission.admit(None) as permit:
        assert admission.counts == [1, 0, 0]
        permit.submit(70)
        assert admission.counts == [0, 1, 0] and admission.queued_tokens == 70
        permit.start()
        assert admission.counts == [0, 0, 1] and admission.queued_tokens == 0
    permit.release()
    assert admission.counts == [0, 0, 0] and admission.num_open == 0


@pytest.mark.parametrize(
    ("limits", "cause"),
    [
        (AdmissionLimits(max_requests=2), "requests"),
        (AdmissionLimits(max_preparing=2), "preparing"),
    ],
)
def test_beyond_a_limit_of_the_server_the_answer_is_a_503_at_once(limits: AdmissionLimits, cause: str) -> None:
    admission = Admission(limits)
    permits = [admission.admit(None) for _ in range(2)]
    with pytest.raises(ApiError) as refused:
        admission.admit(None)
    assert (refused.value.status, refused.value.code) == (503, "overloaded")
    assert admission.rejections == {cause: 1}
    permits[0].release()
    admission.admit(None)


def test_a_full_queue_refuses_those_that_come_and_those_that_are_prepared() -> None:
    admission = Admission(AdmissionLimits(max_queued=1))
    waiting, late = admission.admit(None), admission.admit(None)
    waiting.submit(5)
    with pytest.raises(ApiError, match="limit of 1 requests queued"):
        late.submit(5)
    with pytest.raises(ApiError, match="limit of 1 requests queued"):
        admission.admit(None)
    waiting.start()
    late.submit(5)


def test_queued_prompt_tokens_are_limited_but_an_empty_queue_takes_any_prompt() -> None:
    admission = Admission(AdmissionLimits(max_queued_tokens=100))
    long, short = admission.admit(None), admission.admit(None)
    long.submit(500)
    with pytest.raises(ApiError, match="500 prompt tokens wait already; the limit is 100"):
        short.submit(10)
    long.release()
    short.submit(10)
    assert admission.queued_tokens == 10


def test_a_key_over_its_own_limits_is_a_429_and_others_are_served() -> None:
    admission = Admission(AdmissionLimits())
    busy = admission.admit(key(max_requests=1))
    with pytest.raises(ApiError) as refused:
        admission.admit(key(max_requests=1))
    assert refused.value.status == 429
    admission.admit(ApiKey("bob", b"y" * 32, max_requests=1))
    busy.release()
    admission.admit(key(max_requests=1))


def test_a_key_over_its_requests_a_minute_is_told_when_the_oldest_is_a_minute_old(now: list[float]) -> None:
    admission = Admission(AdmissionLimits())
    for _ in range(3):
        admission.admit(key(requests_per_minute=3)).release()
    with pytest.raises(ApiError) as refused:
        admission.admit(key(requests_per_minute=3))
    assert refused.value.status == 429
    assert refused.value.retry_after_s == 60


def test_retry_after_is_the_time_in_which_the_queue_would_empty_at_the_measured_rate(now: list[float]) -> None:
    rate = ServiceRate()
    for _ in range(20):
        rate.times.append(now[0])
        now[0] += 0.01
    assert rate.seconds_for(1) == 1.0  # a header counts in whole seconds
    assert rate.seconds_for(200) == pytest.approx(2.0)
    assert rate.seconds_for(10**9) == MAX_RETRY_S


def test_a_closed_admission_refuses_everybody_and_lets_go_of_nobody() -> None:
    admission = Admission(AdmissionLimits())
    admission.admit(None)
    admission.close()
    with pytest.raises(ApiError, match="shutting down"):
        admission.admit(None)
    assert admission.counts[Place.PREPARING] == 1


def test_an_overload_has_a_status_of_its_own_in_anthropics_protocol() -> None:
    overload = ApiError(503, "full", code="overloaded", retry_after_s=2)
    assert (status_of(overload, openai_envelope), status_of(overload, anthropic_envelope)) == (503, 529)
    assert b"overloaded_error" in anthropic_envelope(overload, "r")
    assert b"rate_limit_error" in anthropic_envelope(ApiError(429, "slow down"), "r")
