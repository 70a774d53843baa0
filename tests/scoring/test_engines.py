"""A scorer in the hands of the engines themselves: Ray Data, Dask and Spark."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyro_opu import OnePassPredictive, Scorer, distill

pd = pytest.importorskip("pandas")
pytestmark = pytest.mark.usefixtures("brief")

X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
W = torch.randn(40, 3, 4, generator=torch.Generator().manual_seed(1))
FRAME = pd.DataFrame(X.numpy(), columns=["a", "b", "c"]).assign(id=range(len(X)))


@pytest.fixture(scope="module")
def fast() -> OnePassPredictive:
    return distill(lambda x: (x @ W).softmax(-1), X, num_steps=20, seed=0, progress=False)


@pytest.fixture
def scorer(fast: OnePassPredictive, tmp_path: Path) -> Scorer:
    fast.save(tmp_path / "student.safetensors")
    return Scorer(tmp_path / "student.safetensors", ["a", "b", "c"], threads=None)


def check(found: Any, fast: OnePassPredictive, scorer: Scorer) -> None:
    found = found.sort_values("id")
    assert found["id"].tolist() == list(range(len(X)))
    assert list(found.columns) == [*FRAME.columns, *scorer.outputs]
    np.testing.assert_allclose(found["epistemic"], fast.uncertainty(X).epistemic, rtol=1e-5)


@pytest.mark.parametrize("scheduler", ["threads", "sync"])
def test_dask(fast: OnePassPredictive, scorer: Scorer, scheduler: str) -> None:
    frames = pytest.importorskip("dask.dataframe")
    given = frames.from_pandas(FRAME, npartitions=4).map_partitions(scorer)
    check(given.compute(scheduler=scheduler), fast, scorer)


@pytest.mark.slow
def test_ray(fast: OnePassPredictive, scorer: Scorer) -> None:
    ray = pytest.importorskip("ray")
    data = pytest.importorskip("ray.data")
    root = str(Path(__file__).parents[2])
    environment = {"env_vars": {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    try:
        for form in ("numpy", "pandas", "pyarrow"):
            given = data.from_pandas(FRAME).repartition(3).map_batches(scorer, batch_format=form)
            check(given.to_pandas(), fast, scorer)
        named = {"fn_constructor_args": (scorer.path, ["a", "b", "c"]), "concurrency": 1}
        given = data.from_pandas(FRAME).map_batches(Scorer, batch_format="numpy", **named)
        check(given.to_pandas(), fast, scorer)
    finally:
        ray.shutdown()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs a Java")
def test_spark(fast: OnePassPredictive, scorer: Scorer, monkeypatch: pytest.MonkeyPatch) -> None:
    sql = pytest.importorskip("pyspark.sql")
    types = pytest.importorskip("pyspark.sql.types")
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    session = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = session.getOrCreate()
    try:
        rows = spark.createDataFrame(FRAME).repartition(3)
        added = [types.StructField(name, types.FloatType()) for name in scorer.outputs]
        schema = types.StructType([*rows.schema.fields, *added])
        check(rows.mapInPandas(scorer, schema).toPandas(), fast, scorer)
        check(rows.mapInArrow(scorer, schema).toPandas(), fast, scorer)
    finally:
        spark.stop()
