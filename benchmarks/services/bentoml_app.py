"""BentoML as its documentation shows it."""

import os
from pathlib import Path

import bentoml
from predicting import load


@bentoml.service(workers=1, logging={"access": {"enabled": False}})
class Score:
    """One worker, as everybody has here, and no line per request."""

    def __init__(self) -> None:
        self.predict_rows = load(os.environ["BENCH_KIND"], Path(os.environ["BENCH_MODEL"]))

    @bentoml.api
    def score(self, data: list[list[float]]) -> list[float]:
        """Rows in, numbers out."""
        return self.predict_rows(data)  # type: ignore[return-value]
