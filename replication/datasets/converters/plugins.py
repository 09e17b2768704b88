"""Converters by name: walship's own, and those of installed packages, by the entry points ``walship.converters``."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from replication import plugins
from replication.core.copying.conversions import Conversion
from replication.datasets.converters.archives import Tar, Zip
from replication.datasets.converters.base import Converter, Unpacker
from replication.datasets.converters.compression import gunzip, gzip, unzstd, zstd
from replication.datasets.converters.gpg import decrypt, encrypt
from replication.errors import RequestError

GROUP = "walship.converters"

#: Makes a converter of the text that the user gave behind its name and ``=``.
ConverterFactory = Callable[[str], Converter | Unpacker]


@dataclass(frozen=True, slots=True)
class _Stream:
    removes_suffix: str
    adds_suffix: str
    convert: Callable[[Iterable[bytes], int], Generator[bytes]]

    def __call__(self, pieces: Iterable[bytes], size: int) -> Generator[bytes]:
        return self.convert(pieces, size)


def _plain(made: Converter | Unpacker) -> ConverterFactory:
    """The factory of a converter that takes no argument."""

    def factory(argument: str) -> Converter | Unpacker:
        if argument:
            raise RequestError(f"the conversion takes nothing behind =, but was given {argument!r}", "Leave it out")
        return made

    return factory


def _encrypt(recipient: str) -> Converter:
    if not recipient or recipient.startswith("-"):
        raise RequestError("encrypt needs a key", "Write encrypt=FINGERPRINT, or an address of the key's owner")
    return _Stream("", ".gpg", partial(encrypt, recipient=recipient))


BUILT_IN: dict[str, ConverterFactory] = {
    "gunzip": _plain(_Stream(".gz", "", gunzip)),
    "gzip": _plain(_Stream("", ".gz", gzip)),
    "unzstd": _plain(_Stream(".zst", "", unzstd)),
    "zstd": _plain(_Stream("", ".zst", zstd)),
    "decrypt": _plain(_Stream(".gpg", "", decrypt)),
    "encrypt": _encrypt,
    "untar": _plain(Tar()),
    "unzip": _plain(Zip()),
}


def any_converter_of(text: str) -> Converter | Unpacker:
    """What ``NAME`` or ``NAME=ARGUMENT`` names; raises as :func:`conversions_of`."""
    name, _, argument = text.partition("=")
    made: Converter | Unpacker = plugins.found(GROUP, "conversion", name, BUILT_IN)(argument)
    return made


def converter_of(text: str) -> Converter:
    """The converter of a name that ``conversions_of`` has taken and that unpacks nothing."""
    return cast("Converter", any_converter_of(text))


def unpacker_of(text: str) -> Unpacker:
    """The unpacker of a name that ``conversions_of`` has taken."""
    return cast("Unpacker", any_converter_of(text))


def conversions_of(texts: Sequence[str]) -> tuple[Conversion, ...]:
    """The conversions that a user names.

    Raises:
        RequestError: there is none of a name, several packages have it, or it does not take what is behind ``=``.
    """
    return tuple(_conversion(text, any_converter_of(text)) for text in texts)


def _conversion(text: str, found: Converter | Unpacker) -> Conversion:
    if isinstance(found, Unpacker):
        return Conversion(text, unpacks=True)
    return Conversion(text, found.removes_suffix, found.adds_suffix)
