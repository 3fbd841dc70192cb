import base64

import deepseek_recipe
import pytest

from recipe.conversation import DataUrlImageSource
from recipe.image import ImageError, ImageQuota, ImageResolver, OpenCvImagePreprocessor, ReqwestImageFetcher
from recipe.image.data_url import decode_data_url
from recipe.image.error import ImageFault
from tests.recipe.image.pictures import PNG

BASE64 = base64.b64encode(PNG).decode()
PERCENT = "".join(f"%{byte:02x}" for byte in PNG)
URLS = (
    f"data:image/png;base64,{BASE64}", f"data:image/png;base64,{BASE64.rstrip('=')}",
    f" DATA:IMAGE/PNG;\nBASE64,{BASE64}\n", f"data:image/jpg; base64,{BASE64}",
    f"data:image/png;charset=x;base64,{BASE64}", f"data:image/png;base64,{BASE64[:9]} \r\n\t{BASE64[9:]}#fragment",
    f"data:image/png;base64,{BASE64[:9]}%0a{BASE64[9:]}",
    f"data:image/png,{PERCENT}", f"data:image/png,{PERCENT}#x", f"data:image/gif,{PERCENT}%zz", "data:image/png,",
    "data:image/png;base64,", "data:image/png;base64,@", "data:image/png;base64,A",
    "data:image/png;base64,AA=", "data:image/png;base64,=AAA", "data:image/png;base64,AAAA\x00",
    f"data:image/png;base64={BASE64}", f"data:image/png;base64;x,{BASE64}", f"data:image/svg+xml;base64,{BASE64}",
    f"data:;base64,{BASE64}", f"data:base64,{BASE64}", f"data:image/png#;base64,{BASE64}", "data:", "",
    "data:image/png;base64", f"image/png;base64,{BASE64}", "data:text/plain;base64,@",
    f"data:\fimage/png;base64,{BASE64}", f"data:image/png\f;base64,{BASE64}", f"data:image/png;\fbase64,{PERCENT}",
    f"data:image/png;base64,{BASE64.replace('+', '-').replace('/', '_')}",
)  # fmt: skip


def outcome(module: object, url: str) -> tuple[object, ...]:
    quota = module.ImageQuota()  # type: ignore[attr-defined]
    resolver = module.ImageResolver(module.ReqwestImageFetcher(), module.OpenCvImagePreprocessor())  # type: ignore[attr-defined]
    try:
        data = resolver.resolve([module.DataUrlImageSource(url, path="here")], quota)  # type: ignore[attr-defined]
    except module.ImageError as error:  # type: ignore[attr-defined]
        return error.kind, str(error), quota.byte_size()
    return data.images[0].width, quota.image_count(), quota.byte_size()


class Ours:
    ImageQuota, ImageResolver, ImageError = ImageQuota, ImageResolver, ImageError
    OpenCvImagePreprocessor, ReqwestImageFetcher = OpenCvImagePreprocessor, ReqwestImageFetcher
    DataUrlImageSource = DataUrlImageSource


@pytest.mark.parametrize("url", URLS, ids=range(len(URLS)))
def test_a_data_url_means_what_it_means_to_the_reference(url: str) -> None:
    assert outcome(Ours, url) == outcome(deepseek_recipe, url)


def test_both_notations_give_the_same_bytes() -> None:
    assert decode_data_url(f"data:image/png;base64,{BASE64}") == decode_data_url(f"data:image/png,{PERCENT}") == PNG


def test_no_error_holds_data_of_the_image() -> None:
    secret = base64.b64encode(b"a secret picture").decode()
    with pytest.raises(ImageFault) as fault:
        decode_data_url(f"data:image/tiff;base64,{secret}")
    assert secret not in str(fault.value.at("here"))
