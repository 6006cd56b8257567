"""The playground in a real browser, against the running service."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Dialog, Page, expect

from rwkvsite.env import BASE_DIR
from tests.browser.visits import PHONE, assert_accessible, screenshot, visit
from tests.service import Service, free_port, wait_until

pytestmark = pytest.mark.browser

PASSWORD = "open sesame"
ENDLESS = 50_000  # tokens that nobody waits for


@pytest.fixture
def page(browser_page: Page) -> Page:
    return opened(browser_page)


def opened(page: Page) -> Page:
    """The playground, ready to send."""
    page.goto("/playground/")
    expect(page.locator("#model option")).to_have_count(1)
    return page


def set_fields(page: Page, **values: object) -> None:
    """Fill fields of the first parameter set."""
    for name, value in values.items():
        field = page.locator(f"[name={name}]").first
        if not field.is_visible():
            page.locator(".parameter-set details summary").first.click()
        if value is True:
            field.check()
        else:
            field.fill(str(value))


def send(page: Page, text: str) -> None:
    """Send, and wait for the end."""
    page.fill("#text", text)
    page.click("#send")
    expect(page.locator("#send")).to_be_enabled()
    expect(page.locator("#status")).to_contain_text("Done")


def ask(url: str, path: str, body: dict | None = None) -> dict:
    request = urllib.request.Request(url + path, json.dumps(body).encode() if body else None)
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def running_rows(service: Service) -> int:
    return ask(service.url, "/stats")["running"]


def test_an_answer_streams_and_stops_when_told_to(page, service):
    set_fields(page, max_tokens=ENDLESS, ignore_eos=True)
    page.fill("#text", "Once upon a time")
    page.click("#send")
    answer = page.locator(".answer-text")
    expect(answer).to_have_attribute("aria-busy", "true")
    expect(page.locator(".stats")).to_contain_text(re.compile(r"\d+ tokens · [\d.]+ tokens/s · first after \d+ ms"))
    seen = len(answer.inner_text())
    page.wait_for_function("seen => document.querySelector('.answer-text').innerText.length > seen", arg=seen)
    wait_until(lambda: running_rows(service) == 1, 15, "the heartbeat tells of the row")
    page.get_by_role("button", name="Stop").first.click()
    expect(page.locator("#status")).to_have_text("Stopped.")
    expect(page.locator(".answer-foot")).to_have_text("stopped")
    expect(answer).to_have_attribute("aria-busy", "false")
    wait_until(lambda: running_rows(service) == 0, 15, "the slot is free")


def test_sets_and_answers_side_by_side_are_what_the_api_gives(page, service):
    page.locator(".preset").select_option("greedy")
    set_fields(page, max_tokens=12)
    page.click("#add-set")
    page.locator(".preset").nth(1).select_option("native")
    page.locator("[name=seed]").nth(1).fill("7")
    page.fill("#answers", "2")
    send(page, "The Eiffel tower is in")
    texts = page.locator(".answer-text").all_text_contents()
    common = {"prompt": "The Eiffel tower is in", "max_tokens": 12, "n": 2}
    native = {"temperature": 1, "top_p": 0.6, "top_k": 50, "seed": 7}
    native |= {"alpha_presence": 2, "alpha_frequency": 0.2, "alpha_decay": 0.996}
    greedy = ask(service.url, "/v1/completions", {**common, "temperature": 0})
    drawn = ask(service.url, "/v1/completions", {**common, **native})
    assert texts == [choice["text"] for choice in greedy["choices"] + drawn["choices"]]
    assert texts[2] != texts[3]
    expect(page.locator(".run h3")).to_have_text(["Set A", "Set B"])
    expect(page.locator(".stats").first).to_contain_text("24 tokens")
    screenshot(page, "playground")
    page.get_by_role("button", name="Remove").last.click()
    expect(page.locator(".parameter-set")).to_have_count(1)


def test_a_chat_goes_on_from_the_answer_that_was_picked(page):
    page.get_by_role("radio", name="Chat").check()
    page.get_by_text("System text").click()
    page.fill("#system", "Be brief.")
    page.fill("#answers", "2")
    set_fields(page, max_tokens=5)
    send(page, "Hello")
    picked = page.locator(".answer-text").nth(1).text_content().strip()
    page.get_by_role("button", name="Continue with this").click()
    page.fill("#text", "And then?")
    assert_accessible(page)
    with page.expect_request("**/v1/chat/completions") as sent:
        page.keyboard.press("Control+Enter")
    assert sent.value.post_data_json["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": picked},
        {"role": "user", "content": "And then?"},
    ]
    expect(page.locator("#turns li")).to_have_count(2)
    expect(page.locator("#status")).to_contain_text("Done")


def test_a_sessions_branches_grow_from_the_one_that_is_chosen(page, service):
    page.get_by_role("radio", name="Session").check()
    session = page.input_value("#session")
    page.fill("#answers", "2")
    set_fields(page, max_tokens=4, seed=7)
    send(page, "Hello")
    assert len(set(page.locator(".answer-text").all_text_contents())) == 2, "each answer has a seed of its own"
    branches = page.get_by_role("radio", name=re.compile("Branch"))
    expect(branches).to_have_count(2)
    page.get_by_role("radio", name="Branch 2").check()
    page.fill("#answers", "1")
    send(page, "Go on")
    expect(page.locator("#branches ul ul ul li")).to_have_text(re.compile("^Branch 3 Go on"))
    expect(page.get_by_role("radio", name="Branch 3")).to_be_checked()
    assert_accessible(page)
    screenshot(page, "playground-session")
    kept = {item["session_id"] for item in ask(service.url, "/state/status")["sessions"]}
    assert {f"{session}:{index}" for index in (1, 2, 3)} <= kept

    page.reload()
    page.get_by_role("radio", name="Session").check()
    expect(branches).to_have_count(3)
    questions = []
    for answer in (Dialog.dismiss, Dialog.accept):
        expect(branches).to_have_count(3)
        page.once("dialog", lambda dialog, answer=answer: (questions.append(dialog.message), answer(dialog)))
        page.get_by_role("button", name="Delete").click()
    assert questions == ["Delete this session with all its branches?"] * 2
    expect(page.locator("#status")).to_have_text("The session is deleted.")
    expect(branches).to_have_count(0)
    assert not any(item["session_id"].startswith(session) for item in ask(service.url, "/state/status")["sessions"])


def test_probabilities_of_the_next_token_and_of_those_that_were_drawn(page, service):
    page.fill("#text", "Paris is")
    page.get_by_role("button", name="Next-token probabilities").click()
    candidates = page.locator(".candidates tbody tr")
    expect(candidates).to_have_count(10)
    body = {"prompt": "Paris is", "max_tokens": 1, "logprobs": 10, "temperature": 0}
    best = ask(service.url, "/v1/completions", body)["choices"][0]["text"]
    assert candidates.first.get_by_role("button").text_content() == best.replace(" ", "␣")
    candidates.first.get_by_role("button").click()
    expect(page.locator("#text")).to_have_value(f"Paris is{best}")

    page.check("#probabilities")
    page.locator(".preset").select_option("greedy")
    set_fields(page, max_tokens=6)
    send(page, "Paris is")
    expect(page.locator(".token")).to_have_count(6)
    page.locator(".token").first.click()
    expect(page.locator("#candidates-title")).to_have_text(f"Instead of “{best.replace(' ', '␣')}”")
    assert_accessible(page)
    screenshot(page, "playground-probabilities")


def test_probabilities_are_for_prompts_and_chats(page):
    """Those of a prompt do not stay beside another mode, whose text they would be appended to."""
    page.fill("#text", "Paris is")
    button = page.get_by_role("button", name="Next-token probabilities")
    button.click()
    expect(page.locator(".candidates tbody tr")).to_have_count(10)
    page.get_by_role("radio", name="Session").check()
    expect(page.locator("#candidates")).to_be_hidden()
    expect(button).to_be_hidden()
    expect(page.get_by_text("answers of a session come without it")).to_be_visible()


@pytest.mark.parametrize("mode", ["Prompt", "Chat", "Session"])
def test_the_same_request_as_code_gives_the_same_answer(page, mode):
    page.get_by_role("radio", name=mode).check()
    page.locator(".preset").select_option("greedy")
    set_fields(page, max_tokens=6, logit_bias="261:-100, 11:-50.5")
    page.fill("#text", 'It\'s "here" & 这里\n$HOME')
    curl = page.locator("#code").text_content()
    page.get_by_role("button", name="Python").click()
    program = page.locator("#code").text_content()
    page.keyboard.press("Shift+Tab")
    send(page, page.input_value("#text"))
    answer = page.locator(".answer-text").text_content()
    printed = subprocess.run([sys.executable, "-X", "utf8", "-c", program], capture_output=True, text=True, check=True)
    assert printed.stdout == answer
    frames = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, check=True).stdout
    choices = [choice for line in re.findall(r"data: (\{.*)", frames) for choice in json.loads(line).get("choices", [])]
    assert "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices) == answer


def test_each_request_of_a_session_is_there_as_code(page):
    page.get_by_role("radio", name="Session").check()
    set_fields(page, max_tokens=4, seed=7)
    page.fill("#answers", "3")
    page.fill("#text", "Hello")
    choice = page.get_by_role("combobox", name="Request")
    expect(choice.locator("option")).to_have_text(["Answer 1", "Answer 2", "Answer 3"])
    with page.expect_request("**/multi_state/chat/completions"):
        page.click("#send")
    expect(page.locator("#status")).to_contain_text("Done")
    for number, seed in enumerate((7, 8, 9)):  # what was sent
        choice.select_option(index=number)
        expect(page.locator("#code")).to_contain_text(f'"seed":{seed}')
    page.click("#add-set")
    page.fill("#text", "Hello")
    expect(choice.locator("option").last).to_have_text("Set B, answer 3")


def test_the_code_stands_what_is_typed_as_a_number_of_answers(page):
    page.get_by_role("radio", name="Session").check()
    page.fill("#text", "Hello")
    choice = page.locator("#code-set option")
    for typed, requests in (("", 1), ("3", 3), ("999999999", 4), ("0", 1)):
        page.fill("#answers", typed)
        expect(choice).to_have_count(requests)


def test_what_cannot_be_sent_is_told(page):
    page.click("#send")
    expect(page.locator("#text-error")).to_have_text("Write something first.")
    expect(page.locator("#text")).to_be_focused()
    page.fill("#text", "Hello")
    set_fields(page, max_tokens=4, top_p=2)
    page.click("#send")  # the browser says what is wrong with the field
    expect(page.locator("[name=top_p]")).to_be_focused()
    page.get_by_role("radio", name="Chat").check()
    set_fields(page, top_p="", logit_bias="70000:1")
    page.click("#send")
    expect(page.get_by_role("alert").filter(has_text="logit_bias")).to_be_visible()
    expect(page.locator("#text")).to_have_value("Hello")
    (complaint,) = page.complaints
    assert complaint.startswith("400 ")
    page.complaints.clear()


def test_an_error_is_told_in_the_language_of_the_page_and_the_servers_words_are_quoted(browser, service):
    with visit(browser, service.url, locale="zh-CN") as page:
        opened(page)
        set_fields(page, max_tokens=4, logit_bias="70000:1")
        page.fill("#text", "Hello")
        page.click("#send")
        told = page.get_by_role("alert").filter(has_text="服务器拒绝了请求。")
        expect(told.locator("q[lang=en]")).to_contain_text("logit_bias")
        assert_accessible(page)
        screenshot(page, "playground-refused-zh")
        page.route("**/v1/completions", lambda route: route.abort())
        page.get_by_role("button", name="下一词元的概率").click()
        expect(page.locator("#status")).to_have_text("无法连接服务器。")
        page.route("**/v1/completions", lambda route: route.fulfill(status=503, json={"error": "loading"}))
        page.get_by_role("button", name="下一词元的概率").click()
        expect(page.locator("#status")).to_contain_text("服务器暂时无法回答，请稍后再试。")
        expect(page.locator("#status q")).to_have_text("loading")
        assert sorted(page.complaints) == [f"{status} for {service.url}/v1/completions" for status in (400, 503)]
        page.complaints.clear()


def test_a_server_that_is_away_or_loads_its_model_is_asked_again(browser_page):
    page = browser_page
    page.route("**/v1/models", lambda route: route.abort())
    page.goto("/playground/")
    status = page.locator("#status")
    expect(status).to_have_text("The server cannot be reached.")
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": []}))
    expect(status).to_have_text("No model is loaded yet.")
    expect(page.locator("#model")).to_be_disabled()
    page.unroute_all()
    expect(page.locator("#model option")).to_have_count(1)
    expect(page.locator("#model")).to_be_enabled()
    expect(status).to_have_text("")


@pytest.fixture
def locked_url(service: Service) -> Iterator[str]:
    """A second web process of the same service, which wants a password."""
    port = free_port()
    own = {"VAR_DIR": str(service.var_dir), "PORT": str(port), "REDIS_URL": "", "API_PASSWORD": PASSWORD}
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "rwkvsite.settings", **own}
    with subprocess.Popen([sys.executable, str(BASE_DIR / "manage.py"), "web"], env=environment) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda: is_healthy(url), 60, "the web process answers")
            yield url
        finally:
            process.terminate()


def is_healthy(url: str) -> bool:
    try:
        return ask(url, "/health")["status"] == "ok"
    except OSError:
        return False


def test_a_key_is_asked_for_and_kept_in_the_tab_alone(browser: Browser, locked_url: str):
    with visit(browser, locked_url) as page:
        page.goto("/playground/")
        page.fill("#key", "wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#key-error")).to_have_text("The server did not accept this key.")
        page.fill("#key", PASSWORD)
        page.keyboard.press("Enter")
        expect(page.locator("#key-form")).to_be_hidden()
        set_fields(page, max_tokens=4)
        send(page, "Hello")
        assert PASSWORD not in page.locator("#code").text_content()
        assert PASSWORD not in page.evaluate("JSON.stringify(localStorage) + document.cookie")
        page.reload()
        expect(page.locator("#model option")).to_have_count(1)
        page.get_by_role("button", name="Forget it").click()
        expect(page.locator("#key")).to_be_focused()
        assert page.evaluate("sessionStorage.getItem('api-key')") is None
        assert set(page.complaints) == {f"401 for {locked_url}/v1/models"}
        page.complaints.clear()


def test_the_keyboard_is_enough(page, service):
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    tab_to(page, "[name=mode]")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", name="Chat")).to_be_checked()
    tab_to(page, "#text")
    page.keyboard.type("Hello")
    tab_to(page, "[name=max_tokens]")
    page.keyboard.press("Control+A")
    page.keyboard.type(str(ENDLESS))
    tab_to(page, "#text", "Shift+Tab")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".stats")).to_contain_text("tokens/s")
    page.keyboard.press("Escape")
    expect(page.locator("#status")).to_have_text("Stopped.")
    wait_until(lambda: running_rows(service) == 0, 15, "the slot is free")


def tab_to(page: Page, selector: str, key: str = "Tab") -> None:
    for _ in range(40):
        page.keyboard.press(key)
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"{key} does not lead to {selector}")


LOOKS = {  # by the end of the names of their pictures
    "": {},
    "-phone-dark-zh": {"viewport": PHONE, "locale": "zh-CN", "color_scheme": "dark"},
}


@pytest.mark.parametrize("look", LOOKS)
def test_pages_are_accessible_and_fit_in_every_look(browser, service, look):
    with visit(browser, service.url, **LOOKS[look]) as page:
        page.goto("/")
        check_look(page, f"home{look}")
        opened(page)
        check_look(page, f"playground-empty{look}")


def check_look(page: Page, name: str) -> None:
    screenshot(page, name)
    assert_accessible(page)
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), f"{name} scrolls sideways"


def test_language_and_colours_are_chosen_in_the_header(page):
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.get_by_role("button", name="Dark").click()
    dark = page.evaluate(background)
    assert dark != light
    page.get_by_role("button", name="简体中文").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("试验场")
    expect(page).to_have_url(re.compile("/playground/$"))
    assert page.evaluate(background) == dark
    page.get_by_role("button", name="English").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Playground")
