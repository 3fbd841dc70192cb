"""Server-sent events: the frames that carry protocol chunks.

`data` is JSON or a word, so it has no line breaks and one `data:` line is enough.
"""


def sse_frame(event_name: str | None, data: str) -> bytes:
    """One event as it goes over the wire; without a name it is a bare data event."""
    if event_name is None:
        return f"data: {data}\n\n".encode()
    return f"event: {event_name}\ndata: {data}\n\n".encode()
