// Lines over steps in windows: a live experiment over time.

// lines: [{label, values, style}]; a value is null where its window has none. band: {low, high} is drawn behind, marks:
// how many failed steps each window had, on a strip below. tip(index, line) names a point.
function linesPlot({ label, yTitle, ends, lines, band = null, marks = null, tip, height = 280, zero = false }) {
  const some = lines.flatMap((one) => one.values).filter((value) => value !== null);
  const outer = band ? [...band.low, ...band.high].filter((value) => value !== null) : [];
  const reach = new Reach([...some, ...outer], [...bulk(some), ...(zero ? [0] : []), ...(some.length ? [Math.max(...some)] : [])]);
  const marked = marks && marks.some((many) => many > 0);
  const draw = (plot) => {
    const [top, bottom, right] = [20, plot.height - 36 - (marked ? 22 : 0), plot.width - 8];
    const y = reach.scale([bottom, top]);
    const left = Math.ceil(plot.widest(y.ticks(8).map((tick) => tick.text))) + 12;
    const x = linear([0, ends[ends.length - 1] * 1.01 + 0.5], [left, right], true);
    plot.axes({ left, top, right, bottom, x, y, xTitle: "step", yTitle, xRoom: 80 });
    const { context } = plot;
    if (band) drawBand(context, ends, band, x, y);
    for (const line of lines) {
      context.strokeStyle = context.fillStyle = colour(line.style.colour);
      context.lineWidth = line.style.width || 1.8;
      context.globalAlpha = line.style.faint ? 0.45 : 1;
      context.setLineDash(line.style.dash || []);
      drawLine(context, ends, line.values, x, y);
      context.setLineDash([]);
      line.values.forEach((value, index) => {
        if (value === null) return;
        const far = y.far(value);
        if (far) farMark(context, x.at(ends[index]), y.at(value), far, 3);
        else if (lines.length * ends.length < 400) mark(context, "circle", x.at(ends[index]), y.at(value), 1.8);
        plot.hit(x.at(ends[index]), y.at(value), [index, line]);
      });
      context.globalAlpha = 1;
    }
    if (marked) {
      stripLine(plot, left, right, bottom + 18);
      marks.forEach((many, index) => {
        if (many) statusMark(context, "failed", x.at(ends[index]), bottom + 18, 3);
      });
    }
  };
  const plot = new Plot({ height, label, draw, tip: ([index, line]) => tip(index, line) });
  return { plot, reach };
}

// The mean over the last windows, each by how many values it has; few episodes in a window make its mean jump.
function steadied(values, counts) {
  const span = Math.max(5, Math.ceil(values.length / 15));
  return values.map((value, index) => {
    if (value === null) return null;
    const from = Math.max(0, index + 1 - span);
    const many = counts.slice(from, index + 1).reduce((sum, one) => sum + one, 0);
    return values.slice(from, index + 1).reduce((sum, one, at) => sum + (one === null ? 0 : (one * counts[from + at]) / many), 0);
  });
}

// Windows without a value don't break a line: that an episode is longer than a window says nothing.
function drawLine(context, ends, values, x, y) {
  context.beginPath();
  values.forEach((value, index) => {
    if (value !== null) context.lineTo(x.at(ends[index]), y.at(value));
  });
  context.stroke();
}

function drawBand(context, ends, band, x, y) {
  const known = ends.map((_, index) => index).filter((index) => band.low[index] !== null);
  context.fillStyle = colour("accent");
  context.globalAlpha = 0.14;
  context.beginPath();
  for (const index of known) context.lineTo(x.at(ends[index]), y.at(band.high[index]));
  for (const index of known.reverse()) context.lineTo(x.at(ends[index]), y.at(band.low[index]));
  context.fill();
  context.globalAlpha = 1;
}

// A choice of ranges beside a plot, where a few far values would stretch it.
function withRange(made, ...children) {
  const range = rangeChoice([made.reach], () => made.plot.redraw());
  return [el("div", { class: "bar-row" }, ...children, range), made.plot.node];
}

function stepSpan(page, index) {
  const last = page.ends[index];
  const first = index ? page.ends[index - 1] + 1 : 1;
  return first === last ? count(last) : `${count(first)}\u2013${count(last)}`;
}
