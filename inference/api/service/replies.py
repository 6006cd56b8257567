"""The bodies of replies that describe the service or its tokenizer."""

from typing import Any, Literal

import msgspec


class Version(msgspec.Struct):
    version: str


class Load(msgspec.Struct):
    server_load: int  # rows that run or wait


class Tokenized(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(msgspec.Struct):
    prompt: str


class TokenizerInfo(msgspec.Struct, kw_only=True):
    """What Hugging Face's `tokenizer_config.json` says."""

    tokenizer_class: str = "RwkvWorldTokenizer"
    bos_token: str
    eos_token: str
    pad_token: str
    add_bos_token: Literal[False] = False
    add_eos_token: Literal[False] = False
    model_max_length: int
    chat_template: str
    added_tokens_decoder: dict[str, Any]
