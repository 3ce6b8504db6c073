"""The reference page and the example say what the schema says."""

import re
from pathlib import Path

import pytest

from scheduler.config.fields import kind_of, shown_default
from scheduler.config.later import LATER
from scheduler.config.reference import shown_path, update
from scheduler.config.schema import ConfigSection
from scheduler.config.walk import all_keys, generic_path
from tests.support.config import load_text, problems_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/configuration.md"
EXAMPLE = ROOT / "examples/hotseat.yaml"

_SWITCHED_OFF = re.compile(r"^( *)#(?=[a-z]|  +[a-z])", re.MULTILINE)


def documented_keys(page: str) -> list[str]:
    tables = "".join(re.findall(r"<!-- table (?:settings|models) -->(.*?)<!-- end -->", page, re.DOTALL))
    return re.findall(r"^\| `([^`]+)` \|", tables, re.MULTILINE)


def test_every_key_is_documented_and_no_other() -> None:
    assert documented_keys(PAGE.read_text()) == [shown_path(key.path) for key in all_keys()]


def test_the_tables_are_up_to_date() -> None:
    page = PAGE.read_text()
    assert update(page) == page, "run: python -m scheduler.config.reference docs/reference/configuration.md"
    assert page.count("<!-- table ") == 5


def test_a_page_that_drifted_is_noticed() -> None:
    page = PAGE.read_text()
    without = re.sub(r"^\| `gateway\.keepalive` .*\n", "", page, flags=re.MULTILINE)
    assert without != page
    assert "gateway.keepalive" not in documented_keys(without)
    invented = page.replace("`gateway.keepalive`", "`gateway.keepalives`")
    assert documented_keys(invented) != documented_keys(page)
    assert update(without) == update(invented) == page


def test_every_key_has_a_type_and_a_meaning() -> None:
    for key in all_keys():
        assert kind_of(key.field), key.path
        assert key.field.description, key.path
        assert key.field.description.endswith("."), key.path


def test_documented_defaults_are_the_real_ones() -> None:
    """Each written out at its place changes nothing."""
    written = {key.path: shown_default(key.field) for key in all_keys() if "*" not in key.path and "[]" not in key.path}
    tree: dict[str, dict[str, str]] = {}
    for path, default in written.items():
        if default and path not in ("state_dir", "timezone"):
            section, _, name = path.rpartition(".")
            tree.setdefault(section, {})[name] = default
    lines = [f"{name}: {value}" for name, value in tree.pop("").items()]
    lines += [f"{section}: {{{', '.join(f'{name}: {value}' for name, value in keys.items())}}}" for section, keys in tree.items()]
    assert len(tree) == 6
    assert load_text("\n".join(lines)).settings == load_text("").settings

    model = {key.path.removeprefix("models.*."): shown_default(key.field) for key in all_keys() if key.path.startswith("models.*.")}
    explicit = ", ".join(f"{name}: {value}" for name, value in model.items() if value and "." not in name and "defaults." not in value)
    base = "models: {m: {engine: llamacpp, model: /m"
    assert load_text(f"{base}, {explicit}}}}}").models == load_text(f"{base}}}}}").models


def test_keys_for_later_are_no_keys_of_now() -> None:
    now = {key.path for key in all_keys()}
    assert now.isdisjoint(LATER)
    for path in LATER:
        parent = path.rpartition(".")[0].removesuffix("[]").removesuffix(".*")
        assert parent == "" or parent in now, path


def test_paths_of_places() -> None:
    assert generic_path(("models", "a.b", "sleep_steps", 3, "post")) == "models.*.sleep_steps[].post"
    assert generic_path(("devices", "override", "cpu0", "nope")) == "devices.override.*.nope"
    assert generic_path(("models", "m", "env", "X")) == "models.*.env.*"
    assert generic_path(("nope", "x")) == "nope.x"


def test_the_example_is_valid_as_it_stands() -> None:
    loaded = load_text(EXAMPLE.read_text())
    assert len(loaded.models) == 4
    assert len(loaded.devices) == 1


def test_the_example_is_valid_with_everything_switched_on(tmp_path: Path) -> None:
    (tmp_path / "my-server.env").write_text("A=1\n")
    text = _SWITCHED_OFF.sub(r"\1", EXAMPLE.read_text())
    assert text.count("#") < EXAMPLE.read_text().count("#") - 30
    loaded = load_text(text, path=str(tmp_path / "hotseat.yaml"))
    assert load_text(EXAMPLE.read_text()).settings.gateway == loaded.settings.gateway


def test_the_example_shows_every_key() -> None:
    text = EXAMPLE.read_text()
    for key in all_keys():
        name = key.path.rpartition(".")[2]
        assert re.search(rf"(^|[ #{{]){name}:", text, re.MULTILINE) or name == "*", key.path


def test_the_example_holds_mistakes_to_be_found() -> None:
    assert problems_of(EXAMPLE.read_text().replace("engine: llamacpp", "engine: lamacpp")) != ()


@pytest.mark.parametrize("section", [ConfigSection])
def test_sections_have_no_field_that_is_not_a_key(section: type[ConfigSection]) -> None:
    top = [key.path for key in all_keys() if "." not in key.path]
    assert len(top) == len(section.model_fields)
