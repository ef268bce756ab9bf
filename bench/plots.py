# SPDX-License-Identifier: Apache-2.0
"""The pictures of docs/explanation/performance.md, drawn from the rows that benchmarks write."""

from collections.abc import Callable
from typing import Any

import matplotlib

import harness

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

IMAGES = harness.ROOT / "docs/explanation/images"
COLOURS = {
    "fsdp": "#1f6f8b",
    "fsdp2": "#e07b39",
    "fsdp2-reshard": "#f0b27a",
    "ddp": "#8d8d8d",
    "zero3": "#b04a5a",
    "bound": "#3c3c3c",
}
OURS_BY_TRANSPORT = {"shm": "#0b3c49", "gloo": "#1f6f8b", "gloo-aliased": "#6fb1c7"}
Row = dict[str, Any]
matplotlib.rcParams.update(
    {
        "svg.hashsalt": "fsdp",  # the same picture gives the same file
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
    }
)


def label(row: Row) -> str:
    return f"fsdp, {row['transport']}" if row["system"] == "fsdp" else str(row["system"])


def figure(panels: int, width: float = 4.2) -> tuple[Figure, list[Axes]]:
    drawn, axes = plt.subplots(1, panels, figsize=(width * panels, 3.2), squeeze=False)
    return drawn, list(axes[0])


def save(drawn: Figure, name: str) -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    drawn.tight_layout()
    drawn.savefig(IMAGES / f"{name}.svg", metadata={"Date": None})
    drawn.savefig(harness.RESULTS / f"{name}.png", dpi=110)
    print(f"Drew docs/explanation/images/{name}.svg")


def lines(axes: Axes, rows: list[Row], x: str, y: str, series: Callable[[Row], str]) -> None:
    """A line for each series, in the order of first appearance."""
    for name in dict.fromkeys(series(row) for row in rows):
        mine = [row for row in rows if series(row) == name]
        system = str(mine[0].get("system", ""))
        is_bound = system == "bound"
        axes.plot(
            [row[x] for row in mine],
            [row[y] for row in mine],
            marker=None if is_bound else "o",
            markersize=3,
            linestyle="--" if is_bound else "-",
            color=OURS_BY_TRANSPORT.get(name.removeprefix("fsdp, "), COLOURS.get(system)),
            label=name,
        )
    axes.legend()


def errors(rows: list[Row], value: str = "step_ms") -> list[list[float]]:
    """Whiskers from the median to the quartiles."""
    return [
        [row[value] - row["spread"][0] for row in rows],
        [row["spread"][1] - row[value] for row in rows],
    ]


def steps(rows: list[Row]) -> None:
    """Bars with the spread over rounds; a dashed line for the bound."""
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    drawn, panels = figure(len(shapes))
    for axes, shape in zip(panels, shapes, strict=True):
        mine = [row for row in rows if row["shape"] == shape]
        bars = [row for row in mine if not row["system"].startswith("bound")]
        bound = next(row["step_ms"] for row in mine if row["system"] == "bound")
        times = [row["step_ms"] for row in bars]
        colours = [COLOURS[row["system"]] for row in bars]
        axes.barh([label(row) for row in bars], times, xerr=errors(bars), color=colours)
        axes.axvline(bound, color=COLOURS["bound"], linestyle="--", linewidth=1)
        for place, row in enumerate(bars):
            text = f" {row['ratio_to_bound']:.2f}"
            axes.text(row["spread"][1], place, text, va="center", fontsize=8)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.15 * max(row["spread"][1] for row in bars))
        axes.locator_params(axis="x", nbins=5)
        axes.set_title(f"{shape}-heavy (dashed: bound)", fontsize=9)
        axes.set_xlabel("ms per step; number: ratio to the bound")
    save(drawn, "step")


