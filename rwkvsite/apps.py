from django.apps import AppConfig


class SiteConfig(AppConfig):
    name = "rwkvsite"
    verbose_name = "Site"

    def ready(self) -> None:
        from rwkvsite import checks, logins  # noqa: F401  (registers them, and what counts failed logins)
