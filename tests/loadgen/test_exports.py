import csv
import json
from io import BytesIO, StringIO
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from django.core.management import CommandError, call_command
from openpyxl import load_workbook

from benchmarks.loadgen import exports, metrics
from benchmarks.loadgen.exports import ppl_csv
from benchmarks.loadgen.exports.vllm_json import to_vllm
from benchmarks.loadgen.records import Phase, RunResult
from tests.loadgen.sample_runs import small_run

VLLM_FIELDS = """
date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness max_concurrency
ramp_up_strategy ramp_up_start_rps ramp_up_end_rps duration completed failed total_input_tokens total_output_tokens
request_throughput request_goodput output_throughput total_token_throughput max_output_tokens_per_s
max_concurrent_requests rtfx rps_change_events
spec_decode_acceptance_rate spec_decode_acceptance_length spec_decode_num_drafts spec_decode_draft_tokens
spec_decode_accepted_tokens spec_decode_per_position_acceptance_rates
mean_ttft_ms median_ttft_ms std_ttft_ms p99_ttft_ms mean_tpot_ms median_tpot_ms std_tpot_ms p99_tpot_ms
mean_itl_ms median_itl_ms std_itl_ms p99_itl_ms mean_e2el_ms median_e2el_ms std_e2el_ms p99_e2el_ms
"""
VLLM_LISTS = "input_lens output_lens ttfts itls start_times generated_texts errors"
PPL_COLUMNS = """
completed success_rate qps total_inlen total_outlen avg_inlen avg_outlen max_inlen max_outlen o_tps io_tps
min_ttft max_ttft mean_ttft median_ttft std_ttft p90_ttft p99_ttft
min_tpot max_tpot mean_tpot median_tpot std_tpot p90_tpot p99_tpot
min_e2e max_e2e mean_e2e median_e2e std_e2e p90_e2e p99_e2e
min_itl max_itl mean_itl median_itl std_itl p90_itl p99_itl
"""


@pytest.fixture
def result() -> RunResult:
    return small_run()


def test_vllm_json_has_every_field_and_the_users_metadata(result: RunResult) -> None:
    assert set(to_vllm(result, detailed=False)) == {*VLLM_FIELDS.split(), "gpu"}
    assert set(to_vllm(result, detailed=True)) == {*VLLM_FIELDS.split(), *VLLM_LISTS.split(), "gpu"}


def test_vllm_json_means_what_vllm_means(result: RunResult) -> None:
    fields = to_vllm(result, detailed=True)

    assert (fields["date"], fields["model_id"], fields["label"]) == ("20261120-103005", "team/rwkv7-test", "nightly")
    assert (fields["completed"], fields["failed"], fields["num_prompts"]) == (3, 1, 4)
    assert (fields["total_input_tokens"], fields["total_output_tokens"]) == (60, 8)
    assert fields["duration"] == pytest.approx(2.3)
    assert fields["request_throughput"] == pytest.approx(3 / 2.3)
    assert fields["output_throughput"] == pytest.approx(8 / 2.3)
    assert fields["total_token_throughput"] == pytest.approx(68 / 2.3)
    assert fields["request_goodput"] == pytest.approx(2 / 2.3)  # 300 ms is beyond the limit of 250 ms
    assert fields["max_output_tokens_per_s"] == 4
    assert fields["max_concurrent_requests"] == 2
    assert fields["rps_change_events"] == [{"rps": 2.0, "timestamp": 0.0}]

    assert fields["mean_ttft_ms"] == pytest.approx(200)
    assert fields["std_ttft_ms"] == pytest.approx(81.6497, abs=1e-4)  # of the population
    assert fields["p99_ttft_ms"] == pytest.approx(298)  # between 200 and 300, linear
    assert fields["mean_tpot_ms"] == pytest.approx((300 / 2 + 300 / 3) / 2)  # by tokens - 1; one token has none
    assert fields["mean_itl_ms"] == pytest.approx(200)  # gaps of chunks, however many tokens they hold
    assert fields["mean_e2el_ms"] == pytest.approx(400)

    assert fields["input_lens"] == [10, 20, 30, 0]
    assert fields["output_lens"] == [3, 4, 1, 0]
    assert fields["ttfts"] == pytest.approx([0.1, 0.2, 0.3, 0.0])
    assert [len(gaps) for gaps in fields["itls"]] == [2, 1, 0, 0]
    assert fields["errors"] == ["", "", "", '=HYPERLINK("x") <b>busy</b>']


def test_goodput_of_vllm_is_over_the_whole_run(result: RunResult) -> None:
    result.records[2].phase = Phase.RAMP

    def goodput(**limits: float) -> float | None:
        result.summary = metrics.summarise(result.records, slos=limits)
        return to_vllm(result, detailed=False)["request_goodput"]

    assert goodput(ttft=250.0, tpot=160.0) == pytest.approx(2 / 2.3)
    assert result.summary["goodput"]["per_second"] == pytest.approx(1 / 2.3)  # the ramp's is not among the measured
    assert goodput(ttft=250.0, tpot=120.0) == pytest.approx(1 / 2.3)  # by tokens - 1: 100 ms, and 150 ms by our own
    assert goodput(ttft=350.0, tpot=160.0) == pytest.approx(3 / 2.3)  # one token has no TPOT to miss
    result.records = []
    assert to_vllm(result, detailed=False)["request_goodput"] is None


