"""Tables are read as v1 read them: types, headers, gaps, times, steps."""

import datetime
import gzip
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from runyard.sdk.exceptions import UserErrorException
from runyard_runtime import expressions, recipes, steps, tables
from runyard_runtime.column_types import DataType, FileEncoding, PromoteHeadersBehavior

pd: Any = import_module("pandas")  # it has no types of its own
column: Any = expressions.column

DEFAULTS: dict[str, Any] = {
    "include_path": False,
    "infer_column_types": True,
    "set_column_types": None,
    "separator": ",",
    "header": True,
    "empty_as_string": False,
    "encoding": "utf8",
}


def csv_recipe(partition_format: str | None = None, **options: object) -> Any:
    chosen = recipes.delimited_options(**{**DEFAULTS, **options})
    return recipes.recipe("tabular", [], False, "delimited", chosen, partition_format)


def read(folder: Path, recipe: Any, *added: Any, **options: str) -> Any:
    for step in added:
        recipe = recipes.with_step(recipe, step)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    named = [(path.relative_to(folder).as_posix(), str(path)) for path in files]
    return tables.read(recipe, named, **options)


def kinds(table: Any) -> dict[str, str]:
    words = {"i": "int", "f": "float", "b": "bool", "M": "time"}
    return {name: words.get(table[name].dtype.kind, "text") for name in table.columns}


@pytest.fixture
def people(tmp_path: Path) -> Path:
    folder = tmp_path / "people"
    folder.mkdir()
    (folder / "a.csv").write_text(
        "id,name,born,member,height,code,when\n"
        "1,NA,1990-01-02,true,1.5,0012,1/31/2020\n"
        "2,,1991-02-03 10:00,false,,0013,2/1/2020\n"
    )
    (folder / "b.csv").write_text(
        "id,name,born,member,height,code,when\n"
        "3,Bob,,true,NA,x1,3/1/2020\n"
        "4,Al,1992-03-04T05:06:07,true,1.75,0013,4/1/2020\n"
    )
    return folder


def test_types_are_inferred_over_all_files(people: Path) -> None:
    table = read(people, csv_recipe())
    assert kinds(table) == {
        "id": "int",
        "name": "text",  # NA is a name here: not every column has numbers
        "born": "time",
        "member": "bool",
        "height": "float",
        "code": "text",  # numbers in one file, words in the other
        "when": "time",
    }
    assert table["code"].tolist() == ["0012", "0013", "x1", "0013"]
    assert table["name"].tolist()[0] == "NA"
    assert pd.isna(table["name"][1])
    assert table["when"][0] == pd.Timestamp(2020, 1, 31)
    assert pd.isna(table["height"][2])


def test_dates_that_could_be_read_two_ways_stay_texts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("d,e,f\n1/2/2020,13/2/2020,2020-01-01\n3/4/2020,1/2/2020,x\n")
    table = read(tmp_path, csv_recipe())
    assert kinds(table) == {"d": "text", "e": "time", "f": "text"}
    assert table["e"].tolist() == [pd.Timestamp(2020, 2, 13), pd.Timestamp(2020, 2, 1)]


def test_times_with_zones_become_utc_and_mixed_ones_stay_texts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "z,m\n2020-01-01T02:00:00+02:00,2020-01-01\n2020-01-01T00:00Z,2020-01-01T00:00Z\n"
    )
    table = read(tmp_path, csv_recipe())
    assert kinds(table) == {"z": "time", "m": "text"}
    assert table["z"].tolist() == [pd.Timestamp("2020-01-01T00:00", tz="UTC")] * 2


def test_without_inference_everything_is_text(people: Path) -> None:
    table = read(people, csv_recipe(infer_column_types=False))
    assert set(kinds(table).values()) == {"text"}
    assert table["id"].tolist() == ["1", "2", "3", "4"]


