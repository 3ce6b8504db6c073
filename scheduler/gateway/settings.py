"""What an operator can set about the gateway, and its fixed limits."""

from dataclasses import dataclass

from scheduler.domain.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Limits and times of the data plane; seconds and bytes."""

    #: A held streaming request gets a comment after so long, and then again each time.
    keepalive_s: float = 5.0
    #: The largest request body (after decompression).
    max_body_bytes: int = 64 * MIB
    #: Bodies of all requests together: those being read and those held until their model is awake.
    total_body_bytes: int = 512 * MIB
    #: Patience of a client that does not say how long it waits.
    patience_s: float = 600.0
    #: A body of which nothing arrives for so long is given up.
    body_idle_s: float = 30.0
    #: Time for an engine to accept a connection; there is no limit on its answer.
    connect_timeout_s: float = 5.0
    #: An answer that is not a stream is kept back up to this size, so that a cut one is never sent as whole.
    answer_buffer_bytes: int = 16 * MIB
    #: Bodies above this size are scanned in a thread.
    scan_in_thread_bytes: int = 64 << 10
