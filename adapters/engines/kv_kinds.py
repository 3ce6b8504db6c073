"""The kinds of memory that a model's layers keep of the past, whatever file said so: pure."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a layer keeps of the past."""

    FULL = "full"  # every token's keys and values
    SLIDING = "sliding"  # those of the last ``window`` tokens, or of the current chunk of as many
    MLA = "mla"  # one latent vector a token, for all heads
    CROSS = "cross"  # keys and values of the encoder's ``window`` positions
    LINEAR = "linear"  # a state of fixed size for each sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer's memory, of the whole model (no tensor parallelism yet).

    Attention: ``kv_heads`` heads with ``key_dim`` + ``value_dim`` elements a token each. MLA: ``key_dim`` is the latent's width
    (``rope_dim`` of it positional), and ``index_bytes`` a token go to the index of sparse attention. Linear: elements of one sequence's
    convolution and recurrent state, the latter in ``state_dtype`` (empty = the model's).
    """

    kind: Kind
    kv_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    rope_dim: int = 0
    index_bytes: int = 0
    window: int = 0
    convolution: int = 0
    recurrent: int = 0
    state_dtype: str = ""
