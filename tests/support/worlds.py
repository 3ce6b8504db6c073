"""Statuses for tests of the command line: built with the real schemas, so that they look as the daemon's do."""

from scheduler.api.schemas import (
    Counters,
    Degraded,
    Device,
    Disk,
    Failure,
    HostMemory,
    InstanceStatus,
    Jobs,
    Memory,
    ModelDetail,
    ModelStatus,
    Plan,
    Sleep,
    Start,
    Status,
    Step,
    Why,
)
from tests.support.fake_plane import T0

GIB = 1 << 30


def cpu(index: int = 0, **update: object) -> Device:
    facts: dict[str, object] = {
        "id": f"cpu{index}",
        "index": index,
        "kind": "cpu",
        "name": "CPU",
        "total_bytes": 4 * GIB,
        "used_bytes": GIB * 6 // 5,
        "free_bytes": GIB * 14 // 5,
        "foreign_bytes": 0,
        "claimed_bytes": GIB * 6 // 5,
        "utilization_ratio": 0.31,
        "sampled_at": T0 - 0.5,
    }
    return Device.model_validate({**facts, **update})


def gpu(index: int, **update: object) -> Device:
    facts: dict[str, object] = {
        "id": f"gpu{index}",
        "uuid": f"GPU-{index}",
        "kind": "nvidia",
        "name": "NVIDIA A100-SXM4-80GB",
        "total_bytes": 80 * GIB,
        "used_bytes": int(71.2 * GIB),
        "foreign_bytes": int(0.4 * GIB),
        "utilization_ratio": 0.62,
        "power_w": 311.0,
    }
    return cpu(index, **{**facts, **update})


def model(name: str, phase: str = "stopped", *, on: str | None = None, since_s: float = 60.0, **update: object) -> ModelStatus:
    goal = {"launching": "awake", "waking": "awake", "awake": "awake", "asleep": "asleep"}.get(phase, "stopped")
    seat = [on] if on else []
    facts: dict[str, object] = {
        "name": name,
        "engine": "llamacpp",
        "source": "file:/etc/hotseat/hotseat.yaml:41",
        "phase": phase,
        "goal": goal,
        "devices": seat,
        "counters": Counters(),
    }
    if on:
        facts["instances"] = [InstanceStatus(id=f"{name}#0", phase=phase, goal=goal, devices=seat, pid=4711, since=T0 - since_s)]
    return ModelStatus.model_validate({**facts, **update})


def detail(status: ModelStatus, **update: object) -> ModelDetail:
    facts = {key: getattr(status, key) for key in ModelStatus.model_fields}
    return ModelDetail.model_validate({**facts, **update})


def world(models: list[ModelStatus], **update: object) -> Status:
    facts: dict[str, object] = {"version": "0.1.0", "uptime_s": 3 * 86400.0 + 7000, "ready": True, "models": models, "devices": [cpu()]}
    return Status.model_validate({**facts, "disk": Disk(state_free_bytes=120 * GIB), **update})


def healthy() -> Status:
    awake = model(
        "gemma-8k",
        "awake",
        on="cpu0",
        used_bytes=int(0.9 * GIB),
        active=2,
        last_used_at=T0 - 8,
        reason=Why(code="requested", text="requested by local"),
    )
    asleep = model(
        "coder",
        "asleep",
        on="cpu0",
        level=1,
        used_bytes=int(0.3 * GIB),
        last_used_at=T0 - 7300,
        reason=Why(code="idle", text="idle for 2 h"),
    )
    device = cpu(instances=["gemma-8k#0", "coder#0"])
    return world([awake, asleep, model("gemma-32k")], devices=[device])


def starting() -> Status:
    """The example of interfaces.md: one waking (3.2 of 5 s), one launching without a known end."""
    coder = model(
        "coder",
        "waking",
        on="gpu1",
        since_s=3.2,
        eta_s=1.8,
        claimed_bytes=18 * GIB,
        held=1,
        last_used_at=T0 - 8,
        reason=Why(code="requested", text="requested by key office"),
    )
    fresh = model(
        "mistral-7b",
        "launching",
        on="gpu0",
        since_s=12.0,
        claimed_bytes=17 * GIB,
        held=3,
        reason=Why(code="asked", text="asked by uid:root"),
    )
    qwen = model(
        "qwen3-32b", "awake", on="gpu0", used_bytes=64 * GIB, active=4, last_used_at=T0 - 1, reason=Why(code="planned", text="planned")
    )
    sleepers = [
        model(
            f"small-{i}",
            "asleep",
            on="gpu0",
            level=1,
            used_bytes=int(1.4 * GIB),
            last_used_at=T0 - 4000 * i,
            reason=Why(code="evicted", text="evicted for qwen3-32b"),
        )
        for i in range(1, 5)
    ]
    devices = [
        gpu(0, instances=["mistral-7b#0", "qwen3-32b#0", *(f"small-{i}#0" for i in range(1, 5))]),
        gpu(1, used_bytes=9 * GIB, foreign_bytes=0, utilization_ratio=0.04, power_w=88.0, instances=["coder#0"]),
    ]
    return world(
        [coder, fresh, qwen, *sleepers, model("llama-70b")],
        devices=devices,
        host=HostMemory(sleep_bytes=44 * GIB, sleep_limit_bytes=64 * GIB, kv_bytes=0),
        jobs=Jobs(queued=2, running=1),
        plan=Plan(version=7, next=[Step(at=T0 + 24700, model="qwen3-32b", action="sleep")]),
    )


