"""GET /playground/: a page that calls this server's own API from the browser.

The page is open to everyone, as `/` is, because it holds nothing: what it shows comes from the API, with the rights of
whoever looks at it. Where the API answers without a key, so does the playground; where it does not, the page asks for
a key before anything else, and keeps it in the tab's sessionStorage.
"""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe
from rest_framework.request import Request

from inference.api.edge.auth import KeyAuthentication
from inference.api.edge.schemas import Payload
from inference.pages.parameters import main_parameters, more_parameters
from inference.pages.presets import presets
from inference.pages.script_texts import playground_texts

MOST_ANSWERS = 4  # of one parameter set
MOST_SETS = 3  # with a request each; a browser opens six connections to a server
CANDIDATES = 10  # for the next token


@require_safe
def playground(request: HttpRequest) -> HttpResponse:
    context = {
        "needs_key": needs_key(request),
        "most_answers": MOST_ANSWERS,
        "main_parameters": main_parameters(),
        "more_parameters": more_parameters(),
        "setup": page_setup(),
    }
    return render(request, "inference/playground/index.html", context)


def page_setup() -> dict[str, Any]:
    """What the page's scripts need to know, as JSON."""
    return {
        "presets": presets(),
        "texts": playground_texts(),
        "mostSets": MOST_SETS,
        "candidates": CANDIDATES,
    }


def needs_key(request: HttpRequest) -> bool:
    """Whether the API refuses this visitor unless he shows a key. Asks the database."""
    bare = Request(request)
    bare.payload = Payload(b"{}")
    return KeyAuthentication().authenticate(bare) is None
