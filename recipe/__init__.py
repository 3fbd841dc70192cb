"""Requests of three protocols into token IDs, and model output back into their responses.

    request = ChatCompletionRequest(body).convert(ConversionOptions())
    token_ids = DeepseekV41Encoding().with_tokenizer(tokenizer).encode(request.conversation)
    processor = StreamProcessor(ChatCompletionRequest.chunk_generator(request, id, model), request.parsing_options)

The names are those of the reference. Importing them loads no HTTP client and no OpenCV: images do when there are any.
"""

from recipe.conversation import (
    AssistantMessage,
    BytesImageSource,
    Conversation,
    DataUrlImageSource,
    ImageSource,
    LatestReminderMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UrlImageSource,
    UserMessage,
)
from recipe.encoding.deepseek_v4 import DeepseekV4Encoding
from recipe.encoding.deepseek_v41 import DeepseekV41Encoding
from recipe.encoding.tokenizer import Tokenizer
from recipe.errors import ConversionError
from recipe.image import (
    CalcResizeError,
    ImageError,
    ImageInfo,
    ImageQuota,
    ImageResolver,
    MultiModalData,
    OpenCvImagePreprocessor,
    PreprocessOptions,
    ReqwestImageFetcher,
)
from recipe.prompt import RenderedPrompt, SpecialToken, SpecialTokens
from recipe.protocol.chat_completions.convert import ChatCompletionRequest
from recipe.protocol.chat_completions.generator import ChatCompletionChunkGenerator
from recipe.protocol.chat_completions.response import ChatCompletionChunk, ChatCompletionResponse
from recipe.protocol.messages.convert import MessagesRequest
from recipe.protocol.messages.generator import MessagesChunkGenerator
from recipe.protocol.messages.response import MessagesResponse, MessagesStreamEvent
from recipe.protocol.responses.convert import ResponsesRequest
from recipe.protocol.responses.echo import ResponsesEcho
from recipe.protocol.responses.generator import ResponsesChunkGenerator
from recipe.protocol.responses.response import ResponsesResponse, ResponsesStreamEvent
from recipe.request import (
    IMAGE_SPECIAL_TOKEN_ID,
    ConversationRequest,
    ConversionOptions,
    InferenceOptions,
    ModelVersion,
    OutputConstraint,
    ReasoningContentBehavior,
    WebSearchBehavior,
)
from recipe.stream.inference import InferenceChunk, InferenceFinishReason, PromptUsage
from recipe.stream.parsing_options import ParsingOptions, ThinkingInitialStage
from recipe.stream.processor import StreamProcessor

__version__ = "0.1.0"

__all__ = [
    "IMAGE_SPECIAL_TOKEN_ID",
    "AssistantMessage",
    "BytesImageSource",
    "CalcResizeError",
    "ChatCompletionChunk",
    "ChatCompletionChunkGenerator",
    "ChatCompletionRequest",
    "ChatCompletionResponse",
    "Conversation",
    "ConversationRequest",
    "ConversionError",
    "ConversionOptions",
    "DataUrlImageSource",
    "DeepseekV4Encoding",
    "DeepseekV41Encoding",
    "ImageError",
    "ImageInfo",
    "ImageQuota",
    "ImageResolver",
    "ImageSource",
    "InferenceChunk",
    "InferenceFinishReason",
    "InferenceOptions",
    "LatestReminderMessage",
    "Message",
    "MessagesChunkGenerator",
    "MessagesRequest",
    "MessagesResponse",
    "MessagesStreamEvent",
    "ModelVersion",
    "MultiModalData",
    "OpenCvImagePreprocessor",
    "OutputConstraint",
    "ParsingOptions",
    "PreprocessOptions",
    "PromptUsage",
    "ReasoningContentBehavior",
    "RenderedPrompt",
    "ReqwestImageFetcher",
    "ResponsesChunkGenerator",
    "ResponsesEcho",
    "ResponsesRequest",
    "ResponsesResponse",
    "ResponsesStreamEvent",
    "SpecialToken",
    "SpecialTokens",
    "StreamProcessor",
    "SystemMessage",
    "ThinkingInitialStage",
    "Tokenizer",
    "ToolCall",
    "ToolDefinition",
    "ToolMessage",
    "UrlImageSource",
    "UserMessage",
    "WebSearchBehavior",
    "__version__",
]
