import deepseek_recipe
import pytest

from recipe.image.url import HttpUrl, UrlError, address_text, parse

SPELLINGS = {
    "http://2130706434/": "127.0.0.2",
    "http://0x7f000002/": "127.0.0.2",
    "http://017700000002/": "127.0.0.2",
    "http://0x7f.0.0.0x2/": "127.0.0.2",
    "http://0177.0.0.02/": "127.0.0.2",
    "http://127.2/": "127.0.0.2",
    "http://127.0.2/": "127.0.0.2",
    "http://127.0.0.2./": "127.0.0.2",
    "http://%31%32%37.0.0.2/": "127.0.0.2",
    "http://１２７.0.0.2/": "127.0.0.2",
    "http://127。0。0。2/": "127.0.0.2",
    "http://①27.0.0.2/": "127.0.0.2",
    "http:\\\\127.0.0.2\\": "127.0.0.2",
    "http:127.0.0.2/": "127.0.0.2",
    "http:////127.0.0.2/": "127.0.0.2",
    " \tht\ntp://127.0.0.2/\r\n": "127.0.0.2",
    "http://user:word@127.0.0.2/": "127.0.0.2",
    "http://example.com@127.0.0.2/": "127.0.0.2",
    "http://127.0.0.2?@example.com/": "127.0.0.2",
    "http://127.0.0.2#@example.com/": "127.0.0.2",
    "http://127.0.0.2\\@example.com/": "127.0.0.2",
    "http://0/": "0.0.0.0",
    "http://[::FFFF:127.0.0.2]/": "::ffff:7f00:2",
    "http://[0:0:0:0:0:0:0:1]/": "::1",
    "HTTP://LocalHost/": "localhost",
    "http://loc%61lhost/": "localhost",
    "http://bücher.example/": "xn--bcher-kva.example",
    "http://ｅｘａｍｐｌｅ.com/": "example.com",
}
NONSENSE = (
    "", "image.png", "//example.com/", "http://", "http:///?", "http://#", "http://a b/", "http://256.0.0.1/",
    "http://1.2.3.4.5/",
    "http://0x100000000/", "http://08.0.0.1/", "http://a.1/", "http://[::1", "http://[::1%25lo]/", "http://[1:2]/",
    "http://a:99999/",
    "http://a:x/", "http://a:+80/", "http://a%00b/", "http://a%2fb/", "http://a<b/", "ftp://example.com/",
    "file:///etc/passwd",
    "javascript:alert(1)", "data:image/png;base64,AAAA", "gopher://127.0.0.1/",
)  # fmt: skip


@pytest.mark.parametrize(("text", "host"), SPELLINGS.items())
def test_every_spelling_of_a_host_is_read_as_the_host_it_means(text: str, host: str) -> None:
    assert parse(text).host == host


@pytest.mark.parametrize("text", [text for text in SPELLINGS if "b" not in text and "ｅ" not in text])
def test_the_reference_reads_the_same_host(text: str) -> None:
    seen: list[str] = []
    fetcher = deepseek_recipe.ReqwestImageFetcher().with_destination_filter(
        lambda host, address: bool(seen.append(host))
    )
    with pytest.raises(deepseek_recipe.ImageError):
        fetcher.fetch(text)
    assert set(seen) == {parse(text).host}


@pytest.mark.parametrize("text", NONSENSE)
def test_what_is_no_web_address_is_refused(text: str) -> None:
    with pytest.raises(UrlError):
        parse(text)


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("/c", "http://h:81/c"),
        ("c?d", "http://h:81/a/c?d"),
        ("?d", "http://h:81/a/b?d"),
        ("", "http://h:81/a/b?q"),
        ("../../x/./y/..", "http://h:81/x/"),
        ("%2e%2e/x", "http://h:81/x"),
        ("//other/z", "http://other/z"),
        ("\\\\other\\z", "http://other/z"),
        ("http:c", "http://h:81/a/c"),
        ("https:c", "https://c/"),
        ("http://u:p@h:81/", "http://h:81/"),
        ("/é \"<>`{}|^'?é \"<>'", "http://h:81/%C3%A9%20%22%3C%3E%60%7B%7D|^'?%C3%A9%20%22%3C%3E%27"),
    ],
)
def test_a_redirect_target_is_read_relative_to_where_it_came_from(reference: str, expected: str) -> None:
    assert parse(reference, HttpUrl("http", "h", 81, "/a/b?q")).text == expected


def test_ports_and_user_info_are_kept_apart_from_the_host() -> None:
    assert parse("https://us%65r:p@ss@example.com:0443/x") == ("https", "example.com", 443, "/x", "us%65r:p@ss")
    assert parse("http://example.com:/x").port == 80


def test_an_address_inside_an_ipv6_address_is_shown_in_dots() -> None:
    address = parse("http://[::ffff:7f00:2]/").address
    assert address is not None
    assert address_text(address) == "::ffff:127.0.0.2"
