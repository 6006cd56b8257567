"""Why a line has failed: stored in English, as the API says it, and shown in the language of the page."""

import re

from django.utils import translation
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

UNEXPECTED = gettext_noop("This line could not be translated; the log of the service says why.")
NOT_AS_EXPECTED = gettext_noop("The service answered with something else than a translation.")
KEY_REFUSED = gettext_noop("The service refuses this worker's key: do both have the same VAR_DIR?")
_OWN = (UNEXPECTED, NOT_AS_EXPECTED, KEY_REFUSED)
_TOO_LONG = re.compile(r"text_list: expected at most (\d+) tokens")


def in_page_language(error: str) -> str:
    """What is not known here stays as the API said it."""
    if error in _OWN:
        return translation.gettext(error)
    if too_long := _TOO_LONG.match(error):
        return _("The line is too long: expected at most %(most)s tokens. Split it.") % {"most": too_long[1]}
    return error