def test_vllm_percentiles_are_those_that_were_asked_for(result: RunResult) -> None:
    result.profile["metric_percentiles"] = "50,99.9"
    fields = to_vllm(result, detailed=False)
    assert fields["p50_ttft_ms"] == pytest.approx(200)
    assert fields["p99.9_ttft_ms"] == pytest.approx(299.8)
    assert "p99_ttft_ms" not in fields


def test_speculative_decoding_is_what_the_servers_counters_grew_by(result: RunResult) -> None:
    def page(drafts: float, drafted: float, accepted: float, first: float) -> dict[str, dict[str, float]]:
        name = "vllm:spec_decode_num_"
        return {
            "metrics": {
                f'{name}drafts_total{{engine="0"}}': drafts,
                f'{name}draft_tokens_total{{engine="0"}}': drafted,
                f'{name}accepted_tokens_total{{engine="0"}}': accepted,
                f'{name}accepted_tokens_per_pos_total{{engine="0",position="0"}}': first,
                f'{name}accepted_tokens_per_pos_total{{engine="0",position="1"}}': accepted - first,
            }
        }

    result.server |= {"before": page(10, 20, 10, 10), "after": page(110, 220, 160, 100)}
    fields = to_vllm(result, detailed=False)
    assert fields["spec_decode_acceptance_rate"] == pytest.approx(75)
    assert fields["spec_decode_acceptance_length"] == pytest.approx(2.5)
    assert (fields["spec_decode_num_drafts"], fields["spec_decode_draft_tokens"]) == (100, 200)
    assert fields["spec_decode_per_position_acceptance_rates"] == pytest.approx([0.9, 0.6])


def test_the_twin_for_pytorch_has_a_record_for_each_figure(result: RunResult) -> None:
    records = json.loads(exports.export(result, "pytorch"))
    assert [record["metric"]["name"] for record in records][:4] == [
        *("median_ttft_ms", "mean_ttft_ms", "std_ttft_ms", "p99_ttft_ms")
    ]
    assert len(records) == 12
    fields = to_vllm(result, detailed=False)
    for record in records:
        assert record["metric"]["benchmark_values"] == [pytest.approx(fields[record["metric"]["name"]])]
        assert record["model"] == {"name": "team/rwkv7-test"}
        assert record["metric"]["extra_info"]["completed"] == 3
        assert not record["metric"]["extra_info"].keys() & {"mean_ttft_ms", "itls"}
    assert records[0]["benchmark"]["extra_info"]["args"]["seed"] == 7


def test_turns_of_conversations_as_vllms_script_writes_them(result: RunResult) -> None:
    for turn, record in enumerate(result.records[1:4]):
        record.session, record.user, record.turn = "s", 2, turn
    rows = json.loads(exports.export(result, "multiturn"))
    assert [row["input_num_turns"] for row in rows] == [1, 3, 5]
    assert [row["latency_ms"] for row in rows] == pytest.approx([400, 500, 300])
    # The second turn's first chunk held two tokens: one of them was decoded within its 200 ms.
    assert [row["ttft_ms"] for row in rows] == pytest.approx([100, 200 - 150, 300])
    assert [row["approx_cached_percent"] for row in rows] == pytest.approx([0, 100 * 13 / 20, 100 * 24 / 30])
    assert rows[1] | {"output_num_chunks": 2, "output_num_tokens": 4, "client_id": 2} == rows[1]
    assert rows[2]["tpot_ms"] is None


def test_vllm_file_name(result: RunResult) -> None:
    assert exports.file_name(result, "vllm") == "nightly-2.0qps-concurrency8-rwkv7-test-20261120-103005.json"
    del result.profile["label"], result.profile["max_concurrency"]
    result.profile["request_rate"] = "inf"
    assert exports.file_name(result, "vllm") == "openai-infqps-rwkv7-test-20261120-103005.json"


def test_ppl_csv_has_its_columns_in_their_units(result: RunResult) -> None:
    [row] = csv.DictReader(StringIO(exports.export(result, "ppl").decode()))
    assert set(row) == set(PPL_COLUMNS.split()) == set(ppl_csv.COLUMNS)
    found = {name: float(value) for name, value in row.items()}

    assert (found["completed"], found["success_rate"], found["qps"]) == (3, 0.75, pytest.approx(3 / 2.3))
    assert (found["total_inlen"], found["avg_inlen"], found["max_inlen"]) == (60, 20, 30)
    assert (found["total_outlen"], found["avg_outlen"], found["max_outlen"]) == (8, pytest.approx(8 / 3), 4)
    assert (found["o_tps"], found["io_tps"]) == (pytest.approx(8 / 2.3), pytest.approx(68 / 2.3))
    assert [found[f"{name}_ttft"] for name in ("min", "median", "max", "p90")] == pytest.approx([100, 200, 300, 280])
    assert [found[f"{name}_e2e"] for name in ("min", "mean", "max")] == pytest.approx([300, 400, 500])
    assert found["mean_tpot"] == pytest.approx(125)
    assert found["mean_itl"] == pytest.approx(200)


