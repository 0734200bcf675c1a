"""What is found and missing in an SGLang, and whether hooks were bound."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sglang_double import HookType, SglangDouble
from support.package_double import made_function

from engine_hooks.engine.verify import verify
from engine_hooks.sglang import verify as module
from engine_hooks.sglang.targets import ADD_MIDDLEWARE, GENERATE, REQUEST, TARGETS, Feature, Target
from engine_hooks.sglang.verify import main, report_problems, unbound, unproven


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.path.rpartition("sglang.srt.")[2])
def test_each_target_that_is_missing_is_named(sglang: SglangDouble, target: Target) -> None:
    if target.path == ADD_MIDDLEWARE:
        sglang.set("sglang.srt.entrypoints.http_server.app", object())
    elif target.path.endswith("HookRegistry.register"):
        sglang.set("sglang.srt.plugins.hook_registry.HookRegistry", object())
    elif target.path.endswith("__init__"):
        sglang.set(target.path, made_function(("other",)))
    else:
        sglang.remove(target.path)
    problems = verify(TARGETS)
    assert [(problem.feature, problem.path) for problem in problems] == [(target.feature, target.path)]
    assert target.path in problems[0].message


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("self", "obj", "request", "more"), ""),
        (("self", "obj"), "expected the first parameters (self, obj, request), found (self, obj)"),
        (("self", "request", "obj"), "found (self, request, obj)"),
    ],
)
def test_parameters_are_compared_in_order(sglang: SglangDouble, names: tuple[str, ...], told: str) -> None:
    sglang.set(GENERATE, made_function(names))
    messages = [problem.message for problem in verify(TARGETS)]
    assert len(messages) == (1 if told else 0)
    assert told in "".join(messages)


def test_a_parameter_that_is_missing_is_named(sglang: SglangDouble) -> None:
    sglang.set("sglang.srt.mem_cache.radix_cache.RadixKey", made_function(("token_ids",)))
    (problem,) = verify(TARGETS)
    assert problem.message == "sglang.srt.mem_cache.radix_cache.RadixKey: has no parameter extra_key"


def test_a_module_that_cannot_be_imported_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that its parent lacks it, which would look like another version of SGLang."""
    package = tmp_path / "half_an_engine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "scheduler.py").write_text("import a_library_that_is_not_there")
    monkeypatch.syspath_prepend(tmp_path)
    for path, told in {
        "half_an_engine.scheduler.run": "No module named 'a_library_that_is_not_there'",
        "half_an_engine.policy.run": "module 'half_an_engine' has no attribute 'policy'",
    }.items():
        (problem,) = verify([Target(feature=Feature.PROBE, path=path)])
        assert problem.message == f"{path}: {told}"


def test_problems_are_logged_with_what_stays_off(caplog: pytest.LogCaptureFixture, sglang: SglangDouble) -> None:
    assert report_problems([]) == frozenset()
    sglang.remove(GENERATE)
    sglang.remove("sglang.srt.mem_cache.radix_cache.RadixKey")
    assert report_problems(verify(TARGETS)) == {Feature.PROBE, Feature.PINS}
    first, second = caplog.messages
    assert "the whole plugin stays off" in first
    assert GENERATE in first
    assert "the pins stays off" in second


def test_a_hook_that_was_bound_is_found_below_those_of_others(sglang: SglangDouble) -> None:
    def ours(original: Any, *args: Any) -> Any:
        return original(*args)

    def theirs(original: Any, *args: Any) -> Any:
        return original(*args)

    for hook in (ours, theirs):
        sglang.registry.register(GENERATE, hook, HookType.AROUND)
    assert [problem.path for problem in unbound({GENERATE: ours})] == [GENERATE]
    sglang.registry.apply_hooks()
    assert unbound({GENERATE: ours}) == []
    assert unbound({GENERATE: lambda: None}) != []
    sglang.remove(GENERATE)
    (problem,) = unbound({GENERATE: ours}, Feature.GATE)
    assert (problem.feature, GENERATE in problem.message) == (Feature.GATE, True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, ""),
        ({"tp_size": 1, "dp_size": 1, "disaggregation_mode": "null"}, ""),
        ({"dp_size": 4}, ""),
        ({"dp_size": 4, "tp_size": 1}, ""),
        ({"dp_size": 4, "enable_dp_attention": True}, "dp_size=4 with enable_dp_attention"),
        ({"dp_size": 4, "elastic_ep_backend": "mooncake"}, "dp_size=4 with elastic ranks"),
        ({"tp_size": 2}, ""),
        ({"tp_size": 2, "pp_size": 2}, "pp_size=2"),
        ({"tp_size": 2, "attn_cp_size": 2}, "attn_cp_size=2"),
        ({"dp_size": 4, "tp_size": 2}, "dp_size=4 together with tp_size=2"),
        ({"tokenizer_worker_num": 2}, ""),
        ({"disaggregation_mode": "prefill"}, ""),
        ({"disaggregation_mode": "decode"}, ""),
    ],
)
def test_what_is_unproven_is_named(arguments: dict[str, Any], told: str, sglang: SglangDouble) -> None:
    because = unproven(SimpleNamespace(**arguments))
    assert bool(because) is bool(told)
    assert told in because


def test_ranks_need_requests_that_name_theirs(sglang: SglangDouble) -> None:
    sglang.set(REQUEST, object)
    assert "cannot name the rank" in unproven(SimpleNamespace(dp_size=2))
    assert unproven(SimpleNamespace(dp_size=1)) == ""


def test_the_report_lists_every_target(
    sglang: SglangDouble, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "sglang_version", lambda: "0.5.21")
    assert main() == 0
    out = capsys.readouterr().out
    assert "SGLang 0.5.21: tested (supported: 0.5.21, 0.5.23)" in out
    assert out.count("found  ") == len(TARGETS)
    sglang.remove("sglang.srt.mem_cache.radix_cache.RadixKey")
    monkeypatch.setattr(module, "sglang_version", lambda: "0.5.24")
    assert main() == 1
    out = capsys.readouterr().out
    assert "SGLang 0.5.24: not tested" in out
    assert "missing pins  sglang.srt.mem_cache.radix_cache.RadixKey" in out
    assert "probe: works here\ngate: works here\npins: stays off" in out
    monkeypatch.setattr(module, "sglang_version", lambda: "")
    assert main() == 1
    assert "not installed" in capsys.readouterr().out
