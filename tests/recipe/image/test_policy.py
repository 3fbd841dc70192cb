from ipaddress import ip_address

import pytest

from recipe.image import CalcResizeError, ImageError, ImagePolicy, image_error_status
from recipe.image.policy import address_reach, media_type_agrees
from recipe.image.url import parse

PUBLIC = (
    "1.1.1.1",
    "93.184.216.34",
    "172.15.0.1",
    "172.32.0.1",
    "100.63.255.255",
    "100.128.0.0",
    "169.253.0.1",
    "223.255.255.255",
)
PUBLIC_V6 = ("2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::1.1.1.1", "2002:101:101::1")
PRIVATE = (
    "10.0.0.1",
    "127.0.0.1",
    "127.255.255.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "100.64.0.1",
    "100.127.0.1",
    "198.18.0.1",
)
PRIVATE_V6 = ("::1", "fc00::1", "fdff::1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2002:c0a8:101::1")
FORBIDDEN = (
    "0.0.0.0", "0.1.2.3", "100.100.100.200", "168.63.129.16", "169.254.169.254", "169.254.0.1", "192.0.0.192",
    "192.0.2.1", "192.88.99.1",
    "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
)  # fmt: skip
FORBIDDEN_V6 = (
    "::", "::127.0.0.1", "::ffff:0.0.0.0", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1",
    "2002:a9fe:a9fe::1",
    "2001::1", "2001:db8::1", "3fff::1", "fd00:ec2::254", "fd20:ce::254", "fe80::1", "fec0::1", "ff02::1", "100::1",
    "5f00::1",
)  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC + PUBLIC_V6)
def test_public_addresses_are_admitted(address: str) -> None:
    assert address_reach(ip_address(address)) == "public"
    assert ImagePolicy().admits_address(address)


@pytest.mark.parametrize("address", PRIVATE + PRIVATE_V6)
def test_private_addresses_are_admitted_only_when_asked_for(address: str) -> None:
    assert address_reach(ip_address(address)) == "private"
    assert not ImagePolicy().admits_address(address)
    assert ImagePolicy(allow_private_images=True).admits_address(address)


@pytest.mark.parametrize("address", FORBIDDEN + FORBIDDEN_V6)
def test_addresses_of_nobody_and_of_the_cloud_are_never_admitted(address: str) -> None:
    assert address_reach(ip_address(address)) == "forbidden"
    assert not ImagePolicy(allow_private_images=True).admits_address(address)


def test_a_scope_does_not_hide_a_link_local_address() -> None:
    assert not ImagePolicy(allow_private_images=True).admits_address("fe80::1%eth0")


@pytest.mark.parametrize(
    ("host", "admitted"),
    [
        ("a.example", True),
        ("A.EXAMPLE.", True),
        ("x.b.example", True),
        ("y.x.b.example", True),
        ("b.example", False),
        ("xa.example", False),
        ("x-b.example", False),
        ("a.example.evil", False),
    ],
)
def test_only_listed_hosts_are_admitted_if_any_is_listed(host: str, admitted: bool) -> None:
    policy = ImagePolicy(allow_image_hosts=("A.example", "*.b.example"))
    assert policy.admits_url(parse(f"https://{host}/")) is admitted


def test_credentials_in_a_url_and_urls_at_all_can_be_refused() -> None:
    assert ImagePolicy().admits_url(parse("http://a/"))
    assert not ImagePolicy().admits_url(parse("http://user@a/"))
    assert not ImagePolicy(no_image_urls=True).admits_url(parse("http://a/"))


@pytest.mark.parametrize(
    ("content_type", "agrees"),
    [
        ("", True),
        ("image/png", True),
        ("IMAGE/PNG; charset=x", True),
        ("application/octet-stream", True),
        ("image/jpeg", False),
        ("image/svg+xml", False),
        ("text/html", False),
    ],
)
def test_a_media_type_has_to_agree_with_the_file(content_type: str, agrees: bool) -> None:
    assert media_type_agrees(content_type, "png") is agrees


def test_what_may_work_later_is_our_failure_and_the_rest_the_clients() -> None:
    assert image_error_status(ImageError.of("FetchStatus", "503 at the origin", is_retryable=True)) == 500
    assert image_error_status(ImageError.of("FetchStatus", "404 at the origin")) == 400
    assert image_error_status(CalcResizeError("no size")) == 500
