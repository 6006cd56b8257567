"""Django settings. What an operator may change is read in `rwkvsite.env`, and nowhere else."""

from typing import Any

import environ
from django.urls import reverse_lazy
from django.utils.translation import gettext_lazy as _

from rwkvsite import env
from rwkvsite.secret import secret_key

BASE_DIR = env.BASE_DIR
RWKV = env.load()

SECRET_KEY = secret_key(RWKV.var_dir)
DEBUG = RWKV.debug

# --- Applications

INSTALLED_APPS = [
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "channels",
    "django_celery_beat",
    "django_htmx",
    "rwkvsite.apps.SiteConfig",
    "inference.apps.InferenceConfig",
    "sessions.apps.SessionsConfig",
    "benchmarks.apps.BenchmarksConfig",
]
ROOT_URLCONF = "rwkvsite.urls"
ASGI_APPLICATION = "rwkvsite.asgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- Requests

# Django's own middlewares hop to a thread twice per request, which costs more than a whole API call
# does. Ours are the same ones, but they let everything through untouched that is neither one of PAGES nor below
# one of PAGE_PATHS.
PAGES = ("/translate/",)  # the API has routes below it, and below `/`, which is a page too
PAGE_PATHS = ("/admin/", "/docs/", "/schema/", "/i18n/", "/playground/", "/translate/jobs/", "/login/", "/logout/")
MIDDLEWARE = [
    "rwkvsite.middleware.RequestIdMiddleware",
    "rwkvsite.middleware.StaticFilesMiddleware",
    "rwkvsite.middleware.SecurityMiddleware",
    "rwkvsite.middleware.SessionMiddleware",
    "rwkvsite.middleware.LocaleMiddleware",
    "rwkvsite.middleware.CommonMiddleware",
    "rwkvsite.middleware.CsrfViewMiddleware",
    "rwkvsite.middleware.AuthenticationMiddleware",
    "rwkvsite.middleware.MessageMiddleware",
    "rwkvsite.middleware.XFrameOptionsMiddleware",
]
DATA_UPLOAD_MAX_MEMORY_SIZE = RWKV.max_body_bytes
APPEND_SLASH = False  # API clients expect a 404, not a redirect that drops the body
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# --- Security

_loopback_names = ["localhost", "127.0.0.1", "[::1]"]
if RWKV.trusted_hosts:
    ALLOWED_HOSTS = [*RWKV.trusted_hosts, *_loopback_names]
elif RWKV.listens_on_loopback_only:
    ALLOWED_HOSTS = [*_loopback_names, RWKV.host]  # a page of another site cannot rebind its name to us
else:
    ALLOWED_HOSTS = ["*"]
CSRF_TRUSTED_ORIGINS = [f"https://{host}" for host in RWKV.trusted_hosts]
CSRF_COOKIE_SECURE = SESSION_COOKIE_SECURE = RWKV.https
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if RWKV.https else None
SECURE_HSTS_SECONDS = 3600 if RWKV.https else 0
X_FRAME_OPTIONS = "DENY"
_policy = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
_inline_styles = "; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
CONTENT_SECURITY_POLICIES = {  # by the beginning of the path; the first that fits
    # The form of celery-beat has an inline script, and the admin's Alpine evaluates attributes.
    "/admin/django_celery_beat/": f"{_policy}{_inline_styles}; script-src 'self' 'unsafe-eval' 'unsafe-inline'",
    "/admin/": f"{_policy}{_inline_styles}; script-src 'self' 'unsafe-eval'",
    "/docs/": f"{_policy}{_inline_styles}",
    "/": _policy,
}
SILENCED_SYSTEM_CHECKS = [
    # These look for the dotted names of Django's middlewares; rwkvsite.middleware subclasses them, and
    # rwkv.E001 looks for those.
    "security.W001",
    "security.W002",
    "security.W003",
    # Plain HTTP on loopback is the default, and redirecting to HTTPS is the proxy's part. rwkv.W002
    # warns when pages could leave the machine without TLS.
    "security.W004",
    "security.W005",
    "security.W008",
    "security.W010",
    "security.W012",
    "security.W016",
    "security.W021",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
AUTHENTICATION_BACKENDS = ["rwkvsite.logins.FewFailures", "django.contrib.auth.backends.ModelBackend"]
LOGIN_URL = reverse_lazy("login")
LOGIN_REDIRECT_URL = "/"

# --- Storage

_database: dict[str, Any] = environ.Env.db_url_config(RWKV.database_url)
if _database["ENGINE"] == "django.db.backends.sqlite3":
    # Several processes write: WAL lets readers go on meanwhile, and IMMEDIATE makes a writer wait for
    # its turn at BEGIN instead of failing with "database is locked". Large pages suit large states.
    _database["OPTIONS"] = {
        "init_command": (
            "PRAGMA page_size=65536; PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA mmap_size=268435456;"
        ),
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
    }
else:
    # Without server-side binding, a state travels as hexadecimal text. A pool, because every request
    # runs in a thread of its own and would otherwise connect anew.
    _database["OPTIONS"] = {"server_side_binding": True, "pool": {"min_size": 1, "max_size": 10, "timeout": 10}}
DATABASES = {"default": _database}
CACHES = {
    "default": {
        # The database of Redis is shared with the queues: never call cache.clear(), which empties all of it.
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": RWKV.redis_url,
        "KEY_PREFIX": "rwkv:cache",
    }
}
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.core.RedisChannelLayer",
        # redis-py's default timeout of 5 s would end every blocking read of an idle layer.
        "CONFIG": {"hosts": [{"address": RWKV.redis_url, "socket_timeout": None}], "prefix": "rwkv:channels"},
    }
}

# --- Celery

