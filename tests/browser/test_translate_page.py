"""Batch translation in a real browser, from the login to the download."""

import json
import os
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.visits import PHONE, assert_accessible, screenshot, visit
from tests.service import Service
from tests.translation.test_files import zip_bomb
from tests.translation.visitor import PASSWORD, add_user

LINES = int(os.environ.get("TRANSLATE_LINES", "300"))
SECONDS = 100.0
TEXTS = [f"The fox number {number} jumps over the lazy dog." for number in range(1, LINES + 1)]
SCRIPT = "<script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(2)>"

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def translating(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[Service]:
    """A service whose translations are short, with a user who has no rights in the admin."""
    limits = {"MAX_NEW_TOKENS": "16", "MAX_PROMPT_TOKENS": "100"}
    service = Service(tmp_path_factory.mktemp("var"), MODEL=str(tiny_checkpoint), SERVE_CELERY="true", **limits)
    try:
        service.wait_until_healthy()
        add_user(service, "translator")
        yield service
    finally:
        service.stop()


@pytest.fixture(scope="module")
def signed_in(browser: Browser, translating: Service) -> dict:
    """The cookies of somebody who has signed in, as one does: sent to the login, and back."""
    with visit(browser, translating.url) as page:
        page.goto("/translate/")
        assert urlsplit(page.url).path == "/login/"
        assert_accessible(page)
        screenshot(page, "login")
        page.keyboard.type("translator")
        page.keyboard.press("Tab")
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_be_visible()
        page.get_by_label("Password").fill(PASSWORD)
        page.keyboard.press("Enter")
        page.wait_for_url(f"{translating.url}/translate/")
        return page.context.storage_state()


@contextmanager
def visiting(browser: Browser, service: Service, state: dict, **options: object) -> Iterator[Page]:
    with visit(browser, service.url, storage_state=state, **options) as page:
        yield page


@pytest.fixture
def page(browser: Browser, translating: Service, signed_in: dict) -> Iterator[Page]:
    with visiting(browser, translating, signed_in, permissions=["clipboard-read", "clipboard-write"]) as page:
        yield page


def send(page: Page, name: str, content: bytes | str, **fields: str) -> None:
    page.goto("/translate/")
    content = content.encode() if isinstance(content, str) else content
    page.set_input_files("#id_files", {"name": name, "mimeType": "text/plain", "buffer": content})
    page.locator("details").evaluate("details => { details.open = true; }")
    for field, value in fields.items():
        page.fill(f"#id_{field}", value)
    page.locator("#new-translation").get_by_role("button", name="Translate").click()


def wait_for(page: Page, status: str) -> None:
    expect(page.locator("#job-status")).to_have_text(status, timeout=1000 * SECONDS)


def download(page: Page) -> str:
    with page.expect_download() as event:
        page.locator("#download").click()
    return Path(event.value.path()).read_bytes().decode()


def api_answers(service: Service, texts: list[str]) -> list[str]:
    body = {"source_lang": "en", "target_lang": "zh", "text_list": texts}
    request = urllib.request.Request(f"{service.url}/translate/v1/batch-translate", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=SECONDS) as response:
        return [item["text"] for item in json.load(response)["translations"]]


def test_a_file_from_its_drop_to_its_download(page, translating):
    send(page, "novel.txt", "\n".join(TEXTS))
    page.wait_for_url("**/translate/jobs/*/")
    done = page.locator(".line.done")
    expect(done.first).to_be_visible(timeout=1000 * SECONDS)  # while the job goes on, without a reload
    wait_for(page, "running")
    screenshot(page, "translate-running")
    page.reload()
    wait_for(page, "running")
    page.get_by_role("button", name="Cancel").click()
    wait_for(page, "cancelled")
    summary = page.locator(".job-summary .number")
    first, total = map(int, re.findall(r"\d+", summary.inner_text()))
    assert 0 < first < total == LINES
    assert page.locator(".line").count() <= 51  # a window, and its head
    partly = download(page).splitlines()
    assert len(partly) == LINES and 0 < sum(a != b for a, b in zip(partly, TEXTS, strict=True)) == first

    page.get_by_role("button", name="Translate the rest").click()
    wait_for(page, "done")
    expect(summary).to_have_text(f"{LINES} of {LINES} lines")
    answers = api_answers(translating, TEXTS)
    shown = page.locator(".line-translation").all_inner_texts()
    assert [text.split() for text in shown] == [answer.split() for answer in answers[:50]]
    assert [line.split() for line in download(page).split("\n")] == [answer.split() for answer in answers]

    page.get_by_role("link", name="Next").first.click()
    expect(page.locator("#line-51")).to_be_visible()
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("status").filter(has_text="Copied.")).to_be_visible()
    assert len(page.evaluate("navigator.clipboard.readText()").split("\n")) == LINES
    assert_accessible(page)
    page.get_by_role("link", name="All translations").click()
    expect(page.locator(".job", has_text="novel.txt")).to_contain_text(f"{LINES} / {LINES}")
    assert_accessible(page)


