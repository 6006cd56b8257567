"""The pages without a browser: who sees what, the form's messages, windows of lines, downloads."""

from pathlib import Path

import pytest
from django.conf import settings as django_settings
from django.contrib.auth import get_user_model
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.urls import reverse

from inference.translation import actions, uploads
from inference.translation.line_errors import KEY_REFUSED, UNEXPECTED
from inference.translation.models import LineStatus, Status, TranslationJob, TranslationLine
from inference.translation.presenting import LINES_PER_PAGE

SCRIPT = "<script>alert('x')</script>"
FORM = {"source_language": "en", "target_language": "zh", "header": "on"}


@pytest.fixture
def pages(redis_url: str, user) -> Client:
    """A browser in which `user` is signed in."""
    client = Client()
    client.force_login(user)
    return client


def send(client: Client, *files: tuple[str, bytes], **fields: str):
    uploads = [SimpleUploadedFile(name, content) for name, content in files]
    return client.post("/translate/", {**FORM, "files": uploads, **fields})


def urls_of(job: TranslationJob) -> list[str]:
    names = ["", "_lines", "_cancel", "_retry", "_delete", "_download"]
    return [reverse(f"translation{name}", args=[job.key]) for name in names]


def test_everything_asks_for_a_login(client, db, new_job, redis_url):
    job = new_job("a")
    for url in ["/translate/", "/translate/jobs/", *urls_of(job)]:
        assert client.get(url).url == f"/login/?next={url}"
        assert client.post(url).url == f"/login/?next={url}"
        assert client.get(url, headers={"HX-Request": "true"}).headers["HX-Redirect"] == "/login/?next=/"


def test_a_page_that_refreshes_itself_leads_to_the_login_and_back(client, db, new_job):
    lines = urls_of(new_job("a"))[1]
    for page, after in [
        ("http://testserver/translate/jobs/0/?page=2&show=", "/translate/jobs/0/%3Fpage%3D2%26show%3D"),
        ("https://example.org/elsewhere/", "/elsewhere/"),  # whatever it says, on this server
    ]:
        headers = {"HX-Request": "true", "HX-Current-URL": page}
        assert client.get(lines, headers=headers).headers["HX-Redirect"] == f"/login/?next={after}"


@pytest.mark.parametrize("name", ["translation_cancel", "translation_retry"])
def test_a_job_that_is_deleted_meanwhile_is_not_there(pages, new_job, name):
    job, deleted = new_job("a"), []

    def delete(execute, sql, *args):
        result = execute(sql, *args)
        if sql.startswith("SELECT") and TranslationJob._meta.db_table in sql and not deleted:
            deleted.append(job)  # once the view has found it
            actions.delete(job)
        return result

    with connection.execute_wrapper(delete):
        assert pages.post(reverse(name, args=[job.key])).status_code == 404
    assert deleted


def test_jobs_of_others_are_not_there(pages, new_job):
    other = get_user_model().objects.create_user("other")
    job = new_job("secret", owner=other)
    assert [pages.get(url).status_code for url in urls_of(job)[:2]] == [404, 404]
    assert [pages.post(url).status_code for url in urls_of(job)[2:5]] == [404] * 3
    assert pages.get(urls_of(job)[5]).status_code == 404
    assert job.key not in pages.get("/translate/").content.decode()
    assert TranslationJob.objects.filter(pk=job.pk, status=Status.QUEUED).exists()


def test_people_without_rights_in_the_admin_can_log_in(client, user):
    login = {"username": "translator", "password": "correct horse battery staple"}
    assert client.post("/login/?next=/translate/", login).url == "/translate/"
    assert client.get("/translate/").status_code == 200
    assert client.post("/logout/").url == "/login/"
    assert client.get("/translate/").status_code == 302


def test_a_login_leads_to_where_one_wanted_to_go(client, user):
    fields = {"username": "translator", "password": "correct horse battery staple", "next": "/translate/"}
    assert client.post("/login/", fields).url == "/translate/"
    client.post("/logout/")
    assert client.post("/login/", {**fields, "next": "https://example.org/"}).url == "/"


def test_posts_need_their_token(user, new_job, redis_url):
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    job = new_job("a")
    assert client.post("/translate/", {**FORM, "text": "a"}).status_code == 403
    assert client.post(urls_of(job)[2]).status_code == 403
    assert TranslationJob.objects.count() == 1


