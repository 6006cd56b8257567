"""Django's page middlewares, kept away from the API, and the two that every request passes.

Under ASGI each of Django's own middlewares moves the request to a thread and back. The API needs none
of what they do, so `PagesOnly` hands its requests straight on.
"""

import re
import uuid

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.contrib.auth import middleware as auth
from django.contrib.messages import middleware as messages
from django.contrib.sessions import middleware as sessions
from django.http import HttpRequest, HttpResponse
from django.middleware import clickjacking, common, csrf, locale, security
from whitenoise.middleware import WhiteNoiseMiddleware

from rwkvsite.logs import request_id

SAFE_REQUEST_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)


def is_page(request: HttpRequest) -> bool:
    if request.path_info == "/":
        return request.method in ("GET", "HEAD")  # the rest is the API's to refuse, in English
    return request.path_info in settings.PAGES or request.path_info.startswith(settings.PAGE_PATHS)


class PagesOnly:
    """Mixed into a Django middleware: it acts on pages, and other requests do not notice it."""

    def __call__(self, request):
        if is_page(request):
            return super().__call__(request)
        return self.get_response(request)  # an awaitable where the middleware runs async


class SecurityMiddleware(PagesOnly, security.SecurityMiddleware):
    """Also names what a page may load and run, so that a text that gets through as HTML still runs nothing."""

    def process_response(self, request, response):
        response = super().process_response(request, response)
        policies = settings.CONTENT_SECURITY_POLICIES
        policy = next(policies[prefix] for prefix in policies if request.path_info.startswith(prefix))
        response.headers.setdefault("Content-Security-Policy", policy)
        return response


class SessionMiddleware(PagesOnly, sessions.SessionMiddleware):
    pass


class LocaleMiddleware(PagesOnly, locale.LocaleMiddleware):
    pass


class CommonMiddleware(PagesOnly, common.CommonMiddleware):
    pass


class CsrfViewMiddleware(PagesOnly, csrf.CsrfViewMiddleware):
    async def process_view(self, request, callback, callback_args, callback_kwargs):
        # Asynchronous, so that Django does not move an API request to a thread to learn that it is none.
        if not is_page(request):
            return None
        check = sync_to_async(super().process_view, thread_sensitive=True)
        return await check(request, callback, callback_args, callback_kwargs)


class AuthenticationMiddleware(PagesOnly, auth.AuthenticationMiddleware):
    pass


class MessageMiddleware(PagesOnly, messages.MessageMiddleware):
    pass


class XFrameOptionsMiddleware(PagesOnly, clickjacking.XFrameOptionsMiddleware):
    pass


class RequestIdMiddleware:
    """Name each request: the client's X-Request-ID where that is sane, else a new one."""

    sync_capable = async_capable = True

    def __init__(self, get_response):
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request):
        given = request.headers.get("x-request-id", "")
        request.id = given if SAFE_REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        request_id.set(request.id)
        if self.is_async:
            return self.respond(request)
        return self.name_response(request, self.get_response(request))

    async def respond(self, request):
        return self.name_response(request, await self.get_response(request))

    @staticmethod
    def name_response(request, response):
        response.headers.setdefault("X-Request-ID", request.id)
        return response


class StaticFilesMiddleware(WhiteNoiseMiddleware):
    """WhiteNoise, able to run async: as it comes, it would move every request to a thread."""

    sync_capable = async_capable = True

    def __init__(self, get_response):
        super().__init__(get_response)
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request):
        if self.is_async:
            return self.respond(request)
        return super().__call__(request)

    async def respond(self, request):
        if not request.path_info.startswith(self.static_prefix):
            return await self.get_response(request)
        if self.autorefresh:
            static_file = await sync_to_async(self.find_file)(request.path_info)
        else:
            static_file = self.files.get(request.path_info)
        if static_file is None:
            return await self.get_response(request)
        return await sync_to_async(self.serve)(static_file, request)

    @staticmethod
    def serve(static_file, request):
        """Read the file at once: the files are small, and ASGI has no use for a synchronous stream."""
        found = static_file.get_response(request.method, request.META)
        content = b""
        if found.file is not None:
            with found.file:
                content = found.file.read()
        return HttpResponse(content, status=int(found.status), headers=dict(found.headers))
