"""Names of token histories. Two states with the same name are the same state.

A name is the end of a chain: each link is the digest of the link before and of the token ids added
to it. The first link names the model and the owner, so that nothing is shared between models or
between callers. A session adds one link a turn; a long prompt adds one link a block.
"""

import hashlib
import struct
from collections.abc import Iterator, Sequence

DIGEST_BYTES = 16
BLOCK = 256


def root(fingerprint: str, owner: str, start: str = "") -> bytes:
    """The name of the empty history of a model and an owner; `start` names an initial state other than zero."""
    return _digest("\0".join((fingerprint, owner, start)).encode())


def extend(digest: bytes, ids: Sequence[int]) -> bytes:
    """The name of the history `digest` followed by `ids`."""
    return _digest(digest + pack_ids(ids))


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids as uint32, little-endian."""
    return struct.pack(f"<{len(ids)}I", *ids)


def unpack_ids(data: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def borders(most: int, block: int = BLOCK) -> Iterator[int]:
    """The lengths, up to `most`, at which a prompt's state is kept: the same for every prompt.

    They are `block` apart at first, then an eighth of the position. So a prefix that two prompts share
    is found but for an eighth of it, and a prompt of a million tokens has less than a hundred of them.
    """
    position = block
    while position <= most:
        yield position
        position += max(block, (1 << (position.bit_length() - 1)) // 8)


def prefixes(digest: bytes, prompt: Sequence[int], block: int = BLOCK) -> list[tuple[int, bytes]]:
    """Length and name of each prefix of `prompt` that ends at a border."""
    named, begin = [], 0
    for border in borders(len(prompt), block):
        digest = extend(digest, prompt[begin:border])
        named.append((border, digest))
        begin = border
    return named


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