def test_chosen_types_win(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('n;s;t;b;l\n"1.234,5";007;31.12.2020;ja;1\nx;8;?;nein;2\n')
    types = {
        "n": DataType.to_float(decimal_mark=","),
        "s": DataType.to_string(),
        "t": DataType.to_datetime(["%Y-%m-%d", "%d.%m.%Y"]),
        "b": DataType.to_bool(true_values=["ja"], false_values=["nein"]),
        "l": DataType.to_long(),
        "not there": DataType.to_long(),
    }
    recipe = csv_recipe(set_column_types=types, separator=";")
    table = read(tmp_path, recipe)
    assert table["n"][0] == 1234.5
    assert pd.isna(table["n"][1])
    assert table["s"].tolist() == ["007", "8"]
    assert table["t"][0] == pd.Timestamp(2020, 12, 31)
    assert table["b"].tolist() == [True, False]
    assert table["l"].tolist() == [1, 2]
    with pytest.raises(UserErrorException, match=r"Row 1 of the column 'n' is not a number: 'x'"):
        read(tmp_path, recipe, on_error="fail")
    with pytest.raises(UserErrorException, match="'null' or 'fail'"):
        read(tmp_path, recipe, on_error="raise")


@pytest.mark.parametrize(
    ("header", "columns", "rows"),
    [
        (True, ["a", "b"], 2),
        (False, ["Column1", "Column2"], 4),
        (PromoteHeadersBehavior.ONLY_FIRST_FILE_HAS_HEADERS, ["a", "b"], 3),
        (PromoteHeadersBehavior.COMBINE_ALL_FILES_HEADERS, ["a", "b"], 2),
    ],
)
def test_headers(tmp_path: Path, header: object, columns: list[str], rows: int) -> None:
    (tmp_path / "1.csv").write_text("a,b\n1,2\n")
    (tmp_path / "2.csv").write_text("a,b\n3,4\n")
    table = read(tmp_path, csv_recipe(header=header))
    assert (list(table.columns), len(table)) == (columns, rows)


def test_encodings_separators_compression_and_empty_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("name||n\nJosé||1\n".encode("cp1252"))
    with gzip.open(tmp_path / "b.csv.gz", "wb") as packed:
        packed.write("name||n\nZoë||2\n".encode("cp1252"))
    (tmp_path / "c.csv").write_bytes(b"")
    table = read(tmp_path, csv_recipe(separator="||", encoding=FileEncoding.WINDOWS1252))
    assert table["name"].tolist() == ["José", "Zoë"]
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfname||n\nx||1\n")
    (tmp_path / "b.csv.gz").unlink()
    assert list(read(tmp_path, csv_recipe(separator="||")).columns) == ["name", "n"]


def test_a_file_that_is_not_what_it_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_bytes(b"a,b\n\xff\xfe,1\n")
    with pytest.raises(UserErrorException, match=r"'bad\.csv' cannot be read"):
        read(tmp_path, csv_recipe())
    assert read(tmp_path / "nothing", csv_recipe()).empty


def test_paths_and_partitions_become_columns(tmp_path: Path) -> None:
    for country, month in (("DE", "2020/01"), ("FR", "2020/02")):
        folder = tmp_path / country / month
        folder.mkdir(parents=True)
        (folder / "data.csv").write_text("n\n1\n2\n")
    recipe = csv_recipe("{country}/{month:yyyy/MM}/data.csv", include_path=True)
    table = read(tmp_path, recipe, steps.filter(column("country") == "FR"))
    assert list(table.columns) == ["Path", "country", "month", "n"]
    assert table["Path"].unique().tolist() == ["/FR/2020/02/data.csv"]
    assert table["month"].unique().tolist() == [pd.Timestamp(2020, 2, 1)]


def test_empty_fields_are_gaps_unless_texts_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("s,n\n,1\nx,\n")
    assert read(tmp_path, csv_recipe())["s"].isna().tolist() == [True, False]
    table = read(tmp_path, csv_recipe(empty_as_string=True))
    assert table["s"].tolist() == ["", "x"]
    assert pd.isna(table["n"][1])


def test_parquet_and_json_lines(tmp_path: Path) -> None:
    frame = pd.DataFrame({"n": [1, 2], "t": pd.to_datetime(["2020-01-01", "2020-01-02"])})
    (tmp_path / "p").mkdir()
    frame.to_parquet(tmp_path / "p" / "a.parquet")
    options = recipes.parquet_options(include_path=True, set_column_types=None)
    table = read(tmp_path / "p", recipes.recipe("tabular", [], False, "parquet", options))
    assert (kinds(table)["t"], table["Path"][0], len(table)) == ("time", "/a.parquet", 2)

    (tmp_path / "j").mkdir()
    lines = [json.dumps({"n": 1, "deep": {"a": [1]}}), "", "{broken", "[1]", json.dumps({"m": "x"})]
    (tmp_path / "j" / "a.jsonl").write_text("\n".join(lines))
    drop, fail = (
        recipes.recipe(
            "tabular", [], False, "json_lines", recipes.json_lines_options(False, None, how, "utf8")
        )
        for how in ("drop", "error")
    )
    table = read(tmp_path / "j", drop)
    assert table["deep"][0] == {"a": [1]}
    assert table["m"][1] == "x"
    with pytest.raises(UserErrorException, match=r"Line 3 of 'a\.jsonl'"):
        read(tmp_path / "j", fail)


def test_steps_are_done_in_their_order(people: Path) -> None:
    recipe = csv_recipe()

    def ids(*added: Any) -> Any:
        return read(people, recipe, *added)["id"].tolist()

    assert ids(steps.skip(1), steps.take(2)) == [2, 3]
    first, second = steps.split(0.5, seed=1)
    assert sorted(ids(first) + ids(second)) == [1, 2, 3, 4]
    assert ids(first) == ids(first)
    assert ids(steps.filter((column("id") > 1) & column("member"))) == [3, 4]
    assert ids(steps.filter(column("name").is_null())) == [2]
    assert ids(steps.filter(column("name").contains("o") | (column("height") > 1.7))) == [3, 4]
    kept = read(people, recipe, steps.keep_columns(["name", "id"]))
    assert list(kept.columns) == ["name", "id"]
    assert "id" not in read(people, recipe, steps.drop_columns("id")).columns
    with pytest.raises(UserErrorException, match=r"no column 'age'[\s\S]*id, name"):
        read(people, recipe, steps.keep_columns("age"))
    with pytest.raises(UserErrorException, match="no column 'age'"):
        read(people, recipe, steps.filter(column("age") > 1))


def test_times_are_cut_where_asked(people: Path) -> None:
    recipe = recipes.with_step(csv_recipe(), steps.timestamps("when"))
    day = datetime.datetime(2020, 3, 1)

    def ids(step: Any) -> Any:
        return read(people, recipe, step)["id"].tolist()

    assert ids(steps.time("when", after=day)) == [3, 4]
    assert ids(steps.time("when", after=day, include_boundary=False)) == [4]
    assert ids(steps.time("when", before=day)) == [1, 2, 3]
    assert ids(steps.time("when", day, day)) == [3]
    assert ids(steps.recent("when", datetime.timedelta(days=1))) == []


def test_only_the_files_that_are_needed_are_read(people: Path) -> None:
    asked = []

    def lazily(path: Path) -> Any:
        def fetch() -> str:
            asked.append(path.name)
            return str(path)

        return fetch

    files = [(path.name, lazily(path)) for path in sorted(people.iterdir())]
    recipe = recipes.with_step(csv_recipe(), steps.take(2))
    assert tables.read(recipe, files)["id"].tolist() == [1, 2]
    assert set(asked) == {"a.csv"}


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install pandas pyarrow[\s\S]*Environment"):
        tables.pandas()
