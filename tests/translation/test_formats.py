"""Each format: what of a file is translated, and that all the rest comes back as it was."""

import csv
import io
import json
import subprocess
import sys

import polib
import pytest

from inference.translation.formats import EXTENSIONS, FORMATS, format_of
from inference.translation.formats.csv_cells import MAX_COLUMNS
from inference.translation.formats.document import BadFile, Options, fill
from rwkvsite.env import BASE_DIR

MARKDOWN = """---
title: front matter
---
# A heading

A paragraph goes
over two lines.

- an item
  that goes on
- [ ] a task with `code` and [a link](http://example.org/a)

```py
print("code")
```

    indented code

> a quote

| name | value |
|------|-------|
| cell | `x` |

<!-- a
comment -->
<script>
alert(1)
</script>
hard break  
new line
1. first

[ref]: http://example.org
`only code`
"""
MARKDOWN_TEXTS = [
    "A heading",
    "A paragraph goes over two lines.",
    "an item that goes on",
    "a task with `code` and [a link](http://example.org/a)",
    "a quote",
    "name",
    "value",
    "cell",
    "hard break",
    "new line",
    "first",
]
SUBTITLES = """1
00:00:01,000 --> 00:00:02,500
Hello there,
<i>old friend</i>.

2
00:00:03,000 --> 00:00:04,000

3
00:00:05,000 --> 00:00:06,000 X1:1
Bye

"""
MESSAGES = """# A comment
msgid ""
msgstr ""
"Language: zh\\n"
"Content-Type: text/plain; charset=UTF-8\\n"

#: a.py:1
#, python-format
msgid "Say \\"%(name)s\\"\\n"
msgstr ""

msgid "one file"
msgid_plural "many "
"files"
msgstr[0] ""
msgstr[1] ""

msgid "known"
msgstr "bekannt"

#~ msgid "obsolete"
#~ msgstr ""
"""
CASES = {
    "txt": (" one\n\n--- 12 ---\ntwo words \n", ["one", "two words"]),
    "md": (MARKDOWN, MARKDOWN_TEXTS),
    "csv": (
        'id,text,note\n1,plain,=A1\n2,"a, ""b""",x\n3,"two\nlines",y\n4\n',
        ["plain", 'a, "b"', "two\nlines"],
    ),
    "srt": (SUBTITLES, ["Hello there,\n<i>old friend</i>.", "Bye"]),
    "json": (
        '{"key": "a value",\n "list": [1, "  \\u00e9t\\u00e9\\n", {"k": "c\\/d"}, "12"]}\n',
        ["a value", "été", "c/d"],
    ),
    "po": (MESSAGES, ['Say "%(name)s"', "one file", "many files"]),
}
OPTIONS = Options(column="text")


def translated(name: str, text: str, options: Options = OPTIONS, change=str.upper) -> str:
    segments = list(FORMATS[name].segments(text, options))
    return fill(text, segments, [change(segment.text) for segment in segments])


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_translated_and_what_stays(name, line_end):
    text, expected = CASES[name]
    text = text.replace("\n", line_end)
    segments = list(FORMATS[name].segments(text, OPTIONS))
    assert [segment.text.replace("\r\n", "\n") for segment in segments] == expected
    assert fill(text, segments, [None] * len(segments)) == text
    for place, segment in enumerate(segments):  # one translated line changes no other part of the file
        only = [None] * len(segments)
        only[place] = "X"
        changed = fill(text, segments, only)
        assert changed.startswith(text[: segment.start]) and changed.endswith(text[segment.end :])


def test_every_format_has_a_case():
    assert set(CASES) == set(FORMATS)
    assert {format_of(f"A.b{extension.upper()}").name for extension in EXTENSIONS} == set(FORMATS)
    with pytest.raises(BadFile, match=r"\.srt"):
        format_of("macro.xlsm")


def test_markdown_keeps_its_structure():
    result = translated("md", MARKDOWN)
    assert result.splitlines()[:3] == MARKDOWN.splitlines()[:3]
    assert "# A HEADING\n\nA PARAGRAPH GOES OVER TWO LINES.\n\n- AN ITEM THAT GOES ON\n- [ ] A TASK" in result
    for untouched in (
        '```py\nprint("code")\n```',
        "    indented code",
        "|------|-------|",
        "alert(1)",
        "<!-- a\ncomment -->",
    ):
        assert untouched in result
    assert "> A QUOTE" in result and "| CELL | `x` |" in result and "HARD BREAK  \nNEW LINE\n1. FIRST" in result


def test_markdown_is_not_broken_by_a_translation():
    assert translated("md", "a\n", change=lambda text: "```\nrm") == "\\``` rm\n"
    assert translated("md", "a\n", change=lambda text: "# b") == "\\# b\n"


def test_markdown_protects_code_links_and_tags():
    text = "Run `make` at [here](http://a.b/c), <b>or</b> https://d.e/f now"
    assert FORMATS["md"].protected_parts(text) == ["`make`", "(http://a.b/c)", "<b>", "</b>", "https://d.e/f"]


def test_csv_as_other_programs_read_it():
    text = CASES["csv"][0]
    before, after = (list(csv.reader(io.StringIO(value))) for value in (text, translated("csv", text)))
    assert [row[1:2] for row in after] == [["text"], ["PLAIN"], ['A, "B"'], ["TWO\nLINES"], []]
    assert [row[:1] + row[2:] for row in after] == [row[:1] + row[2:] for row in before]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_csv_delimiters_and_columns(delimiter):
    text = delimiter.join(["a", "b"]) + "\n" + delimiter.join(["one", "two"]) + "\n"
    assert translated("csv", text, Options("b")) == text.replace("two", "TWO")
    assert translated("csv", text, Options("1")) == text.replace("one", "ONE")
    assert translated("csv", text, Options("2", header=False)) == text.replace("b", "B").replace("two", "TWO")
    assert translated("csv", text, Options("1"), lambda cell: f"x{delimiter}y").endswith(
        f'"x{delimiter}y"{delimiter}two\n'
    )


