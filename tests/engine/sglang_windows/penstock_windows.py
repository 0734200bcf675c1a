"""A plugin of SGLang for the engine tests: gpt-oss's shape on a CPU, whose attention SGLang does not have there.

A stand-in: torch's attention is taken for the one that SGLang allows, without the sinks. A window's layers read
their pool by full attention's places: both pools must be of one size. Tree, pools and scheduler are SGLang's.
"""

from typing import Any


def register() -> None:
    from sglang.srt.layers.attention import attention_registry
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    for name in ("forward_extend", "forward_decode"):
        setattr(TorchNativeAttnBackend, name, _without_sinks(getattr(TorchNativeAttnBackend, name)))
    backends = attention_registry.ATTENTION_BACKENDS
    backends["intel_amx"] = backends["torch_native"]


def _without_sinks(forward: Any) -> Any:
    def call(
        self: Any, q: Any, k: Any, v: Any, layer: Any, batch: Any, save_kv_cache: bool = True, **_: Any
    ) -> Any:
        return forward(self, q, k, v, layer, batch, save_kv_cache)

    return call
