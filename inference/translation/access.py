"""Who may see a page: people who have signed in."""

from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse

View = Callable[..., HttpResponse]


def signed_in(view: View) -> View:
    """As login_required, but a page that asks for a part of itself is sent to the login as a whole, and back."""
    for_pages = login_required(view)

    @wraps(view)
    def for_both(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if "HX-Request" in request.headers and not request.user.is_authenticated:
            page = urlsplit(request.headers.get("HX-Current-URL", ""))
            there = urlunsplit(("", "", page.path or settings.LOGIN_REDIRECT_URL, page.query, ""))
            return HttpResponse(headers={"HX-Redirect": redirect_to_login(there).url})
        return for_pages(request, *args, **kwargs)

    return for_both
