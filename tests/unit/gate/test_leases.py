"""How many programs hold a slot is counted as they change: always as many as a look at all of them finds."""

from hypothesis import given
from hypothesis import strategies as st

from controlplane.gate.programs import ProgramTable

STEPS = st.tuples(
    st.sampled_from(["grant", "turn", "end", "revoke", "drop", "wait", "wait"]),
    st.integers(0, 5),
    st.integers(1, 9),
)


@given(st.lists(STEPS, max_size=80), st.integers(2, 6))
def test_the_count_is_what_a_look_at_all_finds(steps: list[tuple[str, int, int]], most: int) -> None:
    table, now_ns = ProgramTable(most), 1
    for step, number, by_ns in steps:
        program = table.use(f"p{number}")
        match step:
            case "grant":
                program.grant(by_ns, now_ns, local=False)
            case "turn":
                program.turn(1, now_ns)
            case "end" if program.running:
                program.turn(-1, now_ns)
            case "revoke":
                program.revoke()
            case "drop":
                table.drop(program.program_id)
            case "wait":
                now_ns += by_ns
        assert table.leases.count(now_ns) == sum(1 for each in table if each.running or each.granted(now_ns))
