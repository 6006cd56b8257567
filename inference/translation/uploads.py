"""Files on their way from a form to memory, bounded while they are received."""

from io import BytesIO

from django.core.exceptions import RequestDataTooBig
from django.core.files.uploadedfile import SimpleUploadedFile, UploadedFile
from django.core.files.uploadhandler import FileUploadHandler
from django.http import HttpRequest

MAX_BYTES = 10 * 10**6  # of all the files and the text of one form
MAX_OTHER_BYTES = 10**6  # what multipart adds, and the other fields
MOST_DIGITS = 20  # of a length that is worth reading


class BoundedUploadHandler(FileUploadHandler):
    """Keeps files in memory. Raises RequestDataTooBig for more than MAX_BYTES of them together."""

    def __init__(self) -> None:
        super().__init__()
        self._received = 0

    def new_file(self, *args: object, **kwargs: object) -> None:
        super().new_file(*args, **kwargs)
        self._content = BytesIO()

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        self._received += len(raw_data)
        if self._received > MAX_BYTES:
            raise RequestDataTooBig
        self._content.write(raw_data)

    def file_complete(self, file_size: int) -> UploadedFile:
        return SimpleUploadedFile(self.file_name, self._content.getvalue(), self.content_type)


def bound_upload(request: HttpRequest) -> None:
    """Have the request's body read within bounds. Raises RequestDataTooBig for one that announces to be larger."""
    announced = request.META.get("CONTENT_LENGTH", "")
    if announced.isdecimal() and (len(announced) > MOST_DIGITS or int(announced) > MAX_BYTES + MAX_OTHER_BYTES):
        raise RequestDataTooBig
    request.upload_handlers = [BoundedUploadHandler()]