def test_a_failed_line_says_why_and_is_tried_again(page):
    send(page, "a.txt", f"good\n{'long ' * 120}\nfine")
    wait_for(page, "done")
    expect(page.locator("#line-2")).to_contain_text("expected at most 100 tokens")
    expect(page.locator(".job-summary")).to_contain_text("1 failed")
    assert_accessible(page)
    page.get_by_role("link", name="Only what has failed").click()
    expect(page.locator(".lines [id^=line-]")).to_have_count(1)
    page.get_by_role("link", name="All lines").click()
    with page.expect_response(re.compile("/retry/")) as response:
        page.get_by_role("button", name="Translate line 1 again").click()
    assert 'class="line waiting"' in response.value.text()
    wait_for(page, "done")
    expect(page.locator("#line-1")).to_have_class("line done")


def test_a_column_of_a_csv_file(page):
    page.goto("/translate/")
    expect(page.get_by_label("Column of a CSV file")).to_be_hidden()
    page.set_input_files(
        "#id_files", {"name": "t.csv", "mimeType": "text/csv", "buffer": b'\xef\xbb\xbfid;text\r\n1;"=A1 word"\r\n'}
    )
    expect(page.get_by_label("Column of a CSV file")).to_be_visible()
    expect(page.locator("#column-names option")).to_have_count(2)  # the page reads the file after it shows the field
    assert page.locator("#column-names option").evaluate_all("all => all.map(o => o.value)") == ["id", "text"]
    assert_accessible(page)
    page.fill("#id_column", "text")
    page.locator("#new-translation").get_by_role("button", name="Translate").click()
    wait_for(page, "done")
    assert download(page).startswith("\ufeffid;text\r\n1;")


def test_hostile_files_are_told_apart_and_nothing_runs(page, tmp_path):
    dialogs = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    for name, content, message in [
        ("latin.txt", "schön".encode("latin-1"), "latin.txt: The file is not valid UTF-8"),
        ("bomb.txt", zip_bomb(), "bomb.txt: The file is an archive (ZIP)"),
        ("bomb.docx", zip_bomb(), "bomb.docx: Such files cannot be translated."),
    ]:
        send(page, name, content)
        expect(page.locator("#errors")).to_contain_text(message)
        expect(page.locator("#errors")).to_be_focused()
        assert_accessible(page)
        assert page.complaints == [f"400 for {page.url}"]
        page.complaints.clear()
    huge = tmp_path / "huge.txt"
    with huge.open("wb") as file:
        file.truncate(200 * 10**6)
    page.goto("/translate/")
    page.set_input_files("#id_files", str(huge))
    expect(page.locator("#files-problem")).to_contain_text("larger than 10 MB")

    send(page, "script.txt", f"{IMAGE} {SCRIPT} words\n", glossary=f"{SCRIPT}\nwords = {SCRIPT}")
    wait_for(page, "done")
    expect(page.locator(".line-source").first).to_have_text(f"{IMAGE} {SCRIPT} words")
    expect(page.locator(".line-translation").first).to_contain_text(SCRIPT)
    assert dialogs == []


def test_with_the_keyboard_alone(page):
    page.goto("/translate/")
    tab_to(page, "#id_text")
    page.keyboard.type("Good morning")
    tab_to(page, "#new-translation button.primary")
    page.keyboard.press("Enter")
    wait_for(page, "done")
    tab_to(page, "#retry-1")
    with page.expect_response(re.compile("/retry/$")):  # until then the page says "done" of what was before
        page.keyboard.press("Enter")
    wait_for(page, "done")
    tab_to(page, "[data-confirm]")
    page.once("dialog", lambda dialog: dialog.accept())
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/translate/$"))
    expect(page.get_by_text("has been deleted")).to_be_visible()


