"""The schedule's part: sessions that nobody uses any more."""

import logging

from celery import shared_task
from django.conf import settings

from sessions.actions import expire

log = logging.getLogger(__name__)


@shared_task
def remove_old_sessions() -> None:
    """Delete the sessions that were not used for SESSION_TTL_DAYS."""
    count = expire(settings.RWKV.session_ttl_days)
    if count:
        log.info("deleted %d sessions that were not used for %g days", count, settings.RWKV.session_ttl_days)
