from django.urls import path

from inference.translation import job_views, views

JOB = "translate/jobs/<slug:key>/"

urlpatterns = [
    path("translate/", views.translate, name="translate"),
    path("translate/jobs/", views.job_list, name="translation_list"),
    path(JOB, job_views.job_page, name="translation"),
    path(f"{JOB}lines/", job_views.job_lines, name="translation_lines"),
    path(f"{JOB}cancel/", job_views.cancel_job, name="translation_cancel"),
    path(f"{JOB}retry/", job_views.retry, name="translation_retry"),
    path(f"{JOB}delete/", job_views.delete_job, name="translation_delete"),
    path(f"{JOB}download/", job_views.download, name="translation_download"),
]
