"""Read a Hugging Face ``config.json`` that anybody may have written: numbers that are numbers, lists that are lists.

A value of the wrong type counts as absent. The rules are those of vLLM 0.33 (``model_arch_config_convertor.py``, ``config/model.py``)
and of the configuration classes of transformers 5.24.
"""

from collections.abc import Mapping
from typing import Final

Config = Mapping[str, object]

#: Where multimodal models keep their language model; the audio-and-text "thinker" holds one in turn.
_NESTED: Final = ("text_config", "llm_config", "language_config", "thinker_config")
_LENGTH_KEYS: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
DEFAULT_LENGTH: Final = 2048  # what vLLM takes when no key says
#: More than any model has: a larger number is no number.
MAX_LAYERS: Final = 4096
MAX_NUMBER: Final = 1 << 40

#: Bytes of an element, by the names that config files and flags use.
DTYPE_BYTES: Final[Mapping[str, int]] = {
    "float64": 8,
    "float32": 4,
    "float": 4,
    "bfloat16": 2,
    "float16": 2,
    "half": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}

ENCODER_TYPES: Final = frozenset(
    {
        "albert",
        "bert",
        "camembert",
        "clip",
        "clip_text_model",
        "colbert",
        "deberta",
        "deberta-v2",
        "distilbert",
        "electra",
        "ernie",
        "eurobert",
        "gte",
        "jina-bert",
        "modernbert",
        "mpnet",
        "new",
        "nomic_bert",
        "roberta",
        "siglip",
        "splade",
        "t5gemma-encoder",
        "vit",
        "xlm",
        "xlm-roberta",
        "xlm-roberta-xl",
    }
)
#: Ends of class names, first match wins, as vLLM decides between generating and pooling.
_SUFFIXES: Final[tuple[tuple[str, bool], ...]] = (
    ("ForCausalLM", False),
    ("ForConditionalGeneration", False),
    ("ChatModel", False),
    ("ChatGLMModel", False),
    ("LMHeadModel", False),
    ("ForMaskedLM", True),
    ("ForTextEncoding", True),
    ("EmbeddingModel", True),
    ("ForSequenceClassification", True),
    ("ForTokenClassification", True),
    ("ForImageClassification", True),
    ("ForRewardModeling", True),
    ("RewardModel", True),
    ("ClassificationModel", True),
    ("Model", True),
)
_TIED_TYPES: Final = ("gemma", "gpt2", "gpt_bigcode", "bloom", "falcon", "opt", "mpt", "cohere", "t5", "bart", "whisper", "starcoder2")


def mapping(config: Config, key: str) -> Config:
    """The object under ``key``; empty when there is none."""
    found = config.get(key)
    return found if isinstance(found, Mapping) else {}


def text_config(config: Config) -> Config:
    """The language model's part of ``config``: nested in multimodal models, else all of it."""
    for _ in range(3):  # thinker_config.text_config is two deep; a file that nests without end is cut off
        inner = next((part for key in _NESTED if (part := mapping(config, key))), None)
        if inner is None:
            break
        config = inner
    return config


def is_number(value: object) -> bool:
    """Whether it can be a count: an integer from 0 to more than any model has (True is no number)."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER


def number(config: Config, *keys: str, default: int = 0) -> int:
    """The first of ``keys`` that holds a count. ``null``, text and negative numbers count as absent."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and is_number(value):
            return value
    return default


def positive(config: Config, *keys: str, default: int = 0) -> int:
    """As :func:`number`, but 0 counts as absent too (``head_dim: 0``)."""
    return next((found for key in keys if (found := number(config, key)) > 0), default)


def per_layer(config: Config, *keys: str) -> tuple[int, ...]:
    """The first of ``keys`` that holds a list of counts, one for each layer; else empty."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, list) and value and all(is_number(item) for item in value):
            return tuple(value[:MAX_LAYERS])
    return ()


def words(config: Config, *keys: str) -> tuple[str, ...]:
    """The first of ``keys`` that holds a list of texts; else empty."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            return tuple(value[:MAX_LAYERS])
    return ()


