"""The value types of the schema: text as people write it -> numbers in bytes and seconds.

Each reader takes what YAML gave and returns the value, or raises the error that :func:`wrong` makes.
"""

import difflib
import ipaddress
import math
import re
import shlex
import zoneinfo
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainValidator
from pydantic_core import PydanticCustomError

from scheduler.config.settings import Listen, Share
from scheduler.domain.placeholders import check
from scheduler.domain.units import parse_duration, parse_size

MAX_DURATION_S = 366 * 86400.0
MAX_SIZE = 1 << 50
_MAX_TEXT = 40  # characters of a duration

_PERCENT = re.compile(r"(\d{1,3}(?:\.\d+)?)\s*%")
_AT_LEAST = re.compile(r">=\s*(.*)")
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


def wrong(message: str, fix: str = "", code: str = "bad_value") -> PydanticCustomError:
    """The error a validator raises; the three texts are taken over as they are."""
    return PydanticCustomError("hotseat", "{message}", {"message": message, "fix": fix, "code": code})


def found(value: object) -> str:
    """What YAML gave, for a sentence: ``the number 5``, ``a list``."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"the boolean {'true' if value else 'false'}"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a mapping"
    text = str(value)
    return f"the text {text if len(text) <= 60 else text[:57] + '...'!r}"


def _split(error: ValueError) -> PydanticCustomError:
    """The domain's parsers say ``cause; remedy``."""
    message, _, fix = str(error).partition("; ")
    return wrong(message, fix)


def size(value: object) -> int:
    """Bytes of ``16GiB``, ``512MiB``, ``16GB`` or a number of bytes."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise wrong(f"expected a size, found {found(value)}", "write bytes, or a number with GiB, MiB or GB", "wrong_type")
    try:
        result = parse_size(value)
    except OverflowError:
        result = MAX_SIZE + 1
    except ValueError as error:
        raise _split(error) from error
    if result > MAX_SIZE:
        raise wrong(f"size {str(value)[:60]} is more than 1024 TiB", "check the unit")
    return result


def positive_size(value: object) -> int:
    """A size above zero."""
    result = size(value)
    if result == 0:
        raise wrong("a size of 0 bytes makes no sense here", "give a size above 0")
    return result


def duration(value: object) -> float:
    """Seconds of ``30s``, ``5m``, ``1h30m``."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise wrong(f"expected a duration, found {found(value)}", "write for example 30s, 5m, 2h", "wrong_type")
    if isinstance(value, str) and len(value) > _MAX_TEXT:  # the parser's time grows with the square of the length
        raise wrong(f"not a duration: {found(value)}", "write for example 30s, 5m, 2h")
    if not isinstance(value, str):
        raise wrong(f"a duration needs a unit, found {found(value)}", f"write {value}s, {value}m or {value}h")
    try:
        result = parse_duration(value)
    except ValueError as error:
        raise _split(error) from error
    if not math.isfinite(result) or result > MAX_DURATION_S:
        raise wrong(f"duration {str(value)[:60]} is longer than 366 days", "give a shorter one")
    return result


def at_least(seconds: float, text: str) -> Callable[[object], float]:
    """A reader of durations of at least ``seconds``, which people write ``text``."""

    def read(value: object) -> float:
        result = duration(value)
        if result < seconds:
            raise wrong(f"{value} is too short: at least {text}", f"write {text} or more")
        return result

    return read


def size_or(word: str) -> Callable[[object], int | None]:
    """A reader of a size or the word that stands for None."""

    def read(value: object) -> int | None:
        if value == word:
            return None
        if isinstance(value, str) and not value[:1].isdigit():
            raise wrong(f"expected a size or {word}, found {found(value)}", f"write for example 64GiB, or {word}")
        return size(value)

    return read


def duration_or(word: str) -> Callable[[object], float | None]:
    """A reader of a duration or the word that stands for None."""

    def read(value: object) -> float | None:
        if value == word:
            return None
        if isinstance(value, str) and not value[:1].isdigit():
            raise wrong(f"expected a duration or {word}, found {found(value)}", f"write for example 30s, 5m, or {word}")
        return at_least(0.1, "100ms")(value)

    return read


def share(value: object) -> Share:
    """``2%`` or a size."""
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        if isinstance(value, float):
            raise wrong(f"expected a percentage or a size, found {found(value)}", f"write {value:g}% or a size such as 1GiB", "wrong_type")
        return Share(size_bytes=size(value))
    percent = float(match.group(1))
    if percent >= 100:
        raise wrong(f"{value} leaves nothing", "give less than 100%")
    return Share(ratio=percent / 100)


