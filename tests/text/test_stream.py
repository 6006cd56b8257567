import random

import pytest

from inference.text.stream import Piece, TextStream
from inference.text.tokenizer import get_tokenizer

TOKENIZER = get_tokenizer()
ID_OF = {data: token for token, data in enumerate(TOKENIZER.table)}
ALPHABET = ["a", "b", "ab", "\n", "\n\n", "User", ":", "é", "e\u0301", "你", "好", "世界", "🙂", "👩‍👧", "𝔘", " "]
BROKEN = [b"\xe4", b"\xbd\xa0", b"\xf0\x9f", b"\xff", b"\xc0\x80", b"\xed\xa0\x80"]


def byte_ids(data):
    return [byte + 1 for byte in data]  # the vocabulary begins with the 256 single bytes


def random_bytes(rng, broken):
    parts = [rng.choice(ALPHABET).encode() for _ in range(rng.randint(0, 25))]
    if broken:
        for _ in range(rng.randint(1, 4)):
            parts.insert(rng.randint(0, len(parts)), rng.choice(BROKEN))
    return b"".join(parts)


def random_tokens(rng, data):
    """Tokens of `data` at random, not as `encode` would cut it; now and then an id without bytes."""
    tokens = []
    while data:
        size = rng.choice([size for size in range(1, 9) if data[:size] in ID_OF])
        tokens.append(ID_OF[data[:size]])
        data = data[size:]
        if rng.random() < 0.1:
            tokens.append(rng.choice([0, 65530]))
    return tokens


def random_chunks(rng, tokens):
    while tokens:
        size = rng.choice([1, 1, 2, 5, 20])
        yield tokens[:size]
        tokens = tokens[size:]


def first_stop(text, stops):
    """(start, end) of the stop that is complete first, the longest of those, by looking at every end."""
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            return end - max(map(len, matches)), end
    return None


def tokens_needed(tokens, data):
    """The fewest first tokens that hold all of `data`."""
    count = 0
    while len(TOKENIZER.decode_bytes(tokens[:count])) < len(data):
        count += 1
    return count


def run(stream, chunks):
    pieces = [stream.push(chunk) for chunk in chunks]
    return pieces, stream.finish()


@pytest.mark.parametrize("broken", [False, True], ids=["valid", "broken"])
@pytest.mark.parametrize("include_stop", [False, True], ids=["cut", "included"])
def test_pieces_add_up_to_the_text_before_the_first_stop(broken, include_stop):
    rng = random.Random(7)
    stopped = 0
    for _ in range(1500):
        data = random_bytes(rng, broken)
        text = data.decode("utf-8", errors="replace")
        stops = ["".join(rng.choices(ALPHABET, k=rng.randint(1, 3))) for _ in range(rng.randint(0, 3))]
        tokens = random_tokens(rng, data)
        stream = TextStream(TOKENIZER, stops, include_stop)
        pieces, rest = run(stream, random_chunks(rng, tokens))

        match = first_stop(text, stops)
        shown = "".join(piece.text for piece in pieces) + rest
        if match:
            stopped += 1
            start, end = match
            assert shown == text[: end if include_stop else start]
            assert stream.stop == pieces[-1].stop == text[start:end]
            assert rest == ""
        else:
            assert shown == text
            assert stream.stop is None
        if not broken:
            assert "\ufffd" not in shown
            assert stream.visible_tokens == tokens_needed(tokens, shown.encode())
    assert 300 < stopped < 1200


def test_no_piece_ever_shows_what_may_belong_to_a_stop():
    rng = random.Random(8)
    for _ in range(1000):
        tokens = random_tokens(rng, random_bytes(rng, broken=False))
        stops = ["".join(rng.choices(ALPHABET, k=rng.randint(1, 4))) for _ in range(2)]
        stream, received, shown = TextStream(TOKENIZER, stops), b"", ""
        for chunk in random_chunks(rng, tokens):
            received += TOKENIZER.decode_bytes(chunk)
            piece = stream.push(chunk)
            shown += piece.text
            assert piece.tokens == stream.visible_tokens == tokens_needed(tokens, shown.encode())
            if piece.stop is not None:
                break
            hidden = received[len(shown.encode()) :]
            beginnings = {stop.encode()[:size] for stop in stops for size in range(1, len(stop.encode()))}
            longest = max((len(b) for b in beginnings if received.endswith(b)), default=0)
            unfinished = len(received) - len(received.decode("utf-8", errors="ignore").encode())
            assert len(hidden) == max(longest, unfinished)  # no less is shown than can be, either


