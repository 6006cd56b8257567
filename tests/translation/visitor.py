"""Somebody with a browser that runs no scripts: the forms of a running service over plain HTTP."""

import http.cookiejar
import io
import os
import re
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
import uuid
from dataclasses import dataclass

from rwkvsite.env import BASE_DIR
from tests.service import Service

PASSWORD = "correct horse battery staple"
BORDER = uuid.uuid4().hex


def add_user(service: Service, name: str) -> None:
    """A user without any rights in the admin."""
    script = f"from django.contrib.auth.models import User; User.objects.create_user({name!r}, password={PASSWORD!r})"
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "rwkvsite.settings", "VAR_DIR": str(service.var_dir)}
    command = [sys.executable, str(BASE_DIR / "manage.py"), "shell", "--no-imports", "-c", script]
    subprocess.run(command, env=environment, check=True)


@dataclass(frozen=True, slots=True)
class Page:
    status: int
    url: str
    text: str


class Visitor:
    def __init__(self, service: Service) -> None:
        self._url = service.url
        self._cookies = http.cookiejar.CookieJar()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self._cookies))

    def log_in(self, name: str) -> Page:
        self.get("/login/")
        return self.post("/login/", username=name, password=PASSWORD)

    def get(self, path: str) -> Page:
        return self._open(urllib.request.Request(self._url + path))

    def post(self, path: str, **fields: str) -> Page:
        body = urllib.parse.urlencode({"csrfmiddlewaretoken": self.token, **fields}).encode()
        return self._open(urllib.request.Request(self._url + path, body, {"Referer": self._url}))

    def translate(self, content: bytes | io.BufferedIOBase, name: str, **fields: str) -> Page:
        """Send the form with one file: bytes, or an open file that is read while it is sent."""
        form = {"source_language": "en", "target_language": "zh", "header": "on", "text": "", **fields}
        form["csrfmiddlewaretoken"] = self.token
        head = "".join(
            f'--{BORDER}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'
            for field, value in form.items()
        )
        head += f'--{BORDER}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
        parts = [head.encode(), content, f"\r\n--{BORDER}--\r\n".encode()]
        length = sum(len(part) if isinstance(part, bytes) else os.fstat(part.fileno()).st_size for part in parts)
        headers = {"Content-Type": f"multipart/form-data; boundary={BORDER}", "Content-Length": str(length)}
        request = urllib.request.Request(f"{self._url}/translate/", _chunks(parts), headers)
        return self._open(request)

    @property
    def token(self) -> str:
        return next(cookie.value for cookie in self._cookies if cookie.name == "csrftoken")

    def _open(self, request: urllib.request.Request) -> Page:
        try:
            response = self._opener.open(request, timeout=60)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            return Page(response.status, response.url, response.read().decode())


def job_path(page: Page) -> str:
    """The path of the job whose page this is."""
    return re.search(r"/translate/jobs/\w+/", page.url)[0]


def _chunks(parts: list[bytes | io.BufferedIOBase]):
    for part in parts:
        if isinstance(part, bytes):
            yield part
        else:
            while chunk := part.read(2**18):
                yield chunk
