"""Take secrets out of what people and log collectors get to see. Pure.

A value is hidden when its *name* matches TOKEN, KEY, SECRET or PASSWORD, in any case: ``HF_TOKEN=abc`` becomes
``HF_TOKEN=[redacted]``. Counts of tokens (``max_tokens=128``) are no secrets and stay. Bearer credentials, passwords
inside URLs and keys of well-known forms (``hs_...``, ``hf_...``, ``sk-...``) are hidden wherever they stand.
"""

import re

HIDDEN = "[redacted]"

_SECRET_NAME = re.compile(r"TOKEN|KEY|SECRET|PASSWORD", re.IGNORECASE)
_TOKEN_COUNT = re.compile(r"tokens?(?:$|[_-])", re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,6})?")

# NAME=value, NAME: value, "NAME": "value", --name value (without a sign only after a flag: prose such as "the key office" stays,
# and takes no NAME=value that follows it along). Words are taken whole and possessively: linear in the text.
_NAMED = re.compile(
    r"""(?<![\w.-])(?=[\w.-]*?(?:TOKEN|KEY|SECRET|PASSWORD))(?P<flag>(?=-))?(?P<name>[\w.-]++)
        (?P<between>["']?\s{0,4}[=:]\s{0,4}|(?(flag)\s{1,4}(?=["'\w])|(?!)))
        (?P<value>\[redacted\]|"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+'|[^\s,;&"'}\])]++)""",
    re.IGNORECASE | re.VERBOSE,
)
_SCHEME = re.compile(r"\b(Bearer|Basic)\s+[^\s\"',;]+", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(?<=://)([^\s/:@]{0,256}):[^\s/@]{1,1024}@")
_KEY = re.compile(r"\b(?:hs_|hf_|sk-)[A-Za-z0-9_-]{8,}")


def is_secret_name(name: str) -> bool:
    """Whether a value of this name must not be shown."""
    return _SECRET_NAME.search(name) is not None


def redact_value(name: str, value: str) -> str:
    """``value``, or the placeholder when its name says secret. An empty value stays: it tells that nothing is set."""
    if not value or not is_secret_name(name) or _counts_tokens(name, value):
        return value
    return HIDDEN


def redact_text(text: str) -> str:
    """A log line, a command line or a message without its secrets."""
    text = _SCHEME.sub(rf"\1 {HIDDEN}", text)
    text = _URL_PASSWORD.sub(rf"\1:{HIDDEN}@", text)
    text = _KEY.sub(HIDDEN, text)
    return _NAMED.sub(_hide, text)


def _counts_tokens(name: str, value: str) -> bool:
    return _TOKEN_COUNT.search(name) is not None and _NUMBER.fullmatch(value) is not None


def _hide(match: re.Match[str]) -> str:
    name, between, value = match["name"], match["between"], match["value"]
    quote = value[0] if value[0] in "\"'" else ""
    bare = value[1:-1] if quote and value.endswith(quote) else value
    return f"{name}{between}{quote}{redact_value(name.lstrip('-'), bare)}{quote}"