def word(config: Config, *keys: str) -> str:
    """The first of ``keys`` that holds a text; else empty."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, str) and value:
            return value
    return ""


def model_type(config: Config) -> str:
    """``model_type`` of the language model."""
    return word(config, "model_type")


def layer_count(config: Config) -> int:
    """Layers of the language model; of an encoder-decoder those of the decoder."""
    keys: tuple[str, ...] = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_transformer_layers")
    if config.get("is_encoder_decoder") is True:
        keys = ("decoder_layers", "num_decoder_layers", *keys)
    return min(MAX_LAYERS, positive(config, *keys))


def hidden_size(config: Config) -> int:
    """Width of the hidden state."""
    return positive(config, "hidden_size", "d_model", "n_embd", "model_dim", "dim")


def query_heads(config: Config) -> int:
    """Attention heads; the largest number where layers differ."""
    keys: tuple[str, ...] = ("num_attention_heads", "n_head", "n_heads", "num_heads", "num_query_heads")
    if config.get("is_encoder_decoder") is True:
        keys = ("decoder_attention_heads", *keys)
    return positive(config, *keys) or max(per_layer(config, *keys), default=0)


def intermediate_size(config: Config) -> int:
    """Width of the feed-forward part; the largest where layers differ, four times the hidden size when nothing says."""
    keys = ("intermediate_size", "ffn_dim", "n_inner", "decoder_ffn_dim", "ffn_hidden_size", "d_ff")
    found = positive(config, *keys) or max(per_layer(config, *keys), default=0)
    return found or positive(mapping(config, "ffn_config"), "ffn_hidden_size", default=4 * hidden_size(config))


def architectures(config: Config) -> tuple[str, ...]:
    """Class names, of the outer configuration."""
    return words(config, "architectures")


def is_pooling(config: Config) -> bool:
    """Whether its class answers with vectors or scores rather than with text; False when no class says."""
    for name in architectures(config):
        for suffix, pools in _SUFFIXES:
            if name.endswith(suffix):
                return pools
    return False


def is_encoder_only(config: Config) -> bool:
    """Whether it sees a text at once and so caches nothing: BERT and its kin, and decoders trained to look both ways."""
    text = text_config(config)
    if text.get("is_encoder_decoder") is True or text.get("is_decoder") is True:
        return False
    if text.get("is_causal") is False or text.get("use_bidirectional_attention") is True:
        return True
    return model_type(text) in ENCODER_TYPES or model_type(config) in ENCODER_TYPES


def is_tied(config: Config) -> bool:
    """Whether the embedding serves as output matrix too; the class's default where the file does not say."""
    text = text_config(config)
    for part in (text, config):
        said = part.get("tie_word_embeddings")
        if isinstance(said, bool):
            return said
    return model_type(text).startswith(_TIED_TYPES)


def dtype_of(config: Config) -> str:
    """The data type that the file names (``torch_dtype`` or ``dtype``), plain (``bfloat16``); empty when it does not."""
    for part in (config, text_config(config)):
        found = word(part, "dtype", "torch_dtype").removeprefix("torch.")
        if found:
            return found
    return ""


def quantization(config: Config) -> str:
    """The method that the weights on disk are quantised with (``fp8``, ``awq``, ``gptq``, ``mxfp4``, ...); empty = none."""
    for part in (config, text_config(config)):
        for key in ("quantization_config", "compression_config"):
            section = mapping(part, key)
            if section:
                return word(section, "quant_method", "quant_algo").lower().replace("_", "-") or "unknown"
    return ""


def max_length(config: Config) -> int:
    """Tokens of the longest request: the smallest of the keys that say, times the factor of a stretched RoPE (vLLM's rule).

    ``llama3``, ``longrope`` and multimodal RoPE state the stretched length already.
    """
    text = text_config(config)
    lengths = [found for key in _LENGTH_KEYS if (found := positive(text, key))]
    length = positive(text, "model_max_length") or min(lengths, default=DEFAULT_LENGTH)
    scaling = mapping(text, "rope_scaling") or mapping(text, "rope_parameters")
    factor = scaling.get("factor")
    kind = word(scaling, "rope_type", "type") or "default"
    if not isinstance(factor, int | float) or not 1 <= factor <= 1024 or kind not in ("linear", "dynamic", "yarn", "ntk"):
        return length
    if kind == "yarn":
        length = positive(scaling, "original_max_position_embeddings", default=length)
    return int(length * factor)
