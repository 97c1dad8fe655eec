# mypy: ignore-errors
"""Recipes, steps, expressions and partitions on every interpreter."""

import datetime
import os
import unittest

from azureml.core import Dataset, Datastore
from azureml.core.dataset import Dataset as SameDataset
from azureml.data.dataset_factory import DataType, TabularDatasetFactory
from azureml.exceptions import UserErrorException
from runyard_runtime import expressions, partitions, recipes, steps
from runyard_runtime.expressions import column


class StepTest(unittest.TestCase):
    def apply(self, *all_steps):
        facts = lambda n: {"Size": n, "Path": "/%d" % n}  # noqa: E731
        return steps.apply_to_files(list(range(20)), all_steps, facts)

    def test_the_halves_of_a_split_have_everything_between_them(self):
        first, second = steps.split(0.5, seed=7)
        self.assertEqual(sorted(self.apply(first) + self.apply(second)), list(range(20)))
        # The same on every Python there is: jobs and clients must agree.
        self.assertEqual(self.apply(first), [0, 1, 3, 5, 6, 8, 9, 10, 11, 12, 14, 15, 19])

    def test_chance_without_a_seed_is_drawn_once(self):
        step = steps.sample(0.5)
        self.assertEqual(self.apply(step), self.apply(step))

    def test_steps_are_done_in_their_order(self):
        self.assertEqual(self.apply(steps.skip(2), steps.take(3)), [2, 3, 4])
        self.assertEqual(self.apply(steps.take(3), steps.skip(2)), [2])
        self.assertEqual(self.apply(steps.take(0)), [])
        self.assertEqual(self.apply(steps.skip(99)), [])

    def test_filters_look_at_what_is_known_of_files(self):
        large = (column("Size") > 10) & ~(column("Size") == 12) & (column("Size") <= 13)
        self.assertEqual(self.apply(steps.filter(large)), [11, 13])
        self.assertEqual(
            self.apply(steps.filter(column("Path").starts_with("/1")), steps.take(2)), [1, 10]
        )
        with self.assertRaisesRegex(UserErrorException, "no 'Age' to filter by"):
            self.apply(steps.filter(column("Age") > 1))

    def test_what_makes_no_sense_is_refused_where_it_is_written(self):
        for call in (
            lambda: steps.take(-1),
            lambda: steps.skip("3"),
            lambda: steps.take(True),
            lambda: steps.sample(1.5),
            lambda: steps.split(float("nan")),
            lambda: steps.split(0.5, seed="x"),
            lambda: steps.filter("age > 3"),
            lambda: steps.filter(column("age")),
            lambda: steps.keep_columns([]),
            lambda: steps.recent("t", 3),
            lambda: bool(column("a") > 1),
            lambda: column("a") == [1],
        ):
            with self.assertRaises(UserErrorException):
                call()

    def test_times_are_kept_as_texts(self):
        zone = datetime.timezone(datetime.timedelta(hours=2))
        moment = datetime.datetime(2020, 1, 2, 3, 4, 5, tzinfo=zone)
        self.assertEqual(expressions.time_text(moment), "2020-01-02T01:04:05.000000")
        self.assertEqual(
            expressions.time_of(expressions.time_text(datetime.date(2020, 1, 2))),
            datetime.datetime(2020, 1, 2),
        )


class PartitionTest(unittest.TestCase):
    def test_keys_are_read_from_paths(self):
        for form, path, values in [
            ("{a}/{b}.csv", "x/y/z.csv", {"a": "y", "b": "z"}),
            ("/{a}/data.csv", "1/data.csv", {"a": "1"}),
            ("weather/{a}/data.csv", "/1/data.csv", {"a": "1"}),
            ("in/weather/{a}/data.csv", "in/weather/1/data.csv", {"a": "1"}),
            ("year-{a}.csv", "in/year-1.csv", {"a": "1"}),
            (
                "{c}/{d:yyyy/MM/dd}/data.csv",
                "/USA/2019/01/31/data.csv",
                {"c": "USA", "d": datetime.datetime(2019, 1, 31)},
            ),
            ("{d:yyyy-MM}/*.csv", "2019-05/x.csv", {"d": datetime.datetime(2019, 5, 1)}),
            (
                "{d:yyyy/MM/dd/HH/mm/ss}.p",
                "2019/05/06/07/08/09.p",
                {"d": datetime.datetime(2019, 5, 6, 7, 8, 9)},
            ),
        ]:
            self.assertEqual(partitions.Partitioning(form).values(path), values)

    def test_paths_that_do_not_fit_and_formats_that_make_no_sense_are_errors(self):
        with self.assertRaisesRegex(UserErrorException, "does not fit"):
            partitions.Partitioning("{a}/{b}.csv").values("x.csv")
        with self.assertRaisesRegex(UserErrorException, "does not fit"):
            partitions.Partitioning("weather/year-{a}.csv").values("/1.csv")
        with self.assertRaisesRegex(UserErrorException, "no such time"):
            partitions.Partitioning("{d:yyyy/MM}").values("2019/13")
        for form in ("data.csv", "{a}/{a}", "{a", "{d:YYYY}", "{d:yyyy/yyyy}"):
            with self.assertRaisesRegex(UserErrorException, "makes no sense"):
                partitions.Partitioning(form)


class RecipeTest(unittest.TestCase):
    def test_addresses_become_sources(self):
        sources, many, _ = recipes.read_sources("https://a/b.csv", lambda thing: None)
        self.assertEqual((sources, many), ([{"type": "url", "url": "https://a/b.csv"}], False))
        self.assertTrue(recipes.read_sources(["https://a/b"], lambda thing: None)[1])

    def test_pairs_become_paths_in_datastores(self):
        store = object()
        for path in ((store, "./a//b/*.csv"), (store, os.path.join("a", "b", "*.csv"))):
            sources, many, where = recipes.read_sources(
                path, lambda thing: ("blobs", "ws") if thing is store else None
            )
            self.assertEqual(
                sources, [{"type": "datastore", "datastore": "blobs", "path": "a/b/*.csv"}]
            )
            self.assertEqual((many, where), (False, ["ws"]))

    def test_what_is_no_source_says_what_to_do(self):
        for path, words in [
            ("data/mnist", "Upload it"),
            ("s3://bucket/x", "Register the place as a datastore"),
            (3, "cannot be made of 3"),
            ([], "no paths"),
        ]:
            with self.assertRaisesRegex(UserErrorException, words):
                recipes.read_sources(path, lambda thing: None)
        with self.assertRaisesRegex(UserErrorException, "leads out"):
            recipes.store_path("a/../../b")

    def test_the_options_of_readers_are_checked(self):
        good = dict(
            include_path=False,
            infer_column_types=True,
            set_column_types={"a": DataType.to_float()},
            separator=";",
            header=False,
            empty_as_string=False,
            encoding="utf-8",
        )
        made = recipes.delimited_options(**good)
        self.assertEqual((made["header"], made["encoding"]), ("none", "utf8"))
        self.assertEqual(made["column_types"]["a"]["type"], "float")
        for wrong in (
            {"separator": ""},
            {"header": "yes"},
            {"encoding": "klingon"},
            {"set_column_types": {"a": float}},
        ):
            with self.assertRaises(UserErrorException):
                recipes.delimited_options(**dict(good, **wrong))

    def test_the_names_scripts_import_are_the_same_classes(self):
        self.assertIs(Dataset, SameDataset)
        self.assertIs(Dataset.Tabular, TabularDatasetFactory)
        self.assertTrue(callable(Datastore.get))
