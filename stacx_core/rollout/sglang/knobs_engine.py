"""Knobs of the engine and the teacher on SGLang servers."""

from __future__ import annotations

from stacx_core.knobs import Knob

ENGINE_KNOBS: tuple[Knob, ...] = (
    Knob("sglang_url", str, None, "URL of each running SGLang server, separated by commas.", "sglang"),
    Knob("sglang_concurrency", int, 64, "Most requests under way at one server.", "sglang", minimum=1),
    Knob("sglang_retries", int, 5, "How often a request, and a server that failed, is tried again.", "sglang",
         minimum=0),
    Knob("sglang_retry_wait", float, 0.5, "Seconds before a server that failed is tried again, doubled each time.",
         "sglang", minimum=0),
    Knob("sglang_timeout", float, 600.0, "Seconds for the answer to one request.", "sglang", exclusive_minimum=0),
    Knob("teacher_url", str, None, "URL of each SGLang server of --teacher sglang, separated by commas.", "teacher"),
)  # fmt: skip
