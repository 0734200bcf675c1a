"""A plugin of SGLang for the engine tests: a prefill server on a CPU, whose KV goes nowhere.

A stand-in: SGLang's own ``fake`` transfer, which decode servers take and prefill servers refuse, in the place of
NIXL's. So a decode server decodes what it has never got. Schedulers, queues and pools are SGLang's.
"""

import functools
from typing import Any


def register() -> None:
    from sglang.srt.disaggregation import decode, prefill, utils

    original = utils.get_kv_class

    @functools.wraps(original)
    def get_kv_class(transfer_backend: Any, class_type: Any) -> Any:
        if class_type is utils.KVClassType.BOOTSTRAP_SERVER:
            return _NoServer
        return original(utils.TransferBackend.FAKE, class_type)

    for module in (utils, prefill, decode):
        module.get_kv_class = get_kv_class
        module._is_fake_transfer = lambda request: True
    try:
        from sglang.srt.managers import disagg_service
    except ImportError:
        return
    disagg_service.get_kv_class = get_kv_class


class _NoServer:
    """Of prefill servers, by which decode servers find them."""

    def __init__(self, **_: Any) -> None: ...
