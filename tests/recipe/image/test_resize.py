import deepseek_recipe
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recipe.image import ImageInfo, MultiModalData
from recipe.image.resize import (
    MAX_TOKENS,
    MIN_AREA_PX,
    PATCH_PX,
    Size,
    bounded,
    contained,
    fit,
    grid_tokens,
    output_size,
)

ANY_SIDE = st.integers(0, 2**32 - 1) | st.integers(0, 5000) | st.integers(0, 60)
IMAGE_SIDE = st.integers(1, 8192) | st.integers(1, 60)


@settings(max_examples=1500, deadline=None)
@given(ANY_SIDE, ANY_SIDE)
@example(0, 42 * 511)
@example(285, 50153)  # shrinks below the minimal area and grows again
@example(1716, 3796)  # the grid is exactly 21 columns
@example(665, 298)  # growing stops a little below the minimal area
def test_token_counts_are_those_of_the_reference(width: int, height: int) -> None:
    theirs = deepseek_recipe.MultiModalData([deepseek_recipe.ImageInfo(b"x", width, height)])
    assert MultiModalData([ImageInfo(b"x", width, height)]).image_token_adjustment() == theirs.image_token_adjustment()


@settings(max_examples=500, deadline=None)
@given(IMAGE_SIDE, IMAGE_SIDE)
def test_fitted_sizes_are_whole_patches_within_the_token_limit(width: int, height: int) -> None:
    size = fit(Size(width, height))
    assert size.width % PATCH_PX == size.height % PATCH_PX == 0
    assert grid_tokens(size) <= MAX_TOKENS
    assert size.area >= 0.99 * MIN_AREA_PX


@pytest.mark.parametrize(
    ("given_size", "expected"),
    [
        ((10, 10), (546, 546)),
        ((640, 480), (644, 490)),
        ((1344, 1344), (1302, 1302)),
        ((1, 8192), (42, 16380)),
        ((8192, 1), (16380, 28)),
    ],
)
def test_output_sizes_fit_into_a_webp_file(given_size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert output_size(Size(*given_size)) == expected


def test_a_size_is_bounded_by_its_longest_side_and_never_vanishes() -> None:
    assert bounded(Size(1024, 100), 512) == (512, 50)
    assert bounded(Size(1, 8192), 512) == (1, 512)
    assert bounded(Size(300, 200), 512) == (300, 200)


def test_a_contained_size_keeps_the_aspect_ratio_and_touches_the_frame() -> None:
    assert contained(Size(640, 480), Size(644, 490)) == (644, 483)
    assert contained(Size(5, 700), Size(56, 6440)) == (46, 6440)
    assert contained(Size(10, 10), Size(546, 546)) == (546, 546)