def test_nothing_completed_leaves_cells_empty(result: RunResult) -> None:
    result.records = result.records[-1:]
    result.summary = metrics.summarise(result.records)
    [row] = csv.DictReader(StringIO(exports.export(result, "ppl").decode()))
    assert (row["completed"], row["success_rate"], row["mean_ttft"], row["avg_outlen"]) == ("0", "0.0", "", "")
    assert to_vllm(result, detailed=False)["mean_ttft_ms"] is None


def test_records_csv_has_a_row_for_each_request_and_no_formula(result: RunResult) -> None:
    rows = list(csv.DictReader(StringIO(exports.export(result, "csv").decode())))
    assert [row["phase"] for row in rows] == ["warmup", *["measure"] * 4]
    assert float(rows[1]["ttft_ms"]) == pytest.approx(100)
    assert float(rows[2]["tpot_ms"]) == pytest.approx(150)  # 300 ms for the two tokens behind the first chunk
    assert rows[4]["error_text"].startswith("'=HYPERLINK")
    assert rows[4]["e2el_ms"] == ""


def test_workbook_has_its_sheets_and_no_formula(result: RunResult) -> None:
    result.records[1].error_text = "\x00\x1b[31mred"  # what a workbook cannot hold
    book = load_workbook(BytesIO(exports.export(result, "xlsx")))
    assert book.sheetnames == ["Summary", "Requests", "Buckets", "Configuration"]
    summary = dict(book["Summary"].iter_rows(values_only=True))
    assert summary["requests.completed"] == 3
    assert summary["latency_ms.ttft.mean"] == pytest.approx(200)
    settings = dict(book["Configuration"].iter_rows(values_only=True))
    assert settings["profile.seed"] == 7
    assert book["Requests"].max_row == 6
    cells = [cell for sheet in book for row in sheet.iter_rows() for cell in row]
    assert [cell for cell in cells if cell.data_type == "f"] == []
    assert any(str(cell.value).startswith("'=HYPERLINK") for cell in cells)


def test_json_lines_hold_everything(result: RunResult) -> None:
    head, *records = map(json.loads, exports.export(result, "jsonl").splitlines())
    assert head["run_id"] == "run-by-hand"
    assert head["summary"] == json.loads(json.dumps(result.summary))
    assert [record["index"] for record in records] == [0, 1, 2, 3, 4]
    assert records[2]["chunks"][1][:2] == [1.5, 2]


def test_report_stands_alone_and_has_a_table_for_every_chart(result: RunResult) -> None:
    report = exports.export(result, "html").decode()
    page = ElementTree.fromstring(report.partition("<body>")[2].partition("</body>")[0])
    figures = page.findall(".//figure")
    assert len(figures) > 8
    for figure in figures:
        assert len(figure.findall(".//{http://www.w3.org/2000/svg}svg")) == 1
        assert len(figure.findall(".//table")) == 1
    assert "<script" not in report
    assert "http://" not in report.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in report
    headings = [heading.text for heading in page.iter("h2")]
    assert headings == ["Summary", "Over time", "Distributions", "Errors", "Client health", "Configuration"]


def test_report_escapes_what_it_shows(result: RunResult) -> None:
    result.server["model"] = "<script>alert(1)</script>"
    result.profile["label"] = '"><img src=x>'
    report = exports.export(result, "html").decode()
    assert "<script" not in report
    assert "<img" not in report


def test_report_says_when_the_client_was_the_limit(result: RunResult) -> None:
    result.health.verdict, result.health.reasons = "client-limited", ["the event loop was late"]
    result.cancelled = True
    report = exports.export(result, "html").decode()
    assert "The client limited the load" in report
    assert "the event loop was late" in report
    assert "was cancelled" in report


def test_the_command_writes_a_file_for_each_result(result: RunResult, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(msgspec.json.encode(result))
    stdout = StringIO()
    call_command("bench", "export", str(path), "--format", "ppl", "--output", str(tmp_path), stdout=stdout)
    written = tmp_path / "run-by-hand-ppl.csv"
    assert stdout.getvalue() == f"{written}\n"
    assert written.read_bytes() == exports.export(result, "ppl")
    with pytest.raises(CommandError, match=r"--output: .* is no folder"):
        call_command("bench", "export", str(path), str(path), "--format", "ppl", "--output", str(path))


def test_an_unknown_format_is_refused(result: RunResult) -> None:
    with pytest.raises(ValueError, match="format: 'yaml' is none of vllm"):
        exports.export(result, "yaml")
