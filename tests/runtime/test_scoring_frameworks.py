"""Workers with real frameworks: each model is scored in its own process, in every format."""

import base64
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runyard.testing.scoring_worker import Worker

ROWS = [[5.1, 3.5, 1.4, 0.2], [6.7, 3.0, 5.2, 2.3], [5.9, 3.0, 4.2, 1.5]]


@pytest.fixture(scope="session")
def models(scoring_models: Path) -> Path:
    return scoring_models


def spec(scorer: str, path: Path) -> dict[str, Any]:
    model = {"name": "m", "version": "3", "path": str(path), "is_folder": path.is_dir()}
    return {"scorer": scorer, "models": [model], "models_dir": str(path.parent)}


@pytest.fixture(scope="module")
def iris(frameworks: Path, models: Path) -> Iterator[Worker]:
    with Worker(frameworks, spec("sklearn", models / "iris.pkl")) as worker:
        yield worker


@pytest.fixture(scope="module")
def arithmetic(frameworks: Path, models: Path) -> Iterator[Worker]:
    with Worker(frameworks, spec("tensorflow", models / "arithmetic")) as worker:
        yield worker


@pytest.fixture(scope="module")
def added(frameworks: Path, models: Path) -> Iterator[Worker]:
    with Worker(frameworks, spec("onnx", models / "sum.onnx")) as worker:
        yield worker


