// The answer in words and as one picture, and the evidence that it rests on.

// Finalists and baseline of one verdict: a dot for the mean, a whisker for the interval, what it gains beside it.
function whiskerPlot(verdict) {
  const { rows, title } = verdict;
  const known = rows.filter((row) => row.mean !== null);
  const base = known.find((row) => row.baseline);
  const draw = (plot) => {
    const { context } = plot;
    const gains = plot.width > 480 ? rows.map((row) => row.gain) : [];
    const [top, bottom, right] = [6, plot.height - 36, plot.width - 14 - Math.ceil(plot.widest(gains))];
    const left = Math.min(Math.ceil(plot.widest(rows.map((row) => visible(row.label)))) + 14, plot.width * 0.42);
    const x = linear(padded(spanned(known.flatMap(({ mean, low, high }) => [mean, low ?? mean, high ?? mean])), 0.06), [left, right - 8]);
    const y = categorical(rows.map((row) => visible(row.label)), [top, bottom]);
    plot.axes({ left, top, right, bottom, x, y: { ...y, ticks: () => y.ticks(rows.length) }, xTitle: visible(title) });
    if (base) {
      context.strokeStyle = colour("muted");
      context.setLineDash([4, 4]);
      plot.line(x.at(base.mean), top, x.at(base.mean), bottom);
      context.setLineDash([]);
    }
    rows.forEach((row, index) => {
      const at = y.at(index);
      context.fillStyle = colour("muted");
      [context.textAlign, context.textBaseline] = ["left", "middle"];
      if (gains.length) context.fillText(row.gain, right + 6, at);
      if (row.mean === null) return;
      context.strokeStyle = context.fillStyle = colour(row.role === "answer" ? "best" : row.role === "tie" ? "accent" : "muted");
      context.lineWidth = 2;
      if (row.low !== null && row.high > row.low) {
        plot.line(x.at(row.low), at, x.at(row.high), at);
        for (const end of [row.low, row.high]) plot.line(x.at(end), at - 4, x.at(end), at + 4);
      }
      if (row.role === "answer") plot.star(x.at(row.mean), at);
      else mark(context, row.baseline ? "diamond" : "circle", x.at(row.mean), at, 4.4);
      plot.hit(x.at(row.mean), at, row);
    });
  };
  const tip = (row) => [["setting", visible(row.label)], ...row.tip.map(([name, text]) => [visible(name), text])];
  return new Plot({ height: 52 + 26 * rows.length, label: `Finalists and baseline with intervals${verdict.context ? ` at ${verdict.context}` : ""}`, draw, tip });
}

function answerSection(experiment) {
  const { verdicts, confidence } = experiment.page.answer;
  const [overall, ...contexts] = verdicts;
  const drawn = verdicts.filter(({ rows }) => rows.some((row) => row.mean !== null));
  const figure = (one) => el("figure", {}, el("figcaption", {}, verdicts.length > 1 ? visible(one.context || "over all contexts") : ""), whiskerPlot(one).node);
  const items = [["answer", "star", "best"], ["tie", "circle", "accent"], ["other", "circle", "muted"]].filter(([role]) => drawn.some(({ rows }) => rows.some((row) => row.role === role && !row.baseline)))
    .map(([role, shape, name]) => ({ text: { answer: "the answer", tie: "can't be told apart from it", other: "other finalists" }[role], shape, colour: name }));
  if (drawn.some(({ rows }) => rows.some((row) => row.baseline))) items.push({ text: "baseline", shape: "diamond", colour: "muted" });
  return section("answer", "Answer", null, el("p", { class: "lead" }, visible(overall.sentence)),
    contexts.length ? el("ul", { class: "sentences" }, ...contexts.slice(0, MOST_CONTEXTS).map((one) => el("li", {}, visible(one.sentence)))) : null,
    drawn.length ? el("div", { class: "bar-row" }, legend([...items, { text: `${confidence} % confidence interval`, line: true, colour: "muted" }])) : null,
    overall.rows.length && drawn.includes(overall) ? figure(overall) : null,
    el("div", { class: "figures wide" }, ...drawn.filter((one) => one !== overall).slice(0, MOST_CONTEXTS).map(figure)));
}

function evidenceSection(experiment) {
  const { verdicts, titles, phases, noise, not_tested: untested } = experiment.page.answer;
  const rows = verdicts.flatMap((one) => one.rows.map((row) => [...(verdicts.length > 1 ? [visible(one.context || "over all")] : []), visible(row.label), row.role === "other" ? "" : row.role, ...row.cells.map(right)]));
  const notes = verdicts.flatMap((one) => one.notes.map((note) => `${verdicts.length > 1 && one.context ? `${one.context}: ` : ""}${note}`));
  return section("evidence", "What it rests on", null,
    definitions([["trials", phases], ["noise", noise], ["not tested", visible(untested)]]),
    ...[...new Set(notes)].map((note) => el("p", { class: "about" }, visible(note))),
    rows.length ? table([...(verdicts.length > 1 ? ["context"] : []), "setting", "", ...titles.map(right)], rows, { label: "evidence" }) : null);
}
