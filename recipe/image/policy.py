"""What images a server accepts from strangers. Decisions only: no socket is opened and no name is looked up here.

Deny by default: an address has to be plainly public. Networks are tables; addresses that carry an IPv4 address inside
are judged by that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Literal, TypeAlias

from recipe.image.error import MIB
from recipe.image.image_format import ImageFormat
from recipe.image.url import HttpUrl, IpAddress

Reach: TypeAlias = Literal["public", "private", "forbidden"]

_PRIVATE_V4 = tuple(
    map(IPv4Network, ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "198.18.0.0/15"))
)
_FORBIDDEN_V4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network, unspecified
            "100.100.100.200/32",  # cloud metadata
            "168.63.129.16/32",  # cloud metadata
            "169.254.0.0/16",  # link-local, cloud metadata
            "192.0.0.0/24",  # protocol assignments
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # 6to4 relays
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/3",  # multicast, reserved, broadcast
        ),
    )
)
_PUBLIC_V6 = IPv6Network("2000::/3")
_PRIVATE_V6 = (IPv6Network("::1/128"), IPv6Network("fc00::/7"))
_FORBIDDEN_V6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments, Teredo
            "2001:db8::/32",  # documentation
            "3fff::/20",  # documentation
            "fd00:ec2::/32",  # cloud metadata
            "fd20:ce::/32",  # cloud metadata
        ),
    )
)
# IPv6 networks that carry an IPv4 address, and how many bits follow it.
_CARRIERS = (
    (IPv6Network("::ffff:0:0/96"), 0),  # mapped
    (IPv6Network("64:ff9b::/96"), 0),  # NAT64
    (IPv6Network("2002::/16"), 80),  # 6to4
)
_UNTYPED = frozenset(("", "application/octet-stream", "binary/octet-stream"))
_MEDIA_TYPES: dict[str, ImageFormat] = {
    "image/png": "png",
    "image/x-png": "png",
    "image/apng": "png",
    "image/jpeg": "jpeg",
    "image/jpg": "jpeg",
    "image/pjpeg": "jpeg",
    "image/gif": "gif",
    "image/webp": "webp",
}


@dataclass(frozen=True, slots=True)
class ImagePolicy:
    """Limits on the images of requests.

    `allow_image_hosts`: names that image URLs may have, "*.example.com" for all below one; empty admits every host.
    `allow_private_images`: also connect to private and loopback addresses; link-local and metadata stay refused.
    `no_image_urls`: accept images only inside the request. `image_timeout_s` covers one download with its redirects.
    """

    allow_image_hosts: tuple[str, ...] = ()
    allow_private_images: bool = False
    no_image_urls: bool = False
    max_images: int = 600
    max_image_bytes: int = 32 * MIB
    max_total_image_bytes: int = 64 * MIB
    image_timeout_s: float = 30.0
    max_image_redirects: int = 5

    def admits_url(self, url: HttpUrl) -> bool:
        """Whether this URL, given by a client or by a redirect, may be asked for at all."""
        return not self.no_image_urls and url.user_info is None and self._admits_host(url.host)

    def admits_address(self, address: str) -> bool:
        """Whether a connection to this address is allowed."""
        reach = address_reach(ip_address(address.partition("%")[0]))
        return reach == "public" or (reach == "private" and self.allow_private_images)

    def _admits_host(self, host: str) -> bool:
        return not self.allow_image_hosts or any(_matches(host, name) for name in self.allow_image_hosts)


def address_reach(address: IpAddress) -> Reach:
    """Who answers at `address`: somebody on the internet, somebody nearby, or nobody who serves images."""
    if isinstance(address, IPv4Address):
        return _reach_v4(address)
    for network, bits_behind in _CARRIERS:
        if address in network:
            return _reach_v4(IPv4Address(int(address) >> bits_behind & 0xFFFFFFFF))
    return _reach_v6(address)


def media_type_agrees(content_type: str, image_format: ImageFormat) -> bool:
    """Whether a Content-Type header admits what the file really is; a missing or neutral one admits everything."""
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type in _UNTYPED or _MEDIA_TYPES.get(media_type) == image_format


def _reach_v4(address: IPv4Address) -> Reach:
    if any(address in network for network in _FORBIDDEN_V4):
        return "forbidden"
    return "private" if any(address in network for network in _PRIVATE_V4) else "public"


def _reach_v6(address: IPv6Address) -> Reach:
    if any(address in network for network in _FORBIDDEN_V6):
        return "forbidden"
    if any(address in network for network in _PRIVATE_V6):
        return "private"
    return "public" if address in _PUBLIC_V6 else "forbidden"


def _matches(host: str, allowed: str) -> bool:
    host, allowed = host.removesuffix("."), allowed.removesuffix(".").lower()
    return host.endswith(allowed[1:]) if allowed.startswith("*.") else host == allowed
