"""Structured logs: a constant event name plus fields, as JSON lines for machines or coloured lines for people.

For every layer above the core; ``core/`` is silent. INFO is a durable change, WARNING will be retried, ERROR needs
a person. Usual fields: cluster, peer, table, file, begin, end, epoch. Fields that name a secret, and passwords inside
URLs, are masked before anything is written, whatever the caller passed.

structlog is loaded with the first line that is logged, which most commands never write.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    import structlog

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["json", "console"]

_SECRET_FIELD = re.compile(
    r"passw|secret|token|credential|private|(access|account|api|client|tls)[-_.]?key", re.IGNORECASE
)
_URL_PASSWORD = re.compile(r"(?<=://)([^:/@\s]*):[^@\s]*@(?:[^@/\s]*@)*")  # a password with @ in it, too
_QUERY_PASSWORD = re.compile(r"((?:password|secret|token|delegation|signature)\w*=)[^&\s]+", re.IGNORECASE)
_MASK = "***"
_LIBRARY = ("peer", "replication")
FILE_BYTES_MAX = 32 << 20
_RESERVED = {*vars(logging.makeLogRecord({})), "message", "asctime"}


def configure(level: Level = "info", path: Path | None = None, format: Format = "json", **fields: object) -> None:
    """Send this process's logs to ``path`` (appended to) or to standard error; called once, by whoever starts it.

    Args:
        level: the least that is written.
        path: a file whose folder is made when missing; None for standard error. At 32 MiB it becomes ``<path>.1``, that
            one ``.2``, and what was ``.2`` goes.
        format: ``json``, one object a line, or ``console``.
        fields: put into every line, for instance ``cluster="east", role="worker"``.
    """
    import structlog  # deferred, here and below: it takes as long to load as a short command runs

    _put_off.configure = None
    handler = _handler(path)
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer(default=str)
        if format == "json"
        else structlog.dev.ConsoleRenderer(
            colors=path is None and sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        _Fields(fields),
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,  # as text without locals, so that masking reaches it
                mask_secrets,
                renderer,
            ],
            foreign_pre_chain=shared,
        )
    )
    _install(handler, level)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def configure_when_used(level: Level) -> None:
    """As :func:`configure`, to standard error, with the first line that is logged."""
    if _is_configured():
        configure(level)
        return
    _put_off.configure = lambda: configure(level)
    root = logging.getLogger()
    if not any(isinstance(handler, _First) for handler in root.handlers):
        root.addHandler(_First())
    root.setLevel(level.upper())


def _handler(path: Path | None) -> logging.Handler:
    if path is None:
        return logging.StreamHandler(sys.stderr)
    from logging.handlers import RotatingFileHandler  # deferred: commands write no file

    path.parent.mkdir(parents=True, exist_ok=True)
    return RotatingFileHandler(path, maxBytes=FILE_BYTES_MAX, backupCount=2, encoding="utf-8")


def _install(handler: logging.Handler, level: Level) -> None:
    """Put ``handler`` in the place of an earlier one, and have libraries say less."""
    logging.raiseExceptions = False  # a line that a full disk does not take is not worth a traceback each
    import structlog

    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old, _First) or isinstance(old.formatter, structlog.stdlib.ProcessorFormatter):
            root.removeHandler(old)
            old.close()
    root.addHandler(handler)
    root.setLevel(level.upper())
    for chatty in ("kazoo", "py4j", "pyiceberg", "sqlalchemy", "asyncio", "urllib3"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, root.level))
    # warns only that a metadata file which Spark has just deleted could not be
    logging.getLogger("pyiceberg.catalog").setLevel(logging.ERROR)


def as_library() -> None:
    """Hand what is logged to Python's own ``logging`` unless configured: a library prints nothing by itself."""
    for name in _LIBRARY:
        if not (logger := logging.getLogger(name)).handlers:
            logger.addHandler(logging.NullHandler())  # else Python prints warnings of programs without a handler
    if not _is_configured() and _put_off.configure is None:
        _put_off.configure = _configure_as_library


def _configure_as_library() -> None:
    import structlog

    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, mask_secrets, _to_log_kwargs],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def _to_log_kwargs(logger: Any, method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """As structlog's own, with fields that ``logging`` keeps for itself under a name that it takes."""
    import structlog

    made = structlog.stdlib.render_to_log_kwargs(logger, method, event)
    made["extra"] = {f"{key}_" if key in _RESERVED else key: value for key, value in made["extra"].items()}
    return made


def get(name: str, **fields: object) -> structlog.stdlib.BoundLogger:
    """A logger for one part, with fields bound into each of its lines.

    Example: ``get(__name__, peer="west").info("chunk shipped", file=file, begin=begin, end=end)``.
    """
    return cast("structlog.stdlib.BoundLogger", _Logger(name, fields))


def _is_configured() -> bool:
    loaded = sys.modules.get("structlog")
    return loaded is not None and loaded.is_configured()


class _PutOff:
    """What configures with the first line; others may have configured by then."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.configure: Callable[[], None] | None = None

    def run(self) -> None:
        with self._lock:
            configure, self.configure = self.configure, None
            if configure is not None and not _is_configured():
                configure()


_put_off = _PutOff()


class _Logger:
    """structlog's logger, made with the first line."""

    def __init__(self, name: str, fields: Mapping[str, object]) -> None:
        self._name, self._fields = name, fields
        self._logger: Any = None

    def __getattr__(self, method: str) -> Any:
        if self._logger is None or _put_off.configure is not None:
            _put_off.run()
            import structlog

            self._logger = structlog.stdlib.get_logger(self._name, **self._fields)
        return getattr(self._logger, method)


class _First(logging.Handler):
    """Configures with the first line of a library, and has that line written, too."""

    def emit(self, record: logging.LogRecord) -> None:
        root = logging.getLogger()
        before = list(root.handlers)
        _put_off.run()
        root.removeHandler(self)
        for handler in [made for made in root.handlers if made not in before]:
            handler.handle(record)


def mask_secrets(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Mask fields that name a secret and passwords inside texts, at any depth; a structlog processor."""
    for key, value in event.items():
        event[key] = _masked(key, value)
    return event


def redact(text: str) -> str:
    """The text with passwords in URLs masked; for messages that quote a configured address."""
    return _QUERY_PASSWORD.sub(rf"\1{_MASK}", _URL_PASSWORD.sub(rf"\1:{_MASK}@", text))


def has_secrets(value: Any) -> bool:
    """Whether a value from TOML or JSON has anything that is masked in logs."""
    return bool(_masked("", value) != value)


def _masked(key: str, value: Any) -> Any:
    if _SECRET_FIELD.search(key) and not isinstance(value, bool | int | None):
        return _MASK
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {k: _masked(str(k), v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_masked("", item) for item in value]
    if isinstance(value, BaseException):
        return redact(str(value))
    return value


class _Fields:
    """Adds the process's own fields."""

    def __init__(self, fields: dict[str, object]) -> None:
        self._fields = fields

    def __call__(self, _logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for key, value in self._fields.items():
            event.setdefault(key, value)
        return event
