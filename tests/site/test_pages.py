"""The home page and the playground as HTML: their language, when they ask for a key, and what they hold."""

import re

import aiohttp
import pytest

from inference.api.openai.chat import ChatBody
from inference.api.openai.completions import CompletionBody
from inference.api.states.multi_state import MultiStateBody
from inference.pages.parameters import main_parameters, more_parameters
from inference.pages.presets import presets

CHINESE = {"Accept-Language": "zh-CN,zh;q=0.9"}
FROM_ELSEWHERE = {"X-Forwarded-For": "203.0.113.7"}  # the API takes a forwarded client for a stranger
PAGES = ("/", "/playground/")


@pytest.fixture
async def web(service):
    """A client that keeps cookies and asks for HTML, as a browser does."""
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(service.url, cookie_jar=jar, headers={"Accept": "text/html,*/*"}) as session:
        yield session


async def read(web, path, **headers):
    async with web.get(path, headers=headers) as response:
        assert response.status == 200
        return await response.text()


async def choose_language(web, language, url, next_page="/playground/"):
    """As the form of the page does it; returns the answer's status and where it leads."""
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', await read(web, "/playground/")).group(1)
    form = {"language": language, "next": next_page, "csrfmiddlewaretoken": token}
    async with web.post("/i18n/setlang/", data=form, headers={"Origin": url}, allow_redirects=False) as answer:
        return answer.status, answer.headers.get("Location")


@pytest.mark.parametrize("path", PAGES)
async def test_pages_are_in_the_language_that_the_browser_asks_for(web, path):
    english, chinese = await read(web, path), await read(web, path, **CHINESE)
    assert '<html lang="en">' in english and "试验场" not in english
    assert '<html lang="zh-hans">' in chinese and "试验场" in chinese


async def test_a_chosen_language_is_kept_and_the_page_stays(web, service):
    assert await choose_language(web, "zh-hans", service.url) == (302, "/playground/")
    assert '<html lang="zh-hans">' in await read(web, "/")
    await choose_language(web, "en", service.url)
    assert '<html lang="en">' in await read(web, "/", **CHINESE)


async def test_the_language_switch_leads_to_no_other_site(web, service):
    status, place = await choose_language(web, "en", service.url, next_page="https://evil.example/")
    assert (status, place) == (302, "/")


async def test_the_language_switch_takes_orders_from_its_own_pages_alone(web):
    async with web.post("/i18n/setlang/", data={"language": "zh-hans"}) as answer:
        assert answer.status == 403


async def test_the_api_speaks_english_whatever_the_visitors_language(web, service):
    await choose_language(web, "zh-hans", service.url)
    headers = {**CHINESE, "Accept": "application/json"}
    for path in ("/health", "/"):
        async with web.post(path, headers=headers) as refused:  # the framework's text, which it has in Chinese
            assert refused.status == 405
            assert (await refused.json())["error"]["message"] == 'Method "POST" not allowed.'
            assert "Content-Language" not in refused.headers
    async with web.get("/", headers=headers) as index:
        assert (await index.json())["name"] == "RWKV server"


async def test_programs_get_no_cookies_from_the_index(service):
    async with aiohttp.ClientSession(service.url) as program, program.get("/") as index:
        assert index.content_type == "application/json"
        assert not index.cookies


async def test_the_pages_ask_for_a_key_where_the_api_does(web):
    for headers, needs_key in (({}, False), (FROM_ELSEWHERE, True)):
        assert ("Authorization: Bearer $API_KEY" in await read(web, "/", **headers)) is needs_key
        form = re.search(r'<form id="key-form"[^>]*>', await read(web, "/playground/", **headers)).group()
        assert (" hidden" not in form) is needs_key


async def test_the_playground_holds_nothing_that_the_api_would_not_tell(web):
    assert "rwkv7-random-tiny" not in await read(web, "/playground/", **FROM_ELSEWHERE)


@pytest.mark.parametrize("path", PAGES)
async def test_scripts_and_styles_are_files_of_this_server(web, path):
    page = await read(web, path)
    assert re.findall(r"<script(?! (?:type=\"module\" )?src=\"/static/)(?![^>]*application/json)[^>]*>", page) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=|https?://(?!127\.0\.0\.1)", page) == []


@pytest.mark.parametrize("path", [*PAGES, "/login/", "/docs/", "/admin/login/"])
async def test_pages_say_that_nothing_inline_and_nothing_from_elsewhere_runs(web, path):
    async with web.get(path) as page:
        policy = dict(part.strip().split(" ", 1) for part in page.headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'self'" and policy["frame-ancestors"] == "'none'"
    assert "'unsafe-inline'" not in policy.get("script-src", "") and "//" not in str(policy)
    async with web.get("/health") as answer:
        assert "Content-Security-Policy" not in answer.headers  # the API has no pages


async def test_pages_cannot_be_framed(web):
    for path in PAGES:
        async with web.get(path) as page:
            assert page.headers["X-Frame-Options"] == "DENY"


def test_the_playgrounds_fields_are_fields_of_all_three_routes():
    names = {parameter.field for parameter in main_parameters() + more_parameters()}
    names |= {name for preset in presets() for name in preset["values"]}
    for body in (CompletionBody, ChatBody, MultiStateBody):
        assert names <= set(body.__struct_fields__)
