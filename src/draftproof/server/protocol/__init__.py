"""What goes over the wire: bodies of requests, checked; answers, in OpenAI's shapes."""

from draftproof.server.protocol.body import read_body
from draftproof.server.protocol.chat import ChatRequest
from draftproof.server.protocol.common import TextRequest
from draftproof.server.protocol.completions import CompletionRequest, listed_prompts
from draftproof.server.protocol.document import openapi_answers, openapi_body
from draftproof.server.protocol.messages import checked_messages, content_text
from draftproof.server.protocol.tokens import DetokenizeRequest, TokenizeRequest

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "TextRequest",
    "TokenizeRequest",
    "checked_messages",
    "content_text",
    "listed_prompts",
    "openapi_answers",
    "openapi_body",
    "read_body",
]
