"""POST /translate/v1/batch-translate, as the Immersive Translate extension calls it."""

import re

import pytest

from inference.api.native.languages import detect_language, language_name
from inference.api.native.text_pieces import find_placeholders, split_at_placeholders, split_text
from inference.text.tokenizer import get_tokenizer
from tests.api import wire
from tests.api.conftest import ENDING_QUEUE

PATH = "/translate/v1/batch-translate"
BODY = {"source_lang": "en", "target_lang": "zh-CN", "text_list": ["Hello world!", "Good morning"]}


def translate(api, **more) -> list[dict]:
    return api.post(PATH, BODY | more).reply["translations"]


def test_the_reply(ending_api):
    assert re.fullmatch(wire.translations([b"en", b"en"]), ending_api.post(PATH, BODY).body)
    assert re.fullmatch(wire.translations([b"en", b"en"]), ending_api.post(f"{PATH}/", BODY).body)


@pytest.mark.parametrize(
    ("languages", "prompt"),
    [
        (("en", "zh-CN"), "English: {}\n\nChinese:"),
        (("zh-TW", "pt-BR"), "Chinese: {}\n\nPortuguese:"),
        (("auto", "Klingon dialect"), "auto: {}\n\nKlingon dialect:"),
    ],
)
def test_the_prompt(ending_api, languages, prompt):
    source, target = languages
    text = "Good morning"
    body = {"prompt": prompt.format(text), "temperature": 0, "max_tokens": 2048}
    plain = ending_api.post("/v1/completions", body).reply["choices"][0]["text"]
    assert plain.strip()
    (item,) = translate(ending_api, source_lang=source, target_lang=target, text_list=[f" {text}\n"])
    assert item["text"] == plain.strip()


def test_the_source_language_is_detected(ending_api):
    items = translate(ending_api, source_lang="auto", text_list=["Hello", "Привет", "你好", "こんにちは", ""])
    assert [item["detected_source_lang"] for item in items] == ["en", "ru", "zh-CN", "ja", "en"]


def test_a_null_is_not_given(ending_api):
    with_nulls = ending_api.post(PATH, BODY | {"source_lang": None, "placeholders": None}).reply
    assert with_nulls["translations"] == translate(ending_api, source_lang="auto")


def test_texts_without_words_stay_as_they_are(ending_api):
    assert [item["text"] for item in translate(ending_api, text_list=["", " \n "])] == ["", ""]


def test_placeholders_are_kept(ending_api):
    text = "Press <b1>Enter</b1> to open {{file}}, or ask @@me@@."
    (item,) = translate(ending_api, text_list=[text], placeholders=["@@me@@"])
    assert re.findall(r"</?b1>|\{\{file\}\}|@@me@@", item["text"]) == ["<b1>", "</b1>", "{{file}}", "@@me@@"]
    assert item["text"] != text


def test_a_long_text_keeps_its_paragraphs(ending_api):
    paragraph = "The fox jumps over the lazy dog. " * 40
    (item,) = translate(ending_api, text_list=[f"{paragraph}\n\n\n{paragraph}\n\n"])
    first, _, rest = item["text"].partition("\n\n\n")
    (alone,) = translate(ending_api, text_list=[paragraph])
    assert (first, rest) == (alone["text"] + " ", alone["text"])


def test_an_item_that_fails_stays_as_it_is_and_the_others_are_translated(ending_api):
    paragraph = "The fox jumps over the lazy dog. " * 40 + "\n\n"
    long = paragraph * 2 * ENDING_QUEUE  # more rows than may wait: it cannot be queued
    texts = ["Good morning", long, "Good night"]
    items = translate(ending_api, text_list=texts)
    alone = [translate(ending_api, text_list=[text])[0] for text in (texts[0], texts[2])]
    assert items[1]["text"] == long
    assert [items[0], items[2]] == alone
    refused = ending_api.post(PATH, BODY | {"text_list": [long]})  # when nothing at all can be had, it says so
    assert refused.status == 429


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"target_lang": ""}, "Missing target_lang"),
        ({"text_list": []}, "Empty text_list"),
        ({"text_list": None}, "Empty text_list"),
        ({"text_list": ["a", 1]}, "text_list[1]: expected a string, got an integer"),
        ({"target_lang": None}, "Missing target_lang"),
        ({"placeholders": ["@"] * 1025}, "placeholders: expected a list of length <= 1024"),
    ],
)
def test_errors(api, more, message):
    answer = api.post(PATH, BODY | more)
    assert (answer.status, answer.json) == (400, {"error": message})
    overflow = api.post(PATH, BODY | {"text_list": ["a"] * 1025})
    assert (overflow.status, overflow.json["request_bsz"]) == (400, 1025)


async def test_an_open_route_where_the_setting_says_so(remote, change_settings):
    async def status() -> int:
        return (await remote.post(PATH, BODY, content_type="application/json")).status_code

    change_settings(api_password="secret")
    assert await status() == 401
    change_settings(open_routes=True)
    assert await status() == 503  # admitted, but there is no engine


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("zh-CN", "Chinese"),
        ("zh_tw", "Chinese"),
        ("EN-us", "English"),
        ("yue", "Cantonese"),
        ("sr-Latn", "Serbian"),
        ("auto", "auto"),
        ("xx-YY", "xx-YY"),
        ("Old Norse", "Old Norse"),
    ],
)
def test_language_names(code, name):
    assert language_name(code) == name


@pytest.mark.parametrize(
    ("text", "code"),
    [("", "en"), ("Bonjour", "en"), ("漢字かな", "ja"), ("漢字", "zh-CN"), ("안녕", "ko"), ("שלום", "he")],
)
def test_detection(text, code):
    assert detect_language(text) == code


@pytest.mark.parametrize(
    "text",
    [
        "Short.",
        "One. Two! Three? " * 30,
        "第一句。第二句！第三句？" * 30,
        "line one\nline two\n" * 30 + "\n\n" + "word " * 100,
        "x" * 2000,
        "🙂" * 300,
        "\n" * 500,
    ],
)
@pytest.mark.parametrize("limit", [4, 16, 64])
def test_pieces_are_small_and_make_up_the_text(text, limit):
    pieces = split_text(text, limit)
    assert "".join(pieces) == text
    assert all(len(get_tokenizer().encode(piece)) <= limit for piece in pieces)


def test_texts_are_cut_at_the_widest_border_that_does():
    text = "One two. Three four.\nFive six.\n\nSeven eight nine."
    assert split_text(text, 12) == ["One two. Three four.\nFive six.\n\n", "Seven eight nine."]
    assert split_text(text, 9) == ["One two. Three four.\n", "Five six.\n\n", "Seven eight nine."]


def test_placeholders():
    text = "a {{1}} b {0} <i2>c</i2> %1$s [x] 100%"
    assert find_placeholders(text, ["[x]"]) == ["{{1}}", "{0}", "<i2>", "</i2>", "%1$s", "[x]"]
    parts = split_at_placeholders(text, ["[x]"])
    assert "".join(parts) == text
    assert parts[1::2] == find_placeholders(text, ["[x]"])