class TestScikitLearn:
    def test_it_says_what_it_serves(self, iris: Worker) -> None:
        assert iris.hello["models"] == [{"name": "m", "version": "3"}]
        assert iris.hello["max_batch"] == 64
        assert iris.hello["inputs"] == [{"name": "X", "datatype": "FP64", "shape": [-1, 4]}]
        assert iris.hello["sample"] == {"data": [[0.0] * 4]}
        assert "data" in iris.hello["swagger"]["input"]["properties"]

    def test_probabilities_are_the_default_and_the_method_can_be_chosen(self, iris: Worker) -> None:
        [(status, found)] = iris.ask({"data": ROWS})
        assert status == 200
        assert [max(range(3), key=row.__getitem__) for row in found["predict_proba"]] == [0, 2, 1]
        assert iris.ask({"data": ROWS, "method": "predict"}) == [(200, {"predict": [0, 2, 1]})]

    def test_a_batch_gives_each_request_its_own_rows(self, iris: Worker) -> None:
        asked = [{"data": ROWS[:1]}, {"data": ROWS}, {"data": ROWS[1:]}]
        found = iris.ask(*({**one, "method": "predict"} for one in asked))
        assert [answer["predict"] for _, answer in found] == [[0], [0, 2, 1], [2, 1]]

    def test_a_bad_request_does_not_spoil_the_others(self, iris: Worker) -> None:
        good = {"data": ROWS[:1], "method": "predict"}
        bad = {"data": [[1, 2]], "method": "predict"}
        worse = {"data": [["a", 2, 3, 4]], "method": "predict"}
        found = iris.ask(good, bad, good, worse, {"nothing": 1}, good)
        assert [status for status, _ in found] == [200, 400, 200, 400, 400, 200]
        assert found[1][1]["error"] == "Input X should have the shape [any, 4], but has [1, 2]."
        assert found[1][1]["expected"] == "X: FP64 of shape [any, 4]"
        assert found[1][1]["example"] == {"data": [[0.0, 0.0, 0.0, 0.0]]}
        assert "the text 'a'" in found[3][1]["error"]
        assert '"data", "instances" or "inputs"' in found[4][1]["error"]

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            (b"", "The body is empty"),
            (b'{"data": [[1, 2, 3, NaN]]}', "the value NaN, which is not JSON"),
            (b'{"data": [[1, 2, 3, -Infinity]]}', "the value -Infinity"),
            (b'{"data": [[1, 2, 3, 1e999]]}', "infinity"),
            (b'{"data": [[1, 2, 3, null]]}', "has a null"),
            (b'{"data": [[1, 2, 3, 4], [1, 2]]}', "rows differ in length"),
            (b'{"data": []}', "has no rows"),
            (b'{"data": 7}', "a list of rows"),
            (b'{"data": [[1', "not JSON"),
            (b'{"data": [["\xff"]]}', "not UTF-8"),
            (b"[" * 100_000, "nested too deeply"),
            (b'{"data": [[1, 2, 3, 4]], "method": "fly"}', "has no 'fly'; it has: decision_"),
        ],
    )
    def test_a_bad_body_is_told_what_is_wrong(self, iris: Worker, body: bytes, words: str) -> None:
        [(status, _, said)] = iris.send((b"", body))
        assert status == 400
        assert words in json.loads(said)["error"]

    def test_every_format_gives_the_same_answer(self, iris: Worker) -> None:
        [(_, expected)] = iris.ask({"data": ROWS})
        rows = expected["predict_proba"]
        assert iris.ask({"instances": ROWS}) == [(200, {"predictions": rows})]
        assert iris.ask({"inputs": ROWS}) == [(200, {"outputs": rows})]
        assert iris.ask(ROWS) == [(200, expected)]
        flat = [value for row in ROWS for value in row]
        tensor = {"name": "anything", "shape": [3, 4], "datatype": "FP64", "data": flat}
        [(status, found)] = iris.ask(
            {"id": "7", "inputs": [tensor]}, method="POST", path="/v2/models/m/infer"
        )
        assert (status, found["id"], found["model_name"]) == (200, "7", "m")
        [output] = found["outputs"]
        assert output["data"] == [value for row in rows for value in row]
        assert (output["name"], output["shape"]) == ("predict_proba", [3, 3])

    def test_names_of_columns_are_known_and_checked(self, frameworks: Path, models: Path) -> None:
        with Worker(frameworks, spec("sklearn", models / "named.pkl")) as worker:
            record = dict(zip("badc", (3.5, 5.1, 0.2, 1.4), strict=True))
            found = worker.ask(
                {"data": [record], "method": "predict"},
                {"data": {name: [value] for name, value in record.items()}, "method": "predict"},
                {"data": ROWS[:1], "method": "predict"},
                {"data": [{"a": 1, "b": 2, "c": 3}]},
                {"data": [{**record, "e": 1}]},
                {"data": {"a": [1]}},
            )
            assert [answer for _, answer in found[:3]] == [{"predict": [0]}] * 3
            assert [status for status, _ in found[3:]] == [400] * 3
            assert found[3][1]["error"] == "A row has no value for 'd'."
            assert found[3][1]["expected"] == "rows of 4 values: a, b, c, d"
            assert found[4][1]["error"] == "The model has no column e."
            assert "valid feature names" not in worker.log.read_text()

    def test_a_pipeline_that_picks_columns_gets_a_data_frame(
        self, frameworks: Path, models: Path
    ) -> None:
        with Worker(frameworks, spec("sklearn", models / "mixed.pkl")) as worker:
            assert [one["datatype"] for one in worker.hello["inputs"]] == ["FP64", "BYTES"]
            columns = [
                {"name": "colour", "shape": [2], "datatype": "BYTES", "data": ["red", "blue"]},
                {"name": "size", "shape": [2], "datatype": "FP64", "data": [1, 2]},
            ]
            found = worker.ask(
                {"data": [{"colour": "red", "size": 1.5}], "method": "predict"},
                {"data": [[2, "blue"]], "method": "predict"},
                {"data": [[2]], "method": "predict"},
                {"data": [[2, "green"]], "method": "predict"},
                {"inputs": columns, "parameters": {"method": "predict"}},
            )
            assert [status for status, _ in found] == [200, 200, 400, 400, 200]
            assert found[0][1] == {"predict": ["no"]}
            assert found[1][1] == {"predict": ["yes"]}
            assert "unknown categories ['green']" in found[3][1]["error"]
            assert found[4][1]["outputs"][0]["data"] == ["no", "yes"]

    def test_text_and_missing_values_where_the_model_takes_them(
        self, frameworks: Path, models: Path
    ) -> None:
        with Worker(frameworks, spec("sklearn", models / "text.pkl")) as worker:
            asked = {"data": ["good good", "bad"], "method": "predict"}
            assert worker.ask(asked) == [(200, {"predict": [1, 0]})]
            assert worker.ask({"data": [1]})[0][0] == 400
        with Worker(frameworks, spec("sklearn", models / "missing.pkl")) as worker:
            [(status, _)] = worker.ask({"data": [[5.1, None, 1.4, 0.2]]})
            assert status == 200

    def test_a_regression_has_no_probabilities(self, frameworks: Path, models: Path) -> None:
        with Worker(frameworks, spec("sklearn", models / "line.joblib")) as worker:
            [(_, found)] = worker.ask({"data": [[5.1, 3.5, 1.4]]})
            assert found["predict"] == [pytest.approx(0.2, abs=0.1)]


