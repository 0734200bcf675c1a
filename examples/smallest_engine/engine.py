"""An engine of sixty lines, which knows nothing of Penstock: a batch, a pool, a cache of whole contexts."""

from collections import OrderedDict, deque

POOL_TOKENS = 1000


class Request:
    def __init__(self, name: str, labels: dict[str, str], prompt: int, most: int) -> None:
        self.name, self.labels, self.prompt, self.most = name, labels, prompt, most
        self.output = self.cached = 0

    @property
    def context(self) -> str:
        """What its context is found by; a real engine hashes its tokens."""
        return self.labels.get("context", self.name)


class Scheduler:
    def __init__(self) -> None:
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.cache: OrderedDict[str, int] = OrderedDict()  # tokens by context, the least recently used first
        self.locked: set[str] = set()  # contexts that are not evicted

    @property
    def free(self) -> int:
        return POOL_TOKENS - sum(each.prompt + each.most for each in self.running) - sum(self.cache.values())

    def add_request(self, request: Request) -> None:
        self.waiting.append(request)

    def step(self) -> None:
        """Prefill who fits, then give each a token."""
        while self.waiting and self.make_room(self.waiting[0]):
            self.start(self.waiting.popleft())
        for request in list(self.running):
            request.output += 1
            if request.output == request.most:
                self.finish(request)

    def make_room(self, request: Request) -> bool:
        """Evict until it fits, beside what is cached of its own."""
        wanted = request.prompt + request.most - self.cache.get(request.context, 0)
        for context in [each for each in self.cache if each not in self.locked | {request.context}]:
            if self.free < wanted:
                del self.cache[context]
        return self.free >= wanted

    def start(self, request: Request) -> None:
        request.cached = min(self.cache.pop(request.context, 0), request.prompt)
        self.running.append(request)

    def finish(self, request: Request) -> None:
        self.running.remove(request)
        self.cache[request.context] = request.prompt + request.output
