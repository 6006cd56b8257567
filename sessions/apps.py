from django.apps import AppConfig


class SessionsConfig(AppConfig):
    name = "sessions"
    label = "rwkv_sessions"  # "sessions" is the label of django.contrib.sessions
    verbose_name = "RWKV sessions"