def minimum_size(value: object) -> int:
    """Bytes of ``>=40GiB``."""
    match = _AT_LEAST.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise wrong(f'expected a minimum such as ">=40GiB", found {found(value)}', f'write ">={value}" in quotes')
    return size(match.group(1))


def listen(value: object) -> Listen:
    """``127.0.0.1:11500``, ``localhost:11500``, ``[::1]:11500``."""
    if not isinstance(value, str):
        raise wrong(f"expected HOST:PORT, found {found(value)}", "write for example 127.0.0.1:11500", "wrong_type")
    host, colon, port = value.rpartition(":")
    if _is_ip6(value) or not colon:
        bare = f"[{value}]" if _is_ip6(value) else value
        raise wrong(f"{value!r} has no port", f"write {bare}:11500")
    if not host:
        raise wrong(f"{value!r} has no host", f"write 127.0.0.1:{port}")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise wrong(f"{port!r} is not a port", "a port is a number from 1 to 65535; 0 = any free one")
    return Listen(_host(host), int(port))


def _host(host: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        if _is_ip6(host[1:-1]):
            return str(ipaddress.IPv6Address(host[1:-1]))
        raise wrong(f"{host} is not an IPv6 address", "write for example [::1]:11500")
    if ":" in host:
        raise wrong(f"an IPv6 address needs brackets: {host}", f"write [{host}]:11500")
    try:
        return str(ipaddress.IPv4Address(host))
    except ValueError:
        if _HOST_NAME.fullmatch(host) is None or host.replace(".", "").isdigit():
            raise wrong(f"{host!r} is neither an address nor a host name", "write for example 127.0.0.1:11500") from None
    return host.lower()


def _is_ip6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _text(value: str) -> str:
    if "\0" in value:
        raise wrong("a NUL character cannot be passed to a program", "remove \\0")
    return value


def _name(value: str) -> str:
    if not value.strip():
        raise wrong("empty text", "write a value, or remove the key")
    return value


def _template(value: str) -> str:
    problems = check(value)
    if problems:
        raise wrong("; ".join(problems), "write $$ for a dollar sign that is meant literally", "unknown_placeholder")
    return value


def _url_path(value: str) -> str:
    if not value.startswith("/") or any(c.isspace() or not c.isprintable() for c in value):
        raise wrong(f"{value!r} is not a path of an engine", "write for example /health")
    return value


def _time_zone(value: str) -> str:
    try:
        zoneinfo.ZoneInfo(value)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        known = zoneinfo.available_timezones()
        near = difflib.get_close_matches(value, sorted(known), n=1)
        hint = f"did you mean {near[0]}?" if near else "write for example Europe/Berlin or UTC"
        raise wrong(f"unknown time zone {value!r}", hint if known else "install the time zone data of this system (tzdata)") from None
    return value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str | int) and not isinstance(value, bool) else value


def _argv(value: Any) -> Any:
    if isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError:
            words = value.split()
        example = ", ".join(f'"{word}"' if re.search(r"[^\w./-]", word) else word for word in words)
        raise wrong(f"expected a list of words, found {found(value)}", f"write [{example}]", "wrong_type")
    return value


def _awake(value: Any) -> bool:
    if value in ("auto", "always"):
        return bool(value == "always")
    if isinstance(value, list):
        raise wrong("windows of time for awake are not supported yet", "write awake: auto or awake: always for now", "not_supported_yet")
    raise wrong(f"expected auto or always, found {found(value)}", "write awake: auto or awake: always")


Size = Annotated[int, PlainValidator(size)]
AutoSize = Annotated[int | None, PlainValidator(size_or("auto"))]
PositiveSize = Annotated[int, PlainValidator(positive_size)]
MinimumSize = Annotated[int, PlainValidator(minimum_size)]
Duration = Annotated[float, PlainValidator(duration)]
Positive = Annotated[float, PlainValidator(at_least(0.1, "100ms"))]
Auto = Annotated[float | None, PlainValidator(duration_or("auto"))]
Never = Annotated[float | None, PlainValidator(duration_or("never"))]
Part = Annotated[Share, PlainValidator(share)]
Address = Annotated[Listen, PlainValidator(listen)]
Addresses = Annotated[list[Address], BeforeValidator(_as_list)]
Text = Annotated[str, AfterValidator(_text)]
Name = Annotated[str, AfterValidator(_text), AfterValidator(_name)]
Template = Annotated[str, AfterValidator(_text), AfterValidator(_template)]
Argv = Annotated[list[Template], BeforeValidator(_argv)]
UrlPath = Annotated[str, AfterValidator(_text), AfterValidator(_url_path)]
UrlTemplate = Annotated[UrlPath, AfterValidator(_template)]
TimeZone = Annotated[Name, AfterValidator(_time_zone)]
Awake = Annotated[bool, PlainValidator(_awake)]
