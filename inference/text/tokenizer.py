"""The RWKV World tokenizer: text to ids, and ids back to bytes.

A token of this vocabulary is a byte string, not a string: hundreds of ids are pieces of a UTF-8
character. Decoding is therefore a table of bytes here. The library that encodes is not asked to
decode: on such a piece it ends with an exception that `except Exception` does not catch.
"""

import ast
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from pyrwkv_tokenizer import RWKVTokenizer

from inference.bus.messages import END_OF_TEXT

VOCAB_SIZE = 65536  # rows of the models' head; the ids the vocabulary file leaves out have no bytes
END_OF_TEXT_NAME = "<|endoftext|>"


class Tokenizer:
    """`table[id]` holds the bytes of each of the VOCAB_SIZE ids, b"" where the id has none."""

    def __init__(self) -> None:
        self._encoder = RWKVTokenizer()
        self.table = _read_vocabulary(Path(self._encoder.vocab_filepath))

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, which is taken literally: no token is special.

        Raises ValueError if `text` holds a lone surrogate, which has no UTF-8 form.
        """
        try:
            tokens: list[int] = self._encoder.encode(text)
        except UnicodeEncodeError as error:
            raise surrogate_error("text", error) from error
        return tokens

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` for each of `texts`, in several threads."""
        try:
            rows: list[list[int]] = self._encoder.encode_batch(list(texts))
        except UnicodeEncodeError as error:
            raise surrogate_error("text", error) from error
        return rows

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one id; b"" for the end of text and for ids that do not exist."""
        return self.table[token] if 0 <= token < VOCAB_SIZE else b""

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        return b"".join([self.token_bytes(token) for token in tokens])

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of `tokens`; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(tokens).decode("utf-8", errors="replace")

    def token_text(self, token: int) -> str:
        r"""A display string for one id, different for every id, so it can be a key among logprobs.

        A piece of a character is written as OpenAI does, `bytes:\xe4\xbd`; an id without bytes as
        `<|endoftext|>` or `token_id:65530`.
        """
        data = self.token_bytes(token)
        if not data:
            return END_OF_TEXT_NAME if token == END_OF_TEXT else f"token_id:{token}"
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


@cache
def get_tokenizer() -> Tokenizer:
    """The process's tokenizer. Loading takes about half a second, and only the first time."""
    return Tokenizer()


def _read_vocabulary(path: Path) -> list[bytes]:
    """Read lines of `id literal length`, the literal being a Python string or bytes literal.

    Raises ValueError, naming the token, if a literal has not the stated number of bytes.
    """
    ids: list[int] = []
    literals: list[str] = []
    sizes: list[int] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        token, rest = line.split(" ", 1)
        literal, length = rest.rsplit(" ", 1)
        ids.append(int(token))
        literals.append(literal)
        sizes.append(int(length))
    table = [b""] * VOCAB_SIZE
    # One evaluation of all literals: a third faster than one each.
    values = ast.literal_eval(f"[{','.join(literals)}]")
    for index, value, size in zip(ids, values, sizes, strict=True):
        data = value.encode("utf-8") if isinstance(value, str) else value
        if len(data) != size:
            raise ValueError(f"{path}: token {index} has {len(data)} bytes, but {size} are stated")
        table[index] = data
    return table


def surrogate_error(field: str, error: UnicodeEncodeError) -> ValueError:
    code = ord(error.object[error.start])
    return ValueError(f"{field} holds a lone surrogate, U+{code:04X}, at character {error.start}: it has no UTF-8 form")
