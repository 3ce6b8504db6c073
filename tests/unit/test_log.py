"""One event a line, as fields, without secrets."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from scheduler.domain.errors import Invalid
from scheduler.telemetry.log import JsonFormatter, LineFormatter, set_up

log = logging.getLogger("scheduler.test")


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def line_of(record: logging.LogRecord) -> str:
    return LineFormatter().format(record)


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "scheduler.test", "levelname": "INFO", "msg": message, "args": args, "created": 1767571200.25})
    vars(made).update(extra)
    return made


def test_a_line_has_time_level_logger_message_and_fields() -> None:
    text = line_of(record("woke in %.1f s", 2.94, model="coder", level=1, note="two words", nothing=None))
    assert text == '2026-01-05T00:00:00.250Z info scheduler.test woke in 2.9 s model=coder level=1 note="two words" nothing=null'


def test_json_has_the_same_facts() -> None:
    fields = json.loads(JsonFormatter().format(record("woke %s", "coder", model="coder", ok=True, seconds=2.5, path=io)))
    assert fields["at"] == "2026-01-05T00:00:00.250Z"
    assert (fields["level"], fields["logger"], fields["message"]) == ("info", "scheduler.test", "woke coder")
    assert (fields["model"], fields["ok"], fields["seconds"]) == ("coder", True, 2.5)
    assert isinstance(fields["path"], str)


@pytest.mark.parametrize("formatter", [LineFormatter(), JsonFormatter()], ids=["line", "json"])
def test_what_engines_and_users_write_cannot_forge_a_line(formatter: logging.Formatter) -> None:
    text = formatter.format(record("engine said %s", "a\nb\r\x1b[2J\u2028c", model='x" level=error \n y'))
    assert len(text.splitlines()) == 1
    assert text.isprintable()


@pytest.mark.parametrize("formatter", [LineFormatter(), JsonFormatter()], ids=["line", "json"])
def test_secrets_are_hidden_everywhere(formatter: logging.Formatter) -> None:
    try:
        raise ValueError("cannot use HF_TOKEN=s3cret1")
    except ValueError as error:
        made = record("started with --api-key %s", "s3cret2", api_key="s3cret3", argv="PASSWORD=s3cret4")
        made.exc_info = (type(error), error, error.__traceback__)
    text = formatter.format(made)
    assert "s3cret" not in text
    assert "ValueError: cannot use HF_TOKEN=[redacted]" in text


def test_set_up_replaces_itself_and_obeys_the_level() -> None:
    first, second = io.StringIO(), io.StringIO()
    set_up(stream=first, level="debug")
    set_up(stream=second, as_json=True, level="warning")
    log.info("not wanted")
    log.warning("wanted", extra={"model": "coder"})
    logging.getLogger("aiohttp.access").info("a request")
    assert first.getvalue() == ""
    (line,) = second.getvalue().splitlines()
    assert json.loads(line)["model"] == "coder"


def test_an_unknown_level_names_the_known_ones() -> None:
    with pytest.raises(Invalid, match="unknown log level 'loud'") as caught:
        set_up(level="loud")
    assert caught.value.fix == "use one of debug, info, warning, error"


def test_a_reader_that_went_away_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    closed = io.StringIO()
    set_up(stream=closed)
    closed.close()
    log.warning("into the void")
    assert capsys.readouterr().err == ""
