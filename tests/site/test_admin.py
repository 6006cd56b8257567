import re
from http import HTTPStatus

import pytest
from django.contrib.auth.models import User
from django.urls import reverse

from inference.models import ApiKey

pytestmark = pytest.mark.django_db
KEYS = "admin:inference_apikey_changelist"


@pytest.fixture
def staff_client(client):
    """Logged in as staff without any permission."""
    client.force_login(User.objects.create_user("sam", password="sam", is_staff=True))
    return client


def test_logging_in_through_the_form(client):
    User.objects.create_superuser("ada", password="lovelace")
    client.handler.enforce_csrf_checks = True
    page = client.get("/admin/login/?next=/admin/")
    token = page.cookies["csrftoken"].value
    answer = client.post(
        "/admin/login/?next=/admin/",
        {"username": "ada", "password": "lovelace", "csrfmiddlewaretoken": token},
        follow=True,
    )
    assert answer.status_code == HTTPStatus.OK
    assert answer.context["user"].username == "ada"


@pytest.mark.parametrize("name", ["admin:index", KEYS, "admin:inference_apikey_add", "admin:auth_user_changelist"])
def test_pages_load(admin_client, redis_url, name):
    assert admin_client.get(reverse(name)).status_code == HTTPStatus.OK


def test_a_new_key_is_shown_once(admin_client):
    answer = admin_client.post(reverse("admin:inference_apikey_add"), {"name": "app", "enabled": "on", "notes": ""})
    assert answer.status_code == HTTPStatus.OK
    assert "no-store" in answer.headers["Cache-Control"]
    secret = re.search(r'id="secret"[^>]*>(rwkv-[\w-]+)<', answer.text).group(1)
    key = ApiKey.objects.verify(secret)
    assert key.name == "app"
    later = [admin_client.get(reverse(KEYS)), admin_client.get(reverse("admin:inference_apikey_change", args=[key.pk]))]
    for page in later:
        assert key.prefix in page.text
        assert secret not in page.text
        assert key.hash not in page.text


def test_changing_a_key_keeps_its_secret(admin_client):
    key, secret = ApiKey.objects.issue(name="app")
    url = reverse("admin:inference_apikey_change", args=[key.pk])
    answer = admin_client.post(url, {"name": "renamed", "requests_per_minute": "60", "enabled": "on"})
    assert answer.status_code == HTTPStatus.FOUND
    assert ApiKey.objects.verify(secret).requests_per_minute == 60


def test_a_limit_of_zero_is_refused_in_the_form(admin_client):
    answer = admin_client.post(reverse("admin:inference_apikey_add"), {"name": "app", "max_concurrent": "0"})
    assert "greater than or equal to 1" in answer.text
    assert not ApiKey.objects.exists()


def test_the_list_of_keys_costs_the_same_for_any_number(admin_client, django_assert_max_num_queries):
    for number in range(30):
        ApiKey.objects.issue(name=f"key {number}")
    with django_assert_max_num_queries(7):
        admin_client.get(reverse(KEYS))


def test_staff_without_permission_see_neither_keys_nor_engines(staff_client):
    for name in (KEYS, "admin:inference_engine_changelist", "admin:inference_engine_data"):
        assert staff_client.get(reverse(name)).status_code == HTTPStatus.FORBIDDEN
