"""The same chart as a picture: plain SVG whose colours can be read on light and on dark ground."""

from collections.abc import Sequence
from html import escape

from areal_like.observe.charts import Series, finite_points, step_axis, tick_label, value_axis

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 56, 52
COLOURS = ("#e08a1e", "#3b82c4", "#2f9e6e", "#b05fb0")
GREY = "#808080"


def svg_chart(title: str, series: Sequence[Series], x_label: str = "step") -> str:
    """A whole file."""
    series = [one._replace(points=finite_points(one.points)) for one in series]
    series = [one for one in series if one.points]
    across = step_axis([x for one in series for x, _ in one.points], num_ticks=8)
    up = value_axis([y for one in series for _, y in one.points], num_ticks=6)
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return LEFT + across.share(x) * wide, TOP + (1.0 - up.share(y)) * high

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{GREY}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<text x="{LEFT}" y="22" font-size="15" font-weight="600">{escape(title)}</text>',
    ]
    for tick in up.ticks:
        y = place(across.low, tick)[1]
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GREY}" stroke-opacity="0.25"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick_label(tick)}</text>'
        )
    for tick in across.ticks:
        x = place(tick, up.low)[0]
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{tick_label(tick)}</text>')
    parts.append(
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="{GREY}"/>'
        f'<text x="{LEFT + wide / 2:.1f}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_label)}</text>'
    )
    at = float(LEFT)
    for index, one in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in one.points))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>'
        )
        if one.marked:
            dots = (place(*point) for point in one.points)
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in dots]
        parts.append(
            f'<rect x="{at:.1f}" y="33" width="12" height="12" rx="2" fill="{colour}"/>'
            f'<text x="{at + 18:.1f}" y="44">{escape(one.name)}</text>'
        )
        at += 42 + 7.2 * len(one.name)
    return "\n".join([*parts, "</svg>"]) + "\n"
