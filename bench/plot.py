"""Plots of lines as SVG, without a library."""

COLOURS = ["#222", "#c33", "#38c", "#3a3"]
WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 40, 260


def lines(path, title, across, series, marks=()):
    """Writes `series`, a name and points (x, y) each, over one axis; `across` names x.
    `marks` are places on x with a word each."""
    end_x = max(x for _, points in series for x, _ in points)
    end_y = max(y for _, points in series for _, y in points) * 1.05
    at_x = lambda x: LEFT + (WIDTH - LEFT - RIGHT) * x / end_x
    at_y = lambda y: BOTTOM - (BOTTOM - TOP) * y / end_y
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
           'font-family="sans-serif" font-size="11">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
           f'<path d="M{LEFT} {TOP}V{BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="#999"/>']
    for x, word in marks:
        svg.append(f'<path d="M{at_x(x):.1f} {TOP}V{BOTTOM}" stroke="#ddd"/>'
                   f'<text x="{at_x(x) + 2:.1f}" y="{TOP + 10}" fill="#777">{word}</text>')
    for number, (name, points) in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        drawn = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in points)
        svg.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}"/>'
                   f'<text x="{LEFT + 160 * number}" y="28" fill="{colour}">{name}</text>')
    svg += [f'<text x="{LEFT}" y="14">{title}; the axis ends at {end_y:.3g}</text>',
            f'<text x="{LEFT}" y="{BOTTOM + 15}">0</text>',
            f'<text x="{WIDTH - RIGHT}" y="{BOTTOM + 15}" text-anchor="end">{end_x:.4g} {across}</text>',
            "</svg>"]
    with open(path, "w", encoding="utf-8") as out:
        out.write("\n".join(svg) + "\n")
