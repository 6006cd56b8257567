"""The routes of the pages; their paths are in settings.PAGES or below one of settings.PAGE_PATHS."""

from django.urls import path
from django.views.i18n import set_language

from inference.pages.playground import playground

urlpatterns = [
    path("i18n/setlang/", set_language, name="set_language"),
    path("playground/", playground, name="playground"),
]
