"""What clients say in headers, which headers cross, and how errors are told."""

import json
import math

import pytest
from multidict import CIMultiDict

from scheduler.domain.errors import Conflict, HotseatError, Invalid, NotFound, Permanent, Temporary
from scheduler.domain.model import ModelClass
from scheduler.gateway.answer import error_event
from scheduler.gateway.errors import RULES, BadHeader, BadRequest, envelope, retry_headers, rule_of
from scheduler.gateway.headers import media_type, to_client, to_engine
from scheduler.gateway.hold import waiting_comment
from scheduler.gateway.wishes import MAX_PATIENCE_S, lower_class, read_wishes, sane_request_id
from scheduler.orchestrator.readiness import Standing
from scheduler.upstream.pool import Target


@pytest.mark.parametrize(
    ("headers", "patience_s"),
    [
        ({}, 600.0),
        ({"x-hotseat-max-wait": "30"}, 30.0),
        ({"x-hotseat-max-wait": "0"}, 0.0),
        ({"x-hotseat-max-wait": "0.5"}, 0.5),
        ({"x-hotseat-max-wait": "1e9"}, MAX_PATIENCE_S),
        ({"x-hotseat-max-wait": "inf"}, MAX_PATIENCE_S),
        ({"x-stainless-read-timeout": "600"}, 595.0),
        ({"x-stainless-read-timeout": "20.0"}, 15.0),
        ({"x-stainless-read-timeout": "4"}, 2.0),
        ({"x-stainless-read-timeout": "None"}, 600.0),
        ({"x-stainless-read-timeout": "-1"}, 600.0),
        ({"x-stainless-read-timeout": "nan"}, 600.0),
        ({"x-hotseat-max-wait": "700", "x-stainless-read-timeout": "60"}, 700.0),
    ],
)
def test_how_long_a_client_waits(headers: dict[str, str], patience_s: float) -> None:
    assert read_wishes(CIMultiDict(headers), default_patience_s=600.0).patience_s == patience_s


@pytest.mark.parametrize(
    "headers",
    [
        {"x-hotseat-max-wait": "soon"},
        {"x-hotseat-max-wait": ""},
        {"x-hotseat-max-wait": "-1"},
        {"x-hotseat-max-wait": "nan"},
        {"x-hotseat-max-wait": "30s"},
        {"x-hotseat-class": "urgent"},
        {"x-hotseat-keepalive": "maybe"},
    ],
)
def test_a_header_that_means_nothing_is_refused_by_name(headers: dict[str, str]) -> None:
    with pytest.raises(BadHeader, match=next(iter(headers))) as caught:
        read_wishes(CIMultiDict(headers), default_patience_s=600.0)
    assert caught.value.code == "invalid_header"


def test_class_and_comments() -> None:
    wishes = read_wishes(CIMultiDict({"X-Hotseat-Class": " Batch ", "X-Hotseat-Keepalive": "OFF"}), default_patience_s=1)
    assert (wishes.model_class, wishes.keepalive) == (ModelClass.BATCH, False)
    wishes = read_wishes(CIMultiDict(), default_patience_s=1)
    assert (wishes.model_class, wishes.keepalive) == (None, True)


@pytest.mark.parametrize(
    ("own", "wished", "result"),
    [
        (ModelClass.INTERACTIVE, ModelClass.BATCH, ModelClass.BATCH),
        (ModelClass.BATCH, ModelClass.INTERACTIVE, ModelClass.BATCH),
        (ModelClass.STANDARD, None, ModelClass.STANDARD),
        (ModelClass.STANDARD, ModelClass.STANDARD, ModelClass.STANDARD),
    ],
)
def test_a_header_only_lowers_the_class(own: ModelClass, wished: ModelClass | None, result: ModelClass) -> None:
    assert lower_class(own, wished) is result


