"""Images of a prompt: fetched on the event loop, decoded and resized in the preparation workers, counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.entrypoints.errors import ApiError
from engine.entrypoints.lifeline import Clock, Lifeline, Phase
from engine.entrypoints.options import ServerOptions
from engine.entrypoints.preparation import PreparationPool
from recipe.conversation import ImageSource
from recipe.errors import ConversionError
from recipe.image import (
    CalcResizeError,
    ImageError,
    ImageInfo,
    ImagePolicy,
    ImageQuota,
    image_error_status,
    resolve_images,
)
from recipe.image.fetcher import PolicyImageFetcher
from recipe.max_tokens import MaxTokens
from recipe.prepare import TOKEN_ID_BYTES, PreparedRequest


@dataclass(frozen=True, slots=True)
class ResolvedImages:
    """What the engine gets of a prompt's images, and how many tokens may be generated with them in the context."""

    images: Sequence[ImageInfo]
    max_tokens: int


def image_policy(options: ServerOptions) -> ImagePolicy:
    """What the options allow of images."""
    return ImagePolicy(
        allow_image_hosts=tuple(options.allow_image_hosts),
        allow_private_images=options.allow_private_images,
        no_image_urls=not options.image_urls,
        max_images=options.max_images,
        max_image_bytes=options.max_image_mib << 20,
        max_total_image_bytes=options.max_total_image_mib << 20,
    )


class ImageStage:
    """Resolves the images of prepared requests under one policy. `context_limit` is in tokens."""

    def __init__(self, policy: ImagePolicy, pool: PreparationPool, context_limit: int) -> None:
        self._policy = policy
        self._pool = pool
        self._context_limit = context_limit
        self._fetcher = PolicyImageFetcher(policy)

    async def resolve(self, prepared: PreparedRequest) -> ResolvedImages:
        """Fetch, decode and count the images of `prepared`; an `ApiError` names the place of the one that fails."""
        images, image_tokens = await self._load(prepared.image_sources)
        prompt_tokens = len(prepared.token_ids) // TOKEN_ID_BYTES + image_tokens
        return ResolvedImages(images, self._max_tokens(prepared.max_tokens, prompt_tokens))

    async def count(self, sources: Sequence[ImageSource], clock: Clock) -> int:
        """How many tokens the images of a prompt that is not run occupy, beyond the one that stands for each.

        Takes as long, and fails with the same errors, as when it is run.
        """
        if not sources:
            return 0
        with Lifeline(clock) as lifeline:
            lifeline.enter(Phase.IMAGES)
            _, image_tokens = await self._load(sources)
            return image_tokens

    async def _load(self, sources: Sequence[ImageSource]) -> tuple[Sequence[ImageInfo], int]:
        """The images, and the tokens they occupy beyond their placeholders."""
        try:
            data = await resolve_images(
                sources, ImageQuota(), fetcher=self._fetcher, policy=self._policy, run_in_worker=self._pool.run
            )
            return data.images, data.image_token_adjustment()
        except (ImageError, CalcResizeError) as error:
            raise ApiError(image_error_status(error), str(error), code="image_error") from None

    def _max_tokens(self, wanted: int | MaxTokens, prompt_tokens: int) -> int:
        if isinstance(wanted, int):
            return wanted
        try:
            return wanted.resolve(prompt_tokens, self._context_limit)
        except ConversionError as error:
            raise ApiError(error.status_code, str(error)) from None
