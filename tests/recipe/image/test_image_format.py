import struct

import deepseek_recipe
import pytest

from recipe.image import ImageError, OpenCvImagePreprocessor, PreprocessOptions
from recipe.image.error import ImageFault
from recipe.image.image_format import check_header, sniff
from tests.recipe.image.pictures import PNG, golden, png_claiming

JPEG, GIF = golden("rgb_200x120.jpg"), golden("one_100x80.gif")
WEBP, WEBP_LOSSLESS, WEBP_ANIMATED = (
    golden(f"{name}.webp") for name in ("rgb_200x120", "lossless_200x120", "anim_100x80")
)
SOF = JPEG.find(b"\xff\xc0")

DAMAGED = {
    "empty file": b"",
    "text": b"hello",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
    "bmp": golden("rgb_100x80.bmp"),
    "png signature": PNG[:8],
    "png header only": PNG[:33],
    "png wrong checksum": PNG[:29] + b"\0\0\0\0" + PNG[33:],
    "png without width": png_claiming(0, 10),
    "png bomb": png_claiming(60000, 60000),
    "png beyond signed": png_claiming(2**31, 1),
    "png cut": PNG[:-20],
    "png behind a blank": b" " + PNG,
    "jpeg signature": JPEG[:3],
    "jpeg without scan": JPEG[: SOF + 19],
    "jpeg bomb": JPEG[: SOF + 5] + struct.pack(">HH", 65500, 65500) + JPEG[SOF + 9 :],
    "jpeg without height": JPEG[: SOF + 5] + struct.pack(">HH", 0, 200) + JPEG[SOF + 9 :],
    "jpeg end": b"\xff\xd8\xff\xd9",
    "jpeg cut": JPEG[: len(JPEG) // 2],
    "gif signature": GIF[:6],
    "gif of no version": b"GIF88a" + GIF[6:],
    "gif bomb": GIF[:6] + struct.pack("<HH", 65535, 65535) + GIF[10:],
    "gif without screen": GIF[:6] + struct.pack("<HH", 0, 0) + GIF[10:],
    "gif cut": GIF[: len(GIF) // 2],
    "webp signature": WEBP[:12],
    "webp cut": WEBP[: len(WEBP) // 2],
    "webp bomb": WEBP[:26] + struct.pack("<HH", 16383, 16383) + WEBP[30:],
    "webp lossless bomb": WEBP_LOSSLESS[:21] + struct.pack("<I", 8999 | 8999 << 14) + WEBP_LOSSLESS[25:],
    "webp animated bomb": WEBP_ANIMATED[:24] + (8999).to_bytes(3, "little") * 2 + WEBP_ANIMATED[30:],
    "webp of another kind": WEBP[:12] + b"VP7 " + WEBP[16:],
    "wave sound": b"RIFF\x24\0\0\0WAVEfmt " + b"\0" * 40,
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_refused_for_the_reason_the_reference_gives(data: bytes) -> None:
    with pytest.raises(deepseek_recipe.ImageError) as theirs:
        options = deepseek_recipe.PreprocessOptions("high", 8192, 512)
        deepseek_recipe.OpenCvImagePreprocessor().preprocess(data, options)
    with pytest.raises(ImageError) as ours:
        OpenCvImagePreprocessor().preprocess(data, PreprocessOptions("high", 8192, 512))
    assert (ours.value.kind, str(ours.value)) == (theirs.value.kind, str(theirs.value))
    assert not ours.value.is_retryable


@pytest.mark.parametrize("name", [name for name in DAMAGED if name.endswith("bomb")])
def test_a_pixel_bomb_is_refused_from_its_header(name: str) -> None:
    with pytest.raises(ImageFault) as fault:
        check_header(DAMAGED[name][:200] if "jpeg" not in name else DAMAGED[name], 8192)
    assert fault.value.kind == "ImageDimensionsTooLarge"


@pytest.mark.parametrize(
    ("data", "expected"), [(PNG, "png"), (JPEG, "jpeg"), (GIF, "gif"), (WEBP, "webp"), (b"", None), (b"RIFF", None)]
)
def test_formats_are_recognised_by_their_first_bytes(data: bytes, expected: str | None) -> None:
    assert sniff(data) == expected