class TestTensorFlow:
    def test_rows_columns_and_signatures(self, arithmetic: Worker) -> None:
        found = arithmetic.ask(
            {"instances": [[1, 2], [3, 4]]},
            {"instances": [{"x": [5, 6]}]},
            {"inputs": [[1.5, 2]]},
            {"signature_name": "both", "instances": [{"a": 2, "b": 3}, {"a": 4, "b": 5}]},
            {"signature_name": "both", "inputs": {"a": [2], "b": [3]}},
        )
        assert [answer for _, answer in found] == [
            {"predictions": [[2.0, 4.0], [6.0, 8.0]]},
            {"predictions": [[10.0, 12.0]]},
            {"outputs": [[3.0, 4.0]]},
            {"predictions": [{"product": 6, "sum": 5}, {"product": 20, "sum": 9}]},
            {"outputs": {"product": [6], "sum": [5]}},
        ]

    def test_text_and_bytes(self, arithmetic: Worker) -> None:
        coded = base64.b64encode(b"b\xff").decode()
        [(status, found)] = arithmetic.ask(
            {"signature_name": "shout", "instances": ["a", {"b64": coded}]}
        )
        assert status == 200
        assert found["predictions"] == [
            {"loud": "A", "raw_bytes": {"b64": "YQ=="}},
            {"loud": {"b64": base64.b64encode(b"B\xff").decode()}, "raw_bytes": {"b64": coded}},
        ]

    def test_wrong_requests(self, arithmetic: Worker) -> None:
        found = arithmetic.ask(
            {"signature_name": "none", "instances": [1]},
            {"instances": [[1, 2, 3]]},
            {"instances": []},
            {"signature_name": "both", "instances": [{"a": 1}]},
            {"signature_name": "both", "instances": [{"a": 1.5, "b": 1}]},
            {"signature_name": "both", "inputs": {"a": [1], "b": [1, 2]}},
            {"signature_name": "shout", "instances": [{"b64": "?"}]},
        )
        assert [status for status, _ in found] == [400] * 7
        errors = [answer["error"] for _, answer in found]
        assert errors[0] == "The model has no 'none'; it has: both, serving_default, shout."
        assert errors[1] == "Input x should have the shape [any, 2], but has [1, 3]."
        assert errors[3] == "Input b is missing."
        assert errors[4] == "Input a takes whole numbers that fit INT64."
        assert errors[5] == "The inputs differ in their number of rows."
        assert "not base64" in errors[6]

    def test_the_paths_of_tf_serving(self, arithmetic: Worker) -> None:
        for path in ("/v1/models/m:predict", "/v1/models/m/versions/3:predict"):
            [(_, found)] = arithmetic.ask({"instances": [[1, 2]]}, method="POST", path=path)
            assert found == {"predictions": [[2.0, 4.0]]}
        _, found = arithmetic.get("/v1/models/m")
        assert found["model_version_status"][0]["state"] == "AVAILABLE"
        _, found = arithmetic.get("/v1/models/m/metadata")
        signatures = found["metadata"]["signature_def"]["signature_def"]
        assert signatures["serving_default"]["inputs"]["x"]["dtype"] == "DT_FLOAT"
        for path in ("/v1/models/other", "/v1/models/m/versions/9", "/v1/models/m:classify"):
            assert arithmetic.get(path)[0] == 404
        assert arithmetic.get("/v1/models/m:predict")[0] == 405

    def test_a_model_of_tensorflow_1(self, frameworks: Path, models: Path) -> None:
        with Worker(frameworks, spec("tensorflow", models / "old")) as worker:
            assert worker.ask({"instances": [[1, 2]]}) == [(200, {"predictions": [[21.0]]})]


