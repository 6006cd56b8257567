"""Tuned states in the admin: to look at, to add for a caller, to delete."""

from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from unfold.admin import ModelAdmin
from unfold.decorators import display
from unfold.widgets import UnfoldAdminFileFieldWidget, UnfoldAdminTextInputWidget

from sessions import actions
from sessions.initial_states import TooManyStates, keep_state, shape_of
from sessions.models import InitialState
from sessions.state_file import BadStateFile


class UploadForm(forms.ModelForm):
    """A `.pth` for the model that is loaded now."""

    owner = forms.CharField(
        max_length=100,
        widget=UnfoldAdminTextInputWidget,
        help_text="The caller who may use it: key-1 for the API key with that number, loopback, or password.",
    )
    file = forms.FileField(widget=UnfoldAdminFileFieldWidget, help_text="A .pth of state tuning, or an exported state.")

    class Meta:
        model = InitialState
        fields = ["owner", "file"]

    def clean(self) -> dict[str, Any]:
        fields = super().clean()
        file = fields.get("file")
        model = actions.loaded_model()
        if model is None:
            raise forms.ValidationError("No engine has a model loaded, which the state would be checked against.")
        if file and file.size > shape_of(model).most_bytes:
            self.add_error("file", "This is larger than any state of the model that is loaded.")
        elif file and "owner" in fields:
            try:
                self.instance = keep_state(fields["owner"], model, file.name, file, file.size)
            except (BadStateFile, TooManyStates) as error:
                self.add_error("file", str(error))
        return fields


@admin.register(InitialState)
class InitialStateAdmin(ModelAdmin):
    list_display = ["key", "owner", "model", "file_size", "session_count", "created"]
    list_filter = ["model", "owner"]
    search_fields = ["key", "owner", "filename"]
    exclude = ["pending_ids"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[InitialState]:
        return super().get_queryset(request).annotate(session_count=Count("sessions"))

    @display(description="size", ordering="size")
    def file_size(self, state: InitialState) -> str:
        return filesizeformat(state.size)

    @display(description="sessions", ordering="session_count")
    def session_count(self, state: InitialState) -> int:
        return state.session_count

    def has_change_permission(self, request: HttpRequest, obj: InitialState | None = None) -> bool:
        return False

    def get_form(self, request: HttpRequest, obj: InitialState | None = None, **kwargs: Any) -> type[forms.ModelForm]:
        return super().get_form(request, obj, **kwargs) if obj else UploadForm

    def get_fields(self, request: HttpRequest, obj: InitialState | None = None) -> list[str]:
        return super().get_fields(request, obj) if obj else ["owner", "file"]

    def save_model(self, request: HttpRequest, obj: InitialState, form: forms.ModelForm, change: bool) -> None:
        """Nothing: the form has kept it, with its bytes."""