def test_a_text_and_files_become_jobs(pages):
    answer = send(pages, ("a.md", b"# A"), ("b.csv", b"id,text\n1,b\n"), text="pasted\n\nlines", column="text")
    assert answer.url == "/translate/"
    jobs = TranslationJob.objects.order_by("pk")
    assert [(job.filename, job.format, job.total) for job in jobs] == [
        ("a.md", "md", 1),
        ("b.csv", "csv", 1),
        ("", "txt", 2),
    ]
    assert jobs[1].column == "text"
    (job,) = [job for job in jobs if not job.filename]
    assert list(job.lines.values_list("source", "status")) == [("pasted", "waiting"), ("lines", "waiting")]
    assert "3 jobs have been started." in pages.get("/translate/").content.decode()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "schön".encode("latin-1"), "a.txt: The file is not valid UTF-8"),
        ("a.txt", b"PK\x03\x04" + bytes(20), "a.txt: The file is an archive (ZIP)"),
        ("a.docx", b"PK\x03\x04" + bytes(20), "a.docx: Such files cannot be translated."),
        ("a.csv", b"a,b\n1,2\n", "a.csv: CSV: choose the column"),
        ("<b>.json", b"{", "&lt;b&gt;.json: JSON: line 1, column 2"),
    ],
)
def test_one_bad_file_is_one_clear_message_and_no_job(pages, name, content, message):
    answer = send(pages, ("good.txt", b"good"), (name, content))
    page = answer.content.decode()
    assert answer.status_code == 400
    assert message in page and page.count('role="alert" id="errors"') == 1
    assert not TranslationJob.objects.exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "Paste a text or choose a file."),
        ({"text": "a", "glossary": "= x"}, "Line 1: expected “term” or “term = translation”."),
        ({"text": "a", "target_language": "xx"}, "xx is not one of the available choices."),
        ({"text": "a", "target_language": "auto"}, "auto is not one of the available choices."),
    ],
)
def test_what_the_form_says(pages, fields, message):
    answer = send(pages, **fields)
    assert answer.status_code == 400 and message in answer.content.decode()


def test_too_large_is_refused_before_it_is_read(pages, settings):
    answer = send(pages, ("a.txt", b"a" * (uploads.MAX_BYTES + 1)))  # within what multipart may add
    assert answer.status_code == 413 and "10 MB together" in answer.content.decode()
    answer = pages.post("/translate/", FORM, headers={"Content-Length": str(200 * 10**6)})
    assert answer.status_code == 413 and "10 MB together" in answer.content.decode()


def test_a_user_may_have_only_so_many_open_jobs(pages, new_job, monkeypatch):
    monkeypatch.setattr(actions, "MAX_OPEN_JOBS", 1)
    new_job("a")
    answer = send(pages, text="b")
    assert answer.status_code == 429 and "at one time" in answer.content.decode()


def test_a_users_jobs_may_hold_only_so_much_text(pages, new_job, monkeypatch):
    job = new_job("abcdefghij")
    actions.cancel(job)
    new_job("of another", owner=get_user_model().objects.create_user("other"))
    monkeypatch.setattr(actions, "MAX_STORED_CHARACTERS", 14)
    answer = send(pages, ("a.txt", b"ab"), text="abc")
    assert answer.status_code == 429 and "Delete some that you have." in answer.content.decode()
    assert TranslationJob.objects.filter(user=job.user).count() == 1
    assert send(pages, text="abcd").status_code == 302
    pages.post(urls_of(job)[4])
    assert send(pages, text="abcdefghij").status_code == 302


def test_too_many_files_are_a_message(pages):
    answer = send(pages, *[(f"{number}.txt", b"a") for number in range(101)])
    assert answer.status_code == 400 and "At most 20 files at one time." in answer.content.decode()


def test_script_in_text_and_names_is_shown_as_text(pages, new_job):
    job = new_job(f"{SCRIPT} text")
    job.lines.update(status=LineStatus.DONE, translation=SCRIPT)
    TranslationJob.objects.update(filename=f"{SCRIPT}.txt", done=1)
    for url in ["/translate/", *urls_of(job)[:2]]:
        page = pages.get(url).content.decode()
        assert SCRIPT not in page and "&lt;script&gt;alert" in page
    answer = pages.get(urls_of(job)[5])
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"].startswith("attachment")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.content.decode() == SCRIPT


def test_only_a_window_of_the_lines_is_read(pages, new_job, django_assert_max_num_queries):
    job = new_job("\n".join(f"line {number}" for number in range(1, 5001)))
    url = urls_of(job)[0]
    with django_assert_max_num_queries(6):
        page = pages.get(url, {"page": "2"}).content.decode()
    assert page.count('id="line-') == LINES_PER_PAGE
    assert f'id="line-{LINES_PER_PAGE + 1}"' in page and "line 51<" in page and len(page) < 100_000
    for given, first in [("100", 4951), ("9999", 4951), ("0", 1), ("-1", 1), ("x", 1), ("9" * 30, 1), ("٣", 101)]:
        assert f'id="line-{first}"' in pages.get(url, {"page": given}).content.decode(), given


def test_the_window_is_sent_only_when_something_has_changed(pages, new_job):
    job = new_job("a\nb")
    url = urls_of(job)[1]
    version = pages.get(url).context["window"].version
    assert pages.get(url, {"seen": version}).status_code == 204
    TranslationJob.objects.update(done=1)
    assert pages.get(url, {"seen": version}).status_code == 200


