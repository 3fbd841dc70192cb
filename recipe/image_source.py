"""The images that come with a conversation, before anybody fetches or decodes them."""

from collections.abc import Sequence
from typing import Any, Literal, Self, TypeAlias

from recipe.argument import choice, quoted, text

ImageDetail: TypeAlias = Literal["low", "high", "original", "auto"]
ImageSourceKind: TypeAlias = Literal["data_url", "url", "bytes"]

DETAILS: tuple[ImageDetail, ...] = ("low", "high", "original", "auto")


class ImageSource:
    """Where the bytes of an image come from: one of the three subclasses.

    `path` is the place of the image in the request, as error messages name it; empty when there is none.
    """

    __slots__ = ("_detail", "_path", "_value")
    _value: Any

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise TypeError(f"cannot create '{type(self).__name__}' instances")

    @classmethod
    def trusted(cls, value: Any, detail: ImageDetail, path: str) -> Self:
        self = cls.__new__(cls)
        self._value, self._detail, self._path = value, detail, path
        return self

    def _fill(self, value: Any, detail: ImageDetail, path: str) -> None:
        self._value = value
        self._detail: ImageDetail = choice("detail", detail, DETAILS)
        self._path = text("path", path)

    @property
    def kind(self) -> ImageSourceKind:
        """Which of the three it is."""
        return _KINDS[type(self)]

    @property
    def detail(self) -> ImageDetail:
        return self._detail

    @property
    def path(self) -> str:
        return self._path

    @property
    def data_url(self) -> str | None:
        return None

    @property
    def url(self) -> str | None:
        return None

    @property
    def data(self) -> bytes | None:
        return None

    def __repr__(self) -> str:
        value = f"<{len(self._value)} bytes>" if self.kind == "bytes" else quoted(self._value)
        return f"{type(self).__name__}({value}, detail={quoted(self._detail)}, path={quoted(self._path)})"


class DataUrlImageSource(ImageSource):
    """An image inside a data URL, base64 or percent-encoded."""

    __slots__ = ()

    def __init__(self, data_url: str, detail: ImageDetail = "high", *, path: str = "") -> None:
        self._fill(text("data_url", data_url), detail, path)

    @property
    def data_url(self) -> str:
        value: str = self._value
        return value


class UrlImageSource(ImageSource):
    """An image behind an http or https URL."""

    __slots__ = ()

    def __init__(self, url: str, detail: ImageDetail = "high", *, path: str = "") -> None:
        self._fill(text("url", url), detail, path)

    @property
    def url(self) -> str:
        value: str = self._value
        return value


class BytesImageSource(ImageSource):
    """An image given as the bytes of its file."""

    __slots__ = ()

    def __init__(self, data: bytes, detail: ImageDetail = "high", *, path: str = "") -> None:
        self._fill(_octets(data), detail, path)

    @property
    def data(self) -> bytes:
        value: bytes = self._value
        return value


_KINDS: dict[type[ImageSource], ImageSourceKind] = {
    DataUrlImageSource: "data_url",
    UrlImageSource: "url",
    BytesImageSource: "bytes",
}


def _octets(data: object) -> bytes:
    if isinstance(data, str) or not isinstance(data, Sequence | bytearray | memoryview):
        raise TypeError(f"argument 'data': {type(data).__name__} is not bytes")
    try:
        return bytes(data)
    except ValueError as problem:
        raise OverflowError(str(problem)) from None
