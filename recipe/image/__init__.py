"""Images of requests: where their bytes come from, which are allowed, and what the model gets of them.

Importing this loads neither the HTTP client nor OpenCV; the first download and the first image do.
"""

from recipe.image.error import CalcResizeError, ImageError, image_error_status
from recipe.image.info import ImageInfo, MultiModalData
from recipe.image.policy import ImagePolicy
from recipe.image.preprocess import OpenCvImagePreprocessor, PreprocessOptions
from recipe.image.quota import ImageQuota
from recipe.image.reqwest_fetcher import ReqwestImageFetcher
from recipe.image.resolver import ImageResolver, resolve_images

__all__ = [
    "CalcResizeError",
    "ImageError",
    "ImageInfo",
    "ImagePolicy",
    "ImageQuota",
    "ImageResolver",
    "MultiModalData",
    "OpenCvImagePreprocessor",
    "PreprocessOptions",
    "ReqwestImageFetcher",
    "image_error_status",
    "resolve_images",
]
