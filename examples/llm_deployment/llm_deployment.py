"""Predict what a deployment of an LLM serves, from measured GPU data that aiconfigurator ships.

The deployment is disaggregated: some workers compute prompts (prefill), others generate tokens (decode).
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import Any

PREFILL_CORRECTION, DECODE_CORRECTION = 1.1, 1.08
"""What aiconfigurator multiplies the latencies of either phase by."""
PREFILL_SHARE, DECODE_SHARE = 0.9, 0.92
"""Share of the workers' rates that is left when their rates have to match, as aiconfigurator assumes."""


@dataclass(frozen=True)
class Worker:
    """One worker's prediction."""

    requests_s: float
    ttft_ms: float  # time to the first token
    tpot_ms: float  # time per output token


def deploy(
    model: str,
    system: str,
    backend: str,
    isl: int,
    osl: int,
    p_tp: int,
    p_bs: int,
    p_workers: int,
    d_tp: int,
    d_bs: int,
    d_workers: int,
) -> dict[str, float]:
    """Tokens per second and GPU of prefill (``p_``) and decode (``d_``) workers, and both latencies.

    ``tp`` is the number of GPUs of a worker, ``bs`` its batch size; prompts have ``isl`` tokens, answers ``osl``.
    """
    predict = functools.partial(predict_worker, model, system, backend, isl=isl, osl=osl)
    prefill = predict(mode="static_ctx", gpus=p_tp, batch_size=p_bs)
    decode = predict(mode="static_gen", gpus=d_tp, batch_size=d_bs)
    prefill_rate = prefill.requests_s * p_workers * PREFILL_SHARE
    decode_rate = decode.requests_s * d_workers * DECODE_SHARE
    gpus = p_tp * p_workers + d_tp * d_workers
    return {
        "tokens_s_gpu": min(prefill_rate, decode_rate) * osl / gpus,
        "ttft_ms": prefill.ttft_ms,
        "tpot_ms": decode.tpot_ms,
    }


@functools.cache
def predict_worker(
    model: str, system: str, backend: str, *, mode: str, isl: int, osl: int, gpus: int, batch_size: int
) -> Worker:
    """Predict one phase; raises ``MemoryError`` if the model and its batch don't fit."""
    from aiconfigurator.sdk.backends.factory import get_backend
    from aiconfigurator.sdk.config import RuntimeConfig
    from aiconfigurator.sdk.config_builders import build_model_config
    from aiconfigurator.sdk.inference_session import InferenceSession
    from aiconfigurator.sdk.models import get_model

    settings = build_model_config(gpus, 1, 1, None, None, None, None, None, None, None)
    session = InferenceSession(
        model=get_model(model, settings, backend), database=database(system, backend), backend=get_backend(backend)
    )
    summary = session.run_static(
        mode=mode,
        runtime_config=RuntimeConfig(isl=isl, osl=osl, batch_size=batch_size),
        latency_correction_scale=PREFILL_CORRECTION if mode == "static_ctx" else DECODE_CORRECTION,
    )
    if summary.check_oom() or summary.check_kv_cache_oom():
        raise MemoryError(f"{mode}: {gpus} GPUs can't hold a batch of {batch_size}")
    row = summary.get_summary_df().iloc[0]
    return Worker(requests_s=float(row["seq/s"]), ttft_ms=float(row["ttft"]), tpot_ms=float(row["tpot"]))


@functools.cache
def database(system: str, backend: str) -> Any:
    """The latest measurements of a system, resolved once per process: looking for versions takes seconds."""
    from aiconfigurator.sdk.perf_database import get_database_view, get_latest_database_version

    logging.disable(logging.WARNING)
    version = get_latest_database_version(system=system, backend=backend)
    return get_database_view(system=system, backend=backend, version=version)
