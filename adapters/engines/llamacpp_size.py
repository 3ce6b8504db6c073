"""How much memory a llama.cpp server takes on the CPU, from the header of its model file.

The sum of five parts; the figures are from llama.cpp of October 2026 with weights not mapped, and its own log says the
same for buffers (``load_tensors``, ``llama_kv_cache``, ``sched_reserve``). Measured against it: benchmarks/llamacpp_footprint.py,
figures in docs/explanation/engines.md.

* **weights**: the file. * **vocabulary**: token and merge tables as C++ strings, about 200 bytes an entry.
* **KV**: exact. All cells are allocated and cleared at load: cells x sum over layers of K and V rows. Layers with a
  sliding window hold only the window plus one micro-batch. Recurrent layers hold a state per slot.
* **checkpoints**: copies of the sliding window, or of the recurrent state, up to ``--ctx-checkpoints`` per slot; they
  appear while a conversation grows.
* **compute**: activations of a micro-batch, ``ubatch x 4 x (3 x feed_forward + 5 x embedding)`` bytes, and its
  attention mask; more without flash attention (scores of all heads) and for embeddings (logits of all positions).
"""

from dataclasses import dataclass
from pathlib import Path

from adapters.engines.gguf import Header
from adapters.engines.llamacpp_flags import CACHE_TYPES, Sizing
from scheduler.domain.units import KIB, MIB

#: Code, interpreter, threads, HTTP buffers: with a model of half a MiB the wheel holds 21 MiB, llama-server 13 MiB.
PROCESS_BYTES = 32 * MIB
ENTRY_BYTES = 200
#: Sampling of one slot: logits and candidates of every token of the vocabulary.
SLOT_BYTES_PER_TOKEN = 16
SLOT_BYTES = 256 * KIB
#: What the sum is raised by, for allocator slack and request buffers; benchmarks/llamacpp_footprint.py shows the distance.
SAFETY = 1.05
CELL_PADDING = 256
UNLIMITED_CACHE_MIB = 8192

