"""A bare FastAPI app, as one writes it in an afternoon; `async`, which is its fastest form here."""

import os
from pathlib import Path

from fastapi import FastAPI
from predicting import load
from pydantic import BaseModel

predict = load(os.environ["BENCH_KIND"], Path(os.environ["BENCH_MODEL"]))
app = FastAPI()


class Rows(BaseModel):
    """A request."""

    data: list[list[float]]


@app.get("/healthz")
async def healthz() -> str:
    """Ready."""
    return "ok"


@app.post("/score")
async def score(rows: Rows) -> list[object]:
    """Rows in, numbers out."""
    return predict(rows.data)
