"""A fleet split into cells: the same programs, each in one cell, and all of them run to their end."""

from dataclasses import replace

from scaled import cells as fleet_cells
from scaled.cells import Fleet

FLEET = Fleet(
    replicas=4,
    programs=5,
    turns=2,
    arrive_s=5.0,
    pool_tokens=40_000,
    preset="penstock",
    routing="",
    seed=1,
)


def test_each_program_is_in_one_cell_and_more_cells_do_not_change_it() -> None:
    whole, halves = fleet_cells.split(FLEET, 1), fleet_cells.split(FLEET, 2)
    assert [cell.replicas for cell in halves] == [2, 2]
    assert sorted(index for cell in halves for index in cell.mine) == list(whole[0].mine) == list(range(20))
    assert fleet_cells.split(FLEET, 2) == halves
    assert fleet_cells.draw(FLEET, 7) == fleet_cells.draw(halves[0].fleet, 7)
    assert fleet_cells.draw(FLEET, 7) != fleet_cells.draw(replace(FLEET, seed=2), 7)


def test_the_figures_of_a_fleet_are_those_of_its_cells() -> None:
    found = [fleet_cells.run(cell) for cell in fleet_cells.split(FLEET, 2)]
    figures = fleet_cells.summed(FLEET.replicas, found, wall_s=1.0)
    assert (figures["programs"], figures["turns"], figures["failed"]) == (20, 40, 0)
    assert figures["events"] > 3 * figures["turns"]
    assert figures["least_jct_s"] <= figures["jct_mean_s"] <= figures["most_jct_s"]
    assert 0 < figures["tick_p50_ms"] <= figures["tick_p99_ms"]
