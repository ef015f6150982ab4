"""Spark finds the source by importing the package; one that fails hides all others."""

from __future__ import annotations

import subprocess
import sys


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_package_is_found_where_spark_looks() -> None:
    found = run(
        "import pkgutil; print('pyspark_jetstream' in [m.name for m in pkgutil.iter_modules()])"
    )
    assert found == "True"


def test_being_found_loads_neither_the_sdk_nor_arrow() -> None:
    loaded = run(
        "import pyspark_jetstream, sys; "
        "print(pyspark_jetstream.DefaultSource.name(), "
        "[m for m in ('grpc', 'pyarrow', 'jetstream_client') if m in sys.modules])"
    )
    assert loaded == "jetstream []"


def test_a_session_of_a_python_without_the_package_says_what_to_export() -> None:
    """Spark would say DATA_SOURCE_NOT_FOUND and 150 lines of Java."""
    said = run(
        "import sys\n"
        "from types import SimpleNamespace as Some\n"
        "from pyspark.sql import SparkSession\n"
        "import pyspark_jetstream\n"
        "context = Some(pythonExec='/nowhere/python3', master='local[2]')\n"
        "SparkSession.builder = Some(getOrCreate=lambda: Some(sparkContext=context))\n"
        "try:\n"
        "    pyspark_jetstream.session()\n"
        "except RuntimeError as error:\n"
        "    print(error)"
    )
    assert said == (
        "Spark's workers run '/nowhere/python3', which does not have pyspark_jetstream: "
        f"export PYSPARK_PYTHON={sys.executable} before the program makes its session"
    )


def test_without_pyspark_the_import_does_not_raise() -> None:
    assert run("import sys; sys.modules['pyspark'] = None; import pyspark_jetstream") == ""