def test_a_file_with_the_keyboard_alone(page, tmp_path):
    """Choose it, leave the page where it is while it is refreshed, turn to the next lines, download, cancel."""
    file = tmp_path / "novel.txt"
    file.write_text("\n".join(TEXTS * 5))  # so that it is not done before it is cancelled
    # Heard of from here on: a chooser that is opened while the browser is only being told may be missed.
    page.on("filechooser", lambda chooser: None)
    page.goto("/translate/")
    tab_to(page, "#id_files")
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Space")
    chooser.value.set_files(str(file))
    expect(page.locator("#chosen-files")).to_have_text("novel.txt")
    tab_to(page, "#new-translation button.primary")
    page.keyboard.press("Enter")
    page.wait_for_url("**/translate/jobs/*/")
    tab_to(page, "#next-top")
    summary = page.locator("#job-summary")
    before = summary.inner_text()
    expect(summary).not_to_have_text(before, use_inner_text=True)  # it was refreshed
    expect(page.locator("#next-top")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#line-51")).to_be_visible()
    tab_to(page, "#download")
    with page.expect_download() as event:
        page.keyboard.press("Enter")
    assert len(Path(event.value.path()).read_text().splitlines()) == 5 * LINES
    tab_to(page, "#cancel", "Shift+Tab")
    page.keyboard.press("Enter")
    wait_for(page, "cancelled")
    expect(page.get_by_role("status").filter(has_text="cancelled")).to_contain_text(f"of {5 * LINES} lines")


def tab_to(page: Page, selector: str, key: str = "Tab") -> None:
    for _ in range(40):
        page.keyboard.press(key)
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"no {key} leads to {selector}")


def test_a_server_that_does_not_answer_well_is_told_of_until_it_does(page):
    send(page, "novel.txt", "\n".join(TEXTS * 5))  # so that it is not done before the end
    lines = re.compile("/translate/jobs/.*/lines/")
    offline = page.locator("#offline")
    for fail in (lambda route: route.fulfill(status=503), lambda route: route.abort()):
        page.route(lines, fail)
        expect(offline).to_be_visible()
        for _ in range(2):  # the next requests do not hide it
            with page.expect_request(lines):
                pass
        expect(offline).to_be_visible()
        page.unroute(lines)
        expect(offline).to_be_hidden()
    page.get_by_role("button", name="Cancel").click()
    wait_for(page, "cancelled")
    page.complaints.clear()


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be", "utf-8-sig"])
def test_a_copy_is_the_text_in_whatever_encoding_it_came(page, codec):
    mark = "\ufeff".encode(codec) if codec != "utf-8-sig" else b""
    send(page, "a.txt", mark + "12 你好".encode(codec), glossary="你好 = héllo")
    wait_for(page, "done")
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("status").filter(has_text="Copied.")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "12 héllo"


def test_a_copy_over_plain_http_where_there_is_no_clipboard(browser, translating, signed_in):
    with visiting(browser, translating, signed_in) as page:
        page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        send(page, "a.txt", "你好", glossary="你好 = hello")
        wait_for(page, "done")
        copy = page.get_by_role("button", name="Copy")
        copy.click()
        expect(page.get_by_role("status").filter(has_text="Copied.")).to_be_visible()
        expect(copy).to_be_focused()
        page.goto("/translate/")
        page.locator("#id_text").focus()
        page.keyboard.press("Control+V")
        expect(page.locator("#id_text")).to_have_value("hello")
        page.add_init_script("document.execCommand = () => false")
        page.go_back()
        page.get_by_role("button", name="Copy").click()
        expect(page.get_by_role("status").filter(has_text="did not allow copying")).to_be_visible()


