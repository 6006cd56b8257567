"""The project's settings, cut off from the environment and the `.env` of whoever runs the tests."""

import atexit
import os
import shutil
import tempfile
from dataclasses import fields

from rwkvsite.env import Env

for _variable in fields(Env):
    os.environ[_variable.name.upper()] = ""  # as good as unset, and `.env` does not override it
os.environ["VAR_DIR"] = tempfile.mkdtemp(prefix="rwkv-test-")
# Tests may run in several processes. Only the first one takes the Redis that TEST_REDIS_URL names: they empty it.
TEST_REDIS_URL = os.environ.get("TEST_REDIS_URL", "") if os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0" else ""
os.environ["REDIS_URL"] = TEST_REDIS_URL
atexit.register(shutil.rmtree, os.environ["VAR_DIR"], ignore_errors=True)

from rwkvsite.settings import *  # noqa: E402, F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # logins in tests need no slow hash
# A file, as in production: a SQLite database in memory has table locks that do not wait.
DATABASES["default"]["TEST"] = {"NAME": RWKV.var_dir / "test.sqlite3"}  # noqa: F405
