"""What llama.cpp says before it ends. Rows stand in order: causes before their consequences.

Each line was produced with the real server; tests/data/llamacpp holds the logs, tests/conformance makes some of them anew.
"""

from adapters.engines.exits import Pattern, pattern
from scheduler.domain.reasons import Code

_LESS = "give it a smaller context (-c), fewer slots (-np) or a smaller cache type (-ctk q8_0 -ctv q8_0), or raise the budget"

TABLE: tuple[Pattern, ...] = (
    pattern(
        Code.UNKNOWN_FLAG,
        r"error: (?:invalid argument|unknown argument): (?P<flag>\S+)",
        "llama-server does not know the flag {flag}",
        "correct or remove {flag} in `args`",
    ),
    pattern(
        Code.UNKNOWN_FLAG,
        r"error while handling argument \"(?P<flag>[^\"]+)\": (?P<why>.*)",
        "llama-server refused the value of {flag}: {why}",
        "correct {flag} in `args`",
    ),
    pattern(
        Code.UNKNOWN_FLAG,
        r"error while handling environment variable \"(?P<name>[^\"]+)\": (?P<why>.*)",
        "llama-server refused the variable {name}: {why}",
        "correct {name} in `env`",
    ),
    pattern(
        Code.UNKNOWN_FLAG, r"^error: --model is required|^error: invalid value for", "its arguments are not complete", "correct `args`"
    ),
    pattern(
        Code.PORT_TAKEN,
        r"couldn't bind HTTP server socket.*port: (?P<port>\d+)",
        "somebody else listens on port {port}",
        "nothing: the next start takes another port",
    ),
    pattern(
        Code.MODEL_MISSING,
        r"failed to open GGUF file '(?P<file>[^']*)' \(No such file or directory\)|"
        r"failed to open (?P<old>\S+): No such file or directory",
        "there is no model file {file}{old}",
        "correct `model`; it names a .gguf file",
    ),
    pattern(
        Code.MODEL_UNREADABLE,
        r"failed to open GGUF file '(?P<file>[^']*)' \((?P<why>[^)]*)\)|failed to open (?P<old>\S+): Permission denied",
        "the model file {file}{old} cannot be opened: {why}",
        "let the daemon's user read it (chmod o+r, and o+x on its folders)",
    ),
    pattern(
        Code.UNSUPPORTED_ARCHITECTURE,
        r"unknown (?:model )?architecture: '(?P<arch>[^']*)'",
        "this llama.cpp does not know the architecture {arch}",
        "use a newer llama-server (engines.llamacpp.command), or another model",
    ),
    pattern(
        Code.MODEL_UNREADABLE,
        r"data is not within the file bounds|model is corrupted or incomplete",
        "the model file is cut: its tensors reach past its end",
        "fetch it again and compare its size and checksum",
    ),
    pattern(
        Code.MODEL_UNREADABLE,
        r"this GGUF file is version (?P<version>\d+) but",
        "the model file has GGUF version {version}, which this llama.cpp cannot read",
        "use a newer llama-server (engines.llamacpp.command), or fetch the file again",
    ),
    pattern(
        Code.MODEL_UNREADABLE,
        r"invalid magic|failed to read magic|failed to read (?:key-value pairs|header|tensor info)|gguf_init_from_\w+: failed to|"
        r"unsupported (?:file )?version|bad GGUF|tensor '[^']*' .*(?:overflow|duplicate|invalid)",
        "the model file is not a GGUF file that can be read",
        "fetch it again; a safetensors folder has to be converted first",
    ),
    pattern(
        Code.HOST_OOM,
        r"insufficient memory \(attempted to allocate\s+(?P<size>[\d.]+) MB\)",
        "it could not get {size} MiB of host memory",
        _LESS,
    ),
    pattern(
        Code.HOST_OOM,
        r"failed to allocate (?:\w+ )*buffer|unable to allocate \w* ?buffer|failed to allocate compute|failed to mlock|"
        r"failed to (?:allocate|reserve|initialize)[^:]* (?:kv|memory)",
        "it could not get the host memory it asked for",
        _LESS,
    ),
    pattern(
        Code.CRASHED,
        r"(?P<where>[\w./-]+:\d+): (?P<what>GGML_(?:ASSERT|ABORT).*|fatal error.*)",
        "llama.cpp gave up: {what}",
        "try another version of llama-server, or report it with the log",
    ),
    pattern(
        Code.EXECUTABLE_MISSING,
        r"error: cannot load xllamacpp: (?P<why>.*)",
        "xllamacpp cannot be loaded: {why}",
        "install it anew: pip install 'hotseat[llamacpp]'",
    ),
)
