"""A multipart upload on its way to storage, piece by piece."""

from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.core.files.uploadhandler import FileUploadHandler, SkipFile
from django.http import HttpRequest
from django.http.multipartparser import MultiPartParserError

from inference.api.edge.errors import InvalidRequest, TooLarge
from inference.batches import storage
from inference.batches.models import Purpose, StoredFile, new_file_key
from inference.batches.storage import NewFile

MAX_FILE_BYTES = 200 * 10**6
MAX_OTHER_BYTES = 10**6  # what multipart adds: the borders and the other fields
MOST_FILENAME = 255
FIELD = "file"


class UploadHandler(FileUploadHandler):
    """Writes the part named `file` to storage. Whoever makes it has to close its `target`."""

    def __init__(self) -> None:
        super().__init__()
        self.key = new_file_key()
        self.target: NewFile | None = None

    def new_file(self, field_name: str, *args: object, **kwargs: object) -> None:
        super().new_file(field_name, *args, **kwargs)
        if field_name != FIELD or self.target:
            raise SkipFile
        self.target = NewFile(self.key)
        self.target_name = self.file_name

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        if self.target.size + len(raw_data) > MAX_FILE_BYTES:
            raise _too_large()
        self.target.write(raw_data)

    def file_complete(self, file_size: int) -> None:
        """Nothing for request.FILES: the content is in storage."""


def store_upload(request: HttpRequest, owner: str) -> StoredFile:
    """Read the request's body and store its file. Raises InvalidRequest and TooLarge."""
    announced = request.META.get("CONTENT_LENGTH", "")
    if announced.isdecimal() and int(announced) > MAX_FILE_BYTES + MAX_OTHER_BYTES:
        raise _too_large()
    upload = UploadHandler()
    request.upload_handlers = [upload]
    try:
        fields = request.POST
        target = upload.target
        if target is None:
            raise InvalidRequest(
                'file: expected a file, sent as multipart/form-data in a part named "file"', param=FIELD
            )
        purpose = fields.get("purpose", "")
        if purpose != Purpose.BATCH:
            raise InvalidRequest(f'purpose: expected "batch", got {purpose!r:.50}', param="purpose")
        target.keep()
        try:
            return StoredFile.objects.create(
                key=upload.key,
                owner=owner,
                purpose=Purpose.BATCH,
                filename=upload.target_name[:MOST_FILENAME],
                bytes=target.size,
            )
        except BaseException:  # without its row, nobody could ever delete it
            storage.remove(upload.key)
            raise
    except RequestDataTooBig:
        raise
    except (MultiPartParserError, SuspiciousOperation) as error:
        raise InvalidRequest(f"body: not usable as multipart/form-data: {error}") from error
    finally:
        if upload.target:
            upload.target.close()


def _too_large() -> TooLarge:
    return TooLarge(f"file: expected at most {MAX_FILE_BYTES} bytes", param=FIELD)