@pytest.mark.parametrize("formula", ["=HYPERLINK(1)", "+1", "-1+cmd|' /C calc'!A0", "@SUM(1)", "\t=1", "＝1"])
def test_a_translation_never_becomes_a_formula(formula):
    (row,) = csv.reader(io.StringIO(translated("csv", "word", Options("1", header=False), lambda cell: formula)))
    assert row == [f"'{formula}"]


def test_cells_that_came_as_formulas_stay():
    text = "a,b\n=1+1,word\n"
    assert translated("csv", text, Options("b")) == "a,b\n=1+1,WORD\n"


def test_subtitles_keep_their_times_and_cues():
    assert "00:00:01,000 --> 00:00:02,500\nHELLO THERE,\n<I>OLD FRIEND</I>.\n\n2\n00:00:03,000" in translated(
        "srt", SUBTITLES
    )
    broken = translated("srt", SUBTITLES, change=lambda text: "a\n\n9\n00:00:01,000 --> 00:00:02,500\nb")
    assert broken.count("-->") == 3  # a translation makes no cue


def test_json_keeps_its_structure():
    text = CASES["json"][0]
    result = translated("json", text, change=lambda value: value + '"\n</script>')
    assert json.loads(result)["list"][1] == '  été"\n</script>\n'
    assert json.loads(result)["list"][3] == "12" and '"key":' in result
    assert '"C\\/D"' in translated("json", text)


def test_po_as_gettext_reads_it(tmp_path):
    file = tmp_path / "x.po"
    file.write_text(translated("po", MESSAGES), encoding="utf-8")
    po = polib.pofile(str(file), check_for_duplicates=True)
    assert po.metadata == polib.pofile(MESSAGES).metadata
    by_id = {entry.msgid: entry for entry in po}
    assert by_id['Say "%(name)s"\n'].msgstr == 'SAY "%(NAME)S"\n'
    assert by_id["one file"].msgstr_plural == {0: "ONE FILE", 1: "MANY FILES"}
    assert by_id["known"].msgstr == "bekannt"
    assert po.header == "A comment" and file.read_text().startswith("# A comment\n")


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("csv", "a,b\n1,2\n", Options(), "choose the column.*a, b"),
        ("csv", "a,b\n1,2\n", Options("c"), "no column “c”.*a, b"),
        ("csv", "a,b\n1,2\n", Options("3"), "no column “3”"),
        ("csv", 'a\n"open\n', Options("a"), "quote that opens in line 2"),
        ("json", '{"a": }', Options(), "line 1, column 7"),
        ("json", "[" * 100_000, Options(), "nested too deeply"),
        ("json", '["a\\ud800"]', Options(), "line 1.*surrogate"),
        ("json", '["a\\u0000"]', Options(), "line 1.*NUL"),
        ("srt", "words\n", Options(), "no line of times"),
        ("po", "words\n", Options(), "no msgid"),
        ("po", 'msgid "a"\nmsgstr unquoted\n', Options(), "line 2"),
        ("po", 'msgid ""\nmsgstr "charset=GBK\\n"\n', Options(), "GBK"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(name, text, options, message):
    with pytest.raises(BadFile, match=message):
        list(FORMATS[name].segments(text, options))


def test_a_row_of_too_many_cells_is_refused():
    with pytest.raises(BadFile, match=f"line 3 has more than {MAX_COLUMNS} columns"):
        list(FORMATS["csv"].segments("a\nb\n" + "," * (MAX_COLUMNS + 1), Options()))


MEGABYTE = 10**6
LARGE = {
    "spaces in a paragraph": ("md", "a" + " " * MEGABYTE + "b\n", ["a" + " " * MEGABYTE + "b"]),
    "cues without blank lines": (
        "srt",
        "00:00:01,000 --> 00:00:02,000\nword\n" * (MEGABYTE // 35),
        ["word"] * (MEGABYTE // 35),
    ),
}


@pytest.mark.parametrize("what", LARGE)
def test_large_files_take_time_in_proportion(what):
    """Where it grows with the square of the size, this does not end before the suite loses patience."""
    name, text, expected = LARGE[what]
    assert [segment.text for segment in FORMATS[name].segments(text, Options())] == expected


def test_a_translation_of_a_megabyte_of_spaces_takes_time_in_proportion():
    spaces = "a" + " " * MEGABYTE + "b"
    assert translated("txt", "word", change=lambda text: f"{spaces}\n \r\n c") == f"{spaces} c"


# For each character of a string, a pattern that could give it back would keep 100 bytes and more.
LONG_STRINGS = {
    "json": '["{}"]'.format("a\\n" * MEGABYTE),
    "po": 'msgid ""\n' + '"a"\n' * MEGABYTE + 'msgstr ""\n',
    "csv": '"{}"\n'.format('a""' * MEGABYTE),
}


@pytest.mark.parametrize("name", LONG_STRINGS)
def test_long_strings_take_little_memory(name):
    script = f"""
import resource, sys
from pathlib import Path
from inference.translation.formats import FORMATS
from inference.translation.formats.document import Options
text = sys.stdin.read()
limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + 40 * len(text)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
print(sum(len(segment.text) for segment in FORMATS[{name!r}].segments(text, Options(header=False))))
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, input=LONG_STRINGS[name], capture_output=True, text=True, cwd=BASE_DIR)
    assert done.returncode == 0, done.stderr[-500:]
    assert int(done.stdout) >= MEGABYTE
