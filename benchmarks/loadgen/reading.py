"""From a captured exchange to a finished record: times, chunks, token counts, error. Runs when the load is over."""

from benchmarks.loadgen.exchange import Backend, Exchange, Prompt
from benchmarks.loadgen.records import RequestRecord
from benchmarks.loadgen.tokens import CountTokens, fill_counts


def read_exchange(
    backend: Backend,
    prompt: Prompt,
    exchange: Exchange,
    record: RequestRecord,
    *,
    count_tokens: CountTokens | None = None,
    keep_text: bool = False,
) -> None:
    """Fill everything in `record` that follows from `exchange`; the caller has set what it knew before the send
    (index, worker, user, session, turn, phase, intended).

    `count_tokens` is the target model's tokenizer, for servers that do not say how many tokens they were given and
    made; without it such counts are estimates from the length of the text. Only with `keep_text` does the record keep
    the answer's text.
    """
    record.sent, record.headers, record.done = exchange.sent, exchange.headers, exchange.done
    record.http_status = exchange.http_status
    record.connection_reused = exchange.connection_reused
    record.bytes_in = sum(len(data) for _, data in exchange.pieces)
    record.error, record.error_text = exchange.error, exchange.error_text
    record.expected_output_tokens = prompt.output_tokens
    if exchange.http_status is not None and 200 <= exchange.http_status < 300:
        backend.parse(exchange, record)
    fill_counts(record, prompt, count_tokens)
    if not keep_text:
        record.text = None
