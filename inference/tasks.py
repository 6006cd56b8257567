"""Periodic work of the service itself."""

import logging

from celery import shared_task
from django.core.management import call_command

from inference.batches import tasks as batch_tasks  # noqa: F401  (so that workers know them)
from inference.models import ApiKey
from inference.translation import tasks as translation_tasks  # noqa: F401

log = logging.getLogger(__name__)


@shared_task
def remove_expired() -> None:
    """Disable API keys whose time is over, and delete expired login sessions."""
    disabled = ApiKey.objects.expired().update(enabled=False)
    call_command("clearsessions")
    if disabled:
        log.info("disabled %d expired API keys", disabled)
