"""The Chinese catalogue against the sources: complete, nothing too much, and compiled. Needs no gettext tools.

With them, `manage.py makemessages -l zh_Hans --no-location --no-obsolete` brings new texts into the catalogue, and
`manage.py compilemessages` compiles it.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import polib
import pytest
from django.template.loader import get_template
from django.templatetags.i18n import BlockTranslateNode, TranslateNode
from django.utils import translation
from django.utils.translation import gettext

from rwkvsite.env import BASE_DIR

CATALOGUE = BASE_DIR / "locale" / "zh_Hans" / "LC_MESSAGES" / "django.po"
TEMPLATES = BASE_DIR / "templates"
PACKAGES = ("benchmarks", "inference", "rwkvsite", "sessions")
MARKS = {"_": 1, "gettext": 1, "gettext_lazy": 1, "gettext_noop": 1, "ngettext": 2, "ngettext_lazy": 2}  # texts in each
PLACES = re.compile(r"%\(\w+\)[sd]|\{\w*\}")


@pytest.fixture(scope="module")
def catalogue() -> polib.POFile:
    return polib.pofile(str(CATALOGUE))


@pytest.fixture(scope="module")
def marked() -> set[str]:
    """Every text that a template or a module marks for translation."""
    texts: set[str] = set()
    for path in TEMPLATES.rglob("*.html"):
        texts |= set(texts_of_template(path.relative_to(TEMPLATES)))
    for package in PACKAGES:
        for path in (BASE_DIR / package).rglob("*.py"):
            texts |= set(texts_of_module(path))
    return texts


def texts_of_template(name: Path) -> Iterator[str]:
    nodes = get_template(str(name)).template.nodelist
    for node in nodes.get_nodes_by_type(TranslateNode):
        if node.filter_expression.var.literal:
            yield node.filter_expression.var.literal.replace("%", "%%")
    for node in nodes.get_nodes_by_type(BlockTranslateNode):
        for tokens in filter(None, (node.singular, node.plural)):
            yield node.render_token_list(tokens)[0]


def texts_of_module(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            for argument in node.args[: MARKS.get(node.func.id, 0)]:
                assert isinstance(argument, ast.Constant), f"{path}:{node.lineno}: a marked text must be a literal"
                yield argument.value


def test_every_marked_text_has_its_translation(catalogue, marked):
    translated = {text for entry in catalogue.translated_entries() for text in (entry.msgid, entry.msgid_plural)}
    assert sorted(marked - translated) == []


def test_nothing_is_translated_that_is_shown_nowhere(catalogue, marked):
    assert sorted({entry.msgid for entry in catalogue} - marked) == []


def test_translations_keep_the_places_that_are_filled_in(catalogue):
    for entry in catalogue:
        for text in [entry.msgstr, *entry.msgstr_plural.values()]:
            if text:
                wanted = PLACES.findall(entry.msgid_plural or entry.msgid)
                assert sorted(PLACES.findall(text)) == sorted(wanted), entry.msgid


def test_the_compiled_catalogue_is_in_step(catalogue):
    def contents(entries):
        return {entry.msgid: (entry.msgstr, entry.msgstr_plural) for entry in entries}

    assert contents(polib.mofile(str(CATALOGUE.with_suffix(".mo")))) == contents(catalogue.translated_entries())


def test_pages_are_given_the_translations():
    with translation.override("zh-hans"):
        assert gettext("Playground") == "试验场"
    assert gettext("Playground") == "Playground"
