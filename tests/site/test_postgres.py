"""The same tables and settings on PostgreSQL."""

import os
import uuid
from urllib.parse import urlsplit, urlunsplit

import pytest

from tests.site.test_settings import manage

URL = os.environ.get("TEST_POSTGRES_URL", "")
pytestmark = pytest.mark.skipif(not URL, reason="TEST_POSTGRES_URL is not set")
SCRIPT = """
from django.db import connection
from inference.models import ApiKey
key, secret = ApiKey.objects.issue(name="app")
print(connection.vendor, ApiKey.objects.verify(secret) == key, ApiKey.objects.verify("other"))
"""


@pytest.fixture
def database_url():
    """A database of its own, made and dropped beside the one that the URL names."""
    import psycopg
    from psycopg import sql

    name = f"rwkv_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(URL, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield urlunsplit(urlsplit(URL)._replace(path=f"/{name}"))
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def test_migrations_and_api_keys(tmp_path, database_url):
    environment = {"VAR_DIR": str(tmp_path), "DATABASE_URL": database_url}
    migrated = manage("migrate", "--verbosity", "0", **environment)
    assert migrated.returncode == 0, migrated.stderr
    done = manage("shell", "--no-imports", "-c", SCRIPT, **environment)
    assert done.stdout.split() == ["postgresql", "True", "None"], done.stderr
    assert not (tmp_path / "db.sqlite3").exists()
