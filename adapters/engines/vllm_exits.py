"""What vLLM says before it ends. Rows stand in order: causes before their consequences.

Its processes write into one log, and the one that ends last only says that another one failed ("See root cause above").
Each row has a log in tests/data/vllm_logs, produced with the real thing or quoted from a public report.
"""

import re
from collections.abc import Sequence

from adapters.engines.exits import Pattern, decisive, explain, pattern
from scheduler.domain.reasons import Code, Reason
from scheduler.ports.launcher import ExitInfo

PROGRAM = "vLLM"

_LESS = "lower --max-model-len, --max-num-seqs or --max-num-batched-tokens in `args`, or declare a larger `footprint`"
_KV = "lower --max-model-len in `args`, use a smaller --kv-cache-dtype, or raise `footprint.kv_max`"
_DRIVER = "update the NVIDIA driver, or install a vLLM built for the CUDA version that `nvidia-smi` shows"

#: ``(EngineCore_DP0 pid=17) ERROR 09-28 15:47:24 [core.py:718] `` and its older forms, as often as it stands there.
_PREFIX = re.compile(
    r"^(?:\[\d[^\]]*\]\s*)?"  # a time of the program that started it
    r"(?:\([^()]*\bpid=\d+[^()]*\) ?)*"
    r"(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d (?:\[[^\]]*\]|\S+\]) ?)?"
    r"(?:\[rank\d+\]:\s?)?"
)
_RAISED = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt)\b(?::\s*\S|$)|^Exception: ")
_LEVEL = re.compile(r"^(?:\[\d[^\]]*\]\s*)?(?:\([^()]*\bpid=\d+[^()]*\) ?)*(?:INFO|WARNING|DEBUG)\b")
#: Lines of a traceback that quote the source: they hold the words of errors that were not raised.
_FRAME = re.compile(r'  File "| {4}')
#: Exceptions that only pass on that something failed elsewhere.
_ECHO = re.compile(
    r"Engine ?core (?:initialization failed|encountered an issue)|EngineDeadError|WorkerProc initialization failed|"
    r"See (?:root cause|stack trace)|CancelledError|KeyboardInterrupt|SystemExit|cancelled",
    re.IGNORECASE,
)

_DIED = re.compile(r"Engine core proc \S+ died|EngineDeadError|Worker proc \S+ died")

