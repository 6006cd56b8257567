from io import StringIO

from benchmarks.evals.progress import Progress


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar():
    stream = Terminal()
    progress = Progress("lambada", stream)
    progress(0, 4)
    progress(4, 4)
    progress.close()
    first, last = stream.getvalue().split("\r")[1:]
    assert first.startswith(f"[{'.' * 30}] lambada 0/4")
    assert last.startswith(f"[{'#' * 30}] lambada 4/4") and last.endswith("\n")


def test_elsewhere_there_are_few_lines():
    stream = StringIO()
    progress = Progress("lambada", stream)
    for done in range(1001):
        progress(done, 1000)
    progress.close()
    assert stream.getvalue().splitlines() == ["lambada 0/1000", "lambada 1000/1000"]
