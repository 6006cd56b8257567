"""The formats of files that can be translated, by name and by the extension of a file's name."""

from pathlib import PurePath

from django.utils.translation import gettext as _

from inference.translation.formats import csv_cells, gettext_po, json_values, markdown, plain, subtitles
from inference.translation.formats.document import BadFile, Format

FORMATS: dict[str, Format] = {
    module.FORMAT.name: module.FORMAT for module in (plain, markdown, csv_cells, subtitles, json_values, gettext_po)
}
EXTENSIONS = {extension: format for format in FORMATS.values() for extension in format.extensions}


def format_of(filename: str) -> Format:
    """Raises BadFile for an extension that no format has."""
    try:
        return EXTENSIONS[PurePath(filename).suffix.lower()]
    except KeyError:
        known = " ".join(EXTENSIONS)
        raise BadFile(_("Such files cannot be translated. Expected: %(extensions)s") % {"extensions": known}) from None
