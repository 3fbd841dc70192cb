"""Web addresses of images, read as browsers read them.

`parse` follows the URL standard for http and https as far as a request line needs it: spaces and line breaks around
and in the text, backslashes, hosts as decimal, octal or hexadecimal numbers, percent-encoded and international hosts,
dot segments. So the host that is checked is the host that is connected to, whatever spelling hid it.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote_to_bytes

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_ENDS = "".join(map(chr, range(0x21)))
_DROPPED = dict.fromkeys(map(ord, "\t\n\r"))
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_AUTHORITY_END = re.compile(r"[/\\?]")
_DIGITS = re.compile(r"[0-9]*\Z")
_FORBIDDEN_IN_HOST = re.compile(r"[\x00-\x20\x7f#%/:<>?@\[\\\]^|]")
_IN_PATH = re.compile(r"[^!$-;=@-_a-z|~]|[\"<>`{}]")
_IN_QUERY = re.compile(r"[^!$-&(-;=?-~]")
_SINGLE_DOT = frozenset((".", "%2e"))
_DOUBLE_DOT = frozenset(("..", ".%2e", "%2e.", "%2e%2e"))
_DEFAULT_PORTS = {"http": 80, "https": 443}
_NUMBER_BASES = (("0x", 16), ("0", 8), ("", 10))


class UrlError(ValueError):
    """Not an address of the web. `is_foreign` tells a well-formed URL of another scheme and host from nonsense."""

    def __init__(self, is_foreign: bool = False) -> None:
        super().__init__("not an http or https URL")
        self.is_foreign = is_foreign


class HttpUrl(NamedTuple):
    """A checked URL.

    `host` is lower-case ASCII, an IPv4 or an IPv6 address without brackets. `path` includes the query. `user_info`
    is "user:password" as written, still percent-encoded, or None.
    """

    scheme: str
    host: str
    port: int
    path: str
    user_info: str | None = None

    @property
    def address(self) -> IpAddress | None:
        """The host as an address, None for a name."""
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None

    @property
    def text(self) -> str:
        """The URL without user info, ready for a request."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"


def parse(text: str, base: HttpUrl | None = None) -> HttpUrl:
    """Read `text`, relative to `base` if it names no host of its own. Raises UrlError."""
    text = text.strip(_ENDS).translate(_DROPPED).partition("#")[0]
    match = _SCHEME.match(text)
    scheme = match[1].lower() if match else base.scheme if base else ""
    rest = text[match.end() :] if match else text
    if scheme not in _DEFAULT_PORTS:
        raise UrlError(is_foreign=rest.startswith("//") and len(rest) > 2 and rest[2] != "/")
    if base and scheme == base.scheme and not rest.replace("\\", "/").startswith("//"):
        return base._replace(path=_joined(base.path, rest), user_info=None)
    if not match and base is None:
        raise UrlError
    return _absolute(scheme, rest.lstrip("/\\"))


def address_text(address: IpAddress) -> str:
    """`address` as text; an IPv4 address inside an IPv6 one is shown in dots."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return f"::ffff:{mapped}" if mapped else str(address)


def _absolute(scheme: str, rest: str) -> HttpUrl:
    end = _AUTHORITY_END.search(rest)
    cut = end.start() if end else len(rest)
    user_info, at, host_port = rest[:cut].rpartition("@")
    host, port = _split_port(host_port)
    return HttpUrl(
        scheme,
        _host(host),
        int(port) if port else _DEFAULT_PORTS[scheme],
        _joined("/", rest[cut:]),
        user_info if at and user_info.strip(":") else None,
    )


def _split_port(host_port: str) -> tuple[str, str]:
    closing = host_port.rfind("]")
    colon = host_port.find(":", closing + 1)
    if colon < 0:
        return host_port, ""
    port = host_port[colon + 1 :]
    if not _DIGITS.match(port) or (port and int(port[-20:]) > 0xFFFF):
        raise UrlError
    return host_port[:colon], port


def _host(written: str) -> str:
    if written.startswith("["):
        return _ipv6(written)
    try:
        name = unquote_to_bytes(written).decode()
    except UnicodeDecodeError:
        raise UrlError from None
    name = name.lower() if name.isascii() else _international(name)
    if not name or _FORBIDDEN_IN_HOST.search(name):
        raise UrlError
    return _ipv4(name) if _ends_in_number(name) else name


def _international(name: str) -> str:
    import idna

    try:
        return idna.encode(name, uts46=True).decode("ascii").lower()
    except (idna.IDNAError, UnicodeError):
        raise UrlError from None


def _ipv6(written: str) -> str:
    try:
        address = ipaddress.IPv6Address(written[1:].removesuffix("]"))
    except ValueError:
        raise UrlError from None
    if address.scope_id or not written.endswith("]"):
        raise UrlError
    mapped = address.ipv4_mapped
    return f"::ffff:{int(mapped) >> 16:x}:{int(mapped) & 0xFFFF:x}" if mapped else str(address)


def _ends_in_number(name: str) -> bool:
    last = name.removesuffix(".").rpartition(".")[2]
    return last.isdigit() or (last.startswith("0x") and _number(last) is not None)


def _ipv4(name: str) -> str:
    parts = [_number(part) for part in name.removesuffix(".").split(".")]
    if len(parts) > 4:
        raise UrlError
    value = 0
    for place, part in enumerate(parts):
        is_last = place == len(parts) - 1
        if part is None or part >= (256 ** (5 - len(parts)) if is_last else 256):
            raise UrlError
        value |= part if is_last else part << 8 * (3 - place)
    return str(ipaddress.IPv4Address(value))


def _number(part: str) -> int | None:
    """A part of an IPv4 address: hexadecimal after 0x, octal after 0, else decimal. None if it is none of them."""
    if not part or len(part) > 64 or not part.isalnum():
        return None
    sign, base = next((sign, base) for sign, base in _NUMBER_BASES if part.startswith(sign))
    try:
        return int(part[len(sign) :] or "0", base)
    except ValueError:
        return None


def _joined(base: str, reference: str) -> str:
    """The path and query that `reference` points to, seen from the path and query `base`."""
    path, question, query = reference.partition("?")
    if not path:
        base_path, _, base_query = base.partition("?")
        return (
            f"{base_path}?{_encoded(query, _IN_QUERY)}"
            if question
            else base_path + ("?" + base_query if base_query else "")
        )
    path = path.replace("\\", "/")
    if not path.startswith("/"):
        path = base.partition("?")[0].rpartition("/")[0] + "/" + path
    path = _encoded(_without_dots(path), _IN_PATH)
    return f"{path}?{_encoded(query, _IN_QUERY)}" if question else path


def _without_dots(path: str) -> str:
    segments: list[str] = []
    names = path.split("/")[1:]
    for place, name in enumerate(names):
        folded = name.lower()
        is_dot = folded in _SINGLE_DOT or folded in _DOUBLE_DOT
        if folded in _DOUBLE_DOT and segments:
            segments.pop()
        if not is_dot:
            segments.append(name)
        elif place == len(names) - 1:
            segments.append("")
    return "/" + "/".join(segments)


def _encoded(text: str, unsafe: re.Pattern[str]) -> str:
    return unsafe.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "replace")), text)
