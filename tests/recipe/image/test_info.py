from typing import Any

import deepseek_recipe
import pytest

import recipe.image

CALLS = (
    "ImageInfo('x', 1, 2)",
    "ImageInfo(b'x', -1, 2)",
    "ImageInfo(b'x', 2**32, 2)",
    "ImageInfo(b'x', 1, 2**70)",
    "ImageInfo(b'x', 1.0, 2)",
    "ImageInfo(bytearray(b'xy'), 1, 2).data",
    "ImageInfo([1, 2], 1, True).height",
    "ImageInfo(data=b'x', width=3, height=4).width",
    "MultiModalData().images",
    "MultiModalData([5])",
    "MultiModalData(5)",
    "MultiModalData(iter([]))",
    "MultiModalData((ImageInfo(b'x', 640, 480), ImageInfo(b'x', 10, 10))).image_token_adjustment()",
    "MultiModalData([ImageInfo(b'x', 640, 480)]).is_empty()",
    "ImageQuota(1)",
    "ImageQuota().image_count()",
    "ImageQuota().byte_size()",
    "ReqwestImageFetcher(1)",
    "ReqwestImageFetcher.with_max_bytes(-1)",
    "ReqwestImageFetcher.with_max_bytes(2**64)",
    "ReqwestImageFetcher.with_max_bytes('1')",
    "ReqwestImageFetcher().with_destination_filter(5)",
    "ReqwestImageFetcher().fetch(5)",
    "PreprocessOptions('low', 1, 2).detail",
    "PreprocessOptions('medium', 1, 2)",
    "PreprocessOptions(detail='auto', max_dimension_px=3, low_detail_max_dimension_px=2).max_dimension_px",
    "OpenCvImagePreprocessor().preprocess(b'x', 5)",
    "OpenCvImagePreprocessor().preprocess('x', PreprocessOptions('low', 1, 2))",
    "issubclass(CalcResizeError, ValueError)",
    "str(ImageError('text'))",
)


def outcome(module: Any, call: str) -> tuple[str, str]:
    try:
        return "value", repr(eval(call, vars(module) | {}))
    except Exception as error:
        return type(error).__name__, "" if isinstance(error, TypeError) else str(error)


@pytest.mark.parametrize("call", CALLS)
def test_a_call_has_the_outcome_of_the_reference(call: str) -> None:
    assert outcome(recipe.image, call) == outcome(deepseek_recipe, call)
