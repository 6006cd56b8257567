"""Periodic work of the service itself."""

import logging

from celery import shared_task
from django.core.management import call_command

from inference.batches import tasks as batch_tasks  # noqa: F401  (so that workers know them)
from inference.models import ApiKey, StoredResponse
from inference.translation import tasks as translation_tasks  # noqa: F401

log = logging.getLogger(__name__)


@shared_task
def remove_expired() -> None:
    """Disable API keys whose time is over, and delete stored responses and login sessions whose time is over."""
    disabled = ApiKey.objects.expired().update(enabled=False)
    StoredResponse.objects.expired().delete()
    call_command("clearsessions")
    if disabled:
        log.info("disabled %d expired API keys", disabled)