class TestOnnx:
    def test_the_format_of_its_own_server(self, added: Worker) -> None:
        raw = base64.b64encode(struct.pack("<4f", 1, 2, 3, 4)).decode()
        inputs = {
            "a": {"dims": ["2", "2"], "dataType": 1, "rawData": raw},
            "b": {"dims": [2, 2], "dataType": "FLOAT", "floatData": [1, 1, 1, 1]},
        }
        path = "/v1/models/default/versions/1:predict"
        body = {"inputs": inputs, "outputFilter": ["sum"]}
        [(status, found)] = added.ask(body, method="POST", path=path)
        assert status == 200
        tensor = found["outputs"]["sum"]
        assert (tensor["dims"], tensor["dataType"]) == (["2", "2"], 1)
        assert struct.unpack("<4f", base64.b64decode(tensor["rawData"])) == (2, 3, 4, 5)
        short = {**inputs, "b": {"dims": [2, 2], "dataType": 1, "floatData": [1]}}
        [(status, found)] = added.ask({"inputs": short})
        assert (status, found["error"]) == (400, "Input b: 1 values do not fill [2, 2].")

    def test_the_open_inference_protocol(self, added: Worker) -> None:
        def tensor(name: str, data: list[float], datatype: str = "FP32") -> dict[str, Any]:
            return {"name": name, "shape": [1, 2], "datatype": datatype, "data": data}

        path = "/v2/models/m/versions/3/infer"
        good = {"inputs": [tensor("a", [1, 2]), tensor("b", [3, 4])]}
        found = added.ask(
            good,
            {"inputs": [tensor("a", [1, 2])]},
            {"inputs": [tensor("a", [1, 2]), tensor("b", [3, 4], "INT64")]},
            {**good, "outputs": [{"name": "none"}]},
            good,
            method="POST",
            path=path,
        )
        assert [status for status, _ in found] == [200, 400, 400, 400, 200]
        output = {"name": "sum", "datatype": "FP32", "shape": [1, 2], "data": [4.0, 6.0]}
        assert found[0][1]["outputs"] == found[4][1]["outputs"] == [output]
        assert found[1][1]["error"] == "The inputs do not fit: missing b; not known none."
        assert "datatype FP32, but has INT64" in found[2][1]["error"]
        _, metadata = added.get("/v2/models/m")
        assert metadata["platform"] == "onnxruntime_onnxv1"
        assert metadata["inputs"][0] == {"name": "a", "datatype": "FP32", "shape": [-1, 2]}
        assert added.get("/v2/models/m/ready") == (200, {"name": "m", "ready": True})

    def test_binary_tensors_of_the_open_inference_protocol(self, added: Worker) -> None:
        raw = struct.pack("<2f", 1, 2)
        inputs = [
            {
                "name": name,
                "shape": [1, 2],
                "datatype": "FP32",
                "parameters": {"binary_data_size": 8},
            }
            for name in "ab"
        ]
        text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
        headers = {"Inference-Header-Content-Length": str(len(text))}
        head = {"method": "POST", "path": "/v2/models/m/infer", "headers": headers}
        [(status, told, body)] = added.send((json.dumps(head).encode(), text + raw + raw))
        assert status == 200
        length = int(json.loads(told)["headers"]["Inference-Header-Content-Length"])
        [output] = json.loads(body[:length])["outputs"]
        assert output["parameters"] == {"binary_data_size": 8}
        assert struct.unpack("<2f", body[length:]) == (2, 4)

    def test_a_classifier_from_scikit_learn(self, frameworks: Path, models: Path) -> None:
        with Worker(frameworks, spec("onnx", models / "iris.onnx")) as worker:
            [(_, found)] = worker.ask({"data": ROWS})
            label, probabilities = found.values()
            assert label == [0, 2, 1]
            assert len(probabilities[0]) == 3

    def test_a_model_for_one_row_is_scored_row_by_row(self, frameworks: Path, models: Path) -> None:
        with Worker(frameworks, spec("onnx", models / "one.onnx")) as worker:
            assert worker.hello["max_batch"] == 1
            one = {"inputs": {"a": [[1, 2]], "b": [[1, 1]]}}
            two = {"inputs": {"a": [[1, 2]] * 2, "b": [[1, 1]] * 2}}
            found = worker.ask(one, two, one)
            assert [status for status, _ in found] == [200, 400, 200]
            assert found[0][1] == {"outputs": [[2.0, 3.0]]}
            assert "should have the shape [1, 2]" in found[1][1]["error"]


class TestTorchScriptAndKeras:
    def test_torchscript(self, frameworks: Path, models: Path) -> None:
        with Worker(frameworks, spec("torchscript", models / "pair.pt")) as worker:
            found = worker.ask(
                {"instances": [[1, 2, 3]]},
                {"instances": [[1, 2, 3], [1, 1, 1]]},
                {"data": [[1, 2, 3]]},
                {"instances": [1]},
            )
            assert found[0][1]["predictions"] == [{"output_0": [2.0, 4.0, 6.0], "output_1": 6.0}]
            assert [row["output_1"] for row in found[1][1]["predictions"]] == [6.0, 3.0]
            assert found[2][1] == {"output_0": [[2.0, 4.0, 6.0]], "output_1": [6.0]}
            assert found[3][0] == 400
        with Worker(frameworks, spec("torchscript", models / "embedding.pt")) as worker:
            found = worker.ask({"instances": [[0, 1, 2]]}, {"instances": [[0, 1, 9]]})
            assert [status for status, _ in found] == [200, 400]
            assert len(found[0][1]["predictions"][0]) == 6

    @pytest.mark.parametrize("name", ["dense.keras", "dense.h5"])
    def test_keras(self, frameworks: Path, models: Path, name: str) -> None:
        with Worker(frameworks, spec("keras", models / name)) as worker:
            found = worker.ask({"instances": [[1, 2, 3]]}, {"instances": [[1, 2]]})
            assert found[0] == (200, {"predictions": [[4.0, 5.0]]})
            assert found[1][0] == 400