def test_half_a_character_waits_for_its_rest():
    stream = TextStream(TOKENIZER)
    smile = "🙂".encode()
    assert stream.push([*byte_ids(b"x"), *byte_ids(smile[:1])]) == Piece("x", 1)
    assert stream.push(byte_ids(smile[1:3])) == Piece("", 1)
    assert stream.push(byte_ids(smile[3:])) == Piece("🙂", 5)
    assert stream.finish() == ""


def test_an_unfinished_character_ends_as_one_replacement():
    stream = TextStream(TOKENIZER)
    assert stream.push(byte_ids("🙂".encode()[:3])) == Piece("", 0)
    assert stream.finish() == "\ufffd"
    assert stream.visible_tokens == 3


@pytest.mark.parametrize("data", [b"\xff", b"\xc0", b"\x80", b"\xf5", b"\xe0\x80", b"\xf4\x90"])
def test_bytes_that_can_never_be_valid_are_replaced_at_once(data):
    assert TextStream(TOKENIZER).push(byte_ids(data)).text == data.decode(errors="replace")


def test_a_stop_may_begin_and_end_inside_tokens():
    tokens = [*TOKENIZER.encode("Hi.\n\n"), *TOKENIZER.encode("User: x")]
    stream = TextStream(TOKENIZER, [".\n\nUs"])
    assert [stream.push([token]).text for token in tokens[:2]] == ["Hi", ""]
    assert stream.push(tokens[2:]) == Piece("", 1, ".\n\nUs")
    assert stream.push(tokens) == Piece("", 1, ".\n\nUs")
    assert stream.finish() == ""


def test_a_held_beginning_is_released_when_it_turns_out_to_be_none():
    stream = TextStream(TOKENIZER, ["\n\nUser:"])
    assert stream.push(byte_ids(b"a\n\nUs")) == Piece("a", 1)
    assert stream.push(byte_ids(b"u")) == Piece("\n\nUsu", 6)
    assert stream.push(byte_ids(b"\n")) == Piece("", 6)
    assert stream.finish() == "\n"
    assert stream.visible_tokens == 7


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize(
    ("stops", "text", "stop"),
    [
        (["abcd", "c"], "xxab", "c"),  # complete first, though it begins later
        (["bc", "abc", "c"], "xx", "abc"),  # complete with the same byte: the longest
        (["abcde", "ab"], "xx", "ab"),
        (["aab", "cde"], "xxab", "cde"),
    ],
)
def test_which_of_several_stops_wins(stops, text, stop, size):
    tokens = byte_ids(b"xxabcdefg")
    stream = TextStream(TOKENIZER, stops)
    pieces, _ = run(stream, [tokens[start : start + size] for start in range(0, len(tokens), size)])
    assert ("".join(piece.text for piece in pieces), stream.stop) == (text, stop)
    assert stream.visible_tokens == len(text)


def test_a_stop_behind_half_a_character():
    stream = TextStream(TOKENIZER, ["END"])
    assert stream.push(byte_ids(b"a\xf0\x9f")) == Piece("a", 1)
    assert stream.push(byte_ids(b"EN")).text == ""
    assert stream.push(byte_ids(b"D")) == Piece("\ufffd", 3, "END")


def test_an_included_stop_counts_its_tokens():
    stream = TextStream(TOKENIZER, ["bc"], include_stop=True)
    assert stream.push(byte_ids(b"abcd")) == Piece("abc", 3, "bc")


@pytest.mark.parametrize("stop", ["", "\ud800"])
def test_a_stop_that_is_no_text_is_refused(stop):
    with pytest.raises(ValueError, match=r"^stop"):
        TextStream(TOKENIZER, ["x", stop])