def test_failed_lines_can_be_shown_alone(pages, new_job):
    job = new_job("a\nb\nc")
    job.lines.filter(number=2).update(status=LineStatus.FAILED, error="because")
    TranslationJob.objects.update(failed=1)
    page = pages.get(urls_of(job)[0], {"show": "failed"}).content.decode()
    assert page.count('id="line-') == 1 and "because" in page


def test_numbers_of_lines_that_cannot_be(pages, new_job):
    job = new_job("a")
    for number in ("9" * 5000, "9" * 30, "0", "-1", "x"):
        assert pages.post(urls_of(job)[3], {"line": number}).status_code == 302, number


@pytest.mark.parametrize(
    ("error", "chinese"),
    [
        (UNEXPECTED, "这一行无法翻译"),
        (KEY_REFUSED, "服务拒绝了"),
        ("text_list: expected at most 100 tokens, got 101", "最多 100 个词元"),
        ("something that is not known here", "something that is not known here"),
    ],
)
def test_why_a_line_failed_is_told_in_the_pages_language(pages, new_job, error, chinese):
    job = new_job("a")
    job.lines.update(status=LineStatus.FAILED, error=error)
    page = pages.get(urls_of(job)[0], headers={"Accept-Language": "zh-CN"}).content.decode()
    assert chinese in page
    assert (error in page) is (error == chinese)


def test_the_page_of_a_table_says_that_other_cells_stay(pages, new_job):
    told = "formulas too"
    assert told not in pages.get(urls_of(new_job("a"))[0]).content.decode()
    send(pages, ("a.csv", b"a\nb\n"))
    assert told in pages.get(urls_of(TranslationJob.objects.first())[0]).content.decode()


def test_forms_work_without_scripts(pages, new_job):
    job = new_job("a\nb")
    cancel, retry, delete = urls_of(job)[2:5]
    place = {"page": "1", "show": "failed"}
    assert pages.post(cancel, place).url == f"{urls_of(job)[0]}?page=1&show=failed"
    assert pages.post(retry, {"line": "2", **place}).status_code == 302
    assert list(job.lines.order_by("number").values_list("status", flat=True)) == ["skipped", "waiting"]
    assert (
        pages.post(retry, place, headers={"HX-Request": "true"}).templates[0].name == "inference/translate_lines.html"
    )
    assert not TranslationLine.objects.exclude(status=LineStatus.WAITING).exists()
    assert pages.post(delete).url == "/translate/"
    assert not TranslationLine.objects.exists()


@pytest.mark.parametrize(
    ("name", "content", "column", "expected"),
    [
        ("b.csv", b"\xef\xbb\xbfid,text\r\n1,b\r\n=2,c\r\n", "text", "\ufeffid,text\r\n1,'=B\r\n=2,'=C\r\n".encode()),
        ("s.srt", b"1\r\n00:00:01,000 --> 00:00:02,000\r\nb\r\n", "", b"1\r\n00:00:01,000 --> 00:00:02,000\r\n=B\r\n"),
    ],
)
def test_a_download_has_the_form_that_came_in(pages, name, content, column, expected):
    send(pages, (name, content), column=column)
    job = TranslationJob.objects.get()
    for line in job.lines.all():
        TranslationLine.objects.filter(pk=line.pk).update(status="done", translation=f"={line.source.upper()}")
    answer = pages.get(urls_of(job)[5])
    assert answer.content == expected
    stem, suffix = name.split(".")
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{stem}.zh.{suffix}"'


def test_the_pages_are_chinese_for_those_who_read_it(pages, new_job):
    job = new_job("a")
    for url in ["/translate/", urls_of(job)[0]]:
        page = pages.get(url, headers={"Accept-Language": "zh-CN"}).content.decode()
        assert "翻译" in page and "Download" not in page and "Glossary" not in page


def test_the_api_below_the_page_is_no_page(client, db, redis_url):
    answer = client.post("/translate/v1/batch-translate", "{}", content_type="application/json")
    assert answer.status_code == 400 and answer.json() == {"error": "Missing target_lang"}


def test_operators_see_cancel_and_delete_jobs_in_the_admin(admin_client, new_job, redis_url):
    job = new_job(SCRIPT + "a")
    job.lines.update(status=LineStatus.FAILED, error="because")
    page = admin_client.get(reverse("admin:inference_translationjob_change", args=[job.pk])).content.decode()
    assert "because" in page and SCRIPT not in page
    url = reverse("admin:inference_translationjob_changelist")
    assert job.key in admin_client.get(url).content.decode()
    admin_client.post(url, {"action": "cancel", "_selected_action": [job.pk]})
    job.refresh_from_db()
    assert job.status == Status.CANCELLED
    admin_client.post(url, {"action": "delete_selected", "_selected_action": [job.pk], "post": "yes"})
    assert not TranslationJob.objects.exists()


def test_pages_bring_no_inline_scripts_or_styles():
    for path in Path(django_settings.BASE_DIR, "templates/inference").glob("translate*.html"):
        text = path.read_text()
        assert "<style" not in text and "style=" not in text and "onclick" not in text, path
        assert text.count("<script") == text.count("<script src="), path