@pytest.mark.parametrize("value", ["abc", "req-1.2:3/4", "A" * 128, "01HZX_9"])
def test_sane_request_ids_are_kept(value: str) -> None:
    assert sane_request_id(value) == value


@pytest.mark.parametrize("value", [None, "", "A" * 129, "a b", "a\tb", "-x", "\u00e9", "a\n", '"'])
def test_others_are_not(value: str | None) -> None:
    assert sane_request_id(value) is None


def test_the_clients_credentials_never_reach_an_engine() -> None:
    client = CIMultiDict(
        {
            "Authorization": "Bearer secret",
            "X-Api-Key": "secret",
            "Api-Key": "secret",
            "Cookie": "secret",
            "Proxy-Authorization": "secret",
            "Connection": "keep-alive, X-Drop",
            "X-Drop": "secret",
            "X-Hotseat-Class": "batch",
            "Transfer-Encoding": "chunked",
            "Content-Type": "text/plain",
            "Accept-Encoding": "gzip",
            "X-Request-Id": "theirs",
            "X-Keep": "1",
            "User-Agent": "u",
        }
    )
    assert to_engine(client, api_key="", request_id="r1") == [
        ("X-Keep", "1"),
        ("User-Agent", "u"),
        ("Content-Type", "application/json"),
        ("Accept-Encoding", "identity"),
        ("X-Request-Id", "r1"),
    ]
    assert ("Authorization", "Bearer k") in to_engine(client, api_key="k", request_id="r1")


def test_headers_back_to_the_client() -> None:
    engine = [
        ("Content-Type", "text/event-stream; charset=utf-8"),
        ("Set-A", "1"),
        ("Set-A", "2"),
        ("Content-Length", "3"),
        ("Keep-Alive", "timeout=5"),
        ("Connection", "X-B"),
        ("X-B", "1"),
        ("x-request-id", "engine's"),
        ("X-Hotseat-Woke", "7"),
    ]
    passed = to_client(engine, {"x-request-id": "ours", "x-hotseat-woke": "0"})
    assert list(passed.items()) == [
        ("Content-Type", "text/event-stream; charset=utf-8"),
        ("Set-A", "1"),
        ("Set-A", "2"),
        ("x-request-id", "ours"),
        ("x-hotseat-woke", "0"),
    ]
    assert media_type(engine) == "text/event-stream"
    assert media_type([]) == ""


def test_every_connection_header_names_what_ends_here() -> None:
    headers = CIMultiDict([("Connection", "keep-alive"), ("Connection", "X-Hop"), ("X-Hop", "1"), ("X-Stays", "1")])
    names = {name for name, _ in to_engine(headers, api_key="", request_id="r")}
    assert ("X-Hop" in names, "X-Stays" in names) == (False, True)


def test_an_engine_does_not_open_the_daemon_to_web_pages() -> None:
    assert "Access-Control-Allow-Origin" not in to_client([("access-control-allow-origin", "*"), ("X-Engine", "1")], {})


def test_an_error_has_all_four_keys_and_its_fix() -> None:
    error = Permanent("It failed 3 times.", code="model_failed", fix="Run `hotseat status m`.")
    told = json.loads(envelope(error))
    message = "It failed 3 times. Run `hotseat status m`."
    assert told == {"error": {"message": message, "type": "server_error", "param": "model", "code": "model_failed"}}
    assert json.loads(envelope(BadRequest("x", param="stream")))["error"]["param"] == "stream"
    assert b"\n" not in envelope(Invalid("two\nlines"))


