"""The schedule's part: sessions that nobody uses any more, and samples for the charts."""

import logging

from celery import shared_task
from django.conf import settings

from sessions.actions import expire, shrink
from sessions.samples import take_sample

log = logging.getLogger(__name__)


@shared_task
def remove_old_sessions() -> None:
    """Delete the sessions that were not used for SESSION_TTL_DAYS, and the oldest beyond SESSION_MAX_BYTES."""
    count = expire(settings.RWKV.session_ttl_days)
    if count:
        log.info("deleted %d sessions that were not used for %g days", count, settings.RWKV.session_ttl_days)
    count = shrink(settings.RWKV.session_max_bytes)
    if count:
        log.info("deleted %d sessions to keep to %d bytes", count, settings.RWKV.session_max_bytes)


@shared_task
def sample_levels() -> None:
    """Note where states are now, for the charts of the admin."""
    take_sample()
