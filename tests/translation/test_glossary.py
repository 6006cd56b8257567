"""Terms that are kept, or always translated the same way."""

import pytest

from inference.translation.glossary import BadGlossary, Glossary, parse_glossary, restore


def glossary(text: str) -> Glossary:
    return Glossary(parse_glossary(text))


def test_terms_are_marked_and_come_back_as_the_glossary_says():
    marked, restored = glossary("RWKV\nstate = 状态\nstate pool = 状态池").protect("RWKV has a state pool, a state.")
    assert marked == "{{1}} has a {{2}}, a {{3}}."
    assert restore("{{3}} {{2}}、{{1}} {{7}}", restored) == "状态 状态池、RWKV {{7}}"


def test_a_term_is_a_whole_word_where_words_have_spaces():
    assert (
        glossary("art = A\n状态 = S").protect("art start art2 État的art。初状态机")[0]
        == "{{1}} start art2 État的{{2}}。初{{3}}机"
    )


def test_markers_of_the_text_are_not_mistaken_for_ours():
    marked, restored = glossary("fox = F").protect("{{1}} fox {{3}} fox")
    assert marked == "{{1}} {{2}} {{3}} {{4}}"
    assert restore(marked, restored) == "{{1}} F {{3}} F"


def test_markers_of_the_text_may_have_any_number_of_digits():
    own = "{{" + "9" * 10_000 + "}}"  # more than Python turns into a number
    marked, restored = glossary("fox = F").protect(f"{own} fox")
    assert restore(marked, restored) == f"{own} F"


def test_terms_are_no_patterns():
    assert glossary("a.b\n$ = =").protect("axb a.b $")[0] == "axb {{1}} {{2}}"


def test_without_terms_nothing_changes():
    assert glossary("\n \n").protect("text") == ("text", {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ok\n= x", "Line 2"),
        ("a =", "Line 1"),
        ("x" * 201, "200 characters"),
        ("\n".join(map(str, range(201))), "200 terms"),
    ],
)
def test_what_is_no_glossary(text, message):
    with pytest.raises(BadGlossary, match=message):
        parse_glossary(text)
