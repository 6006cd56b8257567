"""The one place that reads the process environment and `.env`.

Each variable is a field of `Env` with the same name in lower case; defaults work with nothing set. A
value that cannot be used raises `BadVariable`, whose one line names the variable.
"""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import environ
from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).resolve().parent.parent

# sun_path holds 108 bytes on Linux and 104 on macOS; the margin is for the terminating zero.
LONGEST_SOCKET_PATH = 100


class BadVariable(ImproperlyConfigured):
    """A variable's value cannot be used. The message starts with the variable's name."""


def variable(default: Any, **rule: Any) -> Any:
    """A field with rules: `least` and `most` for numbers, `choices` or URL `schemes` for text."""
    return field(default=default, metadata=rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Env:
    host: str = "127.0.0.1"
    port: int = variable(8000, least=1, most=65535)
    model: str = ""  # path of a checkpoint; empty: `serve` makes a small random one
    redis_url: str = variable("", schemes=("redis", "rediss", "unix"))  # empty: a server of our own in var_dir
    database_url: str = variable("", schemes=("sqlite", "postgres", "postgresql"))  # empty: SQLite in var_dir
    api_password: str = ""
    debug: bool = False
    https: bool = False  # clients reach us through a proxy that ends TLS
    trusted_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    open_routes: bool = False
    var_dir: Path = BASE_DIR / "var"
    web_processes: int = variable(1, least=1, most=256)
    serve_celery: bool = variable(True)  # `serve` starts worker and beat; false: they run elsewhere

    engine_backend: str = variable("auto", choices=("auto", "torch", "cuda"))
    engine_device: str = "auto"
    engine_dtype: str = variable("auto", choices=("auto", "float16", "bfloat16", "float32", "float64"))
    engine_slots: int = variable(0, least=0)  # 0: chosen by the back end
    engine_step_tokens: int = variable(0, least=0)  # 0: chosen by the back end
    engine_grace_seconds: float = variable(30.0, least=1)

    max_queue: int = variable(4096, least=1)
    max_rows: int = variable(1024, least=1)  # rows of one request
    max_prompt_tokens: int = variable(1_000_000, least=1)
    max_new_tokens: int = variable(65_536, least=1)
    max_body_bytes: int = variable(32 * 2**20, least=1024)

    state_l1_slots: int = variable(16, least=0)  # session states on the device, beside the running rows
    state_l2_entries: int = variable(32, least=0)  # in the host's memory
    state_l2_bytes: int = variable(2 * 2**30, least=0)
    prefix_cache_bytes: int = variable(512 * 2**20, least=0)  # 0: no prefix cache
    prefix_cache_disk_bytes: int = variable(0, least=0)  # what falls out of it, in files; 0: none
    snapshot_seconds: float = variable(60.0, least=0.1)  # how long a session's state may be in memory alone
    session_busy: str = variable("wait", choices=("wait", "refuse"))  # what a second turn of a session does
    session_wait_seconds: float = variable(60.0, least=0)
    session_ttl_days: float = variable(30.0, least=0)  # 0: sessions are kept for ever
    session_max_bytes: int = variable(0, least=0)  # of all sessions in the database; 0: no limit
    translation_ttl_days: float = variable(30.0, least=0)  # after their end; 0: translation jobs are kept for ever

    benchmark_targets: tuple[str, ...] = ()  # origins that may be benchmarked, beside this machine
    benchmark_ttl_days: float = variable(90.0, least=0)  # single requests of old runs; 0: they are kept for ever

    @property
    def own_redis(self) -> bool:
        """True when no REDIS_URL was given, so that `serve` starts a server of its own."""
        return self.redis_url == f"unix://{redis_socket(self.var_dir)}"

    @property
    def listens_on_loopback_only(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def base_url(self) -> str:
        """Where this machine reaches the web processes."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def load() -> Env:
    """Read `.env` beside manage.py, which never overrides what is set already, and the environment."""
    environ.Env.read_env(BASE_DIR / ".env")
    return parse(os.environ)


def parse(values: Mapping[str, str]) -> Env:
    """Build `Env` from text values. Raises BadVariable; unknown names are ignored, empty ones unset."""
    known = {spec.name: spec for spec in fields(Env)}
    chosen = {name: values[name.upper()].strip() for name in known if values.get(name.upper(), "").strip()}
    read = {name: _read(name.upper(), text, known[name]) for name, text in chosen.items()}
    var_dir = read.get("var_dir", Env.__dataclass_fields__["var_dir"].default)
    read.setdefault("redis_url", f"unix://{redis_socket(var_dir)}")
    read.setdefault("database_url", f"sqlite:///{var_dir / 'db.sqlite3'}")
    return Env(**read)


def redis_socket(var_dir: Path) -> Path:
    """Where our own Redis listens: in `var_dir`, or in the temporary directory if that is too long."""
    path = var_dir / "redis.sock"
    if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
        return path
    name = sha256(os.fsencode(var_dir)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"rwkv-{os.getuid()}-{name}" / "redis.sock"


def _read(name: str, text: str, spec: Any) -> Any:
    rule = spec.metadata
    if spec.type is bool:
        return _boolean(name, text)
    if spec.type in (int, float):
        return _number(name, text, spec.type, rule)
    if spec.type is Path:
        return (BASE_DIR / Path(text).expanduser()).resolve()
    if spec.type is not str:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if "choices" in rule and text not in rule["choices"]:
        raise BadVariable(f"{name} must be one of {', '.join(rule['choices'])}, not {text!r}")
    if "schemes" in rule and urlsplit(text).scheme not in rule["schemes"]:
        scheme = urlsplit(text).scheme  # no more of it is shown: there may be a password in it
        raise BadVariable(f"{name} must be a URL that begins with one of {', '.join(rule['schemes'])}, not {scheme!r}")
    return text


def _boolean(name: str, text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise BadVariable(f"{name} must be true or false, not {text!r}")


def _number(name: str, text: str, kind: type, rule: Mapping[str, Any]) -> int | float:
    least, most = rule.get("least"), rule.get("most")
    expected = "a whole number" if kind is int else "a number"
    if most is not None:
        expected += f" from {least} to {most}"
    elif least is not None:
        expected += f" of at least {least}"
    try:
        number: int | float = kind(text)
    except ValueError:
        raise BadVariable(f"{name} must be {expected}, not {text!r}") from None
    # Written so that NaN, which compares false with everything, is refused.
    if (least is not None and not number >= least) or (most is not None and not number <= most):
        raise BadVariable(f"{name} must be {expected}, not {text!r}")
    return number