class TestWhatCannotBeServed:
    @pytest.mark.parametrize(
        ("scorer", "name", "words"),
        [
            ("sklearn", "weights.pkl", "The file holds a dict, which has no predict()"),
            ("sklearn", "iris.onnx", "is not a pickled model"),
            ("sklearn", "gone.pkl", "The file of model m:3 is not there"),
            ("onnx", "iris.pkl", "is not an ONNX file"),
            ("tensorflow", "silent", "has no signatures"),
            ("tensorflow", "iris.pkl", "SavedModel is a folder"),
            ("torchscript", "state.pt", "is not TorchScript"),
            ("keras", "iris.pkl", "cannot load"),
        ],
    )
    def test_the_true_cause_is_the_last_line(
        self, frameworks: Path, models: Path, scorer: str, name: str, words: str
    ) -> None:
        code, said = Worker(frameworks, spec(scorer, models / name)).failure()
        assert code == 3
        last = said.strip().splitlines()[-1]
        assert last.startswith("CannotServe: ")
        assert words in last

    def test_a_pickle_of_another_scikit_learn(
        self, frameworks: Path, models: Path, tmp_path: Path
    ) -> None:
        # An old version as it is seen by a new one: a name in it is not there any more.
        content = (models / "iris.pkl").read_bytes()
        content = content.replace(
            b"_sklearn_version\x94\x8c\x051.9.1", b"_sklearn_version\x94\x8c\x050.1.2"
        )
        content = content.replace(
            b"sklearn.linear_model._logistic", b"sklearn.linear_model._logisticc"[:30]
        )
        old = tmp_path / "old.pkl"
        old.write_bytes(content.replace(b"LogisticRegression", b"LogisticRegressioM"))
        code, said = Worker(frameworks, spec("sklearn", old)).failure()
        assert code == 3
        assert "saved with scikit-learn 0.1.2" in said.strip().splitlines()[-1]

    def test_a_missing_framework(self, models: Path) -> None:
        code, said = Worker(Path(sys.executable), spec("sklearn", models / "iris.pkl")).failure()
        assert code == 3
        assert "environment has no sklearn" in said.strip().splitlines()[-1]
        assert "Add scikit-learn to" in said


class TestInferenceSchema:
    def test_the_decorators_convert_and_describe(self, frameworks: Path, tmp_path: Path) -> None:
        (tmp_path / "score.py").write_text(
            "import numpy as np\n"
            "from inference_schema.schema_decorators import input_schema, output_schema\n"
            "from inference_schema.parameter_types.numpy_parameter_type import NumpyParameterType\n"
            "def init():\n    pass\n"
            "@input_schema('data', NumpyParameterType(np.array([[1.0, 2.0]])))\n"
            "@output_schema(NumpyParameterType(np.array([3.0])))\n"
            "def run(data):\n"
            '    if data.min() < 0:\n        raise ValueError("the script\'s own")\n'
            "    return data.sum(axis=1)\n"
        )
        wanted = {
            "scorer": "script",
            "entry_script": "score.py",
            "source_directory": str(tmp_path),
        }
        with Worker(frameworks, wanted) as worker:
            assert worker.hello["sample"] == {"data": [[1.0, 2.0]]}
            assert "data" in worker.hello["swagger"]["input"]["properties"]
            found = worker.ask(
                {"data": [[1, 2], [3, 4]]},
                {"rows": []},
                {"data": [["a", "b"]]},
                {"data": [[-1, 0]]},
            )
            assert found[0] == (200, [3.0, 7.0])
            assert [status for status, _ in found[1:]] == [400, 400, 500]
            assert found[1][1]["error"] == "The body has no value for 'data'."
            assert "The data does not fit: " in found[2][1]["error"]
            assert found[2][1]["example"] == {"data": [[1.0, 2.0]]}
            assert found[3][1]["error"] == "ValueError: the script's own"
