"""docs/reference/errors.md says what the table in the code says."""

import re
from pathlib import Path

from scheduler.gateway.app import ENDPOINTS
from scheduler.gateway.errors import RULES

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
_ROW = re.compile(r"^\| `([a-z_]+)` \| (\d+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def _retry(status: int, retry: bool | None) -> str:
    if retry is not None:
        return "after `Retry-After`" if retry else "never"
    return "client decides" if status >= 500 or status == 408 else "no"


def test_every_error_code_is_documented_with_its_status_and_retry() -> None:
    rows = {code: (int(status), retry) for code, status, retry, _ in _ROW.findall((REFERENCE / "errors.md").read_text())}
    assert rows == {code: (rule.status, _retry(rule.status, rule.retry)) for code, rule in RULES.items()}


def test_every_route_is_documented() -> None:
    text = (REFERENCE / "http.md").read_text()
    for endpoint in ENDPOINTS:
        assert f"`POST /v1/{endpoint}`" in text
