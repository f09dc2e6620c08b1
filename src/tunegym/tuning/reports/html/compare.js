// Several runs in one table and in one plot.

const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
// Not over contexts, whose values don't compare: the table has those of each.
const valued = (entries) => entries.filter(({ best }) => best && best.value !== null);

function lineStyle(index) {
  return { colour: PALETTE[index % PALETTE.length], dash: DASHES[Math.floor(index / PALETTE.length) % DASHES.length] };
}

function entryName(entry, entries) {
  const runs = new Set(entries.map((one) => one.run));
  const experiments = new Set(entries.map((one) => one.experiment));
  if (runs.size === 1) return visible(entry.experiment);
  return experiments.size === 1 ? visible(entry.run) : `${visible(entry.run)} ${visible(entry.experiment)}`;
}

// The ranges of a group's plots. A run that did much worse is of interest, so only very far values are left out.
function compareReaches(entries) {
  const shown = valued(entries).map(({ best }) => best);
  const ends = (bests) => bests.flatMap(({ value }) => value.interval || [value.mean]);
  const usual = new Set(bulk(shown.map(({ value }) => value.mean)));
  const highest = Math.max(...shown.map(({ reward }) => reward));
  const near = shown.filter(({ value, reward }) => usual.has(value.mean) || reward === highest);
  const best = new Reach(ends(shown), ends(near), 100);
  const points = entries.flatMap(({ curve }) => [...curve.trials, ...curve.seconds].map(([, reward]) => reward));
  return [new Reach(points, [...(best.stretched ? near : shown).map(({ reward }) => reward), ...bulk(points)], 10), best];
}

function curvesPlot(entries, kind, reach) {
  const byTime = kind === "seconds";
  const last = (entry) => (byTime ? entry.curve.last_s : entry.curve.last_trial);
  const draw = (plot) => {
    const shown = entries.filter((entry) => entry.curve[kind].length);
    const end = Math.max(1e-9, ...shown.map(last));
    const unit = byTime ? timeUnit(end) : { name: "", size: 1 };
    const bottom = plot.height - 36;
    const y = reach.scale([bottom, 20]);
    const left = Math.ceil(plot.widest(y.ticks(8).map((tick) => tick.text))) + 12;
    const x = linear([0, (end / unit.size) * 1.02], [left, plot.width - 8]);
    plot.axes({ left, top: 20, right: plot.width - 8, bottom, x, y, xTitle: byTime ? `time (${unit.name})` : "trial", yTitle: `best ${entries[0].curve.what} so far` });
    shown.forEach((entry) => {
      const style = lineStyle(entries.indexOf(entry));
      plot.context.strokeStyle = plot.context.fillStyle = colour(style.colour);
      plot.context.setLineDash(style.dash);
      plot.context.lineWidth = 2;
      drawSteps(plot, entry.curve[kind].map(([at, reward]) => [at / unit.size, reward]), last(entry) / unit.size, x, y);
      plot.context.setLineDash([]);
      for (const [at, reward] of entry.curve[kind]) {
        if (y.far(reward)) farMark(plot.context, x.at(at / unit.size), y.at(reward), y.far(reward), 3.4);
        else mark(plot.context, "circle", x.at(at / unit.size), y.at(reward), 2.4);
        plot.hit(x.at(at / unit.size), y.at(reward), [entry, at, reward]);
      }
    });
  };
  const tip = ([entry, at, reward]) => [["run", visible(entry.run)], ["experiment", visible(entry.experiment)], [byTime ? "after" : "trial", byTime ? seconds(at) : String(at)], [entry.curve.what, number(reward, 6)]];
  return new Plot({ height: 280, label: byTime ? "Best so far over time" : "Best so far over trials", draw, tip });
}

