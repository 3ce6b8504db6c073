"""How a model's tensors are spread over the devices of a gang: pure.

vLLM shards matrices by heads, columns or rows, and keeps a copy on every device of what is too small or cannot be cut: norms, routers, the
down projections of latent attention, and key-value heads when there are fewer of them than devices.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from adapters.engines.kv_bytes import stages
from adapters.engines.safetensors import Tensor

_REPLICATED: Final = re.compile(
    r"norm|(^|\.)ln_?\w*\.|\.(?:gate|router|wg)\.(?:weight|bias|wg\.weight)$|e_score_correction_bias|shared_expert_gate"
    r"|kv_a_proj_with_mqa|\.q_a_proj\.|fused_qkv_a_proj|\.indexer\.|position_embeddings|token_type_embeddings|\.wpe\."
)
_KEYS_AND_VALUES: Final = re.compile(r"\.(?:k_proj|v_proj|key_proj|value_proj|wk|wv)\.")
_FUSED: Final = re.compile(r"\.(?:qkv_proj|query_key_value|Wqkv|c_attn|qkv)\.")
_VISION: Final = re.compile(r"(?:^|\.)(?:visual|vision_tower|vision_model|vision_encoder|audio_tower|multi_modal_projector)\.")
_LAYER: Final = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|layer)\.(\d+)\.")
_NEXT_TOKENS: Final = re.compile(r"(?:^|\.)mtp\.")
_HEAD: Final = re.compile(r"(?:^|\.)(?:lm_head|embed_out)\.weight$")


class Place(StrEnum):
    """Where a tensor belongs."""

    LAYERS = "layers"
    OUTSIDE = "outside"  # embedding, head, final norm
    VISION = "vision"
    NEXT_TOKENS = "next_tokens"  # layers that guess further tokens: loaded only for speculative decoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Bytes of one place: cut evenly, kept whole on every device, and cut by key-value heads."""

    sharded: int = 0
    replicated: int = 0
    heads: int = 0

    @property
    def total(self) -> int:
        """Bytes on one device alone."""
        return self.sharded + self.replicated + self.heads

    def on_device(self, tensor_parallel: int, kv_heads: int) -> int:
        """Bytes on each of ``tensor_parallel`` devices: with ``kv_heads`` fewer than devices each keeps a whole head."""
        devices = max(1, tensor_parallel)
        heads = max(1, kv_heads)
        of_heads = -(-self.heads * -(-heads // devices) // heads)
        return -(-self.sharded // devices) + self.replicated + of_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """All tensors of a model, by place."""

    layers: Part = Part()
    outside: Part = Part()
    vision: Part = Part()
    next_tokens: Part = Part()
    largest: int = 0

    @property
    def total(self) -> int:
        """Bytes of the model, without the layers for further tokens."""
        return self.layers.total + self.outside.total + self.vision.total

    def on_device(
        self, *, tensor_parallel: int = 1, pipeline_parallel: int = 1, layers: int = 0, kv_heads: int = 0, spread_vision: bool = True
    ) -> int:
        """Bytes on the fullest device. A pipeline cuts the layers; that the first stage holds the embedding and the last the head is
        counted as if one held both. Without ``spread_vision`` every device keeps the whole vision part (``--mm-encoder-tp-mode data``)."""
        most = max(stages(layers, pipeline_parallel)) if layers else 1
        inside = -(-self.layers.on_device(tensor_parallel, kv_heads) * most // max(1, layers))
        vision = self.vision.on_device(tensor_parallel, 0) if spread_vision else self.vision.total
        return inside + self.outside.on_device(tensor_parallel, kv_heads) + vision

    def scaled(self, numerator: int, denominator: int) -> "Split":
        """As if every element had ``numerator / denominator`` of its size: another data type."""

        def of(part: Part) -> Part:
            return Part(**{name: getattr(part, name) * numerator // denominator for name in ("sharded", "replicated", "heads")})

        largest = self.largest * numerator // denominator
        return Split(
            layers=of(self.layers), outside=of(self.outside), vision=of(self.vision), next_tokens=of(self.next_tokens), largest=largest
        )


def split(tensors: Iterable[Tensor], *, kv_heads: int, query_heads: int, tied: bool, guessing_from: int = 0) -> Split:
    """Sort ``tensors`` by their names. With ``tied`` embeddings a stored output matrix is left out: the engine keeps one of the two.

    Layers from number ``guessing_from`` on guess further tokens (0 = there are none).
    """
    parts: dict[Place, dict[str, int]] = {place: {"sharded": 0, "replicated": 0, "heads": 0} for place in Place}
    largest = embedding = head = 0
    for tensor in tensors:
        size = tensor.size_bytes
        if _HEAD.search(tensor.name):
            head += size
        embedding = embedding or "embed" in tensor.name
        largest = max(largest, size)
        part = parts[_place(tensor.name, guessing_from)]
        if _REPLICATED.search(tensor.name):
            part["replicated"] += size
        elif _KEYS_AND_VALUES.search(tensor.name):
            part["heads"] += size
        elif _FUSED.search(tensor.name):
            of_heads = size * 2 * kv_heads // max(1, query_heads + 2 * kv_heads)
            part["heads"] += of_heads
            part["sharded"] += size - of_heads
        else:
            part["sharded"] += size
    if tied and embedding:
        parts[Place.OUTSIDE]["sharded"] -= min(head, parts[Place.OUTSIDE]["sharded"])
    made = {place: Part(**numbers) for place, numbers in parts.items()}
    return Split(
        layers=made[Place.LAYERS],
        outside=made[Place.OUTSIDE],
        vision=made[Place.VISION],
        next_tokens=made[Place.NEXT_TOKENS],
        largest=largest,
    )


def unsorted(total_bytes: int) -> Split:
    """A model of which only the size is known."""
    return Split(layers=Part(sharded=total_bytes))


def with_next_tokens(found: Split) -> Split:
    """With the layers that guess further tokens loaded too."""
    return replace(found, outside=_sum(found.outside, found.next_tokens), next_tokens=Part())


def _sum(one: Part, other: Part) -> Part:
    return Part(sharded=one.sharded + other.sharded, replicated=one.replicated + other.replicated, heads=one.heads + other.heads)


def _place(name: str, guessing_from: int) -> Place:
    if _VISION.search(name):
        return Place.VISION
    if _NEXT_TOKENS.search(name):
        return Place.NEXT_TOKENS
    match = _LAYER.search(name)
    if match is None:
        return Place.OUTSIDE
    return Place.NEXT_TOKENS if guessing_from and int(match[1]) >= guessing_from else Place.LAYERS
