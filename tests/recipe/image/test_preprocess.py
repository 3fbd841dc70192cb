import pickle
import struct
import subprocess
import sys

import deepseek_recipe
import numpy as np
import pytest

from recipe.image import ImageError, OpenCvImagePreprocessor, PreprocessOptions
from recipe.image.gif import first_frame
from recipe.image.preprocess import load
from tests.recipe.image.pictures import PNG, decoded, encoded, golden, picture

HIGH = PreprocessOptions("high", 8192, 512)
ENCODER_NOISE = 2.0  # mean difference of two WebP encoders, in steps of 256
FILES = {
    "png": encoded(picture(130, 100)),
    "wide png": encoded(picture(700, 50)),
    "large png": encoded(picture(1500, 1900)),
    "translucent png": encoded(picture(90, 70, 4)),
    "gray png": encoded(picture(64, 48, 1)),
    "16-bit png": encoded(picture(64, 48).astype(np.uint16) * 257),
    "rotated jpeg": golden("orient6_200x120.jpg"),
    "cmyk jpeg": golden("cmyk_200x120.jpg"),
    "animated gif": golden("anim_100x80.gif"),
    "animated webp": golden("anim_100x80.webp"),
    "transparent png": golden("transparent_64x48.png"),
}


@pytest.mark.parametrize("detail", ["high", "low"])
@pytest.mark.parametrize("data", FILES.values(), ids=FILES)
def test_the_pixels_are_those_of_the_reference(data: bytes, detail: str) -> None:
    ours = OpenCvImagePreprocessor().preprocess(data, PreprocessOptions(detail, 8192, 512))  # type: ignore[arg-type]
    theirs = deepseek_recipe.OpenCvImagePreprocessor().preprocess(
        data, deepseek_recipe.PreprocessOptions(detail, 8192, 512)
    )
    assert (ours.width, ours.height) == (theirs.width, theirs.height)
    left, right = decoded(ours.data), decoded(theirs.data)
    assert left.shape == right.shape == (ours.height, ours.width, 3)
    assert np.abs(left.astype(int) - right.astype(int)).mean() < ENCODER_NOISE


def gif(screen: tuple[int, int], at: tuple[int, int] = (0, 0)) -> bytes:
    """The golden GIF of one 100x80 frame, on another screen and at another place of it."""
    data = golden("one_100x80.gif")
    frame = data.index(b",", 13 + 3 * 2 ** ((data[10] & 7) + 1))
    return data[:6] + struct.pack("<HH", *screen) + data[10 : frame + 1] + struct.pack("<HH", *at) + data[frame + 5 :]


@pytest.mark.parametrize(
    ("screen", "at"),
    [((200, 80), (0, 0)), ((50, 80), (0, 0)), ((100, 200), (20, 30)), ((200, 80), (150, 0)), ((200, 80), (250, 90))],
)
def test_a_gif_frame_is_shown_where_it_lies_on_its_screen(screen: tuple[int, int], at: tuple[int, int]) -> None:
    data = gif(screen, at)
    ours = OpenCvImagePreprocessor().preprocess(data, HIGH)
    theirs = deepseek_recipe.OpenCvImagePreprocessor().preprocess(
        data, deepseek_recipe.PreprocessOptions("high", 8192, 512)
    )
    assert (ours.width, ours.height) == (theirs.width, theirs.height)
    assert np.abs(decoded(ours.data).astype(int) - decoded(theirs.data).astype(int)).mean() < 2 * ENCODER_NOISE


def test_only_the_first_frame_of_an_animation_is_decoded() -> None:
    animation = golden("anim_100x80.gif")
    assert len(first_frame(animation).file) < len(animation)
    assert OpenCvImagePreprocessor().preprocess(animation[:-1], HIGH).width == 616


def test_the_work_of_a_worker_and_its_outcome_can_be_pickled() -> None:
    function, arguments = pickle.loads(pickle.dumps((load, (PNG, HIGH, len(PNG)))))
    good = pickle.loads(pickle.dumps(function(*arguments)))
    bad = pickle.loads(pickle.dumps(load(b"junk", HIGH, 10)))
    assert (good.is_loaded, good.byte_size, good.info.width, good.fault) == (True, len(PNG), 630, None)
    assert (bad.is_loaded, bad.byte_size, bad.info, bad.fault.kind) == (True, 4, None, "UnsupportedMediaType")


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (b"", "EmptyImage"),
        (PNG, "ImageTooLarge"),
        ("nothing", "InvalidDataUrl"),
        ("data:text/html,hi", "UnsupportedMediaType"),
    ],
)
def test_a_file_that_cannot_be_had_is_told_apart_from_one_that_does_not_decode(source: bytes | str, kind: str) -> None:
    outcome = load(source, HIGH, len(PNG) - 1)
    assert outcome.fault is not None
    assert (outcome.is_loaded, outcome.byte_size, outcome.fault.kind) == (False, 0, kind)


def test_options_are_checked_like_those_of_the_reference() -> None:
    for arguments in (("zz", 1, 2), ("low", -1, 2), ("low", 1, 2**32), ("low", 1.5, 2), (5, 1, 2)):
        with pytest.raises((ValueError, TypeError, OverflowError)) as theirs:
            deepseek_recipe.PreprocessOptions(*arguments)
        with pytest.raises(theirs.type):
            PreprocessOptions(*arguments)  # type: ignore[arg-type]


def test_without_opencv_an_image_is_refused_naming_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    monkeypatch.delitem(sys.modules, "recipe.image.pixels", raising=False)
    monkeypatch.delattr("recipe.image.pixels", raising=False)
    with pytest.raises(ImageError, match=r"\[images\]") as error:
        OpenCvImagePreprocessor().preprocess(PNG, HIGH)
    assert not error.value.is_retryable


def test_importing_the_package_loads_neither_opencv_nor_the_http_client() -> None:
    code = "import sys, recipe.image; sys.exit(bool({'cv2', 'aiohttp', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