TABLE: tuple[Pattern, ...] = (
    # --- the command line -----------------------------------------------------------------------------------------------
    pattern(
        Code.UNKNOWN_FLAG,
        r"error: unrecognized arguments: (?:.* )?--kv-cache-memory-bytes",
        "this vLLM is older than 0.10.2 and cannot be given the size of its KV cache",
        "use a newer vLLM (engines.vllm.command)",
    ),
    pattern(
        Code.UNKNOWN_FLAG,
        r"error: unrecognized arguments: (?P<flag>\S+)",
        "vLLM does not know the argument {flag}",
        "correct or remove {flag} in `args`",
    ),
    pattern(
        Code.UNKNOWN_FLAG,
        r"error: argument (?P<flag>\S+): (?P<why>.*)",
        "vLLM refused the value of {flag}: {why}",
        "correct {flag} in `args`",
    ),
    pattern(
        Code.UNKNOWN_FLAG,
        r"Load format `(?P<value>[^`]*)` is not supported",
        "vLLM does not know the load format {value}",
        "correct --load-format in `args`",
    ),
    pattern(
        Code.UNKNOWN_FLAG,
        r"error: (?P<why>ambiguous option: .*|the following arguments are required: .*)",
        "vLLM refused its arguments: {why}",
        "correct `args`",
    ),
    pattern(
        Code.PORT_TAKEN,
        r"address already in use|errno 98",
        "somebody else listens on the port that was chosen for it",
        "nothing: the next start takes another port",
    ),
    pattern(
        Code.SLEEP_UNSUPPORTED,
        r"(?:Sleep mode|cumem allocator) is not supported on current platform",
        "this vLLM has no sleep mode on this device",
        "set `levels: []` for the model, so that it is only started and stopped",
    ),
    pattern(
        Code.SLEEP_UNSUPPORTED,
        r"Expandable segments are not compatible with memory pool",
        "this vLLM does not start with both sleep mode and expandable_segments",
        "remove expandable_segments:True from PYTORCH_CUDA_ALLOC_CONF, or set `levels: []`",
    ),
    # --- the model ------------------------------------------------------------------------------------------------------
    pattern(
        Code.GATED_MODEL,
        r"Cannot access gated repo|is (?:a )?gated|GatedRepoError|trying to access a gated repo|401 Client Error|"
        r"Access to model (?P<model>\S+) is restricted",
        "the model's repository wants a token that may read it",
        "accept its licence on the hub and set HF_TOKEN in `env`, or download it and set `model` to the folder",
    ),
    pattern(
        Code.UNSUPPORTED_ARCHITECTURE,
        r"Model architectures \[(?P<arch>[^\]]*)\] (?:are not supported|failed to be inspected)",
        "this vLLM cannot run the architecture {arch}",
        "use a newer vLLM (engines.vllm.command), or another model",
    ),
    pattern(
        Code.UNSUPPORTED_ARCHITECTURE,
        r"model type `?(?P<type>[\w-]+)`? but Transformers does not recognize|does not recognize this architecture|unrecognized model in",
        "this installation does not know the model type {type}",
        "use a newer vLLM with newer transformers (engines.vllm.command), or another model",
    ),
    pattern(
        Code.UNSUPPORTED_ARCHITECTURE,
        r"contains custom code which must be executed|(?:pass the argument|setting|set the option) `?trust_remote_code=True",
        "the model brings code of its own, which vLLM runs only when it is told to",
        "if you trust its authors, add --trust-remote-code to `args`",
    ),
    pattern(
        Code.MODEL_MISSING,
        r"Repo id must be in the form [^:]*: '(?P<path>[^']*)'|Invalid repository ID or local directory specified: '(?P<id>[^']*)'|"
        r"Repository Not Found for url: (?P<url>\S+)|(?P<name>\S+) is not a local folder and is not a valid model identifier|"
        r"FileNotFoundError: .*'(?P<file>[^']+)'",
        "there is no model {path}{id}{url}{name}{file}",
        "correct `model`: a folder with config.json and weights, or a repository's id",
    ),
    pattern(
        Code.MODEL_MISSING,
        r"We couldn't connect to 'https?://\S+' to load|outgoing traffic has been disabled|LocalEntryNotFoundError|OfflineModeIsEnabled",
        "the model is not on this host, and its repository cannot be reached",
        "download it and set `model` to the folder, or let this host reach the hub",
    ),
    pattern(
        Code.MODEL_UNREADABLE,
        r"SafetensorError: (?P<why>.*)|Error while deserializing header: (?P<header>.*)|MetadataIncompleteBuffer",
        "a weights file is cut or damaged: {why}{header}",
        "fetch it again and compare sizes and checksums",
    ),
    pattern(
        Code.MODEL_UNREADABLE,
        r"Cannot find any model weights|No safetensors weights found|not a safetensors repo",
        "the model's folder holds no weights that vLLM can read",
        "fetch its .safetensors files",
    ),
    pattern(
        Code.MODEL_UNREADABLE,
        r"PermissionError: .*'(?P<file>[^']+)'",
        "{file} cannot be opened: permission denied",
        "let the daemon's user read it (chmod o+r, and o+x on its folders)",
    ),
    pattern(
        Code.MODEL_UNREADABLE,
        r"JSONDecodeError: (?P<why>.*)|config file at '(?P<file>[^']+)' is not a valid JSON file",
        "one of the model's .json files is damaged: {why}{file}",
        "fetch its .json files again",
    ),
    pattern(
        Code.MODEL_UNREADABLE,
        r"(?:Can't|Cannot|Couldn't|Could not) (?:load|instantiate|find|build)[^.]*tokenizer|"
        r"(?:tokenizer|vocabulary) .*(?:not found|is missing|does not exist)",
        "the model's tokenizer cannot be read",
        "fetch its tokenizer files, or name another one with --tokenizer in `args`",
    ),
    # --- memory ---------------------------------------------------------------------------------------------------------
    pattern(
        Code.DEVICE_OOM,
        r"Free memory on device (?:\S+ )?\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than "
        r"(?:desired GPU memory utilization|the engine's budget)[^(]*\([\d.]+, (?P<wanted>[\d.]+) GiB\)",
        "{free} of {total} GiB were free on the device when it started, and it wanted {wanted} GiB",
        "look with `hotseat devices` who holds the rest",
    ),
    pattern(
        Code.KV_TOO_SMALL,
        r"max seq len \((?P<tokens>\d+)\)[^(]*\((?P<need>[\d.]+) GiB KV cache is needed, "
        r"which is larger than the available KV cache memory \((?P<have>[\d.]+) GiB\)",
        "a request of {tokens} tokens needs {need} GiB of KV cache, and there are {have} GiB",
        _KV,
    ),
    pattern(
        Code.KV_TOO_SMALL,
        r"max seq len \((?P<tokens>\d+)\) is larger than the maximum number of tokens that can be stored in KV cache \((?P<have>\d+)\)",
        "a request may have {tokens} tokens, and its KV cache holds {have}",
        _KV,
    ),
    pattern(
        Code.KV_TOO_SMALL,
        r"No available memory for the cache blocks|Available KV cache memory: -",
        "its weights and buffers leave no room for a KV cache",
        _LESS,
    ),
    pattern(
        Code.HOST_OOM,
        r"Available memory on node \d+ \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on .* less than (?:requested|desired)[^(]*"
        r"\((?P<wanted>[\d.]+)",
        "{free} of {total} GiB of host memory are free, and it wanted {wanted} GiB",
        "lower `footprint.kv_max`, or the budget of the device",
    ),
    pattern(
        Code.DEVICE_OOM,
        r"CUDA out of memory\. Tried to allocate (?P<size>[\d.]+ \w+)\.(?:.* of which (?P<free>[\d.]+ \w+) is free)?",
        "it could not get another {size} of device memory",
        _LESS,
    ),
    pattern(
        Code.DEVICE_OOM,
        r"CUDA (?:driver )?error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|cuda(?:Malloc|Error\w*): out of memory|OutOfMemoryError",
        "it could not get the device memory that it asked for",
        _LESS,
    ),
    pattern(
        Code.SHM_SMALL,
        r"/dev/shm\S* ?\(size (?P<size>\d+)\), error: No space left|Error while creating shared memory|No space left on device.*/dev/shm|"
        r"/dev/shm.*No space left|unable to open shared memory object|insufficient shared memory|Bus error",
        "there is not enough shared memory in /dev/shm for its processes",
        "make /dev/shm larger (mount -o remount,size=16G /dev/shm; --shm-size for a container)",
    ),
    pattern(
        Code.HOST_OOM,
        r"unable to mmap|std::bad_alloc|cannot allocate memory|\bMemoryError\b|DefaultCPUAllocator: (?:can't|not enough)|"
        r"cudaErrorMemoryAllocation|"
        r"host_alloc.*out of memory",
        "it could not get the host memory that it asked for",
        "let other models sleep at level 2, or lower the host's budget",
    ),
    # --- the device -----------------------------------------------------------------------------------------------------
    pattern(
        Code.DRIVER_MISMATCH,
        r"driver/library version mismatch|NVML/RM version mismatch|system has unsupported display driver / cuda driver combination",
        "the loaded NVIDIA kernel module and the installed driver libraries are of different versions",
        "reboot, or reload the nvidia kernel modules",
    ),
    pattern(
        Code.DRIVER_MISMATCH,
        r"NVIDIA driver on your system is too old(?: \(found version (?P<version>\d+)\))?|CUDA driver version is insufficient|"
        r"unsupported toolchain|forward compatibility was attempted",
        "the NVIDIA driver is too old for this vLLM",
        _DRIVER,
    ),
    pattern(
        Code.UNSUPPORTED_ARCHITECTURE,
        r"no kernel image is available for execution on the device",
        "this vLLM has no kernels for this model of card",
        "use a vLLM built for its compute capability (engines.vllm.command)",
    ),
    pattern(
        Code.EXCLUSIVE_MODE,
        r"CUDA-capable device(?:s|\(s\))?(?: is)?(?:/)?(?: ?are)? busy or unavailable",
        "another process holds the device, which is in exclusive mode",
        "nvidia-smi -c DEFAULT, or keep other processes off the device",
    ),
    pattern(
        Code.DEVICE_LOST,
        r"GPU is lost|fallen off the bus|uncorrectable (?:ECC|NVLink) error|cudaErrorECCUncorrectable|"
        r"CUDA error: unspecified launch failure",
        "the device failed",
        "look for Xid lines in `dmesg`; reset or replace the device",
    ),
    pattern(
        Code.DEVICE_LOST,
        r"No CUDA GPUs are available|no CUDA-capable device is detected|Failed to infer device type|invalid device ordinal",
        "vLLM sees no device",
        "check that `nvidia-smi` works for the daemon's user, and that this vLLM is a build for NVIDIA cards",
    ),
    # --- the installation -----------------------------------------------------------------------------------------------
    pattern(
        Code.EXECUTABLE_MISSING,
        r"^(?:ImportError|OSError): (?P<lib>lib\S+?\.so[\w.]*): cannot open shared object file",
        "a library that this vLLM was built against is missing: {lib}",
        "install vLLM anew, in an environment of its own, for the CUDA version of this host",
    ),
    pattern(
        Code.EXECUTABLE_MISSING,
        r"^(?:[\w.]+\.)?PackageNotFoundError: (?P<what>.*)|^ImportError: (?P<why>.*)|undefined symbol: (?P<symbol>\S+)|"
        r"operator torchvision::\w+ does not exist",
        "its installation does not fit together: {what}{why}{symbol}",
        "install vLLM anew, in an environment of its own",
    ),
    pattern(
        Code.UNKNOWN_FLAG,
        r"max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len \([^)]*?(?P<able>\d+)",
        "--max-model-len {asked} is more than the model can do, {able}",
        "lower --max-model-len in `args`",
    ),
    pattern(
        Code.UNKNOWN_FLAG,
        r"(?P<why>Total number of attention heads \(\d+\) must be divisible by tensor parallel size \(\d+\))",
        "it cannot be spread over so many devices: {why}",
        "change `devices.count`",
    ),
)

