"""Sizes that the operator declared stand above what an adapter works out."""

from dataclasses import replace

from scheduler.domain.claims import Footprint, Source
from scheduler.domain.model import ModelSpec


def with_declared(estimated: Footprint, spec: ModelSpec) -> Footprint:
    """``estimated`` with the declared numbers put in; its source becomes ``declared`` when they change the awake size.

    awake = weights + rest, and the rest is overhead + KV as started. With overhead and KV both declared the rest is
    their sum; with one of them, or none, it is at least what the adapter worked out for it. An adapter that worked out
    nothing (no weights of its own) has nothing to add: then what is declared is all there is.
    """
    said = spec.footprint
    if said.residue_bytes is not None:
        estimated = replace(estimated, residue_bytes={**estimated.residue_bytes, 1: said.residue_bytes, 2: said.residue_bytes})
    kv = said.kv_min_bytes if said.kv_min_bytes is not None else said.kv_max_bytes
    if said.weights_bytes is None and said.overhead_bytes is None and kv is None:
        return estimated
    weights = estimated.weights_bytes if said.weights_bytes is None else said.weights_bytes
    rest = (said.overhead_bytes or 0) + (kv or 0)
    worked_out = estimated.weights_bytes > 0
    if worked_out and (said.overhead_bytes is None or kv is None):
        rest = max(rest, estimated.awake_bytes - estimated.weights_bytes)
    return replace(estimated, awake_bytes=weights + rest, start_peak_bytes=weights + rest, weights_bytes=weights, source=Source.DECLARED)
