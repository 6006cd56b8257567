"""The form that starts jobs. Its check reads the files, so that whoever sent one learns at once what is wrong."""

from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from inference.translation.files import Document, read_document
from inference.translation.formats import FORMATS, format_of
from inference.translation.formats.document import BadFile, Options
from inference.translation.glossary import BadGlossary, parse_glossary
from inference.translation.languages import source_choices, target_choices
from inference.translation.models import MAX_FILENAME

MAX_GLOSSARY_CHARACTERS = 50_000
MAX_COLUMN_CHARACTERS = 200


class TranslationForm(forms.Form):
    """`documents`, once it is valid: (filename, Document) pairs, with no filename for pasted text."""

    text = forms.CharField(required=False, strip=False, label=gettext_lazy("Text"))
    source_language = forms.ChoiceField(choices=source_choices, label=gettext_lazy("From"))
    target_language = forms.ChoiceField(choices=target_choices, label=gettext_lazy("To"))
    glossary = forms.CharField(
        required=False, max_length=MAX_GLOSSARY_CHARACTERS, strip=False, label=gettext_lazy("Glossary")
    )
    column = forms.CharField(required=False, max_length=MAX_COLUMN_CHARACTERS, label=gettext_lazy("CSV column"))
    header = forms.BooleanField(required=False, initial=True)

    documents: list[tuple[str, Document]]

    def clean_glossary(self) -> str:
        glossary = self.cleaned_data["glossary"]
        try:
            parse_glossary(glossary)
        except BadGlossary as error:
            raise forms.ValidationError(str(error)) from error
        return glossary

    def clean(self) -> dict[str, Any]:
        fields = self.cleaned_data
        self.documents = []
        options = Options(fields.get("column", ""), fields.get("header", True))
        uploads = [upload for upload in self.files.getlist("files") if upload.name]
        for upload in uploads:
            try:
                document = read_document(upload.read(), format_of(upload.name), options)
            except BadFile as error:
                self.add_error(None, f"{upload.name}: {error}")
            else:
                self.documents.append((upload.name[-MAX_FILENAME:], document))
        text = fields.get("text", "")
        if text.strip():
            try:
                self.documents.append(("", read_document(text.encode(), FORMATS["txt"], Options())))
            except (BadFile, UnicodeEncodeError) as error:
                self.add_error("text", str(error))
        elif not uploads:
            self.add_error("text", _("Paste a text or choose a file."))
        return fields
