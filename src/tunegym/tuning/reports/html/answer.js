// The answer in words and as one picture, and the evidence that it rests on. Its labels and cells are printable.

const ROLES = { answer: ["the answer", "star", "best"], tie: ["can't be told apart from it", "circle", "accent"], other: ["other settings", "circle", "muted"] };

// The settings of one verdict on the scale of its gains: a mark for the mean, a whisker for the interval.
function whiskerPlot(verdict) {
  const { title, is_ratio: isRatio } = verdict;
  const rows = verdict.rows.filter((row) => row.mean !== null);
  const labels = rows.map((row) => row.label);
  const [low, high] = spanned(rows.flatMap(({ mean, low, high }) => [mean, low ?? mean, high ?? mean]));
  const base = rows.find((row) => row.baseline);
  const draw = (plot) => {
    const { context } = plot;
    const [top, bottom, right] = [6, plot.height - 36, plot.width - 14];
    const left = Math.min(Math.ceil(plot.widest(labels)) + 14, plot.width * 0.42);
    const pixels = [left, right - 8];
    const x = isRatio && high > 3 * low ? logarithmic([low / 1.06, high * 1.06], pixels) : linear(padded([low, high], 0.06), pixels);
    const y = categorical(labels, [top, bottom]);
    plot.axes({ left, top, right, bottom, x, y: { ...y, ticks: () => y.ticks(rows.length) }, xTitle: title });
    if (base) {
      context.strokeStyle = colour("muted");
      context.setLineDash([4, 4]);
      plot.line(x.at(base.mean), top, x.at(base.mean), bottom);
      context.setLineDash([]);
    }
    rows.forEach((row, index) => {
      const [px, py] = [x.at(row.mean), y.at(index)];
      const [, shape, name] = ROLES[row.role];
      context.strokeStyle = context.fillStyle = colour(name);
      context.lineWidth = 2;
      if (row.high > row.low) {
        plot.line(x.at(row.low), py, x.at(row.high), py);
        for (const end of [row.low, row.high]) plot.line(x.at(end), py - 4, x.at(end), py + 4);
      }
      if (shape === "star") plot.star(px, py);
      else mark(context, row.baseline ? "diamond" : shape, px, py, 4.4);
      plot.hit(px, py, row);
    });
  };
  const tip = (row) => [["settings", row.label], ...Object.entries(row.cells).filter(([, text]) => text)];
  return new Plot({ height: 52 + 26 * rows.length, label: `Gains with intervals${verdict.context ? ` at ${verdict.context}` : ""}`, draw, tip });
}

function answerSection(experiment) {
  const { verdicts } = experiment.page.answer;
  const [overall, ...contexts] = verdicts;
  const shown = [overall, ...contexts.slice(0, MOST_CONTEXTS)];
  const drawn = shown.filter(({ rows }) => rows.filter((row) => row.mean !== null).length > 1); // one alone says nothing
  const figures = drawn.map((verdict) => el("figure", {}, contexts.length ? el("figcaption", {}, verdict.context || "over all contexts") : null, whiskerPlot(verdict).node));
  const rows = drawn.flatMap((verdict) => verdict.rows);
  const items = Object.entries(ROLES).filter(([role]) => rows.some((row) => row.role === role && !row.baseline))
    .map(([, [text, shape, name]]) => ({ text, shape, colour: name }));
  if (rows.some((row) => row.baseline)) items.push({ text: "your settings", shape: "diamond", colour: "muted" });
  return section("answer", "Answer", null, el("p", { class: "lead" }, visible(overall.sentence)),
    contexts.length ? el("ul", { class: "sentences" }, ...shown.slice(1).map((verdict) => el("li", {}, visible(verdict.sentence)))) : null,
    drawn.length ? el("div", { class: "bar-row" }, legend([...items, { text: "95 % confidence interval", line: true, colour: "muted" }])) : null,
    el("div", { class: "figures wide" }, ...figures));
}

function evidenceSection(experiment) {
  const { verdicts, phases, drift, tried } = experiment.page.answer;
  const several = verdicts.length > 1;
  const named = (verdict, cells) => (several ? [verdict.context || "over all", ...cells] : cells);
  const rows = verdicts.flatMap((verdict) => verdict.rows.map((row) => named(verdict, [row.label, ...Object.values(row.cells).map(right)])));
  const notes = verdicts.flatMap((verdict) => verdict.notes.map((note) => `${verdict.context ? `${verdict.context}: ` : ""}${note}`));
  const titles = verdicts.flatMap((verdict) => verdict.rows.map((row) => Object.keys(row.cells)))[0];
  return section("evidence", "What it rests on", null,
    definitions([["trials", phases], ["settings measured", tried], ["drift", drift]]),
    ...[...new Set(notes)].map((note) => el("p", { class: "about" }, visible(note))),
    rows.length ? table([...(several ? ["context"] : []), "settings", ...titles.map(right)], rows, { label: "evidence" }) : null);
}
