"""The options of a copy in groups, as the command line has them and as declared datasets have them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

_EXCLUDE = "Leave out files and folders that match: * stays in one folder, ** does not; or regex:TEXT. May be repeated."


@dataclass(frozen=True, slots=True)
class FileOptions:
    """Which files are meant."""

    filters: Annotated[
        list[str] | None,
        Option("--filter", metavar="RULE", help="'+ GLOB' or '- GLOB'; the first that matches decides."),
    ] = None
    exclude: Annotated[list[str] | None, Option("--exclude", metavar="GLOB", help=_EXCLUDE)] = None
    include: Annotated[
        list[str] | None,
        Option("--include", metavar="GLOB", help="Copy only these. Comes after --filter and --exclude."),
    ] = None
    min_size: Annotated[str, Option("--min-size", metavar="SIZE", help="Skip smaller files: 64KiB.")] = ""
    max_size: Annotated[str, Option("--max-size", metavar="SIZE", help="Skip larger files.")] = ""
    newer_than: Annotated[str, Option("--newer-than", metavar="AGE", help="Skip older files: 30m, 7d.")] = ""
    older_than: Annotated[str, Option("--older-than", metavar="AGE", help="Skip newer files.")] = ""
    recursive: Annotated[bool, Option("--recursive/--no-recursive", help="Copy folders below, too.")] = True
    follow_links: Annotated[bool, Option("--follow-links", help="Copy what links to files point at.")] = False


@dataclass(frozen=True, slots=True)
class ReplaceOptions:
    """What becomes of files of the target."""

    update: Annotated[bool, Option("--update", help="Skip files that are newer in the target.")] = False
    overwrite: Annotated[bool, Option("--overwrite", help="Copy also what is the same.")] = False
    skip: Annotated[bool, Option("--skip", help="Skip every file that the target has.")] = False
    checksum: Annotated[bool, Option("--checksum", help="Compare contents, not size and time.")] = False
    delete: Annotated[bool, Option("--delete", help="Remove files that the source does not have.")] = False
    max_delete: Annotated[
        int | None, Option("--max-delete", metavar="N", min=0, help="Remove none if there are more of them.")
    ] = None
    backup_dir: Annotated[
        str, Option("--backup-dir", metavar="DIR", help="Keep replaced and removed files there, below DST.")
    ] = ""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How new files are written and published."""

    preserve: Annotated[
        str,
        Option(
            "--preserve",
            metavar="LIST",
            help="times, permissions, owner, group, replication, block-size; with commas. Or all, or none.",
        ),
    ] = "times,permissions"
    verify: Annotated[
        bool,
        Option("--verify", help="Read every file back before it is published; S3 compares large ones with their MD5."),
    ] = False
    file_set: Annotated[
        Literal["directory", "dataset", "file"], Option("--file-set", help="Which files appear together.")
    ] = "directory"
    block_size: Annotated[
        str, Option("--block-size", metavar="SIZE", help="Block size of new files, on HDFS; overrides --preserve.")
    ] = ""
    replication: Annotated[
        int | None,
        Option("--replication", metavar="N", min=1, help="Copies of each block, on HDFS; overrides --preserve."),
    ] = None
    convert: Annotated[
        list[str] | None,
        Option(
            "--convert",
            metavar="NAME",
            help="gunzip, gzip, unzstd, zstd, untar, unzip, decrypt, encrypt=KEY, or a plugin's.",
        ),
    ] = None

    register: Annotated[
        str,
        Option(
            "--register",
            metavar="KIND:NAME",
            help="Add new Parquet files to a table: iceberg:CATALOG.NAMESPACE.TABLE, also of a Hive catalog.",
        ),
    ] = ""


@dataclass(frozen=True, slots=True)
class SpeedOptions:
    """How much is copied at once."""

    limit: Annotated[
        str,
        Option(
            "--limit",
            metavar="RATE",
            help="Bytes per second at most: 50MiB; or '08:00,10MB 18:00,off'; or @FILE, which may change meanwhile.",
        ),
    ] = ""
    threads: Annotated[
        int,
        Option("--threads", metavar="N", min=0, max=256, help="Files or ranges that are copied at once; 0 chooses."),
    ] = 0
    attempts: Annotated[int, Option("--attempts", metavar="N", min=1, help="Tries for each file.")] = 3
    files_per_split: Annotated[
        int, Option("--files-per-split", metavar="N", min=1, help="Small files in one task.")
    ] = 128
    range_size: Annotated[str, Option("--range-size", metavar="SIZE", help="Parts of large files.")] = "64MiB"
    spark: Annotated[
        str,
        Option("--spark", metavar="MASTER", help="Copy more than 1 GiB or 50,000 files by Spark: spark://HOST:7077."),
    ] = ""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run of ``walship copy`` does and tells."""

    dry_run: Annotated[bool, Option("--dry-run", "-n", help="Show what would be copied; copy nothing.")] = False
    check: Annotated[
        bool, Option("--check", help="Compare the contents and copy nothing. Exits with 13 if they differ.")
    ] = False
    events: Annotated[
        str,
        Option(
            "--events",
            metavar="URL|FILE",
            help="Send an event for each file and file set: to a webhook, kafka://HOST:PORT/TOPIC, or a file.",
        ),
    ] = ""
    since_snapshot: Annotated[
        str,
        Option(
            "--since-snapshot",
            metavar="NAME",
            help="Look only at what changed since that snapshot of SRC, a folder of HDFS or of its .snapshot.",
        ),
    ] = ""
    retry_suspended: Annotated[bool, Option("--retry-suspended", help="Publish again what failed too often.")] = False
    report: Annotated[
        Path | None,
        Option("--report", metavar="FILE", help="Write a line of JSON there for each file: what became of it."),
    ] = None


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """What a run of ``walship sync`` does."""

    dry_run: Annotated[bool, Option("--dry-run", "-n", help="Show what would be done; change nothing.")] = False
    max_delete: Annotated[
        int | None, Option("--max-delete", metavar="N", min=0, help="Remove none if there are more of them.")
    ] = None
    backup_dir: Annotated[
        str, Option("--backup-dir", metavar="DIR", help="Keep replaced and removed files there, on each side.")
    ] = ""
    retry_suspended: Annotated[
        bool, Option("--retry-suspended", help="Publish and remove again what failed too often.")
    ] = False


@dataclass(frozen=True, slots=True)
class VersionOptions:
    """What only declared datasets have."""

    versions: Annotated[bool, Option("--versions", help="Write new versions of files beside the old.")] = False