#: Every n-th layer attends to everything, the others to a window, for files that do not say which. Architectures that
#: are not listed count as attending to everything: too much rather than too little.
WINDOW_PERIODS = {
    "cohere2": 4,
    "exaone4": 4,
    "gemma-embedding": 6,
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gpt-oss": 2,
    "llama4": 4,
    "olmo2": 4,
    "smallthinker": 4,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Bytes by what they are for."""

    weights: int
    vocabulary: int
    kv: int
    checkpoints: int
    compute: int
    extra: int  # draft model, projector, prompt cache
    largest_packed: int

    @property
    def awake(self) -> int:
        """The most that is held while serving."""
        return int((PROCESS_BYTES + self.weights + self.vocabulary + self.kv + self.checkpoints + self.compute + self.extra) * SAFETY)

    @property
    def start_peak(self) -> int:
        """The most that is held while loading: a tensor is read whole before it is packed anew."""
        return int((PROCESS_BYTES + self.weights + self.vocabulary + self.kv + self.largest_packed) * SAFETY)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's memory of the past: elements of a K and a V row per token, or bytes of state per slot."""

    key_elements: int = 0
    value_elements: int = 0
    windowed: bool = False
    state_bytes: int = 0


def measure(header: Header, weights_bytes: int, sizing: Sizing, extra_bytes: int = 0) -> Parts:
    """The parts of a model whose files have ``weights_bytes``; ``extra_bytes`` = draft model, projector, adapters."""
    layers = read_layers(header) if _is_causal(header) else []
    cells, window_cells = _cells(header, sizing)
    window = header.number("attention.sliding_window")
    cache_mib = UNLIMITED_CACHE_MIB if sizing.cache_ram_mib < 0 else sizing.cache_ram_mib
    kv = checkpoint = 0
    for layer in layers:
        row = layer.key_elements * CACHE_TYPES[sizing.key_type] + layer.value_elements * CACHE_TYPES[sizing.value_type]
        kv += int(row * (window_cells if layer.windowed else cells)) + layer.state_bytes * sizing.slots
        checkpoint += layer.state_bytes + (int(row * min(window, cells)) if layer.windowed and not sizing.swa_full else 0)
    return Parts(
        weights=weights_bytes,
        vocabulary=ENTRY_BYTES * (_vocabulary(header) + header.lengths.get("tokenizer.ggml.merges", 0)),
        kv=kv,
        checkpoints=checkpoint * sizing.checkpoints * sizing.slots,
        compute=_compute(header, sizing),
        extra=extra_bytes + cache_mib * MIB,
        largest_packed=header.largest_packed_bytes,
    )


def read_layers(header: Header) -> list[Layer]:
    """The layers that remember something."""
    count = max(0, header.number("block_count") - header.number("nextn_predict_layers"))
    count = min(count, 100_000)
    kv_heads = _per_layer(header, "attention.head_count_kv", count, _heads(header))
    window = header.number("attention.sliding_window") > 0
    state = _state_bytes(header)
    interval = header.number("full_attention_interval")
    shared = header.number("attention.shared_kv_layers")
    key, value = _row(header, "")
    key_w, value_w = _row(header, "_swa")
    layers = []
    for index in range(count):
        if state and (kv_heads[index] == 0 or (interval > 1 and (index + 1) % interval != 0)):
            layers.append(Layer(state_bytes=state))
        elif index < count - shared:
            windowed = window and _is_windowed(header, index)
            heads = kv_heads[index]
            layers.append(Layer(heads * (key_w if windowed else key), heads * (value_w if windowed else value), windowed))
    return layers


def _heads(header: Header) -> int:
    return max(1, _largest(header, "attention.head_count"))


def _largest(header: Header, key: str) -> int:
    return max((max(0, int(value)) for value in _array(header, key)), default=header.number(key))


def _array(header: Header, key: str) -> tuple[int, ...]:
    found = header.arrays.get(f"{header.architecture}.{key}", ())
    return tuple(value for value in found if isinstance(value, int))


def _per_layer(header: Header, key: str, count: int, default: int) -> list[int]:
    """A number that is the same for all layers, or an array with one for each."""
    values = [max(0, value) for value in _array(header, key)[:count]]
    if values:
        return values + [values[-1]] * (count - len(values))
    return [header.number(key, default)] * count


def _row(header: Header, suffix: str) -> tuple[int, int]:
    """Elements of one head's K and V."""
    plain = header.number("embedding_length") // _heads(header)
    key = header.number("attention.key_length" + suffix) or header.number("attention.key_length", plain)
    value = header.number("attention.value_length" + suffix) or header.number("attention.value_length", plain)
    return key, value


def _is_windowed(header: Header, index: int) -> bool:
    pattern = _array(header, "attention.sliding_window_pattern")
    if pattern:
        return bool(pattern[index % len(pattern)])
    period = header.number("attention.sliding_window_pattern") or WINDOW_PERIODS.get(header.architecture, 1)
    return index % period < period - 1


def _is_causal(header: Header) -> bool:
    """Encoders (BERT and its kin) see a text at once: no KV cache, no logits."""
    return header.scalars.get(f"{header.architecture}.attention.causal", True) is not False


def _state_bytes(header: Header) -> int:
    """Bytes of one recurrent layer's state for one sequence (always 32-bit floats); 0 = no such layers."""
    inner, state = header.number("ssm.inner_size"), header.number("ssm.state_size")
    if inner:
        convolution = max(0, header.number("ssm.conv_kernel") - 1) * (inner + 2 * header.number("ssm.group_count") * state)
        return 4 * (convolution + inner * state)
    head = header.number("wkv.head_size")
    return 4 * header.number("embedding_length") * (head + 2) if head else 0


def _cells(header: Header, sizing: Sizing) -> tuple[int, int]:
    """Cells of layers that attend to everything, and of layers with a window, over all slots."""
    context = sizing.context or header.number("context_length", 4096)
    streams = 1 if sizing.unified else sizing.slots
    each = _padded(_padded(context) // streams)
    sequences = sizing.slots if sizing.unified else 1
    window = header.number("attention.sliding_window") * sequences + min(sizing.batch, sizing.ubatch)
    return each * streams, (each if sizing.swa_full else min(each, _padded(window))) * streams


def _padded(cells: int) -> int:
    return -(-cells // CELL_PADDING) * CELL_PADDING


def _vocabulary(header: Header) -> int:
    return header.lengths.get("tokenizer.ggml.tokens", 0) or header.number("vocab_size")


def _compute(header: Header, sizing: Sizing) -> int:
    ubatch = min(sizing.batch, sizing.ubatch)
    cells, window_cells = _cells(header, sizing)
    if not sizing.unified:
        cells, window_cells = cells // sizing.slots, window_cells // sizing.slots
    experts = header.number("expert_used_count")
    forward = max(_largest(header, "feed_forward_length"), header.number("expert_feed_forward_length") * experts)
    total = ubatch * 4 * (3 * forward + 5 * header.number("embedding_length"))
    total += ubatch * 2 * (cells + (window_cells if header.number("attention.sliding_window") else 0))
    if not sizing.flash:
        total += ubatch * 4 * cells * (_heads(header) + 1)
    vocabulary = _vocabulary(header)
    if sizing.pooled and _is_causal(header):
        total += 2 * ubatch * 4 * vocabulary  # logits of all positions, once computed and once as output
    return total + sizing.slots * (SLOT_BYTES + vocabulary * SLOT_BYTES_PER_TOKEN)


def guess_without_header(files: list[Path]) -> int:
    """Bytes of a model whose file cannot be understood: its size and half as much again, at least 1 GiB."""
    size = sum(path.stat().st_size for path in files if path.is_file())
    return max(1024 * MIB, size * 3 // 2 + PROCESS_BYTES)
