"""What the pages of the benchmarks show: functions from rows to the contexts of their templates."""
