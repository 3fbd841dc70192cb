"""The bytes of single tokens.

A stream cannot decode a list of IDs again and again, so each ID needs bytes of its own, whatever stands before it. How
a vocabulary spells bytes is seen from its decoder: byte-level vocabularies use an alphabet of 256 characters, byte
fallback writes `<0x0A>`, and for everything else (`▁word`, `##ing`, `word</w>`) the library is asked what the token
adds behind another one.
"""

import re

import tokenizers

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")


class TokenBytes(dict[int, bytes]):
    """The bytes of each ID, found when first asked for. IDs outside the vocabulary have none."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        super().__init__(
            (token_id, token.content.encode()) for token_id, token in tokenizer.get_added_tokens_decoder().items()
        )
        self._tokenizer = tokenizer
        decoder = repr(tokenizer.decoder)
        self._is_byte_level = "ByteLevel" in decoder
        self._falls_back_to_bytes = "ByteFallback" in decoder

    def __missing__(self, token_id: int) -> bytes:
        self[token_id] = found = self._find(token_id)
        return found

    def _find(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if self._is_byte_level:
            return _from_alphabet(token)
        if self._falls_back_to_bytes and (match := _BYTE_FALLBACK.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return self._added_behind_another(token_id).encode()

    def _added_behind_another(self, token_id: int) -> str:
        alone = self._decode([token_id])
        twice = self._decode([token_id, token_id])
        return twice[len(alone) :] if twice.startswith(alone) else alone

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)


def _byte_of_char() -> dict[str, int]:
    """The byte-level alphabet: visible Latin-1 characters stand for themselves, the others for U+0100 and following."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + n): byte for n, byte in enumerate(hidden)}


_ALPHABET = _byte_of_char()


def _from_alphabet(token: str) -> bytes:
    try:
        return bytes([_ALPHABET[char] for char in token])
    except KeyError:  # not spelled in the alphabet: letters as they are
        return token.encode()
