"""The languages of the form: those that the API knows, each once, under their names in the page's language."""

from django.utils import translation
from django.utils.translation import get_language_info, gettext, gettext_noop

from inference.api.native.languages import AUTO, NAMES

FREQUENT = ("en", "zh", "ja", "ko", "es", "fr", "de", "ru", "pt", "ar")
# Django's names of languages leave these out, or tell their scripts apart, which the models do not.
_OWN_NAMES = {
    "zh": gettext_noop("Chinese"),
    "yue": gettext_noop("Cantonese"),
    "lzh": gettext_noop("Classical Chinese"),
    "fil": gettext_noop("Filipino"),
}

Choices = list[tuple[str, str]]


def _codes() -> list[str]:
    """The first code of each name."""
    first: dict[str, str] = {}
    for code, name in NAMES.items():
        first.setdefault(name, code)
    return list(first.values())


CODES = _codes()


def display_name(code: str) -> str:
    if code == AUTO:
        return gettext("Not stated")
    if code in _OWN_NAMES:
        return translation.gettext(_OWN_NAMES[code])
    try:
        return get_language_info(code)["name_translated"]
    except KeyError:
        return NAMES.get(code, code)


def target_choices() -> list[tuple[str, Choices]]:
    """Groups of (code, name)."""
    others = sorted(((code, display_name(code)) for code in CODES if code not in FREQUENT), key=lambda item: item[1])
    frequent = [(code, display_name(code)) for code in FREQUENT]
    return [(gettext("Frequent"), frequent), (gettext("All others"), others)]


def source_choices() -> list[tuple[str, str | Choices]]:
    return [(AUTO, display_name(AUTO)), *target_choices()]
