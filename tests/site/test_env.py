from pathlib import Path

import pytest

from rwkvsite.env import BASE_DIR, BadVariable, parse


def test_defaults_work_with_nothing_set():
    env = parse({})
    assert (env.host, env.port, env.model, env.debug) == ("127.0.0.1", 8000, "", False)
    assert env.var_dir == BASE_DIR / "var"
    assert env.redis_url == f"unix://{BASE_DIR}/var/redis.sock"
    assert env.database_url == f"sqlite:///{BASE_DIR}/var/db.sqlite3"
    assert env.own_redis
    assert env.listens_on_loopback_only


def test_values_are_typed():
    env = parse(
        {
            "PORT": " 9000 ",
            "DEBUG": "Yes",
            "ENGINE_GRACE_SECONDS": "2.5",
            "CORS_ORIGINS": "https://a.example, https://b.example",
            "VAR_DIR": "elsewhere",
            "REDIS_URL": "redis://other:6379/3",
            "MODEL": "",
        }
    )
    assert (env.port, env.debug, env.engine_grace_seconds) == (9000, True, 2.5)
    assert env.cors_origins == ("https://a.example", "https://b.example")
    assert env.var_dir == BASE_DIR / "elsewhere"
    assert env.redis_url == "redis://other:6379/3"
    assert not env.own_redis


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "http"),
        ("PORT", "0"),
        ("PORT", "65536"),
        ("DEBUG", "maybe"),
        ("ENGINE_BACKEND", "tpu"),
        ("ENGINE_GRACE_SECONDS", "nan"),
        ("ENGINE_GRACE_SECONDS", "0"),
        ("MAX_QUEUE", "0"),
    ],
)
def test_a_bad_value_is_named_in_one_line(name, value):
    with pytest.raises(BadVariable) as error:
        parse({name: value})
    assert str(error.value).startswith(f"{name} must be ")
    assert repr(value) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [("REDIS_URL", "localhost:secret", "'localhost'"), ("DATABASE_URL", "mysql://root:secret@localhost/db", "'mysql'")],
)
def test_a_bad_url_is_named_without_what_may_be_secret(name, value, shown):
    with pytest.raises(BadVariable, match=f"{name} must be a URL that begins with one of .*, not {shown}") as error:
        parse({name: value})
    assert "secret" not in str(error.value)


def test_a_long_var_dir_gets_a_socket_path_that_the_kernel_takes(tmp_path):
    env = parse({"VAR_DIR": str(tmp_path / ("long" * 30))})
    path = env.redis_url.removeprefix("unix://")
    assert len(path) < 100
    assert env.own_redis
    assert parse({"VAR_DIR": str(tmp_path / ("rest" * 30))}).redis_url != env.redis_url


@pytest.mark.parametrize(
    ("host", "loopback", "url"),
    [
        ("127.0.0.1", True, "http://127.0.0.1:8000"),
        ("::1", True, "http://[::1]:8000"),
        ("localhost", True, "http://localhost:8000"),
        ("0.0.0.0", False, "http://127.0.0.1:8000"),
        ("10.1.2.3", False, "http://10.1.2.3:8000"),
    ],
)
def test_where_it_listens(host, loopback, url):
    env = parse({"HOST": host})
    assert env.listens_on_loopback_only == loopback
    assert env.base_url == url


def test_relative_paths_do_not_depend_on_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse({"VAR_DIR": "var"}).var_dir == Path(BASE_DIR, "var")