def legend_beside(axes: Axes) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def memory(rows: list[Row]) -> None:
    drawn, (axes,) = figure(1, width=6)
    table = [{**row, "millions": row["parameters"] / 1e6} for row in rows]
    lines(axes, table, "millions", "memory_mb", label)
    first = [row for row in table if row["system"] == table[0]["system"]]
    bound = [{**row, "system": "bound", "memory_mb": row["bound_mb"]} for row in first]
    lines(axes, bound, "millions", "memory_mb", label)
    axes.set_xlabel("million parameters")
    axes.set_ylabel("peak PSS of two ranks, MB")
    axes.set_ylim(bottom=0)
    legend_beside(axes)
    save(drawn, "memory")


def link(rows: list[Row]) -> None:
    """Groups of bars, a group for each rate; the bound of a group as a dashed line."""
    drawn, (axes,) = figure(1, width=6)
    rates = list(dict.fromkeys(row["gbit"] for row in rows))
    systems = list(dict.fromkeys(row["system"] for row in rows))
    width = 0.8 / len(systems)
    for place, system in enumerate(systems):
        mine = [row for row in rows if row["system"] == system]
        at = [i + (place + 0.5) * width - 0.4 for i in range(len(rates))]
        times = [row["step_ms"] for row in mine]
        axes.bar(at, times, width, yerr=errors(mine), color=COLOURS[system], label=system)
    for i, rate in enumerate(rates):
        row = next(row for row in rows if row["gbit"] == rate)
        bound = max(row["compute_ms"], row["collectives_ms"])
        text = "max(compute, collectives)" if i == 0 else "_"
        axes.hlines(bound, i - 0.4, i + 0.4, COLOURS["bound"], linestyle="--", label=text)
    axes.set_xticks(range(len(rates)), [f"{rate:g} Gbit/s" for rate in rates])
    axes.set_ylabel("ms per step")
    legend_beside(axes)
    save(drawn, "link")


def scale(by_ranks: list[Row], by_units: list[Row]) -> None:
    drawn, (left, right) = figure(2)
    lines(left, by_ranks, "ranks", "step_ms", label)
    left.set_xlabel("ranks on this machine, same global batch")
    left.set_ylabel("ms per step")
    left.set_xticks(sorted({row["ranks"] for row in by_ranks}))
    left.set_ylim(bottom=0)
    lines(right, by_units, "units", "step_ms", label)
    first = [row for row in by_units if row["transport"] == by_units[0]["transport"]]
    bound = [{**row, "system": "bound", "step_ms": row["bound_ms"]} for row in first]
    lines(right, bound, "units", "step_ms", label)
    right.set_xlabel("units of one model")
    right.set_ylim(bottom=0)
    save(drawn, "scale")


def collectives(rows: list[Row]) -> None:
    drawn, panels = figure(2)
    for axes, operation in zip(panels, ("all-gather", "reduce-scatter"), strict=True):
        mine = [row for row in rows if row["operation"] == operation]
        lines(axes, mine, "bytes", "gb_per_s", lambda row: str(row["transport"]))
        copies = [row for row in rows if row["operation"] == "memcpy"]
        copies = [row for row in copies if row["transport"] == copies[-1]["transport"]]
        bound = [{**row, "system": "bound"} for row in copies]
        lines(axes, bound, "bytes", "gb_per_s", lambda row: "memcpy")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_title(operation, fontsize=9)
        axes.set_xlabel("bytes of the whole unit")
        axes.set_ylabel("GB/s")
        axes.set_ylim(top=1000)
        axes.legend(loc="upper right", ncols=2)
    save(drawn, "collectives")


def tracker(rows: list[Row]) -> None:
    drawn, (axes,) = figure(1)
    names = [row["operator"].replace("_", ",\n") for row in rows]
    times = [row["ns"] for row in rows]
    axes.barh(names, times, xerr=errors(rows, "ns"), color=COLOURS["fsdp"])
    axes.invert_yaxis()
    axes.set_xlabel("ns a call of an 8 x 8 product")
    save(drawn, "tracker")