#: Ends of engines that ran, or that no setting explains.
_CRASHES: tuple[Pattern, ...] = (
    pattern(
        Code.CRASHED,
        r"CUDA error: an illegal memory access|CUDA_ERROR_ILLEGAL_ADDRESS|cudaErrorIllegalAddress",
        "a kernel touched memory that is not there (illegal memory access)",
        "if it happens after a wake, set `levels: []`; else try another version of vLLM",
    ),
    pattern(
        Code.CRASHED,
        r"NCCL (?:error|WARN)\b.*|ncclUnhandledCudaError.*|ncclSystemError.*|DistBackendError.*",
        "its processes could not talk to each other over NCCL",
        "set NCCL_DEBUG=INFO in `env` and read its log; NCCL_P2P_DISABLE=1 helps on boards without peer access",
    ),
)


def explain_exit(exit_info: ExitInfo, log_tail: Sequence[str]) -> Reason:
    """The reason of an exit: a row of the table, else the deepest exception, else the exit status."""
    lines = [line for line in (plain(each) for each in log_tail if not _LEVEL.match(each)) if not _FRAME.match(line)]
    reason = explain(exit_info, lines, TABLE, PROGRAM)
    if reason.code is not Code.CRASHED:
        return reason
    known = next(
        (Reason(row.code, row.text, row.fix, decisive(line)) for row in _CRASHES for line in lines if row.regex.search(line)), None
    )
    if known is not None or exit_info.signal is not None:
        return known or reason
    cause = decisive(root_cause(lines))
    if cause:
        return Reason(Code.CRASHED, f"{PROGRAM} gave up: {cause}", "read its log; the lines above this one say where", cause)
    dead = next((line for line in lines if _DIED.search(line)), None)
    if dead is not None:
        fix = "look with `dmesg` whether the kernel did it for memory; if so, lower the host's budget"
        return Reason(Code.CRASHED, "its engine process died without a word", fix, decisive(dead))
    return reason


def plain(line: str) -> str:
    """A line without process, level, time and place in the source."""
    return _PREFIX.sub("", line, count=1)


def root_cause(lines: Sequence[str]) -> str:
    """The first exception of a log that is not the echo of another one, or empty."""
    return next((line.strip() for line in lines if _RAISED.search(line) and not _ECHO.search(line)), "")
