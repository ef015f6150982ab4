"""Arrow tables as data frames of Polars and pandas, which are imported only when they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


def to_polars(table: pyarrow.Table) -> polars.DataFrame:
    """Without a copy where Polars can use Arrow's buffers. Raises ImportError that names what is
    missing."""
    try:
        import polars
    except ImportError as error:
        raise _missing_package_error("to_polars()", "polars") from error
    frame: Any = polars.from_arrow(table)
    assert isinstance(frame, polars.DataFrame)
    return frame


def to_pandas(table: pyarrow.Table) -> pandas.DataFrame:
    """In pandas each value of bytes is a Python object. Raises ImportError that names what is
    missing."""
    try:
        import pandas  # noqa: F401 - Arrow's own message does not say how to get it.
    except ImportError as error:
        raise _missing_package_error("to_pandas()", "pandas") from error
    frame: pandas.DataFrame = table.to_pandas()
    return frame


def _missing_package_error(call: str, package: str) -> ImportError:
    return ImportError(f"{call} needs {package}: pip install {package}", name=package)
