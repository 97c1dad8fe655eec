"""Measures what Runyard promises, with peers beside it: `python -m benchmarks --help`."""
