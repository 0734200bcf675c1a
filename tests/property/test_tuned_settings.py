"""Whatever happens to it, automatic advice stays within its bounds and never has two steps that are not judged."""

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.tuning import Answer, Ask, Bound, Forecast, Keep, Phase, Rules, Seen, State, TakeBack, Try
from controlplane.core.tuning import advance as step_on

BOUNDS = (Bound(key="a", low=1, high=9, is_whole=True), Bound(key="b", low=0.2, high=0.8))
RULES = Rules(bounds=BOUNDS, stretch_ns=100, cooldown_ns=300)
_SOME = st.floats(min_value=0.01, max_value=100)
_THINGS = st.one_of(
    st.tuples(st.just("wait"), st.integers(min_value=1, max_value=150)),
    st.tuples(st.just("answer"), st.tuples(_SOME, _SOME, _SOME, st.integers(0, 30), st.floats(-1, 1))),
    st.tuples(st.just("late"), st.just(0)),
    st.tuples(st.just("lost"), st.just(0)),
    st.tuples(st.just("silent"), st.booleans()),
    st.tuples(st.just("gap"), st.just(0)),
    st.tuples(st.just("operator"), st.sampled_from(["a", "b", ""])),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_THINGS, max_size=120))
def test_it_stays_within_bounds_and_makes_one_step_at_a_time(things: list[tuple[str, object]]) -> None:
    wanted: dict[str, float] = {"a": 5, "b": 0.5}  # by operators, and by steps that stayed
    values, state = dict(wanted), State(version=0, since_ns=0)
    now_ns = heard_ns = 1
    version, silent, asked = 0, False, None
    for kind, what in things:
        answer = None
        if kind == "wait":
            now_ns += what  # type: ignore[operator]
        elif kind == "silent":
            silent = bool(what)
        elif kind == "gap":
            heard_ns = now_ns
        elif kind == "operator":
            version += 1
            if what:
                values[what] = wanted[what] = 3 if what == "a" else 0.3  # type: ignore[index]
        elif kind == "lost":
            asked = None
        elif asked is not None:
            measured, replayed, figure, programs, change = what if kind == "answer" else (1, 1, 1, 30, -0.5)  # type: ignore[misc]
            answer = Answer(
                number=asked.number - (kind == "late"),
                measured=measured,
                replayed=replayed,
                programs=programs,
                forecasts=tuple(
                    Forecast(
                        key=key, value=value, figure=figure, change=change, low=change, high=change, is_advised=True
                    )
                    for key, value in asked.settings
                ),
            )
            asked = None
        seen = Seen(
            values=values,
            heard_since_ns=heard_ns,
            version=version,
            why_not="silent" if silent else "",
            is_busy=asked is not None,
        )
        before = state
        state, order = step_on(before, seen, RULES, now_ns, answer)
        assert not (silent and order), "it does nothing while nothing is heard"
        match order:
            case Ask():
                assert asked is None, "one question at a time"
                asked = order
                for key, value in order.settings:
                    bound = next(each for each in BOUNDS if each.key == key)
                    assert bound.low <= value <= bound.high
                    assert state.step is None or value == state.step.before
            case Try(step=step):
                assert before.step is None
                assert values == wanted
                assert abs(step.after - step.before) <= 0.25 * (8 if step.key == "a" else 0.6) + 1e-3
                values[step.key] = step.after
            case Keep(step=step):
                wanted[step.key] = values[step.key]
            case TakeBack(step=step):
                values[step.key] = step.before
                assert state.phase is Phase.RESTS
                assert state.until_ns >= now_ns + RULES.cooldown_ns
        if state.step is None:
            assert values == wanted, "what is not judged is in force no longer than its trial"
        elif not silent and answer is None:
            assert now_ns - state.step.at_ns < 3 * RULES.stretch_ns, "somebody judges it, or it is taken back"
