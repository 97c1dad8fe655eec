"""LitServe as its documentation shows it."""

import os
import sys
from pathlib import Path

import litserve
from predicting import load


class Api(litserve.LitAPI):  # type: ignore[misc]
    """Four verbs."""

    def setup(self, device: str) -> None:
        """Load the model."""
        self.predict_rows = load(os.environ["BENCH_KIND"], Path(os.environ["BENCH_MODEL"]))

    def decode_request(self, request: dict[str, list[list[float]]]) -> list[list[float]]:
        """Rows of the request."""
        return request["data"]

    def predict(self, rows: list[list[float]]) -> list[object]:
        """Numbers for rows."""
        return self.predict_rows(rows)

    def encode_response(self, output: list[object]) -> dict[str, list[object]]:
        """The answer."""
        return {"result": output}


if __name__ == "__main__":
    server = litserve.LitServer(Api(api_path="/score"), accelerator="cpu")
    server.run(port=int(sys.argv[1]), generate_client_file=False, log_level="warning")
