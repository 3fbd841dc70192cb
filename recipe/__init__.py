"""Requests of three protocols to token IDs, and model output back to protocol events."""

from importlib import import_module

_EXPORTS = {
    "recipe.conversation": "AssistantMessage BytesImageSource Conversation DataUrlImageSource ImageSource LatestReminderMessage Message SystemMessage ToolCall ToolDefinition ToolMessage UrlImageSource UserMessage",
    "recipe.encoding.deepseek_v4": "DeepseekV4Encoding",
    "recipe.encoding.deepseek_v41": "DeepseekV41Encoding",
    "recipe.encoding.tokenizer": "Tokenizer",
    "recipe.errors": "ConversionError",
    "recipe.image": "CalcResizeError ImageError ImageInfo ImageQuota ImageResolver MultiModalData OpenCvImagePreprocessor PreprocessOptions ReqwestImageFetcher",
    "recipe.prompt": "RenderedPrompt SpecialToken SpecialTokens",
    "recipe.protocol.chat_completions.convert": "ChatCompletionRequest",
    "recipe.protocol.chat_completions.generator": "ChatCompletionChunkGenerator",
    "recipe.protocol.chat_completions.response": "ChatCompletionChunk ChatCompletionResponse",
    "recipe.protocol.messages.convert": "MessagesRequest",
    "recipe.protocol.messages.generator": "MessagesChunkGenerator",
    "recipe.protocol.messages.response": "MessagesResponse MessagesStreamEvent",
    "recipe.protocol.responses.convert": "ResponsesRequest",
    "recipe.protocol.responses.echo": "ResponsesEcho",
    "recipe.protocol.responses.generator": "ResponsesChunkGenerator",
    "recipe.protocol.responses.response": "ResponsesResponse ResponsesStreamEvent",
    "recipe.request": "IMAGE_SPECIAL_TOKEN_ID ConversationRequest ConversionOptions InferenceOptions ModelVersion OutputConstraint ReasoningContentBehavior WebSearchBehavior",
    "recipe.stream.inference": "InferenceChunk InferenceFinishReason PromptUsage",
    "recipe.stream.parsing_options": "ParsingOptions ThinkingInitialStage",
    "recipe.stream.processor": "StreamProcessor",
}
__version__ = "0.1.0"
__all__ = ["__version__"]
for _module, _names in _EXPORTS.items():
    try:
        _found = import_module(_module)
        for _name in _names.split():
            globals()[_name] = getattr(_found, _name)
            __all__ += [_name]
    except Exception:
        continue