def test_what_is_too_much_is_told_before_it_is_sent(page):
    page.goto("/translate/")
    page.fill("#id_text", "kept")
    files = [{"name": f"{number}.txt", "mimeType": "text/plain", "buffer": b"a"} for number in range(101)]
    page.set_input_files("#id_files", files)
    expect(page.locator("#files-problem")).to_have_text("These are more than 20 files.")
    page.locator("#new-translation button.primary").click()
    expect(page.locator("#id_files")).to_be_focused()
    assert_accessible(page)
    page.fill("#id_text", "")
    most = int(page.locator("#new-translation").get_attribute("data-max-bytes"))
    page.set_input_files("#id_files", [{**files[0], "buffer": b"a" * most}])
    expect(page.locator("#files-problem")).to_be_hidden()
    page.fill("#id_text", "kept")
    page.locator("#new-translation button.primary").click()
    expect(page.locator("#files-problem")).to_have_text("Text and files are larger than 10 MB together.")
    assert urlsplit(page.url).path == "/translate/"


PHRASES = {
    "Good morning.": "早上好。",
    "Where is the library?": "图书馆在哪里？",
    "The train leaves at nine.": "火车九点开。",
    "I would like a cup of tea.": "我想要一杯茶。",
    "The fox jumps over the dog.": "狐狸跳过了狗。",
    "It will rain tomorrow.": "明天会下雨。",
    "She reads a book every week.": "她每周读一本书。",
    "See you next year!": "明年见！",
}


def test_a_glossary_of_whole_sentences_side_by_side(page):
    glossary = "\n".join(f"{source} = {target}" for source, target in PHRASES.items())
    send(page, "phrases.txt", "\n".join(PHRASES), glossary=glossary)
    wait_for(page, "done")
    assert page.locator(".line-translation").all_inner_texts() == list(PHRASES.values())
    screenshot(page, "translation")


def test_the_login_in_chinese(browser, translating):
    with visit(browser, translating.url, locale="zh-CN") as page:
        page.goto("/translate/")
        expect(page.get_by_role("heading", name="登录")).to_be_visible()
        page.fill("#id_username", "nobody")
        page.fill("#id_password", "wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_be_visible()
        assert_accessible(page)


def test_in_chinese_on_a_dark_phone(browser, translating, signed_in):
    options = {"viewport": PHONE, "color_scheme": "dark", "locale": "zh-CN"}
    with visiting(browser, translating, signed_in, **options) as page:
        page.goto("/translate/")
        expect(page.get_by_role("heading", name="翻译", exact=True)).to_be_visible()
        page.fill("#id_text", "Good morning\nGood evening")
        assert_accessible(page)
        screenshot(page, "translate-form-phone-dark-zh")
        page.locator("#new-translation button.primary").click()
        wait_for(page, "完成")
        assert_accessible(page)
        screenshot(page, "translate-done-phone-dark-zh")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_languages_are_swapped_where_both_are_stated(page):
    page.goto("/translate/")
    source, target = page.locator("#id_source_language"), page.locator("#id_target_language")
    source.select_option("ja")
    target.select_option("fr")
    swap = page.get_by_role("button", name="Swap the languages")
    swap.click()
    assert (source.input_value(), target.input_value()) == ("fr", "ja")
    source.select_option("auto")
    expect(swap).to_be_disabled()


def test_the_form_on_a_desktop(page):
    page.goto("/translate/")
    page.get_by_text("Glossary").first.click()
    assert_accessible(page)
    screenshot(page, "translate-form")


def test_a_page_whose_login_is_over_leads_to_the_login(browser, translating, signed_in):
    with visiting(browser, translating, signed_in) as page:
        page.goto("/translate/")
        page.fill("#id_text", "\n".join(TEXTS))
        page.locator("#new-translation button.primary").click()
        expect(page.locator("#lines")).to_be_visible()
        path = urlsplit(page.url).path
        page.context.clear_cookies()
        page.wait_for_url(f"{translating.url}/login/?next={path}")
        page.fill("#id_username", "translator")
        page.fill("#id_password", PASSWORD)
        page.keyboard.press("Enter")
        page.wait_for_url(f"{translating.url}{path}")


def test_a_copy_once_the_login_is_over_is_none_of_the_login(page, translating):
    send(page, "a.txt", "你好", glossary="你好 = hello")
    wait_for(page, "done")
    page.evaluate("navigator.clipboard.writeText('as it was')")
    path = urlsplit(page.url).path
    page.context.clear_cookies()
    page.get_by_role("button", name="Copy").click()
    page.wait_for_url(f"{translating.url}/login/?next={path}")
    assert page.evaluate("navigator.clipboard.readText()") == "as it was"
