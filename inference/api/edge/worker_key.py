"""The key by which a Celery worker of this service asks it for answers.

It says for whom, and is good for minutes. It is signed with SECRET_KEY: nothing is stored, and a leaked one is soon
worthless.
"""

from django.core.signing import BadSignature, TimestampSigner

PREFIX = "worker:"
SECONDS = 300.0
_signer = TimestampSigner(salt="inference.api.edge.worker_key")


def issue(owner: str = "") -> str:
    """For work on behalf of the caller of that name; "": for the service's own."""
    return _signer.sign(PREFIX + owner)


def verify(secret: str) -> str | None:
    """The owner that the key was issued for; None for what is no key."""
    if not secret.startswith(PREFIX):
        return None
    try:
        return _signer.unsign(secret, max_age=SECONDS).removeprefix(PREFIX)
    except BadSignature:
        return None
