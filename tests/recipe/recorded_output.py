"""What a parser makes of an output, written down; runs of text of the same kind are one entry."""

import re
from collections.abc import Iterable

from recipe.stream.decoder import StreamDecoder, StreamTokenizer
from recipe.stream.parser import OutputParser
from recipe.stream.parsing_options import ParsingOptions
from recipe.stream.segment import ANY, Segment

Entry = tuple[str, str]


class Recorder:
    """A sink that keeps every piece."""

    def __init__(self) -> None:
        self.pieces: list[Entry] = []

    def reasoning(self, text: str, logprobs: str | None) -> None:
        self.pieces.append(("reasoning", text))

    def content(self, text: str, logprobs: str | None) -> None:
        self.pieces.append(("content", text))

    def tool_call(self, name: str) -> None:
        self.pieces.append(("call", name))

    def arguments(self, text: str) -> None:
        self.pieces.append(("arguments", text))

    def coalesced(self) -> list[Entry]:
        """Adjacent pieces of a kind joined; in content, spaces for text beside JSON are one however many there are."""
        joined: list[Entry] = []
        for kind, text in self.pieces:
            if joined and joined[-1][0] == kind != "call":
                text = joined.pop()[1] + text
            joined.append((kind, text))
        return [(kind, text) for kind, text in joined if text or kind == "call"]


def parsed(segments: Iterable[Segment], options: ParsingOptions) -> tuple[list[Entry], str | None]:
    """The coalesced output and the stop string that was met."""
    recorder = Recorder()
    parser = OutputParser(options, recorder)
    for segment in segments:
        parser.feed(segment)
        if parser.stop_sequence is not None:
            break
    else:
        parser.end()
    output = recorder.coalesced()
    if options.parse_json_output:
        output = [(kind, re.sub(" +", " ", text) if kind == "content" else text) for kind, text in output]
    return output, parser.stop_sequence


def parsed_text(pieces: Iterable[str], options: ParsingOptions) -> tuple[list[Entry], str | None]:
    """Text chunks, parsed."""
    return parsed((Segment(piece, ANY, 1) for piece in pieces), options)


def parsed_tokens(
    chunks: Iterable[list[int]], options: ParsingOptions, tokenizer: StreamTokenizer
) -> tuple[list[Entry], str | None]:
    """Token chunks, decoded and parsed."""
    decoder = StreamDecoder(tokenizer)
    return parsed((segment for chunk in chunks for segment in decoder.decode(chunk, None)), options)
