"""Frames of server-sent events."""

from recipe.stream.sse import sse_frame


def test_a_frame_without_a_name_is_a_data_line() -> None:
    assert sse_frame(None, "[DONE]") == b"data: [DONE]\n\n"


def test_a_frame_with_a_name_has_an_event_line_before_the_data() -> None:
    assert sse_frame("ping", '{"type":"ping"}') == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_text_is_utf8() -> None:
    assert sse_frame(None, '"你"') == 'data: "你"\n\n'.encode()