def broken() -> Status:
    """A lost device, a failed model, one in back-off, a store that cannot commit, a stopped model with waiters."""
    failed = model(
        "llama-70b",
        "failed",
        error=Failure(
            code="model_missing",
            message="/srv/models/llama-70b.gguf does not exist",
            fix="correct `model:` in /etc/hotseat/hotseat.yaml:41, then: hotseat restart llama-70b",
            at=T0 - 100,
            attempts=3,
        ),
    )
    retry = model(
        "phi-4",
        "backoff",
        error=Failure(code="crashed", message="llama-server ended with signal 11 after 0.4 s", attempts=2, at=T0 - 20, retry_at=T0 + 12),
    )
    waiting = model("coder", held=5, goal="awake", reason=Why(code="store_unavailable", text="waits until the store can commit"))
    return world(
        [model("gemma-8k", "awake", on="gpu0", used_bytes=9 * GIB, active=1, last_used_at=T0 - 2), failed, retry, waiting],
        devices=[
            gpu(0, instances=["gemma-8k#0"]),
            gpu(2, health="lost", used_bytes=None, free_bytes=None, foreign_bytes=None, utilization_ratio=None, power_w=None),
        ],
        interrupted=2,
        degraded=[
            Degraded(code="device_lost", subject="gpu2", since=T0 - 3600, message="Xid 79"),
            Degraded(
                code="store_unavailable",
                subject="store",
                since=T0 - 30,
                message="the database cannot commit: disk full, 0 bytes free",
                fix="free some space on /var/lib/hotseat; starts and sleeps go on by themselves then",
            ),
        ],
    )


def crowd() -> Status:
    """Forty models: 3 awake, 9 asleep, 27 stopped, 1 failed."""
    models = [model(f"awake-{i}", "awake", on=f"gpu{i}", used_bytes=20 * GIB, active=i, last_used_at=T0 - i) for i in range(3)]
    models += [model(f"asleep-{i}", "asleep", on=f"gpu{i % 3}", level=1, used_bytes=2 * GIB, last_used_at=T0 - 3600 * i) for i in range(9)]
    models += [model(f"stopped-model-{i:02}") for i in range(27)]
    models += [model("broken", "failed", error=Failure(code="device_oom", message="needs 90.1 GiB, gpu0 has 80.0 GiB", attempts=1, at=T0))]
    devices = [gpu(i, instances=[m.name + "#0" for m in models if f"gpu{i}" in m.devices]) for i in range(3)]
    return world(models, devices=devices)


def strange() -> Status:
    """Long names, wide characters, control characters and a direction override in texts."""
    long = "organisation-with-a-long-name/Some-Model-Name-235B-A22B-Instruct-2507-GGUF:Q4_K_M"
    models = [
        model(
            long,
            "awake",
            on="gpu0",
            used_bytes=61 * GIB,
            last_used_at=T0 - 90000,
            reason=Why(code="requested", text="요청: 사무실 키가 부른 모델, 대기 3명"),
        ),
        model(
            "日本語モデル", "asleep", on="gpu0", level=2, used_bytes=GIB, reason=Why(code="idle", text="\x1b[31mred\x07 and \u202eesrever")
        ),
        model(
            "café",
            "draining",
            on="gpu0",
            since_s=700.0,
            used_bytes=2 * GIB,
            active=1,
            reason=Why(code="evicted", text="line one\nline two\ttab"),
        ),
    ]
    return world(models, devices=[gpu(0, instances=[m.name + "#0" for m in models])])


def failing_card() -> ModelDetail:
    """A model that failed three times for want of its file."""
    status = next(item for item in broken().models if item.name == "llama-70b")
    starts = [
        Start(
            launch=12 - i, at=T0 - 100 - 60 * i, duration_s=0.3, result="failed", exit="exit 1", reason=Why(code="model_missing", text="")
        )
        for i in range(3)
    ]
    return detail(
        status,
        model="/srv/models/llama-70b.gguf",
        aliases=["llama", "meta/llama-70b"],
        memory=Memory(source="estimated", estimated_bytes=41 * GIB),
        starts=starts,
        log_line="llama_model_load: error loading model: failed to open /srv/models/llama-70b.gguf: No such file or directory",
    )


def awake_card() -> ModelDetail:
    """A measured model at work."""
    status = healthy().models[0].model_copy(update={"claimed_bytes": GIB, "counters": Counters(wakes=3, starts=1, requests=210)})
    return detail(
        status,
        model="/srv/models/gemma.gguf",
        description="small and quick",
        memory=Memory(
            source="measured",
            measured_bytes=int(0.9 * GIB),
            estimated_bytes=GIB,
            start_peak_bytes=int(1.1 * GIB),
            residue_bytes={1: GIB // 3},
        ),
        sleep=Sleep(levels=[1], denied_levels=[2], version="0.33.0", host_bytes={1: 2 * GIB}, sleep_s={1: 0.6}, wake_s={1: 1.2}),
        starts=[Start(launch=3, at=T0 - 4000, duration_s=2.4, result="ready")],
    )
