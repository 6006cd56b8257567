"""The key by which a Celery worker of this service asks it for answers.

Signed with SECRET_KEY and good for minutes: nothing is stored, and a leaked one is soon worthless.
"""

from django.core.signing import BadSignature, TimestampSigner

PREFIX = "worker:"
SECONDS = 300.0
_signer = TimestampSigner(salt="inference.api.edge.worker_key")


def issue() -> str:
    return _signer.sign(PREFIX)


def verify(secret: str) -> bool:
    if not secret.startswith(PREFIX):
        return False
    try:
        _signer.unsign(secret, max_age=SECONDS)
    except BadSignature:
        return False
    return True
