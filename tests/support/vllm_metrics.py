"""The fake vLLM's /metrics."""

from collections.abc import Iterable, Mapping

STATES = ("awake", "weights_offloaded", "discard_all")
OLD_NAMES = {"vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc"}


def text(model: str, gauges: Mapping[str, float], counters: Mapping[str, float], state: str | None, *, old_names: bool) -> str:
    """Prometheus text. ``state`` is one of STATES, None = none of them (level 0)."""
    labels = f'engine="0",model_name="{model}"'
    lines: list[str] = []
    for name, value in gauges.items():
        lines += _family(OLD_NAMES.get(name, name) if old_names else name, "gauge", [f"{{{labels}}} {value}"])
    if not old_names:
        shown = [f'{{{labels},sleep_state="{each}"}} {1.0 if each == state else 0.0}' for each in STATES]
        lines += _family("vllm:engine_sleep_state", "gauge", shown)
    for name, value in counters.items():
        lines += _family(name, "counter", [f"{{{labels}}} {value}"])
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, samples: Iterable[str]) -> list[str]:
    suffix = "_total" if kind == "counter" else ""
    return [f"# HELP {name} of the fake", f"# TYPE {name} {kind}", *(f"{name}{suffix}{sample}" for sample in samples)]