CELERY_BROKER_URL = RWKV.redis_url.replace("unix://", "redis+socket://", 1)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# Redis hands a task out again when it is not done after this time; a benchmark may take hours.
CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 43_200}
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_DEFAULT_QUEUE = "rwkv:celery"
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"
CELERY_TIMEZONE = "UTC"

# --- The API and its schema

REST_FRAMEWORK = {
    # Each API view names what it needs: no session, no CSRF, no browsable renderer behind it.
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.AllowAny"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "RWKV server",
    "DESCRIPTION": "OpenAI-compatible and native endpoints of a server for RWKV-7 language models.",
    "VERSION": "0.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
}

# --- Pages

STATIC_URL = "/static/"
WHITENOISE_USE_FINDERS = True  # straight from the installed packages: no collectstatic before a start
USE_I18N = True
LANGUAGE_CODE = "en"  # what the API speaks, always: LocaleMiddleware acts on pages alone
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]
LANGUAGE_COOKIE_AGE = 365 * 24 * 3600
LANGUAGE_COOKIE_SAMESITE = "Lax"
LANGUAGE_COOKIE_SECURE = RWKV.https
LOCALE_PATHS = [BASE_DIR / "locale"]
USE_TZ = True
TIME_ZONE = "UTC"
UNFOLD = {
    "SITE_TITLE": "RWKV",
    "SITE_HEADER": "RWKV server",
    "SITE_SYMBOL": "neurology",
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": "/static/inference/favicon.svg"}],
    "SHOW_HISTORY": True,
    "SHOW_LANGUAGES": True,
    "SIDEBAR": {
        "show_search": True,
        "show_all_applications": True,
        "navigation": [
            {
                "title": _("Service"),
                "items": [
                    {
                        "title": _("Operations"),
                        "icon": "monitoring",
                        "link": reverse_lazy("admin:inference_engine_changelist"),
                    },
                    {
                        "title": _("Sessions"),
                        "icon": "forum",
                        "link": reverse_lazy("admin:rwkv_sessions_session_changelist"),
                    },
                    {
                        "title": _("Tuned states"),
                        "icon": "tune",
                        "link": reverse_lazy("admin:rwkv_sessions_initialstate_changelist"),
                    },
                    {
                        "title": _("Batch jobs"),
                        "icon": "list",
                        "link": reverse_lazy("admin:inference_batchjob_changelist"),
                    },
                    {
                        "title": _("Translations"),
                        "icon": "translate",
                        "link": reverse_lazy("admin:inference_translationjob_changelist"),
                    },
                    {
                        "title": _("Files"),
                        "icon": "draft",
                        "link": reverse_lazy("admin:inference_storedfile_changelist"),
                    },
                    {"title": _("API keys"), "icon": "key", "link": reverse_lazy("admin:inference_apikey_changelist")},
                    {
                        "title": _("Schedule"),
                        "icon": "schedule",
                        "link": reverse_lazy("admin:django_celery_beat_periodictask_changelist"),
                    },
                    {"title": _("Users"), "icon": "person", "link": reverse_lazy("admin:auth_user_changelist")},
                ],
            },
            {
                "title": _("Benchmarks"),
                "items": [
                    {
                        "title": _("Runs"),
                        "icon": "speed",
                        "link": reverse_lazy("admin:benchmarks_run_changelist"),
                    },
                    {
                        "title": _("Scenarios"),
                        "icon": "science",
                        "link": reverse_lazy("admin:benchmarks_scenario_changelist"),
                    },
                    {
                        "title": _("Benchmark schedules"),
                        "icon": "event_repeat",
                        "link": reverse_lazy("admin:benchmarks_schedule_changelist"),
                    },
                    {
                        "title": _("Trends"),
                        "icon": "trending_up",
                        "link": reverse_lazy("admin:benchmarks_run_trends"),
                    },
                    {
                        "title": _("Evals"),
                        "icon": "fact_check",
                        "link": reverse_lazy("admin:benchmarks_evalrun_changelist"),
                    },
                    {
                        "title": _("Eval sweeps"),
                        "icon": "checklist",
                        "link": reverse_lazy("admin:benchmarks_evalsweep_changelist"),
                    },
                    {
                        "title": _("Eval schedules"),
                        "icon": "event_repeat",
                        "link": reverse_lazy("admin:benchmarks_evalschedule_changelist"),
                    },
                    {
                        "title": _("Targets"),
                        "icon": "dns",
                        "link": reverse_lazy("admin:benchmarks_target_changelist"),
                    },
                    {
                        "title": _("Data sets"),
                        "icon": "dataset",
                        "link": reverse_lazy("admin:benchmarks_dataset_changelist"),
                    },
                    {
                        "title": _("Gates"),
                        "icon": "rule",
                        "link": reverse_lazy("admin:benchmarks_gaterule_changelist"),
                    },
                    {
                        "title": _("Baselines"),
                        "icon": "flag",
                        "link": reverse_lazy("admin:benchmarks_baseline_changelist"),
                    },
                ],
            },
        ],
    },
}

# --- Logs

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {
        "request_id": {"()": "rwkvsite.logs.RequestIdFilter"},
        "no_refusals": {"()": "rwkvsite.logs.RefusalFilter"},
    },
    "formatters": {
        "line": {"format": "%(asctime)s %(levelname)s %(name)s request=%(request_id)s %(message)s"},
    },
    "handlers": {
        "console": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["request_id"]},
    },
    "root": {"handlers": ["console"], "level": "INFO"},
    "loggers": {
        "django": {"handlers": [], "propagate": True},
        "django.request": {"filters": ["no_refusals"]},
        "daphne": {"level": "WARNING"},
        "celery": {"level": "WARNING"},  # two lines for every task, some of which look for work once a minute
    },
}
