"""Sizes that the operator declared stand above what an adapter works out."""

from dataclasses import replace

from scheduler.domain.claims import Footprint, Source
from scheduler.domain.model import ModelSpec


def with_declared(estimated: Footprint, spec: ModelSpec) -> Footprint:
    """``estimated`` with the declared numbers put in; its source becomes ``declared`` when they change the awake size.

    awake = weights + rest, and the rest is overhead + KV as started. Where the adapter worked out a KV cache of its own (the daemon sizes
    it), each of the four numbers is replaced alone. Elsewhere with overhead and KV both declared the rest is their sum; with one of them,
    or none, it is at least what the adapter worked out for it. An adapter that worked out nothing (no weights of its own) has nothing to
    add: then what is declared is all there is.
    """
    said = spec.footprint
    if said.residue_bytes is not None:
        estimated = replace(estimated, residue_bytes={**estimated.residue_bytes, 1: said.residue_bytes, 2: said.residue_bytes})
    kv = said.kv_min_bytes if said.kv_min_bytes is not None else said.kv_max_bytes
    if said.weights_bytes is None and said.overhead_bytes is None and kv is None:
        return estimated
    if estimated.kv_bytes > 0:
        return _with_own_kv(estimated, spec)
    weights = estimated.weights_bytes if said.weights_bytes is None else said.weights_bytes
    rest = (said.overhead_bytes or 0) + (kv or 0)
    worked_out = estimated.weights_bytes > 0
    if worked_out and (said.overhead_bytes is None or kv is None):
        rest = max(rest, estimated.awake_bytes - estimated.weights_bytes)
    return replace(estimated, awake_bytes=weights + rest, start_peak_bytes=weights + rest, weights_bytes=weights, source=Source.DECLARED)


def _with_own_kv(estimated: Footprint, spec: ModelSpec) -> Footprint:
    """awake = weights + overhead + ``kv_max``. One declared end of the KV cache moves the other only as far as they would cross."""
    said = spec.footprint
    weights = estimated.weights_bytes if said.weights_bytes is None else said.weights_bytes
    overhead = estimated.awake_bytes - estimated.weights_bytes - estimated.kv_bytes if said.overhead_bytes is None else said.overhead_bytes
    least = estimated.kv_min_bytes if said.kv_min_bytes is None else said.kv_min_bytes
    most = estimated.kv_bytes if said.kv_max_bytes is None else said.kv_max_bytes
    if said.kv_min_bytes is None:
        least = min(least, most)
    else:
        most = max(least, most)
    awake = weights + overhead + most
    loading = max(0, estimated.start_peak_bytes - estimated.awake_bytes) if said.weights_bytes is None else 0
    return replace(
        estimated,
        awake_bytes=awake,
        start_peak_bytes=awake + loading,
        weights_bytes=weights,
        kv_bytes=most,
        kv_min_bytes=least,
        source=Source.DECLARED,
    )
