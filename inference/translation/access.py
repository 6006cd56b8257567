"""Who may see a page: people who have signed in."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import resolve_url

View = Callable[..., HttpResponse]


def signed_in(view: View) -> View:
    """As login_required, but a page that asks for a part of itself is sent to the login as a whole."""
    for_pages = login_required(view)

    @wraps(view)
    def for_both(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if "HX-Request" in request.headers and not request.user.is_authenticated:
            return HttpResponse(headers={"HX-Redirect": resolve_url(settings.LOGIN_URL)})
        return for_pages(request, *args, **kwargs)

    return for_both
