import random

import pytest
from rwkv.rwkv_tokenizer import TRIE_TOKENIZER

from inference.text.tokenizer import VOCAB_SIZE, get_tokenizer

TEXTS = [
    "",
    "Hello, world!\n\n",
    "User: 你好，世界。\n\nAssistant:",
    "naïve café e\u0301 \u200d\u200b",
    "👩‍👩‍👧‍👦 🏳️‍🌈 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U0010ffff",
    "\0\x01\x7f\r\n\t",
    "<|endoftext|>",
]


@pytest.fixture(scope="module")
def reference():
    """The tokenizer that RWKV's author publishes, on the vocabulary inside that package."""
    import rwkv.rwkv_tokenizer

    return TRIE_TOKENIZER(rwkv.rwkv_tokenizer.__file__.replace("rwkv_tokenizer.py", "rwkv_vocab_v20230424.txt"))


def random_text(rng, length):
    ranges = [(32, 126), (0xA0, 0x2FF), (0x300, 0x36F), (0x4E00, 0x9FFF), (0x1F300, 0x1FAFF), (0, 0xD7FF)]
    return "".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(length))


def test_ids_and_bytes_are_the_reference_tokenizers(reference):
    rng = random.Random(1)
    tokenizer = get_tokenizer()
    for text in TEXTS + [random_text(rng, 60) for _ in range(100)]:
        tokens = tokenizer.encode(text)
        assert tokens == reference.encode(text)
        assert tokenizer.decode(tokens) == text
    assert [tokenizer.token_bytes(token) for token in reference.idx2token] == list(reference.idx2token.values())
    assert sum(map(bool, tokenizer.table)) == len(reference.idx2token)


def test_a_batch_is_encoded_like_each_of_its_texts():
    tokenizer = get_tokenizer()
    assert tokenizer.encode_batch(TEXTS) == [tokenizer.encode(text) for text in TEXTS]


@pytest.mark.parametrize("encode", [get_tokenizer().encode, lambda text: get_tokenizer().encode_batch(["a", text])])
def test_a_lone_surrogate_is_refused(encode):
    with pytest.raises(ValueError, match=r"^text holds a lone surrogate, U\+D83D, at character 2"):
        encode("ab\ud83d")


@pytest.mark.parametrize("token", [0, 65530, 65535, 65536, -1, 10**9])
def test_ids_without_bytes(token):
    tokenizer = get_tokenizer()
    assert tokenizer.token_bytes(token) == b""
    assert tokenizer.decode([33, token, 34]) == tokenizer.decode([33, 34])


def test_the_table_has_every_id():
    assert len(get_tokenizer().table) == VOCAB_SIZE == 65536


def test_pieces_of_a_character():
    tokenizer = get_tokenizer()
    assert tokenizer.token_bytes(3319) == b"\xf0\x9f"
    assert tokenizer.decode([3319]) == "\ufffd"
    assert tokenizer.decode_bytes([3319, 3319]) == b"\xf0\x9f\xf0\x9f"


def test_every_id_has_its_own_display_text():
    tokenizer = get_tokenizer()
    assert len({tokenizer.token_text(token) for token in range(VOCAB_SIZE)}) == VOCAB_SIZE
    assert tokenizer.token_text(3319) == r"bytes:\xf0\x9f"
    assert tokenizer.token_text(0) == "<|endoftext|>"
    assert tokenizer.token_text(65530) == "token_id:65530"
    assert tokenizer.token_text(tokenizer.encode(" suspicion")[0]) == " suspicion"