@pytest.mark.parametrize(
    ("error", "status", "headers"),
    [
        (Temporary("", retry_after_s=3.2, code="queue_full"), 429, {"Retry-After": "4"}),
        (Temporary("", retry_after_s=0, code="wait_timeout"), 503, {"Retry-After": "1"}),
        (Temporary("", retry_after_s=9999, code="model_starting"), 503, {"Retry-After": "120"}),
        (Temporary("", retry_after_s=math.inf, code="model_backoff"), 503, {"Retry-After": "120"}),
        (Temporary("", retry_after_s=2, code="store_unavailable"), 503, {"Retry-After": "2"}),
        (Temporary("", retry_after_s=2, code="never_heard_of"), 503, {"Retry-After": "2"}),
        (Temporary("", retry_after_s=2, code="engine_lost"), 502, {}),
        (Permanent("", code="model_failed"), 503, {"x-should-retry": "false"}),
        (Conflict("", code="model_disabled"), 503, {"x-should-retry": "false"}),
        (Permanent("", code="does_not_fit"), 507, {"x-should-retry": "false"}),
        (Permanent("", code="never_heard_of"), 503, {"x-should-retry": "false"}),
        (NotFound("", code="model_not_found"), 404, {}),
        (NotFound(""), 404, {}),
        (Invalid(""), 400, {}),
        (Conflict(""), 409, {}),
        (HotseatError(""), 500, {}),
    ],
)
def test_status_and_retry_of_an_error(error: HotseatError, status: int, headers: dict[str, str]) -> None:
    assert rule_of(error).status == status
    assert retry_headers(error) == headers


def test_codes_of_the_design_have_their_status() -> None:
    expected = {
        404: ["model_not_found"],
        400: ["invalid_json", "context_length_exceeded"],
        413: ["body_too_large"],
        429: ["queue_full", "rate_limited", "quota_exceeded"],
        503: ["model_starting", "wait_timeout", "model_backoff", "store_unavailable", "model_failed", "model_disabled"],
        502: ["engine_lost"],
        507: ["does_not_fit"],
    }
    for status, codes in expected.items():
        assert {RULES[code].status for code in codes} == {status}


@pytest.mark.parametrize(
    ("body", "message", "kind"),
    [
        (b'{"error":{"message":"too long","type":"BadRequestError","param":null,"code":400}}', "too long", "BadRequestError"),
        (b'{"object":"error","message":"too long","type":"BadRequestError","code":400}', "too long", "BadRequestError"),
        (b'{"detail":"Not Found"}', "Not Found", "invalid_request_error"),
        (b"<h1>oops</h1>", "<h1>oops</h1>", "invalid_request_error"),
        (b"\xff" * 2000, "\ufffd" * 500, "invalid_request_error"),
        (b"[1]", "[1]", "invalid_request_error"),
        (b'{"error":"plain"}', '{"error":"plain"}', "invalid_request_error"),
    ],
)
def test_an_engines_error_as_an_event(body: bytes, message: str, kind: str) -> None:
    told = json.loads(error_event(400, body))["error"]
    assert told == {"message": f"The engine answered 400: {message}", "type": kind, "param": None, "code": "engine_error"}


@pytest.mark.parametrize(
    ("standing", "text"),
    [
        (Standing(position=2, eta_s=4.123), "waiting position=2 eta=4.1s"),
        (Standing(position=1, eta_s=None), "waiting position=1 eta=unknown"),
        (Standing(position=1, eta_s=-3), "waiting position=1 eta=0.0s"),
    ],
)
def test_the_words_of_a_waiting_comment(standing: Standing, text: str) -> None:
    assert waiting_comment(standing) == text


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://127.0.0.1:8000", Target("127.0.0.1", 8000, "")),
        ("http://127.0.0.1:8000/", Target("127.0.0.1", 8000, "")),
        ("http://[::1]:80/base/", Target("::1", 80, "/base")),
        ("http://localhost", Target("localhost", 80, "")),
    ],
)
def test_engine_urls(url: str, target: Target) -> None:
    assert Target.of(url) == target


@pytest.mark.parametrize(
    "url", ["", "https://127.0.0.1:1", "127.0.0.1:80", "http://", "http://h:99999", "http://h:x", "http://u:p@h:1", "http://h:1/?a=1"]
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        Target.of(url)
    assert caught.value.code == "bad_engine_url"
