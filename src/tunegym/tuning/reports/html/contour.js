// Two knobs together: the mean of the search trials near each place. Where there are none, it is empty.

const CELLS = 32;

function surface(trials, rows, parameters, clamp) {
  const axes = parameters.map((one) => ({ one, scale: parameterScale(one, [0, 1]), cells: one.list ? one.labels.length : CELLS }));
  const width = Math.min(0.25, Math.max(0.06, 0.35 * rows.length ** (-1 / 3)));
  const places = axes.map(({ one, scale }) => rows.map((row) => scale.at(one.place(row))));
  // By axis, cell and row: the share of the row that counts there. A candidate counts in its own cell only.
  const shares = axes.map(({ one, cells }, axis) => Array.from({ length: cells }, (_, cell) => Float64Array.from(places[axis], (place) => {
    const away = Math.abs(place - (cell + 0.5) / cells);
    return one.list ? Number(away < 0.5 / cells) : away > 2.5 * width ? 0 : Math.exp(-0.5 * (away / width) ** 2);
  })));
  const values = Float64Array.from(rows, (row) => clamp(trials.score(row)));
  const grid = shares[0].map((across) => shares[1].map((up) => {
    let [sum, weight] = [0, 0];
    for (let index = 0; index < rows.length; index++) {
      const share = across[index] * up[index];
      weight += share;
      sum += share * values[index];
    }
    return weight > 0.4 ? sum / weight : null;
  }));
  return { grid, places, cells: axes.map((one) => one.cells) };
}

// Marching squares: the line at a level, from cell centre to cell centre.
function isoline(plot, grid, level, x, y) {
  for (let a = 0; a + 1 < grid.length; a++) {
    for (let b = 0; b + 1 < grid[a].length; b++) {
      const corners = [[a, b], [a + 1, b], [a + 1, b + 1], [a, b + 1]];
      const values = corners.map(([i, j]) => grid[i][j]);
      if (values.includes(null)) continue;
      const cut = [];
      corners.forEach(([i, j], at) => {
        const [from, to, [k, l]] = [values[at], values[(at + 1) % 4], corners[(at + 1) % 4]];
        if ((from < level) === (to < level)) return;
        const share = (level - from) / (to - from);
        cut.push([x(i + share * (k - i)), y(j + share * (l - j))]);
      });
      for (let at = 0; at + 1 < cut.length; at += 2) {
        plot.context.beginPath();
        plot.context.moveTo(...cut[at]);
        plot.context.lineTo(...cut[at + 1]);
        plot.context.stroke();
      }
    }
  }
}

function contourSection(trials, open) {
  const shares = knobShares(trials.experiment);
  const knobs = trials.knobs.slice().sort((a, b) => (shares.get(b.name) ?? -1) - (shares.get(a.name) ?? -1));
  const [pair] = trials.experiment.importance.pairs;
  const chosen = pair ? pair.names.map((name) => knobs.find((one) => one.name === name)) : knobs.slice(0, 2);
  const all = trials.searchRows;
  const rows = all.filter((_, index) => index % Math.ceil(all.length / 2000) === 0);
  const [low, high] = rewardReach(trials).near;
  const draw = (plot) => {
    const { context } = plot;
    const { grid, places, cells } = surface(trials, rows, chosen, (value) => Math.min(Math.max(value, low), high));
    const [least, most] = spanned(grid.flat().filter((one) => one !== null));
    const [top, bottom, right] = [20, plot.height - 36, plot.width - 8];
    const y = parameterScale(chosen[1], [bottom, top]);
    const left = Math.min(Math.ceil(plot.widest(y.ticks(8).map((tick) => tick.text))) + 12, plot.width * 0.3);
    const x = parameterScale(chosen[0], [left, right]);
    const [px, py] = [(share) => left + share * (right - left), (share) => bottom - share * (bottom - top)];
    const [weak, strong] = [colour("low"), colour("high")];
    const shade = (value) => mixed(weak, strong, most > least ? (value - least) / (most - least) : 1);
    grid.forEach((column, a) => column.forEach((value, b) => {
      if (value === null) return;
      context.fillStyle = shade(value);
      context.fillRect(px(a / cells[0]), py((b + 1) / cells[1]), px((a + 1) / cells[0]) - px(a / cells[0]) + 0.5, py(b / cells[1]) - py((b + 1) / cells[1]) + 0.5);
    }));
    context.strokeStyle = colour("card");
    context.lineWidth = 1;
    if (!chosen.some((one) => one.list)) {
      for (let level = 1; level < 7; level++) isoline(plot, grid, least + (level / 7) * (most - least), (i) => px((i + 0.5) / cells[0]), (j) => py((j + 0.5) / cells[1]));
    }
    plot.axes({ left, top, right, bottom, x: { ...x, pixels: [left, right] }, y, xTitle: visible(chosen[0].name), yTitle: visible(chosen[1].name) });
    context.fillStyle = colour("text");
    context.globalAlpha = 0.55;
    rows.forEach((row, index) => {
      const [across, up] = chosen.map((one, axis) => places[axis][index] + (one.list ? (0.6 / cells[axis]) * jitter(row + axis * 7919) : 0));
      mark(context, "circle", px(across), py(up), rows.length > 600 ? 1.2 : 2);
      plot.hit(px(across), py(up), row);
    });
    context.globalAlpha = 1;
    if (trials.bestRow !== undefined) plot.star(x.at(chosen[0].place(trials.bestRow)), y.at(chosen[1].place(trials.bestRow)));
    told.textContent = `From ${number(least, 3)} (light) to ${number(most, 3)} (dark).`;
  };
  const told = el("span", { class: "told" });
  const plot = new Plot({ height: 360, label: "Two knobs together", draw, tip: (row) => trials.tip(row), open });
  const pick = (axis) => select(axis ? "vertical axis" : "horizontal axis", trials.knobs.map((one) => [one.name, visible(one.name)]), chosen[axis].name, (name) => {
    chosen[axis] = trials.knobs.find((one) => one.name === name);
    plot.redraw();
  });
  return section("contour", "Two knobs together",
    `The mean ${trials.scoreTitle} of the search trials near each place${shares.size ? ", at first for the two knobs that matter most" : ""}. Where no trial is near, it is empty.`,
    el("div", { class: "bar-row" }, el("div", { class: "choices" }, pick(0), pick(1)), told), plot.node);
}
