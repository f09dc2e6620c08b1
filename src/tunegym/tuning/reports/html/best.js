// The best settings in full.

function tiles(experiment) {
  const { best, trials, time } = experiment;
  const measured = trials.statuses.measured || 0;
  const done = trials.total ? `${count(trials.done)} of ${count(trials.total)}` : count(trials.done);
  const tile = (name, value, about) => el("div", { class: "tile" }, el("span", {}, name), el("strong", {}, value), el("small", {}, about));
  const how = best && (best.confirmed ? `from ${plural(best.samples, "confirmation trial")}` : "not confirmed");
  return el("div", { class: "tiles" },
    experiment.per_context.length > 1
      ? tile("contexts", count(experiment.per_context.length), how || "nothing was measured in all of them")
      : tile(`best ${REWARD}`, best ? intervalText(best.reward, best.interval) : "none", best ? how : "nothing was measured"),
    tile("trials", done, `${count(measured)} measured, ${count(trials.done - measured)} not`),
    tile("time", seconds(time.wall_s), best && best.found_s !== null ? `best found after ${seconds(best.found_s)}` : ""),
    tile("agent", experiment.agent || "plain job", `seed ${experiment.seed}${experiment.repeats > 1 ? `, ${experiment.repeats} repeats` : ""}`));
}

const MOST_ROWS = 20; // of the best settings; the others are folded

function bestSection(experiment) {
  const { best, page } = experiment;
  if (!best) return section("best", "Best settings", null, empty("There is no best setting."));
  const settings = Object.entries(page.labels.best.action).map(([name, text]) => [name, { text: visible(text), class: "value" }]);
  const metrics = Object.entries(best.metrics).map(([name, mean]) => [withGoal(experiment, name), right(intervalText(mean, best.intervals[name])), right(number(best.spread[name], 2))]);
  const fixed = Object.entries(page.fixed);
  return section("best", "Best settings", best.violation > 0 ? "It exceeds a limit: no setting that was measured keeps all of them." : null,
    el("div", { class: "columns" },
      el("div", {}, el("h3", {}, "Settings"), settings.length ? table(["knob", "value"], settings.slice(0, MOST_ROWS), { label: "best settings" }) : empty("There is no knob."),
        settings.length > MOST_ROWS ? folded(`${plural(settings.length - MOST_ROWS, "more knob")}`, table(["knob", "value"], settings.slice(MOST_ROWS), { label: "more of the best settings" })) : null,
        fixed.length ? folded(`${plural(fixed.length, "fixed parameter")}`, table(["parameter", "value"], fixed.map(([name, text]) => [name, { text: visible(text), class: "value" }]))) : null),
      el("div", {}, el("h3", {}, "Measured"),
        experiment.per_context.length > 1 ? empty("Values of different contexts don't compare: each has its own above.") :
        table(["", right("mean ± interval"), right("spread")], [[REWARD, right(intervalText(best.reward, best.interval)), right("")], ...metrics], { label: "metrics of the best setting" }))));
}

function runSection(run, experiment) {
  const { time } = experiment;
  return section("run", "What was run", null,
    definitions([
      ["scenario", visible(run.scenario)],
      ["experiment", visible(experiment.name)],
      ["folder", visible(run.folder)],
      ["started", instant(time.started_at)],
      ["state", experiment.state + (experiment.code ? ` with exit code ${experiment.code}` : "") + (experiment.ended ? `: ${visible(experiment.ended)}` : "")],
      ["host", time.hosts.map(visible).join(", ")],
      ["slots", time.slots === null ? "" : String(time.slots)],
      ["sessions", String(time.sessions)],
      ["metrics", experiment.metrics.map((one) => withGoal(experiment, one)).join(", ")],
      ["objectives", experiment.objectives.map((one) => `${one.goal} ${visible(one.metric)}${one.limit !== undefined ? ` (limit ${number(one.limit)})` : ""}`).join(", ")],
    ]),
    run.source ? folded("scenario.toml as it was run", el("pre", {}, visible(run.source))) : null);
}
