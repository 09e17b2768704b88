"""The public API: exactly these names; anything else may change without notice."""

import walship

NAMES = {
    "BackpressureError",
    "BatchConflictError",
    "Cluster",
    "ClusterId",
    "ConditionalMutationError",
    "ConfigError",
    "CoordinationError",
    "CorruptFrameError",
    "DatasetSnapshot",
    "FormatError",
    "HistoryError",
    "HookError",
    "LeaseLostError",
    "Mutation",
    "NoSpaceError",
    "NoWorkerError",
    "NullKeyError",
    "PeerExistsError",
    "PeerRefusedError",
    "PeerUnavailableError",
    "Position",
    "ReadOnlyClusterError",
    "ReplayError",
    "ReplicationError",
    "RequestError",
    "SchemaError",
    "StorageError",
    "TableExistsError",
    "TableSpec",
    "TransferError",
    "UnknownPeerError",
    "UnknownTableError",
    "Verdict",
    "WaitTimeoutError",
    "__version__",
    "connect",
    "dataset",
    "drill",
}


def test_the_module_exports_these_names_and_no_others():
    assert set(walship.__all__) == NAMES
    public = {name for name in vars(walship) if not name.startswith("_")}
    assert public | {"__version__"} == NAMES


def test_the_version_is_that_of_the_distribution():
    import tomllib
    from pathlib import Path

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert walship.__version__ == project["version"]


def test_every_error_of_the_public_api_is_in_the_one_tree():
    errors = [getattr(walship, name) for name in NAMES if name.endswith("Error")]
    assert all(issubclass(error, walship.ReplicationError) for error in errors)