// The best of each with its interval; a dot and a whisker, since a bar would need a zero that a reward does not have.
function bestPlot(shown, reach, entries) {
  const draw = (plot) => {
    const names = shown.map((entry) => entryName(entry, entries));
    const left = Math.min(Math.ceil(plot.widest(names)) + 14, plot.width * 0.42);
    const bottom = plot.height - 36;
    const x = reach.scale([left, plot.width - 14]);
    const y = categorical(names, [8, bottom]);
    plot.axes({ left, top: 8, right: plot.width - 14, bottom, x, y: { ...y, ticks: () => y.ticks(names.length) }, xTitle: `best ${shown[0].best.value.title} with its 95 % confidence interval` });
    shown.forEach((entry, index) => {
      const { mean, interval } = entry.best.value;
      const [px, py, far] = [x.at(mean), y.at(index), x.far(mean)];
      plot.context.strokeStyle = plot.context.fillStyle = colour(lineStyle(entries.indexOf(entry)).colour);
      plot.context.lineWidth = 2;
      if (interval) plot.line(x.at(interval[0]), py, x.at(interval[1]), py);
      mark(plot.context, far ? "triangle" : "circle", px - 8 * far, py, 5);
      plot.hit(px, py, entry);
    });
  };
  const tip = (entry) => [["run", visible(entry.run)], ["experiment", visible(entry.experiment)], ["best", entry.best.values[0]], ["samples", String(entry.best.samples)], ...Object.entries(entry.best.labels).map(([name, text]) => [visible(name), visible(text)])];
  return new Plot({ height: 56 + 30 * shown.length, label: "Best of each with its interval", draw, tip });
}

function compareGroup(title, entries, index) {
  const items = entries.map((entry, one) => ({ text: entryName(entry, entries), line: true, ...lineStyle(one) }));
  if (!entries.some((entry) => entry.best)) return section(`group-${index}`, title, null, empty("Too little was measured to compare anything."));
  const reaches = compareReaches(entries);
  const shown = valued(entries);
  const alike = new Set(shown.map(({ best }) => best.value.title)).size === 1; // other metrics don't compare
  const plots = [curvesPlot(entries, "trials", reaches[0]), curvesPlot(entries, "seconds", reaches[0]), ...(alike ? [bestPlot(shown, reaches[1], entries)] : [])];
  const told = el("p", { class: "told", role: "status" });
  const tell = () => { told.textContent = reaches.some((one) => one.outside) ? "Triangles at the edge mark values that lie farther out." : ""; };
  const range = rangeChoice(reaches, () => {
    tell();
    for (const plot of plots) plot.redraw();
  });
  tell();
  return section(`group-${index}`, title, null, el("div", { class: "bar-row" }, legend(items), range), range ? told : null,
    el("div", { class: "columns" }, el("div", {}, el("h3", {}, "Best so far, by trial"), plots[0].node), el("div", {}, el("h3", {}, "Best so far, by time"), plots[1].node)),
    ...(alike ? [el("h3", {}, "Best of each"), plots[2].node] : []));
}

function comparisonTable(entries) {
  const rows = entries.map((entry) => {
    const { best } = entry;
    return [
      visible(entry.run), visible(entry.experiment), visible(entry.agent || ""), entry.state, right(count(entry.trials)), right(count(entry.measured)),
      best ? best.values.join("; ") : "none", right(best ? best.better : ""), right(best ? count(best.samples) : "0"),
      { text: best ? pairs(best.labels) : "", class: "value" }, right(best ? seconds(best.found_s) : ""), right(seconds(entry.total_s)),
    ];
  });
  return table(["run", "experiment", "agent", "state", right("trials"), right("measured"), "best", right("gain"), right("samples"), "best settings", right("time to best"), right("total time")], rows, { label: "runs" });
}

function comparePage(facts) {
  const entries = facts.entries.filter((entry) => !entry.live);
  const groups = new Map();
  for (const entry of entries) groups.set(entry.experiment, [...(groups.get(entry.experiment) || []), entry]);
  const shared = [...groups.values()].some((group) => group.length > 1);
  const place = el("div");
  const show = (how) => {
    const shown = how === "experiment" ? [...groups] : [["All experiments", entries]];
    place.replaceChildren(...shown.map(([title, group], index) => compareGroup(visible(title), group, index)));
  };
  const options = [["experiment", "by experiment"], ["all", "all together"]];
  if (!shared) options.reverse();
  const runs = new Set(facts.entries.map((entry) => entry.folder)).size;
  const node = el("div", {}, el("header", {}, el("h1", {}, `${plural(runs, "run")} compared`), el("p", {}, instant(facts.written_at))),
    ...facts.warnings.map((text) => box("note", el("strong", {}, "Compare with care"), el("p", {}, visible(text)))),
    entries.length ? section("table", "Runs", null, comparisonTable(entries)) : null,
    entries.length < facts.entries.length ? liveSection(facts) : null,
    groups.size > 1 ? el("div", { class: "bar-row grouping" }, choice("plots", options, show)) : null, place,
    el("footer", {}, "Written by tunegym. This file needs no network."));
  if (entries.length) show(options[0][0]);
  return node;
}
