"""The radix key of a context, made only when somebody asks for it, and what can be told of it before."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LateKey:
    """The radix key of a request's prompt and output, cut to whole pages.

    The full key: matching a shorter one would split the leaf. Made late, since few contexts are ever asked for, and
    to copy a long prompt costs more than all else that is done at a turn's end.
    """

    prompt: Any  # tokens
    output: Any
    page_tokens: int
    extra_key: str | None
    cache_salt: str | None = None

    def __call__(self) -> Any:
        """Make it: a copy of the whole context."""
        from sglang.srt.mem_cache.radix_cache import RadixKey

        key = RadixKey(self.prompt + self.output, self.extra_key, cache_salt=self.cache_salt)
        return key.page_aligned(self.page_tokens)

    def __len__(self) -> int:
        return (len(self.prompt) + len(self.output)) // self.page_tokens * self.page_tokens

    def begins_as(self, key: Any, tokens: int) -> bool:
        """Whether its first ``tokens`` tokens are those of ``key``, a radix key, in the same namespace."""
        if len(self) < tokens or (key.extra_key, key.cache_salt) != (self.extra_key, self.cache_salt):
            return False
        if self._token(tokens - 1) != key.token_ids[tokens - 1]:
            return False  # nearly all that differ do so here: this keeps thousands of contexts cheap
        return bool(self._first(tokens) == key.token_ids[:tokens])

    def _token(self, index: int) -> Any:
        of_prompt = len(self.prompt)
        return self.prompt[index] if index < of_prompt else self.output[index - of_prompt]

    def _first(self, tokens: int) -> Any:
        of_prompt = len(self.prompt)
        return self.prompt[:tokens] if tokens <= of_prompt else self.prompt + self.output[: tokens - of_prompt]
